//! Weights that are used in their stored layout and lie aligned in a mapped file are used where they are: opening a model adds next to
//! nothing to the process's own memory, and steps leave the file alone.
//!
//! One test in a process of its own: it measures the memory of the whole.
#![cfg(target_os = "linux")]

mod common;

use std::fs::File;
use std::io::Write;
use std::path::Path;

use bytes::Bytes;
use common::control;
use halfhitch_seam::model::FeedForward;
use halfhitch_seam::{
    CancelToken, ComputeBackend, DType, DecodeStep, OpenRequest, OutputRequest, PlanRequest,
    Tensor, Weight, Weights, negotiate,
};
use halfhitch_suite::models::{Generated, Storage, plain_spec};
use halfhitch_xla_iree::{BackendOptions, CompileAt, XlaIreeBackend};

fn model() -> Generated {
    let mut spec = plain_spec();
    // No rows fill blocks: what is laid out anew cannot be used where it lies.
    spec.hidden_size = 510;
    // So large that the allocator keeps nothing of it when it is let go.
    spec.vocab_size = 18_431;
    for layer in &mut spec.layers {
        if let FeedForward::Gated(mlp) = &mut layer.feed_forward {
            mlp.intermediate = 2046;
        }
    }
    Generated::new("large", spec, Storage::Dense(DType::F32)).unwrap()
}

/// Memory of the process that is no file's.
fn anonymous() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find_map(|l| l.strip_prefix("RssAnon:"))
        .unwrap();
    let kib: u64 = line
        .trim()
        .strip_suffix("kB")
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    kib * 1024
}

/// Writes all weights one after the other, each at an offset that is `skew` over a multiple of 64.
fn file_of(weights: &Weights, skew: usize) -> (File, Vec<usize>) {
    let mut file = tempfile::tempfile_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (mut at, mut offsets) = (0usize, Vec::new());
    for (_, weight) in weights.iter() {
        let Weight::Dense(tensor) = weight else {
            panic!("a dense model")
        };
        let start = at.next_multiple_of(64) + skew;
        file.write_all(&vec![0; start - at]).unwrap();
        file.write_all(tensor.bytes()).unwrap();
        offsets.push(start);
        at = start + tensor.bytes().len();
    }
    (file, offsets)
}

/// The same weights as views of a read-only map.
fn mapped(weights: &Weights, bytes: &Bytes, offsets: &[usize]) -> Weights {
    let views = weights.iter().zip(offsets).map(|((id, weight), &start)| {
        let Weight::Dense(t) = weight else {
            panic!("a dense model")
        };
        let content = bytes.slice(start..start + t.bytes().len());
        let tensor = Tensor::new(t.dtype(), t.shape().to_vec(), content).unwrap();
        (id, Weight::Dense(tensor))
    });
    views.collect()
}

/// Opens a model and runs some steps: the bytes that opening added, and the last logits.
fn run(
    backend: &XlaIreeBackend,
    spec: &halfhitch_seam::ModelSpec,
    weights: &Weights,
) -> (u64, Vec<f32>) {
    let device = backend.devices().unwrap().remove(0).id;
    let capabilities = backend.capabilities(&device).unwrap();
    let request = PlanRequest::default();
    let plan = negotiate(spec, &weights.manifest(), &capabilities, &request).unwrap();
    let cancel = CancelToken::new();
    let before = anonymous();
    let mut session = backend
        .open(OpenRequest {
            plan: &plan,
            model: spec,
            weights,
            control: control(&cancel),
        })
        .unwrap();
    let added = anonymous().saturating_sub(before);
    let sequence = session.create_sequence().unwrap();
    let mut logits = Vec::new();
    for token in 0..12 {
        let step = DecodeStep { sequence, token };
        logits = session
            .decode(&[step], OutputRequest::LOGITS)
            .unwrap()
            .remove(0)
            .logits;
    }
    (added, logits)
}

#[test]
fn aligned_weights_are_not_copied_and_never_written() {
    let model = model();
    let total: u64 = model
        .weights
        .iter()
        .map(|(_, w)| {
            if let Weight::Dense(t) = w {
                t.bytes().len() as u64
            } else {
                0
            }
        })
        .sum();
    for driver in ["local-task", "local-sync"] {
        let mut options = BackendOptions::for_driver(driver).expect("options");
        options.compiler.cache = Some(Path::new(env!("CARGO_TARGET_TMPDIR")).join("modules"));
        options.compile_at = CompileAt::FirstUse;
        let backend = XlaIreeBackend::new(options).unwrap();
        let mut logits = Vec::new();
        for (skew, copied) in [(0, false), (4, true)] {
            let (file, offsets) = file_of(&model.weights, skew);
            // SAFETY: the file has no name, so nobody else changes it.
            let map = unsafe { memmap2::Mmap::map(&file) }.unwrap();
            let bytes = Bytes::from_owner(map);
            let content = bytes.to_vec();
            let weights = mapped(&model.weights, &bytes, &offsets);
            let (added, last) = run(&backend, &model.spec, &weights);
            // What is not aligned must be copied, which shows that the figure means something.
            let as_it_should = match copied {
                false => added < total / 8,
                true => added > total / 2,
            };
            assert!(
                as_it_should,
                "{driver}, skew {skew}: {added} bytes of {total}"
            );
            assert!(bytes == content, "{driver}: a step wrote into the file");
            logits.push(last);
        }
        assert_eq!(logits[0], logits[1], "{driver}");
    }
}
