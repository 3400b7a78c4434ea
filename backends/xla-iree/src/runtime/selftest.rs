//! What a device has to compute right before it gets a model.
//!
//! Code for the wrong processor often runs, and gives wrong numbers; some drivers read the inputs of
//! their first call again at the next. Both would be wrong tokens without a word. So a small graph with
//! the parts of a decode step runs twice, with different inputs, and is compared with what f64 says.

use bytes::Bytes;
use half::f16;
use halfhitch_seam::{Control, DType as ElementType, ErrorCode, SeamError, SeamResult};
use halfhitch_xla_iree_sys::{Buffer, DType, Device, Policy, Program, ProgramSource};

use super::error::seam_error;
use crate::compiler::{Compiler, Target};
use crate::emitter::Profile;

const GRAPH: &str = include_str!("selftest.mlir");

/// The packed values as nibbles.
const NIBBLES: [&str; 2] = [
    "tensor<16x2x32xui4>",
    "%q = stablehlo.convert %words : (tensor<16x2x32xui4>) -> tensor<16x2x32xf32>",
];

/// The same bytes as whole words, which are all that some GPUs load.
const WORDS: [&str; 2] = [
    "tensor<16x8xui32>",
    "%wide = stablehlo.broadcast_in_dim %words, dims = [0, 1] : (tensor<16x8xui32>) -> tensor<16x8x8xui32>
    %starts = stablehlo.constant dense<[0, 4, 8, 12, 16, 20, 24, 28]> : tensor<8xui32>
    %shift = stablehlo.broadcast_in_dim %starts, dims = [2] : (tensor<8xui32>) -> tensor<16x8x8xui32>
    %low = stablehlo.shift_right_logical %wide, %shift : tensor<16x8x8xui32>
    %mask = stablehlo.constant dense<15> : tensor<16x8x8xui32>
    %bits = stablehlo.and %low, %mask : tensor<16x8x8xui32>
    %value = stablehlo.convert %bits : (tensor<16x8x8xui32>) -> tensor<16x8x8xf32>
    %q = stablehlo.reshape %value : (tensor<16x8x8xf32>) -> tensor<16x2x32xf32>",
];

/// What a target reads: packed values as nibbles or as words, scales in f16 or in f32.
#[derive(Clone, Copy)]
struct Reads {
    nibbles: bool,
    halves: bool,
}

impl Reads {
    fn of(target: &Target) -> Self {
        Self {
            nibbles: !matches!(target.profile, Profile::Gpu { .. }),
            halves: target.resident.contains(&ElementType::F16),
        }
    }

    fn graph(self) -> String {
        let [words, unpack] = if self.nibbles { NIBBLES } else { WORDS };
        GRAPH
            .replace("WORDS", words)
            .replace("UNPACK", unpack)
            .replace("SCALE", if self.halves { "f16" } else { "f32" })
    }
}
const OUTPUTS: usize = 16;
const GROUPS: usize = 2;
const GROUP: usize = 32;
const CALLS: usize = 2;

/// Furthest from f64 that a number may be: far above the error of f32 here, far below a mistake.
const LIMIT: f64 = 1e-4;

/// The graph that [`check`] compiles for a target.
pub fn graph(target: &Target) -> String {
    Reads::of(target).graph()
}

/// Compiles the graph and compares what the device makes of it.
///
/// # Errors
/// `Backend` where a number is wrong, and what compiling and running say.
pub fn check(
    device: &Device,
    compiler: &Compiler,
    target: &Target,
    control: &Control<'_>,
) -> SeamResult<()> {
    let reads = Reads::of(target);
    let modules = compiler.compile(&[reads.graph()], target, control)?;
    let source = ProgramSource {
        modules: modules.into_iter().map(Bytes::from).collect(),
        parameters: Vec::new(),
    };
    // SAFETY: the module comes from the pinned compiler, directly or through the cache, which checks
    // its hash. It writes the cache alone, which is allocated, and nobody else uses it.
    let program = unsafe { Program::load(device, &source) }.map_err(seam_error)?;
    let calls = run(device, &program, reads).map_err(seam_error)?;
    for (call, got) in calls.iter().enumerate() {
        let (chances, rotated) = expected(call);
        judge("a softmax", &got.chances, &chances)?;
        judge("a rotation", &got.rotated, &rotated)?;
        judge("a cache", &got.cached, &rotated)?;
    }
    Ok(())
}

