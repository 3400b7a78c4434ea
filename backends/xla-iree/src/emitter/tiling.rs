//! What a target wants beyond the graph: which layouts suit it, and how its compiler should tile.
//!
//! A tiling is an annotation of an operation. Without it the graph means the same and runs
//! everywhere; with it the compiler's own choice, which is up to five times slower for packed
//! contractions, is set aside. The numbers below were measured with IREE 3.13.

use std::fmt;

use super::layout::BLOCK;

/// A target as the emitter sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Profile {
    /// Nothing is known: weights as they are stored, and no annotations.
    #[default]
    Portable,
    /// IREE's `llvm-cpu`.
    LlvmCpu {
        /// Threads that run at once, at most.
        threads: usize,
    },
}

/// Tile sizes of one operation, by loop dimension; 0 leaves a dimension whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tiling {
    distribution: Vec<usize>,
    parallel: Vec<usize>,
    reduction: Vec<usize>,
}

impl Tiling {
    /// Sizes of what one task does, of one vector's worth of parallel loops, and of one of reductions.
    pub fn new(distribution: &[usize], parallel: &[usize], reduction: &[usize]) -> Self {
        Self {
            distribution: distribution.to_vec(),
            parallel: parallel.to_vec(),
            reduction: reduction.to_vec(),
        }
    }
}

impl fmt::Display for Tiling {
    /// The attribute dictionary that follows an operation's operands.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (d, p, r) = (&self.distribution, &self.parallel, &self.reduction);
        write!(
            f,
            "attrs = {{compilation_info = #iree_codegen.compilation_info<lowering_config = #iree_cpu.lowering_config<distribution = {d:?}, vector_common_parallel = {p:?}, vector_reduction = {r:?}>, translation_info = #iree_codegen.translation_info<pipeline = #iree_cpu.pipeline<DoubleTilingExpert>>>}} "
        )
    }
}

impl Profile {
    /// The blocked contraction of `blocks` blocks: loops over block, row, group, word.
    ///
    /// A word at a time: four at once spill registers and are four times slower.
    pub fn words(self, blocks: usize) -> Option<Tiling> {
        let tasks = self.tasks(blocks)?;
        Some(Tiling {
            distribution: vec![blocks.div_ceil(tasks), BLOCK, 0, 0],
            parallel: vec![1, BLOCK, 0, 0],
            reduction: vec![0, 0, 1, 1],
        })
    }

    /// Tasks that a contraction of `blocks` blocks is cut into: few for small ones, where starting a
    /// task costs as much as a block, and several a thread, so that a late one costs little.
    ///
    /// | contraction | blocks | blocks a task |
    /// | --- | --- | --- |
    /// | q, k, v | 15 | 4 |
    /// | output, down | 9 | 3 |
    /// | gate, up | 48 | 12 |
    /// | head | 768 | 96 |
    fn tasks(self, blocks: usize) -> Option<usize> {
        let Self::LlvmCpu { threads } = self else {
            return None;
        };
        Some(if blocks < 64 {
            threads.max(4)
        } else {
            (2 * threads).max(8)
        })
    }

    /// Rebuilding packed values into tiles: loops over block, part of it, group, word, value, row.
    pub fn rebuild(self, values: usize, rows: usize) -> Option<Tiling> {
        matches!(self, Self::LlvmCpu { .. }).then(|| Tiling {
            distribution: vec![1, 0, 0, 0, 0, 0],
            parallel: vec![1, 1, 1, 1, values, rows],
            reduction: vec![0; 6],
        })
    }

    /// Attention scores: loops over kv head, head of the group, context, width.
    pub fn scores(self, per_kv: usize, width: usize) -> Option<Tiling> {
        matches!(self, Self::LlvmCpu { .. }).then(|| Tiling {
            distribution: vec![1, per_kv, 0, 0],
            parallel: vec![1, 1, 1, 0],
            reduction: vec![0, 0, 0, width],
        })
    }

    /// Weighted values: loops over kv head, head of the group, width, context.
    pub fn weighted_values(self, per_kv: usize, width: usize) -> Option<Tiling> {
        matches!(self, Self::LlvmCpu { .. }).then(|| Tiling {
            distribution: vec![1, per_kv, width, 0],
            parallel: vec![1, 1, width, 0],
            reduction: vec![0, 0, 0, 1],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measured_shapes_get_their_measured_tiles() {
        let cpu = Profile::LlvmCpu { threads: 2 };
        for (blocks, each) in [(15, 4), (9, 3), (48, 12), (768, 96), (1, 1)] {
            assert_eq!(cpu.words(blocks).unwrap().distribution[0], each, "{blocks}");
        }
        let many = Profile::LlvmCpu { threads: 32 };
        assert_eq!(many.words(768).unwrap().distribution[0], 12);
        assert_eq!(Profile::Portable.words(15), None);
    }
}
