//! Tiles: the layouts that the matrix micro-kernels read and write, and how values get into them.
//!
//! Activations between products are f32 `[features / 16, tokens / 16, 16, 16]`, tokens innermost, as
//! a product leaves them, so that whatever is done feature by feature runs over tokens in its vector
//! lanes. A product reads `[rows / 16, depth / pair, 16, pair]`.

use crate::emitter::builder::{Builder, Value};
use crate::emitter::linalg::{Body, Element, Operand, Structure};
use crate::emitter::tiling::Tiling;
use crate::emitter::types::{Dim, Elem, TensorType};

/// Rows of a tile, of both operands of a product.
pub const TILE: usize = 16;

/// What products multiply; they always add up in f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grain {
    /// f32.
    F32,
    /// Pairs of bf16 that are multiplied and added up together.
    Bf16,
}

impl Grain {
    /// Element type.
    pub const fn elem(self) -> Elem {
        match self {
            Self::F32 => Elem::F32,
            Self::Bf16 => Elem::BF16,
        }
    }

    /// Values along the depth that lie together.
    pub const fn pair(self) -> usize {
        match self {
            Self::F32 => 1,
            Self::Bf16 => 2,
        }
    }
}

/// In the dimensions of an operand of [`pack`]: which of the two of a pair.
pub const PAIR: usize = usize::MAX;

/// The loops of [`pack`] and what it reads.
pub struct Pack<'a> {
    /// Extents of the loops, without the one over a pair.
    pub loops: &'a [Dim],
    /// Operands, dimension `PAIR` where one is split by [`split`].
    pub operands: &'a [Operand<'a>],
    /// Loops that the result has, in its order, before the pair.
    pub out: &'a [usize],
    /// Loops of one task.
    pub distribution: &'a [usize],
    /// Loops of one vector operation.
    pub parallel: &'a [usize],
}

/// Splits dimension `dim` of `x`, a depth, into what lies together in a tile: `[.., depth / pair,
/// pair, ..]`. As it is where nothing does.
pub fn split(b: &mut Builder, grain: Grain, x: &Value, dim: usize) -> Value {
    let mut dims = x.dims().to_vec();
    let (Grain::Bf16, Dim::Static(depth)) = (grain, dims[dim]) else {
        return x.clone();
    };
    dims[dim] = (depth / 2).into();
    dims.insert(dim + 1, 2.into());
    b.view(x, x.elem(), &dims)
}

/// Puts f32 values, which `body` gives, into tiles of the grain: `[out.., pair]`.
///
/// The two of a pair are put into one i32 lane, by a loop that adds bits up: so no vector is ever
/// interleaved with another.
pub fn pack(
    b: &mut Builder,
    grain: Grain,
    pack: &Pack<'_>,
    body: impl FnOnce(&mut Body, &[Element]) -> Element,
) -> Value {
    let mut loops = pack.loops.to_vec();
    let mut out: Vec<Dim> = pack.out.iter().map(|&d| loops[d]).collect();
    let pair = loops.len();
    let pair_only = [pair];
    let dims: Vec<Vec<usize>> = pack
        .operands
        .iter()
        .map(|o| match grain {
            Grain::F32 => o.dims.iter().copied().filter(|&d| d != PAIR).collect(),
            Grain::Bf16 => {
                let at = |&d: &usize| if d == PAIR { pair } else { d };
                o.dims.iter().map(at).collect()
            }
        })
        .collect();
    let operands = pack.operands.iter().zip(&dims);
    let mut operands: Vec<Operand<'_>> = operands
        .map(|(o, dims)| Operand {
            value: o.value,
            dims,
        })
        .collect();
    let (mut distribution, mut parallel) = (pack.distribution.to_vec(), pack.parallel.to_vec());
    let mut reduction = vec![0; loops.len()];
    let shifts = (grain == Grain::Bf16).then(|| b.constant_ints(&[0, 16], Elem::I32));
    let packed = match &shifts {
        None => b.dispatch(|b| {
            let structure = Structure {
                tiling: Some(Tiling::new(&distribution, &parallel, &reduction)),
                loops: &loops,
                operands: &operands,
                out: pack.out,
                elem: Elem::F32,
                initial: 0.0,
            };
            b.structured(structure, body)
        }),
        Some(shifts) => {
            operands.push(operand(shifts, &pair_only));
            loops.push(2.into());
            distribution.push(0);
            parallel.push(0);
            reduction.push(1);
            b.dispatch(|b| {
                let structure = Structure {
                    tiling: Some(Tiling::new(&distribution, &parallel, &reduction)),
                    loops: &loops,
                    operands: &operands,
                    out: pack.out,
                    elem: Elem::I32,
                    initial: 0.0,
                };
                b.structured(structure, |b, e| {
                    let (shift, so_far) = (&e[e.len() - 2], &e[e.len() - 1]);
                    let value = body(b, e);
                    let bits = bits(b, &value);
                    let placed = b.op("arith.shli", &[&bits, shift], "i32");
                    b.op("arith.ori", &[so_far, &placed], "i32")
                })
            })
        }
    };
    out.push(grain.pair().into());
    b.view(&packed, grain.elem(), &out)
}

