//! Attention of a chunk: scores and weighted values as products of tiles, all query heads of a key
//! head in one.
//!
//! Rows of the cache past the end of the context hold whatever an earlier step left there, finite
//! numbers or zeros: they are masked.

use halfhitch_seam::model::AttentionSpec;

use super::layer::Rows;
use super::tiles::{Grain, PAIR, Pack, TILE, kernel, operand, pack, products, split};
use crate::emitter::attention::Cache;
use crate::emitter::builder::{Builder, Index, Value};
use crate::emitter::graph::Function;
use crate::emitter::linalg::{Body, Element, Structure};
use crate::emitter::tiling::Tiling;
use crate::emitter::types::{Dim, Elem};

/// Lowest score: what a masked one becomes.
const HIDDEN: f32 = -1.0e30;

/// What every layer's attention over a step's rows shares.
pub struct Context {
    grain: Grain,
    /// Position of the first row.
    start: Index,
    /// Tiles of the step's rows, its rows, and the tiles of all rows of a group of heads, for the sizes
    /// of groups that there are.
    queries: Dim,
    new_rows: Dim,
    groups: Vec<(usize, Dim)>,
    /// Tiles of the live context, its rows, and those in units of a product's depth.
    tiles: Dim,
    rows: Dim,
    depth: Dim,
    /// Position of each row of the context, i32 `[tiles, 16]`.
    key_positions: Value,
    /// Position of each row of the step, i32 `[queries, 16]`.
    query_positions: Value,
}

/// The context of a step's rows.
pub fn context(f: &mut Function<'_>, grain: Grain, rows: &Rows) -> Context {
    let spec = f.source.spec;
    let b = &mut f.b;
    let start = b.index(rows.position);
    let count = b.index_mul(rows.tiles_index, TILE);
    let end = b.index_sum(start, count);
    let end = b.index_div_up(end, TILE);
    let all = b.index_mul(end, TILE);
    let depth = b.index_mul(end, TILE / grain.pair());
    let live = b.extent(end);
    let first = b.tensor_of(rows.position);
    let mut groups: Vec<(usize, Dim)> = Vec::new();
    for layer in &spec.layers {
        let group = layer.attention.heads / layer.attention.kv_heads;
        if groups.iter().all(|(known, _)| *known != group) {
            let tiles = b.index_mul(rows.tiles_index, group);
            groups.push((group, b.extent(tiles)));
        }
    }
    Context {
        grain,
        start,
        queries: rows.tiles,
        new_rows: rows.rows,
        groups,
        tiles: live,
        rows: b.extent(all),
        depth: b.extent(depth),
        key_positions: positions(b, live, None),
        query_positions: positions(b, rows.tiles, Some(&first)),
    }
}

impl Context {
    /// Tiles of all rows of a group of heads.
    fn group_tiles(&self, spec: &AttentionSpec) -> Dim {
        let group = spec.heads / spec.kv_heads;
        let known = self.groups.iter().find(|(size, _)| *size == group);
        known.map_or_else(|| panic!("a group of {group} heads"), |(_, tiles)| *tiles)
    }
}

/// 0, 1, 2, ..., plus a number if given: i32 `[tiles, 16]`.
fn positions(b: &mut Builder, tiles: Dim, plus: Option<&Value>) -> Value {
    let operands: Vec<_> = plus.iter().map(|v| operand(v, &[])).collect();
    // Made once, not by every reader.
    b.dispatch(|b| {
        let structure = Structure {
            tiling: None,
            loops: &[tiles, TILE.into()],
            operands: &operands,
            out: &[0, 1],
            elem: Elem::I32,
            initial: 0.0,
        };
        b.structured(structure, |b, e| {
            let (tile, row) = (b.position(0, None), b.position(1, None));
            let each = b.int(TILE as i32);
            let at = b.op("arith.muli", &[&tile, &each], "i32");
            let at = b.op("arith.addi", &[&at, &row], "i32");
            match plus {
                Some(_) => b.op("arith.addi", &[&at, &e[0]], "i32"),
                None => at,
            }
        })
    })
}