struct Got {
    chances: Vec<f32>,
    rotated: Vec<f32>,
    cached: Vec<f32>,
}

fn run(
    device: &Device,
    program: &Program,
    reads: Reads,
) -> halfhitch_xla_iree_sys::Result<Vec<Got>> {
    let up = |dtype, dims: &[usize], bytes: Vec<u8>| {
        Buffer::upload(device, dtype, dims, bytes.into(), Policy::Copy)
    };
    let weights = [OUTPUTS, GROUPS, GROUP];
    let mut probe = program.call("selftest.probe")?;
    let words = if reads.nibbles {
        up(DType::U4, &weights, nibbles())
    } else {
        up(DType::U32, &[OUTPUTS, GROUPS * GROUP / 8], nibbles())
    };
    probe.set_buffer(0, &words?)?;
    for (at, of) in [(1, scale as fn(usize, usize) -> f16), (2, bias)] {
        let numbers = if reads.halves {
            let bytes = per_group(of).flat_map(f16::to_le_bytes).collect();
            up(DType::F16, &weights[..2], bytes)
        } else {
            let wide: Vec<f32> = per_group(of).map(f16::to_f32).collect();
            up(DType::F32, &weights[..2], bytes(&wide))
        };
        probe.set_buffer(at, &numbers?)?;
    }
    let mut cache = Buffer::allocate(device, DType::F32, &[CALLS, OUTPUTS])?;
    let mut got = Vec::new();
    for call in 0..CALLS {
        let x: Vec<f32> = (0..GROUPS * GROUP).map(|i| input(call, i)).collect();
        let angles: Vec<f32> = (0..OUTPUTS).map(|i| angle(call, i)).collect();
        probe.set_buffer(3, &up(DType::F32, &weights[1..], bytes(&x))?)?;
        probe.set_buffer(4, &up(DType::F32, &[OUTPUTS], bytes(&angles))?)?;
        probe.set_i32(5, call as i32)?;
        probe.set_buffer(6, &cache)?;
        probe.invoke()?;
        let read = |i| probe.result_buffer(i)?.read();
        got.push(Got {
            chances: floats(&read(0)?),
            rotated: floats(&read(1)?),
            cached: Vec::new(),
        });
        cache = probe.result_buffer(2)?;
    }
    // Read at the end, so that a later call that spoils an earlier row is seen.
    let rows = floats(&cache.read()?);
    for (got, row) in got.iter_mut().zip(rows.chunks_exact(OUTPUTS)) {
        got.cached = row.to_vec();
    }
    Ok(got)
}

/// Every value from 0 to 15, low nibble first.
fn nibble(output: usize, group: usize, i: usize) -> u8 {
    ((output * 7 + group * 5 + i * 3) % 16) as u8
}

fn nibbles() -> Vec<u8> {
    let values: Vec<u8> = (0..OUTPUTS * GROUPS * GROUP)
        .map(|i| nibble(i / (GROUPS * GROUP), i / GROUP % GROUPS, i % GROUP))
        .collect();
    let pairs = values.chunks_exact(2);
    pairs.map(|pair| pair[0] | (pair[1] << 4)).collect()
}

fn scale(output: usize, group: usize) -> f16 {
    f16::from_f32((1 + (output + 3 * group) % 5) as f32 / 64.0)
}

fn bias(output: usize, group: usize) -> f16 {
    f16::from_f32((output % 3) as f32 / 8.0 - group as f32 / 4.0)
}

fn per_group(of: fn(usize, usize) -> f16) -> impl Iterator<Item = f16> {
    (0..OUTPUTS * GROUPS).map(move |i| of(i / GROUPS, i % GROUPS))
}

fn input(call: usize, i: usize) -> f32 {
    ((i * 37 + call * 29) % 17) as f32 / 16.0 - 0.5
}

/// Up to some turns, as a rope's are.
fn angle(call: usize, i: usize) -> f32 {
    (i * i) as f32 * 0.11 + call as f32
}

