//! The plain header symbol: who a plugin is, before anything of it is trusted or called.

use crate::error::{ErrorCode, SeamError, SeamResult};

/// Name of the symbol.
pub const HEADER_SYMBOL: &str = "halfhitch_plugin_header";

/// First bytes of a header.
pub const MAGIC: [u8; 8] = *b"HLFHITCH";

/// Version of the boundary. A plugin loads where the major versions are equal and its minor version
/// is not newer than the host's.
///
/// 1.1 added intermediate results (`tap`).
pub const ABI_VERSION: (u16, u16) = (1, 1);

/// Panics unwind, so that an entry can catch them.
pub const PANIC_UNWIND: u8 = 0;
/// Panics abort the process; refused.
pub const PANIC_ABORT: u8 = 1;

/// What `halfhitch_plugin_header` points at. Its layout never changes; later versions only append,
/// and `struct_size` tells how much is there.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PluginHeader {
    /// [`MAGIC`].
    pub magic: [u8; 8],
    /// `size_of::<PluginHeader>()` of whoever built it.
    pub struct_size: u32,
    /// Major version of the boundary.
    pub abi_major: u16,
    /// Minor version of the boundary.
    pub abi_minor: u16,
    /// [`PANIC_UNWIND`] or [`PANIC_ABORT`].
    pub panic_strategy: u8,
    /// Zero.
    pub reserved: [u8; 7],
    /// Target triple, padded with zeros.
    pub triple: [u8; 64],
}

impl PluginHeader {
    /// The header of whatever is being compiled.
    pub const CURRENT: Self = Self {
        magic: MAGIC,
        struct_size: size_of::<Self>() as u32,
        abi_major: ABI_VERSION.0,
        abi_minor: ABI_VERSION.1,
        panic_strategy: if cfg!(panic = "abort") {
            PANIC_ABORT
        } else {
            PANIC_UNWIND
        },
        reserved: [0; 7],
        triple: padded(env!("HALFHITCH_TARGET")),
    };

    /// Reads a header that may have been built by another version.
    ///
    /// # Errors
    /// `Incompatible` where it is none, or too short.
    ///
    /// # Safety
    /// `header` points at `struct_size` readable bytes, and at no fewer than the first two fields.
    pub unsafe fn read(header: *const Self) -> SeamResult<Self> {
        // SAFETY: the first two fields are there in every version.
        let (magic, size) = unsafe {
            (
                (&raw const (*header).magic).read_unaligned(),
                (&raw const (*header).struct_size).read_unaligned(),
            )
        };
        if magic != MAGIC {
            return Err(SeamError::new(
                ErrorCode::Incompatible,
                "its header is not a Halfhitch plugin's",
            )
            .hint("remove the file or rebuild it"));
        }
        if (size as usize) < size_of::<Self>() {
            return Err(SeamError::new(
                ErrorCode::Incompatible,
                format!("its header has {size} bytes"),
            )
            .hint("rebuild the plugin"));
        }
        // SAFETY: all of this version's fields are there.
        Ok(unsafe { header.read_unaligned() })
    }

    /// The triple as text.
    pub fn triple(&self) -> String {
        let end = self.triple.iter().position(|&b| b == 0);
        String::from_utf8_lossy(&self.triple[..end.unwrap_or(self.triple.len())]).into_owned()
    }

    /// Whether this host can load what has this header.
    ///
    /// # Errors
    /// `Incompatible`, naming both sides and what to do.
    pub fn check(&self) -> SeamResult<()> {
        let host = Self::CURRENT;
        let incompatible = |message: String, hint: &str| {
            Err(SeamError::new(ErrorCode::Incompatible, message).hint(hint))
        };
        if self.abi_major != host.abi_major || self.abi_minor > host.abi_minor {
            return incompatible(
                format!(
                    "it was built for plugin ABI {}.{}, this host has {}.{}",
                    self.abi_major, self.abi_minor, host.abi_major, host.abi_minor
                ),
                "rebuild the plugin with this version of halfhitch",
            );
        }
        if self.triple != host.triple {
            return incompatible(
                format!(
                    "it was built for {}, this host for {}",
                    self.triple(),
                    host.triple()
                ),
                "rebuild the plugin for this machine",
            );
        }
        if self.panic_strategy != PANIC_UNWIND {
            return incompatible(
                "it was built with panic=abort".into(),
                "rebuild it with panic=unwind, so that its failures stay its own",
            );
        }
        Ok(())
    }
}

const fn padded(text: &str) -> [u8; 64] {
    let bytes = text.as_bytes();
    assert!(bytes.len() < 64);
    let mut out = [0; 64];
    let mut i = 0;
    while i < bytes.len() {
        out[i] = bytes[i];
        i += 1;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    type Change = fn(&mut PluginHeader);

    #[test]
    fn the_layout_is_fixed() {
        assert_eq!(size_of::<PluginHeader>(), 88);
        assert_eq!(std::mem::offset_of!(PluginHeader, triple), 24);
    }

    #[test]
    fn each_mismatch_is_named() {
        let cases: &[(Change, &str)] = &[
            (|h| h.abi_major += 1, "ABI 2.1, this host has 1.1"),
            (|h| h.abi_minor += 1, "ABI 1.2"),
            (|h| h.triple = padded("riscv64-unknown-none"), "riscv64"),
            (|h| h.panic_strategy = PANIC_ABORT, "panic=abort"),
        ];
        PluginHeader::CURRENT.check().unwrap();
        for (change, says) in cases {
            let mut header = PluginHeader::CURRENT;
            change(&mut header);
            let e = header.check().unwrap_err();
            assert_eq!(e.code, ErrorCode::Incompatible);
            assert!(e.message.contains(says), "{e}");
        }
    }

    #[test]
    fn what_is_no_header_is_not_read_as_one() {
        let cases: &[(Change, &str)] = &[
            (|h| h.magic = *b"SOMETHIN", "not a Halfhitch plugin"),
            (|h| h.struct_size = 8, "8 bytes"),
        ];
        for (change, says) in cases {
            let mut header = PluginHeader::CURRENT;
            change(&mut header);
            // SAFETY: a whole header is there, whatever it says.
            let e = unsafe { PluginHeader::read(&header) }.unwrap_err();
            assert!(e.message.contains(says), "{e}");
        }
    }
}
