//! Every type converts to exactly the numbers it stands for, in the place where they belong.

mod import_support;

use half::{bf16, f16};
use halfhitch::checkpoint::Checkpoint;
use halfhitch::import::{ImportOptions, import_gguf};
use halfhitch_seam::model::RopeScaling;
use halfhitch_seam::{DType, ErrorCode, LayerWeight as W, SeamError, WeightForm, WeightId};
use import_support::*;

/// What a tensor's bytes stand for, written from ggml's definitions and apart from the importer.
fn dequantize(kind: u32, data: &[u8]) -> Vec<f32> {
    let half = |b: &[u8]| f16::from_le_bytes([b[0], b[1]]).to_f32();
    let mut out = Vec::new();
    for block in data.chunks_exact(block_bytes(kind)) {
        // The high bit of value i, where there is one.
        let fifth = |at: usize, i: usize| (block[at + i / 8] >> (i % 8)) & 1;
        let nibble = |at: usize, i: usize| match i {
            0..16 => block[at + i] & 15,
            _ => block[at + i - 16] >> 4,
        };
        match kind {
            ggml::F32 => out.push(f32::from_le_bytes(block.try_into().unwrap())),
            ggml::F16 => out.push(half(block)),
            ggml::BF16 => out.push(bf16::from_le_bytes([block[0], block[1]]).to_f32()),
            _ => out.extend((0..32).map(|i| {
                let d = half(block);
                match kind {
                    ggml::Q4_0 => d * f32::from(nibble(2, i) as i8 - 8),
                    ggml::Q4_1 => d * f32::from(nibble(4, i)) + half(&block[2..]),
                    ggml::Q5_0 => d * f32::from((nibble(6, i) | fifth(2, i) << 4) as i8 - 16),
                    ggml::Q5_1 => {
                        d * f32::from(nibble(8, i) | fifth(4, i) << 4) + half(&block[2..])
                    }
                    ggml::Q8_0 => d * f32::from(block[2 + i] as i8),
                    other => panic!("type {other}"),
                }
            })),
        }
    }
    out
}

/// Rows of q or k in Hugging Face's order: of each head, first the even rows, then the odd.
fn unpermute(values: &[f32], heads: usize, columns: usize) -> Vec<f32> {
    let rows: Vec<&[f32]> = values.chunks_exact(columns).collect();
    let mut out = Vec::new();
    for head in rows.chunks_exact(rows.len() / heads) {
        for parity in 0..2 {
            for row in head.iter().skip(parity).step_by(2) {
                out.extend_from_slice(row);
            }
        }
    }
    out
}

fn import(file: &File) -> Result<Checkpoint, SeamError> {
    let dir = tempfile::tempdir().unwrap();
    let (gguf, out) = (file.write(dir.path()), dir.path().join("model"));
    quietly(|c| import_gguf(&gguf, &out, ImportOptions::default(), c))?;
    // The mapping outlives the folder's name.
    Ok(Checkpoint::open(&out).unwrap())
}

fn values(checkpoint: &Checkpoint, id: WeightId) -> Vec<f32> {
    checkpoint.weights().get(id).unwrap().to_f32()
}

const KINDS: [u32; 8] = [
    ggml::F32,
    ggml::F16,
    ggml::BF16,
    ggml::Q4_0,
    ggml::Q4_1,
    ggml::Q5_0,
    ggml::Q5_1,
    ggml::Q8_0,
];

