//! A model on a device: sequences of tokens that grow by prefill and decode.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::capability::DeviceSampler;
use crate::control::Control;
use crate::error::{SeamError, SeamResult};
use crate::plan::ExecutionPlan;
use crate::tap::Tap;

/// A token of the model's vocabulary.
pub type TokenId = u32;

/// A sequence of a session. Ids are never reused within a session, so a stale one is an error and
/// not somebody else's cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SequenceId(pub u64);

impl fmt::Display for SequenceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sequence {}", self.0)
    }
}

/// Which positions' logits a call returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogitsRequest {
    /// None.
    #[default]
    None,
    /// The last position's.
    Last,
    /// Every position's of this call.
    All,
}

/// What a step returns besides having run. Ask only for what is used: logits may have to cross from
/// the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputRequest {
    /// Choose the next token on the device. One the capabilities do not list is refused.
    pub sample: Option<DeviceSampler>,
    /// Raw logits, before any temperature or penalty.
    pub logits: LogitsRequest,
    /// The `n` most likely tokens at the last position with their log-probabilities (natural
    /// logarithm of the softmax over the whole vocabulary), likeliest first, ties by lower id.
    pub top_logprobs: u32,
}

impl OutputRequest {
    /// Only the device's greedy choice.
    pub const GREEDY: Self = Self {
        sample: Some(DeviceSampler::Greedy),
        logits: LogitsRequest::None,
        top_logprobs: 0,
    };

    /// Only the last position's logits.
    pub const LOGITS: Self = Self {
        sample: None,
        logits: LogitsRequest::Last,
        top_logprobs: 0,
    };

    /// Logits of every position.
    pub const ALL_LOGITS: Self = Self {
        sample: None,
        logits: LogitsRequest::All,
        top_logprobs: 0,
    };

    /// Nothing: only grow the cache.
    pub const NOTHING: Self = Self {
        sample: None,
        logits: LogitsRequest::None,
        top_logprobs: 0,
    };
}

/// A token and its log-probability.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TokenLogprob {
    /// The token.
    pub id: TokenId,
    /// Natural logarithm of its probability.
    pub logprob: f32,
}

/// What a step returned.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepOutput {
    /// The device's choice of the next token, where it was asked for.
    pub token: Option<TokenId>,
    /// Logits, `[positions, vocab_size]` row-major: no, one or every position of the call.
    pub logits: Vec<f32>,
    /// The likeliest tokens, where they were asked for.
    pub top_logprobs: Vec<TokenLogprob>,
}

/// One sequence's part in a decode step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeStep {
    /// The sequence that grows.
    pub sequence: SequenceId,
    /// The token that is appended.
    pub token: TokenId,
}

/// A model open on a device. It holds weights, which all its sequences share, and each sequence's
/// cache.
///
/// A session is used from one thread at a time (`Send`, not `Sync`); different sessions may be used
/// at the same time. A step either succeeds for all its sequences or fails and leaves every
/// sequence's length as it was; after an error whose effect is unknown the session answers
/// `Poisoned` from then on.
pub trait Session: Send {
    /// The plan this session was opened with.
    fn plan(&self) -> &ExecutionPlan;

    /// Makes an empty sequence.
    ///
    /// # Errors
    /// `Unsupported` where the plan's number of sequences is reached; `OutOfMemory`.
    fn create_sequence(&mut self) -> SeamResult<SequenceId>;

    /// Tokens in a sequence.
    ///
    /// # Errors
    /// `InvalidInput` for a sequence that was never made or was released.
    fn sequence_len(&self, sequence: SequenceId) -> SeamResult<usize>;

    /// Appends `tokens` and returns what follows the last one. Runs in chunks of the plan's
    /// `prefill_chunk`, with progress and a look at the cancel token after each. Cancelled, the
    /// sequence is cut back to where it was.
    ///
    /// # Errors
    /// `InvalidInput` for an empty slice, a token outside the vocabulary or an unknown sequence;
    /// `ContextFull` where the sequence would grow past the plan's context (nothing is appended);
    /// `Unsupported` for a sampler that is not advertised; `Cancelled`; `NonFinite`.
    fn prefill(
        &mut self,
        sequence: SequenceId,
        tokens: &[TokenId],
        output: OutputRequest,
        control: &Control<'_>,
    ) -> SeamResult<StepOutput>;

    /// Appends one token to each of several different sequences, in one step, and returns what
    /// follows, in the same order. A single step gives the same result alone and in a batch, within
    /// the precision's rounding.
    ///
    /// # Errors
    /// As [`Self::prefill`]; `InvalidInput` also where a sequence stands in `steps` twice or `steps`
    /// is empty.
    fn decode(
        &mut self,
        steps: &[DecodeStep],
        output: OutputRequest,
    ) -> SeamResult<Vec<StepOutput>>;

    /// Forgets all tokens of a sequence from position `len` on. What follows is as if they had never
    /// been there.
    ///
    /// # Errors
    /// `InvalidInput` where `len` exceeds the sequence's length, or for an unknown sequence.
    fn truncate(&mut self, sequence: SequenceId, len: usize) -> SeamResult<()>;

    /// Drops a sequence and its cache.
    ///
    /// # Errors
    /// `InvalidInput` for an unknown sequence.
    fn release(&mut self, sequence: SequenceId) -> SeamResult<()>;

    /// Runs `tokens` from position 0 in a sequence of its own, which is gone afterwards, and returns
    /// the intermediate results that the backend can show, in the order of the computation. For
    /// finding faults: it may be slow, compile code of its own, and round otherwise than a prefill
    /// whose intermediate results nobody sees. Values that are not finite are returned as they are.
    ///
    /// # Errors
    /// `Unsupported` unless the capabilities have `taps`; else as [`Self::prefill`], save `NonFinite`.
    fn tap(&mut self, tokens: &[TokenId], control: &Control<'_>) -> SeamResult<Vec<Tap>> {
        let _ = (tokens, control);
        Err(SeamError::unsupported(
            "this backend shows no intermediate results",
        ))
    }
}
