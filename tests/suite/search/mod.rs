//! Random small models, compared with a trusted backend; one that is wrong is shrunk to the smallest that
//! still is.
//!
//! Every model has a form as a checkpoint of one of the families that the host reads, so that what is found
//! can be saved and looked at with every other command.

mod recipe;

use std::cell::{Cell, RefCell};

use halfhitch_seam::{
    CancelToken, DecodeStep, ErrorCode, OutputRequest, PlanRequest, Precision, SeamError,
    SeamResult, TokenId,
};
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};

use crate::limits::{close, difference, relative};
use crate::models::Generated;
use crate::oracle;
use crate::report::{Miss, Outcome, fail};
use crate::subject::{Subject, control};

use recipe::recipes;

pub use recipe::{Recipe, sample};

fn runner(seed: u64, cases: u32, shrinks: u32) -> TestRunner {
    let config = Config {
        cases,
        max_shrink_iters: shrinks,
        max_global_rejects: cases.saturating_mul(20).max(1000),
        failure_persistence: None,
        ..Config::default()
    };
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes))
}

/// What the trusted side says: logits of every position of some tokens.
pub type Trusted<'a> = dyn Fn(&Generated, &[TokenId]) -> SeamResult<Vec<Vec<f32>>> + 'a;

/// What is searched.
pub struct Search<'a> {
    /// Who is tested.
    pub subject: &'a Subject,
    /// Who is trusted.
    pub trusted: &'a Trusted<'a>,
    /// How many models.
    pub models: u32,
    /// Where the random numbers start: the same seed gives the same models.
    pub seed: u64,
    /// Most models that a wrong one is shrunk through.
    pub shrinks: u32,
}

/// What was found.
pub struct Searched {
    /// Models that were compared until one was wrong.
    pub compared: u32,
    /// Models that the device does not support.
    pub unsupported: u32,
    /// Models left out since they magnify rounding: two exact sides differ on them.
    pub unsteady: u32,
    /// The smallest model that is wrong.
    pub wrong: Option<Wrong>,
}

/// A model that the backend gets wrong.
pub struct Wrong {
    /// The model.
    pub model: Generated,
    /// The sequence.
    pub tokens: Vec<TokenId>,
    /// How many of its tokens ran as decode steps.
    pub decode: usize,
    /// What is wrong.
    pub detail: String,
    /// Models tried for a smaller one.
    pub shrinks: u32,
}

