#![no_main]

use halfhitch::fuzzing::manifest;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| halfhitch_fuzz::bounded(manifest, bytes));