/// An f32 rounded to bf16: its bits in the lower half of an i32.
pub fn bits(b: &mut Body, value: &Element) -> Element {
    let rounded = b.op("arith.truncf", &[value], "f32 to bf16");
    let bits = b.op("arith.bitcast", &[&rounded], "bf16 to i16");
    b.op("arith.extui", &[&bits], "i16 to i32")
}

/// The product of tiles, added onto `onto` where there is one: weights `[outputs / 16, depth / pair,
/// 16, pair]`, activations `[tokens / 16, depth / pair, 16, pair]`, f32 `[outputs / 16, tokens / 16,
/// 16, 16]`.
///
/// The micro-kernel is used only where the product is a kernel of its own from the start.
pub fn product(b: &mut Builder, left: &Value, right: &Value, onto: Option<&Value>) -> Value {
    let (l, r) = (left.dims(), right.dims());
    assert_eq!(
        l[1..],
        r[1..],
        "a product of {} and {}",
        left.ty(),
        right.ty()
    );
    let out = TensorType::new(Elem::F32, &[l[0], r[0], TILE.into(), TILE.into()]);
    b.dispatch(|b| multiply(b, "mmt4d", [left, right], out, onto))
}

/// [`product`] for each of several, numbered by a first dimension that both have.
pub fn products(b: &mut Builder, left: &Value, right: &Value) -> Value {
    let (l, r) = (left.dims(), right.dims());
    assert!(
        l[0] == r[0] && l[2..] == r[2..],
        "products of {} and {}",
        left.ty(),
        right.ty()
    );
    let dims = [l[0], l[1], r[1], TILE.into(), TILE.into()];
    let out = TensorType::new(Elem::F32, &dims);
    b.dispatch(|b| multiply(b, "batch_mmt4d", [left, right], out, None))
}

fn multiply(
    b: &mut Builder,
    op: &str,
    [left, right]: [&Value; 2],
    out: TensorType,
    onto: Option<&Value>,
) -> Value {
    let target = match onto {
        Some(onto) => onto.clone(),
        None => b.zeros(&out),
    };
    assert_eq!(target.ty(), &out);
    let text = format!(
        "linalg.{op} ins({left}, {right} : {}, {}) outs({target} : {out}) -> {out}",
        left.ty(),
        right.ty()
    );
    b.emit(out, format_args!("{text}"))
}

/// A structured operation with an f32 result as a kernel of its own, tiled.
pub fn kernel(
    b: &mut Builder,
    tiling: Tiling,
    loops: &[Dim],
    operands: &[Operand<'_>],
    out: &[usize],
    initial: f32,
    body: impl FnOnce(&mut Body, &[Element]) -> Element,
) -> Value {
    b.dispatch(|b| b.tiled(Some(tiling), loops, operands, out, initial, body))
}

/// Short for an operand.
pub fn operand<'a>(value: &'a Value, dims: &'a [usize]) -> Operand<'a> {
    Operand { value, dims }
}
