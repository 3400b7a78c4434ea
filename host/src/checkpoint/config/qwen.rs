//! Qwen2 (always query, key and value biases) and Qwen3 (query-key norms, a head width of its own).

use halfhitch_seam::model::{NormSpec, QkNorm, QkNormScope};
use halfhitch_seam::{ModelSpec, SeamResult};

use super::decoder::{self, Defaults, Dims, Variant};
use super::windows;
use crate::checkpoint::json::Keys;

/// `Qwen2Config` and `Qwen3Config`.
const DEFAULTS: Defaults = Defaults {
    vocab_size: 151_936,
    hidden_size: 4096,
    intermediate_size: 22_016,
    layers: 32,
    heads: 32,
    kv_heads: Some(32),
    max_context: 32_768,
};

/// Parses a qwen2 configuration.
pub(super) fn parse_qwen2(keys: &Keys<'_>, _: &mut Vec<String>) -> SeamResult<ModelSpec> {
    let dims = Dims::read(keys, &DEFAULTS)?;
    let variant = Variant {
        architecture: "qwen2",
        head_dim: dims.head_dim(keys, None)?,
        qk_norm: None,
        qkv_bias: true,
        output_bias: false,
        mlp_bias: false,
        kinds: windows::qwen(keys, dims.layers)?,
    };
    decoder::build(keys, &dims, &variant)
}

/// Parses a qwen3 configuration.
pub(super) fn parse_qwen3(keys: &Keys<'_>, _: &mut Vec<String>) -> SeamResult<ModelSpec> {
    let dims = Dims::read(keys, &DEFAULTS)?;
    let attention_bias = keys.flag("attention_bias")?;
    if keys.has("head_dim") && keys.value("head_dim").is_none() {
        // Left out it is 128, elsewhere a null means hidden / heads: there is no telling.
        return Err(keys.wrong("head_dim", "is null, which qwen3 gives no meaning"));
    }
    let variant = Variant {
        architecture: "qwen3",
        head_dim: dims.head_dim(keys, Some(128))?,
        qk_norm: Some(QkNorm {
            scope: QkNormScope::Head,
            norm: NormSpec::rms(dims.eps),
        }),
        qkv_bias: attention_bias,
        output_bias: attention_bias,
        mlp_bias: false,
        kinds: windows::qwen(keys, dims.layers)?,
    };
    decoder::build(keys, &dims, &variant)
}
