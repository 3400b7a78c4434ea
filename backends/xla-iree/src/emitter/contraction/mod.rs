//! Contractions of activations with a weight, in the representation that suits its form.
//!
//! | weight | layout | rows | representation | why |
//! | --- | --- | --- | --- | --- |
//! | dense | stored | any | [`dense`] | weight-first `dot_general`: the other order transposes the weight at every step |
//! | packed | blocks | 1 | [`words`] | rows across vector lanes, no dequantised value: 10 to 20 times [`fused`] on `llvm-cpu` |
//! | packed | words, lanes | 1 | [`words_gpu`] | whole words across a warp's lanes, which every GPU loads at full width |
//! | packed | stored | 1 | [`fused`] | one kernel that reads packed bytes once; nothing weight-sized is written |
//! | packed | blocks | tiles of 16, f32 | [`words::multiply`] | the matrix micro-kernel, three times `dot_general` |
//! | packed | any | more | [`expand`] | the weight is rebuilt once and serves every row of the chunk |
//!
//! The layout is the target's and the shape's: [`Layout::choose`].

mod dense;
mod expand;
mod fused;
pub mod words;
pub mod words_gpu;

use halfhitch_seam::{WeightForm, WeightId};

use super::builder::{Builder, Value};
use super::graph::Function;
use super::layout::Layout;
use super::resident::{Resident, group};
use super::types::Elem;

/// A way to write a contraction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Representation {
    /// Weight-first `dot_general` over the resident numbers.
    Dense,
    /// Dequantise, multiply and reduce in one kernel.
    FusedReduce,
    /// Packed words, rows interleaved.
    Words,
    /// Packed words, groups across a warp's lanes.
    GpuWords,
    /// Packed words into a matrix in tiles, for the matrix micro-kernel.
    Tiles,
    /// Dequantise into a matrix, then as [`Self::Dense`].
    Expand,
}

/// The representation for a weight of `form` that lies in `layout`, and activations of `rows` rows.
pub fn choose(form: WeightForm, layout: Layout, rows: usize, precision: Elem) -> Representation {
    let tiles = rows.is_multiple_of(words::TILE) && precision == Elem::F32;
    match (form, layout) {
        (WeightForm::Affine(_), Layout::Blocks) if tiles => Representation::Tiles,
        (WeightForm::Affine(_), _) if rows > 1 => Representation::Expand,
        (WeightForm::Affine(_), Layout::Blocks) => Representation::Words,
        (WeightForm::Affine(_), Layout::Words | Layout::Lanes) => Representation::GpuWords,
        (WeightForm::Affine(_), Layout::Stored) => Representation::FusedReduce,
        _ => Representation::Dense,
    }
}

/// f32 `x` `[rows, inputs]` times a weight `[outputs, inputs]`, plus its bias where there is one: f32
/// `[rows, outputs]`.
pub fn project(f: &mut Function<'_>, x: &Value, id: WeightId, bias: Option<WeightId>) -> Value {
    let [y] = project_all(f, x, [(id, bias)]);
    y
}

/// [`project`] for several weights of the same input, in as few contractions as they are resident in.
pub fn project_all<const N: usize>(
    f: &mut Function<'_>,
    x: &Value,
    parts: [(WeightId, Option<WeightId>); N],
) -> [Value; N] {
    let ids = parts.map(|(id, _)| id);
    let residents = group(f.source, &ids);
    let mut ys = residents.iter().flat_map(|r| contract(f, x, r));
    let ys = ids.map(|id| ys.next().unwrap_or_else(|| panic!("no rows of {id}")));
    let mut biases = parts.into_iter().map(|(_, bias)| bias);
    ys.map(|y| add_bias(f, y, biases.next().flatten()))
}

fn add_bias(f: &mut Function<'_>, y: Value, bias: Option<WeightId>) -> Value {
    let Some(bias) = bias else {
        return y;
    };
    let bias = f.vector(bias);
    let dims = y.sizes();
    let bias = f.b.broadcast(&bias, &[1], &dims);
    f.b.add(&y, &bias)
}

/// The product with each of the weights that are resident together.
fn contract(f: &mut Function<'_>, x: &Value, resident: &Resident) -> Vec<Value> {
    let weight = f.resident(resident);
    let precision = f.source.plan.precision.into();
    let rows = x.sizes()[0];
    let shape = [weight.shape[0], weight.shape[1]];
    let representation = choose(weight.form, weight.layout, rows, precision);
    if representation == Representation::Tiles {
        return words::multiply(&mut f.b, x, &weight, &resident.rows, f.source.profile);
    }
    let y = match representation {
        Representation::FusedReduce => {
            // The weight's values are exact here; only the activations are rounded.
            let x = demote(&mut f.b, x, precision);
            fused::contract(&mut f.b, &x, weight.form, &weight.tensors, shape)
        }
        Representation::Words => {
            let x = demote(&mut f.b, x, precision);
            let x = words::prepare(&mut f.b, &x, &weight);
            let y = words::contract(&mut f.b, &x, &weight, None, f.source.profile);
            f.b.reshape(&y, &[1, shape[0]])
        }
        Representation::GpuWords => {
            let x = demote(&mut f.b, x, precision);
            words_gpu::contract(&mut f.b, &x, &weight)
        }
        Representation::Expand => {
            let matrix = match weight.layout {
                Layout::Blocks => words::matrix(&mut f.b, &weight),
                Layout::Words | Layout::Lanes => words_gpu::matrix(&mut f.b, &weight),
                Layout::Stored => expand::matrix(&mut f.b, weight.form, &weight.tensors, shape),
            };
            dense::contract(&mut f.b, x, &matrix, precision)
        }
        _ => dense::contract(&mut f.b, x, &weight.tensors[0], precision),
    };
    ranges(&resident.rows)
        .map(|(start, end)| f.b.slice(&y, 1, start, end))
        .collect()
}

/// Where each of `rows` rows begins and ends when they lie one below the other.
pub fn ranges(rows: &[usize]) -> impl Iterator<Item = (usize, usize)> {
    rows.iter().scan(0, |end, &rows| {
        let start = *end;
        *end += rows;
        Some((start, *end))
    })
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
