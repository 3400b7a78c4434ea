//! Measuring the ways to write a model's contractions on a device, and keeping the answers.
//!
//! Every contraction that the model has, with weights joined as sessions join them, is compiled in each
//! alternative as a module of its own and run on random numbers. Weights are held several times over and
//! taken in turn, so that they come from memory as in a model, and alternatives are measured in turn, so
//! that a busy machine is unfair to all alike. One that computes something else is out.

mod bench;
mod random;
mod store;

use std::collections::BTreeMap;

use halfhitch_seam::{
    Control, ErrorCode, ExecutionPlan, Measured, ModelSpec, RepresentationName, SeamError,
    SeamResult, Stage, StepRows, TuneReport, TuneResult, TunedContraction, WeightForm, WeightId,
};
use halfhitch_xla_iree_sys::Device;

pub use store::{Identity, Store};

use self::bench::{Bench, Timing};
use crate::compiler::{Compiler, Target};
use crate::emitter::contraction::choice::{Alternative, alternatives, step_rows};
use crate::emitter::contraction::micro;
use crate::emitter::resident::{Resident, residents};
use crate::emitter::{Module, Source};

/// Most measurements of an alternative.
const MOST_REPEATS: usize = 1000;

/// By how much an alternative must be faster than what is taken untuned.
const WORTH: f64 = 0.97;

/// What tuning works with.
pub struct Tuner<'a> {
    /// The compiler, with its cache.
    pub compiler: &'a Compiler,
    /// What code is made for.
    pub target: &'a Target,
    /// The device.
    pub device: &'a Device,
    /// Where answers are kept.
    pub store: Option<Store<'a>>,
}

/// A contraction and how often the model has it.
struct Contraction {
    resident: Resident,
    rows: (usize, StepRows),
    count: usize,
}

impl Tuner<'_> {
    /// Measures every contraction of the model that has alternatives; where one representation is
    /// wished for, its alternatives. An answer is kept as soon as it is found.
    ///
    /// # Errors
    /// `InvalidInput` for no repeats; `Cancelled`; what compiling and running say, where it is not the
    /// fault of one alternative.
    pub fn run(
        &self,
        model: &ModelSpec,
        plan: &ExecutionPlan,
        wish: Option<RepresentationName>,
        repeats: usize,
        control: &Control<'_>,
    ) -> SeamResult<TuneReport> {
        if !(1..=MOST_REPEATS).contains(&repeats) {
            return Err(SeamError::invalid_input(format!("{repeats} repeats"))
                .hint(format!("from 1 to {MOST_REPEATS}")));
        }
        // As if nothing had been measured before, so that what is untuned is known.
        let mut decided = ExecutionPlan {
            tuned: Vec::new(),
            ..plan.clone()
        };
        let mut results = Vec::new();
        let mut kept = self.store.is_some();
        let chunk = plan.prefill_chunk;
        // Single rows first: they decide how a weight lies.
        for rows in [1].into_iter().chain((chunk > 1).then_some(chunk)) {
            let plan = decided.clone();
            let source = Source {
                spec: model,
                plan: &plan,
                profile: self.target.profile,
            };
            let all = choices(source, rows, wish);
            let total: usize = all.iter().map(|(_, a)| a.len() * repeats).sum();
            let mut done = 0;
            for (contraction, alternatives) in &all {
                control.progress(Stage::Tune, done, total as u64);
                let mut step = || {
                    done += 1;
                    control.progress(Stage::Tune, done.min(total as u64 - 1), total as u64);
                    control.cancel.check()
                };
                let measured = self.measure(
                    source,
                    contraction,
                    alternatives,
                    repeats,
                    &mut step,
                    control,
                )?;
                let result = answer(contraction, plan.threads, measured)?;
                if let Some(store) = &self.store
                    && let Err(e) = store.keep(&result.answer)
                {
                    kept = false;
                    tracing::warn!("an answer is not kept: {e}");
                }
                decided.tuned.push(result.answer.clone());
                results.push(result);
            }
            control.progress(Stage::Tune, total as u64, total as u64);
        }
        Ok(TuneReport {
            target: self.target.description.clone(),
            results,
            kept,
        })
    }

    fn measure(
        &self,
        source: Source<'_>,
        contraction: &Contraction,
        alternatives: &[Alternative],
        repeats: usize,
        step: &mut dyn FnMut() -> SeamResult<()>,
        control: &Control<'_>,
    ) -> SeamResult<Vec<Measured>> {
        let modules: Vec<(Resident, Module)> = alternatives
            .iter()
            .map(|a| {
                let resident = micro::resident(&contraction.resident, a);
                let module = micro::module(source, &resident, a, contraction.rows);
                (resident, module)
            })
            .collect();
        let code = self.compile(&modules, control)?;
        let mut bench = Bench::new(self.device, &contraction.resident, contraction.rows.0)?;
        let mut failures: Vec<Option<String>> = Vec::new();
        for ((resident, module), code) in modules.iter().zip(code) {
            let added = code.and_then(|code| bench.add(resident, module, code));
            failures.push(match added {
                Ok(()) => None,
                Err(e) if e.code == ErrorCode::Cancelled => return Err(e),
                Err(e) => Some(e.to_string()),
            });
            if failures.last().is_some_and(Option::is_some) {
                bench.leave_out();
            }
        }
        let timings = bench.run(repeats, source.plan.precision, step)?;
        let rows = alternatives.iter().zip(failures).zip(timings);
        Ok(rows
            .enumerate()
            .map(|(i, ((alternative, failure), timing))| {
                let (timing, failed) = match (failure, timing) {
                    (Some(failure), _) => (None, Some(failure)),
                    (None, Ok(timing)) => (Some(timing), None),
                    (None, Err(e)) => (None, Some(e)),
                };
                Measured {
                    representation: RepresentationName::of(alternative.name),
                    tasks: alternative.tasks,
                    // The table's first is the first alternative.
                    untuned: i == 0,
                    microseconds: timing.map(|Timing { median, .. }| median),
                    spread: timing.map(|Timing { spread, .. }| spread),
                    failed,
                }
            })
            .collect())
    }

    /// Code of every module, side by side; where one does not compile, each by itself.
    fn compile(
        &self,
        modules: &[(Resident, Module)],
        control: &Control<'_>,
    ) -> SeamResult<Vec<SeamResult<Vec<u8>>>> {
        let texts: Vec<String> = modules.iter().map(|(_, m)| m.text.clone()).collect();
        match self.compiler.compile(&texts, self.target, control) {
            Ok(code) => Ok(code.into_iter().map(Ok).collect()),
            Err(e) if e.code == ErrorCode::Cancelled => Err(e),
            Err(_) => texts
                .into_iter()
                .map(|text| {
                    let one = self.compiler.compile(&[text], self.target, control);
                    match one {
                        Err(e) if e.code == ErrorCode::Cancelled => Err(e),
                        one => Ok(one.map(|mut code| code.remove(0))),
                    }
                })
                .collect(),
        }
    }
}

