//! Targets by name, to compile for what is not here.

use halfhitch_seam::{ErrorCode, SeamError, SeamResult};

use super::target::{COMMON, Target};
use crate::emitter::Profile;

/// Names that can be asked for, with what follows the colon; checked against the pinned compiler, which
/// crashes on one that it does not know.
const NAMES: [(&str, &[&str]); 5] = [
    ("local", &[]),
    (
        "cuda",
        &["sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_89"],
    ),
    ("vulkan", &["", "ampere", "ada", "turing", "rdna2", "rdna3"]),
    ("metal", &[]),
    ("rocm", &["gfx90a", "gfx942", "gfx1100"]),
];

/// Features without which Vulkan's default target lacks 8- and 16-bit storage.
const VULKAN_FEATURES: &str = "spirv:v1.3,cap:Shader,cap:Float16,cap:StorageBuffer16BitAccess,\
cap:StorageUniform16,cap:Int8,cap:StorageBuffer8BitAccess,cap:UniformAndStorageBuffer8BitAccess,\
cap:Int16,cap:Int64,ext:SPV_KHR_16bit_storage,ext:SPV_KHR_8bit_storage,\
ext:SPV_KHR_storage_buffer_storage_class";

impl Target {
    /// A target by its name: `local`, `cuda:sm_80`, `vulkan`, `vulkan:rdna3`, `metal`, `rocm:gfx942`.
    ///
    /// # Errors
    /// `NotFound`, with the names there are.
    pub fn named(name: &str) -> SeamResult<Self> {
        let (kind, chip) = name.split_once(':').unwrap_or((name, ""));
        let known = NAMES.iter().find(|(k, _)| *k == kind);
        let plain = chip.is_empty() && !name.contains(':');
        let chip = match known {
            Some((_, [])) if plain => "",
            // The first is the default where nothing must be chosen.
            Some((_, chips)) if chips.contains(&chip) && (plain || !chip.is_empty()) => chip,
            _ => return Err(unknown(name)),
        };
        let own: Vec<String> = match kind {
            "local" => return Ok(Self::host_cpu()),
            "cuda" => vec![
                "--iree-hal-target-device=cuda".into(),
                format!("--iree-cuda-target={chip}"),
            ],
            "vulkan" => vec![
                "--iree-hal-target-device=vulkan".into(),
                "--iree-hal-memoization=false".into(),
                match chip {
                    "" => format!("--iree-vulkan-target-features={VULKAN_FEATURES}"),
                    chip => format!("--iree-vulkan-target={chip}"),
                },
            ],
            "metal" => vec![
                "--iree-hal-target-device=metal".into(),
                "--iree-metal-compile-to-metallib=false".into(),
            ],
            _ => vec![
                "--iree-hal-target-device=hip".into(),
                format!("--iree-rocm-target={chip}"),
            ],
        };
        Ok(Self {
            flags: COMMON.iter().map(ToString::to_string).chain(own).collect(),
            profile: Profile::Portable,
            description: name.to_owned(),
            machine: name.to_owned(),
        })
    }
}

fn unknown(name: &str) -> SeamError {
    let names = NAMES.iter().flat_map(|(kind, chips)| {
        let own = chips.iter().map(move |chip| match *chip {
            "" => (*kind).to_owned(),
            chip => format!("{kind}:{chip}"),
        });
        own.chain(chips.is_empty().then(|| (*kind).to_owned()))
    });
    let names: Vec<String> = names.collect();
    SeamError::new(ErrorCode::NotFound, format!("no target is called `{name}`"))
        .hint(format!("there are {}", names.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_have_names_and_others_are_refused_with_them() {
        for (name, flag) in [
            ("local", "--iree-llvmcpu-target-cpu=host"),
            ("cuda:sm_89", "--iree-cuda-target=sm_89"),
            ("vulkan", "--iree-hal-target-device=vulkan"),
            ("vulkan:rdna3", "--iree-vulkan-target=rdna3"),
            ("metal", "--iree-hal-target-device=metal"),
            ("rocm:gfx942", "--iree-rocm-target=gfx942"),
        ] {
            let target = Target::named(name).unwrap();
            assert!(target.flags.iter().any(|f| f == flag), "{name}");
        }
        for name in [
            "",
            "cuda",
            "cuda:",
            "cuda:sm_90",
            "metal:x",
            "vulkan:",
            "local:1",
            "x",
        ] {
            let e = Target::named(name).unwrap_err();
            assert_eq!(e.code, ErrorCode::NotFound, "{name}");
            assert!(e.hint.unwrap().contains("cuda:sm_80"), "{name}");
        }
    }
}
