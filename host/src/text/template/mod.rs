//! Chat templates: Jinja programs that come with a model and turn a conversation into text.

mod message;
mod source;

use std::collections::BTreeMap;
use std::path::Path;

use halfhitch_seam::{SeamError, SeamResult};
use minijinja::{Environment, Error, ErrorKind, Value};

use super::special::SpecialTokens;
use super::tokenizer::one_line;
pub use message::{Message, RenderOptions};

/// The chat templates of a model folder.
#[derive(Clone, Debug)]
pub struct ChatTemplate {
    sources: BTreeMap<String, String>,
    specials: SpecialTokens,
}

impl ChatTemplate {
    /// Reads the templates of a model folder; `None` where it has none.
    ///
    /// # Errors
    /// `Io` or `InvalidModel` naming the file; `InvalidModel` where a template is not valid Jinja.
    pub fn from_dir(dir: &Path) -> SeamResult<Option<Self>> {
        let sources = source::find(dir)?;
        if sources.is_empty() {
            return Ok(None);
        }
        let specials = SpecialTokens::from_dir(dir)?;
        Ok(Some(Self { sources, specials }))
    }

    /// A template from its text.
    ///
    /// # Errors
    /// `InvalidModel` where it is not valid Jinja.
    pub fn from_source(source: &str, specials: SpecialTokens) -> SeamResult<Self> {
        let sources = BTreeMap::from([(source::DEFAULT.to_owned(), source.to_owned())]);
        Ok(Self { sources, specials })
    }

    /// The text of a conversation, as transformers' `apply_chat_template` gives it. Encode it with
    /// [`Tokenizer::encode_chat`](super::Tokenizer::encode_chat).
    ///
    /// # Errors
    /// `InvalidInput` where the template refuses the conversation, `InvalidModel` where it fails.
    pub fn render(&self, messages: &[Message], options: &RenderOptions) -> SeamResult<String> {
        let source = self
            .sources
            .get(source::DEFAULT)
            .ok_or_else(|| SeamError::invalid_model("no default chat template"))?;
        let mut env = Environment::new();
        env.set_trim_blocks(true);
        env.set_lstrip_blocks(true);
        env.set_fuel(Some(1_000_000));
        env.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        env.add_function("raise_exception", |m: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, m))
        });
        let mut root = self.specials.template_variables().clone();
        root.insert(
            "messages".into(),
            messages.iter().map(Message::prepared).collect(),
        );
        root.insert(
            "add_generation_prompt".into(),
            options.add_generation_prompt.into(),
        );
        root.insert("tools".into(), options.tools.clone().unwrap_or_default());
        root.insert(
            "documents".into(),
            options.documents.clone().unwrap_or_default(),
        );
        root.extend(options.variables.clone());
        env.render_str(source, root)
            .map_err(|e| SeamError::invalid_model(one_line(&e.to_string())))
    }
}
