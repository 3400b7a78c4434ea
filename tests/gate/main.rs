//! The accuracy gate is itself tested: backends that are wrong in one way each must fail it, and
//! localisation must name the layer and tensor that is wrong.

mod changed;
mod narrow;

use std::sync::Arc;

use halfhitch::gate::{
    LimitName, Limits, Localization, LocalizeInput, Measured, PromptSet, Side, Sides, Verdict,
    compare, localize,
};
use halfhitch_reference_cpu::ReferenceCpu;
use halfhitch_seam::model::{Activation, FeedForward, ModelSpec, NormSpec, QkNorm, QkNormScope};
use halfhitch_seam::{
    AffineScheme, Bits, CancelToken, ComputeBackend, Control, DType, ErrorCode, GroupSize,
    LayerWeight as W, NoObserver, PlanRequest, Precision, SeamResult, TapPoint as P, WeightId,
};
use halfhitch_suite::models::{Generated, Storage, packable_spec, plain_spec};

use changed::{Change, Changed};
use narrow::{Narrow, in_f16};

/// Layers of the models here: enough for a bisection to have something to do.
const LAYERS: usize = 5;

/// Every part that a fault can be in: biases everywhere, normed queries and keys.
fn spec() -> ModelSpec {
    let mut spec = plain_spec();
    spec.layers = vec![spec.layers[0].clone(); LAYERS];
    for layer in &mut spec.layers {
        let a = &mut layer.attention;
        (a.qkv_bias, a.output_bias) = (true, true);
        a.qk_norm = Some(QkNorm {
            scope: QkNormScope::Head,
            norm: NormSpec::rms(1e-6),
        });
        if let FeedForward::Gated(mlp) = &mut layer.feed_forward {
            mlp.bias = true;
        }
    }
    spec
}

fn model() -> Generated {
    Generated::new("gate", spec(), Storage::Dense(DType::F32)).unwrap()
}

/// A run of the gate on `model`, with what localisation finds.
fn gate(
    model: &Generated,
    candidate: impl ComputeBackend + 'static,
    limits: Limits,
) -> (Measured, Localization) {
    let backends: [Arc<dyn ComputeBackend>; 2] =
        [Arc::new(ReferenceCpu::new()), Arc::new(candidate)];
    let capabilities = backends.each_ref().map(|b| {
        let device = b.devices().unwrap().remove(0).id;
        b.capabilities(&device).unwrap()
    });
    let side = |i: usize| Side {
        backend: Arc::clone(&backends[i]),
        capabilities: &capabilities[i],
        spec: &model.spec,
        weights: &model.weights,
        request: PlanRequest::default(),
    };
    let (against, candidate) = (side(0), side(1));
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
    let mut prompts = PromptSet::random(model.spec.vocab_size, 24);
    prompts.prompts.truncate(3);
    let positions = compare(&mut sides, &prompts, 8, &control).unwrap();
    assert_eq!(positions.len(), 3 * 24);
    let input = LocalizeInput::worst(&positions, &prompts, &model.spec).unwrap();
    let found = localize(&against, &candidate, &mut sides, input, &limits, &control).unwrap();
    (Measured::of(&positions, &limits), found)
}

fn changed(change: Change) -> Changed {
    Changed::by(Arc::new(ReferenceCpu::new()), change)
}

fn f32_limits() -> Limits {
    Limits::of(Precision::F32, DType::F32)
}

const fn at(layer: u32, weight: W) -> WeightId {
    WeightId::Layer(layer, weight)
}

fn layer(spec: &mut ModelSpec, layer: usize, edit: impl Fn(&mut halfhitch_seam::model::LayerSpec)) {
    // A model of the first layers may not have it.
    spec.layers.get_mut(layer).into_iter().for_each(edit);
}

