//! Backends in processes of their own, so that a driver's crash or hang is an error and no more.
//!
//! A backend that is isolated looks like any other: [`Isolation::provider`] turns a provider into one that
//! starts a child when it is opened. The child is this program with a hidden command; it loads the plugin,
//! and the host drives it over a socket ([`frame`], [`message`]). Weights do not cross: the child maps the
//! same files ([`weights`]). `docs/isolation.md` has the protocol.
//!
//! ```text
//! host                                          child (`halfhitch isolated-backend`)
//! IsolatedBackend ── Process ── first socket ── control: channels, wishes to stop
//! IsolatedSession ── Channel ── a socket each ─ a thread each: Session of the plugin
//! LogTail ───────────────────── pipe ────────── stdout and stderr
//! ```
//!
//! What it is not: a sandbox. The child runs as the same user and may do what that user may.

#[cfg(target_os = "linux")]
mod backend;
#[cfg(target_os = "linux")]
mod call;
#[cfg(target_os = "linux")]
pub mod child;
#[cfg(target_os = "linux")]
pub mod frame;
#[cfg(all(target_os = "linux", any(test, feature = "fuzzing")))]
pub(crate) mod fuzzing;
#[cfg(target_os = "linux")]
mod log;
#[cfg(target_os = "linux")]
pub mod message;
#[cfg(target_os = "linux")]
mod numbers;
#[cfg(target_os = "linux")]
mod process;
mod provider;
#[cfg(target_os = "linux")]
mod session;
#[cfg(target_os = "linux")]
pub mod weights;

use std::ffi::OsString;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::engine::Provider;

/// How long a call may go without progress, unless something else is said. A module may compile for 15
/// minutes in silence, by which the compiler has a limit of its own.
pub const LIMIT: Duration = Duration::from_secs(960);

/// How children are started and watched.
#[derive(Clone, Debug)]
pub struct Isolation {
    /// The program, which must be this one.
    pub program: PathBuf,
    /// What goes before the hidden command: how much is logged.
    pub arguments: Vec<OsString>,
    /// Threads for a backend that takes those of the process.
    pub threads: Option<NonZeroUsize>,
    /// The longest that a call may go without progress.
    pub limit: Duration,
}

impl Isolation {
    /// With this process's own program, which must be `halfhitch`.
    pub fn of_this_program() -> Self {
        Self {
            // Not its path, which may be another program's by now.
            program: PathBuf::from("/proc/self/exe"),
            arguments: Vec::new(),
            threads: None,
            limit: LIMIT,
        }
    }

    /// `provider`, in a process of its own.
    pub fn provider(&self, provider: Arc<dyn Provider>) -> Arc<dyn Provider> {
        Arc::new(provider::IsolatedProvider::new(self.clone(), provider))
    }
}

/// Process ids of all isolated backends that run now.
pub fn running() -> Vec<u32> {
    #[cfg(target_os = "linux")]
    return process::running();
    #[cfg(not(target_os = "linux"))]
    return Vec::new();
}
