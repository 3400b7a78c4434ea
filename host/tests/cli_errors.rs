//! What goes wrong, as a user sees it: one line on stderr that says what and where, the exit code, and
//! nothing on stdout.

mod cli_support;

use std::fs;
use std::path::Path;

use cli_support::{copy, fixture, halfhitch, set, talking, talking_in, tiny};
use predicates::prelude::*;
use serde_json::{Value, json};

/// Runs a command that must fail with exit code 1 and one line on stderr that holds all of `parts`.
fn fails(args: &[&str], model: &Path, parts: &[&str]) {
    let mut command = halfhitch();
    command.args(args).arg("-m").arg(model).write_stdin("");
    let output = command.output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{args:?}: {stderr}");
    assert!(
        stderr.starts_with("error: ") && stderr.lines().count() == 1,
        "{args:?}: {stderr}"
    );
    for part in parts {
        assert!(stderr.contains(part), "{args:?}: no {part:?} in: {stderr}");
    }
    assert!(output.stdout.is_empty(), "{args:?}: {:?}", output.stdout);
}

const GENERATE: [&str; 3] = ["generate", "--prompt-tokens", "1,2,3"];

#[test]
fn requests_that_cannot_be_met() {
    let long = vec!["1"; 300].join(",");
    let cases: [(&[&str], &[&str]); 12] = [
        (
            &["generate", "--prompt-tokens", ""],
            &["the prompt is empty"],
        ),
        (&["generate"], &["the prompt is empty"]),
        (&["generate", "-p", ""], &["the prompt is empty"]),
        (
            &["generate", "-p", "x"],
            &["tiny/llama", "tokenizer.json", "--prompt-tokens"],
        ),
        (&["chat"], &["tokenizer.json"]),
        (
            &["generate", "--prompt-tokens", &long],
            &[
                "the prompt has 300 tokens",
                "the context holds 256",
                "--context",
            ],
        ),
        (
            &["generate", "--prompt-tokens", "1,2,3", "--context", "2"],
            &["the prompt has 3 tokens", "holds 2"],
        ),
        (
            &["generate", "--prompt-tokens", "1,97"],
            &["token 97", "position 1", "vocabulary of 97"],
        ),
        (
            &["generate", "--prompt-tokens", "1", "--stop", "x"],
            &["stop texts need a tokenizer"],
        ),
        (
            &["plan", "--context", "999"],
            &["999", "the model's limit", "at most 256"],
        ),
        (
            &["plan", "--quant", "packed"],
            &["not quantised", "halfhitch quantize"],
        ),
        (&["plan", "--precision", "f16"], &["f16", "it offers f32"]),
    ];
    for (args, parts) in cases {
        fails(args, &tiny(), parts);
    }
}

#[test]
fn models_that_are_not_there() {
    let cases: [(&str, &[&str]); 4] = [
        (
            "no-such-model",
            &["no model `no-such-model`", "models/no-such-model"],
        ),
        ("/no/such/folder", &["/no/such/folder"]),
        (
            "/etc/hostname",
            &["neither a model folder nor a .gguf file"],
        ),
        ("/", &["config.json"]),
    ];
    for (model, parts) in cases {
        for command in ["inspect", "plan"] {
            fails(&[command], Path::new(model), parts);
        }
        fails(&GENERATE, Path::new(model), parts);
    }
}

#[test]
fn backends_that_are_not_there() {
    let cases: [(&str, &[&str]); 3] = [
        (
            "nope",
            &["no backend `nope`", "available: reference-cpu:cpu"],
        ),
        (
            "reference-cpu:gpu",
            &["no driver `gpu`", "reference-cpu:cpu"],
        ),
        ("reference-cpu:cpu:7", &["no device `7`", "available: 0"]),
    ];
    for (backend, parts) in cases {
        fails(
            &[&GENERATE[..], &["--backend", backend]].concat(),
            &tiny(),
            parts,
        );
    }
}

