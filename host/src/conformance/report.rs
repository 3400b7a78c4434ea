//! What a run says, for programs: everything that the table and the pages show.

use std::collections::BTreeMap;

use halfhitch_seam::{BackendIdentity, DeviceCapabilities, DeviceInfo, ModelSpec};
use halfhitch_suite::{Case, Verdict};
use serde::Serialize;

/// Version of the report's form; raised where a key changes its meaning or goes.
pub const FORMAT: u32 = 1;

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Nothing failed, and no line of the list of expected failures is stale.
    Pass,
    /// Something did.
    Fail,
    /// It was stopped before the end, and nothing had failed.
    Interrupted,
}

/// Which cases were run.
#[derive(Clone, Debug, Serialize)]
pub struct SuiteSummary {
    /// `quick`, `full` or `random`.
    pub kind: String,
    /// The names and patterns that cases were chosen by; all where there are none.
    pub only: Vec<String>,
    /// Cases that were to be run.
    pub cases: usize,
    /// Start of the random numbers, where models were random.
    pub seed: Option<u64>,
}

/// A case, how it ended, and for a failing one how to see it again.
#[derive(Clone, Debug, Serialize)]
pub struct CaseReport {
    /// The case.
    #[serde(flatten)]
    pub case: Case,
    /// A command that runs it alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reproduce: Option<String>,
    /// What was computed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<ModelSpec>,
}

/// Cases whose names start alike, counted by verdict.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// How many, by verdict's name.
    pub counts: BTreeMap<&'static str, usize>,
    /// How long they took, in milliseconds.
    pub millis: u64,
}

/// A run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// [`FORMAT`].
    pub format: u32,
    /// This program's version.
    pub halfhitch: String,
    /// The day.
    pub date: String,
    /// How it ended.
    pub outcome: Outcome,
    /// Who was tested.
    pub backend: BackendIdentity,
    /// On which device.
    pub device: DeviceInfo,
    /// What code was generated for.
    pub codegen_target: Option<String>,
    /// Which cases.
    pub suite: SuiteSummary,
    /// How many ended how.
    pub counts: BTreeMap<&'static str, usize>,
    /// Lines of the list of expected failures that no failing case needed.
    pub stale: Vec<String>,
    /// How long it took, in seconds.
    pub seconds: f64,
    /// The cases, in the order in which they ran.
    pub cases: Vec<CaseReport>,
}

impl Report {
    /// A report without cases.
    pub fn new(
        backend: BackendIdentity,
        capabilities: &DeviceCapabilities,
        suite: SuiteSummary,
    ) -> Self {
        Self {
            format: FORMAT,
            halfhitch: env!("CARGO_PKG_VERSION").into(),
            date: jiff::Timestamp::now().strftime("%Y-%m-%d").to_string(),
            outcome: Outcome::Interrupted,
            backend,
            device: capabilities.device.clone(),
            codegen_target: capabilities.codegen_target.clone(),
            suite,
            counts: Verdict::NAMES.map(|name| (name, 0)).into(),
            stale: Vec::new(),
            seconds: 0.0,
            cases: Vec::new(),
        }
    }

    /// Adds a case.
    pub fn push(&mut self, case: CaseReport) {
        *self.counts.entry(case.case.verdict.name()).or_default() += 1;
        self.cases.push(case);
    }

    /// Says how it ended, once all cases are there.
    pub fn finish(&mut self, seconds: f64, interrupted: bool) {
        self.seconds = seconds;
        let failed = self.failures().next().is_some() || !self.stale.is_empty();
        self.outcome = match (failed, interrupted) {
            (true, _) => Outcome::Fail,
            (false, true) => Outcome::Interrupted,
            (false, false) => Outcome::Pass,
        };
    }

    /// Cases that failed, or passed where that was not expected.
    pub fn failures(&self) -> impl Iterator<Item = &CaseReport> {
        self.cases.iter().filter(|c| c.case.verdict.is_failure())
    }

    /// How many cases ended with a verdict.
    pub fn count(&self, verdict: &str) -> usize {
        self.counts.get(verdict).copied().unwrap_or(0)
    }

