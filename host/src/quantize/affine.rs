//! MLX's affine quantisation of one group, bit for bit as `mx.quantize` computes it on a CPU.
//!
//! All arithmetic is f32, whatever the type of the input. The end of the group's range that is
//! farther from zero becomes the edge, which q = 0 stands for exactly; the scale is then adjusted so
//! that zero is a step too. Values are quantised with scale and bias as computed; those are rounded
//! to their storage type only afterwards.

use halfhitch_seam::Bits;

/// Below this a scale would be meaningless.
const LEAST_SCALE: f32 = 1e-7;

/// Quantises a group: fills `q` and returns scale and bias, not yet rounded to a storage type. They
/// are finite wherever the values are and their range does not overflow.
///
/// # Panics
/// Where `q` is shorter than `values`.
pub fn quantize_group(values: &[f32], bits: Bits, q: &mut [u32]) -> (f32, f32) {
    let bins = bits.max_value() as f32;
    let top = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let low = values.iter().copied().fold(f32::INFINITY, f32::min);
    let at_low = low.abs() > top.abs();
    let edge = if at_low { low } else { top };
    let step = ((top - low) / bins).max(LEAST_SCALE);
    let mut scale = if at_low { step } else { -step };
    let zero_at = (edge / scale).round_ties_even();
    let mut bias = 0.0;
    if zero_at != 0.0 {
        scale = edge / zero_at;
        bias = edge;
    }
    for (q, &value) in q[..values.len()].iter_mut().zip(values) {
        *q = ((value - bias) / scale).round_ties_even().clamp(0.0, bins) as u32;
    }
    (scale, bias)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quantize(values: &[f32], bits: u32) -> (Vec<u32>, f32, f32) {
        let mut q = vec![0; values.len()];
        let (scale, bias) = quantize_group(values, Bits::new(bits).unwrap(), &mut q);
        (q, scale, bias)
    }

    #[test]
    fn zeros_have_the_least_scale_and_no_bias() {
        assert_eq!(quantize(&[0.0; 32], 4), (vec![0; 32], -LEAST_SCALE, 0.0));
    }

    #[test]
    fn the_edge_and_zero_come_back() {
        let values: Vec<f32> = (0..32).map(|i| (i as f32 - 9.0) * 0.37).collect();
        for bits in Bits::ALL {
            let (q, scale, bias) = quantize(&values, bits.into());
            assert_eq!(bias, values[31], "the far end is the bias");
            assert_eq!(q[31], 0);
            let zero = q[9] as f32 * scale + bias;
            assert!(zero.abs() <= 1e-6, "{bits} bits: zero became {zero}");
        }
    }
}
