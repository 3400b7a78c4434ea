//! One token of each of some sequences through a plain layer, in few dispatches.
//!
//! Plain is: RMS norms before the two blocks and no others, full half-split rope, no window or soft
//! cap, every matrix in blocks. Any other layer goes the general way and means the same.
//!
//! What makes it shorter:
//! * a norm's factor, one number, is applied after the contraction, so that nothing waits for it;
//! * rope is a sum over two halves with factors made once a step, which also carry the scale of the
//!   scores and leave the values as they are: queries, keys and values stay one tensor;
//! * the residual stream is what the contractions add onto.

use halfhitch_seam::model::{AttentionSpec, FeedForward, GatedMlp, LayerSpec, NormSpec};
use halfhitch_seam::{LayerWeight as W, WeightId};

use super::attention::{Cache, Lane};
use super::builder::{Builder, Value};
use super::contraction::{self, Prepared};
use super::graph::{Function, Source, WeightValue, layer_weight};
use super::layout::Layout;
use super::linalg::Operand;
use super::mlp;
use super::ops::Reduce;
use super::plain::plain;
use super::resident::{Resident, group, single};
use super::tiling::Profile;
use super::types::{Dim, Elem};

/// Whether a layer is plain and its matrices lie as this needs them.
pub fn suits(source: Source<'_>, layer: usize, spec: &LayerSpec) -> bool {
    plain(spec)
        && spec.attention.head_dim.is_multiple_of(16)
        && matrices(source, layer, Layout::Blocks).is_some()
}

/// A layer's matrices, where all lie in `layout`: queries with keys and values, output, gate with up, down.
pub fn matrices(source: Source<'_>, layer: usize, layout: Layout) -> Option<[Resident; 4]> {
    let id = |weight| layer_weight(layer, weight);
    let joined = |ids: &[WeightId]| <[Resident; 1]>::try_from(group(source, ids)).ok();
    let [qkv] = joined(&[id(W::Query), id(W::Key), id(W::Value)])?;
    let [gate_up] = joined(&[id(W::Gate), id(W::Up)])?;
    let all = [
        qkv,
        single(source, id(W::Output)),
        gate_up,
        single(source, id(W::Down)),
    ];
    all.iter().all(|r| r.layout == layout).then_some(all)
}

/// Factors of the rotation of all heads of queries, keys and values for one position, f32
/// `[heads, 2, 2, head_dim / 2]`: new half `p` of a head is the sum over `q` of `factors[p, q]` times
/// old half `q`. `table` is the rope's row, `[1, 2, head_dim]`.
pub fn rotation(f: &mut Function<'_>, table: &Value, spec: &AttentionSpec) -> Value {
    f.b.section("rope");
    let half = spec.head_dim / 2;
    let heads = spec.heads + 2 * spec.kv_heads;
    let b = &mut f.b;
    let row = b.reshape(table, &[4, half]);
    // Cosines of both halves are the same; sines of the second have their own sign.
    let cos = b.slice(&row, 0, 0, 1);
    let sin = b.slice(&row, 0, 3, 4);
    let dims = [heads, 2, 2, half];
    let turned = spec.heads + spec.kv_heads;
    let mut factors = [vec![], vec![], vec![]];
    for head in 0..heads {
        let scale = if head < spec.heads { spec.scale } else { 1.0 };
        let (by_cos, by_sin, as_is) = if head < turned {
            (
                [scale, 0.0, 0.0, scale],
                [0.0, -scale, scale, 0.0],
                [0.0; 4],
            )
        } else {
            ([0.0; 4], [0.0; 4], [1.0, 0.0, 0.0, 1.0])
        };
        factors[0].extend(by_cos);
        factors[1].extend(by_sin);
        factors[2].extend(as_is);
    }
    let [by_cos, by_sin, as_is] = factors.map(|values| {
        let values = b.constant_floats(&values);
        let values = b.reshape(&values, &dims[..3]);
        b.broadcast(&values, &[0, 1, 2], &dims)
    });
    let [cos, sin] = [cos, sin].map(|v| {
        let v = b.reshape(&v, &[half]);
        b.broadcast(&v, &[3], &dims)
    });
    let even = b.mul(&by_cos, &cos);
    let odd = b.mul(&by_sin, &sin);
    let sum = b.add(&even, &odd);
    let sum = b.add(&sum, &as_is);
    // Made once, not in every layer.
    b.barrier(&sum)
}

