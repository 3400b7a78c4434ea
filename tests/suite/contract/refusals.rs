//! Calls that must be refused, with the code that the docs say, and without a trace.

use halfhitch_seam::{CancelToken, ErrorCode, OutputRequest, PlanRequest, SequenceId, TokenId};

use super::{Bench, CaseFn, Open, refused};
use crate::report::{Outcome, fail};

pub(super) const CASES: &[(&str, CaseFn)] = &[
    ("an-empty-prompt-is-refused", empty_prompt),
    ("a-step-of-no-sequences-is-refused", empty_step),
    ("tokens-outside-the-vocabulary-are-refused", unknown_tokens),
    ("a-sequence-twice-in-a-step-is-refused", duplicates),
    ("an-unknown-sequence-is-refused", unknown_sequence),
    ("a-released-sequence-is-refused", released_sequence),
    ("ids-are-never-reused", ids_are_never_reused),
    (
        "more-sequences-than-planned-are-refused",
        too_many_sequences,
    ),
    ("a-cut-beyond-the-end-is-refused", truncate_beyond),
    (
        "a-full-context-is-refused-and-changes-nothing",
        context_full,
    ),
];

const INVALID: &[ErrorCode] = &[ErrorCode::InvalidInput];

/// Runs refused calls on a sequence of 5 tokens and holds that it continues as if they had not been.
fn untouched(
    b: &Bench<'_>,
    s: &mut Open,
    calls: impl FnOnce(&mut Open, SequenceId) -> Outcome,
) -> Outcome {
    let tokens = b.tokens("untouched", 6);
    let id = s.create()?;
    s.prefill(id, &tokens[..5], OutputRequest::NOTHING)?;
    calls(s, id)?;
    s.expect_len(id, 5, "after refused calls")?;
    let got = s.step(id, tokens[5])?;
    let want = b.open()?.fresh(&tokens)?;
    s.close("the step after refused calls", &got, &want)
}

fn empty_prompt(b: &Bench<'_>) -> Outcome {
    untouched(b, &mut b.open()?, |s, id| {
        for output in [OutputRequest::NOTHING, OutputRequest::ALL_LOGITS] {
            refused("an empty prompt", s.prefill(id, &[], output), INVALID)?;
        }
        Ok(())
    })
}

fn empty_step(b: &Bench<'_>) -> Outcome {
    untouched(b, &mut b.open()?, |s, _| {
        let step = s.decode(&[], OutputRequest::LOGITS);
        refused("a step of no sequences", step, INVALID)
    })
}

fn unknown_tokens(b: &Bench<'_>) -> Outcome {
    let vocab = b.vocab() as TokenId;
    untouched(b, &mut b.open_for(2)?, |s, id| {
        let other = s.create()?;
        s.prefill(other, &[1, 2], OutputRequest::NOTHING)?;
        for bad in [vocab, TokenId::MAX] {
            let what = format!("token {bad} of {vocab}");
            for tokens in [vec![bad], vec![1, 2, bad], vec![bad, 1]] {
                let call = s.prefill(id, &tokens, OutputRequest::LOGITS);
                refused(&what, call, INVALID)?;
            }
            let call = s.decode(&[(id, bad)], OutputRequest::LOGITS);
            refused(&what, call, INVALID)?;
            let call = s.decode(&[(id, 1), (other, bad)], OutputRequest::LOGITS);
            refused(&what, call, INVALID)?;
        }
        // At the end of a prompt of several chunks.
        let mut long = b.tokens("long", s.chunk + 1);
        long.push(vocab);
        if 5 + long.len() <= s.context {
            let call = s.prefill(id, &long, OutputRequest::NOTHING);
            refused("a bad token in the second chunk", call, INVALID)?;
        }
        s.expect_len(other, 2, "after a refused batch")
    })
}

fn duplicates(b: &Bench<'_>) -> Outcome {
    untouched(b, &mut b.open_for(2)?, |s, id| {
        let other = s.create()?;
        let call = s.decode(&[(id, 1), (id, 2)], OutputRequest::LOGITS);
        refused("a sequence twice", call, INVALID)?;
        let call = s.decode(&[(id, 1), (other, 2), (id, 1)], OutputRequest::LOGITS);
        refused("a sequence twice among others", call, INVALID)?;
        s.expect_len(other, 0, "after a refused batch")
    })
}

