//! Generated models against the suite's oracle.
//!
//! Every model has to be compiled for each precision, which takes long for all of the suite's. So this
//! is a feature, and a choice is made (`make test-models`): as few models as have every feature, one
//! scheme a width. `HALFHITCH_SUITE=full` (`make test-full`) runs all; what was compiled is kept, and an
//! interrupted run goes on where it was.

use std::collections::BTreeSet;

use halfhitch_seam::{AffineScheme, Bits, DType, GroupSize, ModelFeature};
use halfhitch_suite::expected::Expected;
use halfhitch_suite::models::{self, Generated};
use halfhitch_suite::{Report, features, numerics};
use halfhitch_xla_iree::runtime::capabilities;

use super::{assert_passes, subject};

fn full() -> bool {
    std::env::var("HALFHITCH_SUITE").is_ok_and(|v| v == "full")
}

/// As few of the suite's models as have every feature that the backend has, the richest first.
fn covering() -> Vec<Generated> {
    let mut left = capabilities::features();
    let able = |m: &Generated| m.spec.features().is_subset(&capabilities::features());
    let mut all: Vec<Generated> = features::all().unwrap().into_iter().filter(able).collect();
    let mut chosen = Vec::new();
    while !left.is_empty() {
        let gain = |m: &Generated| m.spec.features().intersection(&left).count();
        // The first of the best, so that the choice is the same each time.
        let best = (0..all.len()).rev().max_by_key(|&i| gain(&all[i])).unwrap();
        let model = all.swap_remove(best);
        let own: BTreeSet<ModelFeature> = model.spec.features().into_iter().collect();
        assert!(!own.is_disjoint(&left), "no model has {left:?}");
        left = left.difference(&own).copied().collect();
        chosen.push(model);
    }
    chosen
}

/// One scheme a width, with every group size and scale type once.
fn schemes() -> Vec<AffineScheme> {
    let scheme = |bits: u32, group: u32, scale_dtype| AffineScheme {
        bits: Bits::new(bits).unwrap(),
        group_size: GroupSize::new(group).unwrap(),
        scale_dtype,
    };
    vec![
        scheme(2, 128, DType::F32),
        scheme(4, 32, DType::F16),
        scheme(8, 64, DType::BF16),
    ]
}

#[test]
fn generated_models_give_what_the_oracle_gives() {
    let subject = subject("local-task");
    if full() {
        assert_passes(&numerics::generated(&subject));
        return;
    }
    let packed = schemes().into_iter().enumerate();
    let packed = packed.map(|(i, scheme)| models::packed(scheme, i % 2 == 1).unwrap());
    let mut report = Report::default();
    for model in covering().into_iter().chain(packed) {
        let expected = Expected::from_oracle(&model).unwrap();
        let name = format!("generated/{}", model.name);
        report.extend(numerics::model_cases(
            &subject,
            &name,
            &model.spec,
            &model.weights,
            &expected,
        ));
    }
    assert_passes(&report);
}
