//! Where two backends part: intermediate results of both on the same tokens.
//!
//! Every tensor's error is set against that of what it is computed from, so that the tensor that is
//! named is the one that is wrong, and not one that a wrong one was handed to.

use std::fmt;

use halfhitch_seam::model::FeedForward;
use halfhitch_seam::{Control, ModelSpec, SeamResult, Session, Tap, TapPoint, TapSite, TokenId};
use serde::Serialize;

use super::bisect;
use super::limits::Limits;
use super::metrics::{Distance, Position};
use super::prompts::PromptSet;
use super::run::{DECODE_STEPS, Sides, WithoutPrefill, prefill, step};
use super::side::Side;

/// Most tokens that are looked at.
const TOKENS: usize = 64;

/// Most bytes of a side's intermediate results.
const TAP_BYTES: usize = 256 << 20;

/// How much a sound operation may multiply the relative error of what it reads: cancellation in sums and
/// the steepness of a softmax do. What is over this, plus the precision's own tolerance, is a fault.
const GAIN: f64 = 8.0;

/// The tokens that are looked at: the end of a prompt up to a position, run from position 0.
#[derive(Clone, Debug, Serialize)]
pub struct LocalizeInput {
    /// The prompt.
    pub prompt: String,
    /// The first token's position in it.
    pub from: usize,
    /// The tokens.
    pub tokens: Vec<TokenId>,
}

impl LocalizeInput {
    /// The tokens that lead to the worst position of a run.
    pub fn worst(positions: &[Position], prompts: &PromptSet, spec: &ModelSpec) -> Option<Self> {
        let worst = positions
            .iter()
            .max_by(|a, b| a.distance.relative().total_cmp(&b.distance.relative()))?;
        let prompt = prompts
            .prompts
            .iter()
            .find(|p| p.name == worst.place.prompt)?;
        let end = worst.place.position + 1;
        // Two at least, so that a step after a chunk can be looked at.
        let end = end.max(2).min(prompt.tokens.len());
        let from = end.saturating_sub(most_tokens(spec));
        Some(Self {
            prompt: prompt.name.clone(),
            from,
            tokens: prompt.tokens[from..end].to_vec(),
        })
    }
}

fn most_tokens(spec: &ModelSpec) -> usize {
    let layers = spec.layers.iter().map(|l| {
        let wide = match &l.feed_forward {
            FeedForward::Gated(mlp) => mlp.intermediate,
            _ => 0,
        };
        let a = &l.attention;
        8 * spec.hidden_size + 3 * a.query_width() + 3 * a.kv_width() + 3 * wide
    });
    let row = layers.sum::<usize>() + 2 * spec.hidden_size + spec.vocab_size;
    (TAP_BYTES / (size_of::<f32>() * row)).clamp(2, TOKENS)
}

/// How it was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// Both backends show intermediate results.
    Taps,
    /// One does not: models of the first layers were compared.
    Prefix,
}

/// One tensor.
#[derive(Clone, Debug, Serialize)]
pub struct TapRow {
    /// Which.
    #[serde(flatten)]
    pub site: TapSite,
    /// Largest relative difference of a token's row: `|candidate - against| / |against|`, Euclidean.
    pub error: f64,
    /// The largest error among the tensors it is computed from.
    pub inputs: f64,
    /// Whether it is over what inputs and precision explain.
    pub jumps: bool,
}

/// One comparison of models of the first layers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LayerCount {
    /// How many layers.
    pub layers: usize,
    /// Largest difference of a logit, as a share of its position's largest.
    pub error: f64,
    /// Whether that is over the limit.
    pub parts: bool,
}

/// Where the two part.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// The layer; none for what is outside all.
    pub layer: Option<usize>,
    /// The tensor, where tensors were compared.
    pub point: Option<TapPoint>,
    /// Its error.
    pub error: f64,
    /// That of what it is computed from.
    pub inputs: f64,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.layer, self.point) {
            (layer, Some(point)) => TapSite { layer, point }.fmt(f),
            (Some(layer), None) => write!(f, "layer {layer}"),
            (None, None) => f.write_str("embedding, final norm or head"),
        }
    }
}

/// The candidate's decode steps against its own prefill.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct StepDifference {
    /// The position, in the looked-at tokens, of the first step over the limit; else of the worst.
    pub position: usize,
    /// Largest difference of a logit there, as a share of the largest.
    pub error: f64,
    /// The limit.
    pub allowed: f64,
    /// Whether the error is over it.
    pub parts: bool,
}

