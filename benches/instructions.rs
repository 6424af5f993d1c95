//! Work of a fixed size for `valgrind --tool=callgrind`, one kind at a time: its instructions are
//! the same on a busy machine. `scripts/instructions` runs it and compares.
//!
//! Only what happens inside a function whose name begins with `measured` is counted.

mod samples;

use std::hint::black_box;
use std::time::Duration;

use samples::{SHAPES, Shape, polled, state};
use tidegate::batch::FeedId;
use tidegate::commit::lane::Lane;
use tidegate::fanout::dispatch::{Most, Writer};
use tidegate::iggy_wire::encode::{Envelope, encode};
use tidegate::iggy_wire::{Polled, Request, SendTo, Verify};
use tidegate::ingest::iggy::{Outcome, Reader};
use tidegate::statefile::format;
use tidegate::time::Millis;

/// Replies or saves of a run.
const TIMES: u32 = 4;

fn main() {
    let names = ["relay_unverified", "relay_verified", "relay_small", "relay_merged", "commit"];
    match std::env::args().nth(1).as_deref() {
        Some("relay_unverified") => relay(SHAPES[0], Verify::FramingOnly),
        Some("relay_verified") => relay(SHAPES[0], Verify::Full),
        Some("relay_small") => relay(SHAPES[1], Verify::Full),
        Some("relay_merged") => relay(SHAPES[2], Verify::Full),
        Some("commit") => commit(),
        // Cargo runs benchmarks with arguments of its own.
        _ => println!("{}", names.join("\n")),
    }
}

/// Replies on their way to frames that can be sent.
fn relay(shape: Shape, verify: Verify) {
    let bytes = shape.bytes();
    for _ in 0..TIMES {
        let mut reader = Reader::new(verify);
        reader.seek(0, None);
        reader.asked(reader.ask(Millis(1), 8 << 20).expect("a poll"));
        let copied = measured_relay(&mut reader, polled(&bytes, shape));
        assert_eq!(copied, shape.messages());
    }
}

#[inline(never)]
fn measured_relay(reader: &mut Reader, reply: Polled) -> u64 {
    let most = Most { bytes: 60 << 20, merged: 8 << 20, is_far: false };
    let (stream, topic) = ("orders".into(), "events".into());
    let mut writer = Writer::default();
    writer.restart(0);
    match reader.replied(Millis(2), reply) {
        Outcome::Records(run) => writer.push(*run),
        other => panic!("a good reply became {other:?}"),
    }
    let mut next = 0;
    while let Ok(Some(record)) = writer.next(Millis(2), most) {
        let count = u64::from(record.count());
        let (stream, topic) = (std::sync::Arc::clone(&stream), std::sync::Arc::clone(&topic));
        let send = Request::Send { stream, topic, to: SendTo::Partition(0), record };
        let envelope = Envelope { client: 1 << 70, session: 1, number: next + 1 };
        black_box(encode(&send, envelope).expect("a frame"));
        black_box(writer.confirmed(Some(next)));
        next += count;
    }
    next
}

/// Positions of 64 partitions on their way to the bytes of a file.
fn commit() {
    let mut lane = Lane::new(Duration::ZERO, 0);
    let mut rng = fastrand::Rng::with_seed(1);
    let mut state = state(64);
    for now in 1..=u64::from(TIMES) {
        measured_commit(&mut lane, &mut state, Millis(now), &mut rng);
    }
    assert_eq!(lane.totals(), (u64::from(TIMES), 0));
}

#[inline(never)]
fn measured_commit(
    lane: &mut Lane,
    state: &mut tidegate::statefile::SourceState,
    now: Millis,
    rng: &mut fastrand::Rng,
) {
    (0..1_000).for_each(|_| lane.mark());
    lane.barrier();
    let positions = || (0..64).map(|feed| (FeedId(feed), 7)).collect();
    let generation = lane.start(now, positions).expect("a barrier is due");
    state.generation = generation;
    black_box(format::encode(state));
    black_box(lane.finished(now, generation, true, rng));
}
