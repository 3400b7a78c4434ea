//! The graph of a step, and what it costs as it is compiled: no device is used.

use halfhitch_seam::{
    Control, DeviceCapabilities, DeviceId, DeviceInfo, GraphReport, GraphRequest, GraphStats,
    MemoryInfo, ModelSpec, PlanRequest, SeamError, SeamResult, StepShape, negotiate,
};

use super::cache::capacity_for;
use super::capabilities::on_target;
use super::selftest;
use super::steps::Cut;
use crate::compiler::stats::{self, Moment};
use crate::compiler::{Compiler, CompilerOptions, Target};
use crate::emitter::{self, Module, Reading, Rows, Shape, Source, TILE, reading_name};

/// What a named target is taken to be able to do, there being no device to ask.
pub fn imagined(target: &Target, name: &str) -> DeviceCapabilities {
    let info = DeviceInfo {
        id: DeviceId(name.to_owned()),
        ordinal: 0,
        name: target.description.clone(),
        driver: name.split(':').next().unwrap_or(name).to_owned(),
    };
    on_target(info, MemoryInfo::default(), target)
}

/// The graph that `request` asks for, for a target and what it can do.
///
/// # Errors
/// Those of [`negotiate`]; what compiling says, where it is asked for.
pub fn graph(
    request: &GraphRequest,
    target: &Target,
    capabilities: &DeviceCapabilities,
    options: &CompilerOptions,
    control: &Control<'_>,
) -> SeamResult<GraphReport> {
    let model = &request.model;
    let shape = match request.shape {
        StepShape::Batch(lanes) => Shape::Batch { lanes },
        StepShape::Chunk(rows) => Shape::Chunk { rows },
        StepShape::Decode => Shape::Chunk { rows: 1 },
    };
    let each = per_lane(shape);
    let wishes = PlanRequest {
        sequences: request.wishes.sequences.max(shape.lanes()),
        ..request.wishes
    };
    let plan = negotiate(model, &request.weights, capabilities, &wishes)?;
    let first = request.stats_at.unwrap_or(0);
    if first.checked_add(each).is_none_or(|end| end > plan.context) {
        return Err(SeamError::invalid_input(format!(
            "{each} tokens at position {first} are over the context of {}",
            plan.context
        ))
        .hint("name an earlier position or a shorter step"));
    }
    let source = Source {
        spec: model,
        plan: &plan,
        profile: target.profile,
    };
    // What a session runs for a chunk of so many tokens.
    let shape = match shape {
        Shape::Chunk { rows: 2.. } if emitter::in_tiles(source) => Shape::Tiles,
        other => other,
    };
    let Module { text, .. } = emitter::module(source, shape);
    let stats = match request.stats_at {
        None => None,
        Some(position) => {
            let compiler = Compiler::open(options, control)?;
            let phases = compiler.phases(&text, target, control)?;
            Some(count(model, &text, &phases, shape, (position, each)))
        }
    };
    if request.ahead {
        ahead(source, target, options, control)?;
    }
    Ok(GraphReport {
        target: target.description.clone(),
        plan,
        text,
        stats,
    })
}

/// Compiles what a session runs, the device's self-test included, into the cache.
fn ahead(
    source: Source<'_>,
    target: &Target,
    options: &CompilerOptions,
    control: &Control<'_>,
) -> SeamResult<()> {
    let compiler = Compiler::open(options, control)?;
    if compiler.cache().is_none() {
        return Err(SeamError::invalid_input(
            "there is no cache that compiled code could be kept in",
        )
        .hint("name a folder that you can write in HALFHITCH_CACHE_DIR"));
    }
    let shapes = Cut::new(source).all_shapes(source.plan.max_sequences);
    let mut graphs: Vec<String> = shapes
        .into_iter()
        .map(|shape| emitter::module(source, shape).text)
        .collect();
    graphs.push(selftest::graph(target));
    compiler.compile(&graphs, target, control).map(|_| ())
}

fn per_lane(shape: Shape) -> usize {
    shape.rows().map_or(TILE, |rows| rows / shape.lanes())
}

/// The step and the choice of a token after it.
fn count(
    model: &ModelSpec,
    text: &str,
    phases: &stats::Phases,
    shape: Shape,
    (position, each): (usize, usize),
) -> GraphStats {
    let rows = match shape {
        Shape::Batch { .. } => Rows::All,
        Shape::Chunk { .. } | Shape::Tiles => Rows::One,
    };
    let functions = [shape.name(), reading_name(shape, rows, Reading::Choice)];
    let tiles = (shape == Shape::Tiles).then(|| each.div_ceil(TILE));
    let ends = position.saturating_add(tiles.map_or(each, |n| n * TILE));
    let moment = Moment {
        position,
        tiles,
        capacity: capacity_for(ends, usize::MAX),
    };
    let matrices = model.expected_weights().into_iter();
    let matrices = matrices.filter(|w| w.is_matrix());
    let sizes = matrices.map(|w| w.shape.iter().map(|&n| n as u64).product());
    let smallest = sizes.min().unwrap_or(u64::MAX);
    stats::read(
        text,
        phases,
        &functions,
        moment,
        model.layers.len(),
        smallest,
    )
}
