//! The generation loop: prompt in, tokens and text out.
//!
//! Where the choice is greedy and nobody looks at logits, the device chooses and logits never leave
//! it; otherwise logits come back and the [`Sampler`] chooses. Both give the same token.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use halfhitch_seam::{
    Control, DeviceSampler, ErrorCode, OutputRequest, SeamError, SeamResult, Session, StepOutput,
    TokenId,
};
use serde::Serialize;

use super::cached::CachedSequence;
use super::stats::{LoadTimings, Timings};
use crate::sampling::{Sampler, SamplingParams};
use crate::text::{DecodeStream, StopMatcher, Tokenizer};

/// What to generate.
#[derive(Clone, Debug)]
pub struct GenerateOptions {
    /// Most tokens to generate, the stop token included; at least 1.
    pub max_tokens: usize,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// Texts that end the answer; they are not part of it. Needs a tokenizer.
    pub stop: Vec<String>,
    /// Whether the model's own stop tokens are ignored.
    pub ignore_eos: bool,
    /// How many of the largest logits to record at each step.
    pub top_logits: usize,
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// A stop token or a stop text.
    Stop,
    /// The most tokens asked for, or the context is full.
    Length,
    /// The caller asked for it.
    Cancelled,
}

/// A token and its raw logit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct TopLogit {
    /// The token.
    pub id: TokenId,
    /// Its logit, before any penalty or temperature.
    pub logit: f32,
}

/// What was generated.
#[derive(Clone, Debug)]
pub struct Completion {
    /// The text, without special tokens and without what stopped it; nothing without a tokenizer.
    pub text: Option<String>,
    /// Every token that was chosen, a final stop token included.
    pub tokens: Vec<TokenId>,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// The largest logits of each step, largest first, ties by lower id; empty if not asked for.
    pub top_logits: Vec<Vec<TopLogit>>,
    /// What it took.
    pub timings: Timings,
}

/// A part of an answer, as it comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// Text, whole characters, not empty.
    Text(&'a str),
    /// A token, where there is no tokenizer to make text of it.
    Token(TokenId),
}

/// Takes the parts of an answer; `Break` ends it as if cancelled.
pub type Sink<'a> = dyn FnMut(Piece<'_>) -> ControlFlow<()> + 'a;

/// All that generation needs, borrowed.
pub struct Generator<'a> {
    /// The open session.
    pub session: &'a mut dyn Session,
    /// The sequence to use; what it shares with the prompt is not run again.
    pub sequence: &'a mut CachedSequence,
    /// Tokens of the model's vocabulary.
    pub vocab_size: usize,
    /// Samplers that the device has.
    pub samplers: &'a BTreeSet<DeviceSampler>,
    /// The tokenizer, where there is one.
    pub tokenizer: Option<&'a Tokenizer>,
    /// The model's own stop tokens.
    pub stop_tokens: &'a BTreeSet<TokenId>,
    /// What opening took, for the timings.
    pub load: LoadTimings,
}

/// Checks a prompt against a model and its context.
///
/// # Errors
/// `InvalidInput` for an empty prompt or a token outside the vocabulary, with its index;
/// `ContextFull` for a prompt longer than the context, with both lengths.
pub fn check_prompt(prompt: &[TokenId], vocab_size: usize, context: usize) -> SeamResult<()> {
    if prompt.is_empty() {
        return Err(SeamError::invalid_input("the prompt is empty"));
    }
    if prompt.len() > context {
        return Err(SeamError::new(
            ErrorCode::ContextFull,
            format!(
                "the prompt has {} tokens, the context holds {context}",
                prompt.len()
            ),
        )
        .hint("shorten the prompt, or raise --context where the model allows it"));
    }
    match prompt.iter().position(|&t| t as usize >= vocab_size) {
        Some(at) => Err(SeamError::invalid_input(format!(
            "token {} at position {at} of the prompt is outside the vocabulary of {vocab_size}",
            prompt[at]
        ))),
        None => Ok(()),
    }
}

