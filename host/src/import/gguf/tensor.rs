//! The tensor table of a GGUF file.

use std::collections::HashSet;
use std::fmt;
use std::ops::Range;

use halfhitch_seam::{ErrorCode, ResultExt, SeamError, SeamResult};

use super::cursor::Cursor;

/// More tensors than any real file has by an order of magnitude.
const MAX_TENSORS: u64 = 1 << 16;
/// Twice what ggml itself allows.
const MAX_NAME_BYTES: usize = 128;
const MAX_DIMENSIONS: u32 = 4;

/// An element type that converts without loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(non_camel_case_types, missing_docs)] // ggml's own names
pub enum GgmlType {
    F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
}

impl GgmlType {
    /// Reads ggml's number of a type.
    ///
    /// # Errors
    /// `Unsupported` for a type that is known and not exactly affine, `InvalidModel` for a number
    /// that means nothing.
    pub fn from_number(number: u32) -> SeamResult<Self> {
        let refused = match number {
            0 => return Ok(Self::F32),
            1 => return Ok(Self::F16),
            2 => return Ok(Self::Q4_0),
            3 => return Ok(Self::Q4_1),
            6 => return Ok(Self::Q5_0),
            7 => return Ok(Self::Q5_1),
            8 => return Ok(Self::Q8_0),
            30 => return Ok(Self::BF16),
            9 => "Q8_1",
            10 => "Q2_K",
            11 => "Q3_K",
            12 => "Q4_K",
            13 => "Q5_K",
            14 => "Q6_K",
            15 => "Q8_K",
            16 => "IQ2_XXS",
            17 => "IQ2_XS",
            18 => "IQ3_XXS",
            19 => "IQ1_S",
            20 => "IQ4_NL",
            21 => "IQ3_S",
            22 => "IQ2_S",
            23 => "IQ4_XS",
            24 => "I8",
            25 => "I16",
            26 => "I32",
            27 => "I64",
            28 => "F64",
            29 => "IQ1_M",
            34 => "TQ1_0",
            35 => "TQ2_0",
            39 => "MXFP4",
            40 => "NVFP4",
            other => {
                return Err(SeamError::invalid_model(format!(
                    "unknown tensor type {other}"
                )));
            }
        };
        Err(SeamError::new(
            ErrorCode::Unsupported,
            format!("type {refused} does not convert without loss"),
        )
        .hint("use a file in Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, F16, BF16 or F32"))
    }

    /// Values in a block.
    pub const fn block_len(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::BF16 => 1,
            _ => 32,
        }
    }

    /// Bytes of a block.
    pub const fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::Q4_0 => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q8_0 => 34,
        }
    }
}

impl fmt::Display for GgmlType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// A tensor of the file: what and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Name, unique in the file.
    pub name: String,
    /// Element type.
    pub kind: GgmlType,
    /// Extents, outermost first (the reverse of the file's order), each at least 1.
    pub shape: Vec<usize>,
    /// Its bytes in the file.
    pub range: Range<usize>,
}

impl TensorInfo {
    /// Bytes of a row, the innermost extent.
    pub fn row_bytes(&self) -> usize {
        let columns = self.shape.last().copied().unwrap_or(1);
        columns / self.kind.block_len() * self.kind.block_bytes()
    }
}

/// An entry as it is read; offsets count from the data section, whose start is not known yet.
pub(super) struct RawTensor {
    info: TensorInfo,
    offset: u64,
    bytes: usize,
}

/// Reads `count` entries.
pub(super) fn read_table(cursor: &mut Cursor<'_>, count: u64) -> SeamResult<Vec<RawTensor>> {
    // An entry takes at least a name's length, a number of dimensions, one extent, type and offset.
    let fits = (cursor.remaining() / 32) as u64;
    if count > MAX_TENSORS.min(fits) {
        return Err(SeamError::invalid_model(format!(
            "the header claims {count} tensors; at most {} are possible",
            MAX_TENSORS.min(fits)
        )));
    }
    let mut names = HashSet::new();
    let mut table = Vec::new();
    for i in 0..count {
        let name = cursor
            .string(MAX_NAME_BYTES)
            .in_context(|| format!("name of tensor {i} of {count}"))?;
        let context = || format!("tensor `{}`", name.escape_debug());
        let entry = read_entry(cursor, name).in_context(context)?;
        if !names.insert(name) {
            return Err(SeamError::invalid_model("occurs twice").context(context()));
        }
        table.push(entry);
    }
    Ok(table)
}

