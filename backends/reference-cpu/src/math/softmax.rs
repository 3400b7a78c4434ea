//! Softmax, soft caps and what is read off logits. Sums of exponentials are f64.

use std::cmp::Ordering;

use halfhitch_seam::{TokenId, TokenLogprob};

/// `cap * tanh(x / cap)`, or `x` where there is no cap.
pub fn softcap(x: f32, cap: Option<f32>) -> f32 {
    match cap {
        Some(cap) => cap * (x / cap).tanh(),
        None => x,
    }
}

/// `exp(x) / sum(exp(x))` in place. The largest value is taken away first, so nothing overflows.
pub fn softmax(x: &mut [f32]) {
    let max = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0f64;
    for v in x.iter_mut() {
        *v = (*v - max).exp();
        sum += f64::from(*v);
    }
    let factor = (1.0 / sum) as f32;
    for v in x.iter_mut() {
        *v *= factor;
    }
}

/// The index of the largest value; of equal ones the lowest. The values are finite; 0 for none.
pub fn argmax(x: &[f32]) -> usize {
    let mut best = 0;
    for (i, v) in x.iter().enumerate() {
        if *v > x[best] {
            best = i;
        }
    }
    best
}

/// The indices of the `n` largest values, largest first, of equal ones the lower index first. The
/// values are finite.
pub fn largest(x: &[f32], n: usize) -> Vec<usize> {
    let n = n.min(x.len());
    let better = |a: &usize, b: &usize| -> Ordering {
        // Adding 0 makes -0 and 0 one, which the total order would tell apart.
        let (x_a, x_b) = (x[*a] + 0.0, x[*b] + 0.0);
        x_b.total_cmp(&x_a).then(a.cmp(b))
    };
    let mut order: Vec<usize> = (0..x.len()).collect();
    if n < order.len() && n > 0 {
        order.select_nth_unstable_by(n - 1, better);
    }
    order.truncate(n);
    order.sort_unstable_by(better);
    order
}

/// The `n` likeliest tokens with their log-probabilities, `x - log(sum(exp(x)))` in f64.
pub fn top_logprobs(logits: &[f32], n: usize) -> Vec<TokenLogprob> {
    if n == 0 || logits.is_empty() {
        return Vec::new();
    }
    let max = f64::from(logits[argmax(logits)]);
    let sum: f64 = logits.iter().map(|&v| (f64::from(v) - max).exp()).sum();
    let log_sum_exp = max + sum.ln();
    largest(logits, n)
        .into_iter()
        .map(|i| TokenLogprob {
            id: i as TokenId,
            logprob: (f64::from(logits[i]) - log_sum_exp) as f32,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn softmax_of_logarithms_is_their_ratio() {
        let mut x = [1f32.ln() + 500.0, 3f32.ln() + 500.0];
        softmax(&mut x);
        assert!(
            (x[0] - 0.25).abs() < 1e-5 && (x[1] - 0.75).abs() < 1e-5,
            "{x:?}"
        );
        let mut one = [-1e30];
        softmax(&mut one);
        assert_eq!(one, [1.0]);
    }

    #[test]
    fn softcap_bends_towards_the_cap() {
        assert_eq!(softcap(3.0, None), 3.0);
        assert!((softcap(2.0, Some(2.0)) - 1.523_188_3).abs() < 1e-6);
        assert_eq!(softcap(1e9, Some(30.0)), 30.0);
    }

    #[test]
    fn ties_go_to_the_lowest_index() {
        assert_eq!(argmax(&[1.0, 5.0, 5.0]), 1);
        assert_eq!(argmax(&[-0.0, 0.0]), 0);
        assert_eq!(largest(&[-0.0, 0.0, 1.0], 2), [2, 0]);
        assert_eq!(largest(&[2.0, 5.0, 2.0, 5.0], 3), [1, 3, 0]);
        assert_eq!(largest(&[2.0, 1.0], 9), [0, 1]);
        assert!(largest(&[2.0, 1.0], 0).is_empty());
    }

    #[test]
    fn log_probabilities_are_of_the_whole_vocabulary() {
        let top = top_logprobs(&[6f32.ln(), 1f32.ln(), 3f32.ln()], 2);
        assert_eq!((top[0].id, top[1].id), (0, 2));
        assert!((top[0].logprob - 0.6f32.ln()).abs() < 1e-6);
        assert!((top[1].logprob - 0.3f32.ln()).abs() < 1e-6);
    }
}
