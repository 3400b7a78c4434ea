//! What a decoder is, apart from any file format: [`ModelSpec`].
//!
//! The host parses a checkpoint's configuration into one `ModelSpec`; every backend builds its
//! computation from it and never sees a configuration. The semantics below are the contract: two
//! backends that read the same spec compute the same function.
//!
//! # The function
//!
//! With `x` the residual stream (`[tokens, hidden]`):
//!
//! ```text
//! x = embedding[token] * embedding_scale
//! for each layer:
//!     h = pre_attention(x)                     (identity where there is no such norm)
//!     q, k, v = h·Wq + bq, h·Wk + bk, h·Wv + bv
//!     q, k = qk_norm(q), qk_norm(k)            (where there is one: per head or over all heads)
//!     q, k = rope(q), rope(k)                  (where there is one)
//!     s[i, j] = softcap(q[i]·k[j] * scale)     for j <= i, and i - j < window where there is one
//!     a = softmax(s)·v                         (head h reads key-value head h / (heads / kv_heads))
//!     x = x + post_attention(a·Wo + bo) * residual_scale
//!     h = pre_feed_forward(x)
//!     x = x + post_feed_forward(ffn(h)) * residual_scale
//! logits = softcap(final_norm(x)·Whead + bhead) * logit_scale
//! ```
//!
//! Matrices are `[outputs, inputs]`, as checkpoints store them: `h·W` means `W h` for each token.
//! `softcap(s) = cap * tanh(s / cap)`. Norms, rope, softmax and accumulation are f32.

mod layer;
mod plain;
mod rope;
mod spec;
mod weights;

pub use layer::{
    Activation, AttentionSpec, FeedForward, GatedMlp, LayerSpec, MixtureOfExperts, NormKind,
    NormSpec, QkNorm, QkNormScope,
};
pub use plain::PlainDecoder;
pub use rope::{RopeLayout, RopeScaling, RopeSpec};
pub use spec::{HeadSpec, ModelFeature, ModelSpec, limits};
pub use weights::{ExpectedWeight, LayerWeight, WeightId};
