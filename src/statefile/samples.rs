//! States for the tests of this folder: fixed ones, and any that a feed can be in.

use proptest::prelude::*;

use super::{Counters, FeedState, LastMessage, SourceState};
use crate::batch::{DeltaPiece, Fingerprint, Gap, TopicName};

/// One feed with a value of its own in every field.
pub(super) fn full_feed() -> FeedState {
    FeedState {
        upstream: TopicName::new("orders", "events"),
        downstream: TopicName::new("mirror", "events-é"),
        partition: 7,
        epoch: 3,
        sequence: 41,
        position: 1_000,
        deltas: vec![
            DeltaPiece { from_upstream: 100, delta: -100 },
            DeltaPiece { from_upstream: 600, delta: -150 },
        ],
        last: Some(LastMessage {
            offset: 999,
            fingerprint: Fingerprint {
                id: 0x0123_4567_89ab_cdef_0011_2233_4455_6677,
                origin_timestamp: 1_752_000_000_000_001,
                payload_len: 512,
                headers_len: 33,
                hash: 0xfeed_face_cafe_beef,
            },
        }),
        upstream_created_at: 1_751_000_000_000_002,
        downstream_created_at: 1_751_000_000_000_003,
        clean_stop: true,
        counters: Counters {
            messages: 850,
            bytes: 500_000,
            errors: 4,
            resets: 2,
            gaps: 1,
            gap_messages: 50,
        },
        gaps: vec![Gap { first: 550, last: 599, found_at: 1_752_000_000_000_004 }],
    }
}

/// A feed before its first message.
pub(super) fn fresh_feed() -> FeedState {
    FeedState {
        partition: 8,
        epoch: 0,
        sequence: 0,
        position: 0,
        deltas: vec![DeltaPiece { from_upstream: 0, delta: 12 }],
        last: None,
        clean_stop: false,
        counters: Counters::default(),
        gaps: Vec::new(),
        ..full_feed()
    }
}

/// Both feeds; the content of the golden file.
pub(super) fn full_state() -> SourceState {
    SourceState {
        source: "orders".into(),
        shard: 5,
        generation: 0x0102_0304_0506_0708,
        saved_at: 1_752_000_000_000_000,
        feeds: vec![full_feed(), fresh_feed()],
    }
}

/// Any state a shard may save, every field at random.
pub(super) fn any_state() -> impl Strategy<Value = SourceState> {
    let feeds = prop::collection::vec(any_feed(), 0..5).prop_map(|mut feeds| {
        for (at, feed) in feeds.iter_mut().enumerate() {
            feed.partition = feed.partition.wrapping_shl(3) | at as u32;
        }
        feeds
    });
    ("[a-z0-9_-]{1,40}", any::<u16>(), any::<u64>(), any::<u64>(), feeds).prop_map(
        |(source, shard, generation, saved_at, feeds)| SourceState {
            source: source.into(),
            shard,
            generation,
            saved_at,
            feeds,
        },
    )
}

fn any_feed() -> impl Strategy<Value = FeedState> {
    (
        (any_topic(), any_topic(), any::<u32>(), any::<u64>(), any::<u64>(), any_progress()),
        (any::<u64>(), any::<u64>(), any::<bool>(), any_counters(), any_gaps()),
    )
        .prop_map(
            |(
                (upstream, downstream, partition, epoch, sequence, progress),
                (up, down, stop, c, g),
            )| {
                let (position, deltas, last) = progress;
                FeedState {
                    upstream,
                    downstream,
                    partition,
                    epoch,
                    sequence,
                    position,
                    deltas,
                    last,
                    upstream_created_at: up,
                    downstream_created_at: down,
                    clean_stop: stop,
                    counters: c,
                    gaps: g,
                }
            },
        )
}

fn any_topic() -> impl Strategy<Value = TopicName> {
    let name = "[^\\x00]{1,60}";
    (name, name).prop_map(|(stream, topic)| TopicName::new(&stream, &topic))
}

type Progress = (u64, Vec<DeltaPiece>, Option<LastMessage>);

/// Pieces up to the position, the last message below it.
fn any_progress() -> impl Strategy<Value = Progress> {
    let starts = prop::collection::btree_set(0..=u64::MAX >> 2, 1..6);
    let usual = (starts, any::<i64>(), 0..=u64::MAX >> 2, any_last()).prop_map(
        |(starts, delta, ahead, last)| {
            let position = starts.last().copied().unwrap_or(0) + ahead;
            let deltas = starts
                .iter()
                .zip(0..)
                .map(|(from, n)| DeltaPiece {
                    from_upstream: *from,
                    delta: delta.saturating_sub(n).max(-(position as i64)),
                })
                .collect();
            let last = last.filter(|_| position > 0);
            let last = last.map(|l| LastMessage { offset: l.offset % position, ..l });
            (position, deltas, last)
        },
    );
    let far = vec![DeltaPiece { from_upstream: u64::MAX, delta: i64::MIN }];
    prop_oneof![9 => usual, 1 => Just((u64::MAX, far, None))]
}

fn any_last() -> impl Strategy<Value = Option<LastMessage>> {
    let fields = (any::<u64>(), any::<u128>(), any::<u64>(), any::<u32>(), any::<u32>());
    prop::option::of((fields, any::<u64>()).prop_map(|((offset, id, origin, p, h), hash)| {
        LastMessage {
            offset,
            fingerprint: Fingerprint {
                id,
                origin_timestamp: origin,
                payload_len: p,
                headers_len: h,
                hash,
            },
        }
    }))
}

fn any_counters() -> impl Strategy<Value = Counters> {
    any::<[u64; 6]>().prop_map(|[messages, bytes, errors, resets, gaps, gap_messages]| Counters {
        messages,
        bytes,
        errors,
        resets,
        gaps,
        gap_messages,
    })
}

fn any_gaps() -> impl Strategy<Value = Vec<Gap>> {
    let gap = (0..u64::MAX - 1, any::<u64>(), any::<u64>()).prop_map(|(first, len, found_at)| {
        Gap { first, last: first.saturating_add(len).min(u64::MAX - 1), found_at }
    });
    prop::collection::vec(gap, 0..20)
}
