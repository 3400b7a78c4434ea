//! What the pinned compiler makes code for, on targets that no device here has: the formats that tables
//! would offer are tried.

mod common;

use std::path::Path;

use common::control;
use halfhitch_seam::{CancelToken, DType, Precision};
use halfhitch_xla_iree::compiler::{Compiler, CompilerOptions, Target, probe};
use halfhitch_xla_iree_sys::IREE_VERSION;

#[test]
fn a_format_that_the_compiler_fails_on_is_not_offered() {
    let mut options = CompilerOptions::from_environment(IREE_VERSION).expect("options");
    options.cache = Some(Path::new(env!("CARGO_TARGET_TMPDIR")).join("modules"));
    let cancel = CancelToken::new();
    let compiler = Compiler::open(&options, &control(&cancel)).expect("a compiler");
    let (f32, f16, bf16) = (Precision::F32, Precision::F16, Precision::BF16);
    for (name, precisions) in [
        // It selects a matrix instruction of 8.0 for 7.x, and crashes.
        ("cuda:sm_75", vec![f32]),
        ("cuda:sm_61", vec![f32, f16]),
        ("cuda:sm_80", vec![f32, f16, bf16]),
        ("vulkan-spirv:ampere", vec![f32, f16]),
        // Has neither f16 arithmetic nor storage of 16 bits.
        ("vulkan-spirv:vp_android_baseline_2022", vec![f32]),
        ("metal-spirv", vec![f32, f16]),
    ] {
        let mut target = Target::named(name).expect("a target");
        let named = target.clone();
        probe::settle(&compiler, &mut target, &control(&cancel)).expect("an answer");
        assert_eq!(target.precisions, precisions, "{name}");
        assert_eq!(target.flags, named.flags, "{name}");
        // All of these read f16, by itself or in pairs.
        assert!(target.resident.contains(&DType::F16), "{name}");
    }
}
