#![no_main]

#[cfg(target_os = "linux")]
use halfhitch::fuzzing::isolation;

/// Nothing is isolated elsewhere.
#[cfg(not(target_os = "linux"))]
fn isolation(_: &[u8]) {}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| halfhitch_fuzz::bounded(isolation, bytes));
