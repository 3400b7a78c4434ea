//! Self-attention over a cache that grows in place.
//!
//! The cache's capacity and the live context are dimensions known only when the graph runs: one
//! compiled function serves every context length, and reads no more of a cache than is live.

use halfhitch_seam::model::{AttentionSpec, QkNorm, QkNormScope};
use halfhitch_seam::{LayerWeight, TapPoint};

use super::builder::{Builder, Index, Scalar, Value};
use super::contraction::{project, project_all};
use super::graph::{Function, layer_weight};
use super::linalg::Operand;
use super::norm::{NormWeights, norm};
use super::rope;
use super::types::{Dim, Elem};

/// Rows of a step that belong to one sequence: consecutive positions of it.
#[derive(Clone, Copy)]
pub struct Lane {
    /// First row in the step.
    pub first: usize,
    /// Number of rows.
    pub rows: usize,
    /// Position of the first row in the sequence.
    pub position: Scalar,
    /// The same as an index.
    pub start: Index,
    /// `position + rows`: the extent of the context that the last row sees.
    pub live: Dim,
}

/// A lane's keys and values of one layer: `[capacity, 2 * kv_heads, head_dim]`, a position's keys before
/// its values, so that a step writes one contiguous piece.
#[derive(Clone)]
pub struct Cache {
    /// The whole of it.
    pub rows: Value,
}

impl Cache {
    /// Writes f32 `new` `[rows, 2 * kv_heads, head_dim]` from position `start` on.
    pub fn write(&mut self, b: &mut Builder, new: &Value, start: Index) {
        let new = b.convert(new, self.rows.elem());
        self.rows = b.write_rows(&new, &self.rows, start);
    }

    /// Keys of the first `live` positions, `[live, kv_heads, head_dim]`.
    pub fn keys(&self, b: &mut Builder, live: Dim) -> Value {
        self.half(b, live, 0)
    }

    /// Values of the first `live` positions, `[live, kv_heads, head_dim]`.
    pub fn values(&self, b: &mut Builder, live: Dim) -> Value {
        self.half(b, live, 1)
    }

    fn half(&self, b: &mut Builder, live: Dim, half: usize) -> Value {
        let &[_, Dim::Static(both), width] = self.rows.dims() else {
            panic!("a cache of {}", self.rows.ty());
        };
        let heads = both / 2;
        b.part(&self.rows, &[live, heads.into(), width], 1, half * heads)
    }
}

/// Attention's output `[rows, hidden]` of normed f32 `h` `[rows, hidden]`; `caches` (one a lane) are
/// replaced by what they are after the step. `table` is the rope's rows for this step.
pub fn attention(
    f: &mut Function<'_>,
    layer: usize,
    h: &Value,
    spec: &AttentionSpec,
    table: Option<&Value>,
    lanes: &[Lane],
    caches: &mut [Cache],
) -> Value {
    use LayerWeight as W;
    let id = |weight| layer_weight(layer, weight);
    let bias = |weight| spec.qkv_bias.then(|| id(weight));
    let rows = h.sizes()[0];
    let [q, k, v] = project_all(
        f,
        h,
        [
            (id(W::Query), bias(W::QueryBias)),
            (id(W::Key), bias(W::KeyBias)),
            (id(W::Value), bias(W::ValueBias)),
        ],
    );
    f.tap(Some(layer), TapPoint::QueryProjection, &q);
    f.tap(Some(layer), TapPoint::KeyProjection, &k);
    f.tap(Some(layer), TapPoint::Value, &v);
    let query_norm = [W::QueryNorm, W::QueryNormBias];
    let key_norm = [W::KeyNorm, W::KeyNormBias];
    let mut q = split_heads(f, layer, &q, spec.heads, spec, query_norm);
    let mut k = split_heads(f, layer, &k, spec.kv_heads, spec, key_norm);
    if let (Some(rope), Some(table)) = (&spec.rope, table) {
        q = rope::rotate(&mut f.b, &q, table, rope);
        k = rope::rotate(&mut f.b, &k, table, rope);
    }
    f.tap(Some(layer), TapPoint::Query, &q);
    f.tap(Some(layer), TapPoint::Key, &k);
    let v = f.b.reshape(&v, &[rows, spec.kv_heads, spec.head_dim]);
    let new = f.b.concatenate(&[k, v], 1);
    let mut outputs = Vec::with_capacity(lanes.len());
    for (lane, cache) in lanes.iter().zip(caches) {
        let new = f.b.slice(&new, 0, lane.first, lane.first + lane.rows);
        cache.write(&mut f.b, &new, lane.start);
        let q = f.b.slice(&q, 0, lane.first, lane.first + lane.rows);
        outputs.push(attend(f, &q, cache, spec, lane));
    }
    let joined = f.b.concatenate(&outputs, 0);
    let joined = f.b.reshape(&joined, &[rows, spec.query_width()]);
    f.tap(Some(layer), TapPoint::AttentionMix, &joined);
    let bias = spec.output_bias.then(|| id(W::OutputBias));
    let out = project(f, &joined, id(W::Output), bias);
    f.tap(Some(layer), TapPoint::AttentionOutput, &out);
    out
}

