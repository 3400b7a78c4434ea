//! The gated feed-forward block.

use halfhitch_seam::model::{Activation, GatedMlp};
use halfhitch_seam::{LayerWeight, TapPoint};

use super::builder::{Builder, Value};
use super::contraction::{project, project_all};
use super::graph::{Function, layer_weight};
use super::linalg::{Body, Element};

/// `down(act(gate(h)) * up(h))` of f32 `[rows, hidden]`.
pub fn gated(f: &mut Function<'_>, layer: usize, h: &Value, mlp: &GatedMlp) -> Value {
    use LayerWeight as W;
    f.b.layer_section(layer, "feed-forward");
    let bias = |weight| mlp.bias.then(|| layer_weight(layer, weight));
    let id = |weight| layer_weight(layer, weight);
    let [gate, up] = project_all(
        f,
        h,
        [
            (id(W::Gate), bias(W::GateBias)),
            (id(W::Up), bias(W::UpBias)),
        ],
    );
    f.tap(Some(layer), TapPoint::Gate, &gate);
    f.tap(Some(layer), TapPoint::Up, &up);
    let gate = activate(&mut f.b, &gate, mlp.activation);
    let wide = f.b.mul(&gate, &up);
    f.tap(Some(layer), TapPoint::FeedForwardProduct, &wide);
    project(f, &wide, layer_weight(layer, W::Down), bias(W::DownBias))
}

/// The activation, element by element.
pub fn activate(b: &mut Builder, x: &Value, activation: Activation) -> Value {
    match activation {
        Activation::GeluTanh | Activation::GeluErf => {
            b.map(&[x], |body, e| activated(body, &e[0], activation))
        }
        _ => {
            let sigmoid = b.unary("logistic", x);
            b.mul(x, &sigmoid)
        }
    }
}

/// The activation of one element.
pub fn activated(body: &mut Body, x: &Element, activation: Activation) -> Element {
    match activation {
        Activation::GeluTanh => {
            let cubic = body.constant(0.044_715);
            let square = body.arith("mulf", x, x);
            let cube = body.arith("mulf", &square, x);
            let bent = body.arith("mulf", &cubic, &cube);
            let inner = body.arith("addf", x, &bent);
            let factor = body.constant(std::f32::consts::FRAC_2_PI.sqrt());
            let inner = body.arith("mulf", &factor, &inner);
            let tanh = body.math("tanh", &inner);
            half_plus(body, x, &tanh)
        }
        Activation::GeluErf => {
            let factor = body.constant(std::f32::consts::FRAC_1_SQRT_2);
            let inner = body.arith("mulf", &factor, x);
            let erf = body.math("erf", &inner);
            half_plus(body, x, &erf)
        }
        _ => {
            let one = body.constant(1.0);
            let zero = body.constant(0.0);
            let below = body.arith("subf", &zero, x);
            let power = body.math("exp", &below);
            let raised = body.arith("addf", &one, &power);
            body.arith("divf", x, &raised)
        }
    }
}

/// `x / 2 * (1 + t)`.
fn half_plus(body: &mut Body, x: &Element, t: &Element) -> Element {
    let one = body.constant(1.0);
    let half = body.constant(0.5);
    let raised = body.arith("addf", &one, t);
    let halved = body.arith("mulf", &half, x);
    body.arith("mulf", &halved, &raised)
}
