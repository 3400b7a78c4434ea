//! Dense weights whose rows lie interleaved in blocks.
//!
//! A vector holds the same column of different rows, as in [`words`](super::words), so no sum crosses its lanes and the
//! result needs no reordering of additions; narrower numbers are widened as they are read, which is
//! exact. Activations stay f32.

use std::fmt::Write;

use crate::emitter::builder::{Builder, Value};
use crate::emitter::graph::WeightValue;
use crate::emitter::layout::BLOCK;
use crate::emitter::tiling::Profile;
use crate::emitter::types::{Elem, TensorType};

use super::words::{TILE, outs, results, targets, yielded};

/// Each of several f32 rows `[columns]` times the weight, added onto what `onto` has for each where there
/// is one: f32 `[rows]` each. A number is widened once for all of them.
pub fn contract(
    b: &mut Builder,
    xs: &[&Value],
    weight: &WeightValue,
    onto: Option<&[Value]>,
    profile: Profile,
) -> Vec<Value> {
    let numbers = &weight.tensors[0];
    let blocks = weight.shape[0] / BLOCK;
    let out = TensorType::fixed(Elem::F32, &[blocks, BLOCK]);
    let targets = targets(b, xs.len(), onto, &out);
    let elem = numbers.elem();
    let (mut lines, value) = widen(elem, "%w");
    let map = |dims: &str| format!("affine_map<(n, t, k) -> ({dims})>");
    let mut maps = vec![map("n, k, t")];
    maps.extend(xs.iter().map(|_| map("k")));
    maps.extend(xs.iter().map(|_| map("n, t")));
    let mut block = format!("%w: {elem}");
    for row in 0..xs.len() {
        let _ = write!(block, ", %x{row}: f32");
    }
    for row in 0..xs.len() {
        let _ = write!(block, ", %out{row}: f32");
        let _ = writeln!(lines, "      %p{row} = arith.mulf {value}, %x{row} : f32");
        let _ = writeln!(lines, "      %y{row} = arith.addf %out{row}, %p{row} : f32");
    }
    let names: Vec<_> = [numbers]
        .iter()
        .chain(xs)
        .map(ToString::to_string)
        .collect();
    let types: Vec<_> = [numbers]
        .iter()
        .chain(xs)
        .map(|v| v.ty().to_string())
        .collect();
    let tiling = profile.blocked(blocks, weight.shape[1], xs.len());
    let tiling = tiling.map_or(String::new(), |t| t.to_string());
    let text = format!(
        "linalg.generic {{indexing_maps = [{}], iterator_types = [\"parallel\", \"parallel\", \"reduction\"]}} ins({} : {}) {}{tiling}{{
    ^bb0({block}):
{lines}{}    }} -> {}",
        maps.join(", "),
        names.join(", "),
        types.join(", "),
        outs(&targets, &out),
        yielded(xs.len()),
        results(xs.len(), &out),
    );
    let ys = b.emit_alone(vec![out; xs.len()], format_args!("{text}"));
    ys.iter()
        .map(|y| b.reshape(y, &[weight.shape[0]]))
        .collect()
}

/// The weight as an f32 matrix `[rows, columns]`.
pub fn matrix(b: &mut Builder, weight: &WeightValue) -> Value {
    let x = b.transpose(&weight.tensors[0], &[0, 2, 1]);
    let x = b.reshape(&x, &weight.shape);
    b.convert(&x, Elem::F32)
}

/// The weight as f32 `[rows / TILE, columns, TILE, 1]`, as the matrix micro-kernel reads it.
pub fn tiles(b: &mut Builder, weight: &WeightValue) -> Value {
    let (blocks, columns) = (weight.shape[0] / BLOCK, weight.shape[1]);
    let parts = BLOCK / TILE;
    let numbers = b.reshape(&weight.tensors[0], &[blocks, columns, parts, TILE]);
    let numbers = b.transpose(&numbers, &[0, 2, 1, 3]);
    let numbers = b.convert(&numbers, Elem::F32);
    b.reshape(&numbers, &[blocks * parts, columns, TILE, 1])
}

/// f32 `[tokens, columns]`: the rows of the weight that i32 `tokens` name. None may be out of range.
pub fn rows(b: &mut Builder, weight: &WeightValue, tokens: &Value) -> Value {
    let numbers = &weight.tensors[0];
    let out = TensorType::fixed(Elem::F32, &[tokens.sizes()[0], weight.shape[1]]);
    let empty = b.emit(out.clone(), format_args!("tensor.empty() : {out}"));
    let elem = numbers.elem();
    let (widened, value) = widen(elem, "%w");
    let text = format!(
        "linalg.generic {{indexing_maps = [affine_map<(r, k) -> (r)>, affine_map<(r, k) -> (r, k)>], iterator_types = [\"parallel\", \"parallel\"]}} ins({tokens} : {}) outs({empty} : {out}) {{
    ^bb0(%row: i32, %out: f32):
      %i = arith.index_castui %row : i32 to index
      %each = arith.constant {BLOCK} : index
      %n = arith.divui %i, %each : index
      %t = arith.remui %i, %each : index
      %k = linalg.index 1 : index
      %w = tensor.extract {numbers}[%n, %k, %t] : {}
{widened}      linalg.yield {value} : f32
    }} -> {out}",
        tokens.ty(),
        numbers.ty(),
    );
    b.emit(out, format_args!("{text}"))
}

/// The lines that widen a scalar to f32, and the name of what they make.
fn widen(elem: Elem, name: &str) -> (String, String) {
    if elem == Elem::F32 {
        return (String::new(), name.to_owned());
    }
    let wide = format!("{name}f");
    (
        format!("      {wide} = arith.extf {name} : {elem} to f32\n"),
        wide,
    )
}
