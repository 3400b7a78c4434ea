//! Plugins in the registry of backends.

use std::path::PathBuf;
use std::sync::Arc;

use halfhitch_seam::{ComputeBackend, SeamResult};

use super::search::SearchPath;
use super::{Plugin, discover};
use crate::engine::{BackendSource, Provider};

/// A plugin as a provider. One that was refused stays in the list with its reason.
pub struct PluginProvider {
    plugin: Arc<Plugin>,
    backend: String,
    driver: String,
}

impl PluginProvider {
    fn new(plugin: Plugin) -> Self {
        let name = plugin.name();
        let (backend, driver) = match name.split_once(':') {
            Some((backend, driver)) => (backend.to_string(), driver.to_string()),
            None => {
                let driver = plugin.manifest().map(|m| m.driver.clone());
                (name, driver.unwrap_or_default())
            }
        };
        Self {
            plugin: Arc::new(plugin),
            backend,
            driver,
        }
    }
}

impl Provider for PluginProvider {
    fn backend(&self) -> &str {
        &self.backend
    }

    fn driver(&self) -> &str {
        &self.driver
    }

    fn origin(&self) -> String {
        self.plugin.manifest_path().display().to_string()
    }

    fn version(&self) -> Option<String> {
        self.plugin.manifest().map(|m| m.version.clone())
    }

    fn components(&self) -> Vec<(String, String)> {
        let manifest = self.plugin.manifest();
        manifest.map_or_else(Vec::new, |m| m.components.clone().into_iter().collect())
    }

    fn source(&self) -> SeamResult<BackendSource> {
        match self.plugin.refusal() {
            Some(refusal) => Err(refusal.clone()),
            None => Ok(BackendSource::Plugin(
                self.plugin.manifest_path().to_path_buf(),
            )),
        }
    }

    fn open(&self) -> SeamResult<Arc<dyn ComputeBackend>> {
        self.plugin.backend()
    }
}

/// A provider for every plugin that is found: in the folders named, then in the usual ones.
pub fn providers(named: &[PathBuf]) -> Vec<PluginProvider> {
    discover(&SearchPath::new(named))
        .into_iter()
        .map(PluginProvider::new)
        .collect()
}
