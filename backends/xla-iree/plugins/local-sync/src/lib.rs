//! The IREE backend on the `local-sync` driver: the processor, on the calling thread.

use halfhitch_xla_iree::{BackendOptions, XlaIreeBackend};

halfhitch_seam::export_plugin!(|| {
    let backend = XlaIreeBackend::new(BackendOptions::for_driver("local-sync")?)?;
    Ok(Box::new(backend))
});
