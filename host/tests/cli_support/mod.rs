//! Running the program as a user does.
// Each test file uses its own part of this.
#![allow(dead_code)]

use std::fs;
use std::path::{Path, PathBuf};

use assert_cmd::Command;
use serde_json::Value;
use tempfile::TempDir;

/// The program, away from the models, caches and settings of whoever runs the tests.
pub fn halfhitch() -> Command {
    let mut command = Command::cargo_bin("halfhitch").unwrap();
    isolate(|name| {
        command.env_remove(name);
    });
    command
}

/// The same for tests that have to hold on to the running process.
pub fn halfhitch_process() -> std::process::Command {
    let mut command = std::process::Command::new(assert_cmd::cargo::cargo_bin!("halfhitch"));
    isolate(|name| {
        command.env_remove(name);
    });
    command
}

fn isolate(mut remove: impl FnMut(&str)) {
    for name in [
        "HALFHITCH_LOG",
        "HALFHITCH_MODELS",
        "HALFHITCH_PLUGIN_PATH",
        "COLUMNS",
    ] {
        remove(name);
    }
}

/// A file or folder of `tests/fixtures`.
pub fn fixture(path: &str) -> PathBuf {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures");
    let path = fixtures.join(path);
    assert!(path.exists(), "{} is missing", path.display());
    path
}

/// A tiny model without a tokenizer: vocabulary 97, context 256.
pub fn tiny() -> PathBuf {
    fixture("tiny/llama")
}

/// A tiny model with a byte-level tokenizer and a chat template: vocabulary 128, context 256.
pub fn talking() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("talking");
    halfhitch()
        .arg("import")
        .args([&fixture("gguf/llama-q4_1.gguf"), &model])
        .assert()
        .success();
    folder
}

/// The model of [`talking`] in its folder.
pub fn talking_in(folder: &TempDir) -> PathBuf {
    folder.path().join("talking")
}

/// A copy of a model folder that can be spoilt.
pub fn copy(model: &Path) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(model).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), folder.path().join(entry.file_name())).unwrap();
    }
    folder
}

/// Changes one value of a JSON file.
pub fn set(file: &Path, key: &str, value: Value) {
    let mut content: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    content[key] = value;
    fs::write(file, content.to_string()).unwrap();
}

/// Runs `generate --json` on a model and gives the object.
pub fn generate(model: &Path, args: &[&str]) -> Value {
    let output = halfhitch()
        .args(["generate", "--json", "-q", "-m"])
        .arg(model)
        .args(args)
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {stderr}");
    serde_json::from_slice(&output.stdout).unwrap()
}
