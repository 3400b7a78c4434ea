//! One configuration, measured once in this process.
//!
//! Tokens of prompts are drawn with a fixed seed; decoding goes on with what the model says, chosen
//! on the device where it can, and ends for no token.

use std::time::{Duration, Instant};

use halfhitch_seam::{
    Control, DecodeStep, DeviceSampler, ErrorCode, OutputRequest, SeamError, SeamResult,
    SequenceId, Session, StepOutput, TokenId,
};
use serde::{Deserialize, Serialize};

use super::config::{Configuration, PROMPT, STEPS_AT, Workload};
use crate::engine::{Engine, Model, Target, peak_rss_bytes};
use crate::sampling::{Sampler, SamplingParams};

/// What one run measured. Rates count the tokens of all sequences together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Seconds from the first file to an open session, without compiling.
    pub load_s: f64,
    /// Seconds of compiling; 0 where the code was in the cache.
    pub compile_s: f64,
    /// Seconds that the session's very first prompt took, of [`PROMPT`] tokens, to its first token.
    pub first_token_s: f64,
    /// Prompts, in the workload's order.
    pub prefill: Vec<PrefillRun>,
    /// Tokens a second after a prompt of [`PROMPT`].
    pub decode_tokens_per_s: f64,
    /// Single steps, in the workload's order.
    pub at: Vec<StepRun>,
    /// The most memory the process had resident, where the system tells.
    pub peak_rss_bytes: Option<u64>,
}

/// A prompt from an empty cache.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PrefillRun {
    /// Its length.
    pub tokens: usize,
    /// Tokens a second.
    pub tokens_per_s: f64,
}

/// A decode step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepRun {
    /// Tokens before it.
    pub position: usize,
    /// The median time of a step there, in seconds.
    pub step_s: f64,
}

/// Opens `model` on `target` and does the workload, `workload.warmup` times untimed and once timed.
///
/// # Errors
/// What opening and the session say; `InvalidInput` where the workload does not fit the context;
/// `Cancelled`.
pub fn run(
    model: Model,
    target: Target,
    configuration: &Configuration,
    workload: &Workload,
    context: Option<usize>,
    control: &Control<'_>,
) -> SeamResult<Run> {
    let request = configuration.request(context);
    workload.check(&model.plan(&target, &request)?)?;
    let on_device = target
        .capabilities
        .samplers
        .contains(&DeviceSampler::Greedy);
    let vocabulary = model.spec().vocab_size;
    let engine = Engine::open(model, target, &request, control)?;
    let (mut session, load) = engine.into_session()?;
    let mut bench = Bench::new(session.as_mut(), configuration.batch, vocabulary, on_device)?;
    let first = bench.prompt(PROMPT, control)?;
    for _ in 0..workload.warmup {
        bench.all(workload, control)?;
    }
    let timed = bench.all(workload, control)?;
    Ok(Run {
        load_s: load.load.as_secs_f64(),
        compile_s: load.compile.as_secs_f64(),
        // The first sequence's part: the others wait for it.
        first_token_s: first.first.as_secs_f64(),
        prefill: timed.prefill,
        decode_tokens_per_s: timed.decode_tokens_per_s,
        at: timed.at,
        peak_rss_bytes: peak_rss_bytes(),
    })
}

/// The workload's figures.
struct Timed {
    prefill: Vec<PrefillRun>,
    decode_tokens_per_s: f64,
    at: Vec<StepRun>,
}

/// What a prompt took.
struct Prompted {
    /// Until the first sequence's next token.
    first: Duration,
    /// For all sequences.
    whole: Duration,
    /// What follows in each.
    next: Vec<TokenId>,
}

struct Bench<'a> {
    session: &'a mut dyn Session,
    lanes: Vec<SequenceId>,
    vocabulary: usize,
    /// Chooses where the device does not.
    sampler: Option<Sampler>,
    draw: Draw,
}

impl<'a> Bench<'a> {
    fn new(
        session: &'a mut dyn Session,
        batch: usize,
        vocabulary: usize,
        on_device: bool,
    ) -> SeamResult<Self> {
        let lanes: SeamResult<_> = (0..batch).map(|_| session.create_sequence()).collect();
        Ok(Self {
            lanes: lanes?,
            session,
            vocabulary,
            sampler: (!on_device)
                .then(|| Sampler::new(SamplingParams::default()))
                .transpose()?,
            draw: Draw(0x5eed),
        })
    }

    const fn output(&self) -> OutputRequest {
        match self.sampler {
            None => OutputRequest::GREEDY,
            Some(_) => OutputRequest::LOGITS,
        }
    }

