//! The IREE backend on its local drivers against the suite.
//!
//! Compiled modules are kept in the target folder, so that a second run compiles nothing.

mod checkpoints;
mod gate;
mod growth;
#[cfg(feature = "models")]
mod models;
mod prefill;
mod real_model;

use std::path::Path;
use std::sync::Arc;

use halfhitch_suite::{Report, Subject, Test, Tier, contract};
use halfhitch_xla_iree::{BackendOptions, CompileAt, XlaIreeBackend};

/// Steps are compiled when they are needed: a test then pays for no more than it runs.
fn backend(driver: &str) -> XlaIreeBackend {
    let mut options = BackendOptions::for_driver(driver).expect("options");
    options.workers = 2;
    options.compiler.cache = Some(Path::new(env!("CARGO_TARGET_TMPDIR")).join("modules"));
    options.compile_at = CompileAt::FirstUse;
    XlaIreeBackend::new(options).expect("the driver is linked in")
}

fn subject(driver: &str) -> Subject {
    Subject::first(Arc::new(backend(driver))).expect("the driver has a device")
}

fn assert_passes(report: &Report) {
    assert!(report.passed(), "\n{report}");
}

/// The contract's cases that `wanted` takes; all where more models are asked for.
fn contract(driver: &str, wanted: impl Fn(&Test) -> bool) -> Report {
    let subject = subject(driver);
    let tests = contract::tests(&subject).expect("the device tells its capabilities");
    let wanted = |test: &&Test| cfg!(feature = "models") || wanted(test);
    let mut report = Report::default();
    let cases = tests.iter().filter(wanted).map(|test| test.run(&subject));
    report.cases.extend(cases);
    assert!(report.cases.len() > 20, "{report}");
    report
}

#[test]
fn local_task_keeps_the_contract() {
    // What opens a session of every model that there is takes minutes.
    let every_model = |test: &Test| test.name.ends_with("-are-honest");
    assert_passes(&contract("local-task", |test| !every_model(test)));
}

#[test]
fn local_sync_keeps_the_contract() {
    // The same code: what the other driver compiled is not compiled again.
    assert_passes(&contract("local-sync", |test| test.tier == Tier::Quick));
}
