//! From what a user names to a device of a backend.

use std::path::Path;
use std::sync::Arc;

use halfhitch_seam::{DeviceCapabilities, ResultExt, SeamResult};
use halfhitch_suite::Subject;

use crate::engine::{Registry, Selection, pick_device};
use crate::plugins::load_file;

/// What is held to the suite.
#[derive(Clone, Copy, Debug)]
pub enum SubjectWish<'a> {
    /// A backend that is listed.
    Listed(&'a Selection),
    /// A plugin that lies anywhere.
    File {
        /// Its library or manifest.
        path: &'a Path,
        /// A device's position or stable id; the first where nothing is said.
        device: Option<&'a str>,
    },
}

/// Opens the backend and finds the device, with what it can do.
///
/// # Errors
/// What selecting or loading says.
pub fn subject(
    wish: SubjectWish<'_>,
    registry: &Registry,
) -> SeamResult<(Subject, DeviceCapabilities)> {
    match wish {
        SubjectWish::Listed(selection) => {
            let target = registry.select(selection)?;
            let device = target.capabilities.device.id.clone();
            Ok((Subject::new(target.backend, device), target.capabilities))
        }
        SubjectWish::File { path, device } => {
            let place = || format!("--plugin {}", path.display());
            let backend = load_file(path).in_context(place)?;
            let devices = backend.devices().in_context(place)?;
            let id = pick_device(&devices, device).in_context(place)?.id.clone();
            let capabilities = backend.capabilities(&id).in_context(place)?;
            Ok((Subject::new(Arc::clone(&backend), id), capabilities))
        }
    }
}
