//! The safe API, over tiny compiled modules.

mod common;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use common::{Aligned, bytes_of, device, floats, module, program};
use halfhitch_xla_iree_sys::{
    Buffer, Call, Code, DType, Device, DeviceOptions, IREE_VERSION, Kind, LogLevel, Origin,
    Parameter, Policy, Program, ProgramSource, Runtime,
};

/// Counts its drops.
struct Owner {
    content: Aligned,
    drops: Arc<AtomicUsize>,
}

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        self.content.as_ref()
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.drops.fetch_add(1, Ordering::SeqCst);
    }
}

fn owned(content: &[u8], skew: usize) -> (Bytes, Arc<AtomicUsize>) {
    let drops = Arc::new(AtomicUsize::new(0));
    let owner = Owner {
        content: Aligned::new(content, skew),
        drops: Arc::clone(&drops),
    };
    (Bytes::from_owner(owner), drops)
}

#[test]
fn handles_cross_threads() {
    fn send_and_sync<T: Send + Sync>() {}
    fn send<T: Send>() {}
    send_and_sync::<Runtime>();
    send_and_sync::<Device>();
    send_and_sync::<Buffer>();
    send_and_sync::<Program>();
    send::<Call>();
}

#[test]
fn drivers_and_devices_are_listed() {
    let runtime = Runtime::new(None).unwrap();
    assert!(IREE_VERSION.starts_with("3.13."));
    // SAFETY: returns a NUL-terminated string that lives for ever.
    let linked =
        unsafe { std::ffi::CStr::from_ptr(halfhitch_xla_iree_sys::ffi::hh_iree_version()) };
    assert_eq!(linked.to_str(), Ok(IREE_VERSION));
    let drivers = runtime.drivers();
    assert!(
        drivers.contains(&"local-task".into()) && drivers.contains(&"local-sync".into()),
        "{drivers:?}"
    );
    let devices = runtime.devices("local-task").unwrap();
    assert_eq!(devices.len(), 1);
    assert_eq!((devices[0].id.as_str(), devices[0].ordinal), ("default", 0));
    let error = runtime.devices("abacus").unwrap_err();
    assert_eq!(error.code, Code::NotFound);
    assert!(error.message.contains("local-sync"), "{error}");
    assert_eq!(
        runtime.devices("a\0b").unwrap_err().code,
        Code::InvalidArgument
    );
}

#[test]
fn a_missing_device_is_named() {
    let runtime = Runtime::new(None).unwrap();
    let options = DeviceOptions {
        driver: "local-task".into(),
        selector: "3".into(),
        workers: 1,
        ..DeviceOptions::default()
    };
    let error = runtime.open(&options).unwrap_err();
    assert_eq!(error.code, Code::NotFound);
    assert!(error.message.contains("no device '3'"), "{error}");
}

#[test]
fn events_reach_the_sink() {
    let events = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&events);
    let sink = Box::new(move |level: LogLevel, text: &str| {
        seen.lock().unwrap().push((level, text.to_owned()));
        panic!("a panic in the sink goes nowhere");
    });
    let runtime = Runtime::new(Some(sink)).unwrap();
    let options = DeviceOptions {
        driver: "local-sync".into(),
        ..DeviceOptions::default()
    };
    let device = runtime.open(&options).unwrap();
    drop(runtime);
    // The sink lives on with the device.
    let (content, _) = owned(&[1; 100], 1);
    Buffer::upload(&device, DType::U8, &[100], content, Policy::Auto).unwrap();
    let events = events.lock().unwrap();
    assert!(
        events
            .iter()
            .any(|(level, text)| *level == LogLevel::Info && text.contains("local-sync"))
    );
    assert!(
        events
            .iter()
            .any(|(level, text)| *level == LogLevel::Debug && text.contains("copied"))
    );
}

#[test]
fn imports_keep_their_owner() {
    let device = device(1);
    let (content, drops) = owned(&[7; 4096], 0);
    let address = content.as_ptr();
    let buffer = Buffer::upload(&device, DType::F32, &[32, 32], content, Policy::Auto).unwrap();
    assert_eq!(buffer.origin(), Origin::Imported);
    assert_eq!(buffer.host_address(), Some(address));
    assert_eq!(
        (buffer.dtype(), buffer.dims(), buffer.byte_length()),
        (DType::F32, &[32, 32][..], 4096)
    );
    let alias = buffer.alias(DType::U4, &[8192]).unwrap();
    drop(buffer);
    assert_eq!(drops.load(Ordering::SeqCst), 0);
    assert_eq!(alias.read().unwrap(), [7; 4096]);
    assert_eq!(
        alias.write(0, &[1]).unwrap_err().code,
        Code::PermissionDenied
    );
    drop(alias);
    assert_eq!(drops.load(Ordering::SeqCst), 1);
}

