//! Logits against ground truth: the oracle's for generated models, others' for fixture files.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use halfhitch_seam::{
    CancelToken, DType, DecodeStep, ModelFeature, ModelSpec, OutputRequest, PlanRequest, Precision,
    QuantRequest, SeamResult, SequenceId, Session, TokenId, Weight, Weights,
};

use crate::expected::{Expected, ExpectedSequence};
use crate::features;
use crate::limits::{close, relative};
use crate::models::{self, Generated};
use crate::report::{Miss, Outcome, Report, fail};
use crate::subject::{Subject, control};
use crate::test::{Test, Tier};

/// Every generated model in every precision that the device has, and every scheme both expanded and
/// packed.
pub fn generated(subject: &Subject) -> Report {
    let mut report = Report::default();
    let capabilities = match subject.capabilities() {
        Ok(capabilities) => capabilities,
        Err(miss) => {
            report.run("generated/capabilities", || Err(miss));
            return report;
        }
    };
    match tests(&capabilities.features, &capabilities.precisions) {
        Ok(tests) => report.cases.extend(tests.iter().map(|t| t.run(subject))),
        Err(e) => report.run("generated", || fail(format!("the suite's own model: {e}"))),
    }
    report
}

/// One scheme a width that is most used, with every group size and scale type once.
const QUICK_SCHEMES: [(u32, u32, DType); 3] = [
    (2, 128, DType::F32),
    (4, 32, DType::F16),
    (8, 64, DType::BF16),
];

/// Every generated model in these precisions. In [`Tier::Quick`] are as few models as have all of
/// `features`, in f32; the plain one in every precision; and one scheme a width.
///
/// # Errors
/// Never, unless the seam's own checks refuse a model.
pub fn tests(features: &BTreeSet<ModelFeature>, precisions: &[Precision]) -> SeamResult<Vec<Test>> {
    let covering = features::covering(features)?;
    let mut tests = Vec::new();
    let mut add = |model: Generated, quick: &dyn Fn(Precision) -> bool| {
        let name = format!("generated/{}", model.name);
        let truth = Grounded::by_oracle(model);
        for &precision in precisions {
            let tier = if quick(precision) {
                Tier::Quick
            } else {
                Tier::Full
            };
            tests.extend(truth.tests(&name, precision, tier));
        }
    };
    for model in features::all()? {
        let covers = covering.contains(&model.name);
        // What a device does not have costs it nothing to refuse.
        let refused =
            !model.spec.features().is_subset(features) && !model.name.starts_with("combination");
        let plain = model.name == "plain";
        add(model, &|p| {
            plain || ((covers || refused) && p == Precision::F32)
        });
    }
    for (i, scheme) in models::schemes().into_iter().enumerate() {
        let of = (
            scheme.bits.get() as u32,
            scheme.group_size.get() as u32,
            scheme.scale_dtype,
        );
        let quick = QUICK_SCHEMES.contains(&of);
        add(models::packed(scheme, i % 2 == 1)?, &|p| {
            quick && p == Precision::F32
        });
    }
    Ok(tests)
}

/// A model and its ground truth: the oracle's, made when it is first asked for, or another's.
pub struct Grounded {
    model: Arc<Generated>,
    expected: OnceLock<SeamResult<Expected>>,
}

impl Grounded {
    /// Ground truth by the suite's oracle.
    pub fn by_oracle(model: Generated) -> Arc<Self> {
        Arc::new(Self {
            model: Arc::new(model),
            expected: OnceLock::new(),
        })
    }

    /// Ground truth from elsewhere.
    pub fn given(model: Generated, expected: Expected) -> Arc<Self> {
        Arc::new(Self {
            model: Arc::new(model),
            expected: OnceLock::from(Ok(expected)),
        })
    }

    fn expected(&self) -> Outcome<&Expected> {
        let made = self
            .expected
            .get_or_init(|| Expected::from_oracle(&self.model));
        made.as_ref()
            .map_err(|e| Miss::Fail(format!("the suite's own model: {e}")))
    }

    /// The model's cases in one precision: `NAME/PRECISION[-packed]/CASE`.
    pub fn tests(self: &Arc<Self>, name: &str, precision: Precision, tier: Tier) -> Vec<Test> {
        let model = &self.model;
        let mut tests = Vec::new();
        for (suffix, request) in ways(&model.spec, &model.weights, precision) {
            for &(case, run) in CASES {
                let own = Arc::clone(self);
                let run = move |subject: &Subject| {
                    let Generated { spec, weights, .. } = &*own.model;
                    // Refused before ground truth is made.
                    subject.plan(spec, weights, &request)?;
                    run(&Truth {
                        subject,
                        spec,
                        weights,
                        expected: own.expected()?,
                        request,
                        limit: relative(precision),
                    })
                };
                let name = format!("{name}/{precision}{suffix}/{case}");
                tests.push(Test::new(name, tier, run).about(model));
            }
        }
        tests
    }
}

