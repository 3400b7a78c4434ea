//! Answers in the cache: one entry a contraction, found again by all that it depends on.

use halfhitch_seam::{DeviceId, SeamError, SeamResult, TunedContraction};
use serde::{Deserialize, Serialize};

use crate::compiler::{Cache, Target, Tool, cache};
use crate::emitter::EMITTER_VERSION;

/// Longest entry that is read.
const LONGEST: usize = 64 << 10;

/// What answers hold for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    device: String,
    /// Of the target's flags and of the machine.
    target: String,
    compiler: String,
    emitter: u32,
    cores: usize,
}

impl Identity {
    /// A device, what code is made for it, and by what.
    pub fn new(device: &DeviceId, target: &Target, compiler: &Tool) -> Self {
        let flags = target.flags.join("\n");
        Self {
            device: device.0.clone(),
            target: cache::key(&[flags.as_bytes(), target.machine.as_bytes()]),
            compiler: format!("{} {}", compiler.version, compiler.content),
            emitter: EMITTER_VERSION,
            cores: std::thread::available_parallelism().map_or(1, |n| n.get()),
        }
    }
}

#[derive(Serialize, Deserialize)]
struct Kept {
    identity: Identity,
    answer: TunedContraction,
}

/// The answers of one identity.
pub struct Store<'a> {
    cache: &'a Cache,
    identity: Identity,
}

impl<'a> Store<'a> {
    /// In a cache.
    pub const fn new(cache: &'a Cache, identity: Identity) -> Self {
        Self { cache, identity }
    }

    /// Keeps an answer in place of an earlier one.
    ///
    /// # Errors
    /// `Io`.
    pub fn keep(&self, answer: &TunedContraction) -> SeamResult<()> {
        let encode = |e: serde_json::Error| SeamError::invalid_input(format!("encoding: {e}"));
        let about = (
            &self.identity,
            answer.form,
            answer.shape,
            answer.rows,
            answer.threads,
        );
        let about = serde_json::to_vec(&about).map_err(encode)?;
        let kept = Kept {
            identity: self.identity.clone(),
            answer: answer.clone(),
        };
        let text = serde_json::to_vec(&kept).map_err(encode)?;
        self.cache.put_answer(&cache::key(&[&about]), &text)
    }

    /// All answers; a damaged entry is passed over, with a warning in the log.
    pub fn read(&self) -> Vec<TunedContraction> {
        let mut all: Vec<TunedContraction> = self
            .cache
            .answers(LONGEST)
            .into_iter()
            .filter_map(|(key, text)| match serde_json::from_slice::<Kept>(&text) {
                Ok(kept) => (kept.identity == self.identity).then_some(kept.answer),
                Err(e) => {
                    tracing::warn!(key, "a tuned entry is passed over: {e}");
                    None
                }
            })
            .collect();
        all.sort_by_key(|t| (t.rows, t.form, t.shape, t.threads));
        all
    }
}
