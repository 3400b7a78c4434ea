//! A matrix-vector product over packed words in [`Layout::Blocks`](crate::emitter::layout::Layout).
//!
//! A word holds the values of `n` consecutive columns of one row. Value `j` is taken where it stands,
//! `word & (mask << bits * j)`, which is `q * 2^(bits * j)`: no shift, and exact as a float. The
//! activation it meets carries the inverse power of two, exact too. A group's scale and bias are applied
//! to sums, so that no dequantised value exists:
//!
//! `y[row] = sum over words of scale * sum_j(x_j * q_j) + bias * sum_j(x_j)`.
//!
//! The body ends in one addition onto the accumulator: with two it is not vectorised.

use std::fmt::Write;

use halfhitch_seam::{AffineScheme, WeightForm};

use super::{blocked, ranges};
use crate::emitter::builder::{Builder, Value};
use crate::emitter::graph::WeightValue;
use crate::emitter::layout::BLOCK;
use crate::emitter::ops::Reduce;
use crate::emitter::tiling::Profile;
use crate::emitter::types::{Elem, TensorType};

/// Activations as the contraction reads them; made once for all that read them.
#[derive(Clone, Debug)]
pub struct Prepared {
    /// `x_j * 2^(-bits * j)` for each value of a word, f32 `[groups, words a group]`.
    scaled: Vec<Value>,
    /// Sums of a word's activations, f32 `[groups, words a group]`.
    sums: Value,
}

/// How the columns of a scheme fall into groups, words and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Split {
    /// Groups of a row.
    pub groups: usize,
    /// Words of a group.
    pub words: usize,
    /// Values of a word.
    pub values: usize,
    /// Bits of a value.
    pub bits: usize,
}

impl Split {
    /// Of rows of `columns` values.
    pub fn new(scheme: AffineScheme, columns: usize) -> Self {
        let bits = scheme.bits.get();
        Self {
            groups: scheme.groups_per_row(columns),
            words: scheme.group_size.get() * bits / 32,
            values: 32 / bits,
            bits,
        }
    }

    /// Of a packed weight.
    pub fn of(weight: &WeightValue) -> Self {
        let WeightForm::Affine(scheme) = weight.form else {
            panic!("{} is not packed", weight.form);
        };
        Self::new(scheme, weight.shape[1])
    }
}

/// f32 `x` of as many elements as the weight has columns, made ready for it.
pub fn prepare(b: &mut Builder, x: &Value, weight: &WeightValue) -> Prepared {
    let split = Split::of(weight);
    let dims = [split.groups, split.words, split.values];
    let x = b.reshape(x, &dims);
    let mut times_powers = |x: &Value, sign: i32| {
        let powers: Vec<f32> = (0..split.values)
            .map(|j| 2f32.powi(sign * (split.bits * j) as i32))
            .collect();
        let powers = b.constant_floats(&powers);
        let powers = b.broadcast(&powers, &[2], &dims);
        b.mul(x, &powers)
    };
    let all = times_powers(&x, -1);
    // Summed from the scaled values, which loses nothing, so that one kernel makes both.
    let unscaled = times_powers(&all, 1);
    let sums = b.reduce(Reduce::Add, &unscaled, &[2]);
    let one = TensorType::fixed(Elem::F32, &dims[..2]);
    let scaled = (0..split.values)
        .map(|j| {
            let text = format!(
                "tensor.extract_slice {all}[0, 0, {j}] [{}, {}, 1] [1, 1, 1] : {} to {one}",
                split.groups,
                split.words,
                all.ty()
            );
            b.emit(one.clone(), format_args!("{text}"))
        })
        .collect();
    Prepared { scaled, sums }
}

