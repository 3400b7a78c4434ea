//! Quantising gives mlx's words, scales and biases, bit for bit.

mod import_support;

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use halfhitch::checkpoint::Checkpoint;
use halfhitch::quantize::{QuantizeOptions, quantize_folder};
use halfhitch_seam::{
    AffineScheme, Bits, CancelToken, Control, DType, ErrorCode, GroupSize, LayerWeight, NoObserver,
    Weight, WeightForm, WeightId,
};
use import_support::{fixtures, quietly};
use safetensors::tensor::{Dtype, TensorView};
use safetensors::{SafeTensors, serialize_to_file};
use serde_json::{Value, json};

fn options(bits: u32, group: u32) -> QuantizeOptions {
    QuantizeOptions {
        bits: Bits::new(bits).unwrap(),
        group_size: GroupSize::new(group).unwrap(),
        scale_dtype: None,
        force: false,
    }
}

/// A dense llama, 256 wide, each of whose matrices repeats the four rows of `rows`.
fn dense_folder(dir: &Path, dtype: Dtype, rows: &[u8]) {
    let config = json!({
        "model_type": "llama", "hidden_size": 256, "intermediate_size": 256, "vocab_size": 4,
        "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 4,
        "rms_norm_eps": 1e-5, "max_position_embeddings": 64, "tie_word_embeddings": true,
        "rope_theta": 10000.0, "hidden_act": "silu",
    });
    fs::write(dir.join("config.json"), config.to_string()).unwrap();
    fs::write(dir.join("tokenizer_config.json"), "{}").unwrap();
    fs::write(dir.join("chat_template.jinja"), "{{ messages }}").unwrap();
    fs::write(dir.join("pytorch_model.bin"), "weights of another format").unwrap();
    let square = rows.repeat(64);
    let vector = &rows[..rows.len() / 4];
    let mut tensors: Vec<(String, TensorView<'_>)> = Vec::new();
    let mut add = |name: &str, shape: &[usize], data| {
        let view = TensorView::new(dtype, shape.to_vec(), data).unwrap();
        tensors.push((name.to_owned(), view));
    };
    add("model.embed_tokens.weight", &[4, 256], rows);
    for name in ["q", "k", "v", "o"] {
        add(
            &format!("model.layers.0.self_attn.{name}_proj.weight"),
            &[256, 256],
            &square,
        );
    }
    for name in ["gate", "up", "down"] {
        add(
            &format!("model.layers.0.mlp.{name}_proj.weight"),
            &[256, 256],
            &square,
        );
    }
    for name in [
        "layers.0.input_layernorm",
        "layers.0.post_attention_layernorm",
        "norm",
    ] {
        add(&format!("model.{name}.weight"), &[256], vector);
    }
    serialize_to_file(tensors, None, &dir.join("model.safetensors")).unwrap();
}

#[test]
fn every_width_and_group_is_bit_equal_with_mlx() {
    let folder = fixtures().join("quant");
    let bytes = fs::read(folder.join("affine.safetensors")).unwrap();
    let truth = SafeTensors::deserialize(&bytes).unwrap();
    let index: Value =
        serde_json::from_slice(&fs::read(folder.join("affine.json")).unwrap()).unwrap();
    let mut inputs = HashMap::new();
    let cases = index["cases"].as_array().unwrap();
    assert!(cases.len() >= 30);
    for case in cases {
        let name = case["name"].as_str().unwrap();
        let input_name = case["input"].as_str().unwrap();
        let input = inputs.entry(input_name).or_insert_with(|| {
            let view = truth.tensor(input_name).unwrap();
            assert_eq!(view.shape(), [4, 256]);
            let dir = tempfile::tempdir().unwrap();
            dense_folder(dir.path(), view.dtype(), view.data());
            dir
        });
        let out = input.path().join(format!("out-{name}"));
        let of = |key: &str| case[key].as_u64().unwrap() as u32;
        let report =
            quietly(|c| quantize_folder(input.path(), &out, options(of("bits"), of("group")), c))
                .unwrap();
        assert_eq!((report.quantized, report.skipped.len()), (8, 0));
        let checkpoint = Checkpoint::open(&out).unwrap();
        let part = |suffix: &str| truth.tensor(&format!("{name}.{suffix}")).unwrap();
        for (id, times) in [
            (WeightId::Embedding, 1),
            (WeightId::Layer(0, LayerWeight::Down), 64),
        ] {
            let Weight::Affine(found) = checkpoint.weights().get(id).unwrap() else {
                panic!("{name}: {id} is dense");
            };
            for (what, found, want) in [
                ("words", found.words(), part("words")),
                ("scales", found.scales(), part("scales")),
                ("biases", found.biases(), part("biases")),
            ] {
                assert_eq!(
                    found.bytes(),
                    &want.data().repeat(times),
                    "{name}: {id}: {what}"
                );
            }
        }
    }
}

fn bf16_folder() -> tempfile::TempDir {
    let bytes = fs::read(fixtures().join("quant/affine.safetensors")).unwrap();
    let truth = SafeTensors::deserialize(&bytes).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let view = truth.tensor("bfloat16.w").unwrap();
    dense_folder(dir.path(), view.dtype(), view.data());
    dir
}

#[test]
fn the_folder_is_as_mlx_lm_writes_it() {
    let input = bf16_folder();
    let out = input.path().join("out");
    quietly(|c| quantize_folder(input.path(), &out, options(4, 64), c)).unwrap();
    let config: Value =
        serde_json::from_slice(&fs::read(out.join("config.json")).unwrap()).unwrap();
    let want = json!({"group_size": 64, "bits": 4, "mode": "affine"});
    assert_eq!(config["quantization"], want);
    assert_eq!(config["quantization_config"], want);
    assert_eq!(config["hidden_size"], 256);
    let mut names: Vec<_> = fs::read_dir(&out)
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(
        names,
        [
            "chat_template.jinja",
            "config.json",
            "model.safetensors",
            "tokenizer_config.json"
        ]
    );
    let checkpoint = Checkpoint::open(&out).unwrap();
    let norm = checkpoint.weights().get(WeightId::FinalNorm).unwrap();
    assert_eq!(
        norm.form(),
        WeightForm::Dense(DType::BF16),
        "vectors stay as they are"
    );
}

#[test]
fn scales_have_the_type_that_is_asked_for() {
    let input = bf16_folder();
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let out = input.path().join(dtype.name());
        let options = QuantizeOptions {
            scale_dtype: Some(dtype),
            ..options(4, 32)
        };
        quietly(|c| quantize_folder(input.path(), &out, options, c)).unwrap();
        let checkpoint = Checkpoint::open(&out).unwrap();
        let scheme = AffineScheme {
            bits: options.bits,
            group_size: options.group_size,
            scale_dtype: dtype,
        };
        let embedding = checkpoint.weights().get(WeightId::Embedding).unwrap();
        assert_eq!(embedding.form(), WeightForm::Affine(scheme));
    }
}

