//! A backend around another that is wrong in one way.
// Each user has its own part of this.
#![allow(dead_code)]

#[path = "fault.rs"]
mod fault;

use std::collections::BTreeMap;
use std::sync::Arc;

use halfhitch_seam::{
    BackendIdentity, CancelToken, ComputeBackend, Control, DecodeStep, DeviceCapabilities,
    DeviceId, DeviceInfo, ErrorCode, ExecutionPlan, LogitsRequest, NoObserver, OpenRequest,
    OutputRequest, Precision, SeamError, SeamResult, SequenceId, Session, StepOutput, Tap, TokenId,
};

pub use fault::Fault;

/// Bytes that a leaking session leaves: about its model's weights.
const LEAK: usize = 80 << 10;

/// The wrapper.
pub struct Faulty {
    inner: Arc<dyn ComputeBackend>,
    fault: Fault,
    opened: std::sync::atomic::AtomicU32,
    last: Arc<std::sync::atomic::AtomicU32>,
}

impl Faulty {
    /// `inner`, made wrong.
    pub fn new(inner: Arc<dyn ComputeBackend>, fault: Fault) -> Self {
        Self {
            inner,
            fault,
            opened: 0.into(),
            last: Arc::default(),
        }
    }
}

impl ComputeBackend for Faulty {
    fn identity(&self) -> BackendIdentity {
        self.inner.identity()
    }

    fn devices(&self) -> SeamResult<Vec<DeviceInfo>> {
        self.inner.devices()
    }

    fn capabilities(&self, device: &DeviceId) -> SeamResult<DeviceCapabilities> {
        let mut capabilities = self.inner.capabilities(device)?;
        match self.fault {
            Fault::ClaimsHalf => capabilities.precisions.push(Precision::F16),
            Fault::DeniesSampler => capabilities.samplers.clear(),
            _ => {}
        }
        Ok(capabilities)
    }

    fn open(&self, request: OpenRequest<'_>) -> SeamResult<Box<dyn Session>> {
        let vocab = request.model.vocab_size;
        if self.fault == Fault::Leaks {
            std::mem::forget(vec![1u8; LEAK]);
        }
        let n = self
            .opened
            .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Ok(Box::new(FaultySession {
            inner: self.inner.open(request)?,
            fault: self.fault,
            vocab,
            lengths: BTreeMap::new(),
            stale: BTreeMap::new(),
            names: BTreeMap::new(),
            free: Vec::new(),
            drift: 1.0 + 1e-6 * (n % 2) as f32,
            thread: std::thread::current().id(),
            last: Arc::clone(&self.last),
        }))
    }
}

struct FaultySession {
    inner: Box<dyn Session>,
    fault: Fault,
    vocab: usize,
    /// Lengths that are told in place of the true ones.
    lengths: BTreeMap<SequenceId, isize>,
    /// Each sequence's output before.
    stale: BTreeMap<SequenceId, StepOutput>,
    /// Ids that stand for others.
    names: BTreeMap<SequenceId, SequenceId>,
    free: Vec<SequenceId>,
    drift: f32,
    thread: std::thread::ThreadId,
    /// The token that any session saw last.
    last: Arc<std::sync::atomic::AtomicU32>,
}

impl FaultySession {
    fn is(&self, fault: Fault) -> bool {
        self.fault == fault
    }

    fn name(&self, id: SequenceId) -> SequenceId {
        self.names.get(&id).copied().unwrap_or(id)
    }

    fn token(&self, token: TokenId) -> TokenId {
        if self.is(Fault::ClampsTokens) {
            token.min(self.vocab as TokenId - 1)
        } else {
            token
        }
    }

    fn refusal<T>(&self, result: SeamResult<T>) -> SeamResult<T> {
        result.map_err(|e| match self.fault {
            Fault::WrongCode => SeamError::new(ErrorCode::Backend, e.message),
            _ => e,
        })
    }

