//! Compiles the modules of the C tests with the pinned compiler, once a run of a test binary.

use std::path::{Path, PathBuf};
use std::process::Command;

use bytes::Bytes;
use halfhitch_xla_iree_sys::{Device, DeviceOptions, Program, ProgramSource, Runtime};

fn run(command: &mut Command) -> Vec<u8> {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    output.stdout
}

/// The compiled module of `csrc/tests/modules/<name>.mlir`.
pub fn module(name: &str) -> Bytes {
    let csrc = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../csrc");
    let compiler = run(Command::new(csrc.join("build-runtime.sh")).arg("compiler"));
    let compiler = String::from_utf8(compiler).expect("a path");
    let made = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!(
        "{name}-{}-{:?}.vmfb",
        std::process::id(),
        std::thread::current().id()
    ));
    run(Command::new(compiler.trim())
        .args([
            "--iree-hal-target-backends=llvm-cpu",
            "--iree-llvmcpu-target-cpu=host",
            "--iree-input-type=auto",
        ])
        .arg(csrc.join(format!("tests/modules/{name}.mlir")))
        .arg("-o")
        .arg(&made));
    let content = std::fs::read(&made).expect("the compiled module");
    std::fs::remove_file(&made).expect("the compiled module is ours");
    Bytes::from(content)
}

/// A `local-task` device with this many workers.
pub fn device(workers: u32) -> Device {
    let runtime = Runtime::new(None).expect("a runtime");
    let options = DeviceOptions {
        driver: "local-task".into(),
        workers,
        ..DeviceOptions::default()
    };
    runtime.open(&options).expect("a device")
}

/// The test module `name` on `device`.
pub fn program(device: &Device, name: &str) -> Program {
    let source = ProgramSource {
        modules: vec![module(name)],
        ..ProgramSource::default()
    };
    // SAFETY: made just now by the pinned compiler; the tests keep the contract on buffers.
    unsafe { Program::load(device, &source) }.expect("a program")
}

/// Memory whose address is a multiple of 4096, or `skew` bytes past one.
pub struct Aligned {
    memory: Vec<u8>,
    start: usize,
    length: usize,
}

impl Aligned {
    /// A copy of `content`.
    pub fn new(content: &[u8], skew: usize) -> Self {
        let mut memory = vec![0; content.len() + 8192];
        let start = memory.as_ptr().align_offset(4096) + skew;
        memory[start..start + content.len()].copy_from_slice(content);
        Self {
            memory,
            start,
            length: content.len(),
        }
    }
}

impl AsRef<[u8]> for Aligned {
    fn as_ref(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.length]
    }
}

/// The bytes of f32 values.
pub fn bytes_of(values: &[f32]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| value.to_ne_bytes())
        .collect()
}

/// The f32 values in bytes.
pub fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes
        .chunks_exact(4)
        .map(|chunk| f32::from_ne_bytes(chunk.try_into().expect("four")))
        .collect()
}
