//! `halfhitch verify` as a user runs it.

mod cli_support;

use std::fs;
use std::path::Path;

use cli_support::{fixture, halfhitch, halfhitch_process, talking, talking_in, tiny};
use serde_json::Value;

/// Runs it; exit code, stdout and stderr.
fn verify(model: &Path, args: &[&str]) -> (i32, String, String) {
    let output = halfhitch()
        .args(["verify", "-q", "-m"])
        .arg(model)
        .args(args)
        .output()
        .unwrap();
    (
        output.status.code().unwrap(),
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8(output.stderr).unwrap(),
    )
}

#[test]
fn a_backend_is_as_accurate_as_itself() {
    let (code, out, err) = verify(&tiny(), &["--localize"]);
    assert_eq!((code, err.as_str()), (0, ""));
    for part in [
        "random tokens: 8 with 384 tokens, 128 of them as decode steps",
        "KL mean, nats",
        "100.00 % of 256",
        "no part of the prefill is off",
        "step agrees with its own prefill",
        "\nPASS  within all 15 limits\n",
    ] {
        assert!(out.contains(part), "{part}:\n{out}");
    }
}

#[test]
fn other_weights_fail_with_the_limit_and_the_place() {
    let other = fixture("tiny/llama-f16");
    let (code, out, _) = verify(&tiny(), &["--against-model", other.to_str().unwrap()]);
    assert_eq!(code, 1, "{out}");
    let line = out
        .lines()
        .find(|l| l.starts_with("FAIL  kl-max of prefill is "));
    let line = line.unwrap_or_else(|| panic!("{out}"));
    assert!(
        line.contains("over the limit of 1.00e-8 at `random "),
        "{line}"
    );
    assert!(out.trim_end().ends_with("limits exceeded"), "{out}");
}

#[test]
fn json_and_the_record_are_one_and_hold_no_folder() {
    let folder = tempfile::tempdir().unwrap();
    let record = folder.path().join("gate.json");
    let args = ["--json", "--record", record.to_str().unwrap()];
    let (code, out, err) = verify(&tiny(), &args);
    assert_eq!(code, 0, "{err}");
    let printed: Value = serde_json::from_str(&out).unwrap();
    let written = fs::read_to_string(&record).unwrap();
    assert_eq!(printed, serde_json::from_str::<Value>(&written).unwrap());
    assert_eq!(printed["format"], 1);
    assert_eq!(printed["verdict"], "pass");
    assert_eq!(printed["model"]["name"], "llama");
    assert_eq!(printed["candidate"]["precision"], "f32");
    assert_eq!(printed["candidate"]["kv_dtype"], "f32");
    assert_eq!(printed["overall"]["positions"], 384);
    assert_eq!(printed["checks"].as_array().unwrap().len(), 15);
    let home = fixture("tiny").canonicalize().unwrap();
    assert!(!written.contains(home.to_str().unwrap()), "{written}");
    // Nothing but the record is left.
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

/// The record goes into a pipe, and through a link, and neither is replaced.
#[test]
#[cfg(unix)]
fn a_record_goes_where_the_name_leads() {
    use std::os::unix::fs::{FileTypeExt as _, symlink};

    let folder = tempfile::tempdir().unwrap();
    let fifo = folder.path().join("fifo");
    let made = std::process::Command::new("mkfifo").arg(&fifo).status();
    assert!(made.unwrap().success());
    let link = folder.path().join("link");
    symlink("gate.json", &link).unwrap();
    let from = fifo.clone();
    let reader = std::thread::spawn(move || fs::read_to_string(from).unwrap());
    for path in [&fifo, &link] {
        let (code, _, err) = verify(&tiny(), &["--record", path.to_str().unwrap()]);
        assert_eq!(code, 0, "{err}");
    }
    let passed = |text: &str| serde_json::from_str::<Value>(text).unwrap()["verdict"] == "pass";
    assert!(passed(&reader.join().unwrap()));
    assert!(fs::symlink_metadata(&fifo).unwrap().file_type().is_fifo());
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert!(passed(
        &fs::read_to_string(folder.path().join("gate.json")).unwrap()
    ));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
}

/// What took minutes is printed even where its record finds no room.
#[test]
#[cfg(target_os = "linux")]
fn a_record_on_a_full_disk_leaves_the_verdict() {
    let (code, out, err) = verify(&tiny(), &["--record", "/dev/full"]);
    assert_eq!(code, 1);
    assert!(out.contains("PASS") || out.contains("pass"), "{out}");
    assert!(err.contains("--record: "), "{err}");
    let (code, out, _) = verify(&tiny(), &["--json", "--record", "/dev/full"]);
    assert_eq!(code, 1);
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(report["verdict"], "pass");
}

/// `--record /dev/stdout` with stdout in a file: both are in it.
#[test]
#[cfg(target_os = "linux")]
fn a_record_on_stdout_joins_what_is_printed() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let status = halfhitch_process()
        .args(["verify", "-q", "--record"])
        .arg(&out)
        .arg("-m")
        .arg(tiny())
        .stdout(
            fs::File::options()
                .create(true)
                .append(true)
                .open(&out)
                .unwrap(),
        )
        .status();
    assert!(status.unwrap().success());
    let text = fs::read_to_string(&out).unwrap();
    assert!(text.starts_with("{\n  \"format\""), "{text}");
    assert!(text.contains("\nPASS  within all"), "{text}");
}

