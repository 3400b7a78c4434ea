//! Tuning a small model on this processor: answers are found, kept, read again and used.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use halfhitch_seam::model::PlainDecoder;
use halfhitch_seam::{
    AffineScheme, Bits, CacheAction, CancelToken, ComputeBackend, Control, DType, DecodeStep,
    ErrorCode, Event, GroupSize, LogitsRequest, NoObserver, Observer, OpenRequest, OutputRequest,
    PlanRequest, SeamResult, Stage, StepRows, TuneReport, TuneRequest, negotiate,
};
use halfhitch_suite::models::{Generated, Storage};
use halfhitch_xla_iree::{BackendOptions, CompileAt, XlaIreeBackend};

fn model() -> Generated {
    let spec = PlainDecoder {
        vocab_size: 192,
        hidden_size: 64,
        intermediate: 64,
        layers: 2,
        heads: 4,
        kv_heads: 2,
        head_dim: 16,
        max_context: 256,
    }
    .spec();
    let scheme = AffineScheme {
        bits: Bits::new(4).unwrap(),
        group_size: GroupSize::new(32).unwrap(),
        scale_dtype: DType::F16,
    };
    Generated::new("tuning", spec, Storage::Affine(scheme)).unwrap()
}

/// A backend whose answers are in `folder`, and whose modules are kept from run to run.
fn backend(folder: &Path) -> XlaIreeBackend {
    let mut options = BackendOptions::for_driver("local-task").expect("options");
    options.workers = 2;
    options.compile_at = CompileAt::FirstUse;
    let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join("modules");
    std::fs::create_dir_all(kept.join("modules")).unwrap();
    // The folder's own modules are the ones that are kept, linked in.
    std::fs::create_dir_all(folder).unwrap();
    if !folder.join("modules").exists() {
        std::os::unix::fs::symlink(kept.join("modules"), folder.join("modules")).unwrap();
    }
    options.compiler.cache = Some(folder.to_owned());
    XlaIreeBackend::new(options).unwrap()
}

fn request(backend: &XlaIreeBackend, model: &Generated) -> TuneRequest {
    TuneRequest {
        device: backend.devices().unwrap().remove(0).id,
        model: model.spec.clone(),
        weights: model.weights.manifest(),
        wishes: PlanRequest {
            threads: Some(2),
            ..PlanRequest::default()
        },
        repeats: 3,
    }
}

fn tune(backend: &XlaIreeBackend, model: &Generated) -> SeamResult<TuneReport> {
    let cancel = CancelToken::new();
    let control = Control {
        cancel: &cancel,
        observer: &NoObserver,
    };
    Ok(backend
        .tune(&request(backend, model), &control)?
        .expect("something to tune"))
}

/// What follows three tokens, with the plan of this moment.
fn logits(backend: &XlaIreeBackend, model: &Generated) -> Vec<f32> {
    let request = request(backend, model);
    let capabilities = backend.capabilities(&request.device).unwrap();
    let plan = negotiate(
        &model.spec,
        &request.weights,
        &capabilities,
        &request.wishes,
    )
    .unwrap();
    let cancel = CancelToken::new();
    let control = Control {
        cancel: &cancel,
        observer: &NoObserver,
    };
    let mut session = backend
        .open(OpenRequest {
            plan: &plan,
            model: &model.spec,
            weights: &model.weights,
            control,
        })
        .unwrap();
    let sequence = session.create_sequence().unwrap();
    let output = OutputRequest {
        logits: LogitsRequest::Last,
        ..OutputRequest::default()
    };
    session
        .prefill(sequence, &[1, 2], output, &control)
        .unwrap();
    let step = DecodeStep { sequence, token: 3 };
    session.decode(&[step], output).unwrap().remove(0).logits
}

