//! Which compiled steps a session has, how a prompt is cut into them, and how they are loaded.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use halfhitch_seam::{Control, ErrorCode, ExecutionPlan, ModelSpec, SeamError, SeamResult};
use halfhitch_xla_iree_sys::{Buffer, DType, Device, Program, ProgramSource};

use super::error::seam_error;
use super::function::Function;
use crate::compiler::{Compiler, Target};
use crate::emitter::layout::Role;
use crate::emitter::{
    self, Module, Reading, Rows, Shape, Signature, Source, reading_name, tapped_name,
};

/// Rows of the small prefill chunk.
const SMALL_CHUNK: usize = 16;

/// Sequences that one batch step can take, the most first.
const BATCHES: [usize; 3] = [8, 4, 2];

/// Sizes of chunk steps, rising; the last is the plan's.
pub fn chunk_sizes(plan: &ExecutionPlan) -> Vec<usize> {
    let full = plan.prefill_chunk.max(1);
    let mut sizes = vec![1];
    sizes.extend((SMALL_CHUNK < full).then_some(SMALL_CHUNK));
    sizes.extend((full > 1).then_some(full));
    sizes
}

/// The next chunk of a prompt of which `left` tokens are left: the step's rows, and how many of them
/// are used. Rows are wasted only where the next smaller step would take twice as many runs.
pub fn next_chunk(sizes: &[usize], left: usize) -> (usize, usize) {
    let largest = sizes[sizes.len() - 1];
    let Some(at) = sizes.iter().position(|&rows| rows >= left) else {
        return (largest, largest);
    };
    let rows = sizes[at];
    if at > 0 && 2 * left <= rows && sizes[at - 1] > 1 {
        let smaller = sizes[at - 1];
        return (smaller, smaller.min(left));
    }
    (rows, left)
}

/// The shapes of every chunk of a prompt.
pub fn prompt_shapes(sizes: &[usize], tokens: usize) -> Vec<Shape> {
    let mut shapes = BTreeSet::new();
    let mut left = tokens;
    while left > 0 {
        let (rows, used) = next_chunk(sizes, left);
        shapes.insert(Shape::Chunk { rows });
        left -= used;
    }
    shapes.into_iter().collect()
}

/// The next batch of `left` sequences.
pub fn next_batch(left: usize) -> Shape {
    match BATCHES.into_iter().find(|&lanes| lanes <= left) {
        Some(lanes) => Shape::Batch { lanes },
        None => Shape::Chunk { rows: 1 },
    }
}

/// Every shape that a plan may need.
pub fn all_shapes(plan: &ExecutionPlan) -> Vec<Shape> {
    let chunks = chunk_sizes(plan)
        .into_iter()
        .map(|rows| Shape::Chunk { rows });
    let batches = BATCHES
        .into_iter()
        .filter(|&lanes| lanes <= plan.max_sequences)
        .map(|lanes| Shape::Batch { lanes });
    chunks.chain(batches).collect()
}

/// A loaded step with its readings.
pub struct Step {
    /// Its shape.
    pub shape: Shape,
    /// The step.
    pub step: Function,
    /// What can be read off it.
    pub readings: BTreeMap<(Rows, Reading), Function>,
    /// Where its tokens are put, i32 `[rows]`.
    pub tokens: Buffer,
}

/// Loads steps when they are needed.
pub struct Steps {
    compiler: Compiler,
    target: Target,
    loaded: BTreeMap<Shape, Step>,
    tapped: BTreeMap<usize, Function>,
}

impl Steps {
    /// None are loaded.
    pub const fn new(compiler: Compiler, target: Target) -> Self {
        Self {
            compiler,
            target,
            loaded: BTreeMap::new(),
            tapped: BTreeMap::new(),
        }
    }

    /// The chunk of `rows` rows that shows its intermediate results, compiled where it is not there yet.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn tapped(
        &mut self,
        device: &Device,
        model: &ModelSpec,
        plan: &ExecutionPlan,
        rows: usize,
        control: &Control<'_>,
    ) -> SeamResult<&mut Function> {
        if !self.tapped.contains_key(&rows) {
            let source = self.source(model, plan);
            let Module { text, functions } = emitter::tapped_module(source, rows);
            let module = self.compiler.compile(&[text], &self.target, control)?;
            let module = module.into_iter().next().unwrap_or_default();
            let program = load_program(device, module)?;
            let function = find(&functions, &program, &tapped_name(rows))?;
            self.tapped.insert(rows, function);
        }
        self.tapped.get_mut(&rows).ok_or_else(|| {
            SeamError::new(
                ErrorCode::Backend,
                format!("{} is not loaded", tapped_name(rows)),
            )
        })
    }

    const fn source<'a>(&self, model: &'a ModelSpec, plan: &'a ExecutionPlan) -> Source<'a> {
        Source {
            spec: model,
            plan,
            profile: self.target.profile,
        }
    }

    /// Compiles and loads the shapes that are not there yet.
    ///
    /// # Errors
    /// `Cancelled`, and what compiling and loading say.
    pub fn load(
        &mut self,
        device: &Device,
        model: &ModelSpec,
        plan: &ExecutionPlan,
        shapes: &[Shape],
        control: &Control<'_>,
    ) -> SeamResult<()> {
        let missing: Vec<Shape> = shapes
            .iter()
            .copied()
            .filter(|shape| !self.loaded.contains_key(shape))
            .collect();
        if missing.is_empty() {
            return Ok(());
        }
        let source = self.source(model, plan);
        let (graphs, functions): (Vec<_>, Vec<_>) = missing
            .iter()
            .map(|&shape| {
                let Module { text, functions } = emitter::module(source, shape);
                (text, functions)
            })
            .unzip();
        let modules = self.compiler.compile(&graphs, &self.target, control)?;
        for ((shape, functions), module) in missing.into_iter().zip(functions).zip(modules) {
            let program = load_program(device, module)?;
            let find = |name: String| find(&functions, &program, &name);
            let readings = emitter::readings(shape)
                .into_iter()
                .map(|(rows, what)| Ok(((rows, what), find(reading_name(shape, rows, what))?)))
                .collect::<SeamResult<_>>()?;
            let step = Step {
                shape,
                step: find(shape.name())?,
                readings,
                tokens: Buffer::allocate(device, DType::I32, &[shape.rows()])
                    .map_err(seam_error)?,
            };
            self.loaded.insert(shape, step);
        }
        Ok(())
    }

    /// A step that was loaded.
    ///
    /// # Errors
    /// `Backend` where it was not.
    pub fn get(&mut self, shape: Shape) -> SeamResult<&mut Step> {
        self.loaded.get_mut(&shape).ok_or_else(|| {
            SeamError::new(
                ErrorCode::Backend,
                format!("{} is not loaded", shape.name()),
            )
        })
    }

    /// Lets go of every cache that steps still refer to.
    pub fn release(&mut self) {
        self.tapped.values_mut().for_each(Function::release);
        for step in self.loaded.values_mut() {
            step.step.release();
            for reading in step.readings.values_mut() {
                reading.release();
            }
        }
    }
}

