//! The processor that this program runs on.

use std::sync::OnceLock;

use halfhitch_seam::{DType, Precision};
use sha2::{Digest, Sha256};

use super::{O3, Target, flags};
use crate::compiler::hex;
use crate::emitter::Profile;

/// For the `local-task` and `local-sync` drivers.
pub(super) fn target() -> Target {
    let cpu = host_cpu();
    let own = [
        O3,
        "--iree-hal-target-device=local",
        "--iree-hal-local-target-device-backends=llvm-cpu",
        "--iree-llvmcpu-target-cpu=host",
    ];
    Target {
        flags: flags(own),
        profile: Profile::LlvmCpu {
            threads: std::thread::available_parallelism().map_or(1, |n| n.get()),
            bf16_pairs: cpu.bf16_pairs,
        },
        precisions: Precision::ALL.to_vec(),
        resident: [DType::F32, DType::F16, DType::BF16].into(),
        description: cpu.description.clone(),
        machine: cpu.fingerprint.clone(),
    }
}

struct HostCpu {
    description: String,
    fingerprint: String,
    /// As in [`Profile::LlvmCpu`].
    bf16_pairs: bool,
}

fn host_cpu() -> &'static HostCpu {
    static CPU: OnceLock<HostCpu> = OnceLock::new();
    CPU.get_or_init(|| {
        let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        describe(std::env::consts::ARCH, &text)
    })
}

/// From the first processor of `/proc/cpuinfo`: its name, and a hash of its name and features. Where
/// there is no such file the architecture alone counts.
fn describe(arch: &str, cpuinfo: &str) -> HostCpu {
    let first = cpuinfo.split("\n\n").next().unwrap_or_default();
    let field = |names: &[&str]| {
        first.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            names.contains(&key.trim()).then(|| value.trim().to_owned())
        })
    };
    let name = field(&["model name", "CPU part", "cpu"]).unwrap_or_default();
    let features = field(&["flags", "Features", "isa"]).unwrap_or_default();
    let mut hash = Sha256::new();
    for part in [arch, &name, &features] {
        hash.update(part);
        hash.update([0]);
    }
    HostCpu {
        description: format!("{arch} {name}").trim_end().to_owned(),
        fingerprint: hex(&hash.finalize()),
        bf16_pairs: field(&["vendor_id"]).as_deref() == Some("AuthenticAMD")
            && features.split(' ').any(|f| f == "avx512_bf16"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_taken_to_be_fast_on_amd_alone() {
        let cpu = |vendor, flags| {
            let text = format!("vendor_id\t: {vendor}\nflags\t\t: fpu {flags}\n");
            describe("x86_64", &text).bf16_pairs
        };
        assert!(cpu("AuthenticAMD", "avx512_bf16 avx2"));
        assert!(!cpu("AuthenticAMD", "avx2"));
        assert!(!cpu("GenuineIntel", "avx512_bf16"));
    }

    #[test]
    fn another_cpu_has_another_fingerprint() {
        let info = "processor\t: 0\nmodel name\t: Fast 1\nflags\t\t: fpu avx2\n\nprocessor\t: 1\n";
        let cpu = describe("x86_64", info);
        assert_eq!(cpu.description, "x86_64 Fast 1");
        for other in [
            info.replace("avx2", "avx"),
            info.replace("Fast 1", "Fast 2"),
            String::new(),
        ] {
            assert_ne!(describe("x86_64", &other).fingerprint, cpu.fingerprint);
        }
        assert_eq!(describe("aarch64", "").description, "aarch64");
    }
}
