//! What a GGUF file says about its model, as a Hugging Face configuration has it.
//!
//! Only architectures whose computation is exactly expressed are accepted, and every key in the
//! architecture's own name space must be known: an unknown one that is set could change the function.

use halfhitch_seam::{ErrorCode, SeamError, SeamResult};
use serde_json::{Map, Value as Json, json};

use super::gguf::Gguf;
use super::json::shortest;
use super::rope;

/// Bounds far above real models; they keep products of two of them inside an u64.
const MAX_LAYERS: u32 = 1 << 12;
const MAX_WIDTH: u32 = 1 << 24;
const MAX_CONTEXT: u32 = 1 << 30;

/// An architecture that is converted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// Llama and Mistral, and whatever else calls itself llama (SmolLM2, TinyLlama).
    Llama,
    /// Qwen 2 and 2.5: biases on q, k, v.
    Qwen2,
    /// Qwen 3: norms on q and k.
    Qwen3,
}

impl Architecture {
    const ALL: [Self; 3] = [Self::Llama, Self::Qwen2, Self::Qwen3];

    /// GGUF's name, which is Hugging Face's `model_type` too.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
        }
    }

    const fn class(self) -> &'static str {
        match self {
            Self::Llama => "LlamaForCausalLM",
            Self::Qwen2 => "Qwen2ForCausalLM",
            Self::Qwen3 => "Qwen3ForCausalLM",
        }
    }

    /// Whether llama.cpp stores the rows of q and k in its interleaved rope's order.
    pub const fn permutes_rope(self) -> bool {
        matches!(self, Self::Llama)
    }

    fn parse(name: &str) -> SeamResult<Self> {
        Self::ALL
            .into_iter()
            .find(|a| a.name() == name)
            .ok_or_else(|| {
                SeamError::new(
                    ErrorCode::Unsupported,
                    format!("architecture `{}`", name.escape_debug()),
                )
                .hint("llama (with mistral), qwen2 and qwen3 are imported")
            })
    }
}

/// A model's dimensions and constants.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    /// Architecture.
    pub architecture: Architecture,
    /// Layers.
    pub layers: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Width of the MLP.
    pub intermediate: usize,
    /// Query heads.
    pub heads: usize,
    /// KV heads; divides `heads`.
    pub kv_heads: usize,
    /// Elements of a head; even.
    pub head_dim: usize,
    /// Longest context, in tokens.
    pub context: u32,
    /// Rows of the embedding.
    pub vocab: usize,
    /// Epsilon of the norms, as stored.
    pub norm_eps: f32,
    /// Base of rope, as stored.
    pub rope_theta: f32,
    /// `rope_scaling` as config.json has it, or null.
    pub rope_scaling: Json,
}

/// Keys of an architecture, without its name, that are read or that change nothing.
const KNOWN: [&str; 15] = [
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "attention.causal",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scaling.type",
    "rope.scaling.factor",
    "vocab_size",
];

/// Keys that are read where a rope scaling needs them, and say nothing on their own.
const ROPE_SCALING: [&str; 2] = [
    "rope.scaling.original_context_length",
    "rope.scaling.finetuned",
];

