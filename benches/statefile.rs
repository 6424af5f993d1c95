//! A state file's bytes, there and back.

mod samples;

use divan::Bencher;
use samples::state;
use tidegate::statefile::format::{decode, encode};

fn main() {
    divan::main();
}

const FEEDS: [u32; 3] = [1, 64, 1_024];

#[divan::bench(args = FEEDS)]
fn write(bencher: Bencher<'_, '_>, feeds: u32) {
    let state = state(feeds);
    bencher.bench(|| encode(&state));
}

#[divan::bench(args = FEEDS)]
fn read(bencher: Bencher<'_, '_>, feeds: u32) {
    let bytes = encode(&state(feeds));
    bencher.bench(|| decode(&bytes, "orders.0.state"));
}
