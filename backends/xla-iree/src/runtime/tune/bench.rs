//! Running the alternatives of one contraction in turn.

use std::collections::BTreeMap;
use std::time::Instant;

use bytes::Bytes;
use halfhitch_seam::{
    ErrorCode, Precision, SeamError, SeamResult, Weight, WeightId, WeightInfo, Weights,
};
use halfhitch_xla_iree_sys::{Buffer, DType, Device, Policy, Program, ProgramSource};

use super::random::{Random, activations, weight};
use crate::emitter::Module;
use crate::emitter::contraction::micro::FUNCTION;
use crate::emitter::layout::{Layout, Role};
use crate::emitter::resident::Resident;
use crate::runtime::error::seam_error;
use crate::runtime::function::Function;
use crate::runtime::upload::{Uploaded, one};

/// Bytes of weights that are gone through before one is met again: more than processors keep close by.
const IN_TURN: usize = 64 << 20;

/// Most copies of a weight.
const MOST_COPIES: usize = 8;

/// Longest time that one alternative is measured, in seconds, after three runs.
const LONGEST: f64 = 2.0;

/// Times of an alternative, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Timing {
    /// The median.
    pub median: f64,
    /// From the first quartile to the third.
    pub spread: f64,
}

/// One contraction's alternatives, loaded.
pub struct Bench<'a> {
    device: &'a Device,
    weights: Vec<(WeightId, Weight)>,
    activations: Buffer,
    uploaded: BTreeMap<u8, Vec<Uploaded>>,
    /// A call a copy of the weight; none where an alternative cannot run.
    calls: Vec<Vec<Function>>,
}

impl<'a> Bench<'a> {
    /// Makes random weights of the contraction's form and shape.
    ///
    /// # Errors
    /// `OutOfMemory`, `Backend`.
    pub fn new(device: &'a Device, of: &Resident, rows: usize) -> SeamResult<Self> {
        let mut random = Random::new(1);
        let shape = [of.shape[0], of.shape[1]];
        let first = weight(&mut random, of.form, shape)?;
        let info = WeightInfo {
            shape: of.shape.clone(),
            form: of.form,
        };
        let bytes = usize::try_from(info.bytes_as(of.form))
            .unwrap_or(IN_TURN)
            .max(1);
        let copies = IN_TURN.div_ceil(bytes).clamp(1, MOST_COPIES);
        let mut weights = vec![(of.id(), first)];
        for _ in 1..copies {
            weights.push((of.id(), weight(&mut random, of.form, shape)?));
        }
        let x = activations(&mut random, rows * shape[1]);
        let x = Bytes::copy_from_slice(bytemuck::cast_slice(&x));
        let dims = [rows, shape[1]];
        let activations =
            Buffer::upload(device, DType::F32, &dims, x, Policy::Copy).map_err(seam_error)?;
        Ok(Self {
            device,
            weights,
            activations,
            uploaded: BTreeMap::new(),
            calls: Vec::new(),
        })
    }

    /// Loads the next alternative.
    ///
    /// # Errors
    /// What loading says; the alternative is then to be left out.
    pub fn add(&mut self, resident: &Resident, module: &Module, code: Vec<u8>) -> SeamResult<()> {
        let layout = layout_number(resident.layout);
        if !self.uploaded.contains_key(&layout) {
            let copies = self
                .weights
                .iter()
                .map(|(id, weight)| {
                    let single: Weights = [(*id, weight.clone())].into_iter().collect();
                    let single_resident = Resident {
                        ids: vec![*id],
                        ..resident.clone()
                    };
                    let parts = one(self.device, &single_resident, &single)?;
                    Ok(parts.into_iter().collect::<Uploaded>())
                })
                .collect::<SeamResult<Vec<_>>>()?;
            self.uploaded.insert(layout, copies);
        }
        let source = ProgramSource {
            modules: vec![Bytes::from(code)],
            parameters: Vec::new(),
        };
        // SAFETY: the module comes from the pinned compiler, directly or through a cache that only this
        // user can write and that checks its hash. It updates none of its arguments.
        let program = unsafe { Program::load(self.device, &source) }.map_err(seam_error)?;
        let signature = module
            .functions
            .get(FUNCTION)
            .ok_or_else(|| SeamError::new(ErrorCode::Backend, format!("no function {FUNCTION}")))?;
        let calls = self.uploaded[&layout]
            .iter()
            .map(|weights| {
                let mut call = Function::new(&program, signature)?;
                call.bind(weights)?;
                call.set(Role::Hidden, &self.activations)?;
                Ok(call)
            })
            .collect::<SeamResult<_>>()?;
        self.calls.push(calls);
        Ok(())
    }

