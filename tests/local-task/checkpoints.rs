//! Checkpoints that other programs wrote, with the logits that other programs gave.
//!
//! Every fixture runs in f32 in every run; a choice of them in the narrow precisions, where what differs
//! is how weights are read and rounded, not what a model computes. The feature `models` runs all in
//! every precision. Weights are arguments of what is compiled, so fixtures of one shape share it.

use halfhitch::checkpoint::Checkpoint;
use halfhitch_seam::Precision;
use halfhitch_suite::expected::Expected;
use halfhitch_suite::{Report, numerics};
use halfhitch_test_support::fixture;

use super::{assert_passes, subject};

/// Fixtures that run in f16 and bf16 too: one that is plain, one with each part that the emitter
/// computes in a way of its own, and packed ones of 4 and 8 bits.
const NARROW: [&str; 5] = [
    "tiny/llama",
    "tiny/mistral-window",
    "tiny/qwen3",
    "mlx/llama-q4-g64-bf16",
    "mlx/llama-q8-g64",
];

/// The fixtures of a kind that have logits.
fn all(kind: &str, at_least: usize) -> Vec<String> {
    let folder = fixture(kind);
    let entries =
        std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut found: Vec<String> = entries
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.path().join("expected.json").exists())
        .map(|entry| format!("{kind}/{}", entry.file_name().to_string_lossy()))
        .collect();
    found.sort();
    assert!(found.len() >= at_least, "only {} fixtures", found.len());
    found
}

/// Runs fixtures in some precisions.
fn run(names: &[String], precisions: &[Precision]) -> Report {
    let subject = subject("local-task");
    let mut report = Report::default();
    for name in names {
        let folder = fixture(name);
        let checkpoint = Checkpoint::open(&folder).unwrap_or_else(|e| panic!("{name}: {e}"));
        let text = std::fs::read_to_string(folder.join("expected.json")).unwrap();
        let expected = Expected::from_json(&text).unwrap_or_else(|e| panic!("{name}: {e}"));
        report.extend(numerics::model_cases_in(
            &subject,
            name,
            checkpoint.spec(),
            checkpoint.weights(),
            &expected,
            precisions,
        ));
    }
    report
}

/// Packed widths that this backend does not read, and so refuses: what runs dequantised alone.
fn assert_unsupported_are(report: &Report, names: &[&str]) {
    let mut seen: Vec<&str> = report
        .unsupported()
        .map(|case| case.name.split("-packed/").next().unwrap_or_default())
        .collect();
    seen.dedup();
    assert_eq!(seen, names, "\n{report}");
}

#[test]
fn tiny_checkpoints_give_what_transformers_gives() {
    let report = run(&all("tiny", 15), &[Precision::F32]);
    assert_passes(&report);
    assert_unsupported_are(&report, &[]);
}

#[test]
fn quantised_checkpoints_give_what_mlx_gives() {
    let report = run(&all("mlx", 7), &[Precision::F32]);
    assert_passes(&report);
    assert_unsupported_are(&report, &["mlx/llama-mixed/f32", "mlx/qwen2-q3-g64/f32"]);
}

#[test]
fn narrow_precisions_stay_near() {
    let report = run(
        &NARROW.map(String::from),
        &[Precision::F16, Precision::BF16],
    );
    assert_passes(&report);
    assert_unsupported_are(&report, &[]);
}

#[cfg(feature = "models")]
#[test]
fn every_checkpoint_stays_near_in_every_precision() {
    let names = [all("tiny", 15), all("mlx", 7)].concat();
    assert_passes(&run(&names, &[Precision::F16, Precision::BF16]));
}
