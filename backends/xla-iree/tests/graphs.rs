//! What decode steps cost as they are compiled, on every target that can be named: no device is used.

use halfhitch_seam::model::PlainDecoder;
use halfhitch_seam::{
    AffineScheme, Bits, CancelToken, ComputeBackend, Control, DType, DeviceId, ErrorCode,
    GraphReport, GraphRequest, GroupSize, ModelSpec, NoObserver, PlanRequest, SeamResult,
    StepShape, WeightForm, WeightInfo,
};
use halfhitch_xla_iree::{BackendOptions, XlaIreeBackend};

/// A plain llama of two layers, whose matrices are whole blocks of rows.
fn llama() -> ModelSpec {
    PlainDecoder {
        vocab_size: 320,
        hidden_size: 128,
        intermediate: 256,
        layers: 2,
        heads: 4,
        kv_heads: 2,
        head_dim: 32,
        max_context: 1024,
    }
    .spec()
}

fn packed() -> WeightForm {
    WeightForm::Affine(AffineScheme {
        bits: Bits::new(4).unwrap(),
        group_size: GroupSize::new(32).unwrap(),
        scale_dtype: DType::F16,
    })
}

fn request(matrices: WeightForm, target: Option<&str>) -> GraphRequest {
    let model = llama();
    let weights = model.expected_weights().into_iter().map(|w| {
        let form = if w.is_matrix() {
            matrices
        } else {
            WeightForm::Dense(DType::F32)
        };
        let info = WeightInfo {
            shape: w.shape,
            form,
        };
        (w.id, info)
    });
    GraphRequest {
        device: DeviceId("local-task://0".into()),
        target: target.map(Into::into),
        weights: weights.collect(),
        model,
        wishes: PlanRequest::default(),
        shape: StepShape::Decode,
        stats_at: Some(128),
        ahead: false,
    }
}

fn graph(request: &GraphRequest) -> SeamResult<GraphReport> {
    let backend = XlaIreeBackend::new(BackendOptions::for_driver("local-task")?)?;
    let cancel = CancelToken::new();
    let control = Control {
        cancel: &cancel,
        observer: &NoObserver,
    };
    Ok(backend.graph(request, &control)?.expect("graphs are made"))
}

#[test]
fn packed_decode_on_a_processor_has_few_kernels_and_rebuilds_no_weight() {
    let report = graph(&request(packed(), Some("local"))).unwrap();
    let stats = report.stats.unwrap();
    assert!(stats.dispatches_a_layer() <= 14.0, "{stats:?}");
    assert!(!stats.rebuilds_a_weight(), "{stats:?}");
    assert_eq!(stats.unresolved, 0);
    // Every packed weight is read once, and the caches as far as they are live.
    let weights: u64 = report.plan.weights.iter().map(|w| w.bytes).sum();
    let live = 129 * report.plan.memory.kv_per_token;
    let read = stats.total.bytes_read;
    assert!(
        (weights + live..2 * (weights + live)).contains(&read),
        "{read}"
    );
    let kernels: Vec<String> = stats
        .parts
        .iter()
        .map(|p| {
            let t = p.traffic;
            format!(
                "{} {} kernels {} copies {} fills",
                p.part, t.dispatches, t.copies, t.fills
            )
        })
        .collect();
    insta::assert_snapshot!("packed-decode-local", kernels.join("\n"));
}

#[test]
fn packed_decode_rebuilds_no_weight_on_any_target() {
    for name in ["cuda:sm_80", "cuda:sm_89", "vulkan", "metal", "rocm:gfx942"] {
        let report = graph(&request(packed(), Some(name))).unwrap();
        let stats = report.stats.unwrap();
        assert!(!stats.rebuilds_a_weight(), "{name}: {stats:?}");
        assert_eq!(stats.unresolved, 0, "{name}");
        assert!(stats.in_layers.dispatches > 0, "{name}");
        let parts: Vec<&str> = stats.parts.iter().map(|p| p.part.as_str()).collect();
        assert!(!parts.contains(&"other"), "{name}: {parts:?}");
    }
}

#[test]
fn a_chunk_of_a_prompt_rebuilds_its_weights_and_that_is_told() {
    let mut request = request(packed(), Some("local"));
    request.shape = StepShape::Chunk(16);
    let stats = graph(&request).unwrap().stats.unwrap();
    assert!(stats.rebuilds_a_weight(), "{stats:?}");
}

#[test]
fn what_cannot_be_shown_is_refused_with_what_can() {
    type Change = fn(&mut GraphRequest);
    let cases: &[(Change, ErrorCode, &str)] = &[
        (
            |r| r.target = Some("cuda:sm_90".into()),
            ErrorCode::InvalidInput,
            "sm_89",
        ),
        (
            |r| r.stats_at = Some(1024),
            ErrorCode::InvalidInput,
            "earlier position",
        ),
        (
            |r| r.shape = StepShape::Batch(4096),
            ErrorCode::Unsupported,
            "at most",
        ),
        (|r| r.model.layers.clear(), ErrorCode::InvalidModel, ""),
        (|r| drop(r.weights.pop_first()), ErrorCode::InvalidModel, ""),
    ];
    for (change, code, hint) in cases {
        let mut request = request(packed(), Some("local"));
        change(&mut request);
        let e = graph(&request).unwrap_err();
        assert_eq!(e.code, *code, "{e}");
        assert!(e.hint.clone().unwrap_or_default().contains(hint), "{e:?}");
    }
}
