// A KV cache: a row is written into an argument, which must happen in place.
module @kv {
  func.func @update(%cache: tensor<64x8xf32>, %row: tensor<1x8xf32>, %pos: tensor<i32>)
      -> tensor<64x8xf32> {
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %0 = stablehlo.dynamic_update_slice %cache, %row, %pos, %zero
        : (tensor<64x8xf32>, tensor<1x8xf32>, tensor<i32>, tensor<i32>) -> tensor<64x8xf32>
    return %0 : tensor<64x8xf32>
  }
  // Two caches in one call, with the position as a plain scalar; returns a sum over both.
  func.func @step(%k: tensor<64x8xf32>, %v: tensor<64x8xf32>, %row: tensor<1x8xf32>, %pos: i64)
      -> (tensor<f32>, tensor<64x8xf32>, tensor<64x8xf32>) {
    %p = tensor.from_elements %pos : tensor<i64>
    %zero = stablehlo.constant dense<0> : tensor<i64>
    %twice = stablehlo.add %row, %row : tensor<1x8xf32>
    %k1 = stablehlo.dynamic_update_slice %k, %row, %p, %zero
        : (tensor<64x8xf32>, tensor<1x8xf32>, tensor<i64>, tensor<i64>) -> tensor<64x8xf32>
    %v1 = stablehlo.dynamic_update_slice %v, %twice, %p, %zero
        : (tensor<64x8xf32>, tensor<1x8xf32>, tensor<i64>, tensor<i64>) -> tensor<64x8xf32>
    %both = stablehlo.add %k1, %v1 : tensor<64x8xf32>
    %start = stablehlo.constant dense<0.0> : tensor<f32>
    %sum = stablehlo.reduce(%both init: %start) applies stablehlo.add across dimensions = [0, 1]
        : (tensor<64x8xf32>, tensor<f32>) -> tensor<f32>
    return %sum, %k1, %v1 : tensor<f32>, tensor<64x8xf32>, tensor<64x8xf32>
  }
}
