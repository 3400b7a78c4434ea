//! Chat templates: Jinja programs that come with a model and turn a conversation into text.

mod budget;
mod filters;
mod format;
mod json;
mod message;
mod ops;
mod python;
mod rewrite;
mod sandbox;
mod source;
mod strings;

use std::collections::BTreeMap;
use std::path::Path;

use halfhitch_seam::{ResultExt, SeamError, SeamResult};
use serde_json::{Map, Value as Json};

use super::special::SpecialTokens;
pub use message::{Message, RenderOptions};

/// The chat templates of a model folder.
#[derive(Clone, Debug)]
pub struct ChatTemplate {
    sources: BTreeMap<String, String>,
    specials: SpecialTokens,
}

impl ChatTemplate {
    /// Reads the templates of a model folder; `None` where it has none. Where several places hold
    /// one, `chat_template.jinja` counts, as in transformers.
    ///
    /// # Errors
    /// `Io` or `InvalidModel` naming the file; `InvalidModel` where a template is not valid Jinja or
    /// uses what a sandbox cannot have (other files, blocks, autoescape).
    pub fn from_dir(dir: &Path) -> SeamResult<Option<Self>> {
        let sources = source::find(dir)?;
        if sources.is_empty() {
            return Ok(None);
        }
        let specials = SpecialTokens::from_dir(dir)?;
        Self::checked(sources, specials)
            .map(Some)
            .in_context(|| dir.display().to_string())
    }

    /// A template from its text.
    ///
    /// # Errors
    /// `InvalidModel` as [`Self::from_dir`].
    pub fn from_source(source: &str, specials: SpecialTokens) -> SeamResult<Self> {
        let sources = source::single(source)?;
        Self::checked(sources, specials)
    }

    fn checked(sources: BTreeMap<String, String>, specials: SpecialTokens) -> SeamResult<Self> {
        for (name, source) in &sources {
            let named = sandbox::check(source);
            if sources.len() > 1 {
                named.in_context(|| format!("template {name:?}"))?;
            } else {
                named?;
            }
        }
        Ok(Self { sources, specials })
    }

    /// Names of the templates; one called `default` is there unless another is to be asked for.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.sources.keys().map(String::as_str)
    }

    /// The text of a conversation, as transformers' `apply_chat_template` gives it. Encode it with
    /// [`Tokenizer::encode_chat`](super::Tokenizer::encode_chat).
    ///
    /// # Errors
    /// `InvalidInput` where there are no messages, or the template itself refuses them, with its
    /// message; `InvalidModel` where the template fails or takes more than its share of steps, text
    /// or time; `NotFound` for a template of another name.
    pub fn render(&self, messages: &[Message], options: &RenderOptions) -> SeamResult<String> {
        if messages.is_empty() {
            return Err(SeamError::invalid_input("a conversation needs a message"));
        }
        let source = self.choose(options)?;
        let variables = self.variables(messages, options);
        let input = weight(&variables);
        sandbox::run(
            source,
            minijinja::Value::from_serialize(&variables),
            input,
            options.now,
        )
    }

    /// The template to use; see [`RenderOptions::template`].
    fn choose(&self, options: &RenderOptions) -> SeamResult<&str> {
        let tools = options.tools.is_some().then_some("tool_use");
        let wanted = match &options.template {
            Some(name) => name,
            None => tools
                .filter(|t| self.sources.contains_key(*t))
                .unwrap_or(source::DEFAULT),
        };
        self.sources.get(wanted).map(String::as_str).ok_or_else(|| {
            let names: Vec<&str> = self.names().collect();
            SeamError::new(
                halfhitch_seam::ErrorCode::NotFound,
                format!(
                    "the model has no chat template {wanted:?}, only {}",
                    names.join(", ")
                ),
            )
        })
    }

    /// What the template can name. The caller's own come last, so they win.
    fn variables(&self, messages: &[Message], options: &RenderOptions) -> Map<String, Json> {
        let mut root = self.specials.template_variables().clone();
        root.insert(
            "messages".into(),
            messages.iter().map(Message::prepared).collect(),
        );
        root.insert("tools".into(), options.tools.clone().unwrap_or_default());
        root.insert(
            "documents".into(),
            options.documents.clone().unwrap_or_default(),
        );
        root.insert(
            "add_generation_prompt".into(),
            options.add_generation_prompt.into(),
        );
        root.extend(options.variables.clone());
        root
    }
}

/// Bytes that the variables hold, roughly.
fn weight(variables: &Map<String, Json>) -> usize {
    fn of(value: &Json) -> usize {
        match value {
            Json::String(s) => s.len(),
            Json::Array(a) => a.iter().map(of).sum::<usize>() + 8,
            Json::Object(o) => o.iter().map(|(k, v)| k.len() + of(v)).sum::<usize>() + 8,
            _ => 8,
        }
    }
    variables.values().map(of).sum()
}
