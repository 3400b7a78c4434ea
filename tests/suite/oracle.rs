//! Ground truth without files: the function of the seam's [`model`](halfhitch_seam::model) page in
//! f64, as naively as it can be written.
//!
//! Scalar loops, no cache, no batch, every position recomputed from the tokens. It shares no code with
//! any backend, so that an error would have to be made twice to go unseen.

// The indices are the formulas'.
#![allow(clippy::needless_range_loop)]

use halfhitch_seam::model::{
    Activation, FeedForward, GatedMlp, LayerSpec, ModelSpec, NormKind, NormSpec, QkNormScope,
    RopeLayout, RopeSpec,
};
use halfhitch_seam::{LayerWeight, SeamError, SeamResult, TokenId, WeightId, Weights};

/// A vector.
type V = Vec<f64>;

/// Logits of every position of `tokens`.
///
/// # Errors
/// `NotFound` where a weight is missing; `Unsupported` for a part of a spec that is not known here.
pub fn logits(spec: &ModelSpec, weights: &Weights, tokens: &[TokenId]) -> SeamResult<Vec<V>> {
    logits_with(spec, weights, tokens, |squares| squares.iter().sum())
}

/// How the squares of a norm are summed.
pub type NormSum = fn(&[f64]) -> f64;

/// As [`logits`], with a sum of one's own in every norm: what too narrow an accumulator does.
///
/// # Errors
/// As [`logits`].
pub fn logits_with(
    spec: &ModelSpec,
    weights: &Weights,
    tokens: &[TokenId],
    norm_sum: NormSum,
) -> SeamResult<Vec<V>> {
    let oracle = Oracle {
        spec,
        weights,
        norm_sum,
    };
    oracle.logits(tokens)
}

struct Oracle<'a> {
    spec: &'a ModelSpec,
    weights: &'a Weights,
    norm_sum: NormSum,
}

