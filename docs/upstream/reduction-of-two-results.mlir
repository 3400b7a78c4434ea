// iree-compile --iree-input-type=auto --iree-opt-level=O3 --iree-hal-target-backends=cuda \
//   --iree-cuda-target=sm_80 --iree-hal-dump-executable-configurations-to=. -o /dev/null \
//   reduction-of-two-results.mlir
//
// Two rows of activations times one weight, which is read once. With one result the pipeline is VectorDistribute,
// a warp a row, its lanes along the row. With two it is TileAndFuse: a thread takes four whole rows.
func.func @f(%w: tensor<4096x2048xf32>, %x: tensor<2048xf32>, %y: tensor<2048xf32>) -> (tensor<4096xf32>, tensor<4096xf32>) {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<4096xf32>
  %init = linalg.fill ins(%zero : f32) outs(%empty : tensor<4096xf32>) -> tensor<4096xf32>
  %r:2 = linalg.generic {
      indexing_maps = [affine_map<(n, k) -> (n, k)>, affine_map<(n, k) -> (k)>, affine_map<(n, k) -> (k)>,
                       affine_map<(n, k) -> (n)>, affine_map<(n, k) -> (n)>],
      iterator_types = ["parallel", "reduction"]}
      ins(%w, %x, %y : tensor<4096x2048xf32>, tensor<2048xf32>, tensor<2048xf32>)
      outs(%init, %init : tensor<4096xf32>, tensor<4096xf32>) {
  ^bb0(%a: f32, %b: f32, %c: f32, %o: f32, %p: f32):
    %m = arith.mulf %a, %b : f32
    %n = arith.mulf %a, %c : f32
    %s = arith.addf %o, %m : f32
    %t = arith.addf %p, %n : f32
    linalg.yield %s, %t : f32, f32
  } -> (tensor<4096xf32>, tensor<4096xf32>)
  return %r#0, %r#1 : tensor<4096xf32>, tensor<4096xf32>
}