/// A fault in one tensor, and that tensor.
const FAULTS: &[(&str, Change, Option<usize>, P)] = &[
    (
        "an embedding",
        |_, n| n.each(WeightId::Embedding, |v| v + 0.02),
        None,
        P::Embedding,
    ),
    (
        "another eps",
        |s, _| layer(s, 3, |l| l.pre_attention = Some(NormSpec::rms(0.5))),
        Some(3),
        P::PreAttentionNorm,
    ),
    (
        "a dropped bias of queries",
        |_, n| n.each(at(1, W::QueryBias), |_| 0.0),
        Some(1),
        P::QueryProjection,
    ),
    (
        "one scale of keys",
        |_, n| n.each(at(2, W::Key), |v| v * 1.02),
        Some(2),
        P::KeyProjection,
    ),
    (
        "a dropped bias of values",
        |_, n| n.each(at(0, W::ValueBias), |_| 0.0),
        Some(0),
        P::Value,
    ),
    (
        "another rope",
        |s, _| {
            layer(s, 4, |l| {
                l.attention.rope.iter_mut().for_each(|r| r.theta = 9_000.0)
            })
        },
        Some(4),
        P::Query,
    ),
    (
        "a norm of keys",
        |_, n| n.each(at(1, W::KeyNorm), |v| v + 0.05),
        Some(1),
        P::Key,
    ),
    (
        "another scale of scores",
        |s, _| layer(s, 2, |l| l.attention.scale *= 1.1),
        Some(2),
        P::AttentionMix,
    ),
    (
        "a window that is not there",
        |s, _| layer(s, 1, |l| l.attention.window = Some(4)),
        Some(1),
        P::AttentionMix,
    ),
    (
        "a dropped bias after attention",
        |_, n| n.each(at(3, W::OutputBias), |_| 0.0),
        Some(3),
        P::AttentionOutput,
    ),
    (
        "another factor on the residual",
        |s, _| layer(s, 2, |l| l.residual_scale = 1.01),
        Some(2),
        P::AttentionResidual,
    ),
    (
        "a norm's weight",
        |_, n| n.each(at(4, W::PreFeedForwardNorm), |v| v * 1.01),
        Some(4),
        P::PreFeedForwardNorm,
    ),
    (
        "a gate's weights in the wrong type",
        |_, n| n.each(at(1, W::Gate), |v| half::bf16::from_f32(v).to_f32()),
        Some(1),
        P::Gate,
    ),
    (
        "a dropped bias of the up projection",
        |_, n| n.each(at(0, W::UpBias), |_| 0.0),
        Some(0),
        P::Up,
    ),
    (
        "another activation",
        |s, _| {
            layer(s, 3, |l| {
                if let FeedForward::Gated(mlp) = &mut l.feed_forward {
                    mlp.activation = Activation::GeluTanh;
                }
            })
        },
        Some(3),
        P::FeedForwardProduct,
    ),
    (
        "one scale of the down projection",
        |_, n| n.each(at(2, W::Down), |v| v * 0.99),
        Some(2),
        P::FeedForwardOutput,
    ),
    (
        "the last norm",
        |s, _| s.final_norm.eps = 1e-2,
        None,
        P::FinalNorm,
    ),
    (
        "a cap on logits that is not there",
        |s, _| s.head.softcap = Some(20.0),
        None,
        P::Logits,
    ),
];

#[test]
fn what_is_right_passes_and_nothing_is_named() {
    for taps in [true, false] {
        let mut right = changed(|_, _| {});
        right.taps = taps;
        let (measured, found) = gate(&model(), right, f32_limits());
        assert_eq!(measured.verdict(), Verdict::Pass);
        assert_eq!(measured.metrics[2].top1, 1.0);
        assert!(found.finding.is_none() && !found.step.unwrap().parts);
    }
}

#[test]
fn every_fault_fails_and_its_tensor_is_named() {
    for (what, change, layer, point) in FAULTS {
        let (measured, found) = gate(&model(), changed(*change), f32_limits());
        assert_eq!(measured.verdict(), Verdict::Fail, "{what} passes");
        let finding = found
            .finding
            .unwrap_or_else(|| panic!("{what}: nothing is found"));
        assert_eq!(
            (finding.layer, finding.point),
            (*layer, Some(*point)),
            "{what}: {finding}, not its tensor"
        );
        assert!(
            !found.step.unwrap().parts,
            "{what}: the step is as wrong as the prefill"
        );
    }
}

#[test]
fn without_intermediate_results_the_layer_is_named() {
    for (what, change, layer, _) in FAULTS {
        let mut wrong = changed(*change);
        wrong.taps = false;
        let (_, found) = gate(&model(), wrong, f32_limits());
        let finding = found
            .finding
            .unwrap_or_else(|| panic!("{what}: nothing is found"));
        assert_eq!((finding.layer, finding.point), (*layer, None), "{what}");
        assert!(found.taps.is_empty());
        // All layers, none, and what halving five takes.
        assert!(found.prefixes.len() <= 5, "{what}: {:?}", found.prefixes);
    }
}

