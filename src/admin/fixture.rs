//! Hand-made snapshots for tests.

use std::sync::Arc;
use std::time::Duration;

use super::board::{DaemonInfo, SourceInfo, SourceKind, View};
use super::metrics::{Exposition, TextFormat};
use super::process::ProcessUsage;
use crate::batch::{FeedId, Gap, Repeat, TopicName};
use crate::shard::snapshot::{
    CaptureSnapshot, Condition, DestinationSnapshot, FeedSnapshot, LsnGap, OutletCounters,
    Rejection, ShardSnapshot, SourceFinding, Status, StreamCounters, Watch,
};
use crate::time::{Millis, Now, UnixMicros};

pub(crate) const START: u64 = 1_750_000_000_000_000;

pub(super) fn at(seconds: u64) -> Now {
    Now { mono: Millis(seconds * 1_000), wall: UnixMicros(START + seconds * 1_000_000) }
}

pub(super) fn info(shards: u16, mirrors: &[&str]) -> DaemonInfo {
    info_of(shards, mirrors, &[])
}

pub(super) fn info_of(shards: u16, mirrors: &[&str], captures: &[&str]) -> DaemonInfo {
    let mirrors = mirrors.iter().map(|key| SourceInfo {
        key: (*key).into(),
        kind: SourceKind::Iggy,
        from: "east".into(),
        to: "west".into(),
        guarantee: "exactly_once",
    });
    let captures = captures.iter().map(|key| SourceInfo {
        key: (*key).into(),
        kind: SourceKind::PostgresCdc,
        from: "postgresql://tidegate@db1:5432/shop_db".into(),
        to: "west".into(),
        guarantee: "at_least_once",
    });
    DaemonInfo {
        version: "1.2.3",
        pid: 77,
        started_at: START,
        shards,
        sources: mirrors.chain(captures).collect(),
    }
}

pub(super) fn scrape(view: View, second: u64, format: TextFormat) -> String {
    let process = ProcessUsage { resident_bytes: Some(7), ..ProcessUsage::default() };
    let exposition = Exposition::new(Arc::new(view), at(second), process);
    exposition.render(format).expect("a string takes everything")
}

pub(crate) fn condition(status: Status, reason: &'static str, since_seconds: u64) -> Condition {
    let detail = if reason.is_empty() { String::new() } else { format!("seen: {reason}") };
    let advice = if reason.is_empty() { "" } else { "look at it" };
    Condition { status, reason, detail, advice, since: START + since_seconds * 1_000_000 }
}

pub(super) fn feed(source: &str, partition: u32, condition: Condition) -> FeedSnapshot {
    FeedSnapshot {
        id: FeedId(partition),
        source: source.into(),
        upstream: TopicName::new("orders", "events"),
        downstream: TopicName::new("orders", "events"),
        partition,
        condition,
        upstream_end: 1_000,
        position: 900,
        durable_position: 850,
        delta: -3,
        lag_messages: 100,
        counters: Default::default(),
        gaps: vec![Gap { first: 10, last: 19, found_at: START }],
        repeats: vec![Repeat { first: 40, last: 44, found_at: START }],
        last_error: "connection lost".into(),
        epoch: 1,
        upstream_node: Some("10.0.0.1:8090".into()),
        downstream_node: None,
        foreign_nodes: Vec::new(),
        sends: 1,
        sent_records: 7,
        round_trip: Some(Duration::from_millis(80)),
    }
}

pub(super) fn running(source: &str, partition: u32, messages: u64) -> FeedSnapshot {
    let mut feed = feed(source, partition, condition(Status::Running, "", 1));
    feed.counters.messages = messages;
    feed.counters.bytes = messages * 100;
    feed
}

