//! One plain layer.

use halfhitch_seam::model::{AttentionSpec, FeedForward, GatedMlp, LayerSpec, NormSpec};
use halfhitch_seam::{LayerWeight as W, WeightId};

use super::attention::{self, Context};
use super::tiles::{Grain, PAIR, Pack, TILE, kernel, operand, pack, product, split};
use super::{grain, matrices, weights};
use crate::emitter::attention::Cache;
use crate::emitter::builder::{Builder, Index, Scalar, Value};
use crate::emitter::contraction::ranges;
use crate::emitter::graph::{Function, layer_weight};
use crate::emitter::mlp::activated;
use crate::emitter::tiling::Tiling;
use crate::emitter::types::{Dim, Elem};

/// The rows of a step.
#[derive(Clone, Copy)]
pub struct Rows {
    /// Position of the first.
    pub position: Scalar,
    /// How many tiles, as a number.
    pub tiles_index: Index,
    /// How many tiles.
    pub tiles: Dim,
    /// How many rows: 16 a tile.
    pub rows: Dim,
}

/// What the layers of a step share.
pub struct Shared {
    grain: Grain,
    tiles: Dim,
    context: Context,
    rotations: Vec<(usize, Value)>,
}

impl Shared {
    /// For a step of these rows.
    pub fn new(f: &mut Function<'_>, rows: &Rows) -> Self {
        let grain = grain(f.source);
        Self {
            grain,
            tiles: rows.tiles,
            context: attention::context(f, grain, rows),
            rotations: Vec::new(),
        }
    }

    /// Factors of the rope number `index`, f32 `[2, 2, dims / 32, tiles, 16, 16]`: new half `p` of a head
    /// is the sum over `q` of `factors[p, q]` times old half `q`. `table` is its rows, `[rows, 2, dims]`.
    fn rotation(&mut self, b: &mut Builder, index: usize, table: &Value) -> Value {
        if let Some((_, known)) = self.rotations.iter().find(|(i, _)| *i == index) {
            return known.clone();
        }
        let [_, _, Dim::Static(dims)] = table.dims()[..] else {
            panic!("rope rows of {}", table.ty());
        };
        let sixteen = Dim::from(TILE);
        let parts = Dim::from(dims / (2 * TILE));
        let rows = [self.tiles, sixteen, 2.into(), 2.into(), parts, sixteen];
        let table = b.view(table, Elem::F32, &rows);
        // Loops: new half, old half, part, tile of tokens, feature, token.
        let loops = [2.into(), 2.into(), parts, self.tiles, sixteen, sixteen];
        let all = b.dispatch(|b| {
            b.generic(&loops, &[], &[0, 1, 2, 3, 4, 5], 0.0, |b, _| {
                let at = [0, 1, 2, 3, 4, 5].map(|d| b.index(d));
                // A half keeps by cosines and takes from the other by sines, which have its sign.
                let kind = b.op("arith.xori", &[&at[0], &at[1]], "index");
                b.extract(&table, &[&at[3], &at[5], &kind, &at[0], &at[2], &at[4]])
            })
        });
        self.rotations.push((index, all.clone()));
        all
    }
}

/// The layer: f32 `x` `[hidden / 16, tiles, 16, 16]` before and after. `rope` is the number of its rope
/// and the step's rows of its table; `cache` becomes what it is after the step.
///
/// # Panics
/// For a layer of a model that [`super::suits`] does not let through.
pub fn layer(
    f: &mut Function<'_>,
    layer: usize,
    x: &Value,
    shared: &mut Shared,
    (rope, table): (usize, &Value),
    cache: &mut Cache,
) -> Value {
    let spec: &LayerSpec = &f.source.spec.layers[layer];
    let (Some(before), Some(between), FeedForward::Gated(mlp)) = (
        spec.pre_attention,
        spec.pre_feed_forward,
        &spec.feed_forward,
    ) else {
        panic!("layer {layer} is not plain");
    };
    let (grain, a) = (shared.grain, &spec.attention);
    let rotation = shared.rotation(&mut f.b, rope, table);
    f.b.layer_section(layer, "norm");
    let h = normed(
        f,
        grain,
        x,
        &before,
        layer_weight(layer, W::PreAttentionNorm),
    );
    f.b.layer_section(layer, "attention");
    let [q, k, v] = project(f, grain, layer, [W::Query, W::Key, W::Value], &h, None);
    let biases = [W::QueryBias, W::KeyBias, W::ValueBias]
        .map(|weight| a.qkv_bias.then(|| f.vector(layer_weight(layer, weight))));
    let b = &mut f.b;
    let q = rotate(b, &q, a, biases[0].as_ref(), &rotation);
    let k = rotate(b, &k, a, biases[1].as_ref(), &rotation);
    let v = heads(b, &v, a, biases[2].as_ref());
    let stored: Elem = f.source.plan.kv_dtype.into();
    let mixed = attention::attend(b, &shared.context, a, stored, [&q, &k, &v], cache);
    let [x] = project(f, grain, layer, [W::Output], &mixed, Some(x));
    f.b.layer_section(layer, "norm");
    let h = normed(
        f,
        grain,
        &x,
        &between,
        layer_weight(layer, W::PreFeedForwardNorm),
    );
    f.b.layer_section(layer, "feed-forward");
    let [gate, up] = project(f, grain, layer, [W::Gate, W::Up], &h, None);
    let wide = gated(&mut f.b, grain, &gate, &up, mlp);
    let [x] = project(f, grain, layer, [W::Down], &wide, Some(&x));
    x
}

