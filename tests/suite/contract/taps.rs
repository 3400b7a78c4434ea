//! Intermediate results: where they are offered they are the model's, and leave no trace.

use std::collections::BTreeSet;

use halfhitch_seam::{CancelToken, ErrorCode, OutputRequest, SeamResult, Tap, TapPoint, TokenId};

use super::{Bench, CaseFn, Open, refused};
use crate::report::{Outcome, fail};
use crate::subject::control;

pub(super) const CASES: &[(&str, CaseFn)] = &[
    ("intermediate-results-lead-to-the-logits", lead_to_logits),
    ("intermediate-results-leave-no-trace", no_trace),
    ("bad-tokens-show-no-intermediate-results", bad_tokens),
];

fn tap(s: &mut Open, tokens: &[TokenId]) -> SeamResult<Vec<Tap>> {
    s.session.tap(tokens, &control(&CancelToken::new()))
}

/// Whether they are offered; where they are not, they must be refused.
fn offered(b: &Bench<'_>, s: &mut Open) -> Outcome<bool> {
    if b.subject.capabilities()?.taps {
        return Ok(true);
    }
    let result = tap(s, &[1]);
    refused(
        "asking for intermediate results",
        result,
        &[ErrorCode::Unsupported],
    )?;
    Ok(false)
}

/// More than one of the device's chunks.
fn lead_to_logits(b: &Bench<'_>) -> Outcome {
    let mut s = b.open()?;
    if !offered(b, &mut s)? {
        return Ok(());
    }
    let n = s.chunk + 3;
    let tokens = b.tokens("taps", n);
    let id = s.create()?;
    let want = s.prefill(id, &tokens, OutputRequest::ALL_LOGITS)?.logits;
    let taps = tap(&mut s, &tokens)?;
    let sites: BTreeSet<_> = taps.iter().map(|t| t.site).collect();
    if sites.len() != taps.len() {
        return fail("an intermediate result comes twice");
    }
    for t in &taps {
        if t.shape[0] != n || t.values.len() != n * t.shape[1] {
            return fail(format!("{}: {:?} for {n} tokens", t.site, t.shape));
        }
        if t.site.layer.is_some_and(|l| l >= b.model.spec.layers.len()) {
            return fail(format!("{}: there is no such layer", t.site));
        }
    }
    let points: Vec<_> = taps.iter().map(|t| t.site.point).collect();
    for point in [TapPoint::Embedding, TapPoint::FinalNorm, TapPoint::Logits] {
        if points.iter().filter(|p| **p == point).count() != 1 {
            return fail(format!("{point} is not there once"));
        }
    }
    for (point, width) in [
        (TapPoint::Residual, b.model.spec.hidden_size),
        (TapPoint::FeedForwardOutput, b.model.spec.hidden_size),
    ] {
        let of: Vec<_> = taps.iter().filter(|t| t.site.point == point).collect();
        if of.len() != b.model.spec.layers.len() || of.iter().any(|t| t.shape[1] != width) {
            return fail(format!("{point}: not one of {width} a layer"));
        }
    }
    let Some(last) = taps.iter().find(|t| t.site.point == TapPoint::Logits) else {
        return fail("there are no logits");
    };
    let rows = last.rows().zip(want.chunks_exact(b.vocab()));
    for (i, (got, want)) in rows.enumerate() {
        s.close(&format!("intermediate results, position {i}"), got, want)?;
    }
    Ok(())
}

fn no_trace(b: &Bench<'_>) -> Outcome {
    // As many sequences as the session may have: it must not need one of them.
    let mut s = b.open()?;
    if !offered(b, &mut s)? {
        return Ok(());
    }
    let id = s.create()?;
    s.last(id, &b.tokens("before", 5))?;
    tap(&mut s, &b.tokens("taps", 9))?;
    s.expect_len(id, 5, "after showing intermediate results")?;
    let got = s.step(id, 1)?;
    s.session.truncate(id, 0)?;
    s.last(id, &b.tokens("before", 5))?;
    let want = s.step(id, 1)?;
    s.close("a step after showing intermediate results", &got, &want)
}

fn bad_tokens(b: &Bench<'_>) -> Outcome {
    let mut s = b.open()?;
    if !offered(b, &mut s)? {
        return Ok(());
    }
    let result = tap(&mut s, &[]);
    refused("no tokens", result, &[ErrorCode::InvalidInput])?;
    let result = tap(&mut s, &[b.vocab() as TokenId]);
    refused("a token too large", result, &[ErrorCode::InvalidInput])?;
    let too_many = vec![0; s.context + 1];
    let result = tap(&mut s, &too_many);
    refused("too many tokens", result, &[ErrorCode::ContextFull])?;
    // And the session goes on.
    s.fresh(&b.tokens("after", 3)).map(drop)
}
