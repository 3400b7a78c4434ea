//! Files that gguf-py wrote become folders that hold exactly what gguf-py reads from them.

mod import_support;

use std::fs;
use std::path::Path;

use halfhitch::checkpoint::Checkpoint;
use halfhitch::import::{ImportOptions, import_gguf};
use import_support::{fixtures, quietly};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tokenizers::Tokenizer;

fn json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// The hash of a weight's values, rows in Hugging Face's order, without negative zeros.
fn checksum(values: &[f32]) -> String {
    let bytes: Vec<u8> = values
        .iter()
        .flat_map(|v| (v + 0.0).to_le_bytes())
        .collect();
    format!("{:x}", Sha256::digest(bytes))
}

fn check(gguf: &Path, expected: &Value) {
    let out = tempfile::tempdir().unwrap();
    let folder = out.path().join("model");
    let report = quietly(|c| import_gguf(gguf, &folder, ImportOptions::default(), c)).unwrap();
    assert!(report.tokenizer && report.chat_template, "{gguf:?}");

    let config = json(&folder.join("config.json"));
    for (key, want) in expected["config"].as_object().unwrap() {
        let architecture = config["model_type"].as_str().unwrap();
        // Qwen 2 has neither key: its heads divide the width, its biases are always there.
        if architecture == "qwen2" && ["head_dim", "attention_bias"].contains(&key.as_str()) {
            continue;
        }
        assert_eq!(&config[key], want, "{gguf:?}: {key}");
    }

    let checkpoint = Checkpoint::open(&folder).unwrap();
    assert_eq!(checkpoint.warnings(), &[] as &[String], "{gguf:?}");
    let tensors = expected["tensors"].as_object().unwrap();
    let summary = checkpoint.summary();
    assert_eq!(summary.tensors.len(), tensors.len(), "{gguf:?}");
    for entry in &summary.tensors {
        let want = &tensors[&entry.name];
        let weight = checkpoint.weights().get(entry.weight).unwrap();
        assert_eq!(
            serde_json::json!(weight.shape()),
            want["shape"],
            "{gguf:?}: {}",
            entry.name
        );
        assert_eq!(
            checksum(&weight.to_f32()),
            want["sha256"].as_str().unwrap(),
            "{gguf:?}: {}",
            entry.name
        );
    }
}

#[test]
fn every_fixture_is_imported_exactly_or_refused_by_name() {
    let mut seen = [0, 0];
    let mut paths: Vec<_> = fs::read_dir(fixtures().join("gguf"))
        .unwrap()
        .map(|e| e.unwrap().path())
        .filter(|p| p.extension().is_some_and(|e| e == "gguf"))
        .collect();
    paths.sort();
    for gguf in paths {
        let expected = json(&gguf.with_extension("json"));
        let accepted = expected["accepted"].as_bool().unwrap();
        seen[usize::from(accepted)] += 1;
        if accepted {
            check(&gguf, &expected);
            continue;
        }
        let out = tempfile::tempdir().unwrap();
        let folder = out.path().join("model");
        let e = quietly(|c| import_gguf(&gguf, &folder, ImportOptions::default(), c)).unwrap_err();
        let text = e.to_string();
        for part in ["llama-q6_k.gguf", "blk.0.ffn_down.weight", "Q6_K"] {
            assert!(text.contains(part), "{text}");
        }
        assert_eq!(fs::read_dir(out.path()).unwrap().count(), 0);
    }
    assert!(
        seen[0] >= 1 && seen[1] >= 10,
        "fixtures are missing: {seen:?}"
    );
}

