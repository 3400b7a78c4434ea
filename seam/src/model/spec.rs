//! The whole decoder, its bounds and its validation.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::layer::{FeedForward, LayerSpec, MixtureOfExperts, NormKind, NormSpec};
use super::rope::{RopeScaling, RopeSpec};
use crate::error::{ResultExt, SeamError, SeamResult};

/// Bounds on every number of a spec, so that nothing sized by one can be absurd. Wide enough for any
/// published model.
pub mod limits {
    /// Layers.
    pub const LAYERS: usize = 1024;
    /// Width of the residual stream, of a projection, or of a feed-forward block.
    pub const WIDTH: usize = 1 << 20;
    /// Tokens in the vocabulary.
    pub const VOCABULARY: usize = 1 << 24;
    /// Tokens of context.
    pub const CONTEXT: usize = 1 << 27;
    /// Experts of a layer.
    pub const EXPERTS: usize = 4096;
}

/// The output head.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct HeadSpec {
    /// Whether the embedding serves as the head.
    pub tied: bool,
    /// Whether there is a bias.
    pub bias: bool,
    /// Soft cap on the logits.
    pub softcap: Option<f32>,
    /// Factor on the logits; 1 for most.
    pub scale: f32,
}

/// A decoder-only transformer: shapes and formulas, no weights. See the [module page](super) for
/// what it computes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelSpec {
    /// Family, for display only (`llama`, `qwen3`): a backend never branches on it.
    pub architecture: String,
    /// Tokens in the vocabulary: rows of the embedding.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Longest context the model was made for, in tokens.
    pub max_context: usize,
    /// Factor on embeddings (gemma, granite); 1 for most.
    pub embedding_scale: f32,
    /// Layers, first to last.
    pub layers: Vec<LayerSpec>,
    /// Norm before the head.
    pub final_norm: NormSpec,
    /// Output head.
    pub head: HeadSpec,
}

/// Parts of a spec beyond the plain llama decoder. A backend lists those it computes in its
/// capabilities, and `negotiate` refuses a model that needs another: nothing is served
/// approximately.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ModelFeature {
    /// Biases on projections.
    ProjectionBias,
    /// Normalised queries and keys.
    QkNorm,
    /// Sliding-window attention.
    SlidingWindow,
    /// Rope with scaled frequencies.
    RopeScaling,
    /// Rope on part of a head.
    PartialRope,
    /// Interleaved rope pairs.
    InterleavedRope,
    /// A layer without rope.
    NoRope,
    /// Soft caps on scores or logits.
    Softcap,
    /// Norms after attention or feed-forward, or none before.
    PostNorm,
    /// Layer norm (with mean), norm biases, weight offsets or weightless norms.
    GeneralNorm,
    /// Factors on embeddings, residuals or logits.
    Multipliers,
    /// Layers that differ from each other.
    MixedLayers,
    /// Mixture of experts.
    MixtureOfExperts,
    /// A bias on the head.
    HeadBias,
    /// An activation other than silu.
    OtherActivation,
}

impl ModelFeature {
    /// Every feature there is.
    pub const ALL: [Self; 15] = [
        Self::ProjectionBias,
        Self::QkNorm,
        Self::SlidingWindow,
        Self::RopeScaling,
        Self::PartialRope,
        Self::InterleavedRope,
        Self::NoRope,
        Self::Softcap,
        Self::PostNorm,
        Self::GeneralNorm,
        Self::Multipliers,
        Self::MixedLayers,
        Self::MixtureOfExperts,
        Self::HeadBias,
        Self::OtherActivation,
    ];
}