/// The model's contractions with so many rows, each shape once, of which there are alternatives, and
/// these: all, or those that are wished for.
fn choices(
    source: Source<'_>,
    rows: usize,
    wish: Option<RepresentationName>,
) -> Vec<(Contraction, Vec<Alternative>)> {
    let mut counts: BTreeMap<(WeightForm, [usize; 2]), (Resident, usize)> = BTreeMap::new();
    for resident in residents(source) {
        // An embedding that is no head is only looked up.
        let contracted = resident.id() != WeightId::Embedding || source.spec.head.tied;
        if let ([outputs, inputs], true) = (&resident.shape[..], contracted) {
            let key = (resident.form, [*outputs, *inputs]);
            counts.entry(key).or_insert((resident, 0)).1 += 1;
        }
    }
    let rows = (rows, step_rows(rows, 1));
    let mut all = Vec::new();
    for (resident, count) in counts.into_values() {
        let mut own = alternatives(source, resident.form, &resident.shape, rows);
        if let Some(wish) = wish
            && own.iter().any(|a| a.name == wish.as_str())
        {
            own.retain(|a| a.name == wish.as_str());
        }
        if own.len() > 1 {
            let contraction = Contraction {
                resident,
                rows,
                count,
            };
            all.push((contraction, own));
        }
    }
    all
}

/// The fastest; what is taken untuned, unless another is faster by more than the noise.
fn answer(
    contraction: &Contraction,
    threads: Option<usize>,
    measured: Vec<Measured>,
) -> SeamResult<TuneResult> {
    let time = |m: &Measured| m.microseconds.unwrap_or(f64::INFINITY);
    let untuned = measured.iter().find(|m| m.untuned).map(time);
    let fastest = measured
        .iter()
        .filter(|m| m.microseconds.is_some())
        .min_by(|a, b| time(a).total_cmp(&time(b)))
        .filter(|m| untuned.is_none_or(|u| time(m) < WORTH * u))
        .or_else(|| measured.iter().find(|m| m.untuned && m.failed.is_none()));
    let fastest = fastest.ok_or_else(|| {
        let why = measured.iter().find_map(|m| m.failed.clone());
        SeamError::new(
            ErrorCode::Backend,
            format!("no alternative ran: {}", why.unwrap_or_default()),
        )
    })?;
    let shape = &contraction.resident.shape;
    let answer = TunedContraction {
        form: contraction.resident.form,
        shape: [shape[0], shape[1]],
        rows: contraction.rows.1,
        threads,
        representation: fastest.representation,
        tasks: fastest.tasks,
        microseconds: time(fastest),
        untuned_microseconds: untuned.filter(|u| u.is_finite()),
    };
    Ok(TuneResult {
        count: contraction.count,
        answer,
        measured,
    })
}

#[cfg(test)]
mod tests;
