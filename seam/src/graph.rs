//! What a backend that compiles graphs shows of them: their text, and what a step of one costs.

use std::fmt;
use std::ops::AddAssign;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::capability::DeviceId;
use crate::error::{SeamError, SeamResult};
use crate::model::ModelSpec;
use crate::plan::{ExecutionPlan, PlanRequest};
use crate::weights::WeightManifest;

/// Most sequences or rows that a step can be asked for.
const MOST_ROWS: usize = 4096;

/// A shape of step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StepShape {
    /// One token of one sequence.
    #[default]
    Decode,
    /// One token of each of several sequences.
    Batch(usize),
    /// Consecutive tokens of one prompt.
    Chunk(usize),
}

impl FromStr for StepShape {
    type Err = SeamError;

    fn from_str(text: &str) -> SeamResult<Self> {
        let wrong = || {
            SeamError::invalid_input(format!("`{text}` is no shape of step")).hint(format!(
                "decode, batch=N or chunk=N, N from 1 to {MOST_ROWS}"
            ))
        };
        let (kind, number) = match text.split_once('=') {
            None if text == "decode" => return Ok(Self::Decode),
            None => return Err(wrong()),
            Some(parts) => parts,
        };
        let number = number.parse().ok();
        let number = number.filter(|n| (1..=MOST_ROWS).contains(n));
        match (kind, number) {
            ("batch", Some(n)) => Ok(Self::Batch(n)),
            ("chunk", Some(n)) => Ok(Self::Chunk(n)),
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for StepShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Decode => f.write_str("decode"),
            Self::Batch(n) => write!(f, "batch={n}"),
            Self::Chunk(n) => write!(f, "chunk={n}"),
        }
    }
}

/// What [`ComputeBackend::graph`](crate::ComputeBackend::graph) is asked for. Plain data: nothing is
/// loaded and no device is used.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GraphRequest {
    /// The device whose graph it is, where no target is named.
    pub device: DeviceId,
    /// A target to make code for in place of the device's (`local`, `cuda:sm_80`); the backend says
    /// which there are.
    pub target: Option<String>,
    /// The model, validated.
    pub model: ModelSpec,
    /// What its weights are, checked against the model.
    #[serde(with = "pairs")]
    pub weights: WeightManifest,
    /// The user's wishes.
    pub wishes: PlanRequest,
    /// Which step.
    pub shape: StepShape,
    /// Whether the graph is compiled and counted, and at which position: how many tokens each sequence
    /// holds before the step.
    pub stats_at: Option<usize>,
    /// Whether all code that a session of these wishes would run is compiled and kept, for a machine
    /// without a compiler.
    #[serde(default)]
    pub ahead: bool,
}

/// The graph of a step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GraphReport {
    /// What code is made for.
    pub target: String,
    /// The plan that it follows.
    pub plan: ExecutionPlan,
    /// The graph, as the compiler takes it.
    pub text: String,
    /// What a step costs, where that was asked for.
    pub stats: Option<GraphStats>,
}

/// What is done in a step: launches of kernels, copies and fills between them, and bytes that these
/// read and write (of what a kernel reads several times, once).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// Kernels.
    pub dispatches: u64,
    /// Copies.
    pub copies: u64,
    /// Fills.
    pub fills: u64,
    /// Bytes read.
    pub bytes_read: u64,
    /// Bytes written.
    pub bytes_written: u64,
}

impl AddAssign for Traffic {
    fn add_assign(&mut self, other: Self) {
        self.dispatches += other.dispatches;
        self.copies += other.copies;
        self.fills += other.fills;
        self.bytes_read = self.bytes_read.saturating_add(other.bytes_read);
        self.bytes_written = self.bytes_written.saturating_add(other.bytes_written);
    }
}

/// The traffic of a part of the model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartTraffic {
    /// `embedding`, `attention`, `feed-forward`, `head`, ...
    pub part: String,
    /// Of all layers together.
    pub traffic: Traffic,
}

/// A tensor that one kernel writes and another reads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Intermediate {
    /// Its type (`1x49152xf32`).
    pub shape: String,
    /// Its part of the model.
    pub part: String,
    /// How many numbers it holds.
    pub elements: u64,
    /// Its bytes.
    pub bytes: u64,
}

/// What a step costs as it was compiled.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GraphStats {
    /// How many tokens each sequence holds before the step.
    pub position: usize,
    /// The whole step, with the reading of a token from it.
    pub total: Traffic,
    /// The same by parts of the model, in the order of the computation.
    pub parts: Vec<PartTraffic>,
    /// What belongs to layers.
    pub in_layers: Traffic,
    /// Number of layers.
    pub layers: usize,
    /// The largest tensor between two kernels.
    pub largest: Option<Intermediate>,
    /// Numbers of the model's smallest matrix: what a tensor must stay below so that no weight is
    /// rebuilt in memory.
    pub smallest_matrix: u64,
    /// Tensors whose size could not be told; what is counted of them is too little.
    pub unresolved: u64,
}

impl GraphStats {
    /// Kernels a layer.
    pub fn dispatches_a_layer(&self) -> f64 {
        self.in_layers.dispatches as f64 / self.layers.max(1) as f64
    }

    /// Whether a tensor between kernels is as large as one of the model's matrices.
    pub fn rebuilds_a_weight(&self) -> bool {
        self.largest
            .as_ref()
            .is_some_and(|l| l.elements >= self.smallest_matrix)
    }
}

/// Maps whose keys are no strings, as lists of pairs.
pub(crate) mod pairs {
    use serde::{Deserialize, Deserializer, Serializer};

    use crate::model::WeightId;
    use crate::weights::{WeightInfo, WeightManifest};

    pub fn serialize<S: Serializer>(map: &WeightManifest, s: S) -> Result<S::Ok, S::Error> {
        s.collect_seq(map)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<WeightManifest, D::Error> {
        let pairs = Vec::<(WeightId, WeightInfo)>::deserialize(d)?;
        Ok(pairs.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_written_as_they_are_read() {
        for text in ["decode", "batch=4", "chunk=128"] {
            assert_eq!(text.parse::<StepShape>().unwrap().to_string(), text);
        }
        for wrong in [
            "",
            "batch",
            "batch=0",
            "chunk=4097",
            "chunk=x",
            "decode=1",
            "rows=2",
        ] {
            let e = wrong.parse::<StepShape>().unwrap_err();
            assert!(e.hint.unwrap().contains("chunk=N"), "{wrong}");
        }
    }
}
