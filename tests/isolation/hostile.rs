//! Children that are not what they should be, and hosts that are not: errors, and no more.

use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use halfhitch_seam::ErrorCode;

use crate::support::{Bench, PROMPT, program};

/// A frame, right or wrong.
fn frame(head: &[u8], tail: &[u8]) -> Vec<u8> {
    let mut bytes = b"HHIP".to_vec();
    bytes.extend((head.len() as u32).to_le_bytes());
    bytes.extend((tail.len() as u64).to_le_bytes());
    bytes.extend(head);
    bytes.extend(tail);
    bytes
}

#[test]
fn a_child_that_speaks_another_language_is_an_error() {
    let bench = Bench::new();
    let identity = br#"{"done":{"name":"faulty","version":"1","components":[]}}"#;
    let mut endless = frame(b"", b"");
    endless[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
    let deep = b"[".repeat(100_000);
    let cases: [(&str, Vec<u8>, ErrorCode); 9] = [
        ("nothing", Vec::new(), ErrorCode::Backend),
        (
            "text",
            b"hello, this is a shell\n".to_vec(),
            ErrorCode::Backend,
        ),
        ("zeros", vec![0; 4096], ErrorCode::Backend),
        ("a huge head", endless, ErrorCode::Backend),
        (
            "a head that is no JSON",
            frame(b"\xff{", b""),
            ErrorCode::Backend,
        ),
        (
            "another message",
            frame(br#"{"done":7}"#, b""),
            ErrorCode::Backend,
        ),
        (
            "numbers nobody asked for",
            frame(identity, b"1234"),
            ErrorCode::Backend,
        ),
        ("nested without end", frame(&deep, b""), ErrorCode::Backend),
        (
            "half a frame",
            frame(identity, b"")[..20].to_vec(),
            ErrorCode::Backend,
        ),
    ];
    for (what, bytes, code) in cases {
        let at = bench.path().join("bytes");
        std::fs::write(&at, bytes).unwrap();
        let script = format!("#!/bin/sh\ncat '{}' >&0\n", at.display());
        let start = Instant::now();
        let isolation = bench.script(&script, Duration::from_secs(5));
        let e = bench.backend(&isolation).map(|_| ()).unwrap_err();
        assert_eq!(e.code, code, "{what}: {e}");
        assert!(start.elapsed() < PROMPT, "{what}");
        assert!(!e.to_string().contains('\n'), "{what}: {e}");
    }
}

#[test]
fn a_child_that_never_answers_is_given_up() {
    let bench = Bench::new();
    let identity = br#"{"done":{"name":"faulty","version":"1","components":[]}}"#;
    let at = bench.path().join("greeting");
    std::fs::write(&at, frame(identity, b"")).unwrap();
    // It greets, and then sleeps.
    let script = format!("#!/bin/sh\ncat '{}' >&0\nexec sleep 60\n", at.display());
    let limit = Duration::from_secs(2);
    let isolation = bench.script(&script, limit);
    let start = Instant::now();
    let e = bench.backend(&isolation).map(|_| ()).unwrap_err();
    assert_eq!(e.code, ErrorCode::Backend, "{e}");
    assert!(
        e.to_string()
            .contains("no sign of life for 2 s while listing devices"),
        "{e}"
    );
    assert!(start.elapsed() < PROMPT);
}

#[test]
fn a_program_that_is_not_there_is_an_error() {
    let bench = Bench::new();
    let mut isolation = bench.script("", Duration::from_secs(5));
    isolation.program = "/nonexistent/halfhitch".into();
    let e = bench.backend(&isolation).map(|_| ()).unwrap_err();
    assert_eq!(e.code, ErrorCode::Io, "{e}");
}

/// A host that says anything at all: the child ends, and neither crashes nor hangs.
#[test]
fn a_child_ends_where_its_host_makes_no_sense() {
    let hello = format!(
        r#"{{"hello":{{"protocol":1,"version":"{}"}}}}"#,
        env!("CARGO_PKG_VERSION")
    );
    let hello = frame(hello.as_bytes(), b"");
    let after = |more: Vec<u8>| [hello.clone(), more].concat();
    let cases = [
        Vec::new(),
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        frame(b"null", b""),
        frame(br#"{"channel":{"id":0}}"#, b""),
        after(frame(br#"{"channel":{"id":0}}"#, b"")),
        after(frame(
            br#"{"cancel":{"channel":9,"call":18446744073709551615}}"#,
            b"",
        )),
        after(frame(br#""quit""#, b"x")),
        after(frame(br#""quit""#, b"")),
    ];
    for (i, bytes) in cases.iter().enumerate() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut child = Command::new(program())
            .args(["isolated-backend", "--built-in", "reference-cpu"])
            .stdin(Stdio::from(std::os::fd::OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        (&ours).write_all(bytes).unwrap();
        drop(ours);
        let start = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            assert!(start.elapsed() < PROMPT, "case {i} goes on");
            std::thread::sleep(Duration::from_millis(5));
        };
        use std::os::unix::process::ExitStatusExt as _;
        // It ends itself, by the signal that nothing can hold up.
        let expected = [Some(9), None];
        assert!(expected.contains(&status.signal()), "case {i}: {status}");
    }
}

#[test]
fn the_hidden_command_by_hand_says_that_it_is_not_for_hands() {
    let out = Command::new(program())
        .args(["isolated-backend", "--built-in", "reference-cpu"])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(out.status.code(), Some(1));
    let text = String::from_utf8_lossy(&out.stderr);
    assert!(text.contains("not by hand"), "{text}");
}
