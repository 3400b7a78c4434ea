//! The key-value part of a GGUF file.

use std::collections::BTreeMap;

use halfhitch_seam::{ResultExt, SeamError, SeamResult};

use super::cursor::Cursor;

/// More keys than any real file has by two orders of magnitude.
const MAX_KEYS: u64 = 1 << 14;
/// The format's own limit for keys.
const MAX_KEY_BYTES: usize = (1 << 16) - 1;
/// Chat templates are the longest strings; real ones stay below 100 KB.
const MAX_STRING_BYTES: usize = 1 << 24;
/// Vocabularies and merge lists are the longest arrays; real ones stay below a million.
const MAX_ARRAY_LEN: u64 = 1 << 22;

/// A metadata value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Any unsigned integer type.
    Unsigned(u64),
    /// Any signed integer type.
    Signed(i64),
    /// binary32, as stored.
    F32(f32),
    /// binary64, as stored.
    F64(f64),
    /// One byte, 0 or 1.
    Bool(bool),
    /// UTF-8.
    String(String),
    /// Values of one type; never arrays.
    Array(Vec<Value>),
}

impl Value {
    /// What the value is, for messages.
    const fn kind(&self) -> &'static str {
        match self {
            Self::Unsigned(_) | Self::Signed(_) => "an integer",
            Self::F32(_) | Self::F64(_) => "a float",
            Self::Bool(_) => "a boolean",
            Self::String(_) => "a string",
            Self::Array(_) => "an array",
        }
    }

    fn integer(&self) -> Option<i128> {
        match *self {
            Self::Unsigned(v) => Some(v.into()),
            Self::Signed(v) => Some(v.into()),
            _ => None,
        }
    }

    /// Whether the value switches nothing on: zero, false, an empty string or list.
    pub fn is_neutral(&self) -> bool {
        match self {
            Self::Unsigned(v) => *v == 0,
            Self::Signed(v) => *v == 0,
            Self::F32(v) => *v == 0.0,
            Self::F64(v) => *v == 0.0,
            Self::Bool(v) => !v,
            Self::String(v) => v.is_empty(),
            Self::Array(v) => v.is_empty(),
        }
    }
}

/// All key-value pairs, by key.
#[derive(Clone, Debug, Default)]
pub struct Metadata(BTreeMap<String, Value>);

impl Metadata {
    /// Reads `count` pairs.
    pub(super) fn read(cursor: &mut Cursor<'_>, count: u64) -> SeamResult<Self> {
        // A pair takes at least a length, a type and one byte of value.
        if count > MAX_KEYS || count > (cursor.remaining() / 13) as u64 {
            return Err(SeamError::invalid_model(format!(
                "the header claims {count} metadata keys; at most {} are possible",
                MAX_KEYS.min((cursor.remaining() / 13) as u64)
            )));
        }
        let mut map = BTreeMap::new();
        for i in 0..count {
            let key = cursor
                .string(MAX_KEY_BYTES)
                .in_context(|| format!("metadata key {i} of {count}"))?;
            let value = cursor
                .u32()
                .and_then(|kind| read_value(cursor, kind))
                .in_context(|| format!("key `{}`", key.escape_debug()))?;
            if map.insert(key.to_owned(), value).is_some() {
                return Err(SeamError::invalid_model(format!(
                    "key `{}` occurs twice",
                    key.escape_debug()
                )));
            }
        }
        Ok(Self(map))
    }

