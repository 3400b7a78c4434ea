//! Rotary position embedding.

use std::f64::consts::PI;

use serde::{Deserialize, Serialize};

/// Which two elements of a head a rotation mixes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RopeLayout {
    /// Element `i` with `i + dims / 2` (Hugging Face).
    HalfSplit,
    /// Element `2i` with `2i + 1` (the original paper, GGUF).
    Interleaved,
}

/// How frequencies are changed to reach longer contexts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RopeScaling {
    /// Every frequency divided by `factor`.
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// Llama 3.1: low frequencies divided by `factor`, high ones kept, a ramp between.
    Llama3 {
        /// The divisor of low frequencies.
        factor: f64,
        /// Wavelengths above `original_context / low_freq_factor` are low frequencies.
        low_freq_factor: f64,
        /// Wavelengths below `original_context / high_freq_factor` are high frequencies.
        high_freq_factor: f64,
        /// Context the model was first trained with, in tokens.
        original_context: f64,
    },
}

/// Rotary position embedding of one layer. At position `p`, pair `i` of a head turns by
/// `p * inverse_frequencies()[i]`: `(a, b)` becomes `(a cos - b sin, b cos + a sin)`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RopeSpec {
    /// Leading elements of a head that turn; even, at most `head_dim`. The others pass unchanged.
    pub dims: usize,
    /// Base of the frequencies.
    pub theta: f64,
    /// Change of the frequencies.
    pub scaling: Option<RopeScaling>,
    /// Pairing.
    pub layout: RopeLayout,
}

impl RopeSpec {
    /// The `dims / 2` angular frequencies, in radians a position: `theta^(-2i/dims)`, scaled.
    ///
    /// They are rounded to f32, and an angle is the f32 product `p as f32 * frequency`, since that
    /// is what models are trained and published with (transformers' `modeling_rope_utils`); at long
    /// positions a wider angle would be a different model.
    pub fn inverse_frequencies(&self) -> Vec<f32> {
        (0..self.dims / 2)
            .map(|i| {
                let base = self.theta.powf(-((2 * i) as f64) / self.dims as f64);
                self.scale(base) as f32
            })
            .collect()
    }

    fn scale(&self, frequency: f64) -> f64 {
        match self.scaling {
            None => frequency,
            Some(RopeScaling::Linear { factor }) => frequency / factor,
            Some(RopeScaling::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_context,
            }) => {
                let wavelength = 2.0 * PI / frequency;
                if wavelength < original_context / high_freq_factor {
                    frequency
                } else if wavelength > original_context / low_freq_factor {
                    frequency / factor
                } else {
                    let smooth = (original_context / wavelength - low_freq_factor)
                        / (high_freq_factor - low_freq_factor);
                    (1.0 - smooth) * frequency / factor + smooth * frequency
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(scaling: Option<RopeScaling>) -> RopeSpec {
        RopeSpec {
            dims: 64,
            theta: 500_000.0,
            scaling,
            layout: RopeLayout::HalfSplit,
        }
    }

    #[test]
    fn frequencies_fall_from_one() {
        let f = spec(None).inverse_frequencies();
        assert_eq!(f.len(), 32);
        assert_eq!(f[0], 1.0);
        assert!(f.windows(2).all(|w| w[0] > w[1]));
    }

    #[test]
    fn llama3_keeps_high_and_divides_low_frequencies() {
        let plain = spec(None).inverse_frequencies();
        let scaled = spec(Some(RopeScaling::Llama3 {
            factor: 32.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_context: 8192.0,
        }))
        .inverse_frequencies();
        assert_eq!(plain[0], scaled[0]);
        assert!((plain[31] / scaled[31] - 32.0).abs() < 1e-4);
        assert!(
            plain
                .iter()
                .zip(&scaled)
                .any(|(p, s)| p / s > 1.5 && p / s < 31.0),
            "no frequency lies on the ramp"
        );
    }
}
