//! What a compiled graph costs, read from what the compiler says of it on the way: kernels with the
//! tensors they take at the `flow` phase, copies and fills at the `stream` phase.
//!
//! Pure functions on text. Parts of the model are told by the graph's own comments, through the lines
//! that operations say they come from; a kernel that was fused from several belongs to its root's part.
//! Bytes are those of the tensors that a kernel loads and stores, each place once: caches that answer
//! before memory does are not known here.

mod kernels;
mod mlir;

use std::collections::BTreeMap;

use halfhitch_seam::{GraphStats, Intermediate, PartTraffic, Traffic};

use self::kernels::{Kernel, counted, kernels};
use self::mlir::{Locations, Numbers, Tensor, bracketed, list, without_location};

/// What the compiler said of a graph.
#[derive(Clone, Debug)]
pub struct Phases {
    /// The module at the `flow` phase, with locations.
    pub flow: String,
    /// The module at the `stream` phase, with locations.
    pub stream: String,
}

/// When a step runs.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// Tokens that each sequence holds before it; what every number among the arguments is.
    pub position: usize,
    /// Tiles of tokens, where the step takes any number of them: what the first number among the arguments
    /// of the first function is.
    pub tiles: Option<usize>,
    /// Capacity of caches; what every extent that arguments bring along is.
    pub capacity: usize,
}

/// Where nothing tells the part.
const OTHER: &str = "other";

/// Counts what `functions` of a graph do, all together. `layers` and `smallest_matrix` are the model's.
pub fn read(
    graph: &str,
    phases: &Phases,
    functions: &[String],
    moment: Moment,
    layers: usize,
    smallest_matrix: u64,
) -> GraphStats {
    let sections = Sections::new(graph);
    let mut count = Count {
        sections: &sections,
        parts: BTreeMap::new(),
        largest: None,
        unresolved: 0,
    };
    let kernels = kernels(&phases.flow);
    count.each(
        &phases.flow,
        functions,
        moment,
        |count, line, numbers, at| {
            count.dispatch(line, numbers, at, &kernels);
        },
    );
    count.each(
        &phases.stream,
        functions,
        moment,
        |count, line, numbers, at| {
            count.command(line, numbers, at);
        },
    );
    let mut total = Traffic::default();
    let mut in_layers = Traffic::default();
    let mut parts: Vec<PartTraffic> = Vec::new();
    for (section, traffic) in &count.parts {
        total += *traffic;
        let part = sections.part(*section);
        if part.layer {
            in_layers += *traffic;
        }
        match parts.iter_mut().find(|p| p.part == part.name) {
            Some(known) => known.traffic += *traffic,
            None => parts.push(PartTraffic {
                part: part.name.to_owned(),
                traffic: *traffic,
            }),
        }
    }
    GraphStats {
        position: moment.position,
        total,
        parts,
        in_layers,
        layers,
        largest: count.largest,
        smallest_matrix,
        unresolved: count.unresolved,
    }
}

/// The comments of a graph, in order, and the lines on which they stand.
struct Sections<'a>(Vec<(usize, &'a str)>);

struct Part<'a> {
    name: &'a str,
    layer: bool,
}

impl<'a> Sections<'a> {
    fn new(graph: &'a str) -> Self {
        let lines = graph.lines().enumerate();
        let comments = lines.filter_map(|(i, line)| {
            let text = line.trim_start();
            // A function begins outside of any part.
            if text.starts_with("func.func") {
                return Some((i + 1, OTHER));
            }
            Some((i + 1, text.strip_prefix("// ")?))
        });
        Self(comments.collect())
    }

    /// The section that a line of the graph is in; its number orders as the text does.
    fn at(&self, line: Option<usize>) -> Option<usize> {
        let line = line?;
        self.0
            .partition_point(|(start, _)| *start <= line)
            .checked_sub(1)
    }

    fn part(&self, section: Option<usize>) -> Part<'a> {
        let name = section
            .and_then(|s| self.0.get(s))
            .map_or(OTHER, |(_, n)| n);
        match name.strip_prefix("layer ").and_then(|n| n.split_once(": ")) {
            Some((_, name)) => Part { name, layer: true },
            None => Part { name, layer: false },
        }
    }
}

struct Count<'a> {
    sections: &'a Sections<'a>,
    /// Traffic by section.
    parts: BTreeMap<Option<usize>, Traffic>,
    largest: Option<Intermediate>,
    unresolved: u64,
}