    /// Counts by the start of cases' names, in the order in which they ran: two parts of contract cases,
    /// one of others.
    pub fn groups(&self) -> Vec<(String, Group)> {
        let mut groups: Vec<(String, Group)> = Vec::new();
        for CaseReport { case, .. } in &self.cases {
            let parts = if case.name.starts_with("contract/") {
                2
            } else {
                1
            };
            let name: Vec<&str> = case.name.split('/').take(parts).collect();
            let name = name.join("/");
            let at = groups.iter().position(|(n, _)| *n == name);
            let at = at.unwrap_or_else(|| {
                groups.push((name, Group::default()));
                groups.len() - 1
            });
            let group = &mut groups[at].1;
            *group.counts.entry(case.verdict.name()).or_default() += 1;
            group.millis = group.millis.saturating_add(case.millis);
        }
        groups
    }

    /// What cases lacked, with how many lacked it, the most first.
    pub fn lacking(&self) -> Vec<(&str, usize)> {
        let mut lacking: Vec<(&str, usize)> = Vec::new();
        for CaseReport { case, .. } in &self.cases {
            if let Verdict::Unsupported { capability } = &case.verdict {
                match lacking.iter_mut().find(|(what, _)| what == capability) {
                    Some((_, n)) => *n += 1,
                    None => lacking.push((capability, 1)),
                }
            }
        }
        lacking.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
        lacking
    }
}

/// A report with a case of each verdict, for the tests of what is made of one.
#[cfg(test)]
pub(super) fn sample() -> Report {
    use halfhitch_reference_cpu::ReferenceCpu;
    use halfhitch_seam::ComputeBackend;

    let backend = ReferenceCpu::new();
    let device = backend.devices().unwrap().remove(0).id;
    let capabilities = backend.capabilities(&device).unwrap();
    let suite = SuiteSummary {
        kind: "quick".into(),
        only: vec!["a".into()],
        cases: 5,
        seed: None,
    };
    let mut report = Report::new(backend.identity(), &capabilities, suite);
    let text = || "1 < 2 & \"three\" \u{1}\u{7} ]]>".to_string();
    let case = |name: &str, verdict| CaseReport {
        case: Case {
            name: name.into(),
            verdict,
            millis: 1500,
        },
        reproduce: Some("halfhitch conformance --only 'x'".into()),
        model: Some(halfhitch_suite::models::plain_spec()),
    };
    report.push(case("contract/plain/one", Verdict::Pass));
    report.push(case("contract/plain/two", Verdict::Fail { detail: text() }));
    let capability = "<f16>".to_string();
    report.push(case(
        "generated/x/f16/one",
        Verdict::Unsupported { capability },
    ));
    let (detail, reason) = (text(), text());
    report.push(case(
        "shapes/y",
        Verdict::ExpectedFailure { detail, reason },
    ));
    report.push(case("shapes/z", Verdict::Stale { reason: text() }));
    report.stale.push("gone/<*>".into());
    report.finish(7.5, false);
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_groups_and_what_is_lacking() {
        let report = sample();
        assert_eq!(report.outcome, Outcome::Fail);
        assert!(Verdict::NAMES.iter().all(|name| report.count(name) == 1));
        let groups = report.groups();
        let names: Vec<_> = groups.iter().map(|(n, _)| n.as_str()).collect();
        assert_eq!(names, ["contract/plain", "generated", "shapes"]);
        assert_eq!(groups[0].1.millis, 3000);
        assert_eq!(report.lacking(), [("<f16>", 1)]);
        assert_eq!(report.failures().count(), 2);
    }

    #[test]
    fn stale_lines_alone_fail_and_an_interrupt_is_neither() {
        let mut report = sample();
        report.cases.clear();
        report.finish(1.0, true);
        assert_eq!(report.outcome, Outcome::Fail);
        report.stale.clear();
        report.finish(1.0, true);
        assert_eq!(report.outcome, Outcome::Interrupted);
        report.finish(1.0, false);
        assert_eq!(report.outcome, Outcome::Pass);
    }

    #[test]
    fn the_form_for_programs_is_flat() {
        let json = serde_json::to_value(sample()).unwrap();
        assert_eq!(json["format"], 1);
        assert_eq!(json["outcome"], "fail");
        assert_eq!(json["counts"]["unsupported"], 1);
        assert_eq!(json["cases"][1]["verdict"], "fail");
        assert_eq!(json["cases"][2]["capability"], "<f16>");
        assert_eq!(json["cases"][3]["verdict"], "expected_failure");
    }
}
