//! How a caller follows and stops long work.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::{Deserialize, Serialize};

use crate::error::{ErrorCode, SeamError, SeamResult};

/// Stops work from another thread or a signal handler. Clones share the flag.
#[derive(Clone, Default)]
pub struct CancelToken(Arc<Flag>);

/// The flag itself, or one that lives across a plugin's boundary.
enum Flag {
    Local(AtomicBool),
    #[cfg(feature = "abi")]
    Foreign(crate::abi::ForeignFlag),
}

impl Default for Flag {
    fn default() -> Self {
        Self::Local(AtomicBool::new(false))
    }
}

impl CancelToken {
    /// A token that is not set.
    pub fn new() -> Self {
        Self::default()
    }

    /// A token whose flag another library owns.
    #[cfg(feature = "abi")]
    pub(crate) fn foreign(flag: crate::abi::ForeignFlag) -> Self {
        Self(Arc::new(Flag::Foreign(flag)))
    }

    fn flag(&self) -> &AtomicBool {
        match &*self.0 {
            Flag::Local(flag) => flag,
            #[cfg(feature = "abi")]
            Flag::Foreign(flag) => flag.get(),
        }
    }

    /// The flag, for the other side of a plugin's boundary to look at.
    #[cfg(feature = "abi")]
    pub(crate) fn as_flag(&self) -> &AtomicBool {
        self.flag()
    }

    /// Asks for a stop. Sticky, and safe in a signal handler.
    pub fn cancel(&self) {
        self.flag().store(true, Ordering::Relaxed);
    }

    /// Whether a stop was asked for.
    pub fn is_cancelled(&self) -> bool {
        self.flag().load(Ordering::Relaxed)
    }

    /// Fails with `Cancelled` once a stop was asked for; call it between steps.
    ///
    /// # Errors
    /// [`ErrorCode::Cancelled`].
    pub fn check(&self) -> SeamResult<()> {
        if self.is_cancelled() {
            return Err(SeamError::new(ErrorCode::Cancelled, "cancelled"));
        }
        Ok(())
    }
}

impl fmt::Debug for CancelToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CancelToken")
            .field(&self.is_cancelled())
            .finish()
    }
}

/// A part of opening a session or running a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Stage {
    /// Turning the model into code; counted in modules.
    Compile,
    /// Bringing weights onto the device; counted in bytes.
    LoadWeights,
    /// Running a prompt; counted in tokens.
    Prefill,
    /// Writing a model in another form; counted in bytes read.
    Convert,
    /// Measuring alternatives; counted in measurements.
    Tune,
    /// Comparing two backends; counted in tokens.
    Compare,
    /// Running cases of the conformance suite; counted in cases.
    Check,
}

impl Stage {
    /// What the stage does, for a progress line.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Compile => "compiling",
            Self::LoadWeights => "loading weights",
            Self::Prefill => "reading the prompt",
            Self::Convert => "converting",
            Self::Tune => "measuring",
            Self::Compare => "comparing",
            Self::Check => "running cases",
        }
    }
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Event {
    /// `done` of `total` units of a stage; the stage ends with `done == total`.
    Progress {
        /// Which stage.
        stage: Stage,
        /// Units done.
        done: u64,
        /// Units in all.
        total: u64,
    },
    /// Something a user should know, one line.
    Note(String),
}

/// Receives events, on the calling thread or on one of the backend's; must not block for long and
/// must not call back into the session.
pub trait Observer: Send + Sync {
    /// One event.
    fn on_event(&self, event: Event);
}

/// Ignores every event.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoObserver;

impl Observer for NoObserver {
    fn on_event(&self, _: Event) {}
}

/// What travels with every long call.
#[derive(Clone, Copy)]
pub struct Control<'a> {
    /// Set by the caller to stop.
    pub cancel: &'a CancelToken,
    /// Told of progress.
    pub observer: &'a dyn Observer,
}

impl Control<'_> {
    /// Reports progress.
    pub fn progress(&self, stage: Stage, done: u64, total: u64) {
        self.observer
            .on_event(Event::Progress { stage, done, total });
    }
}
