//! The child: started, talked to, ended, and what became of it.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use halfhitch_seam::{BackendIdentity, ErrorCode, SeamError, SeamResult};
use once_cell::sync::OnceCell;
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

use super::Isolation;
use super::call::{Channel, Watch, receive_reply};
use super::frame::{self, Broken};
use super::log::LogTail;
use super::message::{Directive, PROTOCOL};

/// How long a child may take to be gone once its socket is closed.
const DYING: Duration = Duration::from_millis(500);

/// How long a child may take to end by itself when it is asked to.
const LEAVING: Duration = Duration::from_secs(1);

/// How often a socket looks up from waiting.
pub const LOOK: Duration = Duration::from_millis(20);

/// Children that run now.
static RUNNING: Mutex<Vec<u32>> = Mutex::new(Vec::new());

/// Process ids of all children that run now.
pub fn running() -> Vec<u32> {
    RUNNING.lock().clone()
}

/// A child process with a backend in it. Ended when it is let go.
pub struct Process {
    child: Mutex<Child>,
    pid: Pid,
    /// The first socket.
    control: Mutex<UnixStream>,
    channels: AtomicU64,
    log: Arc<LogTail>,
    limit: Duration,
    /// Why it is gone, once it is.
    ended: OnceCell<SeamError>,
}

impl Process {
    /// Starts a child that loads the backend of `source`, an argument of the hidden command, and waits
    /// until that has answered.
    ///
    /// # Errors
    /// `Io` where it cannot be started; what loading the backend says; what [`Self::died`] says.
    pub fn start(
        isolation: &Isolation,
        source: &[OsString],
    ) -> SeamResult<(Arc<Self>, BackendIdentity)> {
        let starting = |e: io::Error| {
            SeamError::new(ErrorCode::Io, format!("starting a backend's process: {e}"))
        };
        let (ours, theirs) = UnixStream::pair().map_err(starting)?;
        let (reader, writer) = io::pipe().map_err(starting)?;
        let mut command = Command::new(&isolation.program);
        command
            .arg0("halfhitch")
            .args(&isolation.arguments)
            .arg("isolated-backend")
            .args(source)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(writer.try_clone().map_err(starting)?)
            .stderr(writer)
            // Ctrl-C at a terminal is for the host, which tells the child what to do.
            .process_group(0);
        if let Some(threads) = isolation.threads {
            command.env("RAYON_NUM_THREADS", threads.to_string());
        }
        let log = LogTail::follow(reader).map_err(starting)?;
        let child = command.spawn().map_err(starting)?;
        // The command holds the child's ends of socket and pipe, whose closing tells of its death.
        drop(command);
        let pid = Pid::from_child(&child);
        RUNNING.lock().push(child.id());
        let process = Arc::new(Self {
            child: Mutex::new(child),
            pid,
            control: Mutex::new(ours),
            channels: AtomicU64::new(0),
            log,
            limit: isolation.limit,
            ended: OnceCell::new(),
        });
        let identity = process.greet()?;
        tracing::debug!(?pid, backend = identity.name, "isolated");
        Ok((process, identity))
    }

    fn greet(&self) -> SeamResult<BackendIdentity> {
        let hello = Directive::Hello {
            protocol: PROTOCOL,
            version: env!("CARGO_PKG_VERSION").into(),
        };
        let mut watch = Watch::new(self, "loading", None, self.limit);
        let control = self.control.lock();
        let timeout = control.set_read_timeout(Some(LOOK));
        timeout.map_err(|e| SeamError::new(ErrorCode::Io, e.to_string()))?;
        let sent = frame::send(&control, &encode(&hello)?, &[], &[], &mut frame::patient);
        sent.map_err(|broken| self.broken(broken, "loading"))?;
        receive_reply(&control, 0, &mut watch).map(|(identity, _)| identity)
    }

    /// The longest that a call may go without progress.
    pub const fn limit(&self) -> Duration {
        self.limit
    }

    /// Why it is gone, where it is known to be.
    pub fn ended(&self) -> Option<&SeamError> {
        self.ended.get()
    }

    /// A new channel.
    ///
    /// # Errors
    /// `Io`; what [`Self::died`] says.
    pub fn channel(self: &Arc<Self>) -> SeamResult<Channel> {
        let io = |e: io::Error| SeamError::new(ErrorCode::Io, format!("a backend's channel: {e}"));
        let (ours, theirs) = UnixStream::pair().map_err(io)?;
        ours.set_read_timeout(Some(LOOK)).map_err(io)?;
        ours.set_write_timeout(Some(LOOK)).map_err(io)?;
        let id = self.channels.fetch_add(1, Ordering::Relaxed);
        self.say(&Directive::Channel { id }, &[theirs.as_fd()])?;
        Ok(Channel::new(Arc::clone(self), ours, id))
    }

