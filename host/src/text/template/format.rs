//! Python's two ways to format, with bounded widths.

use minijinja::value::Value;
use minijinja::{Error, FormatStyle, format_filter};

use super::budget::{Budget, error};
use super::python::{Number, text};

/// Widest field or highest precision.
const MAX_WIDTH: i128 = 4096;

/// `format % args` or `format.format(args)`, counted.
pub(super) fn formatted(
    budget: &Budget,
    style: FormatStyle,
    format: &str,
    args: &[Value],
) -> Result<String, Error> {
    check_widths(style, format, args)?;
    // What is not text or a number is printed as Python does it.
    let args = args
        .iter()
        .map(|v| match Number::of(v) {
            Some(_) if !matches!(v.kind(), minijinja::value::ValueKind::Bool) => Ok(v.clone()),
            _ if v.as_str().is_some() || v.is_kwargs() => Ok(v.clone()),
            _ if style == FormatStyle::StrFormat && v.as_object().is_some() => Ok(v.clone()),
            _ => text(budget, v).map(Value::from),
        })
        .collect::<Result<Vec<_>, Error>>()?;
    // Each field takes an argument once, so fields times the longest argument bounds the result.
    let fields = format.bytes().filter(|b| matches!(b, b'%' | b'{')).count();
    let mut longest = MAX_WIDTH as usize;
    for arg in &args {
        longest = longest.max(text(budget, arg)?.len());
    }
    budget.bytes(fields.saturating_mul(longest).saturating_add(format.len()))?;
    format_filter(style, format, &args)
}

/// Refuses numbers in the format that ask for much, and widths that are arguments.
fn check_widths(style: FormatStyle, format: &str, args: &[Value]) -> Result<(), Error> {
    let digits = format
        .split(|c: char| !c.is_ascii_digit())
        .filter(|run| !run.is_empty());
    for run in digits {
        if run.len() > 6 || run.parse::<i128>().is_ok_and(|n| n > MAX_WIDTH) {
            return Err(error("a format asks for too wide a field"));
        }
    }
    let dynamic = match style {
        FormatStyle::Printf => format.contains('*'),
        // A field within a field.
        FormatStyle::StrFormat => {
            let mut open = 0i32;
            format.bytes().any(|b| {
                open += i32::from(b == b'{') - i32::from(b == b'}');
                open > 1
            })
        }
    };
    let large = |v: &Value| {
        matches!(Number::of(v), Some(Number::Int(n)) if n.abs() > MAX_WIDTH)
            || v.as_object().is_some()
    };
    if dynamic && args.iter().any(large) {
        return Err(error("a format asks for too wide a field"));
    }
    Ok(())
}