impl fmt::Display for ModelFeature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::ProjectionBias => "projection biases",
            Self::QkNorm => "query-key norms",
            Self::SlidingWindow => "sliding-window attention",
            Self::RopeScaling => "rope scaling",
            Self::PartialRope => "partial rope",
            Self::InterleavedRope => "interleaved rope",
            Self::NoRope => "layers without rope",
            Self::Softcap => "soft caps",
            Self::PostNorm => "post-norms",
            Self::GeneralNorm => "norms other than plain RMS",
            Self::Multipliers => "embedding, residual or logit multipliers",
            Self::MixedLayers => "layers of different kinds",
            Self::MixtureOfExperts => "mixture of experts",
            Self::HeadBias => "a bias on the head",
            Self::OtherActivation => "activations other than silu",
        };
        f.write_str(name)
    }
}

impl ModelSpec {
    /// What the model needs beyond the plain llama decoder.
    pub fn features(&self) -> BTreeSet<ModelFeature> {
        use ModelFeature as F;
        let mut out = BTreeSet::new();
        let mut need = |feature, needed: bool| {
            if needed {
                out.insert(feature);
            }
        };
        let plain =
            |n: &NormSpec| n.kind == NormKind::Rms && n.weight && n.weight_offset == 0.0 && !n.bias;
        for layer in &self.layers {
            let a = &layer.attention;
            need(F::ProjectionBias, a.qkv_bias || a.output_bias);
            need(F::QkNorm, a.qk_norm.is_some());
            need(F::SlidingWindow, a.window.is_some());
            need(F::Softcap, a.softcap.is_some());
            need(F::NoRope, a.rope.is_none());
            if let Some(rope) = &a.rope {
                need(F::RopeScaling, rope.scaling.is_some());
                need(F::PartialRope, rope.dims != a.head_dim);
                need(
                    F::InterleavedRope,
                    rope.layout == super::RopeLayout::Interleaved,
                );
            }
            need(
                F::PostNorm,
                layer.post_attention.is_some()
                    || layer.post_feed_forward.is_some()
                    || layer.pre_attention.is_none()
                    || layer.pre_feed_forward.is_none(),
            );
            let norms = [
                layer.pre_attention,
                layer.post_attention,
                layer.pre_feed_forward,
                layer.post_feed_forward,
                a.qk_norm.map(|n| n.norm),
            ];
            need(F::GeneralNorm, norms.iter().flatten().any(|n| !plain(n)));
            need(F::Multipliers, layer.residual_scale != 1.0);
            need(F::MixedLayers, layer != &self.layers[0]);
            let mlp = match &layer.feed_forward {
                FeedForward::Gated(mlp) => mlp,
                FeedForward::MixtureOfExperts(moe) => {
                    need(F::MixtureOfExperts, true);
                    &moe.expert
                }
            };
            need(F::ProjectionBias, mlp.bias);
            need(
                F::OtherActivation,
                mlp.activation != super::Activation::Silu,
            );
        }
        need(F::GeneralNorm, !plain(&self.final_norm));
        need(F::Softcap, self.head.softcap.is_some());
        need(
            F::Multipliers,
            self.embedding_scale != 1.0 || self.head.scale != 1.0,
        );
        need(F::HeadBias, self.head.bias);
        out
    }

    /// Checks every number against [`limits`] and against the others. A backend may take a
    /// validated spec's products of two widths to fit a `usize`.
    ///
    /// # Errors
    /// `InvalidModel`, naming the field.
    pub fn validate(&self) -> SeamResult<()> {
        within("vocabulary size", self.vocab_size, limits::VOCABULARY)?;
        within("hidden size", self.hidden_size, limits::WIDTH)?;
        within("context length", self.max_context, limits::CONTEXT)?;
        within("number of layers", self.layers.len(), limits::LAYERS)?;
        finite("embedding scale", self.embedding_scale)?;
        finite("logit scale", self.head.scale)?;
        positive("logit soft cap", self.head.softcap)?;
        norm(&self.final_norm).in_context(|| "final norm")?;
        for (i, layer) in self.layers.iter().enumerate() {
            self.validate_layer(layer)
                .in_context(|| format!("layer {i}"))?;
        }
        Ok(())
    }

