//! A prompt through chunks, and what is read off the last of them.

use halfhitch_seam::{
    Control, ErrorCode, LogitsRequest, OutputRequest, SeamError, SeamResult, SequenceId, Stage,
    StepOutput, TokenId,
};

use super::{LaneStart, Ran, XlaIreeSession};
use crate::emitter::{Reading, Rows, Shape, TILE};
use crate::runtime::outputs;
use crate::runtime::steps::Piece;

impl XlaIreeSession {
    /// Runs a prompt chunk by chunk; the sequence's length stays as it was.
    pub(super) fn prefill_chunks(
        &mut self,
        id: SequenceId,
        tokens: &[TokenId],
        output: OutputRequest,
        control: &Control<'_>,
    ) -> SeamResult<StepOutput> {
        control.cancel.check()?;
        let start = self.sequence(id)?.len;
        let vocabulary = self.model.vocab_size;
        let mut out = StepOutput::default();
        if output.logits == LogitsRequest::All {
            let size = tokens.len().saturating_mul(vocabulary);
            out.logits.try_reserve_exact(size).map_err(|_| {
                SeamError::new(
                    ErrorCode::OutOfMemory,
                    format!("no memory for logits of {} positions", tokens.len()),
                )
                .hint("ask for the last position's, or prefill in parts")
            })?;
        }
        self.load(&self.cut.shapes(tokens.len()), control)?;
        let mut done = 0;
        while done < tokens.len() {
            let left = &tokens[done..];
            let Piece { shape, rows, used } = self.cut.next(left.len());
            self.reserve(id, start + done, rows)?;
            let mut padded = left[..used].to_vec();
            padded.resize(rows, left[used - 1]);
            let lane = LaneStart {
                sequence: id,
                position: start + done,
            };
            let ran = self.run(shape, &[lane], &padded)?;
            done += used;
            if output.logits == LogitsRequest::All {
                self.read_all(shape, &ran, used, &mut out)?;
            }
            if done == tokens.len() {
                self.read_last(shape, &ran, used - 1, output, &mut out)?;
            }
            control.progress(Stage::Prefill, done as u64, tokens.len() as u64);
            control.cancel.check()?;
        }
        Ok(out)
    }

    /// Adds the logits of the first `used` rows to `out`.
    fn read_all(
        &mut self,
        shape: Shape,
        ran: &Ran,
        used: usize,
        out: &mut StepOutput,
    ) -> SeamResult<()> {
        let (rows, each) = match shape {
            Shape::Tiles => (Rows::Tile, TILE),
            _ => (Rows::All, used),
        };
        let row = self.model.vocab_size * size_of::<f32>();
        for first in (0..used).step_by(each) {
            let bytes = self.read(shape, ran, (rows, first), Reading::Logits)?;
            let wanted = &bytes[..each.min(used - first) * row];
            out.logits.extend(outputs::logits(wanted)?);
        }
        Ok(())
    }

    /// Adds what was asked for of one row to `out`, which already has all logits if those were.
    fn read_last(
        &mut self,
        shape: Shape,
        ran: &Ran,
        row: usize,
        output: OutputRequest,
        out: &mut StepOutput,
    ) -> SeamResult<()> {
        let wants_logits = output.logits == LogitsRequest::Last || output.top_logprobs > 0;
        let vocabulary = self.model.vocab_size;
        // Also where nothing was asked for: a broken model is told at once.
        if output.sample.is_some() || (!wants_logits && output.logits == LogitsRequest::None) {
            let bytes = self.read(shape, ran, (Rows::One, row), Reading::Choice)?;
            let token = outputs::choices(&bytes, vocabulary)?.first().copied();
            out.token = token.filter(|_| output.sample.is_some());
        }
        if output.logits == LogitsRequest::All {
            let last = &out.logits[out.logits.len() - vocabulary..];
            out.top_logprobs = outputs::top_logprobs(last, output.top_logprobs as usize);
        } else if wants_logits {
            let bytes = self.read(shape, ran, (Rows::One, row), Reading::Logits)?;
            let logits = outputs::logits(&bytes)?;
            out.top_logprobs = outputs::top_logprobs(&logits, output.top_logprobs as usize);
            if output.logits == LogitsRequest::Last {
                out.logits = logits;
            }
        }
        Ok(())
    }
}
