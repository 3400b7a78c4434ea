//! Operators with Python's meaning and counted results. The rewriter puts calls of these in the
//! place of the engine's own.

use std::sync::Arc;

use minijinja::value::{Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, FormatStyle};

use super::budget::{Budget, error, is_namespace};
use super::format::formatted;
use super::python::{Number, Tuple, int, text};

/// Names of the functions; no template can spell them.
pub(super) const CHECK: &str = "op:check";
pub(super) const FRESH: &str = "op:fresh";
pub(super) const STORE: &str = "op:store";
pub(super) const SLICE: &str = "op:slice";
pub(super) const TUPLE: &str = "op:tuple";
pub(super) const ADD: &str = "op:+";
pub(super) const SUB: &str = "op:-";
pub(super) const MUL: &str = "op:*";
pub(super) const DIV: &str = "op:/";
pub(super) const FLOOR_DIV: &str = "op://";
pub(super) const REM: &str = "op:%";
pub(super) const POW: &str = "op:**";
pub(super) const CONCAT: &str = "op:~";

/// Adds the operators to an environment.
pub(super) fn install(env: &mut Environment<'_>, budget: &Arc<Budget>) {
    let mut binary = |name, op: fn(&Budget, &Value, &Value) -> Result<Value, Error>| {
        let budget = budget.clone();
        env.add_function(name, move |a: &Value, b: &Value| {
            budget.tick()?;
            op(&budget, a, b)
        });
    };
    binary(ADD, add);
    binary(SUB, |_, a, b| {
        arithmetic("-", a, b, i128::checked_sub, |a, b| a - b)
    });
    binary(MUL, mul);
    binary(DIV, div);
    binary(FLOOR_DIV, |_, a, b| {
        nonzero(b)?;
        arithmetic("//", a, b, floor_div, |a, b| (a / b).floor())
    });
    binary(REM, rem);
    binary(POW, pow);
    binary(CONCAT, |budget, a, b| {
        let mut out = text(budget, a)?;
        out.push_str(&text(budget, b)?);
        Ok(Value::from(out))
    });
    let mut unary = |name, op: fn(&Budget, Value) -> Result<Value, Error>| {
        let budget = budget.clone();
        env.add_function(name, move |value: Value| {
            budget.tick()?;
            op(&budget, value)
        });
    };
    unary(CHECK, |budget, v| checked(budget, v, false));
    unary(FRESH, |budget, v| checked(budget, v, true));
    unary(STORE, |budget, v| {
        if is_namespace(&v) {
            return Err(error("puts a namespace into another value"));
        }
        checked(budget, v, false)
    });
    unary(TUPLE, |budget, v| {
        budget.count(&v, false)?;
        Ok(Tuple::value(v.try_iter()?.collect()))
    });
    let budget = budget.clone();
    env.add_function(
        SLICE,
        move |value: &Value, start: &Value, stop: &Value, step: &Value| {
            budget.tick()?;
            slice(&budget, value, start, stop, step)
        },
    );
}

/// Counts what an expression has made. What is lazy becomes a list, so that its cost is known.
fn checked(budget: &Budget, value: Value, fresh: bool) -> Result<Value, Error> {
    let value = if value.kind() == ValueKind::Iterable {
        list(budget, &value)?
    } else {
        value
    };
    budget.count(&value, fresh)?;
    Ok(value)
}

/// The items as a list, each counted before it is kept.
pub(super) fn list(budget: &Budget, value: &Value) -> Result<Value, Error> {
    let mut items = Vec::new();
    for item in value.try_iter()? {
        budget.nodes(1)?;
        items.push(item);
    }
    Ok(Value::from(items))
}

fn add(budget: &Budget, a: &Value, b: &Value) -> Result<Value, Error> {
    if let (Some(a), Some(b)) = (a.as_str(), b.as_str()) {
        budget.bytes(a.len() + b.len())?;
        return Ok(Value::from([a, b].concat()));
    }
    if is_list(a) && is_list(b) {
        let mut items = Vec::new();
        for item in a.try_iter()?.chain(b.try_iter()?) {
            budget.nodes(1)?;
            items.push(item);
        }
        let tuples = [a, b]
            .iter()
            .all(|v| v.downcast_object_ref::<Tuple>().is_some());
        return Ok(if tuples {
            Tuple::value(items)
        } else {
            Value::from(items)
        });
    }
    arithmetic("+", a, b, i128::checked_add, |a, b| a + b)
}

fn mul(budget: &Budget, a: &Value, b: &Value) -> Result<Value, Error> {
    let repeated = |value: &Value, times: &Value| -> Result<Option<Value>, Error> {
        let Some(Number::Int(times)) = Number::of(times) else {
            return Ok(None);
        };
        let times =
            usize::try_from(times.max(0)).map_err(|_| error("repeats a value too often"))?;
        if let Some(text) = value.as_str() {
            budget.bytes(text.len().saturating_mul(times))?;
            return Ok(Some(Value::from(text.repeat(times))));
        }
        if is_list(value) {
            let items: Vec<Value> = value.try_iter()?.collect();
            budget.nodes(items.len().saturating_mul(times))?;
            // Nothing repeated is nothing, however often: it would cost time and count as none.
            let times = if items.is_empty() { 0 } else { times };
            let all = std::iter::repeat_n(items, times).flatten();
            return Ok(Some(Value::from(all.collect::<Vec<_>>())));
        }
        Ok(None)
    };
    if let Some(value) = repeated(a, b)?.or(repeated(b, a)?) {
        return Ok(value);
    }
    arithmetic("*", a, b, i128::checked_mul, |a, b| a * b)
}

