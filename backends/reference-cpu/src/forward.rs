//! The decoder: the function of the seam's [`model`](halfhitch_seam::model) page, line for line.
//!
//! A step is a list of [`Row`]s: tokens at positions of sequences. A chunk of a prompt is many rows of
//! one sequence, a batch is one row of many; the computation is the same, and each row's result depends
//! on nothing but its own sequence.

use halfhitch_seam::model::{AttentionSpec, QkNormScope};
use halfhitch_seam::{TapPoint as P, TokenId};
use rayon::prelude::*;

use crate::cache::{Cache, LayerCache};
use crate::math::dot::dot;
use crate::math::softmax::{largest, softcap, softmax};
use crate::model::{Block, Experts, Layer, Mlp, Model};
use crate::taps::Taps;

/// One token of a step.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Which of the step's caches is its sequence's.
    pub cache: usize,
    /// Its position there. Rows of one cache come in ascending order without gaps.
    pub position: usize,
    /// The token.
    pub token: TokenId,
}

/// Runs all layers and appends every row's keys and values to its cache, uncommitted. Returns the
/// residual stream, `[rows, hidden]`.
pub fn run(model: &Model, rows: &[Row], caches: &mut [&mut Cache], taps: &mut Taps) -> Vec<f32> {
    let n = rows.len();
    let hidden = model.spec.hidden_size;
    let mut x = Vec::with_capacity(rows.len() * hidden);
    for row in rows {
        x.extend(model.embedding.row(row.token as usize));
    }
    for v in &mut x {
        *v *= model.spec.embedding_scale;
    }
    taps.note(None, P::Embedding, n, &x);
    for (i, layer) in model.layers.iter().enumerate() {
        let mut h = x.clone();
        if let Some(norm) = &layer.pre_attention {
            norm.apply(&mut h, hidden);
        }
        taps.note(Some(i), P::PreAttentionNorm, n, &h);
        let mut a = attention(layer, i, &h, rows, caches, taps);
        if let Some(norm) = &layer.post_attention {
            norm.apply(&mut a, hidden);
            taps.note(Some(i), P::PostAttentionNorm, n, &a);
        }
        add(&mut x, &a, layer.spec.residual_scale);
        taps.note(Some(i), P::AttentionResidual, n, &x);

        let mut h = x.clone();
        if let Some(norm) = &layer.pre_feed_forward {
            norm.apply(&mut h, hidden);
        }
        taps.note(Some(i), P::PreFeedForwardNorm, n, &h);
        let mut f = feed_forward(&layer.block, i, &h, hidden, taps);
        taps.note(Some(i), P::FeedForwardOutput, n, &f);
        if let Some(norm) = &layer.post_feed_forward {
            norm.apply(&mut f, hidden);
            taps.note(Some(i), P::PostFeedForwardNorm, n, &f);
        }
        add(&mut x, &f, layer.spec.residual_scale);
        taps.note(Some(i), P::Residual, n, &x);
    }
    x
}

/// Logits, `[rows, vocab]`, of rows of the residual stream.
pub fn logits(model: &Model, x: &[f32], taps: &mut Taps) -> Vec<f32> {
    let rows = x.len() / model.spec.hidden_size;
    let mut h = x.to_vec();
    model.final_norm.apply(&mut h, model.spec.hidden_size);
    taps.note(None, P::FinalNorm, rows, &h);
    let mut logits = model.head().apply(&h);
    let head = &model.spec.head;
    for row in logits.chunks_exact_mut(model.spec.vocab_size) {
        if let Some(bias) = &model.head_bias {
            for (v, b) in row.iter_mut().zip(bias) {
                *v += b;
            }
        }
        for v in row {
            *v = softcap(*v, head.softcap) * head.scale;
        }
    }
    taps.note(None, P::Logits, rows, &logits);
    logits
}

fn add(x: &mut [f32], y: &[f32], scale: f32) {
    for (x, y) in x.iter_mut().zip(y) {
        *x += y * scale;
    }
}

