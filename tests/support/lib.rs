//! What tests of the program and its plugins share: where things lie, and building them.

pub mod oracle;

use std::path::{Path, PathBuf};
use std::process::Command;

/// The repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A file or folder of the fixtures: `tiny/llama`.
pub fn fixture(path: &str) -> PathBuf {
    root().join("tests/fixtures").join(path)
}

/// The program, and the libraries of `packages` beside it. The test script has built all there is and
/// says where; alone, a test builds what it needs.
///
/// # Panics
/// Where it does not build.
pub fn built(packages: &[&str]) -> PathBuf {
    if let Some(folder) = std::env::var_os("HALFHITCH_TEST_LIBRARIES") {
        return folder.into();
    }
    let mut command = Command::new(env!("CARGO"));
    command.args(["build", "--locked", "-p", "halfhitch"]);
    for package in packages {
        command.args(["-p", package]);
    }
    let status = command.current_dir(root()).status().expect("cargo runs");
    assert!(status.success(), "halfhitch and {packages:?} do not build");
    // The test lies in `deps`, beside them.
    let test = std::env::current_exe().expect("a test has a path");
    test.ancestors()
        .nth(2)
        .expect("a test lies in the build's folder")
        .to_owned()
}

/// The file name of a package's library.
pub fn library(package: &str) -> String {
    format!("lib{}.so", package.replace('-', "_"))
}
