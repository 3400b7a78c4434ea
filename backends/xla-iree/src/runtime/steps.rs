//! Which compiled steps a session has, how a prompt is cut into them, and how they are loaded.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use halfhitch_seam::{
    Control, ErrorCode, ExecutionPlan, ModelSpec, SeamError, SeamResult, TokenId,
};
use halfhitch_xla_iree_sys::{Buffer, DType, Device, Program, ProgramSource};

use super::error::seam_error;
use super::function::Function;
use crate::compiler::{Compiler, Target};
use crate::emitter::layout::Role;
use crate::emitter::{
    self, Module, Reading, Rows, Shape, Signature, Source, TILE, in_tiles, reading_name,
    tapped_name,
};

/// Rows of the small prefill chunk.
const SMALL_CHUNK: usize = 16;

/// Sequences that one batch step can take, the most first.
const BATCHES: [usize; 3] = [8, 4, 2];

/// Rows of the largest chunk that is compiled for one size.
const LARGE_CHUNK: usize = 128;

/// Most tokens that are taken one by one where a step in tiles would do: it puts every weight into
/// tiles first, which takes as long as some single steps.
const ONE_BY_ONE: usize = 4;

/// A piece of a prompt: the step that takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The step's shape.
    pub shape: Shape,
    /// Its rows.
    pub rows: usize,
    /// How many of them are tokens of the prompt; the rest may be any.
    pub used: usize,
}

/// How prompts are cut into pieces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Steps of these sizes, rising, the first of them 1.
    Sizes(Vec<usize>),
    /// Any number of tiles up to so many rows, and single tokens.
    Tiles {
        /// Most rows, whole tiles.
        most: usize,
    },
}

impl Cut {
    /// What suits a model and its plan: no piece has more rows than the plan's chunk.
    pub fn new(source: Source<'_>) -> Self {
        let chunk = source.plan.prefill_chunk.max(1);
        if chunk >= TILE && in_tiles(source) {
            let most = chunk - chunk % TILE;
            return Self::Tiles { most };
        }
        let full = chunk.min(LARGE_CHUNK);
        let mut sizes = vec![1];
        sizes.extend((SMALL_CHUNK < full).then_some(SMALL_CHUNK));
        sizes.extend((full > 1).then_some(full));
        Self::Sizes(sizes)
    }

    /// Most rows of a piece.
    pub fn most(&self) -> usize {
        match self {
            Self::Sizes(sizes) => sizes[sizes.len() - 1],
            Self::Tiles { most } => *most,
        }
    }

    /// Rows of steps of one size for a prompt of so many tokens.
    pub fn size_for(&self, tokens: usize) -> usize {
        match self {
            Self::Sizes(sizes) => {
                let fits = sizes.iter().find(|&&rows| rows >= tokens);
                fits.copied().unwrap_or_else(|| self.most())
            }
            Self::Tiles { most } => tokens.next_multiple_of(TILE).min(*most),
        }
    }

    /// The first piece of a prompt of which `left` tokens are left.
    pub fn next(&self, left: usize) -> Piece {
        match self {
            Self::Sizes(sizes) => {
                let (rows, used) = next_chunk(sizes, left);
                let shape = Shape::Chunk { rows };
                Piece { shape, rows, used }
            }
            Self::Tiles { .. } if left <= ONE_BY_ONE => Piece {
                shape: Shape::Chunk { rows: 1 },
                rows: 1,
                used: 1,
            },
            Self::Tiles { most } => {
                let used = left.min(*most);
                Piece {
                    shape: Shape::Tiles,
                    rows: used.next_multiple_of(TILE),
                    used,
                }
            }
        }
    }

    /// The shapes of every piece of a prompt.
    pub fn shapes(&self, tokens: usize) -> Vec<Shape> {
        let mut shapes = BTreeSet::new();
        let mut left = tokens;
        while left > 0 {
            let piece = self.next(left);
            shapes.insert(piece.shape);
            left -= piece.used;
        }
        shapes.into_iter().collect()
    }

    /// Every shape that a session of at most `sequences` sequences may need.
    pub fn all_shapes(&self, sequences: usize) -> Vec<Shape> {
        let one = Shape::Chunk { rows: 1 };
        let pieces = match self {
            Self::Sizes(sizes) => sizes.iter().map(|&rows| Shape::Chunk { rows }).collect(),
            Self::Tiles { .. } => vec![one, Shape::Tiles],
        };
        let batches = BATCHES
            .into_iter()
            .filter(|&lanes| lanes <= sequences)
            .map(|lanes| Shape::Batch { lanes });
        pieces.into_iter().chain(batches).collect()
    }
}