#[test]
fn every_type_and_architecture_keeps_its_numbers() {
    for architecture in ["llama", "qwen2", "qwen3"] {
        for kind in KINDS {
            let mut file = tiny(architecture, kind);
            let checkpoint = import(&file).unwrap();
            let layer = |w| WeightId::Layer(0, w);
            let mut cases = vec![
                (WeightId::Embedding, "token_embd.weight", None),
                (WeightId::FinalNorm, "output_norm.weight", None),
                (layer(W::PreAttentionNorm), "blk.0.attn_norm.weight", None),
                (layer(W::PreFeedForwardNorm), "blk.0.ffn_norm.weight", None),
                (layer(W::Query), "blk.0.attn_q.weight", Some(HEADS)),
                (layer(W::Key), "blk.0.attn_k.weight", Some(KV_HEADS)),
                (layer(W::Value), "blk.0.attn_v.weight", None),
                (layer(W::Output), "blk.0.attn_output.weight", None),
                (layer(W::Gate), "blk.0.ffn_gate.weight", None),
                (layer(W::Up), "blk.0.ffn_up.weight", None),
                (layer(W::Down), "blk.0.ffn_down.weight", None),
            ];
            match architecture {
                "qwen2" => cases.extend([
                    (layer(W::QueryBias), "blk.0.attn_q.bias", None),
                    (layer(W::KeyBias), "blk.0.attn_k.bias", None),
                    (layer(W::ValueBias), "blk.0.attn_v.bias", None),
                ]),
                "qwen3" => cases.extend([
                    (layer(W::QueryNorm), "blk.0.attn_q_norm.weight", None),
                    (layer(W::KeyNorm), "blk.0.attn_k_norm.weight", None),
                ]),
                _ => {}
            }
            assert_eq!(checkpoint.weights().iter().count(), cases.len());
            for (id, name, permuted) in cases {
                let tensor = file.find(name);
                let columns = tensor.dims[0] as usize;
                let mut want = dequantize(tensor.kind, &tensor.data);
                if let Some(heads) = permuted.filter(|_| architecture == "llama") {
                    let plain = want.clone();
                    want = unpermute(&plain, heads, columns);
                    assert_ne!(want, plain, "the test would see no permutation");
                }
                // `==` takes -0.0 for 0.0, the one thing that may differ.
                assert_eq!(
                    values(&checkpoint, id),
                    want,
                    "{architecture} {kind} {name}"
                );
            }
        }
    }
}

#[test]
fn factors_at_the_ends_of_f16_stay_exact() {
    let large = f16::from_f32(60_000.0);
    let tiny_factor = f16::MIN_POSITIVE_SUBNORMAL;
    for (kind, factor, scales) in [
        (ggml::Q4_0, large, DType::F32),
        (ggml::Q5_0, large, DType::F32),
        (ggml::Q8_0, large, DType::F32),
        (ggml::Q4_0, f16::from_f32(-8188.0), DType::F16),
        (ggml::Q8_0, f16::from_f32(511.0), DType::F16),
        (ggml::Q8_0, f16::from_f32(512.0), DType::F32),
        (ggml::Q4_1, large, DType::F16),
        (ggml::Q5_1, large, DType::F16),
        (ggml::Q4_0, tiny_factor, DType::F16),
        (ggml::Q8_0, -tiny_factor, DType::F16),
    ] {
        let mut file = tiny("llama", kind);
        let tensor = file.find("blk.0.ffn_up.weight");
        tensor.data[..2].copy_from_slice(&factor.to_le_bytes());
        let want = dequantize(kind, &tensor.data);
        let checkpoint = import(&file).unwrap();
        let id = WeightId::Layer(0, W::Up);
        assert_eq!(values(&checkpoint, id), want, "{kind} {factor}");
        let WeightForm::Affine(scheme) = checkpoint.weights().get(id).unwrap().form() else {
            panic!("dense");
        };
        assert_eq!(scheme.scale_dtype, scales, "{kind} {factor}");
    }
}

#[test]
fn factors_that_are_no_numbers_are_refused() {
    for bad in [f16::NAN, f16::INFINITY, f16::NEG_INFINITY] {
        let mut file = tiny("llama", ggml::Q4_1);
        file.find("blk.0.attn_q.weight").data[22..24].copy_from_slice(&bad.to_le_bytes());
        let e = import(&file).unwrap_err();
        assert_eq!(e.code, ErrorCode::NonFinite);
        assert!(e.to_string().contains("blk.0.attn_q.weight"), "{e}");
    }
}

#[test]
fn types_can_be_mixed_and_the_commonest_width_is_the_default() {
    let mut file = tiny("llama", ggml::Q4_0);
    let mut noise = Noise(11);
    for (name, kind) in [
        ("token_embd.weight", ggml::Q8_0),
        ("blk.0.attn_v.weight", ggml::Q5_1),
        ("blk.0.attn_output.weight", ggml::BF16),
    ] {
        let tensor = file.find(name);
        let n = tensor.dims.iter().product::<u64>() as usize;
        (tensor.kind, tensor.data) = (kind, random_data(kind, n, &mut noise));
    }
    let dir = tempfile::tempdir().unwrap();
    let (gguf, out) = (file.write(dir.path()), dir.path().join("model"));
    let report = quietly(|c| import_gguf(&gguf, &out, ImportOptions::default(), c)).unwrap();
    assert!(!report.tokenizer && !report.notes.is_empty());
    let text = std::fs::read(out.join("config.json")).unwrap();
    let config: serde_json::Value = serde_json::from_slice(&text).unwrap();
    assert_eq!(
        config["quantization"],
        serde_json::json!({
            "group_size": 32, "bits": 4, "mode": "affine",
            "model.embed_tokens": {"group_size": 32, "bits": 8},
            "model.layers.0.self_attn.v_proj": {"group_size": 32, "bits": 5},
        })
    );
    let checkpoint = Checkpoint::open(&out).unwrap();
    for (id, name) in [
        (WeightId::Embedding, "token_embd.weight"),
        (WeightId::Layer(0, W::Value), "blk.0.attn_v.weight"),
        (WeightId::Layer(0, W::Output), "blk.0.attn_output.weight"),
    ] {
        let tensor = file.find(name);
        let want = dequantize(tensor.kind, &tensor.data);
        assert_eq!(values(&checkpoint, id), want, "{name}");
    }
}

