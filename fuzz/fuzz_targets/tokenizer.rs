#![no_main]

use halfhitch::fuzzing::tokenizer;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| halfhitch_fuzz::bounded(tokenizer, bytes));
