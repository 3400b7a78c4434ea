//! The Vulkan plugin on a device, as the program loads it.
//!
//! `tests/tools/test-vulkan.sh` builds the plugins and runs this; it says so where there is no device.

mod oracle;
mod support;

use std::process::Command;

use halfhitch_seam::{PlanRequest, QuantRequest};
use support::{Run, library, run, tiny};

const VULKAN: &str = "xla-iree:vulkan";
const LOCAL: &str = "xla-iree:local-task";
const REFERENCE: &str = "reference-cpu";

/// Furthest from the reference that a logit may be, by the largest of its row.
const LIMIT: f32 = 1e-4;

/// Prompts of one token, of a chunk that is not full, and of several.
const PROMPTS: [usize; 3] = [1, 5, 23];

/// The same tokens as the reference, and logits near its.
fn assert_same(got: &Run, want: &Run, what: &str) {
    assert_eq!(got.tokens, want.tokens, "{what}");
    for (step, (got, want)) in got.logits.iter().zip(&want.logits).enumerate() {
        let most = want.iter().fold(0f32, |most, v| most.max(v.abs()));
        for (i, (g, w)) in got.iter().zip(want).enumerate() {
            // Also wrong where it is no number.
            let near = (g - w).abs() <= LIMIT * most;
            assert!(near, "{what}: step {step}, logit {i}: {g} is not {w}");
        }
    }
}

/// Many calls of every step with different inputs: code that reads the first call's again would go
/// wrong at the second token.
fn follows_the_reference(model: &str, quant: QuantRequest) {
    let request = PlanRequest {
        quant,
        context: Some(48),
        ..PlanRequest::default()
    };
    let reference = PlanRequest {
        quant: QuantRequest::Auto,
        ..request
    };
    let got = run(VULKAN, model, &request, &PROMPTS, 12);
    let want = run(REFERENCE, model, &reference, &PROMPTS, 12);
    for ((got, want), prompt) in got.iter().zip(&want).zip(PROMPTS) {
        assert_same(got, want, &format!("{model}, a prompt of {prompt}"));
    }
}

#[test]
fn dense_models_follow_the_reference() {
    follows_the_reference("tiny/llama", QuantRequest::Auto);
    follows_the_reference("tiny/qwen3", QuantRequest::Auto);
}

#[test]
fn packed_models_follow_the_reference() {
    follows_the_reference("mlx/llama-q4-g32", QuantRequest::Packed);
    follows_the_reference("mlx/llama-q8-g64", QuantRequest::Packed);
}

#[test]
fn two_drivers_generate_at_the_same_time() {
    let request = PlanRequest {
        context: Some(48),
        ..PlanRequest::default()
    };
    let want = run(REFERENCE, "tiny/llama", &request, &PROMPTS, 24);
    std::thread::scope(|scope| {
        let started = [VULKAN, LOCAL].map(|backend| {
            let request = &request;
            let work = move || run(backend, "tiny/llama", request, &PROMPTS, 24);
            (backend, scope.spawn(work))
        });
        for (backend, work) in started {
            let got = work.join().unwrap_or_else(|_| panic!("{backend} failed"));
            for (got, want) in got.iter().zip(&want) {
                assert_same(got, want, backend);
            }
        }
    });
}

#[test]
fn code_for_another_device_is_refused_by_the_self_test() {
    let output = Command::new(library("halfhitch"))
        .args(["generate", "--backend", VULKAN, "--prompt-tokens", "5"])
        .arg("--model")
        .arg(tiny("tiny/llama"))
        .env("HALFHITCH_IREE_TARGET", "vulkan-spirv:valhall1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("testing the device"), "{text}");
    assert!(text.contains("wrongly"), "{text}");
}

#[test]
fn a_device_is_known_by_its_ordinal_and_its_id() {
    let by = |selector: &str| support::target(&format!("{VULKAN}:{selector}")).unwrap();
    let first = by("0").capabilities;
    let id = first.device.id.to_string();
    assert_eq!(by(&id).capabilities.device, first.device);
    assert!(first.codegen_target.is_some());
    let e = support::target(&format!("{VULKAN}:no-such")).unwrap_err();
    assert!(e.to_string().contains(&id), "{e}");
}
