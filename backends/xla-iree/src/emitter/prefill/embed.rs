//! Into tiles and out of them: token embeddings, and the residual stream for who reads it by rows.

use halfhitch_seam::{WeightForm, WeightId};

use super::tiles::{TILE, kernel, operand};
use crate::emitter::builder::{Builder, Value};
use crate::emitter::contraction::words::Split;
use crate::emitter::graph::Function;
use crate::emitter::layout::{BLOCK, Layout};
use crate::emitter::linalg::{Body, Element};
use crate::emitter::resident::Resident;
use crate::emitter::tiling::Tiling;
use crate::emitter::types::{Dim, Elem};

/// Whether rows of a table can be read from it one number at a time.
pub fn suits(table: &Resident) -> bool {
    table.shape[1].is_multiple_of(TILE)
        && (table.layout == Layout::Blocks || matches!(table.form, WeightForm::Dense(_)))
}

/// f32 `[hidden / 16, tiles, 16, 16]` of i32 tokens `[tiles * 16]`, times the model's embedding scale.
/// The host has checked that every token is in the vocabulary.
pub fn embed(f: &mut Function<'_>, tokens: &Value, tiles: Dim) -> Value {
    let weight = f.weight(WeightId::Embedding);
    let scale = f.source.spec.embedding_scale;
    let parts = weight.shape[1] / TILE;
    let tokens = f.b.view(tokens, Elem::I32, &[tiles, TILE.into()]);
    // Loops: tile of features, tile of tokens, feature, token.
    let loops = [parts.into(), tiles, TILE.into(), TILE.into()];
    f.b.dispatch(|b| {
        b.generic(
            &loops,
            &[operand(&tokens, &[1, 3])],
            &[0, 1, 2, 3],
            0.0,
            |b, e| {
                let row = b.op("arith.index_castui", &[&e[0]], "i32 to index");
                let part = b.index(0);
                let column = b.index(2);
                let each = b.constant_index(TILE);
                let column = {
                    let before = b.op("arith.muli", &[&part, &each], "index");
                    b.op("arith.addi", &[&before, &column], "index")
                };
                let value = match weight.layout {
                    Layout::Blocks if matches!(weight.form, WeightForm::Dense(_)) => {
                        let each = b.constant_index(BLOCK);
                        let block = b.op("arith.divui", &[&row, &each], "index");
                        let row = b.op("arith.remui", &[&row, &each], "index");
                        let value = b.extract(&weight.tensors[0], &[&block, &column, &row]);
                        b.widen(&value, weight.tensors[0].elem())
                    }
                    Layout::Blocks => packed(b, &weight.tensors, Split::of(&weight), &row, &column),
                    // `suits` lets no other through.
                    Layout::Stored | Layout::Lanes => {
                        let value = b.extract(&weight.tensors[0], &[&row, &column]);
                        b.widen(&value, weight.tensors[0].elem())
                    }
                };
                match scale == 1.0 {
                    true => value,
                    false => {
                        let scale = b.constant(scale);
                        b.arith("mulf", &value, &scale)
                    }
                }
            },
        )
    })
}

/// The value of a packed table in blocks: `q * scale + bias`, two roundings.
fn packed(b: &mut Body, table: &[Value], split: Split, row: &Element, column: &Element) -> Element {
    let [words, scales, biases] = table else {
        panic!("a packed weight of {} tensors", table.len());
    };
    let divide = |b: &mut Body, x: &Element, by: usize| {
        let by = b.constant_index(by);
        let whole = b.op("arith.divui", &[x, &by], "index");
        (whole, b.op("arith.remui", &[x, &by], "index"))
    };
    let (block, row) = divide(b, row, BLOCK);
    let (word, value) = divide(b, column, split.values);
    let (group, word) = divide(b, &word, split.words);
    let word = b.extract(words, &[&block, &group, &word, &row]);
    let [scale, bias] = [scales, biases].map(|t| {
        let number = b.extract(t, &[&block, &group, &row]);
        b.widen(&number, t.elem())
    });
    let value = b.op("arith.index_castui", &[&value], "index to i32");
    let bits = b.int(split.bits as i32);
    let shift = b.op("arith.muli", &[&value, &bits], "i32");
    let low = b.op("arith.shrui", &[&word, &shift], "i32");
    let mask = b.int((1i32 << split.bits) - 1);
    let q = b.op("arith.andi", &[&low, &mask], "i32");
    let q = b.op("arith.sitofp", &[&q], "i32 to f32");
    let scaled = b.arith("mulf", &q, &scale);
    b.arith("addf", &scaled, &bias)
}

/// f32 `[hidden / 16, tiles, 16, 16]` by rows: `[rows, hidden]`, `rows` being `tiles * 16`.
pub fn leave(b: &mut Builder, x: &Value, rows: Dim) -> Value {
    let [parts, tiles, ..] = x.dims()[..] else {
        panic!("activations of {}", x.ty());
    };
    let Dim::Static(count) = parts else {
        panic!("activations of {}", x.ty());
    };
    // Loops: tile of tokens, token, tile of features, feature.
    let all = kernel(
        b,
        Tiling::new(&[1, 0, 0, 0], &[1, TILE, 1, TILE], &[0; 4]),
        &[tiles, TILE.into(), parts, TILE.into()],
        &[operand(x, &[2, 0, 3, 1])],
        &[0, 1, 2, 3],
        0.0,
        |_, e| e[0].clone(),
    );
    b.view(&all, Elem::F32, &[rows, (count * TILE).into()])
}
