//! The child: one backend, served over the socket that is its standard input.
//!
//! The main thread listens to the host: for new channels, which get a thread each, and for wishes to
//! stop. It does nothing else, so that it is there when the host is gone: then the process ends at once,
//! with all that it started, whatever the driver is doing. (A signal on the parent's death would not do:
//! it comes when the *thread* ends that started the child.)

mod cancels;
mod serve;

use std::ffi::OsString;
use std::fs::File;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::thread;

use halfhitch_reference_cpu::ReferenceCpu;
use halfhitch_seam::{BackendIdentity, ComputeBackend, ErrorCode, SeamError, SeamResult};
use once_cell::sync::OnceCell;
use rustix::process::{Signal, getpgrp, getpid, kill_process, kill_process_group};

use self::cancels::Cancels;
use self::serve::Service;
use super::call::encode;
use super::frame::{self, Expected, Frame, patient};
use super::message::{Directive, PROTOCOL, Reply};
use crate::plugins::{Plugin, trust};

/// Stack of the threads that call the backend: as much as a process's first one has.
const STACK: usize = 8 << 20;

/// Which backend to serve.
#[derive(Clone, Debug)]
pub enum Source {
    /// One that is part of this program.
    BuiltIn(String),
    /// A plugin, by its manifest.
    Plugin(OsString),
}

impl Source {
    fn load(&self) -> SeamResult<Arc<dyn ComputeBackend>> {
        match self {
            Self::BuiltIn(name) if name == "reference-cpu" => Ok(Arc::new(ReferenceCpu::new())),
            Self::BuiltIn(name) => Err(SeamError::new(
                ErrorCode::NotFound,
                format!("no backend `{name}` is built in"),
            )),
            Self::Plugin(manifest) => {
                let manifest = Path::new(manifest);
                if let Some(folder) = manifest.parent() {
                    trust::check_folder(folder)?;
                }
                Plugin::inspect(manifest).backend()
            }
        }
    }
}

/// Serves a backend until the host is gone.
///
/// # Errors
/// `InvalidInput` where standard input is no host; `Io`.
pub fn run(source: Source) -> SeamResult<()> {
    let socket = take_socket()?;
    let mut state = State {
        socket: Arc::new(socket),
        source,
        backend: Arc::new(OnceCell::new()),
        cancels: Arc::new(Cancels::default()),
    };
    let expected = Expected {
        tail: 0,
        files: true,
    };
    loop {
        let Ok(frame) = frame::receive(&state.socket, expected, &mut patient) else {
            die();
        };
        match state.directive(frame) {
            Ok(true) => {}
            // Nothing is dropped: plugins are never unloaded.
            Ok(false) => std::process::exit(0),
            Err(e) => {
                tracing::error!("the host's message: {e}");
                die();
            }
        }
    }
}

struct State {
    socket: Arc<UnixStream>,
    source: Source,
    backend: Arc<OnceCell<Arc<dyn ComputeBackend>>>,
    cancels: Arc<Cancels>,
}

impl State {
    /// Does what the host says; false where it says to end.
    fn directive(&mut self, frame: Frame) -> SeamResult<bool> {
        match parse(&frame.head)? {
            Directive::Hello { protocol, version } => {
                let here = env!("CARGO_PKG_VERSION");
                if (protocol, version.as_str()) != (PROTOCOL, here) {
                    let message = format!(
                        "the program is now version {here} with protocol {PROTOCOL}, and was version \
                         {version} with protocol {protocol} when it was started"
                    );
                    let error = SeamError::new(ErrorCode::Incompatible, message);
                    answer_hello(&self.socket, Err(error.hint("start it again")));
                    return Ok(true);
                }
                let (socket, source) = (Arc::clone(&self.socket), self.source.clone());
                let backend = Arc::clone(&self.backend);
                spawn("load", move || {
                    let loaded = guarded(|| backend.get_or_try_init(|| source.load()).cloned());
                    answer_hello(&socket, loaded.map(|b| b.identity()));
                })?;
            }
            Directive::Channel { id } => {
                let mut files = frame.files.into_iter();
                let (Some(file), Some(backend)) = (files.next(), self.backend.get()) else {
                    return Err(SeamError::invalid_input("a channel without a socket"));
                };
                let service = Service::new(
                    socket_of(file)?,
                    id,
                    Arc::clone(backend),
                    Arc::clone(&self.cancels),
                );
                spawn("channel", move || service.run())?;
            }
            Directive::Cancel { channel, call } => self.cancels.cancel(channel, call),
            Directive::Quit => return Ok(false),
        }
        Ok(true)
    }
}

