//! Checkpoints that other programs wrote, with the logits that other programs gave.

use std::path::{Path, PathBuf};

use halfhitch::checkpoint::Checkpoint;
use halfhitch_suite::expected::Expected;
use halfhitch_suite::{Report, numerics};

use crate::{assert_all_pass, subject};

/// Runs every folder of `tests/fixtures/KIND` that has an `expected.json`.
fn run(kind: &str) -> (usize, Report) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("fixtures")
        .join(kind);
    let mut folders: Vec<PathBuf> = std::fs::read_dir(&root)
        .unwrap_or_else(|e| panic!("{}: {e}", root.display()))
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.join("expected.json").exists())
        .collect();
    folders.sort();
    let mut report = Report::default();
    for folder in &folders {
        let name = folder.file_name().unwrap().to_string_lossy();
        let text = std::fs::read_to_string(folder.join("expected.json")).unwrap();
        let expected = Expected::from_json(&text).unwrap_or_else(|e| panic!("{name}: {e}"));
        let checkpoint = Checkpoint::open(folder).unwrap_or_else(|e| panic!("{name}: {e}"));
        let name = format!("{kind}/{name}");
        report.extend(numerics::model_cases(
            &subject(),
            &name,
            checkpoint.spec(),
            checkpoint.weights(),
            &expected,
        ));
    }
    (folders.len(), report)
}

#[test]
fn tiny_checkpoints_give_what_transformers_gives() {
    let (folders, report) = run("tiny");
    assert!(folders >= 15, "only {folders} folders");
    assert_all_pass(&report);
}

#[test]
fn quantised_checkpoints_give_what_mlx_gives() {
    let (folders, report) = run("mlx");
    assert!(folders >= 7, "only {folders} folders");
    assert_all_pass(&report);
}
