//! The IREE backend on the `vulkan` driver: GPUs of any make, and software that stands in for one.

use halfhitch_xla_iree::{BackendOptions, XlaIreeBackend};

halfhitch_seam::export_plugin!(|| {
    let backend = XlaIreeBackend::new(BackendOptions::for_driver("vulkan")?)?;
    Ok(Box::new(backend))
});
