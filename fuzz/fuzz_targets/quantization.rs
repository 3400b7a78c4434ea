#![no_main]

use halfhitch::fuzzing::quantization;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| halfhitch_fuzz::bounded(quantization, bytes));
