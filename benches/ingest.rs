//! What a reader makes of a poll's reply.

mod samples;

use divan::Bencher;
use divan::counter::ItemsCount;
use samples::{SHAPES, Shape, polled};
use tidegate::iggy_wire::Verify;
use tidegate::ingest::iggy::Reader;
use tidegate::time::Millis;

fn main() {
    divan::main();
}

/// Ask, reply, records.
#[divan::bench(args = SHAPES)]
fn reply(bencher: Bencher<'_, '_>, shape: Shape) {
    let bytes = shape.bytes();
    bencher
        .counter(ItemsCount::new(shape.messages()))
        .with_inputs(|| {
            let mut reader = Reader::new(Verify::Full);
            reader.seek(0, None);
            let ask = reader.ask(Millis(1), 8 << 20).expect("a poll");
            reader.asked(ask);
            (reader, polled(&bytes, shape))
        })
        .bench_values(|(mut reader, reply)| reader.replied(Millis(2), reply));
}
