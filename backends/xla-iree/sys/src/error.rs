//! Errors: IREE's status code and its full text.

use std::ffi::CStr;
use std::fmt;

use crate::ffi;

/// What every fallible function of this crate returns.
pub type Result<T> = std::result::Result<T, Error>;

/// IREE's status codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Code {
    /// The operation was cancelled.
    Cancelled,
    /// No code is known for it.
    Unknown,
    /// An argument is wrong.
    InvalidArgument,
    /// It took too long.
    DeadlineExceeded,
    /// A name, a device or a function is not there.
    NotFound,
    /// It is there already.
    AlreadyExists,
    /// The memory or the device does not allow it.
    PermissionDenied,
    /// Out of memory.
    ResourceExhausted,
    /// Not in this state.
    FailedPrecondition,
    /// The operation was aborted.
    Aborted,
    /// A range leaves what there is.
    OutOfRange,
    /// This is not implemented.
    Unimplemented,
    /// A bug, in IREE or here.
    Internal,
    /// The driver's system library or the device is not there.
    Unavailable,
    /// Data is broken.
    DataLoss,
    /// Not authenticated.
    Unauthenticated,
}

impl Code {
    fn from_raw(code: i32) -> Self {
        match code {
            1 => Self::Cancelled,
            3 => Self::InvalidArgument,
            4 => Self::DeadlineExceeded,
            5 => Self::NotFound,
            6 => Self::AlreadyExists,
            7 => Self::PermissionDenied,
            8 => Self::ResourceExhausted,
            9 => Self::FailedPrecondition,
            10 => Self::Aborted,
            11 => Self::OutOfRange,
            12 => Self::Unimplemented,
            13 => Self::Internal,
            14 => Self::Unavailable,
            15 => Self::DataLoss,
            16 => Self::Unauthenticated,
            _ => Self::Unknown,
        }
    }
}

/// An error of the runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// IREE's status code.
    pub code: Code,
    /// The full text, with IREE's annotations; may have several lines.
    pub message: String,
}

impl Error {
    /// An error that this crate found itself.
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self {
            code: Code::InvalidArgument,
            message: message.into(),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:?}: {}", self.code, self.message)
    }
}

impl std::error::Error for Error {}

/// Turns what a C function returned into a `Result`, and frees it.
///
/// # Safety
///
/// `error` is NULL or an error that the caller owns and does not use again.
pub(crate) unsafe fn check(error: *mut ffi::hh_iree_error_t) -> Result<()> {
    if error.is_null() {
        return Ok(());
    }
    // SAFETY: the error is valid until it is freed below, and so is its NUL-terminated text.
    let (code, message) = unsafe {
        let text = CStr::from_ptr(ffi::hh_iree_error_message(error));
        (
            ffi::hh_iree_error_code(error),
            text.to_string_lossy().into_owned(),
        )
    };
    // SAFETY: the caller owns it and gave it to us.
    unsafe { ffi::hh_iree_error_free(error) };
    Err(Error {
        code: Code::from_raw(code),
        message,
    })
}
