//! Rows of a packed matrix, expanded as they are needed.

use halfhitch_seam::quant::unpack_row;
use halfhitch_seam::{AffineTensor, Tensor};

use super::values::read_float;

/// A packed matrix, its bytes shared with the host.
#[derive(Debug)]
pub struct PackedRows {
    tensor: AffineTensor,
    columns: usize,
}

/// Room for one row on its way from packed to f32; one a thread, used again for every row.
#[derive(Debug, Default)]
pub struct Scratch {
    words: Vec<u32>,
    quantised: Vec<u32>,
}

impl PackedRows {
    /// Shares a tensor's bytes.
    pub fn new(tensor: &AffineTensor) -> Self {
        Self {
            columns: tensor.shape()[1],
            tensor: tensor.clone(),
        }
    }

    /// Writes row `row` as f32: `q * scale + bias`, each operation rounded.
    pub fn expand(&self, row: usize, scratch: &mut Scratch, out: &mut [f32]) {
        let scheme = self.tensor.scheme();
        let words = scheme.words_per_row(self.columns);
        let groups = scheme.groups_per_row(self.columns);
        let raw = &self.tensor.words().bytes()[row * words * 4..][..words * 4];
        let (raw, _) = raw.as_chunks::<4>();
        scratch.words.clear();
        scratch
            .words
            .extend(raw.iter().map(|&word| u32::from_le_bytes(word)));
        scratch.quantised.resize(self.columns, 0);
        unpack_row(&scratch.words, scheme.bits, &mut scratch.quantised);

        let size = scheme.scale_dtype.size();
        let affine = |part: &Tensor, group: usize| {
            let raw = &part.bytes()[(row * groups + group) * size..][..size];
            read_float(scheme.scale_dtype, raw)
        };
        let group_size = scheme.group_size.get();
        let values = scratch.quantised.chunks_exact(group_size);
        for (group, (out, values)) in out.chunks_exact_mut(group_size).zip(values).enumerate() {
            let scale = affine(self.tensor.scales(), group);
            let bias = affine(self.tensor.biases(), group);
            for (value, &q) in out.iter_mut().zip(values) {
                *value = q as f32 * scale + bias;
            }
        }
    }
}
