//! Tokens with a task: which they are, and which are put around a text.

use halfhitch_seam::{SeamError, SeamResult};
use serde_json::{Map, Value as Json, json};

use super::super::gguf::{Metadata, Value};
use super::vocabulary::Vocabulary;

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
    pub(super) fn read(meta: &Metadata, tokens: usize) -> SeamResult<Self> {
        let id = |name: &str| -> SeamResult<Option<u32>> {
            let key = format!("tokenizer.ggml.{name}_token_id");
            // -1 and the largest u32 both stand for none.
            if matches!(
                meta.get(&key),
                Some(Value::Signed(-1) | Value::Unsigned(0xffff_ffff))
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

/// Which tokens are put around a text, where special tokens are asked for.
#[derive(Clone, Copy, Default)]
pub(super) struct Surround {
    pub(super) bos: Option<u32>,
    pub(super) eos: Option<u32>,
}

impl Surround {
    pub(super) fn read(
        meta: &Metadata,
        ids: &SpecialIds,
        bos_by_default: bool,
    ) -> SeamResult<Self> {
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
    pub(super) fn post_processor(self, vocabulary: &Vocabulary<'_>) -> Json {
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
