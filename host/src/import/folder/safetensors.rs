//! A safetensors file written in pieces, in any order, without the model in memory.
//!
//! The header comes first, so every tensor's name, type and shape must be known before any data.
//! Tensors lie without holes, as the format demands. The header is padded so that the data starts
//! at a multiple of 64 bytes, and tensors whose size is a multiple of 64 come first: all of those
//! lie 64-byte aligned and can be handed to a device as they are mapped.

use std::fs::File;
use std::io::{Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use halfhitch_seam::{DType, ErrorCode, ResultExt, SeamError, SeamResult};
use serde_json::{Map, Value, json};

use super::{at, io_error};

const ALIGNMENT: u64 = 64;
/// Headers above this are refused by the format's own library.
const MAX_HEADER: usize = 100_000_000;

/// What a tensor will be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedTensor {
    /// Name, unique in the file.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Extents, outermost first.
    pub shape: Vec<usize>,
}

/// A tensor of a [`SafetensorsWriter`]: its position in the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorId(pub usize);

#[derive(Debug)]
struct Slot {
    name: String,
    offset: u64,
    size: u64,
    written: u64,
}

/// The file, with its header written and room for every tensor.
#[derive(Debug)]
pub struct SafetensorsWriter {
    path: PathBuf,
    file: File,
    /// Where the file's own position is; a seek is spared where data follows data.
    at: u64,
    slots: Vec<Slot>,
}

impl SafetensorsWriter {
    /// Creates the file, which must not exist, and writes the header. `TensorId(i)` is `plan[i]`.
    ///
    /// # Errors
    /// `InvalidModel` where sizes overflow, names repeat or the header grows too long; `Io`.
    pub fn create(path: &Path, plan: &[PlannedTensor]) -> SeamResult<Self> {
        let (header, slots) = layout(plan).in_context(|| path.display().to_string())?;
        let mut file = at(path, "create", File::create_new(path))?;
        let total = slots.iter().map(|s| s.offset + s.size).max();
        let start = header.len() as u64;
        let result = file
            .write_all(&header)
            .and_then(|()| file.set_len(total.unwrap_or(start)));
        at(path, "write", result)?;
        Ok(Self {
            path: path.to_owned(),
            file,
            at: start,
            slots,
        })
    }

    /// Adds bytes to a tensor, after those it has.
    ///
    /// # Errors
    /// `InvalidModel` where the tensor would grow past its shape; `Io`.
    pub fn append(&mut self, tensor: TensorId, bytes: &[u8]) -> SeamResult<()> {
        let slot = &mut self.slots[tensor.0];
        let len = bytes.len() as u64;
        if slot.size - slot.written < len {
            return Err(SeamError::invalid_model(format!(
                "`{}` has more data than its shape",
                slot.name
            )));
        }
        let offset = slot.offset + slot.written;
        if self.at != offset {
            at(&self.path, "write", self.file.seek(SeekFrom::Start(offset)))?;
        }
        if let Err(e) = self.file.write_all(bytes) {
            let name = &slot.name;
            return Err(io_error("write", &e)
                .context(format!("`{name}`"))
                .context(self.path.display().to_string()));
        }
        slot.written += len;
        self.at = offset + len;
        Ok(())
    }

    /// Checks that every tensor is complete and brings the file to the disk.
    ///
    /// # Errors
    /// `InvalidModel` where a tensor lacks data; `Io`.
    pub fn finish(self) -> SeamResult<u64> {
        if let Some(slot) = self.slots.iter().find(|s| s.written != s.size) {
            return Err(SeamError::invalid_model(format!(
                "`{}` has {} of {} bytes",
                slot.name, slot.written, slot.size
            )));
        }
        at(&self.path, "sync", self.file.sync_all())?;
        at(&self.path, "read", self.file.metadata()).map(|m| m.len())
    }
}

fn dtype_name(dtype: DType) -> SeamResult<&'static str> {
    match dtype {
        DType::F32 => Ok("F32"),
        DType::F16 => Ok("F16"),
        DType::BF16 => Ok("BF16"),
        DType::U32 => Ok("U32"),
        other => Err(SeamError::new(
            ErrorCode::Unsupported,
            format!("{other} tensors in safetensors files"),
        )),
    }
}

/// The header's bytes and the tensors' places, in the order of the plan.
fn layout(plan: &[PlannedTensor]) -> SeamResult<(Vec<u8>, Vec<Slot>)> {
    let sizes = plan
        .iter()
        .map(|t| {
            t.shape
                .iter()
                .try_fold(t.dtype.size() as u64, |n, &extent| {
                    n.checked_mul(extent as u64)
                })
                .ok_or_else(|| {
                    SeamError::invalid_model(format!("`{}` {:?} is too large", t.name, t.shape))
                })
        })
        .collect::<SeamResult<Vec<_>>>()?;
    let mut order: Vec<usize> = (0..plan.len()).collect();
    // Sizes divisible by 64 first, then by 32, and so on: each then starts aligned to its own size's
    // power of two. Stable, so that a layer's tensors stay together.
    order.sort_by_key(|&i| std::cmp::Reverse(sizes[i].trailing_zeros().min(6)));
    let mut header = Map::new();
    header.insert("__metadata__".into(), json!({"format": "mlx"}));
    let mut offsets = vec![0u64; plan.len()];
    let mut end = 0u64;
    for i in order {
        let (tensor, begin) = (&plan[i], end);
        offsets[i] = begin;
        end = end
            .checked_add(sizes[i])
            .ok_or_else(|| SeamError::invalid_model("the model is too large"))?;
        let entry = json!({
            "dtype": dtype_name(tensor.dtype)?,
            "shape": tensor.shape,
            "data_offsets": [begin, end],
        });
        if header.insert(tensor.name.clone(), entry).is_some() {
            return Err(SeamError::invalid_model(format!(
                "`{}` occurs twice",
                tensor.name
            )));
        }
    }
    let mut text = Value::Object(header).to_string().into_bytes();
    let padded = (text.len() + 8).next_multiple_of(ALIGNMENT as usize) - 8;
    if padded > MAX_HEADER {
        return Err(SeamError::invalid_model("too many tensors for one file"));
    }
    text.resize(padded, b' ');
    let mut bytes = (padded as u64).to_le_bytes().to_vec();
    bytes.append(&mut text);
    let start = bytes.len() as u64;
    let slots = plan
        .iter()
        .zip(sizes)
        .zip(offsets)
        .map(|((tensor, size), offset)| Slot {
            name: tensor.name.clone(),
            offset: start + offset,
            size,
            written: 0,
        })
        .collect();
    Ok((bytes, slots))
}