/// In which ways a model is run in a precision, with the names' suffixes.
pub(crate) fn ways(
    spec: &ModelSpec,
    weights: &Weights,
    precision: Precision,
) -> Vec<(&'static str, PlanRequest)> {
    let routed = spec.features().contains(&ModelFeature::MixtureOfExperts);
    // Rounding may choose another expert, which is no error but changes everything after.
    if routed && precision != Precision::F32 {
        return Vec::new();
    }
    let quantised = weights.iter().any(|(_, w)| matches!(w, Weight::Affine(_)));
    let modes: &[_] = match quantised {
        true => &[
            ("", QuantRequest::Dequant),
            ("-packed", QuantRequest::Packed),
        ],
        false => &[("", QuantRequest::Auto)],
    };
    let request = |quant| PlanRequest {
        precision: Some(precision),
        quant,
        sequences: 2,
        ..PlanRequest::default()
    };
    modes
        .iter()
        .map(|&(suffix, quant)| (suffix, request(quant)))
        .collect()
}

/// One model with ground truth, in every precision and both with and without packed weights. Case
/// names are `NAME/PRECISION[-packed]/CASE`.
pub fn model_cases(
    subject: &Subject,
    name: &str,
    spec: &ModelSpec,
    weights: &Weights,
    expected: &Expected,
) -> Report {
    match subject.capabilities() {
        Ok(capabilities) => {
            let precisions = &capabilities.precisions;
            model_cases_in(subject, name, spec, weights, expected, precisions)
        }
        Err(miss) => {
            let mut report = Report::default();
            report.run(format!("{name}/capabilities"), || Err(miss));
            report
        }
    }
}

/// [`model_cases`] in these precisions alone.
pub fn model_cases_in(
    subject: &Subject,
    name: &str,
    spec: &ModelSpec,
    weights: &Weights,
    expected: &Expected,
    precisions: &[Precision],
) -> Report {
    let model = Generated {
        name: name.into(),
        spec: spec.clone(),
        weights: weights.clone(),
    };
    let truth = Grounded::given(model, expected.clone());
    let mut report = Report::default();
    for &precision in precisions {
        let tests = truth.tests(name, precision, Tier::Full);
        report.cases.extend(tests.iter().map(|t| t.run(subject)));
    }
    report
}

struct Truth<'a> {
    subject: &'a Subject,
    spec: &'a ModelSpec,
    weights: &'a Weights,
    expected: &'a Expected,
    request: PlanRequest,
    limit: f64,
}

type CaseFn = fn(&Truth<'_>) -> Outcome;

const CASES: &[(&str, CaseFn)] = &[
    ("prompt", prompt),
    ("step-by-step", step_by_step),
    ("decode-alone", decode_alone),
    ("truncate", truncate),
    ("interleaved", interleaved),
];

impl Truth<'_> {
    fn open(&self) -> Outcome<Box<dyn Session>> {
        let plan = self.subject.plan(self.spec, self.weights, &self.request)?;
        Ok(self.subject.open(self.spec, self.weights, &plan)?)
    }

    fn sequence(&self, index: usize) -> Outcome<&ExpectedSequence> {
        self.expected
            .sequences
            .get(index)
            .ok_or_else(|| Miss::Fail("the ground truth has too few sequences".into()))
    }

    fn check(&self, what: &str, got: &[f32], want: &[f32]) -> Outcome {
        close(what, got, want, self.limit)
    }
}

fn prefill(
    session: &mut dyn Session,
    id: SequenceId,
    tokens: &[TokenId],
    output: OutputRequest,
) -> Outcome<Vec<f32>> {
    let cancel = CancelToken::new();
    Ok(session
        .prefill(id, tokens, output, &control(&cancel))?
        .logits)
}

fn decode(session: &mut dyn Session, id: SequenceId, token: TokenId) -> Outcome<Vec<f32>> {
    let step = DecodeStep {
        sequence: id,
        token,
    };
    match session.decode(&[step], OutputRequest::LOGITS)?.pop() {
        Some(out) => Ok(out.logits),
        None => fail("a decode step returned nothing"),
    }
}

