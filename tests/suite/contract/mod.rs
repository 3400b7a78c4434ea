//! The contract of the [`Session`] docs, case by case.
//!
//! Behaviour (`sequences`, `outputs`) is tested on several models, refusals and control on the plain
//! one. Results of two ways to the same tokens are compared within the precision's
//! [limit](crate::limits::relative).

mod control;
mod damage;
mod device;
mod outputs;
mod refusals;
mod sequences;
mod taps;

use std::sync::Arc;

use halfhitch_seam::{
    AffineScheme, Bits, CancelToken, DType, DecodeStep, ErrorCode, GroupSize, OutputRequest,
    PlanRequest, QuantRequest, SeamResult, SequenceId, Session, StepOutput, TokenId,
};

use crate::limits::{close, relative};
use crate::models::{self, Generated};
use crate::report::{Outcome, Report, fail};
use crate::subject::{Subject, control};
use crate::test::{Test, Tier};
use crate::{features, limits};

/// A case of the contract.
type CaseFn = fn(&Bench<'_>) -> Outcome;

/// Runs every case. Names are `contract/MODEL/CASE`.
pub fn run(subject: &Subject) -> Report {
    let mut report = Report::default();
    match tests(subject) {
        Ok(tests) => report.cases.extend(tests.iter().map(|t| t.run(subject))),
        Err(miss) => report.run("contract/device/capabilities", || Err(miss)),
    }
    report
}

/// Cases that open a session of each of the suite's models, which other cases do as well.
const FULL: &[&str] = &["features-are-honest", "packed-schemes-are-honest"];

/// Every case, not run yet. How long the models' contexts are depends on the device.
///
/// # Errors
/// What the device's capabilities say.
pub fn tests(subject: &Subject) -> Outcome<Vec<Test>> {
    let mut tests = Vec::new();
    for (i, (model, quant, tier)) in contract_models(subject)?.into_iter().enumerate() {
        let model = Arc::new(model);
        let behaviour = [sequences::CASES, outputs::CASES, taps::CASES];
        let rest = [
            device::CASES,
            refusals::CASES,
            control::CASES,
            damage::CASES,
        ];
        let groups = behaviour.iter().chain(rest.iter().filter(|_| i == 0));
        for &(name, case) in groups.copied().flatten() {
            let tier = if FULL.contains(&name) {
                Tier::Full
            } else {
                tier
            };
            let own = Arc::clone(&model);
            let run = move |subject: &Subject| {
                case(&Bench {
                    subject,
                    model: &own,
                    quant,
                })
            };
            let name = format!("contract/{}/{name}", model.name);
            tests.push(Test::new(name, tier, run).about(&model));
        }
    }
    Ok(tests)
}

fn contract_models(subject: &Subject) -> Outcome<Vec<(Generated, QuantRequest, Tier)>> {
    let scheme = AffineScheme {
        bits: Bits::new(4)?,
        group_size: GroupSize::new(32)?,
        scale_dtype: DType::F16,
    };
    let dense = |name, tier| Ok((features::single(name)?, QuantRequest::Auto, tier));
    let mut out: Vec<(Generated, QuantRequest, Tier)> = [
        dense("plain", Tier::Quick),
        dense("window", Tier::Full),
        dense("experts-normalised", Tier::Full),
        Ok((
            models::packed(scheme, true)?,
            QuantRequest::Packed,
            Tier::Quick,
        )),
    ]
    .into_iter()
    .collect::<SeamResult<_>>()?;
    // Long enough for a prompt of several of the device's chunks.
    let chunk = subject.capabilities()?.prefill_chunk;
    for (model, ..) in &mut out {
        model.spec.max_context = chunk.saturating_mul(3).clamp(512, 1 << 14);
    }
    Ok(out)
}

/// What a case works with.
struct Bench<'a> {
    subject: &'a Subject,
    model: &'a Generated,
    quant: QuantRequest,
}