impl Oracle<'_> {
    fn numbers(&self, id: WeightId) -> SeamResult<V> {
        let values = self.weights.get(id)?.to_f32();
        Ok(values.into_iter().map(f64::from).collect())
    }

    fn logits(&self, tokens: &[TokenId]) -> SeamResult<Vec<V>> {
        let spec = self.spec;
        let table = self.numbers(WeightId::Embedding)?;
        let mut xs: Vec<V> = tokens
            .iter()
            .map(|&t| {
                (0..spec.hidden_size)
                    .map(|i| {
                        table[t as usize * spec.hidden_size + i] * f64::from(spec.embedding_scale)
                    })
                    .collect()
            })
            .collect();
        for (i, layer) in spec.layers.iter().enumerate() {
            self.layer(i as u32, layer, &mut xs)?;
        }
        let head = match spec.head.tied {
            true => table,
            false => self.numbers(WeightId::Head)?,
        };
        let bias = match spec.head.bias {
            true => self.numbers(WeightId::HeadBias)?,
            false => vec![0.0; spec.vocab_size],
        };
        xs.into_iter()
            .map(|x| {
                let h = self.norm(
                    Some(spec.final_norm),
                    WeightId::FinalNorm,
                    WeightId::FinalNormBias,
                    x,
                )?;
                let mut out = V::new();
                for token in 0..spec.vocab_size {
                    let mut sum = bias[token];
                    for (j, value) in h.iter().enumerate() {
                        sum += head[token * spec.hidden_size + j] * value;
                    }
                    out.push(cap(sum, spec.head.softcap) * f64::from(spec.head.scale));
                }
                Ok(out)
            })
            .collect()
    }

    fn layer(&self, i: u32, layer: &LayerSpec, xs: &mut [V]) -> SeamResult<()> {
        use LayerWeight as W;
        let id = |w| WeightId::Layer(i, w);
        let r = f64::from(layer.residual_scale);
        let mut hs = Vec::new();
        for x in xs.iter() {
            hs.push(self.norm(
                layer.pre_attention,
                id(W::PreAttentionNorm),
                id(W::PreAttentionNormBias),
                x.clone(),
            )?);
        }
        for (x, a) in xs.iter_mut().zip(self.attention(i, layer, &hs)?) {
            let a = self.norm(
                layer.post_attention,
                id(W::PostAttentionNorm),
                id(W::PostAttentionNormBias),
                a,
            )?;
            for j in 0..x.len() {
                x[j] += a[j] * r;
            }
        }
        for x in xs.iter_mut() {
            let h = self.norm(
                layer.pre_feed_forward,
                id(W::PreFeedForwardNorm),
                id(W::PreFeedForwardNormBias),
                x.clone(),
            )?;
            let f = self.feed_forward(i, layer, &h)?;
            let f = self.norm(
                layer.post_feed_forward,
                id(W::PostFeedForwardNorm),
                id(W::PostFeedForwardNormBias),
                f,
            )?;
            for j in 0..x.len() {
                x[j] += f[j] * r;
            }
        }
        Ok(())
    }

    fn attention(&self, i: u32, layer: &LayerSpec, hs: &[V]) -> SeamResult<Vec<V>> {
        use LayerWeight as W;
        let a = &layer.attention;
        let project = |h: &V, w, b| self.linear(i, w, a.qkv_bias.then_some(b), h);
        let (mut qs, mut ks, mut vs) = (Vec::new(), Vec::new(), Vec::new());
        for (position, h) in hs.iter().enumerate() {
            let q = project(h, W::Query, W::QueryBias)?;
            let k = project(h, W::Key, W::KeyBias)?;
            vs.push(project(h, W::Value, W::ValueBias)?);
            let q = self.qk_norm(i, layer, q, W::QueryNorm, W::QueryNormBias)?;
            let k = self.qk_norm(i, layer, k, W::KeyNorm, W::KeyNormBias)?;
            qs.push(rotated(a.rope, a.head_dim, position, q));
            ks.push(rotated(a.rope, a.head_dim, position, k));
        }
        let mut out = Vec::new();
        for p in 0..hs.len() {
            let mut heads = V::new();
            for head in 0..a.heads {
                let (from, kv) = (head * a.head_dim, head * a.kv_heads / a.heads * a.head_dim);
                let mut weights = V::new();
                for j in 0..=p {
                    let visible = a.window.is_none_or(|w| p - j < w);
                    let mut score = 0.0;
                    for d in 0..a.head_dim {
                        score += qs[p][from + d] * ks[j][kv + d];
                    }
                    let score = cap(score * f64::from(a.scale), a.softcap);
                    weights.push(if visible { score.exp() } else { 0.0 });
                }
                let total: f64 = weights.iter().sum();
                for d in 0..a.head_dim {
                    let mut sum = 0.0;
                    for j in 0..=p {
                        sum += weights[j] / total * vs[j][kv + d];
                    }
                    heads.push(sum);
                }
            }
            let bias = a.output_bias.then_some(W::OutputBias);
            out.push(self.linear(i, W::Output, bias, &heads)?);
        }
        Ok(out)
    }

    fn qk_norm(
        &self,
        i: u32,
        layer: &LayerSpec,
        x: V,
        weight: LayerWeight,
        bias: LayerWeight,
    ) -> SeamResult<V> {
        let Some(qk) = layer.attention.qk_norm else {
            return Ok(x);
        };
        let run = match qk.scope {
            QkNormScope::Head => layer.attention.head_dim,
            QkNormScope::All => x.len(),
        };
        let mut out = V::new();
        for part in x.chunks(run) {
            let id = |w| WeightId::Layer(i, w);
            out.extend(self.norm(Some(qk.norm), id(weight), id(bias), part.to_vec())?);
        }
        Ok(out)
    }

    fn feed_forward(&self, i: u32, layer: &LayerSpec, h: &V) -> SeamResult<V> {
        use LayerWeight as W;
        let moe = match &layer.feed_forward {
            FeedForward::Gated(mlp) => {
                let names = [
                    (W::Gate, W::GateBias),
                    (W::Up, W::UpBias),
                    (W::Down, W::DownBias),
                ];
                return self.mlp(i, mlp, names, h);
            }
            FeedForward::MixtureOfExperts(moe) => moe,
            other => return Err(SeamError::unsupported(format!("{other:?}"))),
        };
        let scores = self.linear(i, W::Router, None, h)?;
        let all: f64 = scores.iter().map(|s| s.exp()).sum();
        // Rank of an expert: how many come before it.
        let rank = |e: usize| {
            let before = |o: &usize| scores[*o] > scores[e] || (scores[*o] == scores[e] && *o < e);
            (0..moe.experts).filter(before).count()
        };
        let chosen: Vec<usize> = (0..moe.experts)
            .filter(|&e| rank(e) < moe.experts_per_token)
            .collect();
        let kept: f64 = chosen.iter().map(|&e| scores[e].exp() / all).sum();
        let mut out = vec![0.0; h.len()];
        for e in chosen {
            let mut weight = scores[e].exp() / all;
            if moe.normalise {
                weight /= kept;
            }
            let n = e as u32;
            let names = [
                (W::ExpertGate(n), W::ExpertGateBias(n)),
                (W::ExpertUp(n), W::ExpertUpBias(n)),
                (W::ExpertDown(n), W::ExpertDownBias(n)),
            ];
            let result = self.mlp(i, &moe.expert, names, h)?;
            for j in 0..out.len() {
                out[j] += weight * result[j];
            }
        }
        Ok(out)
    }

    fn mlp(
        &self,
        i: u32,
        mlp: &GatedMlp,
        names: [(LayerWeight, LayerWeight); 3],
        h: &V,
    ) -> SeamResult<V> {
        let [gate, up, down] = names.map(|(w, b)| (w, mlp.bias.then_some(b)));
        let gate = self.linear(i, gate.0, gate.1, h)?;
        let up = self.linear(i, up.0, up.1, h)?;
        let mut wide = V::new();
        for j in 0..mlp.intermediate {
            wide.push(activation(mlp.activation, gate[j])? * up[j]);
        }
        self.linear(i, down.0, down.1, &wide)
    }

    fn linear(
        &self,
        i: u32,
        weight: LayerWeight,
        bias: Option<LayerWeight>,
        x: &V,
    ) -> SeamResult<V> {
        let w = self.numbers(WeightId::Layer(i, weight))?;
        let rows = w.len() / x.len();
        let b = match bias {
            Some(bias) => self.numbers(WeightId::Layer(i, bias))?,
            None => vec![0.0; rows],
        };
        let mut out = V::new();
        for row in 0..rows {
            let mut sum = b[row];
            for (j, value) in x.iter().enumerate() {
                sum += w[row * x.len() + j] * value;
            }
            out.push(sum);
        }
        Ok(out)
    }

    fn norm(
        &self,
        spec: Option<NormSpec>,
        weight: WeightId,
        bias: WeightId,
        x: V,
    ) -> SeamResult<V> {
        let Some(spec) = spec else { return Ok(x) };
        let n = x.len() as f64;
        let mean = match spec.kind {
            NormKind::Rms => 0.0,
            NormKind::Layer => x.iter().sum::<f64>() / n,
        };
        let squares: V = x.iter().map(|v| (v - mean) * (v - mean)).collect();
        let variance = (self.norm_sum)(&squares) / n;
        let root = (variance + f64::from(spec.eps)).sqrt();
        let mut out: V = x.iter().map(|v| (v - mean) / root).collect();
        if spec.weight {
            for (v, w) in out.iter_mut().zip(self.numbers(weight)?) {
                *v *= w + f64::from(spec.weight_offset);
            }
        }
        if spec.bias {
            for (v, b) in out.iter_mut().zip(self.numbers(bias)?) {
                *v += b;
            }
        }
        Ok(out)
    }
}

