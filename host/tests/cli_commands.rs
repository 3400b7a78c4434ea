//! The commands around generating, and every help text as it is read.

mod cli_support;

use cli_support::{fixture, generate, halfhitch, talking, talking_in, tiny};
use serde_json::Value;

fn stdout(args: &[&str]) -> String {
    let output = halfhitch().args(args).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {stderr}");
    String::from_utf8(output.stdout).unwrap()
}

fn json(args: &[&str]) -> Value {
    serde_json::from_str(&stdout(args)).unwrap()
}

#[test]
fn help_reads_well() {
    insta::assert_snapshot!("help", stdout(&["--help"]));
    let commands = [
        "generate",
        "chat",
        "inspect",
        "plan",
        "graph",
        "tune",
        "verify",
        "conformance",
        "bench",
        "backends",
        "import",
        "quantize",
        "completions",
        "doctor",
    ];
    for command in commands {
        insta::assert_snapshot!(format!("help-{command}"), stdout(&[command, "--help"]));
    }
}

#[test]
fn the_version_is_the_packages() {
    assert_eq!(
        stdout(&["--version"]),
        format!("halfhitch {}\n", env!("CARGO_PKG_VERSION"))
    );
}

#[test]
fn completions_know_every_command() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = stdout(&["completions", shell]);
        for word in ["generate", "verify", "doctor", "prompt-tokens", "packed"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
}

#[test]
fn backends_say_what_devices_can_do() {
    let out = json(&["backends", "--json"]);
    let reference = &out["backends"][0];
    assert_eq!(reference["name"], "reference-cpu:cpu");
    assert_eq!(reference["state"], "ready");
    assert_eq!(reference["reason"], Value::Null);
    let device = &reference["devices"][0];
    assert_eq!(device["device"]["ordinal"], 0);
    assert_eq!(device["precisions"][0], "f32");
    assert!(device["quantization"].is_array() && device["features"].is_array());
    // What is listed can be selected.
    let text = stdout(&["backends"]);
    let selection = text
        .split("--backend ")
        .nth(1)
        .unwrap()
        .split(' ')
        .next()
        .unwrap();
    let args = ["--prompt-tokens", "1", "-n", "1", "--backend", selection];
    assert_eq!(generate(&tiny(), &args)["backend"], "reference-cpu");
}

#[test]
fn plans_have_memory_and_reasons() {
    let folder = talking();
    let model = talking_in(&folder);
    let model = model.to_str().unwrap();
    let plan =
        |more: &[&str]| json(&[&["plan", "--json", "-m", model], more].concat())["plan"].clone();
    let dense = plan(&["--quant", "dequant"]);
    let packed = plan(&["--quant", "packed"]);
    let bytes = |p: &Value| p["memory"]["weights"].as_u64().unwrap();
    assert!(bytes(&packed) < bytes(&dense));
    assert_eq!(
        packed["weights"].as_array().unwrap().len(),
        dense["weights"].as_array().unwrap().len()
    );
    let text = stdout(&["plan", "-m", model, "--quant", "packed", "--context", "64"]);
    let whole = json(&["plan", "--json", "-m", model]);
    assert!(whole["process_bytes"].as_u64().unwrap() > 1 << 20);
    for part in [
        "backend     reference-cpu",
        "process     ",
        "64 tokens: as asked",
        "packed (affine 4-bit g32",
        "free",
    ] {
        assert!(text.contains(part), "no {part:?} in: {text}");
    }
}

#[test]
fn packed_and_expanded_weights_give_the_same_answer() {
    let folder = talking();
    let model = talking_in(&folder);
    let run = |quant| {
        let args = [
            "--raw",
            "-p",
            "ab",
            "-n",
            "12",
            "--ignore-eos",
            "--quant",
            quant,
        ];
        generate(&model, &args)["tokens"].clone()
    };
    assert_eq!(run("packed"), run("dequant"));
}

