//! A matrix-vector product over whole packed words, groups across the lanes of a GPU's warp.
//!
//! A warp spreads the innermost dimension that is summed over its lanes. With a row's groups side by
//! side ([`Layout::Lanes`]) neighbouring lanes read neighbouring words, several at a time, and a group's
//! scale and bias are read once a lane. [`Layout::Words`] means the same from a checkpoint's own order,
//! by a transposition that becomes part of the load. With `W` words a group and `n` values a word:
//!
//! `y[row] = sum over (w, g) of s[g] * sum_j(q_j * x[g, w, j]) + b[g] * sum_j(x[g, w, j])`,
//!
//! where `q_j = (word >> bits * j) & mask`, written as `n` terms: a dimension for `j` would be the
//! innermost, and lanes would read one word together.

use super::expand;
use super::words::Split;
use crate::emitter::builder::{Builder, Value};
use crate::emitter::graph::WeightValue;
use crate::emitter::layout::Layout;
use crate::emitter::ops::Reduce;
use crate::emitter::types::Elem;

/// f32 `x` `[1, inputs]` times a packed weight `[outputs, inputs]`: f32 `[1, outputs]`.
pub fn contract(b: &mut Builder, x: &Value, weight: &WeightValue) -> Value {
    let split = Split::of(weight);
    let rows = weight.shape[0];
    let dims = [rows, split.words, split.groups];
    let [words, scales, biases] = &weight.tensors[..] else {
        panic!("a packed weight of {} tensors", weight.tensors.len());
    };
    let words = match weight.layout {
        Layout::Words => b.transpose(words, &[0, 2, 1]),
        _ => words.clone(),
    };
    let x = b.reshape(x, &[split.groups, split.words, split.values]);
    let x = b.transpose(&x, &[2, 1, 0]);
    let mut total: Option<Value> = None;
    // A sum of terms, too: as a reduction over a permuted operand IREE's SPIR-V code races with its
    // own initialisation (docs/upstream).
    let mut sums: Option<Value> = None;
    for j in 0..split.values {
        let q = value(b, &words, split, j);
        let xj = b.slice(&x, 0, j, j + 1);
        let xj = b.reshape(&xj, &dims[1..]);
        sums = Some(match sums {
            None => xj.clone(),
            Some(sums) => b.add(&sums, &xj),
        });
        let xj = b.broadcast(&xj, &[1, 2], &dims);
        let product = b.mul(&q, &xj);
        total = Some(match total {
            None => product,
            Some(total) => b.add(&total, &product),
        });
    }
    let (Some(total), Some(sums)) = (total, sums) else {
        panic!("no values in a word");
    };
    let mut grouped = |numbers: &Value| {
        let numbers = b.convert(numbers, Elem::F32);
        b.broadcast(&numbers, &[0, 2], &dims)
    };
    let (scales, biases) = (grouped(scales), grouped(biases));
    let sums = b.broadcast(&sums, &[1, 2], &dims);
    let scaled = b.mul(&total, &scales);
    let shifted = b.mul(&sums, &biases);
    let terms = b.add(&scaled, &shifted);
    let y = b.reduce(Reduce::Add, &terms, &[1, 2]);
    b.reshape(&y, &[1, rows])
}

/// Value `j` of every word, as f32.
fn value(b: &mut Builder, words: &Value, split: Split, j: usize) -> Value {
    let dims = words.sizes();
    let mut value = words.clone();
    if j > 0 {
        let shift = b.splat_int((split.bits * j) as i64, Elem::U32, &dims);
        value = b.binary("shift_right_logical", &value, &shift);
    }
    // Nothing is left above the last one.
    if j + 1 < split.values {
        let mask = b.splat_int((1 << split.bits) - 1, Elem::U32, &dims);
        value = b.binary("and", &value, &mask);
    }
    b.convert(&value, Elem::F32)
}

/// The weight as an f32 matrix `[rows, columns]`: `q * scale + bias`, two roundings.
pub fn matrix(b: &mut Builder, weight: &WeightValue) -> Value {
    let split = Split::of(weight);
    let [rows, columns] = weight.shape[..] else {
        panic!("a packed weight of shape {:?}", weight.shape);
    };
    let mut tensors = weight.tensors.clone();
    if weight.layout == Layout::Lanes {
        tensors[0] = b.transpose(&tensors[0], &[0, 2, 1]);
    }
    tensors[0] = b.reshape(&tensors[0], &[rows, split.groups * split.words]);
    expand::matrix(b, weight.form, &tensors, [rows, columns])
}
