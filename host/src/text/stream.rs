//! Tokens to text, one at a time.

use std::collections::HashMap;
use std::sync::OnceLock;

use halfhitch_seam::{SeamResult, TokenId};
use serde_json::Value;
use tokenizers::DecoderWrapper;

use super::tokenizer::Tokenizer;

/// A decoder that is fed one token at a time.
///
/// The pieces, [`finish`](Self::finish) included, put together are exactly what
/// [`Tokenizer::decode`] gives for all tokens at once, and no piece ends within a character. Text is
/// withheld only while later tokens can change it: an unfinished UTF-8 sequence, or, where a
/// vocabulary spells rare characters as `<0xE2>` tokens, a run of those (an invalid byte anywhere in
/// a run turns all of it into U+FFFD). Work is constant a token, amortised.
pub struct DecodeStream<'t> {
    tokenizer: &'t Tokenizer,
    skip_special: bool,
    mode: Mode,
}

enum Mode {
    /// Byte-level vocabularies: a token is bytes, whatever stands around it.
    Bytes(Vec<u8>),
    /// All others: a token's text depends on its neighbours, so a window is decoded.
    Window(Window),
}

/// Tokens of which the text up to `emitted` is out.
#[derive(Default)]
struct Window {
    /// From the first token that still serves as context.
    ids: Vec<TokenId>,
    /// Text of the context, `ids[..read]`.
    context: String,
    /// Tokens whose text is out.
    read: usize,
    /// Where the next context may begin: the tokens from here to `read` have text of their own.
    next: usize,
    /// Whether a run of `<0xE2>` tokens makes text together.
    byte_fallback: bool,
}

impl<'t> DecodeStream<'t> {
    pub(super) fn new(tokenizer: &'t Tokenizer, skip_special: bool) -> Self {
        let mode = match tokenizer.decoder() {
            Some(DecoderWrapper::ByteLevel(_)) => Mode::Bytes(Vec::new()),
            decoder => Mode::Window(Window {
                byte_fallback: has_byte_fallback(decoder),
                ..Window::default()
            }),
        };
        Self {
            tokenizer,
            skip_special,
            mode,
        }
    }

    /// Takes the next token, gives the text that has become certain; often empty.
    ///
    /// # Errors
    /// As [`Tokenizer::decode`].
    pub fn push(&mut self, id: TokenId) -> SeamResult<String> {
        let Some(token) = self.tokenizer.id_to_token(id) else {
            return Ok(String::new());
        };
        if self.skip_special && self.tokenizer.is_special(id) {
            return Ok(String::new());
        }
        match &mut self.mode {
            Mode::Bytes(pending) => {
                append_token_bytes(&token, pending);
                Ok(take_characters(pending))
            }
            Mode::Window(window) => {
                window.ids.push(id);
                if window.byte_fallback && is_byte_token(&token) {
                    return Ok(String::new());
                }
                window.advance(self.tokenizer, false)
            }
        }
    }

    /// No more tokens come: gives what was withheld, with U+FFFD for unfinished characters. The
    /// stream can be used again for another text.
    ///
    /// # Errors
    /// As [`Tokenizer::decode`].
    pub fn finish(&mut self) -> SeamResult<String> {
        match &mut self.mode {
            Mode::Bytes(pending) => {
                let text = String::from_utf8_lossy(pending).into_owned();
                pending.clear();
                Ok(text)
            }
            Mode::Window(window) => {
                let text = window.advance(self.tokenizer, true);
                *window = Window {
                    byte_fallback: window.byte_fallback,
                    ..Window::default()
                };
                text
            }
        }
    }
}

