//! What the gate runs: the built-in prompts, prompts of a file, token ids, or random tokens.

use std::collections::BTreeMap;
use std::path::Path;

use halfhitch_seam::{ErrorCode, ResultExt, SeamError, SeamResult, TokenId};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use sha2::{Digest, Sha256};

use crate::engine::Model;
use crate::text::{Message, RenderOptions, Tokenizer};

/// The built-in prompts: prose, facts, code, numbers, languages, chat.
const BUILT_IN: &str = include_str!("prompts.txt");

/// Most tokens of a built-in prompt that run, so that the set stays a matter of a minute.
const BUILT_IN_TOKENS: usize = 96;

/// Random prompts, where the model has no tokenizer, and their length.
const RANDOM: [usize; 2] = [8, 48];

/// Bounds on what a file may ask for.
const MAX_FILE: u64 = 4 << 20;
const MAX_PROMPTS: usize = 4096;
const MAX_TOKENS: usize = 1 << 18;

/// A prompt, as tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    /// Its name, for reports.
    pub name: String,
    /// Its tokens; never empty.
    pub tokens: Vec<TokenId>,
}

/// A set of prompts, ready to run.
#[derive(Clone, Debug)]
pub struct PromptSet {
    /// Where they come from, for reports.
    pub source: String,
    /// The prompts; never empty.
    pub prompts: Vec<Prompt>,
}

