//! What tensors are called in a folder.

use std::collections::BTreeMap;

use halfhitch_seam::LayerWeight as W;
use halfhitch_seam::WeightId;

/// The part of a module that a tensor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leaf {
    Weight,
    Bias,
}

impl Leaf {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Weight => "weight",
            Self::Bias => "bias",
        }
    }
}

/// How an architecture calls the modules of a layer. All call those outside layers the same.
pub(super) struct Names {
    /// Weight, module inside the layer, part of the module.
    layer: &'static [(W, &'static str, Leaf)],
}

/// Llama, mistral, qwen2 and qwen3.
pub(super) const LLAMA_NAMES: Names = Names {
    layer: &[
        (W::PreAttentionNorm, "input_layernorm", Leaf::Weight),
        (W::Query, "self_attn.q_proj", Leaf::Weight),
        (W::QueryBias, "self_attn.q_proj", Leaf::Bias),
        (W::Key, "self_attn.k_proj", Leaf::Weight),
        (W::KeyBias, "self_attn.k_proj", Leaf::Bias),
        (W::Value, "self_attn.v_proj", Leaf::Weight),
        (W::ValueBias, "self_attn.v_proj", Leaf::Bias),
        (W::QueryNorm, "self_attn.q_norm", Leaf::Weight),
        (W::KeyNorm, "self_attn.k_norm", Leaf::Weight),
        (W::Output, "self_attn.o_proj", Leaf::Weight),
        (W::OutputBias, "self_attn.o_proj", Leaf::Bias),
        (
            W::PreFeedForwardNorm,
            "post_attention_layernorm",
            Leaf::Weight,
        ),
        (W::Gate, "mlp.gate_proj", Leaf::Weight),
        (W::GateBias, "mlp.gate_proj", Leaf::Bias),
        (W::Up, "mlp.up_proj", Leaf::Weight),
        (W::UpBias, "mlp.up_proj", Leaf::Bias),
        (W::Down, "mlp.down_proj", Leaf::Weight),
        (W::DownBias, "mlp.down_proj", Leaf::Bias),
    ],
};

/// The prefix of everything but the head. A folder saved from the bare decoder lacks it.
pub(super) const MODEL_PREFIX: &str = "model.";

impl Names {
    /// The module and part that a weight is, or nothing where the architecture has no such weight.
    pub(super) fn locate(&self, id: WeightId, prefix: &str) -> Option<(String, Leaf)> {
        Some(match id {
            WeightId::Embedding => (format!("{prefix}embed_tokens"), Leaf::Weight),
            WeightId::FinalNorm => (format!("{prefix}norm"), Leaf::Weight),
            WeightId::FinalNormBias => (format!("{prefix}norm"), Leaf::Bias),
            WeightId::Head => ("lm_head".into(), Leaf::Weight),
            WeightId::HeadBias => ("lm_head".into(), Leaf::Bias),
            WeightId::Layer(layer, weight) => {
                let &(_, module, leaf) = self.layer.iter().find(|(w, ..)| *w == weight)?;
                (format!("{prefix}layers.{layer}.{module}"), leaf)
            }
            _ => return None,
        })
    }
}

/// The module and the part of it that a weight is, in a checkpoint of one of the families with llama's
/// names; nothing where they have no such weight.
pub(crate) fn tensor_module(id: WeightId) -> Option<(String, &'static str)> {
    let (module, leaf) = LLAMA_NAMES.locate(id, MODEL_PREFIX)?;
    Some((module, leaf.name()))
}

/// `model.` or nothing, whichever the tensors in `table` have.
pub(super) fn prefix_of<T>(table: &BTreeMap<String, T>) -> &'static str {
    let prefixed = table.keys().any(|name| name.starts_with(MODEL_PREFIX));
    let bare = table.keys().any(|name| name.starts_with("embed_tokens."));
    if bare && !prefixed { "" } else { MODEL_PREFIX }
}
