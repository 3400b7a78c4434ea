//! Rope scaling, as GGUF stores it and as config.json says it.
//!
//! Linear scaling is two keys. Llama 3's is a tensor, `rope_freqs.weight`: what each frequency is
//! divided by. The numbers it was made from are not in the file; they are found by trying those that
//! models in use have, and accepted only if they give the tensor's values again.

use std::f64::consts::PI;

use halfhitch_seam::{SeamError, SeamResult};
use serde_json::{Value as Json, json};

use super::gguf::{GgmlType, Gguf};
use super::json::shortest;

/// The tensor that holds Llama 3's divisors.
pub(super) const FREQUENCIES: &str = "rope_freqs.weight";

/// `low_freq_factor`, `high_freq_factor` and the original context of every Llama 3.1 to 3.3.
const LOW: f64 = 1.0;
const HIGH: f64 = 4.0;
const ORIGINAL: u32 = 8192;
/// The divisors were computed in binary32, through a power and two divisions.
const TOLERANCE: f64 = 1e-5;

/// `rope_scaling` for config.json; null where there is none.
pub(super) fn scaling(gguf: &Gguf, arch: &str, head_dim: usize, theta: f32) -> SeamResult<Json> {
    let meta = gguf.metadata();
    let key = format!("{arch}.rope.scaling.type");
    let factor_key = format!("{arch}.rope.scaling.factor");
    let kind = meta.string(&key)?.unwrap_or("none");
    let frequencies = gguf.tensors().iter().find(|t| t.name == FREQUENCIES);
    if let Some(tensor) = frequencies {
        if kind != "none" {
            return Err(SeamError::unsupported(format!(
                "rope scaling `{}` together with tensor `{FREQUENCIES}`",
                kind.escape_debug()
            )));
        }
        if tensor.kind != GgmlType::F32 || tensor.shape != [head_dim / 2] {
            return Err(SeamError::invalid_model(format!(
                "tensor `{FREQUENCIES}` is {} {:?}, not F32 [{}]",
                tensor.kind,
                tensor.shape,
                head_dim / 2
            )));
        }
        let divisors: Vec<f32> = gguf
            .data(tensor)
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
            .collect();
        let said = meta.count(
            &format!("{arch}.rope.scaling.original_context_length"),
            u32::MAX,
        )?;
        return llama3(&divisors, theta, said.unwrap_or(ORIGINAL));
    }
    match kind {
        "none" => Ok(Json::Null),
        "linear" => {
            let factor = Gguf::required(&factor_key, meta.float(&factor_key))?;
            if factor < 1.0 {
                return Err(SeamError::invalid_model(format!(
                    "key `{factor_key}` is {factor}, below 1"
                )));
            }
            Ok(json!({"type": "linear", "rope_type": "linear", "factor": shortest(factor)}))
        }
        other => Err(
            SeamError::unsupported(format!("rope scaling `{}`", other.escape_debug()))
                .hint("none, linear and Llama 3's are imported"),
        ),
    }
}

fn llama3(divisors: &[f32], theta: f32, original: u32) -> SeamResult<Json> {
    let unknown = || {
        SeamError::unsupported(format!(
            "tensor `{FREQUENCIES}` is not Llama 3's scaling for an original context of {original}"
        ))
    };
    // The lowest frequency is the last, and is divided by the whole factor.
    let factor = divisors
        .last()
        .copied()
        .filter(|f| f.is_finite() && *f >= 1.0)
        .ok_or_else(unknown)?;
    let expected = (0..divisors.len()).map(|i| {
        let frequency = f64::from(theta).powf(-(i as f64) / divisors.len() as f64);
        let turns = f64::from(original) * frequency / (2.0 * PI);
        let smooth = ((turns - LOW) / (HIGH - LOW)).clamp(0.0, 1.0);
        1.0 / ((1.0 - smooth) / f64::from(factor) + smooth)
    });
    let agrees = divisors
        .iter()
        .zip(expected)
        .all(|(&d, want)| (f64::from(d) - want).abs() <= TOLERANCE * want);
    if !agrees {
        return Err(unknown());
    }
    Ok(json!({
        "rope_type": "llama3",
        "factor": shortest(factor),
        "low_freq_factor": LOW,
        "high_freq_factor": HIGH,
        "original_max_position_embeddings": original,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// llama.cpp's converter, in binary32.
    fn divisors(theta: f32, half: usize, factor: f32) -> Vec<f32> {
        (0..half)
            .map(|i| {
                let frequency = 1.0 / theta.powf(2.0 * i as f32 / (2 * half) as f32);
                let wavelength = 2.0 * std::f32::consts::PI / frequency;
                if wavelength < 8192.0 / 4.0 {
                    1.0
                } else if wavelength > 8192.0 {
                    factor
                } else {
                    let smooth = (8192.0 / wavelength - 1.0) / 3.0;
                    1.0 / ((1.0 - smooth) / factor + smooth)
                }
            })
            .collect()
    }

    #[test]
    fn llama3_scaling_is_recognised() {
        for factor in [8.0, 32.0] {
            let config = llama3(&divisors(500_000.0, 64, factor), 500_000.0, ORIGINAL).unwrap();
            assert_eq!(config["factor"], json!(factor));
            assert_eq!(config["original_max_position_embeddings"], json!(8192));
        }
    }

    #[test]
    fn other_divisors_are_refused() {
        let mut changed = divisors(500_000.0, 64, 8.0);
        changed[40] *= 1.001;
        for (divisors, theta) in [
            (changed, 500_000.0),
            (divisors(500_000.0, 64, 8.0), 10_000.0),
            (vec![f32::NAN; 64], 500_000.0),
            (vec![], 500_000.0),
        ] {
            assert!(llama3(&divisors, theta, ORIGINAL).is_err());
        }
    }
}
