//! Small models with the parts of published architectures, in every way that weights are stored.
//!
//! Fixture files hold some of these with logits that other programs gave; here all of them can be run
//! where no file is, against the suite's oracle.

use halfhitch_seam::model::{
    Activation, FeedForward, GatedMlp, LayerSpec, MixtureOfExperts, ModelSpec, NormKind, NormSpec,
    QkNorm, QkNormScope, RopeLayout, RopeScaling,
};
use halfhitch_seam::{AffineScheme, Bits, DType, GroupSize, Precision, SeamResult};

use crate::models::{Generated, Storage, packable_spec};
use crate::numerics::Grounded;
use crate::test::{Test, Tier};

type Edit = fn(&mut ModelSpec);

fn layers(spec: &mut ModelSpec, edit: impl Fn(&mut LayerSpec)) {
    spec.layers.iter_mut().for_each(edit);
}

fn mlps(spec: &mut ModelSpec, edit: impl Fn(&mut GatedMlp)) {
    layers(spec, |l| {
        if let FeedForward::Gated(mlp) = &mut l.feed_forward {
            edit(mlp);
        }
    });
}

fn qk_norm(spec: &mut ModelSpec, scope: QkNormScope, norm: NormSpec) {
    layers(spec, |l| l.attention.qk_norm = Some(QkNorm { scope, norm }));
}

fn experts(spec: &mut ModelSpec, normalise: bool) {
    layers(spec, |l| {
        if let FeedForward::Gated(expert) = l.feed_forward {
            l.feed_forward = FeedForward::MixtureOfExperts(MixtureOfExperts {
                experts: 4,
                experts_per_token: 2,
                normalise,
                expert,
            });
        }
    });
}

/// What each adds to the plain decoder. Numbers are of the kind that is published, at this size.
const ARCHITECTURES: &[(&str, Edit)] = &[
    ("llama3", |s| {
        s.head.tied = true;
        layers(s, |l| {
            l.attention.rope.iter_mut().for_each(|r| {
                r.theta = 500_000.0;
                r.scaling = Some(RopeScaling::Llama3 {
                    factor: 32.0,
                    low_freq_factor: 1.0,
                    high_freq_factor: 4.0,
                    original_context: 64.0,
                });
            });
        });
    }),
    ("mistral", |s| layers(s, |l| l.attention.window = Some(6))),
    ("qwen2", |s| {
        s.head.tied = true;
        layers(s, |l| l.attention.qkv_bias = true);
    }),
    ("qwen3", |s| {
        qk_norm(s, QkNormScope::Head, NormSpec::rms(1e-6))
    }),
    ("gemma2", |s| {
        let norm = NormSpec {
            weight_offset: 1.0,
            ..NormSpec::rms(1e-6)
        };
        s.embedding_scale = (s.hidden_size as f32).sqrt();
        (s.head.tied, s.head.softcap, s.final_norm) = (true, Some(30.0), norm);
        layers(s, |l| {
            (l.pre_attention, l.pre_feed_forward) = (Some(norm), Some(norm));
            (l.post_attention, l.post_feed_forward) = (Some(norm), Some(norm));
            l.attention.softcap = Some(50.0);
        });
        s.layers[0].attention.window = Some(6);
        mlps(s, |m| m.activation = Activation::GeluTanh);
    }),
    ("olmo2", |s| {
        qk_norm(s, QkNormScope::All, NormSpec::rms(1e-6));
        layers(s, |l| {
            (l.post_attention, l.pre_attention) = (l.pre_attention, None);
            (l.post_feed_forward, l.pre_feed_forward) = (l.pre_feed_forward, None);
        });
    }),
    ("granite", |s| {
        (s.embedding_scale, s.head.scale, s.head.tied) = (12.0, 0.125, true);
        layers(s, |l| {
            l.residual_scale = 0.22;
            l.attention.scale = 0.03;
        });
    }),
    ("cohere", |s| {
        let norm = NormSpec {
            kind: NormKind::Layer,
            ..NormSpec::rms(1e-5)
        };
        (s.final_norm, s.head.scale, s.head.tied) = (norm, 0.0625, true);
        layers(s, |l| {
            (l.pre_attention, l.pre_feed_forward) = (Some(norm), Some(norm));
            l.attention
                .rope
                .iter_mut()
                .for_each(|r| r.layout = RopeLayout::Interleaved);
        });
    }),
    ("phi", |s| {
        let norm = NormSpec {
            kind: NormKind::Layer,
            bias: true,
            ..NormSpec::rms(1e-5)
        };
        (s.final_norm, s.head.bias) = (norm, true);
        layers(s, |l| {
            (l.pre_attention, l.pre_feed_forward) = (Some(norm), Some(norm));
            (l.attention.qkv_bias, l.attention.output_bias) = (true, true);
            l.attention.rope.iter_mut().for_each(|r| r.dims = 12);
        });
        mlps(s, |m| (m.bias, m.activation) = (true, Activation::GeluErf));
    }),
    ("smollm3", |s| s.layers[1].attention.rope = None),
    ("mixtral", |s| experts(s, true)),
    ("qwen3-moe", |s| {
        qk_norm(s, QkNormScope::Head, NormSpec::rms(1e-6));
        experts(s, false);
    }),
];

/// Dense types, and schemes that have every width, group size and type of scales.
fn storages() -> SeamResult<Vec<Storage>> {
    let mut out: Vec<Storage> = [DType::F32, DType::F16, DType::BF16]
        .map(Storage::Dense)
        .into();
    for (bits, group, scale_dtype) in [
        (2, 32, DType::F16),
        (3, 64, DType::F32),
        (4, 32, DType::F16),
        (4, 64, DType::BF16),
        (5, 128, DType::BF16),
        (6, 32, DType::F32),
        (8, 128, DType::F16),
    ] {
        out.push(Storage::Affine(AffineScheme {
            bits: Bits::new(bits)?,
            group_size: GroupSize::new(group)?,
            scale_dtype,
        }));
    }
    Ok(out)
}

/// Every architecture, stored in every way, in these precisions:
/// `architectures/NAME-STORAGE/PRECISION[-packed]/CASE`.
///
/// # Errors
/// Never, unless the seam's own checks refuse a model.
pub fn tests(precisions: &[Precision]) -> SeamResult<Vec<Test>> {
    let mut tests = Vec::new();
    for (name, edit) in ARCHITECTURES {
        for storage in storages()? {
            let mut spec = packable_spec();
            spec.layers = vec![spec.layers[0].clone(); 2];
            spec.architecture = (*name).into();
            edit(&mut spec);
            let name = match storage {
                Storage::Dense(dtype) => format!("{name}-{dtype}"),
                Storage::Affine(s) => format!(
                    "{name}-{}bit-g{}-{}",
                    s.bits.get(),
                    s.group_size.get(),
                    s.scale_dtype
                ),
            };
            let truth = Grounded::by_oracle(Generated::new(&name, spec, storage)?);
            for &precision in precisions {
                let name = format!("architectures/{name}");
                tests.extend(truth.tests(&name, precision, Tier::Full));
            }
        }
    }
    Ok(tests)
}
