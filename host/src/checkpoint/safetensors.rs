//! One safetensors file: its header checked, its tensors as views of the mapped file.
//!
//! The header's types come from the `safetensors` crate. The checks are ours: the crate's name no
//! tensor, drop one of two entries with the same name, and add the end of the last tensor to the
//! header's length without looking at overflow.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use ::safetensors::Dtype;
use ::safetensors::tensor::TensorInfo;
use bytes::Bytes;
use halfhitch_seam::{DType, ErrorCode, SeamError, SeamResult, Tensor};
use serde::Deserializer;
use serde::de::{Error as _, IgnoredAny, MapAccess, Visitor};

use super::json::open_regular;
use super::mapped::MappedFile;
use super::quote::{one_line, quoted};

/// Bytes a header may have: 100 a tensor is usual, so this is hundreds of thousands of them.
const HEADER_LIMIT: u64 = 32 << 20;
/// No weight has more than four; errors print all of a shape.
const MAX_RANK: usize = 8;

/// A tensor as the file has it; its element type may be one that is not computed here.
#[derive(Clone, Debug)]
pub(super) struct RawTensor {
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<usize>,
    pub(super) bytes: Bytes,
    /// Name of the file.
    pub(super) file: Arc<str>,
}

impl RawTensor {
    /// The tensor in the seam's terms.
    ///
    /// # Errors
    /// `Unsupported` for another element type.
    pub(super) fn tensor(&self) -> SeamResult<Tensor> {
        let dtype = match self.dtype {
            Dtype::F32 => DType::F32,
            Dtype::F16 => DType::F16,
            Dtype::BF16 => DType::BF16,
            Dtype::U32 => DType::U32,
            other => {
                return Err(SeamError::unsupported(format!("elements of type {other}"))
                    .hint("weights can be F32, F16 or BF16, and U32 where they are packed"));
            }
        };
        Tensor::new(dtype, self.shape.clone(), self.bytes.clone())
    }
}

/// A file that was opened.
pub(super) struct Shard {
    pub(super) tensors: BTreeMap<String, RawTensor>,
    /// Length of the file in bytes.
    pub(super) length: u64,
    /// The file.
    pub(super) file: Arc<MappedFile>,
}

/// Maps `dir/name` and reads its header.
///
/// # Errors
/// `NotFound`, `Io`, and `InvalidModel` for a damaged file, saying what is damaged. The name of the
/// file is for the caller to add.
pub(super) fn open(dir: &Path, name: &str) -> SeamResult<Shard> {
    let (file, length) = open_regular(&dir.join(name))?
        .ok_or_else(|| SeamError::new(ErrorCode::NotFound, "there is no such file"))?;
    if length < 8 {
        return Err(SeamError::invalid_model(format!(
            "{length} bytes are too few for a safetensors file"
        )));
    }
    let file = MappedFile::new(file)?;
    let bytes = file.bytes();
    let tensors = split(&bytes, &Arc::from(name))?;
    Ok(Shard {
        tensors,
        length,
        file,
    })
}

/// Cuts a file's bytes into tensors.
pub(super) fn split(bytes: &Bytes, file: &Arc<str>) -> SeamResult<BTreeMap<String, RawTensor>> {
    let too_short = || SeamError::invalid_model("the file is cut off in its header");
    let prefix = bytes.first_chunk::<8>().ok_or_else(too_short)?;
    let header_length = u64::from_le_bytes(*prefix);
    let rest = bytes.len() as u64 - 8;
    if header_length > rest {
        return Err(SeamError::invalid_model(format!(
            "the header claims {header_length} bytes, but the file has only {rest} after its length"
        ))
        .hint("the file is cut off or not a safetensors file; fetch it again"));
    }
    if header_length > HEADER_LIMIT {
        return Err(SeamError::invalid_model(format!(
            "the header claims {header_length} bytes, more than the {HEADER_LIMIT} that are allowed"
        )));
    }
    let start = 8 + header_length as usize;
    let header = parse_header(&bytes[8..start])?;
    let data = bytes.slice(start..);
    check_layout(&header, data.len())?;
    Ok(header
        .into_iter()
        .map(|(name, info)| {
            let (begin, end) = info.data_offsets;
            let raw = RawTensor {
                dtype: info.dtype,
                shape: info.shape,
                bytes: data.slice(begin..end),
                file: file.clone(),
            };
            (name, raw)
        })
        .collect())
}