fn read_entry(cursor: &mut Cursor<'_>, name: &str) -> SeamResult<RawTensor> {
    let dimensions = cursor.u32()?;
    if !(1..=MAX_DIMENSIONS).contains(&dimensions) {
        return Err(SeamError::invalid_model(format!(
            "has {dimensions} dimensions, not 1 to {MAX_DIMENSIONS}"
        )));
    }
    let mut shape = Vec::new();
    for _ in 0..dimensions {
        shape.push(cursor.u64()?);
    }
    shape.reverse();
    let kind = GgmlType::from_number(cursor.u32()?)?;
    let offset = cursor.u64()?;
    let too_large = || SeamError::invalid_model(format!("shape {shape:?} is too large"));
    let extents = shape
        .iter()
        .map(|&n| usize::try_from(n).map_err(|_| too_large()))
        .collect::<SeamResult<Vec<_>>>()?;
    if extents.contains(&0) {
        return Err(SeamError::invalid_model(format!(
            "shape {extents:?} holds nothing"
        )));
    }
    let elements = extents
        .iter()
        .try_fold(1usize, |n, &extent| n.checked_mul(extent))
        .ok_or_else(too_large)?;
    let columns = extents.last().copied().unwrap_or(1);
    if columns % kind.block_len() != 0 {
        return Err(SeamError::invalid_model(format!(
            "rows of {columns} do not divide into {kind}'s blocks of {}",
            kind.block_len()
        )));
    }
    let bytes = (elements / kind.block_len())
        .checked_mul(kind.block_bytes())
        .ok_or_else(too_large)?;
    Ok(RawTensor {
        info: TensorInfo {
            name: name.to_owned(),
            kind,
            shape: extents,
            range: 0..0,
        },
        offset,
        bytes,
    })
}

/// Places the entries in a data section that starts at `start` in a file of `file_len` bytes, and
/// checks that each lies aligned, inside and apart from the others.
pub(super) fn place(
    table: Vec<RawTensor>,
    start: usize,
    file_len: usize,
    alignment: usize,
) -> SeamResult<Vec<TensorInfo>> {
    let mut tensors = table
        .into_iter()
        .map(|raw| {
            let context = || format!("tensor `{}`", raw.info.name.escape_debug());
            if raw.offset % alignment as u64 != 0 {
                return Err(SeamError::invalid_model(format!(
                    "offset {} is not a multiple of the alignment, {alignment}",
                    raw.offset
                ))
                .context(context()));
            }
            let begin = usize::try_from(raw.offset)
                .ok()
                .and_then(|offset| start.checked_add(offset));
            let range = begin
                .and_then(|begin| Some(begin..begin.checked_add(raw.bytes)?))
                .filter(|range| range.end <= file_len)
                .ok_or_else(|| {
                    SeamError::invalid_model(format!(
                        "{} bytes at offset {} end outside the file of {file_len} bytes",
                        raw.bytes, raw.offset
                    ))
                    .context(context())
                    .hint("the file may be truncated")
                })?;
            Ok(TensorInfo { range, ..raw.info })
        })
        .collect::<SeamResult<Vec<_>>>()?;
    tensors.sort_by_key(|t| t.range.start);
    for pair in tensors.windows(2) {
        if pair[1].range.start < pair[0].range.end {
            return Err(SeamError::invalid_model(format!(
                "tensors `{}` and `{}` overlap",
                pair[0].name.escape_debug(),
                pair[1].name.escape_debug()
            )));
        }
    }
    Ok(tensors)
}
