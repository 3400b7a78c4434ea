//! Damaged, contradictory and hostile folders: each is a one-line error that says what and where,
//! without a panic and without a large allocation.

#[path = "../checkpoint_support/mod.rs"]
mod checkpoint_support;
mod files;
mod index;
mod safetensors_files;
mod tensors;

use std::alloc::{GlobalAlloc, Layout, System};
use std::fs::{self, File};
use std::sync::atomic::{AtomicUsize, Ordering};

use checkpoint_support::{Folder, QUANTISED, f32s, serialize, with_header, zeros};
use halfhitch::checkpoint::Checkpoint;
use halfhitch_seam::ErrorCode::{
    self, Cancelled, InvalidInput, InvalidModel, Io, NonFinite, NotFound, Unsupported,
};
use halfhitch_seam::{CancelToken, Control, NoObserver, SeamError};
use safetensors::Dtype;
use serde_json::{Value, json};

/// The system's allocator, which remembers the largest piece that anyone asked for.
struct Watched;

static LARGEST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator with the arguments it came with.
unsafe impl GlobalAlloc for Watched {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise, passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise, passed on; the pointer came from this allocator.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        LARGEST.fetch_max(size, Ordering::Relaxed);
        // SAFETY: the caller's promise, passed on; the pointer came from this allocator.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Watched = Watched;

/// Nothing here needs more than the longest file that a test writes in full.
const MOST_AT_ONCE: usize = 16 << 20;

type Break = fn(&mut Folder);

/// Breaks a good folder and compares the error of opening it: code, and parts of the text.
fn run(cases: &[(&str, Break, ErrorCode, &[&str])]) {
    for (name, spoil, code, texts) in cases {
        let mut folder = Folder::new();
        Checkpoint::open(folder.path()).unwrap();
        spoil(&mut folder);
        let error = match Checkpoint::open(folder.path()) {
            Ok(_) => panic!("{name}: accepted"),
            Err(e) => e,
        };
        check(name, &error, *code, texts);
        let path = folder.path().display().to_string();
        assert!(error.to_string().starts_with(&path), "{name}: {error}");
    }
    let largest = LARGEST.load(Ordering::Relaxed);
    assert!(
        largest < MOST_AT_ONCE,
        "{largest} bytes were allocated at once"
    );
}

fn check(name: &str, error: &SeamError, code: ErrorCode, texts: &[&str]) {
    let text = error.to_string();
    assert_eq!(error.code, code, "{name}: {text}");
    for part in texts {
        assert!(text.contains(part), "{name}: `{part}` is not in: {text}");
    }
    assert!(!text.contains('\n'), "{name}: {text}");
    assert!(text.len() < 900, "{name}: {text}");
}
