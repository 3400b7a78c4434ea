//! Running both sides over the same tokens.

use halfhitch_seam::{
    Control, DecodeStep, ErrorCode, Event, Observer, OutputRequest, ResultExt, SeamError,
    SeamResult, SequenceId, Session, Stage, TokenId,
};
use rayon::prelude::*;

use super::metrics::{Distance, Place, Position};
use super::prompts::{Prompt, PromptSet};

/// Logits of a window of positions that are in memory at once, a side.
const WINDOW_LOGITS: usize = 1 << 24;

/// Most positions of a window.
const WINDOW: usize = 128;

/// Tokens at a prompt's end that run as decode steps, unless said otherwise.
pub const DECODE_STEPS: usize = 16;

/// Two open sessions of models with one vocabulary.
pub struct Sides<'a> {
    /// The one that is trusted.
    pub against: &'a mut dyn Session,
    /// The one that is gated.
    pub candidate: &'a mut dyn Session,
    /// Tokens in the vocabulary.
    pub vocabulary: usize,
}

/// Both sides' logits of every position of every prompt, compared. Each prompt is a sequence of its own:
/// all but its last `decode` tokens (at most half of them) as prefill, the rest as decode steps.
///
/// # Errors
/// What the sessions say, with the side and the prompt; `Backend` where one returns another number of
/// logits than was asked for; `Cancelled`.
pub fn compare(
    sides: &mut Sides<'_>,
    prompts: &PromptSet,
    decode: usize,
    control: &Control<'_>,
) -> SeamResult<Vec<Position>> {
    let total = prompts.tokens();
    let mut positions = Vec::with_capacity(total);
    let report = |done: usize| control.progress(Stage::Compare, done as u64, total as u64);
    report(0);
    let mut done = 0;
    for prompt in &prompts.prompts {
        let decode = decode.min(prompt.tokens.len() / 2);
        let mut more = |n: usize| {
            done += n;
            report(done);
        };
        let rows = sides.follow(prompt, decode, control, &mut more);
        positions.extend(rows.in_context(|| format!("prompt `{}`", prompt.name))?);
    }
    Ok(positions)
}

impl Sides<'_> {
    fn follow(
        &mut self,
        prompt: &Prompt,
        decode: usize,
        control: &Control<'_>,
        done: &mut dyn FnMut(usize),
    ) -> SeamResult<Vec<Position>> {
        let ids = [
            named("against", self.against.create_sequence())?,
            named("candidate", self.candidate.create_sequence())?,
        ];
        let result = self.follow_in(ids, prompt, decode, control, done);
        // A failure above matters more than one in clearing up.
        let released = [self.against.release(ids[0]), self.candidate.release(ids[1])];
        let positions = result?;
        released.into_iter().collect::<SeamResult<()>>()?;
        Ok(positions)
    }

    fn follow_in(
        &mut self,
        [against, candidate]: [SequenceId; 2],
        prompt: &Prompt,
        decode: usize,
        control: &Control<'_>,
        done: &mut dyn FnMut(usize),
    ) -> SeamResult<Vec<Position>> {
        let vocabulary = self.vocabulary;
        let quiet = Control {
            cancel: control.cancel,
            observer: &WithoutPrefill(control.observer),
        };
        let window = (WINDOW_LOGITS / vocabulary.max(1)).clamp(1, WINDOW);
        let tokens = &prompt.tokens;
        let prefilled = tokens.len() - decode;
        let mut positions = Vec::with_capacity(tokens.len());
        for chunk in tokens[..prefilled].chunks(window) {
            control.cancel.check()?;
            let r = prefill(self.against, against, chunk, &quiet, vocabulary);
            let r = named("against", r)?;
            let c = prefill(self.candidate, candidate, chunk, &quiet, vocabulary);
            let c = named("candidate", c)?;
            positions.extend(distances(
                prompt,
                positions.len(),
                false,
                &r,
                &c,
                vocabulary,
            ));
            done(chunk.len());
        }
        for &token in &tokens[prefilled..] {
            control.cancel.check()?;
            let r = named("against", step(self.against, against, token, vocabulary))?;
            let c = step(self.candidate, candidate, token, vocabulary);
            let c = named("candidate", c)?;
            positions.extend(distances(prompt, positions.len(), true, &r, &c, vocabulary));
            done(1);
        }
        Ok(positions)
    }
}

fn named<T>(side: &str, result: SeamResult<T>) -> SeamResult<T> {
    result.in_context(|| side)
}

fn distances(
    prompt: &Prompt,
    first: usize,
    decode: bool,
    against: &[f32],
    candidate: &[f32],
    vocabulary: usize,
) -> Vec<Position> {
    let rows = against
        .par_chunks_exact(vocabulary)
        .zip(candidate.par_chunks_exact(vocabulary));
    rows.enumerate()
        .map(|(i, (r, c))| {
            let position = first + i;
            let next = prompt.tokens.get(position + 1).copied();
            Position {
                place: Place {
                    prompt: prompt.name.clone(),
                    position,
                    decode,
                },
                distance: Distance::between(r, c, next),
            }
        })
        .collect()
}

/// Appends tokens; every position's logits.
pub(super) fn prefill(
    session: &mut dyn Session,
    sequence: SequenceId,
    tokens: &[TokenId],
    control: &Control<'_>,
    vocabulary: usize,
) -> SeamResult<Vec<f32>> {
    let out = session.prefill(sequence, tokens, OutputRequest::ALL_LOGITS, control)?;
    check(out.logits, tokens.len(), vocabulary)
}

/// One decode step; its logits.
pub(super) fn step(
    session: &mut dyn Session,
    sequence: SequenceId,
    token: TokenId,
    vocabulary: usize,
) -> SeamResult<Vec<f32>> {
    let step = DecodeStep { sequence, token };
    let out = session.decode(&[step], OutputRequest::LOGITS)?;
    let logits = out.into_iter().next().map(|out| out.logits);
    check(logits.unwrap_or_default(), 1, vocabulary)
}

fn check(logits: Vec<f32>, rows: usize, vocabulary: usize) -> SeamResult<Vec<f32>> {
    if logits.len() == rows * vocabulary {
        return Ok(logits);
    }
    Err(SeamError::new(
        ErrorCode::Backend,
        format!(
            "{} logits came for {rows} positions of {vocabulary}",
            logits.len()
        ),
    ))
}

/// Passes on all but a prompt's progress: the gate has its own.
pub(super) struct WithoutPrefill<'a>(pub &'a dyn Observer);

impl Observer for WithoutPrefill<'_> {
    fn on_event(&self, event: Event) {
        let prefill = matches!(
            event,
            Event::Progress {
                stage: Stage::Prefill,
                ..
            }
        );
        if !prefill {
            self.0.on_event(event);
        }
    }
}
