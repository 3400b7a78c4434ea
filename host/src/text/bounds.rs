//! What a `tokenizer.json` may ask for.
//!
//! The tokenizers crate does what its file says, and running out of memory ends the process, which
//! nobody can catch. A file can ask for a lot: each step that replaces one character by a hundred makes a
//! text a hundred times as long. So what the steps can make of a text is worked out from the file, as an
//! upper bound, before they run.

use halfhitch_seam::{SeamError, SeamResult};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value};

use crate::checkpoint::quote::one_line;

/// Bytes that a text may become on its way to tokens; each takes the crate some 40 bytes.
const MAX_GROWN: u64 = 32 << 20;
/// How many times as long a decoder may make its tokens. Real ones do not make them longer.
const MAX_DECODED: u64 = 64;
/// Tokens that may be added to the vocabulary. The time to read them grows with their square.
const MAX_ADDED: usize = 100_000;
/// Special tokens that may be put around a text.
const MAX_AROUND: usize = 1 << 12;
/// Bytes that Unicode makes of one at most: U+FDFA has 3, and 33 where it is taken apart.
const COMPATIBILITY: u64 = 11;
const CANONICAL: u64 = 3;

/// How long a tokenizer can make a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Growth {
    factor: u64,
    added: u64,
}

/// The steps of a tokenizer; what they do it with is not looked at.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Steps {
    added_tokens: Vec<IgnoredAny>,
    normalizer: Value,
    pre_tokenizer: Value,
    post_processor: Value,
    decoder: Value,
}

impl Growth {
    /// Of the tokenizer in `json`. Where that cannot be read it is for the crate to say so.
    ///
    /// # Errors
    /// `InvalidModel` for steps that no text is worth.
    pub fn of(json: &[u8]) -> SeamResult<Self> {
        let steps: Steps = serde_json::from_slice(json).map_err(|e| {
            SeamError::invalid_model(format!("not a usable tokenizer: {}", one_line(e)))
        })?;
        if steps.added_tokens.len() > MAX_ADDED {
            return Err(SeamError::invalid_model(format!(
                "it adds {} tokens to its vocabulary, at most {MAX_ADDED} are allowed",
                steps.added_tokens.len()
            )));
        }
        let mut decoded = Self::NONE;
        decoded.walk(&steps.decoder)?;
        if decoded.factor > MAX_DECODED {
            return Err(SeamError::invalid_model(format!(
                "its decoder can make a token {} times as long, at most {MAX_DECODED} are allowed",
                decoded.factor
            )));
        }
        let mut growth = Self::NONE;
        for step in [
            &steps.normalizer,
            &steps.pre_tokenizer,
            &steps.post_processor,
        ] {
            growth.walk(step)?;
        }
        Ok(growth)
    }

    const NONE: Self = Self {
        factor: 1,
        added: 0,
    };

    /// Checks that a text of that many bytes can be tokenised.
    ///
    /// # Errors
    /// `InvalidInput`.
    pub fn check(self, text: usize) -> SeamResult<()> {
        let grown = (text as u64)
            .saturating_mul(self.factor)
            .saturating_add(self.added);
        if grown <= MAX_GROWN {
            return Ok(());
        }
        Err(SeamError::invalid_input(format!(
            "the tokenizer can make {grown} bytes of a text of {text}, at most {MAX_GROWN} are allowed"
        ))
        .hint("shorten the text, check tokenizer.json, or pass tokens instead of text"))
    }

    fn times(&mut self, factor: u64) {
        self.factor = self.factor.saturating_mul(factor.max(1));
        self.added = self.added.saturating_mul(factor.max(1));
    }

    /// Takes in a step and those inside it. Steps are told by what they hold, since older files do not
    /// name their types.
    fn walk(&mut self, step: &Value) -> SeamResult<()> {
        match step {
            Value::Array(steps) => steps.iter().try_for_each(|s| self.walk(s)),
            Value::Object(step) => {
                self.take(step)?;
                step.values()
                    .filter(|v| v.is_array() || v.is_object())
                    .try_for_each(|s| self.walk(s))
            }
            _ => Ok(()),
        }
    }

    fn take(&mut self, step: &Map<String, Value>) -> SeamResult<()> {
        let text = |key: &str| step.get(key).and_then(Value::as_str);
        if let Some(content) = text("content") {
            self.times(replacement(step.get("pattern"), content));
        }
        if let Some(prepended) = text("prepend") {
            self.added = self.added.saturating_add(prepended.len() as u64);
        }
        if let Some(map) = text("precompiled_charsmap") {
            self.times(longest_in_map(map)?);
        }
        match text("type") {
            Some("NFKC" | "NFKD") => self.times(COMPATIBILITY),
            Some("NFC" | "NFD") => self.times(CANONICAL),
            // A byte becomes a character of two.
            Some("ByteLevel") => self.times(2),
            _ => {}
        }
        if let Some(Value::Array(pieces)) = step.get("single") {
            let sequences = pieces.iter().filter(|p| p.get("Sequence").is_some());
            self.times(sequences.count() as u64);
            let around: usize = pieces.iter().map(|p| special(step, p)).sum();
            if around > MAX_AROUND {
                return Err(SeamError::invalid_model(format!(
                    "it puts {around} special tokens around a text, at most {MAX_AROUND} are allowed"
                )));
            }
        }
        Ok(())
    }
}

