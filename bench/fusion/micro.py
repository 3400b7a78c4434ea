"""One product of a packed 4-bit weight with activations, written in different ways, as MLIR text.

`y[rows, N] = x[rows, K] * (q * scale + bias)[N, K]`, groups of 32, scales and biases in f16. All forms mean
the same; what a compiler makes of them differs.
"""

N, K, GROUP = 4096, 2048, 32
GROUPS, WORDS = K // GROUP, GROUP // 8
WEIGHT_BYTES = N * K // 2


def dense(kind):
    """A matrix of numbers, weight first, f32 accumulation."""
    return f"""func.func @f(%w: tensor<{N}x{K}x{kind}>, %x: tensor<1x{K}x{kind}>) -> tensor<{N}x1xf32> {{
  %y = stablehlo.dot_general %w, %x, contracting_dims = [1] x [1] : (tensor<{N}x{K}x{kind}>, tensor<1x{K}x{kind}>) -> tensor<{N}x1xf32>
  return %y : tensor<{N}x1xf32>
}}
"""


def dequantised(values):
    """From f32 values `%v` to the weight `%m` [N, K]."""
    three, two = f"tensor<{N}x{GROUPS}x{GROUP}xf32>", f"tensor<{N}x{GROUPS}xf32>"
    return f"""  {values}
  %s32 = stablehlo.convert %s : (tensor<{N}x{GROUPS}xf16>) -> {two}
  %b32 = stablehlo.convert %b : (tensor<{N}x{GROUPS}xf16>) -> {two}
  %ss = stablehlo.broadcast_in_dim %s32, dims = [0, 1] : ({two}) -> {three}
  %bs = stablehlo.broadcast_in_dim %b32, dims = [0, 1] : ({two}) -> {three}
  %scaled = stablehlo.multiply %v, %ss : {three}
  %g = stablehlo.add %scaled, %bs : {three}
"""


def shifted():
    """u32 words taken apart by shift and mask, as f32 [N, G, 32]."""
    words, wide = f"tensor<{N}x{K // 8}xui32>", f"tensor<{N}x{K // 8}x8xui32>"
    return f"""%wide = stablehlo.broadcast_in_dim %w, dims = [0, 1] : ({words}) -> {wide}
  %starts = stablehlo.constant dense<[0, 4, 8, 12, 16, 20, 24, 28]> : tensor<8xui32>
  %shifts = stablehlo.broadcast_in_dim %starts, dims = [2] : (tensor<8xui32>) -> {wide}
  %low = stablehlo.shift_right_logical %wide, %shifts : {wide}
  %mask = stablehlo.constant dense<15> : {wide}
  %bits = stablehlo.and %low, %mask : {wide}
  %flat = stablehlo.convert %bits : ({wide}) -> tensor<{N}x{K // 8}x8xf32>
  %v = stablehlo.reshape %flat : (tensor<{N}x{K // 8}x8xf32>) -> tensor<{N}x{GROUPS}x{GROUP}xf32>"""


def nibbles():
    three = f"tensor<{N}x{GROUPS}x{GROUP}x"
    return f"%v = stablehlo.convert %w : ({three}ui4>) -> {three}f32>"


def unpack_then_dot(words):
    """As one writes it first: the weight, then a product of matrices."""
    ty = f"tensor<{N}x{K // 8}xui32>" if words else f"tensor<{N}x{GROUPS}x{GROUP}xui4>"
    scales = f"tensor<{N}x{GROUPS}xf16>"
    return f"""func.func @f(%w: {ty}, %s: {scales}, %b: {scales}, %x: tensor<1x{K}xf32>) -> tensor<{N}x1xf32> {{
{dequantised(shifted() if words else nibbles())}  %m = stablehlo.reshape %g : (tensor<{N}x{GROUPS}x{GROUP}xf32>) -> tensor<{N}x{K}xf32>
  %y = stablehlo.dot_general %m, %x, contracting_dims = [1] x [1] : (tensor<{N}x{K}xf32>, tensor<1x{K}xf32>) -> tensor<{N}x1xf32>
  return %y : tensor<{N}x1xf32>
}}
"""


