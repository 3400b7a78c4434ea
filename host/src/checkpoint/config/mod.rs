//! `config.json` to [`ModelSpec`]: a registry of architectures, a parser each.
//!
//! A configuration means what transformers takes it to mean, in the form that version 4 writes
//! (`rope_theta`, `rope_scaling`, `torch_dtype`) and in that of version 5 (`rope_parameters`,
//! `dtype`); a key that is left out has transformers' default for that architecture. What
//! transformers would compute and a [`ModelSpec`] of that family does not say is refused.
//!
//! To add an architecture, write its parser and its [`Names`](super::names::Names) and enter them
//! in [`FAMILIES`].

mod activation;
mod decoder;
mod llama;
mod mistral;
mod qwen;
mod rope;
mod windows;

use halfhitch_seam::{ModelSpec, SeamError, SeamResult};
use serde_json::{Map, Value};

use super::json::Keys;
use super::names::{LLAMA_NAMES, Names};
use super::quote::quoted;

/// A parser: from the configuration to a spec, with warnings for the user.
type Parser = fn(&Keys<'_>, &mut Vec<String>) -> SeamResult<ModelSpec>;

/// An architecture that is supported.
struct Family {
    /// `model_type` in the configuration.
    model_type: &'static str,
    parse: Parser,
    /// How its tensors are called.
    names: &'static Names,
}

/// Every architecture that is supported.
const FAMILIES: &[Family] = &[
    Family {
        model_type: "llama",
        parse: llama::parse,
        names: &LLAMA_NAMES,
    },
    Family {
        model_type: "mistral",
        parse: mistral::parse,
        names: &LLAMA_NAMES,
    },
    Family {
        model_type: "qwen2",
        parse: qwen::parse_qwen2,
        names: &LLAMA_NAMES,
    },
    Family {
        model_type: "qwen3",
        parse: qwen::parse_qwen3,
        names: &LLAMA_NAMES,
    },
];

/// A configuration that was understood.
pub(super) struct Model {
    /// Validated.
    pub(super) spec: ModelSpec,
    /// How the tensors are called.
    pub(super) names: &'static Names,
    /// For the user.
    pub(super) warnings: Vec<String>,
}

/// Parses a configuration.
///
/// # Errors
/// `Unsupported` for an architecture, rope type, activation or option that is not computed here;
/// `InvalidModel` for anything that is not well formed, naming the key.
pub(super) fn parse(config: &Map<String, Value>) -> SeamResult<Model> {
    let keys = Keys::new(config);
    let model_type = keys
        .text("model_type")?
        .ok_or_else(|| SeamError::invalid_model("model_type is missing").hint(supported()))?;
    let family = FAMILIES
        .iter()
        .find(|f| f.model_type == model_type)
        .ok_or_else(|| {
            SeamError::unsupported(format!("architecture {}", quoted(model_type))).hint(supported())
        })?;
    let mut warnings = Vec::new();
    decoder::refuse_foreign(&keys)?;
    warn_of_other_heads(&keys, &mut warnings)?;
    let spec = (family.parse)(&keys, &mut warnings)?;
    spec.validate()?;
    Ok(Model {
        spec,
        names: family.names,
        warnings,
    })
}

fn supported() -> String {
    let names: Vec<_> = FAMILIES.iter().map(|f| f.model_type).collect();
    format!("supported architectures: {}", names.join(", "))
}

/// A classifier or an embedding model shares its `model_type` with the language model, but was not
/// made to write text.
fn warn_of_other_heads(keys: &Keys<'_>, warnings: &mut Vec<String>) -> SeamResult<()> {
    let classes = keys.list("architectures")?.unwrap_or_default();
    if let Some(class) = classes.first().and_then(|class| class.as_str())
        && !class.ends_with("ForCausalLM")
    {
        warnings.push(format!(
            "architectures names {}, which is not a language model",
            quoted(class)
        ));
    }
    Ok(())
}

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests;
