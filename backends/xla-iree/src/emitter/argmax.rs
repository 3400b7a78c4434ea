//! The greedy choice on the device: the largest logit, of equal ones the lowest token.
//!
//! In general two reductions of pairs, over 128 and then the rest: a single long one does not lower on
//! every target. Processors make vectors of plain reductions alone: there it is the largest value and
//! then the lowest token that has it.

use super::builder::{Builder, Value};
use super::ops::Reduce;
use super::tiling::Profile;
use super::types::{Elem, TensorType};

const BLOCK: usize = 128;

/// i32 `[rows, 2]` of f32 logits `[rows, vocabulary]`: the choice, and how many of the row's logits
/// are not finite. With any such the choice means nothing.
pub fn choose(b: &mut Builder, logits: &Value, profile: Profile) -> Value {
    let rows = logits.sizes()[0];
    let bad = count_not_finite(b, logits);
    let ids = match profile {
        Profile::LlvmCpu { .. } => by_value(b, logits),
        _ => by_pairs(b, logits),
    };
    let ids = b.reshape(&ids, &[rows, 1]);
    let bad = b.reshape(&bad, &[rows, 1]);
    b.concatenate(&[ids, bad], 1)
}

/// i32 `[rows]`. Beyond the vocabulary where a row has a NaN.
fn by_value(b: &mut Builder, logits: &Value) -> Value {
    let dims = logits.sizes();
    let vocabulary = dims[1];
    let largest = b.reduce(Reduce::Max, logits, &[1]);
    let largest = b.broadcast(&largest, &[0], &dims);
    let flags = TensorType::new(Elem::I1, logits.dims());
    let text = format!(
        "stablehlo.compare EQ, {logits}, {largest} : ({}, {}) -> {flags}",
        logits.ty(),
        largest.ty()
    );
    let is_it = b.emit(flags.clone(), format_args!("{text}"));
    let ids = b.iota(Elem::I32, &dims, 1);
    let none = b.splat_int(vocabulary as i64, Elem::I32, &dims);
    let ty = ids.ty().clone();
    let text = format!("stablehlo.select {is_it}, {ids}, {none} : {flags}, {ty}");
    let ids = b.emit(ty, format_args!("{text}"));
    b.reduce(Reduce::Min, &ids, &[1])
}

/// i32 `[rows]`.
fn by_pairs(b: &mut Builder, logits: &Value) -> Value {
    let [rows, vocabulary] = logits.sizes()[..] else {
        panic!("logits of {}", logits.ty());
    };
    let blocks = vocabulary.div_ceil(BLOCK);
    let padded = b.pad_last(logits, f32::NEG_INFINITY, blocks * BLOCK - vocabulary);
    let padded = b.reshape(&padded, &[rows, blocks, BLOCK]);
    let ids = b.iota(Elem::I32, &[blocks * BLOCK], 0);
    let ids = b.reshape(&ids, &[blocks, BLOCK]);
    let ids = b.broadcast(&ids, &[1, 2], &[rows, blocks, BLOCK]);
    let (largest, ids) = reduce_pairs(b, &padded, &ids, 2);
    let (_, ids) = reduce_pairs(b, &largest, &ids, 1);
    ids
}

fn count_not_finite(b: &mut Builder, x: &Value) -> Value {
    let flags = TensorType::new(Elem::I1, x.dims());
    let text = format!("stablehlo.is_finite {x} : ({}) -> {flags}", x.ty());
    let finite = b.emit(flags, format_args!("{text}"));
    let bad = b.unary("not", &finite);
    let bad = b.convert(&bad, Elem::I32);
    b.reduce(Reduce::Add, &bad, &[1])
}

/// Largest value over `dim`, with its id; of equal values the lowest id.
fn reduce_pairs(b: &mut Builder, values: &Value, ids: &Value, dim: usize) -> (Value, Value) {
    let mut dims = values.sizes();
    dims.remove(dim);
    let least = b.splat(f32::NEG_INFINITY, Elem::F32, &[]);
    let none = b.splat_int(i64::from(i32::MAX), Elem::I32, &[]);
    let largest = TensorType::fixed(Elem::F32, &dims);
    let id = TensorType::fixed(Elem::I32, &dims);
    let text = format!(
        "stablehlo.reduce({values} init: {least}), ({ids} init: {none}) across dimensions = [{dim}] : ({}, {}, tensor<f32>, tensor<i32>) -> ({}, {})
      reducer(%a0: tensor<f32>, %a1: tensor<f32>) (%j0: tensor<i32>, %j1: tensor<i32>) {{
        %gt = stablehlo.compare GT, %a0, %a1 : (tensor<f32>, tensor<f32>) -> tensor<i1>
        %eq = stablehlo.compare EQ, %a0, %a1 : (tensor<f32>, tensor<f32>) -> tensor<i1>
        %max = stablehlo.maximum %a0, %a1 : tensor<f32>
        %low = stablehlo.minimum %j0, %j1 : tensor<i32>
        %one = stablehlo.select %gt, %j0, %j1 : tensor<i1>, tensor<i32>
        %id = stablehlo.select %eq, %low, %one : tensor<i1>, tensor<i32>
        stablehlo.return %max, %id : tensor<f32>, tensor<i32>
      }}",
        values.ty(),
        ids.ty(),
        largest,
        id,
    );
    b.emit_pair([largest, id], format_args!("{text}"))
}