impl Model {
    /// Reads a file's keys; the vocabulary's size is that of the embedding.
    ///
    /// # Errors
    /// `Unsupported` for another architecture or a key that is not understood; `InvalidModel`
    /// where keys are missing, out of range or contradict each other.
    pub fn read(gguf: &Gguf) -> SeamResult<Self> {
        let meta = gguf.metadata();
        let name = Gguf::required("general.architecture", meta.string("general.architecture"))?;
        let architecture = Architecture::parse(name)?;
        let key = |suffix: &str| format!("{name}.{suffix}");
        check_keys(gguf, name)?;
        if meta.count("split.count", u32::MAX)?.is_some_and(|n| n > 1) {
            return Err(SeamError::unsupported("one part of a file that was split")
                .hint("join the parts first, with gguf-split --merge"));
        }

        let optional = |suffix: &str, limit| -> SeamResult<Option<usize>> {
            let value = meta.count(&key(suffix), limit)?;
            if value == Some(0) {
                return Err(SeamError::invalid_model(format!(
                    "key `{}` is 0",
                    key(suffix)
                )));
            }
            Ok(value.map(|v| v as usize))
        };
        let required = |suffix: &str, limit| Gguf::required(&key(suffix), optional(suffix, limit));

        let layers = required("block_count", MAX_LAYERS)?;
        let hidden = required("embedding_length", MAX_WIDTH)?;
        let intermediate = required("feed_forward_length", MAX_WIDTH)?;
        let heads = required("attention.head_count", MAX_WIDTH)?;
        let kv_heads = optional("attention.head_count_kv", MAX_WIDTH)?.unwrap_or(heads);
        let context = required("context_length", MAX_CONTEXT)? as u32;
        if heads % kv_heads != 0 {
            return Err(SeamError::invalid_model(format!(
                "{heads} heads do not divide into {kv_heads} KV heads"
            )));
        }
        let head_dim = match optional("attention.key_length", MAX_WIDTH)? {
            Some(n) => n,
            None if hidden % heads == 0 => hidden / heads,
            None => {
                return Err(SeamError::invalid_model(format!(
                    "a width of {hidden} does not divide into {heads} heads"
                )));
            }
        };
        for suffix in ["attention.value_length", "rope.dimension_count"] {
            if let Some(n) = optional(suffix, MAX_WIDTH)?.filter(|&n| n != head_dim) {
                return Err(SeamError::unsupported(format!(
                    "key `{}` is {n}, heads have {head_dim} elements",
                    key(suffix)
                )));
            }
        }
        if head_dim % 2 != 0 {
            return Err(SeamError::invalid_model(format!(
                "heads of {head_dim} elements cannot be rotated in pairs"
            )));
        }
        if architecture == Architecture::Qwen2 && head_dim * heads != hidden {
            return Err(SeamError::unsupported(format!(
                "qwen2 with heads of {head_dim} in a width of {hidden}"
            )));
        }
        let positive = |suffix: &str| -> SeamResult<Option<f32>> {
            let value = meta.float(&key(suffix))?;
            if value.is_some_and(|v| v <= 0.0) {
                return Err(SeamError::invalid_model(format!(
                    "key `{}` is not positive",
                    key(suffix)
                )));
            }
            Ok(value)
        };
        let norm_eps = Gguf::required(
            &key("attention.layer_norm_rms_epsilon"),
            positive("attention.layer_norm_rms_epsilon"),
        )?;
        // What llama.cpp takes where the key is missing.
        let rope_theta = positive("rope.freq_base")?.unwrap_or(10_000.0);
        let rope_scaling = rope::scaling(gguf, name, head_dim, rope_theta)?;

        let embedding = gguf
            .tensors()
            .iter()
            .find(|t| t.name == "token_embd.weight")
            .ok_or_else(|| SeamError::invalid_model("tensor `token_embd.weight` is missing"))?;
        let &[vocab, _] = embedding.shape.as_slice() else {
            return Err(SeamError::invalid_model(format!(
                "tensor `token_embd.weight` has shape {:?}, not that of a matrix",
                embedding.shape
            )));
        };
        if u32::try_from(vocab).is_err() {
            return Err(SeamError::invalid_model(format!(
                "a vocabulary of {vocab} tokens"
            )));
        }
        if let Some(said) = optional("vocab_size", u32::MAX)?.filter(|&n| n != vocab) {
            return Err(SeamError::invalid_model(format!(
                "key `{}` is {said}, the embedding has {vocab} rows",
                key("vocab_size")
            )));
        }
        Ok(Self {
            architecture,
            layers,
            hidden,
            intermediate,
            heads,
            kv_heads,
            head_dim,
            context,
            vocab,
            norm_eps,
            rope_theta,
            rope_scaling,
        })
    }

    /// config.json without what depends on the weights' form and the tokenizer.
    pub fn config(&self, traits: WeightTraits) -> Map<String, Json> {
        let mut config = Map::new();
        let mut set = |key: &str, value: Json| {
            config.insert(key.into(), value);
        };
        set("architectures", json!([self.architecture.class()]));
        set("model_type", json!(self.architecture.name()));
        set("hidden_act", json!("silu"));
        set("hidden_size", json!(self.hidden));
        set("intermediate_size", json!(self.intermediate));
        set("num_hidden_layers", json!(self.layers));
        set("num_attention_heads", json!(self.heads));
        set("num_key_value_heads", json!(self.kv_heads));
        if self.architecture != Architecture::Qwen2 {
            set("head_dim", json!(self.head_dim));
            set("attention_bias", json!(traits.attention_bias));
        }
        if self.architecture == Architecture::Llama {
            set("mlp_bias", json!(traits.mlp_bias));
        } else {
            set("use_sliding_window", json!(false));
        }
        set("max_position_embeddings", json!(self.context));
        set("rms_norm_eps", shortest(self.norm_eps));
        set("rope_theta", shortest(self.rope_theta));
        set("rope_scaling", self.rope_scaling.clone());
        set("tie_word_embeddings", json!(traits.tied));
        set("vocab_size", json!(self.vocab));
        config
    }
}

/// What the presence of tensors says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WeightTraits {
    /// q, k, v and output projections have biases (for Qwen 2 always and without the output).
    pub attention_bias: bool,
    /// The MLP's projections have biases.
    pub mlp_bias: bool,
    /// There is no head of its own.
    pub tied: bool,
}

fn check_keys(gguf: &Gguf, name: &str) -> SeamResult<()> {
    let meta = gguf.metadata();
    for (key, value) in meta.iter() {
        let Some(suffix) = key
            .strip_prefix(name)
            .and_then(|rest| rest.strip_prefix('.'))
        else {
            continue;
        };
        if !KNOWN.contains(&suffix) && !ROPE_SCALING.contains(&suffix) && !value.is_neutral() {
            return Err(SeamError::unsupported(format!(
                "key `{}` is set, and what it does is not known here",
                key.escape_debug()
            )));
        }
    }
    if meta.boolean(&format!("{name}.attention.causal"))? == Some(false) {
        return Err(SeamError::unsupported("attention that is not causal"));
    }
    Ok(())
}
