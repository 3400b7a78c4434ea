//! Filters and tests that differ from the engine's: Python's printing, counted results.

use std::sync::Arc;

use minijinja::value::{Kwargs, Rest, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, FormatStyle};

use super::budget::{Budget, error};
use super::format::formatted;
use super::json::dumps;
use super::python::{Number, Tuple, int, text};
use super::strings::{self, replace};

/// Filters of the engine that Jinja does not have.
const UNKNOWN_TO_JINJA: [&str; 6] = ["chain", "zip", "split", "lines", "bool", "pprint"];

/// Replaces filters and tests of an environment.
pub(super) fn install(env: &mut Environment<'_>, budget: &Arc<Budget>) {
    for name in UNKNOWN_TO_JINJA {
        env.remove_filter(name);
    }
    macro_rules! filter {
        ($name:expr, |$budget:ident, $($arg:ident: $type:ty),*| $body:expr) => {{
            let $budget = budget.clone();
            env.add_filter($name, move |$($arg: $type),*| -> Result<Value, Error> {
                $budget.tick()?;
                $body
            });
        }};
    }
    filter!("tojson", |budget, v: &Value, kwargs: Kwargs| {
        dumps(&budget, v, &kwargs).map(Value::from)
    });
    filter!("string", |budget, v: &Value| text(&budget, v)
        .map(Value::from));
    filter!("join", |budget,
                     v: &Value,
                     d: Option<&Value>,
                     kwargs: Kwargs| {
        join(&budget, v, d, &kwargs)
    });
    filter!("replace", |budget,
                        v: &Value,
                        old: &Value,
                        new: &Value,
                        count: Option<i64>| {
        let (v, old, new) = (text(&budget, v)?, text(&budget, old)?, text(&budget, new)?);
        replace(&budget, &v, &old, &new, count).map(Value::from)
    });
    filter!("indent", |budget, v: &Value, args: Rest<Value>| indent(
        &budget, v, &args
    ));
    filter!("center", |budget, v: &Value, width: Option<i64>| {
        let v = text(&budget, v)?;
        strings::pad(
            &budget,
            &v,
            width.unwrap_or(80),
            ' ',
            strings::Align::Center,
        )
        .map(Value::from)
    });
    filter!("format", |budget, v: &Value, args: Rest<Value>| {
        let v = text(&budget, v)?;
        formatted(&budget, FormatStyle::Printf, &v, &args).map(Value::from)
    });
    filter!("batch", |budget,
                      v: &Value,
                      n: usize,
                      fill: Option<Value>| {
        batch(&budget, v, n, fill.as_ref())
    });
    filter!("slice", |budget,
                      v: &Value,
                      n: usize,
                      fill: Option<Value>| {
        slices(&budget, v, n, fill.as_ref())
    });
    filter!("round", |_budget, v: &Value, args: Rest<Value>| round(
        v, &args
    ));
    filter!("items", |_budget, v: &Value| strings::pairs(v));
    filter!("wordcount", |_budget, v: &Value| {
        let words = v
            .as_str()
            .unwrap_or_default()
            .split(|c: char| !(c.is_alphanumeric() || c == '_'));
        Ok(int(words.filter(|w| !w.is_empty()).count() as i128))
    });
    filter!("trim", |_budget, v: &Value, chars: Option<&str>| {
        match v.as_str() {
            Some(s) => Ok(strings::strip(s, chars, true, true).into()),
            None => Err(error("trim: not a text")),
        }
    });
    filter!("int", |_budget, v: &Value, default: Option<Value>| {
        Ok(to_int(v).map(int).or(default).unwrap_or_else(|| int(0)))
    });
    filter!("float", |_budget, v: &Value, default: Option<Value>| {
        Ok(to_float(v)
            .map(Value::from)
            .or(default)
            .unwrap_or_else(|| Value::from(0.0)))
    });
    for name in ["length", "count"] {
        filter!(name, |_budget, v: &Value| length(v));
    }
    for name in ["default", "d"] {
        filter!(name, |_budget,
                       v: &Value,
                       other: Option<Value>,
                       lax: Option<Value>,
                       kwargs: Kwargs| {
            let other = other
                .or(kwargs.get("default_value")?)
                .unwrap_or_else(|| Value::from(""));
            let lax = lax.or(kwargs.get("boolean")?).is_some_and(|v| v.is_true());
            Ok(if v.is_undefined() || (lax && !v.is_true()) {
                other
            } else {
                v.clone()
            })
        });
    }
    tests(env);
}

