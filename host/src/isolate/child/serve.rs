//! One channel of the child: calls in, answers out, one after the other.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use halfhitch_seam::{
    CancelToken, ComputeBackend, Control, DecodeStep, ErrorCode, Event, Observer, OpenRequest,
    SeamError, SeamResult, Session, check_weights,
};
use parking_lot::Mutex;
use serde::Serialize;

use super::cancels::Cancels;
use super::{guarded, parse};
use crate::engine::pages::PageRelease;
use crate::isolate::call::encode;
use crate::isolate::frame::{self, Broken, Expected, Frame, patient};
use crate::isolate::message::{Call, Open, Reply, Request, StepHead};
use crate::isolate::numbers::{from_steps, from_taps, to_tokens};
use crate::isolate::weights::Received;

/// What a call may bring: numbers of 64 million tokens, and files.
const CALL: Expected = Expected {
    tail: 256 << 20,
    files: true,
};

/// An answer's head, and its numbers.
type Answer = SeamResult<(Vec<u8>, Vec<u8>)>;

/// What serves a channel.
pub struct Service {
    out: Out,
    id: u64,
    cancels: Arc<Cancels>,
    served: Served,
}

/// What calls are about.
struct Served {
    backend: Arc<dyn ComputeBackend>,
    files: Received,
    session: Option<Box<dyn Session>>,
}

impl Service {
    /// Serves `backend` over `socket`, the channel `id`.
    pub fn new(
        socket: UnixStream,
        id: u64,
        backend: Arc<dyn ComputeBackend>,
        cancels: Arc<Cancels>,
    ) -> Self {
        cancels.open(id);
        let served = Served {
            backend,
            files: Received::default(),
            session: None,
        };
        Self {
            out: Out::new(socket),
            id,
            cancels,
            served,
        }
    }

    /// Serves until the host closes the channel. What cannot be understood closes it from here.
    pub fn run(mut self) {
        loop {
            let frame = match frame::receive(&self.out.socket, CALL, &mut patient) {
                Ok(frame) => frame,
                Err(Broken::Closed) => break,
                Err(e) => {
                    tracing::error!("a channel is given up: {e:?}");
                    break;
                }
            };
            if let Err(e) = self.answer(frame) {
                tracing::error!("a channel is given up: {e}");
                break;
            }
        }
        self.cancels.close(self.id);
        let session = self.served.session.take();
        let dropped = guarded(|| {
            drop(session);
            Ok(())
        });
        if let Err(e) = dropped {
            tracing::error!("closing a session: {e}");
        }
    }

    fn answer(&mut self, frame: Frame) -> SeamResult<()> {
        let call: Call = parse(&frame.head)?;
        let cancel = self.cancels.begin(self.id, call.number);
        let (served, out) = (&mut self.served, &self.out);
        let answer =
            guarded(|| served.handle(call.request, &frame.tail, frame.files, out, &cancel));
        let (head, tail) = match answer {
            Ok(answer) => answer,
            Err(error) => (encode(&Reply::<()>::Failed(error))?, Vec::new()),
        };
        self.out.send(&head, &tail);
        Ok(())
    }
}

impl Served {
    fn handle(
        &mut self,
        request: Request,
        tail: &[u8],
        files: Vec<OwnedFd>,
        out: &Out,
        cancel: &CancelToken,
    ) -> Answer {
        let events = Events(out);
        let release = || self.files.release_pages();
        let pages = PageRelease::new(&events, &release);
        let control = Control {
            cancel,
            observer: &pages,
        };
        match request {
            Request::Devices => done(self.backend.devices()?),
            Request::Capabilities(device) => done(self.backend.capabilities(&device)?),
            Request::Cache(action) => done(self.backend.cache(action)?),
            Request::Graph(request) => done(self.backend.graph(&request, &control)?),
            Request::Tune(request) => done(self.backend.tune(&request, &control)?),
            Request::Files => done(self.files.add(files)?),
            Request::Open(open) => {
                self.session = Some(self.open(&open, &control)?);
                done(())
            }
            Request::CreateSequence => done(self.session()?.create_sequence()?),
            Request::SequenceLen(sequence) => done(self.session()?.sequence_len(sequence)?),
            Request::Prefill(sequence, output) => {
                let tokens = to_tokens(tail)?;
                let session = self.session.as_mut().ok_or_else(not_open)?;
                let step = session.prefill(sequence, &tokens, output, &control)?;
                let (heads, tail) = from_steps(&[step]);
                let head: Option<StepHead> = heads.into_iter().next();
                Ok((encode(&Reply::Done(head))?, tail))
            }
            Request::Decode(steps, output) => {
                let steps: Vec<DecodeStep> = steps
                    .into_iter()
                    .map(|(sequence, token)| DecodeStep { sequence, token })
                    .collect();
                let (heads, tail) = from_steps(&self.session()?.decode(&steps, output)?);
                Ok((encode(&Reply::Done(heads))?, tail))
            }
            Request::Truncate(sequence, len) => done(self.session()?.truncate(sequence, len)?),
            Request::Release(sequence) => done(self.session()?.release(sequence)?),
            Request::Tap => {
                let tokens = to_tokens(tail)?;
                let session = self.session.as_mut().ok_or_else(not_open)?;
                let (heads, tail) = from_taps(&session.tap(&tokens, &control)?);
                Ok((encode(&Reply::Done(heads))?, tail))
            }
            Request::Close => {
                self.session = None;
                done(())
            }
        }
    }

