//! Rotary position embedding.

use halfhitch_seam::model::{RopeLayout, RopeSpec};

/// The rotation of one layer: frequencies and which elements pair up.
#[derive(Clone, Debug)]
pub struct Rope {
    frequencies: Vec<f32>,
    layout: RopeLayout,
}

impl Rope {
    /// Prepares a rotation.
    pub fn new(spec: &RopeSpec) -> Self {
        Self {
            frequencies: spec.inverse_frequencies(),
            layout: spec.layout,
        }
    }

    /// `(cos, sin)` of every pair's angle at a position. The angle is an f32 product, as the seam
    /// defines it; its cosine and sine are taken in f64 and rounded once.
    pub fn angles(&self, position: usize) -> Vec<(f32, f32)> {
        self.frequencies
            .iter()
            .map(|frequency| {
                let (sin, cos) = f64::from(position as f32 * frequency).sin_cos();
                (cos as f32, sin as f32)
            })
            .collect()
    }

    /// Turns one head by the [`angles`](Self::angles) of its position. Elements after the last pair
    /// stay as they are.
    pub fn rotate(&self, head: &mut [f32], angles: &[(f32, f32)]) {
        let pairs = angles.len();
        for (i, &(cos, sin)) in angles.iter().enumerate() {
            let (first, second) = match self.layout {
                RopeLayout::HalfSplit => (i, i + pairs),
                RopeLayout::Interleaved => (2 * i, 2 * i + 1),
            };
            let (a, b) = (head[first], head[second]);
            head[first] = a * cos - b * sin;
            head[second] = b * cos + a * sin;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rotated(layout: RopeLayout, dims: usize, position: usize, mut head: Vec<f32>) -> Vec<f32> {
        let rope = Rope::new(&RopeSpec {
            dims,
            theta: 100.0,
            scaling: None,
            layout,
        });
        rope.rotate(&mut head, &rope.angles(position));
        head
    }

    fn assert_close(got: &[f32], want: &[f32]) {
        for (g, w) in got.iter().zip(want) {
            assert!((g - w).abs() < 1e-6, "{got:?} is not {want:?}");
        }
    }

    #[test]
    fn position_zero_changes_nothing() {
        let head = vec![1.0, 2.0, 3.0, 4.0];
        assert_eq!(rotated(RopeLayout::HalfSplit, 4, 0, head.clone()), head);
    }

    #[test]
    fn half_split_mixes_with_the_other_half() {
        // Frequencies 1 and 0.1. At position 1: cos 1 = 0.5403023, sin 1 = 0.8414710,
        // cos 0.1 = 0.9950042, sin 0.1 = 0.0998334.
        assert_close(
            &rotated(RopeLayout::HalfSplit, 4, 1, vec![1.0, 1.0, 0.0, 0.0]),
            &[0.540_302_3, 0.995_004_2, 0.841_471, 0.099_833_4],
        );
    }

    #[test]
    fn interleaved_mixes_neighbours() {
        assert_close(
            &rotated(RopeLayout::Interleaved, 4, 1, vec![1.0, 0.0, 0.0, 1.0]),
            &[0.540_302_3, 0.841_471, -0.099_833_4, 0.995_004_2],
        );
    }

    #[test]
    fn a_partial_rotation_leaves_the_rest_and_pairs_within_its_part() {
        assert_close(
            &rotated(RopeLayout::HalfSplit, 2, 1, vec![1.0, 0.0, 7.0, 8.0]),
            &[0.540_302_3, 0.841_471, 7.0, 8.0],
        );
    }
}
