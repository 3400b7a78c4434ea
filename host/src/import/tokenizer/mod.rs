//! A tokenizer from a GGUF file's metadata, in Hugging Face's files.
//!
//! | GGUF | files |
//! | --- | --- |
//! | `tokenizer.ggml.model` = `gpt2` | byte-level BPE, see [`bpe`] |
//! | `tokenizer.ggml.model` = `llama` | SentencePiece's BPE with byte fallback, see [`spm`] |
//! | none, `none`, `no_vocab` | no tokenizer |
//!
//! `PreTrainedTokenizerFast` is written as the class: a named class makes transformers build its own
//! pre-tokenizer instead of reading the one in tokenizer.json.

mod bpe;
mod spm;

use std::collections::HashMap;

use halfhitch_seam::{SeamError, SeamResult};
use serde_json::{Map, Value as Json, json};

use super::gguf::{Gguf, Metadata};

/// GGUF's types of tokens, of those that matter here.
mod kind {
    pub(super) const NORMAL: i64 = 1;
    pub(super) const CONTROL: i64 = 3;
    pub(super) const USER_DEFINED: i64 = 4;
}

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

/// Ids of special tokens, all inside the vocabulary.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpecialIds {
    /// Begins a text.
    pub bos: Option<u32>,
    /// Ends a text.
    pub eos: Option<u32>,
    /// End a turn or a message, where that is another token than `eos`.
    pub turn_ends: Vec<u32>,
    /// Fills.
    pub padding: Option<u32>,
    /// Stands for what has no token.
    pub unknown: Option<u32>,
}

impl SpecialIds {
    fn read(meta: &Metadata, tokens: usize) -> SeamResult<Self> {
        let id = |name: &str| -> SeamResult<Option<u32>> {
            let key = format!("tokenizer.ggml.{name}_token_id");
            // -1 and the largest u32 both stand for none.
            if matches!(
                meta.get(&key),
                Some(super::gguf::Value::Signed(-1) | super::gguf::Value::Unsigned(0xffff_ffff))
            ) {
                return Ok(None);
            }
            let Some(id) = meta.count(&key, u32::MAX)? else {
                return Ok(None);
            };
            if id as usize >= tokens {
                return Err(SeamError::invalid_model(format!(
                    "key `{key}` is {id}, the vocabulary has {tokens} tokens"
                )));
            }
            Ok(Some(id))
        };
        let eos = id("eos")?;
        let mut turn_ends = Vec::new();
        for end in [id("eot")?, id("eom")?].into_iter().flatten() {
            if Some(end) != eos && !turn_ends.contains(&end) {
                turn_ends.push(end);
            }
        }
        Ok(Self {
            bos: id("bos")?,
            eos,
            turn_ends,
            padding: id("padding")?,
            unknown: id("unknown")?,
        })
    }

    /// `eos_token_id` for generation_config.json: a number, or a list where several end a turn.
    pub fn stop_ids(&self) -> Option<Json> {
        let all: Vec<u32> = self.eos.iter().chain(&self.turn_ends).copied().collect();
        match all.as_slice() {
            [] => None,
            [one] => Some(json!(one)),
            many => Some(json!(many)),
        }
    }
}

/// Tokens with their types; no two are equal.
struct Vocabulary<'a> {
    tokens: Vec<&'a str>,
    types: Vec<i64>,
    ids: HashMap<&'a str, u32>,
}

impl<'a> Vocabulary<'a> {
    fn read(meta: &'a Metadata, rows: usize) -> SeamResult<Self> {
        const TOKENS: &str = "tokenizer.ggml.tokens";
        const TYPES: &str = "tokenizer.ggml.token_type";
        let tokens = Gguf::required(TOKENS, meta.strings(TOKENS))?;
        if tokens.len() > rows {
            return Err(SeamError::invalid_model(format!(
                "key `{TOKENS}` has {} tokens, the embedding {rows} rows",
                tokens.len()
            )));
        }
        let types = match meta.integers(TYPES)? {
            Some(types) if types.len() == tokens.len() => types,
            Some(types) => {
                return Err(SeamError::invalid_model(format!(
                    "key `{TYPES}` has {} entries for {} tokens",
                    types.len(),
                    tokens.len()
                )));
            }
            None => vec![kind::NORMAL; tokens.len()],
        };
        let mut ids = HashMap::with_capacity(tokens.len());
        for (id, token) in (0..).zip(&tokens) {
            if let Some(other) = ids.insert(*token, id) {
                return Err(SeamError::invalid_model(format!(
                    "key `{TOKENS}`: tokens {other} and {id} are both `{}`",
                    token.escape_debug()
                )));
            }
        }
        Ok(Self { tokens, types, ids })
    }