/// The product with each of several rows of activations, added onto what `onto` has for each where there
/// is one: f32 `[rows]` each.
///
/// A word is taken apart once for all of them. One operation with a result for each, since a result's
/// rows must not depend on one another's.
pub fn contract(
    b: &mut Builder,
    xs: &[&Prepared],
    weight: &WeightValue,
    onto: Option<&[Value]>,
    profile: Profile,
) -> Vec<Value> {
    let split = Split::of(weight);
    let [words, scales, biases] = &weight.tensors[..] else {
        panic!("a packed weight of {} tensors", weight.tensors.len());
    };
    let blocks = weight.shape[0] / BLOCK;
    let out = TensorType::fixed(Elem::F32, &[blocks, BLOCK]);
    let targets = targets(b, xs.len(), onto, &out);
    let map = |dims: &str| format!("affine_map<(n, t, g, k) -> ({dims})>");
    let mut maps = vec![map("n, g, k, t")];
    maps.extend(xs.iter().flat_map(|x| &x.scaled).map(|_| map("g, k")));
    maps.extend(xs.iter().map(|_| map("g, k")));
    maps.extend([map("n, g, t"), map("n, g, t")]);
    maps.extend(xs.iter().map(|_| map("n, t")));
    let inputs: Vec<&Value> = [words]
        .into_iter()
        .chain(xs.iter().flat_map(|x| &x.scaled))
        .chain(xs.iter().map(|x| &x.sums))
        .chain([scales, biases])
        .collect();
    let names: Vec<_> = inputs.iter().map(ToString::to_string).collect();
    let types: Vec<_> = inputs.iter().map(|v| v.ty().to_string()).collect();
    let tiling = profile.words(blocks, xs.len());
    let tiling = tiling.map_or(String::new(), |t| t.to_string());
    let text = format!(
        "linalg.generic {{indexing_maps = [{}], iterator_types = [\"parallel\", \"parallel\", \"reduction\", \"reduction\"]}} ins({} : {}) {}{tiling}{{\n{}    }} -> {}",
        maps.join(", "),
        names.join(", "),
        types.join(", "),
        outs(&targets, &out),
        body(split, scales.elem(), xs.len()),
        results(xs.len(), &out),
    );
    let ys = b.emit_alone(vec![out; xs.len()], format_args!("{text}"));
    ys.iter()
        .map(|y| b.reshape(y, &[weight.shape[0]]))
        .collect()
}

/// What the products of `count` rows are added onto, each of type `out`.
pub(super) fn targets(
    b: &mut Builder,
    count: usize,
    onto: Option<&[Value]>,
    out: &TensorType,
) -> Vec<Value> {
    let sizes: Vec<usize> = out.sizes();
    match onto {
        Some(onto) => onto.iter().map(|x| b.reshape(x, &sizes)).collect(),
        None => (0..count).map(|_| b.zeros(out)).collect(),
    }
}

/// The `outs` of an operation with these targets.
pub(super) fn outs(targets: &[Value], out: &TensorType) -> String {
    let names: Vec<_> = targets.iter().map(ToString::to_string).collect();
    let types = vec![out.to_string(); targets.len()];
    format!("outs({} : {}) ", names.join(", "), types.join(", "))
}

/// The type of an operation with `count` results of type `out`.
pub(super) fn results(count: usize, out: &TensorType) -> String {
    let types = vec![out.to_string(); count].join(", ");
    match count {
        1 => types,
        _ => format!("({types})"),
    }
}

