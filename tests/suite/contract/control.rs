//! Progress and cancellation, of opening and of prompts.

use std::collections::BTreeMap;
use std::sync::Mutex;

use halfhitch_seam::{
    CancelToken, Control, ErrorCode, Event, Observer, OpenRequest, OutputRequest, Stage,
};

use super::{Bench, CaseFn, refused};
use crate::report::{Outcome, fail};

pub(super) const CASES: &[(&str, CaseFn)] = &[
    ("opening-reports-progress-to-the-end", open_progress),
    ("opening-can-be-cancelled", open_cancelled),
    ("a-prompt-reports-progress-to-the-end", prefill_progress),
    ("a-cancelled-prompt-leaves-no-trace", prefill_cancelled),
];

/// Records progress, and cancels when a stage has come as far as it is told.
#[derive(Default)]
struct Recorder {
    seen: Mutex<Vec<(Stage, u64, u64)>>,
    cancel: CancelToken,
    cancel_at: Option<(Stage, u64)>,
}

impl Observer for Recorder {
    fn on_event(&self, event: Event) {
        if let Event::Progress { stage, done, total } = event {
            if let Ok(mut seen) = self.seen.lock() {
                seen.push((stage, done, total));
            }
            if self
                .cancel_at
                .is_some_and(|(s, at)| s == stage && done >= at)
            {
                self.cancel.cancel();
            }
        }
    }
}

impl Recorder {
    fn control(&self) -> Control<'_> {
        Control {
            cancel: &self.cancel,
            observer: self,
        }
    }

    /// Every stage that was reported rises to its total, which stays the same.
    fn check(&self) -> Outcome<BTreeMap<String, u64>> {
        let seen = self.seen.lock().map(|s| s.clone()).unwrap_or_default();
        let mut last: BTreeMap<String, (u64, u64)> = BTreeMap::new();
        for (stage, done, total) in seen {
            let name = format!("{stage:?}");
            if let Some(&(before, of)) = last.get(&name)
                && (done < before || total != of)
            {
                return fail(format!(
                    "{name} went from {before} of {of} to {done} of {total}"
                ));
            }
            if done > total {
                return fail(format!("{name} came to {done} of {total}"));
            }
            last.insert(name, (done, total));
        }
        for (name, (done, total)) in &last {
            if done != total {
                return fail(format!("{name} ended at {done} of {total}"));
            }
        }
        Ok(last.into_iter().map(|(n, (_, total))| (n, total)).collect())
    }
}

fn open_progress(b: &Bench<'_>) -> Outcome {
    let model = b.model;
    let plan = b.subject.plan(&model.spec, &model.weights, &b.request())?;
    let recorder = Recorder::default();
    let session = b.subject.backend.open(OpenRequest {
        plan: &plan,
        model: &model.spec,
        weights: &model.weights,
        control: recorder.control(),
    })?;
    if session.plan() != &plan {
        return fail("the session's plan is not the one it was opened with");
    }
    let stages = recorder.check()?;
    if !stages.contains_key("LoadWeights") {
        return fail("no progress of loading weights was reported");
    }
    Ok(())
}

fn open_cancelled(b: &Bench<'_>) -> Outcome {
    let model = b.model;
    let plan = b.subject.plan(&model.spec, &model.weights, &b.request())?;
    let recorder = Recorder::default();
    recorder.cancel.cancel();
    let session = b.subject.backend.open(OpenRequest {
        plan: &plan,
        model: &model.spec,
        weights: &model.weights,
        control: recorder.control(),
    });
    refused("a cancelled open", session, &[ErrorCode::Cancelled])?;
    // The backend is as good as before.
    b.open()?.fresh(&[1, 2]).map(drop)
}

fn prefill_progress(b: &Bench<'_>) -> Outcome {
    let mut s = b.open()?;
    let id = s.create()?;
    let n = (2 * s.chunk + 1).min(s.context);
    let recorder = Recorder::default();
    let tokens = b.tokens("progress", n);
    s.session
        .prefill(id, &tokens, OutputRequest::NOTHING, &recorder.control())?;
    match recorder.check()?.get("Prefill") {
        Some(&total) if total == n as u64 => Ok(()),
        other => fail(format!("progress of {other:?} for {n} tokens")),
    }
}

fn prefill_cancelled(b: &Bench<'_>) -> Outcome {
    let mut s = b.open()?;
    let n = (2 * s.chunk + 1).min(s.context - 5);
    let (start, long) = (b.tokens("start", 5), b.tokens("long", n));
    let id = s.create()?;
    s.prefill(id, &start[..4], OutputRequest::NOTHING)?;
    // Before it starts, and after its first chunk.
    for at in [None, Some((Stage::Prefill, 1))] {
        let recorder = Recorder {
            cancel_at: at,
            ..Recorder::default()
        };
        if at.is_none() {
            recorder.cancel.cancel();
        }
        let call = s
            .session
            .prefill(id, &long, OutputRequest::LOGITS, &recorder.control());
        refused("a cancelled prompt", call, &[ErrorCode::Cancelled])?;
        s.expect_len(id, 4, "after a cancelled prompt")?;
    }
    let got = s.step(id, start[4])?;
    let want = b.open()?.fresh(&start)?;
    s.close("the step after a cancelled prompt", &got, &want)
}