/// Products of one right operand with each of several matrices, onto `onto` where there is one: f32
/// `[outputs / 16, tiles, 16, 16]`.
fn project<const N: usize>(
    f: &mut Function<'_>,
    grain: Grain,
    layer: usize,
    parts: [W; N],
    x: &Value,
    onto: Option<&Value>,
) -> [Value; N] {
    let mut outputs = Vec::with_capacity(N);
    for resident in matrices(f.source, layer, &parts) {
        let weight = f.resident(&resident);
        let weight = weights::tiles(&mut f.b, grain, &weight);
        let y = product(&mut f.b, &weight, x, onto);
        for (start, end) in ranges(&resident.rows) {
            let mut dims = y.dims().to_vec();
            dims[0] = ((end - start) / TILE).into();
            outputs.push(f.b.part(&y, &dims, 0, start / TILE));
        }
    }
    let count = outputs.len();
    <[Value; N]>::try_from(outputs).unwrap_or_else(|_| panic!("{count} products of {N} weights"))
}

/// How many tiles of features, and of tokens.
fn extents(x: &Value) -> (usize, Dim) {
    let [Dim::Static(parts), tiles, ..] = x.dims()[..] else {
        panic!("activations of {}", x.ty());
    };
    (parts, tiles)
}

/// The norm of `x`, as the right operand of a product: `[tiles, hidden / pair, 16, pair]`.
fn normed(f: &mut Function<'_>, grain: Grain, x: &Value, norm: &NormSpec, id: WeightId) -> Value {
    let weight = f.vector(id);
    let (parts, tiles) = extents(x);
    let width = parts * TILE;
    let b = &mut f.b;
    let weight = b.reshape(&weight, &[parts, TILE]);
    let sixteen = Dim::from(TILE);
    // Loops: tile of tokens, token, tile of features, feature.
    let squares = kernel(
        b,
        Tiling::new(&[1, 0, 0, 0], &[1, TILE, 0, 0], &[0, 0, 1, TILE]),
        &[tiles, sixteen, parts.into(), sixteen],
        &[operand(x, &[2, 0, 3, 1])],
        &[0, 1],
        0.0,
        |b, e| {
            let square = b.arith("mulf", &e[0], &e[0]);
            b.arith("addf", &e[1], &square)
        },
    );
    let x = split(b, grain, x, 2);
    let weight = split(b, grain, &weight, 1);
    // Loops: tile of tokens, tile of features, feature, token.
    let packed = Pack {
        loops: &[tiles, parts.into(), (TILE / grain.pair()).into(), sixteen],
        operands: &[
            operand(&x, &[1, 0, 2, PAIR, 3]),
            operand(&weight, &[1, 2, PAIR]),
            operand(&squares, &[0, 3]),
        ],
        out: &[0, 1, 2, 3],
        distribution: &[1, 0, 0, 0],
        parallel: &[1, 1, 1, TILE],
    };
    let (eps, offset) = (norm.eps, norm.weight_offset);
    let h = pack(b, grain, &packed, |b, e| {
        let part = b.constant(1.0 / width as f32);
        let eps = b.constant(eps);
        let mean = b.arith("mulf", &e[2], &part);
        let raised = b.arith("addf", &mean, &eps);
        let factor = b.math("rsqrt", &raised);
        let mut weight = e[1].clone();
        if offset != 0.0 {
            let offset = b.constant(offset);
            weight = b.arith("addf", &weight, &offset);
        }
        let weighed = b.arith("mulf", &e[0], &weight);
        b.arith("mulf", &weighed, &factor)
    });
    as_right(b, grain, &h, tiles, width)
}

