//! What the parsers share: the dimensions of a decoder, its head width, and how layers are put
//! together from them.

use halfhitch_seam::model::{
    AttentionSpec, FeedForward, GatedMlp, HeadSpec, LayerSpec, NormSpec, QkNorm, limits,
};
use halfhitch_seam::{ModelSpec, SeamError, SeamResult};
use serde_json::Value;

use super::rope::RopeTable;
use super::{activation, windows::LayerKind};
use crate::checkpoint::json::{Keys, describe};

/// What a left-out key means, for one architecture (its configuration class in transformers).
pub(super) struct Defaults {
    pub(super) vocab_size: usize,
    pub(super) hidden_size: usize,
    pub(super) intermediate_size: usize,
    pub(super) layers: usize,
    pub(super) heads: usize,
    /// Nothing: as many as heads. (A null always means that.)
    pub(super) kv_heads: Option<usize>,
    pub(super) max_context: usize,
}

/// The numbers every decoder has.
pub(super) struct Dims {
    pub(super) vocab_size: usize,
    pub(super) hidden_size: usize,
    pub(super) intermediate_size: usize,
    pub(super) layers: usize,
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    pub(super) max_context: usize,
    pub(super) eps: f32,
}

impl Dims {
    /// Reads them, each within the seam's limits.
    pub(super) fn read(keys: &Keys<'_>, defaults: &Defaults) -> SeamResult<Self> {
        let size =
            |key, default, most| Ok::<_, SeamError>(keys.size(key, most)?.unwrap_or(default));
        let heads = size("num_attention_heads", defaults.heads, limits::WIDTH)?;
        let kv_heads = match keys.size("num_key_value_heads", limits::WIDTH)? {
            Some(n) => n,
            None if keys.has("num_key_value_heads") => heads,
            None => defaults.kv_heads.unwrap_or(heads),
        };
        if !heads.is_multiple_of(kv_heads) {
            return Err(keys.wrong(
                "num_attention_heads",
                format_args!("is {heads}, not a multiple of num_key_value_heads, {kv_heads}"),
            ));
        }
        Ok(Self {
            vocab_size: size("vocab_size", defaults.vocab_size, limits::VOCABULARY)?,
            hidden_size: size("hidden_size", defaults.hidden_size, limits::WIDTH)?,
            intermediate_size: size(
                "intermediate_size",
                defaults.intermediate_size,
                limits::WIDTH,
            )?,
            layers: size("num_hidden_layers", defaults.layers, limits::LAYERS)?,
            heads,
            kv_heads,
            max_context: size(
                "max_position_embeddings",
                defaults.max_context,
                limits::CONTEXT,
            )?,
            eps: keys.number("rms_norm_eps", 0.0, 1.0)?.unwrap_or(1e-6) as f32,
        })
    }

    /// `head_dim`, or else `default`, or else `hidden_size / num_attention_heads`.
    pub(super) fn head_dim(&self, keys: &Keys<'_>, default: Option<usize>) -> SeamResult<usize> {
        let head_dim = match keys.size("head_dim", limits::WIDTH)?.or(default) {
            Some(width) => width,
            None if self.hidden_size.is_multiple_of(self.heads) => self.hidden_size / self.heads,
            None => {
                return Err(keys.wrong(
                    "hidden_size",
                    format_args!(
                        "is {}, not a multiple of num_attention_heads, {}",
                        self.hidden_size, self.heads
                    ),
                ));
            }
        };
        if head_dim.saturating_mul(self.heads) > limits::WIDTH {
            return Err(keys.wrong(
                "head_dim",
                format_args!(
                    "is {head_dim}: {} heads of it are wider than {}",
                    self.heads,
                    limits::WIDTH
                ),
            ));
        }
        Ok(head_dim)
    }
}

/// What differs between the plain pre-norm decoders.
pub(super) struct Variant {
    pub(super) architecture: &'static str,
    pub(super) head_dim: usize,
    pub(super) qk_norm: Option<QkNorm>,
    pub(super) qkv_bias: bool,
    pub(super) output_bias: bool,
    pub(super) mlp_bias: bool,
    /// One a layer.
    pub(super) kinds: Vec<LayerKind>,
}

