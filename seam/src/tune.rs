//! Choosing representations by measuring them on the device.

use serde::{Deserialize, Serialize};

use crate::capability::DeviceId;
use crate::graph::pairs;
use crate::model::ModelSpec;
use crate::plan::PlanRequest;
use crate::representation::{RepresentationName, StepRows};
use crate::weights::{WeightForm, WeightManifest};

/// What [`ComputeBackend::tune`](crate::ComputeBackend::tune) is asked for. No weights are read: what is
/// measured runs on random numbers of their shapes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TuneRequest {
    /// The device.
    pub device: DeviceId,
    /// The model, validated.
    pub model: ModelSpec,
    /// What its weights are, checked against the model.
    #[serde(with = "pairs")]
    pub weights: WeightManifest,
    /// The user's wishes; answers hold for sessions of the same number of threads.
    pub wishes: PlanRequest,
    /// How often each alternative is measured.
    pub repeats: usize,
}

/// The answer for one contraction, as it is kept and as plans carry it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TunedContraction {
    /// Form of the weight.
    pub form: WeightForm,
    /// Its rows and columns; of weights that are joined, of all together.
    pub shape: [usize; 2],
    /// The kind of step.
    pub rows: StepRows,
    /// Threads that were asked for when it was measured.
    pub threads: Option<usize>,
    /// The fastest representation.
    pub representation: RepresentationName,
    /// The number of tasks it is cut into, where that was measured.
    pub tasks: Option<usize>,
    /// Median time of one contraction, in microseconds.
    pub microseconds: f64,
    /// The same for what would be taken untuned.
    pub untuned_microseconds: Option<f64>,
}

/// One alternative that was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// The representation.
    pub representation: RepresentationName,
    /// The number of tasks, where it was set.
    pub tasks: Option<usize>,
    /// Whether this is what is taken untuned.
    pub untuned: bool,
    /// Median time in microseconds, where it ran and was right.
    pub microseconds: Option<f64>,
    /// Difference of the third and the first quartile, in microseconds.
    pub spread: Option<f64>,
    /// What was wrong with it.
    pub failed: Option<String>,
}

/// All alternatives of one contraction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TuneResult {
    /// How many of the model's contractions are like this.
    pub count: usize,
    /// What was measured.
    pub measured: Vec<Measured>,
    /// The answer.
    pub answer: TunedContraction,
}

/// What tuning found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TuneReport {
    /// What code was made for.
    pub target: String,
    /// Every contraction of which there are alternatives.
    pub results: Vec<TuneResult>,
    /// Whether the answers are kept, so that the next plan has them.
    pub kept: bool,
}