/// New rotated keys and values, f32 `[heads, head_dim / 16, tiles, 16, 16]`, as the cache holds them,
/// by position: `[rows, heads, head_dim]` of elements `stored`.
fn by_position(b: &mut Builder, context: &Context, stored: Elem, new: &Value) -> Value {
    let [heads, parts, tiles, sixteen, _] = new.dims()[..] else {
        panic!("new rows of {}", new.ty());
    };
    // Loops, in the order that they lie in as in [`key_tiles`]: head, part, tile, feature, token.
    let rows = b.dispatch(|b| {
        let structure = Structure {
            tiling: Some(Tiling::new(
                &[0, 0, 1, 0, 0],
                &[1, 1, 1, TILE, TILE],
                &[0; 5],
            )),
            loops: &[heads, parts, tiles, sixteen, sixteen],
            operands: &[operand(new, &[0, 1, 2, 3, 4])],
            out: &[2, 4, 0, 1, 3],
            elem: stored,
            initial: 0.0,
        };
        b.structured(structure, |b, e| match stored {
            Elem::F32 => e[0].clone(),
            other => b.op("arith.truncf", &[&e[0]], &format!("f32 to {other}")),
        })
    });
    let (Dim::Static(parts), Dim::Static(width)) = (parts, sixteen) else {
        panic!("new rows of {}", new.ty());
    };
    let dims = [context.new_rows, heads, (parts * width).into()];
    b.view(&rows, stored, &dims)
}

/// Takes the new keys and values into the cache, then attends: f32 queries (rotated, unscaled), keys
/// (rotated) and values `[heads, head_dim / 16, tiles, 16, 16]` to the right operand of the output's
/// product, `[tiles, heads * head_dim / pair, 16, pair]`.
pub fn attend(
    b: &mut Builder,
    context: &Context,
    spec: &AttentionSpec,
    stored: Elem,
    [queries, keys, values]: [&Value; 3],
    cache: &mut Cache,
) -> Value {
    let new = b.stack(keys, values);
    let new = by_position(b, context, stored, &new);
    cache.write(b, &new, context.start);
    let rows = cache.keys(b, context.rows);
    let keys = key_tiles(b, context, spec, stored, &rows);
    let rows = cache.values(b, context.rows);
    let values = value_tiles(b, context, spec, stored, &rows);
    let queries = query_tiles(b, context, spec, queries);
    mix(b, context, spec, [&queries, &keys, &values])
}

/// `[kv heads, heads of the group * tiles, head_dim / pair, 16, pair]`, scaled.
fn query_tiles(b: &mut Builder, context: &Context, spec: &AttentionSpec, x: &Value) -> Value {
    let [heads, parts, tiles, sixteen, _] = x.dims()[..] else {
        panic!("queries of {}", x.ty());
    };
    let (grain, pair) = (context.grain, context.grain.pair());
    let x = split(b, grain, x, 3);
    // Loops: head, tile, part, feature, token.
    let packed = Pack {
        loops: &[heads, tiles, parts, (TILE / pair).into(), sixteen],
        operands: &[operand(&x, &[0, 2, 1, 3, PAIR, 4])],
        out: &[0, 1, 2, 3, 4],
        distribution: &[1, 0, 0, 0, 0],
        parallel: &[1, 1, 1, 1, TILE],
    };
    let scale = spec.scale;
    let all = pack(b, grain, &packed, |b, e| {
        let scale = b.constant(scale);
        b.arith("mulf", &e[0], &scale)
    });
    let dims = [
        spec.kv_heads.into(),
        context.group_tiles(spec),
        (spec.head_dim / pair).into(),
        sixteen,
        pair.into(),
    ];
    b.view(&all, grain.elem(), &dims)
}

