//! Contractions of activations with a weight, in the representation that suits its form.
//!
//! | weight | layout | rows | representation | why |
//! | --- | --- | --- | --- | --- |
//! | dense | stored | any | [`dense`] | weight-first `dot_general`: the other order transposes the weight at every step |
//! | dense | blocks | up to 8 | [`blocked`] | rows across vector lanes: at the limit of memory in f32, near it in f16 |
//! | packed | blocks | up to 8 | [`words`] | rows across vector lanes, no dequantised value: 10 to 20 times [`fused`] on `llvm-cpu` |
//! | packed | lanes | up to 8 | [`words_gpu`] | whole words across a warp's lanes, which every GPU loads at full width |
//! | packed | stored | 1 | [`fused`] | one kernel that reads packed bytes once; nothing weight-sized is written |
//! | any | blocks | tiles of 16 | [`words::multiply`] | the matrix micro-kernel, three times `dot_general` |
//! | any | any | more | [`expand`] | the weight is rebuilt once and serves every row of the chunk |
//!
//! The layout is the target's and the shape's: [`Layout::choose`]. Prompts of plain models go another way:
//! [`super::prefill`].

pub mod blocked;
pub mod choice;
mod dense;
mod expand;
pub mod fed;
mod fused;
pub mod micro;
pub mod words;
pub mod words_gpu;

use halfhitch_seam::{WeightForm, WeightId};

use super::builder::{Builder, Value};
use super::graph::{Function, WeightValue};
use super::layout::Layout;
use super::resident::{Resident, group};
use super::tiling::Profile;
use super::types::Elem;

/// A way to write a contraction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Representation {
    /// Weight-first `dot_general` over the resident numbers.
    Dense,
    /// Dequantise, multiply and reduce in one kernel.
    FusedReduce,
    /// Numbers or packed words, rows interleaved.
    Interleaved,
    /// Packed words, groups across a warp's lanes.
    GpuWords,
    /// Interleaved rows into a matrix in tiles, for the matrix micro-kernel.
    Tiles,
    /// Dequantise into a matrix, then as [`Self::Dense`].
    Expand,
}

/// The representation for a weight of `form` that lies in `layout`, and activations of `rows` rows.
pub fn choose(form: WeightForm, layout: Layout, rows: usize) -> Representation {
    let tiles = rows.is_multiple_of(words::TILE);
    match (form, layout) {
        (_, Layout::Blocks) if tiles => Representation::Tiles,
        (_, Layout::Blocks) if rows <= MOST_ROWS => Representation::Interleaved,
        (_, Layout::Blocks) => Representation::Expand,
        (WeightForm::Affine(_), Layout::Lanes) if rows <= MOST_ROWS => Representation::GpuWords,
        (WeightForm::Affine(_), _) if rows > 1 => Representation::Expand,
        (WeightForm::Affine(_), Layout::Lanes) => Representation::GpuWords,
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
    let rows = (x.sizes()[0], f.rows);
    let Resident { form, layout, .. } = *resident;
    let representation = choice::representation(f.source, form, layout, &resident.shape, rows);
    contract_as(f, x, resident, representation)
}

/// [`contract`], written in a certain way.
pub fn contract_as(
    f: &mut Function<'_>,
    x: &Value,
    resident: &Resident,
    representation: Representation,
) -> Vec<Value> {
    let weight = f.resident(resident);
    let precision = f.source.plan.precision.into();
    let shape = [weight.shape[0], weight.shape[1]];
    if representation == Representation::Tiles {
        return words::multiply(&mut f.b, x, &weight, &resident.rows, f.source.profile);
    }
    let y = match representation {
        Representation::FusedReduce => {
            // The weight's values are exact here; only the activations are rounded.
            let x = demote(&mut f.b, x, precision);
            fused::contract(&mut f.b, &x, weight.form, &weight.tensors, shape)
        }
        Representation::Interleaved => {
            let xs: Vec<_> = (0..x.sizes()[0])
                .map(|row| {
                    let x = f.b.slice(x, 0, row, row + 1);
                    prepare(&mut f.b, &x, &weight)
                })
                .collect();
            let ys = contract_rows(&mut f.b, &xs, &weight, None, f.source.profile);
            let ys: Vec<_> = ys.iter().map(|y| f.b.reshape(y, &[1, shape[0]])).collect();
            f.b.concatenate(&ys, 0)
        }
        Representation::GpuWords => {
            let rows = x.sizes()[0];
            let ready = words_gpu::prepare(&mut f.b, rows, &weight, precision, |body, at| {
                body.extract(x, &[&at.row, &at.column])
            });
            words_gpu::contract(&mut f.b, &ready, &weight)
        }
        Representation::Expand => {
            let matrix = match weight.layout {
                Layout::Blocks if matches!(weight.form, WeightForm::Dense(_)) => {
                    blocked::matrix(&mut f.b, &weight)
                }
                Layout::Blocks => words::matrix(&mut f.b, &weight),
                Layout::Lanes => words_gpu::matrix(&mut f.b, &weight),
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

/// One row of activations, as a contraction with interleaved rows reads it.
#[derive(Clone, Debug)]
pub enum Prepared {
    /// As it is, f32 `[columns]`.
    Plain(Value),
    /// For packed words.
    Words(words::Prepared),
}

/// f32 `x` of as many elements as the interleaved weight has columns, made ready for it.
pub fn prepare(b: &mut Builder, x: &Value, weight: &WeightValue) -> Prepared {
    match weight.form {
        WeightForm::Affine(_) => Prepared::Words(words::prepare(b, x, weight)),
        _ => Prepared::Plain(b.reshape(x, &weight.shape[1..])),
    }
}

/// Rows of activations, at most, that one contraction with an interleaved weight takes: each needs up to
/// three of the 32 buffers that a kernel may have.
pub const MOST_ROWS: usize = 8;

/// The product of each row with an interleaved weight, added onto what `onto` has for each where there
/// is one: f32 `[rows]` each.
pub fn contract_rows(
    b: &mut Builder,
    xs: &[Prepared],
    weight: &WeightValue,
    onto: Option<&[Value]>,
    profile: Profile,
) -> Vec<Value> {
    // A kernel of several results cannot begin with what others hold.
    if let Some(onto) = onto.filter(|onto| onto.len() > 1) {
        let ys = contract_rows(b, xs, weight, None, profile);
        return ys.iter().zip(onto).map(|(y, x)| b.add(x, y)).collect();
    }
    if let WeightForm::Affine(_) = weight.form {
        let xs: Vec<_> = xs
            .iter()
            .map(|x| match x {
                Prepared::Words(x) => x,
                Prepared::Plain(x) => panic!("{x} is not made ready for packed words"),
            })
            .collect();
        return words::contract(b, &xs, weight, onto, profile);
    }
    let xs: Vec<_> = xs
        .iter()
        .map(|x| match x {
            Prepared::Plain(x) => x,
            Prepared::Words(_) => panic!("activations made ready for packed words"),
        })
        .collect();
    blocked::contract(b, &xs, weight, onto, profile)
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
