//! Configurations and what they mean.

use halfhitch_seam::ErrorCode;
use halfhitch_seam::model::{Activation, FeedForward, RopeScaling, limits};
use serde_json::{Value, json};

use super::*;

pub(super) fn base(model_type: &str) -> Value {
    json!({
        "model_type": model_type, "vocab_size": 97, "hidden_size": 32, "intermediate_size": 64,
        "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
        "max_position_embeddings": 256, "rms_norm_eps": 1e-5,
    })
}

/// `base` with keys set from `changes`; a key is removed where the change is the string `absent`.
fn changed(mut base: Value, changes: Value) -> Value {
    let map = base.as_object_mut().unwrap();
    for (key, value) in changes.as_object().unwrap() {
        if value == "absent" {
            map.remove(key);
        } else {
            map.insert(key.clone(), value.clone());
        }
    }
    base
}

fn spec(model_type: &str, changes: Value) -> ModelSpec {
    let config = changed(base(model_type), changes);
    parse(config.as_object().unwrap())
        .unwrap_or_else(|e| panic!("{e}: {config}"))
        .spec
}

fn error(model_type: &str, changes: Value) -> SeamError {
    let config = changed(base(model_type), changes);
    match parse(config.as_object().unwrap()) {
        Ok(_) => panic!("accepted: {config}"),
        Err(e) => e,
    }
}

#[test]
fn left_out_keys_have_the_defaults_of_transformers() {
    // From the configuration classes: vocabulary, hidden, intermediate, layers, heads, kv, width,
    // context, window.
    let cases = [
        ("llama", (32_000, 4096, 11_008, 32, 32, 32, 128, 2048, None)),
        (
            "mistral",
            (32_000, 4096, 14_336, 32, 32, 8, 128, 131_072, Some(4096)),
        ),
        (
            "qwen2",
            (151_936, 4096, 22_016, 32, 32, 32, 128, 32_768, None),
        ),
        (
            "qwen3",
            (151_936, 4096, 22_016, 32, 32, 32, 128, 32_768, None),
        ),
    ];
    for (model_type, want) in cases {
        let config = json!({ "model_type": model_type });
        let s = parse(config.as_object().unwrap()).unwrap().spec;
        let layer = &s.layers[0];
        let a = &layer.attention;
        let FeedForward::Gated(mlp) = layer.feed_forward else {
            panic!("{model_type}")
        };
        let have = (
            s.vocab_size,
            s.hidden_size,
            mlp.intermediate,
            s.layers.len(),
            a.heads,
            a.kv_heads,
            a.head_dim,
            s.max_context,
            a.window,
        );
        assert_eq!(have, want, "{model_type}");
        assert_eq!(s.final_norm.eps, 1e-6, "{model_type}");
        assert_eq!(a.rope.unwrap().theta, 10_000.0, "{model_type}");
        assert_eq!(mlp.activation, Activation::Silu, "{model_type}");
        assert!(!s.head.tied, "{model_type}");
        assert_eq!(a.qkv_bias, model_type == "qwen2");
        assert_eq!(a.qk_norm.is_some(), model_type == "qwen3");
    }
}

#[test]
fn a_null_is_not_a_left_out_key() {
    let kv = |m, changes| spec(m, changes).layers[0].attention.kv_heads;
    for m in ["llama", "mistral", "qwen2", "qwen3"] {
        assert_eq!(kv(m, json!({ "num_key_value_heads": null })), 4, "{m}");
    }
    // Left out, the class's default is 8 or 32, which 4 heads do not divide into.
    for m in ["mistral", "qwen2", "qwen3"] {
        let e = error(m, json!({ "num_key_value_heads": "absent" }));
        assert!(e.message.contains("num_key_value_heads"), "{e}");
    }
    let width = |m, changes| spec(m, changes).layers[0].attention.head_dim;
    let wide = json!({ "hidden_size": 64, "head_dim": null });
    assert_eq!(width("llama", wide.clone()), 16);
    assert_eq!(width("mistral", wide.clone()), 16);
    assert_eq!(width("qwen3", json!({ "head_dim": "absent" })), 128);
    assert!(error("qwen3", wide).message.contains("head_dim is null"));
}

