//! The plain decoder, from its sizes: what most checkpoints are, and what tests and examples vary.

use super::layer::{Activation, AttentionSpec, FeedForward, GatedMlp, LayerSpec, NormSpec};
use super::rope::{RopeLayout, RopeSpec};
use super::spec::{HeadSpec, ModelSpec};

/// Sizes of a decoder as Llama has it: norms before attention and feed-forward, rope in halves, SiLU, no
/// biases, a tied head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlainDecoder {
    /// Tokens.
    pub vocab_size: usize,
    /// Width of a hidden state.
    pub hidden_size: usize,
    /// Width of the feed-forward's middle.
    pub intermediate: usize,
    /// Layers.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key-value heads, which divide `heads`.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Most positions.
    pub max_context: usize,
}

impl PlainDecoder {
    /// Its specification: norms with an epsilon of 1e-5, a rope's base of 10,000, scores by
    /// `1 / sqrt(head_dim)`.
    pub fn spec(self) -> ModelSpec {
        let layer = LayerSpec {
            pre_attention: Some(NormSpec::rms(1e-5)),
            attention: AttentionSpec {
                heads: self.heads,
                kv_heads: self.kv_heads,
                head_dim: self.head_dim,
                scale: (self.head_dim as f32).sqrt().recip(),
                rope: Some(RopeSpec {
                    dims: self.head_dim,
                    theta: 10_000.0,
                    scaling: None,
                    layout: RopeLayout::HalfSplit,
                }),
                window: None,
                softcap: None,
                qk_norm: None,
                qkv_bias: false,
                output_bias: false,
            },
            post_attention: None,
            pre_feed_forward: Some(NormSpec::rms(1e-5)),
            feed_forward: FeedForward::Gated(GatedMlp {
                intermediate: self.intermediate,
                activation: Activation::Silu,
                bias: false,
            }),
            post_feed_forward: None,
            residual_scale: 1.0,
        };
        ModelSpec {
            architecture: "llama".into(),
            vocab_size: self.vocab_size,
            hidden_size: self.hidden_size,
            max_context: self.max_context,
            embedding_scale: 1.0,
            layers: vec![layer; self.layers],
            final_norm: NormSpec::rms(1e-5),
            head: HeadSpec {
                tied: true,
                bias: false,
                softcap: None,
                scale: 1.0,
            },
        }
    }
}
