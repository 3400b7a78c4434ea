//! The special tokens that a model folder names: `bos_token`, `eos_token` and their like.

use std::path::Path;

use halfhitch_seam::SeamResult;
use serde_json::{Map, Value};

use super::files::read_object;

/// Names that transformers gives a meaning to and hands to chat templates.
const NAMES: [&str; 7] = [
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
];

/// Special tokens by name, as text.
///
/// Taken from `tokenizer_config.json`; `special_tokens_map.json` fills in what is absent there.
/// A token is written as a string, or as an object with its text in `content`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SpecialTokens {
    named: Map<String, Value>,
}

impl SpecialTokens {
    /// Reads them from a model folder; a folder without either file has none.
    ///
    /// # Errors
    /// `Io` or `InvalidModel`, naming the file that cannot be read.
    pub fn from_dir(dir: &Path) -> SeamResult<Self> {
        let mut tokens = Self::default();
        for file in ["tokenizer_config.json", "special_tokens_map.json"] {
            if let Some(config) = read_object(&dir.join(file))? {
                tokens.add(&config);
            }
        }
        Ok(tokens)
    }

    /// Adds what `config` names and is not yet known.
    fn add(&mut self, config: &Map<String, Value>) {
        for name in NAMES {
            if let Some(text) = config.get(name).and_then(token_text)
                && !self.named.contains_key(name)
            {
                self.named.insert(name.to_owned(), text.into());
            }
        }
        // Newer tokenizers name further ones (an image token, say) under this key.
        if let Some(Value::Object(extra)) = config.get("extra_special_tokens") {
            for (name, token) in extra {
                if let Some(text) = token_text(token)
                    && !self.named.contains_key(name)
                    && is_identifier(name)
                {
                    self.named.insert(name.clone(), text.into());
                }
            }
        }
        let more = "additional_special_tokens";
        if let Some(Value::Array(list)) = config.get(more)
            && !self.named.contains_key(more)
        {
            let list: Vec<Value> = list
                .iter()
                .filter_map(token_text)
                .map(Value::from)
                .collect();
            if !list.is_empty() {
                self.named.insert(more.to_owned(), list.into());
            }
        }
    }

    /// The text of the token with this name, `bos_token` for instance.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.named.get(name)?.as_str()
    }

    /// All of them as chat templates see them: strings, and the list `additional_special_tokens`.
    pub(super) fn template_variables(&self) -> &Map<String, Value> {
        &self.named
    }
}

/// Whether a template can spell the name.
fn is_identifier(name: &str) -> bool {
    name.chars().all(|c| c.is_alphanumeric() || c == '_')
}

/// A token's text, written as a string or as an object with `content`.
fn token_text(value: &Value) -> Option<&str> {
    match value {
        Value::String(text) => Some(text),
        Value::Object(object) => object.get("content")?.as_str(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn both_spellings_are_read_and_the_first_file_wins() {
        let mut tokens = SpecialTokens::default();
        let config = json!({
            "bos_token": {"content": "<s>", "lstrip": false},
            "eos_token": "</s>",
            "pad_token": null,
            "additional_special_tokens": ["<a>", {"content": "<b>"}],
        });
        tokens.add(config.as_object().unwrap());
        let map = json!({"eos_token": "<other>", "unk_token": "<unk>"});
        tokens.add(map.as_object().unwrap());
        assert_eq!(tokens.get("bos_token"), Some("<s>"));
        assert_eq!(tokens.get("eos_token"), Some("</s>"));
        assert_eq!(tokens.get("unk_token"), Some("<unk>"));
        assert_eq!(tokens.get("pad_token"), None);
        assert_eq!(
            tokens.template_variables()["additional_special_tokens"],
            json!(["<a>", "<b>"])
        );
    }
}
