// iree-compile --iree-input-type=auto --iree-hal-target-backends=cuda --iree-cuda-target=sm_75 cuda-turing-f16.mlir -o /dev/null
func.func public @contract(%x: tensor<32x64xf16>, %w: tensor<128x64xf16>) -> tensor<32x128xf32> {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [1]
      : (tensor<32x64xf16>, tensor<128x64xf16>) -> tensor<32x128xf32>
  return %y : tensor<32x128xf32>
}
