//! Running a model: finding it, opening it on a backend, generating.
//!
//! ```text
//! registry    backend[:driver[:selector]] -> a device and what it can do
//! load        model + device + wishes     -> a plan, then an open session
//! generate    prompt tokens + options     -> text, tokens, logits, timings
//! ```
//!
//! Nothing here prints: text goes to a callback, progress to the
//! [`Observer`](halfhitch_seam::Observer), failures up as [`SeamError`](halfhitch_seam::SeamError).

mod cached;
mod generate;
mod load;
pub(crate) mod pages;
mod registry;
mod stats;

pub use cached::CachedSequence;
pub use generate::{
    Completion, FinishReason, GenerateOptions, Generator, Piece, Sink, TopLogit, check_prompt,
};
pub use load::{Engine, Model};
pub use registry::{
    BackendSource, BackendStatus, Provider, Registry, Selection, State, Target, pick_device,
};
pub use stats::{LoadTimings, Timings, peak_rss_bytes, rss_bytes, virtual_bytes};