/// A message of the host's.
///
/// # Errors
/// `Incompatible`.
pub fn parse<T: serde::de::DeserializeOwned>(head: &[u8]) -> SeamResult<T> {
    serde_json::from_slice(head).map_err(|e| {
        SeamError::new(
            ErrorCode::Incompatible,
            format!("a message that cannot be read: {e}"),
        )
    })
}

fn answer_hello(socket: &UnixStream, identity: SeamResult<BackendIdentity>) {
    let reply = match identity {
        Ok(identity) => Reply::Done(identity),
        Err(error) => Reply::Failed(error),
    };
    let sent = encode(&reply)
        .map(|head| frame::send(socket, &head, &[], &[], &mut patient))
        .is_ok_and(|sent| sent.is_ok());
    if !sent {
        die();
    }
}

/// Runs code of a backend and turns its panic into an error.
fn guarded<T>(f: impl FnOnce() -> SeamResult<T>) -> SeamResult<T> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)).unwrap_or_else(|panic| {
        let text = panic
            .downcast_ref::<&str>()
            .map(ToString::to_string)
            .or_else(|| panic.downcast_ref::<String>().cloned());
        let text = text.unwrap_or_else(|| "no message".into());
        Err(
            SeamError::new(ErrorCode::Backend, format!("the backend panicked: {text}"))
                .hint("report this to the backend's author"),
        )
    })
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> SeamResult<()> {
    let builder = thread::Builder::new().name(name.into()).stack_size(STACK);
    let started = builder.spawn(work);
    started.map(drop).map_err(|e| io("starting a thread", &e))
}

/// The socket that is standard input; in its place nothing is left, so that no program which the backend
/// starts keeps it open.
fn take_socket() -> SeamResult<UnixStream> {
    let taken = std::io::stdin().as_fd().try_clone_to_owned();
    let socket = socket_of(taken.map_err(|e| io("standard input", &e))?)?;
    let null = File::open("/dev/null").map_err(|e| io("/dev/null", &e))?;
    rustix::stdio::dup2_stdin(&null).map_err(|e| io("standard input", &e.into()))?;
    Ok(socket)
}

fn socket_of(file: OwnedFd) -> SeamResult<UnixStream> {
    let kind = rustix::net::sockopt::socket_type(&file);
    if !kind.is_ok_and(|kind| kind == rustix::net::SocketType::STREAM) {
        return Err(
            SeamError::invalid_input("it is no socket of a program that wants a backend")
                .hint("this command is started by `halfhitch ... --isolate`, not by hand"),
        );
    }
    let socket = UnixStream::from(file);
    socket
        .set_nonblocking(false)
        .map_err(|e| io("a socket", &e))?;
    Ok(socket)
}

/// Ends this process, and what it started, without another step of anybody's code.
fn die() -> ! {
    if getpgrp() == getpid() {
        // Reaches this process too; fails never for one's own group.
        let _ = kill_process_group(getpid(), Signal::KILL);
    }
    let _ = kill_process(getpid(), Signal::KILL);
    std::process::abort()
}

fn io(what: &str, error: &std::io::Error) -> SeamError {
    SeamError::new(ErrorCode::Io, format!("{what}: {error}"))
}
