//! The suite: what every backend must do, written once and run through the seam.
//!
//! | part | what it holds a backend to |
//! | --- | --- |
//! | [`contract`] | the [`Session`](halfhitch_seam::Session) docs: every method, every error, every order of calls |
//! | [`threads`] | sessions that move and run at the same time |
//! | [`resources`] | memory: what many sessions leave behind, and what happens when it runs out |
//! | [`numerics`] | the [`model`](halfhitch_seam::model) page: logits against [`oracle`], for every feature and scheme, and against fixture files |
//! | [`shapes`] | the same for edge shapes, lengths and positions |
//! | [`search`] | the same for random models, each wrong one shrunk to a smallest |
//! | [`architectures`] | the same for the parts of published architectures, stored in every way |
//!
//! [`catalogue`](catalogue::catalogue) lists the cases of all of them as [`Test`]s, and
//! [`run_tests`] runs them, each with a time limit; known failures are [`expectations`].
//!
//! Nothing here knows a backend, a file format or the host: models are [generated](models) in memory,
//! and whoever has checkpoints hands them over as a spec and weights. A run gives a [`Report`] of
//! [`Case`]s with a [`Verdict`] each; `unsupported` is for what the device does not advertise, and then it
//! must also refuse it.
//!
//! [`limits`] has the one table of how far logits may be off.
//!
//! # A new backend
//!
//! `halfhitch conformance --plugin FILE` runs all this on a plugin, without a line of code. In this
//! repository a backend has one file besides, `tests/NAME/main.rs`, and its `[[test]]`: make the backend, [`run`] the suite on each of its
//! devices, assert that the report [passed](Report::passed), and pin which cases are unsupported, so
//! that one more is noticed. What a backend promises beyond the contract is tested beside it.
//! `tests/faults` tests the suite itself: backends that are wrong in one way each must fail.

pub mod architectures;
pub mod catalogue;
pub mod contract;
pub mod expectations;
pub mod expected;
pub mod features;
mod follow;
pub mod limits;
pub mod models;
pub mod numerics;
pub mod oracle;
mod random;
mod report;
pub mod resources;
mod runner;
pub mod search;
pub mod shapes;
mod subject;
mod test;
pub mod threads;

pub use report::{Case, Miss, Outcome, Report, Verdict};
pub use runner::{Watch, run_tests};
pub use subject::Subject;
pub use test::{Test, Tier};

/// All that needs no files: contract and generated numerics.
pub fn run(subject: &Subject) -> Report {
    let mut report = contract::run(subject);
    report.extend(numerics::generated(subject));
    report
}
