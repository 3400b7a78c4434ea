//! The step of a model that goes through in tiles: one function for chunks of every size.

use super::layer::{Rows, Shared, layer};
use super::{TILE, embed, leave};
use crate::emitter::graph::Function;
use crate::emitter::layout::{Role, Signature};
use crate::emitter::rope;
use crate::emitter::step::{cache_arguments, cache_results};
use crate::emitter::types::{Dim, Elem};

/// The step as a function.
pub fn step(mut f: Function<'_>) -> (String, Signature) {
    let source = f.source;
    let tiles = f.scalar(Role::Tiles);
    let position = f.scalar(Role::Position { lane: 0 });
    let tiles_index = f.b.index(tiles);
    let count = f.b.index_mul(tiles_index, TILE);
    let start = f.b.index(position);
    let rows = Rows {
        position,
        tiles_index,
        tiles: f.b.extent(tiles_index),
        rows: f.b.extent(count),
    };
    let tokens = f.argument(Role::Tokens, Elem::I32, &[rows.rows]);
    let ropes = rope::distinct(source.spec);
    let tables: Vec<_> = ropes
        .iter()
        .enumerate()
        .map(|(index, rope)| {
            let dims: [Dim; 3] = [f.b.symbol(), 2.into(), rope.dims.into()];
            let table = f.argument(Role::RopeTable { index }, Elem::F32, &dims);
            f.b.rows(&table, Some(start), rows.rows)
        })
        .collect();
    let mut caches: Vec<_> = source
        .spec
        .layers
        .iter()
        .enumerate()
        .map(|(layer, spec)| cache_arguments(&mut f, 0, layer, spec))
        .collect();
    f.b.section("embedding");
    let mut x = embed(&mut f, &tokens, rows.tiles);
    f.b.section("rope");
    let mut shared = Shared::new(&mut f, &rows);
    for (number, cache) in caches.iter_mut().enumerate() {
        let rope = source.spec.layers[number].attention.rope;
        let Some(index) = ropes.iter().position(|known| Some(*known) == rope) else {
            panic!("layer {number} has no rope");
        };
        let table = (index, &tables[index]);
        x = layer(&mut f, number, &x, &mut shared, table, cache);
    }
    let x = leave(&mut f.b, &x, rows.rows);
    f.result(Role::Hidden, x);
    for (layer, cache) in caches.into_iter().enumerate() {
        cache_results(&mut f, 0, layer, cache);
    }
    f.finish()
}