/// How many times as long a text can become where `pattern` is replaced.
fn replacement(pattern: Option<&Value>, content: &str) -> u64 {
    let content = content.len() as u64;
    match pattern
        .and_then(|p| p.get("String"))
        .and_then(Value::as_str)
    {
        Some(pattern) if !pattern.is_empty() => content.div_ceil(pattern.len() as u64),
        // It may match between any two characters.
        _ => content + 1,
    }
}

/// Tokens that a piece of a template stands for.
fn special(template: &Map<String, Value>, piece: &Value) -> usize {
    let ids = || {
        let name = piece.get("SpecialToken")?.get("id")?.as_str()?;
        let token = template.get("special_tokens")?.get(name)?;
        token.get("ids")?.as_array().map(Vec::len)
    };
    ids().unwrap_or(0)
}

/// Length of the longest text in a map of sentencepiece: the size of a table, the table, and texts with
/// a zero byte after each. The crate makes room for a table of whatever size the map says.
fn longest_in_map(map: &str) -> SeamResult<u64> {
    let bad = |why: &str| {
        SeamError::invalid_model(format!(
            "the precompiled_charsmap of its normalizer is broken: {why}"
        ))
    };
    let bytes = base64(map).ok_or_else(|| bad("it is not base64"))?;
    let (size, rest) = bytes
        .split_first_chunk::<4>()
        .ok_or_else(|| bad("it is too short"))?;
    let size = u32::from_le_bytes(*size) as usize;
    let texts = rest
        .get(size..)
        .ok_or_else(|| bad("its table is longer than the map"))?;
    let longest = texts.split(|&b| b == 0).map(<[u8]>::len).max();
    Ok(longest.unwrap_or(0) as u64)
}

fn base64(text: &str) -> Option<Vec<u8>> {
    let text = text.trim_end_matches('=');
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3 + 3);
    let (mut held, mut bits) = (0_u32, 0);
    for c in text.bytes() {
        let value = match c {
            b'A'..=b'Z' => c - b'A',
            b'a'..=b'z' => c - b'a' + 26,
            b'0'..=b'9' => c - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        held = (held << 6) | u32::from(value);
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            bytes.push((held >> bits) as u8);
            held &= (1 << bits) - 1;
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn growth(tokenizer: &Value) -> SeamResult<u64> {
        Growth::of(tokenizer.to_string().as_bytes()).map(|g| g.factor)
    }

    #[test]
    fn steps_multiply() {
        let llama = json!({"normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        ]}, "model": {"vocab": {"content": 1}}});
        assert_eq!(growth(&llama), Ok(3));
        let qwen = json!({"normalizer": {"type": "NFC"}, "pre_tokenizer": {"type": "Sequence",
            "pretokenizers": [{"type": "Split", "pattern": {"Regex": "a"}}, {"type": "ByteLevel"}]}});
        assert_eq!(growth(&qwen), Ok(6));
        let replace = json!({"pattern": {"Regex": "."}, "content": "a".repeat(99)});
        assert_eq!(
            growth(&json!({"normalizer": [replace, replace]})),
            Ok(10_000)
        );
        assert_eq!(growth(&json!({})), Ok(1));
    }

    #[test]
    fn long_texts_are_for_tokenizers_that_keep_them() {
        let growth = |factor| Growth { factor, added: 0 };
        assert!(growth(6).check(4 << 20).is_ok());
        assert!(growth(600).check(4 << 20).is_err());
        assert!(growth(600).check(1 << 10).is_ok());
        assert!(growth(u64::MAX).check(2).is_err());
    }

    #[test]
    fn base64_is_read() {
        assert_eq!(base64("aGVsbG8=").as_deref(), Some(&b"hello"[..]));
        assert_eq!(base64("/+8").as_deref(), Some(&[0xff, 0xef][..]));
        assert_eq!(base64("a b"), None);
    }

    #[test]
    fn character_maps_have_to_be_whole() {
        // A table of 4 bytes, then texts of 1 and 2.
        assert_eq!(longest_in_map("BAAAAAAAAABhAGJjAA=="), Ok(2));
        for bad in ["", "////", "/////wAA", "?"] {
            assert!(longest_in_map(bad).is_err(), "{bad}");
        }
    }
}
