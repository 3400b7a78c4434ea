//! On a small graph and what the compiler made of it: `samples/graph.mlir`, compiled for a generic
//! processor with `--compile-to=stream --mlir-print-debuginfo --dump-compilation-phases-to`; the
//! executables were cut from the last.

use super::*;

const GRAPH: &str = include_str!("samples/graph.mlir");
const FLOW: &str = include_str!("samples/flow.mlir");
const STREAM: &str = include_str!("samples/stream.mlir");

fn phases() -> Phases {
    Phases {
        flow: FLOW.into(),
        stream: STREAM.into(),
    }
}

fn count(phases: &Phases, functions: &[&str], position: usize) -> GraphStats {
    let functions: Vec<String> = functions.iter().map(ToString::to_string).collect();
    let moment = Moment {
        tiles: None,
        position,
        capacity: 256,
    };
    read(GRAPH, phases, &functions, moment, 1, 128 * 64)
}

fn traffic(dispatches: u64, copies: u64, fills: u64, read: u64, written: u64) -> Traffic {
    Traffic {
        dispatches,
        copies,
        fills,
        bytes_read: read,
        bytes_written: written,
    }
}

#[test]
fn every_part_has_its_kernels_copies_and_bytes() {
    let stats = count(&phases(), &["step", "choice"], 9);
    let parts: Vec<(&str, Traffic)> = stats
        .parts
        .iter()
        .map(|p| (p.part.as_str(), p.traffic))
        .collect();
    let expected = [
        // The token; of the table the row that is picked.
        ("embedding", traffic(1, 0, 0, 4 + 64 * 2, 64 * 4)),
        // The f16 weight as it is, and f32 activations.
        (
            "feed-forward",
            traffic(1, 0, 0, (128 * 64 * 2) + 64 * 4, 128 * 4),
        ),
        // One row is copied into the cache; of 256 rows the 10 that are live are read.
        (
            "attention",
            traffic(1, 1, 0, 128 + 10 * 32 * 4 + 32 * 4, 128 + 2 * 10 * 4),
        ),
        ("choice", traffic(0, 1, 1, 300 * 4, 300 * 4 + 384 * 4)),
    ];
    assert_eq!(parts, expected);
    let mut total = Traffic::default();
    expected.iter().for_each(|(_, t)| total += *t);
    assert_eq!(stats.total, total);
    let mut layer = expected[1].1;
    layer += expected[2].1;
    assert_eq!(stats.in_layers, layer);
    assert_eq!(stats.dispatches_a_layer(), 2.0);
    assert_eq!(stats.unresolved, 0);
}

#[test]
fn the_live_context_is_what_is_read() {
    let read = |position| count(&phases(), &["step"], position).total.bytes_read;
    assert_eq!(read(99) - read(9), 90 * 32 * 4);
}

#[test]
fn the_largest_tensor_between_kernels_is_found_and_judged() {
    let stats = count(&phases(), &["step"], 9);
    let largest = stats.largest.clone().unwrap();
    assert_eq!(
        (
            largest.shape.as_str(),
            largest.part.as_str(),
            largest.elements,
            largest.bytes
        ),
        ("128xf32", "feed-forward", 128, 512)
    );
    assert!(!stats.rebuilds_a_weight());
    // The same kernel, widening its weight for another to read.
    let rebuilt = FLOW.replace("-> tensor<128xf32> loc", "-> tensor<128x64xf32> loc");
    assert_ne!(rebuilt, FLOW);
    let phases = Phases {
        flow: rebuilt,
        stream: STREAM.into(),
    };
    let stats = count(&phases, &["step"], 9);
    assert_eq!(stats.largest.as_ref().unwrap().shape, "128x64xf32");
    assert!(stats.rebuilds_a_weight());
}

#[test]
fn only_the_functions_that_are_named_count() {
    let stats = count(&phases(), &["choice"], 9);
    assert_eq!(stats.total.dispatches, 0);
    assert_eq!(stats.total.copies, 1);
    assert_eq!(count(&phases(), &["ste"], 9).total, Traffic::default());
}

#[test]
fn sizes_that_are_not_understood_are_told() {
    let strange = FLOW.replace("arith.addi", "arith.strange");
    assert_ne!(strange, FLOW);
    let phases = Phases {
        flow: strange,
        stream: STREAM.into(),
    };
    let stats = count(&phases, &["step"], 9);
    assert_eq!(stats.total.dispatches, 3);
    assert!(stats.unresolved > 0);
}

#[test]
fn cut_and_mixed_up_text_is_survived() {
    let mut seed = 1u64;
    let mut next = |n: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) as usize % n
    };
    for _ in 0..300 {
        let mut damaged = [FLOW, STREAM].map(|text| {
            let mut bytes = text.as_bytes().to_vec();
            bytes.truncate(next(bytes.len()));
            for _ in 0..20 {
                if !bytes.is_empty() {
                    let (at, with) = (next(bytes.len()), b"(){}[]<>%#@=,: 09"[next(16)]);
                    bytes[at] = with;
                }
            }
            String::from_utf8_lossy(&bytes).into_owned()
        });
        let phases = Phases {
            flow: std::mem::take(&mut damaged[0]),
            stream: std::mem::take(&mut damaged[1]),
        };
        count(&phases, &["step", "choice"], usize::MAX);
    }
}
