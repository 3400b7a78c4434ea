//! `hidden_act`, by transformers' names.

use halfhitch_seam::model::Activation;
use halfhitch_seam::{SeamError, SeamResult};

use crate::checkpoint::json::Keys;
use crate::checkpoint::quote::quoted;

/// Names of transformers' `ACT2FN` that are one of the seam's functions. `gelu_new`, `gelu_fast`
/// and `gelu_accurate` write the same tanh formula in different ways.
const NAMES: &[(&str, Activation)] = &[
    ("silu", Activation::Silu),
    ("swish", Activation::Silu),
    ("gelu", Activation::GeluErf),
    ("gelu_python", Activation::GeluErf),
    ("gelu_new", Activation::GeluTanh),
    ("gelu_fast", Activation::GeluTanh),
    ("gelu_accurate", Activation::GeluTanh),
    ("gelu_pytorch_tanh", Activation::GeluTanh),
    ("gelu_python_tanh", Activation::GeluTanh),
];

/// Reads `hidden_act`; silu where it is left out.
pub(super) fn read(keys: &Keys<'_>) -> SeamResult<Activation> {
    let Some(name) = keys.text("hidden_act")? else {
        return Ok(Activation::Silu);
    };
    NAMES
        .iter()
        .find(|(known, _)| *known == name)
        .map(|&(_, activation)| activation)
        .ok_or_else(|| {
            let known: Vec<_> = NAMES.iter().map(|&(n, _)| n).collect();
            SeamError::unsupported(format!("hidden_act {}", quoted(name)))
                .hint(format!("supported: {}", known.join(", ")))
        })
}
