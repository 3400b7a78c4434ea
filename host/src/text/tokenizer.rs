//! The tokenizer of a model folder.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use halfhitch_seam::{ErrorCode, SeamError, SeamResult, TokenId};
use tokenizers::{AddedVocabulary, DecoderWrapper};

use super::bounds::Growth;
use super::files::{MAX_TOKENIZER_BYTES, read_bytes};
use super::quiet::quietly;
use super::special::SpecialTokens;
use super::stream::DecodeStream;

/// Text to token ids and back, as `tokenizer.json` of a model folder says.
///
/// Truncation and padding that the file asks for are off: they serve training, and would change a
/// prompt silently. Read-only and shareable between threads.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    specials: SpecialTokens,
    stop_tokens: BTreeSet<TokenId>,
    vocab_size: usize,
    growth: Growth,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer")
            .field("vocab_size", &self.vocab_size)
            .field("stop_tokens", &self.stop_tokens)
            .finish_non_exhaustive()
    }
}

impl Tokenizer {
    /// Reads the tokenizer of a model folder; `None` where it has no `tokenizer.json`.
    ///
    /// # Errors
    /// `Io` or `InvalidModel` naming the file; `Unsupported` where the folder has only another kind
    /// of tokenizer (`tokenizer.model`), which is not read.
    pub fn from_dir(dir: &Path) -> SeamResult<Option<Self>> {
        let path = dir.join("tokenizer.json");
        let Some(bytes) = read_bytes(&path, MAX_TOKENIZER_BYTES)? else {
            for other in [
                "tokenizer.model",
                "vocab.json",
                "tekken.json",
                "tiktoken.model",
            ] {
                if dir.join(other).is_file() {
                    return Err(SeamError::unsupported(format!(
                        "{} has {other} but no tokenizer.json",
                        dir.display()
                    ))
                    .hint(
                        "write tokenizer.json with transformers: \
                         AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)",
                    ));
                }
            }
            return Ok(None);
        };
        let specials = SpecialTokens::from_dir(dir)?;
        Self::from_bytes(&bytes, specials)
            .map(Some)
            .map_err(|e| e.context(path.display().to_string()))
    }

    /// Reads a tokenizer from the content of a `tokenizer.json`.
    ///
    /// # Errors
    /// `InvalidModel` where it is not one.
    pub fn from_bytes(bytes: &[u8], specials: SpecialTokens) -> SeamResult<Self> {
        let growth = Growth::of(bytes)?;
        // The crate trusts its files: some broken ones make it panic rather than fail.
        let built = catch_unwind(|| quietly(|| tokenizers::Tokenizer::from_bytes(bytes)));
        let mut inner = match built {
            Ok(Ok(inner)) => inner,
            Ok(Err(e)) => {
                return Err(SeamError::invalid_model(format!(
                    "not a usable tokenizer: {}",
                    one_line(&e.to_string())
                )));
            }
            Err(_) => return Err(SeamError::invalid_model("not a usable tokenizer")),
        };
        inner.with_padding(None);
        inner
            .with_truncation(None)
            .map_err(|e| SeamError::invalid_model(format!("cannot switch truncation off: {e}")))?;
        inner.set_encode_special_tokens(false);
        let stop_tokens = specials
            .get("eos_token")
            .and_then(|eos| inner.token_to_id(eos))
            .into_iter()
            .collect();
        let vocab_size = inner.get_vocab_size(true);
        Ok(Self {
            inner,
            specials,
            stop_tokens,
            vocab_size,
            growth,
        })
    }

