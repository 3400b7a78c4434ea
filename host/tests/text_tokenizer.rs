//! Tokenizers against Hugging Face's, case by case, and broken ones.

use std::path::{Path, PathBuf};

use halfhitch::text::{SpecialTokens, Tokenizer};
use serde_json::{Value, json};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/tokenizer")
}

fn ids(value: &Value) -> Vec<u32> {
    serde_json::from_value(value.clone()).expect("ids")
}

#[test]
fn small_tokenizers_give_the_ids_and_texts_of_hugging_face() {
    for name in ["tiny-bpe", "tiny-spm"] {
        let tokenizer = Tokenizer::from_dir(&fixtures().join(name))
            .expect(name)
            .expect(name);
        let cases = std::fs::read(fixtures().join(format!("{name}-cases.json"))).expect(name);
        let file: Value = serde_json::from_slice(&cases).expect(name);
        let cases = file["cases"].as_array().expect("cases");
        assert!(cases.len() > 50);
        for case in cases {
            let text = case["text"].as_str().expect("text");
            let expected = ids(&case["ids"]);
            assert_eq!(
                tokenizer.encode(text, false),
                Ok(expected.clone()),
                "{name} {text:?}"
            );
            assert_eq!(
                tokenizer.encode_chat(text),
                Ok(expected.clone()),
                "{name} {text:?}"
            );
            let special = case.get("ids_with_special").map_or(expected.clone(), ids);
            assert_eq!(tokenizer.encode(text, true), Ok(special), "{name} {text:?}");
            let decoded = case
                .get("decoded")
                .map_or(text, |v| v.as_str().expect("decoded"));
            assert_eq!(
                tokenizer.decode(&expected, false).as_deref(),
                Ok(decoded),
                "{name} {text:?}"
            );
            let skipped = case
                .get("decoded_skip_special")
                .map_or(decoded, |v| v.as_str().expect("text"));
            assert_eq!(
                tokenizer.decode(&expected, true).as_deref(),
                Ok(skipped),
                "{name} {text:?}"
            );
        }
        for case in file["streamed"].as_array().expect("streamed") {
            let all = ids(&case["ids"]);
            let prefixes = case["decoded_prefixes"].as_array().expect("prefixes");
            let mut stream = tokenizer.stream(false);
            let mut text = String::new();
            for (n, id) in all.iter().enumerate() {
                text.push_str(&stream.push(*id).expect("a piece"));
                let so_far = prefixes[n + 1].as_str().expect("text");
                // What is out stays; what is held back is at the end of what is decoded so far.
                assert!(
                    so_far.starts_with(&text),
                    "{name} {n}: {text:?} of {so_far:?}"
                );
            }
            text.push_str(&stream.finish().expect("the rest"));
            assert_eq!(text, prefixes[all.len()].as_str().expect("text"), "{name}");
        }
    }
}

#[test]
fn special_tokens_come_from_the_configuration() {
    let tokenizer = Tokenizer::from_dir(&fixtures().join("tiny-spm"))
        .expect("readable")
        .expect("there");
    assert_eq!(tokenizer.bos_token(), tokenizer.token_to_id("<s>"));
    let eos = tokenizer.token_to_id("</s>").expect("in the vocabulary");
    assert_eq!(tokenizer.eos_token(), Some(eos));
    assert_eq!(
        tokenizer.stop_tokens().iter().copied().collect::<Vec<_>>(),
        [eos]
    );
    assert_eq!(tokenizer.id_to_token(eos).as_deref(), Some("</s>"));
    assert!(tokenizer.is_special(eos) && !tokenizer.is_special(400));
    assert_eq!(tokenizer.vocab_size(), 488);
    assert_eq!(tokenizer.id_to_token(488), None);
    assert_eq!(tokenizer.decode(&[u32::MAX, 488], false).as_deref(), Ok(""));
}

/// A tokenizer of whole words.
fn words(change: impl Fn(&mut Value)) -> Vec<u8> {
    let mut json = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
        "normalizer": null, "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null,
        "decoder": null,
        "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "[UNK]": 2}, "unk_token": "[UNK]"}
    });
    change(&mut json);
    json.to_string().into_bytes()
}

