//! Byte-level BPE (`tokenizer.ggml.model` = `gpt2`).
//!
//! The tokens stand in GPT-2's printable alphabet already. How a text is cut before merging is not
//! in the file, only its name, `tokenizer.ggml.pre`; the cuts below are those of the tokenizer.json
//! files that models with that name are published with.

use halfhitch_seam::{SeamError, SeamResult};
use serde_json::{Value as Json, json};

use super::super::gguf::{Gguf, Metadata};
use super::{Pipeline, SpecialIds, Surround, Vocabulary};

/// How a text is prepared.
struct Preparation {
    normalizer: Json,
    pre_tokenizer: Json,
    /// Whether a word that is a token is taken whole, without looking at merges.
    ignore_merges: bool,
    /// Whether bos is put in front where the file does not say.
    bos_by_default: bool,
}

fn byte_level(use_regex: bool) -> Json {
    json!({
        "type": "ByteLevel",
        "add_prefix_space": false,
        "trim_offsets": true,
        "use_regex": use_regex,
    })
}

fn split_then_bytes(regex: &str) -> Json {
    let split = json!({
        "type": "Split",
        "pattern": {"Regex": regex},
        "behavior": "Isolated",
        "invert": false,
    });
    json!({"type": "Sequence", "pretokenizers": [split, byte_level(false)]})
}

/// The cut of Llama 3 and Qwen 2, with how many digits stay together.
fn words(digits: &str) -> String {
    [
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)",
        r"|[^\r\n\p{L}\p{N}]?\p{L}+|",
        digits,
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ]
    .concat()
}

fn preparation(pre: &str) -> SeamResult<Preparation> {
    let plain = |pre_tokenizer| Preparation {
        normalizer: Json::Null,
        pre_tokenizer,
        ignore_merges: false,
        bos_by_default: false,
    };
    match pre {
        "gpt-2" => Ok(plain(byte_level(true))),
        "smollm" => Ok(plain(json!({
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": true}, byte_level(true)],
        }))),
        "qwen2" => Ok(Preparation {
            normalizer: json!({"type": "NFC"}),
            ..plain(split_then_bytes(&words(r"\p{N}")))
        }),
        "llama-bpe" | "llama3" | "llama-v3" => Ok(Preparation {
            ignore_merges: true,
            bos_by_default: true,
            ..plain(split_then_bytes(&words(r"\p{N}{1,3}")))
        }),
        other => Err(SeamError::unsupported(format!(
            "key `tokenizer.ggml.pre`: pre-tokenizer `{}`",
            other.escape_debug()
        ))
        .hint("gpt-2, smollm, qwen2 and llama-bpe are imported")),
    }
}

/// Builds the tokenizer's parts.
pub(super) fn pipeline(
    meta: &Metadata,
    vocabulary: &Vocabulary<'_>,
    ids: &SpecialIds,
) -> SeamResult<Pipeline> {
    const PRE: &str = "tokenizer.ggml.pre";
    let pre = meta.string(PRE)?.ok_or_else(|| {
        SeamError::unsupported(format!(
            "key `{PRE}` is missing, so how the tokenizer cuts a text is unknown"
        ))
        .hint("convert the model to GGUF again with a current converter")
    })?;
    let preparation = preparation(pre)?;
    let merges = merges(meta, vocabulary)?;
    Ok(Pipeline {
        normalizer: preparation.normalizer,
        pre_tokenizer: preparation.pre_tokenizer,
        decoder: json!({
            "type": "ByteLevel",
            "add_prefix_space": true,
            "trim_offsets": true,
            "use_regex": true,
        }),
        model: json!({
            "type": "BPE",
            "dropout": null,
            // Bytes without a token are dropped, as the published tokenizers do, whatever the
            // file's unknown token is.
            "unk_token": null,
            "continuing_subword_prefix": null,
            "end_of_word_suffix": null,
            "fuse_unk": false,
            "byte_fallback": false,
            "ignore_merges": preparation.ignore_merges,
            "vocab": vocabulary.map(),
            "merges": merges,
        }),
        surround: Surround::read(meta, ids, preparation.bos_by_default)?,
    })
}

/// Merges as pairs, each with both its parts and their sum in the vocabulary.
fn merges(meta: &Metadata, vocabulary: &Vocabulary<'_>) -> SeamResult<Vec<Json>> {
    const MERGES: &str = "tokenizer.ggml.merges";
    let listed = Gguf::required(MERGES, meta.strings(MERGES))?;
    let mut whole = String::new();
    listed
        .into_iter()
        .enumerate()
        .map(|(i, merge)| {
            // No token holds a space: it is written as another letter.
            let (left, right) = merge.split_once(' ').ok_or_else(|| {
                SeamError::invalid_model(format!(
                    "key `{MERGES}`: merge {i}, `{}`, is not two tokens",
                    merge.escape_debug()
                ))
            })?;
            whole.clear();
            whole.push_str(left);
            whole.push_str(right);
            for part in [left, right, &whole] {
                if !vocabulary.ids.contains_key(part) {
                    return Err(SeamError::invalid_model(format!(
                        "key `{MERGES}`: merge {i}, `{}`, needs the token `{}`, which is not there",
                        merge.escape_debug(),
                        part.escape_debug()
                    )));
                }
            }
            Ok(json!([left, right]))
        })
        .collect()
}
