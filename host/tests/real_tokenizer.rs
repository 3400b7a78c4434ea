//! The real model's tokenizer and chat template, as the importer writes them.

use std::path::{Path, PathBuf};

use halfhitch::text::{ChatTemplate, Message, RenderOptions, Tokenizer};
use serde_json::Value;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn model() -> PathBuf {
    let dir = root().join("models/smollm2-135m");
    assert!(
        dir.join("tokenizer.json").is_file(),
        "models/smollm2-135m is missing: `make model` makes it"
    );
    dir
}

fn tokenizer() -> Tokenizer {
    Tokenizer::from_dir(&model())
        .expect("readable")
        .expect("there")
}

fn ids(value: &Value) -> Vec<u32> {
    serde_json::from_value(value.clone()).expect("ids")
}

#[test]
fn ids_and_texts_are_those_of_hugging_face() {
    let tokenizer = tokenizer();
    let path = root().join("tests/fixtures/tokenizer/smollm2-cases.json");
    let file: Value = serde_json::from_slice(&std::fs::read(path).expect("cases")).expect("JSON");
    assert_eq!(
        Some(tokenizer.vocab_size() as u64),
        file["vocab_size"].as_u64()
    );
    let cases = file["cases"].as_array().expect("cases");
    assert!(cases.len() > 300);
    for case in cases {
        let text = case["text"].as_str().expect("text");
        let expected = ids(&case["ids"]);
        assert_eq!(
            tokenizer.encode(text, false),
            Ok(expected.clone()),
            "{text:?}"
        );
        let decoded = case
            .get("decoded")
            .map_or(text, |v| v.as_str().expect("decoded"));
        assert_eq!(
            tokenizer.decode(&expected, false).as_deref(),
            Ok(decoded),
            "{text:?}"
        );
        let mut stream = tokenizer.stream(false);
        let streamed: String = expected
            .iter()
            .map(|id| stream.push(*id).expect("a piece"))
            .collect();
        assert_eq!(
            streamed + &stream.finish().expect("the rest"),
            decoded,
            "{text:?}"
        );
    }
}

#[test]
fn a_chat_is_rendered_and_ends_where_the_model_does() {
    let tokenizer = tokenizer();
    let template = ChatTemplate::from_dir(&model())
        .expect("readable")
        .expect("there");
    let text = template
        .render(&[Message::user("Hi")], &RenderOptions::default())
        .expect("rendered");
    assert!(
        text.ends_with("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"),
        "{text:?}"
    );
    let ids = tokenizer.encode_chat(&text).expect("encoded");
    let (start, end) = (
        tokenizer.token_to_id("<|im_start|>"),
        tokenizer.token_to_id("<|im_end|>"),
    );
    assert_eq!(ids.first().copied(), start);
    assert_eq!(tokenizer.decode(&ids, false).as_deref(), Ok(text.as_str()));
    assert_eq!(tokenizer.stop_tokens().iter().copied().next(), end);
}
