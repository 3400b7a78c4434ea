//! The IREE backend on the `metal` driver: Apple's GPUs.

use halfhitch_xla_iree::{BackendOptions, XlaIreeBackend};

halfhitch_seam::export_plugin!(|| {
    let backend = XlaIreeBackend::new(BackendOptions::for_driver("metal")?)?;
    Ok(Box::new(backend))
});