/// The next chunk of a prompt of which `left` tokens are left: the step's rows, and how many of them
/// are used. Rows are wasted only where the next smaller step would take twice as many runs.
fn next_chunk(sizes: &[usize], left: usize) -> (usize, usize) {
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

/// The next batch of `left` sequences.
pub fn next_batch(left: usize) -> Shape {
    match BATCHES.into_iter().find(|&lanes| lanes <= left) {
        Some(lanes) => Shape::Batch { lanes },
        None => Shape::Chunk { rows: 1 },
    }
}

/// A loaded step with its readings.
pub struct Step {
    /// Its shape.
    pub shape: Shape,
    /// The step.
    pub step: Function,
    /// What can be read off it.
    pub readings: BTreeMap<(Rows, Reading), Function>,
    /// Where its tokens are put, i32 `[rows]`, with the number of rows.
    tokens: Option<(usize, Buffer)>,
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

    /// What graphs of a model are built from.
    pub const fn source<'a>(&self, model: &'a ModelSpec, plan: &'a ExecutionPlan) -> Source<'a> {
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
                tokens: None,
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
    /// Sets the tokens of the next run, one a row.
    ///
    /// # Errors
    /// `OutOfMemory`, `Backend`.
    pub fn set_tokens(&mut self, device: &Device, tokens: &[TokenId]) -> SeamResult<()> {
        let known = self.tokens.take().filter(|(rows, _)| *rows == tokens.len());
        let (rows, buffer) = match known {
            Some(known) => known,
            None => {
                let buffer = Buffer::allocate(device, DType::I32, &[tokens.len()]);
                (tokens.len(), buffer.map_err(seam_error)?)
            }
        };
        buffer
            .write(0, bytemuck::cast_slice(tokens))
            .map_err(seam_error)?;
        self.step.set(Role::Tokens, &buffer)?;
        if self.shape == Shape::Tiles {
            self.step.set_number(Role::Tiles, rows / TILE)?;
        }
        self.tokens = Some((rows, buffer));
        Ok(())
    }

    /// Reads off the residual stream `hidden`, from `row` on where only some `rows` are read.
    ///
    /// # Errors
    /// What running says.
    pub fn read(
        &mut self,
        weights: &super::upload::Uploaded,
        hidden: &Buffer,
        (rows, row): (Rows, usize),
        what: Reading,
    ) -> SeamResult<Vec<u8>> {
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
        if rows != Rows::All {
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
        for most in [16, 128, 256] {
            for tokens in 1..600 {
                let mut left = tokens;
                while left > 0 {
                    let Piece { shape, rows, used } = Cut::Tiles { most }.next(left);
                    assert!(used >= 1 && used <= rows && used <= left && rows <= most);
                    assert!(rows - used < TILE && rows == shape.rows().unwrap_or(rows));
                    left -= used;
                }
            }
        }
    }

    #[test]
    fn a_prompt_names_the_steps_it_needs() {
        let sizes = Cut::Sizes(vec![1, 16, 128]);
        let rows = |tokens| -> Vec<Option<usize>> {
            let shapes = sizes.shapes(tokens);
            shapes.into_iter().map(Shape::rows).collect()
        };
        assert_eq!(rows(1), [Some(1)]);
        assert_eq!(rows(128 + 17), [Some(1), Some(16), Some(128)]);
        let tiles = Cut::Tiles { most: 256 };
        let one = Shape::Chunk { rows: 1 };
        assert_eq!(tiles.shapes(4), [one]);
        assert_eq!(tiles.shapes(300), [Shape::Tiles]);
        assert_eq!(tiles.shapes(257), [one, Shape::Tiles]);
        assert_eq!(tiles.all_shapes(1), [one, Shape::Tiles]);
    }

    #[test]
    fn batches_cover_every_number_of_sequences() {
        assert_eq!(next_batch(9), Shape::Batch { lanes: 8 });
        assert_eq!(next_batch(3), Shape::Batch { lanes: 2 });
        assert_eq!(next_batch(1), Shape::Chunk { rows: 1 });
    }
}
