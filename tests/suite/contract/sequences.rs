//! How sequences grow, and that it makes no difference how.

use halfhitch_seam::OutputRequest;

use super::{Bench, CaseFn};
use crate::report::{Outcome, fail};

pub(super) const CASES: &[(&str, CaseFn)] = &[
    ("length-follows-calls", length_follows_calls),
    (
        "prefill-then-decode-equals-decode-alone",
        prefill_then_decode,
    ),
    ("chunk-boundaries-leave-no-trace", chunk_boundaries),
    (
        "truncate-then-continue-equals-fresh",
        truncate_then_continue,
    ),
    ("truncate-to-its-length-changes-nothing", truncate_to_length),
    ("truncate-to-zero-equals-fresh", truncate_to_zero),
    ("batch-equals-single", batch_equals_single),
    ("sequences-do-not-see-each-other", separate),
    ("a-released-cache-leaves-no-trace", release_leaves_no_trace),
    ("the-same-calls-give-the-same-bits", deterministic),
    ("sessions-are-independent", independent_sessions),
    ("every-position-of-the-context-can-be-used", whole_context),
];

fn length_follows_calls(b: &Bench<'_>) -> Outcome {
    let mut s = b.open()?;
    let id = s.create()?;
    s.expect_len(id, 0, "when made")?;
    s.prefill(id, &b.tokens("a", 5), OutputRequest::NOTHING)?;
    s.expect_len(id, 5, "after a prefill of 5")?;
    s.step(id, 1)?;
    s.expect_len(id, 6, "after a step")?;
    s.prefill(id, &b.tokens("b", 2), OutputRequest::LOGITS)?;
    s.expect_len(id, 8, "after a second prefill")?;
    s.session.truncate(id, 3)?;
    s.expect_len(id, 3, "cut to 3")?;
    s.session.truncate(id, 0)?;
    s.expect_len(id, 0, "cut to 0")
}

fn prefill_then_decode(b: &Bench<'_>) -> Outcome {
    let mut s = b.open_for(2)?;
    let tokens = b.tokens("prefill", 13);
    let (at_once, one_by_one) = (s.create()?, s.create()?);
    let mut want = Vec::new();
    for &token in &tokens[..9] {
        want = s.step(one_by_one, token)?;
    }
    let got = s.last(at_once, &tokens[..9])?;
    s.close("after a prompt of 9", &got, &want)?;
    for &token in &tokens[9..] {
        let want = s.step(one_by_one, token)?;
        let got = s.step(at_once, token)?;
        s.close("a step later", &got, &want)?;
    }
    Ok(())
}

fn chunk_boundaries(b: &Bench<'_>) -> Outcome {
    let mut s = b.open_for(2)?;
    let chunk = s.chunk;
    for n in [chunk - 1, chunk, chunk + 1, 2 * chunk, 2 * chunk + 1] {
        if n == 0 || n > s.context {
            continue;
        }
        let tokens = b.tokens("chunks", n);
        let got = s.fresh(&tokens)?;
        let id = s.create()?;
        let mut want = Vec::new();
        for part in tokens.chunks((chunk / 2).max(1)) {
            want = s.last(id, part)?;
        }
        s.session.release(id)?;
        s.close(&format!("{n} tokens in chunks of {chunk}"), &got, &want)?;
    }
    Ok(())
}

fn truncate_then_continue(b: &Bench<'_>) -> Outcome {
    let mut s = b.open_for(2)?;
    let tokens = b.tokens("before", 12);
    let other = b.tokens("after", 4);
    for keep in [1, 4, 11] {
        let id = s.create()?;
        s.prefill(id, &tokens, OutputRequest::NOTHING)?;
        s.session.truncate(id, keep)?;
        let got = s.last(id, &other)?;
        let step = s.step(id, other[0])?;
        s.session.release(id)?;
        let mut all = [&tokens[..keep], &other].concat();
        let want = s.fresh(&all)?;
        s.close(&format!("a prompt after a cut to {keep}"), &got, &want)?;
        all.push(other[0]);
        let want = s.fresh(&all)?;
        s.close(&format!("a step after a cut to {keep}"), &step, &want)?;
    }
    // A step directly after the cut.
    let id = s.create()?;
    s.prefill(id, &tokens, OutputRequest::NOTHING)?;
    s.session.truncate(id, 5)?;
    let got = s.step(id, other[1])?;
    let want = s.fresh(&[&tokens[..5], &other[1..2]].concat())?;
    s.close("a step right after a cut to 5", &got, &want)
}

fn truncate_to_length(b: &Bench<'_>) -> Outcome {
    let mut s = b.open_for(2)?;
    let tokens = b.tokens("whole", 7);
    let id = s.create()?;
    s.prefill(id, &tokens[..6], OutputRequest::NOTHING)?;
    s.session.truncate(id, 6)?;
    s.expect_len(id, 6, "cut to its own length")?;
    let got = s.step(id, tokens[6])?;
    let want = s.fresh(&tokens)?;
    s.close("the next step", &got, &want)
}

