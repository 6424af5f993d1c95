//! Replies as a server sends them, for the micro-benchmarks.
#![allow(dead_code, reason = "each benchmark uses some of it")]

use bytes::{Bytes, BytesMut};
use tidegate::batch::{DeltaPiece, Fingerprint, TopicName};
use tidegate::iggy_wire::Polled;
use tidegate::iggy_wire::build::{Message, build_record};
use tidegate::statefile::{FeedState, LastMessage, SourceState};

/// Sizes of messages and how many a record holds.
pub const SHAPES: [Shape; 3] = [
    Shape { size: 1_000, record: 1_000, records: 8 },
    Shape { size: 100, record: 1_000, records: 8 },
    Shape { size: 100, record: 1, records: 2_000 },
];

/// Of one reply.
#[derive(Clone, Copy)]
pub struct Shape {
    pub size: usize,
    pub record: u32,
    pub records: u64,
}

impl std::fmt::Debug for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} B x {} x {}", self.size, self.record, self.records)
    }
}

impl Shape {
    pub fn messages(self) -> u64 {
        self.records * u64::from(self.record)
    }

    /// The records of a reply that begins at offset 0.
    pub fn bytes(self) -> Vec<u8> {
        let payload = vec![7; self.size];
        let message = |number: u32| Message {
            id: u128::from(number) + 1,
            origin_timestamp: 1_752_000_000_000_000,
            payload: &payload,
            user_headers: &[],
        };
        let messages: Vec<Message<'_>> = (0..self.record).map(message).collect();
        let record = build_record(&messages).expect("a record");
        let stored = |number: u64| record.stored(0, number * u64::from(self.record), 1);
        (0..self.records).flat_map(stored).collect()
    }
}

/// A reply in a buffer of its own, as the driver hands it over.
pub fn polled(bytes: &[u8], shape: Shape) -> Polled {
    let records: Bytes = BytesMut::from(bytes).freeze();
    let count = u32::try_from(shape.messages()).expect("a small reply");
    Polled { partition: 0, current_offset: shape.messages() - 1, count, records }
}

/// What a shard saves of a source with so many partitions.
pub fn state(feeds: u32) -> SourceState {
    let feed = |partition: u32| {
        let topic = || TopicName::new("orders", "events");
        let mut feed = FeedState::fresh(topic(), topic(), partition);
        feed.position = 1_000_000;
        feed.deltas = vec![DeltaPiece { from_upstream: 0, delta: 0 }];
        let fingerprint = Fingerprint {
            id: u128::from(partition),
            origin_timestamp: 1_752_000_000_000_000,
            payload_len: 100,
            headers_len: 0,
            hash: 7,
        };
        feed.last = Some(LastMessage { offset: 999_999, fingerprint });
        feed
    };
    SourceState {
        source: "orders".into(),
        shard: 0,
        generation: 7,
        saved_at: 1_752_000_000_000_000,
        feeds: (0..feeds).map(feed).collect(),
        captures: Vec::new(),
    }
}
