//! The runtime's errors as the seam's.

use halfhitch_seam::{ErrorCode, SeamError};
use halfhitch_xla_iree_sys::{Code, Error};

/// Longest text that is shown of an error.
const SHOWN: usize = 400;

/// One line of what the runtime said; the whole of it goes to the log.
pub fn seam_error(error: Error) -> SeamError {
    let code = match error.code {
        Code::ResourceExhausted => ErrorCode::OutOfMemory,
        Code::NotFound => ErrorCode::NotFound,
        Code::Cancelled => ErrorCode::Cancelled,
        _ => ErrorCode::Backend,
    };
    tracing::debug!(code = ?error.code, message = %error.message, "IREE runtime error");
    let line = error.message.lines().next().unwrap_or_default();
    let line: String = line.chars().take(SHOWN).collect();
    let out = SeamError::new(code, format!("IREE: {line}"));
    match error.code {
        Code::ResourceExhausted => {
            out.hint("use a shorter context, fewer sequences, packed weights or a smaller model")
        }
        Code::Unavailable => out.hint("the driver's system library or its device is not there"),
        _ => out,
    }
}
