//! The execution plan: what was chosen for a model on a device, why, and what was rejected.
//!
//! [`negotiate`] is a pure function of the model, its weights' descriptions, the device's
//! capabilities and the user's wishes. Nothing falls back silently: an explicit wish that cannot be
//! met is an error that names what can.

mod memory;
mod negotiate;
mod representation;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::capability::DeviceInfo;
use crate::dtype::{DType, Precision};
use crate::error::{SeamError, SeamResult};
use crate::model::WeightId;
use crate::representation::{PlannedRepresentation, RepresentationName, StepRows};
use crate::tune::TunedContraction;
use crate::weights::WeightForm;

pub use memory::{MemoryEstimate, Size};
pub use negotiate::negotiate;

/// What to do with quantised weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QuantRequest {
    /// Whatever suits the device.
    #[default]
    Auto,
    /// Keep every quantised weight packed, or fail.
    Packed,
    /// Expand every quantised weight.
    Dequant,
}

impl FromStr for QuantRequest {
    type Err = SeamError;

    fn from_str(s: &str) -> SeamResult<Self> {
        match s {
            "auto" => Ok(Self::Auto),
            "packed" => Ok(Self::Packed),
            "dequant" => Ok(Self::Dequant),
            _ => Err(
                SeamError::invalid_input(format!("unknown quantisation mode `{s}`"))
                    .hint("one of auto, packed, dequant"),
            ),
        }
    }
}

/// A user's wishes. The default leaves everything to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanRequest {
    /// Precision of contractions; `None` leaves it to the device.
    pub precision: Option<Precision>,
    /// What to do with quantised weights.
    pub quant: QuantRequest,
    /// Tokens a sequence may grow to; `None` means as many as model and device allow.
    pub context: Option<usize>,
    /// Sequences the session shall hold at once.
    pub sequences: usize,
    /// Processor threads the session may use; `None` leaves it to the backend.
    pub threads: Option<usize>,
    /// How contractions are written, where that can be chosen; `None` leaves it to the device.
    #[serde(default)]
    pub representation: Option<RepresentationName>,
}

impl Default for PlanRequest {
    fn default() -> Self {
        Self {
            precision: None,
            quant: QuantRequest::Auto,
            context: None,
            sequences: 1,
            threads: None,
            representation: None,
        }
    }
}

/// Something that was decided.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Choice {
    /// What it is about (`precision`, `quantised weights`).
    pub topic: String,
    /// What was chosen.
    pub chosen: String,
    /// Why.
    pub reason: String,
    /// What else there was, and why it was not chosen.
    pub rejected: Vec<Rejected>,
}

/// An alternative that was not chosen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rejected {
    /// The alternative.
    pub option: String,
    /// Why not.
    pub reason: String,
}

/// How one weight is kept on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedWeight {
    /// Which weight.
    pub id: WeightId,
    /// Its form in the checkpoint.
    pub stored: WeightForm,
    /// Its form on the device: `stored` itself, or dense. Norms and biases are always dense f32.
    pub resident: WeightForm,
    /// Bytes on the device.
    pub bytes: u64,
}

/// What will be done. Plain data: it prints, compares, serialises, and is all that a backend needs
/// to open a session besides the model and its weights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExecutionPlan {
    /// On which device.
    pub device: DeviceInfo,
    /// What contractions compute in.
    pub precision: Precision,
    /// Element type of the key-value cache.
    pub kv_dtype: DType,
    /// Tokens a sequence may grow to.
    pub context: usize,
    /// Sequences the session may hold at once.
    pub max_sequences: usize,
    /// Tokens of a prefill chunk.
    pub prefill_chunk: usize,
    /// Processor threads it may use; `None` leaves it to the backend.
    pub threads: Option<usize>,
    /// Every weight's form, in the order of the computation.
    pub weights: Vec<PlannedWeight>,
    /// How matrices are contracted, by their form and kind of step; empty where the backend leaves no
    /// choice.
    #[serde(default)]
    pub representations: Vec<PlannedRepresentation>,
    /// Measurements on this device that go before these.
    #[serde(default)]
    pub tuned: Vec<TunedContraction>,
    /// Memory it will take.
    pub memory: MemoryEstimate,
    /// What was decided and why.
    pub choices: Vec<Choice>,
}

impl ExecutionPlan {
    /// How a weight is kept, if the model has it.
    pub fn weight(&self, id: WeightId) -> Option<&PlannedWeight> {
        self.weights.iter().find(|w| w.id == id)
    }

    /// The order of representations for weights of a form in a kind of step; empty where there is no
    /// choice.
    pub fn representation(&self, form: WeightForm, rows: StepRows) -> &[RepresentationName] {
        let mut all = self.representations.iter();
        let planned = all.find(|p| p.form == form && p.rows == rows);
        planned.map_or(&[], |p| &p.order)
    }

    /// What was measured for a contraction.
    pub fn tuned(
        &self,
        form: WeightForm,
        shape: [usize; 2],
        rows: StepRows,
    ) -> Option<&TunedContraction> {
        let mut all = self.tuned.iter();
        all.find(|t| t.form == form && t.shape == shape && t.rows == rows)
    }
}

impl fmt::Display for ExecutionPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "device      {} ({})", self.device.name, self.device.id)?;
        for choice in &self.choices {
            writeln!(
                f,
                "{:<11} {}: {}",
                choice.topic, choice.chosen, choice.reason
            )?;
            for r in &choice.rejected {
                writeln!(f, "{:<11}   not {}: {}", "", r.option, r.reason)?;
            }
        }
        self.memory.fmt(f)
    }
}