#[test]
fn truncation_and_padding_of_the_file_are_off() {
    let bytes = words(|json| {
        json["truncation"] =
            json!({"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0});
        json["padding"] = json!({"strategy": {"Fixed": 8}, "direction": "Right", "pad_to_multiple_of": null,
            "pad_id": 1, "pad_type_id": 0, "pad_token": "b"});
    });
    let tokenizer = Tokenizer::from_bytes(&bytes, SpecialTokens::default()).expect("a tokenizer");
    assert_eq!(tokenizer.encode("a a a b", true), Ok(vec![0, 0, 0, 1]));
    assert_eq!(tokenizer.encode("", true), Ok(vec![]));
}

#[test]
fn broken_folders_are_one_line_errors_that_name_the_file() {
    let no_such_part = words(|json| {
        json["model"] = json!({"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]});
    });
    let cases: Vec<(&str, &str, Vec<u8>)> = vec![
        ("tokenizer.json", "not JSON", b"{".to_vec()),
        ("tokenizer.json", "empty", Vec::new()),
        ("tokenizer.json", "no model", b"{}".to_vec()),
        ("tokenizer.json", "binary", vec![0xff; 100]),
        ("tokenizer.json", "merge without its parts", no_such_part),
        (
            "tokenizer.json",
            "a bad pattern",
            words(|json| {
                json["pre_tokenizer"] = json!({"type": "Split", "pattern": {"Regex": "(("}, "behavior": "Isolated", "invert": false});
            }),
        ),
        (
            "tokenizer.json",
            "a bad char map",
            words(|json| {
                json["normalizer"] = json!({"type": "Precompiled", "precompiled_charsmap": "AAAA"});
            }),
        ),
        (
            "tokenizer.json",
            "a char map that claims 4 GB",
            words(|json| {
                json["normalizer"] =
                    json!({"type": "Precompiled", "precompiled_charsmap": "/////wAA"});
            }),
        ),
        (
            "tokenizer.json",
            "a decoder that makes a token 10^16 times as long",
            words(|json| {
                let step = json!({"type": "Replace", "pattern": {"Regex": "."}, "content": "a".repeat(99)});
                json["decoder"] = json!({"type": "Sequence", "decoders": vec![step; 8]});
            }),
        ),
        (
            "tokenizer.json",
            "200 thousand added tokens",
            words(|json| {
                let token = |i| {
                    json!({"id": i, "content": format!("t{i}"), "special": false,
                    "single_word": false, "lstrip": false, "rstrip": false, "normalized": false})
                };
                json["added_tokens"] = (1000..201_000).map(token).collect();
            }),
        ),
        (
            "tokenizer.json",
            "10^6 special tokens around a text",
            words(|json| {
                json["post_processor"] = json!({
                    "type": "TemplateProcessing",
                    "single": vec![json!({"SpecialToken": {"id": "x", "type_id": 0}}); 1000],
                    "pair": [],
                    "special_tokens": {"x": {"id": "x", "ids": vec![0; 1000], "tokens": vec!["x"; 1000]}},
                });
            }),
        ),
        (
            "tokenizer.json",
            "deep",
            [b"[".repeat(100_000), b"]".repeat(100_000)].concat(),
        ),
        (
            "tokenizer_config.json",
            "config is no object",
            b"[]".to_vec(),
        ),
        (
            "tokenizer_config.json",
            "config is broken",
            b"{\"a\":".to_vec(),
        ),
        ("special_tokens_map.json", "map is broken", b"nope".to_vec()),
    ];
    for (file, name, bytes) in cases {
        let dir = tempfile::tempdir().expect("a folder");
        std::fs::write(dir.path().join("tokenizer.json"), words(|_| {})).expect("written");
        std::fs::write(dir.path().join(file), bytes).expect("written");
        let e = Tokenizer::from_dir(dir.path()).expect_err(name).to_string();
        assert!(e.contains(file) && !e.contains('\n'), "{name}: {e}");
    }
}

#[test]
fn a_normalizer_that_blows_texts_up_is_refused_with_a_text() {
    let json = words(|json| {
        let step =
            json!({"type": "Replace", "pattern": {"String": "a"}, "content": "a".repeat(100)});
        json["normalizer"] = json!({"type": "Sequence", "normalizers": vec![step; 8]});
    });
    let tokenizer = Tokenizer::from_bytes(&json, SpecialTokens::default()).expect("a tokenizer");
    let e = tokenizer.encode("a", false).expect_err("10^16 bytes");
    assert!(e.to_string().contains("10000000000000000 bytes"), "{e}");
}

#[test]
fn a_folder_without_a_tokenizer_has_none_and_one_with_another_kind_says_so() {
    let dir = tempfile::tempdir().expect("a folder");
    assert!(Tokenizer::from_dir(dir.path()).expect("no error").is_none());
    std::fs::write(dir.path().join("tokenizer.model"), b"x").expect("written");
    let e = Tokenizer::from_dir(dir.path())
        .expect_err("unsupported")
        .to_string();
    assert!(
        e.contains("tokenizer.model") && e.contains("tokenizer.json"),
        "{e}"
    );
    std::fs::create_dir(dir.path().join("tokenizer.json")).expect("made");
    let e = Tokenizer::from_dir(dir.path())
        .expect_err("a folder")
        .to_string();
    assert!(e.contains("not a file"), "{e}");
}

#[test]
fn a_pattern_that_backtracks_without_end_is_an_error() {
    let bytes = words(|json| {
        json["pre_tokenizer"] = json!({"type": "Split", "pattern": {"Regex": "(?:a|a)+(?!a)[^a]"},
            "behavior": "Isolated", "invert": false});
    });
    let tokenizer = Tokenizer::from_bytes(&bytes, SpecialTokens::default()).expect("a tokenizer");
    let start = std::time::Instant::now();
    let e = tokenizer
        .encode(&"a".repeat(60), false)
        .expect_err("gives up")
        .to_string();
    assert!(e.contains("tokenizer") && !e.contains('\n'), "{e}");
    assert!(
        start.elapsed() < std::time::Duration::from_secs(30),
        "{:?}",
        start.elapsed()
    );
}
