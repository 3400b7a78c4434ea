//! The choice of one token.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use halfhitch_seam::{ErrorCode, SeamError, SeamResult, TokenId};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use super::SamplingParams;

/// Chooses tokens for one sequence: holds its random numbers and the tokens it has seen.
#[derive(Clone, Debug)]
pub struct Sampler {
    params: SamplingParams,
    rng: ChaCha8Rng,
    seen: BTreeSet<TokenId>,
}

/// A token that may be chosen: its logit, later its weight, in f64.
#[derive(Clone, Copy)]
struct Candidate {
    id: TokenId,
    value: f64,
}

/// Highest first, of equals the lowest id.
fn descending(a: &Candidate, b: &Candidate) -> Ordering {
    b.value.total_cmp(&a.value).then(a.id.cmp(&b.id))
}

impl Sampler {
    /// A sampler at the beginning of its random numbers, that has seen no token.
    ///
    /// # Errors
    /// As [`SamplingParams::validate`].
    pub fn new(params: SamplingParams) -> SeamResult<Self> {
        params.validate()?;
        // Not `seed_from_u64`: how that spreads a number over the key is the library's to change.
        let mut key = [0; 32];
        key[..8].copy_from_slice(&params.seed.to_le_bytes());
        Ok(Self {
            params,
            rng: ChaCha8Rng::from_seed(key),
            seen: BTreeSet::new(),
        })
    }

    /// What was asked for.
    pub fn params(&self) -> &SamplingParams {
        &self.params
    }

    /// Tells which tokens the sequence holds, the prompt first of all; they are what the repetition
    /// penalty weighs. Tokens that [`sample`](Self::sample) returns are known already.
    pub fn observe(&mut self, tokens: &[TokenId]) {
        // Without a penalty nobody asks, and a long prompt need not be kept.
        if self.params.repetition_penalty != 1.0 {
            self.seen.extend(tokens);
        }
    }

    /// Chooses the next token from the logits of all tokens, by id.
    ///
    /// # Errors
    /// `NonFinite` for a logit that is NaN or positive infinity, or where all are negative infinity;
    /// `InvalidInput` where there are none.
    pub fn sample(&mut self, logits: &[f32]) -> SeamResult<TokenId> {
        let candidates = self.penalised(logits)?;
        let token = if self.params.is_greedy() {
            highest(&candidates).id
        } else {
            let survivors = filtered(&self.params, candidates);
            self.draw(&survivors)
        };
        self.observe(&[token]);
        Ok(token)
    }

    /// Steps 0 and 1: possible tokens with their logits, penalised; never empty.
    fn penalised(&self, logits: &[f32]) -> SeamResult<Vec<Candidate>> {
        if logits.is_empty() {
            return Err(SeamError::invalid_input("no logits to choose a token from"));
        }
        let penalty = f64::from(self.params.repetition_penalty);
        let mut candidates = Vec::with_capacity(logits.len());
        for (id, &logit) in (0..).zip(logits) {
            if logit.is_nan() || logit == f32::INFINITY {
                return Err(SeamError::new(
                    ErrorCode::NonFinite,
                    format!("the logit of token {id} is {logit}"),
                )
                .hint("the weights or the backend are broken"));
            }
            if logit == f32::NEG_INFINITY {
                continue;
            }
            let mut value = f64::from(logit);
            if penalty != 1.0 && self.seen.contains(&id) {
                value = if value < 0.0 {
                    value * penalty
                } else {
                    value / penalty
                };
            }
            candidates.push(Candidate { id, value });
        }
        if candidates.is_empty() {
            return Err(SeamError::new(
                ErrorCode::NonFinite,
                "every logit is negative infinity, no token is possible",
            ));
        }
        Ok(candidates)
    }

    /// Step 7: walks the weights, in ascending id, to a random share of their sum.
    fn draw(&mut self, survivors: &[Candidate]) -> TokenId {
        let sum: f64 = survivors.iter().map(|c| c.value).sum();
        // 53 random bits: every multiple of 2^-53 in [0, 1).
        let share = (self.rng.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64);
        let mut left = share * sum;
        for candidate in survivors {
            left -= candidate.value;
            if left < 0.0 {
                return candidate.id;
            }
        }
        // Rounding alone leads here: the last one that has any weight.
        let last = survivors.iter().rev().find(|c| c.value > 0.0);
        last.map_or_else(|| highest(survivors).id, |c| c.id)
    }
}

/// The highest, of equals the lowest id. `candidates` is not empty and in ascending id.
fn highest(candidates: &[Candidate]) -> Candidate {
    candidates
        .iter()
        .copied()
        .reduce(|best, c| if c.value > best.value { c } else { best })
        .unwrap_or(Candidate { id: 0, value: 0.0 })
}

/// Steps 3 to 6: what remains, with weights relative to the most probable, in ascending id.
fn filtered(params: &SamplingParams, mut candidates: Vec<Candidate>) -> Vec<Candidate> {
    let top_k = usize::try_from(params.top_k).unwrap_or(usize::MAX);
    if top_k != 0 && top_k < candidates.len() {
        candidates.select_nth_unstable_by(top_k - 1, descending);
        candidates.truncate(top_k);
    }
    // Weights are exp((logit - highest) / temperature): at most 1, so no temperature overflows.
    let max = candidates
        .iter()
        .map(|c| c.value)
        .fold(f64::NEG_INFINITY, f64::max);
    let temperature = f64::from(params.temperature);
    if params.top_p < 1.0 {
        candidates.sort_unstable_by(descending);
    } else {
        candidates.sort_unstable_by_key(|c| c.id);
    }
    for c in &mut candidates {
        c.value = libm::exp((c.value - max) / temperature);
    }
    if params.top_p < 1.0 {
        let limit = candidates.iter().map(|c| c.value).sum::<f64>() * f64::from(params.top_p);
        let mut before = 0.0;
        let keep = candidates
            .iter()
            .take_while(|c| {
                let stays = before < limit;
                before += c.value;
                stays
            })
            .count();
        candidates.truncate(keep.max(1));
        candidates.sort_unstable_by_key(|c| c.id);
    }
    // The highest weight is 1, so this is relative already.
    candidates.retain(|c| c.value >= f64::from(params.min_p));
    candidates
}
