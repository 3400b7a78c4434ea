//! Backends whose numbers are wrong in one way each, and the layer and tensor where that begins.
// Each user has its own part of this.
#![allow(dead_code)]

use std::sync::Arc;

use halfhitch_seam::model::{Activation, FeedForward, LayerSpec, ModelSpec, NormSpec};
use halfhitch_seam::{ComputeBackend, LayerWeight as W, TapPoint as P, WeightId};

use crate::changed::{Change, Changed};
use crate::narrow::{Narrow, in_f16};

/// How a backend comes to be wrong.
#[derive(Clone, Copy)]
pub enum How {
    /// It computes with other numbers or formulas.
    Changed(Change),
    /// Its steps stand one position too early; its prompts are right.
    Late,
    /// Its norms add up in f16.
    NarrowSums,
}

/// A fault of numbers.
#[derive(Clone, Copy)]
pub struct Numeric {
    /// What it is called.
    pub name: &'static str,
    /// What is wrong.
    pub how: How,
    /// The layer where it begins, where it is in one.
    pub layer: Option<usize>,
    /// The tensor that is wrong first; none where no tensor of a prompt is, or none can be shown.
    pub point: Option<P>,
    /// A case of the suite that must fail.
    pub case: &'static str,
}

const fn at(layer: u32, weight: W) -> WeightId {
    WeightId::Layer(layer, weight)
}

fn layer(spec: &mut ModelSpec, layer: usize, edit: impl Fn(&mut LayerSpec)) {
    spec.layers.get_mut(layer).into_iter().for_each(edit);
}

const fn changed(
    name: &'static str,
    change: Change,
    layer: Option<usize>,
    point: P,
    case: &'static str,
) -> Numeric {
    Numeric {
        name,
        how: How::Changed(change),
        layer,
        point: Some(point),
        case,
    }
}

/// Every one. The models of the cases, and `tiny/llama-bias` for localisation, have all that is changed.
pub const NUMERIC: &[Numeric] = &[
    changed(
        "wrong-scale",
        |_, n| n.each(at(1, W::Key), |v| v * 1.02),
        Some(1),
        P::KeyProjection,
        "generated/plain/f32/prompt",
    ),
    changed(
        "wrong-packed-scale",
        |_, n| n.each(at(0, W::Up), |v| v * 1.02),
        Some(0),
        P::Up,
        "generated/affine-4bit-g32-f16-tied/f32-packed/prompt",
    ),
    changed(
        "dropped-bias",
        |_, n| n.each(at(1, W::ValueBias), |_| 0.0),
        Some(1),
        P::Value,
        "generated/qkv-bias/f32/prompt",
    ),
    changed(
        "dropped-output-bias",
        |_, n| n.each(at(0, W::OutputBias), |_| 0.0),
        Some(0),
        P::AttentionOutput,
        "generated/output-bias/f32/prompt",
    ),
    changed(
        "shifted-embedding",
        |_, n| n.each(WeightId::Embedding, |v| v + 0.02),
        None,
        P::Embedding,
        "generated/plain/f32/prompt",
    ),
    changed(
        "wrong-eps",
        |s, _| layer(s, 1, |l| l.pre_attention = Some(NormSpec::rms(0.5))),
        Some(1),
        P::PreAttentionNorm,
        "generated/plain/f32/prompt",
    ),
    changed(
        "wrong-rope",
        |s, _| {
            layer(s, 1, |l| {
                l.attention.rope.iter_mut().for_each(|r| r.theta *= 0.9);
            });
        },
        Some(1),
        P::Query,
        "generated/plain/f32/prompt",
    ),
    changed(
        "wrong-score-scale",
        |s, _| layer(s, 0, |l| l.attention.scale *= 1.1),
        Some(0),
        P::AttentionMix,
        "generated/plain/f32/prompt",
    ),
    changed(
        "narrow-gate",
        |_, n| n.each(at(1, W::Gate), |v| half::bf16::from_f32(v).to_f32()),
        Some(1),
        P::Gate,
        "generated/plain/f32/prompt",
    ),
    changed(
        "wrong-activation",
        |s, _| {
            layer(s, 0, |l| {
                if let FeedForward::Gated(mlp) = &mut l.feed_forward {
                    mlp.activation = Activation::GeluTanh;
                }
            });
        },
        Some(0),
        P::FeedForwardProduct,
        "generated/plain/f32/prompt",
    ),
    changed(
        "wrong-residual",
        |s, _| layer(s, 1, |l| l.residual_scale = 1.01),
        Some(1),
        P::AttentionResidual,
        "generated/plain/f32/prompt",
    ),
    changed(
        "capped-logits",
        |s, _| s.head.softcap = Some(3.0),
        None,
        P::Logits,
        "generated/plain/f32/prompt",
    ),
    Numeric {
        name: "off-by-one-position",
        how: How::Late,
        layer: None,
        point: None,
        case: "generated/plain/f32/step-by-step",
    },
    Numeric {
        name: "f16-accumulate",
        how: How::NarrowSums,
        layer: None,
        point: None,
        case: "generated/plain/f32/prompt",
    },
];

/// The one that is called so.
pub fn named(name: &str) -> Option<Numeric> {
    NUMERIC.iter().find(|f| f.name == name).copied()
}

impl Numeric {
    /// `inner`, made wrong.
    pub fn backend(&self, inner: Arc<dyn ComputeBackend>) -> Box<dyn ComputeBackend> {
        match self.how {
            How::Changed(change) => Box::new(Changed::by(inner, change)),
            How::Late => {
                let mut late = Changed::by(inner, |_, _| {});
                late.late = true;
                Box::new(late)
            }
            How::NarrowSums => Box::new(Narrow::beside(inner, in_f16)),
        }
    }
}
