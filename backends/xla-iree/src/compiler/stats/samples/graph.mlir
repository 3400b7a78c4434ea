module @sample {
  func.func public @step(%tokens: tensor<1xi32>, %position: i32, %table: tensor<300x64xf16>, %weight: tensor<128x64xf16>, %cache: tensor<?x2x16xf32>) -> (tensor<2x?xf32>, tensor<?x2x16xf32>) {
    %start = arith.index_cast %position : i32 to index
    %one = arith.constant 1 : index
    %live = arith.addi %start, %one : index
    // embedding
    %row = "stablehlo.gather"(%table, %tokens) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1, 64>}> : (tensor<300x64xf16>, tensor<1xi32>) -> tensor<1x64xf16>
    %x = stablehlo.convert %row : (tensor<1x64xf16>) -> tensor<1x64xf32>
    %held = util.optimization_barrier %x : tensor<1x64xf32>
    // layer 0: feed-forward
    %wide = stablehlo.convert %weight : (tensor<128x64xf16>) -> tensor<128x64xf32>
    %y = stablehlo.dot_general %wide, %held, contracting_dims = [1] x [1] : (tensor<128x64xf32>, tensor<1x64xf32>) -> tensor<128x1xf32>
    %new = stablehlo.slice %y [0:32, 0:1] : (tensor<128x1xf32>) -> tensor<32x1xf32>
    %rows = stablehlo.reshape %new : (tensor<32x1xf32>) -> tensor<1x2x16xf32>
    // layer 0: attention
    %after = tensor.insert_slice %rows into %cache[%start, 0, 0] [1, 2, 16] [1, 1, 1] : tensor<1x2x16xf32> into tensor<?x2x16xf32>
    %keys = tensor.extract_slice %after[0, 0, 0] [%live, 2, 16] [1, 1, 1] : tensor<?x2x16xf32> to tensor<?x2x16xf32>
    %query = stablehlo.slice %y [32:64, 0:1] : (tensor<128x1xf32>) -> tensor<32x1xf32>
    %heads = stablehlo.reshape %query : (tensor<32x1xf32>) -> tensor<2x16xf32>
    %zero = arith.constant 0.0 : f32
    %empty = tensor.empty(%live) : tensor<2x?xf32>
    %init = linalg.fill ins(%zero : f32) outs(%empty : tensor<2x?xf32>) -> tensor<2x?xf32>
    %scores = linalg.generic {indexing_maps = [affine_map<(h, t, d) -> (h, d)>, affine_map<(h, t, d) -> (t, h, d)>, affine_map<(h, t, d) -> (h, t)>], iterator_types = ["parallel", "parallel", "reduction"]} ins(%heads, %keys : tensor<2x16xf32>, tensor<?x2x16xf32>) outs(%init : tensor<2x?xf32>) {
    ^bb0(%q: f32, %k: f32, %out: f32):
      %p = arith.mulf %q, %k : f32
      %s = arith.addf %out, %p : f32
      linalg.yield %s : f32
    } -> tensor<2x?xf32>
    return %scores, %after : tensor<2x?xf32>, tensor<?x2x16xf32>
  }
  func.func public @choice(%y: tensor<1x300xf32>) -> tensor<3x128xf32> {
    // choice
    %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %padded = stablehlo.pad %y, %low, low = [0, 0], high = [0, 84], interior = [0, 0] : (tensor<1x300xf32>, tensor<f32>) -> tensor<1x384xf32>
    %rows = stablehlo.reshape %padded : (tensor<1x384xf32>) -> tensor<3x128xf32>
    return %rows : tensor<3x128xf32>
  }
}
