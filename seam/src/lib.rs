//! The contract between Halfhitch's host and its compute backends.
//!
//! A backend is an engine that turns tokens into tokens. The boundary is an **inference session**:
//! not an operator interface (a compiler wants the whole graph, and keeps its own cache in its own
//! layout) and not a loader (a backend never opens a user's file). Four nouns carry it:
//!
//! * [`ComputeBackend`]: identity, devices, and each device's [`DeviceCapabilities`];
//! * [`ModelSpec`] and [`Weights`]: what to compute and with which numbers, apart from any file
//!   format;
//! * [`ExecutionPlan`]: what [`negotiate`] chose from model, capabilities and the user's wishes,
//!   with its reasons;
//! * [`Session`]: sequences that grow by [`prefill`](Session::prefill) and
//!   [`decode`](Session::decode).
//!
//! # Who validates
//!
//! The host. A backend may rely on this in [`ComputeBackend::open`]: the spec passed
//! [`ModelSpec::validate`], the weights passed [`check_weights`], and the plan came from
//! [`negotiate`] with this device's own capabilities. It must itself check everything that arrives
//! at a [`Session`] (tokens, sequences, lengths), since those come at run time, and it must never
//! return a token chosen from logits that are not finite.
//!
//! # Writing a backend
//!
//! 1. List devices; fill [`DeviceCapabilities`] with what works today, and no more: `negotiate`
//!    promises users what is written there.
//! 2. In `open`, build your computation from [`ModelSpec`] (the [`model`] page defines the function)
//!    and bring each weight to the form that [`ExecutionPlan::weights`] names: norms and biases
//!    f32; a matrix packed as it is stored, dense as it is stored, or dense in the precision's type.
//!    Where a stored form is to be expanded, [`AffineTensor::dequantize`] defines the values; a
//!    narrower dense type holds them rounded to nearest, ties to even. The cache is kept in
//!    [`ExecutionPlan::kv_dtype`].
//! 3. In the session, keep a cache a sequence. Positions count from 0 in each. `truncate` forgets,
//!    and must leave no trace in later results.
//! 4. Where it is not much work, offer [`Session::tap`] (and say so in the capabilities): `verify
//!    --localize` then names the tensor that is wrong, and not only the layer.
//! 5. Return [`SeamError`]s with what the user can do; never print, never panic, never exit.
//! 6. Ship it as a plugin: a `cdylib` that depends on this crate with the feature `abi`, built with
//!    unwinding panics, and calls `export_plugin!` (the `abi` page); beside the library lies a manifest,
//!    `NAME.plugin.json`, one JSON object: `name` (what [`BackendIdentity::name`] says), `driver`,
//!    `library` (its file name), `version`, `abi` (`[major, minor]`), `target` (the triple),
//!    `components` (versions by name) and `sha256` of the library.
//!
//! The suite in `tests/suite` runs against any backend through these traits and is the judge:
//! `halfhitch conformance --plugin FILE` (docs/conformance.md).
//!
//! # Threads and ownership
//!
//! Backends are `Send + Sync`, sessions `Send`. [`Weights`] share their bytes by reference counting,
//! so a session can keep a mapped file without copying it. No call outlives its borrowed arguments.

#[cfg(feature = "abi")]
pub mod abi;
mod artifact_cache;
mod backend;
mod capability;
mod control;
mod dtype;
pub mod environment;
mod error;
mod graph;
pub mod model;
mod plan;
pub mod quant;
mod representation;
mod session;
mod tap;
mod tensor;
mod tune;
mod weights;

pub use artifact_cache::{CacheAction, CacheEntry, CacheReport};
pub use backend::{BackendIdentity, ComputeBackend, OpenRequest};
pub use capability::{
    DeviceCapabilities, DeviceId, DeviceInfo, DeviceSampler, MemoryInfo, QuantSupport,
};
pub use control::{CancelToken, Control, Event, NoObserver, Observer, Stage};
pub use dtype::{DType, Precision};
pub use error::{ErrorCode, ResultExt, SeamError, SeamResult};
pub use graph::{
    GraphReport, GraphRequest, GraphStats, Intermediate, PartTraffic, StepShape, Traffic,
};
pub use model::{LayerWeight, ModelFeature, ModelSpec, WeightId};
pub use plan::{
    Choice, ExecutionPlan, MemoryEstimate, PlanRequest, PlannedWeight, QuantRequest, Rejected,
    Size, negotiate,
};
pub use quant::{AffineScheme, Bits, GroupSize};
pub use representation::{
    PlannedRepresentation, RepresentationName, RepresentationSupport, StepRows,
};
pub use session::{
    DecodeStep, LogitsRequest, OutputRequest, SequenceId, Session, StepOutput, TokenId,
    TokenLogprob,
};
pub use tap::{Tap, TapPoint, TapSite};
pub use tensor::Tensor;
pub use tune::{Measured, TuneReport, TuneRequest, TuneResult, TunedContraction};
pub use weights::{
    AffineTensor, Weight, WeightForm, WeightInfo, WeightManifest, Weights, check_weights,
};

/// The seam is object-safe: backends and sessions are used behind `dyn`.
#[allow(dead_code)]
fn object_safe(_: &dyn ComputeBackend, _: &dyn Session, _: &dyn Observer) {}
