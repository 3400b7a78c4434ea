//! The pieces of a stream, put together, are the text of all tokens at once.

use std::path::Path;
use std::sync::LazyLock;

use halfhitch::text::{SpecialTokens, StopMatcher, Tokenizer};
use proptest::prelude::*;
use serde_json::{Value, json};

fn fixture(name: &str) -> Tokenizer {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/fixtures/tokenizer")
        .join(name);
    Tokenizer::from_dir(&dir).expect(name).expect(name)
}

/// A tokenizer of these tokens with this decoder.
fn with_decoder(tokens: &[&str], decoder: Value) -> Tokenizer {
    let vocab: serde_json::Map<String, Value> = tokens
        .iter()
        .enumerate()
        .map(|(id, t)| ((*t).to_owned(), id.into()))
        .collect();
    let json = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
        "normalizer": null, "pre_tokenizer": null, "post_processor": null, "decoder": decoder,
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": tokens[0]}
    });
    Tokenizer::from_bytes(json.to_string().as_bytes(), SpecialTokens::default())
        .expect("a tokenizer")
}

static TOKENIZERS: LazyLock<Vec<(&str, Tokenizer)>> = LazyLock::new(|| {
    let metaspace = |scheme: &str| json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": true});
    let spm = [
        "<unk>", "▁a", "▁", "b", "▁▁", "é", "<0xE2>", "<0x82>", "<0xAC>", "<0x41>", "<0xFF>",
        "\u{fffd}", ".", "<0xF0>", "<0x9F>", "<0x98>", "<0x80>",
    ];
    let fallback = json!({"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"}, {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0}]});
    vec![
        ("byte level", fixture("tiny-bpe")),
        ("byte fallback", fixture("tiny-spm")),
        ("byte fallback, few tokens", with_decoder(&spm, fallback)),
        ("metaspace", with_decoder(&spm, metaspace("always"))),
        ("metaspace, never", with_decoder(&spm, metaspace("never"))),
        (
            "word pieces",
            with_decoder(
                &["[UNK]", "a", "##b", ".", "##!", "n't", "'", "##c"],
                json!({"type": "WordPiece", "prefix": "##", "cleanup": true}),
            ),
        ),
        (
            "suffixes",
            with_decoder(
                &["[UNK]", "a", "b</w>", ".</w>", "</w>"],
                json!({"type": "BPEDecoder", "suffix": "</w>"}),
            ),
        ),
        (
            "no decoder",
            with_decoder(&["[UNK]", "a", "b", "\u{fffd}"], Value::Null),
        ),
    ]
});

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..Default::default() })]

    #[test]
    fn pieces_make_the_whole(
        which in 0..8usize,
        picks in prop::collection::vec(any::<prop::sample::Index>(), 0..40),
        skip in any::<bool>(),
    ) {
        let (name, tokenizer) = &TOKENIZERS[which];
        // A few ids past the vocabulary too: a model may give them.
        let ids: Vec<u32> = picks.iter().map(|p| p.index(tokenizer.vocab_size() + 2) as u32).collect();
        let mut stream = tokenizer.stream(skip);
        let mut text = String::new();
        for id in &ids {
            text.push_str(&stream.push(*id).unwrap());
        }
        text.push_str(&stream.finish().unwrap());
        prop_assert_eq!(&text, &tokenizer.decode(&ids, skip).unwrap(), "{} {:?}", name, ids);
        // The stream begins anew.
        let again: String = ids.iter().map(|id| stream.push(*id).unwrap()).collect();
        prop_assert_eq!(again + &stream.finish().unwrap(), text);
    }

    #[test]
    fn stops_do_not_depend_on_the_pieces(
        text in "[abcé🦀]{0,40}",
        stops in prop::collection::vec("[abcé🦀]{1,4}", 0..4),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
    ) {
        let mut matcher = StopMatcher::new(stops.clone()).unwrap();
        let mut at: Vec<usize> = cuts.iter().map(|c| c.index(text.len() + 1)).filter(|&i| text.is_char_boundary(i)).collect();
        at.extend([0, text.len()]);
        at.sort_unstable();
        let mut got = String::new();
        for pair in at.windows(2) {
            got.push_str(&matcher.push(&text[pair[0]..pair[1]]));
            // Only what may become a stop string is held back.
            if matcher.matched().is_none() {
                let held = &text[got.len()..pair[1]];
                prop_assert!(held.is_empty() || stops.iter().any(|s| s.starts_with(held)), "{held:?}");
            }
        }
        got.push_str(&matcher.finish());
        // One character after the other: the first end, of the same end the first start.
        let naive = (0..=text.len()).filter(|&end| text.is_char_boundary(end)).find_map(|end| {
            let so_far = &text[..end];
            stops.iter().filter(|s| so_far.ends_with(s.as_str())).map(|s| end - s.len()).min()
        });
        prop_assert_eq!(matcher.matched().is_some(), naive.is_some());
        prop_assert_eq!(&got, &text[..naive.unwrap_or(text.len())]);
    }
}

