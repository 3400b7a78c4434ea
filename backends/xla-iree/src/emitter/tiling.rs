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
        /// Whether a product of bf16 pairs is taken to be faster than one of f32. On an Intel processor it
        /// was measured to be slower; that it is faster on AMD's is assumed, not measured (ADR 0014).
        bf16_pairs: bool,
    },
    /// A GPU by IREE's `cuda`, `vulkan-spirv`, `metal-spirv` or `rocm`. Packed weights are whole words,
    /// which every one of them loads, and fast; narrower loads some have not, and none has fast.
    Gpu {
        /// Whether the compiler may let the lanes of a subgroup reduce among themselves. Where it may not,
        /// a softmax over a context of any length does not compile as one kernel: its exponentials would
        /// be kept in a workgroup's memory, whose size has to be known.
        subgroups: bool,
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
    /// The contraction of `rows` rows of activations with `blocks` blocks of words: loops over block, row, group, word.
    ///
    /// Several blocks at a time, as `Share` says, so that the memory is read at several places at once:
    /// a stream begins anew at each page, and while one waits the others run. A word at a time: four at
    /// once spill registers and are four times slower.
    ///
    /// `tasks` is how many it is cut into, where that was measured.
    pub fn words(self, blocks: usize, rows: usize, tasks: Option<usize>) -> Option<Tiling> {
        let share = self.share(blocks, rows, tasks)?;
        Some(Tiling {
            distribution: vec![share.task, BLOCK, 0, 0],
            parallel: vec![share.together, BLOCK, 0, 0],
            reduction: vec![0, 0, 1, 1],
        })
    }

    /// The contraction of `blocks` blocks of numbers of `columns` columns: loops over block, row, column.
    /// Several blocks at once as for [`Self::words`], and four columns where they divide.
    pub fn blocked(
        self,
        blocks: usize,
        columns: usize,
        rows: usize,
        tasks: Option<usize>,
    ) -> Option<Tiling> {
        let share = self.share(blocks, rows, tasks)?;
        let unrolled = if columns.is_multiple_of(4) && rows == 1 {
            4
        } else {
            1
        };
        Some(Tiling {
            distribution: vec![share.task, BLOCK, 0],
            parallel: vec![share.together, BLOCK, 0],
            reduction: vec![0, 0, unrolled],
        })
    }

    /// How a contraction of `rows` rows of activations is shared out. Tasks are measured with one row.
    fn share(self, blocks: usize, rows: usize, tasks: Option<usize>) -> Option<Share> {
        let Self::LlvmCpu { threads, .. } = self else {
            return None;
        };
        let most = together(rows);
        Some(match tasks {
            Some(tasks) if rows == 1 => Share::of_tasks(blocks, tasks, most),
            _ => Share::choose(blocks, threads, most),
        })
    }

    /// Numbers of tasks that are worth measuring for a contraction of `blocks` blocks besides the usual
    /// one: few, one a thread and several, each cut differently.
    pub fn task_counts(self, blocks: usize) -> Vec<usize> {
        let Self::LlvmCpu { threads, .. } = self else {
            return Vec::new();
        };
        let mut known = vec![Share::choose(blocks, threads, together(1))];
        let mut counts = Vec::new();
        for tasks in [1, threads, 2 * threads, 4 * threads, 8 * threads] {
            let share = Share::of_tasks(blocks, tasks, together(1));
            if !known.contains(&share) {
                known.push(share);
                counts.push(blocks / share.task);
            }
        }
        counts
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
    ///
    /// A task is a head of queries: keys of one kv head come out of the cache for all but the first of its
    /// group, and few kv heads would leave threads idle.
    pub fn scores(self, width: usize) -> Option<Tiling> {
        matches!(self, Self::LlvmCpu { .. }).then(|| Tiling {
            distribution: vec![1, 1, 0, 0],
            parallel: vec![1, 1, 1, 0],
            reduction: vec![0, 0, 0, width],
        })
    }

    /// Weighted values: loops over kv head, head of the group, width, context.
    pub fn weighted_values(self, width: usize) -> Option<Tiling> {
        matches!(self, Self::LlvmCpu { .. }).then(|| Tiling {
            distribution: vec![1, 1, width, 0],
            parallel: vec![1, 1, width, 0],
            reduction: vec![0, 0, 0, 1],
        })
    }
}

/// Blocks at once, at most, in a contraction with `rows` rows of activations: their sums stay in registers.
///
/// Measured on 4-bit weights out of memory on one thread, milliseconds a row: 13.4 for one row with four
/// blocks; two rows 10.5 with one and 8.7 with two; four rows 6.9 with one and 6.3 with two; eight rows 5.9.
const fn together(rows: usize) -> usize {
    match rows {
        1 => 4,
        2..=4 => 2,
        _ => 1,
    }
}

/// How a loop over blocks is shared out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Blocks of a task.
    pub task: usize,
    /// Blocks that a task works on together; divides `task`.
    pub together: usize,
}

