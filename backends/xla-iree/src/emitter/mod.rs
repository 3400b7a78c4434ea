//! From a model and its plan to the text of a module.
//!
//! A module holds the functions of one [`Shape`] of step: the step and its readings. Weights and
//! caches are arguments, so that every module of a model uses the same buffers, and modules are
//! compiled when they are needed and side by side. Text is deterministic and names no target: what
//! a target wants beyond the graph belongs to its profile.

mod argmax;
mod attention;
mod builder;
mod contraction;
mod embed;
mod graph;
mod head;
pub mod layout;
mod linalg;
mod mlp;
mod norm;
mod ops;
pub mod rope;
mod step;
mod types;

use std::collections::BTreeMap;

use halfhitch_seam::{ExecutionPlan, ModelSpec};

pub use contraction::{Representation, choose};
pub use graph::{Source, shape_of};
pub use layout::Signature;
pub use step::{Reading, Rows, Shape, reading_name};
pub use types::{Dim, Elem, TensorType};

/// Raised when the same model and plan give other text or other signatures.
pub const EMITTER_VERSION: u32 = 1;

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

/// The module of one shape of step.
///
/// # Panics
/// Where the plan is not one for this model or asks for what this backend does not advertise; the
/// host's `negotiate` lets neither through.
pub fn module(spec: &ModelSpec, plan: &ExecutionPlan, shape: Shape) -> Module {
    let source = Source { spec, plan };
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

/// The readings that a shape's module has.
pub fn readings(shape: Shape) -> Vec<(Rows, Reading)> {
    match shape {
        Shape::Batch { .. } => vec![(Rows::All, Reading::Choice), (Rows::All, Reading::Logits)],
        Shape::Chunk { rows: 1 } => {
            vec![(Rows::One, Reading::Choice), (Rows::One, Reading::Logits)]
        }
        Shape::Chunk { .. } => vec![
            (Rows::One, Reading::Choice),
            (Rows::One, Reading::Logits),
            (Rows::All, Reading::Logits),
        ],
    }
}

#[cfg(test)]
mod tests;