/// Puts a pre-norm decoder with gated feed-forward blocks together.
pub(super) fn build(keys: &Keys<'_>, dims: &Dims, variant: &Variant) -> SeamResult<ModelSpec> {
    let rope = RopeTable::read(keys, dims.max_context)?;
    let norm = NormSpec::rms(dims.eps);
    let mlp = GatedMlp {
        intermediate: dims.intermediate_size,
        activation: activation::read(keys)?,
        bias: variant.mlp_bias,
    };
    let layers = variant.kinds.iter().map(|&kind| {
        Ok(LayerSpec {
            pre_attention: Some(norm),
            attention: AttentionSpec {
                heads: dims.heads,
                kv_heads: dims.kv_heads,
                head_dim: variant.head_dim,
                scale: (variant.head_dim as f64).powf(-0.5) as f32,
                rope: rope.get(kind, variant.head_dim)?,
                window: kind.window(),
                softcap: None,
                qk_norm: variant.qk_norm,
                qkv_bias: variant.qkv_bias,
                output_bias: variant.output_bias,
            },
            post_attention: None,
            pre_feed_forward: Some(norm),
            feed_forward: FeedForward::Gated(mlp),
            post_feed_forward: None,
            residual_scale: 1.0,
        })
    });
    Ok(ModelSpec {
        architecture: variant.architecture.into(),
        vocab_size: dims.vocab_size,
        hidden_size: dims.hidden_size,
        max_context: dims.max_context,
        embedding_scale: 1.0,
        layers: layers.collect::<SeamResult<_>>()?,
        final_norm: norm,
        head: HeadSpec {
            tied: keys.flag("tie_word_embeddings")?,
            bias: false,
            softcap: None,
            scale: 1.0,
        },
    })
}

/// Keys of other architectures that change the computation, each with the value that changes
/// nothing. In a llama, mistral or qwen configuration they come from a fork whose own code reads
/// them, so a model that sets one is not what its `model_type` says.
const FOREIGN: &[(&str, f64)] = &[
    ("attention_multiplier", f64::NAN),
    ("embedding_multiplier", 1.0),
    ("residual_multiplier", 1.0),
    ("logits_scaling", 1.0),
    ("logit_scale", 1.0),
    ("query_pre_attn_scalar", f64::NAN),
    ("attn_logit_softcapping", f64::NAN),
    ("final_logit_softcapping", f64::NAN),
    ("clip_qkv", f64::NAN),
    ("partial_rotary_factor", 1.0),
    ("rotary_pct", 1.0),
    ("num_experts", 0.0),
    ("num_local_experts", 0.0),
    ("n_routed_experts", 0.0),
    ("no_rope_layers", f64::NAN),
    ("no_rope_layer_interval", 0.0),
    ("per_layer_config", f64::NAN),
    ("rope_traditional", 0.0),
    ("rope_interleaved", 0.0),
    ("use_qk_norm", 0.0),
    ("qk_layernorm", 0.0),
    ("use_mrope", 0.0),
];

/// Refuses a configuration that sets a key of [`FOREIGN`].
pub(super) fn refuse_foreign(keys: &Keys<'_>) -> SeamResult<()> {
    for &(key, neutral) in FOREIGN {
        let changes = match keys.value(key) {
            None | Some(Value::Bool(false)) => false,
            Some(Value::Number(n)) => n.as_f64() != Some(neutral),
            Some(Value::Array(items)) => !items.is_empty(),
            Some(Value::Object(map)) => !map.is_empty(),
            Some(Value::Bool(true) | Value::String(_) | Value::Null) => true,
        };
        if changes {
            let value = keys.value(key).map(describe).unwrap_or_default();
            return Err(SeamError::unsupported(format!(
                "{key} is {value}, which this architecture does not have"
            )));
        }
    }
    Ok(())
}
