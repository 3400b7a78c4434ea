//! What a chat template is given.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// Who speaks: `system`, `user`, `assistant`, or what else the template knows.
    pub role: String,
    /// What is said: usually a string; a list of parts or null where the template knows those.
    #[serde(default)]
    pub content: Value,
    /// Further fields, `tool_calls` for instance, in their order.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

impl Message {
    /// A message of text.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self {
            role: role.into(),
            content: Value::String(content.into()),
            extra: Map::new(),
        }
    }

    /// A message that sets the scene.
    pub fn system(content: impl Into<String>) -> Self {
        Self::new("system", content)
    }

    /// A message of the person.
    pub fn user(content: impl Into<String>) -> Self {
        Self::new("user", content)
    }

    /// A message of the model.
    pub fn assistant(content: impl Into<String>) -> Self {
        Self::new("assistant", content)
    }

    /// The message as transformers hands it to a template: no fields that are null, and the model's
    /// reasoning under both names in use.
    pub(super) fn prepared(&self) -> Value {
        let mut map = Map::new();
        map.insert("role".into(), Value::String(self.role.clone()));
        map.insert("content".into(), self.content.clone());
        for (key, value) in &self.extra {
            map.insert(key.clone(), value.clone());
        }
        map.retain(|_, value| !value.is_null());
        let reasoning = ["reasoning_content", "reasoning", "thinking"]
            .iter()
            .find_map(|key| map.get(*key).cloned());
        if let Some(text) = reasoning {
            for key in ["reasoning_content", "thinking"] {
                map.entry(key).or_insert_with(|| text.clone());
            }
        }
        Value::Object(map)
    }
}

/// How a conversation is rendered.
#[derive(Clone, Debug)]
pub struct RenderOptions {
    /// Ends the text with what stands before an answer, so that the model gives one.
    pub add_generation_prompt: bool,
    /// Tools the model may call, JSON schemas; none unless set.
    pub tools: Option<Value>,
    /// Documents to answer from; none unless set.
    pub documents: Option<Value>,
    /// Further variables of the template, `enable_thinking` for instance.
    pub variables: Map<String, Value>,
    /// Name of the template where a model has several. Unless set: `tool_use` where there are tools
    /// and such a template, else `default`.
    pub template: Option<String>,
    /// Local time that the template sees; now, unless set.
    pub now: Option<jiff::civil::DateTime>,
}

impl Default for RenderOptions {
    fn default() -> Self {
        Self {
            add_generation_prompt: true,
            tools: None,
            documents: None,
            variables: Map::new(),
            template: None,
            now: None,
        }
    }
}
