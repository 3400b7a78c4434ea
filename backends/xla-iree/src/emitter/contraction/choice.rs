//! Which representation a contraction gets: the table that a device advertises, and what the plan made
//! of it.
//!
//! A plan orders the table's names for each form of weight and kind of step; measurements on the device
//! go before it. What a weight's shape does not allow is passed over. One weight has one layout for all
//! steps, so the order for single rows decides it, and the other steps choose among what reads it.
//!
//! | target | weight | rows | first | measured |
//! | --- | --- | --- | --- | --- |
//! | llvm-cpu | packed, rows fill blocks | 1 | `words` | 8 to 12 times `fused-reduce` a token (adr/0009) |
//! | llvm-cpu | dense, rows fill blocks | 1 | `blocked` | 2 to 3 times `dense` a token |
//! | llvm-cpu | any, blocks | 16s | `tiles` | three times `expand` over 512 tokens |
//! | a GPU | packed | up to 8 | `words` | the only form that compiles for all of them and writes no weight (adr/0012, 0017) |
//! | any | packed | 1 | `fused-reduce` | one kernel and no weight in memory, where `expand` has two and writes it |
//! | any | packed | more | `expand` | rebuilt once, it serves every row |
//! | any | dense | any | `dense` | the other order of operands transposes the weight at every step |

use std::collections::BTreeSet;

use halfhitch_seam::{
    Bits, Precision, RepresentationName, RepresentationSupport, StepRows, TunedContraction,
    WeightForm,
};

use super::{Representation, choose};
use crate::emitter::graph::Source;
use crate::emitter::layout::{BLOCK, Layout, PACKED_BITS};
use crate::emitter::tiling::Profile;

/// A row of the table.
struct Row {
    name: &'static str,
    description: &'static str,
    reason: &'static str,
    against: &'static str,
    packed: bool,
    dense: bool,
    rows: &'static [StepRows],
    precisions: &'static [Precision],
}

const ALL: &[Precision] = &Precision::ALL;
const EVERY: &[StepRows] = &StepRows::ALL;

const WORDS: Row = Row {
    name: "words",
    description: "packed words laid out anew, scale and bias applied to sums: no dequantised value",
    reason: "packed bytes read once, 8 to 12 times the tokens a second of fused-reduce on a processor",
    against: "other layouts are read here",
    packed: true,
    dense: false,
    rows: &[StepRows::One, StepRows::Batch],
    precisions: ALL,
};

const GPU_WORDS: Row = Row {
    name: "words",
    description: "packed words, the groups of a row across a warp's lanes",
    reason: "packed bytes read in whole words, which every GPU loads and fast; no weight is rebuilt",
    against: "it takes single rows and batches of up to 8",
    packed: true,
    dense: false,
    rows: &[StepRows::One, StepRows::Batch],
    precisions: ALL,
};

const BLOCKED: Row = Row {
    name: "blocked",
    description: "numbers with rows interleaved in blocks, widened as they are read",
    reason: "near the speed of memory in every type: 2 to 3 times the tokens a second of dense on a processor",
    against: "other layouts are read here",
    packed: false,
    dense: true,
    rows: &[StepRows::One, StepRows::Batch],
    precisions: ALL,
};

const TILES: Row = Row {
    name: "tiles",
    description: "the weight put once a chunk into tiles for the matrix micro-kernel",
    reason: "three times expand over a prompt of 512 tokens",
    against: "it takes chunks of whole tiles",
    packed: true,
    dense: true,
    rows: &[StepRows::Chunk],
    precisions: ALL,
};

const FUSED: Row = Row {
    name: "fused-reduce",
    description: "dequantise, multiply and reduce in one kernel over the checkpoint's own bytes",
    reason: "packed bytes read once where they lie, and no weight is rebuilt",
    against: "the compiler's own tiles for it are 8 to 12 times slower on a processor",
    packed: true,
    dense: false,
    rows: &[StepRows::One],
    precisions: ALL,
};

const EXPAND: Row = Row {
    name: "expand",
    description: "the weight dequantised to a matrix at each step, then a matrix product",
    reason: "the weight is rebuilt once and serves every row",
    against: "it writes and reads every weight anew at each step",
    packed: true,
    dense: false,
    rows: EVERY,
    precisions: ALL,
};

const DENSE: Row = Row {
    name: "dense",
    description: "a matrix product with the weight first",
    reason: "weights are read once, in the type they are held in",
    against: "",
    packed: false,
    dense: true,
    rows: EVERY,
    precisions: ALL,
};

/// The table of a target, the preferred first.
const fn table(profile: Profile) -> &'static [Row] {
    match profile {
        Profile::LlvmCpu { .. } => &[WORDS, BLOCKED, TILES, FUSED, EXPAND, DENSE],
        Profile::Gpu { .. } => &[GPU_WORDS, EXPAND, DENSE],
        Profile::Portable => &[FUSED, EXPAND, DENSE],
    }
}