/// Softmax of the scores, and the rotated scores.
fn expected(call: usize) -> (Vec<f64>, Vec<f64>) {
    let scores: Vec<f64> = (0..OUTPUTS)
        .map(|o| {
            let terms = (0..GROUPS * GROUP).map(|i| {
                let (group, within) = (i / GROUP, i % GROUP);
                let q = f64::from(nibble(o, group, within));
                let w = q * scale(o, group).to_f64() + bias(o, group).to_f64();
                w * f64::from(input(call, i))
            });
            terms.sum()
        })
        .collect();
    let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let powers: Vec<f64> = scores.iter().map(|s| (s - most).exp()).collect();
    let total: f64 = powers.iter().sum();
    let rotated = (0..OUTPUTS)
        .map(|i| {
            let angle = f64::from(angle(call, i));
            scores[i] * angle.cos() + scores[OUTPUTS - 1 - i] * angle.sin()
        })
        .collect();
    (powers.iter().map(|p| p / total).collect(), rotated)
}

fn judge(what: &str, got: &[f32], want: &[f64]) -> SeamResult<()> {
    let wrong = got
        .iter()
        .zip(want)
        // Also wrong where it is no number.
        .find(|&(&got, &want)| {
            (f64::from(got) - want)
                .abs()
                .partial_cmp(&LIMIT)
                .is_none_or(|o| o.is_gt())
        });
    let problem = match wrong {
        None if got.len() == want.len() => return Ok(()),
        None => format!("{} numbers instead of {}", got.len(), want.len()),
        Some((got, want)) => format!("{got} where {want:.6} is right"),
    };
    Err(SeamError::new(
        ErrorCode::Backend,
        format!("the device computes {what} wrongly: {problem}"),
    )
    .hint("the compiler's target does not fit the device, or its driver is broken: use another device"))
}

fn bytes(values: &[f32]) -> Vec<u8> {
    bytemuck::cast_slice(values).to_vec()
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    let words = bytes.chunks_exact(4);
    words
        .map(|w| f32::from_le_bytes([w[0], w[1], w[2], w[3]]))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_number_is_told_and_a_near_one_is_not() {
        let (want, _) = expected(0);
        let mut got: Vec<f32> = want.iter().map(|&v| v as f32 + 1e-6).collect();
        judge("a softmax", &got, &want).unwrap();
        for wrong in [want[3] as f32 + 0.01, f32::NAN, f32::INFINITY] {
            got[3] = wrong;
            let e = judge("a softmax", &got, &want).unwrap_err();
            assert!(e.message.contains("a softmax wrongly"), "{e}");
        }
        assert!(judge("a softmax", &got[..2], &want).is_err());
    }

    #[test]
    fn calls_that_are_mixed_up_are_told_apart() {
        let ((a, b), (c, d)) = (expected(0), expected(1));
        let halves = |v: &[f64]| v.iter().map(|&v| v as f32).collect::<Vec<_>>();
        assert!(judge("a softmax", &halves(&a), &c).is_err());
        assert!(judge("a rotation", &halves(&b), &d).is_err());
    }

    #[test]
    fn every_target_gets_a_whole_graph() {
        for (nibbles, halves) in [(false, false), (false, true), (true, false), (true, true)] {
            let text = Reads { nibbles, halves }.graph();
            for gap in ["WORDS", "UNPACK", "SCALE"] {
                assert!(!text.contains(gap), "{gap} is left");
            }
            let mut names: Vec<&str> = text
                .lines()
                .filter_map(|line| Some(line.trim().strip_prefix('%')?.split_once(" =")?.0))
                .collect();
            let all = names.len();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), all, "a name is given twice");
            assert!(names.contains(&"q"));
        }
    }

    #[test]
    fn sign_extended_nibbles_would_be_seen() {
        let high = (0..OUTPUTS * GROUPS * GROUP).map(|i| nibble(i / 64, i / 32 % 2, i % 32));
        assert_eq!(
            high.filter(|&q| q > 7).count(),
            OUTPUTS * GROUPS * GROUP / 2
        );
    }
}