/// `[kv heads, tiles, head_dim / pair, 16, pair]` of the live keys.
fn key_tiles(
    b: &mut Builder,
    context: &Context,
    spec: &AttentionSpec,
    stored: Elem,
    rows: &Value,
) -> Value {
    let (grain, kv, width) = (context.grain, spec.kv_heads, spec.head_dim);
    let dims = [context.tiles, TILE.into(), kv.into(), width.into()];
    let rows = b.view(rows, stored, &dims);
    let rows = split(b, grain, &rows, 3);
    // In the order that the rows lie in: the compiler reorders the loops of a plain transposition so, and
    // their tiling would no longer fit. Loops: tile, row, head, feature.
    let loops = [
        context.tiles,
        TILE.into(),
        kv.into(),
        (width / grain.pair()).into(),
    ];
    let packed = Pack {
        loops: &loops,
        operands: &[operand(&rows, &[0, 1, 2, 3, PAIR])],
        out: &[2, 0, 3, 1],
        distribution: &[1, 0, 0, 0],
        parallel: &[1, TILE, 1, 8],
    };
    pack(b, grain, &packed, |b, e| b.widen(&e[0], stored))
}

/// `[kv heads, head_dim / 16, rows / pair, 16, pair]` of the live values.
fn value_tiles(
    b: &mut Builder,
    context: &Context,
    spec: &AttentionSpec,
    stored: Elem,
    rows: &Value,
) -> Value {
    let (grain, kv, parts) = (context.grain, spec.kv_heads, spec.head_dim / TILE);
    let dims = [
        context.tiles,
        TILE.into(),
        kv.into(),
        parts.into(),
        TILE.into(),
    ];
    let rows = b.view(rows, stored, &dims);
    let rows = split(b, grain, &rows, 1);
    // As for keys. Loops: tile, row, head, part, feature.
    let loops = [
        context.tiles,
        (TILE / grain.pair()).into(),
        kv.into(),
        parts.into(),
        TILE.into(),
    ];
    let packed = Pack {
        loops: &loops,
        operands: &[operand(&rows, &[0, 1, PAIR, 2, 3, 4])],
        out: &[2, 3, 0, 1, 4],
        distribution: &[1, 0, 0, 0, 0],
        parallel: &[1, 1, 1, 1, TILE],
    };
    let tiles = pack(b, grain, &packed, |b, e| b.widen(&e[0], stored));
    let dims = [
        kv.into(),
        parts.into(),
        context.depth,
        TILE.into(),
        grain.pair().into(),
    ];
    b.view(&tiles, grain.elem(), &dims)
}

/// The score, or what a masked one becomes; elements score, key position, query position.
fn masked(b: &mut Body, e: &[Element]) -> Element {
    let hidden = b.constant(HIDDEN);
    let seen = b.op("arith.cmpi sle,", &[&e[1], &e[2]], "i32");
    b.select(&seen, &e[0], &hidden)
}

