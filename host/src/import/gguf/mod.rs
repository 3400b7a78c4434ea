//! Reading GGUF files, version 2 and 3, little-endian.
//!
//! The file is mapped, the header is read into owned values, tensor data stays where it is. Nothing
//! in the file is trusted: every count is bounded by what the file could hold before it sizes
//! anything, and a [`Gguf`] that opened holds only tensors that lie inside the file, aligned and
//! apart from each other. Layout: `ggml/docs/gguf.md` in the llama.cpp sources.

mod cursor;
mod metadata;
mod tensor;

use std::fs::File;
use std::path::Path;

use bytes::Bytes;
use halfhitch_seam::{ErrorCode, ResultExt, SeamError, SeamResult};
use memmap2::Mmap;

pub use metadata::{Metadata, Value};
pub use tensor::{GgmlType, TensorInfo};

use cursor::Cursor;

/// The first four bytes of every GGUF file.
pub const MAGIC: [u8; 4] = *b"GGUF";
const DEFAULT_ALIGNMENT: u32 = 32;
const MAX_ALIGNMENT: u32 = 1 << 16;

/// An opened file.
#[derive(Clone, Debug)]
pub struct Gguf {
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    bytes: Bytes,
}

impl Gguf {
    /// Opens a file.
    ///
    /// # Errors
    /// `NotFound` or `Io` where it cannot be read; `InvalidModel` where it is not a GGUF file or
    /// contradicts itself; `Unsupported` for other versions, byte orders and tensor types. All name
    /// the file.
    pub fn open(path: &Path) -> SeamResult<Self> {
        let read = || {
            let io = |e: std::io::Error| super::folder::io_error("open", &e);
            // Asked before it is opened: opening a named pipe would wait for a writer.
            if !std::fs::metadata(path).map_err(io)?.is_file() {
                return Err(SeamError::invalid_input("not a file"));
            }
            let file = File::open(path).map_err(io)?;
            let meta = file
                .metadata()
                .map_err(|e| super::folder::io_error("read", &e))?;
            if meta.len() == 0 {
                return Err(SeamError::invalid_model("the file is empty"));
            }
            // SAFETY: the mapping is read-only and private to this value. Another process that
            // truncates the file while it is mapped makes reads fault; that cannot be excluded by
            // any reader of mapped files, and the documentation asks not to change models in use.
            let map =
                unsafe { Mmap::map(&file) }.map_err(|e| super::folder::io_error("map", &e))?;
            Self::parse(Bytes::from_owner(map))
        };
        read().in_context(|| path.display().to_string())
    }

    /// Reads a file that is in memory; errors as [`Self::open`], without the file's name.
    ///
    /// # Errors
    /// `InvalidModel`, `Unsupported`.
    pub fn parse(bytes: Bytes) -> SeamResult<Self> {
        let mut cursor = Cursor::new(&bytes);
        if cursor.remaining() < MAGIC.len() || cursor.array()? != MAGIC {
            return Err(SeamError::invalid_model("not a GGUF file"));
        }
        let version = cursor.u32()?;
        match version {
            2 | 3 => {}
            v if matches!(v.swap_bytes(), 1..=3) => {
                return Err(SeamError::unsupported("a big-endian GGUF file"));
            }
            v => {
                return Err(SeamError::unsupported(format!("GGUF version {v}"))
                    .hint("versions 2 and 3 are read; convert the file anew"));
            }
        }
        let (tensor_count, key_count) = (cursor.u64()?, cursor.u64()?);
        let metadata = Metadata::read(&mut cursor, key_count)?;
        let alignment = metadata
            .count("general.alignment", u32::MAX)?
            .unwrap_or(DEFAULT_ALIGNMENT);
        if !alignment.is_power_of_two() || !(8..=MAX_ALIGNMENT).contains(&alignment) {
            return Err(SeamError::invalid_model(format!(
                "key `general.alignment` is {alignment}, not a power of two from 8 to {MAX_ALIGNMENT}"
            )));
        }
        let alignment = alignment as usize;
        let table = tensor::read_table(&mut cursor, tensor_count)?;
        let start = cursor.position().next_multiple_of(alignment);
        let tensors = tensor::place(table, start, bytes.len(), alignment)?;
        Ok(Self {
            metadata,
            tensors,
            bytes,
        })
    }

    /// The metadata.
    pub const fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// All tensors, in the order of their data.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// A tensor's bytes.
    pub fn data(&self, tensor: &TensorInfo) -> &[u8] {
        &self.bytes[tensor.range.clone()]
    }

    /// A key that must be there.
    ///
    /// # Errors
    /// `InvalidModel`, naming it.
    pub fn required<T>(key: &str, value: SeamResult<Option<T>>) -> SeamResult<T> {
        value?.ok_or_else(|| {
            SeamError::new(ErrorCode::InvalidModel, format!("key `{key}` is missing"))
        })
    }
}