    /// Says that the next alternative cannot run.
    pub fn leave_out(&mut self) {
        self.calls.push(Vec::new());
    }

    /// Runs all alternatives in turn, `repeats` times: times, or what is wrong with an alternative.
    /// `step` is called after each measurement; its error ends it.
    ///
    /// # Errors
    /// `step`'s.
    pub fn run(
        &mut self,
        repeats: usize,
        precision: Precision,
        step: &mut dyn FnMut() -> SeamResult<()>,
    ) -> SeamResult<Vec<Result<Timing, String>>> {
        let mut wrong: Vec<Option<String>> = vec![None; self.calls.len()];
        let mut expected: Option<Vec<f32>> = None;
        for (i, calls) in self.calls.iter_mut().enumerate() {
            // The first run also warms up.
            let Some(call) = calls.first_mut() else {
                wrong[i] = Some("it was left out".into());
                continue;
            };
            match (result(call), &expected) {
                (Err(e), _) => wrong[i] = Some(e.to_string()),
                (Ok(y), None) => expected = Some(y),
                (Ok(y), Some(expected)) => wrong[i] = differs(&y, expected, precision),
            }
        }
        let mut times: Vec<Vec<f64>> = vec![Vec::new(); self.calls.len()];
        for repeat in 0..repeats {
            for (i, calls) in self.calls.iter_mut().enumerate() {
                let spent: f64 = times[i].iter().sum::<f64>() / 1e6;
                let enough = times[i].len() >= 3 && spent > LONGEST;
                if wrong[i].is_none() && !enough {
                    let copy = repeat % calls.len();
                    let call = &mut calls[copy];
                    let start = Instant::now();
                    let ran = call.run();
                    let time = start.elapsed().as_secs_f64() * 1e6;
                    call.drop_results();
                    match ran {
                        Ok(()) => times[i].push(time),
                        Err(e) => wrong[i] = Some(e.to_string()),
                    }
                }
                step()?;
            }
        }
        let results = times.into_iter().zip(wrong);
        Ok(results
            .map(|(times, wrong)| match wrong {
                Some(wrong) => Err(wrong),
                None => Ok(timing(times)),
            })
            .collect())
    }
}

/// A run's result.
fn result(call: &mut Function) -> SeamResult<Vec<f32>> {
    call.run()?;
    let bytes = call.result(Role::Logits)?.read().map_err(seam_error)?;
    call.drop_results();
    let words = bytes.chunks_exact(4);
    Ok(words
        .map(|w| f32::from_le_bytes([w[0], w[1], w[2], w[3]]))
        .collect())
}

/// What is wrong with `y`, if it is not `expected` as far as the precision goes.
fn differs(y: &[f32], expected: &[f32], precision: Precision) -> Option<String> {
    let limit = match precision {
        Precision::F32 => 1e-4,
        _ => 2e-2,
    };
    let scale = expected.iter().fold(0f32, |m, v| m.max(v.abs()));
    let pairs = y.iter().zip(expected);
    let worst = pairs.fold(0f32, |m, (a, b)| m.max((a - b).abs()));
    let finite = y.iter().all(|v| v.is_finite());
    let same = finite && y.len() == expected.len() && worst <= limit * scale;
    (!same).then(|| format!("it computes something else: {worst:.3e} off, of {scale:.3e}"))
}

fn timing(mut times: Vec<f64>) -> Timing {
    times.sort_by(f64::total_cmp);
    let at = |share: f64| {
        let last = times.len().saturating_sub(1);
        times
            .get((share * last as f64).round() as usize)
            .copied()
            .unwrap_or(f64::INFINITY)
    };
    Timing {
        median: at(0.5),
        spread: at(0.75) - at(0.25),
    }
}

fn layout_number(layout: Layout) -> u8 {
    layout as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_quartiles_shrug_off_an_outlier() {
        let t = timing(vec![5.0, 1.0, 2.0, 3.0, 1000.0]);
        assert_eq!((t.median, t.spread), (3.0, 3.0));
    }

    #[test]
    fn what_computes_something_else_is_told() {
        let y = [1.0, -2.0, 3.0];
        assert_eq!(differs(&[1.0, -2.0, 3.0 + 1e-5], &y, Precision::F32), None);
        for wrong in [&[1.0, -2.0, 3.1][..], &[1.0, -2.0], &[1.0, f32::NAN, 3.0]] {
            assert!(differs(wrong, &y, Precision::F32).is_some(), "{wrong:?}");
        }
        assert_eq!(differs(&[1.0, -2.0, 3.01], &y, Precision::F16), None);
    }
}
