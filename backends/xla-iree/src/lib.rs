//! Halfhitch's IREE backend, shared by every HAL driver: a model and its plan become StableHLO
//! ([`emitter`]), that becomes native code ([`compiler`]), and a session runs it ([`runtime`]).

pub mod compiler;
pub mod emitter;
pub mod runtime;

pub use runtime::{BackendOptions, CompileAt, XlaIreeBackend};