/// MLX's scales have the type of the weights, so another type means other weights: an f32 folder with
/// half scales is the folder of halves quantised, words and all.
#[test]
fn another_type_of_scales_is_that_of_the_weights_first() {
    let bytes = fs::read(fixtures().join("quant/affine.safetensors")).unwrap();
    let truth = SafeTensors::deserialize(&bytes).unwrap();
    let wide: Vec<f32> = (truth.tensor("float32.w").unwrap().data().chunks_exact(4))
        .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
        // Within the range of f16.
        .map(|v| v.clamp(-1e4, 1e4))
        .collect();
    let bf16 = |v: &f32| half::bf16::from_f32(*v).to_le_bytes();
    let f16 = |v: &f32| half::f16::from_f32(*v).to_le_bytes();
    let input = tempfile::tempdir().unwrap();
    let whole: Vec<u8> = wide.iter().flat_map(|v| v.to_le_bytes()).collect();
    dense_folder(input.path(), Dtype::F32, &whole);
    for (dtype, kind, narrow) in [
        (
            DType::BF16,
            Dtype::BF16,
            wide.iter().flat_map(bf16).collect(),
        ),
        (
            DType::F16,
            Dtype::F16,
            wide.iter().flat_map(f16).collect::<Vec<u8>>(),
        ),
    ] {
        let rounded = tempfile::tempdir().unwrap();
        dense_folder(rounded.path(), kind, &narrow);
        for bits in [2, 4, 8] {
            let options = QuantizeOptions {
                scale_dtype: Some(dtype),
                ..options(bits, 32)
            };
            let parts = |folder: &Path| {
                let out = tempfile::tempdir().unwrap();
                let out = out.path().join("out");
                quietly(|c| quantize_folder(folder, &out, options, c)).unwrap();
                let checkpoint = Checkpoint::open(&out).unwrap();
                let Weight::Affine(found) = checkpoint.weights().get(WeightId::Embedding).unwrap()
                else {
                    panic!("the embedding is dense");
                };
                [found.words(), found.scales(), found.biases()].map(|t| t.bytes().clone())
            };
            assert!(
                parts(input.path()) == parts(rounded.path()),
                "{bits} bits, {dtype} scales"
            );
        }
    }
}

