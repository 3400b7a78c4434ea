//! Whatever ends a child or makes it hang is an error of the call that it happened in.

use std::sync::Arc;
use std::time::{Duration, Instant};

use halfhitch::engine::{Engine, GenerateOptions, Model, Registry};
use halfhitch::isolate::{LIMIT, running};
use halfhitch::sampling::SamplingParams;
use halfhitch_seam::{
    CancelToken, ComputeBackend, DecodeStep, ErrorCode, OutputRequest, PlanRequest, SeamError,
    SeamResult,
};

use crate::support::{Bench, PROMPT, control, open, runs, signal, tiny};

/// Every method of a session that a fault can be told to happen in.
pub fn exercise(backend: &dyn ComputeBackend) -> SeamResult<()> {
    let mut session = open(backend, &tiny())?;
    let sequence = session.create_sequence()?;
    let cancel = CancelToken::new();
    let output = OutputRequest::GREEDY;
    session.prefill(sequence, &[3, 1, 4], output, &control(&cancel))?;
    session.decode(&[DecodeStep { sequence, token: 2 }], output)?;
    session.truncate(sequence, 2)?;
    session.release(sequence)
}

fn failure(bench: &Bench, fault: &str, limit: Duration) -> SeamError {
    let backend = bench.backend(&bench.isolation(fault, limit));
    backend
        .and_then(|backend| exercise(&*backend))
        .expect_err(fault)
}

/// A fault, and what the error says.
const ENDINGS: &[(&str, &[&str])] = &[
    (
        "create-crash",
        &["SIGSEGV", "while loading", "told to crash in create"],
    ),
    ("devices-abort", &["SIGABRT", "while listing devices"]),
    ("capabilities-exit", &["exit code 3"]),
    ("open-crash", &["SIGSEGV", "while opening the model"]),
    ("prefill-kill", &["signal 9 (SIGKILL)", "want of memory"]),
    (
        "decode-crash",
        &[
            "signal 11 (SIGSEGV) while decoding",
            "told to crash in decode",
        ],
    ),
    (
        "decode-abort",
        &[
            "signal 6 (SIGABRT) while decoding",
            "told to abort in decode",
        ],
    ),
    (
        "decode-exit",
        &["ended itself with exit code 3 while decoding"],
    ),
    (
        "decode-close",
        &["while decoding", "told to close in decode"],
    ),
    ("truncate-crash", &["SIGSEGV", "while cutting a sequence"]),
];

#[test]
fn each_end_of_a_process_is_an_error_that_says_how() {
    let bench = Bench::new();
    for (fault, says) in ENDINGS {
        let start = Instant::now();
        let e = failure(&bench, fault, LIMIT);
        assert!(start.elapsed() < PROMPT, "{fault}: {:?}", start.elapsed());
        assert_eq!(e.code, ErrorCode::Backend, "{fault}: {e}");
        let text = e.to_string();
        for part in *says {
            assert!(text.contains(part), "{fault}: no `{part}` in: {text}");
        }
        assert!(!text.contains('\n'), "{fault}: {text}");
    }
}

/// A panic is caught where it happens, and an error is the backend's own: the process lives.
#[test]
fn panics_and_errors_are_what_they_are_without_isolation() {
    let bench = Bench::new();
    for (fault, says) in [
        ("create-panic", "told to panic in create"),
        ("create-error", "told to fail in create"),
        ("identity-error", "calls itself `somebody-else`"),
        ("open-panic", "told to panic in open"),
        ("decode-panic", "told to panic in decode"),
        ("decode-error", "told to fail in decode"),
    ] {
        let e = failure(&bench, fault, LIMIT);
        assert!(e.to_string().contains(says), "{fault}: {e}");
        assert!(!e.message.contains("process"), "{fault}: {e}");
    }
}

#[test]
fn a_hang_ends_after_the_limit() {
    let bench = Bench::new();
    for (place, doing) in [
        ("create", "loading"),
        ("open", "opening the model"),
        ("prefill", "reading the prompt"),
        ("decode", "decoding"),
    ] {
        let start = Instant::now();
        let e = failure(&bench, &format!("{place}-hang"), Duration::from_secs(2));
        let text = e.to_string();
        assert!(
            text.contains("no sign of life for 2 s") && text.contains(doing),
            "{place}: {text}"
        );
        assert!(text.contains("--isolate-timeout"), "{text}");
        assert!(text.contains(&format!("told to hang in {place}")), "{text}");
        assert!(start.elapsed() < PROMPT, "{place}");
    }
}

