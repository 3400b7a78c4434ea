//! Tails of frames: numbers as they lie in memory, little-endian.

use halfhitch_seam::{ErrorCode, SeamError, SeamResult, StepOutput, Tap, TokenId, TokenLogprob};

use super::message::{StepHead, TapHead};

/// Bytes of a number.
const WIDTH: usize = 4;

/// Bytes that the numbers of steps take at most.
///
/// `positions` have `vocabulary` logits each, `steps` have `top` likeliest tokens each.
pub fn step_limit(positions: usize, vocabulary: usize, steps: usize, top: u32) -> u64 {
    let logits = (positions as u64).saturating_mul(vocabulary as u64);
    let top = u64::from(top).min(vocabulary as u64) * 2;
    let numbers = logits.saturating_add((steps as u64).saturating_mul(top));
    numbers.saturating_mul(WIDTH as u64)
}

/// Tokens as a tail.
pub fn from_tokens(tokens: &[TokenId]) -> Vec<u8> {
    tokens.iter().flat_map(|t| t.to_le_bytes()).collect()
}

/// Tokens of a tail.
///
/// # Errors
/// `Incompatible` where the bytes are no whole tokens.
pub fn to_tokens(tail: &[u8]) -> SeamResult<Vec<TokenId>> {
    Ok(words(tail)?.map(u32::from_le_bytes).collect())
}

/// Steps as heads and a tail.
pub fn from_steps(steps: &[StepOutput]) -> (Vec<StepHead>, Vec<u8>) {
    let heads = steps.iter().map(|step| StepHead {
        token: step.token,
        logits: step.logits.len(),
        top_logprobs: step.top_logprobs.len(),
    });
    let numbers = steps
        .iter()
        .map(|s| s.logits.len() + 2 * s.top_logprobs.len());
    let mut tail = Vec::with_capacity(numbers.sum::<usize>() * WIDTH);
    for step in steps {
        extend(&mut tail, &step.logits);
        for one in &step.top_logprobs {
            tail.extend_from_slice(&one.id.to_le_bytes());
            tail.extend_from_slice(&one.logprob.to_le_bytes());
        }
    }
    (heads.collect(), tail)
}

/// Steps of heads and a tail.
///
/// # Errors
/// `Incompatible` where the tail is not what the heads say, to the last byte.
pub fn to_steps(heads: &[StepHead], tail: &[u8]) -> SeamResult<Vec<StepOutput>> {
    let mut rest = Rest(tail);
    let steps: SeamResult<Vec<StepOutput>> = heads
        .iter()
        .map(|head| {
            let logits = rest.floats(head.logits)?;
            let top = words(rest.take(head.top_logprobs.checked_mul(2))?)?;
            let top: Vec<[u8; 4]> = top.collect();
            let top_logprobs = top.chunks_exact(2).map(|pair| TokenLogprob {
                id: u32::from_le_bytes(pair[0]),
                logprob: f32::from_le_bytes(pair[1]),
            });
            Ok(StepOutput {
                token: head.token,
                logits,
                top_logprobs: top_logprobs.collect(),
            })
        })
        .collect();
    rest.end()?;
    steps
}

/// Intermediate results as heads and a tail.
pub fn from_taps(taps: &[Tap]) -> (Vec<TapHead>, Vec<u8>) {
    let mut tail = Vec::with_capacity(taps.iter().map(|t| t.values.len()).sum::<usize>() * WIDTH);
    for tap in taps {
        extend(&mut tail, &tap.values);
    }
    let heads = taps.iter().map(|tap| TapHead {
        site: tap.site,
        shape: tap.shape,
    });
    (heads.collect(), tail)
}

/// Intermediate results of heads and a tail.
///
/// # Errors
/// `Incompatible` where the tail is not what the heads say; what [`Tap::new`] says.
pub fn to_taps(heads: &[TapHead], tail: &[u8]) -> SeamResult<Vec<Tap>> {
    let mut rest = Rest(tail);
    let taps: SeamResult<Vec<Tap>> = heads
        .iter()
        .map(|head| {
            let [tokens, width] = head.shape;
            let values = words(rest.take(tokens.checked_mul(width))?)?;
            let values = values.map(f32::from_le_bytes).collect();
            Tap::new(head.site, head.shape, values)
        })
        .collect();
    rest.end()?;
    taps
}

