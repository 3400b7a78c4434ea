//! One contraction as a module of its own, for measuring it.

use halfhitch_seam::StepRows;

use super::choice::Alternative;
use super::contract_as;
use crate::emitter::graph::{Function, Source};
use crate::emitter::layout::Role;
use crate::emitter::resident::Resident;
use crate::emitter::types::{Dim, Elem};
use crate::emitter::{MODULE_NAME, Module};

/// The module's only function: f32 [`Role::Hidden`] `[rows, inputs]` and the weight's tensors to f32
/// [`Role::Logits`] `[rows, outputs]`.
pub const FUNCTION: &str = "contract";

/// A resident weight as an alternative has it.
pub fn resident(of: &Resident, alternative: &Alternative) -> Resident {
    Resident {
        // All its rows are one result here.
        rows: vec![of.shape[0]],
        layout: alternative.layout,
        tasks: alternative.tasks,
        ..of.clone()
    }
}

/// The module of an alternative for a weight that [`resident`] made.
pub fn module(
    source: Source<'_>,
    resident: &Resident,
    alternative: &Alternative,
    (rows, kind): (usize, StepRows),
) -> Module {
    let mut f = Function::new(source, FUNCTION);
    f.rows = kind;
    let dims: [Dim; 2] = [rows.into(), resident.shape[1].into()];
    let x = f.argument(Role::Hidden, Elem::F32, &dims);
    let mut ys = contract_as(&mut f, &x, resident, alternative.representation);
    let y = ys.remove(0);
    f.result(Role::Logits, y);
    let (body, signature) = f.finish();
    Module {
        text: format!("module @{MODULE_NAME} {{\n{body}}}\n"),
        functions: [(signature.name.clone(), signature)].into(),
    }
}