/// A capture in which no two figures are the same.
pub(crate) fn capture(source: &str, condition: Condition) -> CaptureSnapshot {
    let mut snapshot = CaptureSnapshot {
        id: FeedId(1_000),
        source: source.into(),
        slot: format!("tidegate_{source}").into(),
        database: format!("{source}_db").into(),
        condition,
        position: 0x1000,
        durable_position: 0xf00,
        received: 0x1_0000_2000,
        confirmed: 0xe00,
        upstream_end: 0x1_0000_3000,
        lag_bytes: 0x1_0000_2000,
        oldest_pending: Some(0x1800),
        held_by: Some(TopicName::new("commerce", "orders")),
        pending_batches: 4,
        pending_bytes: 4_000,
        wal: Some(Watch {
            retained: 9_000,
            unconfirmed: 8_000,
            wal_status: "extended".to_owned(),
            safe_wal_size: Some(-70),
            invalid: None,
        }),
        counters: Default::default(),
        stream: StreamCounters {
            transactions: 15,
            repeated_transactions: 14,
            repeated_rows: 13,
            filtered_rows: 12,
            logical_messages: 11,
        },
        without_payload: 17,
        odd_values: 18,
        outlet: OutletCounters {
            routed: 498,
            destinations: 2,
            circuits_open: 1,
            lost_tails: 1,
            ..OutletCounters::default()
        },
        destinations: vec![failing_destination(), destination()],
        gaps: vec![LsnGap { first: 0x10, last: 0x20, found_at: START, why: "gone".to_owned() }],
        last_error: "no answer".into(),
        failures: 9,
        last_abandon_at: START,
        epoch: 2,
    };
    let counters = &mut snapshot.counters;
    (counters.messages, counters.bytes, counters.errors) = (500, 50_000, 3);
    (counters.transactions, counters.gaps, counters.resets) = (40, 1, 2);
    let outlet = &mut snapshot.outlet;
    outlet.rejected.rejected[Rejection::Denylist.index()] = 2;
    outlet.rejected.unmatched_drop = 6;
    outlet.created.counts = [0, 1, 0, 2, 0, 0, 0, 0, 0, 1];
    outlet.created.sum = Duration::from_millis(40_250);
    snapshot
}

fn failing_destination() -> DestinationSnapshot {
    let mut shown = DestinationSnapshot {
        topic: TopicName::new("commerce", "orders"),
        partitions: Some(4),
        state: "circuit_open",
        breaker: "open",
        failures: 5,
        trips: 1,
        held_groups: 2,
        held_bytes: 2_048,
        counters: Default::default(),
        last_error: Some("timed out".into()),
        not_durable: None,
    };
    let counters = &mut shown.counters;
    (counters.messages, counters.bytes, counters.sends, counters.errors) = (300, 3_000, 30, 5);
    shown
}

fn destination() -> DestinationSnapshot {
    let mut shown = DestinationSnapshot {
        topic: TopicName::new("commerce", "audit"),
        partitions: None,
        state: "ready",
        breaker: "closed",
        failures: 0,
        trips: 0,
        held_groups: 0,
        held_bytes: 0,
        counters: Default::default(),
        last_error: None,
        not_durable: Some("messages stay in memory".to_owned()),
    };
    let counters = &mut shown.counters;
    (counters.messages, counters.bytes, counters.sends, counters.lost_tails) = (200, 2_000, 20, 1);
    shown
}

pub(crate) fn shard(number: u16, turns: u64, feeds: Vec<FeedSnapshot>) -> ShardSnapshot {
    ShardSnapshot {
        shard: number,
        taken_at: START,
        loop_turns: turns,
        loop_max_us: 1_500,
        io_driver: "io_uring",
        cpu: Some(number),
        buffered: 4_096,
        buffer_limit: 65_536,
        saves: turns / 2,
        save_failures: 1,
        feeds,
        captures: Vec::new(),
    }
}

pub(super) fn finding(source: &str, topic: Option<&str>, reason: &'static str) -> SourceFinding {
    SourceFinding {
        source: source.into(),
        topic: topic.map(|topic| TopicName::new("orders", topic)),
        condition: condition(Status::Degraded, reason, 2),
    }
}