    fn choose(&mut self, output: &StepOutput) -> SeamResult<TokenId> {
        match &mut self.sampler {
            Some(sampler) => sampler.sample(&output.logits),
            None => output
                .token
                .ok_or_else(|| SeamError::new(ErrorCode::Backend, "the backend chose no token")),
        }
    }

    /// Everything once.
    fn all(&mut self, workload: &Workload, control: &Control<'_>) -> SeamResult<Timed> {
        let mut prefill = Vec::with_capacity(workload.prefill.len());
        for &tokens in &workload.prefill {
            let took = self.prompt(tokens, control)?.whole;
            prefill.push(PrefillRun {
                tokens,
                tokens_per_s: rate(tokens * self.lanes.len(), took),
            });
        }
        let decode_tokens_per_s = self.decode(workload.decode, control)?;
        let mut at = Vec::with_capacity(workload.at.len());
        for &position in &workload.at {
            let step_s = self.step_at(position, control)?.as_secs_f64();
            at.push(StepRun { position, step_s });
        }
        Ok(Timed {
            prefill,
            decode_tokens_per_s,
            at,
        })
    }

    /// Empties every sequence and runs a prompt in each, one after the other.
    fn prompt(&mut self, tokens: usize, control: &Control<'_>) -> SeamResult<Prompted> {
        let mut next = Vec::with_capacity(self.lanes.len());
        let (mut first, mut whole) = (None, Duration::ZERO);
        for lane in self.lanes.clone() {
            self.session.truncate(lane, 0)?;
            let prompt = self.draw.tokens(tokens, self.vocabulary);
            let output = self.output();
            let start = Instant::now();
            let result = self.session.prefill(lane, &prompt, output, control)?;
            next.push(self.choose(&result)?);
            let took = start.elapsed();
            first.get_or_insert(took);
            whole += took;
        }
        Ok(Prompted {
            first: first.unwrap_or_default(),
            whole,
            next,
        })
    }

    /// One step of all sequences, with what follows in each.
    fn step(&mut self, tokens: &[TokenId]) -> SeamResult<Vec<TokenId>> {
        let steps: Vec<DecodeStep> = self
            .lanes
            .iter()
            .zip(tokens)
            .map(|(&sequence, &token)| DecodeStep { sequence, token })
            .collect();
        let outputs = self.session.decode(&steps, self.output())?;
        if outputs.len() != steps.len() {
            let message = format!(
                "the backend answered {} of {} sequences",
                outputs.len(),
                steps.len()
            );
            return Err(SeamError::new(ErrorCode::Backend, message));
        }
        outputs.iter().map(|output| self.choose(output)).collect()
    }

    /// Tokens a second over `count` steps after a prompt.
    fn decode(&mut self, count: usize, control: &Control<'_>) -> SeamResult<f64> {
        let mut next = self.prompt(PROMPT, control)?.next;
        let start = Instant::now();
        for _ in 0..count {
            control.cancel.check()?;
            next = self.step(&next)?;
        }
        Ok(rate(count * self.lanes.len(), start.elapsed()))
    }

    /// The median time of a step that `position` tokens precede.
    fn step_at(&mut self, position: usize, control: &Control<'_>) -> SeamResult<Duration> {
        let first = self.prompt(position, control)?.next;
        self.step(&first)?;
        for lane in self.lanes.clone() {
            self.session.truncate(lane, position)?;
        }
        let mut next = first;
        let mut times = Vec::with_capacity(STEPS_AT);
        for _ in 0..STEPS_AT {
            control.cancel.check()?;
            let start = Instant::now();
            next = self.step(&next)?;
            times.push(start.elapsed());
        }
        times.sort_unstable();
        Ok(times[STEPS_AT / 2])
    }
}

fn rate(tokens: usize, took: Duration) -> f64 {
    tokens as f64 / took.as_secs_f64().max(1e-9)
}

/// Tokens by chance, the same ones every time: Steele, Lea and Flood's SplitMix64 (OOPSLA 2014).
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn tokens(&mut self, count: usize, vocabulary: usize) -> Vec<TokenId> {
        let bound = vocabulary.max(1) as u64;
        // A vocabulary has at most 2^24 tokens: the remainder fits, and its bias is nothing.
        (0..count)
            .map(|_| (self.next() % bound) as TokenId)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::Draw;

    #[test]
    fn drawn_tokens_are_valid_and_always_the_same() {
        let tokens = Draw(1).tokens(1000, 97);
        assert!(tokens.iter().all(|&t| t < 97));
        assert_eq!(tokens, Draw(1).tokens(1000, 97));
        let distinct: std::collections::BTreeSet<_> = tokens.iter().collect();
        assert!(distinct.len() > 90, "{}", distinct.len());
        // The published algorithm's first value for seed 0.
        assert_eq!(Draw(0).next(), 0xe220_a839_7b1d_cdaf);
    }
}