/// A way to spoil a model folder, and what is said about it.
type Spoilt = (fn(&Path), &'static [&'static str]);

#[test]
fn folders_that_are_broken() {
    let cases: [Spoilt; 7] = [
        (
            |f| fs::write(f.join("config.json"), "{\"a\": ").unwrap(),
            &["config.json"],
        ),
        (
            |f| fs::remove_file(f.join("config.json")).unwrap(),
            &["config.json"],
        ),
        (
            |f| fs::remove_file(f.join("model.safetensors")).unwrap(),
            &["model.safetensors"],
        ),
        (
            |f| set(&f.join("config.json"), "model_type", json!("mamba")),
            &["config.json", "mamba", "llama"],
        ),
        (
            |f| {
                set(
                    &f.join("config.json"),
                    "num_hidden_layers",
                    json!(1_000_000_000_000u64),
                )
            },
            &["config.json", "num_hidden_layers"],
        ),
        (
            |f| {
                let file = f.join("model.safetensors");
                let bytes = fs::read(&file).unwrap();
                fs::write(&file, &bytes[..bytes.len() / 2]).unwrap();
            },
            &["model.safetensors"],
        ),
        (nan_weights, &["not finite"]),
    ];
    for (spoil, parts) in cases {
        let folder = copy(&tiny());
        spoil(folder.path());
        fails(&GENERATE, folder.path(), parts);
    }
}

/// Makes the last weight of the file a NaN.
fn nan_weights(folder: &Path) {
    let file = folder.join("model.safetensors");
    let mut bytes = fs::read(&file).unwrap();
    let at = bytes.len() - 4;
    bytes[at..].copy_from_slice(&f32::NAN.to_le_bytes());
    fs::write(file, bytes).unwrap();
}

/// The same for a command of its own.
type SpoiltFor = (fn(&Path), &'static [&'static str], &'static [&'static str]);

#[test]
fn tokenizers_and_templates_that_are_broken() {
    let folder = talking();
    let cases: [SpoiltFor; 4] = [
        (
            |f| fs::write(f.join("tokenizer.json"), "{}").unwrap(),
            &["generate", "-p", "ab"],
            &["tokenizer.json"],
        ),
        (
            |f| {
                let forever = "{% for a in range(99999) %}{% for b in range(99999) %}x\
                               {% endfor %}{% endfor %}";
                set(
                    &f.join("tokenizer_config.json"),
                    "chat_template",
                    json!(forever),
                );
            },
            &["generate", "-p", "ab"],
            &["template"],
        ),
        (
            |f| {
                set(
                    &f.join("tokenizer_config.json"),
                    "chat_template",
                    json!("{% if %}"),
                )
            },
            &["generate", "-p", "ab"],
            &["template"],
        ),
        (
            |f| {
                set(
                    &f.join("tokenizer_config.json"),
                    "chat_template",
                    Value::Null,
                )
            },
            &["generate", "-p", "ab", "--chat"],
            &["no chat template", "--raw"],
        ),
    ];
    for (spoil, args, parts) in cases {
        let spoilt = copy(&talking_in(&folder));
        spoil(spoilt.path());
        fails(args, spoilt.path(), parts);
    }
}

#[test]
fn a_broken_template_is_in_nobodys_way_who_does_not_use_it() {
    let folder = talking();
    let model = talking_in(&folder);
    set(
        &model.join("tokenizer_config.json"),
        "chat_template",
        json!("{% if %}"),
    );
    let mut command = halfhitch();
    command
        .args(["generate", "--raw", "-p", "ab", "-n", "1", "-m"])
        .arg(&model);
    command.assert().success();
}