#[test]
fn a_packed_weights_scale_is_found() {
    let mut spec = packable_spec();
    spec.layers = vec![spec.layers[0].clone(); 2];
    let scheme = AffineScheme {
        bits: Bits::new(4).unwrap(),
        group_size: GroupSize::new(32).unwrap(),
        scale_dtype: DType::F16,
    };
    let model = Generated::new("gate-packed", spec, Storage::Affine(scheme)).unwrap();
    let wrong = changed(|_, n| n.each(at(1, W::Up), |v| v * 1.03));
    let (measured, found) = gate(&model, wrong, f32_limits());
    assert_eq!(measured.verdict(), Verdict::Fail);
    let finding = found.finding.unwrap();
    assert_eq!((finding.layer, finding.point), (Some(1), Some(P::Up)));
}

/// The prefill is right, so no tensor of it is named: the step is.
#[test]
fn a_step_at_another_position_fails_and_the_step_is_named() {
    let mut late = changed(|_, _| {});
    late.late = true;
    let (measured, found) = gate(&model(), late, f32_limits());
    let failed: Vec<_> = measured.checks.iter().filter(|c| !c.passed).collect();
    assert!(!failed.is_empty() && failed.iter().all(|c| c.over != "prefill"));
    assert!(found.finding.is_none());
    let step = found.step.unwrap();
    assert!(
        step.parts && step.position == found.input.tokens.len().div_ceil(2),
        "{step:?}"
    );
}

#[test]
fn norms_that_sum_in_f16_fail() {
    let exact = Narrow::new(|squares| squares.iter().sum());
    let (measured, found) = gate(&model(), exact, f32_limits());
    assert_eq!(
        measured.verdict(),
        Verdict::Pass,
        "the wrapper itself fails"
    );
    assert!(found.finding.is_none());
    let (measured, found) = gate(&model(), Narrow::new(in_f16), f32_limits());
    assert_eq!(measured.verdict(), Verdict::Fail);
    // Every norm is wrong, the last one too: no layer is at fault alone.
    assert_eq!(found.finding.unwrap().layer, None);
}

/// Each row of the table refuses what the next narrower type does to weights alone.
#[test]
fn limits_tell_precisions_apart() {
    let f16: Change = |_, n| n.round_all(|v| half::f16::from_f32(v).to_f32());
    let bf16: Change = |_, n| n.round_all(|v| half::bf16::from_f32(v).to_f32());
    // Three bits of mantissa, as an 8-bit float has.
    let f8: Change = |_, n| n.round_all(|v| f32::from_bits((v.to_bits() + (1 << 19)) & !0xF_FFFF));
    for (change, precision, verdict) in [
        (f16, Precision::F32, Verdict::Fail),
        (f16, Precision::F16, Verdict::Pass),
        (bf16, Precision::F16, Verdict::Fail),
        (bf16, Precision::BF16, Verdict::Pass),
        (f8, Precision::BF16, Verdict::Fail),
    ] {
        let limits = Limits::of(precision, DType::F32);
        let (measured, _) = gate(&model(), changed(change), limits);
        assert_eq!(
            measured.verdict(),
            verdict,
            "{precision}: {:#?}",
            measured.checks
        );
    }
}

/// The suite knows the seam alone and has its own number; it is the table's.
#[test]
fn the_suites_limit_is_the_tables() {
    for precision in Precision::ALL {
        assert_eq!(
            halfhitch_suite::limits::relative(precision),
            Limits::of(precision, DType::F32).get(LimitName::Dlogit),
            "{precision}"
        );
    }
}

#[test]
fn a_run_can_be_cancelled() {
    let model = model();
    let reference = ReferenceCpu::new();
    let capabilities = reference
        .capabilities(&reference.devices().unwrap()[0].id)
        .unwrap();
    let side = Side {
        backend: Arc::new(reference),
        capabilities: &capabilities,
        spec: &model.spec,
        weights: &model.weights,
        request: PlanRequest::default(),
    };
    let cancel = CancelToken::new();
    let control = Control {
        cancel: &cancel,
        observer: &NoObserver,
    };
    let [mut a, mut b] = [(); 2].map(|()| side.open(&control).unwrap());
    let mut sides = Sides {
        against: &mut *a,
        candidate: &mut *b,
        vocabulary: model.spec.vocab_size,
    };
    cancel.cancel();
    let prompts = PromptSet::random(model.spec.vocab_size, 24);
    let result: SeamResult<_> = compare(&mut sides, &prompts, 8, &control);
    assert_eq!(result.unwrap_err().code, ErrorCode::Cancelled);
}
