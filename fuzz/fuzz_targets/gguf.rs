#![no_main]

use halfhitch::fuzzing::gguf;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| halfhitch_fuzz::bounded(gguf, bytes));