#[test]
fn prompt_files_that_are_none() {
    let folder = talking();
    let model = talking_in(&folder);
    let binary = folder.path().join("binary");
    fs::write(&binary, b"ab\xff").unwrap();
    let empty = folder.path().join("empty");
    fs::write(&empty, "\n").unwrap();
    let cases: [(&str, &[&str]); 3] = [
        ("/no/such/file", &["prompt file /no/such/file"]),
        (binary.to_str().unwrap(), &["binary", "byte 2 is not UTF-8"]),
        (empty.to_str().unwrap(), &["the prompt is empty"]),
    ];
    for (file, parts) in cases {
        fails(&["generate", "-f", file], &model, parts);
    }
}

#[test]
fn conversions_that_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let quantized = talking();
    let there = fixture("tiny/llama");
    let gguf = fixture("gguf/llama-q6_k.gguf");
    let cases: [(&str, &Path, &Path, &[&str]); 4] = [
        ("import", &gguf, &out, &["llama-q6_k.gguf", "Q6_K"]),
        (
            "import",
            Path::new("/no/such.gguf"),
            &out,
            &["/no/such.gguf"],
        ),
        (
            "import",
            &fixture("gguf/llama-f16.gguf"),
            &there,
            &["tiny/llama"],
        ),
        ("quantize", &talking_in(&quantized), &out, &["quantised"]),
    ];
    for (command, input, output, parts) in cases {
        let assert = halfhitch().arg(command).args([input, output]).assert();
        let assert = assert.code(1).stdout("");
        let stderr = String::from_utf8(assert.get_output().stderr.clone()).unwrap();
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
        for part in parts {
            assert!(stderr.contains(part), "no {part:?} in: {stderr}");
        }
        assert!(!out.exists());
    }
}

#[test]
fn wrong_usage_is_told_apart_from_failure() {
    let cases: [(&[&str], &str); 14] = [
        (&["--temperature", "-1"], "a number from 0 up is wanted"),
        (&["--temperature", "hot"], "a number from 0 up is wanted"),
        (&["--top-p", "1.5"], "a number from 0 to 1 is wanted"),
        (&["--min-p", "nan"], "a number from 0 to 1 is wanted"),
        (&["--repetition-penalty", "0"], "a number over 0 is wanted"),
        (&["-n", "0"], "a whole number from 1 up is wanted"),
        (&["--context", "0"], "a whole number from 1 up is wanted"),
        (&["--threads", "5000"], "a number from 1 to 1024 is wanted"),
        (&["--precision", "f8"], "one of f32, f16, bf16"),
        (&["--quant", "maybe"], "packed"),
        (&["--backend", "a::0"], "backend[:driver[:selector]]"),
        (&["--stop", ""], "would stop at once"),
        (&["--top-logits", "3"], "--json"),
        (&["--chat"], "cannot be used with"),
    ];
    for (args, message) in cases {
        let mut command = halfhitch();
        command.args(GENERATE).arg("-m").arg(tiny()).args(args);
        command
            .assert()
            .code(2)
            .stdout("")
            .stderr(predicate::str::contains(message));
    }
    for args in [
        &["nope"][..],
        &["generate"],
        &["generate", "-m", "x", "--prompt-tokens", "1,x"],
    ] {
        halfhitch().args(args).assert().code(2).stdout("");
    }
}

#[test]
fn with_json_a_failure_is_an_object_too() {
    let mut command = halfhitch();
    command
        .args(["generate", "--json", "--prompt-tokens", "1,97", "-m"])
        .arg(tiny());
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let out: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(out["error"]["code"], "invalid_input");
    assert!(
        out["error"]["message"]
            .as_str()
            .unwrap()
            .contains("token 97")
    );
    assert_eq!(String::from_utf8(output.stderr).unwrap().lines().count(), 1);
}

#[test]
fn names_cannot_forge_output() {
    let name = Path::new("x\nerror: forged\u{1b}[2J");
    let output = halfhitch()
        .args(["inspect", "-m"])
        .arg(name)
        .output()
        .unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(!stderr.contains('\u{1b}'));
}
