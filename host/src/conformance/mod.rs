//! The suite as a product: any backend, built in or a plugin, held to the contract and to the numbers.
//!
//! ```text
//! subject     a selection or a plugin's file    -> a device of a backend
//! checkpoints folders with logits to expect     -> cases beside the suite's own
//! run         the cases, expectations           -> a report
//! confined    the case that runs out of memory  -> the same, in a process of its own
//! report      verdicts, counts, what is stale   -> JSON; junit and html make files of it
//! models      random models, shrunk             -> the smallest that the backend gets wrong
//! folder      a model                           -> a checkpoint folder that `verify` takes
//! ```
//!
//! The cases themselves are the crate `halfhitch-suite`, which knows the seam alone.

mod checkpoints;
mod confined;
mod folder;
mod html;
mod junit;
mod models;
mod report;
mod subject;

pub use checkpoints::{CHECKPOINTS, checkpoint_tests};
pub use confined::{Answer, confine, limit_memory};
pub use folder::{TOKENS, save};
pub use html::html;
pub use junit::junit;
pub use models::{Found, Searched, search};
pub use report::{CaseReport, FORMAT, Group, Outcome, Report, SuiteSummary};
pub use subject::{SubjectWish, subject};