    fn validate_layer(&self, layer: &LayerSpec) -> SeamResult<()> {
        let a = &layer.attention;
        within("number of heads", a.heads, limits::WIDTH)?;
        within("number of key-value heads", a.kv_heads, limits::WIDTH)?;
        within("head width", a.head_dim, limits::WIDTH)?;
        if !a.heads.is_multiple_of(a.kv_heads) {
            return Err(SeamError::invalid_model(format!(
                "{} heads do not divide into {} key-value heads",
                a.heads, a.kv_heads
            )));
        }
        within(
            "width of all heads",
            a.heads.saturating_mul(a.head_dim),
            limits::WIDTH,
        )?;
        finite("attention scale", a.scale)?;
        positive("attention soft cap", a.softcap)?;
        if a.window == Some(0) {
            return Err(SeamError::invalid_model("a sliding window of 0 positions"));
        }
        if let Some(r) = &a.rope {
            rope(r, a.head_dim)?;
        }
        for n in [
            layer.pre_attention,
            layer.post_attention,
            layer.pre_feed_forward,
            layer.post_feed_forward,
            a.qk_norm.map(|n| n.norm),
        ]
        .iter()
        .flatten()
        {
            norm(n)?;
        }
        finite("residual scale", layer.residual_scale)?;
        match &layer.feed_forward {
            FeedForward::Gated(mlp) => {
                within("feed-forward width", mlp.intermediate, limits::WIDTH)
            }
            FeedForward::MixtureOfExperts(moe) => experts(moe),
        }
    }
}

fn experts(moe: &MixtureOfExperts) -> SeamResult<()> {
    within("number of experts", moe.experts, limits::EXPERTS)?;
    within("experts a token", moe.experts_per_token, moe.experts)?;
    within("feed-forward width", moe.expert.intermediate, limits::WIDTH)
}

fn rope(r: &RopeSpec, head_dim: usize) -> SeamResult<()> {
    within("rope dimensions", r.dims, head_dim)?;
    if !r.dims.is_multiple_of(2) {
        return Err(SeamError::invalid_model(format!(
            "rope over {} dimensions, an odd number",
            r.dims
        )));
    }
    let positive = |what: &str, v: f64| {
        if v.is_finite() && v > 0.0 {
            Ok(())
        } else {
            Err(SeamError::invalid_model(format!(
                "rope {what} is {v}, not a positive number"
            )))
        }
    };
    positive("theta", r.theta)?;
    match r.scaling {
        None => Ok(()),
        Some(RopeScaling::Linear { factor }) => positive("factor", factor),
        Some(RopeScaling::Llama3 {
            factor,
            low_freq_factor,
            high_freq_factor,
            original_context,
        }) => {
            positive("factor", factor)?;
            positive("low_freq_factor", low_freq_factor)?;
            positive("high_freq_factor", high_freq_factor)?;
            positive("original context", original_context)?;
            if low_freq_factor >= high_freq_factor {
                return Err(SeamError::invalid_model(format!(
                    "rope low_freq_factor {low_freq_factor} is not below high_freq_factor {high_freq_factor}"
                )));
            }
            Ok(())
        }
    }
}

fn within(what: &str, value: usize, most: usize) -> SeamResult<()> {
    if value == 0 || value > most {
        return Err(SeamError::invalid_model(format!(
            "{what} is {value}, outside 1 to {most}"
        )));
    }
    Ok(())
}

fn finite(what: &str, value: f32) -> SeamResult<()> {
    if value.is_finite() {
        return Ok(());
    }
    Err(SeamError::invalid_model(format!("{what} is {value}")))
}

fn positive(what: &str, value: Option<f32>) -> SeamResult<()> {
    match value {
        Some(v) if !(v.is_finite() && v > 0.0) => Err(SeamError::invalid_model(format!(
            "{what} is {v}, not a positive number"
        ))),
        _ => Ok(()),
    }
}

fn norm(n: &NormSpec) -> SeamResult<()> {
    if !(n.eps.is_finite() && n.eps >= 0.0) {
        return Err(SeamError::invalid_model(format!("norm eps is {}", n.eps)));
    }
    finite("norm weight offset", n.weight_offset)
}
