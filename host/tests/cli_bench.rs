//! `halfhitch bench`: what is measured, reported and refused. No test looks at a speed.

mod cli_support;

use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;

use cli_support::{copy, halfhitch, halfhitch_process, set, talking, talking_in, tiny};
use predicates::prelude::PredicateBooleanExt;
use predicates::str::contains;
use serde_json::{Value, json};

fn bench(args: &[&str]) -> Value {
    let output = halfhitch()
        .args(["bench", "--json", "-q", "--warmup", "0", "-m"])
        .args(args)
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {stderr}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn every_combination_is_measured_in_every_round() {
    let folder = talking();
    let model = talking_in(&folder);
    let model = model.to_str().unwrap();
    let args = [
        model,
        "--quant",
        "packed,dequant",
        "--batch",
        "1,3",
        "--threads",
        "1",
        "--prefill",
        "5,20",
        "--decode",
        "4",
        "--at",
        "7",
        "--repeats",
        "2",
    ];
    let report = bench(&args);
    assert_eq!(report["backend"], "reference-cpu");
    assert_eq!(report["impossible"], json!([]));
    let all = report["configurations"].as_array().unwrap();
    let what = |m: &Value| {
        let c = &m["configuration"];
        (
            c["quant"].as_str().unwrap().to_owned(),
            c["batch"].as_u64().unwrap(),
        )
    };
    let packed = |batch| ("packed".to_owned(), batch);
    let dequant = |batch| ("dequant".to_owned(), batch);
    let names: Vec<_> = all.iter().map(what).collect();
    assert_eq!(names, [packed(1), packed(3), dequant(1), dequant(3)]);
    for one in all {
        let spreads = [
            &one["load_s"],
            &one["first_token_s"],
            &one["prefill"][0]["tokens_per_s"],
            &one["prefill"][1]["tokens_per_s"],
            &one["decode_tokens_per_s"],
            &one["bandwidth_share"],
            &one["at"][0]["step_s"],
        ];
        for spread in spreads {
            assert_eq!(spread["values"].as_array().unwrap().len(), 2, "{one}");
            assert!(spread["min"].as_f64().unwrap() > 0.0, "{one}");
        }
        assert_eq!(one["prefill"][1]["tokens"], 20);
        assert_eq!(one["at"][0]["position"], 7);
    }
    // A step reads every weight: the embedding of this model is its head.
    let plan = halfhitch()
        .args(["plan", "--json", "--quant", "packed", "-m", model])
        .output()
        .unwrap();
    let plan: Value = serde_json::from_slice(&plan.stdout).unwrap();
    assert_eq!(all[0]["step_bytes"], plan["plan"]["memory"]["weights"]);
    assert!(all[0]["step_bytes"].as_u64() < all[2]["step_bytes"].as_u64());
    let bandwidth = report["bandwidth"].as_array().unwrap();
    assert_eq!(bandwidth.len(), 1);
    assert_eq!(
        bandwidth[0]["bytes_per_s"]["values"]
            .as_array()
            .unwrap()
            .len(),
        2
    );
}

#[test]
fn the_table_names_what_it_shows() {
    let args = [
        "--prefill",
        "5",
        "--decode",
        "4",
        "--at",
        "7",
        "--repeats",
        "1",
    ];
    let assert = halfhitch()
        .args(["bench", "-m"])
        .arg(tiny())
        .args(args)
        .assert()
        .success()
        .stderr(contains("round 1 of 1: auto auto"));
    let text = String::from_utf8(assert.get_output().stdout.clone()).unwrap();
    let head = text.lines().next().unwrap();
    for word in ["prefill 5", "decode 4", "step at 7", "of limit", "peak"] {
        assert!(head.contains(word), "{head}");
    }
    assert!(text.contains("limit: "), "{text}");
}

#[test]
fn what_a_device_refuses_is_left_out_and_said() {
    let model = tiny();
    let small = ["--prefill", "5", "--decode", "4", "--repeats", "1"];
    let mut args = vec![model.to_str().unwrap(), "--quant", "auto,packed"];
    args.extend(small);
    let report = bench(&args);
    assert_eq!(report["configurations"].as_array().unwrap().len(), 1);
    let reason = report["impossible"][0]["reason"].as_str().unwrap();
    assert!(reason.contains("not quantised"), "{reason}");

    halfhitch()
        .args(["bench", "--precision", "bf16", "-m"])
        .arg(&model)
        .args(small)
        .assert()
        .code(1)
        .stderr(contains("does not compute in bf16"));
}

#[test]
fn what_does_not_fit_the_context_is_refused_before_anything_runs() {
    halfhitch()
        .args([
            "bench",
            "--prefill",
            "8",
            "--decode",
            "4",
            "--at",
            "250",
            "-m",
        ])
        .arg(tiny())
        .assert()
        .code(1)
        .stdout("")
        .stderr(contains("259 tokens").and(contains("256")));
}

#[test]
fn wrong_numbers_are_wrong_usage() {
    for bad in [
        ["--repeats", "0"],
        ["--batch", "0"],
        ["--threads", "1,x"],
        ["--warmup", "99999"],
    ] {
        halfhitch()
            .args(["bench", "-m", "none"])
            .args(bad)
            .assert()
            .code(2);
    }
}

#[test]
#[cfg(unix)]
fn ctrl_c_ends_the_run_that_is_going_on() {
    let folder = copy(&tiny());
    let config = folder.path().join("config.json");
    set(&config, "max_position_embeddings", json!(10_000_000));
    let mut child = halfhitch_process()
        .args(["bench", "--decode", "9000000", "--warmup", "0", "-m"])
        .arg(folder.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.starts_with("round 1") {
        line.clear();
        assert!(stderr.read_line(&mut line).unwrap() > 0);
    }
    // This process alone: it has to end the other one.
    let pid = child.id().to_string();
    let sent = std::process::Command::new("kill")
        .args(["-INT", &pid])
        .status();
    assert!(sent.unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let mut rest = String::new();
    stderr.read_to_string(&mut rest).unwrap();
    assert!(!rest.contains("error"), "{rest}");
    #[cfg(target_os = "linux")]
    assert_eq!(processes_naming(folder.path()), Vec::<String>::new());
}

/// Command lines of running processes that hold a path.
#[cfg(target_os = "linux")]
fn processes_naming(path: &std::path::Path) -> Vec<String> {
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    all.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok())
        .map(|line| String::from_utf8_lossy(&line).replace('\0', " "))
        .filter(|line| line.contains(path.to_str().unwrap()))
        .collect()
}