    fn token(&self, id: u32) -> &'a str {
        self.tokens[id as usize]
    }

    /// Control and user-defined tokens, with whether they are special.
    fn added(&self) -> impl Iterator<Item = (usize, &'a str, bool)> {
        self.tokens
            .iter()
            .zip(&self.types)
            .enumerate()
            .filter(|(_, (_, kind))| [kind::CONTROL, kind::USER_DEFINED].contains(kind))
            .map(|(id, (token, &kind))| (id, *token, kind == kind::CONTROL))
    }

    fn map(&self) -> Json {
        let entries = self.tokens.iter().enumerate();
        Json::Object(
            entries
                .map(|(id, token)| ((*token).to_owned(), json!(id)))
                .collect(),
        )
    }
}

/// Which tokens are put around a text, where special tokens are asked for.
#[derive(Clone, Copy, Default)]
struct Surround {
    bos: Option<u32>,
    eos: Option<u32>,
}

impl Surround {
    fn read(meta: &Metadata, ids: &SpecialIds, bos_by_default: bool) -> SeamResult<Self> {
        let one = |name: &str, id: Option<u32>, default: bool| -> SeamResult<Option<u32>> {
            let key = format!("tokenizer.ggml.add_{name}_token");
            let said = meta.boolean(&key)?;
            if said == Some(true) && id.is_none() {
                return Err(SeamError::invalid_model(format!(
                    "key `{key}` is true, but there is no such token"
                )));
            }
            Ok(id.filter(|_| said.unwrap_or(default)))
        };
        Ok(Self {
            bos: one("bos", ids.bos, bos_by_default)?,
            eos: one("eos", ids.eos, false)?,
        })
    }

    /// A template post-processor, or null where nothing is added.
    fn post_processor(self, vocabulary: &Vocabulary<'_>) -> Json {
        if self.bos.is_none() && self.eos.is_none() {
            return Json::Null;
        }
        let special = |id: u32, part: usize| json!({"SpecialToken": {"id": vocabulary.token(id), "type_id": part}});
        let sequence = |name: &str, part: usize| -> Vec<Json> {
            let text = json!({"Sequence": {"id": name, "type_id": part}});
            let bos = self.bos.map(|id| special(id, part));
            let eos = self.eos.map(|id| special(id, part));
            bos.into_iter().chain([text]).chain(eos).collect()
        };
        let mut pair = sequence("A", 0);
        pair.extend(sequence("B", 1));
        let tokens: Map<String, Json> = [self.bos, self.eos]
            .into_iter()
            .flatten()
            .map(|id| {
                let token = vocabulary.token(id);
                (
                    token.to_owned(),
                    json!({"id": token, "ids": [id], "tokens": [token]}),
                )
            })
            .collect();
        json!({
            "type": "TemplateProcessing",
            "single": sequence("A", 0),
            "pair": pair,
            "special_tokens": tokens,
        })
    }
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
    let vocabulary = Vocabulary::read(meta, rows)?;
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
    let config = tokenizer_config(meta, &vocabulary, &ids, pipeline.surround, context)?;
    Ok(TokenizerFiles {
        tokenizer: Some(tokenizer),
        config: Some(config),
        ids,
        notes,
    })
}

fn tokenizer_config(
    meta: &Metadata,
    vocabulary: &Vocabulary<'_>,
    ids: &SpecialIds,
    surround: Surround,
    context: u32,
) -> SeamResult<Json> {
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
    let space_prefix = meta.boolean("tokenizer.ggml.add_space_prefix")?;
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
