//! What one device can do. Plain values: they print, compare and serialise.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::dtype::{DType, Precision};
use crate::model::ModelFeature;
use crate::quant::{AffineScheme, Bits, GroupSize};
use crate::representation::RepresentationSupport;
use crate::tune::TunedContraction;

/// A device of a backend, by an id that stays the same between runs (`0`, `GPU-7f0c...`).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct DeviceId(pub String);

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A device as it is listed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceInfo {
    /// Stable id, unique within the backend.
    pub id: DeviceId,
    /// Position in the backend's list; what `backend:0` selects.
    pub ordinal: usize,
    /// Name for people.
    pub name: String,
    /// HAL driver or engine (`cpu`, `local-task`, `cuda`).
    pub driver: String,
}

/// Memory of a device, where it is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryInfo {
    /// All of it, in bytes.
    pub total: Option<u64>,
    /// What was free when it was asked, in bytes.
    pub free: Option<u64>,
}

/// A family of quantisation schemes that the device keeps packed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuantSupport {
    /// Widths.
    pub bits: BTreeSet<Bits>,
    /// Group sizes.
    pub group_sizes: BTreeSet<GroupSize>,
    /// Types of scales and biases.
    pub scale_dtypes: BTreeSet<DType>,
    /// Whether dequantisation is fused into the contraction, so that packed weights are read once
    /// and nothing weight-sized is written. Where it is not, packing saves memory and costs time.
    pub fused: bool,
}

impl QuantSupport {
    /// Whether `scheme` is one of the family.
    pub fn covers(&self, scheme: &AffineScheme) -> bool {
        self.bits.contains(&scheme.bits)
            && self.group_sizes.contains(&scheme.group_size)
            && self.scale_dtypes.contains(&scheme.scale_dtype)
    }
}

/// A sampler that can run on the device, so that logits need not leave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum DeviceSampler {
    /// The largest logit; of equal ones the lowest token id.
    Greedy,
}

/// What a device can do. Everything advertised works; everything else is refused with
/// [`ErrorCode::Unsupported`](crate::ErrorCode::Unsupported). The conformance suite holds backends
/// to both.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceCapabilities {
    /// The device these are of.
    pub device: DeviceInfo,
    /// Precisions of contractions, the preferred one first; never empty.
    pub precisions: Vec<Precision>,
    /// Types in which dense weights can be resident.
    pub resident: BTreeSet<DType>,
    /// Schemes in which weights can be resident packed.
    pub quantization: Vec<QuantSupport>,
    /// Parts of models beyond the plain decoder that are computed.
    pub features: BTreeSet<ModelFeature>,
    /// Samplers on the device; logits can always be had.
    pub samplers: BTreeSet<DeviceSampler>,
    /// Longest context of a sequence, in tokens, where the device has a limit of its own.
    pub context_limit: Option<usize>,
    /// Most sequences a session can hold.
    pub max_sequences: usize,
    /// Most processor threads a session can use, where there is a limit.
    #[serde(default)]
    pub max_threads: Option<usize>,
    /// Tokens of a prefill chunk that suit the device; cancellation and progress come at its ends.
    pub prefill_chunk: usize,
    /// Memory.
    pub memory: MemoryInfo,
    /// What code is generated for (`x86-64 znver4`, `sm_89`), where code is generated.
    pub codegen_target: Option<String>,
    /// Ways to write a contraction, the preferred one first; empty where there is no choice.
    #[serde(default)]
    pub representations: Vec<RepresentationSupport>,
    /// What was measured on the device before.
    #[serde(default)]
    pub tuned: Vec<TunedContraction>,
    /// Whether [`Session::tap`](crate::Session::tap) works.
    #[serde(default)]
    pub taps: bool,
}

impl DeviceCapabilities {
    /// The support that covers `scheme`, if any; a fused one before others.
    pub fn quant_support(&self, scheme: &AffineScheme) -> Option<&QuantSupport> {
        let mut covering = self.quantization.iter().filter(|s| s.covers(scheme));
        let first = covering.next()?;
        Some(if first.fused {
            first
        } else {
            covering.find(|s| s.fused).unwrap_or(first)
        })
    }
}
