//! Negotiation is a pure function, so its decisions are tested as values.

use std::collections::BTreeSet;

use halfhitch_seam::model::PlainDecoder;
use halfhitch_seam::{
    AffineScheme, Bits, DType, DeviceCapabilities, DeviceId, DeviceInfo, DeviceSampler, ErrorCode,
    GroupSize, LayerWeight, MemoryInfo, ModelFeature, ModelSpec, PlanRequest, Precision,
    QuantRequest, QuantSupport, RepresentationName, RepresentationSupport, StepRows,
    TunedContraction, WeightForm, WeightId, WeightInfo, WeightManifest, negotiate,
};

fn model() -> ModelSpec {
    PlainDecoder {
        vocab_size: 96,
        hidden_size: 64,
        intermediate: 128,
        layers: 2,
        heads: 4,
        kv_heads: 2,
        head_dim: 16,
        max_context: 512,
    }
    .spec()
}

fn scheme(bits: u32) -> AffineScheme {
    AffineScheme {
        bits: Bits::new(bits).unwrap(),
        group_size: GroupSize::new(32).unwrap(),
        scale_dtype: DType::F16,
    }
}

/// Matrices in `form`, vectors in f32.
fn manifest(model: &ModelSpec, form: WeightForm) -> WeightManifest {
    model
        .expected_weights()
        .into_iter()
        .map(|w| {
            let form = if w.is_matrix() {
                form
            } else {
                WeightForm::Dense(DType::F32)
            };
            (
                w.id,
                WeightInfo {
                    shape: w.shape,
                    form,
                },
            )
        })
        .collect()
}

fn device() -> DeviceCapabilities {
    DeviceCapabilities {
        device: DeviceInfo {
            id: DeviceId("0".into()),
            ordinal: 0,
            name: "Test device".into(),
            driver: "test".into(),
        },
        precisions: vec![Precision::F16, Precision::F32],
        resident: BTreeSet::from([DType::F32, DType::F16]),
        quantization: vec![QuantSupport {
            bits: [4, 8].map(|b| Bits::new(b).unwrap()).into(),
            group_sizes: BTreeSet::from([GroupSize::new(32).unwrap()]),
            scale_dtypes: BTreeSet::from([DType::F16]),
            fused: true,
        }],
        features: BTreeSet::new(),
        samplers: BTreeSet::from([DeviceSampler::Greedy]),
        context_limit: Some(256),
        max_sequences: 4,
        max_threads: Some(8),
        prefill_chunk: 64,
        memory: MemoryInfo::default(),
        codegen_target: None,
        representations: Vec::new(),
        tuned: Vec::new(),
        taps: false,
    }
}

fn request(f: impl FnOnce(&mut PlanRequest)) -> PlanRequest {
    let mut request = PlanRequest::default();
    f(&mut request);
    request
}

#[test]
fn left_alone_the_device_decides() {
    let model = model();
    let weights = manifest(&model, WeightForm::Affine(scheme(4)));
    let plan = negotiate(&model, &weights, &device(), &PlanRequest::default()).unwrap();
    assert_eq!(plan.precision, Precision::F16);
    assert_eq!(plan.context, 256, "the device's limit is below the model's");
    let query = plan.weight(WeightId::Layer(1, LayerWeight::Query)).unwrap();
    assert_eq!(query.resident, WeightForm::Affine(scheme(4)));
    // 64 rows of 64 values: 8 words, 2 scales and 2 biases of 2 bytes each.
    assert_eq!(query.bytes, 64 * (8 * 4 + 2 * 2 * 2));
    let norm = plan.weight(WeightId::FinalNorm).unwrap();
    assert_eq!(norm.resident, WeightForm::Dense(DType::F32));
    // Two layers, keys and values, 2 heads of 16, f32.
    assert_eq!(plan.memory.kv_per_token, 2 * 2 * 32 * 4);
    assert_eq!(plan.memory.kv_full, plan.memory.kv_per_token * 256);
    let heads = model.layers[0].attention.heads as u64;
    let chunk = plan.prefill_chunk as u64;
    assert_eq!(plan.memory.scores_full, 2 * 4 * heads * chunk * 256);
    assert_eq!(
        plan.memory.weights,
        plan.weights.iter().map(|w| w.bytes).sum::<u64>()
    );
}

#[test]
fn each_choice_says_what_else_there_was() {
    let model = model();
    let weights = manifest(&model, WeightForm::Affine(scheme(4)));
    let plan = negotiate(&model, &weights, &device(), &PlanRequest::default()).unwrap();
    let topics: Vec<_> = plan.choices.iter().map(|c| c.topic.as_str()).collect();
    assert_eq!(topics, ["precision", "context", "quantised", "weights"]);
    for choice in &plan.choices {
        assert!(!choice.reason.is_empty(), "{choice:?}");
        for r in &choice.rejected {
            assert!(!r.reason.is_empty(), "{choice:?}");
        }
    }
    let precision = &plan.choices[0];
    let rejected: Vec<_> = precision
        .rejected
        .iter()
        .map(|r| r.option.as_str())
        .collect();
    assert_eq!(rejected, ["f32", "bf16"]);
}