/// What was found.
#[derive(Clone, Debug, Serialize)]
pub struct Localization {
    /// On which tokens.
    pub input: LocalizeInput,
    /// How.
    pub method: Method,
    /// The precision's tolerance.
    pub tolerance: f64,
    /// Every tensor, in the order of the computation; empty unless tensors were compared.
    pub taps: Vec<TapRow>,
    /// The models of first layers that were compared, in that order.
    pub prefixes: Vec<LayerCount>,
    /// Where they part, in a prefill.
    pub finding: Option<Finding>,
    /// Whether the candidate's decode step is its prefill.
    pub step: Option<StepDifference>,
}

/// Finds where two sides part on the input's tokens. `sides` are open sessions of the same.
///
/// # Errors
/// What the sessions say; `Cancelled`.
pub fn localize(
    against: &Side<'_>,
    candidate: &Side<'_>,
    sides: &mut Sides<'_>,
    input: LocalizeInput,
    limits: &Limits,
    control: &Control<'_>,
) -> SeamResult<Localization> {
    let control = &Control {
        cancel: control.cancel,
        observer: &WithoutPrefill(control.observer),
    };
    let step = step_difference(sides, &input.tokens, limits.dlogit, control)?;
    let mut found = Localization {
        input,
        method: Method::Prefix,
        tolerance: limits.dlogit,
        taps: Vec::new(),
        prefixes: Vec::new(),
        finding: None,
        step,
    };
    if against.capabilities.taps && candidate.capabilities.taps {
        let reference = sides.against.tap(&found.input.tokens, control)?;
        control.cancel.check()?;
        let shown = sides.candidate.tap(&found.input.tokens, control)?;
        found.method = Method::Taps;
        found.tolerance = limits.tap;
        found.taps = rows(&reference, &shown, limits.tap);
        let first = found.taps.iter().find(|row| row.jumps);
        found.finding = first.map(|row| Finding {
            layer: row.site.layer,
            point: Some(row.site.point),
            error: row.error,
            inputs: row.inputs,
        });
    } else {
        let tokens = &found.input.tokens;
        let search = bisect::search(against, candidate, tokens, limits.dlogit, control)?;
        (found.prefixes, found.finding) = search;
    }
    Ok(found)
}

/// The table of tensors that both show.
fn rows(reference: &[Tap], shown: &[Tap], tolerance: f64) -> Vec<TapRow> {
    let mut rows: Vec<TapRow> = Vec::new();
    for r in reference {
        let Some(c) = shown.iter().find(|c| c.site == r.site) else {
            continue;
        };
        let error = error(r, c);
        let inputs = inputs(r.site, &rows);
        rows.push(TapRow {
            site: r.site,
            error,
            inputs,
            // Not a plain `>`: an error that is no number jumps.
            jumps: !(error <= tolerance + GAIN * inputs),
        });
    }
    rows
}

/// The largest relative difference of a row; infinite where shapes differ or something is not finite.
fn error(reference: &Tap, shown: &Tap) -> f64 {
    if reference.shape != shown.shape {
        return f64::INFINITY;
    }
    let rows = reference.rows().zip(shown.rows());
    rows.map(|(r, c)| {
        let (mut off, mut size) = (0.0f64, 0.0f64);
        for (&r, &c) in r.iter().zip(c) {
            let (r, c) = (f64::from(r), f64::from(c));
            off += (r - c) * (r - c);
            size += r * r;
        }
        match off {
            0.0 => 0.0,
            off if off.is_finite() && size.is_finite() => (off / size).sqrt(),
            _ => f64::INFINITY,
        }
    })
    .fold(0.0, f64::max)
}

/// The largest error among what a tensor is computed from; `known` are the tensors before it.
fn inputs(site: TapSite, known: &[TapRow]) -> f64 {
    use TapPoint as P;
    let here = |points: &[P]| {
        let found = points.iter().find_map(|&point| {
            let layer = site.layer;
            known
                .iter()
                .find(|row| row.site == TapSite { layer, point })
        });
        found.map_or(0.0, |row| row.error)
    };
    // The residual stream as it comes into a layer or the head: the last one there is.
    let stream = || {
        let streams = [P::Embedding, P::AttentionResidual, P::Residual];
        let last = known.iter().rev().find(|r| streams.contains(&r.site.point));
        last.map_or(0.0, |row| row.error)
    };
    match site.point {
        P::PreAttentionNorm | P::PreFeedForwardNorm | P::FinalNorm => stream(),
        P::QueryProjection | P::KeyProjection | P::Value => here(&[P::PreAttentionNorm]),
        P::Query => here(&[P::QueryProjection]),
        P::Key => here(&[P::KeyProjection]),
        P::AttentionMix => here(&[P::Query])
            .max(here(&[P::Key]))
            .max(here(&[P::Value])),
        P::AttentionOutput => here(&[P::AttentionMix]),
        P::PostAttentionNorm => here(&[P::AttentionOutput]),
        P::AttentionResidual => here(&[P::PostAttentionNorm, P::AttentionOutput]).max(stream()),
        P::Gate | P::Up => here(&[P::PreFeedForwardNorm]),
        P::FeedForwardProduct => here(&[P::Gate]).max(here(&[P::Up])),
        P::FeedForwardOutput => here(&[P::FeedForwardProduct, P::PreFeedForwardNorm]),
        P::PostFeedForwardNorm => here(&[P::FeedForwardOutput]),
        P::Residual => here(&[P::PostFeedForwardNorm, P::FeedForwardOutput]).max(stream()),
        P::Logits => here(&[P::FinalNorm]),
        _ => 0.0,
    }
}

