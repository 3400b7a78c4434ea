// iree-compile --iree-input-type=auto --iree-opt-level=O2 --iree-hal-target-backends=vulkan-spirv
//   --iree-vulkan-target=vp_android_baseline_2022 spirv-softmax.mlir -o spirv-softmax.vmfb
// error: function 'softmax_dispatch_0_reduction_9xD_f32' uses 324259173170675804 bytes of shared memory
// With --iree-vulkan-target=ampere, or with a length that is known, it compiles.
func.func @softmax(%scores: tensor<3x3x?xf32>) -> tensor<3x3x?xf32> {
  %lowest = arith.constant 0xFF800000 : f32
  %zero = arith.constant 0.0 : f32
  %two = arith.constant 2 : index
  %n = tensor.dim %scores, %two : tensor<3x3x?xf32>
  %rows = tensor.empty() : tensor<3x3xf32>
  %all = tensor.empty(%n) : tensor<3x3x?xf32>
  %l0 = linalg.fill ins(%lowest : f32) outs(%rows : tensor<3x3xf32>) -> tensor<3x3xf32>
  %t0 = linalg.fill ins(%zero : f32) outs(%rows : tensor<3x3xf32>) -> tensor<3x3xf32>
  %largest = linalg.generic {indexing_maps = [affine_map<(a, b, c) -> (a, b, c)>, affine_map<(a, b, c) -> (a, b)>],
      iterator_types = ["parallel", "parallel", "reduction"]} ins(%scores : tensor<3x3x?xf32>) outs(%l0 : tensor<3x3xf32>) {
  ^bb0(%x: f32, %m: f32):
    %y = arith.maximumf %m, %x : f32
    linalg.yield %y : f32
  } -> tensor<3x3xf32>
  %weights = linalg.generic {indexing_maps = [affine_map<(a, b, c) -> (a, b, c)>, affine_map<(a, b, c) -> (a, b)>, affine_map<(a, b, c) -> (a, b, c)>],
      iterator_types = ["parallel", "parallel", "parallel"]} ins(%scores, %largest : tensor<3x3x?xf32>, tensor<3x3xf32>) outs(%all : tensor<3x3x?xf32>) {
  ^bb0(%x: f32, %m: f32, %o: f32):
    %d = arith.subf %x, %m : f32
    %y = math.exp %d : f32
    linalg.yield %y : f32
  } -> tensor<3x3x?xf32>
  %total = linalg.generic {indexing_maps = [affine_map<(a, b, c) -> (a, b, c)>, affine_map<(a, b, c) -> (a, b)>],
      iterator_types = ["parallel", "parallel", "reduction"]} ins(%weights : tensor<3x3x?xf32>) outs(%t0 : tensor<3x3xf32>) {
  ^bb0(%x: f32, %s: f32):
    %y = arith.addf %s, %x : f32
    linalg.yield %y : f32
  } -> tensor<3x3xf32>
  %shares = linalg.generic {indexing_maps = [affine_map<(a, b, c) -> (a, b, c)>, affine_map<(a, b, c) -> (a, b)>, affine_map<(a, b, c) -> (a, b, c)>],
      iterator_types = ["parallel", "parallel", "parallel"]} ins(%weights, %total : tensor<3x3x?xf32>, tensor<3x3xf32>) outs(%all : tensor<3x3x?xf32>) {
  ^bb0(%x: f32, %s: f32, %o: f32):
    %y = arith.divf %x, %s : f32
    linalg.yield %y : f32
  } -> tensor<3x3x?xf32>
  return %shares : tensor<3x3x?xf32>
}
