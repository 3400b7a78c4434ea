//! The case that runs out of memory, in a process of its own: there the system can be told how much
//! there is, and a backend that falls over takes nothing with it.

use std::ffi::OsString;
use std::process::Command;
use std::sync::Arc;

use halfhitch_seam::{SeamError, SeamResult};
use halfhitch_suite::resources::Confined;
use halfhitch_suite::{Miss, Verdict};
use serde::{Deserialize, Serialize};

use crate::bench::child;

/// What the process says.
#[derive(Debug, Serialize, Deserialize)]
pub struct Answer {
    /// How the case ended.
    pub confined: Verdict,
}

/// The case as the suite takes it: starts this program with `args`, which must make it print an
/// [`Answer`]. Nothing where the system cannot limit a process's memory.
pub fn confine(args: Vec<OsString>) -> Option<Confined> {
    if !cfg!(target_os = "linux") {
        return None;
    }
    Some(Arc::new(move |cancel| {
        let program = std::env::current_exe()
            .map_err(|e| Miss::Fail(format!("finding this program: {e}")))?;
        let mut command = Command::new(program);
        command.args(&args);
        match child::run::<Answer>(command, cancel) {
            Ok(Answer { confined }) => match confined {
                Verdict::Pass => Ok(()),
                Verdict::Unsupported { capability } => Err(Miss::Unsupported(capability)),
                Verdict::Fail { detail } => Err(Miss::Fail(detail)),
                other => Err(Miss::Fail(format!("{} is no answer", other.name()))),
            },
            Err(e) => Err(Miss::Fail(format!("where memory ran out, {e}"))),
        }
    }))
}

/// Limits what this process may take beyond what it has, in bytes of address space.
///
/// # Errors
/// `Unsupported` where the system does not tell how much that is; `Io` where it refuses.
#[cfg(target_os = "linux")]
pub fn limit_memory(more: u64) -> SeamResult<()> {
    use halfhitch_seam::ErrorCode;
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    let has = crate::engine::virtual_bytes()
        .ok_or_else(|| SeamError::unsupported("the system does not tell a process's memory"))?;
    let limit = Rlimit {
        current: Some(has.saturating_add(more)),
        maximum: getrlimit(Resource::As).maximum,
    };
    setrlimit(Resource::As, limit)
        .map_err(|e| SeamError::new(ErrorCode::Io, format!("limiting memory: {e}")))
}

/// As on Linux, where it is there.
///
/// # Errors
/// `Unsupported`.
#[cfg(not(target_os = "linux"))]
pub fn limit_memory(_: u64) -> SeamResult<()> {
    Err(SeamError::unsupported("limiting a process's memory here"))
}