/// `attention(h)·Wo + bo`, `[rows, hidden]`.
fn attention(
    layer: &Layer,
    index: usize,
    h: &[f32],
    rows: &[Row],
    caches: &mut [&mut Cache],
    taps: &mut Taps,
) -> Vec<f32> {
    let mut note = |point, values: &[f32]| taps.note(Some(index), point, rows.len(), values);
    let spec = &layer.spec.attention;
    let (q_width, kv_width, head_dim) = (spec.query_width(), spec.kv_width(), spec.head_dim);
    let mut q = layer.query.apply(h);
    let mut k = layer.key.apply(h);
    let v = layer.value.apply(h);
    note(P::QueryProjection, &q);
    note(P::KeyProjection, &k);
    note(P::Value, &v);
    if let Some(qk) = &spec.qk_norm {
        let (q_run, k_run) = match qk.scope {
            QkNormScope::Head => (head_dim, head_dim),
            QkNormScope::All => (q_width, kv_width),
        };
        if let Some(norm) = &layer.query_norm {
            norm.apply(&mut q, q_run);
        }
        if let Some(norm) = &layer.key_norm {
            norm.apply(&mut k, k_run);
        }
    }
    if let Some(rope) = &layer.rope {
        for (i, row) in rows.iter().enumerate() {
            let angles = rope.angles(row.position);
            let q = &mut q[i * q_width..][..q_width];
            let k = &mut k[i * kv_width..][..kv_width];
            for head in q
                .chunks_exact_mut(head_dim)
                .chain(k.chunks_exact_mut(head_dim))
            {
                rope.rotate(head, &angles);
            }
        }
    }
    note(P::Query, &q);
    note(P::Key, &k);
    for (i, row) in rows.iter().enumerate() {
        let at = i * kv_width..(i + 1) * kv_width;
        caches[row.cache].layers[index].append(&k[at.clone()], &v[at]);
    }
    // From here on the caches are only read, by all threads.
    let caches: Vec<&LayerCache> = caches.iter().map(|c| &c.layers[index]).collect();
    let mut a = vec![0.0; rows.len() * q_width];
    a.par_chunks_mut(head_dim)
        .enumerate()
        .for_each_init(Vec::new, |scores, (i, out)| {
            let (row, head) = (&rows[i / spec.heads], i % spec.heads);
            let q = &q[i * head_dim..][..head_dim];
            attend(spec, head, row.position, q, caches[row.cache], scores, out);
        });
    note(P::AttentionMix, &a);
    let out = layer.output.apply(&a);
    note(P::AttentionOutput, &out);
    out
}

/// One head of one row: `out = softmax(softcap(q·k * scale))·v` over the positions it may see.
fn attend(
    spec: &AttentionSpec,
    head: usize,
    position: usize,
    q: &[f32],
    cache: &LayerCache,
    scores: &mut Vec<f32>,
    out: &mut [f32],
) {
    let first = spec.window.map_or(0, |w| (position + 1).saturating_sub(w));
    let kv_head = head / (spec.heads / spec.kv_heads);
    let at = |j: usize| {
        let start = j * spec.kv_width() + kv_head * spec.head_dim;
        start..start + spec.head_dim
    };
    scores.clear();
    scores.extend(
        (first..=position).map(|j| softcap(dot(q, &cache.keys[at(j)]) * spec.scale, spec.softcap)),
    );
    softmax(scores);
    out.fill(0.0);
    for (j, weight) in (first..=position).zip(scores) {
        for (out, v) in out.iter_mut().zip(&cache.values[at(j)]) {
            *out += *weight * v;
        }
    }
}

fn feed_forward(
    block: &Block,
    layer: usize,
    h: &[f32],
    hidden: usize,
    taps: &mut Taps,
) -> Vec<f32> {
    let rows = h.len() / hidden;
    let mut note = |point, values: &[f32]| taps.note(Some(layer), point, rows, values);
    match block {
        Block::Gated(mlp) => gated(mlp, h, &mut note),
        Block::Experts(experts) => mixture(experts, h, hidden),
    }
}

/// Each token's chosen experts, weighted and summed in ascending order of the experts, whoever
/// shares the step.
fn mixture(moe: &Experts, h: &[f32], hidden: usize) -> Vec<f32> {
    let all = moe.spec.experts;
    let mut weights = moe.router.apply(h);
    for weights in weights.chunks_exact_mut(all) {
        route(weights, moe.spec.experts_per_token, moe.spec.normalise);
    }
    let mut out = vec![0.0; h.len()];
    for (e, expert) in moe.experts.iter().enumerate() {
        let weight = |row: usize| weights[row * all + e];
        let chosen: Vec<usize> = (0..h.len() / hidden)
            .filter(|&row| weight(row) != 0.0)
            .collect();
        if chosen.is_empty() {
            continue;
        }
        let gathered: Vec<f32> = chosen
            .iter()
            .flat_map(|row| &h[row * hidden..][..hidden])
            .copied()
            .collect();
        let results = gated(expert, &gathered, &mut |_, _| {});
        for (&row, result) in chosen.iter().zip(results.chunks_exact(hidden)) {
            add(&mut out[row * hidden..][..hidden], result, weight(row));
        }
    }
    out
}

