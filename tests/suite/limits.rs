//! How far logits may be off.

use halfhitch_seam::Precision;

use crate::report::{Outcome, fail};

/// The largest [`difference`] from ground truth that a precision may show on the suite's small models: the
/// limit `dlogit` of the accuracy gate's table (`host/src/gate/limits.rs`), to which `tests/gate` holds it.
/// Written again since the suite knows no host.
pub const fn relative(precision: Precision) -> f64 {
    match precision {
        Precision::F32 => 1e-4,
        Precision::F16 => 2e-2,
        Precision::BF16 => 1.5e-1,
    }
}

/// The distance of two rows of logits: `max |got - want| / max |want|` over the vocabulary. Infinite
/// where anything is not finite.
pub fn difference(got: &[f32], want: &[f32]) -> f64 {
    let mut distance = 0.0f64;
    let mut size = 0.0f64;
    for (&g, &w) in got.iter().zip(want) {
        if !g.is_finite() || !w.is_finite() {
            return f64::INFINITY;
        }
        distance = distance.max((f64::from(g) - f64::from(w)).abs());
        size = size.max(f64::from(w).abs());
    }
    if distance == 0.0 {
        0.0
    } else {
        distance / size
    }
}

/// Fails where two rows of logits are further apart than `limit`, or of different lengths.
pub(crate) fn close(what: &str, got: &[f32], want: &[f32], limit: f64) -> Outcome {
    if got.len() != want.len() {
        return fail(format!(
            "{what}: {} logits, {} expected",
            got.len(),
            want.len()
        ));
    }
    let off = difference(got, want);
    if off > limit {
        let apart = |i: usize| (f64::from(got[i]) - f64::from(want[i])).abs();
        // A NaN is the worst of all.
        let worst = (0..got.len()).max_by(|&a, &b| apart(a).total_cmp(&apart(b)));
        let worst = worst.map_or_else(String::new, |i| {
            format!(": that of token {i} is {}, not {}", got[i], want[i])
        });
        return fail(format!(
            "{what}: logits are off by {off:.2e} relative, {limit:.0e} is the limit{worst}"
        ));
    }
    Ok(())
}

/// The index of the largest logit, of equal ones the lowest.
pub(crate) fn argmax(logits: &[f32]) -> usize {
    let mut best = 0;
    for (i, v) in logits.iter().enumerate() {
        if *v > logits[best] {
            best = i;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_distance_is_relative_to_the_largest_logit() {
        assert_eq!(difference(&[1.0, -8.0], &[1.5, -8.0]), 0.0625);
        assert_eq!(difference(&[0.0], &[0.0]), 0.0);
        assert_eq!(difference(&[1.0], &[0.0]), f64::INFINITY);
        assert_eq!(difference(&[f32::NAN], &[0.0]), f64::INFINITY);
        assert_eq!(difference(&[0.0], &[f32::INFINITY]), f64::INFINITY);
    }
}
