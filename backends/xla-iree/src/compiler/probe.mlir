// One contraction, of one row and of several, as a step has them. What stands in capitals is what is tried.
module @probe {
  func.func public @contract(%one: tensor<1x64xELEM>, %rows: tensor<32x64xELEM>, %weight: tensor<128x64xSTORED>)
      -> (tensor<1x128xf32>, tensor<32x128xf32>) {
    %w = stablehlo.convert %weight : (tensor<128x64xSTORED>) -> tensor<128x64xELEM>
    %y = stablehlo.dot_general %one, %w, contracting_dims = [1] x [1]
        : (tensor<1x64xELEM>, tensor<128x64xELEM>) -> tensor<1x128xf32>
    %ys = stablehlo.dot_general %rows, %w, contracting_dims = [1] x [1]
        : (tensor<32x64xELEM>, tensor<128x64xELEM>) -> tensor<32x128xf32>
    return %y, %ys : tensor<1x128xf32>, tensor<32x128xf32>
  }
}
