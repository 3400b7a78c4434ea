//! Rotary position embedding, in the keys of transformers 4 and 5.

use halfhitch_seam::model::{RopeLayout, RopeScaling, RopeSpec};
use halfhitch_seam::{SeamError, SeamResult};

use super::windows::{FULL, LayerKind, SLIDING};
use crate::checkpoint::json::{Keys, describe};
use crate::checkpoint::quote::quoted;

/// Rope types that are computed.
const SUPPORTED: &str = "supported rope types: default, linear, llama3";

/// What rope each kind of layer has.
#[derive(Debug)]
pub(super) enum RopeTable {
    /// All layers the same.
    Uniform(Rope),
    /// By kind; nothing for a kind without rope, an absent entry for one that is not described.
    ByKind(Vec<(&'static str, Option<Rope>)>),
}

/// Base and scaling; the width is the head's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rope {
    theta: f64,
    scaling: Option<RopeScaling>,
}

impl RopeTable {
    /// Reads `rope_scaling`, or where that is empty `rope_parameters` (in which order transformers 5
    /// looks), with `rope_theta` inside or beside it.
    pub(super) fn read(keys: &Keys<'_>, max_context: usize) -> SeamResult<Self> {
        let filled =
            |key| Ok::<_, SeamError>(keys.object(key)?.filter(|o| o.iter().next().is_some()));
        let parameters = match filled("rope_scaling")? {
            Some(scaling) => Some(scaling),
            None => filled("rope_parameters")?,
        };
        let Some(parameters) = parameters else {
            return Ok(Self::Uniform(Rope {
                theta: theta(keys, None)?,
                scaling: None,
            }));
        };
        if !parameters.has(FULL) && !parameters.has(SLIDING) {
            return Ok(Self::Uniform(one(keys, &parameters, max_context)?));
        }
        let mut table = Vec::new();
        for kind in [FULL, SLIDING] {
            if let Some(nested) = parameters.object(kind)? {
                table.push((kind, Some(one(keys, &nested, max_context)?)));
            } else if parameters.has(kind) {
                table.push((kind, None));
            }
        }
        Ok(Self::ByKind(table))
    }

    /// The rope of a layer.
    pub(super) fn get(&self, kind: LayerKind, head_dim: usize) -> SeamResult<Option<RopeSpec>> {
        let rope = match self {
            Self::Uniform(rope) => Some(*rope),
            Self::ByKind(table) => {
                table
                    .iter()
                    .find(|(name, _)| *name == kind.name())
                    .ok_or_else(|| {
                        SeamError::invalid_model(format!(
                            "rope_parameters has no entry for {}",
                            kind.name()
                        ))
                    })?
                    .1
            }
        };
        Ok(rope.map(|rope| RopeSpec {
            dims: head_dim,
            theta: rope.theta,
            scaling: rope.scaling,
            layout: RopeLayout::HalfSplit,
        }))
    }
}

fn theta(keys: &Keys<'_>, parameters: Option<&Keys<'_>>) -> SeamResult<f64> {
    // Below 1 frequencies would grow, and overflow; published bases lie between 1e4 and 1e12.
    let read = |keys: &Keys<'_>| keys.number("rope_theta", 1.0, 1e30);
    let inner = match parameters {
        Some(parameters) => read(parameters)?,
        None => None,
    };
    Ok(match inner {
        Some(theta) => theta,
        None => read(keys)?.unwrap_or(10_000.0),
    })
}

fn one(keys: &Keys<'_>, parameters: &Keys<'_>, max_context: usize) -> SeamResult<Rope> {
    if parameters
        .number("partial_rotary_factor", 0.0, 1.0)?
        .unwrap_or(1.0)
        != 1.0
    {
        return Err(SeamError::unsupported(format!(
            "{} other than 1",
            parameters.name("partial_rotary_factor")
        )));
    }
    let required = |key, least, most| {
        parameters
            .number(key, least, most)?
            .ok_or_else(|| parameters.wrong(key, "is missing"))
    };
    let factor = || required("factor", 1e-6, 1e9);
    let kind = match parameters.text("rope_type")? {
        Some(kind) => Some(kind),
        None => parameters.text("type")?,
    };
    let scaling = match kind {
        None if parameters.value("factor").is_some() => {
            return Err(parameters
                .wrong("rope_type", "is missing beside a factor")
                .hint(SUPPORTED));
        }
        None | Some("default") => None,
        Some("linear") => Some(RopeScaling::Linear { factor: factor()? }),
        Some("llama3") => Some(llama3(keys, parameters, factor()?, max_context)?),
        Some(other) => {
            return Err(
                SeamError::unsupported(format!("rope type {}", quoted(other))).hint(SUPPORTED),
            );
        }
    };
    Ok(Rope {
        theta: theta(keys, Some(parameters))?,
        scaling,
    })
}

fn llama3(
    keys: &Keys<'_>,
    parameters: &Keys<'_>,
    factor: f64,
    max_context: usize,
) -> SeamResult<RopeScaling> {
    let ramp = |key| {
        parameters
            .number(key, 1e-6, 1e9)?
            .ok_or_else(|| parameters.wrong(key, "is missing"))
    };
    let (low_freq_factor, high_freq_factor) = (ramp("low_freq_factor")?, ramp("high_freq_factor")?);
    if low_freq_factor >= high_freq_factor {
        let value = parameters.value("low_freq_factor").map(describe);
        return Err(parameters.wrong(
            "low_freq_factor",
            format_args!(
                "is {}, not below high_freq_factor",
                value.unwrap_or_default()
            ),
        ));
    }
    // Beside the parameters it wins, and without any the context stands in: both as transformers 5.
    let original = "original_max_position_embeddings";
    let original_context = match keys.number(original, 1.0, 1e9)? {
        Some(context) => context,
        None => parameters
            .number(original, 1.0, 1e9)?
            .unwrap_or(max_context as f64),
    };
    Ok(RopeScaling::Llama3 {
        factor,
        low_freq_factor,
        high_freq_factor,
        original_context,
    })
}