fn tests(env: &mut Environment<'_>) {
    // In Python a text is a sequence of characters and a dict has items by index too.
    let sequence = |v: &Value| {
        matches!(
            v.kind(),
            ValueKind::Seq | ValueKind::String | ValueKind::Map | ValueKind::Undefined
        )
    };
    env.add_test("sequence", sequence);
    env.add_test("iterable", move |v: &Value| {
        sequence(v) || v.kind() == ValueKind::Iterable
    });
    env.add_test("number", |v: &Value| Number::of(v).is_some());
    env.add_test("callable", |v: &Value| v.kind() == ValueKind::Plain);
}

fn join(
    budget: &Budget,
    value: &Value,
    separator: Option<&Value>,
    kwargs: &Kwargs,
) -> Result<Value, Error> {
    let separator = match separator {
        Some(d) => text(budget, d)?,
        None => kwargs.get::<Option<String>>("d")?.unwrap_or_default(),
    };
    let attribute: Option<Value> = kwargs.get("attribute")?;
    kwargs.assert_all_used()?;
    let mut out = String::new();
    for (index, item) in value.try_iter()?.enumerate() {
        if index > 0 {
            budget.bytes(separator.len())?;
            out.push_str(&separator);
        }
        let item = match &attribute {
            Some(key) => item.get_item(key)?,
            None => item,
        };
        out.push_str(&text(budget, &item)?);
    }
    Ok(out.into())
}

/// `indent(width=4, first=false, blank=false)`; the width may be a text.
fn indent(budget: &Budget, value: &Value, args: &[Value]) -> Result<Value, Error> {
    let (args, kwargs) = match args.split_last() {
        Some((last, rest)) if last.is_kwargs() => (rest, Kwargs::try_from(last.clone())?),
        _ => (args, Kwargs::from_iter([] as [(&str, Value); 0])),
    };
    let arg = |index: usize, name: &str| -> Result<Option<Value>, Error> {
        match args.get(index) {
            Some(v) => Ok(Some(v.clone())),
            None => kwargs.get(name),
        }
    };
    let (width, first, blank) = (arg(0, "width")?, arg(1, "first")?, arg(2, "blank")?);
    kwargs.assert_all_used()?;
    let prefix = match width {
        None => "    ".to_owned(),
        Some(w) => match (w.as_str(), w.as_i64()) {
            (Some(prefix), _) => prefix.to_owned(),
            (None, Some(n)) => {
                let n = usize::try_from(n.max(0)).unwrap_or(usize::MAX);
                budget.bytes(n)?;
                " ".repeat(n)
            }
            _ => return Err(error("indent: the width is neither a number nor a text")),
        },
    };
    let (first, blank) = (
        first.is_some_and(|v| v.is_true()),
        blank.is_some_and(|v| v.is_true()),
    );
    let value = text(budget, value)?;
    let mut out = String::new();
    // Jinja adds a newline and drops it again, so one at the end of the text stays a line of its own.
    for (index, line) in value.split('\n').enumerate() {
        if index > 0 {
            out.push('\n');
        }
        let wanted = if index == 0 {
            first
        } else {
            blank || !line.is_empty()
        };
        if wanted {
            budget.bytes(prefix.len())?;
            out.push_str(&prefix);
        }
        budget.bytes(line.len() + 1)?;
        out.push_str(line);
    }
    Ok(out.into())
}