/// Where prompts come from.
#[derive(Clone, Copy, Debug)]
pub enum PromptSource<'a> {
    /// The built-in set; random tokens where the model has no tokenizer.
    BuiltIn,
    /// A text file: one prompt, or several, each after a line `=== NAME`, or `=== chat: NAME` for one that
    /// goes through the chat template.
    Text(&'a Path),
    /// A file of token ids: a line a prompt, ids apart by commas or spaces.
    Tokens(&'a Path),
}

impl PromptSet {
    /// The prompts of `source` for a model, each of at most `context` tokens.
    ///
    /// # Errors
    /// `Io`, `NotFound` and `InvalidInput` for a file; `NotFound` where text is given and the model has no
    /// tokenizer; what tokenizer and chat template say.
    pub fn load(source: PromptSource<'_>, model: &Model, context: usize) -> SeamResult<Self> {
        let set = match (source, model.tokenizer()) {
            (PromptSource::BuiltIn, Some(tokenizer)) => {
                let mut prompts = encode(parse(BUILT_IN, "built-in"), tokenizer, model)?;
                for prompt in &mut prompts {
                    prompt.tokens.truncate(BUILT_IN_TOKENS.min(context));
                }
                // A tokenizer may have no pieces for a language.
                prompts.retain(|p| !p.tokens.is_empty());
                Self {
                    source: "built-in".into(),
                    prompts,
                }
            }
            (PromptSource::BuiltIn, None) => Self::random(model.spec().vocab_size, context),
            (PromptSource::Text(path), Some(tokenizer)) => {
                let name = file_name(path);
                let text = read(path)?;
                let prompts = encode(parse(&text, &name), tokenizer, model)?;
                Self {
                    source: name,
                    prompts,
                }
            }
            (PromptSource::Text(_), None) => {
                return Err(SeamError::new(
                    ErrorCode::NotFound,
                    "the model has no tokenizer for prompts of text",
                )
                .hint("give token ids with --tokens, or neither for random ones"));
            }
            (PromptSource::Tokens(path), _) => Self {
                source: file_name(path),
                prompts: token_lines(&read(path)?).in_context(|| path.display().to_string())?,
            },
        };
        let mut set = set;
        set.name_apart();
        set.check(model.spec().vocab_size, context)?;
        Ok(set)
    }

    /// Random tokens, the same each time.
    pub fn random(vocabulary: usize, context: usize) -> Self {
        let [count, length] = RANDOM;
        let mut random = ChaCha8Rng::seed_from_u64(0);
        let mut token = || (random.next_u64() % vocabulary.max(1) as u64) as TokenId;
        let prompts = (0..count)
            .map(|i| Prompt {
                name: format!("random {i}"),
                tokens: (0..length.min(context.max(1))).map(|_| token()).collect(),
            })
            .collect();
        Self {
            source: "random tokens".into(),
            prompts,
        }
    }

    /// Tokens of all prompts.
    pub fn tokens(&self) -> usize {
        self.prompts.iter().map(|p| p.tokens.len()).sum()
    }

    /// SHA-256 of all tokens, so that records of the same set can be told from others.
    pub fn sha256(&self) -> String {
        let mut hash = Sha256::new();
        for prompt in &self.prompts {
            hash.update((prompt.tokens.len() as u64).to_le_bytes());
            for token in &prompt.tokens {
                hash.update(token.to_le_bytes());
            }
        }
        hash.finalize().iter().map(|b| format!("{b:02x}")).collect()
    }

    /// Gives prompts of one name different ones: a report must lead back to its prompt.
    fn name_apart(&mut self) {
        let mut seen = BTreeMap::new();
        for prompt in &mut self.prompts {
            let times: &mut usize = seen.entry(prompt.name.clone()).or_default();
            *times += 1;
            if *times > 1 {
                prompt.name = format!("{} #{times}", prompt.name);
            }
        }
    }

    fn check(&self, vocabulary: usize, context: usize) -> SeamResult<()> {
        if self.prompts.is_empty() {
            return Err(
                SeamError::invalid_input("there are no prompts").context(self.source.clone())
            );
        }
        if self.prompts.len() > MAX_PROMPTS || self.tokens() > MAX_TOKENS {
            return Err(SeamError::invalid_input(format!(
                "{} prompts with {} tokens",
                self.prompts.len(),
                self.tokens()
            ))
            .context(self.source.clone())
            .hint(format!(
                "at most {MAX_PROMPTS} prompts and {MAX_TOKENS} tokens"
            )));
        }
        for prompt in &self.prompts {
            let tokens = &prompt.tokens;
            let within = || format!("{}: prompt `{}`", self.source, prompt.name);
            if let Some(token) = tokens.iter().find(|&&t| t as usize >= vocabulary) {
                return Err(SeamError::invalid_input(format!(
                    "token {token} is outside the vocabulary of {vocabulary}"
                ))
                .context(within()));
            }
            if tokens.is_empty() || tokens.len() > context {
                return Err(SeamError::invalid_input(format!(
                    "{} tokens; from 1 to {context} fit the context",
                    tokens.len()
                ))
                .context(within()));
            }
        }
        Ok(())
    }
}

/// A prompt as it is written.
struct Written {
    name: String,
    text: String,
    chat: bool,
}

/// Prompts of a text. A line `=== NAME` begins one; `=== chat: NAME` one that goes through the model's
/// chat template where it has one. A text without such lines is one prompt.
fn parse(text: &str, name: &str) -> Vec<Written> {
    let mut prompts: Vec<Written> = Vec::new();
    for line in text.lines() {
        if let Some(head) = line.strip_prefix("=== ") {
            let chat = head.strip_prefix("chat:");
            prompts.push(Written {
                name: chat.unwrap_or(head).trim().into(),
                text: String::new(),
                chat: chat.is_some(),
            });
            continue;
        }
        if prompts.is_empty() {
            prompts.push(Written {
                name: name.into(),
                text: String::new(),
                chat: false,
            });
        }
        if let Some(prompt) = prompts.last_mut() {
            prompt.text.push_str(line);
            prompt.text.push('\n');
        }
    }
    for prompt in &mut prompts {
        prompt.text.truncate(prompt.text.trim_end().len());
    }
    prompts.retain(|p| !p.text.is_empty());
    prompts
}

fn encode(written: Vec<Written>, tokenizer: &Tokenizer, model: &Model) -> SeamResult<Vec<Prompt>> {
    let template = match written.iter().any(|w| w.chat) {
        true => model.chat_template()?,
        false => None,
    };
    let encode = |w: Written| {
        let tokens = match &template {
            Some(template) if w.chat => {
                let messages = [Message::user(&w.text)];
                let rendered = template.render(&messages, &RenderOptions::default())?;
                tokenizer.encode_chat(&rendered)?
            }
            _ => tokenizer.encode(&w.text, true)?,
        };
        Ok(Prompt {
            name: w.name,
            tokens,
        })
    };
    let name = |w: &Written| format!("prompt `{}`", w.name);
    let prompts = written.into_iter().map(|w| {
        let name = name(&w);
        encode(w).in_context(|| name)
    });
    prompts.collect()
}

fn token_lines(text: &str) -> SeamResult<Vec<Prompt>> {
    let lines = text.lines().map(|l| l.split('#').next().unwrap_or(""));
    let lines = lines.enumerate().filter(|(_, l)| !l.trim().is_empty());
    lines
        .map(|(i, line)| {
            let ids = line.split(|c: char| c == ',' || c.is_whitespace());
            let ids = ids.filter(|id| !id.is_empty()).map(|id| {
                id.parse().map_err(|_| {
                    SeamError::invalid_input(format!("line {}: {id:?} is no token id", i + 1))
                        .hint("a line a prompt, ids apart by commas or spaces")
                })
            });
            Ok(Prompt {
                name: format!("line {}", i + 1),
                tokens: ids.collect::<SeamResult<_>>()?,
            })
        })
        .collect()
}

fn read(path: &Path) -> SeamResult<String> {
    let within = || path.display().to_string();
    let io = |e: std::io::Error| {
        let code = match e.kind() {
            std::io::ErrorKind::NotFound => ErrorCode::NotFound,
            _ => ErrorCode::Io,
        };
        SeamError::new(code, e.to_string()).context(within())
    };
    let file = std::fs::File::open(path).map_err(io)?;
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(&mut std::io::Read::take(file, MAX_FILE + 1), &mut bytes)
        .map_err(io)?;
    if bytes.len() as u64 > MAX_FILE {
        let limit = format!("the file is over {} MiB", MAX_FILE >> 20);
        return Err(SeamError::invalid_input(limit).context(within()));
    }
    String::from_utf8(bytes).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        SeamError::invalid_input(format!("byte {at} is not UTF-8")).context(within())
    })
}

