//! What a run of the gate says: the record that programs read and that is kept.

use std::collections::BTreeMap;
use std::path::Path;

use halfhitch_seam::{DType, ExecutionPlan, Precision};
use serde::Serialize;

use super::limits::{LimitName, Limits};
use super::localize::Localization;
use super::metrics::{Divergence, Metrics, Perplexity, Place, Position};
use super::prompts::PromptSet;
use crate::engine::{Model, Target};

/// Version of the record's form; docs/gates/README.md describes it.
pub const FORMAT: u32 = 1;

/// A run of the gate.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// [`FORMAT`].
    pub format: u32,
    /// Version of the program.
    pub halfhitch: String,
    /// The day, `YYYY-MM-DD`, UTC.
    pub date: String,
    /// Whether the candidate is within its limits.
    pub verdict: Verdict,
    /// What was run.
    pub model: ModelSummary,
    /// The side that is gated.
    pub candidate: SideSummary,
    /// The side that is trusted.
    pub against: SideSummary,
    /// Over which tokens.
    pub prompts: PromptSummary,
    /// Each limit and what came out.
    pub checks: Vec<Check>,
    /// Metrics of the positions that prefills computed.
    pub prefill: Metrics,
    /// Metrics of the positions that decode steps computed.
    pub decode: Metrics,
    /// Metrics of all.
    pub overall: Metrics,
    /// Over all positions that a token follows.
    pub perplexity: Option<Perplexity>,
    /// The first position where the two choose different tokens.
    pub first_divergence: Option<Divergence>,
    /// Where they part, where that was asked for.
    pub localization: Option<Localization>,
}

/// Within the limits or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Every value is within its limit.
    Pass,
    /// One is not.
    Fail,
}

/// A model, without where it lies.
#[derive(Clone, Debug, Serialize)]
pub struct ModelSummary {
    /// The folder's name.
    pub name: String,
    /// Its family.
    pub architecture: String,
    /// Parameters.
    pub parameters: u64,
    /// Layers.
    pub layers: usize,
}

impl ModelSummary {
    /// Of an open model.
    pub fn of(model: &Model) -> Self {
        let spec = model.spec();
        let dir = model.checkpoint().dir();
        // A path may end in dots; the file system knows the name.
        let full = dir.canonicalize().unwrap_or_else(|_| dir.to_path_buf());
        Self {
            name: base_name(&full.to_string_lossy()),
            architecture: spec.architecture.clone(),
            parameters: spec.parameters(),
            layers: spec.layers.len(),
        }
    }
}

/// One side: who ran the model, and how.
#[derive(Clone, Debug, Serialize)]
pub struct SideSummary {
    /// The checkpoint's folder.
    pub model: String,
    /// The backend.
    pub backend: String,
    /// Its version.
    pub version: String,
    /// What it stands on.
    pub components: BTreeMap<String, String>,
    /// The device's name.
    pub device: String,
    /// What code was made for, where code is made.
    pub codegen_target: Option<String>,
    /// Precision of contractions.
    pub precision: Precision,
    /// Type of the key-value cache.
    pub kv_dtype: DType,
    /// What the plan chose, by topic (`quantised`, `weights`, ...).
    pub plan: BTreeMap<String, String>,
}

impl SideSummary {
    /// Of a model planned on a device.
    pub fn of(model: &Model, target: &Target, plan: &ExecutionPlan) -> Self {
        let identity = target.backend.identity();
        let components = identity.components.into_iter();
        Self {
            model: ModelSummary::of(model).name,
            backend: identity.name,
            version: identity.version,
            components: components.map(|(k, v)| (k, base_name(&v))).collect(),
            device: plan.device.name.clone(),
            codegen_target: target.capabilities.codegen_target.clone(),
            precision: plan.precision,
            kv_dtype: plan.kv_dtype,
            plan: plan
                .choices
                .iter()
                .map(|c| (c.topic.clone(), c.chosen.clone()))
                .collect(),
        }
    }
}

/// The last part of what may be a path: records are shared, folders of a machine are not.
fn base_name(text: &str) -> String {
    let path = Path::new(text);
    match path.file_name() {
        Some(name) if path.is_absolute() => name.to_string_lossy().into_owned(),
        _ => text.to_owned(),
    }
}

/// The tokens that were run.
#[derive(Clone, Debug, Serialize)]
pub struct PromptSummary {
    /// Where they come from.
    pub source: String,
    /// Prompts.
    pub prompts: usize,
    /// Tokens of all.
    pub tokens: usize,
    /// SHA-256 of the tokens.
    pub sha256: String,
}

impl PromptSummary {
    /// Of a set.
    pub fn of(set: &PromptSet) -> Self {
        Self {
            source: set.source.clone(),
            prompts: set.prompts.len(),
            tokens: set.tokens(),
            sha256: set.sha256(),
        }
    }
}

