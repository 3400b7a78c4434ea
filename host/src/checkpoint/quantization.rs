//! The quantisation block of `config.json`.
//!
//! MLX writes `quantization` (and the same again as `quantization_config`, the only one in older
//! folders): `group_size`, `bits` and `mode` for the whole model, and by module path either an
//! object that overrides them or `false` for a module that was left dense. Other programs write
//! their own forms to `quantization_config`; those are refused by name.

use std::collections::HashMap;

use halfhitch_seam::quant::AffineScheme;
use halfhitch_seam::{Bits, DType, GroupSize, ResultExt, SeamError, SeamResult};
use serde_json::{Map, Value};

use super::json::{Keys, describe};
use super::quote::quoted;

const SUPPORTED: &str = "supported: MLX affine with 2, 3, 4, 5, 6 or 8 bits in groups of 32, 64 or 128, and dense f32, f16, bf16";

/// Width and group of the whole model or of a module; either may be left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Choice {
    bits: Option<Bits>,
    group_size: Option<GroupSize>,
}

/// What the block says.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Quantization {
    present: bool,
    default: Choice,
    /// By module path; nothing where the module is dense.
    overrides: HashMap<String, Option<Choice>>,
}

impl Quantization {
    /// Reads the block.
    ///
    /// # Errors
    /// `Unsupported` for a mode, method, width or group that is not computed here, `InvalidModel`
    /// for one that is not well formed.
    pub(super) fn parse(config: &Map<String, Value>) -> SeamResult<Self> {
        let keys = Keys::new(config);
        let block = match keys.object("quantization")? {
            Some(block) => Some(block),
            None => keys.object("quantization_config")?,
        };
        let Some(block) = block else {
            return Ok(Self::default());
        };
        if let Some(method) = block.text("quant_method")?
            && method != "mlx"
        {
            return Err(
                SeamError::unsupported(format!("quantisation method {}", quoted(method)))
                    .hint(SUPPORTED),
            );
        }
        let mut out = Self {
            present: true,
            default: choice(&block)?,
            overrides: HashMap::new(),
        };
        for (name, value) in block.iter() {
            let choice = match value {
                Value::Object(_) => match block.object(name)? {
                    Some(inner) => Some(choice(&inner)?),
                    None => continue,
                },
                Value::Bool(false) => None,
                Value::Bool(true) => Some(Choice::default()),
                // Settings of the whole block; a module's path is dotted or one of two.
                _ if name.contains('.') || name == "lm_head" => {
                    return Err(block.wrong(
                        name,
                        format_args!("is {}, not an object, true or false", describe(value)),
                    ));
                }
                _ => continue,
            };
            out.overrides.insert(name.to_owned(), choice);
        }
        Ok(out)
    }

    /// The scheme of a module that has scales.
    ///
    /// # Errors
    /// `InvalidModel` where the block does not say it.
    pub(super) fn scheme(&self, module: &str, scale_dtype: DType) -> SeamResult<AffineScheme> {
        if !self.present {
            return Err(SeamError::invalid_model(
                "there are scales, but config.json has no quantization",
            ));
        }
        let over = match self.overrides.get(module) {
            None => Choice::default(),
            Some(Some(choice)) => *choice,
            Some(None) => {
                return Err(SeamError::invalid_model(
                    "there are scales, but config.json says that the module is not quantised",
                ));
            }
        };
        let missing = |key| {
            SeamError::invalid_model(format!("config.json gives no quantization.{key} for it"))
        };
        Ok(AffineScheme {
            bits: over
                .bits
                .or(self.default.bits)
                .ok_or_else(|| missing("bits"))?,
            group_size: over
                .group_size
                .or(self.default.group_size)
                .ok_or_else(|| missing("group_size"))?,
            scale_dtype,
        })
    }
}

fn choice(block: &Keys<'_>) -> SeamResult<Choice> {
    if let Some(mode) = block.text("mode")?
        && mode != "affine"
    {
        return Err(SeamError::unsupported(format!(
            "quantisation mode {} ({})",
            quoted(mode),
            block.name("mode")
        ))
        .hint(SUPPORTED));
    }
    let number = |key| block.integer(key, 0, u64::from(u32::MAX));
    Ok(Choice {
        bits: number("bits")?
            .map(|n| Bits::new(n as u32))
            .transpose()
            .in_context(|| block.name("bits"))?,
        group_size: number("group_size")?
            .map(|n| GroupSize::new(n as u32))
            .transpose()
            .in_context(|| block.name("group_size"))?,
    })
}

