//! The suite: what every backend must do, written once and run through the seam.
//!
//! | part | what it holds a backend to |
//! | --- | --- |
//! | [`contract`] | the [`Session`](halfhitch_seam::Session) docs: every method, every error, every order of calls |
//! | [`numerics`] | the [`model`](halfhitch_seam::model) page: logits against [`oracle`], for every feature and scheme, and against fixture files |
//!
//! Nothing here knows a backend, a file format or the host: models are [generated](models) in memory,
//! and whoever has checkpoints hands them over as a spec and weights. A run gives a [`Report`] of
//! [`Case`]s with three verdicts; `unsupported` is for what the device does not advertise, and then it
//! must also refuse it.
//!
//! [`limits`] has the one table of how far logits may be off.
//!
//! # A new backend
//!
//! One file, `tests/NAME/main.rs`, and its `[[test]]`: make the backend, [`run`] the suite on each of its
//! devices, assert that the report [passed](Report::passed), and pin which cases are unsupported, so
//! that one more is noticed. What a backend promises beyond the contract is tested beside it.
//! `tests/faults` tests the suite itself: backends that are wrong in one way each must fail.

pub mod contract;
pub mod expected;
pub mod features;
pub mod limits;
pub mod models;
pub mod numerics;
pub mod oracle;
mod random;
mod report;
mod subject;

pub use report::{Case, Miss, Outcome, Report, Verdict};
pub use subject::Subject;

/// All that needs no files: contract and generated numerics.
pub fn run(subject: &Subject) -> Report {
    let mut report = contract::run(subject);
    report.extend(numerics::generated(subject));
    report
}
