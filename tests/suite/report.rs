//! What a run of the suite says: cases with verdicts, as plain values.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

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
    /// The backend is wrong, and that is known.
    ExpectedFailure {
        /// What was seen and what was expected.
        detail: String,
        /// Why it is expected.
        reason: String,
    },
    /// It is listed as an expected failure, and passes: the list is wrong.
    Stale {
        /// Why it was expected to fail.
        reason: String,
    },
}

impl Verdict {
    /// Every verdict's name, as it is serialised.
    pub const NAMES: [&str; 5] = ["pass", "fail", "unsupported", "expected_failure", "stale"];

    /// The name as it is serialised.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Fail { .. } => "fail",
            Self::Unsupported { .. } => "unsupported",
            Self::ExpectedFailure { .. } => "expected_failure",
            Self::Stale { .. } => "stale",
        }
    }

    /// Whether a run with this verdict in it has not passed.
    pub const fn is_failure(&self) -> bool {
        matches!(self, Self::Fail { .. } | Self::Stale { .. })
    }
}

/// One case and how it ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Case {
    /// Path of names, unique within a report: `contract/plain/truncate-then-continue`.
    pub name: String,
    /// How it ended.
    #[serde(flatten)]
    pub verdict: Verdict,
    /// How long it took, in milliseconds.
    #[serde(default)]
    pub millis: u64,
}

impl Case {
    /// Runs a case. A panic of the backend fails it and goes no further.
    pub fn run(name: impl Into<String>, case: impl FnOnce() -> Outcome) -> Self {
        let start = Instant::now();
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
        Self {
            name: name.into(),
            verdict,
            millis: start.elapsed().as_millis().try_into().unwrap_or(u64::MAX),
        }
    }
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
        self.cases.push(Case::run(name, case));
    }

    /// Adds another report's cases.
    pub fn extend(&mut self, other: Self) {
        self.cases.extend(other.cases);
    }

    /// Cases that failed, those that were expected to and did not among them.
    pub fn failures(&self) -> impl Iterator<Item = &Case> {
        self.cases.iter().filter(|c| c.verdict.is_failure())
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
                Verdict::ExpectedFailure { detail, reason } => {
                    writeln!(f, "expected     {}: {detail} ({reason})", case.name)?;
                }
                Verdict::Stale { reason } => {
                    writeln!(f, "STALE        {}: passes ({reason})", case.name)?;
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