def reduced():
    """Multiply and reduce over the nibbles, in place of a product of matrices."""
    three, scales = f"tensor<{N}x{GROUPS}x{GROUP}xf32>", f"tensor<{N}x{GROUPS}xf16>"
    return f"""func.func @f(%w: tensor<{N}x{GROUPS}x{GROUP}xui4>, %s: {scales}, %b: {scales}, %x: tensor<{GROUPS}x{GROUP}xf32>) -> tensor<{N}xf32> {{
{dequantised(nibbles())}  %xs = stablehlo.broadcast_in_dim %x, dims = [1, 2] : (tensor<{GROUPS}x{GROUP}xf32>) -> {three}
  %p = stablehlo.multiply %g, %xs : {three}
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %y = stablehlo.reduce(%p init: %zero) applies stablehlo.add across dimensions = [1, 2] : ({three}, tensor<f32>) -> tensor<{N}xf32>
  return %y : tensor<{N}xf32>
}}
"""


def words(rows):
    """Whole words, groups side by side, scale and bias on sums: `words` of halfhitch on GPUs."""
    weight, scales = f"tensor<{N}x{WORDS}x{GROUPS}xi32>", f"tensor<{N}x{GROUPS}xf16>"
    each, out = f"tensor<{rows}x{WORDS}x{GROUPS}xf32>", f"tensor<{N}x{rows}xf32>"
    ready = f"tensor<9x{rows}x{WORDS}x{GROUPS}xf32>"
    lines = [
        f"func.func @f(%w: {weight}, %s: {scales}, %b: {scales}, %p: {ready}) -> {out} {{",
        f"  %z = arith.constant 0.0 : f32\n  %e = tensor.empty() : {out}",
        f"  %o = linalg.fill ins(%z : f32) outs(%e : {out}) -> {out}",
    ]
    for j in range(9):
        lines.append(
            f"  %x{j} = tensor.extract_slice %p[{j}, 0, 0, 0] [1, {rows}, {WORDS}, {GROUPS}] [1, 1, 1, 1] : {ready} to {each}"
        )
    maps = ["n, k, g", "n, g", "n, g"] + ["r, k, g"] * 9 + ["n, r"]
    maps = ", ".join(f"affine_map<(n, r, k, g) -> ({m})>" for m in maps)
    names = ", ".join(["%w", "%s", "%b"] + [f"%x{j}" for j in range(9)])
    types = ", ".join([weight, scales, scales] + [each] * 9)
    block = ", ".join(["%wi: i32", "%si: f16", "%bi: f16"] + [f"%x{j}i: f32" for j in range(9)] + ["%acc: f32"])
    lines.append(
        f'  %y = linalg.generic {{indexing_maps = [{maps}], iterator_types = ["parallel", "parallel", "reduction", "reduction"]}} '
        f"ins({names} : {types}) outs(%o : {out}) {{\n  ^bb0({block}):"
    )
    lines.append("    %s32 = arith.extf %si : f16 to f32\n    %b32 = arith.extf %bi : f16 to f32\n    %mask = arith.constant 15 : i32")
    total = None
    for j in range(8):
        value = "%wi"
        if j:
            lines.append(f"    %c{j} = arith.constant {4 * j} : i32\n    %h{j} = arith.shrui %wi, %c{j} : i32")
            value = f"%h{j}"
        if j < 7:
            lines.append(f"    %m{j} = arith.andi {value}, %mask : i32")
            value = f"%m{j}"
        lines.append(f"    %q{j} = arith.uitofp {value} : i32 to f32\n    %p{j} = arith.mulf %q{j}, %x{j}i : f32")
        if total is not None:
            lines.append(f"    %t{j} = arith.addf {total}, %p{j} : f32")
        total = f"%t{j}" if total is not None else "%p0"
    lines.append(
        f"    %u = arith.mulf {total}, %s32 : f32\n    %v = arith.mulf %x8i, %b32 : f32\n    %k = arith.addf %u, %v : f32\n"
        f"    %r = arith.addf %acc, %k : f32\n    linalg.yield %r : f32\n  }} -> {out}\n  return %y : {out}\n}}"
    )
    return "\n".join(lines) + "\n"


FORMS = [
    ("f16 dense", "`dot_general`, weight first", dense("f16")),
    ("f32 dense", "`dot_general`, weight first", dense("f32")),
    ("unpack u32, dot", "shift and mask, scale, `dot_general`", unpack_then_dot(True)),
    ("unpack ui4, dot", "convert, scale, `dot_general`", unpack_then_dot(False)),
    ("ui4 reduce", "convert, scale, multiply, `reduce`", reduced()),
    ("words, 1 row", "`linalg.generic` over whole words", words(1)),
    ("words, 8 rows", "the same, rows as a loop", words(8)),
]