impl Count<'_> {
    /// Hands every operation of the named functions to `f`, with the numbers that are known there and
    /// the section that it belongs to.
    fn each(
        &mut self,
        module: &str,
        functions: &[String],
        moment: Moment,
        mut f: impl FnMut(&mut Self, &str, &Numbers, Option<usize>),
    ) {
        let locations = Locations::new(module);
        let mut inside = false;
        let mut numbers = Numbers::default();
        for line in module.lines() {
            let text = line.trim_start();
            if let Some(rest) = text.strip_prefix("util.func public @") {
                let end = rest.find('(').unwrap_or(rest.len());
                inside = functions.iter().any(|name| *name == rest[..end]);
                numbers = Numbers::default();
                let mut tiles = moment
                    .tiles
                    .filter(|_| functions.first().is_some_and(|f| *f == rest[..end]));
                let arguments = bracketed(&rest[end..]).map_or("", |(list, _)| list);
                for argument in list(arguments) {
                    if let Some((name, "i32")) = without_location(argument).split_once(": ") {
                        numbers.set(name, tiles.take().unwrap_or(moment.position) as u64);
                    }
                }
                continue;
            }
            // Anything else at the module's level: an initialiser runs once, when a module is loaded.
            if line.starts_with("  ") && !line.starts_with("   ") && !text.starts_with('}') {
                inside = false;
            }
            if inside {
                numbers.learn(line, moment.capacity as u64);
                let at = self.sections.at(locations.line(line));
                f(self, line, &numbers, at);
            }
        }
    }

    fn add(&mut self, at: Option<usize>, traffic: Traffic) {
        *self.parts.entry(at).or_default() += traffic;
    }

    /// An element count, or nothing with a note that it is missing.
    fn resolved(&mut self, elements: Option<u64>) -> u64 {
        if elements.is_none() {
            self.unresolved += 1;
        }
        elements.unwrap_or(0)
    }

    fn dispatch(
        &mut self,
        line: &str,
        numbers: &Numbers,
        at: Option<usize>,
        kernels: &BTreeMap<&str, Kernel<'_>>,
    ) {
        let Some(call) = Call::parse(line) else {
            return;
        };
        let given: Vec<Option<u64>> = call.operands.iter().map(|o| numbers.get(o)).collect();
        let touched = kernels.get(call.kernel).map(|k| k.touched(&given));
        let touched = |i: usize| touched.as_ref().and_then(|t| t.get(i)).copied();
        let results: Vec<(Tensor, Option<u64>)> = call
            .results
            .iter()
            .filter_map(|ty| Tensor::parse(ty))
            .map(|t| (t.elements(numbers), t))
            .map(|(n, t)| (t, n))
            .collect();
        let largest = results.iter().filter_map(|(_, n)| *n).max().unwrap_or(0);
        let mut traffic = Traffic {
            dispatches: 1,
            ..Traffic::default()
        };
        for (i, ty) in call.types.iter().enumerate() {
            let Some(tensor) = Tensor::parse(ty) else {
                continue;
            };
            let whole = self.resolved(tensor.elements(numbers));
            let tied = call
                .results
                .iter()
                .any(|r| r.split(' ').next() == Some(call.operands[i]));
            let (read, written) = match touched(i) {
                Some(t) => {
                    let read = counted(t.read, t.picked, whole, largest.max(1));
                    (read, counted(t.written, false, whole, 0))
                }
                None => (whole, if tied { whole } else { 0 }),
            };
            traffic.bytes_read += tensor.bytes(read);
            traffic.bytes_written += tensor.bytes(written);
        }
        for (tensor, elements) in &results {
            let elements = self.resolved(*elements);
            let bytes = tensor.bytes(elements);
            traffic.bytes_written += bytes;
            if self.largest.as_ref().is_none_or(|l| l.elements < elements) {
                self.largest = Some(Intermediate {
                    shape: tensor.shape(numbers),
                    part: self.sections.part(at).name.to_owned(),
                    elements,
                    bytes,
                });
            }
        }
        self.add(at, traffic);
    }

    /// A copy or a fill of the `stream` phase.
    fn command(&mut self, line: &str, numbers: &Numbers, at: Option<usize>) {
        let text = without_location(line);
        if let Some(rest) = text.strip_prefix("stream.cmd.copy ") {
            let (operands, _) = rest.split_once(" : ").unwrap_or((rest, ""));
            let length = list(operands).last().and_then(|l| numbers.get(l));
            let bytes = self.resolved(length);
            self.add(
                at,
                Traffic {
                    copies: 1,
                    bytes_read: bytes,
                    bytes_written: bytes,
                    ..Traffic::default()
                },
            );
        } else if let Some(rest) = text.strip_prefix("stream.cmd.fill ") {
            let length = rest
                .split_once(" for ")
                .and_then(|(_, l)| l.split_once(']'));
            let bytes = self.resolved(length.and_then(|(l, _)| numbers.get(l)));
            self.add(
                at,
                Traffic {
                    fills: 1,
                    bytes_written: bytes,
                    ..Traffic::default()
                },
            );
        }
    }
}

/// A kernel's launch: `%1 = flow.dispatch @module::@kernel[%work](%a, %b) : (tensor<4xf32>, index) ->
/// tensor<4xf32>`.
struct Call<'a> {
    kernel: &'a str,
    operands: Vec<&'a str>,
    types: Vec<&'a str>,
    /// Types of new tensors, and names of operands that are updated.
    results: Vec<&'a str>,
}

impl<'a> Call<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let text = without_location(line);
        let (_, rest) = text.split_once("flow.dispatch @")?;
        let end = rest.find(['[', '('])?;
        let kernel = rest[..end].rsplit('@').next()?;
        let mut rest = &rest[end..];
        if rest.starts_with('[') {
            rest = bracketed(rest)?.1;
        }
        let (operands, rest) = bracketed(rest)?;
        let (types, rest) = bracketed(rest.split_once(": ")?.1)?;
        let results = rest.split_once("-> ")?.1.trim();
        let results = match bracketed(results) {
            Some((inner, _)) => list(inner),
            None => vec![results],
        };
        let (operands, types) = (list(operands), list(types));
        (operands.len() == types.len()).then_some(Self {
            kernel,
            operands,
            types,
            results,
        })
    }
}

#[cfg(test)]
mod tests;