#[test]
fn prompts_come_from_a_file_of_texts_or_of_tokens() {
    let folder = tempfile::tempdir().unwrap();
    let tokens = folder.path().join("tokens");
    fs::write(&tokens, "1 2 3, 4\n\n# not this one\n5\n").unwrap();
    let texts = folder.path().join("texts");
    fs::write(&texts, "=== one\nhello\n=== chat: two\nhello\n").unwrap();
    let source = |out: &str| out.lines().nth(2).unwrap().to_owned();

    let (code, out, err) = verify(&tiny(), &["--tokens", tokens.to_str().unwrap()]);
    assert_eq!(code, 0, "{err}");
    // Half of the first prompt, and nothing of one that is a single token.
    assert_eq!(
        source(&out),
        "prompts     tokens: 2 with 5 tokens, 2 of them as decode steps"
    );
    let model = talking();
    let model = talking_in(&model);
    let (code, out, err) = verify(&model, &["--prompts", texts.to_str().unwrap()]);
    assert_eq!(code, 0, "{err}");
    assert!(
        source(&out).starts_with("prompts     texts: 2 with "),
        "{out}"
    );
    let (code, out, err) = verify(&model, &[]);
    assert_eq!(code, 0, "{err}");
    assert!(source(&out).starts_with("prompts     built-in: "), "{out}");
}

#[test]
fn what_cannot_be_run_is_said_on_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (letters, outside, empty) = (
        file("letters", "1 2\n3 x\n"),
        file("outside", "97\n"),
        file("empty", "\n"),
    );
    let talking = talking();
    let talking = talking_in(&talking);
    let cases: &[(&[&str], &str)] = &[
        (&["--tokens", &letters], "line 2: \"x\" is no token id"),
        (
            &["--tokens", &outside],
            "token 97 is outside the vocabulary of 97",
        ),
        (&["--tokens", &empty], "there are no prompts"),
        (&["--tokens", "nowhere"], "nowhere"),
        (&["--prompts", &letters], "the model has no tokenizer"),
        (
            &["--against", "nothing"],
            "--against: there is no backend `nothing`",
        ),
        (&["--against-precision", "f16"], "--against: "),
        (
            &["--record", "nowhere/gate.json"],
            "--record: nowhere/gate.json: cannot write a file in that folder: ",
        ),
        (
            &["--against-model", talking.to_str().unwrap()],
            "the models' vocabularies differ: 97 tokens, and 128",
        ),
    ];
    for (args, says) in cases {
        let (code, out, err) = verify(&tiny(), args);
        assert_eq!((code, out.as_str()), (1, ""), "{args:?}: {err}");
        assert!(
            err.contains(says) && err.lines().count() == 1,
            "{args:?}: {err}"
        );
    }
    for args in [
        &["--limit", "kl-max"],
        &["--limit", "kl-max=x"],
        &["--limit", "top1=-1"],
    ] {
        assert_eq!(verify(&tiny(), args).0, 2, "{args:?}");
    }
}

/// A file that takes minutes, and a Ctrl-C at once.
#[test]
#[cfg(unix)]
fn an_interrupt_ends_it_and_leaves_no_record() {
    let folder = tempfile::tempdir().unwrap();
    let tokens = folder.path().join("tokens");
    fs::write(&tokens, format!("{}\n", "1 ".repeat(200)).repeat(1000)).unwrap();
    let mut child = halfhitch_process()
        .args(["verify", "-q", "-m"])
        .arg(tiny())
        .arg("--tokens")
        .arg(&tokens)
        .arg("--record")
        .arg(folder.path().join("gate.json"))
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    // The record's temporary file is made after the handler is in place and all files are read.
    while fs::read_dir(folder.path()).unwrap().count() < 2 {
        assert!(child.try_wait().unwrap().is_none(), "it ended by itself");
        std::thread::yield_now();
    }
    let interrupt = std::process::Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status()
        .unwrap();
    assert!(interrupt.success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}
