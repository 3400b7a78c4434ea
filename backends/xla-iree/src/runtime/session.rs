//! A session: sequences, their caches, and the checks on everything that comes in at run time.
//!
//! A sequence's length changes only when a whole call has succeeded. What a failed or cancelled call
//! left in a cache lies past the length, where it is overwritten before it is read.

mod decode;
mod prefill;
mod tap;

use std::collections::{BTreeMap, BTreeSet};

use halfhitch_seam::model::RopeSpec;
use halfhitch_seam::{
    Control, DecodeStep, DeviceSampler, ErrorCode, ExecutionPlan, ModelSpec, OutputRequest,
    SeamError, SeamResult, SequenceId, Session, StepOutput, Tap, TokenId,
};
use halfhitch_xla_iree_sys::{Buffer, DType, Device, Policy};

use super::cache::{Cache, capacity_for};
use super::error::seam_error;
use super::steps::{Cut, Steps, next_batch};
use super::upload::Uploaded;
use crate::emitter::layout::Role;
use crate::emitter::{Reading, Rows, Shape, rope};

struct Sequence {
    len: usize,
    cache: Cache,
}

/// A model open on a device.
pub struct XlaIreeSession {
    plan: ExecutionPlan,
    model: ModelSpec,
    device: Device,
    weights: Uploaded,
    steps: Steps,
    cut: Cut,
    ropes: Vec<RopeSpec>,
    tables: Vec<Buffer>,
    table_rows: usize,
    sequences: BTreeMap<SequenceId, Sequence>,
    next: u64,
    poisoned: Option<String>,
}

/// What a step was asked to run for one sequence: where it starts.
#[derive(Clone, Copy)]
struct LaneStart {
    sequence: SequenceId,
    position: usize,
}

/// What a step left to be read.
enum Ran {
    /// The residual stream of a chunk.
    Hidden(Buffer),
    /// Of every row of a step that decodes.
    Read {
        /// As [`Role::Choice`].
        choice: Buffer,
        /// As [`Role::Logits`].
        logits: Buffer,
    },
}

impl XlaIreeSession {
    /// A session without sequences.
    pub fn new(
        plan: ExecutionPlan,
        model: ModelSpec,
        device: Device,
        weights: Uploaded,
        steps: Steps,
    ) -> Self {
        Self {
            cut: Cut::new(steps.source(&model, &plan)),
            ropes: rope::distinct(&model),
            plan,
            model,
            device,
            weights,
            steps,
            tables: Vec::new(),
            table_rows: 0,
            sequences: BTreeMap::new(),
            next: 0,
            poisoned: None,
        }
    }

    fn usable(&self) -> SeamResult<()> {
        match &self.poisoned {
            None => Ok(()),
            Some(why) => Err(SeamError::new(
                ErrorCode::Poisoned,
                format!("an earlier failure left the session unusable: {why}"),
            )
            .hint("open a new session")),
        }
    }

    fn sequence(&self, id: SequenceId) -> SeamResult<&Sequence> {
        self.sequences.get(&id).ok_or_else(|| unknown(id))
    }

    fn sequence_mut(&mut self, id: SequenceId) -> SeamResult<&mut Sequence> {
        self.sequences.get_mut(&id).ok_or_else(|| unknown(id))
    }

    /// All that can be said against appending `tokens`.
    fn check(&self, id: SequenceId, tokens: &[TokenId]) -> SeamResult<()> {
        let len = self.sequence(id)?.len;
        let vocabulary = self.model.vocab_size;
        if let Some(token) = tokens.iter().find(|&&t| t as usize >= vocabulary) {
            return Err(SeamError::invalid_input(format!(
                "token {token} is outside the vocabulary of {vocabulary}"
            )));
        }
        if tokens.len() > self.plan.context - len {
            return Err(SeamError::new(
                ErrorCode::ContextFull,
                format!(
                    "{id} has {len} tokens; {} more do not fit a context of {}",
                    tokens.len(),
                    self.plan.context
                ),
            )
            .hint("truncate the sequence or open the session with a longer context"));
        }
        Ok(())
    }

