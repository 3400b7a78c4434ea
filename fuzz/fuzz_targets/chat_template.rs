#![no_main]

use halfhitch::fuzzing::chat_template;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| halfhitch_fuzz::bounded(chat_template, bytes));