fn body(split: Split, scale: Elem, rows: usize) -> String {
    let mut text = String::from("    ^bb0(%w: i32");
    let mut line = String::new();
    for row in 0..rows {
        for j in 0..split.values {
            let _ = write!(text, ", %x{row}_{j}: f32");
        }
    }
    for row in 0..rows {
        let _ = write!(text, ", %xs{row}: f32");
    }
    for j in 0..split.values {
        let shift = split.bits * j;
        let mask = (((1u64 << split.bits) - 1) << shift) as u32 as i32;
        // Only the topmost value can reach the sign.
        let widen = if j + 1 == split.values {
            "uitofp"
        } else {
            "sitofp"
        };
        let _ = writeln!(line, "      %m{j} = arith.constant {mask} : i32");
        let _ = writeln!(line, "      %c{j} = arith.andi %w, %m{j} : i32");
        let _ = writeln!(line, "      %f{j} = arith.{widen} %c{j} : i32 to f32");
        for row in 0..rows {
            let _ = writeln!(
                line,
                "      %p{row}_{j} = arith.mulf %x{row}_{j}, %f{j} : f32"
            );
            let sum = match j {
                0 => continue,
                1 => format!("%p{row}_0"),
                _ => format!("%u{row}_{}", j - 1),
            };
            let _ = writeln!(
                line,
                "      %u{row}_{j} = arith.addf %p{row}_{j}, {sum} : f32"
            );
        }
    }
    let _ = write!(text, ", %s: {scale}, %b: {scale}");
    let mut names = ["%s", "%b"];
    if scale != Elem::F32 {
        let _ = writeln!(line, "      %sf = arith.extf %s : {scale} to f32");
        let _ = writeln!(line, "      %bf = arith.extf %b : {scale} to f32");
        names = ["%sf", "%bf"];
    }
    let [s, b] = names;
    let last = split.values - 1;
    for row in 0..rows {
        let _ = write!(text, ", %out{row}: f32");
        let _ = write!(
            line,
            "      %s{row} = arith.mulf {s}, %u{row}_{last} : f32
      %b{row} = arith.mulf {b}, %xs{row} : f32
      %t{row} = arith.addf %s{row}, %b{row} : f32
      %y{row} = arith.addf %out{row}, %t{row} : f32
"
        );
    }
    text + "):\n" + &line + &yielded(rows)
}

/// The end of a body whose results are `%y0`, `%y1` and so on.
pub(super) fn yielded(rows: usize) -> String {
    let names: Vec<_> = (0..rows).map(|row| format!("%y{row}")).collect();
    let types = vec!["f32"; rows].join(", ");
    format!("      linalg.yield {} : {types}\n", names.join(", "))
}

/// The whole weight as an f32 matrix `[rows, columns]`: `q * scale + bias`, two roundings.
pub fn matrix(b: &mut Builder, weight: &WeightValue) -> Value {
    let split = Split::of(weight);
    let [words, scales, biases] = &weight.tensors[..] else {
        panic!("a packed weight of {} tensors", weight.tensors.len());
    };
    let blocks = weight.shape[0] / BLOCK;
    let dims = [blocks, BLOCK, split.groups, split.words, split.values];
    let out = TensorType::fixed(Elem::F32, &dims);
    let empty = b.emit(out.clone(), format_args!("tensor.empty() : {out}"));
    let map = |dims: &str| format!("affine_map<(n, t, g, k, j) -> ({dims})>");
    let text = format!(
        "linalg.generic {{indexing_maps = [{}, {}, {}, {}], iterator_types = [{}]}} ins({words}, {scales}, {biases} : {}, {}, {}) outs({empty} : {out}) {{
    ^bb0(%w: i32, %s: {}, %b: {}, %out: f32):
      %at = linalg.index 4 : index
{}{}      linalg.yield %v : f32
    }} -> {out}",
        map("n, g, k, t"),
        map("n, g, t"),
        map("n, g, t"),
        map("n, t, g, k, j"),
        ["\"parallel\""; 5].join(", "),
        words.ty(),
        scales.ty(),
        biases.ty(),
        scales.elem(),
        scales.elem(),
        shift(split),
        value(split, scales.elem()),
    );
    let all = b.emit(out, format_args!("{text}"));
    b.reshape(&all, &weight.shape)
}

/// Rows that a tile of [`multiply`] has, of weights and of activations.
pub const TILE: usize = 16;

