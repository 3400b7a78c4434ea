//! `halfhitch conformance` on plugins: the reference passes, and a plugin that is wrong in one way fails
//! the case that is there for it; for wrong numbers, `verify --localize` names the layer and the tensor.
#![cfg(target_os = "linux")]

#[path = "../gate/changed.rs"]
mod changed;
#[path = "../faults/faulty.rs"]
mod faulty;
#[path = "../gate/narrow.rs"]
mod narrow;
#[path = "../faults/numeric.rs"]
mod numeric;
mod random;
mod reports;
mod support;

use std::collections::BTreeSet;

use numeric::{How, NUMERIC};
use support::{Bench, fixture, json, stderr, stdout};

/// A fault of behaviour and the cases that must fail; each of these runs no longer than a second.
const BEHAVIOUR: &[(&str, &str)] = &[
    (
        "position-after-truncate",
        "contract/plain/truncate-then-continue-equals-fresh",
    ),
    (
        "truncate-does-nothing",
        "contract/plain/truncate-to-zero-equals-fresh",
    ),
    ("other-sequence", "contract/plain/batch-equals-single"),
    (
        "stale-logits",
        "contract/plain/prefill-then-decode-equals-decode-alone",
    ),
    (
        "dropped-token",
        "contract/plain/chunk-boundaries-leave-no-trace",
    ),
    (
        "token-from-nan",
        "contract/plain/nan-in-an-embedding-is-an-error",
    ),
    ("nan-logits", "contract/plain/an-infinite-head-is-an-error"),
    (
        "second-best-token",
        "contract/plain/greedy-is-the-largest-logit",
    ),
    (
        "raw-logprobs",
        "contract/plain/top-logprobs-are-of-the-softmax",
    ),
    (
        "first-row-for-all",
        "contract/plain/logits-of-all-positions-are-each-ones",
    ),
    (
        "logits-unasked",
        "contract/plain/logits-have-the-shape-asked-for",
    ),
    (
        "cancel-leaves-tokens",
        "contract/plain/a-cancelled-prompt-leaves-no-trace",
    ),
    (
        "ignores-cancel",
        "contract/plain/a-cancelled-prompt-leaves-no-trace",
    ),
    (
        "fills-context",
        "contract/plain/a-full-context-is-refused-and-changes-nothing",
    ),
    ("reuses-ids", "contract/plain/ids-are-never-reused"),
    (
        "clamps-tokens",
        "contract/plain/tokens-outside-the-vocabulary-are-refused",
    ),
    (
        "accepts-duplicates",
        "contract/plain/a-sequence-twice-in-a-step-is-refused",
    ),
    ("accepts-empty", "contract/plain/an-empty-prompt-is-refused"),
    (
        "wrong-code",
        "contract/plain/a-cut-beyond-the-end-is-refused",
    ),
    (
        "no-progress",
        "contract/plain/a-prompt-reports-progress-to-the-end",
    ),
    ("claims-half", "contract/plain/precisions-are-honest"),
    ("denies-sampler", "contract/plain/samplers-are-honest"),
    ("drifts", "contract/plain/the-same-calls-give-the-same-bits"),
    ("panics", "contract/plain/length-follows-calls"),
    (
        "hides-taps",
        "contract/plain/intermediate-results-lead-to-the-logits",
    ),
    (
        "taps-other-tokens",
        "contract/plain/intermediate-results-lead-to-the-logits",
    ),
    ("leaks", "resources/200-sessions-leave-nothing"),
    (
        "aborts-without-memory",
        "resources/memory-that-runs-out-is-an-error",
    ),
    ("one-thread", "threads/a-session-moves-between-threads"),
    ("shares-state", "threads/sessions-run-at-the-same-time"),
];

/// The case of every fault, in one run for each: exit code, verdict and name.
#[test]
fn every_fault_of_behaviour_fails_its_case() {
    let bench = Bench::new();
    let named: BTreeSet<_> = faulty::Fault::NAMED.iter().map(|(name, _)| *name).collect();
    let tried: BTreeSet<_> = BEHAVIOUR.iter().map(|(name, _)| *name).collect();
    assert_eq!(named, tried);
    for (fault, case) in BEHAVIOUR {
        let fault = format!("wrong:{fault}");
        let out = bench.conformance(&fault, &["--json", "--only", case]);
        assert_eq!(out.status.code(), Some(1), "{fault}: {}", stderr(&out));
        let report = json(&out);
        assert_eq!(report["outcome"], "fail", "{fault}");
        let found = &report["cases"][0];
        assert_eq!(found["name"], *case);
        assert_eq!(found["verdict"], "fail", "{fault}: {found}");
        assert!(found["detail"].as_str().unwrap().len() > 10, "{found}");
    }
}

