// What a decode step is made of, small: a packed contraction, a softmax, a rotation, a row of a cache.
// What stands in capitals is what a target reads: selftest.rs fills it in.
module @selftest {
  func.func public @probe(
      %words: WORDS, %scales: tensor<16x2xSCALE>, %biases: tensor<16x2xSCALE>,
      %x: tensor<2x32xf32>, %angles: tensor<16xf32>, %row: i32, %cache: tensor<?x16xf32>)
      -> (tensor<16xf32>, tensor<16xf32>, tensor<?x16xf32>) {
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %lowest = stablehlo.constant dense<0xFF800000> : tensor<f32>
    UNPACK
    %s1 = stablehlo.convert %scales : (tensor<16x2xSCALE>) -> tensor<16x2xf32>
    %s = stablehlo.broadcast_in_dim %s1, dims = [0, 1] : (tensor<16x2xf32>) -> tensor<16x2x32xf32>
    %b1 = stablehlo.convert %biases : (tensor<16x2xSCALE>) -> tensor<16x2xf32>
    %b = stablehlo.broadcast_in_dim %b1, dims = [0, 1] : (tensor<16x2xf32>) -> tensor<16x2x32xf32>
    %xb = stablehlo.broadcast_in_dim %x, dims = [1, 2] : (tensor<2x32xf32>) -> tensor<16x2x32xf32>
    %qs = stablehlo.multiply %q, %s : tensor<16x2x32xf32>
    %w = stablehlo.add %qs, %b : tensor<16x2x32xf32>
    %wx = stablehlo.multiply %w, %xb : tensor<16x2x32xf32>
    %scores = stablehlo.reduce(%wx init: %zero) applies stablehlo.add across dimensions = [1, 2]
        : (tensor<16x2x32xf32>, tensor<f32>) -> tensor<16xf32>
    %m1 = stablehlo.reduce(%scores init: %lowest) applies stablehlo.maximum across dimensions = [0]
        : (tensor<16xf32>, tensor<f32>) -> tensor<f32>
    %m = stablehlo.broadcast_in_dim %m1, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %d = stablehlo.subtract %scores, %m : tensor<16xf32>
    %e = stablehlo.exponential %d : tensor<16xf32>
    %t1 = stablehlo.reduce(%e init: %zero) applies stablehlo.add across dimensions = [0]
        : (tensor<16xf32>, tensor<f32>) -> tensor<f32>
    %t = stablehlo.broadcast_in_dim %t1, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %p = stablehlo.divide %e, %t : tensor<16xf32>
    %cos = stablehlo.cosine %angles : tensor<16xf32>
    %sin = stablehlo.sine %angles : tensor<16xf32>
    %back = stablehlo.reverse %scores, dims = [0] : tensor<16xf32>
    %r1 = stablehlo.multiply %scores, %cos : tensor<16xf32>
    %r2 = stablehlo.multiply %back, %sin : tensor<16xf32>
    %rotated = stablehlo.add %r1, %r2 : tensor<16xf32>
    %line = stablehlo.reshape %rotated : (tensor<16xf32>) -> tensor<1x16xf32>
    %at = arith.index_cast %row : i32 to index
    %grown = tensor.insert_slice %line into %cache[%at, 0] [1, 16] [1, 1]
        : tensor<1x16xf32> into tensor<?x16xf32>
    return %p, %rotated, %grown : tensor<16xf32>, tensor<16xf32>, tensor<?x16xf32>
  }
}
