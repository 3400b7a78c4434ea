// A product with a weight, given as an argument.
module @matvec {
  func.func @apply(%w: tensor<16x32xf32>, %x: tensor<32x1xf32>) -> tensor<16x1xf32> {
    %0 = stablehlo.dot_general %w, %x, contracting_dims = [1] x [0]
        : (tensor<16x32xf32>, tensor<32x1xf32>) -> tensor<16x1xf32>
    return %0 : tensor<16x1xf32>
  }
}
