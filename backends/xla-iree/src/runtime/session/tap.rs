//! Intermediate results of a chunk: a step compiled with them as results, when somebody asks.

use halfhitch_seam::{
    Control, ErrorCode, SeamError, SeamResult, SequenceId, Stage, Tap, TapSite, TokenId,
};
use halfhitch_xla_iree_sys::{Buffer, DType, Policy};

use super::{Sequence, XlaIreeSession};
use crate::emitter::layout::Role;
use crate::runtime::cache::Cache;
use crate::runtime::error::seam_error;

impl XlaIreeSession {
    /// Runs `tokens` in a sequence of its own, in chunks of one size, and collects what they show.
    pub(super) fn tap_tokens(
        &mut self,
        tokens: &[TokenId],
        control: &Control<'_>,
    ) -> SeamResult<Vec<Tap>> {
        if tokens.is_empty() {
            return Err(SeamError::invalid_input("an empty prompt"));
        }
        let id = SequenceId(self.next);
        self.next += 1;
        let cache = Cache::new(&self.model, &self.plan);
        self.sequences.insert(id, Sequence { len: 0, cache });
        let result = self
            .check(id, tokens)
            .and_then(|()| self.tap_chunks(id, tokens, control));
        self.sequences.remove(&id);
        self.steps.release();
        result
    }

    fn tap_chunks(
        &mut self,
        id: SequenceId,
        tokens: &[TokenId],
        control: &Control<'_>,
    ) -> SeamResult<Vec<Tap>> {
        let rows = self.cut.size_for(tokens.len());
        // Compiled outside what is guarded below: giving up on it leaves the session as it was.
        self.steps
            .tapped(&self.device, &self.model, &self.plan, rows, control)?;
        let mut taps: Vec<Tap> = Vec::new();
        let mut done = 0;
        for chunk in tokens.chunks(rows) {
            control.cancel.check()?;
            self.reserve(id, done, rows)?;
            let mut padded = chunk.to_vec();
            padded.resize(rows, chunk[chunk.len() - 1]);
            let shown = self.run_tapped(id, done, &padded, control);
            for (i, (site, width, mut values)) in self.guard(shown)?.into_iter().enumerate() {
                values.truncate(chunk.len() * width);
                match taps.get_mut(i) {
                    Some(tap) => {
                        tap.shape[0] += chunk.len();
                        tap.values.extend(values);
                    }
                    None => taps.push(Tap::new(site, [chunk.len(), width], values)?),
                }
            }
            done += chunk.len();
            control.progress(Stage::Prefill, done as u64, tokens.len() as u64);
        }
        Ok(taps)
    }

    /// Runs one chunk at `position`; what it shows: which, its width, and all rows' numbers.
    fn run_tapped(
        &mut self,
        id: SequenceId,
        position: usize,
        tokens: &[TokenId],
        control: &Control<'_>,
    ) -> SeamResult<Vec<(TapSite, usize, Vec<f32>)>> {
        let rows = tokens.len();
        let end = position + rows;
        let capacity = self.sequence(id)?.cache.capacity();
        if end > capacity || (!self.ropes.is_empty() && end > self.table_rows) {
            return Err(SeamError::new(
                ErrorCode::Backend,
                format!("{id} would leave its cache of {capacity}"),
            ));
        }
        let ids = bytes::Bytes::copy_from_slice(bytemuck::cast_slice(tokens));
        let ids = Buffer::upload(&self.device, DType::I32, &[rows], ids, Policy::Copy)
            .map_err(seam_error)?;
        let (device, model, plan) = (&self.device, &self.model, &self.plan);
        let function = self.steps.tapped(device, model, plan, rows, control)?;
        function.bind(&self.weights)?;
        function.set(Role::Tokens, &ids)?;
        for (index, table) in self.tables.iter().enumerate() {
            function.set(Role::RopeTable { index }, table)?;
        }
        function.set_number(Role::Position { lane: 0 }, position)?;
        let Some(sequence) = self.sequences.get_mut(&id) else {
            return Err(super::unknown(id));
        };
        let cache = &mut sequence.cache;
        for layer in 0..cache.layers() {
            let role = Role::Cache { lane: 0, layer };
            function.set(role, cache.get(layer))?;
        }
        function.run()?;
        for layer in 0..cache.layers() {
            let role = Role::Cache { lane: 0, layer };
            cache.replace(layer, function.result(role)?);
        }
        let shown = function
            .taps()
            .into_iter()
            .map(|site| {
                let bytes = function.result(Role::Tap(site))?.read();
                let bytes = bytes.map_err(seam_error)?;
                let values: Vec<f32> = bytes
                    .chunks_exact(size_of::<f32>())
                    .map(bytemuck::pod_read_unaligned)
                    .collect();
                Ok((site, values.len() / rows, values))
            })
            .collect();
        function.drop_results();
        shown
    }
}
