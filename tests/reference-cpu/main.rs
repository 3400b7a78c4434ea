//! The reference backend against the suite. It leaves nothing out, so no case may be unsupported.

mod bits;
mod fixtures;
mod plans;

use std::sync::Arc;

use halfhitch_reference_cpu::ReferenceCpu;
use halfhitch_suite::{Report, Subject, contract, numerics};

fn subject() -> Subject {
    Subject::first(Arc::new(ReferenceCpu::new())).expect("the reference has a device")
}

fn assert_all_pass(report: &Report) {
    assert!(report.passed(), "\n{report}");
    assert_eq!(report.unsupported().count(), 0, "\n{report}");
}

#[test]
fn keeps_the_contract() {
    assert_all_pass(&contract::run(&subject()));
}

#[test]
fn computes_every_generated_model() {
    let report = numerics::generated(&subject());
    assert!(
        report.cases.len() > 500,
        "only {} cases",
        report.cases.len()
    );
    assert_all_pass(&report);
}