#[test]
fn inspecting_shows_what_is_there_and_what_is_not() {
    let folder = talking();
    let model = talking_in(&folder);
    let out = json(&["inspect", "--json", "-m", model.to_str().unwrap()]);
    assert_eq!(out["architecture"], "llama");
    assert_eq!(out["tokenizer"]["tokens"], 128);
    assert_eq!(out["chat_template"], true);
    assert_eq!(out["stop_tokens"], serde_json::json!([2]));
    let text = stdout(&["inspect", "-m", model.to_str().unwrap()]);
    for part in [
        "affine 4-bit g32 (f16)",
        "affine 8-bit g32 (f16)",
        "2 <|im_end|>",
    ] {
        assert!(text.contains(part), "no {part:?} in: {text}");
    }
    let bare = stdout(&["inspect", "-m", tiny().to_str().unwrap()]);
    assert!(
        bare.contains("tokenizer     none") && bare.contains("chat template none"),
        "{bare}"
    );
    // A tokenizer that is broken is a warning: inspecting is how one finds out.
    std::fs::write(model.join("tokenizer.json"), "{}").unwrap();
    let text = stdout(&["inspect", "-m", model.to_str().unwrap()]);
    assert!(
        text.contains("warning") && text.contains("tokenizer.json"),
        "{text}"
    );
}

#[test]
fn a_dense_model_is_quantised_and_runs() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("small");
    let out = out.to_str().unwrap();
    let input = tiny();
    let report = json(&[
        "quantize",
        "--json",
        "--bits",
        "8",
        "--group-size",
        "32",
        input.to_str().unwrap(),
        out,
    ]);
    assert!(report["quantized"].as_u64().unwrap() > 0);
    let out = generate(
        out.as_ref(),
        &["--prompt-tokens", "1,2,3", "-n", "4", "--ignore-eos"],
    );
    assert_eq!(out["tokens"].as_array().unwrap().len(), 4);
}

#[test]
fn a_gguf_file_runs_from_the_cache_and_models_have_names() {
    let folder = tempfile::tempdir().unwrap();
    let args = [
        "generate", "--json", "-q", "--raw", "-p", "ab", "-n", "4", "-m",
    ];
    let run = |model: &std::path::Path| {
        let mut command = halfhitch();
        command.args(args).arg(model);
        command.env("HALFHITCH_CACHE_DIR", folder.path().join("cache"));
        command.env("HALFHITCH_MODELS", folder.path());
        let output = command.output().unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let out: Value = serde_json::from_slice(&output.stdout).unwrap();
        out["tokens"].clone()
    };
    let gguf = fixture("gguf/llama-q4_1.gguf");
    let first = run(&gguf);
    assert_eq!(first, run(&gguf));
    assert!(folder.path().join("cache").is_dir());
    halfhitch()
        .arg("import")
        .arg(&gguf)
        .arg(folder.path().join("by-name"))
        .assert()
        .success();
    assert_eq!(first, run("by-name".as_ref()));
}

#[test]
fn doctor_checks_and_says_how_to_fix() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = halfhitch();
    command
        .current_dir(&folder)
        .env("HALFHITCH_CACHE_DIR", folder.path().join("cache"));
    command.args(["doctor", "--json"]);
    let output = command.output().unwrap();
    assert_eq!(
        output.status.code(),
        Some(0),
        "{}",
        String::from_utf8_lossy(&output.stdout)
    );
    let out: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(out["ok"], true);
    let checks = out["checks"].as_array().unwrap();
    let find = |name: &str| checks.iter().find(|c| c["name"] == name).unwrap();
    for name in [
        "processor",
        "memory",
        "backend",
        "cache",
        "models",
        "cargo",
        "cc",
        "python3",
    ] {
        let check = find(name);
        assert!(
            ["ok", "warn"].contains(&check["verdict"].as_str().unwrap()),
            "{check}"
        );
    }
    assert_eq!(find("models")["verdict"], "warn");
    assert!(
        find("models")["fix"]
            .as_str()
            .unwrap()
            .contains("make model")
    );
}

#[cfg(unix)]
#[test]
fn doctor_fails_where_others_can_write_to_the_cache() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o777)).unwrap();
    let mut command = halfhitch();
    command
        .env("HALFHITCH_CACHE_DIR", folder.path())
        .arg("doctor");
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("FAIL  cache") && text.contains("chmod go-w"),
        "{text}"
    );
    assert!(output.stderr.is_empty());
}
