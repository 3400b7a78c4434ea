//! A backend whose norms sum in a type of its choice: the suite's own decoder behind the seam. It shows no
//! intermediate results.
// Each user has its own part of this.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::sync::Arc;

use halfhitch_reference_cpu::ReferenceCpu;
use halfhitch_seam::{
    BackendIdentity, ComputeBackend, Control, DecodeStep, DeviceCapabilities, DeviceId, DeviceInfo,
    ExecutionPlan, LogitsRequest, ModelSpec, OpenRequest, OutputRequest, SeamResult, SequenceId,
    Session, StepOutput, TokenId, Weights,
};
use halfhitch_suite::oracle::{NormSum, logits_with};

/// The backend.
pub struct Narrow(NormSum, Arc<dyn ComputeBackend>);

impl Narrow {
    /// Norms sum so; all else is told as the reference tells it.
    pub fn new(sum: NormSum) -> Self {
        Self::beside(Arc::new(ReferenceCpu::new()), sum)
    }

    /// The same under another's name.
    pub fn beside(other: Arc<dyn ComputeBackend>, sum: NormSum) -> Self {
        Self(sum, other)
    }
}

/// Sums in f16, as a kernel does whose accumulator has the operands' type.
pub fn in_f16(values: &[f64]) -> f64 {
    let sum = values.iter().fold(half::f16::ZERO, |sum, &v| {
        half::f16::from_f64(sum.to_f64() + v)
    });
    sum.to_f64()
}

impl ComputeBackend for Narrow {
    fn identity(&self) -> BackendIdentity {
        self.1.identity()
    }

    fn devices(&self) -> SeamResult<Vec<DeviceInfo>> {
        self.1.devices()
    }

    fn capabilities(&self, device: &DeviceId) -> SeamResult<DeviceCapabilities> {
        let mut capabilities = self.1.capabilities(device)?;
        capabilities.taps = false;
        Ok(capabilities)
    }

    fn open(&self, request: OpenRequest<'_>) -> SeamResult<Box<dyn Session>> {
        Ok(Box::new(NarrowSession {
            plan: request.plan.clone(),
            spec: request.model.clone(),
            weights: request.weights.clone(),
            sum: self.0,
            sequences: BTreeMap::new(),
            next: 0,
        }))
    }
}

struct NarrowSession {
    plan: ExecutionPlan,
    spec: ModelSpec,
    weights: Weights,
    sum: NormSum,
    sequences: BTreeMap<SequenceId, Vec<TokenId>>,
    next: u64,
}

impl NarrowSession {
    fn grow(&mut self, id: SequenceId, tokens: &[TokenId], all: bool) -> SeamResult<Vec<f32>> {
        let sequence = self.sequences.entry(id).or_default();
        sequence.extend(tokens);
        let rows = logits_with(&self.spec, &self.weights, sequence, self.sum)?;
        let wanted = if all { tokens.len() } else { 1 };
        let rows = rows[rows.len() - wanted..].iter().flatten();
        Ok(rows.map(|&v| v as f32).collect())
    }
}

impl Session for NarrowSession {
    fn plan(&self) -> &ExecutionPlan {
        &self.plan
    }

    fn create_sequence(&mut self) -> SeamResult<SequenceId> {
        self.next += 1;
        Ok(SequenceId(self.next))
    }

    fn sequence_len(&self, sequence: SequenceId) -> SeamResult<usize> {
        Ok(self.sequences.get(&sequence).map_or(0, Vec::len))
    }

    fn prefill(
        &mut self,
        sequence: SequenceId,
        tokens: &[TokenId],
        output: OutputRequest,
        _: &Control<'_>,
    ) -> SeamResult<StepOutput> {
        Ok(StepOutput {
            logits: self.grow(sequence, tokens, output.logits == LogitsRequest::All)?,
            ..StepOutput::default()
        })
    }

    fn decode(&mut self, steps: &[DecodeStep], _: OutputRequest) -> SeamResult<Vec<StepOutput>> {
        let step = |s: &DecodeStep| {
            Ok(StepOutput {
                logits: self.grow(s.sequence, &[s.token], false)?,
                ..StepOutput::default()
            })
        };
        steps.iter().map(step).collect()
    }

    fn truncate(&mut self, sequence: SequenceId, len: usize) -> SeamResult<()> {
        self.sequences.entry(sequence).or_default().truncate(len);
        Ok(())
    }

    fn release(&mut self, sequence: SequenceId) -> SeamResult<()> {
        self.sequences.remove(&sequence);
        Ok(())
    }
}
