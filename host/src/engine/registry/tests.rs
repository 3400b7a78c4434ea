//! Selections, and rows of backends that do not work.

use super::*;
use halfhitch_seam::{BackendIdentity, DeviceCapabilities, DeviceId, OpenRequest, Session};

struct Broken(&'static str, &'static str);

impl Provider for Broken {
    fn backend(&self) -> &str {
        self.0
    }
    fn driver(&self) -> &str {
        self.1
    }
    fn origin(&self) -> String {
        "test".into()
    }
    fn open(&self) -> SeamResult<Arc<dyn ComputeBackend>> {
        Err(SeamError::new(ErrorCode::Incompatible, "made for another version").hint("rebuild"))
    }
}

fn registry() -> Registry {
    let mut registry = Registry::default();
    for (name, driver) in [("xla", "cuda"), ("xla", "vulkan")] {
        registry.register(Arc::new(Broken(name, driver)));
    }
    registry
}

#[test]
fn selections_round_trip_and_ids_may_hold_colons() {
    for text in ["a", "a:b", "a:b:0", "a:b:GPU:7f:0"] {
        assert_eq!(text.parse::<Selection>().unwrap().to_string(), text);
    }
    for text in ["", ":", "a:", "a:b:", ":b", "a::0"] {
        assert!(text.parse::<Selection>().is_err(), "{text}");
    }
}

#[test]
fn a_wrong_selection_names_what_there_is() {
    let cases = [
        (
            "nope",
            "there is no backend `nope`",
            "reference-cpu:cpu, xla:cuda, xla:vulkan",
        ),
        (
            "reference-cpu:gpu",
            "has no driver `gpu`",
            "available: reference-cpu:cpu",
        ),
        (
            "reference-cpu:cpu:9",
            "there is no device `9`",
            "available: 0 (",
        ),
        ("xla", "several drivers", "xla:cuda, xla:vulkan"),
        (
            "xla:cuda",
            "backend xla: made for another version",
            "rebuild",
        ),
    ];
    for (text, message, hint) in cases {
        let error = registry()
            .select(&text.parse().unwrap())
            .unwrap_err()
            .to_string();
        assert!(error.contains(message) && error.contains(hint), "{error}");
    }
}

#[test]
fn a_broken_backend_hides_no_other() {
    let rows = registry().list();
    assert_eq!(rows[0].state, State::Ready);
    assert!(!rows[0].devices.is_empty());
    assert_eq!(rows[1].state, State::Failed);
    assert!(rows[1].reason.as_ref().unwrap().contains("another version"));
}

#[test]
fn a_name_is_never_taken_over() {
    let mut registry = registry();
    registry.register(Arc::new(Broken("reference-cpu", "cpu")));
    let rows = registry.list();
    assert_eq!(
        (rows[0].state, rows[0].origin.as_str()),
        (State::Ready, "built in")
    );
    let newcomer = rows.last().unwrap();
    assert_eq!(
        (newcomer.name.as_str(), newcomer.state),
        ("reference-cpu:cpu", State::Failed)
    );
    assert!(
        newcomer
            .reason
            .as_ref()
            .unwrap()
            .contains("built in, which comes first")
    );
    let selected = registry.select(&"reference-cpu".parse().unwrap());
    assert!(selected.is_ok());
}

#[test]
fn devices_are_found_by_id_before_ordinal() {
    let device = |id: &str, ordinal| DeviceInfo {
        id: DeviceId(id.into()),
        ordinal,
        name: id.into(),
        driver: "d".into(),
    };
    let devices = [device("1", 0), device("GPU-x", 1)];
    assert_eq!(pick_device(&devices, Some("1")).unwrap().ordinal, 0);
    assert_eq!(pick_device(&devices, Some("0")).unwrap().ordinal, 0);
    assert_eq!(pick_device(&devices, Some("GPU-x")).unwrap().ordinal, 1);
    assert_eq!(pick_device(&devices, None).unwrap().ordinal, 0);
    assert!(pick_device(&[], None).is_err());
}

/// A plugin that works, on a system without its driver's library.
struct WithoutDriver;

impl Provider for WithoutDriver {
    fn backend(&self) -> &str {
        "xla"
    }
    fn driver(&self) -> &str {
        "npu"
    }
    fn origin(&self) -> String {
        "test".into()
    }
    fn open(&self) -> SeamResult<Arc<dyn ComputeBackend>> {
        Ok(Arc::new(Self))
    }
}

impl ComputeBackend for WithoutDriver {
    fn identity(&self) -> BackendIdentity {
        BackendIdentity {
            name: "xla:npu".into(),
            version: "1.2.3".into(),
            components: Vec::new(),
        }
    }
    fn devices(&self) -> SeamResult<Vec<DeviceInfo>> {
        Err(SeamError::new(
            ErrorCode::NotFound,
            "libnpu.so.1 is not there",
        ))
    }
    fn capabilities(&self, device: &DeviceId) -> SeamResult<DeviceCapabilities> {
        Err(SeamError::new(
            ErrorCode::NotFound,
            format!("no device {device}"),
        ))
    }
    fn open(&self, _: OpenRequest<'_>) -> SeamResult<Box<dyn Session>> {
        Err(SeamError::new(ErrorCode::NotFound, "no device"))
    }
}

#[test]
fn a_missing_driver_is_told_from_a_broken_plugin() {
    let mut registry = registry();
    registry.register(Arc::new(WithoutDriver));
    let rows = registry.list();
    let row = rows.iter().find(|row| row.driver == "npu").unwrap();
    assert_eq!(row.state, State::Unavailable);
    assert_eq!(row.version.as_deref(), Some("1.2.3"));
    assert!(row.reason.as_ref().unwrap().contains("libnpu.so.1"));
}
