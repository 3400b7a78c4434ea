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

use halfhitch_suite::{Report, Subject, contract};
use halfhitch_xla_iree::{BackendOptions, CompileAt, XlaIreeBackend};

/// Steps are compiled when they are needed: a test then pays for no more than it runs.
fn backend(driver: &str) -> XlaIreeBackend {
    let mut options = BackendOptions::for_driver(driver);
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

#[test]
fn local_task_keeps_the_contract() {
    assert_passes(&contract::run(&subject("local-task")));
}

#[test]
fn local_sync_keeps_the_contract() {
    // The same code: what the other driver compiled is not compiled again.
    assert_passes(&contract::run(&subject("local-sync")));
}