/// The last part of a path: reports travel, folders of a machine do not belong in them.
fn file_name(path: &Path) -> String {
    path.file_name().map_or_else(
        || path.display().to_string(),
        |n| n.to_string_lossy().into_owned(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_set_is_varied_and_names_are_unique() {
        let prompts = parse(BUILT_IN, "x");
        let names: std::collections::BTreeSet<_> = prompts.iter().map(|p| &p.name).collect();
        assert_eq!(names.len(), prompts.len());
        assert!(prompts.len() >= 16 && prompts.iter().filter(|p| p.chat).count() == 2);
    }

    #[test]
    fn a_text_without_heads_is_one_prompt() {
        let prompts = parse("a\n\nb\n", "file");
        assert_eq!(prompts.len(), 1);
        assert_eq!((&*prompts[0].name, &*prompts[0].text), ("file", "a\n\nb"));
        assert!(parse("=== nothing\n\n", "x").is_empty());
    }

    #[test]
    fn prompts_of_one_name_are_told_apart() {
        let prompt = |name: &str| Prompt {
            name: name.into(),
            tokens: vec![1],
        };
        let mut set = PromptSet {
            source: "x".into(),
            prompts: vec![prompt("a"), prompt("b"), prompt("a")],
        };
        set.name_apart();
        let names: Vec<_> = set.prompts.iter().map(|p| p.name.as_str()).collect();
        assert_eq!(names, ["a", "b", "a #2"]);
    }

    #[test]
    fn token_lines_are_prompts() {
        let prompts = token_lines("1, 2 3\n\n# a comment\n4\n").unwrap();
        assert_eq!(prompts[0].tokens, [1, 2, 3]);
        assert_eq!(
            (&*prompts[1].name, &*prompts[1].tokens),
            ("line 4", &[4][..])
        );
        let e = token_lines("1\n2 x\n").unwrap_err();
        assert!(
            e.to_string().starts_with("line 2: \"x\" is no token id"),
            "{e}"
        );
    }

    #[test]
    fn random_prompts_are_the_same_each_time_and_fit() {
        let (a, b) = (PromptSet::random(10, 7), PromptSet::random(10, 7));
        assert_eq!(a.sha256(), b.sha256());
        assert!(a.prompts.iter().all(|p| p.tokens.len() == 7));
        assert!(a.check(10, 7).is_ok() && a.check(5, 7).is_err() && a.check(10, 6).is_err());
    }
}
