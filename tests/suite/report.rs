//! What a run of the suite says: cases with verdicts, as plain values.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use halfhitch_seam::SeamError;
use serde::{Deserialize, Serialize};

/// How a case ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "verdict", rename_all = "snake_case")]
pub enum Verdict {
    /// As it should be.
    Pass,
    /// The backend is wrong.
    Fail {
        /// What was seen and what was expected.
        detail: String,
    },
    /// The device does not advertise what the case needs, and says so: nothing is wrong.
    Unsupported {
        /// What it lacks.
        capability: String,
    },
}

/// One case and how it ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Case {
    /// Path of names, unique within a report: `contract/plain/truncate-then-continue`.
    pub name: String,
    /// How it ended.
    #[serde(flatten)]
    pub verdict: Verdict,
}

/// A run's cases, in the order they ran. Printed one a line.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// The cases.
    pub cases: Vec<Case>,
}

impl Report {
    /// Runs one case. A panic of the backend fails it and ends no other.
    pub fn run(&mut self, name: impl Into<String>, case: impl FnOnce() -> Outcome) {
        let verdict = match catch_unwind(AssertUnwindSafe(case)) {
            Ok(Ok(())) => Verdict::Pass,
            Ok(Err(Miss::Fail(detail))) => Verdict::Fail { detail },
            Ok(Err(Miss::Unsupported(capability))) => Verdict::Unsupported { capability },
            Err(panic) => {
                let what = panic
                    .downcast_ref::<&str>()
                    .map(ToString::to_string)
                    .or_else(|| panic.downcast_ref::<String>().cloned())
                    .unwrap_or_default();
                Verdict::Fail {
                    detail: format!("panicked: {what}"),
                }
            }
        };
        self.cases.push(Case {
            name: name.into(),
            verdict,
        });
    }

    /// Adds another report's cases.
    pub fn extend(&mut self, other: Self) {
        self.cases.extend(other.cases);
    }

    /// Cases that failed.
    pub fn failures(&self) -> impl Iterator<Item = &Case> {
        self.cases
            .iter()
            .filter(|c| matches!(c.verdict, Verdict::Fail { .. }))
    }

    /// Cases that the device does not support.
    pub fn unsupported(&self) -> impl Iterator<Item = &Case> {
        self.cases
            .iter()
            .filter(|c| matches!(c.verdict, Verdict::Unsupported { .. }))
    }

    /// Whether there were cases and none failed.
    pub fn passed(&self) -> bool {
        !self.cases.is_empty() && self.failures().next().is_none()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for case in &self.cases {
            match &case.verdict {
                Verdict::Pass => writeln!(f, "pass         {}", case.name)?,
                Verdict::Fail { detail } => writeln!(f, "FAIL         {}: {detail}", case.name)?,
                Verdict::Unsupported { capability } => {
                    writeln!(f, "unsupported  {}: {capability}", case.name)?;
                }
            }
        }
        Ok(())
    }
}

/// Why a case did not pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Miss {
    /// The backend is wrong.
    Fail(String),
    /// The device lacks a capability, and says so.
    Unsupported(String),
}

/// Result of a case.
pub type Outcome<T = ()> = Result<T, Miss>;

/// A failure.
pub fn fail<T>(detail: impl Into<String>) -> Outcome<T> {
    Err(Miss::Fail(detail.into()))
}

impl From<SeamError> for Miss {
    fn from(e: SeamError) -> Self {
        Self::Fail(format!("unexpected error {}: {e}", e.code.name()))
    }
}
