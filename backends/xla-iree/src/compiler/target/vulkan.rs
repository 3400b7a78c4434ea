//! Vulkan: code for exactly the features that a device was opened with.
//!
//! A device's name does not choose the target: code for another make of GPU runs, and computes wrongly.
//! Without a name the compiler assumes nothing but the features that are listed.

use halfhitch_seam::{DType, Precision, SeamError, SeamResult};

use super::{O2, Target, Told, check, flags};
use crate::emitter::Profile;

/// Makes and products that the compiler knows.
const KNOWN: [&str; 13] = [
    "adreno",
    "ada",
    "ampere",
    "rdna1",
    "rdna2",
    "rdna3",
    "rdna4",
    "turing",
    "valhall1",
    "valhall2",
    "valhall3",
    "valhall4",
    "vp_android_baseline_2022",
];

/// With the default, every call after the first reads the first call's inputs.
const OWN: [&str; 3] = [
    O2,
    "--iree-hal-target-backends=vulkan-spirv",
    "--iree-hal-memoization=false",
];

/// What every graph needs.
const BASE: [&str; 3] = [
    "spirv:v1.3",
    "cap:Shader",
    "ext:SPV_KHR_storage_buffer_storage_class",
];

/// Optional features: what the driver calls them, and what the compiler does.
const OPTIONAL: [(&str, &[&str]); 6] = [
    ("shader_float16", &["cap:Float16"]),
    (
        "storage_buffer_16bit_access",
        &[
            "cap:StorageBuffer16BitAccess",
            "cap:StorageUniform16",
            "ext:SPV_KHR_16bit_storage",
        ],
    ),
    ("shader_int8", &["cap:Int8"]),
    (
        "storage_buffer_8bit_access",
        &[
            "cap:StorageBuffer8BitAccess",
            "cap:UniformAndStorageBuffer8BitAccess",
            "ext:SPV_KHR_8bit_storage",
        ],
    ),
    ("shader_int16", &["cap:Int16"]),
    ("shader_int64", &["cap:Int64"]),
];

/// The features that numbers of 16 bits need.
const HALVES: [&str; 3] = [
    "shader_float16",
    "storage_buffer_16bit_access",
    "shader_int16",
];

/// A target of the features that the device was opened with.
pub(super) fn device(told: Told<'_>) -> SeamResult<Target> {
    let has = |feature: &str| told("vulkan.feature", feature) == Some(1);
    // The version without its patch level. 1.1 is the first that takes SPIR-V 1.3.
    if told("vulkan.device", "api_version").is_some_and(|v| v >> 12 < (1 << 10) | 1) {
        return Err(SeamError::unsupported(
            "the device is older than Vulkan 1.1",
        ));
    }
    Ok(of_features(&has))
}

fn of_features(has: &dyn Fn(&str) -> bool) -> Target {
    let optional = OPTIONAL.iter().filter(|(feature, _)| has(feature));
    let features: Vec<&str> = BASE
        .into_iter()
        .chain(optional.flat_map(|(_, names)| names.iter().copied()))
        .collect();
    let halves = HALVES.iter().all(|feature| has(feature));
    target(
        "vulkan-spirv".to_owned(),
        &format!("--iree-vulkan-target-features={}", features.join(",")),
        halves,
        false,
    )
}

/// A make or product by name; every optional feature where none is named.
pub(super) fn named(name: Option<&str>) -> SeamResult<Target> {
    let Some(name) = name else {
        return Ok(of_features(&|_| true));
    };
    check("vulkan-spirv", name, &KNOWN)?;
    Ok(target(
        format!("vulkan-spirv:{name}"),
        &format!("--iree-vulkan-target={name}"),
        true,
        name != "vp_android_baseline_2022",
    ))
}

/// No matrices of bf16: products of them do not compile.
fn target(description: String, flag: &str, halves: bool, subgroups: bool) -> Target {
    let mut precisions = vec![Precision::F32];
    precisions.extend(halves.then_some(Precision::F16));
    let mut resident = vec![DType::F32];
    resident.extend(halves.then_some(DType::F16));
    Target {
        flags: flags(OWN.into_iter().chain([flag])),
        profile: Profile::Gpu { subgroups },
        precisions,
        resident: resident.into_iter().collect(),
        description,
        machine: String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn features(target: &Target) -> &str {
        let flag = "--iree-vulkan-target-features=";
        let given = target.flags.iter().find_map(|f| f.strip_prefix(flag));
        given.expect("features are given")
    }

    #[test]
    fn only_what_the_device_has_is_asked_for() {
        let bare = device(&|_, _| None).unwrap();
        assert_eq!(features(&bare), BASE.join(","));
        assert_eq!(bare.precisions, [Precision::F32]);
        assert_eq!(bare.resident, [DType::F32].into());
        let told = |category: &str, key: &str| match category {
            "vulkan.feature" => Some(i64::from(key != "shader_int8")),
            _ => None,
        };
        let most = device(&told).unwrap();
        assert!(features(&most).contains("cap:Float16"));
        assert!(!features(&most).contains("cap:Int8"));
        assert_eq!(most.precisions, [Precision::F32, Precision::F16]);
    }

    #[test]
    fn command_buffers_are_never_used_again() {
        for target in [named(None), named(Some("ampere")), device(&|_, _| None)] {
            let flags = target.unwrap().flags;
            assert!(flags.iter().any(|f| f == "--iree-hal-memoization=false"));
        }
    }

    #[test]
    fn a_device_from_before_storage_classes_is_refused() {
        let version = |v: i64| move |_: &str, key: &str| (key == "api_version").then_some(v);
        assert!(device(&version(1 << 22)).is_err());
        assert!(device(&version((1 << 22) | (1 << 12))).is_ok());
    }
}
