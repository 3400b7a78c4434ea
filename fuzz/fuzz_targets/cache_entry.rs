#![no_main]

use halfhitch_xla_iree::compiler::fuzzing;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzzing::cache_entry(bytes));
