//! A plugin that works, except for the one fault that `HALFHITCH_FAULT` names.
//!
//! `PLACE-KIND`: the place is `create`, `identity`, `devices`, `capabilities`, `open`, `prefill`,
//! `decode`, `truncate` or `drop`; the kind is one of
//!
//! * `panic`, `error`, `hang`;
//! * `crash` (a write through a null pointer), `abort`, `exit` (with code 3), `kill` (SIGKILL): they end
//!   the process;
//! * `close`: every file descriptor of the process but the first three is closed, as a careless daemon's
//!   start does;
//! * `noise`: a mebibyte of garbage on standard output, and a line on standard error.
//!
//! Each says on standard error what it was told, first. Unset, it is the reference backend. It logs an
//! event when it is made.
//!
//! `wrong:NAME`: it never fails so, but is wrong in the way that `tests/faults` calls by that name: a
//! fault of behaviour or of numbers.

#[path = "../../gate/changed.rs"]
mod changed;
#[path = "../../faults/faulty.rs"]
mod faulty;
#[path = "../../gate/narrow.rs"]
mod narrow;
#[path = "../../faults/numeric.rs"]
mod numeric;

use std::io::Write as _;
use std::os::fd::{FromRawFd as _, OwnedFd, RawFd};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use halfhitch_reference_cpu::ReferenceCpu;
use halfhitch_seam::{
    BackendIdentity, ComputeBackend, Control, DecodeStep, DeviceCapabilities, DeviceId, DeviceInfo,
    ErrorCode, ExecutionPlan, OpenRequest, OutputRequest, SeamError, SeamResult, SequenceId,
    Session, StepOutput, Tap, TokenId,
};

/// Commits the fault if it is due at `place`.
fn pass(place: &str) -> SeamResult<()> {
    let fault = std::env::var("HALFHITCH_FAULT").unwrap_or_default();
    match fault.rsplit_once('-') {
        Some((at, "panic")) if at == place => panic!("told to panic in {place}"),
        Some((at, "error")) if at == place => {
            Err(SeamError::new(ErrorCode::Backend, format!("told to fail in {place}")).retryable())
        }
        Some((at, kind)) if at == place => {
            commit(place, kind);
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Commits a fault that is not the seam's to report.
fn commit(place: &str, kind: &str) {
    let mut stderr = std::io::stderr();
    // Nobody may listen.
    let _ = writeln!(stderr, "told to {kind} in {place}");
    match kind {
        "hang" => loop {
            std::thread::sleep(Duration::from_secs(3600));
        },
        // SAFETY: it is not: the crash is what is wanted.
        "crash" => unsafe { std::ptr::null_mut::<u8>().write_volatile(1) },
        "abort" => std::process::abort(),
        "exit" => std::process::exit(3),
        "kill" => {
            let id = std::process::id().to_string();
            let _ = Command::new("kill").args(["-KILL", &id]).status();
        }
        "close" => {
            let open = std::fs::read_dir("/proc/self/fd").into_iter().flatten();
            let open: Vec<RawFd> = open
                .flatten()
                .filter_map(|fd| fd.file_name().to_str()?.parse().ok())
                .collect();
            for fd in open.into_iter().filter(|&fd| fd > 2 && is_open(fd)) {
                // SAFETY: it is not: whoever owns these is robbed, which is what is wanted.
                drop(unsafe { OwnedFd::from_raw_fd(fd) });
            }
        }
        "noise" => {
            let _ = std::io::stdout().write_all(&[0xf0; 1 << 20]);
        }
        _ => {}
    }
}

/// Whether there is such a descriptor still: the one that listed them is not.
fn is_open(fd: RawFd) -> bool {
    std::fs::symlink_metadata(format!("/proc/self/fd/{fd}")).is_ok()
}

struct Faulty(ReferenceCpu);

impl ComputeBackend for Faulty {
    fn identity(&self) -> BackendIdentity {
        let name = match pass("identity") {
            Ok(()) => "faulty",
            Err(_) => "somebody-else",
        };
        BackendIdentity {
            name: name.into(),
            ..self.0.identity()
        }
    }

    fn devices(&self) -> SeamResult<Vec<DeviceInfo>> {
        pass("devices")?;
        self.0.devices()
    }

    fn capabilities(&self, device: &DeviceId) -> SeamResult<DeviceCapabilities> {
        pass("capabilities")?;
        self.0.capabilities(device)
    }

    fn open(&self, request: OpenRequest<'_>) -> SeamResult<Box<dyn Session>> {
        pass("open")?;
        Ok(Box::new(FaultySession(self.0.open(request)?)))
    }
}

struct FaultySession(Box<dyn Session>);

impl Session for FaultySession {
    fn plan(&self) -> &ExecutionPlan {
        self.0.plan()
    }

    fn create_sequence(&mut self) -> SeamResult<SequenceId> {
        self.0.create_sequence()
    }

    fn sequence_len(&self, sequence: SequenceId) -> SeamResult<usize> {
        self.0.sequence_len(sequence)
    }

    fn prefill(
        &mut self,
        sequence: SequenceId,
        tokens: &[TokenId],
        output: OutputRequest,
        control: &Control<'_>,
    ) -> SeamResult<StepOutput> {
        pass("prefill")?;
        self.0.prefill(sequence, tokens, output, control)
    }

    fn decode(
        &mut self,
        steps: &[DecodeStep],
        output: OutputRequest,
    ) -> SeamResult<Vec<StepOutput>> {
        pass("decode")?;
        self.0.decode(steps, output)
    }

    fn truncate(&mut self, sequence: SequenceId, len: usize) -> SeamResult<()> {
        pass("truncate")?;
        self.0.truncate(sequence, len)
    }

    fn release(&mut self, sequence: SequenceId) -> SeamResult<()> {
        self.0.release(sequence)
    }

    fn tap(&mut self, tokens: &[TokenId], control: &Control<'_>) -> SeamResult<Vec<Tap>> {
        self.0.tap(tokens, control)
    }
}

impl Drop for FaultySession {
    fn drop(&mut self) {
        // An error cannot leave a drop; only its panic matters.
        let _ = pass("drop");
    }
}

/// The reference, wrong in the way that is called so.
fn wrong(name: &str) -> SeamResult<Box<dyn ComputeBackend>> {
    let inner: Arc<dyn ComputeBackend> = Arc::new(Faulty(ReferenceCpu::new()));
    if let Some(fault) = numeric::named(name) {
        return Ok(fault.backend(inner));
    }
    let fault = faulty::Fault::NAMED
        .iter()
        .find(|(known, _)| *known == name);
    match fault {
        Some((_, fault)) => Ok(Box::new(faulty::Faulty::new(inner, *fault))),
        None => Err(SeamError::new(
            ErrorCode::NotFound,
            format!("no fault is called `{name}`"),
        )),
    }
}

halfhitch_seam::export_plugin!(|| {
    tracing::warn!(weight = 7, "the faulty plugin was made");
    pass("create")?;
    let fault = std::env::var("HALFHITCH_FAULT").unwrap_or_default();
    match fault.strip_prefix("wrong:") {
        Some(name) => wrong(name),
        None => Ok(Box::new(Faulty(ReferenceCpu::new()))),
    }
});
