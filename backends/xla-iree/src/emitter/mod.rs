//! From a model and its plan to the text of a module.
//!
//! A module holds the functions of one [`Shape`] of step: the step and its readings. Weights and
//! caches are arguments, so that every module of a model uses the same buffers, and modules are
//! compiled when they are needed and side by side. Text is deterministic. What a target wants beyond
//! the graph (layouts of weights, tilings) is its [`Profile`]; a portable graph names none.

mod argmax;
mod attention;
mod builder;
pub(crate) mod contraction;
mod decode;
mod decode_rows;
mod embed;
mod graph;
mod head;
pub mod layout;
mod linalg;
mod mlp;
mod norm;
mod ops;
mod plain;
mod prefill;
pub mod resident;
pub mod rope;
mod step;
mod tiling;
mod types;

use std::collections::BTreeMap;

pub use contraction::{Representation, choose};
pub use graph::{Source, shape_of};
pub use layout::Signature;
pub use prefill::{TILE, suits as in_tiles};
pub use step::{Reading, Rows, Shape, reading_name, tapped_name};
pub use tiling::Profile;
pub use types::{Dim, Elem, TensorType};

/// Raised when the same model and plan give other text or other signatures.
pub const EMITTER_VERSION: u32 = 9;

/// A module: its text and what its functions take and return.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Module {
    /// StableHLO text (with structured operations where extents are dynamic).
    pub text: String,
    /// Signatures by function name.
    pub functions: BTreeMap<String, Signature>,
}

/// The name of every module, before the dot of a function's full name.
pub const MODULE_NAME: &str = "halfhitch";

/// The module of one shape of step for a target.
///
/// # Panics
/// Where the plan is not one for this model or asks for what this backend does not advertise; the
/// host's `negotiate` lets neither through.
pub fn module(source: Source<'_>, shape: Shape) -> Module {
    let mut functions = BTreeMap::new();
    let mut text = format!("module @{MODULE_NAME} {{\n");
    let mut add = |(body, signature): (String, Signature)| {
        text.push_str(&body);
        functions.insert(signature.name.clone(), signature);
    };
    add(step::step(source, shape));
    for (rows, what) in readings(shape) {
        add(step::reading(source, shape, rows, what));
    }
    text.push_str("}\n");
    Module { text, functions }
}

/// The module of one function: a chunk of `rows` rows that shows its intermediate results.
///
/// # Panics
/// As [`module`].
pub fn tapped_module(source: Source<'_>, rows: usize) -> Module {
    let (body, signature) = step::tapped(source, rows);
    Module {
        text: format!("module @{MODULE_NAME} {{\n{body}}}\n"),
        functions: [(signature.name.clone(), signature)].into(),
    }
}

/// The readings that a shape's module has, besides what its step returns.
pub fn readings(shape: Shape) -> Vec<(Rows, Reading)> {
    match shape {
        Shape::Tiles => vec![
            (Rows::One, Reading::Choice),
            (Rows::One, Reading::Logits),
            (Rows::Tile, Reading::Logits),
        ],
        _ if shape.decodes() => Vec::new(),
        _ => vec![
            (Rows::One, Reading::Choice),
            (Rows::One, Reading::Logits),
            (Rows::All, Reading::Logits),
        ],
    }
}

#[cfg(test)]
mod tests;
