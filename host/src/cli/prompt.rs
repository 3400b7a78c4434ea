//! From the command line's prompt to tokens.

use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::path::Path;

use halfhitch_seam::{ErrorCode, SeamError, SeamResult, TokenId};

use super::args::PromptArgs;
use super::failure::Failure;
use crate::engine::Model;
use crate::text::{Message, RenderOptions, Tokenizer};

/// Largest prompt, in bytes: over any context, and a bound on what a wrong file costs, which is some 200
/// times as much while it is tokenised.
const MAX_PROMPT: u64 = 4 << 20;

/// A prompt as it was given.
#[derive(Debug, PartialEq, Eq)]
pub enum Source {
    /// Text.
    Text(String),
    /// Token ids.
    Tokens(Vec<TokenId>),
}

impl Source {
    /// Reads the prompt. Standard input is read where it is asked for (`-`), or where nothing is
    /// given and it is not a terminal.
    ///
    /// # Errors
    /// A usage error where there is no prompt at all; `Io` and `NotFound` for a file;
    /// `InvalidInput` for one that is empty, too large or not UTF-8.
    pub fn read(args: &PromptArgs) -> Result<Self, Failure> {
        if let Some(tokens) = &args.prompt_tokens {
            return Ok(Self::Tokens(tokens.0.clone()));
        }
        let text = match (&args.prompt, &args.prompt_file) {
            (Some(text), _) => text.clone(),
            (None, Some(path)) if path.as_os_str() == "-" => standard_input()?,
            (None, Some(path)) => file(path)?,
            (None, None) if !io::stdin().is_terminal() => standard_input()?,
            (None, None) => {
                return Err(Failure::Usage(
                    "there is no prompt: give --prompt, --prompt-file or --prompt-tokens, \
                     or pipe one in"
                        .into(),
                ));
            }
        };
        if text.is_empty() {
            return Err(SeamError::invalid_input("the prompt is empty")
                .hint("give it as --prompt or --prompt-file, or pipe it in")
                .into());
        }
        Ok(Self::Text(text))
    }

    /// The prompt's tokens for `model`: through the chat template where there is one, unless the
    /// flags say otherwise.
    ///
    /// # Errors
    /// `NotFound` where a tokenizer or template is needed and missing; what those say.
    pub fn tokens(&self, model: &Model, args: &PromptArgs) -> SeamResult<Vec<TokenId>> {
        let text = match self {
            Self::Tokens(tokens) => return Ok(tokens.clone()),
            Self::Text(text) => text,
        };
        let tokenizer = tokenizer(model)?;
        if args.raw {
            return tokenizer.encode(text, true);
        }
        let template = model
            .chat_template()
            .map_err(|e| e.hint("--raw does without the chat template"))?;
        let Some(template) = template else {
            if args.chat || args.system.is_some() {
                return Err(no_template());
            }
            return tokenizer.encode(text, true);
        };
        let mut messages: Vec<Message> = args.system.iter().map(Message::system).collect();
        messages.push(Message::user(text));
        let rendered = template.render(&messages, &RenderOptions::default())?;
        tokenizer.encode_chat(&rendered)
    }
}

/// The model's tokenizer.
///
/// # Errors
/// `NotFound` where there is none.
pub fn tokenizer(model: &Model) -> SeamResult<&Tokenizer> {
    model.tokenizer().ok_or_else(|| {
        SeamError::new(
            ErrorCode::NotFound,
            format!(
                "{} has no tokenizer.json",
                model.checkpoint().dir().display()
            ),
        )
        .hint("add one, or give token ids to `halfhitch generate --prompt-tokens`")
    })
}

/// The error for a model that cannot chat.
pub fn no_template() -> SeamError {
    SeamError::new(ErrorCode::NotFound, "the model has no chat template")
        .hint("`halfhitch generate --raw` continues a text without one")
}

fn standard_input() -> SeamResult<String> {
    read("standard input", io::stdin().lock())
}

fn file(path: &Path) -> SeamResult<String> {
    let name = path.display().to_string();
    let file = File::open(path).map_err(|e| {
        let code = match e.kind() {
            io::ErrorKind::NotFound => ErrorCode::NotFound,
            _ => ErrorCode::Io,
        };
        SeamError::new(code, e.to_string()).context(format!("prompt file {name}"))
    })?;
    read(&format!("prompt file {name}"), file)
}

fn read(name: &str, from: impl Read) -> SeamResult<String> {
    let mut bytes = Vec::new();
    from.take(MAX_PROMPT + 1)
        .read_to_end(&mut bytes)
        .map_err(|e| SeamError::new(ErrorCode::Io, e.to_string()).context(name))?;
    if bytes.len() as u64 > MAX_PROMPT {
        return Err(SeamError::invalid_input(format!(
            "the prompt is over {} MiB",
            MAX_PROMPT >> 20
        ))
        .context(name));
    }
    let mut text = String::from_utf8(bytes).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        SeamError::invalid_input(format!("byte {at} is not UTF-8")).context(name)
    })?;
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::read;

    #[test]
    fn one_newline_at_the_end_is_dropped() {
        for (raw, text) in [
            ("a\n", "a"),
            ("a\r\n", "a"),
            ("a\n\n", "a\n"),
            ("\n", ""),
            ("", ""),
        ] {
            assert_eq!(read("x", raw.as_bytes()).unwrap(), text);
        }
    }

    #[test]
    fn what_cannot_be_a_prompt_is_refused() {
        let error = read("x", &b"ab\xff"[..]).unwrap_err();
        assert_eq!(error.to_string(), "x: byte 2 is not UTF-8");
        let error = read("x", std::io::repeat(b'a')).unwrap_err();
        assert_eq!(error.to_string(), "x: the prompt is over 4 MiB");
    }
}