    /// Makes room for `rows` positions after the first `live` of a sequence, in its cache and in the
    /// rope tables. `live` counts what the call itself has written, which the length does not.
    fn reserve(&mut self, id: SequenceId, live: usize, rows: usize) -> SeamResult<()> {
        let end = live + rows;
        let most = self.plan.context + self.cut.most();
        let device = self.device.clone();
        let sequence = self.sequence_mut(id)?;
        if end > sequence.cache.capacity() {
            let capacity = capacity_for(end, most);
            sequence.cache.grow(&device, capacity, live)?;
        }
        let rows = self.sequence(id)?.cache.capacity();
        if rows > self.table_rows {
            let tables = self
                .ropes
                .iter()
                .map(|r| {
                    let table = rope::table(r, rows);
                    let bytes = bytes::Bytes::copy_from_slice(bytemuck::cast_slice(&table));
                    let dims = [rows, 2, r.dims];
                    Buffer::upload(&self.device, DType::F32, &dims, bytes, Policy::Copy)
                        .map_err(seam_error)
                })
                .collect::<SeamResult<_>>()?;
            self.tables = tables;
            self.table_rows = rows;
        }
        Ok(())
    }

    /// Runs a step. Any failure from here on but a lack of memory is one whose
    /// effect is unknown.
    fn run(&mut self, shape: Shape, lanes: &[LaneStart], tokens: &[TokenId]) -> SeamResult<Ran> {
        let per_lane = tokens.len() / shape.lanes();
        for lane in lanes {
            // Nothing on the device clamps an index: this is what keeps a step inside its buffers.
            let end = lane.position + per_lane;
            let capacity = self.sequence(lane.sequence)?.cache.capacity();
            if end > capacity || (!self.ropes.is_empty() && end > self.table_rows) {
                return Err(SeamError::new(
                    ErrorCode::Backend,
                    format!("{} would leave its cache of {capacity}", lane.sequence),
                ));
            }
        }
        let result = self.run_unguarded(shape, lanes, tokens);
        self.guard(result)
    }

    fn run_unguarded(
        &mut self,
        shape: Shape,
        lanes: &[LaneStart],
        tokens: &[TokenId],
    ) -> SeamResult<Ran> {
        let step = self.steps.get(shape)?;
        step.set_tokens(&self.device, tokens)?;
        let function = &mut step.step;
        function.bind(&self.weights)?;
        for (index, table) in self.tables.iter().enumerate() {
            function.set(Role::RopeTable { index }, table)?;
        }
        for (lane, start) in lanes.iter().enumerate() {
            function.set_number(Role::Position { lane }, start.position)?;
            let cache = &self.sequences[&start.sequence].cache;
            for layer in 0..cache.layers() {
                function.set(Role::Cache { lane, layer }, cache.get(layer))?;
            }
        }
        function.run()?;
        let ran = match shape.decodes() {
            true => Ran::Read {
                choice: function.result(Role::Choice)?,
                logits: function.result(Role::Logits)?,
            },
            false => Ran::Hidden(function.result(Role::Hidden)?),
        };
        for (lane, start) in lanes.iter().enumerate() {
            let Some(sequence) = self.sequences.get_mut(&start.sequence) else {
                return Err(unknown(start.sequence));
            };
            for layer in 0..sequence.cache.layers() {
                let buffer = function.result(Role::Cache { lane, layer })?;
                sequence.cache.replace(layer, buffer);
            }
        }
        function.drop_results();
        Ok(ran)
    }

    /// Reads off what a step left: of row `row`, or of every row. A step that decodes has all its rows
    /// read already.
    fn read(
        &mut self,
        shape: Shape,
        ran: &Ran,
        rows: (Rows, usize),
        what: Reading,
    ) -> SeamResult<Vec<u8>> {
        let result = match (ran, what) {
            (Ran::Read { choice, .. }, Reading::Choice) => choice.read().map_err(seam_error),
            (Ran::Read { logits, .. }, Reading::Logits) => logits.read().map_err(seam_error),
            (Ran::Hidden(hidden), _) => {
                let step = self.steps.get(shape)?;
                step.read(&self.weights, hidden, rows, what)
            }
        };
        self.guard(result)
    }

