//! Non-linearities of feed-forward blocks.

use std::f32::consts::{FRAC_1_SQRT_2, FRAC_2_PI};

use halfhitch_seam::model::Activation;
use halfhitch_seam::{SeamError, SeamResult};

/// A non-linearity on one value.
pub type Function = fn(f32) -> f32;

/// The function of that name.
///
/// # Errors
/// `Unsupported` for one that this backend does not know.
pub fn function(activation: Activation) -> SeamResult<Function> {
    match activation {
        Activation::Silu => Ok(silu),
        Activation::GeluTanh => Ok(gelu_tanh),
        Activation::GeluErf => Ok(gelu_erf),
        other => Err(SeamError::unsupported(format!("activation {other:?}"))),
    }
}

fn silu(x: f32) -> f32 {
    x / (1.0 + (-x).exp())
}

fn gelu_tanh(x: f32) -> f32 {
    let inner = FRAC_2_PI.sqrt() * (x + 0.044_715 * x * x * x);
    0.5 * x * (1.0 + inner.tanh())
}

fn gelu_erf(x: f32) -> f32 {
    0.5 * x * (1.0 + libm::erff(x * FRAC_1_SQRT_2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values() {
        // The formulas in double precision, at -2, -0.5, 0, 1 and 3.
        let at = [-2.0, -0.5, 0.0, 1.0, 3.0];
        for (function, want) in [
            (
                silu as Function,
                [-0.238_405_84, -0.188_770_33, 0.0, 0.731_058_6, 2.857_722_4],
            ),
            (
                gelu_tanh,
                [-0.045_402_306, -0.154_286, 0.0, 0.841_192, 2.996_362_7],
            ),
            (
                gelu_erf,
                [-0.045_500_264, -0.154_268_77, 0.0, 0.841_344_7, 2.995_950_2],
            ),
        ] {
            for (x, want) in at.into_iter().zip(want) {
                let got = function(x);
                assert!((got - want).abs() < 2e-6, "f({x}) = {got}, not {want}");
            }
        }
    }

    #[test]
    fn large_values_do_not_turn_into_nan() {
        for f in [silu as Function, gelu_tanh, gelu_erf] {
            assert_eq!(f(200.0), 200.0);
            assert_eq!(f(-200.0).abs(), 0.0);
        }
    }
}
