#![no_main]

#[cfg(target_os = "linux")]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| halfhitch::fuzzing::isolation(bytes));
// Nothing is isolated elsewhere.
#[cfg(not(target_os = "linux"))]
libfuzzer_sys::fuzz_target!(|_bytes: &[u8]| ());
