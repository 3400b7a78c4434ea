//! The oracle: a decoder in plain f32 Rust, written to be read and to be obviously right.
//!
//! Every other backend is compared with this one, so it does what the seam's
//! [`model`](halfhitch_seam::model) page says and nothing clever. It is deterministic to the bit: a
//! result depends on the tokens before it alone, not on the number of threads, on how a prompt is cut
//! into chunks or on who shares a step (`math::dot` says in which order sums are taken).
//!
//! | module | what for |
//! | --- | --- |
//! | `math` | the formulas, each a function over slices |
//! | `weights` | matrices, dense or packed, and their products |
//! | `model`, `load` | a model's weights in the shape of the computation, and how they get there |
//! | `cache` | keys and values of a sequence |
//! | `forward` | the decoder |
//! | `session` | sequences and the checks on what comes in |
//! | `taps` | intermediate results, where somebody asks for them |
//! | `memory` | how much the machine has |

mod cache;
mod forward;
mod load;
mod math;
mod memory;
mod model;
mod session;
mod taps;
mod weights;

use halfhitch_seam::{
    BackendIdentity, Bits, ComputeBackend, DType, DeviceCapabilities, DeviceId, DeviceInfo,
    DeviceSampler, ErrorCode, GroupSize, ModelFeature, OpenRequest, Precision, QuantSupport,
    SeamError, SeamResult, Session,
};

use crate::model::Model;
use crate::session::ReferenceSession;

/// Tokens of a prefill chunk: enough for a row of weights to be reused, few enough to stop soon.
const PREFILL_CHUNK: usize = 64;

/// Sequences of a session; they cost nothing until they grow.
const MAX_SEQUENCES: usize = 64;

/// The reference backend: one device, the host's processor.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReferenceCpu;

/// The reference backend.
pub fn backend() -> ReferenceCpu {
    ReferenceCpu
}

impl ReferenceCpu {
    /// The reference backend.
    pub fn new() -> Self {
        Self
    }

    fn device() -> DeviceInfo {
        DeviceInfo {
            id: DeviceId("0".into()),
            ordinal: 0,
            name: "cpu".into(),
            driver: "cpu".into(),
        }
    }

    fn check_device(device: &DeviceId) -> SeamResult<()> {
        if *device == Self::device().id {
            return Ok(());
        }
        Err(SeamError::new(
            ErrorCode::NotFound,
            format!("reference-cpu has no device `{device}`"),
        )
        .hint("its only device is `0`"))
    }
}

impl ComputeBackend for ReferenceCpu {
    fn identity(&self) -> BackendIdentity {
        BackendIdentity {
            name: "reference-cpu".into(),
            version: env!("CARGO_PKG_VERSION").into(),
            components: Vec::new(),
        }
    }

    fn devices(&self) -> SeamResult<Vec<DeviceInfo>> {
        Ok(vec![Self::device()])
    }

    fn capabilities(&self, device: &DeviceId) -> SeamResult<DeviceCapabilities> {
        Self::check_device(device)?;
        let bits = Bits::ALL.into_iter().flat_map(|b| Bits::new(b.into()));
        let groups = GroupSize::ALL
            .into_iter()
            .flat_map(|g| GroupSize::new(g.into()));
        Ok(DeviceCapabilities {
            device: Self::device(),
            precisions: vec![Precision::F32],
            resident: [DType::F32].into(),
            quantization: vec![QuantSupport {
                bits: bits.collect(),
                group_sizes: groups.collect(),
                scale_dtypes: [DType::F32, DType::F16, DType::BF16].into(),
                fused: false,
            }],
            // By name, so that a feature added to the seam is not claimed by accident.
            features: [
                ModelFeature::ProjectionBias,
                ModelFeature::QkNorm,
                ModelFeature::SlidingWindow,
                ModelFeature::RopeScaling,
                ModelFeature::PartialRope,
                ModelFeature::InterleavedRope,
                ModelFeature::NoRope,
                ModelFeature::Softcap,
                ModelFeature::PostNorm,
                ModelFeature::GeneralNorm,
                ModelFeature::Multipliers,
                ModelFeature::MixedLayers,
                ModelFeature::MixtureOfExperts,
                ModelFeature::HeadBias,
                ModelFeature::OtherActivation,
            ]
            .into(),
            samplers: [DeviceSampler::Greedy].into(),
            context_limit: None,
            max_sequences: MAX_SEQUENCES,
            max_threads: None,
            prefill_chunk: PREFILL_CHUNK,
            memory: memory::info(),
            codegen_target: None,
            representations: Vec::new(),
            tuned: Vec::new(),
            taps: true,
        })
    }

    fn open(&self, request: OpenRequest<'_>) -> SeamResult<Box<dyn Session>> {
        let plan = request.plan;
        Self::check_device(&plan.device.id)?;
        if plan.precision != Precision::F32 || plan.kv_dtype != DType::F32 {
            return Err(SeamError::new(
                ErrorCode::Incompatible,
                format!(
                    "a plan for {} with a {} cache; reference-cpu computes in f32",
                    plan.precision, plan.kv_dtype
                ),
            )
            .hint("plan with this backend's own capabilities"));
        }
        let model = Model::load(request.model, request.weights, plan, request.control)?;
        tracing::debug!(
            architecture = %request.model.architecture,
            layers = model.layers.len(),
            "opened"
        );
        Ok(Box::new(ReferenceSession::new(plan.clone(), model)))
    }
}
