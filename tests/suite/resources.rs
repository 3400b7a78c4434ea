//! What a backend holds on to: memory over many sessions and sequences, several sessions at once, and
//! memory that runs out.

use std::sync::Arc;

use halfhitch_seam::model::{FeedForward, ModelSpec};
use halfhitch_seam::{
    CancelToken, DType, DecodeStep, ErrorCode, OpenRequest, OutputRequest, PlanRequest, SeamResult,
    Session, TokenId,
};

use crate::features;
use crate::limits::{close, relative};
use crate::models::{Generated, Storage, plain_spec};
use crate::report::{Miss, Outcome, fail};
use crate::subject::{Subject, control};
use crate::test::{Test, Tier};

/// What the process has resident, in bytes, where the system tells.
pub type Resident = fn() -> Option<u64>;

/// Runs [`out_of_memory`] in a process of its own, whose memory can be limited.
pub type Confined = Arc<dyn Fn(&CancelToken) -> Outcome + Send + Sync>;

/// Sessions that are opened and closed.
const SESSIONS: usize = 200;

/// How often before growth counts: allocators, thread pools and caches have their size by then.
const WARM: usize = 40;

/// How much the process may grow over what follows: less than a copy of the model's weights each time.
const GROWTH: u64 = 8 << 20;

/// Every case.
///
/// # Errors
/// Never, unless the seam's own checks refuse a model.
pub fn tests(resident: Resident, confined: Option<Confined>) -> SeamResult<Vec<Test>> {
    let plain = Arc::new(features::single("plain")?);
    let other = Arc::new(features::single("qkv-bias")?);
    let quick = |name: &str, run: fn(&Subject, &Generated, Resident) -> Outcome| {
        let model = Arc::clone(&plain);
        let run = move |subject: &Subject| run(subject, &model, resident);
        Test::new(format!("resources/{name}"), Tier::Quick, run).about(&plain)
    };
    let mut tests = vec![
        quick("200-sessions-leave-nothing", sessions),
        quick("cancelled-opens-leave-nothing", cancelled_opens),
        quick("1000-sequences-leave-nothing", sequences),
        quick("growing-and-cutting-leaves-nothing", cuts),
    ];
    let models = [Arc::clone(&plain), other];
    tests.push(Test::new(
        "resources/two-models-at-once-keep-apart",
        Tier::Quick,
        move |subject| two_models(subject, &models),
    ));
    tests.push(Test::new(
        "resources/memory-that-runs-out-is-an-error",
        Tier::Quick,
        move |subject| match &confined {
            Some(run) => run(&subject.cancel),
            None => Err(Miss::Unsupported(
                "a process whose memory can be limited".into(),
            )),
        },
    ));
    Ok(tests)
}

fn open(subject: &Subject, model: &Generated, sequences: usize) -> Outcome<Box<dyn Session>> {
    let request = PlanRequest {
        sequences,
        ..PlanRequest::default()
    };
    let plan = subject.plan(&model.spec, &model.weights, &request)?;
    Ok(subject.open(&model.spec, &model.weights, &plan)?)
}

fn prefill(session: &mut dyn Session, tokens: &[TokenId]) -> SeamResult<Vec<f32>> {
    let id = session.create_sequence()?;
    let cancel = CancelToken::new();
    let out = session.prefill(id, tokens, OutputRequest::LOGITS, &control(&cancel));
    session.release(id)?;
    Ok(out?.logits)
}

/// Does something so often, and fails where the process has grown since it was warm.
fn without_growth(
    subject: &Subject,
    resident: Resident,
    times: usize,
    mut once: impl FnMut() -> Outcome,
) -> Outcome {
    let mut start = None;
    for i in 0..times {
        if i == WARM.min(times / 2) {
            start = resident();
        }
        subject.cancel.check()?;
        once()?;
    }
    let (Some(start), Some(end)) = (start, resident()) else {
        return Err(Miss::Unsupported(
            "a system that tells how much memory a process has".into(),
        ));
    };
    let grown = end.saturating_sub(start);
    if grown > GROWTH {
        return fail(format!(
            "the process grew by {} KiB over {} times, {} KiB each; {} KiB in all is the limit",
            grown >> 10,
            times - WARM.min(times / 2),
            (grown >> 10) / (times - WARM.min(times / 2)).max(1) as u64,
            GROWTH >> 10
        ));
    }
    Ok(())
}

fn sessions(subject: &Subject, model: &Generated, resident: Resident) -> Outcome {
    without_growth(subject, resident, SESSIONS, || {
        let mut session = open(subject, model, 1)?;
        prefill(&mut *session, &[1, 2, 3, 4, 5, 6])?;
        Ok(())
    })
}

fn cancelled_opens(subject: &Subject, model: &Generated, resident: Resident) -> Outcome {
    let request = PlanRequest::default();
    let plan = subject.plan(&model.spec, &model.weights, &request)?;
    let cancel = CancelToken::new();
    cancel.cancel();
    without_growth(subject, resident, SESSIONS, || {
        let session = subject.backend.open(OpenRequest {
            plan: &plan,
            model: &model.spec,
            weights: &model.weights,
            control: control(&cancel),
        });
        match session {
            Err(e) if e.code == ErrorCode::Cancelled => Ok(()),
            Err(e) => Err(e.into()),
            Ok(_) => fail("a cancelled open was not cancelled"),
        }
    })
}

