//! SentencePiece's BPE with byte fallback (`tokenizer.ggml.model` = `llama`).
//!
//! The file has pieces with scores and no merges; SentencePiece merges the two neighbours whose sum
//! has the best score. The same is said by a list of merges: every way to cut a piece into two
//! pieces, in the order of the score of the whole, as transformers' converter builds it.

use halfhitch_seam::{SeamError, SeamResult};
use serde_json::{Value as Json, json};

use super::super::gguf::{Gguf, Metadata};
use super::{Pipeline, SpecialIds, Surround, Vocabulary};

/// Stands for a space inside pieces.
const SPACE: &str = "\u{2581}";
/// Real pieces stay below a tenth of this; trying every cut of a longer one takes too long.
const MAX_PIECE_BYTES: usize = 1024;

/// Builds the tokenizer's parts.
pub(super) fn pipeline(
    meta: &Metadata,
    vocabulary: &Vocabulary<'_>,
    ids: &SpecialIds,
) -> SeamResult<Pipeline> {
    const SCORES: &str = "tokenizer.ggml.scores";
    let scores = Gguf::required(SCORES, meta.floats(SCORES))?;
    if scores.len() != vocabulary.tokens.len() || scores.iter().any(|s| s.is_nan()) {
        return Err(SeamError::invalid_model(format!(
            "key `{SCORES}` is not one number for each of {} tokens",
            vocabulary.tokens.len()
        )));
    }
    if let Some(byte) = (0..=255u8).find(|b| !vocabulary.ids.contains_key(byte_token(*b).as_str()))
    {
        return Err(SeamError::unsupported(format!(
            "a tokenizer without the byte token `{}`",
            byte_token(byte)
        )));
    }
    let unknown = ids.unknown.unwrap_or(0);
    let prefix = meta
        .boolean("tokenizer.ggml.add_space_prefix")?
        .unwrap_or(true);
    let replace = |from: &str, to: &str| json!({"type": "Replace", "pattern": {"String": from}, "content": to});
    let mut normalizers = vec![replace(" ", SPACE)];
    let mut decoders = vec![
        replace(SPACE, " "),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
    ];
    if prefix {
        normalizers.insert(0, json!({"type": "Prepend", "prepend": SPACE}));
        decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    let unknown = vocabulary.tokens.get(unknown as usize).copied();
    Ok(Pipeline {
        normalizer: json!({"type": "Sequence", "normalizers": normalizers}),
        pre_tokenizer: Json::Null,
        decoder: json!({"type": "Sequence", "decoders": decoders}),
        model: json!({
            "type": "BPE",
            "dropout": null,
            "unk_token": unknown,
            "continuing_subword_prefix": null,
            "end_of_word_suffix": null,
            "fuse_unk": true,
            "byte_fallback": true,
            "ignore_merges": false,
            "vocab": vocabulary.map(),
            "merges": merges(vocabulary, &scores)?,
        }),
        surround: Surround::read(meta, ids, true)?,
    })
}

fn byte_token(byte: u8) -> String {
    format!("<0x{byte:02X}>")
}

fn merges(vocabulary: &Vocabulary<'_>, scores: &[f32]) -> SeamResult<Vec<Json>> {
    struct Merge<'a> {
        left: &'a str,
        right: &'a str,
        score: f32,
        lengths: (usize, usize),
    }
    let mut merges: Vec<Merge<'_>> = Vec::new();
    for (id, (&piece, &score)) in vocabulary.tokens.iter().zip(scores).enumerate() {
        if piece.len() > MAX_PIECE_BYTES {
            return Err(SeamError::invalid_model(format!(
                "token {id} is {} bytes long; at most {MAX_PIECE_BYTES} are possible",
                piece.len()
            )));
        }
        let mut cuts: Vec<(u32, u32, Merge<'_>)> = piece
            .char_indices()
            .skip(1)
            .filter_map(|(at, _)| {
                let (left, right) = piece.split_at(at);
                let ids = (vocabulary.ids.get(left)?, vocabulary.ids.get(right)?);
                let lengths = (left.chars().count(), right.chars().count());
                let merge = Merge {
                    left,
                    right,
                    score,
                    lengths,
                };
                Some((*ids.0, *ids.1, merge))
            })
            .collect();
        cuts.sort_by_key(|&(left, right, _)| (left, right));
        merges.extend(cuts.into_iter().map(|(_, _, merge)| merge));
    }
    // Best score first, longer parts first among equals; stable beyond that.
    merges.sort_by(|a, b| {
        b.score
            .total_cmp(&a.score)
            .then_with(|| b.lengths.cmp(&a.lengths))
    });
    Ok(merges
        .into_iter()
        .map(|m| json!([m.left, m.right]))
        .collect())
}
