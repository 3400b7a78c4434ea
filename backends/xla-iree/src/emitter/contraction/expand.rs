//! A packed weight as an f32 matrix: `q * scale + bias`, two roundings, as the format defines it.

use halfhitch_seam::WeightForm;

use super::fused::{grouped, unpack};
use crate::emitter::builder::{Builder, Value};

/// f32 `[rows, columns]` of packed values, scales and biases.
pub fn matrix(b: &mut Builder, form: WeightForm, tensors: &[Value], shape: [usize; 2]) -> Value {
    let values = unpack(b, form, &tensors[0], shape);
    let scales = grouped(b, form, &tensors[1], shape);
    let biases = grouped(b, form, &tensors[2], shape);
    let scaled = b.mul(&values, &scales);
    let whole = b.add(&scaled, &biases);
    b.reshape(&whole, &shape)
}