#[test]
fn imported_tokenizers_give_the_ids_of_the_cases() {
    for (model, cases) in [
        ("llama-f32", "smollm"),
        ("llama-q8_0", "gpt-2"),
        ("qwen2-q8_0", "qwen2"),
        ("llama-bpe-f16", "llama-bpe"),
    ] {
        let folder = fixtures().join("gguf");
        let out = tempfile::tempdir().unwrap();
        let target = out.path().join("model");
        let gguf = folder.join(format!("{model}.gguf"));
        quietly(|c| import_gguf(&gguf, &target, ImportOptions::default(), c)).unwrap();
        check_tokenizer(
            &target,
            &folder.join(format!("tokenizer-{cases}-cases.json")),
        );
    }
}

/// Compares a folder's tokenizer with cases.
fn check_tokenizer(folder: &Path, cases: &Path) {
    let tokenizer = Tokenizer::from_file(folder.join("tokenizer.json")).unwrap();
    let cases = json(cases);
    let cases = cases["cases"].as_array().unwrap();
    assert!(cases.len() > 50);
    for case in cases {
        let text = case["text"].as_str().unwrap();
        let ids = |special| -> Value { tokenizer.encode(text, special).unwrap().get_ids().into() };
        assert_eq!(ids(false), case["ids"], "{text:?}");
        let special = case.get("ids_with_special").unwrap_or(&case["ids"]);
        assert_eq!(&ids(true), special, "{text:?}");
        let plain: Vec<u32> = serde_json::from_value(case["ids"].clone()).unwrap();
        let decoded = case.get("decoded").unwrap_or(&case["text"]);
        assert_eq!(
            tokenizer.decode(&plain, false).unwrap(),
            decoded.as_str().unwrap(),
            "{text:?}"
        );
    }
}

/// The fixture's vocabulary as a GGUF file has it: SentencePiece's scores instead of merges.
#[test]
fn sentencepiece_vocabularies_become_merges() {
    use import_support::{HIDDEN, Noise, V, ggml, random_data, tiny};

    let source = fixtures().join("tokenizer/tiny-spm");
    let published = json(&source.join("tokenizer.json"));
    let vocab = published["model"]["vocab"].as_object().unwrap();
    let mut tokens: Vec<(&String, u64)> = vocab
        .iter()
        .map(|(t, id)| (t, id.as_u64().unwrap()))
        .collect();
    tokens.sort_by_key(|&(_, id)| id);
    let kind = |token: &str| match token {
        "<unk>" => 2,
        "<s>" | "</s>" => 3,
        t if t.starts_with("<0x") => 6,
        _ => 1,
    };
    let mut file = tiny("llama", ggml::F16);
    let data = random_data(ggml::F16, tokens.len() * HIDDEN, &mut Noise(3));
    let embedding = file.find("token_embd.weight");
    embedding.dims[1] = tokens.len() as u64;
    embedding.data = data;
    file.set("tokenizer.ggml.model", "llama".into())
        .set(
            "tokenizer.ggml.tokens",
            V::Strs(tokens.iter().map(|(t, _)| (*t).clone()).collect()),
        )
        .set(
            "tokenizer.ggml.scores",
            V::F32s(tokens.iter().map(|&(_, id)| -(id as f32)).collect()),
        )
        .set(
            "tokenizer.ggml.token_type",
            V::I32s(tokens.iter().map(|(t, _)| kind(t)).collect()),
        )
        .set("tokenizer.ggml.bos_token_id", V::U32(1))
        .set("tokenizer.ggml.eos_token_id", V::U32(2))
        .set("tokenizer.ggml.unknown_token_id", V::U32(0));
    let dir = tempfile::tempdir().unwrap();
    let gguf = file.write(dir.path());
    let out = dir.path().join("model");
    quietly(|c| import_gguf(&gguf, &out, ImportOptions::default(), c)).unwrap();
    check_tokenizer(&out, &fixtures().join("tokenizer/tiny-spm-cases.json"));
    let written = json(&out.join("tokenizer.json"));
    for part in [
        "added_tokens",
        "normalizer",
        "pre_tokenizer",
        "post_processor",
        "decoder",
    ] {
        assert_eq!(written[part], published[part], "{part}");
    }
}