#[test]
fn windows_follow_each_architecture_s_rule() {
    let windows = |m, changes| -> Vec<usize> {
        let s = spec(m, changes);
        s.layers
            .iter()
            .map(|l| l.attention.window.unwrap_or(0))
            .collect()
    };
    let full = "full_attention";
    let slide = "sliding_attention";
    let cases = [
        ("llama", json!({}), [0; 4]),
        ("llama", json!({ "sliding_window": 8 }), [0; 4]),
        ("mistral", json!({}), [4096; 4]),
        ("mistral", json!({ "sliding_window": null }), [0; 4]),
        ("mistral", json!({ "sliding_window": 8 }), [8; 4]),
        (
            "mistral",
            json!({ "sliding_window": 8, "layer_types": [slide, slide, slide, slide] }),
            [8; 4],
        ),
        ("qwen2", json!({}), [0; 4]),
        (
            "qwen2",
            json!({ "sliding_window": 8, "max_window_layers": 0 }),
            [0; 4],
        ),
        (
            "qwen2",
            json!({ "use_sliding_window": true, "sliding_window": 8, "max_window_layers": 2 }),
            [0, 0, 8, 8],
        ),
        (
            "qwen3",
            json!({ "use_sliding_window": true, "max_window_layers": 3 }),
            [0, 0, 0, 4096],
        ),
        (
            "qwen3",
            json!({ "use_sliding_window": true, "sliding_window": null, "max_window_layers": 0 }),
            [0; 4],
        ),
        ("qwen3", json!({ "use_sliding_window": true }), [0; 4]),
        (
            "qwen2",
            json!({ "use_sliding_window": true, "sliding_window": 8, "max_window_layers": 4,
                    "layer_types": [slide, full, slide, "attention"] }),
            [8, 0, 8, 0],
        ),
    ];
    for (m, changes, want) in cases {
        assert_eq!(windows(m, changes.clone()), want, "{m} {changes}");
    }
    let refused = [
        (
            "llama",
            json!({ "layer_types": [full, slide, full, full] }),
            "llama does not have",
        ),
        (
            "mistral",
            json!({ "layer_types": [full, slide, full, full] }),
            "layer_types",
        ),
        (
            "qwen2",
            json!({ "layer_types": [full, slide, full, full] }),
            "layer 1",
        ),
        (
            "qwen2",
            json!({ "layer_types": [full] }),
            "1 entries for 4 layers",
        ),
        (
            "qwen2",
            json!({ "layer_types": [full, full, full, "chunked_attention"] }),
            "layer_types[3]",
        ),
        (
            "qwen2",
            json!({ "layer_types": "full_attention" }),
            "not a list",
        ),
        (
            "mistral",
            json!({ "sliding_window": 0 }),
            "sliding_window is 0",
        ),
    ];
    for (m, changes, text) in refused {
        let e = error(m, changes);
        assert!(e.message.contains(text), "{e}");
    }
}

