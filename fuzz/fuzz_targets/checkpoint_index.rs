#![no_main]

use halfhitch::fuzzing::checkpoint_index;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| halfhitch_fuzz::bounded(checkpoint_index, bytes));
