//! The functions of a model: steps, and what is read off them.
//!
//! A *step* runs rows of tokens through the layers and grows caches. One that decodes returns every
//! row's choice and logits: one invocation a token, and logits that nobody wants stay on the device.
//! A chunk of a prompt returns the residual stream, and reading a token or logits off it is a function
//! of its own, so that a prompt's earlier chunks pay for no head, and no variant of the layers is
//! compiled twice.

use halfhitch_seam::model::{AttentionSpec, FeedForward, LayerSpec, NormSpec};
use halfhitch_seam::{LayerWeight, StepRows, TapPoint};

use super::argmax;
use super::attention::{Cache, Lane, attention};
use super::builder::Value;
use super::contraction::choice::step_rows;
use super::decode;
use super::decode_rows;
use super::embed::embed;
use super::graph::{Function, Source, layer_weight};
use super::head;
use super::layout::{Role, Signature};
use super::mlp;
use super::norm::{NormWeights, norm};
use super::prefill::{self, TILE};
use super::rope;
use super::types::{Dim, Elem};

/// How the rows of a step belong to sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Shape {
    /// Consecutive tokens of one sequence. Rows past the end of a prompt may hold any valid token:
    /// no row sees a later one, and what they leave in the cache is overwritten before it is read.
    Chunk {
        /// Number of rows.
        rows: usize,
    },
    /// Consecutive tokens of one sequence, of any number of whole tiles of [`TILE`]; rows past the end
    /// as in a chunk. Only for models that [go through in tiles](prefill::suits).
    Tiles,
    /// One token of each of several sequences.
    Batch {
        /// Number of sequences.
        lanes: usize,
    },
}

impl Shape {
    /// Rows of the step, where they are the same in every run.
    pub const fn rows(self) -> Option<usize> {
        match self {
            Self::Chunk { rows } => Some(rows),
            Self::Tiles => None,
            Self::Batch { lanes } => Some(lanes),
        }
    }

    /// Sequences of the step.
    pub const fn lanes(self) -> usize {
        match self {
            Self::Chunk { .. } | Self::Tiles => 1,
            Self::Batch { lanes } => lanes,
        }
    }

    /// Whether each row is the next token of a sequence.
    pub const fn decodes(self) -> bool {
        matches!(self, Self::Chunk { rows: 1 } | Self::Batch { .. })
    }

    /// The name of its step's function and the stem of its others'.
    pub fn name(self) -> String {
        match self {
            Self::Chunk { rows } => format!("chunk_{rows}"),
            Self::Tiles => "tiles".to_owned(),
            Self::Batch { lanes } => format!("batch_{lanes}"),
        }
    }
}

/// The step itself.
pub fn step(source: Source<'_>, shape: Shape) -> (String, Signature) {
    run(Function::new(source, shape.name()), shape)
}

/// The name of `tapped`'s function.
pub fn tapped_name(rows: usize) -> String {
    format!("tapped_{rows}")
}

/// A chunk, in the general form of every layer, that shows its intermediate results up to the logits.
pub fn tapped(source: Source<'_>, rows: usize) -> (String, Signature) {
    let f = Function::tapped(source, tapped_name(rows));
    run(f, Shape::Chunk { rows })
}