impl Window {
    fn advance(&mut self, tokenizer: &Tokenizer, last: bool) -> SeamResult<String> {
        if self.read == self.ids.len() {
            return Ok(String::new());
        }
        let text = tokenizer.decode(&self.ids, false)?;
        // Never unsettles what is out: a decoder that would is waited for until it agrees again.
        let fits = text.starts_with(&self.context);
        if !last && (!fits || (text.ends_with('\u{fffd}') && !self.byte_fallback)) {
            return Ok(String::new());
        }
        let piece = if fits {
            text[self.context.len()..].to_owned()
        } else {
            let common = text
                .char_indices()
                .zip(self.context.chars())
                .find(|((_, a), b)| a != b)
                .map_or(self.context.len().min(text.len()), |((at, _), _)| at);
            text[common..].to_owned()
        };
        self.read = self.ids.len();
        self.context = text;
        // The context moves on only to tokens that give text alone: else a decoder that drops the
        // first space of a text would drop one in the middle.
        let alone = tokenizer.decode(&self.ids[self.next..], false)?;
        if !alone.is_empty() {
            self.ids.drain(..self.next);
            self.context = alone;
            self.read = self.ids.len();
            self.next = self.read;
        }
        Ok(piece)
    }
}

/// Whether the decoder joins `<0xE2>` tokens to characters, alone or as a step among others.
fn has_byte_fallback(decoder: Option<&DecoderWrapper>) -> bool {
    match decoder {
        Some(DecoderWrapper::ByteFallback(_)) => true,
        // The steps of a sequence are private to the crate; its JSON tells.
        Some(sequence @ DecoderWrapper::Sequence(_)) => {
            serde_json::to_value(sequence).is_ok_and(|json| mentions_byte_fallback(&json))
        }
        _ => false,
    }
}

fn mentions_byte_fallback(json: &Value) -> bool {
    match json {
        Value::Object(map) => {
            map.get("type").is_some_and(|t| t == "ByteFallback")
                || map.values().any(mentions_byte_fallback)
        }
        Value::Array(list) => list.iter().any(mentions_byte_fallback),
        _ => false,
    }
}

/// `<0x` two digits `>`, as the byte-fallback decoder recognises it.
fn is_byte_token(token: &str) -> bool {
    token.len() == 6
        && token.starts_with("<0x")
        && token.ends_with('>')
        && token
            .get(3..5)
            .is_some_and(|hex| u8::from_str_radix(hex, 16).is_ok())
}

/// The bytes of a token of a byte-level vocabulary. A token with a character outside the alphabet
/// stands for its own text.
fn append_token_bytes(token: &str, out: &mut Vec<u8>) {
    let start = out.len();
    for c in token.chars() {
        match alphabet().get(&c) {
            Some(&byte) => out.push(byte),
            None => {
                out.truncate(start);
                out.extend_from_slice(token.as_bytes());
                return;
            }
        }
    }
}

/// GPT-2's printable alphabet: each byte has a character; printable bytes have their own, the others
/// those from U+0100 on, in order.
fn alphabet() -> &'static HashMap<char, u8> {
    static ALPHABET: OnceLock<HashMap<char, u8>> = OnceLock::new();
    ALPHABET.get_or_init(|| {
        let mut next = 0x100u32;
        (0..=255u8)
            .filter_map(|byte| {
                let own = matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
                let code = if own {
                    u32::from(byte)
                } else {
                    next += 1;
                    next - 1
                };
                Some((char::from_u32(code)?, byte))
            })
            .collect()
    })
}

/// Takes all characters off the front that no later byte can change: those that are whole, and
/// U+FFFD for each sequence that is already broken.
fn take_characters(pending: &mut Vec<u8>) -> String {
    let mut text = String::new();
    let mut used = 0;
    while used < pending.len() {
        match std::str::from_utf8(&pending[used..]) {
            Ok(rest) => {
                text.push_str(rest);
                used = pending.len();
            }
            Err(e) => {
                let valid = used + e.valid_up_to();
                text.push_str(&String::from_utf8_lossy(&pending[used..valid]));
                used = valid;
                match e.error_len() {
                    Some(bad) => {
                        text.push('\u{fffd}');
                        used += bad;
                    }
                    None => break,
                }
            }
        }
    }
    pending.drain(..used);
    text
}
