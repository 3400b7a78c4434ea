//! Token embedding: rows of a dense or packed matrix.

use halfhitch_seam::{WeightForm, WeightId};

use super::builder::{Builder, Value};
use super::contraction::{blocked, dequantize, words, words_gpu};
use super::graph::{Function, WeightValue};
use super::layout::Layout;
use super::tiling::Profile;
use super::types::{Elem, TensorType};

/// f32 `[rows, hidden]` of i32 tokens `[rows]`, times the model's embedding scale. The host has
/// checked that every token is in the vocabulary.
pub fn embed(f: &mut Function<'_>, tokens: &Value) -> Value {
    f.b.section("embedding");
    let weight = f.weight(WeightId::Embedding);
    let hidden = weight.shape[1];
    let rows = tokens.sizes()[0];
    if weight.layout == Layout::Blocks {
        let x = if matches!(weight.form, WeightForm::Dense(_)) {
            blocked::rows(&mut f.b, &weight, tokens)
        } else {
            words::rows(&mut f.b, &weight, tokens)
        };
        return f.b.scale(&x, f.source.spec.embedding_scale);
    }
    let picked: Vec<Value> = weight
        .tensors
        .iter()
        .map(|t| gather(&mut f.b, t, tokens))
        .collect();
    let x = match picked.as_slice() {
        [dense] => {
            let x = f.b.convert(dense, Elem::F32);
            match f.source.profile {
                // Fused with a norm's sum, all rows would have to fit the shared memory.
                Profile::Gpu { .. } => f.b.barrier(&x),
                _ if rows.min(TILE_ROWS) * hidden > TILE => f.b.barrier(&x),
                _ => x,
            }
        }
        _ if weight.layout == Layout::Lanes => {
            let shape = vec![rows, hidden];
            let picked = WeightValue {
                shape,
                tensors: picked,
                ..weight
            };
            words_gpu::matrix(&mut f.b, &picked)
        }
        _ => dequantize(&mut f.b, weight.form, &picked, [rows, hidden]),
    };
    f.b.scale(&x, f.source.spec.embedding_scale)
}

/// Elements from which on picked rows are written before they are read. Otherwise the compiler fuses the
/// lookup with the first norm and keeps a tile of it, some rows whole, on a stack of 8192 elements at
/// most: beyond that it gives up.
const TILE: usize = 4096;
/// Rows of that tile.
const TILE_ROWS: usize = 8;

/// Whole rows of `table` by their indices.
fn gather(b: &mut Builder, table: &Value, indices: &Value) -> Value {
    let mut dims = table.sizes();
    dims[0] = 1;
    let sizes: Vec<_> = dims.iter().map(ToString::to_string).collect();
    dims[0] = indices.sizes()[0];
    let ty = TensorType::fixed(table.elem(), &dims);
    let offsets: Vec<usize> = (1..dims.len()).collect();
    let text = format!(
        "\"stablehlo.gather\"({table}, {indices}) <{{dimension_numbers = #stablehlo.gather<offset_dims = {offsets:?}, collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: {}>}}> : ({}, {}) -> {ty}",
        sizes.join(", "),
        table.ty(),
        indices.ty(),
    );
    b.emit(ty, format_args!("{text}"))
}