#[test]
fn copies_let_their_owner_go() {
    let device = device(1);
    for (skew, policy, origin) in [
        (8, Policy::Auto, Some(Origin::Copied)),
        (0, Policy::Copy, Some(Origin::Copied)),
        (1, Policy::RequireImport, None),
    ] {
        let content: Vec<u8> = (0..=255).collect();
        let (bytes, drops) = owned(&content, skew);
        let result = Buffer::upload(&device, DType::U8, &[256], bytes, policy);
        assert_eq!(drops.load(Ordering::SeqCst), 1);
        match origin {
            Some(origin) => {
                let buffer = result.unwrap();
                assert_eq!(buffer.origin(), origin);
                assert_eq!(buffer.read().unwrap(), content);
            }
            None => assert_eq!(result.unwrap_err().code, Code::OutOfRange),
        }
    }
}

#[test]
fn refused_uploads_release_too() {
    let device = device(1);
    let (bytes, drops) = owned(&[0; 64], 0);
    let error = Buffer::upload(&device, DType::F16, &[33], bytes, Policy::Auto).unwrap_err();
    assert_eq!(error.code, Code::InvalidArgument);
    assert_eq!(drops.load(Ordering::SeqCst), 1);
    for dims in [&[usize::MAX][..], &[1 << 40, 1 << 40], &[1; 9]] {
        assert!(
            Buffer::allocate(&device, DType::F32, dims).is_err(),
            "{dims:?}"
        );
    }
}

#[test]
fn dtypes_agree_with_the_c_side() {
    for dtype in DType::ALL {
        // SAFETY: takes a number and reads a table.
        let bits = unsafe { halfhitch_xla_iree_sys::ffi::hh_iree_dtype_bits(dtype as i32) };
        assert_eq!(dtype.bits(), bits, "{dtype:?}");
    }
    assert_eq!(DType::U4.byte_length(&[3, 3]), Some(5));
    assert_eq!(DType::F32.byte_length(&[]), Some(4));
    assert_eq!(DType::I64.byte_length(&[usize::MAX, 2]), None);
}

#[test]
fn ranges_are_checked() {
    let device = device(1);
    let buffer = Buffer::allocate(&device, DType::U8, &[100]).unwrap();
    buffer.write(98, &[1, 2]).unwrap();
    let mut two = [0; 2];
    buffer.read_into(98, &mut two).unwrap();
    assert_eq!(two, [1, 2]);
    assert_eq!(
        buffer.read_into(99, &mut two).unwrap_err().code,
        Code::OutOfRange
    );
    assert_eq!(
        buffer.write(usize::MAX, &[1]).unwrap_err().code,
        Code::OutOfRange
    );
    buffer.zero().unwrap();
    assert_eq!(buffer.read().unwrap(), [0; 100]);
}

#[test]
fn a_driver_is_asked_by_its_own_keys() {
    let device = device(1);
    assert_eq!(device.query("hal.device.id", "*").unwrap(), Some(1));
    assert_eq!(device.query("no-such", "key").unwrap(), None);
    assert!(device.query("a NUL \0", "key").is_err());
}

#[test]
fn memory_is_counted() {
    let device = device(1);
    let before = device.memory().unwrap();
    let buffer = Buffer::allocate(&device, DType::F32, &[1 << 18]).unwrap();
    assert_eq!(
        device.memory().unwrap().allocated - before.allocated,
        1 << 20
    );
    drop(buffer);
    assert_eq!(device.memory().unwrap().allocated, before.allocated);
    assert!(before.total.unwrap() >= before.free.unwrap());
}

#[test]
fn scalars_go_in_and_out() {
    let mut call = program(&device(1), "scalars").call("scalars.add").unwrap();
    assert_eq!(call.argument_kinds(), [Kind::I32, Kind::I64, Kind::F32]);
    assert_eq!(call.result_kinds(), [Kind::I32, Kind::I64, Kind::F32]);
    let error = call.invoke().unwrap_err();
    assert!(
        error.code == Code::InvalidArgument && error.message.contains("argument 0"),
        "{error}"
    );
    call.set_i64(1, 1 << 40).unwrap();
    call.set_f32(2, 1.0).unwrap();
    for step in 0..10 {
        call.set_i32(0, step).unwrap();
        call.invoke().unwrap();
        assert_eq!(call.result_i32(0).unwrap(), step + 1);
        assert_eq!(call.result_i64(1).unwrap(), (1 << 40) + 2);
        assert_eq!(call.result_f32(2).unwrap(), 1.5);
    }
    assert!(call.result_buffer(0).is_err());
    call.drop_results();
    assert_eq!(
        call.result_i32(0).unwrap_err().code,
        Code::FailedPrecondition
    );
}

