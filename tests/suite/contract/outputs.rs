//! What a step returns: exactly what was asked for, and all of it from the same logits.

use halfhitch_seam::{DeviceSampler, LogitsRequest, OutputRequest, StepOutput};

use super::{Bench, CaseFn, argmax};
use crate::report::{Miss, Outcome, fail};

pub(super) const CASES: &[(&str, CaseFn)] = &[
    ("logits-have-the-shape-asked-for", shapes),
    ("logits-of-all-positions-are-each-ones", all_positions),
    ("greedy-is-the-largest-logit", greedy),
    ("top-logprobs-are-of-the-softmax", top_logprobs),
    (
        "asking-does-not-change-what-follows",
        asking_changes_nothing,
    ),
];

fn request(logits: LogitsRequest, top: u32) -> OutputRequest {
    OutputRequest {
        sample: None,
        logits,
        top_logprobs: top,
    }
}

fn shapes(b: &Bench<'_>) -> Outcome {
    let mut s = b.open()?;
    let tokens = b.tokens("shapes", 7);
    for (logits, prefill_rows, decode_rows) in [
        (LogitsRequest::None, 0, 0),
        (LogitsRequest::Last, 1, 1),
        (LogitsRequest::All, 7, 1),
    ] {
        for top in [0, 3] {
            let id = s.create()?;
            let output = request(logits, top);
            let prefill = s.prefill(id, &tokens, output)?;
            check_shape(b, &prefill, prefill_rows, top)?;
            let decode = s.decode(&[(id, 1)], output)?;
            match decode.as_slice() {
                [one] => check_shape(b, one, decode_rows, top)?,
                other => return fail(format!("{} outputs for one step", other.len())),
            }
            s.session.release(id)?;
        }
    }
    Ok(())
}

fn check_shape(b: &Bench<'_>, out: &StepOutput, rows: usize, top: u32) -> Outcome {
    if out.logits.len() != rows * b.vocab() {
        return fail(format!(
            "{} logits where {rows} rows of {} were asked for",
            out.logits.len(),
            b.vocab()
        ));
    }
    if out.top_logprobs.len() != top as usize {
        return fail(format!(
            "{} log-probabilities where {top} were asked for",
            out.top_logprobs.len()
        ));
    }
    if let Some(token) = out.token {
        return fail(format!("token {token}, though none was asked for"));
    }
    Ok(())
}

fn all_positions(b: &Bench<'_>) -> Outcome {
    let mut s = b.open_for(2)?;
    // Over a chunk's end where the chunk is small enough.
    let n = if s.chunk <= 128 { s.chunk + 3 } else { 19 };
    let tokens = b.tokens("all", n);
    let (at_once, one_by_one) = (s.create()?, s.create()?);
    let all = s
        .prefill(at_once, &tokens, OutputRequest::ALL_LOGITS)?
        .logits;
    if all.len() != n * b.vocab() {
        return fail(format!("{} logits for {n} positions", all.len()));
    }
    for (i, (&token, row)) in tokens.iter().zip(all.chunks(b.vocab())).enumerate() {
        let want = s.step(one_by_one, token)?;
        s.close(&format!("row {i}"), row, &want)?;
    }
    Ok(())
}

fn greedy(b: &Bench<'_>) -> Outcome {
    if !b
        .subject
        .capabilities()?
        .samplers
        .contains(&DeviceSampler::Greedy)
    {
        return Err(Miss::Unsupported("greedy sampling on the device".into()));
    }
    let mut s = b.open()?;
    let output = OutputRequest {
        sample: Some(DeviceSampler::Greedy),
        logits: LogitsRequest::Last,
        top_logprobs: 0,
    };
    let check = |out: &StepOutput| match out.token {
        Some(token) if token == argmax(&out.logits) => Ok(token),
        other => fail(format!(
            "the device chose {other:?}, the largest logit is token {}'s",
            argmax(&out.logits)
        )),
    };
    let id = s.create()?;
    let out = s.prefill(id, &b.tokens("greedy", 6), output)?;
    let mut token = check(&out)?;
    for _ in 0..12 {
        for out in s.decode(&[(id, token)], output)? {
            token = check(&out)?;
        }
    }
    // Alone, without logits, the choice is the same.
    let len = s.session.sequence_len(id)?;
    let with = s.decode(&[(id, 2)], output)?;
    s.session.truncate(id, len)?;
    let alone = s.decode(&[(id, 2)], OutputRequest::GREEDY)?;
    match (with.first(), alone.first()) {
        (Some(with), Some(alone)) if with.token == alone.token && alone.logits.is_empty() => Ok(()),
        _ => fail("the choice without logits is another"),
    }
}

fn top_logprobs(b: &Bench<'_>) -> Outcome {
    let mut s = b.open()?;
    let id = s.create()?;
    let vocab = b.vocab();
    for n in [1, 5, vocab as u32, vocab as u32 + 9] {
        let out = s.prefill(id, &b.tokens("top", 4), request(LogitsRequest::Last, n))?;
        check_top(&out, (n as usize).min(vocab))?;
        for out in s.decode(&[(id, 3)], request(LogitsRequest::Last, n))? {
            check_top(&out, (n as usize).min(vocab))?;
        }
    }
    // Of the last position also where logits of all are asked for.
    let out = s.prefill(id, &b.tokens("top", 4), request(LogitsRequest::All, 5))?;
    let last = StepOutput {
        logits: out.logits[out.logits.len().saturating_sub(vocab)..].to_vec(),
        ..out
    };
    check_top(&last, 5)
}

fn check_top(out: &StepOutput, n: usize) -> Outcome {
    let logits = &out.logits;
    let top = &out.top_logprobs;
    if top.len() != n {
        return fail(format!("{} log-probabilities, not {n}", top.len()));
    }
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&v| f64::from(v - max).exp()).sum();
    let log_sum_exp = f64::from(max) + sum.ln();
    for (rank, (entry, &id)) in top.iter().zip(&order).enumerate() {
        if entry.id as usize != id {
            return fail(format!(
                "rank {rank} is token {}, by its logits it is {id}",
                entry.id
            ));
        }
        let want = f64::from(logits[id]) - log_sum_exp;
        if (f64::from(entry.logprob) - want).abs() > 1e-4 {
            return fail(format!(
                "token {id} has log-probability {}, by its logits {want:.5}",
                entry.logprob
            ));
        }
    }
    Ok(())
}

fn asking_changes_nothing(b: &Bench<'_>) -> Outcome {
    let mut s = b.open()?;
    let tokens = b.tokens("asking", 9);
    let mut results = Vec::new();
    for output in [
        OutputRequest::NOTHING,
        OutputRequest::LOGITS,
        OutputRequest::ALL_LOGITS,
        request(LogitsRequest::None, 2),
    ] {
        let id = s.create()?;
        s.prefill(id, &tokens[..7], output)?;
        s.decode(&[(id, tokens[7])], output)?;
        results.push(s.step(id, tokens[8])?);
        s.session.release(id)?;
    }
    for other in &results[1..] {
        s.close("after other requests", other, &results[0])?;
    }
    Ok(())
}
