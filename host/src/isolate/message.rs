//! What is said over a channel, as it stands in a frame's head. See `docs/isolation.md`.

use halfhitch_seam::{
    CacheAction, DType, DeviceId, Event, ExecutionPlan, GraphRequest, ModelSpec, OutputRequest,
    SeamError, SequenceId, TokenId, TuneRequest, WeightForm, WeightId,
};
use serde::{Deserialize, Serialize};

/// The protocol's version. Both sides are one program, so that only a program that was replaced while it
/// ran can see another.
pub const PROTOCOL: u32 = 1;

/// What the host says on the first socket.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Directive {
    /// The first message. Answered with a [`Reply`] of the backend's identity, once it is loaded.
    Hello {
        /// [`PROTOCOL`].
        protocol: u32,
        /// The program's version.
        version: String,
    },
    /// The socket that comes along is a new channel. Not answered.
    Channel {
        /// Its number.
        id: u64,
    },
    /// Stop a call, also one that has not arrived yet. Not answered.
    Cancel {
        /// The channel.
        channel: u64,
        /// The call's number there.
        call: u64,
    },
    /// End. Not answered.
    Quit,
}

/// What the host says on a channel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Call {
    /// Grows by 1 with each call of the channel.
    pub number: u64,
    /// What is asked for.
    pub request: Request,
}

/// A method of a backend or, once one is open on the channel, of its session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// `ComputeBackend::devices`.
    Devices,
    /// `ComputeBackend::capabilities`.
    Capabilities(DeviceId),
    /// `ComputeBackend::cache`.
    Cache(CacheAction),
    /// `ComputeBackend::graph`.
    Graph(Box<GraphRequest>),
    /// `ComputeBackend::tune`.
    Tune(Box<TuneRequest>),
    /// The descriptors that come along are files of weights, in the order in which [`Part::file`] counts
    /// them.
    Files,
    /// `ComputeBackend::open`.
    Open(Box<Open>),
    /// `Session::create_sequence`.
    CreateSequence,
    /// `Session::sequence_len`.
    SequenceLen(SequenceId),
    /// `Session::prefill`; the tail is the tokens.
    Prefill(SequenceId, OutputRequest),
    /// `Session::decode`.
    Decode(Vec<(SequenceId, TokenId)>, OutputRequest),
    /// `Session::truncate`.
    Truncate(SequenceId, usize),
    /// `Session::release`.
    Release(SequenceId),
    /// `Session::tap`; the tail is the tokens.
    Tap,
    /// Drop the session.
    Close,
}

impl Request {
    /// What it does, for errors.
    pub const fn doing(&self) -> &'static str {
        match self {
            Self::Devices => "listing devices",
            Self::Capabilities(_) => "telling what a device can do",
            Self::Cache(_) => "working on its cache",
            Self::Graph(_) => "showing a graph",
            Self::Tune(_) => "measuring",
            Self::Files => "taking files",
            Self::Open(_) => "opening the model",
            Self::CreateSequence | Self::SequenceLen(_) => "making a sequence",
            Self::Prefill(..) => "reading the prompt",
            Self::Decode(..) => "decoding",
            Self::Truncate(..) => "cutting a sequence",
            Self::Release(_) => "dropping a sequence",
            Self::Tap => "showing intermediate results",
            Self::Close => "closing the session",
        }
    }
}

/// What opens a session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Open {
    /// The plan.
    pub plan: ExecutionPlan,
    /// The model.
    pub model: ModelSpec,
    /// Where its weights lie.
    pub weights: Vec<WeightAt>,
}

/// A weight.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WeightAt {
    /// Which.
    pub id: WeightId,
    /// Its form.
    pub form: WeightForm,
    /// Its tensor; of a quantised one words, scales and biases.
    pub parts: Vec<Part>,
}

/// A tensor, in a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// Element type.
    pub dtype: DType,
    /// Extents.
    pub shape: Vec<usize>,
    /// The file, by its place among those that were passed.
    pub file: usize,
    /// The first byte.
    pub offset: usize,
    /// Bytes.
    pub length: usize,
}

/// What a call is answered with: any number of events, then one of the others.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply<T> {
    /// Progress, or a note.
    Event(Event),
    /// The call's result.
    Done(T),
    /// The call failed.
    Failed(SeamError),
}

/// What a step returned; numbers are in the tail, one step after the other: logits as f32, then
/// likeliest tokens as pairs of u32 and f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepHead {
    /// The device's choice.
    pub token: Option<TokenId>,
    /// Number of logits.
    pub logits: usize,
    /// Number of likeliest tokens.
    pub top_logprobs: usize,
}

/// An intermediate result; the tail holds all of their numbers, as f32, one result after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TapHead {
    /// Which.
    pub site: halfhitch_seam::TapSite,
    /// `[tokens, width]`.
    pub shape: [usize; 2],
}
