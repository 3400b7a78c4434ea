//! Where a model folder keeps its chat templates.

use std::collections::BTreeMap;
use std::path::Path;

use halfhitch_seam::{ErrorCode, SeamError, SeamResult};
use serde_json::Value;

use super::super::files::{read_object, read_text};

/// Largest template; the longest in use have some 20 kB.
pub(super) const MAX_TEMPLATE_BYTES: u64 = 512 << 10;
/// Most named templates of one model.
const MAX_TEMPLATES: usize = 64;

/// The name of the template that is used unless another is asked for.
pub(super) const DEFAULT: &str = "default";

/// Templates by name, as transformers finds them; empty where there are none.
///
/// `chat_template.jinja` and `additional_chat_templates/*.jinja` come first. Without any,
/// `chat_template` of `tokenizer_config.json` counts, a string or a list of `{name, template}`;
/// last `chat_template.json`, as processors of multimodal models write it.
pub(super) fn find(dir: &Path) -> SeamResult<BTreeMap<String, String>> {
    let mut found = files(dir)?;
    for name in ["tokenizer_config.json", "chat_template.json"] {
        if !found.is_empty() {
            break;
        }
        if let Some(config) = read_object(&dir.join(name))?
            && let Some(value) = config.get("chat_template")
        {
            found = entries(value).map_err(|e| e.context(dir.join(name).display().to_string()))?;
        }
    }
    Ok(found)
}

/// One template, the default.
pub(super) fn single(text: &str) -> SeamResult<BTreeMap<String, String>> {
    entries(&Value::String(text.to_owned()))
}

/// Templates in files of their own.
fn files(dir: &Path) -> SeamResult<BTreeMap<String, String>> {
    let mut found = BTreeMap::new();
    if let Some(text) = read_text(&dir.join("chat_template.jinja"), MAX_TEMPLATE_BYTES)? {
        found.insert(DEFAULT.to_owned(), text);
    }
    let folder = dir.join("additional_chat_templates");
    if !folder.is_dir() {
        return Ok(found);
    }
    let io = |e: std::io::Error| {
        SeamError::new(
            ErrorCode::Io,
            format!("cannot read {}: {e}", folder.display()),
        )
    };
    for entry in std::fs::read_dir(&folder).map_err(io)? {
        let path = entry.map_err(io)?.path();
        let name = path.file_stem().and_then(|s| s.to_str());
        if let Some(name) = name
            && path.extension().is_some_and(|e| e == "jinja")
            && let Some(text) = read_text(&path, MAX_TEMPLATE_BYTES)?
        {
            insert(&mut found, name, &text).map_err(|e| e.context(folder.display().to_string()))?;
        }
    }
    Ok(found)
}

/// The value of a `chat_template` key.
fn entries(value: &Value) -> SeamResult<BTreeMap<String, String>> {
    let wrong = || {
        SeamError::invalid_model("chat_template is neither a string nor a list of {name, template}")
    };
    let mut found = BTreeMap::new();
    match value {
        Value::Null => {}
        Value::String(text) => insert(&mut found, DEFAULT, text)?,
        Value::Array(list) => {
            for item in list {
                let text = |key| item.get(key).and_then(Value::as_str).ok_or_else(wrong);
                insert(&mut found, text("name")?, text("template")?)?;
            }
        }
        Value::Object(map) => {
            for (name, text) in map {
                insert(&mut found, name, text.as_str().ok_or_else(wrong)?)?;
            }
        }
        _ => return Err(wrong()),
    }
    Ok(found)
}

fn insert(found: &mut BTreeMap<String, String>, name: &str, text: &str) -> SeamResult<()> {
    if text.len() as u64 > MAX_TEMPLATE_BYTES {
        return Err(SeamError::invalid_model(format!(
            "the chat template has {} bytes, at most {MAX_TEMPLATE_BYTES} are allowed",
            text.len()
        )));
    }
    if found.len() >= MAX_TEMPLATES {
        return Err(SeamError::invalid_model(format!(
            "more than {MAX_TEMPLATES} chat templates"
        )));
    }
    found.insert(name.to_owned(), text.to_owned());
    Ok(())
}
