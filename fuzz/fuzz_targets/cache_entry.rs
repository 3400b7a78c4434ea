#![no_main]

use halfhitch_xla_iree::compiler::fuzzing::cache_entry;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| halfhitch_fuzz::bounded(cache_entry, bytes));
