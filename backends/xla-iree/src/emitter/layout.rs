//! What a compiled function takes and returns, and how a resident weight is laid out.
//!
//! A function's arguments are described, not fixed: the emitter returns a [`Signature`], and a
//! session sets each argument by its [`Role`]. Every module of a model takes the same weight
//! buffers, so they are shared by all.

use halfhitch_seam::{TapSite, WeightForm, WeightId};

use super::tiling::Profile;
use super::types::Elem;

/// A tensor of a resident weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WeightPart {
    /// The numbers of a dense weight.
    Dense,
    /// Packed values.
    Words,
    /// Scales of the groups.
    Scales,
    /// Biases of the groups.
    Biases,
}

/// What an argument or a result is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Token ids, i32 `[rows]`, each below the vocabulary's size.
    Tokens,
    /// An i32: how many tiles of rows a step has that takes any number of them.
    Tiles,
    /// An i32: position of the first row of a lane.
    Position {
        /// Which lane.
        lane: usize,
    },
    /// Cosines and signed sines of the model's `index`-th distinct rope, `[positions, 2, dims]`.
    RopeTable {
        /// Index into [`super::rope::distinct`].
        index: usize,
    },
    /// One layer's rotated keys and its values of one lane, `[capacity, 2 * kv_heads, head_dim]`, a
    /// position's keys before its values: as an argument before the step, as a result after it.
    /// Updated in place.
    Cache {
        /// Which lane.
        lane: usize,
        /// Which layer.
        layer: usize,
    },
    /// A resident weight's tensor. Never written.
    Weight {
        /// Which weight; of several that were joined, the first.
        id: WeightId,
        /// Which of its tensors.
        part: WeightPart,
    },
    /// The residual stream before the last norm, f32 `[rows, hidden]`.
    Hidden,
    /// An i32: the row of the residual stream that is wanted.
    Row,
    /// i32 `[rows, 2]`: the greedy token, and the number of logits of that row that are not finite.
    Choice,
    /// f32 `[rows, vocabulary]`.
    Logits,
    /// An intermediate result, f32 `[rows, width]`; only of functions that were asked to show them.
    Tap(TapSite),
}

/// One argument or result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    /// What it is.
    pub role: Role,
    /// Element type.
    pub elem: Elem,
    /// Extents, `None` where any will do; `None` as a whole for an i32 passed by value.
    pub shape: Option<Vec<Option<usize>>>,
}

/// What a function takes and returns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature {
    /// The function's name in its module.
    pub name: String,
    /// Arguments in order.
    pub arguments: Vec<Slot>,
    /// Results in order.
    pub results: Vec<Slot>,
}

/// A tensor of a resident weight: which, and its type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightTensor {
    /// Which.
    pub part: WeightPart,
    /// Element type.
    pub elem: Elem,
    /// Extents.
    pub shape: Vec<usize>,
}

/// Bits of packed values that the emitter reads as they lie in a checkpoint.
pub const PACKED_BITS: [u32; 3] = [2, 4, 8];

/// Rows of a matrix that lie interleaved in [`Layout::Blocks`].
pub const BLOCK: usize = 32;

/// How the tensors of a resident weight lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layout {
    /// The checkpoint's bytes: 4 and 8 bits are nibbles and bytes `[rows, groups, group_size]`, 2 bits
    /// are words `[rows, columns / 16]`; scales and biases `[rows, groups]`; dense weights as they are.
    Stored,
    /// Numbers or packed words with [`BLOCK`] rows interleaved, so that a vector holds the same columns of
    /// different rows and no sum crosses its lanes: numbers `[rows / BLOCK, columns, BLOCK]`, words `[rows / BLOCK, groups, words a group, BLOCK]`,
    /// scales and biases `[rows / BLOCK, groups, BLOCK]`.
    Blocks,
    /// For a GPU's memory: packed words with a row's groups side by side, so that neighbouring lanes of a
    /// warp read neighbouring words, i32 `[rows, words a group, groups]`; scales and biases `[rows, groups]`.
    /// Numbers as they are stored; only that matrices of one input lie one below the other.
    Lanes,
}

impl Layout {
    /// The layout for a target. Blocks need whole blocks of rows and packed values that do not straddle
    /// words; any other weight stays as it is stored.
    ///
    /// A GPU's own memory takes words in any order, so they go there in the best one.
    pub fn choose(profile: Profile, form: WeightForm, shape: &[usize]) -> Self {
        match (profile, form, shape) {
            (Profile::LlvmCpu { .. }, WeightForm::Affine(scheme), &[rows, _])
                if rows % BLOCK == 0 && PACKED_BITS.contains(&(scheme.bits.get() as u32)) =>
            {
                Self::Blocks
            }
            (Profile::LlvmCpu { .. }, WeightForm::Dense(_), &[rows, _]) if rows % BLOCK == 0 => {
                Self::Blocks
            }
            (Profile::Gpu { .. }, _, &[_, _]) => Self::Lanes,
            _ => Self::Stored,
        }
    }
}

/// The tensors of a weight of `shape` that is resident in `form` and `layout`, in the order of
/// arguments.
///
/// # Panics
/// For packed bits other than [`PACKED_BITS`] or a packed vector, which no plan for this backend has.
pub fn weight_tensors(form: WeightForm, layout: Layout, shape: &[usize]) -> Vec<WeightTensor> {
    let scheme = match form {
        WeightForm::Dense(dtype) => {
            return vec![WeightTensor {
                part: WeightPart::Dense,
                elem: dtype.into(),
                shape: match (layout, shape) {
                    (Layout::Blocks, &[rows, columns]) => vec![rows / BLOCK, columns, BLOCK],
                    _ => shape.to_vec(),
                },
            }];
        }
        WeightForm::Affine(scheme) => scheme,
        other => panic!("{other} has no layout"),
    };
    let &[rows, columns] = shape else {
        panic!("a packed weight of shape {shape:?}");
    };
    let (group, groups) = (scheme.group_size.get(), scheme.groups_per_row(columns));
    let (elem, words) = match scheme.bits.get() {
        bits if layout == Layout::Blocks => {
            let each = group * bits / 32;
            (Elem::I32, vec![rows / BLOCK, groups, each, BLOCK])
        }
        bits if layout == Layout::Lanes => (Elem::I32, vec![rows, group * bits / 32, groups]),
        2 => (Elem::U32, vec![rows, scheme.words_per_row(columns)]),
        4 => (Elem::U4, vec![rows, groups, group]),
        8 => (Elem::U8, vec![rows, groups, group]),
        other => panic!("{other} packed bits"),
    };
    let affine = |part| WeightTensor {
        part,
        elem: scheme.scale_dtype.into(),
        shape: match layout {
            Layout::Stored | Layout::Lanes => vec![rows, groups],
            Layout::Blocks => vec![rows / BLOCK, groups, BLOCK],
        },
    };
    vec![
        WeightTensor {
            part: WeightPart::Words,
            elem,
            shape: words,
        },
        affine(WeightPart::Scales),
        affine(WeightPart::Biases),
    ]
}