/// Turns a token's router scores into expert weights: the softmax over all experts, kept for the
/// `chosen` largest (of equal ones the lower index) and 0 for the others.
fn route(scores: &mut [f32], chosen: usize, normalise: bool) {
    let keep = largest(scores, chosen);
    softmax(scores);
    let sum: f64 = keep.iter().map(|&e| f64::from(scores[e])).sum();
    let factor = if normalise { (1.0 / sum) as f32 } else { 1.0 };
    let kept: Vec<f32> = keep.iter().map(|&e| scores[e] * factor).collect();
    scores.fill(0.0);
    for (e, weight) in keep.into_iter().zip(kept) {
        scores[e] = weight;
    }
}

/// `down(act(gate(h)) * up(h))`.
fn gated(mlp: &Mlp, h: &[f32], note: &mut dyn FnMut(P, &[f32])) -> Vec<f32> {
    let mut wide = mlp.gate.apply(h);
    note(P::Gate, &wide);
    let up = mlp.up.apply(h);
    note(P::Up, &up);
    for (g, u) in wide.iter_mut().zip(up) {
        *g = (mlp.activation)(*g) * u;
    }
    note(P::FeedForwardProduct, &wide);
    mlp.down.apply(&wide)
}

#[cfg(test)]
mod tests {
    use super::*;
    use halfhitch_seam::model::{AttentionSpec, RopeSpec};

    fn spec(window: Option<usize>) -> AttentionSpec {
        AttentionSpec {
            heads: 4,
            kv_heads: 2,
            head_dim: 1,
            scale: 1.0,
            rope: None::<RopeSpec>,
            window,
            softcap: None,
            qk_norm: None,
            qkv_bias: false,
            output_bias: false,
        }
    }

    fn cache() -> Cache {
        let mut cache = Cache::new([2].into_iter(), 8);
        cache.layers[0].append(&[0.0, 0.0], &[1.0, 10.0]);
        cache.layers[0].append(&[3f32.ln(), 0.0], &[2.0, 20.0]);
        cache.layers[0].append(&[0.0, 0.0], &[4.0, 40.0]);
        cache
    }

    fn attended(window: Option<usize>, head: usize, position: usize) -> f32 {
        let mut out = [f32::NAN];
        attend(
            &spec(window),
            head,
            position,
            &[1.0],
            &cache().layers[0],
            &mut Vec::new(),
            &mut out,
        );
        out[0]
    }

    #[test]
    fn attention_weighs_what_it_may_see() {
        // Key-value head 0: weights 1:3, then 1:3:1. Head 1 shares it; heads 2 and 3 read the other.
        for (window, head, position, want) in [
            (None, 0, 0, 1.0),
            (None, 0, 1, 7.0 / 4.0),
            (None, 1, 2, 11.0 / 5.0),
            (None, 2, 1, 15.0),
            (None, 3, 2, 70.0 / 3.0),
            (Some(1), 0, 2, 4.0),
            (Some(2), 0, 2, 10.0 / 4.0),
            (Some(9), 0, 2, 11.0 / 5.0),
        ] {
            let got = attended(window, head, position);
            assert!(
                (got - want).abs() < 1e-5,
                "{window:?} {head} {position}: {got}, not {want}"
            );
        }
    }

    #[test]
    fn the_router_keeps_the_best_and_ties_go_to_the_lower_expert() {
        let ln = f32::ln;
        let mut scores = [ln(1.0), ln(4.0), ln(4.0), ln(1.0)];
        route(&mut scores, 2, false);
        for (got, want) in scores.iter().zip([0.0, 0.4, 0.4, 0.0]) {
            assert!((got - want).abs() < 1e-6, "{scores:?}");
        }
        let mut scores = [ln(2.0), ln(1.0), ln(2.0), ln(2.0)];
        route(&mut scores, 2, true);
        for (got, want) in scores.iter().zip([0.5, 0.0, 0.5, 0.0]) {
            assert!((got - want).abs() < 1e-6, "{scores:?}");
        }
    }
}
