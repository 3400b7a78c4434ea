// iree-compile --iree-input-type=auto --iree-opt-level=O2 --iree-hal-target-backends=vulkan-spirv \
//   --iree-vulkan-target=ampere -o /dev/null cooperative-matrix.mlir
//
// error: no GPU subgroup mma compute ops generated
func.func @f(%w: tensor<256x256xf16>, %x: tensor<16x256xf16>) -> tensor<256x16xf32> {
  %y = stablehlo.dot_general %w, %x, contracting_dims = [1] x [1] : (tensor<256x256xf16>, tensor<16x256xf16>) -> tensor<256x16xf32>
  return %y : tensor<256x16xf32>
}
