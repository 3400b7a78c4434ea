#![no_main]

use halfhitch::fuzzing::config;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| halfhitch_fuzz::bounded(config, bytes));
