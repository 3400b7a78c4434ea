//! The IREE backend on the `local-task` driver: the processor's cores, by IREE's task system.

use halfhitch_xla_iree::{BackendOptions, XlaIreeBackend};

halfhitch_seam::export_plugin!(|| {
    let backend = XlaIreeBackend::new(BackendOptions::for_driver("local-task")?)?;
    Ok(Box::new(backend))
});
