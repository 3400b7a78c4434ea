//! The search for numbers that are not.

use std::collections::BTreeMap;

use halfhitch_seam::{
    CancelToken, DType, ErrorCode, SeamError, SeamResult, Tensor, Weight, WeightId, Weights,
};
use rayon::prelude::*;

use super::quote::quoted;

/// Bytes looked at between two looks at the cancel token; a multiple of every element's size.
const CHUNK: usize = 1 << 20;

struct Piece<'a> {
    weight: &'a str,
    /// `scales`, `biases`, or nothing for a dense weight.
    part: Option<&'static str>,
    dtype: DType,
    first_element: usize,
    bytes: &'a [u8],
}

/// Checks every weight; see [`Checkpoint::check_finite`](super::Checkpoint::check_finite). The first
/// bad element, in the order of the weights, is the one that is named.
pub(super) fn check(
    weights: &Weights,
    names: &BTreeMap<WeightId, String>,
    cancel: &CancelToken,
) -> SeamResult<()> {
    let mut pieces = Vec::new();
    for (id, weight) in weights.iter() {
        let name = names.get(&id).map_or("", String::as_str);
        match weight {
            Weight::Dense(tensor) => cut(&mut pieces, name, None, tensor),
            Weight::Affine(affine) => {
                cut(&mut pieces, name, Some("scales"), affine.scales());
                cut(&mut pieces, name, Some("biases"), affine.biases());
            }
            _ => {}
        }
    }
    let failure = pieces.par_iter().find_map_first(|piece| {
        if let Err(cancelled) = cancel.check() {
            return Some(cancelled);
        }
        first_bad(piece.dtype, piece.bytes).map(|index| {
            let name = match piece.part {
                Some(part) => {
                    let module = piece.weight.strip_suffix(".weight").unwrap_or(piece.weight);
                    format!("{module}.{part}")
                }
                None => piece.weight.to_owned(),
            };
            SeamError::new(
                ErrorCode::NonFinite,
                format!(
                    "tensor {} is not finite at element {}",
                    quoted(&name),
                    piece.first_element + index
                ),
            )
            .hint("the weights are damaged; fetch or make them again")
        })
    });
    failure.map_or(Ok(()), Err)
}

fn cut<'a>(
    pieces: &mut Vec<Piece<'a>>,
    weight: &'a str,
    part: Option<&'static str>,
    tensor: &'a Tensor,
) {
    let dtype = tensor.dtype();
    for (i, bytes) in tensor.bytes().chunks(CHUNK).enumerate() {
        pieces.push(Piece {
            weight,
            part,
            dtype,
            first_element: i * (CHUNK / dtype.size()),
            bytes,
        });
    }
}

/// Index of the first infinity or NaN: an exponent of all ones.
fn first_bad(dtype: DType, bytes: &[u8]) -> Option<usize> {
    let halves = |exponent: u16| {
        bytes
            .chunks_exact(2)
            .position(|b| u16::from_le_bytes([b[0], b[1]]) & exponent == exponent)
    };
    match dtype {
        DType::F16 => halves(0x7c00),
        DType::BF16 => halves(0x7f80),
        DType::F32 => bytes.chunks_exact(4).position(|b| {
            u32::from_le_bytes([b[0], b[1], b[2], b[3]]) & 0x7f80_0000 == 0x7f80_0000
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;

    #[test]
    fn every_bad_value_of_every_type_is_seen_and_no_good_one() {
        for bits in 0..=u16::MAX {
            let bytes = bits.to_le_bytes();
            let seen = |dtype| first_bad(dtype, &bytes).is_some();
            assert_eq!(seen(DType::F16), !f16::from_bits(bits).is_finite());
            assert_eq!(seen(DType::BF16), !bf16::from_bits(bits).is_finite());
        }
        for value in [0.0, -0.0, f32::MAX, f32::MIN, f32::MIN_POSITIVE, 1e-45] {
            assert_eq!(first_bad(DType::F32, &value.to_le_bytes()), None);
        }
        for value in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert_eq!(first_bad(DType::F32, &value.to_le_bytes()), Some(0));
        }
    }

    #[test]
    fn the_element_is_counted_across_chunks() {
        let mut values = vec![0f32; CHUNK / 4 + 10];
        values[CHUNK / 4 + 3] = f32::NAN;
        let tensor = Tensor::from_f32(vec![values.len()], &values).unwrap();
        let weights = Weights::new([(WeightId::FinalNorm, Weight::Dense(tensor))]);
        let names = BTreeMap::from([(WeightId::FinalNorm, "model.norm.weight".to_owned())]);
        let cancel = CancelToken::new();
        let e = check(&weights, &names, &cancel).unwrap_err();
        assert_eq!(e.code, ErrorCode::NonFinite);
        assert!(e.message.contains("`model.norm.weight`"), "{e}");
        assert!(e.message.contains(&(CHUNK / 4 + 3).to_string()), "{e}");
        cancel.cancel();
        let e = check(&weights, &names, &cancel).unwrap_err();
        assert_eq!(e.code, ErrorCode::Cancelled);
    }
}