/// `[rows, heads, head_dim]`, normed where the layer norms queries and keys.
fn split_heads(
    f: &mut Function<'_>,
    layer: usize,
    x: &Value,
    heads: usize,
    spec: &AttentionSpec,
    [weight, bias]: [LayerWeight; 2],
) -> Value {
    let split = [x.sizes()[0], heads, spec.head_dim];
    let ids = NormWeights {
        weight: layer_weight(layer, weight),
        bias: layer_weight(layer, bias),
    };
    match spec.qk_norm {
        None => f.b.reshape(x, &split),
        Some(QkNorm {
            scope: QkNormScope::Head,
            norm: formula,
        }) => {
            let x = f.b.reshape(x, &split);
            norm(f, &x, &formula, ids)
        }
        Some(QkNorm {
            scope: QkNormScope::All,
            norm: formula,
        }) => {
            let x = norm(f, x, &formula, ids);
            f.b.reshape(&x, &split)
        }
    }
}

/// One lane: f32 q `[rows, heads, head_dim]` over the live part of its cache, `[rows, heads, head_dim]`.
fn attend(
    f: &mut Function<'_>,
    q: &Value,
    cache: &Cache,
    spec: &AttentionSpec,
    lane: &Lane,
) -> Value {
    let b = &mut f.b;
    let stored: Elem = f.source.plan.kv_dtype.into();
    let (rows, kv, width) = (lane.rows, spec.kv_heads, spec.head_dim);
    let per_kv = spec.heads / kv;
    let keys = cache.keys(b, lane.live);
    let values = cache.values(b, lane.live);
    let q = b.reshape(q, &[rows, kv, per_kv, width]);
    // Loop dimensions: kv head, row, head of the group, context, width.
    let loops = [
        kv.into(),
        rows.into(),
        per_kv.into(),
        lane.live,
        width.into(),
    ];
    let outer = [0, 1, 2];
    let scores = b.generic(
        &loops,
        &[
            Operand {
                value: &q,
                dims: &[1, 0, 2, 4],
            },
            Operand {
                value: &keys,
                dims: &[3, 0, 4],
            },
        ],
        &[0, 1, 2, 3],
        0.0,
        |body, e| {
            let key = body.widen(&e[1], stored);
            let product = body.arith("mulf", &e[0], &key);
            body.arith("addf", &e[2], &product)
        },
    );
    let (scale, cap, position) = (spec.scale, spec.softcap, lane.position);
    let furthest = spec.window.map(|w| w as i64 - 1);
    let masked = b.generic(
        &loops[..4],
        &[Operand {
            value: &scores,
            dims: &[0, 1, 2, 3],
        }],
        &[0, 1, 2, 3],
        0.0,
        |body, e| {
            let factor = body.constant(scale);
            let mut score = body.arith("mulf", &e[0], &factor);
            if let Some(cap) = cap {
                let cap = body.constant(cap);
                let ratio = body.arith("divf", &score, &cap);
                let bent = body.math("tanh", &ratio);
                score = body.arith("mulf", &cap, &bent);
            }
            let row = body.position(1, Some(position));
            let column = body.position(3, None);
            let distance = body.minus(&row, &column);
            let visible = body.within(&distance, 0, furthest);
            let hidden = body.constant(f32::MIN);
            body.select(&visible, &score, &hidden)
        },
    );
    let masked_operand = Operand {
        value: &masked,
        dims: &[0, 1, 2, 3],
    };
    let largest = b.generic(
        &loops[..4],
        &[masked_operand],
        &outer,
        f32::MIN,
        |body, e| body.arith("maximumf", &e[1], &e[0]),
    );
    // Without this the two passes become one kernel with a context-sized buffer on the stack.
    let largest = b.barrier(&largest);
    let weights = b.generic(
        &loops[..4],
        &[
            Operand {
                value: &masked,
                dims: &[0, 1, 2, 3],
            },
            Operand {
                value: &largest,
                dims: &outer,
            },
        ],
        &[0, 1, 2, 3],
        0.0,
        |body, e| {
            let below = body.arith("subf", &e[0], &e[1]);
            body.math("exp", &below)
        },
    );
    let weight_operand = || Operand {
        value: &weights,
        dims: &[0, 1, 2, 3],
    };
    let total = b.generic(&loops[..4], &[weight_operand()], &outer, 0.0, |body, e| {
        body.arith("addf", &e[1], &e[0])
    });
    let sums = b.generic(
        &loops,
        &[
            weight_operand(),
            Operand {
                value: &values,
                dims: &[3, 0, 4],
            },
        ],
        &[1, 0, 2, 4],
        0.0,
        |body, e| {
            let value = body.widen(&e[1], stored);
            let product = body.arith("mulf", &e[0], &value);
            body.arith("addf", &e[2], &product)
        },
    );
    let out: [Dim; 4] = [rows.into(), kv.into(), per_kv.into(), width.into()];
    let mean = b.generic(
        &out,
        &[
            Operand {
                value: &sums,
                dims: &[0, 1, 2, 3],
            },
            Operand {
                value: &total,
                dims: &[1, 0, 2],
            },
        ],
        &[0, 1, 2, 3],
        0.0,
        |body, e| body.arith("divf", &e[0], &e[1]),
    );
    b.reshape(&mean, &[rows, spec.heads, width])
}