fn load_program(device: &Device, module: Vec<u8>) -> SeamResult<Program> {
    let source = ProgramSource {
        modules: vec![Bytes::from(module)],
        parameters: Vec::new(),
    };
    // SAFETY: the module comes from the pinned compiler, directly or through a cache that only this user
    // can write and that checks its hash. The emitter updates cache arguments alone, which the session
    // sets to buffers that were allocated, or are results; and a session runs one call at a time.
    unsafe { Program::load(device, &source) }.map_err(seam_error)
}

fn find(
    functions: &BTreeMap<String, Signature>,
    program: &Program,
    name: &str,
) -> SeamResult<Function> {
    functions
        .get(name)
        .ok_or_else(|| SeamError::new(ErrorCode::Backend, format!("no function {name}")))
        .and_then(|signature| Function::new(program, signature))
}

impl Step {
    /// Reads off the residual stream `hidden`: of row `row`, or of every row.
    ///
    /// # Errors
    /// What running says.
    pub fn read(
        &mut self,
        weights: &super::upload::Uploaded,
        hidden: &Buffer,
        row: Option<usize>,
        what: Reading,
    ) -> SeamResult<Vec<u8>> {
        let rows = if row.is_some() { Rows::One } else { Rows::All };
        let role = match what {
            Reading::Choice => Role::Choice,
            Reading::Logits => Role::Logits,
        };
        let shape = self.shape;
        let function = self.readings.get_mut(&(rows, what)).ok_or_else(|| {
            SeamError::new(
                ErrorCode::Backend,
                format!("{} has no {what:?} of {rows:?}", shape.name()),
            )
        })?;
        function.bind(weights)?;
        function.set(Role::Hidden, hidden)?;
        if let Some(row) = row {
            function.set_number(Role::Row, row)?;
        }
        function.run()?;
        let bytes = function.result(role)?.read().map_err(seam_error)?;
        function.drop_results();
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_are_cut_with_little_waste() {
        let sizes = [1, 16, 128];
        for (left, want) in [
            (1, (1, 1)),
            (2, (16, 2)),
            (16, (16, 16)),
            (17, (16, 16)),
            (64, (16, 16)),
            (65, (128, 65)),
            (128, (128, 128)),
            (300, (128, 128)),
        ] {
            assert_eq!(next_chunk(&sizes, left), want, "{left} left");
        }
        assert_eq!(next_chunk(&[1], 5), (1, 1));
        assert_eq!(next_chunk(&[1, 3], 2), (3, 2));
        assert_eq!(next_chunk(&[1, 3], 1), (1, 1));
    }

    #[test]
    fn any_prompt_is_cut_to_its_end() {
        for sizes in [&[1][..], &[1, 3], &[1, 16], &[1, 16, 17], &[1, 16, 128]] {
            for tokens in 1..400 {
                let mut left = tokens;
                while left > 0 {
                    let (rows, used) = next_chunk(sizes, left);
                    assert!(used >= 1 && used <= rows && used <= left && sizes.contains(&rows));
                    left -= used;
                }
            }
        }
    }

    #[test]
    fn a_prompt_names_the_steps_it_needs() {
        let rows = |tokens| -> Vec<usize> {
            let shapes = prompt_shapes(&[1, 16, 128], tokens);
            shapes.into_iter().map(Shape::rows).collect()
        };
        assert_eq!(rows(1), [1]);
        assert_eq!(rows(128 + 17), [1, 16, 128]);
    }

    #[test]
    fn batches_cover_every_number_of_sequences() {
        assert_eq!(next_batch(9), Shape::Batch { lanes: 8 });
        assert_eq!(next_batch(3), Shape::Batch { lanes: 2 });
        assert_eq!(next_batch(1), Shape::Chunk { rows: 1 });
    }
}
