//! The plugin in a process of its own.

use std::process::{Child, Command, Stdio};

use crate::bench::{
    Bench, failure, generate, names, reference, runs, signal, stderr, tokens, wait,
};

fn isolated(bench: &Bench) -> Command {
    let mut command = generate(bench.halfhitch());
    command.arg("--isolate");
    command
}

#[test]
fn tokens_are_those_of_the_reference() {
    let bench = Bench::warm();
    assert_eq!(tokens(&isolated(&bench).output().unwrap()), reference());
    assert!(bench.compiles().is_empty());
}

#[test]
fn what_it_compiles_is_kept_for_others() {
    let bench = Bench::nearly_warm();
    assert_eq!(tokens(&isolated(&bench).output().unwrap()), reference());
    assert_eq!(bench.compiles().len(), 1);
    assert_eq!(bench.tokens(), reference());
    assert_eq!(bench.compiles().len(), 1);
}

#[test]
fn an_error_of_the_plugin_is_the_same_line() {
    let bench = Bench::nearly_warm();
    let broken = |mut command: Command| {
        command.env("HALFHITCH_IREE_COMPILE", "/nonexistent/iree-compile");
        failure(&command.output().unwrap())
    };
    let here = broken(generate(bench.halfhitch()));
    assert_eq!(broken(isolated(&bench)), here);
}

/// Starts with a compiler that hangs, and waits until that runs.
fn start_hanging(bench: &Bench) -> (Child, u32) {
    let child = isolated(bench)
        .env("TEST_HANG", "1")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait("the compiler", || !bench.compiles().is_empty());
    (child, bench.compiles()[0])
}

#[test]
fn an_interrupt_while_it_compiles_leaves_nothing() {
    let bench = Bench::nearly_warm();
    let before = bench.modules();
    let (child, compiler) = start_hanging(&bench);
    signal("-INT", child.id());
    let out = child.wait_with_output().unwrap();
    assert_eq!(out.status.code(), Some(130), "{}", stderr(&out));
    wait("the compiler to end", || !runs(compiler));
    assert!(names(&bench.path("tmp")).is_empty());
    assert_eq!(bench.modules(), before);
}

#[test]
fn a_killed_program_leaves_neither_backend_nor_compiler() {
    let bench = Bench::nearly_warm();
    let (mut child, compiler) = start_hanging(&bench);
    child.kill().unwrap();
    child.wait().unwrap();
    wait("the compiler to end", || !runs(compiler));
    assert_eq!(tokens(&isolated(&bench).output().unwrap()), reference());
}

#[test]
fn a_backend_that_is_killed_while_it_compiles_takes_the_compiler_along() {
    let bench = Bench::nearly_warm();
    let (child, compiler) = start_hanging(&bench);
    let parent = std::fs::read_to_string(format!("/proc/{compiler}/status")).unwrap();
    let parent = parent.lines().find_map(|l| l.strip_prefix("PPid:"));
    signal("-KILL", parent.unwrap().trim().parse().unwrap());
    let line = failure(&child.wait_with_output().unwrap());
    assert!(
        line.contains("SIGKILL") && line.contains("opening the model"),
        "{line}"
    );
    wait("the compiler to end", || !runs(compiler));
}
