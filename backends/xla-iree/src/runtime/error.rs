//! The runtime's errors as the seam's.

use halfhitch_seam::{ErrorCode, SeamError};
use halfhitch_xla_iree_sys::{Code, Error};

/// Longest text that is shown of an error.
const SHOWN: usize = 400;

/// A message without where in the runtime's source it was made: `iree/runtime/x.c:64: UNAVAILABLE; text`
/// is `text`.
fn without_place(line: &str) -> &str {
    let Some((place, text)) = line.split_once("; ") else {
        return line;
    };
    let shape = place.rsplitn(3, ':').collect::<Vec<_>>();
    match shape[..] {
        [code, number, file]
            if !file.contains(' ')
                && number.bytes().all(|b| b.is_ascii_digit())
                && code
                    .trim()
                    .bytes()
                    .all(|b| b.is_ascii_uppercase() || b == b'_') =>
        {
            text
        }
        _ => line,
    }
}

/// One line of what the runtime said; the whole of it goes to the log.
pub fn seam_error(error: Error) -> SeamError {
    let code = match error.code {
        Code::ResourceExhausted => ErrorCode::OutOfMemory,
        Code::NotFound | Code::Unavailable => ErrorCode::NotFound,
        Code::Cancelled => ErrorCode::Cancelled,
        _ => ErrorCode::Backend,
    };
    tracing::debug!(code = ?error.code, message = %error.message, "IREE runtime error");
    let line = without_place(error.message.lines().next().unwrap_or_default());
    let line: String = line.chars().take(SHOWN).collect();
    let out = SeamError::new(code, format!("IREE: {line}"));
    match error.code {
        Code::ResourceExhausted => {
            out.hint("use a shorter context, fewer sequences, packed weights or a smaller model")
        }
        Code::Unavailable => out.hint("the driver's system library or its device is not there"),
        Code::Unimplemented => {
            out.hint("IREE has not made this for the driver, or not on this system")
        }
        _ => out,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_in_anothers_source_are_left_out() {
        for (line, want) in [
            (
                "iree/a/b.c:64: UNAVAILABLE; no 'libcuda.so'; install it",
                "no 'libcuda.so'; install it",
            ),
            (
                "driver 'cuda' has no device '7'; there are: none",
                "driver 'cuda' has no device '7'; there are: none",
            ),
            ("a: b: c; d", "a: b: c; d"),
            ("", ""),
        ] {
            assert_eq!(without_place(line), want);
        }
    }
}
