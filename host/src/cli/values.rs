//! Values of flags: what they must be, and what is said where they are not.

use std::num::NonZeroUsize;
use std::str::FromStr;

use halfhitch_seam::{Bits, DType, GroupSize, Precision, SeamError, StepShape};

use crate::gate::Limits;

use super::args::{RepresentationWish, TokenIds};

/// A precision, by the seam's own names.
pub fn precision(text: &str) -> Result<Precision, String> {
    text.parse().map_err(|e: SeamError| e.to_string())
}

/// A representation's name, or `auto`.
pub fn representation(text: &str) -> Result<RepresentationWish, String> {
    if text == "auto" {
        return Ok(RepresentationWish(None));
    }
    let name = text.parse().map_err(|e: SeamError| e.to_string())?;
    Ok(RepresentationWish(Some(name)))
}

/// A shape of step.
pub fn step_shape(text: &str) -> Result<StepShape, String> {
    text.parse().map_err(|e: SeamError| {
        let hint = e.hint.unwrap_or_default();
        format!("{}: {hint}", e.message)
    })
}

/// A whole number from 0 up that its type holds.
pub fn whole<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse()
        .map_err(|_| format!("a whole number from 0 to {} is wanted", largest::<T>()))
}

fn largest<T>() -> u64 {
    u64::MAX >> (64 - 8 * size_of::<T>())
}

/// A whole number from 1 up.
pub fn positive(text: &str) -> Result<NonZeroUsize, String> {
    text.parse()
        .map_err(|_| "a whole number from 1 up is wanted".to_string())
}

/// A number of threads.
pub fn threads(text: &str) -> Result<NonZeroUsize, String> {
    positive(text)
        .ok()
        .filter(|n| n.get() <= 1024)
        .ok_or_else(|| "a number from 1 to 1024 is wanted".to_string())
}

fn number_in(text: &str, wanted: &str, accept: impl FnOnce(f32) -> bool) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(value) if value.is_finite() && accept(value) => Ok(value),
        _ => Err(format!("{wanted} is wanted")),
    }
}

/// A temperature.
pub fn temperature(text: &str) -> Result<f32, String> {
    number_in(text, "a number from 0 up", |v| v >= 0.0)
}

/// A probability mass.
pub fn top_p(text: &str) -> Result<f32, String> {
    number_in(text, "a number from 0 to 1", |v| (0.0..=1.0).contains(&v))
}

/// A relative probability.
pub fn min_p(text: &str) -> Result<f32, String> {
    number_in(text, "a number from 0 to 1", |v| (0.0..=1.0).contains(&v))
}

/// A factor.
pub fn penalty(text: &str) -> Result<f32, String> {
    number_in(text, "a number over 0", |v| v > 0.0)
}

/// A text that is there.
pub fn stop_string(text: &str) -> Result<String, String> {
    if text.is_empty() {
        return Err("an empty text would stop at once".into());
    }
    Ok(text.into())
}

/// Token ids with commas or spaces between them.
pub fn token_ids(text: &str) -> Result<TokenIds, String> {
    let parts = text
        .split(|c: char| c == ',' || c.is_whitespace())
        .filter(|part| !part.is_empty());
    parts
        .map(|part| {
            part.parse()
                .map_err(|_| format!("`{part}` is not a token id; ids look like 1,2,3"))
        })
        .collect::<Result<_, _>>()
        .map(TokenIds)
}

/// Bits of a quantised weight.
pub fn bits(text: &str) -> Result<Bits, String> {
    let number = text.parse().map_err(|_| "a number is wanted".to_string())?;
    Bits::new(number).map_err(|e| e.to_string())
}

/// Weights that share a scale.
pub fn group_size(text: &str) -> Result<GroupSize, String> {
    let number = text.parse().map_err(|_| "a number is wanted".to_string())?;
    GroupSize::new(number).map_err(|e| e.to_string())
}

/// A type of scales.
pub fn scale_dtype(text: &str) -> Result<DType, String> {
    precision(text).map(Precision::dtype)
}

/// A name and a version.
pub fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, version)) if !name.is_empty() && !version.is_empty() => {
            Ok((name.into(), version.into()))
        }
        _ => Err("NAME=VERSION is wanted".into()),
    }
}

/// A limit that the gate has.
pub fn limit(text: &str) -> Result<(String, f64), String> {
    let (name, value) = pair(text).map_err(|_| "NAME=VALUE is wanted".to_string())?;
    match value.parse::<f64>() {
        Ok(value) => {
            let told = |e: SeamError| {
                e.hint
                    .map_or(e.message.clone(), |h| format!("{} ({h})", e.message))
            };
            let mut any = Limits::of(Precision::F32, DType::F32);
            any.set(&name, value).map_err(told)?;
            Ok((name, value))
        }
        Err(_) => Err(format!("`{value}` is not a number from 0 up")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_ids_come_with_commas_or_spaces() {
        assert_eq!(token_ids("1, 2\n3,").unwrap().0, [1, 2, 3]);
        assert!(token_ids("").unwrap().0.is_empty());
        for bad in ["1,x", "-1", "4294967296", "1.5"] {
            assert!(
                token_ids(bad).unwrap_err().contains("not a token id"),
                "{bad}"
            );
        }
    }

    #[test]
    fn whole_numbers_say_how_far_they_go() {
        assert_eq!(whole::<u32>("4294967295"), Ok(u32::MAX));
        for bad in ["", "x", "-1", "4294967296"] {
            let e = whole::<u32>(bad).unwrap_err();
            assert_eq!(e, "a whole number from 0 to 4294967295 is wanted");
        }
        assert!(
            whole::<u64>("18446744073709551616")
                .unwrap_err()
                .contains("18446744073709551615")
        );
    }

    #[test]
    fn limits_are_known_and_can_be_reached() {
        assert!(limit("top1=1").is_ok());
        for (bad, said) in [
            ("kl=1", "one of kl-mean"),
            ("top1=1.5", "at most 1"),
            ("kl-mean=nan", "from 0 up"),
            ("kl-mean", "NAME=VALUE"),
        ] {
            let e = limit(bad).unwrap_err();
            assert!(e.contains(said), "{bad}: {e}");
        }
    }

    #[test]
    fn numbers_out_of_range_are_refused() {
        type Check = fn(&str) -> Result<f32, String>;
        let cases: [(Check, &[&str], &[&str]); 4] = [
            (temperature, &["0", "2.5"], &["-1", "nan", "inf", "x", ""]),
            (top_p, &["0", "1"], &["-0.1", "1.01", "nan"]),
            (min_p, &["0", "1"], &["-0.1", "1.1", "nan"]),
            (penalty, &["1.1", "0.5"], &["0", "-1", "inf"]),
        ];
        for (check, good, bad) in cases {
            for text in good {
                assert!(check(text).is_ok(), "{text}");
            }
            for text in bad {
                assert!(check(text).is_err(), "{text}");
            }
        }
    }
}