fn div(_: &Budget, a: &Value, b: &Value) -> Result<Value, Error> {
    nonzero(b)?;
    let (a, b) = numbers("/", a, b)?;
    Ok(Value::from(a.float() / b.float()))
}

fn rem(budget: &Budget, a: &Value, b: &Value) -> Result<Value, Error> {
    if let Some(format) = a.as_str() {
        let args = match b.downcast_object_ref::<Tuple>() {
            Some(_) => b.try_iter()?.collect(),
            None => vec![b.clone()],
        };
        return formatted(budget, FormatStyle::Printf, format, &args).map(Value::from);
    }
    nonzero(b)?;
    // Python's remainder has the sign of the divisor.
    arithmetic(
        "%",
        a,
        b,
        |a, b| {
            floor_div(a, b)?
                .checked_mul(b)
                .and_then(|q| a.checked_sub(q))
        },
        |a, b| a - b * (a / b).floor(),
    )
}

fn pow(_: &Budget, a: &Value, b: &Value) -> Result<Value, Error> {
    match numbers("**", a, b)? {
        (Number::Int(a), Number::Int(b)) if b >= 0 => u32::try_from(b)
            .ok()
            .and_then(|b| a.checked_pow(b))
            .map(int)
            .ok_or_else(|| error("the result of ** is too large")),
        (a, b) => Ok(Value::from(libm::pow(a.float(), b.float()))),
    }
}

fn floor_div(a: i128, b: i128) -> Option<i128> {
    let quotient = a.checked_div(b)?;
    let inexact = a.checked_rem(b)? != 0;
    Some(if inexact && ((a < 0) != (b < 0)) {
        quotient - 1
    } else {
        quotient
    })
}

fn nonzero(b: &Value) -> Result<(), Error> {
    match Number::of(b) {
        Some(n) if n.float() == 0.0 => Err(error("division by zero")),
        _ => Ok(()),
    }
}

fn arithmetic(
    op: &'static str,
    a: &Value,
    b: &Value,
    ints: impl Fn(i128, i128) -> Option<i128>,
    floats: impl Fn(f64, f64) -> f64,
) -> Result<Value, Error> {
    match numbers(op, a, b)? {
        (Number::Int(a), Number::Int(b)) => ints(a, b)
            .map(int)
            .ok_or_else(|| error(format!("the result of {op} is too large"))),
        (a, b) => Ok(Value::from(floats(a.float(), b.float()))),
    }
}

fn numbers(op: &'static str, a: &Value, b: &Value) -> Result<(Number, Number), Error> {
    match (Number::of(a), Number::of(b)) {
        (Some(a), Some(b)) => Ok((a, b)),
        _ if a.is_undefined() || b.is_undefined() => Err(Error::new(
            ErrorKind::UndefinedError,
            format!("an operand of {op} is undefined"),
        )),
        _ => Err(error(format!(
            "{op} does not work on {} and {}",
            a.kind(),
            b.kind()
        ))),
    }
}

fn is_list(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable)
}

/// `value[start:stop:step]`.
fn slice(
    budget: &Budget,
    value: &Value,
    start: &Value,
    stop: &Value,
    step: &Value,
) -> Result<Value, Error> {
    let bound = |v: &Value| -> Result<Option<i128>, Error> {
        match Number::of(v) {
            Some(Number::Int(n)) => Ok(Some(n)),
            None if v.is_none() => Ok(None),
            _ => Err(error("a slice needs integers")),
        }
    };
    let (start, stop, step) = (bound(start)?, bound(stop)?, bound(step)?.unwrap_or(1));
    if step == 0 {
        return Err(error("the step of a slice is zero"));
    }
    if let Some(text) = value.as_str() {
        budget.bytes(text.len())?;
        let chars: Vec<char> = text.chars().collect();
        let picked = indices(chars.len(), start, stop, step).map(|i| chars[i]);
        return Ok(Value::from(picked.collect::<String>()));
    }
    if !is_list(value) {
        return Err(error(format!(
            "a value of type {} has no slices",
            value.kind()
        )));
    }
    let mut items = Vec::new();
    for item in value.try_iter()? {
        budget.nodes(1)?;
        items.push(item);
    }
    let picked = indices(items.len(), start, stop, step).map(|i| items[i].clone());
    let picked: Vec<Value> = picked.collect();
    Ok(match value.downcast_object_ref::<Tuple>() {
        Some(_) => Tuple::value(picked),
        None => Value::from(picked),
    })
}

/// The indices a slice picks, as Python defines them.
fn indices(
    len: usize,
    start: Option<i128>,
    stop: Option<i128>,
    step: i128,
) -> impl Iterator<Item = usize> {
    let len = len as i128;
    let (low, high) = if step > 0 { (0, len) } else { (-1, len - 1) };
    let clamp = |n: i128| (if n < 0 { n.saturating_add(len) } else { n }).clamp(low, high);
    let start = start.map_or(if step > 0 { low } else { high }, clamp);
    let stop = stop.map_or(if step > 0 { high } else { low }, clamp);
    std::iter::successors(Some(start), move |i| i.checked_add(step))
        .take_while(move |&i| if step > 0 { i < stop } else { i > stop })
        .filter_map(|i| usize::try_from(i).ok())
}
