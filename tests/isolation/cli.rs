//! The program with `--isolate`, as a user runs it.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::process::{Child, Command, Output};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::pty::OpenptFlags;
use serde_json::{Value, json};

use crate::support::{
    Bench, PROMPT, PROMPTED, children, fixture, runs, signal, stderr, tiny, tokens, wait,
};

/// The error line of a run that must have failed.
fn failure(out: &Output) -> String {
    assert_eq!(out.status.code(), Some(1), "{}", stderr(out));
    let text = stderr(out);
    let errors: Vec<&str> = text.lines().filter(|l| l.starts_with("error:")).collect();
    assert_eq!(errors.len(), 1, "{text}");
    errors[0].to_owned()
}

#[test]
fn tokens_are_the_same_with_and_without() {
    let bench = Bench::new();
    let run = |args: &[&str]| tokens(&bench.generate("none", args).output().unwrap());
    let plain = run(&["--json"]);
    assert_eq!(run(&["--json", "--isolate"]), plain);
    let sampled = ["--json", "--temperature", "0.9", "--seed", "7"];
    let isolated = [&sampled[..], &["--isolate"]].concat();
    assert_eq!(run(&isolated), run(&sampled));

    let mut by_environment = bench.generate("prefill-noise", &["--json"]);
    by_environment.env("HALFHITCH_ISOLATE", "1");
    assert_eq!(tokens(&by_environment.output().unwrap()), plain);
    // The same noise in this process, where it is not caught.
    let noisy = bench
        .generate("prefill-noise", &["--json"])
        .output()
        .unwrap();
    assert!(serde_json::from_slice::<Value>(&noisy.stdout).is_err());
}

#[test]
fn the_built_in_backend_is_isolated_too() {
    let bench = Bench::new();
    let run = |more: &[&str]| {
        let mut command = bench.command("none", &["generate", "--json"]);
        command.args(PROMPTED).args(more).arg("-m").arg(tiny());
        tokens(&command.output().unwrap())
    };
    assert_eq!(run(&["--isolate", "--threads", "2"]), run(&[]));
}

#[test]
fn a_crash_is_one_line_and_exit_code_1() {
    let bench = Bench::new();
    for (fault, says) in [
        ("decode-crash", "SIGSEGV"),
        ("open-abort", "SIGABRT"),
        ("prefill-exit", "exit code 3"),
        ("create-kill", "SIGKILL"),
    ] {
        let out = bench.generate(fault, &["--isolate"]).output().unwrap();
        let line = failure(&out);
        assert!(
            line.contains(says) && line.contains("told to"),
            "{fault}: {line}"
        );
    }
    // With --json it is an object as well.
    let mut command = bench.generate("decode-crash", &["--isolate", "--json"]);
    let out = command.output().unwrap();
    failure(&out);
    let object: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(object["error"]["code"], "backend");
}

#[test]
fn a_hang_ends_after_the_time_that_is_granted() {
    let bench = Bench::new();
    let args = ["--isolate", "--isolate-timeout", "1"];
    let start = Instant::now();
    let line = failure(&bench.generate("decode-hang", &args).output().unwrap());
    assert!(
        line.contains("no sign of life for 1 s while decoding"),
        "{line}"
    );
    assert!(start.elapsed() < PROMPT);
}

#[test]
fn a_list_of_backends_survives_each_of_them() {
    let bench = Bench::new();
    let mut command = bench.command("devices-crash", &["backends", "--json", "--isolate"]);
    let out = command.output().unwrap();
    assert!(out.status.success(), "{}", stderr(&out));
    let list: Value = serde_json::from_slice(&out.stdout).unwrap();
    let row = |name: &str| {
        let mut rows = list["backends"].as_array().unwrap().iter();
        rows.find(|r| r["name"] == name).unwrap().clone()
    };
    assert_eq!(row("reference-cpu:cpu")["state"], "ready");
    let faulty = row("faulty:cpu");
    assert_eq!(faulty["state"], "failed");
    assert!(
        faulty["reason"].as_str().unwrap().contains("SIGSEGV"),
        "{faulty}"
    );
}

