//! Normalisation over the last dimension.

use halfhitch_seam::WeightId;
use halfhitch_seam::model::{NormKind, NormSpec};

use super::builder::Value;
use super::graph::Function;
use super::ops::Reduce;

/// Where a norm's weight and bias come from.
#[derive(Clone, Copy)]
pub struct NormWeights {
    /// The weight.
    pub weight: WeightId,
    /// The bias.
    pub bias: WeightId,
}

/// Normalises f32 `x` over its last dimension and applies weight, offset and bias.
pub fn norm(f: &mut Function<'_>, x: &Value, spec: &NormSpec, ids: NormWeights) -> Value {
    let dims = x.sizes();
    let last = dims.len() - 1;
    let width = dims[last];
    let outer: Vec<usize> = (0..last).collect();
    let b = &mut f.b;
    let n = b.splat(width as f32, x.elem(), &dims[..last]);
    let centred = match spec.kind {
        NormKind::Rms => x.clone(),
        NormKind::Layer => {
            let sum = b.reduce(Reduce::Add, x, &[last]);
            let mean = b.binary("divide", &sum, &n);
            let mean = b.broadcast(&mean, &outer, &dims);
            b.binary("subtract", x, &mean)
        }
    };
    let squares = b.mul(&centred, &centred);
    let sum = b.reduce(Reduce::Add, &squares, &[last]);
    let mean = b.binary("divide", &sum, &n);
    let eps = b.splat(spec.eps, x.elem(), &dims[..last]);
    let raised = b.add(&mean, &eps);
    let factor = b.unary("rsqrt", &raised);
    let factor = b.broadcast(&factor, &outer, &dims);
    let mut y = b.mul(&centred, &factor);
    if spec.weight {
        let mut weight = f.vector(ids.weight);
        if spec.weight_offset != 0.0 {
            let offset = f.b.splat(spec.weight_offset, weight.elem(), &[width]);
            weight = f.b.add(&weight, &offset);
        }
        let weight = f.b.broadcast(&weight, &[last], &dims);
        y = f.b.mul(&y, &weight);
    }
    if spec.bias {
        let bias = f.vector(ids.bias);
        let bias = f.b.broadcast(&bias, &[last], &dims);
        y = f.b.add(&y, &bias);
    }
    y
}
