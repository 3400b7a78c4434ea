//! Tensors that do not fit the configuration, and values that are no numbers.

use super::*;

#[test]
fn tensors_that_do_not_fit_the_configuration() {
    run(&[
        (
            "missing",
            |f| f.tensors(|t| drop(t.remove("model.layers.1.mlp.up_proj.weight"))),
            InvalidModel,
            &["`model.layers.1.mlp.up_proj.weight`", "missing"],
        ),
        (
            "no head",
            |f| f.tensors(|t| drop(t.remove("lm_head.weight"))),
            InvalidModel,
            &["`lm_head.weight`", "missing", "tie_word_embeddings"],
        ),
        (
            "another shape",
            |f| f.set(json!({"intermediate_size": 128})),
            InvalidModel,
            &["mlp.gate_proj.weight`", "[64, 32]", "[128, 32]"],
        ),
        (
            "three dimensions",
            |f| f.tensors(|t| drop(t.insert("model.norm.weight".into(), f32s(&[1, 1, 32], 1.0)))),
            InvalidModel,
            &["`model.norm.weight`", "[1, 1, 32]"],
        ),
        (
            "f64",
            |f| f.tensors(|t| drop(t.insert("model.norm.weight".into(), zeros(Dtype::F64, &[32])))),
            Unsupported,
            &["`model.norm.weight`", "F64", "BF16"],
        ),
        (
            "i8",
            |f| f.tensors(|t| drop(t.insert("lm_head.weight".into(), zeros(Dtype::I8, &[48, 32])))),
            Unsupported,
            &["model.safetensors", "`lm_head.weight`", "I8"],
        ),
        (
            "f8",
            |f| {
                f.tensors(|t| {
                    drop(t.insert("lm_head.weight".into(), zeros(Dtype::F8_E4M3, &[48, 32])))
                })
            },
            Unsupported,
            &["`lm_head.weight`", "F8_E4M3"],
        ),
        (
            "a bias",
            |f| {
                f.tensors(|t| {
                    drop(t.insert(
                        "model.layers.0.self_attn.q_proj.bias".into(),
                        f32s(&[32], 1.0),
                    ))
                })
            },
            InvalidModel,
            &["`model.layers.0.self_attn.q_proj.bias`", "no place"],
        ),
        (
            "no bias",
            |f| f.set(json!({"attention_bias": true})),
            InvalidModel,
            &["`model.layers.0.self_attn.q_proj.bias`", "missing"],
        ),
        (
            "a norm",
            |f| {
                f.tensors(|t| {
                    drop(t.insert(
                        "model.layers.0.self_attn.q_norm.weight".into(),
                        f32s(&[8], 1.0),
                    ))
                })
            },
            InvalidModel,
            &["`model.layers.0.self_attn.q_norm.weight`", "no place"],
        ),
        (
            "a head's bias",
            |f| f.tensors(|t| drop(t.insert("lm_head.bias".into(), f32s(&[48], 1.0)))),
            InvalidModel,
            &["`lm_head.bias`", "no place"],
        ),
        (
            "a norm's scales",
            |f| f.tensors(|t| drop(t.insert("model.norm.scales".into(), f32s(&[1], 1.0)))),
            InvalidModel,
            &["`model.norm.scales`", "no place"],
        ),
    ]);
}

