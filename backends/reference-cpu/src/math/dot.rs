//! The inner product: the one place where a matrix product rounds.
//!
//! # Order of summation
//!
//! Product `i` is added to lane `i % LANES`, in ascending order of `i`; the lanes are then added
//! pairwise, the upper half onto the lower half, until one is left. Everything is f32, and no product
//! is fused into its sum. The order depends on the length alone: not on the processor, the number of
//! threads or how many tokens share a step. So a prompt read at once gives the same bits as the same
//! tokens read one by one. The lanes are there for speed: they do not wait for each other and fill
//! vector registers.

/// Independent partial sums.
const LANES: usize = 32;

/// `sum(a[i] * b[i])`, in the module's order.
///
/// # Panics
/// Where the lengths differ.
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let (a_blocks, a_rest) = a.as_chunks::<LANES>();
    let (b_blocks, b_rest) = b.as_chunks::<LANES>();
    let mut lanes = [0.0f32; LANES];
    for (x, y) in a_blocks.iter().zip(b_blocks) {
        for ((lane, x), y) in lanes.iter_mut().zip(x).zip(y) {
            *lane += x * y;
        }
    }
    for ((lane, x), y) in lanes.iter_mut().zip(a_rest).zip(b_rest) {
        *lane += x * y;
    }
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] += lanes[i + width];
        }
        width /= 2;
    }
    lanes[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equals_the_sum_of_products_at_every_length() {
        for n in [0, 1, 5, 31, 32, 33, 64, 100] {
            // Small integers: every partial sum is exact, so any order gives the same.
            let a: Vec<f32> = (0..n).map(|i| (i % 7) as f32 - 3.0).collect();
            let b: Vec<f32> = (0..n).map(|i| (i % 5) as f32 + 1.0).collect();
            let want: i32 = (0..n).map(|i| (i % 7 - 3) * (i % 5 + 1)).sum();
            assert_eq!(dot(&a, &b), want as f32, "{n}");
        }
    }

    #[test]
    fn sums_in_the_documented_order() {
        // Lane 0 gets 2^24 and then 1, which f32 cannot hold: lost. Summed in pairs it would stay.
        let mut a = vec![0.0; 2 * LANES];
        a[0] = 16_777_216.0;
        a[LANES] = 1.0;
        assert_eq!(dot(&a, &[1.0; 2 * LANES]), 16_777_216.0);
        // Lanes 1 and 17 meet before they meet lane 0: 1 + 1 = 2 stays.
        let mut a = vec![0.0; LANES];
        (a[0], a[1], a[17]) = (16_777_216.0, 1.0, 1.0);
        assert_eq!(dot(&a, &[1.0; LANES]), 16_777_218.0);
    }
}
