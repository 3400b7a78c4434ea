//! One token of each of some sequences through a plain layer on a GPU, in few kernels.
//!
//! Plain is as in [`super::decode`], and here too the general way means the same. There a row is a value
//! of its own; here all rows are one, so that a contraction takes them together. What makes it shorter:
//! * the last step of a norm, and the activation function, are computed where a contraction's input is
//!   put in order ([`fed`]);
//! * rope turns queries, keys and values at once, with factors made once a step that leave the values as
//!   they are and carry the scale of the scores.

use halfhitch_seam::model::{AttentionSpec, FeedForward, LayerSpec, NormSpec};
use halfhitch_seam::{LayerWeight as W, WeightId};

use super::attention::{Cache, Lane};
use super::builder::Value;
use super::contraction::{fed, words_gpu::At};
use super::decode::{attend, matrices};
use super::graph::{Function, layer_weight};
use super::layout::Layout;
use super::linalg::{Body, Element};
use super::mlp;
use super::ops::Reduce;
use super::plain::plain;
use super::tiling::Profile;

/// Whether a layer is plain, the target a GPU, and its matrices lie as this needs them.
pub fn suits(f: &Function<'_>, layer: usize, spec: &LayerSpec, rows: usize) -> bool {
    matches!(f.source.profile, Profile::Gpu { .. })
        && plain(spec)
        && matrices(f.source, layer, Layout::Lanes)
            .is_some_and(|all| all.iter().all(|m| fed::suits(f, m, rows)))
}

/// What turns all heads of queries, keys and values: by the elements themselves and by their partners,
/// f32 `[rows, heads, 2, head_dim / 2]` each.
#[derive(Clone)]
pub struct Turn {
    own: Value,
    partner: Value,
}

/// The factors of a step, from the rope's rows `[rows, 2, head_dim]`.
pub fn turn(f: &mut Function<'_>, table: &Value, spec: &AttentionSpec) -> Turn {
    f.b.section("rope");
    let rows = table.sizes()[0];
    let heads = spec.heads + 2 * spec.kv_heads;
    let dims = [rows, heads, spec.head_dim];
    let mut by_table = vec![spec.scale; spec.heads];
    by_table.extend(vec![1.0; spec.kv_heads]);
    by_table.extend(vec![0.0; spec.kv_heads]);
    let mut as_is = vec![0.0; spec.heads + spec.kv_heads];
    as_is.extend(vec![1.0; spec.kv_heads]);
    let b = &mut f.b;
    let [by_table, as_is] = [by_table, as_is].map(|factors| {
        let factors = b.constant_floats(&factors);
        b.broadcast(&factors, &[1], &dims)
    });
    let [cosines, sines] = [0, 1].map(|part| {
        let part = b.slice(table, 1, part, part + 1);
        let part = b.reshape(&part, &[rows, spec.head_dim]);
        let part = b.broadcast(&part, &[0, 2], &dims);
        b.mul(&part, &by_table)
    });
    let own = b.add(&cosines, &as_is);
    let [own, partner] = [own, sines].map(|factors| {
        let factors = b.reshape(&factors, &[rows, heads, 2, spec.head_dim / 2]);
        // Made once, not in every layer.
        b.barrier(&factors)
    });
    Turn { own, partner }
}