#[test]
fn rope_is_read_in_every_form_it_is_written_in() {
    let rope = |changes| {
        let rope = spec("llama", changes).layers[0].attention.rope.unwrap();
        (rope.theta, rope.scaling)
    };
    let linear = Some(RopeScaling::Linear { factor: 4.0 });
    let llama3 = |original_context| {
        Some(RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_context,
        })
    };
    let ramp = json!({ "rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4.0 });
    let ramp64 = changed(
        ramp.clone(),
        json!({ "original_max_position_embeddings": 64 }),
    );
    let cases = [
        (json!({}), (1e4, None)),
        (
            json!({ "rope_theta": 5e5, "rope_scaling": null }),
            (5e5, None),
        ),
        (
            json!({ "rope_theta": 5e5, "rope_scaling": {} }),
            (5e5, None),
        ),
        (
            json!({ "rope_parameters": { "rope_theta": 5e5, "rope_type": "default" } }),
            (5e5, None),
        ),
        (
            json!({ "rope_parameters": { "rope_theta": 5e5 } }),
            (5e5, None),
        ),
        (
            json!({ "rope_theta": 7, "rope_parameters": { "rope_theta": 5e5 } }),
            (5e5, None),
        ),
        (
            json!({ "rope_theta": 5e5, "rope_parameters": { "rope_type": "default" } }),
            (5e5, None),
        ),
        (
            json!({ "rope_scaling": { "type": "linear", "factor": 4 } }),
            (1e4, linear),
        ),
        (
            json!({ "rope_scaling": { "rope_type": "linear", "type": "yarn", "factor": 4.0 } }),
            (1e4, linear),
        ),
        (
            json!({ "rope_parameters": { "rope_type": "linear", "factor": 4.0, "rope_theta": 2e4 } }),
            (2e4, linear),
        ),
        // `rope_scaling` wins over `rope_parameters`.
        (
            json!({ "rope_scaling": { "type": "linear", "factor": 4 }, "rope_parameters": { "rope_type": "default" } }),
            (1e4, linear),
        ),
        (
            json!({ "rope_scaling": ramp64.clone() }),
            (1e4, llama3(64.0)),
        ),
        (
            json!({ "rope_parameters": ramp64.clone() }),
            (1e4, llama3(64.0)),
        ),
        (
            json!({ "rope_scaling": ramp.clone() }),
            (1e4, llama3(256.0)),
        ),
        (
            json!({ "rope_scaling": ramp64, "original_max_position_embeddings": 32 }),
            (1e4, llama3(32.0)),
        ),
        (
            json!({ "rope_parameters": { "full_attention": { "rope_theta": 3e4 }, "sliding_attention": { "rope_theta": 1e4 } } }),
            (3e4, None),
        ),
    ];
    for (changes, want) in cases {
        assert_eq!(rope(changes.clone()), want, "{changes}");
    }
    let none = spec(
        "llama",
        json!({ "rope_parameters": { "full_attention": null } }),
    );
    assert_eq!(none.layers[0].attention.rope, None);
}

#[test]
fn rope_that_is_not_computed_or_not_whole_is_refused() {
    for kind in ["yarn", "dynamic", "longrope", "su", "mrope", "proportional"] {
        let e = error(
            "llama",
            json!({ "rope_scaling": { "type": kind, "factor": 2.0 } }),
        );
        assert_eq!(e.code, ErrorCode::Unsupported, "{e}");
        assert!(e.message.contains(kind), "{e}");
        assert!(e.hint.unwrap().contains("llama3"));
    }
    let invalid = [
        (
            json!({ "rope_scaling": { "factor": 2.0 } }),
            "rope_scaling.rope_type is missing",
        ),
        (
            json!({ "rope_scaling": { "type": "linear" } }),
            "rope_scaling.factor is missing",
        ),
        (
            json!({ "rope_scaling": { "type": "linear", "factor": 0 } }),
            "rope_scaling.factor is 0",
        ),
        (
            json!({ "rope_scaling": { "type": "linear", "factor": "2" } }),
            "rope_scaling.factor",
        ),
        (
            json!({ "rope_scaling": { "type": "llama3", "factor": 2.0 } }),
            "low_freq_factor is missing",
        ),
        (
            json!({ "rope_scaling": { "type": "llama3", "factor": 2.0, "low_freq_factor": 4, "high_freq_factor": 4 } }),
            "not below",
        ),
        (json!({ "rope_scaling": 2 }), "rope_scaling is 2"),
        (
            json!({ "rope_scaling": { "type": 2 } }),
            "rope_scaling.type is 2",
        ),
        (json!({ "rope_theta": 0 }), "rope_theta is 0"),
        (json!({ "rope_theta": -1e4 }), "rope_theta is -10000"),
        (
            json!({ "rope_parameters": { "sliding_attention": {} } }),
            "no entry for full_attention",
        ),
    ];
    for (changes, text) in invalid {
        let e = error("llama", changes);
        assert_eq!(e.code, ErrorCode::InvalidModel, "{e}");
        assert!(e.message.contains(text), "{e}");
    }
}

#[test]
fn what_the_architecture_does_not_compute_is_refused() {
    let cases = [
        (json!({ "hidden_act": "relu" }), "relu"),
        (json!({ "hidden_act": "quick_gelu" }), "quick_gelu"),
        (
            json!({ "partial_rotary_factor": 0.5 }),
            "partial_rotary_factor",
        ),
        (
            json!({ "rope_parameters": { "partial_rotary_factor": 0.5 } }),
            "partial_rotary_factor",
        ),
        (
            json!({ "attention_multiplier": 0.1 }),
            "attention_multiplier",
        ),
        (json!({ "logits_scaling": 8 }), "logits_scaling"),
        (
            json!({ "final_logit_softcapping": 30.0 }),
            "final_logit_softcapping",
        ),
        (json!({ "num_experts": 8 }), "num_experts"),
        (json!({ "num_local_experts": 8 }), "num_local_experts"),
        (json!({ "no_rope_layers": [1, 1, 1, 0] }), "no_rope_layers"),
        (json!({ "rope_traditional": true }), "rope_traditional"),
        (json!({ "model_type": "gpt_bigcode" }), "gpt_bigcode"),
    ];
    for (changes, text) in cases {
        let e = error("llama", changes);
        assert_eq!(e.code, ErrorCode::Unsupported, "{e}");
        assert!(e.message.contains(text), "{e}");
    }
    // The same keys where they change nothing.
    spec(
        "llama",
        json!({ "partial_rotary_factor": 1.0, "logits_scaling": 1, "attention_multiplier": null,
                "num_experts": 0, "rope_traditional": false, "pretraining_tp": 2, "no_rope_layers": [] }),
    );
    let e = error("no-such-model", json!({}));
    for family in ["llama", "mistral", "qwen2", "qwen3"] {
        assert!(e.hint.as_deref().unwrap().contains(family), "{e}");
    }
}

#[test]
fn activations_have_transformers_names() {
    let activation = |name: &str| {
        let s = spec("llama", json!({ "hidden_act": name }));
        match s.layers[0].feed_forward {
            FeedForward::Gated(mlp) => mlp.activation,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(activation("silu"), Activation::Silu);
    assert_eq!(activation("swish"), Activation::Silu);
    assert_eq!(activation("gelu"), Activation::GeluErf);
    assert_eq!(activation("gelu_new"), Activation::GeluTanh);
    assert_eq!(activation("gelu_pytorch_tanh"), Activation::GeluTanh);
}

#[test]
fn numbers_are_bounded_and_the_key_is_named() {
    let keys = [
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "max_position_embeddings",
    ];
    let values = [
        json!(1_000_000_000_000u64),
        json!(u64::MAX),
        json!(0),
        json!(-4),
        json!(2.5),
        json!(1e300),
        json!("4"),
        json!(true),
        json!([4]),
        json!({}),
    ];
    for key in keys {
        for value in &values {
            let e = error("llama", json!({ key: value }));
            assert_eq!(e.code, ErrorCode::InvalidModel, "{e}");
            assert!(e.message.starts_with(key), "{key}: {e}");
        }
    }
    for value in [json!(-1e-6), json!(2), json!("1e-5"), json!(1e300)] {
        let e = error("llama", json!({ "rms_norm_eps": value }));
        assert!(e.message.starts_with("rms_norm_eps"), "{e}");
    }
    for key in ["attention_bias", "mlp_bias", "tie_word_embeddings"] {
        let e = error("llama", json!({ key: "yes" }));
        assert!(e.message.starts_with(key), "{e}");
    }
    // Each fits its own limit, the product does not.
    let e = error("llama", json!({ "head_dim": limits::WIDTH }));
    assert!(e.message.starts_with("head_dim"), "{e}");
    let e = error(
        "llama",
        json!({ "num_attention_heads": 5, "num_key_value_heads": 5, "head_dim": null }),
    );
    assert!(
        e.message.starts_with("hidden_size is 32, not a multiple"),
        "{e}"
    );
    let e = error("llama", json!({ "num_attention_heads": 3 }));
    assert!(
        e.message.contains("not a multiple of num_key_value_heads"),
        "{e}"
    );
    let e = error("llama", json!({ "head_dim": 7 }));
    assert!(e.message.contains("odd"), "{e}");
}
