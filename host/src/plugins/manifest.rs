//! What a plugin says of itself without being loaded.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use halfhitch_seam::abi::{ABI_VERSION, PluginHeader, check_whole};
use halfhitch_seam::{ErrorCode, SeamError, SeamResult};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::checkpoint::quote::one_line;

/// How a manifest's file name ends.
pub const SUFFIX: &str = ".plugin.json";

/// Largest manifest that is read, in bytes.
const MAX_BYTES: u64 = 64 * 1024;

/// A plugin's manifest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The backend's name (`xla-iree:local-task`).
    pub name: String,
    /// HAL driver or engine (`local-task`).
    pub driver: String,
    /// File name of the library, in the manifest's folder.
    pub library: String,
    /// The plugin's version.
    pub version: String,
    /// Version of the plugin boundary it was built for, major and minor.
    pub abi: (u16, u16),
    /// Target triple.
    pub target: String,
    /// Versions of what it stands on, by name.
    #[serde(default)]
    pub components: BTreeMap<String, String>,
    /// SHA-256 of the library, in hexadecimal.
    pub sha256: String,
}

impl Manifest {
    /// Reads a manifest.
    ///
    /// # Errors
    /// `Io` where it cannot be read; `InvalidInput` where it is too large or not a manifest.
    pub fn read(path: &Path) -> SeamResult<Self> {
        let mut text = Vec::new();
        File::open(path)
            .and_then(|f| f.take(MAX_BYTES + 1).read_to_end(&mut text))
            .map_err(|e| SeamError::new(ErrorCode::Io, e.to_string()))?;
        Self::parse(&text)
    }

    /// A manifest from the content of its file.
    ///
    /// # Errors
    /// `InvalidInput` where it is too large or not a manifest.
    pub fn parse(text: &[u8]) -> SeamResult<Self> {
        if text.len() as u64 > MAX_BYTES {
            return Err(SeamError::invalid_input(format!(
                "a manifest of over {MAX_BYTES} bytes"
            )));
        }
        serde_json::from_slice(text).map_err(|e| {
            SeamError::invalid_input(format!("not a plugin manifest: {}", one_line(e)))
        })
    }

    /// The manifest of a library that was built for this host.
    ///
    /// # Errors
    /// `Io` where the library cannot be read; `InvalidInput` where its path has no file name;
    /// `Incompatible` where it is cut short.
    pub fn describe(
        library: &Path,
        name: &str,
        driver: &str,
        version: &str,
        components: BTreeMap<String, String>,
    ) -> SeamResult<Self> {
        let file = library
            .file_name()
            .and_then(|f| f.to_str())
            .ok_or_else(|| SeamError::invalid_input("the library's path has no file name"))?;
        check_whole(library)?;
        Ok(Self {
            name: name.into(),
            driver: driver.into(),
            library: file.into(),
            version: version.into(),
            abi: ABI_VERSION,
            target: PluginHeader::CURRENT.triple(),
            components,
            sha256: sha256(library)?,
        })
    }

    /// Checks what can be checked without the library: names, target and ABI.
    ///
    /// # Errors
    /// `InvalidInput` for a malformed name or path; `Incompatible` for another target or ABI.
    pub fn check(&self) -> SeamResult<()> {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        let parts: Vec<&str> = self.name.split(':').collect();
        if parts.len() > 2
            || self.name.len() > 128
            || parts.iter().any(|p| p.is_empty() || !p.chars().all(plain))
        {
            return Err(SeamError::invalid_input(format!(
                "`{}` is not a backend's name",
                self.name.escape_default()
            ))
            .hint("backend or backend:driver, in letters, digits, `-`, `_` and `.`"));
        }
        if self.library.starts_with('.') || !self.library.chars().all(plain) {
            return Err(SeamError::invalid_input(format!(
                "the library `{}` is not a plain file name",
                self.library.escape_default()
            )));
        }
        let target = PluginHeader::CURRENT.triple();
        if self.target != target {
            return Err(SeamError::new(
                ErrorCode::Incompatible,
                format!(
                    "it was built for {}, this host for {target}",
                    self.target.escape_default()
                ),
            ));
        }
        let (major, minor) = self.abi;
        if major != ABI_VERSION.0 || minor > ABI_VERSION.1 {
            return Err(SeamError::new(
                ErrorCode::Incompatible,
                format!(
                    "it was built for plugin ABI {major}.{minor}, this host has {}.{}",
                    ABI_VERSION.0, ABI_VERSION.1
                ),
            )
            .hint("rebuild the plugin with this version of halfhitch"));
        }
        Ok(())
    }
}

/// SHA-256 of a file, in hexadecimal.
///
/// # Errors
/// `Io`.
pub fn sha256(path: &Path) -> SeamResult<String> {
    let io = |e: std::io::Error| SeamError::new(ErrorCode::Io, e.to_string());
    let mut hasher = Sha256::new();
    std::io::copy(&mut File::open(path).map_err(io)?, &mut hasher).map_err(io)?;
    Ok(hasher
        .finalize()
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect())
}

/// How libraries begin: ELF; Mach-O of 64 bits, and of several architectures.
const FORMATS: [[u8; 4]; 3] = [
    *b"\x7fELF",
    [0xcf, 0xfa, 0xed, 0xfe],
    [0xca, 0xfe, 0xba, 0xbe],
];

/// Checks that a file is a library at all, so that it is said here and not when the plugin is loaded.
///
/// # Errors
/// `Io` where it cannot be read; `Incompatible`.
pub fn check_format(path: &Path) -> SeamResult<()> {
    let io = |e: std::io::Error| SeamError::new(ErrorCode::Io, e.to_string());
    let mut first = Vec::new();
    let mut start = File::open(path).map_err(io)?.take(4);
    start.read_to_end(&mut first).map_err(io)?;
    if FORMATS.iter().any(|format| *format == first[..]) {
        return Ok(());
    }
    Err(
        SeamError::new(ErrorCode::Incompatible, "it is not a library")
            .hint("name the file that `cargo build` made of a crate of type cdylib"),
    )
}
