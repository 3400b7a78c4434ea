//! Sessions: a compiled model, its weights and caches on a device.

pub mod capabilities;
