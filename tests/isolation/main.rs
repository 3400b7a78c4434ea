//! Backends in processes of their own: they do all that others do, and whatever becomes of the process,
//! the host lives and says what it was.
#![cfg(target_os = "linux")]

mod cli;
mod faults;
mod hostile;
mod support;

use std::collections::HashMap;
use std::sync::Arc;

use halfhitch::engine::Registry;
use halfhitch::isolate::{Isolation, LIMIT, running};
use halfhitch_reference_cpu::ReferenceCpu;
use halfhitch_seam::{
    CacheAction, CancelToken, ComputeBackend, Control, DecodeStep, ErrorCode, Event, Observer,
    OutputRequest, SeamResult, Stage,
};
use halfhitch_suite::{Subject, contract};
use std::sync::Mutex;
use support::{Bench, control, fixture, open, program, tiny};

/// The reference, in a process of its own.
fn reference() -> Arc<dyn ComputeBackend> {
    let isolation = Isolation {
        program: program(),
        ..Isolation::of_this_program()
    };
    let registry = Registry::default().isolated(&isolation);
    let target = registry.select(&"reference-cpu".parse().unwrap());
    target.unwrap().backend
}

const PROMPT: [u32; 5] = [3, 1, 4, 1, 5];

#[test]
fn an_isolated_backend_keeps_the_contract() {
    let report = contract::run(&Subject::first(reference()).unwrap());
    assert!(report.passed(), "\n{report}");
    assert_eq!(report.unsupported().count(), 0, "\n{report}");
}

/// Logits, tokens, probabilities and intermediate results.
#[derive(Debug, PartialEq)]
struct Everything {
    all: Vec<u32>,
    step: Vec<u32>,
    token: Option<u32>,
    top: Vec<(u32, u32)>,
    taps: Vec<(String, Vec<u32>)>,
}

fn everything(backend: &dyn ComputeBackend, model: &std::path::Path) -> SeamResult<Everything> {
    let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<u32>>();
    let mut session = open(backend, model)?;
    let cancel = CancelToken::new();
    let sequence = session.create_sequence()?;
    let all = session.prefill(
        sequence,
        &PROMPT,
        OutputRequest::ALL_LOGITS,
        &control(&cancel),
    )?;
    let output = OutputRequest {
        top_logprobs: 7,
        ..OutputRequest::GREEDY
    };
    let step = DecodeStep { sequence, token: 2 };
    let chosen = session.decode(&[step], output)?.remove(0);
    let logits = session.decode(&[step], OutputRequest::LOGITS)?.remove(0);
    let taps = session.tap(&PROMPT, &control(&cancel))?;
    Ok(Everything {
        all: bits(&all.logits),
        step: bits(&logits.logits),
        token: chosen.token,
        top: chosen
            .top_logprobs
            .iter()
            .map(|t| (t.id, t.logprob.to_bits()))
            .collect(),
        taps: taps
            .iter()
            .map(|t| (t.site.to_string(), bits(&t.values)))
            .collect(),
    })
}

#[test]
fn what_crosses_is_the_same_to_the_bit() {
    let (isolated, direct) = (reference(), ReferenceCpu::new());
    assert_eq!(isolated.identity(), direct.identity());
    for model in ["tiny/llama", "mlx/qwen3-q4-g32"] {
        let model = fixture(model);
        let there = everything(&*isolated, &model).unwrap();
        let here = everything(&direct, &model).unwrap();
        assert!(!here.taps.is_empty() && here.top.len() == 7);
        assert_eq!(there, here);
    }
    assert_eq!(isolated.cache(CacheAction::List), Ok(None));
}

#[test]
fn errors_cross_as_they_are() {
    let backend = reference();
    let mut session = open(&*backend, &tiny()).unwrap();
    let cancel = CancelToken::new();
    let sequence = session.create_sequence().unwrap();
    let mut direct = open(&ReferenceCpu::new(), &tiny()).unwrap();
    let other = direct.create_sequence().unwrap();
    for tokens in [&[][..], &[97], &[1; 300]] {
        let output = OutputRequest::GREEDY;
        let there = session.prefill(sequence, tokens, output, &control(&cancel));
        let here = direct.prefill(other, tokens, output, &control(&cancel));
        assert_eq!(there.unwrap_err(), here.unwrap_err());
    }
    // The session is as it was.
    assert_eq!(session.sequence_len(sequence), Ok(0));
}

#[derive(Default)]
struct Events(Mutex<HashMap<Stage, (u64, u64)>>);

impl Observer for Events {
    fn on_event(&self, event: Event) {
        if let Event::Progress { stage, done, total } = event {
            self.0.lock().unwrap().insert(stage, (done, total));
        }
    }
}

#[test]
fn progress_comes_and_a_wish_to_stop_arrives() {
    let backend = reference();
    let mut session = open(&*backend, &tiny()).unwrap();
    let sequence = session.create_sequence().unwrap();
    let (cancel, events) = (CancelToken::new(), Events::default());
    let watched = Control {
        cancel: &cancel,
        observer: &events,
    };
    let output = OutputRequest::GREEDY;
    session
        .prefill(sequence, &[1; 200], output, &watched)
        .unwrap();
    let (done, total) = events.0.lock().unwrap()[&Stage::Prefill];
    assert_eq!((done, total), (200, 200));

    session.truncate(sequence, 3).unwrap();
    cancel.cancel();
    let e = session
        .prefill(sequence, &[1; 200], output, &watched)
        .unwrap_err();
    assert_eq!(e.code, ErrorCode::Cancelled, "{e}");
    // One that is set before a call and one that is set in it leave the session usable.
    assert_eq!(session.sequence_len(sequence), Ok(3));
    let fresh = CancelToken::new();
    session
        .prefill(sequence, &[1; 20], output, &control(&fresh))
        .unwrap();
}

#[test]
fn sessions_of_one_backend_and_of_two_run_at_once() {
    let (a, b) = (reference(), reference());
    let expected = everything(&ReferenceCpu::new(), &tiny()).unwrap();
    std::thread::scope(|scope| {
        for backend in [&a, &a, &b, &b] {
            let expected = &expected;
            scope.spawn(move || {
                for _ in 0..3 {
                    assert_eq!(&everything(&**backend, &tiny()).unwrap(), expected);
                }
            });
        }
    });
}

#[test]
fn nothing_stays_of_sessions_and_backends_that_are_let_go() {
    let bench = Bench::new();
    let isolation = bench.isolation("none", LIMIT);
    let backend = bench.backend(&isolation).unwrap();
    let pid = bench.child();
    let mut held = Vec::new();
    for _ in 0..12 {
        faults::exercise(&*backend).unwrap();
        // The thread of a channel ends after its last answer.
        let threads = || {
            std::fs::read_dir(format!("/proc/{pid}/task"))
                .unwrap()
                .count()
        };
        let before = threads();
        held.push(
            std::fs::read_dir(format!("/proc/{pid}/fd"))
                .unwrap()
                .count(),
        );
        assert!(before < 20, "{before} threads");
    }
    assert!(held[11] <= held[1] + 2, "descriptors stay open: {held:?}");
    assert!(running().contains(&pid));
    drop(backend);
    assert!(!running().contains(&pid));
    assert!(!support::runs(pid));
}
