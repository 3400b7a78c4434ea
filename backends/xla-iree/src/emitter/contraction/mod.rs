//! Contractions of activations with a weight, in the representation that suits its form.
//!
//! | weight | rows | representation | why |
//! | --- | --- | --- | --- |
//! | dense | any | [`dense`] | weight-first `dot_general`: the other order transposes the weight at every step |
//! | packed | 1 | [`fused`] | one kernel that reads packed bytes once; nothing weight-sized is written |
//! | packed | more | [`expand`] | the weight is rebuilt once and serves every row of the chunk |

mod dense;
mod expand;
mod fused;

use halfhitch_seam::{WeightForm, WeightId};

use super::builder::{Builder, Value};
use super::graph::{Function, WeightValue};
use super::types::Elem;

/// A way to write a contraction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Representation {
    /// Weight-first `dot_general` over the resident numbers.
    Dense,
    /// Dequantise, multiply and reduce in one kernel.
    FusedReduce,
    /// Dequantise into a matrix, then as [`Self::Dense`].
    Expand,
}

/// The representation for a weight of `form` and activations of `rows` rows.
pub fn choose(form: WeightForm, rows: usize) -> Representation {
    match form {
        WeightForm::Affine(_) if rows == 1 => Representation::FusedReduce,
        WeightForm::Affine(_) => Representation::Expand,
        _ => Representation::Dense,
    }
}

/// f32 `x` `[rows, inputs]` times the weight, plus its bias where there is one: f32
/// `[rows, outputs]`. The weight is `[outputs, inputs]`.
pub fn project(f: &mut Function<'_>, x: &Value, id: WeightId, bias: Option<WeightId>) -> Value {
    let weight = f.weight(id);
    let y = contract(f, x, &weight);
    let Some(bias) = bias else {
        return y;
    };
    let bias = f.vector(bias);
    let dims = y.sizes();
    let bias = f.b.broadcast(&bias, &[1], &dims);
    f.b.add(&y, &bias)
}

fn contract(f: &mut Function<'_>, x: &Value, weight: &WeightValue) -> Value {
    let precision = f.source.plan.precision.into();
    let rows = x.sizes()[0];
    let shape = [weight.shape[0], weight.shape[1]];
    match choose(weight.form, rows) {
        Representation::Dense => dense::contract(&mut f.b, x, &weight.tensors[0], precision),
        Representation::FusedReduce => {
            // The weight's values are exact here; only the activations are rounded.
            let x = demote(&mut f.b, x, precision);
            fused::contract(&mut f.b, &x, weight.form, &weight.tensors, shape)
        }
        Representation::Expand => {
            let matrix = expand::matrix(&mut f.b, weight.form, &weight.tensors, shape);
            dense::contract(&mut f.b, x, &matrix, precision)
        }
    }
}

/// f32 values rounded to `precision`, still as f32.
fn demote(b: &mut Builder, x: &Value, precision: Elem) -> Value {
    let rounded = b.convert(x, precision);
    b.convert(&rounded, Elem::F32)
}

/// f32 `[rows, columns]` of a packed matrix's tensors.
pub fn dequantize(
    b: &mut Builder,
    form: WeightForm,
    tensors: &[Value],
    shape: [usize; 2],
) -> Value {
    expand::matrix(b, form, tensors, shape)
}