fn sequences(subject: &Subject, model: &Generated, resident: Resident) -> Outcome {
    let mut session = open(subject, model, 1)?;
    let tokens = model.tokens("sequences", 40);
    let want = prefill(&mut *session, &tokens)?;
    without_growth(subject, resident, 1000, || {
        prefill(&mut *session, &tokens[..7])?;
        Ok(())
    })?;
    let got = prefill(&mut *session, &tokens)?;
    let limit = relative(session.plan().precision);
    close("the first prompt again", &got, &want, limit)
}

fn cuts(subject: &Subject, model: &Generated, resident: Resident) -> Outcome {
    let mut session = open(subject, model, 1)?;
    let tokens = model.tokens("cuts", 60);
    let id = session.create_sequence()?;
    without_growth(subject, resident, 500, || {
        let cancel = CancelToken::new();
        session.prefill(id, &tokens, OutputRequest::NOTHING, &control(&cancel))?;
        session.truncate(id, 0)?;
        Ok(())
    })
}

/// Two models, open at the same time, that take turns.
fn two_models(subject: &Subject, models: &[Arc<Generated>; 2]) -> Outcome {
    let tokens: Vec<_> = models.iter().map(|m| m.tokens("turns", 12)).collect();
    let alone = |i: usize| -> Outcome<Vec<f32>> {
        let mut session = open(subject, &models[i], 1)?;
        Ok(prefill(&mut *session, &tokens[i])?)
    };
    let want = [alone(0)?, alone(1)?];
    let mut both = [open(subject, &models[0], 1)?, open(subject, &models[1], 1)?];
    let mut ids = Vec::new();
    for session in &mut both {
        ids.push(session.create_sequence()?);
    }
    let mut got = [Vec::new(), Vec::new()];
    for (&x, &y) in tokens[0].iter().zip(&tokens[1]) {
        for (i, (session, token)) in both.iter_mut().zip([x, y]).enumerate() {
            let step = DecodeStep {
                sequence: ids[i],
                token,
            };
            let out = session.decode(&[step], OutputRequest::LOGITS)?.pop();
            got[i] = out.map(|out| out.logits).unwrap_or_default();
        }
    }
    // The second lives on when the first is closed.
    let [first, mut second] = both;
    let limit = relative(first.plan().precision);
    drop(first);
    second.release(ids[1])?;
    close("the first of two models", &got[0], &want[0], limit)?;
    close("the second of two models", &got[1], &want[1], limit)?;
    let again = prefill(&mut *second, &tokens[1])?;
    close("the second, the first one closed", &again, &want[1], limit)
}

/// Tokens of a sequence of the model whose caches are made too large.
const LONG: usize = 512;

/// Most sequences of it.
const MANY: usize = 32;

/// Bytes that the process may still take once memory is limited; the caches of 32 sequences take four
/// times as much.
pub const SPARE: u64 = 128 << 20;

/// One head so wide that a token takes 32 KiB of cache, and little time.
fn greedy_spec() -> ModelSpec {
    let mut spec = plain_spec();
    spec.layers.truncate(1);
    let layer = &mut spec.layers[0];
    let a = &mut layer.attention;
    (a.heads, a.kv_heads, a.head_dim) = (1, 1, 4096);
    a.scale = 4096f32.sqrt().recip();
    if let FeedForward::Gated(mlp) = &mut layer.feed_forward {
        mlp.intermediate = 8;
    }
    spec
}

/// Grows sequences until memory runs out, which must be an error of that name and leave the session as
/// good as before. `limit` is told how many bytes the process may still take from then on; so this is
/// to be run in a process of its own.
///
/// # Errors
/// A failure; unsupported where caches lie in memory that the limit does not count.
pub fn out_of_memory(subject: &Subject, limit: &dyn Fn(u64) -> SeamResult<()>) -> Outcome {
    let many = subject.capabilities()?.max_sequences.min(MANY);
    if (many * LONG * 32) << 10 < 2 * SPARE as usize {
        return Err(Miss::Unsupported(format!("more than {many} sequences")));
    }
    let model = Generated::new("greedy", greedy_spec(), Storage::Dense(DType::F32))?;
    let mut session = open(subject, &model, many)?;
    let tokens = model.tokens("greedy", LONG);
    let want = prefill(&mut *session, &tokens[..20])?;
    limit(SPARE)?;
    let mut ids = Vec::new();
    let mut refused = None;
    for _ in 0..many {
        let cancel = CancelToken::new();
        let grown = session.create_sequence().and_then(|id| {
            ids.push(id);
            session.prefill(id, &tokens, OutputRequest::NOTHING, &control(&cancel))
        });
        if let Err(e) = grown {
            refused = Some(e);
            break;
        }
    }
    let Some(error) = refused else {
        return Err(Miss::Unsupported(
            "caches in memory that the process can be limited in".into(),
        ));
    };
    if error.code != ErrorCode::OutOfMemory {
        return fail(format!(
            "memory ran out and the error is {} ({error}); out_of_memory expected",
            error.code.name()
        ));
    }
    // What was taken is given back, and the session lives.
    for id in ids {
        session.release(id)?;
    }
    let got = prefill(&mut *session, &tokens[..20])?;
    let limit = relative(session.plan().precision);
    close("after memory ran out", &got, &want, limit)
}
