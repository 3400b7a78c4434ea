//! Prompts of many lengths through plain layers, whose matrices are multiplied in tiles: every
//! position against the suite's oracle.
//!
//! The suite's own models have heads too narrow for tiles, or too few positions for several chunks.

use halfhitch_seam::model::{Activation, FeedForward};
use halfhitch_seam::{
    AffineScheme, Bits, CancelToken, Control, DType, GroupSize, ModelSpec, NoObserver, OpenRequest,
    OutputRequest, PlanRequest, Precision, QuantRequest, Session, TokenId, negotiate,
};
use halfhitch_suite::limits::{difference, relative};
use halfhitch_suite::models::{Generated, Storage, plain_spec};
use halfhitch_suite::oracle;

/// Heads, key heads, head width, hidden size, feed-forward width of a plain model of two layers.
fn spec([heads, kv_heads, width, hidden, wide]: [usize; 5]) -> ModelSpec {
    let mut spec = plain_spec();
    spec.hidden_size = hidden;
    spec.max_context = 1024;
    for layer in &mut spec.layers {
        let a = &mut layer.attention;
        (a.heads, a.kv_heads, a.head_dim) = (heads, kv_heads, width);
        a.scale = (width as f32).sqrt().recip();
        a.rope.iter_mut().for_each(|r| r.dims = width);
        let FeedForward::Gated(mlp) = &mut layer.feed_forward else {
            panic!("the plain model has a gated feed-forward block");
        };
        mlp.intermediate = wide;
    }
    spec
}

/// Of Qwen2's kind: biases on queries, keys and values; another activation; norms with an offset.
fn varied() -> ModelSpec {
    let mut spec = spec([2, 1, 64, 64, 64]);
    for layer in &mut spec.layers {
        layer.attention.qkv_bias = true;
        for norm in [&mut layer.pre_attention, &mut layer.pre_feed_forward] {
            norm.iter_mut().for_each(|n| n.weight_offset = 0.5);
        }
    }
    for (layer, activation) in spec
        .layers
        .iter_mut()
        .zip([Activation::GeluTanh, Activation::GeluErf])
    {
        if let FeedForward::Gated(mlp) = &mut layer.feed_forward {
            mlp.activation = activation;
        }
    }
    spec
}

fn affine(bits: u32, group: u32, scale_dtype: DType) -> Storage {
    Storage::Affine(AffineScheme {
        bits: Bits::new(bits).unwrap(),
        group_size: GroupSize::new(group).unwrap(),
        scale_dtype,
    })
}

fn open(model: &Generated, precision: Precision) -> Box<dyn Session> {
    let subject = super::subject("local-task");
    let capabilities = subject.backend.capabilities(&subject.device).unwrap();
    let request = PlanRequest {
        precision: Some(precision),
        quant: QuantRequest::Auto,
        ..PlanRequest::default()
    };
    let manifest = model.weights.manifest();
    let plan = negotiate(&model.spec, &manifest, &capabilities, &request).unwrap();
    subject
        .backend
        .open(OpenRequest {
            plan: &plan,
            model: &model.spec,
            weights: &model.weights,
            control: control(&CancelToken::new()),
        })
        .unwrap_or_else(|e| panic!("{e}"))
}

fn control(cancel: &CancelToken) -> Control<'_> {
    Control {
        cancel,
        observer: &NoObserver,
    }
}

/// Prompts in these parts, one sequence each; logits of every position.
fn compare(name: &str, spec: ModelSpec, storage: Storage, precision: Precision) {
    let model = Generated::new(name, spec, storage).unwrap();
    let vocabulary = model.spec.vocab_size;
    let mut session = open(&model, precision);
    // One tile and less, more than one, whole chunks and parts, starts inside a tile; the whole
    // context is longer than the cache is at first.
    for parts in [&[5][..], &[16, 3], &[21, 1, 40], &[3, 290], &[256, 17]] {
        let tokens = model.tokens("prompt", parts.iter().sum());
        let want = oracle::logits(&model.spec, &model.weights, &tokens).unwrap();
        let got = logits(&mut *session, &tokens, parts);
        assert_eq!(got.len(), tokens.len() * vocabulary);
        let mut worst = (0.0, 0);
        for (position, (got, want)) in got.chunks_exact(vocabulary).zip(&want).enumerate() {
            let want: Vec<f32> = want.iter().map(|&v| v as f32).collect();
            let off = difference(got, &want);
            if off > worst.0 {
                worst = (off, position);
            }
        }
        let limit = relative(precision);
        assert!(
            worst.0 <= limit,
            "{name} in {precision}, prompt of {parts:?}: off by {:.1e} at position {}, {limit:.0e} is the limit",
            worst.0,
            worst.1
        );
    }
}

fn logits(session: &mut dyn Session, tokens: &[TokenId], parts: &[usize]) -> Vec<f32> {
    let id = session.create_sequence().unwrap();
    let cancel = CancelToken::new();
    let (mut all, mut left) = (Vec::new(), tokens);
    for &part in parts {
        let (now, rest) = left.split_at(part);
        let out = session.prefill(id, now, OutputRequest::ALL_LOGITS, &control(&cancel));
        all.extend(out.unwrap().logits);
        left = rest;
    }
    session.release(id).unwrap();
    all
}

#[test]
fn packed_weights_in_f32() {
    let four = affine(4, 32, DType::F16);
    compare("tiles-4", spec([4, 2, 32, 64, 128]), four, Precision::F32);
    let eight = affine(8, 64, DType::BF16);
    compare("tiles-8", varied(), eight, Precision::F32);
}

#[test]
fn packed_weights_in_lower_precisions() {
    let four = affine(4, 64, DType::F32);
    compare("tiles-4", varied(), four, Precision::BF16);
    let two = affine(2, 32, DType::F16);
    compare("tiles-2", spec([4, 1, 32, 64, 64]), two, Precision::F16);
}

#[test]
fn dense_weights() {
    for (dtype, precision) in [
        (DType::F32, Precision::F32),
        (DType::F16, Precision::F16),
        (DType::BF16, Precision::BF16),
        (DType::F32, Precision::BF16),
    ] {
        let spec = spec([2, 2, 32, 64, 80]);
        let name = format!("tiles-{dtype}");
        compare(&name, spec, Storage::Dense(dtype), precision);
    }
}