#[test]
fn without_a_fault_the_same_cases_pass() {
    let bench = Bench::new();
    let cases = BEHAVIOUR.iter().map(|(_, case)| *case);
    let cases: BTreeSet<_> = cases.chain(NUMERIC.iter().map(|f| f.case)).collect();
    let only = cases.iter().flat_map(|case| ["--only", case]);
    let args: Vec<&str> = ["--json"].into_iter().chain(only).collect();
    let out = bench.conformance("", &args);
    assert_eq!(out.status.code(), Some(0), "{}", stdout(&out));
    assert_eq!(json(&out)["counts"]["pass"], cases.len());
}

#[test]
fn every_fault_of_numbers_fails_its_case() {
    let bench = Bench::new();
    for fault in NUMERIC {
        let name = format!("wrong:{}", fault.name);
        let out = bench.conformance(&name, &["--json", "--only", fault.case]);
        assert_eq!(out.status.code(), Some(1), "{name}: {}", stdout(&out));
        let report = json(&out);
        let detail = report["cases"][0]["detail"].as_str().unwrap();
        assert!(detail.contains("logits are off by"), "{name}: {detail}");
    }
}

#[test]
fn localisation_names_the_tensor_of_every_fault_of_numbers() {
    let bench = Bench::new();
    let dense = fixture("tiny/llama-bias");
    let packed = fixture("mlx/llama-q4-g32");
    for fault in NUMERIC {
        let name = format!("wrong:{}", fault.name);
        let model = if fault.name.contains("packed") {
            &packed
        } else {
            &dense
        };
        let (code, report) = bench.verify(&name, &["--localize", "-m", model]);
        assert_eq!(code, Some(1), "{name}: {report}");
        let found = &report["localization"];
        match fault.how {
            How::Changed(_) => {
                let want = serde_json::to_value(fault.point).unwrap();
                let finding = &found["finding"];
                assert_eq!(finding["point"], want, "{name}: {finding}");
                let layer = serde_json::to_value(fault.layer).unwrap();
                assert_eq!(finding["layer"], layer, "{name}: {finding}");
            }
            // The prompt is right; the steps after it are not.
            How::Late => {
                assert_eq!(found["finding"], serde_json::Value::Null, "{name}");
                assert_eq!(found["step"]["parts"], true, "{name}");
            }
            // Every norm is wrong, the last one too, and no tensor can be seen.
            How::NarrowSums => {
                assert_eq!(found["method"], "prefix", "{name}");
                assert_eq!(found["finding"]["layer"], serde_json::Value::Null);
            }
        }
    }
}

#[test]
fn the_reference_conforms_as_a_plugin() {
    let bench = Bench::reference();
    let out = bench.conformance("", &["--json"]);
    let report = json(&out);
    assert_eq!(out.status.code(), Some(0), "{}", report["cases"]);
    assert_eq!(report["backend"]["name"], "reference-cpu-plugin");
    assert_eq!(report["outcome"], "pass");
    // It computes in f32 alone, and nothing else is lacking.
    for case in report["cases"].as_array().unwrap() {
        let lacks = case["verdict"] == "unsupported";
        let name = case["name"].as_str().unwrap();
        let narrow = ["/f16/", "/bf16/"].iter().any(|p| name.contains(p));
        assert_eq!(lacks, narrow, "{case}");
    }
}

#[test]
fn what_hangs_or_fails_is_a_verdict_and_no_end() {
    let bench = Bench::new();
    let case = "contract/plain/length-follows-calls";
    for (fault, says) in [
        ("prefill-hang", "no answer within 2 s: the backend hangs"),
        ("decode-panic", "told to panic in decode"),
        ("open-error", "told to fail in open"),
    ] {
        let args = ["--json", "--time-limit", "2", "--only", case];
        let out = bench.conformance(fault, &args);
        assert_eq!(out.status.code(), Some(1), "{fault}: {}", stderr(&out));
        let report = json(&out);
        let detail = report["cases"][0]["detail"].as_str().unwrap();
        assert!(detail.contains(says), "{fault}: {detail}");
    }
}
