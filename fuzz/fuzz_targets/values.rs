//! `scripts/fuzz values`

#![no_main]

#[path = "../../tests/fuzz/targets/mod.rs"]
#[allow(dead_code, reason = "a program has one target")]
mod targets;

libfuzzer_sys::fuzz_target!(|data: &[u8]| targets::postgres::values(data));
