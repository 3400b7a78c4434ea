//! Traps that give wrong tokens without a word, each with a test that any driver has to pass.
//!
//! That caches are updated in place at all, that imported memory keeps its owner and that calls of one
//! program wait for each other is tested in `sys/tests/api.rs` and `csrc/tests`. A target that does not
//! fit its device is what `runtime::selftest` looks for whenever a device is opened.

mod common;

use std::fmt::Write;
use std::io::Write as _;

use bytes::Bytes;
use common::{Rig, bytes_of, floats, on_every_driver};
use halfhitch_xla_iree_sys::{Buffer, DType, Origin, Policy};

const LAYERS: usize = 4;
const WIDTH: usize = 8;

/// A step that writes one row, times the layer's number, into each layer's keys, and its negative into
/// each layer's values, as the emitter writes them; and reads back the sum of all live rows.
fn caches_module() -> String {
    let mut arguments = format!("%row: tensor<1x{WIDTH}xf32>, %pos: i32");
    let mut body = String::from(
        "    %p = arith.index_cast %pos : i32 to index\n    %zero = stablehlo.constant dense<0.0> : tensor<f32>\n",
    );
    let (mut names, mut types) = (Vec::new(), Vec::new());
    for cache in 0..2 * LAYERS {
        write!(arguments, ", %c{cache}: tensor<?x{WIDTH}xf32>").unwrap();
        writeln!(
            body,
            "    %f{cache} = stablehlo.constant dense<{:?}> : tensor<1x{WIDTH}xf32>\n    \
             %r{cache} = stablehlo.multiply %row, %f{cache} : tensor<1x{WIDTH}xf32>\n    \
             %n{cache} = tensor.insert_slice %r{cache} into %c{cache}[%p, 0] [1, {WIDTH}] [1, 1] : \
             tensor<1x{WIDTH}xf32> into tensor<?x{WIDTH}xf32>\n    \
             %s{cache} = stablehlo.reduce(%n{cache} init: %zero) applies stablehlo.add across \
             dimensions = [0] : (tensor<?x{WIDTH}xf32>, tensor<f32>) -> tensor<{WIDTH}xf32>",
            factor(cache)
        )
        .unwrap();
        names.push(format!("%n{cache}"));
        types.push(format!("tensor<?x{WIDTH}xf32>"));
    }
    for cache in 0..2 * LAYERS {
        names.push(format!("%s{cache}"));
        types.push(format!("tensor<{WIDTH}xf32>"));
    }
    let (names, types) = (names.join(", "), types.join(", "));
    format!(
        "module @traps {{\n  func.func public @step({arguments}) -> ({types}) {{\n{body}    \
         return {names} : {types}\n  }}\n}}\n"
    )
}

fn factor(cache: usize) -> f32 {
    let layer = (cache / 2 + 1) as f32;
    if cache.is_multiple_of(2) {
        layer
    } else {
        -layer
    }
}

/// Two sequences with their own caches, all made alike, over several layers and steps by turns: no
/// cache shows what belongs to another.
#[test]
fn caches_that_start_alike_never_share_memory() {
    on_every_driver(|rig| {
        let program = rig.program(&caches_module());
        let mut step = program.call("traps.step").unwrap();
        let capacity = 16;
        let mut caches: Vec<Vec<Buffer>> = (0..2)
            .map(|_| {
                (0..2 * LAYERS)
                    .map(|_| Buffer::allocate(&rig.device, DType::F32, &[capacity, WIDTH]).unwrap())
                    .collect()
            })
            .collect();
        let value = |sequence: usize, at: usize| (1 + at * 3 + sequence * 100) as f32;
        for at in 0..capacity {
            for (sequence, own) in caches.iter_mut().enumerate() {
                let row = rig.up_f32(&[1, WIDTH], &[value(sequence, at); WIDTH]);
                step.set_buffer(0, &row).unwrap();
                step.set_i32(1, at as i32).unwrap();
                for (i, cache) in own.iter().enumerate() {
                    step.set_buffer(2 + i, cache).unwrap();
                }
                step.invoke().unwrap();
                let live: f32 = (0..=at).map(|at| value(sequence, at)).sum();
                for (i, cache) in own.iter_mut().enumerate() {
                    *cache = step.result_buffer(i).unwrap();
                    let sums = floats(&step.result_buffer(2 * LAYERS + i).unwrap());
                    assert_eq!(
                        sums,
                        [factor(i) * live; WIDTH],
                        "{}: sequence {sequence}, cache {i}, step {at}",
                        rig.driver
                    );
                }
                step.drop_results();
            }
        }
        for (sequence, own) in caches.iter().enumerate() {
            for (i, cache) in own.iter().enumerate() {
                let want: Vec<f32> = (0..capacity)
                    .flat_map(|at| [factor(i) * value(sequence, at); WIDTH])
                    .collect();
                assert_eq!(floats(cache), want, "{}: {sequence}, {i}", rig.driver);
            }
        }
    });
}

