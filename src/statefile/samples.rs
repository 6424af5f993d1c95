//! States for the tests of this folder: fixed ones, and any that a feed can be in.

use proptest::prelude::*;

use super::{
    CaptureCounters, CaptureState, Counters, FeedState, LastMessage, LsnGap, RoutedTable,
    SourceState, UnfinishedState,
};
use crate::batch::{DeltaPiece, Fingerprint, Gap, Repeat, TopicName};

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
        repeats: vec![Repeat { first: 900, last: 949, found_at: 1_752_000_000_000_005 }],
        first_count: Some(8),
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
        repeats: Vec::new(),
        first_count: None,
        ..full_feed()
    }
}

/// One capture with a value of its own in every field.
pub(super) fn full_capture() -> CaptureState {
    CaptureState {
        slot: "tidegate_shop".into(),
        database: "shop-é".into(),
        decoder: "pgoutput".into(),
        publication: "tidegate_shop,audit".into(),
        epoch: 2,
        sequence: 77,
        system_id: 7_523_190_467_211_098_765,
        timeline: 3,
        end_lsn: 0x16_b374_d848,
        unfinished: Some(UnfinishedState {
            final_lsn: 0x16_b375_0000,
            xid: 4_000_000_001,
            ordinal: 123_456,
            config_hash: 0x0bad_cafe_0bad_cafe,
        }),
        clean_stop: true,
        counters: CaptureCounters {
            messages: 1_000_001,
            bytes: 230_000_002,
            errors: 5,
            resets: 1,
            transactions: 3_003,
            gaps: 1,
        },
        gaps: vec![LsnGap {
            first: 0x16_0000_0010,
            last: 0x16_0000_0420,
            found_at: 1_752_000_000_000_005,
            why: "accepted by the operator".into(),
        }],
        last_abandon_at: 1_752_000_000_000_006,
        routed: vec![RoutedTable {
            schema: "public".into(),
            name: "örders".into(),
            columns: vec!["region".into(), "tenant".into()],
        }],
    }
}

/// A capture before its first transaction.
pub(super) fn fresh_capture() -> CaptureState {
    CaptureState {
        slot: "other".into(),
        publication: String::new(),
        decoder: "test_decoding".into(),
        epoch: 0,
        sequence: 0,
        timeline: 1,
        unfinished: None,
        clean_stop: false,
        counters: CaptureCounters::default(),
        gaps: Vec::new(),
        last_abandon_at: 0,
        routed: Vec::new(),
        ..full_capture()
    }
}

/// Both feeds alone; the content of the golden file of version 1.
pub(super) fn mirror_state() -> SourceState {
    let mut state = SourceState { captures: Vec::new(), ..second_state() };
    state.feeds.iter_mut().for_each(|feed| feed.repeats.clear());
    state
}

/// The content of the golden file of version 2.
pub(super) fn second_state() -> SourceState {
    let mut state = full_state();
    state.feeds.iter_mut().for_each(|feed| feed.first_count = None);
    state
}

/// Both feeds and both captures; the content of the golden file.
pub(super) fn full_state() -> SourceState {
    SourceState {
        source: "orders".into(),
        shard: 5,
        generation: 0x0102_0304_0506_0708,
        saved_at: 1_752_000_000_000_000,
        feeds: vec![full_feed(), fresh_feed()],
        captures: vec![full_capture(), fresh_capture()],
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
    let captures = prop::collection::btree_map("[a-z0-9_]{1,63}", any_capture(), 0..3);
    let captures = captures.prop_map(|captures| {
        captures.into_iter().map(|(slot, c)| CaptureState { slot, ..c }).collect()
    });
    ("[a-z0-9_-]{1,40}", any::<u16>(), any::<u64>(), any::<u64>(), feeds, captures).prop_map(
        |(source, shard, generation, saved_at, feeds, captures)| SourceState {
            source: source.into(),
            shard,
            generation,
            saved_at,
            feeds,
            captures,
        },
    )
}

fn any_capture() -> impl Strategy<Value = CaptureState> {
    let name = "[^\\x00]{1,60}";
    let gap = (0..u64::MAX >> 1, 1..u64::MAX >> 1, any::<u64>(), ".{0,60}")
        .prop_map(|(first, len, found_at, why)| LsnGap { first, last: first + len, found_at, why });
    let next = (any::<u64>(), any::<u32>(), 1..=u64::MAX, any::<u64>());
    (
        (name, name, ".{0,60}", any::<[u64; 4]>(), 1..=u32::MAX),
        (prop::option::of(next), any::<[u64; 6]>(), prop::collection::vec(gap, 0..9)),
        (any::<bool>(), any::<u64>(), any_routed()),
    )
        .prop_map(
            |(
                (database, decoder, publication, n, timeline),
                (next, c, gaps),
                (stop, at, routed),
            )| {
                let [epoch, sequence, system_id, end] = n;
                let unfinished = next.map(|(final_lsn, xid, ordinal, config_hash)| {
                    UnfinishedState { final_lsn: final_lsn.max(end), xid, ordinal, config_hash }
                });
                let [messages, bytes, errors, resets, transactions, gap_count] = c;
                CaptureState {
                    slot: String::new(),
                    database,
                    decoder,
                    publication,
                    epoch,
                    sequence,
                    system_id,
                    timeline,
                    end_lsn: end,
                    unfinished,
                    clean_stop: stop,
                    counters: CaptureCounters {
                        messages,
                        bytes,
                        errors,
                        resets,
                        transactions,
                        gaps: gap_count,
                    },
                    gaps,
                    last_abandon_at: at,
                    routed,
                }
            },
        )
}

fn any_routed() -> impl Strategy<Value = Vec<RoutedTable>> {
    let columns = prop::collection::btree_set(".{0,20}", 1..4);
    let table = (".{0,20}", ".{0,20}", columns).prop_map(|(schema, name, columns)| RoutedTable {
        schema,
        name,
        columns: columns.into_iter().collect(),
    });
    prop::collection::vec(table, 0..5)
}

fn any_feed() -> impl Strategy<Value = FeedState> {
    (
        (any_topic(), any_topic(), any::<u32>(), any::<u64>(), any::<u64>(), any_progress()),
        (any::<u64>(), any::<u64>(), any::<bool>(), any_counters(), any_gaps(), any_gaps()),
        any::<Option<u32>>(),
    )
        .prop_map(
            |(
                (upstream, downstream, partition, epoch, sequence, progress),
                (up, down, stop, c, g, r),
                first_count,
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
                    repeats: r.into_iter().map(repeat).collect(),
                    first_count,
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

fn repeat(gap: Gap) -> Repeat {
    Repeat { first: gap.first, last: gap.last, found_at: gap.found_at }
}

fn any_gaps() -> impl Strategy<Value = Vec<Gap>> {
    let gap = (0..u64::MAX - 1, any::<u64>(), any::<u64>()).prop_map(|(first, len, found_at)| {
        Gap { first, last: first.saturating_add(len).min(u64::MAX - 1), found_at }
    });
    prop::collection::vec(gap, 0..20)
}
