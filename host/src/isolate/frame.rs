//! Frames over a Unix socket: a head (JSON), a tail (raw numbers) and, rarely, file descriptors.
//!
//! ```text
//! 0        4          8             16
//! "HHIP"   head: u32  tail: u64     head bytes, then tail bytes      (little-endian)
//! ```
//!
//! The lengths are the other side's and are not believed: a head is bounded by [`HEAD_LIMIT`], a tail by
//! what the receiver expects, and memory grows with the bytes that have come, not with those that were
//! announced. Descriptors travel with a frame's first byte, at most [`FILES_LIMIT`] of them; where none
//! are expected the system closes them.

use std::io::{ErrorKind, IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use halfhitch_seam::SeamError;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// What every frame begins with.
const MAGIC: [u8; 4] = *b"HHIP";

/// Bytes of a frame's own header.
const HEADER: usize = 16;

/// Most bytes of a head. The largest are compiled graphs' texts and plans of many thousand weights.
pub const HEAD_LIMIT: usize = 64 << 20;

/// Most descriptors of a frame.
pub const FILES_LIMIT: usize = 64;

/// Bytes that are read at a time where many were announced.
const STEP: usize = 1 << 20;

/// What was received.
#[derive(Debug, Default)]
pub struct Frame {
    /// JSON.
    pub head: Vec<u8>,
    /// Raw numbers, as the head says.
    pub tail: Vec<u8>,
    /// Descriptors.
    pub files: Vec<OwnedFd>,
}

/// What a receiver is ready to take.
#[derive(Clone, Copy, Debug)]
pub struct Expected {
    /// Most bytes of a tail.
    pub tail: u64,
    /// Whether descriptors may come.
    pub files: bool,
}

/// Why nothing was sent or received.
#[derive(Debug)]
pub enum Broken {
    /// The other side is gone.
    Closed,
    /// It sent something that is no frame.
    Invalid(String),
    /// The wait was given up.
    Stopped(SeamError),
    /// The system failed.
    Io(std::io::Error),
}

/// Called whenever a socket with a time limit had nothing to say; its error ends the wait.
pub type Idle<'a> = dyn FnMut() -> Result<(), SeamError> + 'a;

/// Waits for as long as it takes.
pub fn patient() -> Result<(), SeamError> {
    Ok(())
}

/// Sends one frame.
///
/// # Errors
/// `Closed`, `Io`; `Stopped` with what `idle` says; `Invalid` for a head over the limit.
pub fn send(
    socket: &UnixStream,
    head: &[u8],
    tail: &[u8],
    files: &[BorrowedFd<'_>],
    idle: &mut Idle<'_>,
) -> Result<(), Broken> {
    let length = u32::try_from(head.len()).ok();
    let length = length.filter(|_| head.len() <= HEAD_LIMIT && files.len() <= FILES_LIMIT);
    let Some(length) = length else {
        let bytes = head.len();
        return Err(Broken::Invalid(format!("a message of {bytes} bytes")));
    };
    let mut first = Vec::with_capacity(HEADER + head.len());
    first.extend_from_slice(&MAGIC);
    first.extend_from_slice(&length.to_le_bytes());
    first.extend_from_slice(&(tail.len() as u64).to_le_bytes());
    first.extend_from_slice(head);
    let mut sent = 0;
    while sent < first.len() + tail.len() {
        let parts = [
            IoSlice::new(first.get(sent..).unwrap_or_default()),
            IoSlice::new(&tail[sent.saturating_sub(first.len())..]),
        ];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_LIMIT))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if sent == 0 && !files.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(files));
        }
        match sendmsg(socket, &parts, &mut control, SendFlags::NOSIGNAL) {
            Ok(n) => sent += n,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => idle().map_err(Broken::Stopped)?,
            Err(Errno::PIPE | Errno::CONNRESET) => return Err(Broken::Closed),
            Err(e) => return Err(Broken::Io(e.into())),
        }
    }
    Ok(())
}

/// Receives one frame.
///
/// # Errors
/// `Closed`, `Io`; `Stopped` with what `idle` says; `Invalid` for what is no frame or more than expected.
pub fn receive(
    socket: &UnixStream,
    expected: Expected,
    idle: &mut Idle<'_>,
) -> Result<Frame, Broken> {
    let mut frame = Frame::default();
    let mut header = [0; HEADER];
    let mut filled = 0;
    while filled < HEADER {
        let part = &mut header[filled..];
        let read = match expected.files {
            true => read_with_files(socket, part, &mut frame.files),
            false => (&*socket).read(part),
        };
        filled += progress(read, idle)?;
    }
    let (magic, lengths) = header.split_at(4);
    let (head, tail) = lengths.split_at(4);
    let head = u32::from_le_bytes(head.try_into().unwrap_or_default()) as usize;
    let tail = u64::from_le_bytes(tail.try_into().unwrap_or_default());
    if magic != MAGIC {
        return Err(Broken::Invalid("something that is no frame".into()));
    }
    if head > HEAD_LIMIT || tail > expected.tail {
        return Err(Broken::Invalid(format!(
            "a message of {head} bytes and {tail} of numbers, where {HEAD_LIMIT} and {} are allowed",
            expected.tail
        )));
    }
    let tail = usize::try_from(tail).map_err(|_| Broken::Invalid("too many numbers".into()))?;
    frame.head = read_exactly(socket, head, idle)?;
    frame.tail = read_exactly(socket, tail, idle)?;
    Ok(frame)
}

