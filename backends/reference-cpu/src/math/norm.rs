//! Normalisation over the last dimension. Means are f64, everything else f32.

use halfhitch_seam::model::{NormKind, NormSpec};

/// `norm(x) * (weight + offset) + bias` in place, over the whole of `x`. `weight` and `bias` are
/// there iff the spec says so, and as long as `x`.
pub fn normalise(x: &mut [f32], spec: &NormSpec, weight: Option<&[f32]>, bias: Option<&[f32]>) {
    let n = x.len() as f64;
    let mean = match spec.kind {
        NormKind::Rms => 0.0,
        NormKind::Layer => x.iter().map(|&v| f64::from(v)).sum::<f64>() / n,
    };
    let square = |v: f32| (f64::from(v) - mean).powi(2);
    let mean_square = x.iter().map(|&v| square(v)).sum::<f64>() / n;
    let factor = (1.0 / (mean_square + f64::from(spec.eps)).sqrt()) as f32;
    let mean = mean as f32;
    for v in x.iter_mut() {
        *v = (*v - mean) * factor;
    }
    if let Some(weight) = weight {
        for (v, w) in x.iter_mut().zip(weight) {
            *v *= w + spec.weight_offset;
        }
    }
    if let Some(bias) = bias {
        for (v, b) in x.iter_mut().zip(bias) {
            *v += b;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rms_divides_by_the_root_of_the_mean_square() {
        // mean square of (3, 4, 0, 5) is 12.5; with eps 12.5 the root is 5.
        let mut x = [3.0, 4.0, 0.0, 5.0];
        normalise(
            &mut x,
            &NormSpec::rms(12.5),
            Some(&[1.0, 2.0, 3.0, -1.0]),
            None,
        );
        assert_eq!(x, [0.6, 1.6, 0.0, -1.0]);
    }

    #[test]
    fn layer_norm_takes_the_mean_away() {
        // mean 3, variance 4; with eps 12 the root is 4.
        let spec = NormSpec {
            kind: NormKind::Layer,
            eps: 12.0,
            weight: true,
            weight_offset: 0.0,
            bias: true,
        };
        let mut x = [1.0, 5.0];
        normalise(&mut x, &spec, Some(&[2.0, 2.0]), Some(&[0.5, 0.25]));
        assert_eq!(x, [-0.5, 1.25]);
    }

    #[test]
    fn the_offset_is_added_to_the_weight_only() {
        let spec = NormSpec {
            weight_offset: 1.0,
            ..NormSpec::rms(0.0)
        };
        let mut x = [2.0, -2.0];
        normalise(&mut x, &spec, Some(&[0.0, 0.5]), None);
        assert_eq!(x, [1.0, -1.5]);
    }

    #[test]
    fn without_a_weight_the_factor_is_one() {
        let spec = NormSpec {
            weight: false,
            ..NormSpec::rms(0.0)
        };
        let mut x = [2.0, -2.0];
        normalise(&mut x, &spec, None, None);
        assert_eq!(x, [1.0, -1.0]);
    }
}
