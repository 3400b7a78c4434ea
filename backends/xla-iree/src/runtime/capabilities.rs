//! What a device of this backend can do.

use std::collections::BTreeSet;

use halfhitch_seam::{
    Bits, DType, DeviceCapabilities, DeviceInfo, DeviceSampler, GroupSize, MemoryInfo,
    ModelFeature, Precision, QuantSupport,
};

use super::defaults::preferred_first;
use crate::compiler::Target;
use crate::emitter::contraction::choice::supports;
use crate::emitter::layout::PACKED_BITS;

/// Rows of a full prefill chunk. More would make weights into tiles less often, which is some percent of
/// the time at this many, but a prompt can be cancelled only between chunks.
pub const PREFILL_CHUNK: usize = 256;

/// Most threads of a device, as the shim has it: `HH_MAX_WORKERS`, what the runtime's task topology is made for.
pub const MAX_WORKERS: usize = 64;

/// Most sequences of a session. Each has caches of its own; a step runs
/// several of them at once.
pub const MAX_SEQUENCES: usize = 64;

/// Every part of a model that the emitter computes: all but mixtures of experts.
pub fn features() -> BTreeSet<ModelFeature> {
    ModelFeature::ALL
        .into_iter()
        .filter(|f| *f != ModelFeature::MixtureOfExperts)
        .collect()
}

/// Schemes whose packed words are read as they lie in a checkpoint.
pub fn quantization() -> Vec<QuantSupport> {
    vec![QuantSupport {
        bits: PACKED_BITS
            .into_iter()
            .filter_map(|b| Bits::new(b).ok())
            .collect(),
        group_sizes: GroupSize::ALL
            .into_iter()
            .filter_map(|g| GroupSize::new(g.into()).ok())
            .collect(),
        scale_dtypes: [DType::F32, DType::F16, DType::BF16].into(),
        fused: true,
    }]
}

/// Whether a driver's devices have threads of their own; the others run on the calling one, or on no processor.
pub fn has_workers(driver: &str) -> bool {
    driver == "local-task"
}

/// Capabilities of a device whose code is made for `target`.
pub fn on_target(device: DeviceInfo, memory: MemoryInfo, target: &Target) -> DeviceCapabilities {
    let mut own = capabilities(device, memory, Some(target.description.clone()));
    own.representations = supports(target.profile);
    own.max_threads = has_workers(&own.device.driver).then_some(MAX_WORKERS);
    own.precisions = preferred_first(&own.device.driver, target.precisions.clone());
    own.resident.clone_from(&target.resident);
    for support in &mut own.quantization {
        support.scale_dtypes.clone_from(&target.resident);
    }
    own
}

/// Capabilities of a device where code can be made for all that the emitter writes. `codegen_target` is what code is generated for.
pub fn capabilities(
    device: DeviceInfo,
    memory: MemoryInfo,
    codegen_target: Option<String>,
) -> DeviceCapabilities {
    DeviceCapabilities {
        device,
        precisions: Precision::ALL.to_vec(),
        resident: [DType::F32, DType::F16, DType::BF16].into(),
        quantization: quantization(),
        features: features(),
        samplers: [DeviceSampler::Greedy].into(),
        context_limit: None,
        max_sequences: MAX_SEQUENCES,
        max_threads: None,
        prefill_chunk: PREFILL_CHUNK,
        memory,
        codegen_target,
        representations: Vec::new(),
        tuned: Vec::new(),
        taps: true,
    }
}