/// Packed values through the forms that the emitter reads them in, to f32: as nibbles, as bytes, and by
/// shift and mask from words whose top bit is set. All values, alone and inside a contraction.
const UNPACK: &str = r#"
module @traps {
  func.func public @alone(%n: tensor<16xui4>, %b: tensor<256xui8>, %w: tensor<4xui32>)
      -> (tensor<16xf32>, tensor<256xf32>, tensor<4x8xf32>, tensor<4xf32>) {
    %nf = stablehlo.convert %n : (tensor<16xui4>) -> tensor<16xf32>
    %bf = stablehlo.convert %b : (tensor<256xui8>) -> tensor<256xf32>
    %wb = stablehlo.broadcast_in_dim %w, dims = [0] : (tensor<4xui32>) -> tensor<4x8xui32>
    %shifts = stablehlo.constant dense<[0, 4, 8, 12, 16, 20, 24, 28]> : tensor<8xui32>
    %sb = stablehlo.broadcast_in_dim %shifts, dims = [1] : (tensor<8xui32>) -> tensor<4x8xui32>
    %shifted = stablehlo.shift_right_logical %wb, %sb : tensor<4x8xui32>
    %mask = stablehlo.constant dense<15> : tensor<4x8xui32>
    %q = stablehlo.and %shifted, %mask : tensor<4x8xui32>
    %qf = stablehlo.convert %q : (tensor<4x8xui32>) -> tensor<4x8xf32>
    %high = stablehlo.constant dense<4026531840> : tensor<4xui32>
    %top = stablehlo.and %w, %high : tensor<4xui32>
    %tf = stablehlo.convert %top : (tensor<4xui32>) -> tensor<4xf32>
    return %nf, %bf, %qf, %tf : tensor<16xf32>, tensor<256xf32>, tensor<4x8xf32>, tensor<4xf32>
  }
  func.func public @nibbles(%w: tensor<16x2x32xui4>, %x: tensor<2x32xf32>) -> tensor<16xf32> {
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %f = stablehlo.convert %w : (tensor<16x2x32xui4>) -> tensor<16x2x32xf32>
    %xb = stablehlo.broadcast_in_dim %x, dims = [1, 2] : (tensor<2x32xf32>) -> tensor<16x2x32xf32>
    %p = stablehlo.multiply %f, %xb : tensor<16x2x32xf32>
    %y = stablehlo.reduce(%p init: %zero) applies stablehlo.add across dimensions = [1, 2]
        : (tensor<16x2x32xf32>, tensor<f32>) -> tensor<16xf32>
    return %y : tensor<16xf32>
  }
  func.func public @bytes(%w: tensor<16x2x32xui8>, %x: tensor<2x32xf32>) -> tensor<16xf32> {
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %f = stablehlo.convert %w : (tensor<16x2x32xui8>) -> tensor<16x2x32xf32>
    %xb = stablehlo.broadcast_in_dim %x, dims = [1, 2] : (tensor<2x32xf32>) -> tensor<16x2x32xf32>
    %p = stablehlo.multiply %f, %xb : tensor<16x2x32xf32>
    %y = stablehlo.reduce(%p init: %zero) applies stablehlo.add across dimensions = [1, 2]
        : (tensor<16x2x32xf32>, tensor<f32>) -> tensor<16xf32>
    return %y : tensor<16xf32>
  }
}
"#;

