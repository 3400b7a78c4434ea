//! A session in a child process, as a [`Session`].

use std::cell::RefCell;
use std::time::Duration;

use halfhitch_seam::model::{FeedForward, LayerSpec, limits};
use halfhitch_seam::{
    Control, DecodeStep, DeviceSampler, ErrorCode, ExecutionPlan, LogitsRequest, ModelSpec,
    OutputRequest, SeamError, SeamResult, SequenceId, Session, StepOutput, Tap, TapPoint, TokenId,
};
use serde::de::DeserializeOwned;

use super::call::{Channel, With};
use super::message::{Request, StepHead, TapHead};
use super::numbers::{from_tokens, step_limit, to_steps, to_taps};

/// The longest that closing may take, where the limit is no shorter.
const CLOSING: Duration = Duration::from_secs(10);

/// A session at the other end of a channel. What comes back is checked as far as the host's own safety
/// rests on it: amounts of numbers, and tokens.
pub struct IsolatedSession {
    /// In a cell, since asking for a length changes the channel and not the session.
    channel: RefCell<Channel>,
    plan: ExecutionPlan,
    vocabulary: usize,
    /// Most numbers a token of all intermediate results together.
    tapped: usize,
}

impl IsolatedSession {
    /// The session that was opened over `channel`.
    pub fn new(channel: Channel, plan: ExecutionPlan, model: &ModelSpec) -> Self {
        Self {
            channel: RefCell::new(channel),
            plan,
            vocabulary: model.vocab_size,
            tapped: tapped(model),
        }
    }

    fn ask<T: DeserializeOwned>(&self, request: Request) -> SeamResult<T> {
        let mut channel = self.channel.borrow_mut();
        let (answer, _) = channel.call(request, &With::default())?;
        Ok(answer)
    }

    /// Steps as the other side answered them, where they are what was asked for.
    fn steps(
        &self,
        heads: &[StepHead],
        tail: &[u8],
        expected: usize,
        rows: usize,
        output: OutputRequest,
    ) -> SeamResult<Vec<StepOutput>> {
        let steps = to_steps(heads, tail)?;
        let wrong = |what: String| {
            Err(SeamError::new(
                ErrorCode::Backend,
                format!("the backend's process answered {what}"),
            ))
        };
        if steps.len() != expected {
            return wrong(format!("{} of {expected} sequences", steps.len()));
        }
        let logits = rows * self.vocabulary;
        for step in &steps {
            let ids = step.top_logprobs.iter().map(|t| t.id).chain(step.token);
            if let Some(id) = ids.into_iter().find(|&id| id as usize >= self.vocabulary) {
                return wrong(format!(
                    "with token {id}, outside the vocabulary of {}",
                    self.vocabulary
                ));
            }
            if step.logits.len() != logits {
                return wrong(format!("with {} logits, not {logits}", step.logits.len()));
            }
            if step.token.is_some() != matches!(output.sample, Some(DeviceSampler::Greedy)) {
                return wrong("another choice of tokens than was asked for".into());
            }
        }
        Ok(steps)
    }
}

/// Rows of logits of a call on so many positions of one sequence.
const fn rows(output: OutputRequest, positions: usize) -> usize {
    match output.logits {
        LogitsRequest::None => 0,
        LogitsRequest::Last => 1,
        LogitsRequest::All => positions,
    }
}

/// Most numbers that the intermediate results of a token are: every point of every layer, as wide as its
/// widest part.
fn tapped(model: &ModelSpec) -> usize {
    let layers = model.layers.iter().map(|layer| {
        let widest = widest(layer).max(model.hidden_size);
        TapPoint::ALL.len().saturating_mul(widest)
    });
    let layers = layers.fold(0, usize::saturating_add);
    let around = model.hidden_size.saturating_mul(2);
    layers
        .saturating_add(around)
        .saturating_add(model.vocab_size)
}

fn widest(layer: &LayerSpec) -> usize {
    let feed_forward = match &layer.feed_forward {
        FeedForward::Gated(mlp) => mlp.intermediate,
        FeedForward::MixtureOfExperts(experts) => experts.expert.intermediate,
        _ => limits::WIDTH,
    };
    let attention = layer
        .attention
        .query_width()
        .max(layer.attention.kv_width());
    feed_forward.max(attention)
}

impl Session for IsolatedSession {
    fn plan(&self) -> &ExecutionPlan {
        &self.plan
    }

    fn create_sequence(&mut self) -> SeamResult<SequenceId> {
        self.ask(Request::CreateSequence)
    }

    fn sequence_len(&self, sequence: SequenceId) -> SeamResult<usize> {
        self.ask(Request::SequenceLen(sequence))
    }

    fn prefill(
        &mut self,
        sequence: SequenceId,
        tokens: &[TokenId],
        output: OutputRequest,
        control: &Control<'_>,
    ) -> SeamResult<StepOutput> {
        let rows = rows(output, tokens.len());
        let tail = from_tokens(tokens);
        let with = With {
            tail: &tail,
            control: Some(control),
            answer: step_limit(rows, self.vocabulary, 1, output.top_logprobs),
            ..With::default()
        };
        let (head, tail) = self
            .channel
            .borrow_mut()
            .call::<StepHead>(Request::Prefill(sequence, output), &with)?;
        let mut steps = self.steps(&[head], &tail, 1, rows, output)?;
        steps
            .pop()
            .ok_or_else(|| SeamError::new(ErrorCode::Backend, "a prompt without an answer"))
    }

    fn decode(
        &mut self,
        steps: &[DecodeStep],
        output: OutputRequest,
    ) -> SeamResult<Vec<StepOutput>> {
        let rows = rows(output, 1);
        let positions = steps.len().saturating_mul(rows);
        let with = With {
            answer: step_limit(positions, self.vocabulary, steps.len(), output.top_logprobs),
            ..With::default()
        };
        let request = steps.iter().map(|s| (s.sequence, s.token)).collect();
        let (heads, tail) = self
            .channel
            .borrow_mut()
            .call::<Vec<StepHead>>(Request::Decode(request, output), &with)?;
        self.steps(&heads, &tail, steps.len(), rows, output)
    }

    fn truncate(&mut self, sequence: SequenceId, len: usize) -> SeamResult<()> {
        self.ask(Request::Truncate(sequence, len))
    }

    fn release(&mut self, sequence: SequenceId) -> SeamResult<()> {
        self.ask(Request::Release(sequence))
    }

    fn tap(&mut self, tokens: &[TokenId], control: &Control<'_>) -> SeamResult<Vec<Tap>> {
        let tail = from_tokens(tokens);
        let numbers = (tokens.len() as u64).saturating_mul(self.tapped as u64);
        let with = With {
            tail: &tail,
            control: Some(control),
            answer: numbers.saturating_mul(4),
            ..With::default()
        };
        let (heads, tail) = self
            .channel
            .borrow_mut()
            .call::<Vec<TapHead>>(Request::Tap, &with)?;
        to_taps(&heads, &tail)
    }
}

impl Drop for IsolatedSession {
    fn drop(&mut self) {
        let channel = self.channel.get_mut();
        let with = With {
            limit: Some(channel.process().limit().min(CLOSING)),
            ..With::default()
        };
        match channel.call::<()>(Request::Close, &with) {
            Ok(_) => {}
            Err(e) if e.code == ErrorCode::Poisoned => {}
            Err(e) => tracing::warn!("closing a session in its own process: {e}"),
        }
    }
}
