//! Packed words on their way to a GPU: each row's groups side by side.

use bytes::Bytes;
use halfhitch_seam::{ErrorCode, SeamError, SeamResult, Weight};
use rayon::prelude::*;

use super::upload::affine_parts;
use crate::emitter::layout::WeightPart;
use crate::emitter::resident::Resident;

/// A part of packed weights, one below the other, in
/// [`Layout::Lanes`](crate::emitter::layout::Layout::Lanes): words transposed within a row, scales and
/// biases as they are.
///
/// # Errors
/// `Unsupported` where a weight has another form than was planned; `OutOfMemory`.
pub fn lanes(of: &[&Weight], resident: &Resident, part: WeightPart) -> SeamResult<Bytes> {
    let parts = affine_parts(of, resident, part)?;
    let rows: Vec<&[u8]> = parts
        .iter()
        .flat_map(|t| t.bytes().chunks_exact(t.bytes().len() / t.shape()[0]))
        .collect();
    if part != WeightPart::Words {
        if let [one] = parts[..] {
            return Ok(one.bytes().clone());
        }
        return Ok(rows.concat().into());
    }
    let words = resident
        .tensors()
        .into_iter()
        .find(|t| t.part == part)
        .map_or(1, |t| t.shape[1]);
    transposed(&rows, words)
}

/// Rows of u32 `[groups, words]` as rows of `[words, groups]`.
fn transposed(rows: &[&[u8]], words: usize) -> SeamResult<Bytes> {
    let width = rows.first().map_or(0, |row| row.len());
    let groups = width / 4 / words;
    let mut out = Vec::new();
    let size = rows.len() * width;
    out.try_reserve_exact(size).map_err(|_| {
        SeamError::new(
            ErrorCode::OutOfMemory,
            format!("no memory for {size} bytes of a weight"),
        )
    })?;
    out.resize(size, 0u8);
    out.par_chunks_exact_mut(width.max(1))
        .zip(rows)
        .for_each(|(out, row)| {
            for (i, word) in row.chunks_exact(4).enumerate() {
                let at = (i % words * groups + i / words) * 4;
                out[at..at + 4].copy_from_slice(word);
            }
        });
    Ok(out.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rows_groups_come_to_lie_side_by_side() {
        let row =
            |start: u32| -> Vec<u8> { (start..start + 6).flat_map(u32::to_le_bytes).collect() };
        let (first, second) = (row(0), row(10));
        let out = transposed(&[&first, &second], 2).unwrap();
        let out: Vec<u32> = out
            .chunks_exact(4)
            .map(bytemuck::pod_read_unaligned)
            .collect();
        assert_eq!(out, [0, 2, 4, 1, 3, 5, 10, 12, 14, 11, 13, 15]);
        assert!(transposed(&[], 4).unwrap().is_empty());
    }
}
