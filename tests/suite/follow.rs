//! One sequence of a model, as prefill and then step by step, against the suite's oracle.

use std::sync::{Arc, OnceLock};

use halfhitch_seam::{
    CancelToken, DecodeStep, OutputRequest, PlanRequest, Precision, SeamResult, TokenId,
};

use crate::limits::{close, relative};
use crate::models::Generated;
use crate::numerics::ways;
use crate::oracle;
use crate::report::{Miss, Outcome, fail};
use crate::subject::{Subject, control};
use crate::test::{Test, Tier};

/// A model and a sequence of its tokens.
pub(crate) struct Followed {
    /// The model.
    pub(crate) model: Arc<Generated>,
    tokens: Vec<TokenId>,
    truth: OnceLock<SeamResult<Vec<Vec<f32>>>>,
}

impl Followed {
    /// A sequence of `length` random tokens.
    pub(crate) fn new(model: Generated, length: usize) -> Arc<Self> {
        Arc::new(Self {
            tokens: model.tokens("followed", length),
            model: Arc::new(model),
            truth: OnceLock::new(),
        })
    }

    fn truth(&self) -> Outcome<&[Vec<f32>]> {
        let made = self.truth.get_or_init(|| {
            let rows = oracle::logits(&self.model.spec, &self.model.weights, &self.tokens)?;
            let narrow = |row: Vec<f64>| row.into_iter().map(|v| v as f32).collect();
            Ok(rows.into_iter().map(narrow).collect())
        });
        match made {
            Ok(rows) => Ok(rows),
            Err(e) => fail(format!("the suite's own model: {e}")),
        }
    }

    /// Cases, one for each number of tokens that go in as a prompt; the others follow step by step:
    /// `NAME/PRECISION[-packed]/prompt-of-N`.
    pub(crate) fn tests(
        self: &Arc<Self>,
        name: &str,
        precision: Precision,
        prompts: &[usize],
        tier: Tier,
    ) -> Vec<Test> {
        let mut tests = Vec::new();
        for (suffix, request) in ways(&self.model.spec, &self.model.weights, precision) {
            let request = PlanRequest {
                sequences: 1,
                ..request
            };
            for &prompt in prompts {
                let own = Arc::clone(self);
                let name = format!("{name}/{precision}{suffix}/prompt-of-{prompt}");
                let run = move |subject: &Subject| own.follow(subject, &request, prompt);
                tests.push(Test::new(name, tier, run).about(&self.model));
            }
        }
        tests
    }

    fn follow(&self, subject: &Subject, request: &PlanRequest, prompt: usize) -> Outcome {
        let Generated { spec, weights, .. } = &*self.model;
        let plan = subject.plan(spec, weights, request)?;
        if plan.context < self.tokens.len() {
            return Err(Miss::Unsupported(format!(
                "a context of {} tokens",
                self.tokens.len()
            )));
        }
        let want = self.truth()?;
        let limit = relative(plan.precision);
        let mut session = subject.open(spec, weights, &plan)?;
        let id = session.create_sequence()?;
        let (first, rest) = self.tokens.split_at(prompt);
        if !first.is_empty() {
            let cancel = CancelToken::new();
            let output = OutputRequest::ALL_LOGITS;
            let out = session.prefill(id, first, output, &control(&cancel))?;
            let rows: Vec<&[f32]> = out.logits.chunks(spec.vocab_size).collect();
            if rows.len() != prompt {
                return fail(format!("{} rows of logits for {prompt} tokens", rows.len()));
            }
            for (position, (got, want)) in rows.iter().zip(want).enumerate() {
                close(&format!("prompt, position {position}"), got, want, limit)?;
            }
        }
        for (i, &token) in rest.iter().enumerate() {
            let step = DecodeStep {
                sequence: id,
                token,
            };
            let out = session.decode(&[step], OutputRequest::LOGITS)?;
            let got = out.first().map_or(&[][..], |out| &out.logits);
            let position = prompt + i;
            close(
                &format!("step, position {position}"),
                got,
                &want[position],
                limit,
            )?;
        }
        Ok(())
    }
}
