#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| coorp_fuzz::wrapped::run(bytes));
