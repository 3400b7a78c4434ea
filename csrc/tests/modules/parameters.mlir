// A product with a weight, given as a named parameter.
module @parameters {
  util.global private @w = #flow.parameter.named<"model"::"weight"> : tensor<16x32xf32>
  util.global private @b = #flow.parameter.named<"model"::"bias"> : tensor<16x1xf32>
  func.func @apply(%x: tensor<32x1xf32>) -> tensor<16x1xf32> {
    %w = util.global.load @w : tensor<16x32xf32>
    %b = util.global.load @b : tensor<16x1xf32>
    %0 = stablehlo.dot_general %w, %x, contracting_dims = [1] x [0]
        : (tensor<16x32xf32>, tensor<32x1xf32>) -> tensor<16x1xf32>
    %1 = stablehlo.add %0, %b : tensor<16x1xf32>
    return %1 : tensor<16x1xf32>
  }
}
