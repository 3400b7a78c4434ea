//! Backends are used from several threads at once, sessions from one at a time, but not always the same.

use std::sync::Arc;
use std::thread;

use halfhitch_seam::{
    CancelToken, DecodeStep, OutputRequest, PlanRequest, SeamResult, Session, TokenId,
};

use crate::features;
use crate::limits::{close, relative};
use crate::models::Generated;
use crate::report::{Outcome, fail};
use crate::subject::{Subject, control};
use crate::test::{Test, Tier};

/// Sessions that run at the same time.
const AT_ONCE: usize = 4;

/// Tokens of each session's sequence.
const TOKENS: usize = 24;

type CaseFn = fn(&Subject, &Generated) -> Outcome;

const CASES: &[(&str, CaseFn)] = &[
    ("a-session-moves-between-threads", moves),
    ("sessions-run-at-the-same-time", at_once),
    ("sessions-open-at-the-same-time", opens_at_once),
    ("devices-are-listed-while-sessions-run", listed_meanwhile),
];

/// Every case.
///
/// # Errors
/// Never, unless the seam's own checks refuse the model.
pub fn tests() -> SeamResult<Vec<Test>> {
    let model = Arc::new(features::single("plain")?);
    let test = |&(name, case): &(&str, CaseFn)| {
        let own = Arc::clone(&model);
        let run = move |subject: &Subject| case(subject, &own);
        Test::new(format!("threads/{name}"), Tier::Quick, run).about(&model)
    };
    Ok(CASES.iter().map(test).collect())
}

fn open(subject: &Subject, model: &Generated) -> Outcome<Box<dyn Session>> {
    let plan = subject.plan(&model.spec, &model.weights, &PlanRequest::default())?;
    Ok(subject.open(&model.spec, &model.weights, &plan)?)
}

/// Half of the tokens as a prompt, the others step by step; the last logits.
fn run(session: &mut dyn Session, tokens: &[TokenId]) -> Outcome<Vec<f32>> {
    let id = session.create_sequence()?;
    let (prompt, rest) = tokens.split_at(tokens.len() / 2);
    let cancel = CancelToken::new();
    session.prefill(id, prompt, OutputRequest::NOTHING, &control(&cancel))?;
    let mut logits = Vec::new();
    for &token in rest {
        logits = step(session, id, token)?;
    }
    session.release(id)?;
    Ok(logits)
}

fn step(
    session: &mut dyn Session,
    sequence: halfhitch_seam::SequenceId,
    token: TokenId,
) -> Outcome<Vec<f32>> {
    let out = session.decode(&[DecodeStep { sequence, token }], OutputRequest::LOGITS)?;
    match out.into_iter().next() {
        Some(out) => Ok(out.logits),
        None => fail("a decode step returned nothing"),
    }
}

fn joined<T>(worker: thread::ScopedJoinHandle<'_, Outcome<T>>) -> Outcome<T> {
    worker
        .join()
        .unwrap_or_else(|_| fail("it panicked on another thread"))
}

/// Opened here, stepped on a thread of its own each time, dropped on the last.
fn moves(subject: &Subject, model: &Generated) -> Outcome {
    let tokens = model.tokens("moves", 8);
    let mut session = open(subject, model)?;
    let limit = relative(session.plan().precision);
    let want = run(&mut *session, &tokens)?;
    let id = session.create_sequence()?;
    let mut got = Vec::new();
    for &token in &tokens {
        let there = thread::scope(|scope| {
            joined(scope.spawn(move || {
                let logits = step(&mut *session, id, token)?;
                Ok((session, logits))
            }))
        })?;
        (session, got) = there;
    }
    thread::scope(|scope| {
        joined(scope.spawn(move || {
            drop(session);
            Ok(())
        }))
    })?;
    close("a session that moved", &got, &want, limit)
}

fn sequences(model: &Generated) -> Vec<Vec<TokenId>> {
    (0..AT_ONCE)
        .map(|i| model.tokens(&format!("thread {i}"), TOKENS))
        .collect()
}

fn alone(subject: &Subject, model: &Generated) -> Outcome<(Vec<Vec<f32>>, f64)> {
    let mut session = open(subject, model)?;
    let limit = relative(session.plan().precision);
    let all = sequences(model);
    let rows = all.iter().map(|tokens| run(&mut *session, tokens));
    Ok((rows.collect::<Outcome<_>>()?, limit))
}

fn at_once(subject: &Subject, model: &Generated) -> Outcome {
    let (want, limit) = alone(subject, model)?;
    let mut sessions = Vec::new();
    for _ in 0..AT_ONCE {
        sessions.push(open(subject, model)?);
    }
    let got: Vec<Outcome<Vec<f32>>> = thread::scope(|scope| {
        let all = sequences(model);
        let workers: Vec<_> = sessions
            .iter_mut()
            .zip(all)
            .map(|(session, tokens)| {
                scope.spawn(move || {
                    run(&mut **session, &tokens)?;
                    run(&mut **session, &tokens)
                })
            })
            .collect();
        workers.into_iter().map(joined).collect()
    });
    for (i, (got, want)) in got.into_iter().zip(&want).enumerate() {
        close(
            &format!("session {i} of {AT_ONCE} at once"),
            &got?,
            want,
            limit,
        )?;
    }
    Ok(())
}

fn opens_at_once(subject: &Subject, model: &Generated) -> Outcome {
    let (want, limit) = alone(subject, model)?;
    let all = sequences(model);
    let got: Vec<Outcome<Vec<f32>>> = thread::scope(|scope| {
        let work = |tokens| move || run(&mut *open(subject, model)?, tokens);
        let workers: Vec<_> = all.iter().map(|t| scope.spawn(work(t))).collect();
        workers.into_iter().map(joined).collect()
    });
    for (i, (got, want)) in got.into_iter().zip(&want).enumerate() {
        close(
            &format!("session {i} of {AT_ONCE} opened at once"),
            &got?,
            want,
            limit,
        )?;
    }
    Ok(())
}

fn listed_meanwhile(subject: &Subject, model: &Generated) -> Outcome {
    let (want, limit) = alone(subject, model)?;
    let all = sequences(model);
    let mut session = open(subject, model)?;
    let devices = subject.backend.devices()?;
    thread::scope(|scope| {
        let worker = scope.spawn(|| {
            let mut rows = Vec::new();
            for tokens in &all {
                rows.push(run(&mut *session, tokens)?);
            }
            Ok(rows)
        });
        while !worker.is_finished() {
            if subject.backend.devices()? != devices {
                return fail("the devices change while a session runs");
            }
            subject.backend.identity();
            subject.capabilities()?;
        }
        for (got, want) in joined(worker)?.iter().zip(&want) {
            close("a session beside listing", got, want, limit)?;
        }
        Ok(())
    })
}
