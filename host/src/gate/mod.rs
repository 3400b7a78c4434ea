//! The accuracy gate: a backend's logits against those of one that is trusted, on the same tokens.
//!
//! ```text
//! prompts     built-in, a file, token ids, random    -> tokens
//! run         two sessions, teacher-forced           -> positions, each with its distance
//! metrics     positions                              -> KL, top-1, logits, perplexity, first divergence
//! limits      precision and cache type               -> how far each may be: the one table
//! report      all of it                              -> checks, a verdict, a record to keep
//! localize    the worst position                     -> the layer and tensor where the two part
//! ```
//!
//! Both sides get the same tokens whatever they would have chosen, so a difference at one position is not
//! carried to the next by another token. A prompt's most part runs as prefill, its end as decode steps:
//! the two are different code on most backends, and are judged apart.
//!
//! A default precision of a device is allowed only where a recorded run passes (docs/gates).

mod bisect;
mod limits;
mod localize;
mod metrics;
mod prompts;
mod report;
mod run;
mod side;

pub use limits::{LimitName, Limits};
pub use localize::{
    Finding, LayerCount, Localization, LocalizeInput, Method, StepDifference, TapRow, localize,
};
pub use metrics::{Distance, Divergence, Metrics, Perplexity, Place, Position};
pub use prompts::{Prompt, PromptSet, PromptSource};
pub use report::{
    Check, FORMAT, Measured, ModelSummary, PromptSummary, Report, SideSummary, Verdict,
};
pub use run::{DECODE_STEPS, Sides, compare};
pub use side::Side;