#[test]
fn an_emoji_of_several_tokens_comes_whole() {
    let tokenizer = fixture("tiny-bpe");
    let ids = tokenizer.encode("a🦀漢b", false).expect("encoded");
    assert!(ids.len() > 4, "the crab takes several tokens");
    let mut stream = tokenizer.stream(true);
    let pieces: Vec<String> = ids
        .iter()
        .map(|id| stream.push(*id).expect("a piece"))
        .collect();
    assert!(pieces.iter().all(|p| !p.contains('\u{fffd}')), "{pieces:?}");
    assert!(pieces.iter().any(|p| p == "🦀"), "{pieces:?}");
    assert_eq!(pieces.concat(), "a🦀漢b");
    assert_eq!(stream.finish().as_deref(), Ok(""));
}

#[test]
fn an_unfinished_character_is_replaced_at_the_end() {
    let tokenizer = fixture("tiny-bpe");
    let mut ids = tokenizer.encode("a🦀", false).expect("encoded");
    ids.pop();
    let mut stream = tokenizer.stream(true);
    let text: String = ids
        .iter()
        .map(|id| stream.push(*id).expect("a piece"))
        .collect();
    assert_eq!(text, "a");
    assert_eq!(stream.finish().as_deref(), Ok("\u{fffd}"));
}

#[test]
fn long_streams_take_time_in_proportion() {
    // With windows that grew, these would take minutes.
    for (name, tokenizer) in TOKENIZERS.iter() {
        for id in 0..tokenizer.vocab_size().min(17) as u32 {
            if *name == "no decoder" && id == 3 {
                // U+FFFD itself: held back as long as nothing else comes.
                continue;
            }
            let start = std::time::Instant::now();
            let mut stream = tokenizer.stream(false);
            let text: String = (0..3000)
                .map(|_| stream.push(id).expect("a piece"))
                .collect();
            let text = text + &stream.finish().expect("the rest");
            assert_eq!(
                text,
                tokenizer.decode(&[id; 3000], false).expect("decoded"),
                "{name} {id}"
            );
            assert!(
                start.elapsed().as_secs() < 10,
                "{name} {id} {:?}",
                start.elapsed()
            );
        }
    }
}

#[test]
fn stop_strings_are_checked() {
    assert!(StopMatcher::new([""]).is_err());
    assert!(StopMatcher::new(vec!["x"; 65]).is_err());
    assert!(StopMatcher::new(["x".repeat(4097)]).is_err());
    let mut matcher = StopMatcher::new(["END", "</s>"]).expect("a matcher");
    assert_eq!(matcher.push("a <"), "a ");
    assert_eq!(matcher.push("/b EN"), "</b ");
    assert_eq!(matcher.push("D rest"), "");
    assert_eq!(matcher.matched(), Some("END"));
    assert_eq!(matcher.push("more") + &matcher.finish(), "");
}