/// f32 `x` `[rows, columns]`, rows in whole tiles of [`TILE`], times each of the weights that are
/// resident together, of `parts` rows: f32 `[rows, part]` each.
///
/// The weight is rebuilt once, `q * scale + bias` with two roundings, straight into the tiles that
/// the matrix micro-kernel reads. That kernel is used only where the multiplication is a dispatch of
/// its own from the start, and the rebuilding, tiled by its own annotation, must be another. The parts
/// are cut from the product while they are contiguous.
pub fn multiply(
    b: &mut Builder,
    x: &Value,
    weight: &WeightValue,
    parts: &[usize],
    profile: Profile,
) -> Vec<Value> {
    let [rows, columns] = x.sizes()[..] else {
        panic!("activations of {}", x.ty());
    };
    let tiles = weight.shape[0] / TILE;
    let weights = match weight.form {
        WeightForm::Affine(_) => tiled_matrix(b, weight, profile),
        _ => blocked::tiles(b, weight),
    };
    let x = b.reshape(x, &[rows / TILE, TILE, columns]);
    let x = b.transpose(&x, &[0, 2, 1]);
    let x = b.reshape(&x, &[rows / TILE, columns, TILE, 1]);
    let out = TensorType::fixed(Elem::F32, &[tiles, rows / TILE, TILE, TILE]);
    let [zero, empty, filled, product] = [0; 4].map(|_| b.fresh(out.clone()));
    let text = format!(
        "flow.dispatch.region -> ({out}) {{
      {zero} = arith.constant 0.000000e+00 : f32
      {empty} = tensor.empty() : {out}
      {filled} = linalg.fill ins({zero} : f32) outs({empty} : {out}) -> {out}
      {product} = linalg.mmt4d ins({weights}, {x} : {}, {}) outs({filled} : {out}) -> {out}
      flow.return {product} : {out}
    }}",
        weights.ty(),
        x.ty()
    );
    let y = b.emit(out, format_args!("{text}"));
    let whole = parts.iter().all(|part| part.is_multiple_of(TILE));
    ranges(parts)
        .map(|(start, end)| {
            let piece = |b: &mut Builder, y: &Value| {
                let y = b.transpose(y, &[1, 3, 0, 2]);
                let outputs = y.sizes()[2] * TILE;
                b.reshape(&y, &[rows, outputs])
            };
            if whole {
                let y = b.slice(&y, 0, start / TILE, end / TILE);
                return piece(b, &y);
            }
            let y = piece(b, &y);
            b.slice(&y, 1, start, end)
        })
        .collect()
}

/// The weight as f32 `[outputs / TILE, columns, TILE, 1]`.
fn tiled_matrix(b: &mut Builder, weight: &WeightValue, profile: Profile) -> Value {
    let split = Split::of(weight);
    let [words, scales, biases] = &weight.tensors[..] else {
        panic!("a packed weight of {} tensors", weight.tensors.len());
    };
    let (blocks, parts) = (weight.shape[0] / BLOCK, BLOCK / TILE);
    let words = b.reshape(words, &[blocks, split.groups, split.words, parts, TILE]);
    let [scales, biases] =
        [scales, biases].map(|v| b.reshape(v, &[blocks, split.groups, parts, TILE]));
    let shifts: Vec<i64> = (0..split.values).map(|j| (j * split.bits) as i64).collect();
    let shifts = b.constant_ints(&shifts, Elem::I32);
    let dims = [blocks, parts, split.groups, split.words, split.values, TILE];
    let out = TensorType::fixed(Elem::F32, &dims);
    let scale = scales.elem();
    let map = |dims: &str| format!("affine_map<(n, t, g, k, j, u) -> ({dims})>");
    let maps = [
        map("n, g, k, t, u"),
        map("n, g, t, u"),
        map("n, g, t, u"),
        map("j"),
        map("n, t, g, k, j, u"),
    ];
    let [empty, all] = [0; 2].map(|_| b.fresh(out.clone()));
    let tiling = profile.rebuild(split.values, TILE);
    let tiling = tiling.map_or(String::new(), |t| t.to_string());
    let text = format!(
        "flow.dispatch.region -> ({out}) {{
      {empty} = tensor.empty() : {out}
      {all} = linalg.generic {{indexing_maps = [{}], iterator_types = [{}]}} ins({words}, {scales}, {biases}, {shifts} : {}, {}, {}, {}) outs({empty} : {out}) {tiling}{{
    ^bb0(%w: i32, %s: {scale}, %b: {scale}, %shift: i32, %out: f32):
{}      linalg.yield %v : f32
      }} -> {out}
      flow.return {all} : {out}
    }}",
        maps.join(", "),
        ["\"parallel\""; 6].join(", "),
        words.ty(),
        scales.ty(),
        biases.ty(),
        shifts.ty(),
        value(split, scale),
    );
    let all = b.emit(out, format_args!("{text}"));
    let columns = weight.shape[1];
    b.reshape(&all, &[weight.shape[0] / TILE, columns, TILE, 1])
}

