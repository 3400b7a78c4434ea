//! From GGUF's tensor names to Hugging Face's, with the shape each must have.

use std::collections::{BTreeMap, BTreeSet};

use halfhitch_seam::{SeamError, SeamResult};

use super::architecture::{Architecture, Model, WeightTraits};
use super::gguf::{Gguf, TensorInfo};
use super::rope;

/// A tensor and what becomes of it.
#[derive(Clone, Debug)]
pub struct MappedTensor<'a> {
    /// In the file.
    pub source: &'a TensorInfo,
    /// Name in the folder, with its `.weight` or `.bias`.
    pub name: String,
    /// Heads whose rows are put back from llama.cpp's interleaved order, where they are.
    pub unpermute: Option<usize>,
}

/// All tensors of a model, in the order of its computation, and what their presence says.
///
/// # Errors
/// `InvalidModel`, naming the tensor that is missing or has another shape; `Unsupported`, naming
/// one that has no place.
pub fn map_tensors<'a>(
    gguf: &'a Gguf,
    model: &Model,
) -> SeamResult<(Vec<MappedTensor<'a>>, WeightTraits)> {
    let mut rest: BTreeMap<&str, &TensorInfo> = gguf
        .tensors()
        .iter()
        .map(|t| (t.name.as_str(), t))
        .collect();
    rest.remove(rope::FREQUENCIES);
    let names: BTreeSet<&str> = rest.keys().copied().collect();
    let traits = traits(&names, model.architecture)?;
    let mut out = Vec::with_capacity(rest.len());
    let mut take = |from: String, name: String, shape: &[usize], unpermute: Option<usize>| {
        let source = rest
            .remove(from.as_str())
            .ok_or_else(|| SeamError::invalid_model(format!("tensor `{from}` is missing")))?;
        if source.shape != shape {
            return Err(SeamError::invalid_model(format!(
                "tensor `{from}` has shape {:?}, the metadata asks for {shape:?}",
                source.shape
            )));
        }
        if shape.len() == 1 && source.kind.block_len() != 1 {
            return Err(SeamError::unsupported(format!(
                "tensor `{from}` is a vector stored as {}",
                source.kind
            )));
        }
        out.push(MappedTensor {
            source,
            name,
            unpermute,
        });
        Ok(())
    };

    let (hidden, wide) = (model.hidden, model.intermediate);
    let (q, kv) = (
        model.heads * model.head_dim,
        model.kv_heads * model.head_dim,
    );
    let permute = |heads| model.architecture.permutes_rope().then_some(heads);
    let matrix = [model.vocab, hidden];
    take(
        "token_embd.weight".into(),
        "model.embed_tokens.weight".into(),
        &matrix,
        None,
    )?;
    for layer in 0..model.layers {
        let mut vector = |from: &str, name: &str, width: usize, unpermute| {
            take(
                format!("blk.{layer}.{from}"),
                format!("model.layers.{layer}.{name}"),
                &[width],
                unpermute,
            )
        };
        vector("attn_norm.weight", "input_layernorm.weight", hidden, None)?;
        vector(
            "ffn_norm.weight",
            "post_attention_layernorm.weight",
            hidden,
            None,
        )?;
        if model.architecture == Architecture::Qwen3 {
            vector(
                "attn_q_norm.weight",
                "self_attn.q_norm.weight",
                model.head_dim,
                None,
            )?;
            vector(
                "attn_k_norm.weight",
                "self_attn.k_norm.weight",
                model.head_dim,
                None,
            )?;
        }
        let output_bias = traits.attention_bias && model.architecture != Architecture::Qwen2;
        for (from, name, shape, bias, unpermute) in [
            (
                "attn_q",
                "self_attn.q_proj",
                [q, hidden],
                traits.attention_bias,
                permute(model.heads),
            ),
            (
                "attn_k",
                "self_attn.k_proj",
                [kv, hidden],
                traits.attention_bias,
                permute(model.kv_heads),
            ),
            (
                "attn_v",
                "self_attn.v_proj",
                [kv, hidden],
                traits.attention_bias,
                None,
            ),
            (
                "attn_output",
                "self_attn.o_proj",
                [hidden, q],
                output_bias,
                None,
            ),
            (
                "ffn_gate",
                "mlp.gate_proj",
                [wide, hidden],
                traits.mlp_bias,
                None,
            ),
            (
                "ffn_up",
                "mlp.up_proj",
                [wide, hidden],
                traits.mlp_bias,
                None,
            ),
            (
                "ffn_down",
                "mlp.down_proj",
                [hidden, wide],
                traits.mlp_bias,
                None,
            ),
        ] {
            let from = format!("blk.{layer}.{from}");
            let name = format!("model.layers.{layer}.{name}");
            take(
                format!("{from}.weight"),
                format!("{name}.weight"),
                &shape,
                unpermute,
            )?;
            if bias {
                take(
                    format!("{from}.bias"),
                    format!("{name}.bias"),
                    &shape[..1],
                    unpermute,
                )?;
            }
        }
    }
    take(
        "output_norm.weight".into(),
        "model.norm.weight".into(),
        &[hidden],
        None,
    )?;
    if !traits.tied {
        take(
            "output.weight".into(),
            "lm_head.weight".into(),
            &matrix,
            None,
        )?;
    }
    if let Some(name) = rest.keys().next() {
        return Err(SeamError::unsupported(format!(
            "tensor `{}` has no place in a {} model",
            name.escape_debug(),
            model.architecture.name()
        )));
    }
    Ok((out, traits))
}

/// Judges by the first layer; every other layer must then be alike, or a tensor is missing or left.
fn traits(names: &BTreeSet<&str>, architecture: Architecture) -> SeamResult<WeightTraits> {
    let any = |parts: &[&str]| {
        parts
            .iter()
            .any(|p| names.contains(format!("blk.0.{p}.bias").as_str()))
    };
    let traits = WeightTraits {
        attention_bias: architecture == Architecture::Qwen2
            || any(&["attn_q", "attn_k", "attn_v", "attn_output"]),
        mlp_bias: any(&["ffn_gate", "ffn_up", "ffn_down"]),
        tied: !names.contains("output.weight"),
    };
    if traits.mlp_bias && architecture != Architecture::Llama {
        return Err(SeamError::unsupported(format!(
            "MLP biases in a {} model",
            architecture.name()
        )));
    }
    Ok(traits)
}