/// The layer, for a row of each lane: f32 `[hidden]` before and after. The caches become what they are
/// after the step. `rotations` has one a lane.
///
/// # Panics
/// For a layer that [`suits`] does not let through.
pub fn layer(
    f: &mut Function<'_>,
    layer: usize,
    spec: &LayerSpec,
    xs: &[Value],
    rotations: &[Value],
    lanes: &[Lane],
    caches: &mut [Cache],
) -> Vec<Value> {
    let (Some(matrices), Some(before), Some(between), FeedForward::Gated(mlp)) = (
        matrices(f.source, layer, Layout::Blocks),
        spec.pre_attention,
        spec.pre_feed_forward,
        &spec.feed_forward,
    ) else {
        panic!("layer {layer} is not plain");
    };
    let profile = f.source.profile;
    let [qkv, output, gate_up, down] = matrices.map(|m| f.resident(&m));

    let (hs, factors) = weighed_rows(f, layer, xs, &before, W::PreAttentionNorm, &qkv);
    f.b.layer_section(layer, "attention");
    let all = contraction::contract_rows(&mut f.b, &hs, &qkv, None, profile);
    let mixed: Vec<Prepared> = all
        .iter()
        .enumerate()
        .map(|(i, heads)| {
            let heads = rotate(f, layer, heads, &factors[i], &spec.attention, &rotations[i]);
            let mixed = attend(f, &heads, &spec.attention, &lanes[i], &mut caches[i]);
            contraction::prepare(&mut f.b, &mixed, &output)
        })
        .collect();
    let xs = contraction::contract_rows(&mut f.b, &mixed, &output, Some(xs), profile);

    let (hs, factors) = weighed_rows(f, layer, &xs, &between, W::PreFeedForwardNorm, &gate_up);
    f.b.layer_section(layer, "feed-forward");
    let both = contraction::contract_rows(&mut f.b, &hs, &gate_up, None, profile);
    let b = &mut f.b;
    let wide: Vec<Prepared> = both
        .iter()
        .zip(&factors)
        .map(|(both, factor)| {
            let wide = gated(b, both, factor, mlp);
            contraction::prepare(b, &wide, &down)
        })
        .collect();
    contraction::contract_rows(b, &wide, &down, Some(&xs), profile)
}

/// [`weighed`] for each row, made ready for `weight`, and the factors.
fn weighed_rows(
    f: &mut Function<'_>,
    layer: usize,
    xs: &[Value],
    norm: &NormSpec,
    id: W,
    weight: &WeightValue,
) -> (Vec<Prepared>, Vec<Value>) {
    f.b.layer_section(layer, "norm");
    xs.iter()
        .map(|x| {
            let (h, factor) = weighed(f, x, norm, layer_weight(layer, id));
            (contraction::prepare(&mut f.b, &h, weight), factor)
        })
        .unzip()
}

/// Gate and up `[2 * intermediate]`, to which the norm's factor is still to be applied, into what the last
/// contraction takes.
fn gated(b: &mut Builder, both: &Value, factor: &Value, mlp: &GatedMlp) -> Value {
    let width = mlp.intermediate;
    let factor = b.broadcast(factor, &[], &[width]);
    let gate = b.slice(both, 0, 0, width);
    let up = b.slice(both, 0, width, 2 * width);
    let gate = b.mul(&gate, &factor);
    let up = b.mul(&up, &factor);
    let gate = mlp::activate(b, &gate, mlp.activation);
    b.mul(&gate, &up)
}

/// A norm in two parts: `x * weight` `[hidden]`, and the factor that is still to be applied.
fn weighed(f: &mut Function<'_>, x: &Value, norm: &NormSpec, id: WeightId) -> (Value, Value) {
    let mut weight = f.vector(id);
    let b = &mut f.b;
    let width = x.sizes()[0];
    if norm.weight_offset != 0.0 {
        let offset = b.splat(norm.weight_offset, Elem::F32, &[width]);
        weight = b.add(&weight, &offset);
    }
    let squares = b.mul(x, x);
    let sum = b.reduce(Reduce::Add, &squares, &[0]);
    let n = b.splat(width as f32, Elem::F32, &[]);
    let mean = b.binary("divide", &sum, &n);
    let eps = b.splat(norm.eps, Elem::F32, &[]);
    let raised = b.add(&mean, &eps);
    let factor = b.unary("rsqrt", &raised);
    (b.mul(x, &weight), factor)
}

