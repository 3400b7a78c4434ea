//! The program with an IREE plugin when things around it break: files that are gone, caches that are
//! spoilt, full or read-only, and processes that die while they compile. Either the next run works, or
//! one line says what to do.
#![cfg(target_os = "linux")]

mod bench;
mod isolation;
mod memory;

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Instant;

use bench::{
    Bench, LIBRARY, PROMPT, failure, generate, names, reference, runs, signal, stderr, tokens, wait,
};
use serde_json::Value;

/// The rows of `backends --json`, as text by name.
fn backends(bench: &Bench) -> Value {
    let out = bench
        .halfhitch()
        .args(["backends", "--json"])
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", stderr(&out));
    serde_json::from_slice(&out.stdout).unwrap()
}

fn lists_the_reference(bench: &Bench) {
    let rows = backends(bench).to_string();
    assert!(
        rows.contains("reference-cpu") && rows.contains("ready"),
        "{rows}"
    );
}

fn run(bench: &Bench, change: impl FnOnce(&mut Command)) -> Output {
    let mut command = generate(bench.halfhitch());
    change(&mut command);
    command.output().unwrap()
}

#[test]
fn without_its_library_a_plugin_is_a_row_with_a_reason() {
    let bench = Bench::cold();
    fs::remove_file(bench.library()).unwrap();
    let line = failure(&run(&bench, |_| ()));
    for part in [LIBRARY, "not there", "install the plugin again"] {
        assert!(line.contains(part), "{line}");
    }
    lists_the_reference(&bench);
    let rows = backends(&bench).to_string();
    assert!(rows.contains(LIBRARY), "{rows}");
}

#[test]
fn without_the_compiler_one_line_says_how_to_get_it() {
    let bench = Bench::cold();
    let nowhere = bench.path("nowhere/iree-compile");
    let line = failure(&run(&bench, |c| {
        c.env("HALFHITCH_IREE_COMPILE", &nowhere);
    }));
    assert!(
        line.contains("nowhere") && line.contains("make iree-runtime"),
        "{line}"
    );
    lists_the_reference(&bench);
}

#[test]
fn a_number_in_the_environment_that_is_none_is_told() {
    let bench = Bench::cold();
    for (name, value) in [
        ("HALFHITCH_THREADS", "four"),
        ("HALFHITCH_THREADS", "65"),
        ("HALFHITCH_COMPILE_TIMEOUT", "0"),
        ("HALFHITCH_ISOLATE_TIMEOUT", "-1"),
    ] {
        let out = run(&bench, |c| {
            c.env(name, value);
        });
        assert!(matches!(out.status.code(), Some(1 | 2)), "{name}={value}");
        let text = String::from_utf8_lossy(&out.stderr);
        let named = text.contains(&format!("{name}={value}")) || text.contains("--isolate-timeout");
        assert!(named, "{name}={value}: {text}");
        assert!(!text.contains("panicked"), "{text}");
    }
    lists_the_reference(&bench);
}

#[test]
fn without_its_linker_the_compiler_is_named_with_the_fix() {
    let bench = Bench::cold();
    let compiler = bench::compiler();
    let spoilt = bench.path("spoilt");
    fs::create_dir(&spoilt).unwrap();
    for file in names(compiler.parent().unwrap()) {
        let name = file.file_name().unwrap();
        if file.is_file() && name != "iree-lld" {
            let target = spoilt.join(name);
            fs::hard_link(&file, &target)
                .or_else(|_| fs::copy(&file, &target).map(drop))
                .unwrap();
        }
    }
    let line = failure(&run(&bench, |c| {
        c.env("HALFHITCH_IREE_COMPILE", spoilt.join("iree-compile"));
        c.env("PATH", "/nonexistent");
    }));
    assert!(
        line.contains("iree-lld") && line.contains("make iree-runtime"),
        "{line}"
    );
    lists_the_reference(&bench);
}

#[test]
fn damaged_entries_are_made_again() {
    let bench = Bench::warm();
    let modules = bench.modules();
    let whole = fs::read(&modules[0]).unwrap();
    fs::write(&modules[0], &whole[..whole.len() / 2]).unwrap();
    let mut altered = fs::read(&modules[1]).unwrap();
    let middle = altered.len() / 2;
    altered[middle] ^= 1;
    fs::write(&modules[1], altered).unwrap();
    assert_eq!(bench.tokens(), reference());
    assert_eq!(bench.compiles().len(), 2);
    assert_eq!(bench.tokens(), reference());
    assert_eq!(bench.compiles().len(), 2, "they were not kept");
}

#[test]
fn a_warm_cache_needs_no_compiler_run() {
    let bench = Bench::warm();
    assert_eq!(bench.tokens(), reference());
    assert!(bench.compiles().is_empty());
}