/// f32 `[tokens, columns]`: the rows of the weight that i32 `tokens` name. None may be out of range.
pub fn rows(b: &mut Builder, weight: &WeightValue, tokens: &Value) -> Value {
    let split = Split::of(weight);
    let [words, scales, biases] = &weight.tensors[..] else {
        panic!("a packed weight of {} tensors", weight.tensors.len());
    };
    let count = tokens.sizes()[0];
    let out = TensorType::fixed(Elem::F32, &[count, split.groups, split.words, split.values]);
    let empty = b.emit(out.clone(), format_args!("tensor.empty() : {out}"));
    let scale = scales.elem();
    let text = format!(
        "linalg.generic {{indexing_maps = [affine_map<(r, g, k, j) -> (r)>, affine_map<(r, g, k, j) -> (r, g, k, j)>], iterator_types = [{}]}} ins({tokens} : {}) outs({empty} : {out}) {{
    ^bb0(%row: i32, %out: f32):
      %i = arith.index_castui %row : i32 to index
      %each = arith.constant {BLOCK} : index
      %n = arith.divui %i, %each : index
      %t = arith.remui %i, %each : index
      %g = linalg.index 1 : index
      %k = linalg.index 2 : index
      %at = linalg.index 3 : index
      %w = tensor.extract {words}[%n, %g, %k, %t] : {}
      %s = tensor.extract {scales}[%n, %g, %t] : {}
      %b = tensor.extract {biases}[%n, %g, %t] : {}
{}{}      linalg.yield %v : f32
    }} -> {out}",
        ["\"parallel\""; 4].join(", "),
        tokens.ty(),
        words.ty(),
        scales.ty(),
        biases.ty(),
        shift(split),
        value(split, scale),
    );
    let all = b.emit(out, format_args!("{text}"));
    b.reshape(&all, &[count, weight.shape[1]])
}

/// `%shift`: where value number `%at` of a word begins.
fn shift(split: Split) -> String {
    format!(
        "      %bits = arith.constant {} : i32
      %j = arith.index_castui %at : index to i32
      %shift = arith.muli %j, %bits : i32
",
        split.bits
    )
}

/// `%v`: the value at bit `%shift` of the word `%w`, of a group with scale `%s` and bias `%b`.
fn value(split: Split, scale: Elem) -> String {
    let mask = (1u64 << split.bits) - 1;
    let mut text = format!(
        "      %mask = arith.constant {mask} : i32
      %low = arith.shrui %w, %shift : i32
      %q = arith.andi %low, %mask : i32
      %f = arith.sitofp %q : i32 to f32
"
    );
    let [s, b] = if scale == Elem::F32 {
        ["%s", "%b"]
    } else {
        let _ = writeln!(text, "      %sf = arith.extf %s : {scale} to f32");
        let _ = writeln!(text, "      %bf = arith.extf %b : {scale} to f32");
        ["%sf", "%bf"]
    };
    let _ = writeln!(text, "      %scaled = arith.mulf %f, {s} : f32");
    let _ = writeln!(text, "      %v = arith.addf %scaled, {b} : f32");
    text
}
