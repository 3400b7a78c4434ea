//! What the user asks of sampling.

use halfhitch_seam::{SeamError, SeamResult};
use serde::Serialize;

/// How tokens are chosen; the default is greedy. See the [module](super) for the order in which
/// these apply.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SamplingParams {
    /// Divides the logits; 0 is greedy.
    pub temperature: f32,
    /// Tokens that remain, 0 for all.
    pub top_k: u32,
    /// Probability that remains, from 0 (the most probable token alone) to 1 (all).
    pub top_p: f32,
    /// Least probability relative to the most probable token, from 0 (all) to 1.
    pub min_p: f32,
    /// Penalty of tokens seen so far; 1 is none, above 1 discourages.
    pub repetition_penalty: f32,
    /// Key of the random numbers.
    pub seed: u64,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            seed: 0,
        }
    }
}

impl SamplingParams {
    /// Whether the highest logit is chosen, so that chance plays no part.
    pub fn is_greedy(&self) -> bool {
        self.temperature == 0.0
    }

    /// Whether the choice is the highest of the *unchanged* logits, as a device can make it.
    pub fn is_plain_greedy(&self) -> bool {
        self.is_greedy() && self.repetition_penalty == 1.0
    }

    /// Checks every value.
    ///
    /// # Errors
    /// `InvalidInput`, naming the flag, its value and what is allowed.
    pub fn validate(&self) -> SeamResult<()> {
        let check = |flag: &str, value: f32, ok: bool, allowed: &str| {
            if ok {
                return Ok(());
            }
            Err(SeamError::invalid_input(format!(
                "{flag} {value}: must be {allowed}"
            )))
        };
        let (t, p, m, r) = (
            self.temperature,
            self.top_p,
            self.min_p,
            self.repetition_penalty,
        );
        check(
            "--temperature",
            t,
            t.is_finite() && t >= 0.0,
            "a finite number of at least 0 (0 is greedy)",
        )?;
        check("--top-p", p, (0.0..=1.0).contains(&p), "from 0 to 1")?;
        check("--min-p", m, (0.0..=1.0).contains(&m), "from 0 to 1")?;
        check(
            "--repetition-penalty",
            r,
            r.is_finite() && r > 0.0,
            "a finite number above 0 (1 is none)",
        )
    }
}