fn read_exactly(
    socket: &UnixStream,
    length: usize,
    idle: &mut Idle<'_>,
) -> Result<Vec<u8>, Broken> {
    let mut bytes = Vec::new();
    let mut filled = 0;
    while filled < length {
        if filled == bytes.len() {
            // Doubled from a first step on: no more than twice of what has come.
            bytes.resize(length.min(filled.max(STEP) * 2), 0);
        }
        filled += progress((&*socket).read(&mut bytes[filled..]), idle)?;
    }
    Ok(bytes)
}

/// Bytes that came; waiting costs a call of `idle`.
fn progress(read: std::io::Result<usize>, idle: &mut Idle<'_>) -> Result<usize, Broken> {
    match read {
        Ok(0) => Err(Broken::Closed),
        Ok(n) => Ok(n),
        Err(e) => match e.kind() {
            ErrorKind::Interrupted => Ok(0),
            ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                idle().map_err(Broken::Stopped)?;
                Ok(0)
            }
            ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => Err(Broken::Closed),
            _ => Err(Broken::Io(e)),
        },
    }
}

fn read_with_files(
    socket: &UnixStream,
    into: &mut [u8],
    files: &mut Vec<OwnedFd>,
) -> std::io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_LIMIT))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(into)];
    let got = recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            files.extend(received);
        }
    }
    Ok(got.bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Write as _;
    use std::os::fd::AsFd as _;

    const ALL: Expected = Expected {
        tail: 1 << 20,
        files: true,
    };

    #[test]
    fn a_frame_arrives_as_it_was_sent() {
        let (a, b) = UnixStream::pair().unwrap();
        let file = tempfile::tempfile().unwrap();
        let tail: Vec<u8> = (0..900_000u32).map(|i| i as u8).collect();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                send(&a, b"{}", &tail, &[file.as_fd()], &mut patient).unwrap();
                send(&a, b"next", b"", &[], &mut patient).unwrap();
            });
            let frame = receive(&b, ALL, &mut patient).unwrap();
            assert_eq!(frame.head, b"{}");
            assert_eq!(frame.tail, tail);
            assert_eq!(frame.files.len(), 1);
            let next = receive(&b, ALL, &mut patient).unwrap();
            assert_eq!((next.head.as_slice(), next.files.len()), (&b"next"[..], 0));
        });
        drop(a);
        assert!(matches!(
            receive(&b, ALL, &mut patient),
            Err(Broken::Closed)
        ));
    }

    #[test]
    fn more_than_expected_is_refused_before_it_comes() {
        for (head, tail) in [(u32::MAX, 0), (0, u64::MAX), (0, (1 << 20) + 1)] {
            let (mut a, b) = UnixStream::pair().unwrap();
            let mut header = MAGIC.to_vec();
            header.extend(head.to_le_bytes());
            header.extend(tail.to_le_bytes());
            a.write_all(&header).unwrap();
            let e = receive(&b, ALL, &mut patient).unwrap_err();
            assert!(matches!(e, Broken::Invalid(_)), "{e:?}");
        }
    }

    #[test]
    fn a_wait_can_be_given_up() {
        let (_a, b) = UnixStream::pair().unwrap();
        b.set_read_timeout(Some(std::time::Duration::from_millis(5)))
            .unwrap();
        let mut left = 3;
        let e = receive(&b, ALL, &mut || {
            left -= 1;
            match left {
                0 => Err(SeamError::invalid_input("enough")),
                _ => Ok(()),
            }
        });
        assert!(matches!(e, Err(Broken::Stopped(_))), "{e:?}");
    }

    proptest! {
        #[test]
        fn no_bytes_panic_or_are_taken_for_more_than_they_are(
            valid in any::<bool>(),
            head in 0u32..40,
            tail in 0u64..40,
            bytes in prop::collection::vec(any::<u8>(), 0..100),
        ) {
            let (mut a, b) = UnixStream::pair().unwrap();
            if valid {
                a.write_all(&MAGIC).unwrap();
                a.write_all(&head.to_le_bytes()).unwrap();
                a.write_all(&tail.to_le_bytes()).unwrap();
            }
            a.write_all(&bytes).unwrap();
            drop(a);
            if let Ok(frame) = receive(&b, ALL, &mut patient) {
                prop_assert!(frame.head.len() + frame.tail.len() <= bytes.len());
            }
        }
    }
}
