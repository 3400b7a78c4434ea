//! The loop against a session that counts: after token `t` comes `t + 1`.

use halfhitch_seam::{
    CancelToken, DType, DecodeStep, DeviceId, DeviceInfo, ExecutionPlan, LogitsRequest,
    MemoryEstimate, NoObserver, Precision, SequenceId,
};

use super::*;

const VOCAB: usize = 50;

/// Counts, remembers what was asked, and keeps one sequence.
struct Counter {
    plan: ExecutionPlan,
    tokens: Vec<TokenId>,
    /// Tokens that came through prefill and decode.
    ran: usize,
    asked: Vec<OutputRequest>,
    /// Makes every logit NaN.
    broken: bool,
}

impl Counter {
    fn new(context: usize) -> Self {
        let device = DeviceInfo {
            id: DeviceId("0".into()),
            ordinal: 0,
            name: "counter".into(),
            driver: "test".into(),
        };
        Self {
            plan: ExecutionPlan {
                device,
                precision: Precision::F32,
                kv_dtype: DType::F32,
                context,
                max_sequences: 1,
                prefill_chunk: 4,
                threads: None,
                weights: Vec::new(),
                representations: Vec::new(),
                tuned: Vec::new(),
                memory: MemoryEstimate::default(),
                choices: Vec::new(),
            },
            tokens: Vec::new(),
            ran: 0,
            asked: Vec::new(),
            broken: false,
        }
    }

    fn append(&mut self, tokens: &[TokenId], output: OutputRequest) -> StepOutput {
        assert!(self.tokens.len() + tokens.len() <= self.plan.context);
        self.tokens.extend_from_slice(tokens);
        self.ran += tokens.len();
        self.asked.push(output);
        let next = (self.tokens[self.tokens.len() - 1] + 1) % VOCAB as u32;
        let logits = (0..VOCAB as u32).map(|id| match (self.broken, id == next) {
            (true, _) => f32::NAN,
            (_, true) => 10.0,
            // Of equals, the lower id is first in the list of top logits.
            _ => -((id / 2) as f32),
        });
        StepOutput {
            token: output.sample.map(|_| next),
            logits: match output.logits {
                LogitsRequest::None => Vec::new(),
                _ => logits.collect(),
            },
            top_logprobs: Vec::new(),
        }
    }
}

impl Session for Counter {
    fn plan(&self) -> &ExecutionPlan {
        &self.plan
    }
    fn create_sequence(&mut self) -> SeamResult<SequenceId> {
        Ok(SequenceId(1))
    }
    fn sequence_len(&self, _: SequenceId) -> SeamResult<usize> {
        Ok(self.tokens.len())
    }
    fn prefill(
        &mut self,
        _: SequenceId,
        tokens: &[TokenId],
        output: OutputRequest,
        control: &Control<'_>,
    ) -> SeamResult<StepOutput> {
        control.cancel.check()?;
        Ok(self.append(tokens, output))
    }
    fn decode(
        &mut self,
        steps: &[DecodeStep],
        output: OutputRequest,
    ) -> SeamResult<Vec<StepOutput>> {
        Ok(vec![self.append(&[steps[0].token], output)])
    }
    fn truncate(&mut self, _: SequenceId, len: usize) -> SeamResult<()> {
        assert!(len <= self.tokens.len());
        self.tokens.truncate(len);
        Ok(())
    }
    fn release(&mut self, _: SequenceId) -> SeamResult<()> {
        Ok(())
    }
}

/// A session, its sequence, and a way to run the loop on them.
struct Bench {
    session: Counter,
    sequence: CachedSequence,
    samplers: BTreeSet<DeviceSampler>,
    stop_tokens: BTreeSet<TokenId>,
    cancel: CancelToken,
    shown: Vec<TokenId>,
    /// The sink says stop after so many tokens.
    patience: usize,
}

