//! Random models: a wrong one is shrunk, kept, and is as wrong for `verify`.

use super::support::{Bench, json, stderr, stdout};

#[test]
fn random_models_pass_on_what_is_right() {
    let bench = Bench::new();
    let out = bench.conformance("", &["--random", "40", "--seed", "3", "--save", "kept"]);
    assert_eq!(
        out.status.code(),
        Some(0),
        "{}{}",
        stdout(&out),
        stderr(&out)
    );
    assert!(!bench.path("kept").exists());
}

#[test]
fn a_wrong_model_is_shrunk_and_kept_and_verify_names_its_fault() {
    let bench = Bench::new();
    let fault = "wrong:wrong-activation";
    let kept = bench.path("kept/wrong-7");
    let args = ["--json", "--random", "200", "--seed", "7", "--save", "kept"];
    let out = bench.conformance(fault, &args);
    let report = json(&out);
    assert_eq!(out.status.code(), Some(1), "{report}");
    let case = &report["cases"][0];
    // The smallest that is still wrong: one layer, and one or two tokens.
    assert_eq!(
        case["model"]["layers"].as_array().unwrap().len(),
        1,
        "{case}"
    );
    let tokens = std::fs::read_to_string(kept.join("tokens.txt")).unwrap();
    assert!(tokens.split_whitespace().count() <= 3, "{tokens}");
    let command = case["reproduce"].as_str().unwrap();
    let Some((_, verify)) = command.split_once("halfhitch verify ") else {
        panic!("{command}");
    };
    let words: Vec<&str> = verify.split(' ').collect();
    let mut again = bench.halfhitch();
    again
        .env("HALFHITCH_FAULT", fault)
        .args(["verify", "-q", "--json"]);
    let out = again.args(words).output().unwrap();
    assert_eq!(out.status.code(), Some(1), "{}", stderr(&out));
    let finding = &json(&out)["localization"]["finding"];
    assert_eq!(finding["layer"], 0);
    assert_eq!(finding["point"], "feed_forward_product");
    // A folder that is there is not written over.
    let out = bench.conformance(fault, &args);
    assert!(
        stdout(&out).contains("exists and is not empty"),
        "{}",
        stdout(&out)
    );
}

#[test]
fn an_interrupted_search_says_what_it_found() {
    let bench = Bench::new();
    let mut command = bench.halfhitch();
    command
        .args(["conformance", "-q", "--json", "--random", "1000000"])
        .stdout(std::process::Stdio::piped());
    let child = command.spawn().unwrap();
    // Long enough for its first models; no million of them fits into it.
    std::thread::sleep(std::time::Duration::from_secs(5));
    let interrupt = std::process::Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status();
    assert!(interrupt.unwrap().success());
    let out = child.wait_with_output().unwrap();
    assert_eq!(out.status.code(), Some(130));
    let report = json(&out);
    assert_eq!(report["outcome"], "interrupted");
}