#[test]
fn quantised_parts_that_do_not_fit() {
    fn part(f: &mut Folder, part: &str, tensor: (Dtype, Vec<usize>, Vec<u8>)) {
        f.tensors(|t| drop(t.insert(format!("{QUANTISED}.{part}"), tensor)));
    }
    run(&[
        (
            "group does not divide",
            |f| f.set(json!({"quantization": {"group_size": 128, "bits": 4}})),
            InvalidModel,
            &[QUANTISED, "groups of 128", "64 columns"],
        ),
        (
            "another group",
            |f| f.set(json!({"quantization": {"group_size": 64, "bits": 4}})),
            InvalidModel,
            &[QUANTISED, "scales", "[32, 2]", "[32, 1]"],
        ),
        (
            "no such group",
            |f| f.set(json!({"quantization": {"group_size": 48, "bits": 4}})),
            Unsupported,
            &["quantization.group_size", "48"],
        ),
        (
            "another width",
            |f| f.set(json!({"quantization": {"group_size": 32, "bits": 8}})),
            InvalidModel,
            &[QUANTISED, "[32, 8]", "[32, 16]"],
        ),
        (
            "no such width",
            |f| f.set(json!({"quantization": {"group_size": 32, "bits": 7}})),
            Unsupported,
            &["quantization.bits", "7 bits"],
        ),
        (
            "width of 10^12",
            |f| f.set(json!({"quantization": {"group_size": 32, "bits": 1_000_000_000_000u64}})),
            InvalidModel,
            &["quantization.bits is 1000000000000"],
        ),
        (
            "another override",
            |f| {
                f.set(
                    json!({"quantization": {"group_size": 32, "bits": 4, QUANTISED: {"bits": 2}}}),
                )
            },
            InvalidModel,
            &[QUANTISED, "2-bit"],
        ),
        (
            "said to be dense",
            |f| f.set(json!({"quantization": {"group_size": 32, "bits": 4, QUANTISED: false}})),
            InvalidModel,
            &[QUANTISED, "not quantised"],
        ),
        (
            "not said at all",
            |f| f.config(|c| drop(c.remove("quantization"))),
            InvalidModel,
            &[QUANTISED, "no quantization"],
        ),
        (
            "no group said",
            |f| f.set(json!({"quantization": {"bits": 4}})),
            InvalidModel,
            &[QUANTISED, "quantization.group_size"],
        ),
        (
            "no biases",
            |f| f.tensors(|t| drop(t.remove(&format!("{QUANTISED}.biases")))),
            InvalidModel,
            &[QUANTISED, "no biases"],
        ),
        (
            "no scales",
            |f| f.tensors(|t| drop(t.remove(&format!("{QUANTISED}.scales")))),
            InvalidModel,
            &[QUANTISED, "no scales"],
        ),
        (
            "types of scales and biases",
            |f| part(f, "biases", zeros(Dtype::BF16, &[32, 2])),
            InvalidModel,
            &[QUANTISED, "biases are bf16", "f16"],
        ),
        (
            "shape of biases",
            |f| part(f, "biases", zeros(Dtype::F16, &[32, 3])),
            InvalidModel,
            &[QUANTISED, "biases", "[32, 3]"],
        ),
        (
            "rows of scales",
            |f| part(f, "scales", zeros(Dtype::F16, &[31, 2])),
            InvalidModel,
            &[QUANTISED, "[31, 2]"],
        ),
        (
            "scales of u8",
            |f| part(f, "scales", zeros(Dtype::U8, &[32, 2])),
            Unsupported,
            &[QUANTISED, "scales", "U8"],
        ),
        (
            "scales of u32",
            |f| part(f, "scales", zeros(Dtype::U32, &[32, 2])),
            InvalidModel,
            &[QUANTISED, "scales are not numbers"],
        ),
        (
            "words of f32",
            |f| part(f, "weight", zeros(Dtype::F32, &[32, 8])),
            InvalidModel,
            &[QUANTISED, "f32 [32, 8]"],
        ),
        (
            "words of a dense shape",
            |f| part(f, "weight", zeros(Dtype::U32, &[32, 64])),
            InvalidModel,
            &[QUANTISED, "[32, 64]"],
        ),
    ]);
}

#[test]
fn numbers_that_are_none_are_found_by_name() {
    let cancel = CancelToken::new();
    let control = Control {
        cancel: &cancel,
        observer: &NoObserver,
    };
    let f16_nan = half::f16::NAN.to_le_bytes();
    let cases: &[(&str, usize, &[u8], &str)] = &[
        (
            "model.norm.weight",
            5 * 4,
            &f32::NAN.to_le_bytes(),
            "element 5",
        ),
        (
            "lm_head.weight",
            47 * 4,
            &f32::INFINITY.to_le_bytes(),
            "element 47",
        ),
        (
            &format!("{QUANTISED}.scales"),
            63 * 2,
            &f16_nan,
            "element 63",
        ),
        (&format!("{QUANTISED}.biases"), 0, &f16_nan, "element 0"),
    ];
    for (name, at, bytes, element) in cases {
        let mut folder = Folder::new();
        let good = Checkpoint::open(folder.path()).unwrap();
        good.check_finite(&control).unwrap();
        folder.tensors(|t| {
            let data = &mut t.get_mut(*name).unwrap().2;
            data[*at..at + bytes.len()].copy_from_slice(bytes);
        });
        let bad = Checkpoint::open(folder.path()).unwrap();
        let e = bad.check_finite(&control).unwrap_err();
        check(name, &e, NonFinite, &[&format!("`{name}`"), element]);
    }
    cancel.cancel();
    let e = Checkpoint::open(Folder::new().path())
        .unwrap()
        .check_finite(&control)
        .unwrap_err();
    check("cancelled", &e, Cancelled, &[]);
}
