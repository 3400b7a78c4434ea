//! What a host and its child could say to each other, as a function of bytes.

use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::LazyLock;

use halfhitch_seam::{
    BackendIdentity, DeviceCapabilities, DeviceInfo, SeamResult, StepOutput, check_weights,
};
use serde::de::DeserializeOwned;

use super::child::parse;
use super::frame::{self, Expected, patient};
use super::message::{Call, Directive, Open, Reply, Request, StepHead, TapHead};
use super::numbers::{to_steps, to_taps, to_tokens};
use super::weights::Received;
use crate::fuzzing::fine;

/// More than a fuzzer makes up; below what a socket holds, as one thread writes and reads.
const EXPECTED: Expected = Expected {
    tail: 16 << 10,
    files: true,
};

/// A file of weights with 4 KiB of numbers, as a child has received it.
static FILES: LazyLock<Received> = LazyLock::new(|| {
    let mut file = tempfile::tempfile().expect("a temporary file");
    file.write_all(&[0x3c; 4 << 10]).expect("4 KiB in it");
    let mut received = Received::default();
    received
        .add(vec![OwnedFd::from(file)])
        .expect("it is mapped");
    received
});

/// Bytes on a socket; then a message's head, and behind the first zero byte its numbers, as either side
/// reads them. What is accepted is no more than has come.
pub fn isolation(bytes: &[u8]) {
    let bytes = &bytes[..bytes.len().min(EXPECTED.tail as usize)];
    let (mut ours, theirs) = UnixStream::pair().expect("a pair of sockets");
    ours.write_all(bytes).expect("room in the socket");
    drop(ours);
    if let Ok(frame) = frame::receive(&theirs, EXPECTED, &mut patient) {
        assert!(16 + frame.head.len() + frame.tail.len() <= bytes.len());
        assert!(frame.files.is_empty());
    }
    let zero = bytes.iter().position(|&b| b == 0);
    let (head, tail) = bytes.split_at(zero.unwrap_or(bytes.len()));
    let tail = tail.get(1..).unwrap_or_default();
    as_child(head, tail);
    as_host(head, tail);
}

/// A message of the host's. Errors of the parser quote it, and stay between the two.
fn as_child(head: &[u8], tail: &[u8]) {
    let _: SeamResult<Directive> = parse(head);
    let Ok(call) = parse::<Call>(head) else {
        return;
    };
    if let Some(tokens) = fine(to_tokens(tail)) {
        assert_eq!(tokens.len() * 4, tail.len());
    }
    if let Request::Open(open) = call.request {
        opened(*open);
    }
}

/// What is checked before a backend sees it: all of a weight's parts lie in the file.
fn opened(open: Open) {
    if fine(open.model.validate()).is_none() {
        return;
    }
    let parts: Vec<_> = open.weights.iter().flat_map(|w| w.parts.clone()).collect();
    if let Some(weights) = fine(FILES.weights(open.weights)) {
        for part in parts {
            assert!(part.file == 0 && part.offset + part.length <= 4 << 10);
            let elements: usize = part.shape.iter().product();
            assert_eq!(elements * part.dtype.size(), part.length, "{part:?}");
        }
        fine(check_weights(&open.model, &weights.manifest()));
    }
}

/// An answer of the child's: as many numbers as have come, to the last.
fn as_host(head: &[u8], tail: &[u8]) {
    answer::<BackendIdentity>(head);
    answer::<Vec<DeviceInfo>>(head);
    answer::<DeviceCapabilities>(head);
    if let Some(heads) = answer::<Vec<StepHead>>(head)
        && let Some(steps) = fine(to_steps(&heads, tail))
    {
        assert_eq!(steps.len(), heads.len());
        let numbers = |s: &StepOutput| s.logits.len() + 2 * s.top_logprobs.len();
        assert_eq!(steps.iter().map(numbers).sum::<usize>() * 4, tail.len());
    }
    if let Some(heads) = answer::<Vec<TapHead>>(head)
        && let Some(taps) = fine(to_taps(&heads, tail))
    {
        let numbers: usize = taps.iter().map(|t| t.values.len()).sum();
        assert_eq!(numbers * 4, tail.len());
    }
}

fn answer<T: DeserializeOwned>(head: &[u8]) -> Option<T> {
    match serde_json::from_slice(head) {
        Ok(Reply::Done(value)) => Some(value),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// It follows the messages: a fuzzer that starts from a seed that is refused gets nowhere.
    #[test]
    fn the_seed_that_opens_passes_all_checks() {
        let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/seeds/isolation");
        let bytes = std::fs::read(seeds.join("open")).unwrap();
        let Ok(Call {
            request: Request::Open(open),
            ..
        }) = parse(&bytes)
        else {
            panic!("it opens nothing");
        };
        open.model.validate().unwrap();
        let weights = FILES.weights(open.weights).unwrap();
        check_weights(&open.model, &weights.manifest()).unwrap();
    }
}
