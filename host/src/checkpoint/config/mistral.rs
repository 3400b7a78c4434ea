//! Mistral: a llama whose layers may all attend through a sliding window.

use halfhitch_seam::{ModelSpec, SeamResult};

use super::decoder::{self, Defaults, Dims, Variant};
use super::windows;
use crate::checkpoint::json::Keys;

/// `MistralConfig`.
const DEFAULTS: Defaults = Defaults {
    vocab_size: 32_000,
    hidden_size: 4096,
    intermediate_size: 14_336,
    layers: 32,
    heads: 32,
    kv_heads: Some(8),
    max_context: 4096 * 32,
};

/// Parses a mistral configuration.
pub(super) fn parse(keys: &Keys<'_>, _: &mut Vec<String>) -> SeamResult<ModelSpec> {
    let dims = Dims::read(keys, &DEFAULTS)?;
    let variant = Variant {
        architecture: "mistral",
        head_dim: dims.head_dim(keys, None)?,
        qk_norm: None,
        qkv_bias: false,
        output_bias: false,
        mlp_bias: false,
        kinds: windows::mistral(keys, dims.layers)?,
    };
    decoder::build(keys, &dims, &variant)
}
