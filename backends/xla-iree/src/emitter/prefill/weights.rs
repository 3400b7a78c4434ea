//! Resident weights in tiles, made once a chunk and layer from whatever decoding reads.
//!
//! A second resident copy would cost more memory than packed weights take, to save some percent of a
//! chunk's time.

use halfhitch_seam::WeightForm;

use super::tiles::{Grain, PAIR, Pack, TILE, bits, operand, pack, split};
use crate::emitter::builder::{Builder, Value};
use crate::emitter::contraction::words::Split;
use crate::emitter::graph::WeightValue;
use crate::emitter::layout::{BLOCK, Layout};
use crate::emitter::linalg::{Body, Element, Structure};
use crate::emitter::tiling::Tiling;
use crate::emitter::types::{Dim, Elem};

/// Whether a weight of `shape` can be put into tiles.
pub fn suits(layout: Layout, shape: &[usize]) -> bool {
    let whole = shape.iter().all(|n| n.is_multiple_of(TILE));
    whole && layout == Layout::Blocks
}

/// The weight as the left operand of a product: `[outputs / 16, inputs / pair, 16, pair]`. Packed
/// values are `q * scale + bias`, two roundings, and a third to bf16.
pub fn tiles(b: &mut Builder, grain: Grain, weight: &WeightValue) -> Value {
    match weight.form {
        WeightForm::Affine(_) => packed(b, grain, weight),
        _ => dense(b, grain, weight),
    }
}

fn packed(b: &mut Builder, grain: Grain, weight: &WeightValue) -> Value {
    let columns = Split::of(weight);
    let [words, scales, biases] = &weight.tensors[..] else {
        panic!("a packed weight of {} tensors", weight.tensors.len());
    };
    let (blocks, parts) = (weight.shape[0] / BLOCK, BLOCK / TILE);
    let values = columns.values / grain.pair();
    let words = b.reshape(words, &[blocks, columns.groups, columns.words, parts, TILE]);
    let [scales, biases] =
        [scales, biases].map(|v| b.reshape(v, &[blocks, columns.groups, parts, TILE]));
    let shifts: Vec<i64> = (0..values)
        .map(|j| (j * grain.pair() * columns.bits) as i64)
        .collect();
    let shifts = b.constant_ints(&shifts, Elem::I32);
    let scale = scales.elem();
    let (mask, width) = ((1i32 << columns.bits) - 1, columns.bits as i32);
    // Loops: block, tile in it, group, word, value or pair of values, row.
    let loops = [blocks, parts, columns.groups, columns.words, values, TILE].map(Dim::from);
    let value = |b: &mut Body, low: &Element, [s, bias]: [&Element; 2]| {
        let mask = b.int(mask);
        let q = b.op("arith.andi", &[low, &mask], "i32");
        let q = b.op("arith.sitofp", &[&q], "i32 to f32");
        let scaled = b.arith("mulf", &q, s);
        b.arith("addf", &scaled, bias)
    };
    let all = b.dispatch(|b| {
        let structure = Structure {
            tiling: Some(Tiling::new(
                &[1, 0, 0, 0, 0, 0],
                &[1, 1, 1, 1, values, TILE],
                &[0; 6],
            )),
            loops: &loops,
            operands: &[
                operand(&words, &[0, 2, 3, 1, 5]),
                operand(&scales, &[0, 2, 1, 5]),
                operand(&biases, &[0, 2, 1, 5]),
                operand(&shifts, &[4]),
            ],
            out: &[0, 1, 2, 3, 4, 5],
            elem: match grain {
                Grain::F32 => Elem::F32,
                Grain::Bf16 => Elem::I32,
            },
            initial: 0.0,
        };
        b.structured(structure, |b, e| {
            let [s, bias] = [&e[1], &e[2]].map(|v| b.widen(v, scale));
            let low = b.op("arith.shrui", &[&e[0], &e[3]], "i32");
            let first = value(b, &low, [&s, &bias]);
            if grain == Grain::F32 {
                return first;
            }
            let width = b.int(width);
            let next = b.op("arith.shrui", &[&low, &width], "i32");
            let second = value(b, &next, [&s, &bias]);
            let first = bits(b, &first);
            let second = bits(b, &second);
            let half = b.int(16);
            let second = b.op("arith.shli", &[&second, &half], "i32");
            b.op("arith.ori", &[&first, &second], "i32")
        })
    });
    let dims = operand_dims(grain, &weight.shape);
    b.view(&all, grain.elem(), &dims)
}

fn dense(b: &mut Builder, grain: Grain, weight: &WeightValue) -> Value {
    let elem = weight.tensors[0].elem();
    let (parts, depth) = (BLOCK / TILE, weight.shape[1]);
    let blocks = weight.shape[0] / BLOCK;
    let numbers = b.reshape(&weight.tensors[0], &[blocks, depth, parts, TILE]);
    let numbers = split(b, grain, &numbers, 1);
    // Loops: block, tile in it, column, row.
    let loops = [blocks, parts, depth / grain.pair(), TILE].map(Dim::from);
    let packed = Pack {
        loops: &loops,
        operands: &[operand(&numbers, &[0, 2, PAIR, 1, 3])],
        out: &[0, 1, 2, 3],
        distribution: &[1, 0, 0, 0],
        parallel: &[1, 1, 1, TILE],
    };
    let all = pack(b, grain, &packed, |b, e| b.widen(&e[0], elem));
    let dims = operand_dims(grain, &weight.shape);
    b.view(&all, grain.elem(), &dims)
}

fn operand_dims(grain: Grain, shape: &[usize]) -> [Dim; 4] {
    [
        (shape[0] / TILE).into(),
        (shape[1] / grain.pair()).into(),
        TILE.into(),
        grain.pair().into(),
    ]
}