#[test]
fn what_cannot_be_quantised_is_refused_and_leaves_nothing() {
    let input = bf16_folder();
    let packed = input.path().join("packed");
    quietly(|c| quantize_folder(input.path(), &packed, options(4, 64), c)).unwrap();

    let nan = tempfile::tempdir().unwrap();
    let mut values = half::bf16::from_f32(0.5).to_le_bytes().repeat(1024);
    values[514..516].copy_from_slice(&half::bf16::NAN.to_le_bytes());
    dense_folder(nan.path(), Dtype::BF16, &values);

    let large = tempfile::tempdir().unwrap();
    dense_folder(
        large.path(),
        Dtype::F32,
        &1e20f32.to_le_bytes().repeat(1024),
    );
    let halves = QuantizeOptions {
        scale_dtype: Some(DType::F16),
        ..options(4, 64)
    };
    let words = QuantizeOptions {
        scale_dtype: Some(DType::U32),
        ..options(4, 64)
    };

    let out = tempfile::tempdir().unwrap();
    let missing = out.path().join("missing");
    for (what, folder, options, code, said) in [
        (
            "packed",
            packed.as_path(),
            options(8, 32),
            ErrorCode::InvalidInput,
            "quantised already",
        ),
        (
            "not finite",
            nan.path(),
            options(4, 64),
            ErrorCode::NonFinite,
            "model.embed_tokens.weight",
        ),
        (
            "scales too large",
            large.path(),
            halves,
            ErrorCode::NonFinite,
            "f16 cannot hold",
        ),
        (
            "scales as words",
            input.path(),
            words,
            ErrorCode::InvalidInput,
            "scales can be",
        ),
        (
            "no folder",
            missing.as_path(),
            options(4, 64),
            ErrorCode::NotFound,
            "missing",
        ),
    ] {
        let target = out.path().join("target");
        let e = quietly(|c| quantize_folder(folder, &target, options, c)).unwrap_err();
        assert_eq!(e.code, code, "{what}: {e}");
        assert!(e.to_string().contains(said), "{what}: {e}");
        assert_eq!(
            fs::read_dir(out.path()).unwrap().count(),
            0,
            "{what}: something is left"
        );
    }

    let e = quietly(|c| quantize_folder(input.path(), &packed, options(4, 64), c)).unwrap_err();
    assert!(e.to_string().contains("not empty"), "{e}");
}

#[test]
fn a_model_is_not_quantised_onto_itself() {
    let input = bf16_folder();
    let weights = input.path().join("model.safetensors");
    let before = fs::read(&weights).unwrap();
    let options = QuantizeOptions {
        force: true,
        ..options(4, 64)
    };
    let same = input.path().join(".");
    let e = quietly(|c| quantize_folder(input.path(), &same, options, c)).unwrap_err();
    assert!(e.to_string().contains("both input and output"), "{e}");
    assert_eq!(fs::read(&weights).unwrap(), before);

    // Nor onto a folder that it lies in, which would go with all that is there.
    let around = tempfile::tempdir().unwrap();
    fs::write(around.path().join("config.json"), "{}").unwrap();
    let inner = around.path().join("inner");
    fs::rename(input.path(), &inner).unwrap();
    let e = quietly(|c| quantize_folder(&inner, around.path(), options, c)).unwrap_err();
    assert!(e.to_string().contains("the input, lies in"), "{e}");
    assert_eq!(fs::read(inner.join("model.safetensors")).unwrap(), before);
}

#[test]
fn cancelling_leaves_nothing() {
    let input = bf16_folder();
    let out = tempfile::tempdir().unwrap();
    let cancel = CancelToken::new();
    cancel.cancel();
    let control = Control {
        cancel: &cancel,
        observer: &NoObserver,
    };
    let e = quantize_folder(
        input.path(),
        &out.path().join("t"),
        options(4, 64),
        &control,
    )
    .unwrap_err();
    assert_eq!(e.code, ErrorCode::Cancelled);
    assert_eq!(fs::read_dir(out.path()).unwrap().count(), 0);
}
