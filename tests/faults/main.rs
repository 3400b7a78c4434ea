//! The suite is itself tested: with backends that are wrong in one way each, it must fail, and in the
//! case that is there for it.

mod faulty;

use std::sync::Arc;

use halfhitch_reference_cpu::ReferenceCpu;
use halfhitch_suite::{Subject, Verdict, contract, expected::Expected, features, numerics};

use faulty::{Fault, Faulty};

fn subject(fault: Fault) -> Subject {
    let backend = Faulty::new(Arc::new(ReferenceCpu::new()), fault);
    Subject::first(Arc::new(backend)).expect("a device")
}

/// A fault and a case of the contract on the plain model that must find it.
const FAULTS: &[(Fault, &str)] = &[
    (
        Fault::PositionAfterTruncate,
        "truncate-then-continue-equals-fresh",
    ),
    (Fault::TruncateDoesNothing, "truncate-to-zero-equals-fresh"),
    (Fault::OtherSequence, "batch-equals-single"),
    (
        Fault::StaleLogits,
        "prefill-then-decode-equals-decode-alone",
    ),
    (Fault::DroppedToken, "chunk-boundaries-leave-no-trace"),
    (Fault::TokenFromNan, "nan-in-an-embedding-is-an-error"),
    (Fault::NanLogits, "an-infinite-head-is-an-error"),
    (Fault::SecondBestToken, "greedy-is-the-largest-logit"),
    (Fault::RawLogprobs, "top-logprobs-are-of-the-softmax"),
    (
        Fault::FirstRowForAll,
        "logits-of-all-positions-are-each-ones",
    ),
    (Fault::LogitsUnasked, "logits-have-the-shape-asked-for"),
    (
        Fault::CancelLeavesTokens,
        "a-cancelled-prompt-leaves-no-trace",
    ),
    (Fault::IgnoresCancel, "a-cancelled-prompt-leaves-no-trace"),
    (
        Fault::FillsContext,
        "a-full-context-is-refused-and-changes-nothing",
    ),
    (Fault::ReusesIds, "ids-are-never-reused"),
    (Fault::ReusesIds, "a-released-sequence-is-refused"),
    (
        Fault::ClampsTokens,
        "tokens-outside-the-vocabulary-are-refused",
    ),
    (
        Fault::AcceptsDuplicates,
        "a-sequence-twice-in-a-step-is-refused",
    ),
    (Fault::AcceptsEmpty, "an-empty-prompt-is-refused"),
    (Fault::WrongCode, "a-cut-beyond-the-end-is-refused"),
    (Fault::NoProgress, "a-prompt-reports-progress-to-the-end"),
    (Fault::ClaimsHalf, "precisions-are-honest"),
    (Fault::DeniesSampler, "samplers-are-honest"),
    (Fault::Drifts, "the-same-calls-give-the-same-bits"),
    (Fault::Panics, "length-follows-calls"),
    (Fault::HidesTaps, "intermediate-results-lead-to-the-logits"),
    (
        Fault::TapsOtherTokens,
        "intermediate-results-lead-to-the-logits",
    ),
];

#[test]
fn an_honest_wrapper_passes() {
    let report = contract::run(&subject(Fault::None));
    assert!(report.passed(), "\n{report}");
    assert_eq!(report.unsupported().count(), 0, "\n{report}");
}

#[test]
fn every_fault_fails_its_case_and_not_all() {
    for (fault, case) in FAULTS {
        let report = contract::run(&subject(*fault));
        let name = format!("contract/plain/{case}");
        let found = report.cases.iter().find(|c| c.name == name);
        let found = found.unwrap_or_else(|| panic!("the suite has no case {name}"));
        assert!(
            matches!(found.verdict, Verdict::Fail { .. }),
            "{fault:?} went unseen by {name}:\n{report}"
        );
        // A fault that fails everything would prove nothing about the case.
        let passed = report.cases.iter().filter(|c| c.verdict == Verdict::Pass);
        assert!(passed.count() >= 5, "{fault:?} fails all:\n{report}");
    }
}

#[test]
fn wrong_numbers_fail_and_say_where() {
    let model = features::single("plain").unwrap();
    let expected = Expected::from_oracle(&model).unwrap();
    for (fault, case) in [
        (Fault::PositionAfterTruncate, "truncate"),
        (Fault::OtherSequence, "interleaved"),
        (Fault::StaleLogits, "step-by-step"),
        (Fault::FirstRowForAll, "prompt"),
    ] {
        let report =
            numerics::model_cases(&subject(fault), "m", &model.spec, &model.weights, &expected);
        let failed: Vec<_> = report.failures().map(|c| c.name.as_str()).collect();
        let name = format!("m/f32/{case}");
        assert!(failed.contains(&name.as_str()), "{fault:?}:\n{report}");
    }
}

/// A backend that computes another function (a feature left out) fails that feature's model.
#[test]
fn a_feature_left_out_is_seen() {
    for name in [
        "window",
        "score-softcap",
        "logit-softcap",
        "attention-scale",
        "rope-theta",
        "rope-linear",
        "rope-llama3",
        "rope-interleaved",
        "norm-eps",
        "norm-offset",
        "embedding-scale",
        "residual-scale",
        "logit-scale",
        "gelu-tanh",
        "gelu-erf",
        "layer-norm",
    ] {
        let model = features::single(name).unwrap();
        let expected = Expected::from_oracle(&model).unwrap();
        // The same weights, but the plain decoder's formulas.
        let plain = features::single("plain").unwrap().spec;
        let report = numerics::model_cases(
            &subject(Fault::None),
            name,
            &plain,
            &model.weights,
            &expected,
        );
        assert!(
            report.failures().any(|c| c.name.ends_with("/prompt")),
            "leaving out {name} went unseen:\n{report}"
        );
    }
}
