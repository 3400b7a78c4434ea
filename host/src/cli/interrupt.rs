//! Ctrl-C: the first stops the work, the second the program.

use std::sync::Arc;

use halfhitch_seam::{CancelToken, ErrorCode, SeamError, SeamResult};
use parking_lot::Mutex;

use super::failure::exit;

/// The process's handler for Ctrl-C (and for being asked to end).
pub struct Interrupt(Arc<Mutex<State>>);

struct State {
    /// What the next signal sets.
    token: CancelToken,
    /// Whether there is no work to stop, so that a signal ends the program.
    idle: bool,
}

/// A file that has reached the limit on its size is an error of the write, whose command cleans up.
#[cfg(unix)]
fn ignore_file_size_signal() {
    // SAFETY: to ignore a signal is no handler that could run; nothing else in the process sets this one.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

#[cfg(not(unix))]
fn ignore_file_size_signal() {}

impl Interrupt {
    /// Installs the handler.
    ///
    /// # Errors
    /// `Io` where the system refuses.
    pub fn install() -> SeamResult<Self> {
        let state = Arc::new(Mutex::new(State {
            token: CancelToken::new(),
            idle: false,
        }));
        let shared = Arc::clone(&state);
        ignore_file_size_signal();
        ctrlc::set_handler(move || {
            let state = shared.lock();
            if state.idle || state.token.is_cancelled() {
                std::process::exit(exit::INTERRUPTED.into());
            }
            state.token.cancel();
        })
        .map_err(|e| SeamError::new(ErrorCode::Io, format!("handling Ctrl-C: {e}")))?;
        Ok(Self(state))
    }

    /// The token that the next Ctrl-C sets.
    pub fn token(&self) -> CancelToken {
        self.0.lock().token.clone()
    }

    /// A fresh token for new work: the next Ctrl-C stops that.
    pub fn begin(&self) -> CancelToken {
        let mut state = self.0.lock();
        state.idle = false;
        state.token = CancelToken::new();
        state.token.clone()
    }

    /// Runs what may wait for others and watches no token, such as opening a pipe: a Ctrl-C ends the
    /// program meanwhile, and one that came before, which nobody has looked at yet.
    pub fn ending<T>(&self, wait: impl FnOnce() -> T) -> T {
        {
            let mut state = self.0.lock();
            if state.token.is_cancelled() {
                std::process::exit(exit::INTERRUPTED.into());
            }
            state.idle = true;
        }
        let out = wait();
        self.0.lock().idle = false;
        out
    }

    /// There is no work: the next Ctrl-C ends the program.
    pub fn idle(&self) {
        self.0.lock().idle = true;
    }
}
