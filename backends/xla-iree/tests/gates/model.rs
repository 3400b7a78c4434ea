//! A llama of two layers, in any resident form.

use halfhitch_seam::model::{
    Activation, AttentionSpec, FeedForward, GatedMlp, HeadSpec, LayerSpec, NormSpec, RopeLayout,
    RopeSpec,
};
use halfhitch_seam::{
    AffineScheme, Bits, DType, DeviceId, DeviceInfo, GroupSize, MemoryInfo, ModelSpec, PlanRequest,
    Precision, QuantRequest, SeamResult, WeightForm, WeightInfo, WeightManifest, negotiate,
};
use halfhitch_xla_iree::compiler::Target;
use halfhitch_xla_iree::emitter::{Shape, Source, module};
use halfhitch_xla_iree::runtime::capabilities::on_target;

fn llama() -> ModelSpec {
    let layer = LayerSpec {
        pre_attention: Some(NormSpec::rms(1e-5)),
        attention: AttentionSpec {
            heads: 4,
            kv_heads: 2,
            head_dim: 64,
            scale: 0.125,
            rope: Some(RopeSpec {
                dims: 64,
                theta: 10_000.0,
                scaling: None,
                layout: RopeLayout::HalfSplit,
            }),
            window: None,
            softcap: None,
            qk_norm: None,
            qkv_bias: false,
            output_bias: false,
        },
        post_attention: None,
        pre_feed_forward: Some(NormSpec::rms(1e-5)),
        feed_forward: FeedForward::Gated(GatedMlp {
            intermediate: 512,
            activation: Activation::Silu,
            bias: false,
        }),
        post_feed_forward: None,
        residual_scale: 1.0,
    };
    ModelSpec {
        architecture: "llama".into(),
        vocab_size: 2048,
        hidden_size: 256,
        max_context: 512,
        embedding_scale: 1.0,
        layers: vec![layer; 2],
        final_norm: NormSpec::rms(1e-5),
        head: HeadSpec {
            tied: true,
            bias: false,
            softcap: None,
            scale: 1.0,
        },
    }
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