fn batch(budget: &Budget, value: &Value, n: usize, fill: Option<&Value>) -> Result<Value, Error> {
    if n == 0 {
        return Err(error("batch: the size is zero"));
    }
    let items: Vec<Value> = value.try_iter()?.collect();
    budget.nodes(items.len())?;
    let mut groups: Vec<Vec<Value>> = items.chunks(n).map(<[Value]>::to_vec).collect();
    if let (Some(fill), Some(last)) = (fill, groups.last_mut()) {
        budget.nodes(n - last.len())?;
        last.resize(n, fill.clone());
    }
    Ok(groups.into_iter().map(Value::from).collect())
}

/// `slice(n, fill_with)`: n lists of nearly the same length.
fn slices(budget: &Budget, value: &Value, n: usize, fill: Option<&Value>) -> Result<Value, Error> {
    if n == 0 {
        return Err(error("slice: the number is zero"));
    }
    let items: Vec<Value> = value.try_iter()?.collect();
    budget.nodes(items.len().saturating_add(n))?;
    let (each, extra) = (items.len() / n, items.len() % n);
    let mut rest = items.as_slice();
    let mut groups = Vec::new();
    for index in 0..n {
        let (group, tail) = rest.split_at(each + usize::from(index < extra));
        rest = tail;
        let mut group = group.to_vec();
        if let Some(fill) = fill
            && index >= extra
            && extra != 0
        {
            group.push(fill.clone());
        }
        groups.push(Value::from(group));
    }
    Ok(groups.into())
}

/// `round(precision=0, method="common")`: half to even, as Python does it.
fn round(value: &Value, args: &[Value]) -> Result<Value, Error> {
    let precision = args
        .first()
        .and_then(Value::as_i64)
        .unwrap_or(0)
        .clamp(-300, 300);
    let method = args.get(1).and_then(Value::as_str).unwrap_or("common");
    let x = match (Number::of(value), method) {
        (Some(Number::Int(n)), "common") if precision >= 0 => return Ok(int(n)),
        (Some(n), _) => n.float(),
        (None, _) => return Err(error(format!("round: not a number but {}", value.kind()))),
    };
    let scale = libm::pow(10.0, precision as f64);
    let rounded = match method {
        "ceil" => (x * scale).ceil() / scale,
        "floor" => (x * scale).floor() / scale,
        "common" if precision >= 0 => {
            let digits = usize::try_from(precision).unwrap_or(0);
            format!("{x:.digits$}").parse().unwrap_or(x)
        }
        "common" => (x * scale).round_ties_even() / scale,
        other => return Err(error(format!("round: unknown method {other:?}"))),
    };
    Ok(rounded.into())
}

/// A number, or what a text spells; a fraction is cut off.
fn to_int(value: &Value) -> Option<i128> {
    let whole = |x: f64| (x.is_finite() && x.abs() < 1e38).then_some(x as i128);
    match (Number::of(value), value.as_str()) {
        (Some(Number::Int(n)), _) => Some(n),
        (Some(Number::Float(x)), _) => whole(x),
        (None, Some(s)) => s
            .trim()
            .parse()
            .ok()
            .or_else(|| whole(s.trim().parse().ok()?)),
        _ => None,
    }
}

fn to_float(value: &Value) -> Option<f64> {
    match (Number::of(value), value.as_str()) {
        (Some(n), _) => Some(n.float()),
        (None, Some(s)) => s.trim().parse().ok(),
        _ => None,
    }
}

fn length(value: &Value) -> Result<Value, Error> {
    if value.is_undefined() {
        return Ok(int(0));
    }
    let count = match value.as_str() {
        Some(s) => Some(s.chars().count()),
        None => value
            .len()
            .or_else(|| value.try_iter().ok().map(Iterator::count)),
    };
    match count {
        Some(n) if !value.is_none() => Ok(int(n as i128)),
        _ => Err(Error::new(
            ErrorKind::InvalidOperation,
            format!("a value of type {} has no length", value.kind()),
        )),
    }
}

/// A pair as Python makes it.
pub(super) fn pair(key: Value, value: Value) -> Value {
    Tuple::value(vec![key, value])
}