    /// All pairs, by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.0.iter().map(|(k, v)| (k.as_str(), v))
    }

    /// A value of any type.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.0.get(key)
    }

    fn typed<T>(
        &self,
        key: &str,
        want: &str,
        read: impl FnOnce(&Value) -> Option<T>,
    ) -> SeamResult<Option<T>> {
        let Some(value) = self.0.get(key) else {
            return Ok(None);
        };
        read(value).map(Some).ok_or_else(|| {
            SeamError::invalid_model(format!("key `{key}` is {}, not {want}", value.kind()))
        })
    }

    /// A string, where the key is there.
    ///
    /// # Errors
    /// `InvalidModel` where it is something else.
    pub fn string(&self, key: &str) -> SeamResult<Option<&str>> {
        let Some(value) = self.0.get(key) else {
            return Ok(None);
        };
        match value {
            Value::String(s) => Ok(Some(s)),
            other => Err(SeamError::invalid_model(format!(
                "key `{key}` is {}, not a string",
                other.kind()
            ))),
        }
    }

    /// A boolean, where the key is there.
    ///
    /// # Errors
    /// `InvalidModel` where it is something else.
    pub fn boolean(&self, key: &str) -> SeamResult<Option<bool>> {
        self.typed(key, "a boolean", |v| match v {
            Value::Bool(b) => Some(*b),
            _ => None,
        })
    }

    /// A binary32, where the key is there; a wider float is accepted where it is one.
    ///
    /// # Errors
    /// `InvalidModel` where it is something else or not finite.
    pub fn float(&self, key: &str) -> SeamResult<Option<f32>> {
        self.typed(key, "a finite 32-bit float", |v| match *v {
            Value::F32(f) => Some(f).filter(|f| f.is_finite()),
            Value::F64(f) => Some(f as f32).filter(|&n| f64::from(n) == f && n.is_finite()),
            _ => None,
        })
    }

    /// An integer from 0 to `limit`, where the key is there.
    ///
    /// # Errors
    /// `InvalidModel` where it is something else or outside that range.
    pub fn count(&self, key: &str, limit: u32) -> SeamResult<Option<u32>> {
        self.typed(key, &format!("an integer from 0 to {limit}"), |v| {
            v.integer()
                .and_then(|v| u32::try_from(v).ok())
                .filter(|&v| v <= limit)
        })
    }

    /// A list of strings, where the key is there.
    ///
    /// # Errors
    /// `InvalidModel` where it is something else.
    pub fn strings(&self, key: &str) -> SeamResult<Option<Vec<&str>>> {
        let Some(value) = self.0.get(key) else {
            return Ok(None);
        };
        let list = match value {
            Value::Array(items) => items
                .iter()
                .map(|v| match v {
                    Value::String(s) => Some(s.as_str()),
                    _ => None,
                })
                .collect(),
            _ => None,
        };
        list.map(Some).ok_or_else(|| {
            SeamError::invalid_model(format!("key `{key}` is not a list of strings"))
        })
    }

    /// A list of integers that fit i64, where the key is there.
    ///
    /// # Errors
    /// `InvalidModel` where it is something else.
    pub fn integers(&self, key: &str) -> SeamResult<Option<Vec<i64>>> {
        self.typed(key, "a list of integers", |v| match v {
            Value::Array(items) => items
                .iter()
                .map(|v| v.integer().and_then(|v| i64::try_from(v).ok()))
                .collect(),
            _ => None,
        })
    }

    /// A list of binary32, where the key is there.
    ///
    /// # Errors
    /// `InvalidModel` where it is something else.
    pub fn floats(&self, key: &str) -> SeamResult<Option<Vec<f32>>> {
        self.typed(key, "a list of 32-bit floats", |v| match v {
            Value::Array(items) => items
                .iter()
                .map(|v| match v {
                    Value::F32(f) => Some(*f),
                    _ => None,
                })
                .collect(),
            _ => None,
        })
    }
}

const ARRAY: u32 = 9;

fn read_value(cursor: &mut Cursor<'_>, kind: u32) -> SeamResult<Value> {
    if kind != ARRAY {
        return read_scalar(cursor, kind);
    }
    let element = cursor.u32()?;
    let len = cursor.u64()?;
    if element == ARRAY {
        return Err(SeamError::invalid_model("an array of arrays"));
    }
    let fits = (cursor.remaining() / least_size(element)?) as u64;
    if len > MAX_ARRAY_LEN.min(fits) {
        return Err(SeamError::invalid_model(format!(
            "an array claims {len} elements; at most {} are possible",
            MAX_ARRAY_LEN.min(fits)
        )));
    }
    (0..len)
        .map(|i| read_scalar(cursor, element).in_context(|| format!("element {i}")))
        .collect::<SeamResult<_>>()
        .map(Value::Array)
}

fn unknown_type(kind: u32) -> SeamError {
    SeamError::invalid_model(format!("unknown value type {kind}"))
}

/// Bytes a value of a type takes at least.
fn least_size(kind: u32) -> SeamResult<usize> {
    match kind {
        0 | 1 | 7 => Ok(1),
        2 | 3 => Ok(2),
        4..=6 => Ok(4),
        8 | 10..=12 => Ok(8),
        other => Err(unknown_type(other)),
    }
}

fn read_scalar(cursor: &mut Cursor<'_>, kind: u32) -> SeamResult<Value> {
    Ok(match kind {
        0 => Value::Unsigned(u8::from_le_bytes(cursor.array()?).into()),
        1 => Value::Signed(i8::from_le_bytes(cursor.array()?).into()),
        2 => Value::Unsigned(u16::from_le_bytes(cursor.array()?).into()),
        3 => Value::Signed(i16::from_le_bytes(cursor.array()?).into()),
        4 => Value::Unsigned(u32::from_le_bytes(cursor.array()?).into()),
        5 => Value::Signed(i32::from_le_bytes(cursor.array()?).into()),
        6 => Value::F32(f32::from_le_bytes(cursor.array()?)),
        7 => match cursor.array()? {
            [0] => Value::Bool(false),
            [1] => Value::Bool(true),
            [other] => {
                return Err(SeamError::invalid_model(format!(
                    "a boolean is {other}, neither 0 nor 1"
                )));
            }
        },
        8 => Value::String(cursor.string(MAX_STRING_BYTES)?.to_owned()),
        10 => Value::Unsigned(u64::from_le_bytes(cursor.array()?)),
        11 => Value::Signed(i64::from_le_bytes(cursor.array()?)),
        12 => Value::F64(f64::from_le_bytes(cursor.array()?)),
        other => return Err(unknown_type(other)),
    })
}
