//! The IREE runtime for Halfhitch: devices, programs, buffers and calls.
//!
//! [`ffi`] is `csrc/xla_iree.h`, declaration by declaration. The rest is a safe API over it, and what
//! every other crate uses:
//!
//! * [`Runtime`] lists drivers and devices and opens a [`Device`].
//! * A [`Buffer`] is typed memory of a device: uploaded by copy, *imported* without one, or allocated
//!   and zeroed (a KV cache).
//! * A [`Program`] is compiled code on a device. Loading it is the one `unsafe` step, because compiled
//!   code is native code.
//! * A [`Call`] is one function with its arguments, set once and invoked many times.
//!
//! All handles keep alive what they need, so they may be dropped in any order. Errors are values with
//! IREE's status code and full text; nothing is printed.
//!
//! # Threads
//!
//! [`Runtime`], [`Device`], [`Buffer`] and [`Program`] are [`Send`] and [`Sync`]: the C handles are
//! reference-counted atomically and, as `xla_iree.h` states, usable from several threads at once. A
//! [`Call`] is [`Send`] alone: its functions change it, and an invocation takes the program's lock,
//! because IREE's contexts run one call at a time.

mod buffer;
mod call;
mod device;
mod error;
pub mod ffi;
mod program;
mod runtime;

pub use buffer::{Buffer, DType, Origin, Policy};
pub use call::{Call, Kind};
pub use device::{Device, DeviceInfo, DeviceOptions, MemoryStats};
pub use error::{Code, Error, Result};
pub use program::{Parameter, Program, ProgramSource};
pub use runtime::{LogLevel, LogSink, Runtime};

/// The version of the IREE runtime that is linked in, and of the compiler whose modules it runs.
pub const IREE_VERSION: &str = env!("HALFHITCH_IREE_VERSION");
