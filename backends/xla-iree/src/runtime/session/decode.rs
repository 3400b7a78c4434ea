//! One token of each of several sequences.

use halfhitch_seam::{
    CancelToken, Control, DecodeStep, LogitsRequest, NoObserver, OutputRequest, SeamResult,
    StepOutput, TokenId,
};

use super::{LaneStart, XlaIreeSession};
use crate::emitter::{Reading, Rows, Shape};
use crate::runtime::outputs;

impl XlaIreeSession {
    /// One step of as many sequences as `shape` takes; their lengths stay as they were.
    pub(super) fn decode_group(
        &mut self,
        shape: Shape,
        group: &[DecodeStep],
        output: OutputRequest,
    ) -> SeamResult<Vec<StepOutput>> {
        let cancel = CancelToken::new();
        let control = Control {
            cancel: &cancel,
            observer: &NoObserver,
        };
        self.load(&[shape], &control)?;
        let mut lanes = Vec::with_capacity(group.len());
        for step in group {
            let position = self.sequence(step.sequence)?.len;
            self.reserve(step.sequence, position, 1)?;
            lanes.push(LaneStart {
                sequence: step.sequence,
                position,
            });
        }
        let tokens: Vec<TokenId> = group.iter().map(|step| step.token).collect();
        let ran = self.run(shape, &lanes, &tokens)?;
        let vocabulary = self.model.vocab_size;
        let mut outs = vec![StepOutput::default(); group.len()];
        let wants_logits = output.logits != LogitsRequest::None || output.top_logprobs > 0;
        if output.sample.is_some() || !wants_logits {
            let bytes = self.read(shape, &ran, (Rows::All, 0), Reading::Choice)?;
            let tokens = outputs::choices(&bytes, vocabulary)?;
            for (out, token) in outs.iter_mut().zip(tokens) {
                out.token = output.sample.map(|_| token);
            }
        }
        if wants_logits {
            let bytes = self.read(shape, &ran, (Rows::All, 0), Reading::Logits)?;
            let logits = outputs::logits(&bytes)?;
            for (out, row) in outs.iter_mut().zip(logits.chunks_exact(vocabulary)) {
                out.top_logprobs = outputs::top_logprobs(row, output.top_logprobs as usize);
                if output.logits != LogitsRequest::None {
                    out.logits = row.to_vec();
                }
            }
        }
        Ok(outs)
    }
}
