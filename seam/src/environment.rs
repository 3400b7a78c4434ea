//! Whether the environment can be believed.
//!
//! Whoever starts a program chooses its environment. Where the program has rights that they have not (a
//! setuid or setgid file, or one with capabilities), a variable that names a place would let them choose
//! what it loads and writes with those rights.

use std::ffi::OsString;
use std::ops::RangeInclusive;

use crate::{SeamError, SeamResult};

/// Whether the process has rights that whoever started it has not.
pub fn elevated() -> bool {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    {
        // SAFETY: the function takes a number and gives one; it has no conditions.
        let secure = unsafe { libc::getauxval(libc::AT_SECURE) };
        secure != 0
    }
    #[cfg(any(target_os = "macos", target_os = "ios"))]
    {
        // SAFETY: the function takes nothing and gives a number; it has no conditions.
        let tainted = unsafe { libc::issetugid() };
        tainted != 0
    }
    #[cfg(not(any(
        target_os = "linux",
        target_os = "android",
        target_os = "macos",
        target_os = "ios"
    )))]
    {
        false
    }
}

/// The value of an environment variable that names a file, a folder or a search path; nothing where it is
/// not set or empty, and nothing in a process that is [`elevated`].
pub fn path_variable(name: &str) -> Option<OsString> {
    if elevated() {
        return None;
    }
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// The value of an environment variable that is a whole number; nothing where it is not set or empty.
///
/// # Errors
/// `InvalidInput` where it is anything else, or out of `range`.
pub fn number(name: &str, range: RangeInclusive<u64>) -> SeamResult<Option<u64>> {
    match std::env::var_os(name) {
        Some(value) if !value.is_empty() => parse(name, &value.to_string_lossy(), range).map(Some),
        _ => Ok(None),
    }
}

fn parse(name: &str, text: &str, range: RangeInclusive<u64>) -> SeamResult<u64> {
    let number = text.trim().parse().ok().filter(|n| range.contains(n));
    number.ok_or_else(|| {
        SeamError::invalid_input(format!("{name}={}", text.escape_debug())).hint(format!(
            "a whole number from {} to {}, or unset it",
            range.start(),
            range.end()
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_one_of_its_range() {
        assert_eq!(parse("N", "4", 1..=64).unwrap(), 4);
        assert_eq!(parse("N", " 64 ", 1..=64).unwrap(), 64);
        for text in ["0", "65", "four", "-1", "4.0", "18446744073709551616"] {
            let e = parse("N", text, 1..=64).unwrap_err();
            assert!(e.to_string().contains(&format!("N={text}")), "{e}");
        }
        assert_eq!(number("HALFHITCH_NO_SUCH_NUMBER", 1..=2).unwrap(), None);
    }
}
