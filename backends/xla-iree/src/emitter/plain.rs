//! Layers that are written in a short form, of one row or of a chunk; any other goes the general way.

use halfhitch_seam::model::{FeedForward, LayerSpec, NormKind, NormSpec, RopeLayout};

/// Whether a layer is plain: RMS norms before the two blocks and no others, full half-split rope, a gated
/// feed-forward block, no window, soft cap, norm of queries and keys, nor bias but that of queries, keys
/// and values.
pub fn plain(spec: &LayerSpec) -> bool {
    let norm = |norm: &Option<NormSpec>| {
        norm.is_some_and(|n| n.kind == NormKind::Rms && n.weight && !n.bias)
    };
    let a = &spec.attention;
    let rope = a
        .rope
        .is_some_and(|r| r.layout == RopeLayout::HalfSplit && r.dims == a.head_dim);
    let FeedForward::Gated(mlp) = &spec.feed_forward else {
        return false;
    };
    norm(&spec.pre_attention)
        && norm(&spec.pre_feed_forward)
        && spec.post_attention.is_none()
        && spec.post_feed_forward.is_none()
        && spec.residual_scale == 1.0
        && rope
        && a.window.is_none()
        && a.softcap.is_none()
        && a.qk_norm.is_none()
        && !a.output_bias
        && !mlp.bias
}
