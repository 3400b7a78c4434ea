//! `halfhitch doctor`: what this machine has, what is missing, and how to get it.

mod checks;

use serde::Serialize;

use super::args::JsonArgs;
use super::failure::{Failure, one_line};
use super::{Context, output};

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Verdict {
    /// All is well.
    Ok,
    /// Running models works, something else does not.
    Warn,
    /// Running models does not work.
    Fail,
}

/// A check and what it found.
#[derive(Clone, Debug, Serialize)]
struct Check {
    name: &'static str,
    verdict: Verdict,
    /// What was found.
    found: String,
    /// What to do, where something is to be done.
    fix: Option<String>,
}

impl Check {
    fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self {
            name,
            verdict: Verdict::Ok,
            found: found.into(),
            fix: None,
        }
    }

    fn bad(
        name: &'static str,
        verdict: Verdict,
        found: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self {
            name,
            verdict,
            found: found.into(),
            fix: Some(fix.into()),
        }
    }
}

/// Runs the command.
pub fn run(args: JsonArgs, context: &Context) -> Result<(), Failure> {
    let checks = checks::all(&context.registry());
    let healthy = checks.iter().all(|c| c.verdict != Verdict::Fail);
    if args.json {
        output::json(&serde_json::json!({ "ok": healthy, "checks": checks }))?;
    } else {
        output::bytes(text(&checks).as_bytes())?;
    }
    if healthy {
        Ok(())
    } else {
        Err(Failure::Reported)
    }
}

fn text(checks: &[Check]) -> String {
    let mut rows = Vec::new();
    for check in checks {
        let verdict = match check.verdict {
            Verdict::Ok => "ok",
            Verdict::Warn => "warn",
            Verdict::Fail => "FAIL",
        };
        let cells = [verdict, check.name, &check.found];
        rows.push(cells.map(one_line).to_vec());
        rows.extend(check.fix.iter().map(|fix| {
            vec![
                String::new(),
                String::new(),
                format!("-> {}", one_line(fix)),
            ]
        }));
    }
    output::table(&rows)
}