impl Bench<'_> {
    fn request(&self) -> PlanRequest {
        PlanRequest {
            quant: self.quant,
            ..PlanRequest::default()
        }
    }

    /// A session for one sequence with the model's whole context.
    fn open(&self) -> Outcome<Open> {
        self.open_with(self.request())
    }

    fn open_for(&self, sequences: usize) -> Outcome<Open> {
        self.open_with(PlanRequest {
            sequences,
            ..self.request()
        })
    }

    fn open_with(&self, request: PlanRequest) -> Outcome<Open> {
        let model = self.model;
        let plan = self.subject.plan(&model.spec, &model.weights, &request)?;
        let session = self.subject.open(&model.spec, &model.weights, &plan)?;
        Ok(Open {
            limit: relative(plan.precision),
            chunk: plan.prefill_chunk,
            context: plan.context,
            session,
        })
    }

    fn tokens(&self, seed: &str, n: usize) -> Vec<TokenId> {
        self.model.tokens(seed, n)
    }

    fn vocab(&self) -> usize {
        self.model.spec.vocab_size
    }
}

/// A session, and the calls in the form that cases need.
struct Open {
    session: Box<dyn Session>,
    limit: f64,
    chunk: usize,
    context: usize,
}

impl Open {
    fn create(&mut self) -> Outcome<SequenceId> {
        Ok(self.session.create_sequence()?)
    }

    fn prefill(
        &mut self,
        id: SequenceId,
        tokens: &[TokenId],
        output: OutputRequest,
    ) -> SeamResult<StepOutput> {
        let cancel = CancelToken::new();
        self.session.prefill(id, tokens, output, &control(&cancel))
    }

    /// Logits after the last of `tokens`.
    fn last(&mut self, id: SequenceId, tokens: &[TokenId]) -> Outcome<Vec<f32>> {
        Ok(self.prefill(id, tokens, OutputRequest::LOGITS)?.logits)
    }

    /// Logits after the last of `tokens`, in a sequence of their own.
    fn fresh(&mut self, tokens: &[TokenId]) -> Outcome<Vec<f32>> {
        let id = self.create()?;
        let logits = self.last(id, tokens)?;
        self.session.release(id)?;
        Ok(logits)
    }

    fn decode(
        &mut self,
        steps: &[(SequenceId, TokenId)],
        output: OutputRequest,
    ) -> SeamResult<Vec<StepOutput>> {
        let steps: Vec<DecodeStep> = steps
            .iter()
            .map(|&(sequence, token)| DecodeStep { sequence, token })
            .collect();
        self.session.decode(&steps, output)
    }

    /// Logits of a step of one.
    fn step(&mut self, id: SequenceId, token: TokenId) -> Outcome<Vec<f32>> {
        match self.decode(&[(id, token)], OutputRequest::LOGITS)?.pop() {
            Some(out) => Ok(out.logits),
            None => fail("a decode step returned nothing"),
        }
    }

    fn close(&self, what: &str, got: &[f32], want: &[f32]) -> Outcome {
        close(what, got, want, self.limit)
    }

    fn expect_len(&self, id: SequenceId, want: usize, when: &str) -> Outcome {
        match self.session.sequence_len(id)? {
            len if len == want => Ok(()),
            len => fail(format!("{when} the sequence has {len} tokens, not {want}")),
        }
    }
}

/// Fails unless the call was refused with one of the codes.
fn refused<T>(what: &str, result: SeamResult<T>, codes: &[ErrorCode]) -> Outcome {
    let names = || {
        codes
            .iter()
            .map(|c| c.name())
            .collect::<Vec<_>>()
            .join(" or ")
    };
    match result {
        Ok(_) => fail(format!("{what} was accepted; {} expected", names())),
        Err(e) if codes.contains(&e.code) => {
            if e.message.trim().is_empty() || e.to_string().contains('\n') {
                return fail(format!("{what}: the error is not one line of text: {e:?}"));
            }
            Ok(())
        }
        Err(e) => fail(format!(
            "{what} gave {} ({e}); {} expected",
            e.code.name(),
            names()
        )),
    }
}

fn argmax(logits: &[f32]) -> TokenId {
    limits::argmax(logits) as TokenId
}
