//! The layer where two backends part, without intermediate results: models of the first layers.

use halfhitch_seam::{Control, SeamResult, TokenId};

use super::localize::{Finding, LayerCount, logits};
use super::metrics::Distance;
use super::side::Side;

/// Compares models of the first layers by their logits, and halves until two neighbours are left: one
/// count of layers with which the sides agree, and the next, with which they do not. Every model that was
/// compared, and the layer that is between; none where they agree with all layers.
///
/// # Errors
/// What the sessions say; `Cancelled`.
pub fn search(
    against: &Side<'_>,
    candidate: &Side<'_>,
    tokens: &[TokenId],
    allowed: f64,
    control: &Control<'_>,
) -> SeamResult<(Vec<LayerCount>, Option<Finding>)> {
    let mut looked = Vec::new();
    let mut look = |layers: usize| -> SeamResult<LayerCount> {
        control.cancel.check()?;
        let vocabulary = candidate.spec.vocab_size;
        let run = |side: &Side<'_>| -> SeamResult<Vec<f32>> {
            let mut session = side.open_prefix(layers, control)?;
            logits(&mut *session, tokens, vocabulary, control)
        };
        let (r, c) = (run(against)?, run(candidate)?);
        let rows = r.chunks_exact(vocabulary).zip(c.chunks_exact(vocabulary));
        let errors = rows.map(|(r, c)| Distance::between(r, c, None).relative());
        let error = errors.fold(0.0, f64::max);
        let count = LayerCount {
            layers,
            error,
            parts: !(error <= allowed),
        };
        looked.push(count);
        Ok(count)
    };
    let all = candidate.spec.layers.len();
    let mut bad = look(all)?;
    if !bad.parts {
        return Ok((looked, None));
    }
    let mut good = None;
    if against.can_have_no_layers() && candidate.can_have_no_layers() {
        let none = look(0)?;
        if none.parts {
            let finding = Finding {
                layer: None,
                point: None,
                error: none.error,
                inputs: 0.0,
            };
            return Ok((looked, Some(finding)));
        }
        good = Some(none);
    }
    loop {
        let low = good.map_or(0, |count: LayerCount| count.layers);
        if bad.layers - low <= 1 {
            break;
        }
        let middle = look(low + (bad.layers - low) / 2)?;
        if middle.parts {
            bad = middle;
        } else {
            good = Some(middle);
        }
    }
    let finding = Finding {
        layer: Some(bad.layers - 1),
        point: None,
        error: bad.error,
        inputs: good.map_or(0.0, |count| count.error),
    };
    Ok((looked, Some(finding)))
}
