// iree-compile --iree-input-type=auto --iree-opt-level=O3 --iree-hal-target-backends=cuda \
//   --iree-cuda-target=sm_80 --compile-to=flow dequantised-matmul.mlir
//
// A prompt of 128 rows times a weight of 4 bits. The weight is written to memory in f32 by a kernel of its own.
func.func @f(%w: tensor<4096x64x32xui4>, %s: tensor<4096x64xf16>, %b: tensor<4096x64xf16>, %x: tensor<128x2048xf32>) -> tensor<4096x128xf32> {
  %v = stablehlo.convert %w : (tensor<4096x64x32xui4>) -> tensor<4096x64x32xf32>
  %s32 = stablehlo.convert %s : (tensor<4096x64xf16>) -> tensor<4096x64xf32>
  %b32 = stablehlo.convert %b : (tensor<4096x64xf16>) -> tensor<4096x64xf32>
  %ss = stablehlo.broadcast_in_dim %s32, dims = [0, 1] : (tensor<4096x64xf32>) -> tensor<4096x64x32xf32>
  %bs = stablehlo.broadcast_in_dim %b32, dims = [0, 1] : (tensor<4096x64xf32>) -> tensor<4096x64x32xf32>
  %scaled = stablehlo.multiply %v, %ss : tensor<4096x64x32xf32>
  %g = stablehlo.add %scaled, %bs : tensor<4096x64x32xf32>
  %m = stablehlo.reshape %g : (tensor<4096x64x32xf32>) -> tensor<4096x2048xf32>
  %y = stablehlo.dot_general %m, %x, contracting_dims = [1] x [1] : (tensor<4096x2048xf32>, tensor<128x2048xf32>) -> tensor<4096x128xf32>
  return %y : tensor<4096x128xf32>
}
