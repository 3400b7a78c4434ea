//! Whether a library's file is whole, before the system's loader maps it.
//!
//! The loader takes a file's own word for where its segments lie. In a file that was cut short a page of
//! one lies past the end, and touching it is a bus error, which ends the process. Fields and their places
//! are those of the System V ABI's ELF header and program header.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use crate::error::{ErrorCode, SeamError, SeamResult};

const MAGIC: &[u8] = b"\x7fELF";
const HEADER: usize = 64;
/// Bytes of a program header of 64 bits.
const ENTRY: usize = 56;
/// More segments than a linker makes.
const MOST_ENTRIES: usize = 1024;

/// Checks that an ELF library of 64 bits, least significant byte first, has every byte that its segments
/// name. A file of another format is for its loader to judge.
///
/// # Errors
/// `Io` where it cannot be read; `Incompatible` where it is cut short or a header contradicts itself.
pub fn check_whole(path: &Path) -> SeamResult<()> {
    let cannot = |e: io::Error| SeamError::new(ErrorCode::Io, format!("it cannot be read: {e}"));
    let meta = std::fs::metadata(path).map_err(cannot)?;
    if !meta.is_file() {
        // Opening a pipe would wait for its writer.
        return Err(SeamError::new(ErrorCode::Incompatible, "it is not a file"));
    }
    let length = meta.len();
    let mut file = File::open(path).map_err(cannot)?;
    let mut header = Vec::new();
    let mut start = file.by_ref().take(HEADER as u64);
    start.read_to_end(&mut header).map_err(cannot)?;
    if !header.starts_with(MAGIC) {
        return Ok(());
    }
    // Class 2 is 64 bits, data 1 is least significant byte first.
    if header.len() == HEADER && (header[4], header[5]) != (2, 1) {
        return Ok(());
    }
    let needs = segments(&mut file, &header, length).map_err(cannot)?;
    match needs {
        Some(needs) if needs <= length => Ok(()),
        Some(needs) => Err(cut(format!(
            "it has {length} bytes, and its segments {needs}"
        ))),
        None => Err(cut("its headers are not in it".to_owned())),
    }
}

fn cut(message: String) -> SeamError {
    SeamError::new(ErrorCode::Incompatible, message)
        .hint("the library was cut short; copy it again")
}

/// Where the last segment ends; nothing where the headers themselves lie outside.
fn segments(file: &mut File, header: &[u8], length: u64) -> io::Result<Option<u64>> {
    let (Some(at), Some(size), Some(count)) = (
        number::<8>(header, 32),
        number::<2>(header, 54),
        number::<2>(header, 56),
    ) else {
        return Ok(None);
    };
    let (size, count) = (size as usize, count as usize);
    let table = (size * count) as u64;
    let inside = at.checked_add(table).is_some_and(|end| end <= length);
    if !inside || size < ENTRY || count > MOST_ENTRIES {
        return Ok(None);
    }
    file.seek(SeekFrom::Start(at))?;
    let mut entries = vec![0; size * count];
    file.read_exact(&mut entries)?;
    let ends = entries.chunks_exact(size).map(|entry| {
        // The segment's place in the file, and its bytes there.
        let (offset, bytes) = (number::<8>(entry, 8)?, number::<8>(entry, 32)?);
        offset.checked_add(bytes)
    });
    Ok(ends
        .collect::<Option<Vec<u64>>>()
        .map(|all| all.into_iter().max().unwrap_or(0)))
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<u64> {
    let part = bytes.get(at..at + N)?;
    let mut wide = [0; 8];
    wide[..N].copy_from_slice(part);
    Some(u64::from_le_bytes(wide))
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_whole_and_any_start_of_it_is_not() {
        let own = std::env::current_exe().unwrap();
        check_whole(&own).unwrap();
        let mut bytes = Vec::new();
        File::open(&own)
            .unwrap()
            .take(4 << 20)
            .read_to_end(&mut bytes)
            .unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("part");
        for length in [4, 5, 63, 64, 65, 4096, 5000, 100_000] {
            std::fs::write(&path, &bytes[..length]).unwrap();
            let e = check_whole(&path).unwrap_err();
            assert_eq!(e.code, ErrorCode::Incompatible, "{length}: {e}");
        }
        std::fs::write(&path, "").unwrap();
        check_whole(&path).unwrap();
    }

    #[test]
    fn numbers_that_overflow_are_told() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("wrong");
        let mut header = vec![0xff; 200];
        header[..6].copy_from_slice(b"\x7fELF\x02\x01");
        std::fs::write(&path, &header).unwrap();
        assert!(check_whole(&path).is_err());
        // One entry behind the header, whose end is past any file.
        header[32..40].copy_from_slice(&64u64.to_le_bytes());
        header[54..56].copy_from_slice(&56u16.to_le_bytes());
        header[56..58].copy_from_slice(&1u16.to_le_bytes());
        std::fs::write(&path, &header).unwrap();
        assert!(check_whole(&path).is_err());
    }
}
