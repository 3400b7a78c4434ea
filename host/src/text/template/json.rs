//! `tojson`, as transformers defines it for chat templates: Python's `json.dumps`, which unlike
//! Jinja's own escapes nothing for HTML.

use std::fmt::Write;

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, ErrorKind};

use super::budget::{Budget, MAX_DEPTH, error};
use super::python::{Number, float, number};

/// Widest indent, in characters.
const MAX_INDENT: usize = 64;

struct Dumper<'b> {
    budget: &'b Budget,
    out: String,
    ascii: bool,
    sort_keys: bool,
    indent: Option<String>,
    item: String,
    colon: String,
}

/// The filter: `value | tojson(ensure_ascii=false, indent=none, separators=none, sort_keys=false)`.
pub(super) fn dumps(budget: &Budget, value: &Value, kwargs: &Kwargs) -> Result<String, Error> {
    let flag = |name| kwargs.get::<Option<bool>>(name).map(|v| v.unwrap_or(false));
    let indent: Option<Value> = kwargs.get("indent")?;
    let indent = indent
        .filter(|v| !v.is_none() && !v.is_undefined())
        .map(|v| {
            let width = v
                .as_i64()
                .and_then(|n| usize::try_from(n).ok())
                .unwrap_or(0);
            v.as_str()
                .map_or_else(|| " ".repeat(width.min(MAX_INDENT + 1)), str::to_owned)
        });
    if indent.as_ref().is_some_and(|i| i.len() > MAX_INDENT) {
        return Err(error(format!("tojson: indent above {MAX_INDENT}")));
    }
    let separators: Option<Vec<String>> = kwargs.get("separators")?;
    let (item, colon) = match separators.as_deref() {
        Some([item, colon]) => (item.clone(), colon.clone()),
        Some(_) => return Err(error("tojson: separators must be two strings")),
        None if indent.is_some() => (",".into(), ": ".into()),
        None => (", ".into(), ": ".into()),
    };
    let mut dumper = Dumper {
        budget,
        out: String::new(),
        ascii: flag("ensure_ascii")?,
        sort_keys: flag("sort_keys")?,
        indent,
        item,
        colon,
    };
    kwargs.assert_all_used()?;
    dumper.value(value, 0)?;
    Ok(dumper.out)
}

impl Dumper<'_> {
    fn push(&mut self, text: &str) -> Result<(), Error> {
        self.budget.bytes(text.len())?;
        self.out.push_str(text);
        Ok(())
    }

    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(error("tojson: the value is nested too deep"));
        }
        self.budget.nodes(1)?;
        match value.kind() {
            ValueKind::None => self.push("null"),
            ValueKind::Bool | ValueKind::Number => self.push(&scalar(value)),
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Map => self.map(value, depth),
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.group(['[', ']'], items.len(), depth, |dumper, index| {
                    dumper.value(&items[index], depth + 1)
                })
            }
            kind => Err(Error::new(
                ErrorKind::BadSerialization,
                format!("tojson: a value of type {kind} has no JSON form"),
            )),
        }
    }

    fn map(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        let pairs = value.as_object().and_then(|o| o.try_iter_pairs());
        let mut pairs: Vec<(Value, Value)> = pairs.into_iter().flatten().collect();
        if self.sort_keys {
            pairs.sort_by(|a, b| a.0.cmp(&b.0));
        }
        self.group(['{', '}'], pairs.len(), depth, |dumper, index| {
            let (key, item) = &pairs[index];
            match key.as_str() {
                Some(key) => dumper.string(key)?,
                None if matches!(
                    key.kind(),
                    ValueKind::None | ValueKind::Bool | ValueKind::Number
                ) =>
                {
                    dumper.string(&scalar(key))?;
                }
                None => return Err(error("tojson: a key is neither text nor a number")),
            }
            let colon = dumper.colon.clone();
            dumper.push(&colon)?;
            dumper.value(item, depth + 1)
        })
    }

    fn group(
        &mut self,
        [open, close]: [char; 2],
        len: usize,
        depth: usize,
        mut entry: impl FnMut(&mut Self, usize) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.push(open.encode_utf8(&mut [0; 4]))?;
        for index in 0..len {
            if index > 0 {
                let separator = self.item.clone();
                self.push(&separator)?;
            }
            self.new_line(depth + 1)?;
            entry(self, index)?;
        }
        if len > 0 {
            self.new_line(depth)?;
        }
        self.push(close.encode_utf8(&mut [0; 4]))
    }

    fn new_line(&mut self, depth: usize) -> Result<(), Error> {
        match self.indent.clone() {
            Some(indent) => self.push(&format!("\n{}", indent.repeat(depth))),
            None => Ok(()),
        }
    }

    fn string(&mut self, text: &str) -> Result<(), Error> {
        // Escapes make at most twelve characters of one.
        self.budget.bytes(text.len() + 2)?;
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c if u32::from(c) < 0x20 || (self.ascii && !c.is_ascii()) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        // Writing to a string cannot fail.
                        let _ = write!(self.out, "\\u{unit:04x}");
                    }
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
        Ok(())
    }
}

/// null, true, false and numbers, as values and as keys.
fn scalar(value: &Value) -> String {
    match value.kind() {
        ValueKind::None => "null".into(),
        ValueKind::Bool => value.is_true().to_string(),
        _ => match Number::of(value) {
            Some(Number::Float(x)) if x.is_nan() => "NaN".into(),
            Some(Number::Float(x)) if x.is_infinite() => {
                if x > 0.0 { "Infinity" } else { "-Infinity" }.into()
            }
            Some(Number::Float(x)) => float(x),
            _ => number(value),
        },
    }
}
