//! What is chosen on a device where nothing is asked for, and what allows it.
//!
//! A default is allowed only where a recorded run of the accuracy gate passes it: `docs/gates`, written by
//! `halfhitch verify --record`. A driver without a row computes in f32, the precision that every gate is
//! measured against, until a device of it was gated. The tests hold every row to its record.

use halfhitch_seam::{DType, Precision};

/// A driver's default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Default {
    /// The HAL driver.
    pub driver: &'static str,
    /// Precision of contractions.
    pub precision: Precision,
    /// Type of the key-value cache.
    pub kv_dtype: DType,
    /// Whether quantised weights stay packed.
    pub packed: bool,
    /// The record that allows it, by its file's stem.
    pub record: &'static str,
    /// The driver that was gated: another one where both run the same code.
    pub gated: &'static str,
}

/// Every default, in one place.
pub const DEFAULTS: [Default; 2] = [
    Default {
        driver: "local-task",
        precision: Precision::F32,
        kv_dtype: DType::F32,
        packed: true,
        record: "smollm2-135m-local-task-f32-packed",
        gated: "local-task",
    },
    // The same modules, on the calling thread.
    Default {
        driver: "local-sync",
        precision: Precision::F32,
        kv_dtype: DType::F32,
        packed: true,
        record: "smollm2-135m-local-task-f32-packed",
        gated: "local-task",
    },
];

/// A driver's row, if it has one.
pub fn default_of(driver: &str) -> Option<&'static Default> {
    DEFAULTS.iter().find(|d| d.driver == driver)
}

/// The precisions that a device has, the default first.
pub fn preferred_first(driver: &str, mut precisions: Vec<Precision>) -> Vec<Precision> {
    let first = default_of(driver).map_or(Precision::F32, |d| d.precision);
    if let Some(at) = precisions.iter().position(|&p| p == first) {
        precisions[..=at].rotate_right(1);
    }
    precisions
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use serde_json::{Value, json};

    use super::*;

    /// What keeps a record from allowing a default.
    fn objection(default: &Default, record: &Value) -> Option<String> {
        let candidate = &record["candidate"];
        let backend = format!("xla-iree:{}", default.gated);
        let quantised = candidate["plan"]["quantised"].as_str().unwrap_or_default();
        let facts = [
            ("format", record["format"] == 1),
            ("verdict", record["verdict"] == "pass"),
            ("backend", candidate["backend"] == backend),
            (
                "precision",
                candidate["precision"] == json!(default.precision),
            ),
            ("cache", candidate["kv_dtype"] == json!(default.kv_dtype)),
            ("weights", quantised.starts_with("packed") == default.packed),
            (
                "trusted side",
                record["against"]["backend"]
                    .as_str()
                    .is_some_and(|b| b.starts_with("reference-cpu")),
            ),
        ];
        let wrong = facts.iter().find(|(_, right)| !right);
        wrong.map(|(what, _)| format!("{what} of {}", default.record))
    }

    fn record() -> Value {
        json!({
            "format": 1,
            "verdict": "pass",
            "candidate": {
                "backend": "xla-iree:local-task",
                "precision": Precision::F32,
                "kv_dtype": DType::F32,
                "plan": {"quantised": "packed (affine 4-bit g32 (f16))"},
            },
            "against": {"backend": "reference-cpu"},
        })
    }

    #[test]
    fn only_a_record_that_passes_and_fits_allows_a_default() {
        let default = default_of("local-task").unwrap();
        assert_eq!(objection(default, &record()), None);
        for (at, value) in [
            ("/verdict", json!("fail")),
            ("/format", json!(2)),
            ("/candidate/backend", json!("xla-iree:cuda")),
            ("/candidate/precision", json!(Precision::F16)),
            ("/candidate/kv_dtype", json!(DType::F16)),
            ("/candidate/plan/quantised", json!("dequantised to f32")),
            ("/against/backend", json!("xla-iree:local-task")),
        ] {
            let mut other = record();
            *other.pointer_mut(at).unwrap() = value;
            assert!(objection(default, &other).is_some(), "{at}");
        }
    }

    /// The repository's root.
    fn root() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
    }

    /// A committed record, by its stem.
    fn committed(stem: &str) -> Value {
        let path = root().join(format!("docs/gates/{stem}.json"));
        let text =
            std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn every_default_has_its_record() {
        for default in &DEFAULTS {
            let record = committed(default.record);
            assert_eq!(objection(default, &record), None, "{}", default.driver);
        }
    }

    /// Those of the tiny fixtures, whose weights are not packed.
    #[test]
    fn every_default_has_a_record_of_each_tiny_fixture() {
        let fixtures = std::fs::read_dir(root().join("tests/fixtures/tiny")).unwrap();
        let names: Vec<_> = fixtures.map(|f| f.unwrap().file_name()).collect();
        assert!(names.len() >= 15, "{names:?}");
        for default in &DEFAULTS {
            let dense = Default {
                packed: false,
                ..*default
            };
            for name in &names {
                let name = name.to_str().unwrap();
                let record = committed(&format!("tiny/{name}-{}-f32", default.gated));
                assert_eq!(record["model"]["name"], name);
                assert_eq!(objection(&dense, &record), None, "{name}");
            }
        }
    }

    #[test]
    fn without_a_row_f32_comes_first() {
        let all = vec![Precision::F16, Precision::F32];
        let ordered = preferred_first("cuda", all);
        assert_eq!(ordered, [Precision::F32, Precision::F16]);
    }
}