impl Bench {
    fn new(context: usize) -> Self {
        let mut session = Counter::new(context);
        let sequence = CachedSequence::create(&mut session).unwrap();
        Self {
            session,
            sequence,
            samplers: [DeviceSampler::Greedy].into(),
            stop_tokens: BTreeSet::new(),
            cancel: CancelToken::new(),
            shown: Vec::new(),
            patience: usize::MAX,
        }
    }

    fn run(&mut self, prompt: &[TokenId], options: &GenerateOptions) -> SeamResult<Completion> {
        let control = Control {
            cancel: &self.cancel,
            observer: &NoObserver,
        };
        let shown = &mut self.shown;
        let patience = self.patience;
        Generator {
            session: &mut self.session,
            sequence: &mut self.sequence,
            vocab_size: VOCAB,
            samplers: &self.samplers,
            tokenizer: None,
            stop_tokens: &self.stop_tokens,
            load: LoadTimings::default(),
        }
        .run(prompt, options, &control, &mut |piece| {
            if let Piece::Token(id) = piece {
                shown.push(id);
            }
            if shown.len() >= patience {
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        })
    }
}

fn options(max_tokens: usize) -> GenerateOptions {
    GenerateOptions {
        max_tokens,
        sampling: SamplingParams::default(),
        stop: Vec::new(),
        ignore_eos: false,
        top_logits: 0,
    }
}

#[test]
fn plain_greedy_leaves_logits_on_the_device() {
    let mut bench = Bench::new(100);
    let done = bench.run(&[3, 4], &options(3)).unwrap();
    assert_eq!(done.tokens, [5, 6, 7]);
    assert_eq!(bench.shown, [5, 6, 7]);
    assert_eq!(done.finish_reason, FinishReason::Length);
    assert_eq!(done.text, None);
    assert!(
        bench
            .session
            .asked
            .iter()
            .all(|&o| o == OutputRequest::GREEDY)
    );
    // The last token is never run: nothing follows it.
    assert_eq!(bench.session.tokens, [3, 4, 5, 6]);
}

#[test]
fn whoever_looks_at_logits_gets_the_same_tokens() {
    let penalty = SamplingParams {
        repetition_penalty: 1.1,
        ..SamplingParams::default()
    };
    let hot = SamplingParams {
        temperature: 0.01,
        ..SamplingParams::default()
    };
    let cases = [
        (SamplingParams::default(), 2, true),
        (penalty, 0, true),
        (hot, 0, true),
        // A device without a sampler.
        (SamplingParams::default(), 0, false),
    ];
    for (sampling, top_logits, device) in cases {
        let mut bench = Bench::new(100);
        if !device {
            bench.samplers.clear();
        }
        let options = GenerateOptions {
            sampling,
            top_logits,
            ..options(3)
        };
        let done = bench.run(&[3, 4], &options).unwrap();
        assert_eq!(done.tokens, [5, 6, 7]);
        assert!(
            bench
                .session
                .asked
                .iter()
                .all(|&o| o == OutputRequest::LOGITS)
        );
        assert_eq!(done.top_logits.len(), if top_logits > 0 { 3 } else { 0 });
    }
}

#[test]
fn top_logits_are_largest_first_and_lower_ids_before_higher() {
    let mut bench = Bench::new(100);
    let mut options = options(1);
    options.top_logits = 4;
    let done = bench.run(&[9], &options).unwrap();
    let ids: Vec<TokenId> = done.top_logits[0].iter().map(|t| t.id).collect();
    assert_eq!(ids, [10, 0, 1, 2]);
    assert_eq!(done.top_logits[0][0].logit, 10.0);
    // More than there are is all there are.
    options.top_logits = 1000;
    let done = Bench::new(100).run(&[9], &options).unwrap();
    assert_eq!(done.top_logits[0].len(), VOCAB);
}

#[test]
fn a_stop_token_ends_the_answer_and_is_not_shown() {
    let mut bench = Bench::new(100);
    bench.stop_tokens.insert(7);
    let done = bench.run(&[4], &options(9)).unwrap();
    assert_eq!(done.finish_reason, FinishReason::Stop);
    assert_eq!(done.tokens, [5, 6, 7]);
    assert_eq!(bench.shown, [5, 6]);

    let mut bench = Bench::new(100);
    bench.stop_tokens.insert(7);
    let mut on = options(9);
    on.ignore_eos = true;
    let done = bench.run(&[4], &on).unwrap();
    assert_eq!(done.finish_reason, FinishReason::Length);
    assert_eq!(done.tokens.len(), 9);
}

#[test]
fn a_full_context_ends_the_answer() {
    // The last token needs no place in the cache.
    for (prompt, generated) in [(1, 4), (3, 2), (4, 1)] {
        let prompt: Vec<TokenId> = (0..prompt).collect();
        let done = Bench::new(4).run(&prompt, &options(99)).unwrap();
        assert_eq!(done.finish_reason, FinishReason::Length);
        assert_eq!(done.tokens.len(), generated);
    }
}

#[test]
fn what_cannot_be_a_prompt_is_refused_before_anything_runs() {
    let cases: [(&[TokenId], &str); 3] = [
        (&[], "the prompt is empty"),
        (
            &[1, 50],
            "token 50 at position 1 of the prompt is outside the vocabulary of 50",
        ),
        (&[0; 5], "the prompt has 5 tokens, the context holds 4"),
    ];
    for (prompt, message) in cases {
        let mut bench = Bench::new(4);
        let error = bench.run(prompt, &options(1)).unwrap_err();
        assert_eq!(error.message, message);
        assert!(bench.session.asked.is_empty());
    }
}

#[test]
fn stop_texts_need_a_tokenizer() {
    let mut options = options(1);
    options.stop.push("x".into());
    let error = Bench::new(4).run(&[1], &options).unwrap_err();
    assert!(error.message.contains("need a tokenizer"), "{error}");
}

#[test]
fn cancelling_keeps_what_there_is() {
    let mut bench = Bench::new(100);
    bench.patience = 2;
    let done = bench.run(&[3], &options(9)).unwrap();
    assert_eq!(done.finish_reason, FinishReason::Cancelled);
    assert_eq!(done.tokens, [4, 5]);

    let mut bench = Bench::new(100);
    bench.cancel.cancel();
    let done = bench.run(&[3], &options(9)).unwrap();
    assert_eq!(done.finish_reason, FinishReason::Cancelled);
    assert!(done.tokens.is_empty());
    assert_eq!(done.timings.ttft_s, None);
}

#[test]
fn a_common_prefix_is_run_once() {
    let mut bench = Bench::new(100);
    bench.run(&[1, 2, 3], &options(2)).unwrap();
    assert_eq!(bench.session.tokens, [1, 2, 3, 4]);
    let before = bench.session.ran;
    // The next turn repeats the prompt and the answer; 4 is in the cache, 5 was never run.
    let done = bench.run(&[1, 2, 3, 4, 5, 8], &options(1)).unwrap();
    assert_eq!(done.tokens, [9]);
    assert_eq!(bench.session.ran - before, 2);
    // A prompt that is all there is cut back by one token, so that something follows it.
    let before = bench.session.ran;
    let done = bench.run(&[1, 2], &options(1)).unwrap();
    assert_eq!(done.tokens, [3]);
    assert_eq!(bench.session.tokens, [1, 2]);
    assert_eq!(bench.session.ran - before, 1);
}

#[test]
fn numbers_that_are_none_are_never_a_token() {
    let mut bench = Bench::new(100);
    bench.session.broken = true;
    let mut options = options(3);
    options.top_logits = 1;
    let error = bench.run(&[3], &options).unwrap_err();
    assert_eq!(error.code, ErrorCode::NonFinite);
}
