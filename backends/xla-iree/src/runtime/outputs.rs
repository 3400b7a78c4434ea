//! From what was read off a step to what the caller asked for.

use halfhitch_seam::{ErrorCode, SeamError, SeamResult, TokenId, TokenLogprob};

/// A row's greedy choice.
///
/// # Errors
/// `NonFinite` where any of the row's logits is not finite; `Backend` for a token that does not exist.
pub fn choices(bytes: &[u8], vocabulary: usize) -> SeamResult<Vec<TokenId>> {
    let numbers: Vec<i32> = bytes
        .chunks_exact(4)
        .map(bytemuck::pod_read_unaligned)
        .collect();
    numbers
        .chunks_exact(2)
        .map(|row| {
            if row[1] != 0 {
                return Err(not_finite());
            }
            match TokenId::try_from(row[0]) {
                Ok(token) if (token as usize) < vocabulary => Ok(token),
                _ => Err(SeamError::new(
                    ErrorCode::Backend,
                    format!("the device chose token {} of {vocabulary}", row[0]),
                )),
            }
        })
        .collect()
}

/// Logits, all finite.
///
/// # Errors
/// `NonFinite`.
pub fn logits(bytes: &[u8]) -> SeamResult<Vec<f32>> {
    let logits: Vec<f32> = bytes
        .chunks_exact(4)
        .map(bytemuck::pod_read_unaligned)
        .collect();
    if logits.iter().all(|v| v.is_finite()) {
        return Ok(logits);
    }
    Err(not_finite())
}

fn not_finite() -> SeamError {
    SeamError::new(
        ErrorCode::NonFinite,
        "the model computed logits that are not finite",
    )
    .hint("the weights are damaged, or overflow in this precision: try --precision f32")
}

/// The `n` likeliest tokens of one row of finite logits.
pub fn top_logprobs(logits: &[f32], n: usize) -> Vec<TokenLogprob> {
    let n = n.min(logits.len());
    if n == 0 {
        return Vec::new();
    }
    let better = |&a: &usize, &b: &usize| logits[b].total_cmp(&logits[a]).then(a.cmp(&b));
    let mut order: Vec<usize> = (0..logits.len()).collect();
    if n < order.len() {
        order.select_nth_unstable_by(n - 1, better);
        order.truncate(n);
    }
    order.sort_unstable_by(better);
    let max = f64::from(logits[order[0]]);
    let sum: f64 = logits.iter().map(|&v| (f64::from(v) - max).exp()).sum();
    let log_sum = max + sum.ln();
    order
        .into_iter()
        .map(|i| TokenLogprob {
            id: i as TokenId,
            logprob: (f64::from(logits[i]) - log_sum) as f32,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_from_broken_logits_is_never_served() {
        let bytes = |pairs: &[i32]| bytemuck::cast_slice(pairs).to_vec();
        assert_eq!(choices(&bytes(&[3, 0, 9, 0]), 10).unwrap(), [3, 9]);
        let broken = choices(&bytes(&[3, 0, 9, 1]), 10).unwrap_err();
        assert_eq!(broken.code, ErrorCode::NonFinite);
        for token in [-1, 10] {
            let e = choices(&bytes(&[token, 0]), 10).unwrap_err();
            assert_eq!(e.code, ErrorCode::Backend);
        }
        let nan = bytemuck::cast_slice(&[1.0f32, f32::NAN]).to_vec();
        assert_eq!(logits(&nan).unwrap_err().code, ErrorCode::NonFinite);
    }

    #[test]
    fn the_likeliest_come_first_and_ties_by_id() {
        let row = [1.0, 3.0, 3.0, 2.0];
        let top = top_logprobs(&row, 3);
        assert_eq!(top.iter().map(|t| t.id).collect::<Vec<_>>(), [1, 2, 3]);
        let sum: f64 = top_logprobs(&row, 9)
            .iter()
            .map(|t| f64::from(t.logprob).exp())
            .sum();
        assert!((sum - 1.0).abs() < 1e-6);
    }
}
