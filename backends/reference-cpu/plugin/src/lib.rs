//! The reference backend as a plugin: the same code behind the boundary, so that the boundary itself
//! can be tested against it.

use halfhitch_reference_cpu::ReferenceCpu;
use halfhitch_seam::{
    BackendIdentity, ComputeBackend, DeviceCapabilities, DeviceId, DeviceInfo, OpenRequest,
    SeamResult, Session,
};

struct Plugin(ReferenceCpu);

impl ComputeBackend for Plugin {
    fn identity(&self) -> BackendIdentity {
        BackendIdentity {
            name: "reference-cpu-plugin".into(),
            ..self.0.identity()
        }
    }

    fn devices(&self) -> SeamResult<Vec<DeviceInfo>> {
        self.0.devices()
    }

    fn capabilities(&self, device: &DeviceId) -> SeamResult<DeviceCapabilities> {
        self.0.capabilities(device)
    }

    fn open(&self, request: OpenRequest<'_>) -> SeamResult<Box<dyn Session>> {
        self.0.open(request)
    }
}

halfhitch_seam::export_plugin!(|| Ok(Box::new(Plugin(ReferenceCpu::new()))));