/// The candidate's last tokens as decode steps against the same as prefill; none for a single token.
fn step_difference(
    sides: &mut Sides<'_>,
    tokens: &[TokenId],
    allowed: f64,
    control: &Control<'_>,
) -> SeamResult<Option<StepDifference>> {
    let steps = DECODE_STEPS.min(tokens.len() / 2);
    if steps == 0 {
        return Ok(None);
    }
    let first = tokens.len() - steps;
    let vocabulary = sides.vocabulary;
    let chunk = logits(sides.candidate, tokens, vocabulary, control)?;
    let sequence = sides.candidate.create_sequence()?;
    let mut run = || -> SeamResult<Vec<f64>> {
        prefill(
            sides.candidate,
            sequence,
            &tokens[..first],
            control,
            vocabulary,
        )?;
        let rows = chunk.chunks_exact(vocabulary).zip(tokens).skip(first);
        rows.map(|(want, &token)| {
            control.cancel.check()?;
            let got = step(sides.candidate, sequence, token, vocabulary)?;
            Ok(Distance::between(want, &got, None).relative())
        })
        .collect()
    };
    let errors = run();
    sides.candidate.release(sequence)?;
    let errors = errors?;
    let over = errors.iter().position(|&e| !(e <= allowed));
    let worst = (0..errors.len()).max_by(|&a, &b| errors[a].total_cmp(&errors[b]));
    Ok(over.or(worst).map(|i| StepDifference {
        position: first + i,
        error: errors[i],
        allowed,
        parts: over.is_some(),
    }))
}

/// All positions' logits of tokens in a sequence of their own.
pub(super) fn logits(
    session: &mut dyn Session,
    tokens: &[TokenId],
    vocabulary: usize,
    control: &Control<'_>,
) -> SeamResult<Vec<f32>> {
    let sequence = session.create_sequence()?;
    let result = prefill(session, sequence, tokens, control, vocabulary);
    session.release(sequence)?;
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tap(layer: Option<usize>, point: TapPoint, values: &[f32]) -> Tap {
        let site = TapSite { layer, point };
        Tap::new(site, [1, values.len()], values.to_vec()).unwrap()
    }

    #[test]
    fn the_tensor_that_is_wrong_is_named_and_not_those_after_it() {
        use TapPoint as P;
        let taps = |gate: f32| {
            vec![
                tap(None, P::Embedding, &[1.0, 2.0]),
                tap(Some(0), P::PreFeedForwardNorm, &[1.0, 2.0]),
                tap(Some(0), P::Gate, &[gate, 1.0]),
                tap(Some(0), P::Up, &[1.0, 1.0]),
                tap(Some(0), P::FeedForwardProduct, &[gate, 1.0]),
                tap(Some(0), P::Residual, &[gate, 3.0]),
                tap(None, P::Logits, &[gate * 2.0, 1.0]),
            ]
        };
        let rows = rows(&taps(1.0), &taps(1.5), 1e-4);
        let jumping: Vec<_> = rows
            .iter()
            .filter(|r| r.jumps)
            .map(|r| r.site.point)
            .collect();
        assert_eq!(jumping[0], P::Gate);
        assert!(!jumping.contains(&P::FeedForwardProduct) && !jumping.contains(&P::Up));
        assert!((rows[2].error - 0.5 / 2f64.sqrt()).abs() < 1e-9);
    }

    #[test]
    fn what_is_no_number_jumps() {
        let r = [tap(None, TapPoint::Embedding, &[1.0, 2.0])];
        let c = [tap(None, TapPoint::Embedding, &[f32::NAN, 2.0])];
        assert!(rows(&r, &c, 1.0)[0].jumps);
        let longer = [tap(None, TapPoint::Embedding, &[1.0, 2.0, 3.0])];
        assert!(rows(&r, &longer, 1.0)[0].jumps);
    }
}
