//! A session: sequences, their caches, and the checks on everything that comes in at run time.

use std::collections::{BTreeMap, BTreeSet};

use halfhitch_seam::{
    Control, DecodeStep, DeviceSampler, ErrorCode, ExecutionPlan, LogitsRequest, OutputRequest,
    SeamError, SeamResult, SequenceId, Session, Stage, StepOutput, Tap, TokenId,
};

use crate::cache::Cache;
use crate::forward::{self, Row};
use crate::math::softmax::{argmax, top_logprobs};
use crate::model::Model;
use crate::taps::Taps;

/// A model open on the reference backend.
#[derive(Debug)]
pub struct ReferenceSession {
    plan: ExecutionPlan,
    model: Model,
    sequences: BTreeMap<SequenceId, Cache>,
    next: u64,
}

impl ReferenceSession {
    /// A session without sequences.
    pub fn new(plan: ExecutionPlan, model: Model) -> Self {
        Self {
            plan,
            model,
            sequences: BTreeMap::new(),
            next: 0,
        }
    }

    fn cache(&self, sequence: SequenceId) -> SeamResult<&Cache> {
        self.sequences
            .get(&sequence)
            .ok_or_else(|| unknown(sequence))
    }

    /// All that can be said against appending `more` tokens, the first of them `tokens`.
    fn check(&self, sequence: SequenceId, tokens: &[TokenId]) -> SeamResult<()> {
        let len = self.cache(sequence)?.len();
        self.check_tokens(tokens)?;
        if tokens.len() > self.plan.context - len {
            return Err(SeamError::new(
                ErrorCode::ContextFull,
                format!(
                    "{sequence} has {len} tokens; {} more do not fit a context of {}",
                    tokens.len(),
                    self.plan.context
                ),
            )
            .hint("truncate the sequence or open the session with a longer context"));
        }
        Ok(())
    }

    fn check_tokens(&self, tokens: &[TokenId]) -> SeamResult<()> {
        let vocab = self.model.spec.vocab_size;
        match tokens.iter().find(|&&t| t as usize >= vocab) {
            Some(token) => Err(SeamError::invalid_input(format!(
                "token {token} is outside the vocabulary of {vocab}"
            ))),
            None => Ok(()),
        }
    }

    /// A cache without positions.
    fn new_cache(&self) -> Cache {
        let layers = self.model.layers.iter();
        let widths = layers.map(|l| l.spec.attention.kv_width());
        Cache::new(widths, self.plan.context)
    }

    /// Logits of rows of the residual stream, checked to be finite.
    fn finite_logits(&self, x: &[f32]) -> SeamResult<Vec<f32>> {
        let logits = forward::logits(&self.model, x, &mut Taps::default());
        check_finite(&logits, "logits")?;
        Ok(logits)
    }

    /// Looks whether there is memory for what a chunk works in, so that it does not run out halfway, where
    /// that would end the process.
    fn room_for_a_chunk(&self) -> SeamResult<()> {
        let bytes = self.plan.memory.workspace.saturating_mul(2).max(4 << 20);
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        Vec::<u8>::new().try_reserve_exact(bytes).map_err(|_| {
            SeamError::new(
                ErrorCode::OutOfMemory,
                format!("no memory for the {bytes} bytes that a prompt works in"),
            )
            .hint("release sequences or use a shorter context")
        })
    }

