// iree-compile --iree-input-type=auto --iree-hal-target-backends=vulkan-spirv spirv-reduction-race.mlir
//
// A product whose loops (d0, d1, ...) are in another order than its result's dimensions (d1, d0, ...).
func.func @weigh(%w: tensor<2x16x2x?xf32>, %v: tensor<?x2x16xf32>) -> tensor<16x2x2x16xf32> {
  %empty = tensor.empty() : tensor<16x2x2x16xf32>
  %zero = arith.constant 0.0 : f32
  %init = linalg.fill ins(%zero : f32) outs(%empty : tensor<16x2x2x16xf32>) -> tensor<16x2x2x16xf32>
  %y = linalg.generic {
      indexing_maps = [affine_map<(d0, d1, d2, d3, d4) -> (d0, d1, d2, d3)>,
                       affine_map<(d0, d1, d2, d3, d4) -> (d3, d0, d4)>,
                       affine_map<(d0, d1, d2, d3, d4) -> (d1, d0, d2, d4)>],
      iterator_types = ["parallel", "parallel", "parallel", "reduction", "parallel"]}
      ins(%w, %v : tensor<2x16x2x?xf32>, tensor<?x2x16xf32>) outs(%init : tensor<16x2x2x16xf32>) {
  ^bb0(%a: f32, %b: f32, %out: f32):
    %p = arith.mulf %a, %b : f32
    %s = arith.addf %out, %p : f32
    linalg.yield %s : f32
  } -> tensor<16x2x2x16xf32>
  return %y : tensor<16x2x2x16xf32>
}
