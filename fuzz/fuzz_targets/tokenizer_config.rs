#![no_main]

use halfhitch::fuzzing::tokenizer_config;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| halfhitch_fuzz::bounded(tokenizer_config, bytes));