#[test]
fn packed_values_are_never_sign_extended() {
    on_every_driver(|rig| {
        let program = rig.program(UNPACK);
        let mut alone = program.call("traps.alone").unwrap();
        let nibbles: Vec<u8> = (0..8).map(|i| (2 * i) | ((2 * i + 1) << 4)).collect();
        let words = [0x7654_3210u32, 0xFEDC_BA98, 0xFFFF_FFFF, 0x8000_0008];
        let raw: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        let inputs = [
            rig.up(DType::U4, &[16], nibbles),
            rig.up(DType::U8, &[256], (0..=255).collect()),
            rig.up(DType::U32, &[4], raw),
        ];
        for (i, input) in inputs.iter().enumerate() {
            alone.set_buffer(i, input).unwrap();
        }
        alone.invoke().unwrap();
        let got = |i| floats(&alone.result_buffer(i).unwrap());
        let driver = &rig.driver;
        let up_to = |n: u16| (0..n).map(f32::from).collect::<Vec<_>>();
        assert_eq!(got(0), up_to(16), "{driver}: nibbles");
        assert_eq!(got(1), up_to(256), "{driver}: bytes");
        let parts: Vec<f32> = words
            .iter()
            .flat_map(|w| (0..8).map(move |i| ((w >> (4 * i)) & 15) as f32))
            .collect();
        assert_eq!(got(2), parts, "{driver}: words");
        let top: Vec<f32> = words.iter().map(|w| (w & 0xF000_0000) as f32).collect();
        assert_eq!(got(3), top, "{driver}: the top of words");
    });
}

#[test]
fn packed_values_are_never_sign_extended_inside_a_contraction() {
    on_every_driver(|rig| {
        let program = rig.program(UNPACK);
        let x: Vec<f32> = (0..64).map(|i| (i % 7) as f32 - 3.0).collect();
        let inputs = rig.up_f32(&[2, 32], &x);
        for (name, bits, dtype) in [("nibbles", 4, DType::U4), ("bytes", 8, DType::U8)] {
            let most = 1u32 << bits;
            // Every value of that width, the high half as often as the low one.
            let value = |row: usize, i: usize| (row * 64 + i) as u32 * 37 % most;
            let values: Vec<u8> = (0..16 * 64).map(|i| value(i / 64, i % 64) as u8).collect();
            let packed = match bits {
                4 => values.chunks_exact(2).map(|p| p[0] | (p[1] << 4)).collect(),
                _ => values,
            };
            let mut call = program.call(&format!("traps.{name}")).unwrap();
            call.set_buffer(0, &rig.up(dtype, &[16, 2, 32], packed))
                .unwrap();
            call.set_buffer(1, &inputs).unwrap();
            call.invoke().unwrap();
            // Small integers: exact in any order.
            let want: Vec<f32> = (0..16)
                .map(|row| (0..64).map(|i| value(row, i) as f32 * x[i]).sum())
                .collect();
            assert_eq!(
                floats(&call.result_buffer(0).unwrap()),
                want,
                "{}: {name}",
                rig.driver
            );
        }
    });
}

/// Results of the weight's own shape and type, which a compiler would like to make in its place.
const WEIGHT: &str = r#"
module @traps {
  func.func public @step(%w: tensor<64x64xf32>, %x: tensor<64x1xf32>)
      -> (tensor<64x1xf32>, tensor<64x64xf32>, tensor<64x64xf32>) {
    %y = stablehlo.dot_general %w, %x, contracting_dims = [1] x [0]
        : (tensor<64x64xf32>, tensor<64x1xf32>) -> tensor<64x1xf32>
    %twice = stablehlo.add %w, %w : tensor<64x64xf32>
    %turned = stablehlo.transpose %w, dims = [1, 0] : (tensor<64x64xf32>) -> tensor<64x64xf32>
    return %y, %twice, %turned : tensor<64x1xf32>, tensor<64x64xf32>, tensor<64x64xf32>
  }
}
"#;

/// A weight is a read-only mapping of a file, as a checkpoint's is: a write into it would be a fault,
/// and one into a copy is seen in its bytes.
#[test]
fn weights_are_never_written() {
    let values: Vec<f32> = (0..64 * 64)
        .map(|i| ((i * 31) % 23) as f32 - 11.0)
        .collect();
    let bytes = bytes_of(&values);
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&bytes).unwrap();
    on_every_driver(|rig| {
        let program = rig.program(WEIGHT);
        for policy in [Policy::Auto, Policy::Copy] {
            // SAFETY: the file has no name, so nobody else changes it.
            let mapping = unsafe { memmap2::Mmap::map(&file) }.unwrap();
            let content = Bytes::from_owner(mapping);
            let weight =
                Buffer::upload(&rig.device, DType::F32, &[64, 64], content, policy).unwrap();
            if policy == Policy::Auto && rig.driver.starts_with("local") {
                assert_eq!(weight.origin(), Origin::Imported, "{}", rig.driver);
            }
            let mut step = program.call("traps.step").unwrap();
            step.set_buffer(0, &weight).unwrap();
            for call in 0..20 {
                let x: Vec<f32> = (0..64).map(|i| ((i + call) % 5) as f32).collect();
                step.set_buffer(1, &rig.up_f32(&[64, 1], &x)).unwrap();
                step.invoke().unwrap();
                let want: Vec<f32> = (0..64)
                    .map(|r| (0..64).map(|c| values[r * 64 + c] * x[c]).sum())
                    .collect();
                let driver = &rig.driver;
                assert_eq!(
                    floats(&step.result_buffer(0).unwrap()),
                    want,
                    "{driver}: {call}"
                );
                assert!(
                    weight.read().unwrap() == bytes,
                    "{driver}: call {call} wrote"
                );
            }
        }
    });
}