#[test]
fn a_session_that_hangs_while_it_is_dropped_holds_nobody_up() {
    let bench = Bench::new();
    let limit = Duration::from_secs(2);
    let start = Instant::now();
    let backend = bench.backend(&bench.isolation("drop-hang", limit)).unwrap();
    let pid = bench.child();
    exercise(&*backend).unwrap();
    assert!(start.elapsed() < PROMPT);
    assert!(!runs(pid) && !running().contains(&pid));
}

#[test]
fn a_wish_to_stop_ends_what_does_not_listen() {
    let bench = Bench::new();
    let isolation = bench.isolation("prefill-hang", Duration::from_secs(4));
    let backend = bench.backend(&isolation).unwrap();
    let mut session = open(&*backend, &tiny()).unwrap();
    let sequence = session.create_sequence().unwrap();
    let cancel = CancelToken::new();
    let stopper = cancel.clone();
    let thread = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(100));
        stopper.cancel();
    });
    let e = session
        .prefill(sequence, &[1], OutputRequest::GREEDY, &control(&cancel))
        .unwrap_err();
    thread.join().unwrap();
    assert_eq!(e.code, ErrorCode::Cancelled, "{e}");
    assert!(!runs_any(&bench));
}

fn runs_any(bench: &Bench) -> bool {
    let name = bench.path().to_str().unwrap().to_owned();
    running().iter().any(|pid| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(&name) && runs(*pid)
    })
}

#[test]
fn a_killed_child_is_told_at_once_and_the_backend_starts_another() {
    let bench = Bench::new();
    let backend = bench.backend(&bench.isolation("none", LIMIT)).unwrap();
    let mut session = open(&*backend, &tiny()).unwrap();
    let mut other = open(&*backend, &tiny()).unwrap();
    let sequence = session.create_sequence().unwrap();
    let first = bench.child();
    signal("-KILL", first);
    let step = [DecodeStep { sequence, token: 2 }];
    let start = Instant::now();
    let e = session.decode(&step, OutputRequest::GREEDY).unwrap_err();
    assert!(
        start.elapsed() < Duration::from_secs(5),
        "{:?}",
        start.elapsed()
    );
    assert!(e.to_string().contains("SIGKILL"), "{e}");
    // It stays so, for every session of the process, and says why.
    for e in [
        session.decode(&step, OutputRequest::GREEDY).unwrap_err(),
        other.create_sequence().unwrap_err(),
    ] {
        assert_eq!(e.code, ErrorCode::Poisoned, "{e}");
        assert!(e.to_string().contains("SIGKILL"), "{e}");
    }
    exercise(&*backend).unwrap();
    assert_ne!(bench.child(), first);
}

#[test]
fn an_engine_goes_on_after_its_backend_died() {
    let bench = Bench::new();
    let isolation = bench.isolation("none", LIMIT);
    let registry = Registry::with_plugins(&[bench.path().to_path_buf()]).isolated(&isolation);
    let target = registry.select(&"faulty".parse().unwrap()).unwrap();
    let cancel = CancelToken::new();
    let control = control(&cancel);
    let model = Model::open(&tiny(), &control).unwrap();
    let mut engine = Engine::open(model, target, &PlanRequest::default(), &control).unwrap();
    let options = GenerateOptions {
        max_tokens: 6,
        sampling: SamplingParams::default(),
        stop: Vec::new(),
        ignore_eos: true,
        top_logits: 0,
    };
    let generate = |engine: &mut Engine| {
        let sink = &mut |_: halfhitch::engine::Piece<'_>| std::ops::ControlFlow::Continue(());
        engine.generate(&[3, 1, 4], &options, &control, sink)
    };
    let tokens = generate(&mut engine).unwrap().tokens;
    signal("-KILL", bench.child());
    assert!(generate(&mut engine).is_err());
    assert_eq!(generate(&mut engine).unwrap_err().code, ErrorCode::Poisoned);
    engine.reopen(&control).unwrap();
    assert_eq!(generate(&mut engine).unwrap().tokens, tokens);
}

/// What a driver prints disturbs nobody, wherever it prints it, and is at hand when it dies.
#[test]
fn noise_on_standard_output_is_no_message() {
    let bench = Bench::new();
    for place in ["create", "open", "prefill", "decode"] {
        let fault = format!("{place}-noise");
        let backend = bench.backend(&bench.isolation(&fault, LIMIT)).unwrap();
        let backend: Arc<dyn ComputeBackend> = backend;
        exercise(&*backend).unwrap();
    }
}
