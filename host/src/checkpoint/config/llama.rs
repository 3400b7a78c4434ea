//! Llama: Llama 1 to 3.x, SmolLM, TinyLlama, Yi and others of the same shape.

use halfhitch_seam::{ModelSpec, SeamResult};

use super::decoder::{self, Defaults, Dims, Variant};
use super::windows;
use crate::checkpoint::json::Keys;

/// `LlamaConfig`.
const DEFAULTS: Defaults = Defaults {
    vocab_size: 32_000,
    hidden_size: 4096,
    intermediate_size: 11_008,
    layers: 32,
    heads: 32,
    kv_heads: None,
    max_context: 2048,
};

/// Parses a llama configuration. `pretraining_tp` is left alone: it orders sums, and changes no
/// result beyond rounding.
pub(super) fn parse(keys: &Keys<'_>, warnings: &mut Vec<String>) -> SeamResult<ModelSpec> {
    let dims = Dims::read(keys, &DEFAULTS)?;
    let attention_bias = keys.flag("attention_bias")?;
    let variant = Variant {
        architecture: "llama",
        head_dim: dims.head_dim(keys, None)?,
        qk_norm: None,
        qkv_bias: attention_bias,
        output_bias: attention_bias,
        mlp_bias: keys.flag("mlp_bias")?,
        kinds: windows::llama(keys, dims.layers, warnings)?,
    };
    decoder::build(keys, &dims, &variant)
}
