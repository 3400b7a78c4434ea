//! Numbers as configurations have them.

use serde_json::Value;

/// A finite binary32 as the shortest decimal that reads back to it, through a binary64 as JSON
/// readers do: `1e-05`, not `9.999999747378752e-06`.
pub(super) fn shortest(value: f32) -> Value {
    let exact = f64::from(value);
    let short = value
        .to_string()
        .parse::<f64>()
        .ok()
        .filter(|&v| v as f32 == value);
    serde_json::Number::from_f64(short.unwrap_or(exact)).map_or(Value::Null, Value::Number)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn common_constants_are_short() {
        for (value, wide) in [
            (1e-5f32, 1e-5f64),
            (1e-6, 1e-6),
            (0.1, 0.1),
            (100_000.0, 100_000.0),
        ] {
            assert_eq!(shortest(value).as_f64(), Some(wide));
        }
    }

    proptest! {
        #[test]
        fn every_value_reads_back(bits in any::<u32>()) {
            let value = f32::from_bits(bits);
            prop_assume!(value.is_finite());
            let back: f64 = serde_json::from_str(&shortest(value).to_string()).unwrap();
            prop_assert_eq!((back as f32).to_bits(), value.to_bits());
        }
    }
}