fn run(mut f: Function<'_>, shape: Shape) -> (String, Signature) {
    f.rows = match shape.rows() {
        Some(rows) => step_rows(rows, shape.lanes()),
        None => StepRows::Chunk,
    };
    let Some(rows) = shape.rows() else {
        return prefill::step(f);
    };
    let source = f.source;
    let spec = source.spec;
    let tokens = f.argument(Role::Tokens, Elem::I32, &[rows.into()]);
    let per_lane = rows / shape.lanes();
    let lanes: Vec<Lane> = (0..shape.lanes())
        .map(|lane| make_lane(&mut f, lane, per_lane))
        .collect();
    let tables = rope_rows(&mut f, &lanes);
    let mut caches: Vec<Vec<Cache>> = spec
        .layers
        .iter()
        .enumerate()
        .map(|(layer, spec)| {
            (0..lanes.len())
                .map(|lane| cache_arguments(&mut f, lane, layer, spec))
                .collect()
        })
        .collect();
    let mut x = embed(&mut f, &tokens);
    f.tap(None, TapPoint::Embedding, &x);
    let ropes = rope::distinct(spec);
    // The residual stream of layers in the short form: a value a lane, in place of `x`.
    let mut rows: Option<Vec<Value>> = None;
    let mut rotations: Vec<(AttentionSpec, Vec<Value>)> = Vec::new();
    let mut turns: Vec<(AttentionSpec, decode_rows::Turn)> = Vec::new();
    for (layer, (spec, caches)) in spec.layers.iter().zip(&mut caches).enumerate() {
        let table = spec
            .attention
            .rope
            .and_then(|r| ropes.iter().position(|known| *known == r))
            .map(|i| tables[i].clone());
        let short = table.as_ref().filter(|_| shape.decodes() && !f.is_tapped());
        if let Some(table) = short
            && decode_rows::suits(&f, layer, spec, lanes.len())
        {
            let known = turns.iter().position(|(a, _)| *a == spec.attention);
            let at = known.unwrap_or_else(|| {
                let turn = decode_rows::turn(&mut f, table, &spec.attention);
                turns.push((spec.attention.clone(), turn));
                turns.len() - 1
            });
            let turn = &turns[at].1;
            x = decode_rows::layer(&mut f, layer, spec, &x, turn, &lanes, caches);
            continue;
        }
        if let Some(table) = short
            && decode::suits(source, layer, spec)
        {
            let known = rotations.iter().position(|(a, _)| *a == spec.attention);
            let at = known.unwrap_or_else(|| {
                let of_lanes = (0..lanes.len())
                    .map(|lane| {
                        let table = f.b.slice(table, 0, lane, lane + 1);
                        decode::rotation(&mut f, &table, &spec.attention)
                    })
                    .collect();
                rotations.push((spec.attention.clone(), of_lanes));
                rotations.len() - 1
            });
            let xs = rows.take().unwrap_or_else(|| split_rows(&mut f, &x));
            let turns = &rotations[at].1;
            rows = Some(decode::layer(
                &mut f, layer, spec, &xs, turns, &lanes, caches,
            ));
            continue;
        }
        if let Some(rows) = rows.take() {
            x = join_rows(&mut f, &rows);
        }
        x = decoder_layer(&mut f, layer, spec, &x, table.as_ref(), &lanes, caches);
    }
    if let Some(rows) = rows {
        x = join_rows(&mut f, &rows);
    }
    if shape.decodes() && !f.is_tapped() {
        let logits = head::logits(&mut f, &x);
        let choice = argmax::choose(&mut f.b, &logits, source.profile);
        f.result(Role::Choice, choice);
        f.result(Role::Logits, logits);
    } else {
        if f.is_tapped() {
            let logits = head::logits(&mut f, &x);
            f.tap(None, TapPoint::Logits, &logits);
        }
        f.result(Role::Hidden, x);
    }
    for (layer, caches) in caches.into_iter().enumerate() {
        for (lane, cache) in caches.into_iter().enumerate() {
            cache_results(&mut f, lane, layer, cache);
        }
    }
    f.finish()
}

/// The rows of f32 `[rows, width]`, each `[width]`.
fn split_rows(f: &mut Function<'_>, x: &Value) -> Vec<Value> {
    let [rows, width] = x.sizes()[..] else {
        panic!("rows of {}", x.ty());
    };
    (0..rows)
        .map(|row| {
            let x = f.b.slice(x, 0, row, row + 1);
            f.b.reshape(&x, &[width])
        })
        .collect()
}

/// What [`split_rows`] took apart.
fn join_rows(f: &mut Function<'_>, rows: &[Value]) -> Value {
    let rows: Vec<_> = rows
        .iter()
        .map(|row| {
            let width = row.sizes()[0];
            f.b.reshape(row, &[1, width])
        })
        .collect();
    f.b.concatenate(&rows, 0)
}

/// Which rows of the residual stream are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rows {
    /// The one that the [`Role::Row`] argument names.
    One,
    /// [`TILE`] from that one on.
    Tile,
    /// Every one.
    All,
}

/// What is read off the residual stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reading {
    /// [`Role::Choice`].
    Choice,
    /// [`Role::Logits`].
    Logits,
}

/// The name of a reading's function.
pub fn reading_name(shape: Shape, rows: Rows, reading: Reading) -> String {
    let what = match reading {
        Reading::Choice => "choice",
        Reading::Logits => "logits",
    };
    let rows = match rows {
        Rows::One => "one",
        Rows::Tile => "tile",
        Rows::All => "all",
    };
    format!("{}_{what}_{rows}", shape.name())
}

/// A function that reads the greedy choice or logits off a step's residual stream.
pub fn reading(
    source: Source<'_>,
    shape: Shape,
    rows: Rows,
    reading: Reading,
) -> (String, Signature) {
    let mut f = Function::new(source, reading_name(shape, rows, reading));
    f.rows = match rows {
        Rows::One => StepRows::One,
        Rows::Tile => StepRows::Chunk,
        Rows::All => shape
            .rows()
            .map_or(StepRows::Chunk, |rows| step_rows(rows, shape.lanes())),
    };
    let hidden = source.spec.hidden_size;
    let count = shape.rows().map_or_else(|| f.b.symbol(), Dim::from);
    let dims: [Dim; 2] = [count, hidden.into()];
    let mut x = f.argument(Role::Hidden, Elem::F32, &dims);
    let wanted = match rows {
        Rows::One => Some(1),
        Rows::Tile => Some(TILE),
        Rows::All => None,
    };
    if let Some(wanted) = wanted {
        let row = f.scalar(Role::Row);
        let row = f.b.index(row);
        x = f.b.rows(&x, Some(row), wanted.into());
    }
    let logits = head::logits(&mut f, &x);
    match reading {
        Reading::Logits => f.result(Role::Logits, logits),
        Reading::Choice => {
            let choice = argmax::choose(&mut f.b, &logits, source.profile);
            f.result(Role::Choice, choice);
        }
    }
    f.finish()
}

