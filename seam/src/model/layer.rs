//! The parts of a decoder layer.

use serde::{Deserialize, Serialize};

use super::rope::RopeSpec;

/// Which normalisation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NormKind {
    /// `x / sqrt(mean(x^2) + eps)`.
    Rms,
    /// `(x - mean(x)) / sqrt(var(x) + eps)`, the variance being the mean of the squares.
    Layer,
}

/// A normalisation over the last dimension, then `* (weight + weight_offset) + bias`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct NormSpec {
    /// The formula.
    pub kind: NormKind,
    /// Added under the root.
    pub eps: f32,
    /// Whether there is a weight; without one the factor is 1.
    pub weight: bool,
    /// Added to the weight (gemma stores `weight - 1`: offset 1); 0 elsewhere.
    pub weight_offset: f32,
    /// Whether there is a bias.
    pub bias: bool,
}

impl NormSpec {
    /// The usual RMS norm: a weight, no offset, no bias.
    pub const fn rms(eps: f32) -> Self {
        Self {
            kind: NormKind::Rms,
            eps,
            weight: true,
            weight_offset: 0.0,
            bias: false,
        }
    }
}

/// Over what a query-key norm is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QkNormScope {
    /// Each head by itself; the weight has `head_dim` elements and serves every head (qwen3).
    Head,
    /// All heads together; the weight of queries has `heads * head_dim` elements, that of keys
    /// `kv_heads * head_dim` (olmo2).
    All,
}

/// Normalisation of queries and keys before rope.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct QkNorm {
    /// Over what.
    pub scope: QkNormScope,
    /// The formula.
    pub norm: NormSpec,
}

/// Self-attention of one layer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AttentionSpec {
    /// Query heads.
    pub heads: usize,
    /// Key-value heads; divides `heads`.
    pub kv_heads: usize,
    /// Width of a head; need not be `hidden / heads`.
    pub head_dim: usize,
    /// Factor on the scores, usually `1 / sqrt(head_dim)`. No [`ModelFeature`](super::ModelFeature)
    /// marks another value: every backend reads it.
    pub scale: f32,
    /// Rotary position embedding, where the layer has one.
    pub rope: Option<RopeSpec>,
    /// Sliding window: position `i` reads `j` only where `i - j < window`.
    pub window: Option<usize>,
    /// Soft cap on the scores.
    pub softcap: Option<f32>,
    /// Normalisation of queries and keys.
    pub qk_norm: Option<QkNorm>,
    /// Whether query, key and value projections have biases.
    pub qkv_bias: bool,
    /// Whether the output projection has a bias.
    pub output_bias: bool,
}

impl AttentionSpec {
    /// Width of all query heads together: rows of Wq, columns of Wo.
    pub const fn query_width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Width of all key heads together: rows of Wk and of Wv.
    pub const fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }
}

/// Non-linearity of a feed-forward block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Activation {
    /// `x * sigmoid(x)`.
    Silu,
    /// `x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3)))`.
    GeluTanh,
    /// `x/2 * (1 + erf(x / sqrt(2)))`.
    GeluErf,
}

/// `down(act(gate(h)) * up(h))`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GatedMlp {
    /// Width between.
    pub intermediate: usize,
    /// Non-linearity on the gate.
    pub activation: Activation,
    /// Whether the three projections have biases.
    pub bias: bool,
}

/// A router picks `experts_per_token` of `experts` gated MLPs for each token: those with the largest
/// scores `Wrouter h`, of equal ones the lower index. Their outputs are summed, each times its
/// probability in the softmax over the scores of *all* experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MixtureOfExperts {
    /// Number of experts.
    pub experts: usize,
    /// Experts a token goes through.
    pub experts_per_token: usize,
    /// Whether the chosen probabilities are scaled to sum to one.
    pub normalise: bool,
    /// What each expert is.
    pub expert: GatedMlp,
}

/// The feed-forward block of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FeedForward {
    /// One gated MLP.
    Gated(GatedMlp),
    /// Several, chosen by a router.
    MixtureOfExperts(MixtureOfExperts),
}

/// One decoder layer. Norms that are `None` are the identity.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LayerSpec {
    /// Norm before attention.
    pub pre_attention: Option<NormSpec>,
    /// Attention.
    pub attention: AttentionSpec,
    /// Norm on attention's output, before it is added (gemma2, olmo2).
    pub post_attention: Option<NormSpec>,
    /// Norm before the feed-forward block.
    pub pre_feed_forward: Option<NormSpec>,
    /// Feed-forward block.
    pub feed_forward: FeedForward,
    /// Norm on the block's output, before it is added.
    pub post_feed_forward: Option<NormSpec>,
    /// Factor on what is added to the residual stream (granite); 1 elsewhere.
    pub residual_scale: f32,
}
