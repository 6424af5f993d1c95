//! `cargo +nightly fuzz run pgoutput`; what must hold is in `tests/pg_decode/entry.rs`.

#![no_main]

#[path = "../../tests/pg_decode/entry.rs"]
#[allow(dead_code, reason = "each target uses one of the entries")]
mod entry;

libfuzzer_sys::fuzz_target!(|data: &[u8]| entry::fuzz_pgoutput(data));