    /// What is made of the error of a step that computed something that is not finite.
    fn non_finite(&self, e: SeamError) -> SeamResult<StepOutput> {
        match self.fault {
            Fault::TokenFromNan if e.code == ErrorCode::NonFinite => Ok(StepOutput {
                token: Some(0),
                ..StepOutput::default()
            }),
            Fault::NanLogits if e.code == ErrorCode::NonFinite => Ok(StepOutput {
                logits: vec![f32::NAN; self.vocab],
                ..StepOutput::default()
            }),
            _ => Err(e),
        }
    }

    fn output(&mut self, id: SequenceId, mut out: StepOutput, asked: OutputRequest) -> StepOutput {
        match self.fault {
            Fault::SecondBestToken => {
                out.token = out.token.map(|t| (t + 1) % self.vocab as TokenId);
            }
            Fault::RawLogprobs => {
                for entry in &mut out.top_logprobs {
                    entry.logprob += 1.0;
                }
            }
            Fault::FirstRowForAll if out.logits.len() > self.vocab => {
                let first = out.logits[..self.vocab].to_vec();
                out.logits = first.repeat(out.logits.len() / self.vocab);
            }
            Fault::LogitsUnasked if asked.logits == LogitsRequest::None => {
                out.logits = vec![0.0; self.vocab];
            }
            Fault::Drifts => out.logits.iter_mut().for_each(|v| *v *= self.drift),
            Fault::StaleLogits => {
                let before = self.stale.insert(id, out.clone());
                return match before {
                    Some(before) if before.logits.len() == out.logits.len() => before,
                    _ => out,
                };
            }
            _ => {}
        }
        out
    }

    fn shift(&mut self, id: SequenceId, by: isize) {
        *self.lengths.entry(id).or_default() += by;
    }
}

impl Session for FaultySession {
    fn plan(&self) -> &ExecutionPlan {
        self.inner.plan()
    }

    fn create_sequence(&mut self) -> SeamResult<SequenceId> {
        let id = self.inner.create_sequence()?;
        if let Some(old) = self.free.pop() {
            self.names.insert(old, id);
            return Ok(old);
        }
        Ok(id)
    }

    fn sequence_len(&self, sequence: SequenceId) -> SeamResult<usize> {
        let len = self.inner.sequence_len(self.name(sequence));
        let shift = self.lengths.get(&sequence).copied().unwrap_or(0);
        self.refusal(len.map(|len| len.saturating_add_signed(shift)))
    }

    fn prefill(
        &mut self,
        sequence: SequenceId,
        tokens: &[TokenId],
        output: OutputRequest,
        control: &Control<'_>,
    ) -> SeamResult<StepOutput> {
        let id = self.name(sequence);
        let chunk = self.plan().prefill_chunk;
        if self.is(Fault::AbortsWithoutMemory) && tokens.len() > 100 {
            std::mem::forget(vec![1u8; 160 << 20]);
        }
        let mut tokens: Vec<TokenId> = tokens.iter().map(|&t| self.token(t)).collect();
        if self.is(Fault::AcceptsEmpty) && tokens.is_empty() {
            return Ok(StepOutput::default());
        }
        if self.is(Fault::DroppedToken) && tokens.len() > chunk {
            tokens.remove(chunk - 1);
            self.shift(sequence, 1);
        }
        let nobody = CancelToken::new();
        let mut inner = *control;
        if self.is(Fault::IgnoresCancel) {
            inner.cancel = &nobody;
        }
        if self.is(Fault::NoProgress) {
            inner.observer = &NoObserver;
        }
        let result = self.inner.prefill(id, &tokens, output, &inner);
        let quiet = Control {
            cancel: &nobody,
            observer: &NoObserver,
        };
        match (&result, self.fault) {
            (Err(e), Fault::CancelLeavesTokens) if e.code == ErrorCode::Cancelled => {
                self.inner
                    .prefill(id, &tokens[..1], OutputRequest::NOTHING, &quiet)?;
            }
            (Err(e), Fault::FillsContext) if e.code == ErrorCode::ContextFull => {
                let room = self.plan().context - self.inner.sequence_len(id)?;
                if room > 0 {
                    self.inner
                        .prefill(id, &tokens[..room], OutputRequest::NOTHING, &quiet)?;
                }
            }
            _ => {}
        }
        let out = match result {
            Ok(out) => out,
            Err(e) => {
                let refused = self.refusal(Err(e));
                return refused.or_else(|e| self.non_finite(e));
            }
        };
        Ok(self.output(sequence, out, output))
    }

