//! Contractions whose activations are made on the way in.
//!
//! What a GPU's contraction reads has to be put in its order or type anyway, by a kernel of its own. Here
//! that kernel also computes the activations, element by element: a norm's last step, an activation
//! function. Nothing else is written in between.

use super::words_gpu::{self, At};
use super::{Representation, choice, dense};
use crate::emitter::builder::Value;
use crate::emitter::graph::Function;
use crate::emitter::linalg::{Body, Element, Structure};
use crate::emitter::resident::Resident;
use crate::emitter::types::{Dim, Elem};

/// Whether a weight's contraction, in a step of so many rows, is one that can be [fed](contract).
pub fn suits(f: &Function<'_>, resident: &Resident, rows: usize) -> bool {
    let fed = [Representation::GpuWords, Representation::Dense];
    fed.contains(&representation(f, resident, rows))
}

fn representation(f: &Function<'_>, resident: &Resident, rows: usize) -> Representation {
    let Resident { form, layout, .. } = *resident;
    choice::representation(f.source, form, layout, &resident.shape, (rows, f.rows))
}

/// `rows` rows of activations, which `value` gives as f32, times a weight: f32 `[rows, outputs]`.
///
/// # Panics
/// For a weight that [`suits`] does not let through.
pub fn contract(
    f: &mut Function<'_>,
    resident: &Resident,
    rows: usize,
    value: impl Fn(&mut Body, &At) -> Element,
) -> Value {
    let representation = representation(f, resident, rows);
    let weight = f.resident(resident);
    let precision: Elem = f.source.plan.precision.into();
    match representation {
        Representation::GpuWords => {
            let x = words_gpu::prepare(&mut f.b, rows, &weight, precision, value);
            words_gpu::contract(&mut f.b, &x, &weight)
        }
        Representation::Dense => {
            let structure = Structure {
                tiling: None,
                loops: &[Dim::from(rows), Dim::from(weight.shape[1])],
                operands: &[],
                out: &[0, 1],
                elem: precision,
                initial: 0.0,
            };
            let x = f.b.structured(structure, |body, _| {
                let [row, column] = [0, 1].map(|dim| body.index(dim));
                let x = value(body, &At { row, column });
                match precision {
                    Elem::F32 => x,
                    short => body.op("arith.truncf", &[&x], &format!("f32 to {short}")),
                }
            });
            dense::contract(&mut f.b, &x, &weight.tensors[0], precision)
        }
        other => panic!("{other:?} takes no activations on the way in"),
    }
}