fn refuses_everything(s: &mut Open, id: SequenceId, what: &str) -> Outcome {
    refused(what, s.session.sequence_len(id), INVALID)?;
    refused(what, s.prefill(id, &[1], OutputRequest::LOGITS), INVALID)?;
    refused(what, s.decode(&[(id, 1)], OutputRequest::LOGITS), INVALID)?;
    refused(what, s.session.truncate(id, 0), INVALID)?;
    refused(what, s.session.release(id), INVALID)
}

fn unknown_sequence(b: &Bench<'_>) -> Outcome {
    untouched(b, &mut b.open()?, |s, id| {
        for unknown in [id.0.wrapping_add(1), u64::MAX] {
            refuses_everything(s, SequenceId(unknown), "a sequence that was never made")?;
            let steps = [(id, 1), (SequenceId(unknown), 1)];
            let call = s.decode(&steps, OutputRequest::LOGITS);
            refused("an unknown sequence beside a known one", call, INVALID)?;
        }
        Ok(())
    })
}

fn released_sequence(b: &Bench<'_>) -> Outcome {
    untouched(b, &mut b.open_for(2)?, |s, _| {
        let gone = s.create()?;
        s.prefill(gone, &[1, 2, 3], OutputRequest::NOTHING)?;
        s.session.release(gone)?;
        refuses_everything(s, gone, "a released sequence")?;
        // Nor does the one that takes its place answer to its name.
        s.create()?;
        refuses_everything(s, gone, "a released sequence after another was made")
    })
}

fn ids_are_never_reused(b: &Bench<'_>) -> Outcome {
    let mut s = b.open_for(2)?;
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..8 {
        let id = s.create()?;
        if !seen.insert(id) {
            return fail(format!("{id} was given out twice"));
        }
        s.session.release(id)?;
    }
    Ok(())
}

fn too_many_sequences(b: &Bench<'_>) -> Outcome {
    for planned in [1, 2] {
        if planned > b.subject.capabilities()?.max_sequences {
            continue;
        }
        let mut s = b.open_for(planned)?;
        let first = s.create()?;
        for _ in 1..planned {
            s.create()?;
        }
        let what = format!("sequence {} of {planned}", planned + 1);
        let call = s.session.create_sequence();
        refused(&what, call, &[ErrorCode::Unsupported])?;
        s.session.release(first)?;
        s.create()?;
    }
    Ok(())
}

fn truncate_beyond(b: &Bench<'_>) -> Outcome {
    untouched(b, &mut b.open()?, |s, id| {
        for len in [6, usize::MAX] {
            let call = s.session.truncate(id, len);
            refused(&format!("a cut of 5 tokens to {len}"), call, INVALID)?;
        }
        Ok(())
    })
}

fn context_full(b: &Bench<'_>) -> Outcome {
    const FULL: &[ErrorCode] = &[ErrorCode::ContextFull];
    let request = PlanRequest {
        context: Some(16),
        sequences: 2,
        ..b.request()
    };
    let mut s = b.open_with(request)?;
    untouched(b, &mut s, |s, id| {
        for more in [12, 17] {
            let call = s.prefill(id, &b.tokens("more", more), OutputRequest::ALL_LOGITS);
            refused(
                &format!("5 and {more} tokens in a context of 16"),
                call,
                FULL,
            )?;
        }
        Ok(())
    })?;
    let mut s = b.open_with(request)?;
    let (full, other) = (s.create()?, s.create()?);
    let tokens = b.tokens("full", 16);
    s.prefill(full, &tokens, OutputRequest::NOTHING)?;
    s.prefill(other, &tokens[..2], OutputRequest::NOTHING)?;
    let call = s.decode(&[(full, 1)], OutputRequest::LOGITS);
    refused("a step past the context", call, FULL)?;
    let call = s.decode(&[(other, 1), (full, 1)], OutputRequest::LOGITS);
    refused("a batch with a full sequence", call, FULL)?;
    s.expect_len(full, 16, "after a refused step")?;
    s.expect_len(other, 2, "after a refused batch")?;
    // Room again after a cut; and a cancelled call on a full one says one or the other.
    s.session.truncate(full, 15)?;
    let got = s.step(full, tokens[15])?;
    let want = b.open()?.fresh(&tokens)?;
    s.close("in the room that a cut made", &got, &want)?;
    let cancel = CancelToken::new();
    cancel.cancel();
    let call = s.session.prefill(
        full,
        &[1],
        OutputRequest::NOTHING,
        &crate::subject::control(&cancel),
    );
    let either = [ErrorCode::ContextFull, ErrorCode::Cancelled];
    refused("a cancelled prompt past the context", call, &either)?;
    s.expect_len(full, 16, "after a refused prompt")
}
