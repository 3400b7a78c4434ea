//! Targets: what the compiler is told, what its code can do there, and what else a compiled module
//! depends on.
//!
//! A device's target comes from what its driver tells of it, unless [`VARIABLE`] names another. Names
//! go to the compiler only where it is known to take them: an unknown one makes it crash.

mod cpu;
mod gpu;
mod vulkan;

use std::collections::BTreeSet;

use halfhitch_seam::{DType, ErrorCode, Precision, SeamError, SeamResult};

use crate::emitter::Profile;

/// Flags that hold for every target.
const COMMON: [&str; 1] = ["--iree-input-type=auto"];

/// Fuses all that can be fused.
const O3: &str = "--iree-opt-level=O3";

/// Fuses no reduction with what reads its operand again: on Vulkan that takes more shared memory than
/// every device must have.
const O2: &str = "--iree-opt-level=O2";

/// The environment variable that names targets, one a compiler backend, with commas between:
/// `cuda:sm_80,vulkan-spirv:ampere`.
pub const VARIABLE: &str = "HALFHITCH_IREE_TARGET";

/// The compiler's backends, by the names that its targets are known by.
const BACKENDS: [&str; 5] = ["llvm-cpu", "cuda", "vulkan-spirv", "metal-spirv", "rocm"];

/// What a device's driver says under a category and a key; `None` where it does not know.
pub type Told<'a> = &'a dyn Fn(&str, &str) -> Option<i64>;

/// What code is generated for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Flags besides input and output.
    pub flags: Vec<String>,
    /// What the emitter needs to know of it.
    pub profile: Profile,
    /// Precisions of contractions, the preferred one first.
    pub precisions: Vec<Precision>,
    /// Types of numbers that code for it reads: of dense weights, of scales and biases.
    pub resident: BTreeSet<DType>,
    /// For people: `x86_64 AMD EPYC 9654`, `cuda:sm_89`.
    pub description: String,
    /// Whatever the flags leave to the machine (`host` stands for a CPU); part of the cache's key.
    pub machine: String,
}

impl Target {
    /// The target of a driver whose device is not asked; `None` for a driver that no code can be made
    /// for.
    pub fn for_driver(driver: &str) -> Option<Self> {
        Self::named(backend_of(driver)?).ok()
    }

    /// The target of a driver's device: `wanted` where it names one for the driver's backend (see
    /// [`VARIABLE`]), else the one that suits what the driver tells.
    ///
    /// # Errors
    /// `Unsupported` for a driver or a device that no code can be made for; `InvalidInput` for a name
    /// in `wanted` that is not known.
    pub fn for_device(driver: &str, told: Told<'_>, wanted: Option<&str>) -> SeamResult<Self> {
        let backend = backend_of(driver)
            .ok_or_else(|| SeamError::unsupported(format!("no code for the driver `{driver}`")))?;
        let mut named = None;
        for name in wanted.unwrap_or_default().split(',').map(str::trim) {
            if name.is_empty() {
                continue;
            }
            let target = Self::named(name)?;
            let of = name.split_once(':').map_or(name, |(backend, _)| backend);
            named = (of == backend).then_some(target).or(named);
        }
        if let Some(named) = named {
            return Ok(named);
        }
        match backend {
            "cuda" => gpu::cuda_device(told),
            "vulkan-spirv" => vulkan::device(told),
            backend => Self::named(backend),
        }
    }

    /// The target that a name means: a backend of the compiler, and after a colon what its devices
    /// are called. `llvm-cpu` is the processor here; `cuda:sm_80`, `vulkan-spirv:ampere`,
    /// `metal-spirv`, `rocm:gfx942`; `local`, `vulkan` and `metal` for short. A backend alone is the least that its code needs.
    ///
    /// # Errors
    /// `InvalidInput` for a name that the compiler does not take, naming those it does.
    pub fn named(name: &str) -> SeamResult<Self> {
        let (backend, of) = match name.split_once(':') {
            Some((backend, of)) => (backend, Some(of)),
            None => (name, None),
        };
        match (backend, of) {
            ("llvm-cpu" | "local", None) => Ok(cpu::target()),
            ("cuda", of) => gpu::cuda(of),
            ("vulkan-spirv" | "vulkan", of) => vulkan::named(of),
            ("metal-spirv" | "metal", None) => Ok(gpu::metal()),
            ("rocm", of) => gpu::rocm(of),
            _ => Err(unknown(name, &BACKENDS)),
        }
    }

    /// The CPU that this process runs on, for the `local-task` and `local-sync` drivers.
    pub fn host_cpu() -> Self {
        cpu::target()
    }
}

/// The compiler's backend for a HAL driver.
fn backend_of(driver: &str) -> Option<&'static str> {
    Some(match driver {
        "local-task" | "local-sync" => "llvm-cpu",
        "cuda" => "cuda",
        "vulkan" => "vulkan-spirv",
        "metal" => "metal-spirv",
        "hip" | "amdgpu" => "rocm",
        _ => return None,
    })
}

fn unknown(name: &str, known: &[&str]) -> SeamError {
    SeamError::new(
        ErrorCode::InvalidInput,
        format!("the compiler has no target `{name}`"),
    )
    .hint(format!("it has {}", known.join(", ")))
}

/// One of `known`, or an error that lists them.
fn check(backend: &str, name: &str, known: &[&str]) -> SeamResult<()> {
    if known.contains(&name) {
        return Ok(());
    }
    Err(unknown(&format!("{backend}:{name}"), known))
}

fn flags<'a>(own: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    COMMON.into_iter().chain(own).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn silent(_: &str, _: &str) -> Option<i64> {
        None
    }

    #[test]
    fn a_wish_for_one_backend_leaves_the_others_alone() {
        let wanted = Some("cuda:sm_80, vulkan-spirv:ampere");
        let local = Target::for_device("local-task", &silent, wanted).unwrap();
        assert_eq!(local, Target::host_cpu());
        let cuda = Target::for_device("cuda", &silent, wanted).unwrap();
        assert_eq!(cuda.description, "cuda:sm_80");
        let vulkan = Target::for_device("vulkan", &silent, wanted).unwrap();
        assert_eq!(vulkan.description, "vulkan-spirv:ampere");
    }

    #[test]
    fn a_name_that_would_crash_the_compiler_is_refused_with_those_it_takes() {
        for (name, shown) in [
            ("cuda:sm_90", "sm_89"),
            ("vulkan-spirv:m1", "ampere"),
            ("rocm:gfx1030", "gfx942"),
            ("metal-spirv:m1", "metal-spirv"),
            ("opencl", "llvm-cpu"),
            ("cuda:sm_80,opencl", "llvm-cpu"),
        ] {
            let e = Target::for_device("local-task", &silent, Some(name)).unwrap_err();
            assert_eq!(e.code, ErrorCode::InvalidInput, "{name}");
            assert!(e.to_string().contains(shown), "{e}");
        }
        let e = Target::for_device("opencl", &silent, None).unwrap_err();
        assert_eq!(e.code, ErrorCode::Unsupported);
    }
}
