//! Interrupting the program, and readers that go away.
#![cfg(unix)]

mod cli_support;

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};

use cli_support::{copy, halfhitch_process, set, tiny};
use serde_json::json;
use tempfile::TempDir;

/// A model whose answer takes far longer than any test waits.
fn endless() -> TempDir {
    let folder = copy(&tiny());
    set(
        &folder.path().join("config.json"),
        "max_position_embeddings",
        json!(10_000_000),
    );
    folder
}

fn start(model: &Path, more: &[&str]) -> Child {
    let mut command = halfhitch_process();
    command.args([
        "generate",
        "--prompt-tokens",
        "1,2,3",
        "-n",
        "9999999",
        "--ignore-eos",
        "-m",
    ]);
    command.arg(model).args(more);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command.spawn().unwrap()
}

fn interrupt(child: &Child) {
    let done = Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status()
        .unwrap();
    assert!(done.success());
}

fn read_some(child: &mut Child) -> String {
    let mut some = [0; 16];
    child
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut some)
        .unwrap();
    String::from_utf8(some.into()).unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// A pipe that nobody reads.
fn pipe_in(folder: &Path) -> PathBuf {
    let pipe = folder.join("pipe");
    let made = Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    pipe
}

/// One Ctrl-C ends what waits for others.
fn interrupted_while_it_waits(child: Child) {
    // Until it waits, Ctrl-C may find no handler.
    let status = interrupted_after(child, 1000);
    assert_eq!(status.code(), Some(130));
}

/// How a process ends that gets a Ctrl-C after so many milliseconds; it must end.
fn interrupted_after(mut child: Child, millis: u64) -> ExitStatus {
    std::thread::sleep(std::time::Duration::from_millis(millis));
    interrupt(&child);
    let began = std::time::Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if began.elapsed().as_secs() > 20 {
            child.kill().unwrap();
            panic!("it waits on, after {millis} ms");
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

#[test]
fn ctrl_c_ends_a_stream_cleanly() {
    let model = endless();
    let mut child = start(model.path(), &[]);
    let begin = read_some(&mut child);
    interrupt(&child);
    let Output {
        status,
        stdout,
        stderr,
    } = child.wait_with_output().unwrap();
    assert_eq!(status.code(), Some(130));
    let out = begin + &text(&stdout);
    assert!(out.ends_with('\n'));
    assert!(
        out.trim_end()
            .split(',')
            .all(|id| id.parse::<u32>().is_ok()),
        "{out}"
    );
    let err = text(&stderr);
    assert!(
        err.starts_with("load ") && err.lines().count() == 1,
        "{err}"
    );
}

#[test]
fn ctrl_c_with_json_still_prints_the_object() {
    let model = endless();
    let child = start(model.path(), &["--json", "-q"]);
    // There is no output to wait for; before the handler is there, the signal would just kill.
    std::thread::sleep(std::time::Duration::from_millis(700));
    interrupt(&child);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", text(&output.stderr));
    let out: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(out["finish_reason"], "cancelled");
    assert!(!out["tokens"].as_array().unwrap().is_empty());
}

#[test]
fn a_reader_that_goes_away_ends_the_program_quietly() {
    let model = endless();
    let mut child = start(model.path(), &[]);
    read_some(&mut child);
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(text(&output.stderr), "");
}

#[test]
fn help_into_a_closed_pipe_is_no_panic() {
    for args in [
        &["--help"][..],
        &["completions", "bash"],
        &["backends"],
        &["generate", "--help"],
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = halfhitch_process()
            .args(args)
            .stdout(writer)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(0), "{args:?}");
        assert_eq!(text(&output.stderr), "", "{args:?}");
    }
}

#[test]
fn ctrl_c_ends_the_wait_for_a_prompt() {
    let mut command = halfhitch_process();
    command.args(["generate", "-m"]).arg(tiny());
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let child = command.spawn().unwrap();
    // Its input stays open, with nothing in it.
    interrupted_while_it_waits(child);
}

#[test]
fn a_limit_on_the_size_of_files_is_an_error_that_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let program = halfhitch_process();
    let mut command = Command::new("bash");
    command.args(["-c", "ulimit -f 4; exec \"$@\"", "bash"]);
    command
        .arg(program.get_program())
        .arg("quantize")
        .arg(tiny());
    let output = command.arg(folder.path().join("out")).output().unwrap();
    let err = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{err}");
    assert!(err.contains("File too large"), "{err}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn ctrl_c_ends_the_wait_for_a_pipes_reader() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = pipe_in(folder.path());
    for (name, flag) in [
        ("verify", "--record"),
        ("conformance", "--junit"),
        ("conformance", "--html"),
    ] {
        let mut command = halfhitch_process();
        command.arg(name).arg(flag).arg(&pipe);
        if name == "verify" {
            let tokens = folder.path().join("tokens");
            std::fs::write(&tokens, "1 2 3\n").unwrap();
            command.arg("-m").arg(tiny()).arg("--tokens").arg(tokens);
        }
        command.stdout(Stdio::null()).stderr(Stdio::null());
        interrupted_while_it_waits(command.spawn().unwrap());
    }
}

/// Whenever it comes: before the handler is there, while the cases are made, or while it waits.
#[test]
fn ctrl_c_before_the_wait_ends_it_too() {
    use std::os::unix::process::ExitStatusExt;
    let folder = tempfile::tempdir().unwrap();
    let pipe = pipe_in(folder.path());
    for millis in [0, 20, 50, 100, 200, 300, 500, 700] {
        let mut command = halfhitch_process();
        command.args(["conformance", "--junit"]).arg(&pipe);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let status = interrupted_after(command.spawn().unwrap(), millis);
        let ended = status.code() == Some(130) || status.signal() == Some(2);
        assert!(ended, "after {millis} ms: {status}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn help_that_cannot_be_written_is_a_failure() {
    for args in [&["--help"][..], &["--version"], &["generate", "--help"]] {
        let full = std::fs::File::options()
            .write(true)
            .open("/dev/full")
            .unwrap();
        let output = halfhitch_process()
            .args(args)
            .stdout(full)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        assert!(text(&output.stderr).contains("writing to standard output"));
    }
}
