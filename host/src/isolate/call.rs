//! Calls over a channel: asked, watched, answered.

use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use halfhitch_seam::{Control, ErrorCode, SeamError, SeamResult};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::frame::{self, Expected, Frame};
use super::message::{Call, Directive, Reply, Request};
use super::process::Process;

/// The longest that a call may go on after a wish to stop it, where the limit is no shorter.
const STOPPING: Duration = Duration::from_secs(30);

/// One of a child's channels. It carries one call at a time.
pub struct Channel {
    process: Arc<Process>,
    socket: UnixStream,
    id: u64,
    calls: u64,
}

/// What goes with a call besides its request.
#[derive(Default)]
pub struct With<'a> {
    /// The request's numbers.
    pub tail: &'a [u8],
    /// Descriptors.
    pub files: &'a [BorrowedFd<'a>],
    /// Cancellation and progress, where the call has them.
    pub control: Option<&'a Control<'a>>,
    /// Most bytes of numbers that may be answered.
    pub answer: u64,
    /// A limit that is shorter than the usual one.
    pub limit: Option<Duration>,
}

impl Channel {
    /// A channel over `socket`, which looks up from waiting every now and then.
    pub const fn new(process: Arc<Process>, socket: UnixStream, id: u64) -> Self {
        Self {
            process,
            socket,
            id,
            calls: 0,
        }
    }

    /// The process at the other end.
    pub const fn process(&self) -> &Arc<Process> {
        &self.process
    }

    /// Asks, passes progress on, and waits for the answer and its numbers.
    ///
    /// # Errors
    /// What the other side answers; `Poisoned` where its process is known to be gone; `Backend` where it
    /// dies, breaks the protocol, or goes on for too long without progress, and is ended; `Cancelled`.
    pub fn call<T: DeserializeOwned>(
        &mut self,
        request: Request,
        with: &With<'_>,
    ) -> SeamResult<(T, Vec<u8>)> {
        if let Some(why) = self.process.ended() {
            return Err(SeamError::new(
                ErrorCode::Poisoned,
                format!("the backend's process is gone: {}", why.message),
            )
            .hint("open the model again"));
        }
        self.calls += 1;
        let doing = request.doing();
        let limit = with.limit.unwrap_or(self.process.limit());
        let mut watch = Watch::new(&self.process, doing, with.control, limit);
        watch.call = Some((self.id, self.calls));
        let call = Call {
            number: self.calls,
            request,
        };
        let head = encode(&call)?;
        let sent = frame::send(&self.socket, &head, with.tail, with.files, &mut || {
            watch.look()
        });
        sent.map_err(|broken| self.process.broken(broken, doing))?;
        receive_reply(&self.socket, with.answer, &mut watch)
    }
}

/// Waits for the answer to what was asked.
///
/// # Errors
/// As [`Channel::call`].
pub fn receive_reply<T: DeserializeOwned>(
    socket: &UnixStream,
    tail: u64,
    watch: &mut Watch<'_>,
) -> SeamResult<(T, Vec<u8>)> {
    let expected = Expected { tail, files: false };
    loop {
        let received = frame::receive(socket, expected, &mut || watch.look());
        let Frame { head, tail, .. } =
            received.map_err(|broken| watch.process.broken(broken, watch.doing))?;
        match serde_json::from_slice::<Reply<T>>(&head) {
            Ok(Reply::Done(answer)) => return Ok((answer, tail)),
            Ok(Reply::Failed(error)) => return Err(error),
            Ok(Reply::Event(event)) => {
                if let Some(control) = watch.control {
                    control.observer.on_event(event);
                }
                watch.progressed();
                watch.look()?;
            }
            Err(e) => {
                let what = format!("an answer that cannot be read ({e})");
                let broken = frame::Broken::Invalid(what);
                return Err(watch.process.broken(broken, watch.doing));
            }
        }
    }
}

/// Encodes a message.
///
/// # Errors
/// `InvalidInput` for what JSON cannot hold.
pub fn encode<T: Serialize>(message: &T) -> SeamResult<Vec<u8>> {
    serde_json::to_vec(message)
        .map_err(|e| SeamError::invalid_input(format!("encoding for a backend's process: {e}")))
}

/// Sees to it that a wait comes to an end.
pub struct Watch<'a> {
    process: &'a Process,
    doing: &'static str,
    control: Option<&'a Control<'a>>,
    limit: Duration,
    /// Channel and number, where there is somebody to tell of a wish to stop.
    call: Option<(u64, u64)>,
    /// When something last came.
    since: Instant,
    /// When it was asked to stop.
    asked: Option<Instant>,
}

impl<'a> Watch<'a> {
    /// Watches over something that begins now.
    pub fn new(
        process: &'a Process,
        doing: &'static str,
        control: Option<&'a Control<'a>>,
        limit: Duration,
    ) -> Self {
        Self {
            process,
            doing,
            control,
            limit,
            call: None,
            since: Instant::now(),
            asked: None,
        }
    }

    fn progressed(&mut self) {
        self.since = Instant::now();
    }

    /// Passes a wish to stop on, and ends the child where it has taken too long.
    ///
    /// # Errors
    /// `Cancelled` or `Backend` for a child that was ended; what passing on says.
    fn look(&mut self) -> SeamResult<()> {
        let wish = self.control.is_some_and(|c| c.cancel.is_cancelled());
        if let Some(asked) = self.asked {
            let patience = self.limit.min(STOPPING);
            if asked.elapsed() > patience {
                return Err(self
                    .process
                    .end(self.overdue(ErrorCode::Cancelled, patience)));
            }
            return Ok(());
        }
        if wish && let Some((channel, call)) = self.call {
            self.process
                .say(&Directive::Cancel { channel, call }, &[])?;
            self.asked = Some(Instant::now());
            return Ok(());
        }
        if self.since.elapsed() > self.limit {
            return Err(self
                .process
                .end(self.overdue(ErrorCode::Backend, self.limit)));
        }
        Ok(())
    }

    fn overdue(&self, code: ErrorCode, patience: Duration) -> SeamError {
        let doing = self.doing;
        let seconds = patience.as_secs_f32();
        if code == ErrorCode::Cancelled {
            return SeamError::new(
                code,
                format!(
                    "cancelled; the backend's process went on {doing} for {seconds} s and was ended"
                ),
            );
        }
        SeamError::new(
            code,
            format!(
                "the backend's process gave no sign of life for {seconds} s while {doing}, and was ended"
            ),
        )
        .hint("the backend or its driver hangs; --isolate-timeout SECONDS grants it more")
    }
}
