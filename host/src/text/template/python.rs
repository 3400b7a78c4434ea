//! Values as Python prints them: what `{{ value }}` and `~` give in Jinja.

use std::fmt::Write;
use std::sync::Arc;

use minijinja::Error;
use minijinja::value::{Enumerator, Object, ObjectRepr, Value, ValueKind};

use super::budget::{Budget, MAX_DEPTH, error, is_namespace};

/// A list that prints with parentheses.
#[derive(Debug)]
pub(super) struct Tuple(Vec<Value>);

impl Tuple {
    pub(super) fn value(items: Vec<Value>) -> Value {
        Value::from_object(Self(items))
    }
}

impl Object for Tuple {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.0.get(key.as_usize()?).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.0.len())
    }
}

/// A number, as Python's arithmetic sees it: booleans are integers.
pub(super) enum Number {
    Int(i128),
    Float(f64),
}

impl Number {
    pub(super) fn of(value: &Value) -> Option<Self> {
        match value.kind() {
            ValueKind::Bool => Some(Self::Int(i128::from(value.is_true()))),
            ValueKind::Number if value.is_integer() => {
                i128::try_from(value.clone()).ok().map(Self::Int)
            }
            ValueKind::Number => f64::try_from(value.clone()).ok().map(Self::Float),
            _ => None,
        }
    }

    pub(super) fn float(&self) -> f64 {
        match self {
            Self::Int(n) => *n as f64,
            Self::Float(x) => *x,
        }
    }
}

/// An integer as a value, in the smallest form.
pub(super) fn int(n: i128) -> Value {
    i64::try_from(n).map_or_else(|_| Value::from(n), Value::from)
}

/// `str(value)`, counted; an undefined value is an empty text.
pub(super) fn text(budget: &Budget, value: &Value) -> Result<String, Error> {
    let mut out = String::new();
    if let Some(text) = value.as_str() {
        push(budget, &mut out, text)?;
    } else if !value.is_undefined() {
        write_repr(budget, &mut out, value, 0)?;
    }
    Ok(out)
}

fn push(budget: &Budget, out: &mut String, text: &str) -> Result<(), Error> {
    budget.bytes(text.len())?;
    out.push_str(text);
    Ok(())
}

/// `repr(value)`.
fn write_repr(budget: &Budget, out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(error("prints a value that is nested too deep"));
    }
    budget.nodes(1)?;
    match value.kind() {
        ValueKind::Undefined => push(budget, out, "Undefined"),
        ValueKind::None => push(budget, out, "None"),
        ValueKind::Bool => push(budget, out, if value.is_true() { "True" } else { "False" }),
        ValueKind::Number => push(budget, out, &number(value)),
        ValueKind::String => {
            let text = value.as_str().unwrap_or_default();
            // Escapes make at most ten characters of one.
            budget.bytes(text.len())?;
            write_string(out, text);
            Ok(())
        }
        ValueKind::Map => {
            let namespace = is_namespace(value);
            push(budget, out, if namespace { "<Namespace {" } else { "{" })?;
            let pairs = value.as_object().and_then(|o| o.try_iter_pairs());
            for (index, (key, item)) in pairs.into_iter().flatten().enumerate() {
                push(budget, out, if index > 0 { ", " } else { "" })?;
                write_repr(budget, out, &key, depth + 1)?;
                push(budget, out, ": ")?;
                write_repr(budget, out, &item, depth + 1)?;
            }
            push(budget, out, if namespace { "}>" } else { "}" })
        }
        ValueKind::Seq | ValueKind::Iterable => {
            let tuple = value.downcast_object_ref::<Tuple>();
            push(budget, out, if tuple.is_some() { "(" } else { "[" })?;
            for (index, item) in value.try_iter()?.enumerate() {
                push(budget, out, if index > 0 { ", " } else { "" })?;
                write_repr(budget, out, &item, depth + 1)?;
            }
            push(
                budget,
                out,
                match tuple {
                    Some(Tuple(items)) if items.len() == 1 => ",)",
                    Some(_) => ")",
                    None => "]",
                },
            )
        }
        // Macros and functions; what Python prints for those is an address.
        _ => push(budget, out, &value.to_string()),
    }
}

/// A number as Python prints it.
pub(super) fn number(value: &Value) -> String {
    match Number::of(value) {
        Some(Number::Float(x)) => float(x),
        _ => value.to_string(),
    }
}

/// `repr` of a float: the shortest digits that read back as the same, with an exponent from 1e16
/// on and below 1e-4.
pub(super) fn float(x: f64) -> String {
    if x.is_nan() {
        return "nan".into();
    }
    if x.is_infinite() {
        return if x > 0.0 { "inf" } else { "-inf" }.into();
    }
    let scientific = format!("{x:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let plain = format!("{x}");
        return if plain.contains('.') {
            plain
        } else {
            plain + ".0"
        };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.abs())
}

/// `repr` of a string.
fn write_string(out: &mut String, text: &str) {
    let quote = if text.contains('\'') && !text.contains('"') {
        '"'
    } else {
        '\''
    };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            c if is_printable(c) => out.push(c),
            c => {
                let code = u32::from(c);
                // Writing to a string cannot fail.
                let _ = match code {
                    0..=0xFF => write!(out, "\\x{code:02x}"),
                    0x100..=0xFFFF => write!(out, "\\u{code:04x}"),
                    _ => write!(out, "\\U{code:08x}"),
                };
            }
        }
    }
    out.push(quote);
}

/// `str.isprintable`, by way of the standard library's table of what it escapes.
fn is_printable(c: char) -> bool {
    if c == ' ' || c.is_ascii_graphic() {
        return true;
    }
    if c.is_whitespace() || c.is_control() {
        return false;
    }
    // A combining mark is printable, and escaped only at the start of a string.
    let mut buffer = String::from("a");
    buffer.push(c);
    !buffer.escape_debug().to_string().contains("\\u{")
}
