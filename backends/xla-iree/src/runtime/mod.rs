//! Sessions: a compiled model, its weights and caches on a device.

mod backend;
mod cache;
pub mod capabilities;
pub mod defaults;
mod error;
mod function;
mod graph;
mod lanes;
mod memory;
mod outputs;
mod selftest;
mod session;
mod steps;
mod tune;
mod upload;

pub use backend::{BackendOptions, CompileAt, XlaIreeBackend};
pub use session::XlaIreeSession;