/// What a device of this target advertises.
pub fn supports(profile: Profile) -> Vec<RepresentationSupport> {
    let bits: BTreeSet<Bits> = PACKED_BITS
        .into_iter()
        .filter_map(|b| Bits::new(b).ok())
        .collect();
    let support = |row: &Row| RepresentationSupport {
        name: RepresentationName::of(row.name),
        description: row.description.into(),
        reason: row.reason.into(),
        against: row.against.into(),
        bits: if row.packed {
            bits.clone()
        } else {
            BTreeSet::new()
        },
        dense: row.dense,
        rows: row.rows.iter().copied().collect(),
        precisions: row.precisions.iter().copied().collect(),
    };
    table(profile).iter().map(support).collect()
}

/// The kind of a step that has so many rows, of one sequence or of several.
pub const fn step_rows(rows: usize, lanes: usize) -> StepRows {
    match (rows, lanes) {
        (1, _) => StepRows::One,
        (_, 1) => StepRows::Chunk,
        _ => StepRows::Batch,
    }
}

/// The names to try for a weight, the first first.
fn order(
    source: Source<'_>,
    form: WeightForm,
    shape: &[usize],
    rows: StepRows,
) -> Vec<&'static str> {
    let table = table(source.profile);
    let known =
        |name: &RepresentationName| table.iter().map(|r| r.name).find(|n| *n == name.as_str());
    let measured = tuned(source, form, shape, rows).map(|t| &t.representation);
    let planned = source.plan.representation(form, rows);
    measured
        .into_iter()
        .chain(planned)
        .filter_map(known)
        .collect()
}

/// What was measured for a weight in a kind of step.
pub fn tuned<'a>(
    source: Source<'a>,
    form: WeightForm,
    shape: &[usize],
    rows: StepRows,
) -> Option<&'a TunedContraction> {
    let &[outputs, inputs] = shape else {
        return None;
    };
    source.plan.tuned(form, [outputs, inputs], rows)
}

/// How a weight lies: as the first representation that suits single rows of it reads it.
pub fn layout(source: Source<'_>, form: WeightForm, shape: &[usize]) -> Layout {
    let own = Layout::choose(source.profile, form, shape);
    for name in order(source, form, shape, StepRows::One) {
        match name {
            "words" | "blocked" if own != Layout::Stored => return own,
            "dense" if own == Layout::Lanes => return own,
            "fused-reduce" | "expand" | "dense" => return Layout::Stored,
            _ => {}
        }
    }
    own
}

/// The representation for a weight of `form` and `shape` that lies in `layout`.
pub fn representation(
    source: Source<'_>,
    form: WeightForm,
    layout: Layout,
    shape: &[usize],
    (rows, kind): (usize, StepRows),
) -> Representation {
    let usual = choose(form, layout, rows);
    for name in order(source, form, shape, kind) {
        match name {
            "words" if usual == Representation::GpuWords => return usual,
            "words" | "blocked" if usual == Representation::Interleaved => return usual,
            "tiles" if usual == Representation::Tiles => return usual,
            "fused-reduce" if usual == Representation::FusedReduce => return usual,
            "dense" if usual == Representation::Dense => return usual,
            "expand" => return Representation::Expand,
            _ => {}
        }
    }
    usual
}

/// An alternative for a weight: how it would lie, how it would be written, in how many tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alternative {
    /// Its name.
    pub name: &'static str,
    /// The layout it reads.
    pub layout: Layout,
    /// What is written.
    pub representation: Representation,
    /// Tasks, where the number is set.
    pub tasks: Option<usize>,
}

/// All alternatives for a weight in steps of `rows` rows; for more than one row, those that read the
/// layout that single rows decided on.
pub fn alternatives(
    source: Source<'_>,
    form: WeightForm,
    shape: &[usize],
    (rows, kind): (usize, StepRows),
) -> Vec<Alternative> {
    let precision = source.plan.precision;
    let own = Layout::choose(source.profile, form, shape);
    let fixed = layout(source, form, shape);
    let mut out = Vec::new();
    for row in table(source.profile) {
        let packed = matches!(form, WeightForm::Affine(_));
        let covers = (if packed { row.packed } else { row.dense })
            && row.rows.contains(&kind)
            && row.precisions.contains(&precision);
        let layout = match row.name {
            _ if rows > 1 => fixed,
            "dense" if own == Layout::Lanes => own,
            "fused-reduce" | "expand" | "dense" => Layout::Stored,
            _ => own,
        };
        let usual = choose(form, layout, rows);
        let representation = match row.name {
            "words" | "blocked"
                if !matches!(
                    usual,
                    Representation::Interleaved | Representation::GpuWords
                ) =>
            {
                continue;
            }
            "tiles" if usual != Representation::Tiles => continue,
            "expand" => Representation::Expand,
            _ => usual,
        };
        if !covers {
            continue;
        }
        let plain = Alternative {
            name: row.name,
            layout,
            representation,
            tasks: None,
        };
        out.push(plain);
        if representation == Representation::Interleaved && rows == 1 {
            let blocks = shape[0] / BLOCK;
            let tasks = source.profile.task_counts(blocks).into_iter().map(Some);
            out.extend(tasks.map(|tasks| Alternative { tasks, ..plain }));
        }
    }
    out
}
