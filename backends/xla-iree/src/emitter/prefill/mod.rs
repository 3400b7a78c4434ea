//! A chunk of a prompt through plain layers, all in tiles, of any number of tokens.
//!
//! Plain is: RMS norms before the two blocks and no others, full half-split rope, no window or soft
//! cap, widths in whole tiles. A model of such layers alone has one step for chunks of every size; any
//! other goes the general way and means the same.
//!
//! What makes it fast:
//! * a weight is made into tiles once a chunk, and the matrix micro-kernel does the rest;
//! * activations stay as products leave them, tokens innermost, from the embedding to the last layer:
//!   norms, rope, activations and softmax run over tokens in vector lanes, and nothing is transposed
//!   but the new keys and values, which the cache holds by position;
//! * the residual stream is what the products add onto;
//! * attention is products of tiles too.

mod attention;
mod embed;
mod layer;
mod step;
mod tiles;
mod weights;

use halfhitch_seam::{LayerWeight as W, Precision, WeightId};

use self::embed::{embed, leave};
pub use self::step::step;
use self::tiles::Grain;
pub use self::tiles::TILE;
use super::graph::{Source, layer_weight};
use super::plain::plain;
use super::resident::{Resident, group, single};
use super::tiling::Profile;

/// Whether every part of a model that a chunk goes through can be in tiles.
pub fn suits(source: Source<'_>) -> bool {
    let mut layers = source.spec.layers.iter().enumerate();
    matches!(source.profile, Profile::LlvmCpu { .. })
        && embed::suits(&single(source, WeightId::Embedding))
        && layers.all(|(layer, spec)| {
            let heads = spec.attention.head_dim.is_multiple_of(2 * TILE);
            plain(spec) && heads && in_tiles(source, layer)
        })
}

/// Whether each of a layer's matrices can be put into tiles, and its parts be cut between them.
fn in_tiles(source: Source<'_>, layer: usize) -> bool {
    let inputs: [&[W]; 4] = [
        &[W::Query, W::Key, W::Value],
        &[W::Output],
        &[W::Gate, W::Up],
        &[W::Down],
    ];
    let suits = |r: &Resident| {
        let whole = r.rows.iter().all(|rows| rows.is_multiple_of(TILE));
        whole && weights::suits(r.layout, &r.shape)
    };
    inputs
        .iter()
        .flat_map(|parts| matrices(source, layer, parts))
        .all(|r| suits(&r))
}

/// What is resident of matrices with one input.
fn matrices(source: Source<'_>, layer: usize, parts: &[W]) -> Vec<Resident> {
    let ids: Vec<WeightId> = parts.iter().map(|&w| layer_weight(layer, w)).collect();
    group(source, &ids)
}

/// What products multiply for a plan. Where its precision is f16 the values are f32 all the same: f16
/// weights are exact in it, and no micro-kernel for f16 is faster. So they are for bf16 where the
/// target's pairs are slow.
fn grain(source: Source<'_>) -> Grain {
    match (source.plan.precision, source.profile) {
        (
            Precision::BF16,
            Profile::LlvmCpu {
                bf16_pairs: true, ..
            },
        ) => Grain::Bf16,
        _ => Grain::F32,
    }
}
