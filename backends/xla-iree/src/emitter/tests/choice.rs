//! Representations as a plan names them.

use halfhitch_seam::{RepresentationName, StepRows, TunedContraction};

use super::*;
use crate::emitter::contraction::choice::{alternatives, representation, step_rows, supports};
use crate::emitter::layout::Layout;

/// A plan from what a target's device advertises.
fn planned(spec: &ModelSpec, profile: Profile, wish: Option<&'static str>) -> ExecutionPlan {
    let device = DeviceInfo {
        id: DeviceId("0".into()),
        ordinal: 0,
        name: "test".into(),
        driver: "local-task".into(),
    };
    let mut device = capabilities(device, MemoryInfo::default(), None);
    device.representations = supports(profile);
    let request = PlanRequest {
        representation: wish.map(RepresentationName::of),
        ..PlanRequest::default()
    };
    let manifest = manifest(spec, affine(4, DType::F16));
    negotiate(spec, &manifest, &device, &request).unwrap()
}

fn decode(spec: &ModelSpec, plan: &ExecutionPlan, profile: Profile) -> String {
    module(on(profile, spec, plan), SHAPES[0]).text
}

#[test]
fn left_alone_a_plan_is_what_the_target_prefers() {
    let spec = llama();
    let untold = plan(&spec, affine(4, DType::F16), Precision::F32);
    for profile in [Profile::Portable, CPU] {
        let told = planned(&spec, profile, None);
        assert!(!told.representations.is_empty());
        for shape in SHAPES {
            assert_eq!(
                module(on(profile, &spec, &told), shape),
                module(on(profile, &spec, &untold), shape)
            );
        }
    }
}

#[test]
fn a_wish_decides_how_packed_weights_lie_and_are_contracted() {
    let spec = llama();
    for (wish, layout, tiled, product) in [
        ("words", Layout::Blocks, true, false),
        ("fused-reduce", Layout::Stored, false, false),
        ("expand", Layout::Stored, false, true),
    ] {
        let plan = planned(&spec, CPU, Some(wish));
        let source = on(CPU, &spec, &plan);
        let down = layer_weight(0, halfhitch_seam::LayerWeight::Down);
        assert_eq!(resident::single(source, down).layout, layout, "{wish}");
        let text = decode(&spec, &plan, CPU);
        assert_eq!(text.contains("lowering_config"), tiled, "{wish}");
        assert_eq!(text.contains("dot_general"), product, "{wish}");
    }
}

#[test]
fn chunks_choose_among_what_reads_the_layout() {
    let spec = llama();
    let plan = planned(&spec, CPU, Some("expand"));
    let chunk = module(on(CPU, &spec, &plan), SHAPES[1]).text;
    assert!(!chunk.contains("mmt4d") && chunk.contains("dot_general"));
    let plan = planned(&spec, CPU, Some("tiles"));
    let chunk = module(on(CPU, &spec, &plan), SHAPES[1]).text;
    assert!(chunk.contains("mmt4d"));
}

fn measured(shape: [usize; 2], name: &'static str, tasks: Option<usize>) -> TunedContraction {
    TunedContraction {
        form: affine(4, DType::F16),
        shape,
        rows: StepRows::One,
        threads: None,
        representation: RepresentationName::of(name),
        tasks,
        microseconds: 1.0,
        untuned_microseconds: None,
    }
}

#[test]
fn what_was_measured_goes_before_the_table() {
    let spec = llama();
    let mut plan = planned(&spec, CPU, None);
    let usual = decode(&spec, &plan, CPU);
    // Gate and up are 256 rows: 8 blocks, here in 8 tasks of one, which nothing else is.
    plan.tuned = vec![measured([256, 64], "words", Some(8))];
    let tuned = decode(&spec, &plan, CPU);
    let lines = usual.lines().zip(tuned.lines());
    let changed: Vec<(&str, &str)> = lines.filter(|(a, b)| a != b).collect();
    // One in each layer.
    assert_eq!(changed.len(), 2);
    for (usual, tuned) in changed {
        assert!(!usual.contains("distribution = [1, 32, 0, 0]"), "{usual}");
        assert!(tuned.contains("distribution = [1, 32, 0, 0]"), "{tuned}");
        assert!(tuned.contains("tensor<8x2x4x32xi32>"), "{tuned}");
    }
    // Another shape's answer, a name that is not known and one that does not fit change nothing.
    for other in [
        measured([512, 64], "words", Some(8)),
        measured([256, 64], "unheard-of", None),
        measured([256, 64], "tiles", None),
    ] {
        plan.tuned = vec![other];
        assert_eq!(decode(&spec, &plan, CPU), usual);
    }
    plan.tuned = vec![measured([64, 128], "fused-reduce", None)];
    let source = on(CPU, &spec, &plan);
    let down = layer_weight(0, halfhitch_seam::LayerWeight::Down);
    assert_eq!(resident::single(source, down).layout, Layout::Stored);
}

#[test]
fn alternatives_differ_and_the_first_is_what_is_taken_untuned() {
    let spec = llama();
    for profile in [Profile::Portable, CPU] {
        let plan = planned(&spec, profile, None);
        let source = on(profile, &spec, &plan);
        let (form, shape) = (affine(4, DType::F16), [256, 64]);
        for rows in [1, 16] {
            let rows = (rows, step_rows(rows, 1));
            let all = alternatives(source, form, &shape, rows);
            let first = all[0];
            let lies = Layout::choose(profile, form, &shape);
            assert_eq!(first.layout, lies);
            assert_eq!(
                first.representation,
                representation(source, form, lies, &shape, rows)
            );
            for (i, a) in all.iter().enumerate() {
                assert!(!all[..i].contains(a), "{a:?}");
            }
        }
    }
}
