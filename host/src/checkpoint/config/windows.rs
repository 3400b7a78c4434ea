//! Which layers attend through a sliding window.

use halfhitch_seam::model::limits;
use halfhitch_seam::{SeamError, SeamResult};

use crate::checkpoint::json::{Keys, describe};

/// What a layer attends to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LayerKind {
    /// Every earlier position.
    Full,
    /// The last so many positions.
    Sliding(usize),
}

impl LayerKind {
    /// The window of the seam's spec.
    pub(super) fn window(self) -> Option<usize> {
        match self {
            Self::Full => None,
            Self::Sliding(window) => Some(window),
        }
    }

    /// The name in `layer_types` and in nested `rope_parameters`.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Full => FULL,
            Self::Sliding(_) => SLIDING,
        }
    }
}

pub(super) const FULL: &str = "full_attention";
pub(super) const SLIDING: &str = "sliding_attention";

/// `layer_types` as it stands, one a layer: `true` where a layer slides.
pub(super) fn layer_types(keys: &Keys<'_>, layers: usize) -> SeamResult<Option<Vec<bool>>> {
    let Some(types) = keys.list("layer_types")? else {
        return Ok(None);
    };
    if types.len() != layers {
        return Err(keys.wrong(
            "layer_types",
            format_args!("has {} entries for {layers} layers", types.len()),
        ));
    }
    let one = |(i, value): (usize, &serde_json::Value)| match value.as_str() {
        // `attention` is what transformers renames to `full_attention`.
        Some(FULL | "attention") => Ok(false),
        Some(SLIDING) => Ok(true),
        _ => Err(
            SeamError::unsupported(format!("layer_types[{i}] is {}", describe(value)))
                .hint(format!("supported: {FULL}, {SLIDING}")),
        ),
    };
    types
        .iter()
        .enumerate()
        .map(one)
        .collect::<SeamResult<_>>()
        .map(Some)
}

/// `sliding_window`: null is none, left out it is 4096 in every family that has it.
fn window(keys: &Keys<'_>) -> SeamResult<Option<usize>> {
    match keys.size("sliding_window", limits::CONTEXT)? {
        None if !keys.has("sliding_window") => Ok(Some(4096)),
        window => Ok(window),
    }
}

/// The rule of qwen2 and qwen3: windows only where `use_sliding_window` says so and
/// `sliding_window` is not null; then in the layers that `layer_types` marks, or else in those from
/// `max_window_layers` on.
pub(super) fn qwen(keys: &Keys<'_>, layers: usize) -> SeamResult<Vec<LayerKind>> {
    let window = if keys.flag("use_sliding_window")? {
        window(keys)?
    } else {
        None
    };
    let first = keys
        .integer("max_window_layers", 0, u64::MAX)?
        .unwrap_or(28);
    let sliding = match layer_types(keys, layers)? {
        Some(types) => types,
        None => (0..layers)
            .map(|i| window.is_some() && i as u64 >= first)
            .collect(),
    };
    let one = |(i, slides)| match (slides, window) {
        (false, _) => Ok(LayerKind::Full),
        (true, Some(window)) => Ok(LayerKind::Sliding(window)),
        (true, None) => Err(keys
            .wrong(
                "layer_types",
                format_args!("gives layer {i} a sliding window, but the model has none"),
            )
            .hint("set use_sliding_window and sliding_window")),
    };
    sliding.into_iter().enumerate().map(one).collect()
}

/// The rule of mistral: all layers slide where `sliding_window` is a number (4096 where it is left
/// out), none where it is null. Its code does not look at `layer_types`, so one that says something
/// else belongs to another architecture.
pub(super) fn mistral(keys: &Keys<'_>, layers: usize) -> SeamResult<Vec<LayerKind>> {
    let kind = window(keys)?.map_or(LayerKind::Full, LayerKind::Sliding);
    if let Some(types) = layer_types(keys, layers)?
        && types
            .iter()
            .any(|&slides| slides != (kind != LayerKind::Full))
    {
        return Err(SeamError::unsupported(
            "layer_types differs from sliding_window, which mistral applies to every layer",
        ));
    }
    Ok(vec![kind; layers])
}

/// The rule of llama: no windows.
pub(super) fn llama(
    keys: &Keys<'_>,
    layers: usize,
    warnings: &mut Vec<String>,
) -> SeamResult<Vec<LayerKind>> {
    if let Some(types) = layer_types(keys, layers)?
        && types.contains(&true)
    {
        return Err(SeamError::unsupported(
            "layer_types asks for sliding windows, which llama does not have",
        ));
    }
    if keys.value("sliding_window").is_some() {
        warnings.push("sliding_window is set, but llama does not use it".into());
    }
    Ok(vec![LayerKind::Full; layers])
}
