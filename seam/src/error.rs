//! The one error type that crosses the seam.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What kind of failure it was; stable, for programs to branch on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ErrorCode {
    /// The caller passed something that no backend accepts (an unknown sequence, a token outside
    /// the vocabulary, an empty prompt).
    InvalidInput,
    /// The model, weights or wish is well formed, but this device cannot do it.
    Unsupported,
    /// A backend, device, file or weight that was asked for does not exist.
    NotFound,
    /// A model or its weights contradict themselves or each other.
    InvalidModel,
    /// The sequence would grow past the session's context.
    ContextFull,
    /// Device or host memory ran out.
    OutOfMemory,
    /// The caller's [`CancelToken`](crate::CancelToken) was set.
    Cancelled,
    /// A result was not finite: the model, weights or backend is broken. Never served as a token.
    NonFinite,
    /// Versions do not fit together (plugin and host, compiler and runtime).
    Incompatible,
    /// Reading or writing failed.
    Io,
    /// The backend failed in a way that is its own fault.
    Backend,
    /// An earlier failure left the session unusable; open a new one.
    Poisoned,
}

impl ErrorCode {
    /// The name as it is serialised.
    pub const fn name(self) -> &'static str {
        match self {
            Self::InvalidInput => "invalid_input",
            Self::Unsupported => "unsupported",
            Self::NotFound => "not_found",
            Self::InvalidModel => "invalid_model",
            Self::ContextFull => "context_full",
            Self::OutOfMemory => "out_of_memory",
            Self::Cancelled => "cancelled",
            Self::NonFinite => "non_finite",
            Self::Incompatible => "incompatible",
            Self::Io => "io",
            Self::Backend => "backend",
            Self::Poisoned => "poisoned",
        }
    }
}

/// A failure, with all that is needed to act on it. Owned: it outlives what produced it and crosses
/// a dynamic library as plain data.
///
/// Printed on one line, outermost context first: `loading x: layer 3: message (hint)`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeamError {
    /// Kind of failure.
    pub code: ErrorCode,
    /// What went wrong, one line, no trailing stop.
    pub message: String,
    /// Where: innermost first, as errors gather context on their way up.
    pub context: Vec<String>,
    /// What the user can do about it.
    pub hint: Option<String>,
    /// Whether the same call may succeed later without anything being changed.
    pub retryable: bool,
}

/// Result of a seam call.
pub type SeamResult<T> = Result<T, SeamError>;

impl SeamError {
    /// A failure without context or hint, not retryable.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            context: Vec::new(),
            hint: None,
            retryable: false,
        }
    }

    /// Shorthand for [`ErrorCode::InvalidInput`].
    pub fn invalid_input(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::InvalidInput, message)
    }

    /// Shorthand for [`ErrorCode::InvalidModel`].
    pub fn invalid_model(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::InvalidModel, message)
    }

    /// Shorthand for [`ErrorCode::Unsupported`].
    pub fn unsupported(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::Unsupported, message)
    }

    /// Adds where it happened; call it from the inside out.
    #[must_use]
    pub fn context(mut self, context: impl Into<String>) -> Self {
        self.context.push(context.into());
        self
    }

    /// Sets what the user can do.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Marks the failure as one that may pass.
    #[must_use]
    pub fn retryable(mut self) -> Self {
        self.retryable = true;
        self
    }
}

impl fmt::Display for SeamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for context in self.context.iter().rev() {
            write!(f, "{context}: ")?;
        }
        f.write_str(&self.message)?;
        if let Some(hint) = &self.hint {
            write!(f, " ({hint})")?;
        }
        Ok(())
    }
}

impl std::error::Error for SeamError {}

/// Adds context to a result on its way up.
pub trait ResultExt<T> {
    /// Adds where it happened, computed only on failure.
    fn in_context<S: Into<String>>(self, context: impl FnOnce() -> S) -> SeamResult<T>;
}

impl<T> ResultExt<T> for SeamResult<T> {
    fn in_context<S: Into<String>>(self, context: impl FnOnce() -> S) -> SeamResult<T> {
        self.map_err(|e| e.context(context()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_outermost_context_first_and_the_hint_last() {
        let e = SeamError::invalid_model("heads do not divide")
            .context("config.json")
            .context("loading m")
            .hint("check num_attention_heads");
        assert_eq!(
            e.to_string(),
            "loading m: config.json: heads do not divide (check num_attention_heads)"
        );
    }

    #[test]
    fn code_names_are_the_serialised_ones() {
        for code in [
            ErrorCode::InvalidInput,
            ErrorCode::NonFinite,
            ErrorCode::ContextFull,
            ErrorCode::OutOfMemory,
        ] {
            let json = serde_json::to_string(&code).unwrap();
            assert_eq!(json, format!("\"{}\"", code.name()));
        }
    }
}
