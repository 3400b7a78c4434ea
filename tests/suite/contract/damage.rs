//! Weights that are damaged: the backend says so, at open or at the step, and never serves a token.

use halfhitch_seam::{
    DeviceSampler, ErrorCode, LogitsRequest, OutputRequest, Session, Tensor, Weight, WeightId,
    Weights,
};

use super::{Bench, CaseFn, Open, refused};
use crate::limits::relative;
use crate::report::{Miss, Outcome};

pub(super) const CASES: &[(&str, CaseFn)] = &[
    ("nan-in-an-embedding-is-an-error", nan_embedding),
    ("an-infinite-head-is-an-error", infinite_head),
];

const NON_FINITE: &[ErrorCode] = &[ErrorCode::NonFinite];

/// The token whose embedding is damaged.
const DAMAGED: u32 = 7;

/// The bench's weights with one value changed.
fn damaged(b: &Bench<'_>, id: WeightId, row: usize, value: f32) -> Outcome<Weights> {
    let weight = b.model.weights.get(id)?;
    let shape = weight.shape();
    let mut values = weight.to_f32();
    values[row * shape[1] + 1] = value;
    let weight = Weight::Dense(Tensor::from_f32(shape, &values)?);
    Ok(b.model
        .weights
        .iter()
        .map(|(i, w)| (i, if i == id { weight.clone() } else { w.clone() }))
        .collect())
}

/// A session, or nothing where the backend already refused the weights.
fn open(b: &Bench<'_>, weights: &Weights) -> Outcome<Option<Open>> {
    let plan = b.subject.plan(&b.model.spec, weights, &b.request())?;
    let session: Box<dyn Session> = match b.subject.open(&b.model.spec, weights, &plan) {
        Ok(session) => session,
        Err(e) if e.code == ErrorCode::NonFinite => return Ok(None),
        Err(e) => return Err(Miss::from(e)),
    };
    Ok(Some(Open {
        session,
        limit: relative(plan.precision),
        chunk: plan.prefill_chunk,
        context: plan.context,
    }))
}

/// Every way to ask for something that would be served.
fn outputs(b: &Bench<'_>) -> Outcome<Vec<OutputRequest>> {
    let ask = |sample, logits, top_logprobs| OutputRequest {
        sample,
        logits,
        top_logprobs,
    };
    let mut out = vec![
        ask(None, LogitsRequest::Last, 0),
        ask(None, LogitsRequest::All, 0),
        ask(None, LogitsRequest::None, 3),
    ];
    let samplers = b.subject.capabilities()?.samplers;
    if samplers.contains(&DeviceSampler::Greedy) {
        out.push(OutputRequest::GREEDY);
    }
    Ok(out)
}

fn nan_embedding(b: &Bench<'_>) -> Outcome {
    let weights = damaged(b, WeightId::Embedding, DAMAGED as usize, f32::NAN)?;
    let Some(mut s) = open(b, &weights)? else {
        return Ok(());
    };
    let id = s.create()?;
    s.prefill(id, &[1, 2], OutputRequest::NOTHING)?;
    for output in outputs(b)? {
        let call = s.prefill(id, &[3, DAMAGED], output);
        refused("a prompt with a damaged token", call, NON_FINITE)?;
        s.expect_len(id, 2, "after a prompt that failed")?;
        let call = s.decode(&[(id, DAMAGED)], output);
        refused("a step with a damaged token", call, NON_FINITE)?;
        s.expect_len(id, 2, "after a step that failed")?;
    }
    let got = s.step(id, 4)?;
    let want = b.open()?.fresh(&[1, 2, 4])?;
    s.close("a sound token after failures", &got, &want)
}

fn infinite_head(b: &Bench<'_>) -> Outcome {
    let weights = damaged(b, WeightId::Head, 5, f32::INFINITY)?;
    let Some(mut s) = open(b, &weights)? else {
        return Ok(());
    };
    let id = s.create()?;
    for output in outputs(b)? {
        let call = s.prefill(id, &[3, 1], output);
        refused("a prompt with an infinite logit", call, NON_FINITE)?;
        s.expect_len(id, 0, "after a prompt that failed")?;
    }
    Ok(())
}