impl Generator<'_> {
    /// Runs `prompt` and generates what follows.
    ///
    /// Cancelled, it returns what there is, with [`FinishReason::Cancelled`].
    ///
    /// # Errors
    /// Those of [`check_prompt`]; `InvalidInput` for stop texts without a tokenizer or sampling
    /// parameters out of range; `NonFinite` and whatever else the session says.
    pub fn run(
        self,
        prompt: &[TokenId],
        options: &GenerateOptions,
        control: &Control<'_>,
        sink: &mut Sink<'_>,
    ) -> SeamResult<Completion> {
        let context = self.session.plan().context;
        check_prompt(prompt, self.vocab_size, context)?;
        let mut choice = Choice::new(options, self.samplers, prompt)?;
        let mut answer = Answer::new(self.tokenizer, options)?;
        let mut clock = Clock::start();
        let output = choice.output();
        let prefill = self.sequence.prefill(self.session, prompt, output, control);
        let mut output = match prefill {
            Ok((output, tokens)) => {
                clock.prefilled = tokens;
                output
            }
            Err(e) if e.code == ErrorCode::Cancelled => {
                return Ok(answer.completion(FinishReason::Cancelled, &clock, self.load));
            }
            Err(e) => return Err(e),
        };
        let reason = loop {
            if control.cancel.is_cancelled() {
                break FinishReason::Cancelled;
            }
            let token = choice.choose(&output, self.vocab_size)?;
            clock.token();
            answer.record_logits(&output, options.top_logits);
            let is_stop = !options.ignore_eos && self.stop_tokens.contains(&token);
            if let Some(reason) = answer.take(token, is_stop, sink)? {
                break reason;
            }
            let full = self.sequence.tokens().len() >= context;
            if answer.tokens.len() >= options.max_tokens || full {
                break FinishReason::Length;
            }
            output = self.sequence.step(self.session, token, choice.output())?;
        };
        clock.stop();
        let reason = answer.flush(reason, sink)?;
        Ok(answer.completion(reason, &clock, self.load))
    }
}

/// When things happened, from the start of the prompt.
struct Clock {
    start: Instant,
    first: Option<Duration>,
    whole: Duration,
    prefilled: usize,
}

impl Clock {
    fn start() -> Self {
        Self {
            start: Instant::now(),
            first: None,
            whole: Duration::ZERO,
            prefilled: 0,
        }
    }

    fn token(&mut self) {
        self.first.get_or_insert_with(|| self.start.elapsed());
    }

    fn stop(&mut self) {
        self.whole = self.start.elapsed();
    }
}

/// Who chooses the next token.
enum Choice {
    Device,
    Host(Box<Sampler>),
}

impl Choice {
    fn new(
        options: &GenerateOptions,
        samplers: &BTreeSet<DeviceSampler>,
        prompt: &[TokenId],
    ) -> SeamResult<Self> {
        let mut sampler = Sampler::new(options.sampling)?;
        sampler.observe(prompt);
        let device = options.sampling.is_plain_greedy()
            && options.top_logits == 0
            && samplers.contains(&DeviceSampler::Greedy);
        Ok(if device {
            Self::Device
        } else {
            Self::Host(Box::new(sampler))
        })
    }

    const fn output(&self) -> OutputRequest {
        match self {
            Self::Device => OutputRequest::GREEDY,
            Self::Host(_) => OutputRequest::LOGITS,
        }
    }

    fn choose(&mut self, output: &StepOutput, vocab_size: usize) -> SeamResult<TokenId> {
        let broken = |what: String| SeamError::new(ErrorCode::Backend, what);
        let token = match self {
            Self::Device => output
                .token
                .ok_or_else(|| broken("the backend chose no token".into()))?,
            Self::Host(sampler) => {
                if output.logits.len() != vocab_size {
                    return Err(broken(format!(
                        "the backend returned {} logits for a vocabulary of {vocab_size}",
                        output.logits.len()
                    )));
                }
                sampler.sample(&output.logits)?
            }
        };
        if token as usize >= vocab_size {
            return Err(broken(format!(
                "the backend chose token {token}, the vocabulary has {vocab_size}"
            )));
        }
        Ok(token)
    }
}