    fn prefill_chunks(
        &mut self,
        sequence: SequenceId,
        tokens: &[TokenId],
        output: OutputRequest,
        control: &Control<'_>,
    ) -> SeamResult<StepOutput> {
        control.cancel.check()?;
        let hidden = self.model.spec.hidden_size;
        let mut all = Vec::new();
        if output.logits == LogitsRequest::All {
            let size = tokens.len().saturating_mul(self.model.spec.vocab_size);
            all.try_reserve_exact(size).map_err(|_| {
                SeamError::new(
                    ErrorCode::OutOfMemory,
                    format!("no memory for logits of {} positions", tokens.len()),
                )
                .hint("ask for the last position's, or prefill in parts")
            })?;
        }
        let mut last = Vec::new();
        let mut done = 0;
        for chunk in tokens.chunks(self.plan.prefill_chunk.max(1)) {
            let cache = self
                .sequences
                .get_mut(&sequence)
                .ok_or_else(|| unknown(sequence))?;
            let start = cache.len();
            let rows = rows(chunk, start);
            let x = forward::run(&self.model, &rows, &mut [&mut *cache], &mut Taps::default());
            check_finite(&x, "hidden states")?;
            cache.commit(chunk.len());
            if output.logits == LogitsRequest::All {
                all.extend(self.finite_logits(&x)?);
            }
            last = x[x.len() - hidden..].to_vec();
            done += chunk.len();
            control.progress(Stage::Prefill, done as u64, tokens.len() as u64);
            control.cancel.check()?;
        }
        if output.logits == LogitsRequest::All {
            let last = &all[all.len() - self.model.spec.vocab_size..];
            let mut out = read_off(last, output);
            out.logits = all;
            return Ok(out);
        }
        if !needs_logits(output) {
            return Ok(StepOutput::default());
        }
        Ok(answer(self.finite_logits(&last)?, output))
    }

    fn decode_rows(
        &mut self,
        steps: &[DecodeStep],
        output: OutputRequest,
    ) -> SeamResult<Vec<StepOutput>> {
        // The caches of the step, in its order.
        let order: BTreeMap<SequenceId, usize> = steps
            .iter()
            .enumerate()
            .map(|(i, step)| (step.sequence, i))
            .collect();
        let mut caches: Vec<(usize, &mut Cache)> = self
            .sequences
            .iter_mut()
            .filter_map(|(id, cache)| order.get(id).map(|&i| (i, cache)))
            .collect();
        caches.sort_by_key(|(i, _)| *i);
        let mut caches: Vec<&mut Cache> = caches.into_iter().map(|(_, cache)| cache).collect();

        let rows: Vec<Row> = steps
            .iter()
            .zip(&caches)
            .enumerate()
            .map(|(i, (step, cache))| Row {
                cache: i,
                position: cache.len(),
                token: step.token,
            })
            .collect();
        let x = forward::run(&self.model, &rows, &mut caches, &mut Taps::default());
        check_finite(&x, "hidden states")?;
        let outputs = if needs_logits(output) {
            let logits = forward::logits(&self.model, &x, &mut Taps::default());
            check_finite(&logits, "logits")?;
            logits
                .chunks_exact(self.model.spec.vocab_size)
                .map(|row| answer(row.to_vec(), output))
                .collect()
        } else {
            vec![StepOutput::default(); steps.len()]
        };
        for cache in caches {
            cache.commit(1);
        }
        Ok(outputs)
    }

    /// Puts sequences back to the lengths they had.
    fn restore(&mut self, lengths: &[(SequenceId, usize)]) {
        for (id, len) in lengths {
            if let Some(cache) = self.sequences.get_mut(id) {
                cache.cut(*len);
            }
        }
    }
}

impl Session for ReferenceSession {
    fn plan(&self) -> &ExecutionPlan {
        &self.plan
    }

    fn create_sequence(&mut self) -> SeamResult<SequenceId> {
        if self.sequences.len() >= self.plan.max_sequences {
            return Err(SeamError::unsupported(format!(
                "more than {} sequences in this session",
                self.plan.max_sequences
            ))
            .hint("release one, or plan for more sequences"));
        }
        let id = SequenceId(self.next);
        self.next += 1;
        let cache = self.new_cache();
        self.sequences.insert(id, cache);
        Ok(id)
    }

    fn sequence_len(&self, sequence: SequenceId) -> SeamResult<usize> {
        Ok(self.cache(sequence)?.len())
    }

