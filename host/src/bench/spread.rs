//! A median and how far the values lie around it.

use serde::{Deserialize, Serialize};

/// Repeated measurements of one quantity.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// The middle value; the mean of the two in the middle where their number is even.
    pub median: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
    /// All, in the order in which they were measured.
    pub values: Vec<f64>,
}

impl Spread {
    /// The spread of some values; none where there are none, or one that is not finite.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let values: Vec<f64> = values.into_iter().collect();
        if values.is_empty() || values.iter().any(|v| !v.is_finite()) {
            return None;
        }
        let mut sorted = values.clone();
        sorted.sort_by(f64::total_cmp);
        let (low, high) = ((sorted.len() - 1) / 2, sorted.len() / 2);
        Some(Self {
            median: f64::midpoint(sorted[low], sorted[high]),
            min: sorted[0],
            max: sorted[sorted.len() - 1],
            values,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Spread;

    #[test]
    fn the_median_is_the_middle() {
        let odd = Spread::of([3.0, 1.0, 100.0]).unwrap();
        assert_eq!((odd.median, odd.min, odd.max), (3.0, 1.0, 100.0));
        assert_eq!(odd.values, [3.0, 1.0, 100.0]);
        assert_eq!(Spread::of([4.0, 1.0, 2.0, 9.0]).unwrap().median, 3.0);
        assert_eq!(Spread::of([7.0]).unwrap().median, 7.0);
    }

    #[test]
    fn nothing_has_no_median() {
        assert_eq!(Spread::of([]), None);
        assert_eq!(Spread::of([1.0, f64::NAN]), None);
    }
}
