//! Methods of texts, dicts and lists, as Python has them, with counted results.

use std::sync::Arc;

use minijinja::value::{Value, ValueKind, from_args};
use minijinja::{Environment, Error, ErrorKind, FormatStyle, State};
use minijinja_contrib::pycompat;

use super::budget::{Budget, error};
use super::filters::pair;
use super::format::formatted;
use super::python::{Tuple, int};

/// Widest a text is padded to.
const MAX_WIDTH: i64 = 1 << 20;

/// Where a text stands in its padding.
#[derive(Clone, Copy)]
pub(super) enum Align {
    Left,
    Center,
    Right,
}

/// Adds the methods to an environment.
pub(super) fn install(env: &mut Environment<'_>, budget: &Arc<Budget>) {
    let budget = budget.clone();
    env.set_unknown_method_callback(move |state, value, method, args| {
        budget.tick()?;
        match (value.as_str(), value.kind()) {
            (Some(s), _) => string_method(&budget, state, value, s, method, args),
            (None, ValueKind::Map) => dict_method(state, value, method, args),
            (None, ValueKind::Seq) => list_method(state, value, method, args),
            _ => Err(Error::from(ErrorKind::UnknownMethod)),
        }
    });
}

fn string_method(
    budget: &Budget,
    state: &State<'_, '_>,
    value: &Value,
    s: &str,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    let padded = |align| {
        let (width, fill): (i64, Option<&str>) = from_args(args)?;
        let fill = fill.and_then(|f| f.chars().next()).unwrap_or(' ');
        pad(budget, s, width, fill, align).map(Value::from)
    };
    match method {
        "strip" | "lstrip" | "rstrip" => {
            let (chars,): (Option<&str>,) = from_args(args)?;
            Ok(strip(s, chars, method != "rstrip", method != "lstrip").into())
        }
        "split" | "rsplit" => {
            let (separator, limit) = split_args(args)?;
            split(budget, s, separator.as_deref(), limit, method == "rsplit")
        }
        "partition" | "rpartition" => {
            let (separator,): (&str,) = from_args(args)?;
            let found = if method == "partition" {
                s.split_once(separator)
            } else {
                s.rsplit_once(separator)
            };
            let parts = match found {
                Some((a, b)) => [a, separator, b],
                None if method == "partition" => [s, "", ""],
                None => ["", "", s],
            };
            Ok(Tuple::value(parts.map(Value::from).into()))
        }
        "replace" => {
            let (old, new, count): (&str, &str, Option<i64>) = from_args(args)?;
            replace(budget, s, old, new, count).map(Value::from)
        }
        "join" => {
            let (items,): (&Value,) = from_args(args)?;
            let mut out = String::new();
            for (index, item) in items.try_iter()?.enumerate() {
                let item = item
                    .as_str()
                    .ok_or_else(|| error(format!("join: item {index} is not a text")))?;
                let separator = if index > 0 { s } else { "" };
                budget.bytes(separator.len() + item.len())?;
                out.push_str(separator);
                out.push_str(item);
            }
            Ok(out.into())
        }
        "format" => formatted(budget, FormatStyle::StrFormat, s, args).map(Value::from),
        "find" | "rfind" | "index" | "rindex" => {
            let (what,): (&str,) = from_args(args)?;
            let at = if method.starts_with('r') {
                s.rfind(what)
            } else {
                s.find(what)
            };
            match at {
                Some(at) => Ok(int(s[..at].chars().count() as i128)),
                None if method.ends_with("find") => Ok(int(-1)),
                None => Err(error("index: the text is not in there")),
            }
        }
        "count" => {
            let (what,): (&str,) = from_args(args)?;
            // The empty text stands between all characters.
            let n = if what.is_empty() {
                s.chars().count() + 1
            } else {
                s.matches(what).count()
            };
            Ok(int(n as i128))
        }
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Ok(s.strip_prefix(prefix).unwrap_or(s).into())
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Ok(s.strip_suffix(suffix).unwrap_or(s).into())
        }
        "splitlines" => {
            let (keep,): (Option<bool>,) = from_args(args)?;
            split_lines(budget, s, keep.unwrap_or(false))
        }
        "ljust" => padded(Align::Left),
        "rjust" => padded(Align::Right),
        "center" => padded(Align::Center),
        "zfill" => {
            let (width,): (i64,) = from_args(args)?;
            let (sign, digits) = match s.strip_prefix(['-', '+']) {
                Some(digits) => s.split_at(s.len() - digits.len()),
                None => ("", s),
            };
            let width = width.saturating_sub(sign.len() as i64);
            Ok(format!("{sign}{}", pad(budget, digits, width, '0', Align::Right)?).into())
        }
        "casefold" => {
            let () = from_args(args)?;
            Ok(s.to_lowercase().into())
        }
        _ => pycompat::unknown_method_callback(state, value, method, args),
    }
}

fn dict_method(
    state: &State<'_, '_>,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    match method {
        "items" => {
            let () = from_args(args)?;
            pairs(value)
        }
        "keys" => {
            let () = from_args(args)?;
            Ok(value.try_iter()?.collect())
        }
        "copy" => {
            let () = from_args(args)?;
            Ok(value.clone())
        }
        _ => pycompat::unknown_method_callback(state, value, method, args),
    }
}

fn list_method(
    state: &State<'_, '_>,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    match method {
        "index" => {
            let (what,): (&Value,) = from_args(args)?;
            match value.try_iter()?.position(|item| item == *what) {
                Some(at) => Ok(int(at as i128)),
                None => Err(error("index: the value is not in there")),
            }
        }
        "copy" => {
            let () = from_args(args)?;
            Ok(value.clone())
        }
        _ => pycompat::unknown_method_callback(state, value, method, args),
    }
}

