//! JSON files of a model folder: bounded reading, and typed access that names the key it refuses.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use halfhitch_seam::{ErrorCode, ResultExt, SeamError, SeamResult};
use serde_json::{Map, Value};

use super::quote::{one_line, quoted};

/// Bytes a configuration may have. Published ones with an override for every module stay under 1 MB.
pub(super) const CONFIG_LIMIT: u64 = 4 << 20;

/// Reads the JSON object in `dir/name`.
///
/// # Errors
/// `NotFound`, `Io`, and `InvalidModel` where it is too long, not JSON or not an object.
pub(super) fn read_object(dir: &Path, name: &str, limit: u64) -> SeamResult<Map<String, Value>> {
    read_optional_object(dir, name, limit)?.ok_or_else(|| {
        SeamError::new(ErrorCode::NotFound, format!("there is no {name}"))
            .hint("a model folder holds config.json and *.safetensors files")
    })
}

/// Reads the JSON object in `dir/name`, if there is such a file.
///
/// # Errors
/// As [`read_object`], but for `NotFound`.
pub(super) fn read_optional_object(
    dir: &Path,
    name: &str,
    limit: u64,
) -> SeamResult<Option<Map<String, Value>>> {
    read(&dir.join(name), limit).in_context(|| name)
}

fn read(path: &Path, limit: u64) -> SeamResult<Option<Map<String, Value>>> {
    let Some((file, length)) = open_regular(path)? else {
        return Ok(None);
    };
    let too_long = || SeamError::invalid_model(format!("it has more than {limit} bytes"));
    if length > limit {
        return Err(too_long());
    }
    let mut bytes = Vec::new();
    file.take(limit + 1)
        .read_to_end(&mut bytes)
        .map_err(|e| SeamError::new(ErrorCode::Io, e.to_string()))?;
    if bytes.len() as u64 > limit {
        return Err(too_long());
    }
    object(&bytes).map(Some)
}

/// A file's content as an object.
///
/// # Errors
/// `InvalidModel` where it is something else.
pub(super) fn object(bytes: &[u8]) -> SeamResult<Map<String, Value>> {
    match serde_json::from_slice(bytes) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(other) => Err(SeamError::invalid_model(format!(
            "it holds {}, not an object",
            describe(&other)
        ))),
        Err(e) => Err(SeamError::invalid_model(format!(
            "it is not JSON: {}",
            one_line(e)
        ))),
    }
}

/// Opens a regular file (or a link to one: download caches link to their blobs) and gives its
/// length; nothing where there is none. Anything else is refused before it is opened, since opening
/// a pipe would wait for ever.
pub(super) fn open_regular(path: &Path) -> SeamResult<Option<(File, u64)>> {
    let io = |e: std::io::Error| SeamError::new(ErrorCode::Io, e.to_string());
    match fs::metadata(path) {
        Ok(m) if m.is_file() => {}
        Ok(_) => return Err(SeamError::invalid_model("it is not a regular file")),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(io(e)),
    }
    let file = File::open(path).map_err(io)?;
    let length = file.metadata().map_err(io)?.len();
    Ok(Some((file, length)))
}

/// What a value is, for an error; long ones are cut.
pub(super) fn describe(value: &Value) -> String {
    match value {
        Value::Null => "null".into(),
        Value::Bool(b) => b.to_string(),
        Value::Number(n) => n.to_string(),
        Value::String(s) => format!("the string {}", quoted(s)),
        Value::Array(_) => "a list".into(),
        Value::Object(_) => "an object".into(),
    }
}

/// Typed access to an object's keys. A key that is absent and one that is null are the same here;
/// where they differ, look at [`Keys::has`].
#[derive(Clone, Debug)]
pub(super) struct Keys<'a> {
    map: &'a Map<String, Value>,
    path: String,
}

impl<'a> Keys<'a> {
    /// Access to a file's outermost object.
    pub(super) fn new(map: &'a Map<String, Value>) -> Self {
        Self {
            map,
            path: String::new(),
        }
    }

    /// A key's full name, `outer.inner`, fit for an error: keys can be the file's, like its values.
    pub(super) fn name(&self, key: &str) -> String {
        one_line(format_args!("{}{key}", self.path))
    }

    /// Whether the key is there, be it null.
    pub(super) fn has(&self, key: &str) -> bool {
        self.map.contains_key(key)
    }

    /// All keys with their values.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&'a str, &'a Value)> {
        self.map.iter().map(|(k, v)| (k.as_str(), v))
    }

    /// A value that is not null.
    pub(super) fn value(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|v| !v.is_null())
    }

    /// An error about a key.
    pub(super) fn wrong(&self, key: &str, what: impl std::fmt::Display) -> SeamError {
        SeamError::invalid_model(format!("{} {what}", self.name(key)))
    }

    /// An integer in `least..=most`.
    pub(super) fn integer(&self, key: &str, least: u64, most: u64) -> SeamResult<Option<u64>> {
        let Some(value) = self.value(key) else {
            return Ok(None);
        };
        match value.as_u64() {
            Some(n) if (least..=most).contains(&n) => Ok(Some(n)),
            _ if value.is_number() && !value.is_f64() => Err(self.wrong(
                key,
                format_args!("is {}, outside {least} to {most}", describe(value)),
            )),
            _ => Err(self.wrong(key, format_args!("is {}, not an integer", describe(value)))),
        }
    }

    /// A size: an integer in `1..=most`.
    pub(super) fn size(&self, key: &str, most: usize) -> SeamResult<Option<usize>> {
        Ok(self.integer(key, 1, most as u64)?.map(|n| n as usize))
    }

    /// A number in `least..=most`.
    pub(super) fn number(&self, key: &str, least: f64, most: f64) -> SeamResult<Option<f64>> {
        let Some(value) = self.value(key) else {
            return Ok(None);
        };
        match value.as_f64() {
            Some(n) if (least..=most).contains(&n) => Ok(Some(n)),
            Some(_) => Err(self.wrong(
                key,
                format_args!("is {}, outside {least} to {most}", describe(value)),
            )),
            None => Err(self.wrong(key, format_args!("is {}, not a number", describe(value)))),
        }
    }

    /// A truth value; null and absent are false, as in Python.
    pub(super) fn flag(&self, key: &str) -> SeamResult<bool> {
        match self.value(key) {
            None => Ok(false),
            Some(Value::Bool(b)) => Ok(*b),
            Some(other) => Err(self.wrong(
                key,
                format_args!("is {}, not true or false", describe(other)),
            )),
        }
    }

    /// A string.
    pub(super) fn text(&self, key: &str) -> SeamResult<Option<&'a str>> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::String(s)) => Ok(Some(s)),
            Some(other) => {
                Err(self.wrong(key, format_args!("is {}, not a string", describe(other))))
            }
        }
    }

    /// A list.
    pub(super) fn list(&self, key: &str) -> SeamResult<Option<&'a [Value]>> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::Array(items)) => Ok(Some(items)),
            Some(other) => Err(self.wrong(key, format_args!("is {}, not a list", describe(other)))),
        }
    }

    /// An object.
    pub(super) fn object(&self, key: &str) -> SeamResult<Option<Keys<'a>>> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(Keys {
                map,
                path: format!("{}.", self.name(key)),
            })),
            Some(other) => {
                Err(self.wrong(key, format_args!("is {}, not an object", describe(other))))
            }
        }
    }
}
