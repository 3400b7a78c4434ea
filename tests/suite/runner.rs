//! Runs cases one after the other: each with a time limit, and the whole until it is cancelled.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use crate::report::{Case, Report, Verdict};
use crate::subject::Subject;
use crate::test::Test;

/// How often a waiting runner looks whether it was cancelled.
const LOOK: Duration = Duration::from_millis(50);

/// How long a case has to end by itself once the run was cancelled.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a run tells while it goes on.
pub trait Watch {
    /// A case starts, the `index`-th.
    fn starts(&mut self, index: usize, test: &Test);

    /// A case has ended; its verdict may still be changed.
    fn ended(&mut self, case: &mut Case);
}

/// Runs cases in their order. Each runs on a thread of its own and fails where it takes longer than
/// `limit`: a backend that hangs is a verdict, too, and its thread is left behind. Ends early, with the
/// cases that were run, once the subject's token is set.
pub fn run_tests(
    subject: &Subject,
    tests: &[Test],
    limit: Duration,
    watch: &mut dyn Watch,
) -> Report {
    let mut report = Report::default();
    for (index, test) in tests.iter().enumerate() {
        if subject.cancel.is_cancelled() {
            break;
        }
        watch.starts(index, test);
        let Some(mut case) = run_one(subject, test, limit) else {
            break;
        };
        watch.ended(&mut case);
        report.cases.push(case);
    }
    report
}

/// Nothing where the run was cancelled meanwhile.
fn run_one(subject: &Subject, test: &Test, limit: Duration) -> Option<Case> {
    let (send, receive) = mpsc::channel();
    let (worker, owned) = (subject.clone(), test.clone());
    let start = Instant::now();
    let spawned = thread::Builder::new()
        .name("conformance".into())
        .spawn(move || {
            // Nobody listens any more where the case took too long.
            let _ = send.send(owned.run(&worker));
        });
    let failed = |detail: String| Case {
        name: test.name.clone(),
        verdict: Verdict::Fail { detail },
        millis: start.elapsed().as_millis().try_into().unwrap_or(u64::MAX),
    };
    if let Err(e) = spawned {
        return Some(failed(format!("no thread to run it: {e}")));
    }
    let mut cancelled: Option<Instant> = None;
    loop {
        match receive.recv_timeout(LOOK) {
            Ok(_) if subject.cancel.is_cancelled() => return None,
            Ok(case) => return Some(case),
            Err(RecvTimeoutError::Disconnected) => {
                return Some(failed("its thread ended without an answer".into()));
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
        if subject.cancel.is_cancelled() {
            let since = *cancelled.get_or_insert_with(Instant::now);
            if since.elapsed() > PATIENCE {
                return None;
            }
        } else if start.elapsed() > limit {
            return Some(failed(format!(
                "no answer within {} s: the backend hangs",
                limit.as_secs_f64()
            )));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use halfhitch_reference_cpu::ReferenceCpu;

    use super::*;
    use crate::report::fail;
    use crate::test::Tier;

    struct Names(Vec<String>);

    impl Watch for Names {
        fn starts(&mut self, index: usize, test: &Test) {
            self.0.push(format!("{index} {}", test.name));
        }

        fn ended(&mut self, case: &mut Case) {
            self.0.push(case.verdict.name().into());
        }
    }

    fn subject() -> Subject {
        Subject::first(Arc::new(ReferenceCpu::new())).unwrap()
    }

    #[test]
    fn what_hangs_or_panics_fails_and_ends_no_other() {
        let tests = [
            Test::new("hangs", Tier::Quick, |_| {
                thread::sleep(Duration::from_secs(3600));
                Ok(())
            }),
            Test::new("panics", Tier::Quick, |_| panic!("a bug")),
            Test::new("fails", Tier::Quick, |_| fail("off")),
            Test::new("passes", Tier::Quick, |_| Ok(())),
        ];
        let mut names = Names(Vec::new());
        // Long enough for a thread to get its turn on a machine that has others.
        let limit = Duration::from_secs(5);
        let report = run_tests(&subject(), &tests, limit, &mut names);
        let verdicts: Vec<_> = report.cases.iter().map(|c| c.verdict.name()).collect();
        assert_eq!(verdicts, ["fail", "fail", "fail", "pass"]);
        let told = [
            "0 hangs", "fail", "1 panics", "fail", "2 fails", "fail", "3 passes", "pass",
        ];
        assert_eq!(names.0, told);
        let text = report.to_string();
        for part in [
            "hangs: no answer within 5 s",
            "panicked: a bug",
            "fails: off",
        ] {
            assert!(text.contains(part), "{part}:\n{text}");
        }
    }

    #[test]
    fn a_cancelled_run_ends_with_what_was_run() {
        let subject = subject();
        let cancel = subject.cancel.clone();
        let tests = [
            Test::new("passes", Tier::Quick, |_| Ok(())),
            Test::new("cancels", Tier::Quick, move |_| {
                cancel.cancel();
                fail("stopped halfway")
            }),
            Test::new("never", Tier::Quick, |_| Ok(())),
        ];
        let mut names = Names(Vec::new());
        let report = run_tests(&subject, &tests, Duration::from_secs(60), &mut names);
        let ran: Vec<_> = report.cases.iter().map(|c| c.name.as_str()).collect();
        assert_eq!(ran, ["passes"]);
    }
}