/// Key and value of each entry of a dict.
pub(super) fn pairs(value: &Value) -> Result<Value, Error> {
    if value.is_undefined() {
        return Ok(Value::from(Vec::<Value>::new()));
    }
    if value.kind() != ValueKind::Map {
        return Err(error(format!(
            "a value of type {} has no items",
            value.kind()
        )));
    }
    let pairs = value.as_object().and_then(|o| o.try_iter_pairs());
    Ok(pairs
        .into_iter()
        .flatten()
        .map(|(k, v)| pair(k, v))
        .collect())
}

/// Whitespace as Python's `str.strip` and `str.split` see it.
fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

pub(super) fn strip<'s>(s: &'s str, chars: Option<&str>, left: bool, right: bool) -> &'s str {
    let drop = |c: char| chars.map_or_else(|| is_space(c), |set| set.contains(c));
    let s = if left { s.trim_start_matches(drop) } else { s };
    if right { s.trim_end_matches(drop) } else { s }
}

/// `replace`, with the result counted before it is made.
pub(super) fn replace(
    budget: &Budget,
    s: &str,
    old: &str,
    new: &str,
    count: Option<i64>,
) -> Result<String, Error> {
    let count = usize::try_from(count.unwrap_or(-1)).unwrap_or(usize::MAX);
    let found = s.matches(old).take(count).count();
    budget.bytes(s.len().saturating_add(found.saturating_mul(new.len())))?;
    Ok(s.replacen(old, new, found))
}

/// Pads to `width` characters; where an odd one is left over, Python puts it on the left if the
/// width is odd, else on the right.
pub(super) fn pad(
    budget: &Budget,
    s: &str,
    width: i64,
    fill: char,
    align: Align,
) -> Result<String, Error> {
    if width > MAX_WIDTH {
        return Err(error(format!("pads to more than {MAX_WIDTH} characters")));
    }
    let width = usize::try_from(width).unwrap_or(0);
    let missing = width.saturating_sub(s.chars().count());
    budget.bytes(s.len() + missing * fill.len_utf8())?;
    let left = match align {
        Align::Left => 0,
        Align::Right => missing,
        Align::Center => missing / 2 + (missing & width & 1),
    };
    let fill = |n: usize| std::iter::repeat_n(fill, n).collect::<String>();
    Ok(format!("{}{s}{}", fill(left), fill(missing - left)))
}

fn split_args(args: &[Value]) -> Result<(Option<String>, Option<usize>), Error> {
    let (args, kwargs) = match args.split_last() {
        Some((last, rest)) if last.is_kwargs() => (rest, Some(last)),
        _ => (args, None),
    };
    let named = |name: &str| kwargs.and_then(|k| k.get_attr(name).ok());
    let (separator, limit): (Option<Value>, Option<i64>) = from_args(args)?;
    let separator = separator
        .or_else(|| named("sep"))
        .filter(|v| !v.is_none() && !v.is_undefined());
    let limit = limit.or_else(|| named("maxsplit").and_then(|v| v.as_i64()));
    let separator = match separator {
        None => None,
        Some(v) => Some(
            v.as_str()
                .ok_or_else(|| error("split: the separator is not a text"))?
                .to_owned(),
        ),
    };
    if separator.as_deref() == Some("") {
        return Err(error("split: the separator is empty"));
    }
    Ok((separator, limit.and_then(|n| usize::try_from(n).ok())))
}

/// `split` and `rsplit`: at most `limit` cuts, from the left or the right.
fn split(
    budget: &Budget,
    s: &str,
    separator: Option<&str>,
    limit: Option<usize>,
    from_right: bool,
) -> Result<Value, Error> {
    let limit = limit.unwrap_or(usize::MAX);
    let mut parts: Vec<Value> = Vec::new();
    let mut rest = s;
    if separator.is_none() {
        rest = strip(rest, None, !from_right, from_right);
    }
    loop {
        // Without a separator, runs of whitespace cut and none is left at the outer end.
        let cut = if parts.len() == limit {
            None
        } else {
            match (separator, from_right) {
                (Some(sep), false) => rest.split_once(sep),
                (Some(sep), true) => rest.rsplit_once(sep).map(|(a, b)| (b, a)),
                (None, false) => rest
                    .split_once(is_space)
                    .map(|(a, b)| (a, strip(b, None, true, false))),
                (None, true) => rest
                    .rsplit_once(is_space)
                    .map(|(a, b)| (b, strip(a, None, false, true))),
            }
        };
        budget.nodes(1)?;
        match cut {
            Some((part, tail)) => {
                parts.push(part.into());
                rest = tail;
            }
            None => {
                // With the limit reached, what remains loses its whitespace at the other end only
                // if it is cut there.
                if separator.is_some() || !rest.is_empty() {
                    parts.push(rest.into());
                }
                break;
            }
        }
    }
    if from_right {
        parts.reverse();
    }
    Ok(parts.into())
}

/// `splitlines`, at all line ends that Python knows.
fn split_lines(budget: &Budget, s: &str, keep: bool) -> Result<Value, Error> {
    let is_end = |c: char| {
        matches!(
            c,
            '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'
                ..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
        )
    };
    let mut lines: Vec<Value> = Vec::new();
    let mut rest = s;
    while !rest.is_empty() {
        budget.nodes(1)?;
        let end = rest.find(is_end).unwrap_or(rest.len());
        let mark = match &rest[end..] {
            tail if tail.starts_with("\r\n") => 2,
            tail => tail.chars().next().map_or(0, char::len_utf8),
        };
        lines.push(rest[..if keep { end + mark } else { end }].into());
        rest = &rest[end + mark..];
    }
    Ok(lines.into())
}
