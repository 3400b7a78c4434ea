//! Files that are missing, and configurations that are none.

use super::*;

#[test]
fn files_that_are_missing_or_no_files() {
    run(&[
        (
            "no config",
            |f| f.remove("config.json"),
            NotFound,
            &["there is no config.json"],
        ),
        (
            "no weights",
            |f| f.remove("model.safetensors"),
            NotFound,
            &["model.safetensors.index.json"],
        ),
        (
            "weights of PyTorch",
            |f| {
                f.remove("model.safetensors");
                f.write("pytorch_model.bin", "x");
            },
            NotFound,
            &["PyTorch", "convert"],
        ),
        (
            "config is a folder",
            |f| {
                f.remove("config.json");
                fs::create_dir(f.path().join("config.json")).unwrap();
            },
            InvalidModel,
            &["config.json", "not a regular file"],
        ),
        (
            "weights are a folder",
            |f| {
                f.remove("model.safetensors");
                fs::create_dir(f.path().join("model.safetensors")).unwrap();
            },
            InvalidModel,
            &["model.safetensors", "not a regular file"],
        ),
    ]);
    let folder = Folder::new();
    let absent = Checkpoint::open(folder.path().join("absent")).unwrap_err();
    check(
        "no folder",
        &absent,
        NotFound,
        &["absent", "no such folder"],
    );
    let file = Checkpoint::open(folder.path().join("config.json")).unwrap_err();
    check(
        "a file",
        &file,
        InvalidInput,
        &["config.json", "not a folder"],
    );
    let below = Checkpoint::open(folder.path().join("config.json/x")).unwrap_err();
    check("below a file", &below, Io, &["config.json/x"]);
}

#[test]
fn configurations_that_are_no_configurations() {
    run(&[
        (
            "empty",
            |f| f.write("config.json", ""),
            InvalidModel,
            &["config.json", "not JSON"],
        ),
        (
            "cut off",
            |f| f.write("config.json", "{\"model_type\": \"lla"),
            InvalidModel,
            &["config.json", "not JSON"],
        ),
        (
            "a list",
            |f| f.write("config.json", "[]"),
            InvalidModel,
            &["config.json", "a list"],
        ),
        (
            "not UTF-8",
            |f| f.write("config.json", b"{\"a\": \"\xff\"}"),
            InvalidModel,
            &["config.json"],
        ),
        (
            "nested deeply",
            |f| f.write("config.json", format!("{{\"a\": {}", "[".repeat(200_000))),
            InvalidModel,
            &["config.json", "recursion"],
        ),
        (
            "too long",
            |f| {
                f.write(
                    "config.json",
                    format!("{{\"a\": \"{}\"}}", "x".repeat(5 << 20)),
                )
            },
            InvalidModel,
            &["config.json", "more than"],
        ),
        (
            "NaN",
            |f| {
                f.write(
                    "config.json",
                    "{\"model_type\": \"llama\", \"rms_norm_eps\": NaN}",
                )
            },
            InvalidModel,
            &["config.json", "not JSON"],
        ),
        (
            "no type",
            |f| f.config(|c| drop(c.remove("model_type"))),
            InvalidModel,
            &["config.json", "model_type", "qwen3"],
        ),
        (
            "other type",
            |f| f.set(json!({"model_type": "mamba\n2"})),
            Unsupported,
            &["config.json", "`mamba\\n2`", "llama, mistral, qwen2, qwen3"],
        ),
        (
            "type of type",
            |f| f.set(json!({"model_type": 1})),
            InvalidModel,
            &["config.json", "model_type is 1"],
        ),
        (
            "10^12 layers",
            |f| f.set(json!({"num_hidden_layers": 1_000_000_000_000u64})),
            InvalidModel,
            &["config.json", "num_hidden_layers is 1000000000000"],
        ),
        (
            "-1 layers",
            |f| f.set(json!({"num_hidden_layers": -1})),
            InvalidModel,
            &["config.json", "num_hidden_layers is -1"],
        ),
        (
            "half a layer",
            |f| f.set(json!({"num_hidden_layers": 2.5})),
            InvalidModel,
            &["num_hidden_layers is 2.5"],
        ),
        (
            "layers in words",
            |f| f.set(json!({"num_hidden_layers": "2"})),
            InvalidModel,
            &["num_hidden_layers is the string `2`"],
        ),
        (
            "heads do not divide",
            |f| f.set(json!({"num_attention_heads": 5})),
            InvalidModel,
            &[
                "config.json",
                "num_attention_heads is 5",
                "num_key_value_heads",
            ],
        ),
        (
            "width does not divide",
            |f| f.set(json!({"num_attention_heads": 6})),
            InvalidModel,
            &["hidden_size is 32", "num_attention_heads, 6"],
        ),
        (
            "yarn",
            |f| f.set(json!({"rope_scaling": {"type": "yarn", "factor": 4}})),
            Unsupported,
            &["`yarn`", "llama3"],
        ),
        (
            "activation",
            |f| f.set(json!({"hidden_act": "relu"})),
            Unsupported,
            &["hidden_act `relu`", "silu"],
        ),
        (
            "stop token",
            |f| f.set(json!({"eos_token_id": "</s>"})),
            InvalidModel,
            &["config.json", "eos_token_id"],
        ),
        (
            "generation",
            |f| f.write("generation_config.json", "{"),
            InvalidModel,
            &["generation_config.json", "not JSON"],
        ),
        (
            "gptq",
            |f| {
                f.set(
                    json!({"quantization": null, "quantization_config": {"quant_method": "gptq"}}),
                )
            },
            Unsupported,
            &["config.json", "`gptq`"],
        ),
        (
            "mxfp4",
            |f| f.set(json!({"quantization": {"group_size": 32, "bits": 4, "mode": "mxfp4"}})),
            Unsupported,
            &["config.json", "`mxfp4`"],
        ),
    ]);
}
