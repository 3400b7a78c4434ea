//! A product of rows of activations with whole packed words, groups across the lanes of a GPU's warp.
//!
//! A warp spreads the innermost dimension that is summed over its lanes. With a row's groups side by
//! side ([`Layout::Lanes`]) neighbouring lanes read neighbouring words, several at a time, and a group's
//! scale and bias are read once a lane. With `W` words a group and `n` values a word:
//!
//! `y[row] = sum over (w, g) of s[g] * sum_j(q_j * x[g, w, j]) + b[g] * sum_j(x[g, w, j])`,
//!
//! where `q_j = (word >> bits * j) & mask`, written as `n` terms: a dimension for `j` would be the
//! innermost, and lanes would read one word together.
//!
//! Activations are put in the order of the words first, with a word's sum beside them: one small kernel,
//! which also computes them where they are cheap ([`prepare`]). Several rows of them are a loop beside the
//! weight's rows, the inner one of the two, so that warps that run side by side read the same words.

use super::expand;
use super::words::Split;
use crate::emitter::builder::{Builder, Value};
use crate::emitter::graph::WeightValue;
use crate::emitter::layout::Layout;
use crate::emitter::linalg::{Body, Element, Operand, Structure};
use crate::emitter::types::{Dim, Elem};

/// Where an activation stands.
pub struct At {
    /// Its row.
    pub row: Element,
    /// Its column.
    pub column: Element,
}

/// Activations as [`contract`] takes them, f32 `[values of a word + 1, rows, words a group, groups]`, the
/// last of the first dimension their sums; `value` gives each, which is rounded to `precision`.
pub fn prepare(
    b: &mut Builder,
    rows: usize,
    weight: &WeightValue,
    precision: Elem,
    value: impl Fn(&mut Body, &At) -> Element,
) -> Value {
    let split = Split::of(weight);
    let loops = [split.values + 1, rows, split.words, split.groups].map(Dim::from);
    let structure = Structure {
        tiling: None,
        loops: &loops,
        operands: &[],
        out: &[0, 1, 2, 3],
        elem: Elem::F32,
        initial: 0.0,
    };
    // No reduction: over a permuted operand IREE's SPIR-V code races with its own initialisation
    // (docs/upstream).
    b.structured(structure, |body, _| {
        let [which, row, word, group] = [0, 1, 2, 3].map(|dim| body.index(dim));
        let words = body.constant_index(split.words);
        let values = body.constant_index(split.values);
        let first = body.op("arith.muli", &[&group, &words], "index");
        let first = body.op("arith.addi", &[&first, &word], "index");
        let first = body.op("arith.muli", &[&first, &values], "index");
        let sums = body.op("arith.cmpi eq,", &[&which, &values], "index");
        let nothing = body.constant(0.0);
        let mut total: Option<Element> = None;
        for j in 0..split.values {
            let j = body.constant_index(j);
            let column = body.op("arith.addi", &[&first, &j], "index");
            let row = row.clone();
            let x = value(body, &At { row, column });
            let x = rounded(body, &x, precision);
            let this = body.op("arith.cmpi eq,", &[&which, &j], "index");
            let counts = body.op("arith.ori", &[&this, &sums], "i1");
            let x = body.select(&counts, &x, &nothing);
            total = Some(match total {
                None => x,
                Some(total) => body.arith("addf", &total, &x),
            });
        }
        total.unwrap_or(nothing)
    })
}

/// An f32 element rounded to `precision`, still as f32.
fn rounded(body: &mut Body, x: &Element, precision: Elem) -> Element {
    if precision == Elem::F32 {
        return x.clone();
    }
    let short = body.op("arith.truncf", &[x], &format!("f32 to {precision}"));
    body.widen(&short, precision)
}

/// Activations that [`prepare`] made, of `r` rows, times a packed weight `[outputs, inputs]`: f32
/// `[r, outputs]`.
pub fn contract(b: &mut Builder, x: &Value, weight: &WeightValue) -> Value {
    let split = Split::of(weight);
    let (outputs, rows) = (weight.shape[0], x.sizes()[1]);
    let [words, scales, biases] = &weight.tensors[..] else {
        panic!("a packed weight of {} tensors", weight.tensors.len());
    };
    let each: Vec<Value> = (0..=split.values)
        .map(|j| {
            let xj = b.slice(x, 0, j, j + 1);
            b.reshape(&xj, &[rows, split.words, split.groups])
        })
        .collect();
    let operand = |value, dims| Operand { value, dims };
    let mut operands = vec![
        operand(words, &[0, 2, 3]),
        operand(scales, &[0, 3]),
        operand(biases, &[0, 3]),
    ];
    operands.extend(each.iter().map(|x| operand(x, &[1, 2, 3])));
    let loops = [outputs, rows, split.words, split.groups].map(Dim::from);
    let y = b.generic(&loops, &operands, &[0, 1], 0.0, |body, e| {
        let scale = body.widen(&e[1], scales.elem());
        let bias = body.widen(&e[2], biases.elem());
        let (xs, sums) = (&e[3..3 + split.values], &e[3 + split.values]);
        let mut total: Option<Element> = None;
        for (j, x) in xs.iter().enumerate() {
            let q = value(body, &e[0], split, j);
            let product = body.arith("mulf", &q, x);
            total = Some(match total {
                None => product,
                Some(total) => body.arith("addf", &total, &product),
            });
        }
        let total = total.unwrap_or_else(|| panic!("no values in a word"));
        let scaled = body.arith("mulf", &total, &scale);
        let shifted = body.arith("mulf", sums, &bias);
        let term = body.arith("addf", &scaled, &shifted);
        body.arith("addf", &e[4 + split.values], &term)
    });
    if rows == 1 {
        return b.reshape(&y, &[1, outputs]);
    }
    b.transpose(&y, &[1, 0])
}

/// Value `j` of a word, as f32.
fn value(body: &mut Body, word: &Element, split: Split, j: usize) -> Element {
    let mut value = word.clone();
    if j > 0 {
        let shift = body.int((split.bits * j) as i32);
        value = body.op("arith.shrui", &[&value, &shift], "i32");
    }
    // Nothing is left above the last one.
    if j + 1 < split.values {
        let mask = body.int((1 << split.bits) - 1);
        value = body.op("arith.andi", &[&value, &mask], "i32");
    }
    body.op("arith.uitofp", &[&value], "i32 to f32")
}

/// The weight as an f32 matrix `[rows, columns]`: `q * scale + bias`, two roundings.
pub fn matrix(b: &mut Builder, weight: &WeightValue) -> Value {
    let split = Split::of(weight);
    let [rows, columns] = weight.shape[..] else {
        panic!("a packed weight of shape {:?}", weight.shape);
    };
    assert_eq!(weight.layout, Layout::Lanes);
    let mut tensors = weight.tensors.clone();
    tensors[0] = b.transpose(&tensors[0], &[0, 2, 1]);
    tensors[0] = b.reshape(&tensors[0], &[rows, split.groups * split.words]);
    expand::matrix(b, weight.form, &tensors, [rows, columns])
}
