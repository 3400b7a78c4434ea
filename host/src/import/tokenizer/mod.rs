//! A tokenizer from a GGUF file's metadata, in Hugging Face's files.
//!
//! | GGUF | files |
//! | --- | --- |
//! | `tokenizer.ggml.model` = `gpt2` | byte-level BPE, see `bpe` |
//! | `tokenizer.ggml.model` = `llama` | SentencePiece's BPE with byte fallback, see `spm` |
//! | none, `none`, `no_vocab` | no tokenizer |
//!
//! `PreTrainedTokenizerFast` is written as the class: a named class makes transformers build its own
//! pre-tokenizer instead of reading the one in tokenizer.json.

mod bpe;
mod special;
mod spm;
mod vocabulary;

use halfhitch_seam::{SeamError, SeamResult};
use serde_json::{Map, Value as Json, json};

use super::gguf::{Gguf, Metadata};

pub use special::SpecialIds;

use special::Surround;
use vocabulary::Vocabulary;

/// The files, and what configurations need to know.
#[derive(Clone, Debug, Default)]
pub struct TokenizerFiles {
    /// tokenizer.json.
    pub tokenizer: Option<Json>,
    /// tokenizer_config.json.
    pub config: Option<Json>,
    /// Ids of special tokens, for config.json and generation_config.json.
    pub ids: SpecialIds,
    /// What was left out, one line each.
    pub notes: Vec<String>,
}

/// The parts of tokenizer.json in which the kinds of tokenizers differ.
struct Pipeline {
    normalizer: Json,
    pre_tokenizer: Json,
    decoder: Json,
    model: Json,
    surround: Surround,
}

/// Reads the tokenizer; `rows` is the number of the embedding's rows, `context` the longest text.
///
/// # Errors
/// `Unsupported`, naming the model or pre-tokenizer that is not known: a guess would tokenise
/// wrongly and say nothing. `InvalidModel` where keys contradict each other.
pub fn read(gguf: &Gguf, rows: usize, context: u32) -> SeamResult<TokenizerFiles> {
    let meta = gguf.metadata();
    let mut notes = Vec::new();
    let model = match meta.string("tokenizer.ggml.model")? {
        None | Some("none" | "no_vocab") => {
            notes.push("the file has no tokenizer; prompts must be given as tokens".into());
            return Ok(TokenizerFiles {
                ids: SpecialIds::read(meta, rows)?,
                notes,
                ..TokenizerFiles::default()
            });
        }
        Some(model) => model,
    };
    let vocabulary = Vocabulary::read(meta, model, rows)?;
    let ids = SpecialIds::read(meta, vocabulary.tokens.len())?;
    let pipeline = match model {
        "gpt2" => bpe::pipeline(meta, &vocabulary, &ids)?,
        "llama" => spm::pipeline(meta, &vocabulary, &ids)?,
        other => {
            return Err(SeamError::unsupported(format!(
                "tokenizer model `{}`",
                other.escape_debug()
            ))
            .hint("gpt2 and llama are imported"));
        }
    };
    let added: Vec<Json> = vocabulary
        .added()
        .map(|(id, content, special)| {
            json!({
                "id": id,
                "content": content,
                "single_word": false,
                "lstrip": false,
                "rstrip": false,
                "normalized": false,
                "special": special,
            })
        })
        .collect();
    let tokenizer = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added,
        "normalizer": pipeline.normalizer,
        "pre_tokenizer": pipeline.pre_tokenizer,
        "post_processor": pipeline.surround.post_processor(&vocabulary),
        "decoder": pipeline.decoder,
        "model": pipeline.model,
    });
    if meta.get("tokenizer.chat_templates").is_some() {
        notes.push("only the default chat template is kept".into());
    }
    // The key tells byte-level pre-tokenizers to add one; SentencePiece's is in the normalizer.
    let space_prefix = match model {
        "gpt2" => Some(
            meta.boolean("tokenizer.ggml.add_space_prefix")?
                .unwrap_or(false),
        ),
        _ => None,
    };
    let config = tokenizer_config(&Described {
        meta,
        vocabulary: &vocabulary,
        ids: &ids,
        surround: pipeline.surround,
        space_prefix,
        context,
    })?;
    Ok(TokenizerFiles {
        tokenizer: Some(tokenizer),
        config: Some(config),
        ids,
        notes,
    })
}

/// What tokenizer_config.json is made from.
struct Described<'a> {
    meta: &'a Metadata,
    vocabulary: &'a Vocabulary<'a>,
    ids: &'a SpecialIds,
    surround: Surround,
    space_prefix: Option<bool>,
    context: u32,
}

fn tokenizer_config(described: &Described<'_>) -> SeamResult<Json> {
    let &Described {
        meta,
        vocabulary,
        ids,
        surround,
        space_prefix,
        context,
    } = described;
    let mut config = Map::new();
    let mut set = |key: &str, value: Option<Json>| {
        if let Some(value) = value {
            config.insert(key.into(), value);
        }
    };
    let named = |id: Option<u32>| id.map(|id| json!(vocabulary.token(id)));
    let decoder: Map<String, Json> = vocabulary
        .added()
        .map(|(id, content, special)| {
            let entry = json!({
                "content": content,
                "lstrip": false,
                "normalized": false,
                "rstrip": false,
                "single_word": false,
                "special": special,
            });
            (id.to_string(), entry)
        })
        .collect();
    let mut special: Vec<&str> = Vec::new();
    for id in ids.bos.iter().chain(&ids.eos).chain(&ids.turn_ends) {
        if !special.contains(&vocabulary.token(*id)) {
            special.push(vocabulary.token(*id));
        }
    }
    set("add_bos_token", Some(json!(surround.bos.is_some())));
    set("add_eos_token", surround.eos.map(|_| json!(true)));
    set(
        "add_prefix_space",
        Some(json!(space_prefix.unwrap_or(false))),
    );
    set("added_tokens_decoder", Some(Json::Object(decoder)));
    set("additional_special_tokens", Some(json!(special)));
    set("bos_token", named(ids.bos));
    let template = meta.string("tokenizer.chat_template")?;
    set("chat_template", template.map(|t| json!(t)));
    // Otherwise decoding eats spaces before punctuation.
    set("clean_up_tokenization_spaces", Some(json!(false)));
    set("eos_token", named(ids.eos));
    set("model_max_length", Some(json!(context)));
    set("pad_token", named(ids.padding));
    set("tokenizer_class", Some(json!("PreTrainedTokenizerFast")));
    set("unk_token", named(ids.unknown));
    Ok(Json::Object(config))
}