#[test]
fn unsupported_schemes_are_expanded_on_auto() {
    let model = model();
    let mut weights = manifest(&model, WeightForm::Affine(scheme(4)));
    weights.get_mut(&WeightId::Embedding).unwrap().form = WeightForm::Affine(scheme(6));
    let plan = negotiate(&model, &weights, &device(), &PlanRequest::default()).unwrap();
    let embedding = plan.weight(WeightId::Embedding).unwrap();
    assert_eq!(embedding.resident, WeightForm::Dense(DType::F16));
    let up = plan.weight(WeightId::Layer(0, LayerWeight::Up)).unwrap();
    assert_eq!(up.resident, WeightForm::Affine(scheme(4)));
}

#[test]
fn packed_is_not_chosen_where_it_is_not_fused_unless_memory_asks() {
    let model = model();
    let weights = manifest(&model, WeightForm::Affine(scheme(4)));
    let mut device = device();
    device.quantization[0].fused = false;
    let dense = negotiate(&model, &weights, &device, &PlanRequest::default()).unwrap();
    assert_eq!(
        dense.weight(WeightId::Embedding).unwrap().resident,
        WeightForm::Dense(DType::F16)
    );
    device.memory.free = Some(dense.memory.at_start() - 1);
    let packed = negotiate(&model, &weights, &device, &PlanRequest::default()).unwrap();
    assert_eq!(
        packed.weight(WeightId::Embedding).unwrap().resident,
        WeightForm::Affine(scheme(4))
    );
    let asked = request(|r| r.quant = QuantRequest::Dequant);
    let kept = negotiate(&model, &weights, &device, &asked).unwrap();
    assert_eq!(kept.weights, dense.weights, "an explicit wish is kept");
}

#[test]
fn f32_keeps_narrower_weights_that_the_device_can_hold() {
    let model = model();
    let exact = request(|r| r.precision = Some(Precision::F32));
    for (stored, resident) in [
        (DType::F16, DType::F16),
        (DType::BF16, DType::F32),
        (DType::F32, DType::F32),
    ] {
        let weights = manifest(&model, WeightForm::Dense(stored));
        let plan = negotiate(&model, &weights, &device(), &exact).unwrap();
        assert_eq!(
            plan.weight(WeightId::Embedding).unwrap().resident,
            WeightForm::Dense(resident),
            "stored {stored}"
        );
    }
}

/// Wishes that cannot be met: the error's code, what it says and what it offers.
#[test]
fn what_a_prompts_step_rebuilds_is_planned() {
    let model = model();
    let weights = manifest(&model, WeightForm::Affine(scheme(4)));
    let workspace = |chunk| {
        let mut device = device();
        device.prefill_chunk = chunk;
        let plan = negotiate(&model, &weights, &device, &PlanRequest::default());
        plan.unwrap().memory.workspace
    };
    // Gate and up of a layer, f32, beside a second row of activations.
    let row = 4 * (2 * 64 + 2 * 64 + 2 * 32 + 2 * 128);
    assert_eq!(workspace(2) - workspace(1), row + 2 * 128 * 64 * 4);
    assert_eq!(workspace(3) - workspace(2), row);
}

#[test]
fn impossible_wishes_are_refused_with_what_is_possible() {
    let affine = |bits| WeightForm::Affine(scheme(bits));
    let cases: &[(&str, WeightForm, PlanRequest, ErrorCode, &str, &str)] = &[
        (
            "precision",
            affine(4),
            request(|r| r.precision = Some(Precision::BF16)),
            ErrorCode::Unsupported,
            "does not compute in bf16",
            "f16, f32",
        ),
        (
            "scheme",
            affine(6),
            request(|r| r.quant = QuantRequest::Packed),
            ErrorCode::Unsupported,
            "affine 6-bit g32 (f16)",
            "dequant",
        ),
        (
            "packed without quantisation",
            WeightForm::Dense(DType::F16),
            request(|r| r.quant = QuantRequest::Packed),
            ErrorCode::Unsupported,
            "not quantised",
            "halfhitch quantize",
        ),
        (
            "context",
            affine(4),
            request(|r| r.context = Some(257)),
            ErrorCode::Unsupported,
            "the device's limit",
            "at most 256",
        ),
        (
            "no context",
            affine(4),
            request(|r| r.context = Some(0)),
            ErrorCode::InvalidInput,
            "0 tokens",
            "",
        ),
        (
            "sequences",
            affine(4),
            request(|r| r.sequences = 5),
            ErrorCode::Unsupported,
            "5 sequences",
            "at most 4",
        ),
        (
            "threads",
            affine(4),
            request(|r| r.threads = Some(9)),
            ErrorCode::Unsupported,
            "9 threads",
            "at most 8",
        ),
        (
            "no threads",
            affine(4),
            request(|r| r.threads = Some(0)),
            ErrorCode::InvalidInput,
            "0 threads",
            "",
        ),
    ];
    let model = model();
    for (name, form, request, code, says, hints) in cases {
        let e = negotiate(&model, &manifest(&model, *form), &device(), request).unwrap_err();
        assert_eq!(e.code, *code, "{name}: {e}");
        assert!(e.message.contains(says), "{name}: {e}");
        assert!(e.hint.unwrap_or_default().contains(hints), "{name}");
    }
}

