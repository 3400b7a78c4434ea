#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| halfhitch::fuzzing::manifest(bytes));