impl Search<'_> {
    /// Runs it. `told` hears how many models were compared; smaller ones of a wrong one do not count.
    ///
    /// # Errors
    /// `Cancelled` before a first model was compared, later what was found until then; what the trusted side says; `Backend` where no model at all could be compared.
    pub fn run(&self, told: &dyn Fn(u32)) -> SeamResult<Searched> {
        let (compared, unsupported, unsteady) = (Cell::new(0), Cell::new(0), Cell::new(0));
        let shrinks = Cell::new(0u32);
        let broken: RefCell<Option<SeamError>> = RefCell::default();
        let found = Cell::new(false);
        let mut runner = runner(self.seed, self.models, self.shrinks);
        let result = runner.run(&recipes(), |recipe| {
            if self.subject.cancel.is_cancelled() || broken.borrow().is_some() {
                return Ok(());
            }
            let count = |cell: &Cell<u32>| cell.set(cell.get() + 1);
            if found.get() {
                count(&shrinks);
            }
            match self.compare(&recipe) {
                Ok(Judged::Right) => {
                    if !found.get() {
                        count(&compared);
                        told(compared.get());
                    }
                    Ok(())
                }
                Ok(Judged::Unsteady) => {
                    count(&unsteady);
                    Err(TestCaseError::reject("magnifies rounding"))
                }
                Ok(Judged::Unsupported) => {
                    count(&unsupported);
                    Err(TestCaseError::reject("unsupported"))
                }
                Ok(Judged::Wrong(detail)) => {
                    found.set(true);
                    Err(TestCaseError::fail(detail))
                }
                Err(e) => {
                    *broken.borrow_mut() = Some(e);
                    Ok(())
                }
            }
        });
        if compared.get() == 0 && !found.get() {
            self.subject.cancel.check()?;
        }
        if let Some(e) = broken
            .into_inner()
            .filter(|e| e.code != ErrorCode::Cancelled)
        {
            return Err(e);
        }
        let wrong = match result {
            Ok(()) => None,
            Err(TestError::Fail(reason, recipe)) => Some(Wrong {
                model: recipe.build()?,
                tokens: recipe.tokens(),
                decode: recipe.decode(),
                detail: reason.message().to_string(),
                shrinks: shrinks.get(),
            }),
            Err(TestError::Abort(reason)) if compared.get() == 0 => {
                return Err(SeamError::new(
                    ErrorCode::Backend,
                    format!("no random model could be compared: {}", reason.message()),
                ));
            }
            // Fewer models than were asked for, since too many are not supported.
            Err(TestError::Abort(_)) => None,
        };
        Ok(Searched {
            compared: compared.get() + u32::from(wrong.is_some()),
            unsupported: unsupported.get(),
            unsteady: unsteady.get(),
            wrong,
        })
    }

    fn compare(&self, recipe: &Recipe) -> SeamResult<Judged> {
        let model = recipe.build()?;
        let tokens = recipe.tokens();
        let plan = self
            .subject
            .plan(&model.spec, &model.weights, &PlanRequest::default());
        let plan = match plan {
            Ok(plan) => plan,
            Err(Miss::Unsupported(_)) => return Ok(Judged::Unsupported),
            Err(Miss::Fail(detail)) => return Ok(Judged::Wrong(detail)),
        };
        let limit = relative(plan.precision);
        let want = (self.trusted)(&model, &tokens)?;
        let exact = oracle::logits(&model.spec, &model.weights, &tokens)?;
        let apart = |(want, exact): (&Vec<f32>, &Vec<f64>)| {
            let exact: Vec<f32> = exact.iter().map(|&v| v as f32).collect();
            difference(want, &exact)
        };
        let f32 = relative(Precision::F32);
        if want
            .iter()
            .zip(&exact)
            .map(apart)
            .any(|off| off > f32 / 4.0)
        {
            return Ok(Judged::Unsteady);
        }
        let follow = || -> Outcome {
            let mut session = self.subject.open(&model.spec, &model.weights, &plan)?;
            let id = session.create_sequence()?;
            let (prompt, steps) = tokens.split_at(tokens.len() - recipe.decode());
            let cancel = CancelToken::new();
            let output = OutputRequest::ALL_LOGITS;
            let out = session.prefill(id, prompt, output, &control(&cancel))?;
            let mut rows: Vec<Vec<f32>> = Vec::new();
            rows.extend(
                out.logits
                    .chunks(model.spec.vocab_size)
                    .map(<[f32]>::to_vec),
            );
            for &token in steps {
                let step = DecodeStep {
                    sequence: id,
                    token,
                };
                let out = session.decode(&[step], OutputRequest::LOGITS)?.pop();
                rows.push(out.map(|out| out.logits).unwrap_or_default());
            }
            if rows.len() != want.len() {
                return fail(format!(
                    "{} rows of logits for {} tokens",
                    rows.len(),
                    want.len()
                ));
            }
            for (position, (got, want)) in rows.iter().zip(&want).enumerate() {
                let how = if position < prompt.len() {
                    "prompt"
                } else {
                    "step"
                };
                close(&format!("{how}, position {position}"), got, want, limit)?;
            }
            Ok(())
        };
        match follow() {
            Ok(()) => Ok(Judged::Right),
            Err(_) if self.subject.cancel.is_cancelled() => Ok(Judged::Right),
            Err(Miss::Fail(detail) | Miss::Unsupported(detail)) => Ok(Judged::Wrong(detail)),
        }
    }
}

enum Judged {
    Right,
    Wrong(String),
    Unsupported,
    Unsteady,
}