/// All heads `[heads, head_dim]`: the contraction's result times the norm's factor, plus biases,
/// rotated.
fn rotate(
    f: &mut Function<'_>,
    layer: usize,
    heads: &Value,
    factor: &Value,
    spec: &AttentionSpec,
    rotation: &Value,
) -> Value {
    let dims = rotation.sizes();
    let [count, _, _, half] = dims[..] else {
        panic!("a rotation of {}", rotation.ty());
    };
    let mut heads = heads.clone();
    let scaled = |f: &mut Function<'_>, x: &Value| {
        let sizes = x.sizes();
        let factor = f.b.broadcast(factor, &[], &sizes);
        f.b.mul(x, &factor)
    };
    if spec.qkv_bias {
        let biases = [W::QueryBias, W::KeyBias, W::ValueBias];
        let biases = biases.map(|bias| f.vector(layer_weight(layer, bias)));
        let bias = f.b.concatenate(&biases, 0);
        heads = scaled(f, &heads);
        heads = f.b.add(&heads, &bias);
    }
    let halves = f.b.reshape(&heads, &[count, 2, half]);
    let halves = f.b.broadcast(&halves, &[0, 2, 3], &dims);
    let products = f.b.mul(&halves, rotation);
    let mut turned = f.b.reduce(Reduce::Add, &products, &[2]);
    if !spec.qkv_bias {
        turned = scaled(f, &turned);
    }
    f.b.reshape(&turned, &[count, spec.head_dim])
}

/// Attention of scaled, rotated `heads` `[heads, head_dim]` over the live part of the cache, which
/// takes the new key and value first: f32 `[heads * head_dim]`.
pub fn attend(
    f: &mut Function<'_>,
    heads: &Value,
    spec: &AttentionSpec,
    lane: &Lane,
    cache: &mut Cache,
) -> Value {
    let stored: Elem = f.source.plan.kv_dtype.into();
    let profile = f.source.profile;
    let b = &mut f.b;
    let (kv, width) = (spec.kv_heads, spec.head_dim);
    let per_kv = spec.heads / kv;
    let q = b.slice(heads, 0, 0, spec.heads);
    let q = b.reshape(&q, &[kv, per_kv, width]);
    let new = b.slice(heads, 0, spec.heads, spec.heads + 2 * kv);
    let new = b.reshape(&new, &[1, 2 * kv, width]);
    cache.write(b, &new, lane.start);
    let keys = cache.keys(b, lane.live);
    let values = cache.values(b, lane.live);
    // Loop dimensions: kv head, head of the group, context, width.
    let loops: [Dim; 4] = [kv.into(), per_kv.into(), lane.live, width.into()];
    let scores = b.tiled(
        profile.scores(width),
        &loops,
        &[operand(&q, &[0, 1, 3]), operand(&keys, &[2, 0, 3])],
        &[0, 1, 2],
        0.0,
        |body, e| {
            let key = body.widen(&e[1], stored);
            let product = body.arith("mulf", &e[0], &key);
            body.arith("addf", &e[2], &product)
        },
    );
    let largest = b.generic(
        &loops[..3],
        &[operand(&scores, &[0, 1, 2])],
        &[0, 1],
        f32::MIN,
        |body, e| body.arith("maximumf", &e[1], &e[0]),
    );
    let apart = profile == (Profile::Gpu { subgroups: false });
    let largest = if apart { b.barrier(&largest) } else { largest };
    let weights = b.generic(
        &loops[..3],
        &[operand(&scores, &[0, 1, 2]), operand(&largest, &[0, 1])],
        &[0, 1, 2],
        0.0,
        |body, e| {
            let below = body.arith("subf", &e[0], &e[1]);
            body.math("exp", &below)
        },
    );
    let total = b.generic(
        &loops[..3],
        &[operand(&weights, &[0, 1, 2])],
        &[0, 1],
        0.0,
        |body, e| body.arith("addf", &e[1], &e[0]),
    );
    // The same quotient, of the sums where the weights cannot be divided by the way.
    let divide = |b: &mut Builder, x: &Value, last: Dim| {
        b.generic(
            &[loops[0], loops[1], last],
            &[operand(x, &[0, 1, 2]), operand(&total, &[0, 1])],
            &[0, 1, 2],
            0.0,
            |body, e| body.arith("divf", &e[0], &e[1]),
        )
    };
    let shares = if apart {
        weights.clone()
    } else {
        divide(b, &weights, loops[2])
    };
    let by_value = [loops[0], loops[1], loops[3], loops[2]];
    let sums = b.tiled(
        profile.weighted_values(width),
        &by_value,
        &[operand(&shares, &[0, 1, 3]), operand(&values, &[3, 0, 2])],
        &[0, 1, 2],
        0.0,
        |body, e| {
            let value = body.widen(&e[1], stored);
            let product = body.arith("mulf", &e[0], &value);
            body.arith("addf", &e[2], &product)
        },
    );
    let sums = if apart {
        divide(b, &sums, width.into())
    } else {
        sums
    };
    b.reshape(&sums, &[spec.heads * width])
}

fn operand<'a>(value: &'a Value, dims: &'a [usize]) -> Operand<'a> {
    Operand { value, dims }
}