fn extend(tail: &mut Vec<u8>, values: &[f32]) {
    tail.extend(values.iter().flat_map(|v| v.to_le_bytes()));
}

fn words(bytes: &[u8]) -> SeamResult<impl Iterator<Item = [u8; WIDTH]> + '_> {
    let (words, rest) = bytes.as_chunks::<WIDTH>();
    if !rest.is_empty() {
        return Err(wrong("a number is cut off"));
    }
    Ok(words.iter().copied())
}

/// What has not been read of a tail.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn take(&mut self, numbers: Option<usize>) -> SeamResult<&'a [u8]> {
        let bytes = numbers.and_then(|n| n.checked_mul(WIDTH));
        let split = bytes.and_then(|n| self.0.split_at_checked(n));
        let (taken, rest) = split.ok_or_else(|| wrong("fewer numbers came than were announced"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn floats(&mut self, numbers: usize) -> SeamResult<Vec<f32>> {
        Ok(words(self.take(Some(numbers))?)?
            .map(f32::from_le_bytes)
            .collect())
    }

    fn end(&self) -> SeamResult<()> {
        match self.0 {
            [] => Ok(()),
            rest => Err(wrong(&format!("{} bytes are nobody's", rest.len()))),
        }
    }
}

fn wrong(what: &str) -> SeamError {
    SeamError::new(
        ErrorCode::Incompatible,
        format!("the numbers of a message are not what it says: {what}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use halfhitch_seam::{TapPoint, TapSite};
    use proptest::prelude::*;

    #[test]
    fn steps_come_back_to_the_bit() {
        let step = |token, logits: &[f32], top: &[(u32, f32)]| StepOutput {
            token,
            logits: logits.into(),
            top_logprobs: top
                .iter()
                .map(|&(id, logprob)| TokenLogprob { id, logprob })
                .collect(),
        };
        let steps = [
            step(Some(7), &[], &[]),
            step(
                None,
                &[1.5, -0.0, f32::MIN_POSITIVE],
                &[(3, -0.25), (9, f32::NEG_INFINITY)],
            ),
        ];
        let (heads, tail) = from_steps(&steps);
        assert_eq!(tail.len() as u64, step_limit(1, 3, 1, 2));
        let back = to_steps(&heads, &tail).unwrap();
        assert_eq!(back, steps);
        assert!(back[1].logits[1].is_sign_negative());
        assert!(to_steps(&heads, &tail[1..]).is_err());
        assert!(to_steps(&heads[..1], &tail).is_err());
    }

    #[test]
    fn intermediate_results_come_back() {
        let site = TapSite {
            layer: Some(1),
            point: TapPoint::Gate,
        };
        let taps = [Tap::new(site, [2, 3], vec![0.5; 6]).unwrap()];
        let (heads, tail) = from_taps(&taps);
        assert_eq!(to_taps(&heads, &tail).unwrap(), taps);
        let shape = [usize::MAX, 2];
        assert!(to_taps(&[TapHead { site, shape }], &tail).is_err());
    }

    proptest! {
        #[test]
        fn whatever_comes_is_numbers_or_an_error(
            heads in prop::collection::vec((any::<Option<u32>>(), 0..30usize, 0..9usize), 0..5),
            huge in any::<Option<(usize, usize)>>(),
            tail in prop::collection::vec(any::<u8>(), 0..300),
        ) {
            let mut heads: Vec<StepHead> = heads
                .into_iter()
                .map(|(token, logits, top_logprobs)| StepHead { token, logits, top_logprobs })
                .collect();
            let numbers: usize = heads.iter().map(|h| h.logits + 2 * h.top_logprobs).sum();
            if let Some((logits, top_logprobs)) = huge {
                heads.push(StepHead { token: None, logits, top_logprobs });
            }
            if let Ok(steps) = to_steps(&heads, &tail) {
                prop_assert_eq!(steps.len(), heads.len());
                prop_assert!(numbers * WIDTH <= tail.len());
            }
            prop_assert_eq!(to_tokens(&tail).is_ok(), tail.len().is_multiple_of(WIDTH));
        }
    }
}
