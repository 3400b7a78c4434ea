//! Every tiny checkpoint opens, and means the same in the configuration of transformers 4 and 5.

use std::fs;
use std::path::{Path, PathBuf};

use halfhitch::checkpoint::Checkpoint;
use halfhitch_seam::model::{QkNormScope, RopeScaling};
use halfhitch_seam::{CancelToken, Control, DType, ModelSpec, NoObserver, WeightForm, WeightId};

fn tiny() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/tiny")
}

fn fixtures() -> Vec<PathBuf> {
    let mut out: Vec<_> = fs::read_dir(tiny())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.join("config.json").exists())
        .collect();
    out.sort();
    assert!(out.len() >= 10, "fixtures are missing: {out:?}");
    out
}

/// A copy of a fixture with another configuration.
fn with_config(fixture: &Path, config: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(fixture).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), dir.path().join(entry.file_name())).unwrap();
    }
    fs::copy(fixture.join(config), dir.path().join("config.json")).unwrap();
    dir
}

#[test]
fn every_fixture_opens_whole_and_finite() {
    let cancel = CancelToken::new();
    let control = Control {
        cancel: &cancel,
        observer: &NoObserver,
    };
    for fixture in fixtures() {
        let checkpoint = Checkpoint::open(&fixture).unwrap();
        assert_eq!(checkpoint.warnings(), &[] as &[String], "{fixture:?}");
        checkpoint.check_finite(&control).unwrap();
        assert!(checkpoint.stop_tokens().contains(&2), "{fixture:?}");
        let summary = checkpoint.summary();
        let by_form: u64 = summary.forms.iter().map(|f| f.parameters).sum();
        assert_eq!(summary.parameters, by_form, "{fixture:?}");
        assert!(summary.weight_bytes < summary.file_bytes, "{fixture:?}");
        serde_json::to_string(&summary).unwrap();
    }
}

#[test]
fn both_versions_of_a_configuration_mean_the_same() {
    let mut compared = 0;
    for fixture in fixtures() {
        if fixture.join("config.v4.json").exists() {
            let old = with_config(&fixture, "config.v4.json");
            let new = Checkpoint::open(&fixture).unwrap();
            let old = Checkpoint::open(old.path()).unwrap();
            assert_eq!(old.spec(), new.spec(), "{fixture:?}");
            assert_eq!(old.stop_tokens(), new.stop_tokens(), "{fixture:?}");
            compared += 1;
        }
    }
    assert!(compared >= 10, "only {compared} compared");
}

#[test]
fn options_reach_the_spec() {
    type Check = fn(&ModelSpec) -> bool;
    let cases: &[(&str, Check)] = &[
        ("llama", |s| {
            let a = &s.layers[0].attention;
            s.architecture == "llama"
                && (a.heads, a.kv_heads, a.head_dim) == (4, 2, 8)
                && a.scale == 0.353_553_39
                && a.rope.unwrap().theta == 10_000.0
                && a.rope.unwrap().dims == 8
                && !s.head.tied
                && s.layers.len() == 2
                && s.final_norm.eps == 1e-5
                && s.max_context == 256
        }),
        ("llama-tied", |s| s.head.tied),
        ("llama-bias", |s| {
            let layer = &s.layers[1];
            layer.attention.qkv_bias
                && layer.attention.output_bias
                && matches!(layer.feed_forward, halfhitch_seam::model::FeedForward::Gated(m) if m.bias)
        }),
        ("llama-head-dim", |s| {
            let a = &s.layers[0].attention;
            a.head_dim * a.heads != s.hidden_size
        }),
        ("llama-one-kv-head", |s| s.layers[0].attention.kv_heads == 1),
        ("llama-rope-linear", |s| {
            matches!(
                s.layers[0].attention.rope.unwrap().scaling,
                Some(RopeScaling::Linear { .. })
            )
        }),
        ("llama-rope-llama3", |s| {
            s.layers[0].attention.rope.unwrap().scaling
                == Some(RopeScaling::Llama3 {
                    factor: 8.0,
                    low_freq_factor: 1.0,
                    high_freq_factor: 4.0,
                    original_context: 64.0,
                })
        }),
        ("mistral", |s| s.layers[0].attention.window.is_none()),
        ("mistral-window", |s| {
            s.layers.iter().all(|l| l.attention.window == Some(8))
        }),
        ("qwen2", |s| {
            let a = &s.layers[0].attention;
            a.qkv_bias && !a.output_bias && a.qk_norm.is_none() && a.window.is_none()
        }),
        ("qwen2-tied", |s| s.head.tied),
        ("qwen3", |s| {
            let a = &s.layers[0].attention;
            a.qk_norm.unwrap().scope == QkNormScope::Head && !a.qkv_bias && a.head_dim == 16
        }),
    ];
    for (name, check) in cases {
        let checkpoint = Checkpoint::open(tiny().join(name)).unwrap();
        assert!(check(checkpoint.spec()), "{name}: {:#?}", checkpoint.spec());
    }
}

