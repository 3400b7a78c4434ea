//! What is kept and found again; measuring itself is tested on a device, in `tests/tuning.rs`.

use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use halfhitch_seam::{DType, DeviceId};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use super::*;
use crate::compiler::{Cache, Tool};

/// Keeps the text of warnings.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<String>>);

impl Visit for Warnings {
    fn record_debug(&mut self, _: &Field, value: &dyn Debug) {
        *self.0.lock().unwrap() += &format!("{value:?}\n");
    }
}

impl Subscriber for Warnings {
    fn enabled(&self, data: &Metadata<'_>) -> bool {
        *data.level() <= Level::WARN
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        event.record(&mut self.clone());
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

fn answer(rows: usize, name: &'static str) -> TunedContraction {
    TunedContraction {
        form: WeightForm::Dense(DType::F32),
        shape: [rows, 64],
        rows: StepRows::One,
        threads: None,
        representation: RepresentationName::of(name),
        tasks: Some(2),
        microseconds: 1.25,
        untuned_microseconds: Some(1.5),
    }
}

fn identity(device: &str, content: &str) -> Identity {
    let tool = Tool {
        path: "iree-compile".into(),
        version: "3.13.0".into(),
        content: content.into(),
    };
    Identity::new(&DeviceId(device.into()), &Target::host_cpu(), &tool)
}

#[test]
fn answers_are_found_by_whom_they_hold_for() {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::open(&folder.path().join("c"), 1 << 20).unwrap();
    let store = |device, content| Store::new(&cache, identity(device, content));
    let own = store("0", "a");
    own.keep(&answer(128, "words")).unwrap();
    own.keep(&answer(64, "words")).unwrap();
    own.keep(&answer(64, "expand")).unwrap();
    assert_eq!(own.read(), [answer(64, "expand"), answer(128, "words")]);
    assert!(store("1", "a").read().is_empty(), "another device");
    assert!(store("0", "b").read().is_empty(), "another compiler");
    let listed = cache.list().unwrap();
    assert_eq!(listed.len(), 2);
    assert!(listed.iter().all(|e| e.key.starts_with("tuned-")));
    assert!(cache.verify().unwrap().is_empty());
    assert!(cache.clear().unwrap() > 0);
    assert!(own.read().is_empty());
}

#[test]
fn damaged_and_foreign_entries_are_passed_over_with_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("c");
    let cache = Cache::open(&root, 1 << 20).unwrap();
    let store = Store::new(&cache, identity("0", "a"));
    store.keep(&answer(64, "words")).unwrap();
    store.keep(&answer(128, "words")).unwrap();
    let first = cache.list().unwrap().remove(0).key;
    let file = root.join("answers").join(format!("{first}.vmfb"));
    let mut content = std::fs::read(&file).unwrap();
    content[9] ^= 1;
    std::fs::write(&file, content).unwrap();
    cache.put_answer("foreign", b"{\"identity\": 5}").unwrap();
    cache.put_answer("long", &vec![b' '; 70_000]).unwrap();
    let warnings = Warnings::default();
    let read = tracing::subscriber::with_default(warnings.clone(), || store.read());
    assert_eq!(read.len(), 1);
    let text = warnings.0.lock().unwrap().clone();
    for says in ["altered", "invalid type", "too long"] {
        assert!(text.contains(says), "no {says:?} in {text}");
    }
    assert_eq!(cache.verify().unwrap().len(), 1, "the damage is told");
    // Measured anew, it is whole again.
    store.keep(&answer(64, "words")).unwrap();
    store.keep(&answer(128, "words")).unwrap();
    assert_eq!(store.read().len(), 2);
}

fn measured(name: &'static str, untuned: bool, time: Result<f64, &str>) -> Measured {
    Measured {
        representation: RepresentationName::of(name),
        tasks: None,
        untuned,
        microseconds: time.ok(),
        spread: time.ok().map(|_| 1.0),
        failed: time.err().map(ToOwned::to_owned),
    }
}

#[test]
fn what_is_taken_untuned_stays_unless_another_is_clearly_faster() {
    let decide = |untuned, other| {
        let contraction = Contraction {
            resident: Resident {
                ids: vec![WeightId::Embedding],
                rows: vec![64],
                form: WeightForm::Dense(DType::F32),
                shape: vec![64, 64],
                layout: crate::emitter::layout::Layout::Stored,
                tasks: None,
            },
            rows: (1, StepRows::One),
            count: 1,
        };
        let all = vec![
            measured("usual", true, untuned),
            measured("other", false, other),
        ];
        super::answer(&contraction, Some(2), all).map(|r| r.answer.representation.to_string())
    };
    assert_eq!(decide(Ok(10.0), Ok(9.9)).unwrap(), "usual", "noise");
    assert_eq!(decide(Ok(10.0), Ok(8.0)).unwrap(), "other");
    assert_eq!(decide(Ok(8.0), Ok(10.0)).unwrap(), "usual");
    assert_eq!(decide(Err("wrong"), Ok(10.0)).unwrap(), "other");
    assert_eq!(decide(Ok(10.0), Err("wrong")).unwrap(), "usual");
    let e = decide(Err("wrong"), Err("slow")).unwrap_err();
    assert!(e.message.contains("no alternative ran: wrong"), "{e}");
}