    fn prefill(
        &mut self,
        sequence: SequenceId,
        tokens: &[TokenId],
        output: OutputRequest,
        control: &Control<'_>,
    ) -> SeamResult<StepOutput> {
        if tokens.is_empty() {
            return Err(SeamError::invalid_input("an empty prompt"));
        }
        check_output(output)?;
        self.check(sequence, tokens)?;
        let cache = self
            .sequences
            .get_mut(&sequence)
            .ok_or_else(|| unknown(sequence))?;
        let before = cache.len();
        cache.reserve(tokens.len())?;
        self.room_for_a_chunk()?;
        let result = self.prefill_chunks(sequence, tokens, output, control);
        if result.is_err() {
            self.restore(&[(sequence, before)]);
        }
        result
    }

    fn decode(
        &mut self,
        steps: &[DecodeStep],
        output: OutputRequest,
    ) -> SeamResult<Vec<StepOutput>> {
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
        let mut before = Vec::new();
        for step in steps {
            before.push((step.sequence, self.cache(step.sequence)?.len()));
            if let Some(cache) = self.sequences.get_mut(&step.sequence) {
                cache.reserve(1)?;
            }
        }
        let result = self.decode_rows(steps, output);
        if result.is_err() {
            self.restore(&before);
        }
        result
    }

    fn truncate(&mut self, sequence: SequenceId, len: usize) -> SeamResult<()> {
        let has = self.cache(sequence)?.len();
        if len > has {
            return Err(SeamError::invalid_input(format!(
                "{sequence} has {has} tokens and cannot be cut to {len}"
            )));
        }
        self.restore(&[(sequence, len)]);
        Ok(())
    }

    fn release(&mut self, sequence: SequenceId) -> SeamResult<()> {
        self.sequences
            .remove(&sequence)
            .map(drop)
            .ok_or_else(|| unknown(sequence))
    }

    fn tap(&mut self, tokens: &[TokenId], control: &Control<'_>) -> SeamResult<Vec<Tap>> {
        if tokens.is_empty() {
            return Err(SeamError::invalid_input("an empty prompt"));
        }
        self.check_tokens(tokens)?;
        let context = self.plan.context;
        if tokens.len() > context {
            return Err(SeamError::new(
                ErrorCode::ContextFull,
                format!("{} tokens do not fit a context of {context}", tokens.len()),
            ));
        }
        let mut cache = self.new_cache();
        cache.reserve(tokens.len())?;
        let mut taps = Taps::on();
        for chunk in tokens.chunks(self.plan.prefill_chunk.max(1)) {
            control.cancel.check()?;
            let rows = rows(chunk, cache.len());
            let x = forward::run(&self.model, &rows, &mut [&mut cache], &mut taps);
            cache.commit(chunk.len());
            forward::logits(&self.model, &x, &mut taps);
            control.progress(Stage::Prefill, cache.len() as u64, tokens.len() as u64);
        }
        taps.finish()
    }
}

/// Consecutive tokens of the step's only sequence, the first at position `start`.
fn rows(tokens: &[TokenId], start: usize) -> Vec<Row> {
    let row = |(i, &token)| Row {
        cache: 0,
        position: start + i,
        token,
    };
    tokens.iter().enumerate().map(row).collect()
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

fn check_finite(values: &[f32], what: &str) -> SeamResult<()> {
    if values.iter().all(|v| v.is_finite()) {
        return Ok(());
    }
    Err(SeamError::new(
        ErrorCode::NonFinite,
        format!("the model computed {what} that are not finite"),
    )
    .hint("the weights are damaged, or overflow in f32"))
}

fn needs_logits(output: OutputRequest) -> bool {
    output.sample.is_some() || output.logits != LogitsRequest::None || output.top_logprobs > 0
}

/// What was asked for besides logits, from the last position's.
fn read_off(logits: &[f32], output: OutputRequest) -> StepOutput {
    StepOutput {
        token: output.sample.map(|_| argmax(logits) as TokenId),
        logits: Vec::new(),
        top_logprobs: top_logprobs(logits, output.top_logprobs as usize),
    }
}

/// What was asked for, from the only position's logits.
fn answer(logits: Vec<f32>, output: OutputRequest) -> StepOutput {
    let mut out = read_off(&logits, output);
    if output.logits != LogitsRequest::None {
        out.logits = logits;
    }
    out
}