fn cap(x: f64, cap: Option<f32>) -> f64 {
    match cap.map(f64::from) {
        Some(c) => c * (x / c).tanh(),
        None => x,
    }
}

/// Each head's pairs as complex numbers, turned. The angle alone is f32, as the seam defines it.
fn rotated(rope: Option<RopeSpec>, head_dim: usize, position: usize, x: V) -> V {
    let Some(rope) = rope else { return x };
    let frequencies = rope.inverse_frequencies();
    let mut out = x.clone();
    for start in (0..x.len()).step_by(head_dim) {
        for (i, frequency) in frequencies.iter().enumerate() {
            let angle = f64::from(position as f32 * frequency);
            let (re, im) = match rope.layout {
                RopeLayout::HalfSplit => (start + i, start + rope.dims / 2 + i),
                RopeLayout::Interleaved => (start + 2 * i, start + 2 * i + 1),
            };
            out[re] = x[re] * angle.cos() - x[im] * angle.sin();
            out[im] = x[re] * angle.sin() + x[im] * angle.cos();
        }
    }
    out
}

fn activation(kind: Activation, x: f64) -> SeamResult<f64> {
    use std::f64::consts::{PI, SQRT_2};
    match kind {
        Activation::Silu => Ok(x / (1.0 + (-x).exp())),
        Activation::GeluTanh => {
            let inner = (2.0 / PI).sqrt() * (x + 0.044_715 * x.powi(3));
            Ok(x / 2.0 * (1.0 + inner.tanh()))
        }
        Activation::GeluErf => Ok(x / 2.0 * (1.0 + erf(x / SQRT_2))),
        other => Err(SeamError::unsupported(format!("{other:?}"))),
    }
}

/// The error function by its series `2/sqrt(pi) exp(-x^2) sum(2^n x^(2n+1) / (2n+1)!!)`, whose terms
/// all have one sign.
fn erf(x: f64) -> f64 {
    if x.abs() > 6.0 {
        return x.signum();
    }
    let (mut term, mut sum, mut n) = (x, x, 0.0);
    while term.abs() > 1e-18 * sum.abs() {
        n += 1.0;
        term *= 2.0 * x * x / (2.0 * n + 1.0);
        sum += term;
    }
    2.0 / std::f64::consts::PI.sqrt() * (-x * x).exp() * sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_function_has_its_tabulated_values() {
        // Abramowitz and Stegun, table 7.1.
        for (x, want) in [
            (0.0, 0.0),
            (0.5, 0.520_499_877_8),
            (1.0, 0.842_700_792_9),
            (2.0, 0.995_322_265_0),
            (-1.0, -0.842_700_792_9),
            (5.5, 1.0),
            (60.0, 1.0),
        ] {
            assert!((erf(x) - want).abs() < 1e-9, "erf({x}) = {}", erf(x));
        }
    }
}
