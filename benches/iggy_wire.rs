//! What is done for every record: checking a reply, taking it apart, merging, framing a send.

mod samples;

use divan::Bencher;
use divan::counter::{BytesCount, ItemsCount};
use samples::{SHAPES, Shape, polled};
use tidegate::iggy_wire::build::{Message, build_record};
use tidegate::iggy_wire::encode::{Envelope, encode};
use tidegate::iggy_wire::run::Limits;
use tidegate::iggy_wire::{Request, Runs, SendTo, Verify};

fn main() {
    divan::main();
}

fn check(bencher: Bencher<'_, '_>, shape: Shape, verify: Verify) {
    let bytes = shape.bytes();
    bencher
        .counter(BytesCount::new(bytes.len()))
        .counter(ItemsCount::new(shape.messages()))
        .with_inputs(|| polled(&bytes, shape))
        .bench_values(|mut reply| reply.take_run(verify));
}

/// Framing and every checksum.
#[divan::bench(args = SHAPES)]
fn check_full(bencher: Bencher<'_, '_>, shape: Shape) {
    check(bencher, shape, Verify::Full);
}

/// Framing alone.
#[divan::bench(args = SHAPES)]
fn check_framing(bencher: Bencher<'_, '_>, shape: Shape) {
    check(bencher, shape, Verify::FramingOnly);
}

/// Everything of a reply as batches to send, small records merged.
#[divan::bench(args = SHAPES)]
fn take_batches(bencher: Bencher<'_, '_>, shape: Shape) {
    let bytes = shape.bytes();
    let limits = Limits { bytes: 60 << 20, merged: 8 << 20, messages: u32::MAX, large: 64 << 10 };
    bencher
        .counter(ItemsCount::new(shape.messages()))
        .with_inputs(|| {
            let mut runs = Runs::default();
            let run = polled(&bytes, shape).take_run(Verify::FramingOnly).expect("a good reply");
            run.into_iter().for_each(|run| runs.push(run));
            runs
        })
        .bench_values(|mut runs| {
            let mut sends = 0;
            while let Ok(Some(batch)) = runs.take(&limits) {
                divan::black_box(&batch);
                sends += 1;
            }
            sends
        });
}

/// The frame of a send, its record by reference.
#[divan::bench]
fn frame_send(bencher: Bencher<'_, '_>) {
    let message = Message { payload: b"some payload", ..Message::default() };
    let record = build_record(&[message]).expect("a record");
    let to = SendTo::Partition(0);
    let send = Request::Send { stream: "orders".into(), topic: "events".into(), to, record };
    let envelope = Envelope { client: 1 << 70, session: 1, number: 1 };
    bencher.bench(|| encode(&send, envelope));
}