#[test]
fn element_types_and_shards_are_as_stored() {
    let forms = |name: &str| {
        let summary = Checkpoint::open(tiny().join(name)).unwrap().summary();
        let forms: Vec<_> = summary.forms.iter().map(|f| f.form).collect();
        (forms, summary.files.len())
    };
    let dense = |dtype| vec![WeightForm::Dense(dtype)];
    assert_eq!(forms("llama"), (dense(DType::F32), 1));
    assert_eq!(forms("llama-f16"), (dense(DType::F16), 1));
    assert_eq!(forms("llama-bf16"), (dense(DType::BF16), 1));
    assert_eq!(forms("llama-sharded"), (dense(DType::F32), 2));
}

fn mlx(name: &str) -> Checkpoint {
    Checkpoint::open(tiny().join("../mlx").join(name)).unwrap()
}

#[test]
fn folders_of_mlx_lm_open() {
    let cases = [
        ("llama-q4-g32", "affine 4-bit g32 (", true),
        ("llama-q4-g64-bf16", "affine 4-bit g64 (bf16)", false),
        ("llama-q8-g64", "affine 8-bit g64 (", false),
        ("llama-plain-embedding", "affine 4-bit g32 (", true),
        ("qwen2-q3-g64", "affine 3-bit g64 (", true),
        ("qwen3-q4-g32", "affine 4-bit g32 (", false),
    ];
    for (name, label, tied) in cases {
        let checkpoint = mlx(name);
        assert_eq!(checkpoint.warnings(), &[] as &[String], "{name}");
        assert_eq!(checkpoint.spec().head.tied, tied, "{name}");
        let summary = checkpoint.summary();
        assert!(
            summary.forms.iter().any(|f| f.label.starts_with(label)),
            "{name}: {:?}",
            summary.forms
        );
        let quantised = |w: &WeightForm| matches!(w, WeightForm::Affine(_));
        let matrices = summary.tensors.iter().filter(|t| t.shape.len() == 2);
        for tensor in matrices {
            let plain = name == "llama-plain-embedding" && tensor.weight == WeightId::Embedding;
            assert_eq!(quantised(&tensor.form), !plain, "{name}: {}", tensor.name);
        }
    }
}

#[test]
fn overrides_reach_their_modules() {
    let summary = mlx("llama-mixed").summary();
    let label = |name: &str| {
        let tensor = summary.tensors.iter().find(|t| t.name == name).unwrap();
        tensor.form.to_string()
    };
    let cases = [
        ("model.embed_tokens.weight", "affine 8-bit g32"),
        ("model.layers.0.self_attn.v_proj.weight", "affine 6-bit g64"),
        ("model.layers.0.self_attn.o_proj.weight", "affine 2-bit g32"),
        ("model.layers.0.mlp.down_proj.weight", "affine 3-bit g32"),
        ("model.layers.1.self_attn.q_proj.weight", "affine 5-bit g64"),
        ("model.layers.1.self_attn.k_proj.weight", "affine 4-bit g32"),
    ];
    for (name, want) in cases {
        assert!(label(name).starts_with(want), "{name}: {}", label(name));
    }
    assert!(!label("model.layers.1.mlp.gate_proj.weight").contains("affine"));
}
