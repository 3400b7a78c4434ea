//! Rotary position embedding.
//!
//! Cosines and sines come from a table that the host makes: trigonometry on devices differs in the
//! last digits, and at long positions in more. A row has two parts of `dims` values in the order of
//! the head's elements: cosines, and sines with the sign of the partner. Then
//! `rope(x) = x * cos + partner(x) * sin`, where the partner of an element is the other one of its
//! pair: a mirrored dimension of 2, without slices or copies.

use halfhitch_seam::ModelSpec;
use halfhitch_seam::model::{RopeLayout, RopeSpec};

use super::builder::{Builder, Value};

/// The model's different ropes, in the order of their first layer; each has one table.
pub fn distinct(spec: &ModelSpec) -> Vec<RopeSpec> {
    let mut out: Vec<RopeSpec> = Vec::new();
    for rope in spec.layers.iter().filter_map(|l| l.attention.rope) {
        if !out.contains(&rope) {
            out.push(rope);
        }
    }
    out
}

/// Rows `0..positions` of a rope's table, `[positions, 2, dims]`.
pub fn table(rope: &RopeSpec, positions: usize) -> Vec<f32> {
    let frequencies = rope.inverse_frequencies();
    let half = rope.dims / 2;
    let mut out = vec![0.0; positions * 2 * rope.dims];
    for (position, row) in out.chunks_exact_mut(2 * rope.dims).enumerate() {
        let (cosines, sines) = row.split_at_mut(rope.dims);
        for (i, &frequency) in frequencies.iter().enumerate() {
            let angle = f64::from(position as f32 * frequency);
            let (first, second) = match rope.layout {
                RopeLayout::HalfSplit => (i, i + half),
                RopeLayout::Interleaved => (2 * i, 2 * i + 1),
            };
            let (sin, cos) = (angle.sin() as f32, angle.cos() as f32);
            (cosines[first], cosines[second]) = (cos, cos);
            (sines[first], sines[second]) = (-sin, sin);
        }
    }
    out
}

/// Turns f32 `x` `[rows, heads, head_dim]` by the table's rows `[rows, 2, dims]`.
pub fn rotate(b: &mut Builder, x: &Value, table: &Value, rope: &RopeSpec) -> Value {
    let [rows, heads, width] = x.sizes()[..] else {
        panic!("rope of {}", x.ty());
    };
    let turning = b.slice(x, 2, 0, rope.dims);
    let (pair, pair_dim) = match rope.layout {
        RopeLayout::HalfSplit => ([rows, heads, 2, rope.dims / 2], 2),
        RopeLayout::Interleaved => ([rows, heads, rope.dims / 2, 2], 3),
    };
    let spread = |b: &mut Builder, part: usize| {
        let part = b.slice(table, 1, part, part + 1);
        let part = b.reshape(&part, &[rows, pair[2], pair[3]]);
        b.broadcast(&part, &[0, 2, 3], &pair)
    };
    let (cosines, sines) = (spread(b, 0), spread(b, 1));
    let turning = b.reshape(&turning, &pair);
    let partner = b.reverse(&turning, pair_dim);
    let kept = b.mul(&turning, &cosines);
    let moved = b.mul(&partner, &sines);
    let turned = b.add(&kept, &moved);
    let turned = b.reshape(&turned, &[rows, heads, rope.dims]);
    if rope.dims == width {
        return turned;
    }
    let rest = b.slice(x, 2, rope.dims, width);
    b.concatenate(&[turned, rest], 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_row_turns_pairs_in_both_layouts() {
        for (layout, pair) in [
            (RopeLayout::HalfSplit, (1, 3)),
            (RopeLayout::Interleaved, (2, 3)),
        ] {
            let rope = RopeSpec {
                dims: 4,
                theta: 100.0,
                scaling: None,
                layout,
            };
            let rows = table(&rope, 3);
            assert_eq!(rows.len(), 3 * 2 * 4);
            assert_eq!(rows[..4], [1.0; 4], "position 0 turns nothing");
            assert!(rows[4..8].iter().all(|&s| s == 0.0));
            let row = &rows[16..];
            let angle = 2.0 * rope.inverse_frequencies()[1];
            assert!((row[pair.0] - angle.cos()).abs() < 1e-6);
            assert!((row[4 + pair.0] + angle.sin()).abs() < 1e-6);
            assert!((row[4 + pair.1] - angle.sin()).abs() < 1e-6);
        }
    }
}
