//! Everything that reads what a stranger may have written, as functions of bytes.
//!
//! Each takes any bytes, runs a parser on them as the program does, and panics where something does not
//! hold that must: an error of more than one line, an accepted file with a contradiction in it. The
//! programs in `fuzz/` call them with whatever libFuzzer makes up, the tests below with the seeds and
//! with every input that ever found something. To add one, see `docs/hardening.md`.

use std::fs;
use std::path::Path;

use bytes::Bytes;
use halfhitch_seam::{CancelToken, Control, NoObserver, SeamResult};

use crate::checkpoint::Checkpoint;
pub use crate::checkpoint::fuzzing::{checkpoint_header, checkpoint_index, config, quantization};
use crate::import::{ImportOptions, gguf::Gguf, import_opened};
#[cfg(target_os = "linux")]
pub use crate::isolate::fuzzing::isolation;
use crate::plugins::manifest::Manifest;
use crate::text::{ChatTemplate, Message, RenderOptions, SpecialTokens, Tokenizer};

/// What a fuzzer calls.
pub type Target = fn(&[u8]);

/// Every target by the name of its program in `fuzz/`.
pub const TARGETS: &[(&str, Target)] = &[
    ("chat_template", chat_template),
    ("checkpoint_header", checkpoint_header),
    ("checkpoint_index", checkpoint_index),
    ("config", config),
    ("gguf", gguf),
    #[cfg(target_os = "linux")]
    ("isolation", isolation),
    ("manifest", manifest),
    ("quantization", quantization),
    ("tokenizer", tokenizer),
    ("tokenizer_config", tokenizer_config),
];

/// Longest error. A path, or a pattern of a tokenizer, can be part of one.
const MAX_ERROR: usize = 4000;
/// Most text that is put through a tokenizer.
const MAX_TEXT: usize = 4 << 10;

/// The value, of a result whose error is fit for a user's eyes.
pub(crate) fn fine<T>(result: SeamResult<T>) -> Option<T> {
    result
        .map_err(|e| {
            let text = e.to_string();
            assert!(!text.contains(char::is_control), "{text:?}");
            assert!(text.len() < MAX_ERROR, "{text}");
            // The message alone: other messages can quote a file that holds these words.
            assert_ne!(e.message, "the chat template breaks the template engine");
        })
        .ok()
}

pub(crate) fn uncancelled<T>(f: impl FnOnce(&Control<'_>) -> T) -> T {
    f(&Control {
        cancel: &CancelToken::new(),
        observer: &NoObserver,
    })
}

/// A GGUF file: what is accepted becomes a folder that opens.
pub fn gguf(bytes: &[u8]) {
    let Some(file) = fine(Gguf::parse(Bytes::copy_from_slice(bytes))) else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let out = folder.path().join("model");
    let made = uncancelled(|control| import_opened(&file, &out, ImportOptions::default(), control));
    match fine(made) {
        Some(_) => {
            Checkpoint::open(&out).expect("what was imported opens");
            fine(Tokenizer::from_dir(&out));
            fine(ChatTemplate::from_dir(&out));
        }
        None => assert!(!out.exists(), "a failed import leaves nothing"),
    }
}

/// A plugin's manifest: one that passes names a file beside it.
pub fn manifest(bytes: &[u8]) {
    let Some(manifest) = fine(Manifest::parse(bytes)) else {
        return;
    };
    if fine(manifest.check()).is_some() {
        let folder = Path::new("/folder");
        let library = folder.join(&manifest.library);
        assert_eq!(library.parent(), Some(folder), "{library:?}");
        assert!(!manifest.name.contains(char::is_control));
    }
}

/// `tokenizer.json`, and behind the last zero byte a text to put through it.
pub fn tokenizer(bytes: &[u8]) {
    let (json, text) = split(bytes);
    let Some(tokenizer) = fine(Tokenizer::from_bytes(json, SpecialTokens::default())) else {
        return;
    };
    let text = String::from_utf8_lossy(&text[..text.len().min(MAX_TEXT)]);
    let mut ids = fine(tokenizer.encode(&text, true)).unwrap_or_default();
    // A model gives any id that its output head has.
    ids.extend((0..8).chain([u32::MAX, tokenizer.vocab_size() as u32]));
    fine(tokenizer.decode(&ids, true));
    let mut stream = tokenizer.stream(false);
    let pieces = ids.iter().all(|&id| fine(stream.push(id)).is_some());
    if pieces {
        fine(stream.finish());
    }
}

/// `tokenizer_config.json`: special tokens, and templates that are rendered.
pub fn tokenizer_config(bytes: &[u8]) {
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    fs::write(folder.path().join("tokenizer_config.json"), bytes).expect("a file in it");
    let template = fine(ChatTemplate::from_dir(folder.path())).flatten();
    if let Some(template) = template {
        let names: Vec<_> = template.names().map(str::to_owned).collect();
        for name in names.into_iter().take(4) {
            let options = RenderOptions {
                template: Some(name),
                ..options()
            };
            fine(template.render(&[Message::user("hi")], &options));
        }
    }
    fine(SpecialTokens::from_dir(folder.path()));
}

/// A chat template, and behind the last zero byte the messages as JSON; two where that says none.
pub fn chat_template(bytes: &[u8]) {
    let (source, messages) = split(bytes);
    let Ok(source) = std::str::from_utf8(source) else {
        return;
    };
    let messages = serde_json::from_slice(messages)
        .unwrap_or_else(|_| vec![Message::user("hi"), Message::assistant("ho")]);
    let template = ChatTemplate::from_source(source, SpecialTokens::default());
    if let Some(template) = fine(template) {
        fine(template.render(&messages, &options()));
    }
}

/// The same at every run.
fn options() -> RenderOptions {
    RenderOptions {
        now: Some(jiff::civil::date(2026, 1, 2).at(3, 4, 5, 0)),
        ..RenderOptions::default()
    }
}

/// What stands before and behind the last zero byte; all is before where there is none.
fn split(bytes: &[u8]) -> (&[u8], &[u8]) {
    match bytes.iter().rposition(|&b| b == 0) {
        Some(at) => (&bytes[..at], &bytes[at + 1..]),
        None => (bytes, &[]),
    }
}

/// Runs `target` on every file of `fuzz/FOLDER/NAME`; how many there were.
///
/// # Panics
/// Where the target does, naming the file.
pub fn replay(folder: &Path, target: Target) -> usize {
    let mut files: Vec<_> = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .map(|entry| entry.expect("an entry").path())
        .collect();
    files.sort();
    for file in &files {
        let bytes = fs::read(file).expect("a file");
        let ran = std::panic::catch_unwind(|| target(&bytes));
        assert!(ran.is_ok(), "{} broke its target", file.display());
    }
    files.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every input that a fuzzer starts from, and every one that it has found something with.
    #[test]
    fn seeds_and_cases_pass() {
        let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz");
        for &(name, target) in TARGETS {
            assert!(
                replay(&fuzz.join("seeds").join(name), target) > 0,
                "{name} has no seeds"
            );
            replay(&fuzz.join("cases").join(name), target);
        }
    }
}
