//! The accuracy gate on `local-task`: it passes, and a fault in one tensor is found in the compiled step.

#[path = "../gate/changed.rs"]
mod changed;

use std::sync::Arc;

use halfhitch::gate::{
    Limits, Localization, LocalizeInput, Measured, PromptSet, Side, Sides, Verdict, compare,
    localize,
};
use halfhitch_reference_cpu::ReferenceCpu;
use halfhitch_seam::{
    AffineScheme, Bits, CancelToken, ComputeBackend, Control, DType, GroupSize, LayerWeight,
    NoObserver, PlanRequest, Precision, QuantRequest, TapPoint, WeightId,
};
use halfhitch_suite::models::{Generated, Storage, packable_spec};

use changed::{Change, Changed};

fn gate(model: &Generated, change: Change, request: PlanRequest) -> (Measured, Localization) {
    let iree: Arc<dyn ComputeBackend> = Arc::new(super::backend("local-task"));
    let backends: [Arc<dyn ComputeBackend>; 2] = [
        Arc::new(ReferenceCpu::new()),
        Arc::new(Changed::by(iree, change)),
    ];
    let capabilities = backends.each_ref().map(|b| {
        let device = b.devices().unwrap().remove(0).id;
        b.capabilities(&device).unwrap()
    });
    let side = |i: usize, request| Side {
        backend: Arc::clone(&backends[i]),
        capabilities: &capabilities[i],
        spec: &model.spec,
        weights: &model.weights,
        request,
    };
    let (against, candidate) = (side(0, PlanRequest::default()), side(1, request));
    let plan = candidate.plan().unwrap();
    let limits = Limits::of(plan.precision, plan.kv_dtype);
    let cancel = CancelToken::new();
    let control = Control {
        cancel: &cancel,
        observer: &NoObserver,
    };
    let mut reference = against.open(&control).unwrap();
    let mut session = candidate.open(&control).unwrap();
    let mut sides = Sides {
        against: &mut *reference,
        candidate: &mut *session,
        vocabulary: model.spec.vocab_size,
    };
    // Short enough that a chunk of 16 serves all.
    let mut prompts = PromptSet::random(model.spec.vocab_size, 16);
    prompts.prompts.truncate(3);
    let positions = compare(&mut sides, &prompts, 4, &control).unwrap();
    let input = LocalizeInput::worst(&positions, &prompts, &model.spec).unwrap();
    let found = localize(&against, &candidate, &mut sides, input, &limits, &control).unwrap();
    (Measured::of(&positions, &limits), found)
}

fn model() -> Generated {
    let mut spec = packable_spec();
    spec.layers = vec![spec.layers[0].clone(); 2];
    spec.layers[1].attention.qkv_bias = true;
    let scheme = AffineScheme {
        bits: Bits::new(4).unwrap(),
        group_size: GroupSize::new(32).unwrap(),
        scale_dtype: DType::F16,
    };
    Generated::new("gate-local-task", spec, Storage::Affine(scheme)).unwrap()
}

#[test]
fn packed_weights_pass_and_a_fault_in_one_tensor_is_named() {
    let model = model();
    let packed = PlanRequest {
        precision: Some(Precision::F32),
        quant: QuantRequest::Packed,
        ..PlanRequest::default()
    };
    let (measured, found) = gate(&model, |_, _| {}, packed);
    assert_eq!(measured.verdict(), Verdict::Pass, "{:#?}", measured.checks);
    assert!(found.finding.is_none(), "{:#?}", found.taps);
    assert!(!found.step.unwrap().parts);

    let faults: [(Change, usize, TapPoint); 3] = [
        (
            |_, n| n.each(WeightId::Layer(1, LayerWeight::KeyBias), |_| 0.0),
            1,
            TapPoint::KeyProjection,
        ),
        (
            |_, n| n.each(WeightId::Layer(0, LayerWeight::Down), |v| v * 1.02),
            0,
            TapPoint::FeedForwardOutput,
        ),
        (
            |s, _| s.layers[1].attention.scale *= 1.1,
            1,
            TapPoint::AttentionMix,
        ),
    ];
    for (change, layer, point) in faults {
        let (measured, found) = gate(&model, change, packed);
        assert_eq!(measured.verdict(), Verdict::Fail, "{point}");
        let finding = found
            .finding
            .unwrap_or_else(|| panic!("{point} went unseen"));
        assert_eq!((finding.layer, finding.point), (Some(layer), Some(point)));
        assert!(!found.step.unwrap().parts);
    }
}

#[test]
fn f16_passes_its_own_limits_and_no_tensor_is_named() {
    let f16 = PlanRequest {
        precision: Some(Precision::F16),
        quant: QuantRequest::Dequant,
        ..PlanRequest::default()
    };
    let (measured, found) = gate(&model(), |_, _| {}, f16);
    assert_eq!(measured.verdict(), Verdict::Pass, "{:#?}", measured.checks);
    assert!(found.finding.is_none(), "{:#?}", found.taps);
}
