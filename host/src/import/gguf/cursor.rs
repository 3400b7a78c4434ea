//! Little-endian reading with every length checked.

use halfhitch_seam::{SeamError, SeamResult};

/// A position in bytes that nobody vouches for.
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Bytes from the start of the file.
    pub(super) const fn position(&self) -> usize {
        self.at
    }

    /// Bytes that are left.
    pub(super) const fn remaining(&self) -> usize {
        self.bytes.len() - self.at
    }

    pub(super) fn take(&mut self, n: usize) -> SeamResult<&'a [u8]> {
        let part = self.bytes[self.at..].get(..n).ok_or_else(|| {
            SeamError::invalid_model(format!(
                "the file ends at byte {}, in the middle of something of {n} bytes that starts at byte {}",
                self.bytes.len(),
                self.at
            ))
        })?;
        self.at += n;
        Ok(part)
    }

    pub(super) fn array<const N: usize>(&mut self) -> SeamResult<[u8; N]> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N)?);
        Ok(out)
    }

    pub(super) fn u32(&mut self) -> SeamResult<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> SeamResult<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// A string of at most `limit` bytes: a u64 length, then UTF-8.
    pub(super) fn string(&mut self, limit: usize) -> SeamResult<&'a str> {
        let start = self.at;
        let len = self.u64()?;
        let len = usize::try_from(len)
            .ok()
            .filter(|&n| n <= limit && n <= self.remaining())
            .ok_or_else(|| {
                SeamError::invalid_model(format!(
                    "the string at byte {start} claims {len} bytes; at most {} fit",
                    limit.min(self.remaining())
                ))
            })?;
        std::str::from_utf8(self.take(len)?).map_err(|_| {
            SeamError::invalid_model(format!("the string at byte {start} is not UTF-8"))
        })
    }
}
