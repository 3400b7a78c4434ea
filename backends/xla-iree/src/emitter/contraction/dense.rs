//! Weight-first `dot_general`.
//!
//! In f32, narrower resident numbers are widened where they are read, which is exact; in f16 and
//! bf16 both operands have that type and the accumulation is f32.

use crate::emitter::builder::{Builder, Value};
use crate::emitter::ops::DotDims;
use crate::emitter::types::Elem;

/// f32 `x` `[rows, inputs]` times `weight` `[outputs, inputs]`, read in `precision`.
pub fn contract(b: &mut Builder, x: &Value, weight: &Value, precision: Elem) -> Value {
    let [rows, _] = x.sizes()[..] else {
        panic!("activations of {}", x.ty());
    };
    let outputs = weight.sizes()[0];
    let x = b.convert(x, precision);
    let weight = b.convert(weight, precision);
    let y = b.dot(
        &weight,
        &x,
        DotDims {
            batch: (&[], &[]),
            contract: (&[1], &[1]),
        },
    );
    if rows == 1 {
        return b.reshape(&y, &[1, outputs]);
    }
    b.transpose(&y, &[1, 0])
}