#[test]
fn a_missing_feature_is_named() {
    let mut model = model();
    model.layers[1].attention.window = Some(8);
    let weights = manifest(&model, WeightForm::Dense(DType::F32));
    let e = negotiate(&model, &weights, &device(), &PlanRequest::default()).unwrap_err();
    assert_eq!(e.code, ErrorCode::Unsupported);
    assert!(e.message.contains("sliding-window attention"), "{e}");
    let mut able = device();
    able.features = BTreeSet::from([ModelFeature::SlidingWindow, ModelFeature::MixedLayers]);
    assert!(negotiate(&model, &weights, &able, &PlanRequest::default()).is_ok());
}

#[test]
fn weights_that_cannot_fit_are_refused_before_anything_is_loaded() {
    let model = model();
    let weights = manifest(&model, WeightForm::Dense(DType::F32));
    let mut small = device();
    small.memory.total = Some(1024);
    let e = negotiate(&model, &weights, &small, &PlanRequest::default()).unwrap_err();
    assert_eq!(e.code, ErrorCode::OutOfMemory);
}

#[test]
fn weights_and_model_must_agree() {
    let model = model();
    let good = manifest(&model, WeightForm::Dense(DType::F32));
    let plan = |weights: &WeightManifest| {
        negotiate(&model, weights, &device(), &PlanRequest::default()).unwrap_err()
    };
    let mut missing = good.clone();
    missing.remove(&WeightId::FinalNorm);
    assert!(plan(&missing).message.contains("`FinalNorm` is missing"));
    let mut extra = good.clone();
    extra.insert(WeightId::HeadBias, good[&WeightId::FinalNorm].clone());
    assert!(plan(&extra).message.contains("no place"));
    let mut shape = good.clone();
    shape.get_mut(&WeightId::Embedding).unwrap().shape = vec![95, 64];
    assert!(plan(&shape).message.contains("[95, 64]"));
    let mut vector = good.clone();
    vector.get_mut(&WeightId::FinalNorm).unwrap().form = WeightForm::Affine(scheme(4));
    assert!(plan(&vector).message.contains("cannot be stored"));
}

#[test]
fn absurd_specs_are_refused() {
    type Change = fn(&mut ModelSpec);
    let cases: &[(Change, &str)] = &[
        (|m| m.vocab_size = 0, "vocabulary size"),
        (|m| m.hidden_size = 1 << 40, "hidden size"),
        (|m| m.layers.clear(), "number of layers"),
        (|m| m.layers[0].attention.kv_heads = 3, "do not divide"),
        (
            |m| m.layers[1].attention.head_dim = usize::MAX,
            "head width",
        ),
        (|m| m.layers[0].attention.window = Some(0), "sliding window"),
        (
            |m| m.layers[0].attention.rope.as_mut().unwrap().theta = f64::NAN,
            "rope theta",
        ),
        (
            |m| m.layers[0].attention.rope.as_mut().unwrap().dims = 7,
            "odd",
        ),
        (|m| m.final_norm.eps = f32::INFINITY, "norm eps"),
    ];
    for (change, says) in cases {
        let mut model = model();
        change(&mut model);
        let e = model.validate().unwrap_err();
        assert_eq!(e.code, ErrorCode::InvalidModel);
        assert!(e.to_string().contains(says), "{e}");
    }
}

fn support(name: &'static str, dense: bool, rows: &[StepRows]) -> RepresentationSupport {
    RepresentationSupport {
        name: RepresentationName::of(name),
        description: format!("{name} is what it is"),
        reason: format!("{name} is fast"),
        against: format!("{name} is slow"),
        bits: if dense {
            BTreeSet::new()
        } else {
            [4, 8].map(|b| Bits::new(b).unwrap()).into()
        },
        dense,
        rows: rows.iter().copied().collect(),
        precisions: Precision::ALL.into(),
    }
}

