//! A llama of two layers, in any resident form.

use halfhitch_seam::model::PlainDecoder;
use halfhitch_seam::{
    AffineScheme, Bits, DType, DeviceId, DeviceInfo, GroupSize, MemoryInfo, ModelSpec, PlanRequest,
    Precision, QuantRequest, SeamResult, WeightForm, WeightInfo, WeightManifest, negotiate,
};
use halfhitch_xla_iree::compiler::Target;
use halfhitch_xla_iree::emitter::{Shape, Source, module};
use halfhitch_xla_iree::runtime::capabilities::on_target;

fn llama() -> ModelSpec {
    PlainDecoder {
        vocab_size: 2048,
        hidden_size: 256,
        intermediate: 512,
        layers: 2,
        heads: 4,
        kv_heads: 2,
        head_dim: 64,
        max_context: 512,
    }
    .spec()
}

fn form(name: &str) -> WeightForm {
    match name {
        "f32" => WeightForm::Dense(DType::F32),
        "f16" => WeightForm::Dense(DType::F16),
        "bf16" => WeightForm::Dense(DType::BF16),
        packed => WeightForm::Affine(AffineScheme {
            bits: Bits::new(packed[1..].parse().unwrap()).unwrap(),
            group_size: GroupSize::new(32).unwrap(),
            scale_dtype: DType::F16,
        }),
    }
}

/// The module's text for a target.
///
/// # Errors
/// `Unsupported` for what the target does not offer.
pub fn graph(
    target: &Target,
    name: &str,
    precision: Precision,
    shape: Shape,
) -> SeamResult<String> {
    let spec = llama();
    let manifest: WeightManifest = spec
        .expected_weights()
        .into_iter()
        .map(|w| {
            let form = if w.is_matrix() {
                form(name)
            } else {
                WeightForm::Dense(DType::F32)
            };
            let info = WeightInfo {
                shape: w.shape,
                form,
            };
            (w.id, info)
        })
        .collect();
    let device = DeviceInfo {
        id: DeviceId("0".into()),
        ordinal: 0,
        name: target.description.clone(),
        driver: "none".into(),
    };
    let device = on_target(device, MemoryInfo::default(), target);
    let request = PlanRequest {
        precision: Some(precision),
        quant: QuantRequest::Auto,
        ..PlanRequest::default()
    };
    let plan = negotiate(&spec, &manifest, &device, &request)?;
    let source = Source {
        spec: &spec,
        plan: &plan,
        profile: target.profile,
    };
    Ok(module(source, shape).text)
}
