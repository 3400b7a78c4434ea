//! GPUs that are told apart by an architecture's name alone: NVIDIA's by CUDA, AMD's, Apple's.

use halfhitch_seam::{DType, Precision, SeamError, SeamResult};

use super::{O2, O3, Target, Told, check, flags};
use crate::emitter::Profile;

/// Architectures that the compiler makes PTX for, by compute capability, rising. PTX runs on every
/// later one.
const CUDA: [(i64, &str); 10] = [
    (60, "sm_60"),
    (61, "sm_61"),
    (70, "sm_70"),
    (72, "sm_72"),
    (75, "sm_75"),
    (80, "sm_80"),
    (86, "sm_86"),
    (87, "sm_87"),
    (89, "sm_89"),
    (120, "sm_120"),
];

/// The first compute capability with bf16 arithmetic.
const CUDA_BF16: i64 = 80;

/// Architectures that the compiler makes AMD code for.
const ROCM: [&str; 8] = [
    "gfx908", "gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1151", "gfx1200", "gfx1201",
];

/// The newest architecture of [`CUDA`] that runs on the device.
pub(super) fn cuda_device(told: Told<'_>) -> SeamResult<Target> {
    let ask = |key| told("cuda.device", key);
    let capability = ask("compute_capability_major")
        .zip(ask("compute_capability_minor"))
        .filter(|&(major, minor)| (0..1000).contains(&major) && (0..10).contains(&minor))
        .map(|(major, minor)| 10 * major + minor)
        .ok_or_else(|| SeamError::unsupported("the device does not tell its compute capability"))?;
    let newest = CUDA.iter().rev().find(|(known, _)| *known <= capability);
    let (_, name) = newest.ok_or_else(|| {
        SeamError::unsupported(format!(
            "no code for compute capability {}.{}",
            capability / 10,
            capability % 10
        ))
        .hint("6.0 is the least")
    })?;
    cuda(Some(name))
}

/// An architecture by name; the oldest where none is named.
pub(super) fn cuda(name: Option<&str>) -> SeamResult<Target> {
    let name = name.unwrap_or(CUDA[0].1);
    check("cuda", name, &CUDA.map(|(_, name)| name))?;
    let capability = CUDA.iter().find(|(_, n)| *n == name).map_or(0, |(c, _)| *c);
    let mut precisions = vec![Precision::F32, Precision::F16];
    precisions.extend((capability >= CUDA_BF16).then_some(Precision::BF16));
    Ok(Target {
        flags: flags([
            O3,
            "--iree-hal-target-backends=cuda",
            &format!("--iree-cuda-target={name}"),
        ]),
        profile: Profile::Gpu { subgroups: true },
        precisions,
        resident: [DType::F32, DType::F16, DType::BF16].into(),
        description: format!("cuda:{name}"),
        machine: String::new(),
    })
}

/// An AMD architecture by name.
pub(super) fn rocm(name: Option<&str>) -> SeamResult<Target> {
    let name = name.unwrap_or(ROCM[0]);
    check("rocm", name, &ROCM)?;
    Ok(Target {
        flags: flags([
            O3,
            "--iree-hal-target-backends=rocm",
            &format!("--iree-rocm-target={name}"),
        ]),
        profile: Profile::Gpu { subgroups: true },
        precisions: Precision::ALL.to_vec(),
        resident: [DType::F32, DType::F16, DType::BF16].into(),
        description: format!("rocm:{name}"),
        machine: String::new(),
    })
}

/// Apple's GPUs, as Metal source: the library is made from it on the device. There is no bf16, and no
/// memory but the host's.
pub(super) fn metal() -> Target {
    Target {
        flags: flags([
            O2,
            "--iree-hal-target-backends=metal-spirv",
            "--iree-metal-compile-to-metallib=false",
        ]),
        profile: Profile::Gpu { subgroups: true },
        precisions: vec![Precision::F32, Precision::F16],
        resident: [DType::F32, DType::F16].into(),
        description: "metal-spirv".into(),
        machine: String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(major: i64, minor: i64) -> SeamResult<Target> {
        cuda_device(&move |category, key| match (category, key) {
            ("cuda.device", "compute_capability_major") => Some(major),
            ("cuda.device", "compute_capability_minor") => Some(minor),
            _ => None,
        })
    }

    #[test]
    fn a_newer_gpu_gets_the_newest_ptx_there_is_for_it() {
        for (major, minor, want) in [
            (6, 0, "cuda:sm_60"),
            (7, 5, "cuda:sm_75"),
            (8, 0, "cuda:sm_80"),
            (8, 9, "cuda:sm_89"),
            (9, 0, "cuda:sm_89"),
            (10, 3, "cuda:sm_89"),
            (12, 1, "cuda:sm_120"),
        ] {
            assert_eq!(device(major, minor).unwrap().description, want);
        }
    }

    #[test]
    fn an_old_or_a_silent_gpu_is_refused() {
        assert!(device(5, 2).unwrap_err().to_string().contains("5.2"));
        assert!(device(i64::MAX, 0).is_err());
        assert!(cuda_device(&|_, _| None).is_err());
    }

    #[test]
    fn bf16_is_computed_where_the_hardware_has_it() {
        let offers = |t: &Target| t.precisions.contains(&Precision::BF16);
        assert!(offers(&cuda(Some("sm_80")).unwrap()));
        assert!(!offers(&cuda(Some("sm_75")).unwrap()));
        assert!(!offers(&metal()));
        assert!(!metal().resident.contains(&DType::BF16));
    }
}
