//! The IREE backend on the `cuda` driver: NVIDIA's GPUs.

use halfhitch_xla_iree::{BackendOptions, XlaIreeBackend};

halfhitch_seam::export_plugin!(|| {
    let backend = XlaIreeBackend::new(BackendOptions::for_driver("cuda")?)?;
    Ok(Box::new(backend))
});
