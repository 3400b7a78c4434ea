//! Tokens that begin and end a text.

use std::collections::BTreeSet;

use halfhitch_seam::{ResultExt, SeamResult, TokenId};
use serde_json::{Map, Value};

use super::json::{Keys, describe};

/// What the configuration files say.
pub(super) struct StopTokens {
    pub(super) eos: BTreeSet<TokenId>,
    pub(super) bos: Option<TokenId>,
}

/// Reads `eos_token_id` (an id, a list or null) and `bos_token_id` of both files. The stop tokens
/// are all of them together. An id outside the vocabulary can never be produced: it is left out with
/// a warning.
///
/// # Errors
/// `InvalidModel` where an id is not a whole number of 0 or more.
pub(super) fn read(
    config: &Map<String, Value>,
    generation: Option<&Map<String, Value>>,
    vocab_size: usize,
    warnings: &mut Vec<String>,
) -> SeamResult<StopTokens> {
    let mut out = StopTokens {
        eos: BTreeSet::new(),
        bos: None,
    };
    let files = [
        ("config.json", Some(config)),
        ("generation_config.json", generation),
    ];
    for (file, map) in files {
        let Some(map) = map else { continue };
        let keys = Keys::new(map);
        let mut read = |key| ids(&keys, key, vocab_size, file, warnings).in_context(|| file);
        out.eos.extend(read("eos_token_id")?);
        let bos = read("bos_token_id")?.first().copied();
        out.bos = out.bos.or(bos);
    }
    Ok(out)
}

fn ids(
    keys: &Keys<'_>,
    key: &str,
    vocab_size: usize,
    file: &str,
    warnings: &mut Vec<String>,
) -> SeamResult<Vec<TokenId>> {
    let values = match keys.value(key) {
        None => return Ok(Vec::new()),
        Some(Value::Array(items)) => items.as_slice(),
        Some(one) => std::slice::from_ref(one),
    };
    let (mut out, mut outside) = (Vec::new(), Vec::new());
    for value in values {
        match value.as_i64() {
            // -1 is what older programs write for none.
            Some(-1) => {}
            Some(id) if id >= 0 && (id as u64) < vocab_size as u64 => out.push(id as TokenId),
            Some(id) if id >= 0 => outside.push(id),
            _ => {
                return Err(keys.wrong(
                    key,
                    format_args!("holds {}, not a token id", describe(value)),
                ));
            }
        }
    }
    if let Some(first) = outside.first() {
        warnings.push(format!(
            "{file}: {key} {first} is outside the vocabulary of {vocab_size}; {} such ignored",
            outside.len()
        ));
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn run(config: Value, generation: Value) -> SeamResult<(Vec<TokenId>, Option<TokenId>, usize)> {
        let mut warnings = Vec::new();
        let stop = read(
            config.as_object().unwrap(),
            generation.as_object(),
            100,
            &mut warnings,
        )?;
        Ok((stop.eos.into_iter().collect(), stop.bos, warnings.len()))
    }

    #[test]
    fn both_files_count() {
        let cases = [
            (json!({"eos_token_id": 2}), json!(null), (vec![2], None, 0)),
            (
                json!({"eos_token_id": [2, 7]}),
                json!({"eos_token_id": 9}),
                (vec![2, 7, 9], None, 0),
            ),
            (
                json!({"eos_token_id": null}),
                json!({"eos_token_id": [3], "bos_token_id": 1}),
                (vec![3], Some(1), 0),
            ),
            (
                json!({"eos_token_id": [100, 99]}),
                json!({"eos_token_id": 4_000_000_000_000u64}),
                (vec![99], None, 2),
            ),
            (
                json!({"eos_token_id": -1, "bos_token_id": 5}),
                json!({"bos_token_id": 6}),
                (vec![], Some(5), 0),
            ),
        ];
        for (config, generation, want) in cases {
            assert_eq!(run(config.clone(), generation).unwrap(), want, "{config}");
        }
    }

    #[test]
    fn what_is_no_id_is_refused() {
        for bad in [json!("2"), json!(2.5), json!([[2]]), json!(-7), json!({})] {
            let e = run(json!({"eos_token_id": bad}), json!(null)).unwrap_err();
            assert!(
                e.to_string().starts_with("config.json: eos_token_id holds"),
                "{e}"
            );
        }
    }
}