#[test]
fn biases_of_llama_are_permuted_with_their_rows() {
    let mut file = tiny("llama", ggml::F16);
    let (q, kv) = (HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM);
    let mut noise = Noise(5);
    for (name, n) in [
        ("attn_q", q),
        ("attn_k", kv),
        ("attn_v", kv),
        ("attn_output", HIDDEN),
        ("ffn_gate", WIDE),
        ("ffn_up", WIDE),
        ("ffn_down", HIDDEN),
    ] {
        let data = random_data(ggml::F32, n, &mut noise);
        file.tensor(&format!("blk.0.{name}.bias"), &[n], ggml::F32, data);
    }
    let checkpoint = import(&file).unwrap();
    for (weight, name, heads) in [
        (W::QueryBias, "attn_q", Some(HEADS)),
        (W::KeyBias, "attn_k", Some(KV_HEADS)),
        (W::ValueBias, "attn_v", None),
        (W::DownBias, "ffn_down", None),
    ] {
        let stored = dequantize(ggml::F32, &file.find(&format!("blk.0.{name}.bias")).data);
        let want = heads.map_or(stored.clone(), |h| unpermute(&stored, h, 1));
        assert_eq!(
            values(&checkpoint, WeightId::Layer(0, weight)),
            want,
            "{name}"
        );
    }
}

#[test]
fn a_head_of_its_own_unties_the_embedding() {
    let mut file = tiny("qwen3", ggml::Q8_0);
    let data = random_data(ggml::Q8_0, VOCAB * HIDDEN, &mut Noise(9));
    file.tensor("output.weight", &[VOCAB, HIDDEN], ggml::Q8_0, data.clone());
    let checkpoint = import(&file).unwrap();
    assert!(!checkpoint.spec().head.tied);
    assert_eq!(
        values(&checkpoint, WeightId::Head),
        dequantize(ggml::Q8_0, &data)
    );
    assert!(import(&tiny("qwen3", ggml::Q8_0)).unwrap().spec().head.tied);
}

#[test]
fn constants_and_rope_scaling_arrive_in_the_spec() {
    let mut file = tiny("llama", ggml::F16);
    file.set("llama.attention.layer_norm_rms_epsilon", V::F32(1e-6))
        .set("llama.rope.freq_base", V::F32(500_000.0))
        .set("llama.rope.scaling.type", "linear".into())
        .set("llama.rope.scaling.factor", V::F32(4.0));
    let rope = |file: &File| {
        let checkpoint = import(file).unwrap();
        let attention = &checkpoint.spec().layers[0].attention;
        let norm = checkpoint.spec().final_norm;
        (attention.rope.unwrap(), norm.eps)
    };
    let (spec, eps) = rope(&file);
    assert_eq!((spec.theta, eps), (500_000.0, 1e-6));
    assert_eq!(spec.scaling, Some(RopeScaling::Linear { factor: 4.0 }));

    // Llama 3's divisors, as its own code computes them, with a factor of 8.
    let divisors: Vec<u8> = (0..HEAD_DIM / 2)
        .flat_map(|i| {
            let frequency = 500_000f32.powf(-((2 * i) as f32) / HEAD_DIM as f32);
            let wavelength = 2.0 * std::f32::consts::PI / frequency;
            let smooth = ((8192.0 / wavelength - 1.0) / 3.0).clamp(0.0, 1.0);
            (1.0 / ((1.0 - smooth) / 8.0 + smooth)).to_le_bytes()
        })
        .collect();
    file.unset("llama.rope.scaling.type")
        .unset("llama.rope.scaling.factor")
        .tensor("rope_freqs.weight", &[HEAD_DIM / 2], ggml::F32, divisors);
    assert_eq!(
        rope(&file).0.scaling,
        Some(RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_context: 8192.0,
        })
    );
}
