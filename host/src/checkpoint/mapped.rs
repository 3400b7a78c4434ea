//! Files that are mapped into memory, and where mapped bytes come from.
//!
//! Weights are views of mapped files, and nothing in a view says so. Whoever must hand a weight to
//! another process asks [`containing`] for the file and the place in it, and passes the file on in place
//! of its bytes.

use std::fs::File;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use halfhitch_seam::{ErrorCode, SeamError, SeamResult};
use memmap2::Mmap;
use parking_lot::Mutex;

/// A file and its bytes, read-only.
#[derive(Debug)]
pub struct MappedFile {
    map: Mmap,
    file: File,
}

/// Every mapped file that is still in use.
static ALL: Mutex<Vec<Weak<MappedFile>>> = Mutex::new(Vec::new());

impl MappedFile {
    /// Maps a whole file that is open for reading.
    ///
    /// # Errors
    /// `Io`.
    pub fn new(file: File) -> SeamResult<Arc<Self>> {
        // SAFETY: the map is read-only and is only ever read as plain bytes, of which every value is
        // valid. Rust wants them not to change under a shared reference; that another program does not
        // write to the file cannot be enforced on the systems we run on. It is the documented condition
        // of opening a checkpoint (see the parent module), the same as for any program that maps
        // weights. No decision about memory rests on reading a byte twice: headers are parsed once,
        // into owned values, and slices are bounded by the map's length, which does not change.
        let map = unsafe { Mmap::map(&file) }
            .map_err(|e| SeamError::new(ErrorCode::Io, format!("mapping failed: {e}")))?;
        let mapped = Arc::new(Self { map, file });
        let mut all = ALL.lock();
        all.retain(|other| other.strong_count() > 0);
        all.push(Arc::downgrade(&mapped));
        Ok(mapped)
    }

    /// All bytes. They share the map, and live as long as any view of them.
    pub fn bytes(self: &Arc<Self>) -> Bytes {
        Bytes::from_owner(View(Arc::clone(self)))
    }

    /// The file.
    pub const fn file(&self) -> &File {
        &self.file
    }

    /// Gives back what the file takes of this process's memory. What is read again comes from the
    /// system's cache, or the file.
    pub fn release_pages(&self) {
        #[cfg(unix)]
        {
            use memmap2::UncheckedAdvice::DontNeed;
            // SAFETY: the map is a read-only view of a file: its pages have no content of their own that
            // could be lost.
            if let Err(e) = unsafe { self.map.unchecked_advise(DontNeed) } {
                tracing::debug!("pages stay: {e}");
            }
        }
    }

    /// Where `bytes` begin in the file, where they are of this map.
    fn offset_of(&self, bytes: &[u8]) -> Option<usize> {
        let offset = (bytes.as_ptr() as usize).checked_sub(self.map.as_ptr() as usize)?;
        (offset.checked_add(bytes.len())? <= self.map.len()).then_some(offset)
    }
}

struct View(Arc<MappedFile>);

impl AsRef<[u8]> for View {
    fn as_ref(&self) -> &[u8] {
        &self.0.map
    }
}

/// The mapped file that `bytes` are of, and where they begin in it; nothing for bytes of no file and for
/// none at all.
pub fn containing(bytes: &[u8]) -> Option<(Arc<MappedFile>, usize)> {
    if bytes.is_empty() {
        return None;
    }
    let all = ALL.lock();
    all.iter().filter_map(Weak::upgrade).find_map(|file| {
        let offset = file.offset_of(bytes)?;
        Some((file, offset))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    #[test]
    fn mapped_bytes_lead_to_their_file_and_others_to_none() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[7; 100]).unwrap();
        let mapped = MappedFile::new(file).unwrap();
        let bytes = mapped.bytes();
        let (found, offset) = containing(&bytes.slice(30..80)).unwrap();
        assert!(Arc::ptr_eq(&found, &mapped));
        assert_eq!(offset, 30);
        assert!(containing(&[1, 2, 3]).is_none());
        assert!(containing(&bytes.slice(30..30)).is_none());
        assert_eq!(mapped.offset_of(&bytes), Some(0));
    }
}
