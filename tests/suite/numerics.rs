//! Logits against ground truth: the oracle's for generated models, others' for fixture files.

use halfhitch_seam::{
    CancelToken, DecodeStep, ModelFeature, ModelSpec, OutputRequest, PlanRequest, Precision,
    QuantRequest, SeamResult, SequenceId, Session, TokenId, Weight, Weights,
};

use crate::expected::{Expected, ExpectedSequence};
use crate::features;
use crate::limits::{close, relative};
use crate::models::{self, Generated};
use crate::report::{Miss, Outcome, Report, fail};
use crate::subject::{Subject, control};

/// Every generated model in every precision that the device has, and every scheme both expanded and
/// packed.
pub fn generated(subject: &Subject) -> Report {
    let mut report = Report::default();
    let mut one = |model: SeamResult<Generated>| {
        let made = model.and_then(|m| Ok((Expected::from_oracle(&m)?, m)));
        match made {
            Ok((expected, m)) => {
                let name = format!("generated/{}", m.name);
                report.extend(model_cases(subject, &name, &m.spec, &m.weights, &expected));
            }
            Err(e) => report.run("generated", || fail(format!("the suite's own model: {e}"))),
        }
    };
    match features::all() {
        Ok(all) => all.into_iter().for_each(|m| one(Ok(m))),
        Err(e) => one(Err(e)),
    }
    for (i, scheme) in models::schemes().into_iter().enumerate() {
        one(models::packed(scheme, i % 2 == 1));
    }
    report
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
    let mut report = Report::default();
    let quantised = weights.iter().any(|(_, w)| matches!(w, Weight::Affine(_)));
    let modes: &[_] = match quantised {
        true => &[
            ("", QuantRequest::Dequant),
            ("-packed", QuantRequest::Packed),
        ],
        false => &[("", QuantRequest::Auto)],
    };
    let routed = spec.features().contains(&ModelFeature::MixtureOfExperts);
    for &precision in precisions {
        // Rounding may choose another expert, which is no error but changes everything after.
        if routed && precision != Precision::F32 {
            continue;
        }
        for (suffix, quant) in modes {
            let truth = Truth {
                subject,
                spec,
                weights,
                expected,
                request: PlanRequest {
                    precision: Some(precision),
                    quant: *quant,
                    sequences: 2,
                    ..PlanRequest::default()
                },
                limit: relative(precision),
            };
            for (case, run) in CASES {
                report.run(format!("{name}/{precision}{suffix}/{case}"), || run(&truth));
            }
        }
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