#[test]
fn answers_are_found_kept_read_again_and_used() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("cache");
    let model = model();
    let untuned = logits(&backend(&folder), &model);
    let report = tune(&backend(&folder), &model).unwrap();
    assert!(report.kept);
    // Joined queries, keys and values; output; gate and up; head. Down is shaped as output is.
    let decode = report
        .results
        .iter()
        .filter(|r| r.answer.rows == StepRows::One);
    let mut shapes: Vec<([usize; 2], usize)> = decode.map(|r| (r.answer.shape, r.count)).collect();
    shapes.sort_unstable();
    assert_eq!(shapes, [([64, 64], 4), ([128, 64], 4), ([192, 64], 1)]);
    for result in &report.results {
        assert!(result.measured.len() > 1);
        for m in &result.measured {
            assert_eq!(m.failed, None, "{result:?}");
            assert!(m.microseconds.unwrap() > 0.0);
        }
        assert_eq!(result.measured.iter().filter(|m| m.untuned).count(), 1);
    }
    // Another process finds them, in its plan and in its cache.
    let later = backend(&folder);
    let request = request(&later, &model);
    let capabilities = later.capabilities(&request.device).unwrap();
    let plan = negotiate(
        &model.spec,
        &request.weights,
        &capabilities,
        &request.wishes,
    )
    .unwrap();
    assert_eq!(plan.tuned.len(), report.results.len());
    for result in &report.results {
        let answer = &result.answer;
        assert_eq!(
            plan.tuned(answer.form, answer.shape, answer.rows),
            Some(answer)
        );
    }
    assert!(plan.to_string().contains("tuned       "), "{plan}");
    let cache = later.cache(CacheAction::List).unwrap().unwrap();
    let kept = cache.entries.iter().filter(|e| e.key.starts_with("tuned-"));
    assert_eq!(kept.count(), report.results.len());
    // What is computed stays the same.
    let tuned = logits(&later, &model);
    for (a, b) in tuned.iter().zip(&untuned) {
        assert!((a - b).abs() < 1e-3, "{a} {b}");
    }
    // A damaged one is passed over, and the table stands in for it.
    let entry = std::fs::read_dir(folder.join("answers")).unwrap().next();
    let file = entry.unwrap().unwrap().path();
    std::fs::write(&file, b"nothing").unwrap();
    let capabilities = later.capabilities(&request.device).unwrap();
    assert_eq!(capabilities.tuned.len(), report.results.len() - 1);
    let damaged = logits(&later, &model);
    for (a, b) in damaged.iter().zip(&untuned) {
        assert!((a - b).abs() < 1e-3, "{a} {b}");
    }
}

/// Cancels when so many measurements are done.
struct CancelAfter<'a>(u64, &'a CancelToken, AtomicU64);

impl Observer for CancelAfter<'_> {
    fn on_event(&self, event: Event) {
        if let Event::Progress {
            stage: Stage::Tune,
            done,
            ..
        } = event
        {
            self.2.store(done, Ordering::Relaxed);
            if done >= self.0 {
                self.1.cancel();
            }
        }
    }
}

#[test]
fn tuning_is_cancelled_between_measurements() {
    let folder = tempfile::tempdir().unwrap();
    let backend = backend(&folder.path().join("cache"));
    let cancel = CancelToken::new();
    let observer = CancelAfter(2, &cancel, AtomicU64::new(0));
    let control = Control {
        cancel: &cancel,
        observer: &observer,
    };
    let request = request(&backend, &model());
    let e = backend.tune(&request, &control).unwrap_err();
    assert_eq!(e.code, ErrorCode::Cancelled);
    assert_eq!(observer.2.load(Ordering::Relaxed), 2, "not one more");
}

#[test]
fn no_repeats_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let backend = backend(&folder.path().join("cache"));
    let mut request = request(&backend, &model());
    let cancel = CancelToken::new();
    let control = Control {
        cancel: &cancel,
        observer: &NoObserver,
    };
    for repeats in [0, 1001] {
        request.repeats = repeats;
        let e = backend.tune(&request, &control).unwrap_err();
        assert_eq!(e.code, ErrorCode::InvalidInput);
    }
}
