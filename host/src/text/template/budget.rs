//! What one rendering may use, counted wherever a template could make something large.
//!
//! Steps of the engine are bounded by its own fuel. But one step can be large (a string doubled
//! again and again, `replace`, a list times a number), so everything a template makes is counted
//! here, before it is made wherever it can be larger than what it is made of.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind};

/// Deepest nesting of lists and dicts. Values are walked and dropped recursively.
pub(super) const MAX_DEPTH: usize = 100;
/// Instructions of the engine, and more of them for each byte that goes in.
const FUEL: u64 = 2_000_000;
const FUEL_PER_INPUT_BYTE: u64 = 4;
/// Text that may be made in all, beside what goes in.
const BASE_BYTES: u64 = 32 << 20;
/// Text that may be made for each byte that goes in.
const BYTES_PER_INPUT_BYTE: u64 = 32;
/// List and dict entries that may be made or looked at in all, and more for each byte that goes in.
const BASE_NODES: u64 = 3_000_000;
const NODES_PER_INPUT_BYTE: u64 = 16;
/// Last resort for work that none of the above foresees.
const MAX_TIME: Duration = Duration::from_secs(10);

/// What is left for one rendering.
#[derive(Debug)]
pub(super) struct Budget {
    fuel: u64,
    bytes: AtomicU64,
    nodes: AtomicU64,
    deadline: Instant,
    /// Message of the template's own `raise_exception`.
    raised: Mutex<Option<String>>,
}

impl Budget {
    /// For a rendering that is given `input` bytes.
    pub(super) fn new(input: usize) -> Self {
        let input = input as u64;
        let scaled = |base: u64, each: u64| base.saturating_add(input.saturating_mul(each));
        Self {
            fuel: scaled(FUEL, FUEL_PER_INPUT_BYTE),
            bytes: AtomicU64::new(scaled(BASE_BYTES, BYTES_PER_INPUT_BYTE)),
            nodes: AtomicU64::new(scaled(BASE_NODES, NODES_PER_INPUT_BYTE)),
            deadline: Instant::now() + MAX_TIME,
            raised: Mutex::new(None),
        }
    }

    /// Instructions that the engine may execute.
    pub(super) fn fuel(&self) -> u64 {
        self.fuel
    }

    /// Takes `n` bytes of text.
    pub(super) fn bytes(&self, n: usize) -> Result<(), Error> {
        take(&self.bytes, n, "makes too much text")
    }

    /// Takes `n` entries of lists or dicts.
    pub(super) fn nodes(&self, n: usize) -> Result<(), Error> {
        take(&self.nodes, n, "makes too many values")
    }

    /// Fails when the time is over.
    pub(super) fn tick(&self) -> Result<(), Error> {
        if Instant::now() > self.deadline {
            return Err(error("runs too long"));
        }
        Ok(())
    }

    /// Counts a value that has been made, all that is in it too. With `fresh`, its text as well.
    pub(super) fn count(&self, value: &Value, fresh: bool) -> Result<(), Error> {
        self.count_at(value, fresh, 0)
    }

    fn count_at(&self, value: &Value, fresh: bool, depth: usize) -> Result<(), Error> {
        self.nodes(1)?;
        if let Some(text) = value.as_str() {
            return if fresh || depth == 0 {
                self.bytes(text.len())
            } else {
                Ok(())
            };
        }
        let Some(object) = value.as_object() else {
            return Ok(());
        };
        if depth > MAX_DEPTH {
            return Err(error("nests lists or dicts too deep"));
        }
        // Namespaces change: one inside another could contain itself.
        if depth > 0 && is_namespace(value) {
            return Err(error("puts a namespace into another value"));
        }
        match value.kind() {
            ValueKind::Map => {
                for (key, item) in object.try_iter_pairs().into_iter().flatten() {
                    self.count_at(&key, fresh, depth + 1)?;
                    self.count_at(&item, fresh, depth + 1)?;
                }
            }
            ValueKind::Seq | ValueKind::Iterable => {
                for item in object.try_iter().into_iter().flatten() {
                    self.count_at(&item, fresh, depth + 1)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Remembers that the template itself refuses to go on.
    pub(super) fn raise(&self, message: String) -> Error {
        let error = Error::new(ErrorKind::InvalidOperation, message.clone());
        if let Ok(mut raised) = self.raised.lock() {
            *raised = Some(message);
        }
        error
    }

    /// The message of `raise_exception`, where that ended the rendering.
    pub(super) fn raised(&self) -> Option<String> {
        self.raised.lock().ok()?.clone()
    }
}

/// An error of the template.
pub(super) fn error(message: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}

/// Whether the value was made by `namespace()`.
pub(super) fn is_namespace(value: &Value) -> bool {
    value
        .as_object()
        .is_some_and(|o| o.type_name().ends_with("::Namespace"))
}

fn take(left: &AtomicU64, n: usize, what: &'static str) -> Result<(), Error> {
    left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
        left.checked_sub(n as u64)
    })
    .map(drop)
    .map_err(|_| error(what))
}