    /// Says something that is not answered.
    ///
    /// # Errors
    /// What [`Self::died`] says.
    pub fn say(
        &self,
        directive: &Directive,
        files: &[std::os::fd::BorrowedFd<'_>],
    ) -> SeamResult<()> {
        let head = encode(directive)?;
        let sent = {
            let control = self.control.lock();
            frame::send(&control, &head, &[], files, &mut frame::patient)
        };
        sent.map_err(|broken| self.broken(broken, "listening"))
    }

    /// The error for what kept a message from coming or going, while the child was `doing` something. The
    /// child does not outlive it.
    pub fn broken(&self, broken: Broken, doing: &str) -> SeamError {
        match broken {
            Broken::Closed => self.died(doing),
            Broken::Stopped(error) => error,
            Broken::Invalid(what) => self.end(
                SeamError::new(
                    ErrorCode::Backend,
                    format!("the backend's process sent {what} while {doing}, and was ended"),
                )
                .hint("report this to the backend's author"),
            ),
            Broken::Io(e) => self.end(SeamError::new(
                ErrorCode::Io,
                format!("talking with the backend's process while {doing}: {e}"),
            )),
        }
    }

    /// The error for a child that closed its socket: how it died, and what it printed last.
    fn died(&self, doing: &str) -> SeamError {
        let start = Instant::now();
        while !self.has_exited() && start.elapsed() < DYING {
            std::thread::sleep(Duration::from_millis(2));
        }
        let lives = !self.has_exited();
        self.ended
            .get_or_init(|| match self.kill() {
                Ok(_) if lives => SeamError::new(
                    ErrorCode::Backend,
                    self.with_last_words(format!(
                        "the backend's process closed its connection while {doing}, and was ended"
                    )),
                ),
                Ok(status) => {
                    let what = format!("the backend's process {} while {doing}", ending(status));
                    let error = SeamError::new(ErrorCode::Backend, self.with_last_words(what));
                    error.hint(advice(status))
                }
                Err(e) => SeamError::new(
                    ErrorCode::Backend,
                    format!("the backend's process is lost: {e}"),
                ),
            })
            .clone()
    }

    /// Ends the child because of `why`, which then has its last words in it.
    pub fn end(&self, mut why: SeamError) -> SeamError {
        self.ended
            .get_or_init(|| {
                if let Err(e) = self.kill() {
                    tracing::warn!("ending a backend's process: {e}");
                }
                why.message = self.with_last_words(std::mem::take(&mut why.message));
                why
            })
            .clone()
    }

    /// Ends the child and all that it started, and takes its status.
    fn kill(&self) -> io::Result<ExitStatus> {
        let mut child = self.child.lock();
        // What has ended keeps its id until it is waited for, so this reaches nobody else.
        if child_is_ours(&mut child) {
            // Fails only where nothing is left of the group.
            let _ = kill_process_group(self.pid, Signal::KILL);
        }
        let status = child.wait();
        RUNNING.lock().retain(|&pid| pid != child.id());
        status
    }

    /// Whether the child has ended, without taking its status.
    fn has_exited(&self) -> bool {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        // An error means that it was waited for already.
        !matches!(waitid(WaitId::Pid(self.pid), options), Ok(None))
    }

    fn with_last_words(&self, what: String) -> String {
        let words = self.log.last_words(Duration::from_millis(200));
        match words.as_str() {
            "" => what,
            words => format!("{what}; the last it said: {words}"),
        }
    }
}

/// Whether nobody has waited for the child yet.
fn child_is_ours(child: &mut Child) -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    waitid(WaitId::Pid(Pid::from_child(child)), options).is_ok()
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.ended.get().is_some() {
            return;
        }
        // Drivers may have something to finish; those that do not get to it are ended.
        if self.say(&Directive::Quit, &[]).is_ok() {
            let start = Instant::now();
            while !self.has_exited() && start.elapsed() < LEAVING {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        if let Err(e) = self.kill() {
            tracing::warn!("ending a backend's process: {e}");
        }
    }
}

fn encode(directive: &Directive) -> SeamResult<Vec<u8>> {
    super::call::encode(directive)
}

/// How a process ended, as the end of "it ...".
fn ending(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => match signal_name(signal) {
            Some(name) => format!("was ended by signal {signal} ({name})"),
            None => format!("was ended by signal {signal}"),
        },
        (None, Some(code)) => format!("ended itself with exit code {code}"),
        (None, None) => "ended".into(),
    }
}

fn signal_name(signal: i32) -> Option<&'static str> {
    let names = [
        (Signal::ABORT, "SIGABRT"),
        (Signal::BUS, "SIGBUS"),
        (Signal::FPE, "SIGFPE"),
        (Signal::ILL, "SIGILL"),
        (Signal::INT, "SIGINT"),
        (Signal::KILL, "SIGKILL"),
        (Signal::SEGV, "SIGSEGV"),
        (Signal::SYS, "SIGSYS"),
        (Signal::TERM, "SIGTERM"),
        (Signal::TRAP, "SIGTRAP"),
    ];
    let found = names.iter().find(|(s, _)| s.as_raw() == signal);
    found.map(|(_, name)| *name)
}

fn advice(status: ExitStatus) -> &'static str {
    match status.signal() {
        Some(9 | 15) => {
            "somebody ended it, or the system for want of memory; the model can be opened again"
        }
        Some(7) => {
            "it may have read a checkpoint that was cut off meanwhile, or the device is gone; the \
             model can be opened again"
        }
        _ => {
            "the backend or its driver is broken: report it to its author; the model can be opened again"
        }
    }
}