#[test]
fn other_commands_run_isolated_as_well() {
    let bench = Bench::new();
    let tiny = tiny();
    let tiny = tiny.to_str().unwrap();
    let verify = ["verify", "--isolate", "-b", "faulty", "-m", tiny, "--json"];
    let out = bench.command("none", &verify).output().unwrap();
    assert!(out.status.success(), "{}", stderr(&out));
    let record: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(record["verdict"], "pass");
    let plan = ["plan", "--isolate", "-b", "faulty", "-m", tiny];
    assert!(
        bench
            .command("none", &plan)
            .output()
            .unwrap()
            .status
            .success()
    );

    // A crash in a process of a measurement is that measurement's error.
    let crash = ["bench", "--isolate", "-b", "faulty", "-m", tiny];
    let short = [
        "--prefill",
        "4",
        "--decode",
        "4",
        "--repeats",
        "1",
        "--warmup",
        "0",
    ];
    let args = [&crash[..], &short].concat();
    let line = failure(&bench.command("decode-abort", &args).output().unwrap());
    assert!(line.contains("measuring"), "{line}");
    let args = [&args[..], &["--json"]].concat();
    let out = bench.command("none", &args).output().unwrap();
    assert!(out.status.success(), "{}", stderr(&out));
    let report: Value = serde_json::from_slice(&out.stdout).unwrap();
    let isolated = |i: usize| &report["configurations"][i]["configuration"]["isolated"];
    assert_eq!([isolated(0), isolated(1)], [&json!(false), &json!(true)]);
    let ratio = report["isolation"][0]["decode"]["median"].as_f64().unwrap();
    assert!(ratio > 0.0 && ratio.is_finite());
}

/// A run whose answer takes far longer than any test waits, and the backend's process.
fn start_endless(bench: &Bench, model: &std::path::Path) -> (Child, u32) {
    let args = [
        "generate",
        "--isolate",
        "--backend",
        "faulty",
        "-n",
        "9999999",
    ];
    let mut command = bench.command("none", &args);
    command.args(["--ignore-eos", "--prompt-tokens", "1,2,3", "-m"]);
    let mut child = command.arg(model).spawn().unwrap();
    let mut some = [0; 16];
    child
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut some)
        .unwrap();
    let backends = children(child.id());
    assert_eq!(backends.len(), 1);
    (child, backends[0])
}

fn endless() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(tiny()).unwrap().flatten() {
        std::fs::copy(entry.path(), folder.path().join(entry.file_name())).unwrap();
    }
    let config = folder.path().join("config.json");
    let mut content: Value = serde_json::from_slice(&std::fs::read(&config).unwrap()).unwrap();
    content["max_position_embeddings"] = json!(10_000_000);
    std::fs::write(config, content.to_string()).unwrap();
    folder
}

#[test]
fn a_child_killed_midway_is_an_error_at_once() {
    let (bench, model) = (Bench::new(), endless());
    let (child, backend) = start_endless(&bench, model.path());
    signal("-KILL", backend);
    let start = Instant::now();
    let out = child.wait_with_output().unwrap();
    let took = start.elapsed();
    let line = failure(&out);
    assert!(line.contains("signal 9 (SIGKILL) while decoding"), "{line}");
    assert!(took < Duration::from_secs(5), "{took:?}");
}

#[test]
fn an_interrupt_ends_the_answer_and_the_child() {
    let (bench, model) = (Bench::new(), endless());
    let (child, backend) = start_endless(&bench, model.path());
    signal("-INT", child.id());
    let out = child.wait_with_output().unwrap();
    assert_eq!(out.status.code(), Some(130), "{}", stderr(&out));
    assert!(out.stdout.ends_with(b"\n"));
    wait("the child's end", || (!runs(backend)).then_some(()));
}