impl Share {
    /// About so many tasks: as many as divide the blocks evenly, and no fewer.
    pub fn of_tasks(blocks: usize, tasks: usize, most: usize) -> Self {
        let largest = |n: usize, most: usize| {
            let divisors = (1..=most.min(n)).rev().filter(|&d| n.is_multiple_of(d));
            divisors.max().unwrap_or(1)
        };
        let task = largest(blocks, (blocks / tasks.max(1)).max(1));
        Self {
            task,
            together: largest(task, most),
        }
    }

    /// The cheapest way to share `blocks` blocks out to `threads` threads, at most `most` together.
    ///
    /// Tasks are all of one size: a remainder would be compiled as a loop of its own, which is not
    /// vectorised. Costs are in blocks: of the thread that has most to do, of starting tasks, and of
    /// streams too few to hide the memory's latency. Measured on 4-bit weights out of memory on one thread:
    /// 17 ms with one stream, 14 with two, 12.5 with three, 11 with four, 11 with eight.
    pub fn choose(blocks: usize, threads: usize, most: usize) -> Self {
        let cost = |share: &Self| {
            let tasks = blocks / share.task;
            let longest = tasks.div_ceil(threads) * share.task;
            let streams = match share.together {
                1 => 1.55,
                2 => 1.27,
                3 => 1.13,
                _ => 1.0,
            };
            // Tasks beyond one a thread cost little and even out threads that are held up.
            let uneven = match tasks / threads {
                0 | 1 => 1.02,
                2 | 3 => 1.01,
                _ => 1.0,
            };
            let started = tasks.div_ceil(threads) as f64 * 0.15;
            longest as f64 * streams * uneven + started
        };
        let divisors = |n: usize| (1..=n).filter(move |&d| n.is_multiple_of(d));
        divisors(blocks.max(1))
            .flat_map(|task| {
                divisors(task)
                    .filter(|&together| together <= most)
                    .map(move |together| Self { task, together })
            })
            .min_by(|a, b| cost(a).total_cmp(&cost(b)))
            .unwrap_or(Self {
                task: 1,
                together: 1,
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contractions_are_shared_out_evenly_and_in_several_streams() {
        // q with k and v, output or down, gate with up, head: of SmolLM2, for two threads.
        for (blocks, task, together) in [(30, 15, 3), (18, 9, 3), (96, 12, 4), (1536, 192, 4)] {
            let share = Share::choose(blocks, 2, 4);
            assert_eq!((share.task, share.together), (task, together), "{blocks}");
        }
        assert_eq!(Share::choose(1, 2, 4).task, 1);
        assert_eq!(Share::choose(17, 2, 4).together, 1);
        assert_eq!(Profile::Portable.words(15, 1, None), None);
    }

    #[test]
    fn tasks_that_were_measured_are_cut_evenly() {
        for (blocks, tasks, task, together) in [
            (96, 8, 12, 4),
            (30, 4, 6, 3),
            (30, 1, 30, 3),
            (7, 2, 1, 1),
            (4, 99, 1, 1),
        ] {
            let share = Share::of_tasks(blocks, tasks, 4);
            assert_eq!(
                (share.task, share.together),
                (task, together),
                "{blocks} {tasks}"
            );
        }
        let cpu = Profile::LlvmCpu {
            threads: 2,
            bf16_pairs: false,
        };
        for blocks in [1, 7, 18, 30, 96] {
            for tasks in cpu.task_counts(blocks) {
                assert_ne!(
                    cpu.words(blocks, 1, Some(tasks)),
                    cpu.words(blocks, 1, None)
                );
            }
        }
        assert!(cpu.task_counts(1).is_empty());
        assert!(!cpu.task_counts(96).is_empty());
        assert!(Profile::Portable.task_counts(96).is_empty());
    }

    #[test]
    fn shares_cover_every_block_once() {
        for blocks in 1..200 {
            for threads in [1, 2, 3, 8, 64] {
                let share = Share::choose(blocks, threads, 4);
                assert_eq!(blocks % share.task, 0);
                assert_eq!(share.task % share.together, 0);
            }
        }
    }
}