    fn session(&mut self) -> SeamResult<&mut dyn Session> {
        match &mut self.session {
            Some(session) => Ok(session.as_mut()),
            None => Err(not_open()),
        }
    }

    /// Opens a session on what came, once it has passed the checks that a backend relies on.
    fn open(&self, open: &Open, control: &Control<'_>) -> SeamResult<Box<dyn Session>> {
        if self.session.is_some() {
            return Err(SeamError::invalid_input(
                "the channel has a session already",
            ));
        }
        open.model.validate()?;
        let weights = self.files.weights(open.weights.clone())?;
        check_weights(&open.model, &weights.manifest())?;
        let session = self.backend.open(OpenRequest {
            plan: &open.plan,
            model: &open.model,
            weights: &weights,
            control: *control,
        });
        self.files.release_pages();
        session
    }
}

fn not_open() -> SeamError {
    SeamError::new(ErrorCode::InvalidInput, "the channel has no session")
}

fn done<T: Serialize>(value: T) -> Answer {
    Ok((encode(&Reply::Done(value))?, Vec::new()))
}

/// The channel's way out, for answers and for events, which may come from several threads.
struct Out {
    socket: UnixStream,
    turn: Mutex<()>,
}

impl Out {
    fn new(socket: UnixStream) -> Self {
        Self {
            socket,
            turn: Mutex::new(()),
        }
    }

    /// A host that is gone needs no answer; the main thread sees to the rest.
    fn send(&self, head: &[u8], tail: &[u8]) {
        let _turn = self.turn.lock();
        if let Err(e) = frame::send(&self.socket, head, tail, &[], &mut patient) {
            tracing::debug!("an answer is lost: {e:?}");
        }
    }
}

/// Sends events to the host.
struct Events<'a>(&'a Out);

impl Observer for Events<'_> {
    fn on_event(&self, event: Event) {
        if let Ok(head) = encode(&Reply::<()>::Event(event)) {
            self.0.send(&head, &[]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use halfhitch_reference_cpu::ReferenceCpu;
    use proptest::prelude::*;
    use std::io::{Read as _, Write as _};
    use std::net::Shutdown;

    /// What a host says on a channel, right or wrong, and all that comes back until the channel ends.
    fn talk(said: &[u8]) -> Vec<u8> {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let backend = Arc::new(ReferenceCpu::new());
        let service = Service::new(theirs, 1, backend, Arc::new(Cancels::default()));
        let thread = std::thread::spawn(move || service.run());
        ours.write_all(said).unwrap();
        ours.shutdown(Shutdown::Write).unwrap();
        let mut answers = Vec::new();
        // A channel that is closed with something unread in it is reset; what came before counts.
        let _ = ours.read_to_end(&mut answers);
        thread.join().expect("it panicked");
        answers
    }

    fn framed(head: &[u8], tail: &[u8]) -> Vec<u8> {
        let (a, mut b) = UnixStream::pair().unwrap();
        frame::send(&a, head, tail, &[], &mut patient).unwrap();
        drop(a);
        let mut bytes = Vec::new();
        b.read_to_end(&mut bytes).unwrap();
        bytes
    }

    const CALLS: [&str; 12] = [
        r#"{"number":1,"request":"devices"}"#,
        r#"{"number":2,"request":{"capabilities":"cpu"}}"#,
        r#"{"number":3,"request":{"cache":"clear"}}"#,
        r#"{"number":4,"request":"files"}"#,
        r#"{"number":5,"request":"create_sequence"}"#,
        r#"{"number":6,"request":{"sequence_len":18446744073709551615}}"#,
        r#"{"number":7,"request":{"prefill":[1,{"sample":"greedy","logits":"all","top_logprobs":9}]}}"#,
        r#"{"number":8,"request":{"decode":[[[0,1],[2,3]],{"sample":null,"logits":"last","top_logprobs":0}]}}"#,
        r#"{"number":9,"request":{"truncate":[0,99999999]}}"#,
        r#"{"number":10,"request":{"release":0}}"#,
        r#"{"number":11,"request":"tap"}"#,
        r#"{"number":12,"request":"close"}"#,
    ];

    #[test]
    fn every_call_is_understood_and_needs_a_session() {
        for (i, call) in CALLS.iter().enumerate() {
            let answer = talk(&framed(call.as_bytes(), &[0; 8]));
            let text = String::from_utf8_lossy(&answer);
            let without_session = [0, 2, 3, 11].contains(&i);
            assert_eq!(
                text.contains(r#"{"done":"#),
                without_session,
                "{call}: {text}"
            );
            assert_eq!(
                text.contains("has no session"),
                i > 3 && i < 11,
                "{call}: {text}"
            );
        }
    }

    #[test]
    fn a_call_that_is_none_ends_the_channel() {
        assert!(talk(&framed(b"{}", b"")).is_empty());
        assert!(talk(b"something else altogether").is_empty());
        assert!(talk(&[]).is_empty());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        #[test]
        fn no_bytes_make_it_panic(
            calls in prop::collection::vec((0..CALLS.len(), prop::collection::vec(any::<u8>(), 0..20)), 1..4),
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        ) {
            let frames = calls.iter().map(|(i, tail)| framed(CALLS[*i].as_bytes(), tail));
            let mut said = frames.collect::<Vec<_>>().concat();
            for (at, byte) in changes {
                let at = at.index(said.len());
                said[at] = byte;
            }
            talk(&said);
        }
    }
}
