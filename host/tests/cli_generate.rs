//! `halfhitch generate` and `halfhitch chat`, as a program and as a person see them.

mod cli_support;

use cli_support::{copy, fixture, generate, halfhitch, set, talking, talking_in, tiny};
use serde_json::{Value, json};

const TOKENS: [&str; 2] = ["--prompt-tokens", "1,2,3"];

fn stdout(args: &[&str], model: &std::path::Path, input: &str) -> String {
    let mut command = halfhitch();
    command.args(args).arg("-m").arg(model).write_stdin(input);
    let output = command.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {stderr}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn json_is_one_object_with_all_that_was_promised() {
    let args = [
        TOKENS[0],
        TOKENS[1],
        "-n",
        "5",
        "--top-logits",
        "3",
        "--ignore-eos",
    ];
    let out = generate(&tiny(), &args);
    assert_eq!(out["prompt_tokens"], json!([1, 2, 3]));
    assert_eq!(out["text"], Value::Null);
    assert_eq!(out["finish_reason"], "length");
    assert_eq!(out["backend"], "reference-cpu");
    assert_eq!(out["device"]["ordinal"], 0);
    assert_eq!(out["plan"]["context"], 256);
    assert_eq!(out["plan"]["precision"], "f32");
    assert_eq!(out["seed"], Value::Null);
    let timings = out["timings"].as_object().unwrap();
    let names: Vec<&str> = timings.keys().map(String::as_str).collect();
    let promised = [
        "load_s",
        "compile_s",
        "ttft_s",
        "prefill_tokens_per_s",
        "decode_tokens_per_s",
    ];
    assert_eq!(names, promised);
    assert!(
        timings
            .values()
            .all(|v| v.as_f64().is_some_and(|s| s >= 0.0)),
        "{timings:?}"
    );
    #[cfg(target_os = "linux")]
    assert!(out["peak_rss_bytes"].as_u64().unwrap() > 1 << 20);

    let tokens = out["tokens"].as_array().unwrap();
    let steps = out["top_logits"].as_array().unwrap();
    assert_eq!((tokens.len(), steps.len()), (5, 5));
    for (token, step) in tokens.iter().zip(steps) {
        let step = step.as_array().unwrap();
        assert_eq!(step.len(), 3);
        assert_eq!(&step[0]["id"], token, "greedy takes the largest");
        let logits: Vec<f64> = step.iter().map(|t| t["logit"].as_f64().unwrap()).collect();
        assert!(logits.is_sorted_by(|a, b| a >= b), "{logits:?}");
    }
}

#[test]
fn logits_are_those_of_transformers() {
    let expected: Value =
        serde_json::from_slice(&std::fs::read(fixture("tiny/llama/expected.json")).unwrap())
            .unwrap();
    let first = &expected["sequences"][0];
    let ids = |v: &Value| {
        v.as_array()
            .unwrap()
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
    };
    let prompt = ids(&first["prompt"]).join(",");
    let n = first["steps"].as_array().unwrap().len().to_string();
    let args = [
        "--prompt-tokens",
        &prompt,
        "-n",
        &n,
        "--top-logits",
        "97",
        "--ignore-eos",
    ];
    let out = generate(&tiny(), &args);
    assert_eq!(out["tokens"], first["steps"]);
    for (step, row) in out["top_logits"]
        .as_array()
        .unwrap()
        .iter()
        .zip(first["logits"].as_array().unwrap())
    {
        for top in step.as_array().unwrap() {
            let want = row[top["id"].as_u64().unwrap() as usize].as_f64().unwrap();
            let got = top["logit"].as_f64().unwrap();
            assert!((got - want).abs() < 1e-4, "{top}: {want}");
        }
    }
}

#[test]
fn without_a_tokenizer_tokens_are_printed() {
    let out = generate(&tiny(), &[TOKENS[0], TOKENS[1], "-n", "3", "--ignore-eos"]);
    let ids: Vec<String> = out["tokens"]
        .as_array()
        .unwrap()
        .iter()
        .map(ToString::to_string)
        .collect();
    let args = ["generate", TOKENS[0], TOKENS[1], "-n", "3", "--ignore-eos"];
    assert_eq!(stdout(&args, &tiny(), ""), ids.join(",") + "\n");
}

#[test]
fn the_same_seed_gives_the_same_text_and_another_another() {
    let folder = talking();
    let model = talking_in(&folder);
    let run = |seed: &str| {
        let sampling = [
            "--temperature",
            "1.5",
            "--top-k",
            "40",
            "--top-p",
            "0.95",
            "--seed",
            seed,
        ];
        let args = [
            &["--raw", "-p", "ab", "-n", "40", "--ignore-eos"],
            &sampling[..],
        ]
        .concat();
        let out = generate(&model, &args);
        assert_eq!(out["seed"].to_string(), seed);
        out["tokens"].clone()
    };
    assert_eq!(run("7"), run("7"));
    assert_ne!(run("7"), run("8"));
}

#[test]
fn an_unsaid_seed_is_reported_and_repeats_the_run() {
    let folder = talking();
    let model = talking_in(&folder);
    let args = [
        "--raw",
        "-p",
        "ab",
        "-n",
        "30",
        "--temperature",
        "2",
        "--ignore-eos",
    ];
    let first = generate(&model, &args);
    let seed = first["seed"].to_string();
    let again = generate(&model, &[&args[..], &["--seed", &seed]].concat());
    assert_eq!(first["tokens"], again["tokens"]);
}

#[test]
fn a_stop_text_cuts_the_answer_before_it() {
    let folder = talking();
    let model = talking_in(&folder);
    let args = ["--raw", "-p", "ab", "-n", "40", "--ignore-eos"];
    let whole = generate(&model, &args)["text"].as_str().unwrap().to_owned();
    let middle: String = whole.chars().skip(3).take(2).collect();
    let out = generate(
        &model,
        &[&args[..], &["--stop", "never there", "--stop", &middle]].concat(),
    );
    assert_eq!(out["finish_reason"], "stop");
    assert_eq!(
        out["text"].as_str().unwrap(),
        whole.split(&middle).next().unwrap()
    );
}

#[test]
fn the_context_bounds_the_answer() {
    let args = [TOKENS[0], TOKENS[1], "--context", "8", "--ignore-eos"];
    let out = generate(&tiny(), &args);
    assert_eq!(out["finish_reason"], "length");
    // Eight places less the prompt's three, and the last token needs none.
    assert_eq!(out["tokens"].as_array().unwrap().len(), 6);
}

#[test]
fn a_stop_token_of_the_model_ends_the_answer() {
    let folder = copy(&tiny());
    let args = [TOKENS[0], TOKENS[1], "-n", "6", "--ignore-eos"];
    let tokens = generate(&tiny(), &args)["tokens"].clone();
    set(
        &folder.path().join("generation_config.json"),
        "eos_token_id",
        json!([tokens[0]]),
    );
    let out = generate(folder.path(), &args[..4]);
    assert_eq!(out["finish_reason"], "stop");
    assert_eq!(out["tokens"], json!([tokens[0]]));
    assert_eq!(generate(folder.path(), &args)["tokens"], tokens);
}

#[test]
fn prompts_come_from_flags_files_and_pipes_alike() {
    let folder = talking();
    let model = talking_in(&folder);
    let file = folder.path().join("prompt.txt");
    std::fs::write(&file, "ab ba\n").unwrap();
    let common = ["generate", "-q", "-n", "12", "--ignore-eos"];
    let with = |more: &[&str], input: &str| stdout(&[&common[..], more].concat(), &model, input);
    let flag = with(&["-p", "ab ba"], "");
    assert_eq!(flag, with(&["-f", file.to_str().unwrap()], ""));
    assert_eq!(flag, with(&["-f", "-"], "ab ba\n"));
    assert_eq!(flag, with(&[], "ab ba\n"));
}

#[test]
fn the_template_is_the_default_and_can_be_left_out() {
    let folder = talking();
    let model = talking_in(&folder);
    let tokens = |args: &[&str]| generate(&model, &[&["-p", "ab", "-n", "1"], args].concat());
    let default = tokens(&[])["prompt_tokens"].clone();
    assert_eq!(default, tokens(&["--chat"])["prompt_tokens"]);
    let raw = tokens(&["--raw"])["prompt_tokens"].clone();
    let system = tokens(&["--system", "be brief"])["prompt_tokens"].clone();
    let len = |v: &Value| v.as_array().unwrap().len();
    assert!(len(&raw) < len(&default) && len(&default) < len(&system));
}

#[test]
fn the_stats_line_is_on_stderr_unless_quiet() {
    let mut command = halfhitch();
    command
        .args([
            "generate",
            TOKENS[0],
            TOKENS[1],
            "-n",
            "4",
            "--ignore-eos",
            "-m",
        ])
        .arg(tiny());
    let output = command.output().unwrap();
    let line = String::from_utf8(output.stderr).unwrap();
    for part in ["load ", "first token ", "prefill ", "decode ", "tok/s"] {
        assert!(line.contains(part), "{line}");
    }
    assert_eq!(line.lines().count(), 1);
    let quiet = command.arg("-q").output().unwrap();
    assert!(quiet.stderr.is_empty());
}

#[test]
fn threads_change_nothing_but_the_time() {
    let run = |threads| {
        let args = [
            TOKENS[0],
            TOKENS[1],
            "-n",
            "9",
            "--top-logits",
            "9",
            "--threads",
            threads,
        ];
        let out = generate(&tiny(), &args);
        (out["tokens"].clone(), out["top_logits"].clone())
    };
    assert_eq!(run("1"), run("3"));
}

#[test]
fn a_chat_through_a_pipe_answers_each_line() {
    let folder = talking();
    let model = talking_in(&folder);
    let args = ["chat", "-q", "-n", "8", "--ignore-eos"];
    let both = stdout(&args, &model, "ab\n\nba\n");
    let first = stdout(&args, &model, "ab\n");
    assert!(both.starts_with(&first) && both.len() > first.len());
    // Starting over gives the first answer again; nothing is read after leaving.
    let again = stdout(&args, &model, "ab\n/reset\nab\n/exit\nba\n");
    assert_eq!(again, first.repeat(2));
    // A system message makes it another conversation, and takes the old one away.
    let brief = stdout(&args, &model, "ab\n/system be brief\nab\n/system\nab\n");
    assert!(
        brief.starts_with(&first) && brief.ends_with(&first),
        "{brief}"
    );
}

#[test]
fn a_prefix_that_is_kept_changes_no_answer() {
    let folder = talking();
    let model = talking_in(&folder);
    let args = ["chat", "-q", "-n", "8"];
    let chat = stdout(&args, &model, "ab\nba\n");
    let mut lines = chat.split_inclusive('\n');
    let first = lines.next().unwrap().trim_end_matches('\n').to_owned();
    // The same conversation in one go, without any cache: the template written by hand.
    let turn = |role: &str, text: &str| format!("<|im_start|>{role}\n{text}<|im_end|>\n");
    let prompt = turn("user", "ab")
        + &turn("assistant", &first)
        + &turn("user", "ba")
        + "<|im_start|>assistant\n";
    let once = stdout(
        &["generate", "-q", "--raw", "-n", "8", "-p", &prompt],
        &model,
        "",
    );
    let rest: String = chat[first.len() + 1..].into();
    assert_eq!(rest, once);
}