    fn decode(
        &mut self,
        steps: &[DecodeStep],
        output: OutputRequest,
    ) -> SeamResult<Vec<StepOutput>> {
        if self.is(Fault::OneThread) && self.thread != std::thread::current().id() {
            return Err(SeamError::new(
                ErrorCode::Backend,
                "called from another thread",
            ));
        }
        let mut inner: Vec<DecodeStep> = steps
            .iter()
            .map(|step| DecodeStep {
                sequence: self.name(step.sequence),
                token: self.token(step.token),
            })
            .collect();
        if self.is(Fault::SharesState) && inner.len() == 1 {
            use std::sync::atomic::Ordering::SeqCst;
            let own = inner[0].token;
            // A step that reads its input where every session's lies, a moment after it was put there.
            self.last.store(own, SeqCst);
            std::thread::yield_now();
            std::thread::sleep(std::time::Duration::from_micros(50));
            inner[0].token = self.last.load(SeqCst).min(self.vocab as TokenId - 1);
        }
        if self.is(Fault::AcceptsDuplicates) {
            let mut out = Vec::new();
            for step in inner {
                out.extend(self.inner.decode(&[step], output)?);
            }
            return Ok(out);
        }
        if self.is(Fault::OtherSequence) && inner.len() > 1 {
            let first = inner[0].sequence;
            inner[0].sequence = inner[1].sequence;
            inner[1].sequence = first;
        }
        match self.inner.decode(&inner, output) {
            Ok(outputs) => Ok(steps
                .iter()
                .zip(outputs)
                .map(|(step, out)| self.output(step.sequence, out, output))
                .collect()),
            Err(e) => {
                let refused = self.refusal(Err(e));
                refused.or_else(|e| Ok(vec![self.non_finite(e)?]))
            }
        }
    }

    fn truncate(&mut self, sequence: SequenceId, len: usize) -> SeamResult<()> {
        let id = self.name(sequence);
        match self.fault {
            Fault::Panics => panic!("a bug"),
            Fault::TruncateDoesNothing => {
                let has = self.sequence_len(sequence)?;
                if len <= has {
                    self.shift(sequence, len as isize - has as isize);
                    return Ok(());
                }
            }
            Fault::PositionAfterTruncate if len > 0 => {
                self.inner.truncate(id, len)?;
                self.inner.truncate(id, len - 1)?;
                self.shift(sequence, 1);
                return Ok(());
            }
            _ => {}
        }
        let result = self.inner.truncate(id, len);
        self.refusal(result)
    }

    fn release(&mut self, sequence: SequenceId) -> SeamResult<()> {
        let result = self.inner.release(self.name(sequence));
        if result.is_ok() && self.is(Fault::ReusesIds) {
            self.free.push(sequence);
        }
        self.refusal(result)
    }

    fn tap(&mut self, tokens: &[TokenId], control: &Control<'_>) -> SeamResult<Vec<Tap>> {
        let mut tokens = tokens.to_vec();
        match self.fault {
            Fault::HidesTaps => return Err(SeamError::unsupported("not today")),
            Fault::TapsOtherTokens => tokens.reverse(),
            _ => {}
        }
        self.inner.tap(&tokens, control)
    }
}