/// The layer, for a row of each lane: f32 `[rows, hidden]` before and after. The caches become what they
/// are after the step.
///
/// # Panics
/// For a layer that [`suits`] does not let through.
pub fn layer(
    f: &mut Function<'_>,
    layer: usize,
    spec: &LayerSpec,
    x: &Value,
    turn: &Turn,
    lanes: &[Lane],
    caches: &mut [Cache],
) -> Value {
    let (Some(matrices), Some(before), Some(between), FeedForward::Gated(mlp)) = (
        matrices(f.source, layer, Layout::Lanes),
        spec.pre_attention,
        spec.pre_feed_forward,
        &spec.feed_forward,
    ) else {
        panic!("layer {layer} is not plain");
    };
    let [qkv, output, gate_up, down] = &matrices;
    let rows = lanes.len();

    f.b.layer_section(layer, "norm");
    let normed = Normed::of(f, x, &before, layer_weight(layer, W::PreAttentionNorm));
    f.b.layer_section(layer, "attention");
    let all = fed::contract(f, qkv, rows, |body, at| normed.at(body, at));
    let heads = rotate(f, layer, &all, &spec.attention, turn);
    let mixed: Vec<Value> = (0..rows)
        .map(|lane| {
            let heads = f.b.slice(&heads, 0, lane, lane + 1);
            let heads = f.b.reshape(&heads, &heads.sizes()[1..]);
            let mixed = attend(f, &heads, &spec.attention, &lanes[lane], &mut caches[lane]);
            f.b.reshape(&mixed, &[1, spec.attention.query_width()])
        })
        .collect();
    let mixed = f.b.concatenate(&mixed, 0);
    let out = fed::contract(f, output, rows, |body, at| element(body, &mixed, at));
    let x = f.b.add(x, &out);

    f.b.layer_section(layer, "norm");
    let normed = Normed::of(f, &x, &between, layer_weight(layer, W::PreFeedForwardNorm));
    f.b.layer_section(layer, "feed-forward");
    let both = fed::contract(f, gate_up, rows, |body, at| normed.at(body, at));
    let wide = |body: &mut Body, at: &At| {
        let width = body.constant_index(mlp.intermediate);
        let above = body.op("arith.addi", &[&at.column, &width], "index");
        let gate = element(body, &both, at);
        let up = body.extract(&both, &[&at.row, &above]);
        let gate = mlp::activated(body, &gate, mlp.activation);
        body.arith("mulf", &gate, &up)
    };
    let out = fed::contract(f, down, rows, wide);
    f.b.add(&x, &out)
}

fn element(body: &mut Body, x: &Value, at: &At) -> Element {
    body.extract(x, &[&at.row, &at.column])
}

/// A norm that has been computed but for its last step.
struct Normed {
    /// f32 `[rows, width]`.
    x: Value,
    /// Sums of squares, f32 `[rows]`.
    squares: Value,
    /// `[width]`, as it is resident.
    weight: Value,
    norm: NormSpec,
}

impl Normed {
    fn of(f: &mut Function<'_>, x: &Value, norm: &NormSpec, id: WeightId) -> Self {
        let weight = f.weight(id).tensors[0].clone();
        let b = &mut f.b;
        let squares = b.mul(x, x);
        Self {
            x: x.clone(),
            squares: b.reduce(Reduce::Add, &squares, &[1]),
            weight,
            norm: *norm,
        }
    }

    fn at(&self, body: &mut Body, at: &At) -> Element {
        let x = element(body, &self.x, at);
        let sum = body.extract(&self.squares, &[&at.row]);
        let width = body.constant(self.x.sizes()[1] as f32);
        let mean = body.arith("divf", &sum, &width);
        let eps = body.constant(self.norm.eps);
        let raised = body.arith("addf", &mean, &eps);
        let factor = body.math("rsqrt", &raised);
        let weight = body.extract(&self.weight, &[&at.column]);
        let mut weight = body.widen(&weight, self.weight.elem());
        if self.norm.weight_offset != 0.0 {
            let offset = body.constant(self.norm.weight_offset);
            weight = body.arith("addf", &weight, &offset);
        }
        let x = body.arith("mulf", &x, &factor);
        body.arith("mulf", &x, &weight)
    }
}

/// All heads f32 `[rows, heads, head_dim]`: a contraction's result plus biases, turned.
fn rotate(
    f: &mut Function<'_>,
    layer: usize,
    all: &Value,
    spec: &AttentionSpec,
    turn: &Turn,
) -> Value {
    let mut all = all.clone();
    if spec.qkv_bias {
        let biases = [W::QueryBias, W::KeyBias, W::ValueBias];
        let biases = biases.map(|bias| f.vector(layer_weight(layer, bias)));
        let bias = f.b.concatenate(&biases, 0);
        let bias = f.b.broadcast(&bias, &[1], &all.sizes());
        all = f.b.add(&all, &bias);
    }
    let dims = turn.own.sizes();
    let b = &mut f.b;
    let halves = b.reshape(&all, &dims);
    let partner = b.reverse(&halves, 2);
    let kept = b.mul(&halves, &turn.own);
    let moved = b.mul(&partner, &turn.partner);
    let turned = b.add(&kept, &moved);
    b.reshape(&turned, &[dims[0], dims[1], spec.head_dim])
}