/// Tiles that were put together by tile of tokens, as the right operand of a product.
fn as_right(b: &mut Builder, grain: Grain, x: &Value, tiles: Dim, width: usize) -> Value {
    let pair = grain.pair();
    let dims = [tiles, (width / pair).into(), TILE.into(), pair.into()];
    b.view(x, grain.elem(), &dims)
}

/// Heads, f32 `[heads, head_dim / 16, tiles, 16, 16]`, plus the bias where there is one.
fn heads(b: &mut Builder, x: &Value, spec: &AttentionSpec, bias: Option<&Value>) -> Value {
    let (count, tiles) = extents(x);
    let parts = spec.head_dim / TILE;
    let heads = count / parts;
    let sixteen = Dim::from(TILE);
    let dims = [heads.into(), parts.into(), tiles, sixteen, sixteen];
    let x = b.view(x, Elem::F32, &dims);
    let Some(bias) = bias else {
        return x;
    };
    let bias = b.reshape(bias, &[heads, parts, TILE]);
    kernel(
        b,
        Tiling::new(&[1, 1, 0, 0, 0], &[1, 1, 1, 1, TILE], &[0; 5]),
        &dims,
        &[operand(&x, &[0, 1, 2, 3, 4]), operand(&bias, &[0, 1, 3])],
        &[0, 1, 2, 3, 4],
        0.0,
        |b, e| b.arith("addf", &e[0], &e[1]),
    )
}

/// [`heads`], rotated.
fn rotate(
    b: &mut Builder,
    x: &Value,
    spec: &AttentionSpec,
    bias: Option<&Value>,
    rotation: &Value,
) -> Value {
    let (count, tiles) = extents(x);
    let parts = spec.head_dim / (2 * TILE);
    let count = count / (2 * parts);
    let sixteen = Dim::from(TILE);
    let dims = [
        count.into(),
        2.into(),
        parts.into(),
        tiles,
        sixteen,
        sixteen,
    ];
    let x = b.view(x, Elem::F32, &dims);
    let bias = bias.map(|bias| b.reshape(bias, &[count, 2, parts, TILE]));
    let mut operands = vec![
        operand(&x, &[0, 6, 2, 3, 4, 5]),
        operand(rotation, &[1, 6, 2, 3, 4, 5]),
    ];
    operands.extend(bias.iter().map(|bias| operand(bias, &[0, 6, 2, 4])));
    // Loops: head, half, part, tile of tokens, feature, token, old half.
    let [head, half, part, ..] = dims;
    let turned = kernel(
        b,
        Tiling::new(
            &[1, 0, 0, 0, 0, 0, 0],
            &[1, 1, 1, 1, 1, TILE, 0],
            &[0, 0, 0, 0, 0, 0, 2],
        ),
        &[head, half, part, tiles, sixteen, sixteen, 2.into()],
        &operands,
        &[0, 1, 2, 3, 4, 5],
        0.0,
        |b, e| {
            let old = match bias {
                Some(_) => b.arith("addf", &e[0], &e[2]),
                None => e[0].clone(),
            };
            let part = b.arith("mulf", &old, &e[1]);
            b.arith("addf", &e[e.len() - 1], &part)
        },
    );
    let dims = [count.into(), (2 * parts).into(), tiles, sixteen, sixteen];
    b.view(&turned, Elem::F32, &dims)
}

/// `act(gate) * up` as the right operand of a product: `[tiles, width / pair, 16, pair]`.
fn gated(b: &mut Builder, grain: Grain, gate: &Value, up: &Value, mlp: &GatedMlp) -> Value {
    let (parts, tiles) = extents(gate);
    let [gate, up] = [gate, up].map(|x| split(b, grain, x, 2));
    let packed = Pack {
        loops: &[
            tiles,
            parts.into(),
            (TILE / grain.pair()).into(),
            TILE.into(),
        ],
        operands: &[
            operand(&gate, &[1, 0, 2, PAIR, 3]),
            operand(&up, &[1, 0, 2, PAIR, 3]),
        ],
        out: &[0, 1, 2, 3],
        distribution: &[0, 4, 0, 0],
        parallel: &[1, 1, 1, TILE],
    };
    let wide = pack(b, grain, &packed, |b, e| {
        let gate = activated(b, &e[0], mlp.activation);
        b.arith("mulf", &gate, &e[1])
    });
    as_right(b, grain, &wide, tiles, parts * TILE)
}