/// One limit and what came out.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Check {
    /// Which.
    pub limit: LimitName,
    /// Where it was taken: `prefill`, `decode` or `all`.
    pub over: &'static str,
    /// What came out.
    pub value: f64,
    /// The limit.
    pub allowed: f64,
    /// Whether that is within.
    pub passed: bool,
    /// The position that decided, where there is one.
    pub at: Option<Place>,
}

/// What a run comes to.
pub struct Measured {
    /// Metrics of prefill, decode and all.
    pub metrics: [Metrics; 3],
    /// Perplexities.
    pub perplexity: Option<Perplexity>,
    /// First divergence.
    pub first_divergence: Option<Divergence>,
    /// Every limit.
    pub checks: Vec<Check>,
}

impl Measured {
    /// Judges positions by limits. Prefill and decode are judged apart: they are different code, and many
    /// right positions of one must not hide wrong ones of the other.
    pub fn of(positions: &[Position], limits: &Limits) -> Self {
        let tolerance = limits.dlogit;
        let phase = |decode| positions.iter().filter(move |p| p.place.decode == decode);
        let metrics = [
            Metrics::of(phase(false), tolerance),
            Metrics::of(phase(true), tolerance),
            Metrics::of(positions.iter(), tolerance),
        ];
        let perplexity = Perplexity::of(positions.iter());
        let mut checks = Vec::new();
        for (over, m) in [("prefill", &metrics[0]), ("decode", &metrics[1])] {
            if m.positions > 0 {
                checks.extend(of_phase(over, m, limits));
            }
        }
        if let Some(p) = perplexity {
            let value = p.difference.abs();
            checks.push(check(LimitName::Perplexity, "all", value, limits, None));
        }
        Self {
            first_divergence: Divergence::first(positions, tolerance),
            metrics,
            perplexity,
            checks,
        }
    }

    /// Whether every limit holds.
    pub fn verdict(&self) -> Verdict {
        match self.checks.iter().all(|c| c.passed) {
            true => Verdict::Pass,
            false => Verdict::Fail,
        }
    }
}

fn of_phase(over: &'static str, m: &Metrics, limits: &Limits) -> Vec<Check> {
    use LimitName as N;
    let values = [
        (N::KlMean, m.kl_mean, &m.kl_max_at),
        (N::KlP999, m.kl_p999, &m.kl_max_at),
        (N::KlMax, m.kl_max, &m.kl_max_at),
        (N::Top1, m.top1, &None),
        (N::ClearTop1, m.clear_top1, &m.clear_miss_at),
        (N::Dlogit, m.dlogit, &m.dlogit_at),
        (N::DlogitRms, m.dlogit_rms, &m.dlogit_at),
    ];
    values
        .into_iter()
        .map(|(name, value, at)| check(name, over, value, limits, at.clone()))
        .collect()
}

fn check(
    limit: LimitName,
    over: &'static str,
    value: f64,
    limits: &Limits,
    at: Option<Place>,
) -> Check {
    let allowed = limits.get(limit);
    let passed = if limit.is_least() {
        value >= allowed
    } else {
        value <= allowed
    };
    Check {
        limit,
        over,
        value,
        allowed,
        passed,
        at,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gate::metrics::Distance;

    fn positions(wrong: usize, decode: bool) -> Vec<Position> {
        (0..1000)
            .map(|i| Position {
                place: Place {
                    prompt: "p".into(),
                    position: i,
                    decode: i >= 990,
                },
                distance: match i == wrong {
                    true => Distance::between(&[1.0, 2.0], &[1.0, 1.5], None),
                    false => Distance::between(&[1.0, 2.0], &[1.0, 2.0], None),
                },
            })
            .filter(|p| decode || !p.place.decode)
            .collect()
    }

    #[test]
    fn one_wrong_decode_step_is_not_hidden_by_prefill() {
        let limits = Limits::of(Precision::F32, DType::F32);
        let measured = Measured::of(&positions(995, true), &limits);
        assert_eq!(measured.verdict(), Verdict::Fail);
        let failed: Vec<_> = measured.checks.iter().filter(|c| !c.passed).collect();
        assert!(failed.iter().all(|c| c.over == "decode"));
        let dlogit = failed
            .iter()
            .find(|c| c.limit == LimitName::Dlogit)
            .unwrap();
        assert_eq!(
            (dlogit.value, dlogit.at.as_ref().unwrap().position),
            (0.25, 995)
        );
    }

    #[test]
    fn what_is_equal_passes_and_no_decode_is_no_check() {
        let limits = Limits::of(Precision::F32, DType::F32);
        let measured = Measured::of(&positions(5000, false), &limits);
        assert_eq!(measured.verdict(), Verdict::Pass);
        assert!(measured.checks.iter().all(|c| c.over == "prefill"));
    }

    #[test]
    fn folders_stay_at_home() {
        assert_eq!(base_name("/home/me/iree-compile"), "iree-compile");
        assert_eq!(base_name("3.13.0"), "3.13.0");
        assert_eq!(base_name("missing: no such file"), "missing: no such file");
    }
}