#[test]
fn a_cache_that_others_can_write_is_refused() {
    for inner in ["xla-iree", "xla-iree/modules"] {
        let bench = Bench::warm();
        let open = Permissions::from_mode(0o777);
        fs::set_permissions(bench.cache().join(inner), open).unwrap();
        let line = failure(&run(&bench, |_| ()));
        assert!(line.contains("chmod go-w"), "{line}");
    }
}

/// Runs `generate` with the cache on a file system that `prepare`, a script, makes of `$1`; in a
/// namespace of its own, so that nothing stays mounted. `None` where this system lets nobody do that.
fn on_a_mount(bench: &Bench, prepare: &str) -> Option<Output> {
    let allowed = Command::new("unshare")
        .args(["-rm", "mount", "-t", "tmpfs", "tmpfs", "/mnt"])
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|s| s.success());
    if !allowed {
        let reason = "skipped: this system allows no mounts in a namespace of one's own";
        #[allow(clippy::print_stderr)]
        {
            eprintln!("{reason}");
        }
        return None;
    }
    let script = format!("set -e; {prepare}; shift; exec \"$@\"");
    let cache = bench.cache();
    let args = ["-rm", "sh", "-c", &script, "sh", cache.to_str().unwrap()];
    let out = generate(bench.halfhitch_under("unshare", &args)).output();
    Some(out.unwrap())
}

const READ_ONLY: &str = "mount --bind \"$1\" \"$1\" && mount -o remount,bind,ro \"$1\"";

#[test]
fn a_warm_read_only_cache_serves() {
    let bench = Bench::warm();
    if let Some(out) = on_a_mount(&bench, READ_ONLY) {
        assert_eq!(tokens(&out), reference());
        assert!(bench.compiles().is_empty());
    }
}

#[test]
fn a_read_only_cache_is_done_without() {
    let bench = Bench::nearly_warm();
    let before = bench.modules();
    if let Some(out) = on_a_mount(&bench, READ_ONLY) {
        assert_eq!(tokens(&out), reference());
        assert_eq!(bench.compiles().len(), 1);
        assert!(stderr(&out).contains("is not kept"), "{}", stderr(&out));
        assert_eq!(bench.modules(), before);
    }
}

#[test]
fn a_full_cache_is_done_without() {
    // All but the missing module fit; then nothing does.
    let prepare = "mkdir \"$1/../t\" && mount -t tmpfs -o mode=700 tmpfs \"$1/../t\" && \
                   cp -a \"$1/.\" \"$1/../t\" && \
                   mount -o remount,size=$(du -sk \"$1/../t\" | cut -f1)k \"$1/../t\" && \
                   mount --move \"$1/../t\" \"$1\"";
    let bench = Bench::nearly_warm();
    if let Some(out) = on_a_mount(&bench, prepare) {
        assert_eq!(tokens(&out), reference());
        assert!(stderr(&out).contains("is not kept"), "{}", stderr(&out));
    }
}

#[test]
fn a_killed_program_leaves_no_compiler_and_the_next_works() {
    let bench = Bench::nearly_warm();
    let (mut child, compiler) = bench.start_hanging();
    assert!(runs(compiler));
    signal("-KILL", child.id());
    child.wait().unwrap();
    wait("the compiler to end", || !runs(compiler));
    assert_eq!(names(&bench.path("tmp")).len(), 1, "what it worked on");
    assert_eq!(bench.tokens(), reference());
    assert_eq!(bench.compiles().len(), 2);
    // The next that compiles deletes what it left, and its own.
    assert!(names(&bench.path("tmp")).is_empty());
}

#[test]
fn an_interrupt_while_compiling_leaves_nothing() {
    let bench = Bench::nearly_warm();
    let before = bench.modules();
    let (child, compiler) = bench.start_hanging();
    let asked = Instant::now();
    signal("-INT", child.id());
    let out = child.wait_with_output().unwrap();
    assert_eq!(out.status.code(), Some(130), "{}", stderr(&out));
    assert!(asked.elapsed() < PROMPT);
    assert!(!runs(compiler));
    let left = |folder: &Path| names(folder);
    assert_eq!(left(&bench.path("tmp")), Vec::<std::path::PathBuf>::new());
    assert_eq!(bench.modules(), before);
    let partial = left(&bench.cache().join("xla-iree/modules"));
    assert_eq!(partial.len(), before.len(), "{partial:?}");
}

#[test]
fn two_at_once_compile_once() {
    let bench = Bench::warm();
    for module in &bench.modules()[..2] {
        fs::remove_file(module).unwrap();
    }
    let running: Vec<_> = (0..2)
        .map(|_| {
            generate(bench.halfhitch())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    let want = reference();
    for child in running {
        assert_eq!(tokens(&child.wait_with_output().unwrap()), want);
    }
    assert_eq!(bench.compiles().len(), 2);
}