    fn guard<T>(&mut self, result: SeamResult<T>) -> SeamResult<T> {
        if let Err(e) = &result
            && e.code != ErrorCode::OutOfMemory
        {
            self.poisoned = Some(e.message.clone());
        }
        result
    }

    fn load(&mut self, shapes: &[Shape], control: &Control<'_>) -> SeamResult<()> {
        self.steps
            .load(&self.device, &self.model, &self.plan, shapes, control)
    }
}

impl Session for XlaIreeSession {
    fn plan(&self) -> &ExecutionPlan {
        &self.plan
    }

    fn create_sequence(&mut self) -> SeamResult<SequenceId> {
        self.usable()?;
        if self.sequences.len() >= self.plan.max_sequences {
            return Err(SeamError::unsupported(format!(
                "more than {} sequences in this session",
                self.plan.max_sequences
            ))
            .hint("release one, or plan for more sequences"));
        }
        let id = SequenceId(self.next);
        self.next += 1;
        let cache = Cache::new(&self.model, &self.plan);
        self.sequences.insert(id, Sequence { len: 0, cache });
        Ok(id)
    }

    fn sequence_len(&self, sequence: SequenceId) -> SeamResult<usize> {
        Ok(self.sequence(sequence)?.len)
    }

    fn prefill(
        &mut self,
        sequence: SequenceId,
        tokens: &[TokenId],
        output: OutputRequest,
        control: &Control<'_>,
    ) -> SeamResult<StepOutput> {
        self.usable()?;
        if tokens.is_empty() {
            return Err(SeamError::invalid_input("an empty prompt"));
        }
        check_output(output)?;
        self.check(sequence, tokens)?;
        let out = self.prefill_chunks(sequence, tokens, output, control)?;
        self.sequence_mut(sequence)?.len += tokens.len();
        Ok(out)
    }

    fn decode(
        &mut self,
        steps: &[DecodeStep],
        output: OutputRequest,
    ) -> SeamResult<Vec<StepOutput>> {
        self.usable()?;
        if steps.is_empty() {
            return Err(SeamError::invalid_input("a decode step of no sequences"));
        }
        check_output(output)?;
        let mut seen = BTreeSet::new();
        for step in steps {
            if !seen.insert(step.sequence) {
                return Err(SeamError::invalid_input(format!(
                    "{} stands twice in one step",
                    step.sequence
                )));
            }
            self.check(step.sequence, &[step.token])?;
        }
        let mut outs = Vec::with_capacity(steps.len());
        while outs.len() < steps.len() {
            let left = &steps[outs.len()..];
            let shape = next_batch(left.len());
            outs.extend(self.decode_group(shape, &left[..shape.lanes()], output)?);
        }
        for step in steps {
            self.sequence_mut(step.sequence)?.len += 1;
        }
        Ok(outs)
    }

    fn truncate(&mut self, sequence: SequenceId, len: usize) -> SeamResult<()> {
        self.usable()?;
        let own = self.sequence_mut(sequence)?;
        if len > own.len {
            return Err(SeamError::invalid_input(format!(
                "{sequence} has {} tokens and cannot be cut to {len}",
                own.len
            )));
        }
        own.len = len;
        Ok(())
    }

    fn release(&mut self, sequence: SequenceId) -> SeamResult<()> {
        let gone = self.sequences.remove(&sequence);
        gone.ok_or_else(|| unknown(sequence))?;
        // Steps still refer to the caches of their last run.
        self.steps.release();
        Ok(())
    }

    fn tap(&mut self, tokens: &[TokenId], control: &Control<'_>) -> SeamResult<Vec<Tap>> {
        self.usable()?;
        self.tap_tokens(tokens, control)
    }
}

fn unknown(sequence: SequenceId) -> SeamError {
    SeamError::invalid_input(format!("{sequence} does not exist in this session"))
        .hint("it was never made, or it was released")
}

fn check_output(output: OutputRequest) -> SeamResult<()> {
    match output.sample {
        None | Some(DeviceSampler::Greedy) => Ok(()),
        Some(other) => Err(SeamError::unsupported(format!("sampler {other:?}"))
            .hint("ask for logits and sample on the host")),
    }
}