/// Every position of the prompt at once.
fn prompt(truth: &Truth<'_>) -> Outcome {
    let mut session = truth.open()?;
    for want in &truth.expected.sequences {
        let id = session.create_sequence()?;
        let all = prefill(&mut *session, id, &want.prompt, OutputRequest::ALL_LOGITS)?;
        let vocab = truth.spec.vocab_size;
        if all.len() != vocab * want.prompt.len() {
            return fail(format!(
                "{} logits for {} positions of {vocab}",
                all.len(),
                want.prompt.len()
            ));
        }
        for top in &want.top5 {
            let row = &all[top.position * vocab..][..vocab];
            let got: Vec<f32> = top.ids.iter().map(|&id| row[id as usize]).collect();
            let what = format!("{}, position {}", want.name, top.position);
            truth.check(&what, &got, &top.logits)?;
        }
        let what = format!("{}, after the prompt", want.name);
        truth.check(&what, &all[all.len() - vocab..], &want.logits[0])?;
        session.release(id)?;
    }
    Ok(())
}

/// The prompt at once, then token by token.
fn step_by_step(truth: &Truth<'_>) -> Outcome {
    let mut session = truth.open()?;
    for want in &truth.expected.sequences {
        let id = session.create_sequence()?;
        let got = prefill(&mut *session, id, &want.prompt, OutputRequest::LOGITS)?;
        truth.check("after the prompt", &got, &want.logits[0])?;
        for (i, (&token, row)) in want.steps.iter().zip(&want.logits[1..]).enumerate() {
            let got = decode(&mut *session, id, token)?;
            truth.check(&format!("{}, after step {i}", want.name), &got, row)?;
        }
        session.release(id)?;
    }
    Ok(())
}

/// No prefill at all.
fn decode_alone(truth: &Truth<'_>) -> Outcome {
    let mut session = truth.open()?;
    let want = truth.sequence(0)?;
    let id = session.create_sequence()?;
    let mut got = Vec::new();
    for &token in &want.prompt {
        got = decode(&mut *session, id, token)?;
    }
    truth.check("after the prompt, token by token", &got, &want.logits[0])
}

/// The first sequence to its end, then back into its prompt, then other tokens.
fn truncate(truth: &Truth<'_>) -> Outcome {
    let mut session = truth.open()?;
    let want = truth.sequence(0)?;
    let cut = &truth.expected.truncate;
    let id = session.create_sequence()?;
    prefill(&mut *session, id, &want.prompt, OutputRequest::NOTHING)?;
    for &token in &want.steps {
        decode(&mut *session, id, token)?;
    }
    session.truncate(id, cut.keep)?;
    for (i, (&token, row)) in cut.tokens.iter().zip(&cut.logits).enumerate() {
        let got = decode(&mut *session, id, token)?;
        truth.check(&format!("token {i} after the cut"), &got, row)?;
    }
    Ok(())
}

/// Two sequences in one session: prompts in parts by turns, then steps in one batch.
fn interleaved(truth: &Truth<'_>) -> Outcome {
    let mut session = truth.open()?;
    let (first, second) = (truth.sequence(0)?, truth.sequence(1)?);
    let a = session.create_sequence()?;
    let b = session.create_sequence()?;
    let (a_half, b_half) = (first.prompt.len() / 2, second.prompt.len() / 2);
    prefill(
        &mut *session,
        a,
        &first.prompt[..a_half],
        OutputRequest::NOTHING,
    )?;
    prefill(
        &mut *session,
        b,
        &second.prompt[..b_half],
        OutputRequest::NOTHING,
    )?;
    let got = prefill(
        &mut *session,
        a,
        &first.prompt[a_half..],
        OutputRequest::LOGITS,
    )?;
    truth.check("first, after the prompt", &got, &first.logits[0])?;
    let got = prefill(
        &mut *session,
        b,
        &second.prompt[b_half..],
        OutputRequest::LOGITS,
    )?;
    truth.check("second, after the prompt", &got, &second.logits[0])?;
    for (i, (&x, &y)) in first.steps.iter().zip(&second.steps).enumerate() {
        let mut steps = vec![
            DecodeStep {
                sequence: a,
                token: x,
            },
            DecodeStep {
                sequence: b,
                token: y,
            },
        ];
        let mut want = vec![&first.logits[i + 1], &second.logits[i + 1]];
        if i % 2 == 1 {
            steps.reverse();
            want.reverse();
        }
        let outputs = session.decode(&steps, OutputRequest::LOGITS)?;
        if outputs.len() != 2 {
            return fail(format!("{} outputs for 2 sequences", outputs.len()));
        }
        for (out, want) in outputs.iter().zip(want) {
            truth.check(&format!("batched step {i}"), &out.logits, want)?;
        }
    }
    Ok(())
}