#[test]
fn a_cache_is_updated_in_place() {
    for workers in [1, 2] {
        let device = device(workers);
        let program = program(&device, "kv");
        assert!(program.has_function("kv.step") && !program.has_function("kv.nothing"));
        let k = Buffer::allocate(&device, DType::F32, &[64, 8]).unwrap();
        let v = Buffer::allocate(&device, DType::F32, &[64, 8]).unwrap();
        let mut call = program.call("kv.step").unwrap();
        call.set_buffer(0, &k).unwrap();
        call.set_buffer(1, &v).unwrap();
        for step in 0..8u8 {
            let row = bytes_of(&[f32::from(step) + 1.0; 8]);
            let row =
                Buffer::upload(&device, DType::F32, &[1, 8], row.into(), Policy::Copy).unwrap();
            call.set_buffer(2, &row).unwrap();
            call.set_i64(3, i64::from(step)).unwrap();
            call.invoke().unwrap();
            assert_eq!(
                call.result_buffer(1).unwrap().host_address(),
                k.host_address()
            );
            assert_eq!(
                call.result_buffer(2).unwrap().host_address(),
                v.host_address()
            );
        }
        let (k, v) = (floats(&k.read().unwrap()), floats(&v.read().unwrap()));
        assert_eq!((k[7 * 8], v[7 * 8], k[8 * 8]), (8.0, 16.0, 0.0));
    }
}

#[test]
fn weights_may_be_parameters() {
    let device = device(2);
    let weight: Vec<f32> = (0..16 * 32).map(|i| (i % 7) as f32 - 3.0).collect();
    let bias: Vec<f32> = (0..16).map(|i| i as f32).collect();
    let (weight_bytes, weight_drops) = owned(&bytes_of(&weight), 0);
    let (bias_bytes, bias_drops) = owned(&bytes_of(&bias), 4);
    let parameter = |key: &str, content| Parameter {
        scope: "model".into(),
        key: key.into(),
        content,
    };
    let source = ProgramSource {
        modules: vec![module("parameters")],
        parameters: vec![
            parameter("weight", weight_bytes),
            parameter("bias", bias_bytes),
        ],
    };
    // SAFETY: made just now by the pinned compiler; it updates nothing.
    let program = unsafe { Program::load(&device, &source) }.unwrap();
    drop(source);
    assert_eq!(
        (
            weight_drops.load(Ordering::SeqCst),
            bias_drops.load(Ordering::SeqCst)
        ),
        (0, 1)
    );
    let x = bytes_of(&[1.0; 32]);
    let x = Buffer::upload(&device, DType::F32, &[32, 1], x.into(), Policy::Auto).unwrap();
    let mut call = program.call("parameters.apply").unwrap();
    drop(program);
    call.set_buffer(0, &x).unwrap();
    call.invoke().unwrap();
    let y = floats(&call.result_buffer(0).unwrap().read().unwrap());
    for (row, value) in y.iter().enumerate() {
        let expected: f32 = weight[row * 32..][..32].iter().sum::<f32>() + bias[row];
        assert!(
            (value - expected).abs() < 1e-4,
            "{row}: {value}, not {expected}"
        );
    }
    drop(call);
    assert_eq!(weight_drops.load(Ordering::SeqCst), 1);
}

#[test]
fn a_missing_parameter_is_named() {
    let source = ProgramSource {
        modules: vec![module("parameters")],
        parameters: Vec::new(),
    };
    // SAFETY: made just now by the pinned compiler; it updates nothing.
    let error = unsafe { Program::load(&device(1), &source) }.err().unwrap();
    assert_eq!(error.code, Code::NotFound);
    assert!(error.message.contains("model"), "{error}");
}

#[test]
fn broken_modules_are_refused() {
    let device = device(1);
    for content in [
        vec![],
        vec![0x41; 1000],
        vec![0; 64],
        module("scalars")[..700].to_vec(),
    ] {
        let source = ProgramSource {
            modules: vec![content.into()],
            parameters: Vec::new(),
        };
        // SAFETY: it is refused before any of it runs.
        let error = unsafe { Program::load(&device, &source) }.err().unwrap();
        assert_eq!(error.code, Code::InvalidArgument, "{error}");
    }
}

#[test]
fn buffers_belong_to_their_device() {
    let (one, two) = (device(1), device(1));
    let mut call = program(&one, "matvec").call("matvec.apply").unwrap();
    let foreign = Buffer::allocate(&two, DType::F32, &[16, 32]).unwrap();
    assert!(
        call.set_buffer(0, &foreign)
            .unwrap_err()
            .message
            .contains("another device")
    );
    let wrong = Buffer::allocate(&one, DType::F32, &[32, 16]).unwrap();
    let x = Buffer::allocate(&one, DType::F32, &[32, 1]).unwrap();
    call.set_buffer(0, &wrong).unwrap();
    call.set_buffer(1, &x).unwrap();
    let error = call.invoke().unwrap_err();
    assert!(
        error.code == Code::InvalidArgument && error.message.contains("shape"),
        "{error}"
    );
    assert!(one.same_as(foreign.device()) != two.same_as(foreign.device()));
}

#[test]
fn calls_of_one_program_wait_for_each_other() {
    let program = program(&device(2), "scalars");
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let program = program.clone();
            scope.spawn(move || {
                let mut call = program.call("scalars.add").unwrap();
                call.set_i64(1, 0).unwrap();
                call.set_f32(2, 0.0).unwrap();
                for step in 0..200 {
                    call.set_i32(0, thread * 1000 + step).unwrap();
                    call.invoke().unwrap();
                    assert_eq!(call.result_i32(0).unwrap(), thread * 1000 + step + 1);
                }
            });
        }
    });
}