/// Checks that tensors have the bytes their shapes ask for and cover the data exactly, as the format
/// demands: no overlap, no hole, nothing outside.
fn check_layout(header: &BTreeMap<String, TensorInfo>, data: usize) -> SeamResult<()> {
    let about = |name: &str, what: String| {
        SeamError::invalid_model(format!("tensor {} {what}", quoted(name)))
    };
    let mut order: Vec<_> = header.iter().collect();
    order.sort_by_key(|(_, info)| info.data_offsets);
    let mut reached = 0;
    for (name, info) in order {
        let (begin, end) = info.data_offsets;
        if end < begin {
            return Err(about(
                name,
                format!("ends at {end}, before its start {begin}"),
            ));
        }
        if end > data {
            return Err(about(
                name,
                format!("ends at byte {end}, but there are only {data}"),
            )
            .hint("the file is cut off or damaged; fetch it again"));
        }
        if begin != reached {
            let what = if begin < reached {
                "overlaps the one before"
            } else {
                "leaves a hole"
            };
            return Err(about(
                name,
                format!("starts at byte {begin}, not {reached}: it {what}"),
            ));
        }
        if info.shape.len() > MAX_RANK {
            return Err(about(
                name,
                format!(
                    "has {} dimensions, more than the {MAX_RANK} that are allowed",
                    info.shape.len()
                ),
            ));
        }
        let bits = info
            .shape
            .iter()
            .try_fold(info.dtype.bitsize(), |n, &extent| n.checked_mul(extent));
        if bits != (end - begin).checked_mul(8) {
            return Err(about(
                name,
                format!(
                    "is {} {:?}, which is not the {} bytes it has",
                    info.dtype,
                    info.shape,
                    end - begin
                ),
            ));
        }
        reached = end;
    }
    if reached != data {
        return Err(SeamError::invalid_model(format!(
            "the last {} bytes belong to no tensor",
            data - reached
        )));
    }
    Ok(())
}

fn parse_header(json: &[u8]) -> SeamResult<BTreeMap<String, TensorInfo>> {
    let mut reader = serde_json::Deserializer::from_slice(json);
    let header = reader
        .deserialize_map(HeaderVisitor)
        .and_then(|header| reader.end().map(|()| header))
        .map_err(|e| {
            SeamError::invalid_model(format!("the header is not valid: {}", one_line(e)))
        })?;
    if header.is_empty() {
        return Err(SeamError::invalid_model("the file has no tensors"));
    }
    Ok(header)
}

/// Reads a header entry by entry, so that a name that stands twice is seen.
struct HeaderVisitor;

impl<'de> Visitor<'de> for HeaderVisitor {
    type Value = BTreeMap<String, TensorInfo>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
        let mut out = BTreeMap::new();
        while let Some(name) = entries.next_key::<String>()? {
            if name == "__metadata__" {
                entries.next_value::<IgnoredAny>()?;
                continue;
            }
            let info = entries
                .next_value::<TensorInfo>()
                .map_err(|e| A::Error::custom(format_args!("tensor {}: {e}", quoted(&name))))?;
            if out.contains_key(&name) {
                return Err(A::Error::custom(format_args!(
                    "tensor {} stands twice",
                    quoted(&name)
                )));
            }
            out.insert(name, info);
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GOOD: &str = concat!(
        r#"{"__metadata__":{"format":"pt"},"a":{"dtype":"F16","shape":[2,4],"#,
        r#""data_offsets":[0,16]},"b":{"dtype":"F32","shape":[],"data_offsets":[16,20]}}"#
    );

    fn file(header: &[u8], data: usize) -> Bytes {
        let mut out = (header.len() as u64).to_le_bytes().to_vec();
        out.extend_from_slice(header);
        out.resize(out.len() + data, 7);
        Bytes::from(out)
    }

    #[test]
    fn tensors_are_slices_of_the_file() {
        let bytes = file(GOOD.as_bytes(), 20);
        let tensors = split(&bytes, &Arc::from("x")).unwrap();
        assert_eq!(tensors["a"].shape, [2, 4]);
        assert_eq!(tensors["b"].bytes.len(), 4);
        // The same memory, not a copy.
        let offset = tensors["a"].bytes.as_ptr() as usize - bytes.as_ptr() as usize;
        assert_eq!(offset, 8 + GOOD.len());
    }

    #[test]
    fn what_is_accepted_here_is_accepted_by_the_crate() {
        let bytes = file(GOOD.as_bytes(), 20);
        assert!(::safetensors::SafeTensors::deserialize(&bytes).is_ok());
    }

    proptest! {
        #[test]
        fn no_file_panics(
            changes in prop::collection::vec((0usize..1000, prop_oneof![any::<u8>(), b'0'..=b'9']), 1..4),
            data in 0usize..40,
        ) {
            let mut bytes = file(GOOD.as_bytes(), data).to_vec();
            for (at, byte) in changes {
                let at = at % bytes.len();
                bytes[at] = byte;
            }
            match split(&Bytes::from(bytes), &Arc::from("x")) {
                Ok(tensors) => for raw in tensors.values() {
                    let elements: usize = raw.shape.iter().product();
                    prop_assert_eq!(elements * raw.dtype.bitsize(), raw.bytes.len() * 8);
                },
                Err(e) => prop_assert!(!e.to_string().contains('\n'), "{}", e),
            }
        }
    }
}