const CALLS: &str = r#"
module @traps {
  func.func public @mix(%x: tensor<32xf32>, %n: i32, %t: tensor<1xi32>) -> (tensor<32xf32>, tensor<1xi32>) {
    %nt = tensor.from_elements %n : tensor<i32>
    %nf = stablehlo.convert %nt : (tensor<i32>) -> tensor<f32>
    %nb = stablehlo.broadcast_in_dim %nf, dims = [] : (tensor<f32>) -> tensor<32xf32>
    %ni = stablehlo.broadcast_in_dim %nt, dims = [] : (tensor<i32>) -> tensor<1xi32>
    %y = stablehlo.multiply %x, %nb : tensor<32xf32>
    %z = stablehlo.reverse %y, dims = [0] : tensor<32xf32>
    %s = stablehlo.add %t, %ni : tensor<1xi32>
    return %z, %s : tensor<32xf32>, tensor<1xi32>
  }
}
"#;

/// Each call sees its own inputs, given as new buffers, as new content of an old one and as numbers;
/// and what earlier calls returned stays as it was.
#[test]
fn every_call_sees_its_own_inputs() {
    on_every_driver(|rig| {
        let program = rig.program(CALLS);
        let mut mix = program.call("traps.mix").unwrap();
        let tokens = Buffer::allocate(&rig.device, DType::I32, &[1]).unwrap();
        mix.set_buffer(2, &tokens).unwrap();
        let want = |call: usize| -> Vec<f32> {
            let x = (0..32).rev().map(|i| (i + 3 * call) as f32);
            x.map(|x| x * (call as f32 - 7.0)).collect()
        };
        let mut results = Vec::new();
        for call in 0..40usize {
            let x: Vec<f32> = (0..32).map(|i| (i + 3 * call) as f32).collect();
            mix.set_buffer(0, &rig.up_f32(&[32], &x)).unwrap();
            mix.set_i32(1, call as i32 - 7).unwrap();
            tokens
                .write(0, &(1000 * call as i32).to_le_bytes())
                .unwrap();
            mix.invoke().unwrap();
            let result = mix.result_buffer(0).unwrap();
            let sum = mix.result_buffer(1).unwrap().read().unwrap();
            let driver = &rig.driver;
            assert_eq!(floats(&result), want(call), "{driver}: call {call}");
            let sum = i32::from_le_bytes(sum[..4].try_into().unwrap());
            assert_eq!(sum, 1001 * call as i32 - 7, "{driver}: call {call}");
            results.push(result);
        }
        for (call, result) in results.iter().enumerate() {
            assert_eq!(floats(result), want(call), "{}: later", rig.driver);
        }
    });
}

/// The same on the programs of several calls at once, interleaved.
#[test]
fn calls_of_one_program_do_not_mix() {
    on_every_driver(|rig: &Rig| {
        let program = rig.program(CALLS);
        let mut calls: Vec<_> = (0..3).map(|_| program.call("traps.mix").unwrap()).collect();
        let zero = rig.up(DType::I32, &[1], vec![0; 4]);
        for round in 0..10 {
            for (i, call) in calls.iter_mut().enumerate() {
                let x = rig.up_f32(&[32], &[(1 + i + 10 * round) as f32; 32]);
                call.set_buffer(0, &x).unwrap();
                call.set_i32(1, i as i32 + 1).unwrap();
                call.set_buffer(2, &zero).unwrap();
            }
            for (i, call) in calls.iter_mut().enumerate() {
                call.invoke().unwrap();
                let want = [((1 + i + 10 * round) * (i + 1)) as f32; 32];
                assert_eq!(
                    floats(&call.result_buffer(0).unwrap()),
                    want,
                    "{}",
                    rig.driver
                );
            }
        }
    });
}