    /// Token ids of `text`. `add_special` adds what the tokenizer puts around a text, usually a
    /// begin-of-text token. Special tokens that stand in `text` are recognised, as Hugging Face
    /// does it.
    ///
    /// # Errors
    /// `InvalidInput` where the text is longer than the tokenizer's steps allow. `InvalidModel` where
    /// the tokenizer fails on the text (a vocabulary without the pieces or an unknown token, a pattern
    /// that backtracks without end).
    pub fn encode(&self, text: &str, add_special: bool) -> SeamResult<Vec<TokenId>> {
        self.growth.check(text.len())?;
        let encoding = self.guarded("encode the text", || {
            self.inner.encode_fast(text, add_special)
        })?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Token ids of a rendered chat template. Templates write the begin-of-text token themselves,
    /// so nothing is added.
    ///
    /// # Errors
    /// As [`Self::encode`].
    pub fn encode_chat(&self, rendered: &str) -> SeamResult<Vec<TokenId>> {
        self.encode(rendered, false)
    }

    /// Text of `ids`, with U+FFFD for what is not UTF-8. `skip_special` leaves special tokens out.
    /// Ids outside the vocabulary give nothing.
    ///
    /// # Errors
    /// `InvalidModel` where the decoder of the tokenizer fails.
    pub fn decode(&self, ids: &[TokenId], skip_special: bool) -> SeamResult<String> {
        // Filtered here, since some decoders of the crate cannot take an empty list.
        let ids: Vec<TokenId> = ids
            .iter()
            .copied()
            .filter(|&id| self.inner.id_to_token(id).is_some())
            .filter(|&id| !(skip_special && self.is_special(id)))
            .collect();
        if ids.is_empty() {
            return Ok(String::new());
        }
        self.guarded("decode the tokens", || self.inner.decode(&ids, false))
    }

    /// A decoder that is fed one token at a time and gives text as soon as it is certain.
    pub fn stream(&self, skip_special: bool) -> DecodeStream<'_> {
        DecodeStream::new(self, skip_special)
    }

    /// Text of the token as the vocabulary holds it (`Ġthe`, not ` the`).
    pub fn id_to_token(&self, id: TokenId) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// Id of a token, spelt as the vocabulary holds it.
    pub fn token_to_id(&self, token: &str) -> Option<TokenId> {
        self.inner.token_to_id(token)
    }

    /// Number of tokens, added ones included. Models often have a few more rows than this.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// Special tokens by name.
    pub fn specials(&self) -> &SpecialTokens {
        &self.specials
    }

    /// Id of the begin-of-text token, where the configuration names one.
    pub fn bos_token(&self) -> Option<TokenId> {
        self.token_to_id(self.specials.get("bos_token")?)
    }

    /// Id of the end-of-text token, where the configuration names one.
    pub fn eos_token(&self) -> Option<TokenId> {
        self.token_to_id(self.specials.get("eos_token")?)
    }

    /// Whether the token is a special one: markup, never text.
    pub fn is_special(&self, id: TokenId) -> bool {
        self.added()
            .simple_id_to_token(id)
            .is_some_and(|t| self.added().is_special_token(&t))
    }

    /// Tokens that end a generation as far as the tokenizer's configuration says: `eos_token`.
    /// `config.json` and `generation_config.json` may name more; the union of all holds. No token
    /// is taken for an end because of how it is spelt.
    pub fn stop_tokens(&self) -> &BTreeSet<TokenId> {
        &self.stop_tokens
    }

    /// How tokens become text.
    pub(super) fn decoder(&self) -> Option<&DecoderWrapper> {
        self.inner.get_decoder()
    }

    fn added(&self) -> &AddedVocabulary {
        self.inner.get_added_vocabulary()
    }

    /// Runs a call of the crate, turning its errors and panics into ours. It panics where the regex
    /// engine gives up on a pattern that backtracks too much (a limit of 10 million steps a match).
    fn guarded<T>(
        &self,
        what: &str,
        call: impl FnOnce() -> tokenizers::Result<T>,
    ) -> SeamResult<T> {
        let fail = |why: String| {
            SeamError::new(
                ErrorCode::InvalidModel,
                format!("the tokenizer cannot {what}{why}"),
            )
            .hint("check tokenizer.json, or pass tokens instead of text")
        };
        match catch_unwind(AssertUnwindSafe(|| quietly(call))) {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(e)) => Err(fail(format!(": {}", one_line(&e.to_string())))),
            Err(_) => Err(fail(String::new())),
        }
    }
}

/// A message on one line, shortened, with what a terminal would obey made visible.
pub(super) fn one_line(message: &str) -> String {
    let line: Vec<&str> = message.split_whitespace().collect();
    let mut line = line.join(" ");
    if line.contains(char::is_control) {
        let visible = |c: char| match c.is_control() {
            true => c.escape_default().to_string(),
            false => c.to_string(),
        };
        line = line.chars().map(visible).collect();
    }
    match line.char_indices().nth(300) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => line,
    }
}