/// A device that prefers `first` for single rows of packed weights.
fn choosy() -> DeviceCapabilities {
    let mut device = device();
    device.representations = vec![
        support("first", false, &[StepRows::One]),
        support("second", false, &[StepRows::One]),
        support("third", false, &StepRows::ALL),
        support("plain", true, &StepRows::ALL),
    ];
    device
}

fn names(plan: &halfhitch_seam::ExecutionPlan, form: WeightForm, rows: StepRows) -> Vec<String> {
    let order = plan.representation(form, rows);
    order.iter().map(ToString::to_string).collect()
}

#[test]
fn representations_are_ordered_by_the_device_and_a_wish_comes_first() {
    let model = model();
    let four = WeightForm::Affine(scheme(4));
    let weights = manifest(&model, four);
    let plan = |wish: Option<&'static str>| {
        let request = request(|r| r.representation = wish.map(RepresentationName::of));
        negotiate(&model, &weights, &choosy(), &request).unwrap()
    };
    let left = plan(None);
    assert_eq!(
        names(&left, four, StepRows::One),
        ["first", "second", "third"]
    );
    assert_eq!(names(&left, four, StepRows::Chunk), ["third"]);
    assert_eq!(names(&left, four, StepRows::Batch), [""; 0], "one sequence");
    let decode = left.choices.iter().find(|c| c.topic == "decode").unwrap();
    assert!(decode.chosen.starts_with("first ("), "{decode:?}");
    assert_eq!(decode.reason, "first is fast");
    assert_eq!(decode.rejected[0].reason, "second is slow");
    let wished = plan(Some("third"));
    assert_eq!(
        names(&wished, four, StepRows::One),
        ["third", "first", "second"]
    );
    let decode = wished.choices.iter().find(|c| c.topic == "decode").unwrap();
    assert!(decode.reason.starts_with("as asked"), "{decode:?}");
    assert_eq!(decode.rejected[0].reason, "third was asked for");
}

#[test]
fn a_representation_that_suits_no_weight_is_refused_with_those_that_do() {
    let model = model();
    let weights = manifest(&model, WeightForm::Affine(scheme(4)));
    for (wish, device, says, hint) in [
        (
            "plain",
            choosy(),
            "no weight of this plan",
            "first, second, third for affine 4-bit",
        ),
        (
            "fourth",
            choosy(),
            "no representation `fourth`",
            "first, second, third",
        ),
        ("first", device(), "no representation `first`", "auto"),
    ] {
        let request = request(|r| r.representation = Some(RepresentationName::of(wish)));
        let e = negotiate(&model, &weights, &device, &request).unwrap_err();
        assert_eq!(e.code, ErrorCode::Unsupported);
        assert!(e.message.contains(says), "{e}");
        assert!(e.hint.as_ref().unwrap().contains(hint), "{e:?}");
    }
}

#[test]
fn what_was_measured_is_used_where_it_fits() {
    let model = model();
    let four = WeightForm::Affine(scheme(4));
    let weights = manifest(&model, four);
    let measured = TunedContraction {
        form: four,
        shape: [256, 64],
        rows: StepRows::One,
        threads: Some(2),
        representation: RepresentationName::of("second"),
        tasks: Some(4),
        microseconds: 41.2,
        untuned_microseconds: Some(48.0),
    };
    let mut device = choosy();
    device.tuned = vec![
        measured.clone(),
        TunedContraction {
            threads: None,
            ..measured.clone()
        },
        TunedContraction {
            shape: [256, 65],
            ..measured.clone()
        },
        TunedContraction {
            form: WeightForm::Affine(scheme(8)),
            ..measured.clone()
        },
    ];
    let plan = |wish: Option<&'static str>| {
        let request = request(|r| {
            r.threads = Some(2);
            r.representation = wish.map(RepresentationName::of);
        });
        negotiate(&model, &weights, &device, &request).unwrap()
    };
    let used = plan(None);
    assert_eq!(used.tuned, std::slice::from_ref(&measured));
    assert_eq!(used.tuned(four, [256, 64], StepRows::One), Some(&measured));
    assert_eq!(used.tuned(four, [256, 64], StepRows::Chunk), None);
    let text = used.to_string();
    assert!(
        text.contains("tuned       256x64 decode second in 4 tasks 41 us"),
        "{text}"
    );
    assert!(plan(Some("first")).tuned.is_empty(), "a wish goes before");
}

#[test]
fn plans_survive_serialisation() {
    let model = model();
    let weights = manifest(&model, WeightForm::Affine(scheme(8)));
    let plan = negotiate(&model, &weights, &device(), &PlanRequest::default()).unwrap();
    let json = serde_json::to_string(&plan).unwrap();
    assert_eq!(plan, serde_json::from_str(&json).unwrap());
}
