//! Arbitrary configurations: none panics.

use halfhitch_seam::model::limits;
use proptest::prelude::*;
use serde_json::Value;

use super::parse;
use super::tests::base;

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        (0u64..300).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[a-z_0-9\\PC]{0,12}".prop_map(Value::from),
        prop::sample::select(vec![
            "linear",
            "llama3",
            "default",
            "silu",
            "full_attention"
        ])
        .prop_map(Value::from),
    ];
    let keys = prop::sample::select(vec![
        "rope_type",
        "type",
        "factor",
        "rope_theta",
        "low_freq_factor",
        "high_freq_factor",
        "full_attention",
        "sliding_attention",
        "bits",
        "group_size",
        "mode",
        "lm_head",
    ]);
    leaf.prop_recursive(3, 24, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::vec((keys.clone(), inner), 0..6).prop_map(|entries| {
                Value::Object(
                    entries
                        .into_iter()
                        .map(|(k, v)| (k.to_owned(), v))
                        .collect(),
                )
            }),
        ]
    })
}

proptest! {
    #[test]
    fn no_configuration_panics_and_an_accepted_one_is_valid(
        family in prop::sample::select(vec!["llama", "mistral", "qwen2", "qwen3"]),
        changes in prop::collection::vec((prop::sample::select(vec![
            "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
            "num_attention_heads", "num_key_value_heads", "head_dim", "max_position_embeddings",
            "rms_norm_eps", "rope_theta", "rope_scaling", "rope_parameters", "sliding_window",
            "use_sliding_window", "max_window_layers", "layer_types", "hidden_act", "mlp_bias",
            "attention_bias", "tie_word_embeddings", "architectures", "model_type",
            "quantization", "quantization_config", "eos_token_id", "bos_token_id",
            "original_max_position_embeddings",
        ]), any_json()), 1..4),
    ) {
        let mut config = base(family);
        let map = config.as_object_mut().unwrap();
        for (key, value) in changes {
            map.insert(key.to_owned(), value);
        }
        if let Ok(model) = parse(map) {
            prop_assert!(model.spec.validate().is_ok());
            prop_assert!(model.spec.expected_weights().len() < 20 * limits::LAYERS);
        }
        let quantization = crate::checkpoint::quantization::Quantization::parse(map);
        let stop = crate::checkpoint::stop::read(map, None, 97, &mut Vec::new());
        for error in [quantization.err(), stop.err(), parse(map).err()].into_iter().flatten() {
            let text = error.to_string();
            prop_assert!(!text.contains('\n') && text.len() < 1000, "{}", text);
        }
    }
}
