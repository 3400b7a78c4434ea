//! A backend with a model that is changed behind the caller's back: a backend that computes one
//! tensor wrongly, and is otherwise right.
// Each test uses its own part of this.
#![allow(dead_code)]

use std::sync::Arc;

use halfhitch_seam::{
    AffineTensor, BackendIdentity, ComputeBackend, Control, DecodeStep, DeviceCapabilities,
    DeviceId, DeviceInfo, ExecutionPlan, ModelSpec, OpenRequest, OutputRequest, SeamResult,
    SequenceId, Session, StepOutput, Tap, Tensor, TokenId, Weight, WeightId, Weights,
};

/// What is done to a model.
pub type Change = fn(&mut ModelSpec, &mut Numbers);

/// Weights that can be changed.
pub struct Numbers(Weights);

impl Numbers {
    /// Changes every number of a weight: the values of a dense one, the scales of a packed one. A weight
    /// that is not there, as in a model of the first layers, is left out.
    pub fn each(&mut self, id: WeightId, change: impl Fn(f32) -> f32) {
        let of = |t: &Tensor| {
            let values: Vec<f32> = t.to_f32().iter().map(|&v| change(v)).collect();
            let bytes: Vec<u8> = match t.dtype() {
                halfhitch_seam::DType::F16 => {
                    let halves = values.iter().map(|&v| half::f16::from_f32(v));
                    halves.flat_map(half::f16::to_le_bytes).collect()
                }
                halfhitch_seam::DType::BF16 => {
                    let halves = values.iter().map(|&v| half::bf16::from_f32(v));
                    halves.flat_map(half::bf16::to_le_bytes).collect()
                }
                _ => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
            };
            Tensor::new(t.dtype(), t.shape().to_vec(), bytes.into()).unwrap()
        };
        let changed: Vec<(WeightId, Weight)> = self
            .0
            .iter()
            .map(|(known, weight)| {
                let weight = match weight {
                    _ if known != id => weight.clone(),
                    Weight::Dense(t) => Weight::Dense(of(t)),
                    Weight::Affine(a) => Weight::Affine(
                        AffineTensor::new(
                            a.scheme(),
                            a.words().clone(),
                            of(a.scales()),
                            a.biases().clone(),
                        )
                        .unwrap(),
                    ),
                    other => panic!("{}", other.form()),
                };
                (known, weight)
            })
            .collect();
        self.0 = Weights::new(changed);
    }

    /// Rounds every number of every dense weight.
    pub fn round_all(&mut self, round: impl Fn(f32) -> f32 + Copy) {
        let all: Vec<WeightId> = self.0.iter().map(|(id, _)| id).collect();
        for id in all {
            self.each(id, round);
        }
    }
}

/// The backend.
pub struct Changed {
    /// Who computes.
    pub inner: Arc<dyn ComputeBackend>,
    /// What is done to models.
    pub change: Change,
    /// Whether intermediate results are shown.
    pub taps: bool,
    /// Whether decode steps stand one position too early.
    pub late: bool,
}

impl Changed {
    /// One that does this to models.
    pub fn by(inner: Arc<dyn ComputeBackend>, change: Change) -> Self {
        Self {
            inner,
            change,
            taps: true,
            late: false,
        }
    }
}

impl ComputeBackend for Changed {
    fn identity(&self) -> BackendIdentity {
        self.inner.identity()
    }

    fn devices(&self) -> SeamResult<Vec<DeviceInfo>> {
        self.inner.devices()
    }

    fn capabilities(&self, device: &DeviceId) -> SeamResult<DeviceCapabilities> {
        let mut capabilities = self.inner.capabilities(device)?;
        capabilities.taps &= self.taps;
        Ok(capabilities)
    }

    fn open(&self, request: OpenRequest<'_>) -> SeamResult<Box<dyn Session>> {
        let mut spec = request.model.clone();
        let mut numbers = Numbers(request.weights.clone());
        (self.change)(&mut spec, &mut numbers);
        let inner = self.inner.open(OpenRequest {
            model: &spec,
            weights: &numbers.0,
            ..request
        })?;
        Ok(Box::new(ChangedSession {
            inner,
            taps: self.taps,
            late: self.late,
            prefilled: 0,
        }))
    }
}

struct ChangedSession {
    inner: Box<dyn Session>,
    taps: bool,
    late: bool,
    prefilled: usize,
}

impl Session for ChangedSession {
    fn plan(&self) -> &ExecutionPlan {
        self.inner.plan()
    }

    fn create_sequence(&mut self) -> SeamResult<SequenceId> {
        self.inner.create_sequence()
    }

    fn sequence_len(&self, sequence: SequenceId) -> SeamResult<usize> {
        self.inner.sequence_len(sequence)
    }

    fn prefill(
        &mut self,
        sequence: SequenceId,
        tokens: &[TokenId],
        output: OutputRequest,
        control: &Control<'_>,
    ) -> SeamResult<StepOutput> {
        let out = self.inner.prefill(sequence, tokens, output, control)?;
        self.prefilled = self.inner.sequence_len(sequence)?;
        Ok(out)
    }

    fn decode(
        &mut self,
        steps: &[DecodeStep],
        output: OutputRequest,
    ) -> SeamResult<Vec<StepOutput>> {
        for step in steps.iter().filter(|_| self.late) {
            let len = self.inner.sequence_len(step.sequence)?;
            if len == self.prefilled && len > 1 {
                self.inner.truncate(step.sequence, len - 1)?;
                self.prefilled = 0;
            }
        }
        self.inner.decode(steps, output)
    }

    fn truncate(&mut self, sequence: SequenceId, len: usize) -> SeamResult<()> {
        self.inner.truncate(sequence, len)
    }

    fn release(&mut self, sequence: SequenceId) -> SeamResult<()> {
        self.inner.release(sequence)
    }

    fn tap(&mut self, tokens: &[TokenId], control: &Control<'_>) -> SeamResult<Vec<Tap>> {
        match self.taps {
            true => self.inner.tap(tokens, control),
            false => panic!("asked for what is not advertised"),
        }
    }
}
