//! Tokens and their types.

use std::collections::HashMap;

use halfhitch_seam::{SeamError, SeamResult};
use serde_json::{Value as Json, json};

use super::super::gguf::{Gguf, Metadata};

/// GGUF's types of tokens, of those that matter here.
mod kind {
    pub(super) const NORMAL: i64 = 1;
    pub(super) const UNKNOWN: i64 = 2;
    pub(super) const CONTROL: i64 = 3;
    pub(super) const USER_DEFINED: i64 = 4;
}

/// Tokens with their types; no two are equal.
pub(super) struct Vocabulary<'a> {
    pub(super) tokens: Vec<&'a str>,
    types: Vec<i64>,
    pub(super) ids: HashMap<&'a str, u32>,
    /// Types of tokens that are found in a text before anything else is done to it.
    added: &'static [i64],
}

impl<'a> Vocabulary<'a> {
    pub(super) fn read(meta: &'a Metadata, model: &str, rows: usize) -> SeamResult<Self> {
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
        let added: &[i64] = match model {
            // SentencePiece's unknown token is matched as text, as transformers' converter has it.
            "llama" => &[kind::UNKNOWN, kind::CONTROL, kind::USER_DEFINED],
            _ => &[kind::CONTROL, kind::USER_DEFINED],
        };
        Ok(Self {
            tokens,
            types,
            ids,
            added,
        })
    }

    pub(super) fn token(&self, id: u32) -> &'a str {
        self.tokens[id as usize]
    }

    /// Tokens that are matched as text, with whether they are special.
    pub(super) fn added(&self) -> impl Iterator<Item = (usize, &'a str, bool)> {
        self.tokens
            .iter()
            .zip(&self.types)
            .enumerate()
            .filter(|(_, (_, kind))| self.added.contains(kind))
            .map(|(id, (token, &kind))| (id, *token, kind != kind::USER_DEFINED))
    }

    pub(super) fn map(&self) -> Json {
        let entries = self.tokens.iter().enumerate();
        Json::Object(
            entries
                .map(|(id, token)| ((*token).to_owned(), json!(id)))
                .collect(),
        )
    }
}
