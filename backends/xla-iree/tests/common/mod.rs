//! A device with a compiler for it, on every driver that is linked in and has a target.
// Each test file uses its own part of this.
#![allow(dead_code)]

use std::path::Path;

use bytes::Bytes;
use halfhitch_seam::{CancelToken, Control, NoObserver};
use halfhitch_xla_iree::compiler::{Compiler, CompilerOptions, Target};
use halfhitch_xla_iree_sys::{
    Buffer, DType, Device, DeviceOptions, IREE_VERSION, Policy, Program, ProgramSource, Runtime,
};

/// A device and what makes code for it.
pub struct Rig {
    pub driver: String,
    pub device: Device,
    compiler: Compiler,
    target: Target,
}

/// Runs `check` on the first device of every driver.
pub fn on_every_driver(check: impl Fn(&Rig)) {
    let runtime = Runtime::new(None).expect("a runtime");
    let cancel = CancelToken::new();
    let mut checked = 0;
    for driver in runtime.drivers() {
        let Some(target) = Target::for_driver(&driver) else {
            continue;
        };
        let options = DeviceOptions {
            driver: driver.clone(),
            workers: 2,
            ..DeviceOptions::default()
        };
        let mut compiler = CompilerOptions::from_environment(IREE_VERSION).expect("options");
        compiler.cache = Some(Path::new(env!("CARGO_TARGET_TMPDIR")).join("modules"));
        let rig = Rig {
            device: runtime.open(&options).expect("a device"),
            compiler: Compiler::open(&compiler, &control(&cancel)).expect("a compiler"),
            target,
            driver,
        };
        check(&rig);
        checked += 1;
    }
    assert!(checked >= 2, "only {checked} drivers");
}

pub fn control(cancel: &CancelToken) -> Control<'_> {
    Control {
        cancel,
        observer: &NoObserver,
    }
}

impl Rig {
    /// A program of one module.
    pub fn program(&self, text: &str) -> Program {
        let cancel = CancelToken::new();
        let modules = self
            .compiler
            .compile(&[text.to_owned()], &self.target, &control(&cancel))
            .unwrap_or_else(|e| panic!("{}: {e}", self.driver));
        let source = ProgramSource {
            modules: modules.into_iter().map(Bytes::from).collect(),
            parameters: Vec::new(),
        };
        // SAFETY: made by the pinned compiler; tests update only buffers that they allocated.
        unsafe { Program::load(&self.device, &source) }
            .unwrap_or_else(|e| panic!("{}: {e}", self.driver))
    }

    /// Uploads numbers by copy.
    pub fn up(&self, dtype: DType, dims: &[usize], bytes: Vec<u8>) -> Buffer {
        Buffer::upload(&self.device, dtype, dims, bytes.into(), Policy::Copy)
            .unwrap_or_else(|e| panic!("{}: {e}", self.driver))
    }

    /// Uploads f32 numbers by copy.
    pub fn up_f32(&self, dims: &[usize], values: &[f32]) -> Buffer {
        self.up(DType::F32, dims, bytes_of(values))
    }
}

/// Little-endian bytes.
pub fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// The numbers of a buffer.
pub fn floats(buffer: &Buffer) -> Vec<f32> {
    let bytes = buffer.read().expect("a buffer that can be read");
    let words = bytes.chunks_exact(4);
    words
        .map(|w| f32::from_le_bytes(w.try_into().expect("four bytes")))
        .collect()
}
