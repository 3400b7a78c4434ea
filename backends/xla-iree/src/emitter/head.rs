//! From the residual stream to logits.

use halfhitch_seam::{TapPoint, WeightId};

use super::builder::Value;
use super::contraction::project;
use super::graph::Function;
use super::norm::{NormWeights, norm};

/// f32 logits `[rows, vocabulary]` of the residual stream `[rows, hidden]`.
pub fn logits(f: &mut Function<'_>, x: &Value) -> Value {
    let spec = f.source.spec;
    let ids = NormWeights {
        weight: WeightId::FinalNorm,
        bias: WeightId::FinalNormBias,
    };
    let h = norm(f, x, &spec.final_norm, ids);
    f.tap(None, TapPoint::FinalNorm, &h);
    let matrix = if spec.head.tied {
        WeightId::Embedding
    } else {
        WeightId::Head
    };
    let bias = spec.head.bias.then_some(WeightId::HeadBias);
    let mut y = project(f, &h, matrix, bias);
    if let Some(cap) = spec.head.softcap {
        y = f.b.map(&[&y], |body, e| {
            let cap = body.constant(cap);
            let ratio = body.arith("divf", &e[0], &cap);
            let bent = body.math("tanh", &ratio);
            body.arith("mulf", &cap, &bent)
        });
    }
    f.b.scale(&y, spec.head.scale)
}