fn truncate_to_zero(b: &Bench<'_>) -> Outcome {
    let mut s = b.open_for(2)?;
    let id = s.create()?;
    s.prefill(id, &b.tokens("gone", 9), OutputRequest::NOTHING)?;
    s.session.truncate(id, 0)?;
    let tokens = b.tokens("new", 5);
    let got = s.last(id, &tokens)?;
    let want = s.fresh(&tokens)?;
    s.close("after a cut to 0", &got, &want)
}

fn batch_equals_single(b: &Bench<'_>) -> Outcome {
    let most = b.subject.capabilities()?.max_sequences.min(5);
    if most < 2 {
        return Err(crate::Miss::Unsupported("several sequences".into()));
    }
    let mut batch = b.open_for(most)?;
    let mut single = b.open_for(most)?;
    // Different lengths, so that positions differ within a step.
    let prompts: Vec<_> = (0..most)
        .map(|i| b.tokens(&format!("prompt {i}"), 3 + 2 * i))
        .collect();
    let mut ids = Vec::new();
    for prompt in &prompts {
        let (x, y) = (batch.create()?, single.create()?);
        batch.prefill(x, prompt, OutputRequest::NOTHING)?;
        single.prefill(y, prompt, OutputRequest::NOTHING)?;
        ids.push((x, y));
    }
    for round in 0..3 {
        let tokens = b.tokens(&format!("round {round}"), most);
        // Another order each time, and not all of them in the last.
        let mut order: Vec<usize> = (0..most).collect();
        order.rotate_left(round % most);
        if round == 2 {
            order.pop();
        }
        let steps: Vec<_> = order.iter().map(|&i| (ids[i].0, tokens[i])).collect();
        let got = batch.decode(&steps, OutputRequest::LOGITS)?;
        if got.len() != steps.len() {
            return fail(format!("{} outputs for {} steps", got.len(), steps.len()));
        }
        for (&i, got) in order.iter().zip(&got) {
            let want = single.step(ids[i].1, tokens[i])?;
            batch.close(&format!("round {round}, sequence {i}"), &got.logits, &want)?;
        }
    }
    Ok(())
}

fn separate(b: &Bench<'_>) -> Outcome {
    let mut s = b.open_for(3)?;
    let (x, y) = (b.tokens("x", 8), b.tokens("y", 8));
    let (first, second) = (s.create()?, s.create()?);
    s.prefill(first, &x[..4], OutputRequest::NOTHING)?;
    s.prefill(second, &y[..6], OutputRequest::NOTHING)?;
    s.prefill(first, &x[4..7], OutputRequest::NOTHING)?;
    s.session.truncate(second, 2)?;
    let got = s.step(first, x[7])?;
    let want = s.fresh(&x)?;
    s.close("a sequence beside one that is cut", &got, &want)?;
    let got = s.last(second, &y[2..])?;
    let want = s.fresh(&y)?;
    s.close("the one that was cut", &got, &want)
}

fn release_leaves_no_trace(b: &Bench<'_>) -> Outcome {
    let mut s = b.open()?;
    let tokens = b.tokens("again", 6);
    let want = s.fresh(&tokens)?;
    s.fresh(&b.tokens("long", 40))?;
    let got = s.fresh(&tokens)?;
    s.close("in the place of a released one", &got, &want)
}

fn deterministic(b: &Bench<'_>) -> Outcome {
    let run = || -> Outcome<Vec<f32>> {
        let mut s = b.open_for(2)?;
        let (x, y) = (s.create()?, s.create()?);
        let mut all = s.last(x, &b.tokens("x", 20))?;
        all.extend(s.last(y, &b.tokens("y", 3))?);
        for out in s.decode(&[(y, 1), (x, 2)], OutputRequest::LOGITS)? {
            all.extend(out.logits);
        }
        Ok(all)
    };
    let (one, two) = (run()?, run()?);
    if one
        .iter()
        .map(|v| v.to_bits())
        .ne(two.iter().map(|v| v.to_bits()))
    {
        return fail("the same calls in a new session gave other logits");
    }
    Ok(())
}

fn independent_sessions(b: &Bench<'_>) -> Outcome {
    let tokens = b.tokens("threads", 10);
    let want = b.open()?.fresh(&tokens)?;
    let results: Vec<Outcome<Vec<f32>>> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..2)
            .map(|_| {
                let mut session = b.open();
                let tokens = &tokens;
                scope.spawn(move || match &mut session {
                    Ok(s) => s.fresh(tokens),
                    Err(miss) => Err(miss.clone()),
                })
            })
            .collect();
        let panicked = |_| fail("a session panicked on another thread");
        workers
            .into_iter()
            .map(|w| w.join().unwrap_or_else(panicked))
            .collect()
    });
    let s = b.open()?;
    for got in results {
        s.close("two sessions at the same time", &got?, &want)?;
    }
    Ok(())
}

fn whole_context(b: &Bench<'_>) -> Outcome {
    let mut s = b.open_with(halfhitch_seam::PlanRequest {
        context: Some(16),
        ..b.request()
    })?;
    let tokens = b.tokens("to the brim", 16);
    let id = s.create()?;
    s.prefill(id, &tokens[..14], OutputRequest::NOTHING)?;
    s.step(id, tokens[14])?;
    let got = s.step(id, tokens[15])?;
    s.expect_len(id, 16, "at the end of the context")?;
    let want = b.open()?.fresh(&tokens)?;
    s.close("at the last position", &got, &want)
}
