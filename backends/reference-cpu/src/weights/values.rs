//! Numbers brought to f32, in place where they are f32 already.

use half::{bf16, f16};
use halfhitch_seam::{CancelToken, DType, ErrorCode, SeamError, SeamResult, Tensor};
use rayon::prelude::*;

/// Numbers as f32: the checkpoint's own bytes where those are f32 and aligned, else a copy.
#[derive(Debug)]
pub enum Values {
    /// Shared with the host (a mapped file); always f32 and aligned.
    Shared(Tensor),
    /// Converted at open.
    Owned(Vec<f32>),
}

impl Values {
    /// Brings a dense tensor to f32.
    ///
    /// # Errors
    /// `OutOfMemory`, `Cancelled`; `InvalidModel` where it holds no numbers.
    pub fn from_tensor(tensor: &Tensor, cancel: &CancelToken) -> SeamResult<Self> {
        if !tensor.dtype().is_float() {
            return Err(SeamError::invalid_model(format!(
                "a dense weight of {}",
                tensor.dtype()
            )));
        }
        if tensor.dtype() == DType::F32
            && bytemuck::try_cast_slice::<u8, f32>(tensor.bytes()).is_ok()
        {
            return Ok(Self::Shared(tensor.clone()));
        }
        let size = tensor.dtype().size();
        let bytes = tensor.bytes();
        let convert = |start: usize, out: &mut [f32]| {
            let part = &bytes[start * size..][..out.len() * size];
            for (value, raw) in out.iter_mut().zip(part.chunks_exact(size)) {
                *value = read_float(tensor.dtype(), raw);
            }
        };
        filled(tensor.elements(), 1 << 16, cancel, convert).map(Self::Owned)
    }

    /// The numbers.
    pub fn as_slice(&self) -> &[f32] {
        match self {
            Self::Shared(tensor) => bytemuck::cast_slice(tensor.bytes()),
            Self::Owned(values) => values,
        }
    }
}

/// One little-endian number of a float type, widened exactly.
pub(super) fn read_float(dtype: DType, raw: &[u8]) -> f32 {
    match (dtype, raw) {
        (DType::F32, &[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]),
        (DType::F16, &[a, b]) => f16::from_le_bytes([a, b]).to_f32(),
        (DType::BF16, &[a, b]) => bf16::from_le_bytes([a, b]).to_f32(),
        _ => unreachable!("callers checked that {dtype} is a float type and cut by its size"),
    }
}

/// A vector of `n` numbers that `fill(start, part)` writes, in parallel.
pub(super) fn filled(
    n: usize,
    per_task: usize,
    cancel: &CancelToken,
    fill: impl Fn(usize, &mut [f32]) + Sync,
) -> SeamResult<Vec<f32>> {
    let mut out = Vec::new();
    out.try_reserve_exact(n).map_err(|_| {
        SeamError::new(
            ErrorCode::OutOfMemory,
            format!("no memory for a weight of {n} f32 values"),
        )
        .hint("try --quant packed or a smaller model")
    })?;
    out.resize(n, 0.0);
    out.par_chunks_mut(per_task.max(1))
        .enumerate()
        .try_for_each(|(i, part)| {
            cancel.check()?;
            fill(i * per_task, part);
            Ok(())
        })?;
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aligned_f32_is_shared_and_all_else_converted() {
        let cancel = CancelToken::new();
        let tensor = Tensor::from_f32(vec![2], &[1.0, 2.0]).unwrap();
        let shared = Values::from_tensor(&tensor, &cancel).unwrap();
        assert_eq!(shared.as_slice().as_ptr().cast(), tensor.bytes().as_ptr());
        let half = [1.5, -2.0]
            .map(|v| bf16::from_f32(v).to_le_bytes())
            .concat();
        let half = Tensor::new(DType::BF16, vec![2], half.into()).unwrap();
        let owned = Values::from_tensor(&half, &cancel).unwrap();
        assert_eq!(owned.as_slice(), [1.5, -2.0]);
    }
}
