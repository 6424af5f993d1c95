//! The writer of one destination partition: in the queue, out, acked.

mod samples;

use divan::Bencher;
use divan::counter::ItemsCount;
use samples::{SHAPES, Shape, polled};
use tidegate::fanout::dispatch::{Most, Writer};
use tidegate::iggy_wire::Verify;
use tidegate::time::Millis;

fn main() {
    divan::main();
}

#[divan::bench(args = SHAPES)]
fn send_and_ack(bencher: Bencher<'_, '_>, shape: Shape) {
    let bytes = shape.bytes();
    let most = Most { bytes: 60 << 20, merged: 8 << 20, is_far: false };
    bencher
        .counter(ItemsCount::new(shape.messages()))
        .with_inputs(|| polled(&bytes, shape).take_run(Verify::FramingOnly))
        .bench_values(|run| {
            let mut writer = Writer::default();
            writer.restart(0);
            run.into_iter().flatten().for_each(|run| writer.push(run));
            let mut next = 0;
            while let Ok(Some(record)) = writer.next(Millis(1), most) {
                divan::black_box(writer.confirmed(Some(next)));
                next += u64::from(record.count());
            }
            next
        });
}