/// An answer as it grows.
struct Answer<'a> {
    stream: Option<DecodeStream<'a>>,
    matcher: StopMatcher,
    text: String,
    tokens: Vec<TokenId>,
    top_logits: Vec<Vec<TopLogit>>,
}

impl<'a> Answer<'a> {
    fn new(tokenizer: Option<&'a Tokenizer>, options: &GenerateOptions) -> SeamResult<Self> {
        if tokenizer.is_none() && !options.stop.is_empty() {
            return Err(SeamError::invalid_input(
                "stop texts need a tokenizer, and the model has none",
            ));
        }
        Ok(Self {
            stream: tokenizer.map(|t| t.stream(true)),
            matcher: StopMatcher::new(&options.stop)?,
            text: String::new(),
            tokens: Vec::new(),
            top_logits: Vec::new(),
        })
    }

    fn record_logits(&mut self, output: &StepOutput, n: usize) {
        if n > 0 {
            self.top_logits.push(top(&output.logits, n));
        }
    }

    /// Adds a token and shows what can be shown; says if the answer ends with it.
    fn take(
        &mut self,
        token: TokenId,
        is_stop: bool,
        sink: &mut Sink<'_>,
    ) -> SeamResult<Option<FinishReason>> {
        self.tokens.push(token);
        if is_stop {
            return Ok(Some(FinishReason::Stop));
        }
        let flow = match &mut self.stream {
            None => sink(Piece::Token(token)),
            Some(stream) => {
                let piece = stream.push(token)?;
                let shown = self.matcher.push(&piece);
                self.show(&shown, sink)
            }
        };
        Ok(if flow.is_break() {
            Some(FinishReason::Cancelled)
        } else if self.matcher.matched().is_some() {
            Some(FinishReason::Stop)
        } else {
            None
        })
    }

    fn show(&mut self, text: &str, sink: &mut Sink<'_>) -> ControlFlow<()> {
        if text.is_empty() {
            return ControlFlow::Continue(());
        }
        self.text.push_str(text);
        sink(Piece::Text(text))
    }

    /// Shows what was withheld. That can complete a stop text.
    fn flush(&mut self, reason: FinishReason, sink: &mut Sink<'_>) -> SeamResult<FinishReason> {
        let Some(stream) = &mut self.stream else {
            return Ok(reason);
        };
        let rest = stream.finish()?;
        let mut shown = self.matcher.push(&rest);
        let stopped = self.matcher.matched().is_some();
        if !stopped {
            shown += &self.matcher.finish();
        }
        // The answer is over: whether anybody still listens changes nothing.
        let _ = self.show(&shown, sink);
        Ok(if stopped { FinishReason::Stop } else { reason })
    }

    fn completion(
        self,
        finish_reason: FinishReason,
        clock: &Clock,
        load: LoadTimings,
    ) -> Completion {
        Completion {
            timings: Timings::new(
                load,
                clock.prefilled,
                self.tokens.len(),
                clock.first,
                clock.whole,
            ),
            text: self.stream.is_some().then_some(self.text),
            tokens: self.tokens,
            finish_reason,
            top_logits: self.top_logits,
        }
    }
}

/// The `n` largest logits, largest first, ties by lower id.
fn top(logits: &[f32], n: usize) -> Vec<TopLogit> {
    let mut all: Vec<TopLogit> = (0..)
        .zip(logits)
        .map(|(id, &logit)| TopLogit { id, logit })
        .collect();
    let order = |a: &TopLogit, b: &TopLogit| b.logit.total_cmp(&a.logit).then(a.id.cmp(&b.id));
    if n < all.len() {
        all.select_nth_unstable_by(n, order);
        all.truncate(n);
    }
    all.sort_unstable_by(order);
    all
}

#[cfg(test)]
mod tests;