#[test]
fn a_killed_host_leaves_no_child() {
    let (bench, model) = (Bench::new(), endless());
    let (mut child, backend) = start_endless(&bench, model.path());
    child.kill().unwrap();
    child.wait().unwrap();
    wait("the child's end", || (!runs(backend)).then_some(()));
    // Also where its driver hangs: in opening, say.
    let args = ["generate", "--isolate", "--backend", "faulty"];
    let mut command = bench.command("open-hang", &args);
    let mut child = command
        .args(PROMPTED)
        .arg("-m")
        .arg(tiny())
        .spawn()
        .unwrap();
    let backend = wait("the backend", || children(child.id()).pop());
    let state = format!("/proc/{backend}/task");
    wait("its threads", || {
        (std::fs::read_dir(&state).map_or(0, Iterator::count) > 1).then_some(())
    });
    child.kill().unwrap();
    child.wait().unwrap();
    wait("the child's end", || (!runs(backend)).then_some(()));
}

#[test]
fn what_a_backend_prints_is_in_the_log() {
    let bench = Bench::new();
    let mut command = bench.generate("decode-noise", &["--isolate", "-v"]);
    let out = command.output().unwrap();
    let text = stderr(&out);
    assert!(out.status.success(), "{text}");
    assert!(text.contains("told to noise in decode"), "{text}");
    // A plugin's own events keep their level.
    let event = text
        .lines()
        .find(|l| l.contains("the faulty plugin was made"));
    assert!(event.is_some_and(|l| l.contains("WARN")), "{text}");
}

/// A conversation at a terminal.
struct Terminal {
    program: Child,
    typed: File,
    shown: Arc<Mutex<String>>,
}

impl Terminal {
    fn start(mut command: Command) -> Self {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let ours = rustix::pty::openpt(flags).unwrap();
        rustix::pty::grantpt(&ours).unwrap();
        rustix::pty::unlockpt(&ours).unwrap();
        let name = rustix::pty::ptsname(&ours, Vec::new()).unwrap();
        let mut options = File::options();
        let theirs = options.read(true).write(true).open(name.to_str().unwrap());
        let theirs = theirs.unwrap();
        // A terminal that can do nothing: lines are read as they are.
        command
            .env("TERM", "dumb")
            .stdin(theirs.try_clone().unwrap())
            .stdout(theirs.try_clone().unwrap())
            .stderr(theirs);
        let program = command.spawn().unwrap();
        drop(command);
        let typed = File::from(ours);
        let (mut screen, shown) = (typed.try_clone().unwrap(), Arc::new(Mutex::default()));
        let kept: Arc<Mutex<String>> = Arc::clone(&shown);
        std::thread::spawn(move || {
            let mut bytes = [0; 1024];
            // Ends with an error once nobody has the other side.
            while let Ok(n @ 1..) = screen.read(&mut bytes) {
                let text = String::from_utf8_lossy(&bytes[..n]).into_owned();
                kept.lock().unwrap().push_str(&text);
            }
        });
        Self {
            program,
            typed,
            shown,
        }
    }

    /// Types a line, and waits for `answer` after it.
    fn say(&mut self, line: &str, answer: &str) -> String {
        let before = self.shown.lock().unwrap().len();
        writeln!(self.typed, "{line}").unwrap();
        wait(answer, || {
            let shown = self.shown.lock().unwrap();
            let after = shown.get(before..).unwrap_or_default();
            after.contains(answer).then(|| after.to_owned())
        })
    }
}

#[test]
fn a_conversation_goes_on_with_another_process() {
    let bench = Bench::new();
    let model = bench.path().join("talking");
    let gguf = fixture("gguf/llama-q4_1.gguf");
    let args = ["import", gguf.to_str().unwrap(), model.to_str().unwrap()];
    assert!(
        bench
            .command("none", &args)
            .output()
            .unwrap()
            .status
            .success()
    );
    let mut command = bench.command("none", &["chat", "--isolate", "-b", "faulty", "-n", "4"]);
    command.arg("-m").arg(&model);
    let mut chat = Terminal::start(command);
    chat.say("hello", "decode ");
    let first = children(chat.program.id());
    assert_eq!(first.len(), 1);
    signal("-KILL", first[0]);
    let told = chat.say("are you there?", "(SIGKILL)");
    assert!(told.contains("error: "), "{told}");
    let answered = chat.say("and now?", "decode ");
    assert!(!answered.contains("error"), "{answered}");
    assert_ne!(children(chat.program.id()), first);
    writeln!(chat.typed, "/exit").unwrap();
    assert_eq!(chat.program.wait().unwrap().code(), Some(0));
}