fn make_lane(f: &mut Function<'_>, lane: usize, rows: usize) -> Lane {
    let position = f.scalar(Role::Position { lane });
    let start = f.b.index(position);
    let end = f.b.index_add(start, rows);
    let live = f.b.extent(end);
    Lane {
        first: lane * rows,
        rows,
        position,
        start,
        live,
    }
}

/// Every rope's table rows for the step, `[rows, 2, dims]`.
fn rope_rows(f: &mut Function<'_>, lanes: &[Lane]) -> Vec<Value> {
    f.b.section("rope");
    let ropes = rope::distinct(f.source.spec);
    ropes
        .iter()
        .enumerate()
        .map(|(index, rope)| {
            let positions = f.b.symbol();
            let dims = [positions, 2.into(), rope.dims.into()];
            let table = f.argument(Role::RopeTable { index }, Elem::F32, &dims);
            let rows: Vec<_> = lanes
                .iter()
                .map(|lane| f.b.rows(&table, Some(lane.start), lane.rows.into()))
                .collect();
            f.b.concatenate(&rows, 0)
        })
        .collect()
}

/// A layer's cache of one lane as it is before the step.
pub(super) fn cache_arguments(
    f: &mut Function<'_>,
    lane: usize,
    layer: usize,
    spec: &LayerSpec,
) -> Cache {
    let attention = &spec.attention;
    let elem = f.source.plan.kv_dtype.into();
    let capacity = f.b.symbol();
    let dims = [
        capacity,
        (2 * attention.kv_heads).into(),
        attention.head_dim.into(),
    ];
    Cache {
        rows: f.argument(Role::Cache { lane, layer }, elem, &dims),
    }
}

/// What a layer's cache of one lane is after the step.
pub(super) fn cache_results(f: &mut Function<'_>, lane: usize, layer: usize, cache: Cache) {
    f.result(Role::Cache { lane, layer }, cache.rows);
}

fn decoder_layer(
    f: &mut Function<'_>,
    layer: usize,
    spec: &LayerSpec,
    x: &Value,
    table: Option<&Value>,
    lanes: &[Lane],
    caches: &mut [Cache],
) -> Value {
    use LayerWeight as W;
    let normed = |f: &mut Function<'_>, x: &Value, norm_spec: &Option<NormSpec>, weight, bias| {
        let ids = NormWeights {
            weight: layer_weight(layer, weight),
            bias: layer_weight(layer, bias),
        };
        match norm_spec {
            Some(n) => norm(f, x, n, ids),
            None => x.clone(),
        }
    };
    f.b.layer_section(layer, "norm");
    let h = normed(
        f,
        x,
        &spec.pre_attention,
        W::PreAttentionNorm,
        W::PreAttentionNormBias,
    );
    f.tap(Some(layer), TapPoint::PreAttentionNorm, &h);
    let a = attention(f, layer, &h, &spec.attention, table, lanes, caches);
    f.b.layer_section(layer, "norm");
    let a = normed(
        f,
        &a,
        &spec.post_attention,
        W::PostAttentionNorm,
        W::PostAttentionNormBias,
    );
    if spec.post_attention.is_some() {
        f.tap(Some(layer), TapPoint::PostAttentionNorm, &a);
    }
    let a = f.b.scale(&a, spec.residual_scale);
    let x = f.b.add(x, &a);
    f.tap(Some(layer), TapPoint::AttentionResidual, &x);
    let h = normed(
        f,
        &x,
        &spec.pre_feed_forward,
        W::PreFeedForwardNorm,
        W::PreFeedForwardNormBias,
    );
    f.tap(Some(layer), TapPoint::PreFeedForwardNorm, &h);
    let FeedForward::Gated(gated) = &spec.feed_forward else {
        panic!("layer {layer}: a feed-forward block that is not advertised");
    };
    let m = mlp::gated(f, layer, &h, gated);
    f.tap(Some(layer), TapPoint::FeedForwardOutput, &m);
    f.b.layer_section(layer, "norm");
    let m = normed(
        f,
        &m,
        &spec.post_feed_forward,
        W::PostFeedForwardNorm,
        W::PostFeedForwardNormBias,
    );
    if spec.post_feed_forward.is_some() {
        f.tap(Some(layer), TapPoint::PostFeedForwardNorm, &m);
    }
    let m = f.b.scale(&m, spec.residual_scale);
    let x = f.b.add(&x, &m);
    f.tap(Some(layer), TapPoint::Residual, &x);
    x
}
