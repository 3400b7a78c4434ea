//! Dequantise, multiply and reduce, written so that it becomes one kernel: nothing weight-sized is
//! ever written, and packed bytes are read once.

use halfhitch_seam::WeightForm;

use crate::emitter::builder::{Builder, Value};
use crate::emitter::ops::Reduce;
use crate::emitter::types::Elem;

/// f32 `x` `[1, inputs]` times a packed weight of `shape` `[outputs, inputs]`.
pub fn contract(
    b: &mut Builder,
    x: &Value,
    form: WeightForm,
    tensors: &[Value],
    shape: [usize; 2],
) -> Value {
    let dims = group_dims(form, shape);
    let values = unpack(b, form, &tensors[0], shape);
    let scales = grouped(b, form, &tensors[1], shape);
    let biases = grouped(b, form, &tensors[2], shape);
    let x = b.reshape(x, &dims[1..]);
    let x = b.broadcast(&x, &[1, 2], &dims);
    let scaled = b.mul(&values, &scales);
    let weight = b.add(&scaled, &biases);
    let products = b.mul(&weight, &x);
    let sums = b.reduce(Reduce::Add, &products, &[1, 2]);
    b.reshape(&sums, &[1, shape[0]])
}

/// Packed values as f32 `[rows, groups, group_size]`.
pub fn unpack(b: &mut Builder, form: WeightForm, words: &Value, shape: [usize; 2]) -> Value {
    let dims = group_dims(form, shape);
    if matches!(words.elem(), Elem::U4 | Elem::U8) {
        return b.convert(words, Elem::F32);
    }
    let WeightForm::Affine(scheme) = form else {
        panic!("{form} is not packed");
    };
    let bits = scheme.bits.get();
    let per_word = 32 / bits;
    let [rows, count] = words.sizes()[..] else {
        panic!("packed words of {}", words.ty());
    };
    let spread = [rows, count, per_word];
    let words = b.broadcast(words, &[0, 1], &spread);
    let shifts: Vec<i64> = (0..per_word).map(|i| (i * bits) as i64).collect();
    let elem = words.elem();
    let shifts = b.constant_ints(&shifts, elem);
    let shifts = b.broadcast(&shifts, &[2], &spread);
    let shifted = b.binary("shift_right_logical", &words, &shifts);
    let mask = b.splat_int(i64::from(scheme.bits.max_value()), elem, &spread);
    let values = b.binary("and", &shifted, &mask);
    let values = b.convert(&values, Elem::F32);
    b.reshape(&values, &dims)
}

/// One number a group, repeated over the group, as f32.
pub fn grouped(b: &mut Builder, form: WeightForm, numbers: &Value, shape: [usize; 2]) -> Value {
    let dims = group_dims(form, shape);
    let numbers = b.convert(numbers, Elem::F32);
    b.broadcast(&numbers, &[0, 1], &dims)
}

fn group_dims(form: WeightForm, [rows, columns]: [usize; 2]) -> [usize; 3] {
    let WeightForm::Affine(scheme) = form else {
        panic!("{form} is not packed");
    };
    [
        rows,
        scheme.groups_per_row(columns),
        scheme.group_size.get(),
    ]
}