#[cfg(test)]
mod tests {
    use halfhitch_seam::ErrorCode;
    use serde_json::json;

    use super::*;

    fn parse(value: Value) -> SeamResult<Quantization> {
        Quantization::parse(value.as_object().unwrap())
    }

    fn scheme(q: &Quantization, module: &str) -> Option<(usize, usize)> {
        let scheme = q.scheme(module, DType::F16).ok()?;
        Some((scheme.bits.get(), scheme.group_size.get()))
    }

    #[test]
    fn overrides_stand_before_the_default() {
        for key in ["quantization", "quantization_config"] {
            let q = parse(json!({key: {
                "group_size": 64, "bits": 4, "mode": "affine",
                "model.layers.0.mlp.down_proj": {"bits": 8, "group_size": 32},
                "model.layers.1.mlp.down_proj": {"bits": 6},
                "model.layers.2.mlp.down_proj": true,
                "lm_head": false,
            }}))
            .unwrap();
            assert_eq!(scheme(&q, "model.embed_tokens"), Some((4, 64)));
            assert_eq!(scheme(&q, "model.layers.0.mlp.down_proj"), Some((8, 32)));
            assert_eq!(scheme(&q, "model.layers.1.mlp.down_proj"), Some((6, 64)));
            assert_eq!(scheme(&q, "model.layers.2.mlp.down_proj"), Some((4, 64)));
            assert_eq!(scheme(&q, "lm_head"), None);
        }
    }

    #[test]
    fn the_newer_key_wins_and_null_is_nothing() {
        let q = parse(json!({
            "quantization": {"group_size": 32, "bits": 8},
            "quantization_config": {"quant_method": "gptq", "bits": 4},
        }))
        .unwrap();
        assert_eq!(scheme(&q, "x"), Some((8, 32)));
        let q = parse(json!({"quantization": null})).unwrap();
        assert_eq!(q, Quantization::default());
    }

    #[test]
    fn other_forms_are_refused_by_name() {
        let cases = [
            (
                json!({"quantization": {"group_size": 32, "bits": 4, "mode": "mxfp4"}}),
                "mxfp4",
            ),
            (
                json!({"quantization": {"group_size": 16, "bits": 4, "mode": "nvfp4"}}),
                "nvfp4",
            ),
            (
                json!({"quantization": {"group_size": 64, "bits": 4, "a.b": {"mode": "mxfp8"}}}),
                "mxfp8",
            ),
            (
                json!({"quantization_config": {"quant_method": "gptq", "bits": 4}}),
                "gptq",
            ),
            (
                json!({"quantization_config": {"quant_method": "awq", "bits": 4}}),
                "awq",
            ),
            (
                json!({"quantization_config": {"quant_method": "bitsandbytes"}}),
                "bitsandbytes",
            ),
            (
                json!({"quantization_config": {"quant_method": "compressed-tensors"}}),
                "compressed-tensors",
            ),
            (
                json!({"quantization": {"group_size": 64, "bits": 7}}),
                "7 bits",
            ),
            (
                json!({"quantization": {"group_size": 48, "bits": 4}}),
                "groups of 48",
            ),
        ];
        for (config, name) in cases {
            let e = parse(config).unwrap_err();
            assert_eq!(e.code, ErrorCode::Unsupported, "{e}");
            assert!(e.to_string().contains(name), "{e}");
            assert!(e.hint.is_some(), "{e}");
        }
    }

    #[test]
    fn malformed_blocks_name_the_key() {
        let cases = [
            (json!({"quantization": 4}), "quantization is 4"),
            (
                json!({"quantization": {"bits": "4"}}),
                "quantization.bits is the string",
            ),
            (
                json!({"quantization": {"bits": -4}}),
                "quantization.bits is -4",
            ),
            (
                json!({"quantization": {"bits": 4.5}}),
                "quantization.bits is 4.5",
            ),
            (
                json!({"quantization": {"group_size": 1e300}}),
                "quantization.group_size",
            ),
            (
                json!({"quantization": {"model.norm": "x"}}),
                "quantization.model.norm",
            ),
            (
                json!({"quantization": {"a.\u{1b}\n": "x"}}),
                "quantization.a.\\u{1b}\\n is the string",
            ),
            (
                json!({"quantization": {"a.\u{7f}": {"bits": -4}}}),
                "quantization.a.\\u{7f}.bits is -4",
            ),
        ];
        for (config, text) in cases {
            let e = parse(config).unwrap_err();
            assert_eq!(e.code, ErrorCode::InvalidModel, "{e}");
            assert!(e.to_string().contains(text), "{e}");
        }
    }
}