/// Values by the softmax of scores: `[tiles, heads * head_dim / pair, 16, pair]`.
fn mix(
    b: &mut Builder,
    context: &Context,
    spec: &AttentionSpec,
    [queries, keys, values]: [&Value; 3],
) -> Value {
    let (grain, pair) = (context.grain, context.grain.pair());
    let kv = Dim::from(spec.kv_heads);
    let group = Dim::from(spec.heads / spec.kv_heads);
    let parts = Dim::from(spec.head_dim / TILE);
    let sixteen = Dim::from(TILE);
    let half = Dim::from(TILE / pair);
    let (tokens, tiles) = (context.queries, context.tiles);
    let scores = products(b, keys, queries);
    let scores = b.view(
        &scores,
        Elem::F32,
        &[kv, tiles, group, tokens, sixteen, sixteen],
    );
    // Loops: kv head, head of the group, tile of tokens, token, tile of keys, key.
    let largest = kernel(
        b,
        folding(),
        &[kv, group, tokens, sixteen, tiles, sixteen],
        &[
            operand(&scores, &[0, 4, 1, 2, 5, 3]),
            operand(&context.key_positions, &[4, 5]),
            operand(&context.query_positions, &[2, 3]),
        ],
        &[0, 1, 2, 3],
        HIDDEN,
        |b, e| {
            let score = masked(b, e);
            b.arith("maximumf", &e[3], &score)
        },
    );
    let scores = split(b, grain, &scores, 4);
    let keys = split(b, grain, &context.key_positions, 1);
    // Loops: kv head, head of the group, tile of tokens, tile of keys, key, token.
    let packed = Pack {
        loops: &[kv, group, tokens, tiles, half, sixteen],
        operands: &[
            operand(&scores, &[0, 3, 1, 2, 4, PAIR, 5]),
            operand(&keys, &[3, 4, PAIR]),
            operand(&context.query_positions, &[2, 5]),
            operand(&largest, &[0, 1, 2, 5]),
        ],
        out: &[0, 1, 2, 3, 4, 5],
        distribution: &[1, 1, 1, 0, 0, 0],
        parallel: &[1, 1, 1, 1, 1, TILE],
    };
    let weights = pack(b, grain, &packed, |b, e| {
        let score = masked(b, e);
        let below = b.arith("subf", &score, &e[3]);
        b.math("exp", &below)
    });
    let total = total(
        b,
        grain,
        &weights,
        &[kv, group, tokens, tiles, half, sixteen],
    );
    let rows = context.group_tiles(spec);
    let dims = [kv, rows, context.depth, sixteen, pair.into()];
    let weights = b.view(&weights, grain.elem(), &dims);
    let sums = products(b, values, &weights);
    let sums = b.view(
        &sums,
        Elem::F32,
        &[kv, parts, group, tokens, sixteen, sixteen],
    );
    let sums = split(b, grain, &sums, 4);
    // Loops: tile of tokens, kv head, head of the group, part, feature, token.
    let packed = Pack {
        loops: &[tokens, kv, group, parts, half, sixteen],
        operands: &[
            operand(&sums, &[1, 3, 2, 0, 4, PAIR, 5]),
            operand(&total, &[1, 2, 0, 5]),
        ],
        out: &[0, 1, 2, 3, 4, 5],
        distribution: &[1, 0, 0, 0, 0, 0],
        parallel: &[1, 1, 1, 1, 1, TILE],
    };
    let mean = pack(b, grain, &packed, |b, e| b.arith("divf", &e[0], &e[1]));
    let depth = spec.heads * spec.head_dim / pair;
    b.view(
        &mean,
        grain.elem(),
        &[tokens, depth.into(), sixteen, pair.into()],
    )
}

/// Tiles of a fold over the context: loops over kv head, head of the group, tile of tokens, token, tile
/// of keys, key.
fn folding() -> Tiling {
    Tiling::new(
        &[1, 1, 1, 0, 0, 0],
        &[1, 1, 1, TILE, 0, 0],
        &[0, 0, 0, 0, 1, 1],
    )
}

/// Sums of the weights as they are multiplied, over the context: f32 `[kv heads, heads of the group,
/// tiles of tokens, 16]`.
fn total(b: &mut Builder, grain: Grain, weights: &Value, loops: &[Dim; 6]) -> Value {
    let [kv, group, tokens, tiles, keys, token] = *loops;
    let elem = match grain {
        Grain::F32 => Elem::F32,
        Grain::Bf16 => Elem::I32,
    };
    let weights = b.view(weights, elem, &[kv, group, tokens, tiles, keys, token]);
    kernel(
        b,
        folding(),
        &[kv, group, tokens, token, tiles, keys],
        &[operand(&weights, &[0, 1, 2, 4, 5, 3])],
        &[0, 1, 2, 3],
        0.0,
        |b, e| {
            if grain == Grain::F32 {
                return b.arith("addf", &e[1], &e[0]);
            }
            let (half, upper) = (b.int(16), b.int(-65536));
            let first = b.op("arith.shli", &[&e[0], &half], "i32");
            let second = b.op("arith.andi", &[&e[0], &upper], "i32");
            let [first, second] =
                [first, second].map(|v| b.op("arith.bitcast", &[&v], "i32 to f32"));
            let both = b.arith("addf", &first, &second);
            b.arith("addf", &e[1], &both)
        },
    )
}
