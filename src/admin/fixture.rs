//! Hand-made snapshots for the tests of this folder.

use super::board::{DaemonInfo, SourceInfo};
use crate::batch::{FeedId, Gap, TopicName};
use crate::shard::snapshot::{Condition, FeedSnapshot, ShardSnapshot, SourceFinding, Status};
use crate::time::{Millis, Now, UnixMicros};

pub(super) const START: u64 = 1_750_000_000_000_000;

pub(super) fn at(seconds: u64) -> Now {
    Now { mono: Millis(seconds * 1_000), wall: UnixMicros(START + seconds * 1_000_000) }
}

pub(super) fn info(shards: u16, sources: &[&str]) -> DaemonInfo {
    let source = |key: &&str| SourceInfo {
        key: (*key).into(),
        from: "east".into(),
        to: "west".into(),
        guarantee: "exactly_once",
    };
    DaemonInfo {
        version: "1.2.3",
        pid: 77,
        started_at: START,
        shards,
        sources: sources.iter().map(source).collect(),
    }
}

pub(super) fn condition(status: Status, reason: &'static str, since_seconds: u64) -> Condition {
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
        last_error: "connection lost".into(),
        epoch: 1,
    }
}

pub(super) fn running(source: &str, partition: u32, messages: u64) -> FeedSnapshot {
    let mut feed = feed(source, partition, condition(Status::Running, "", 1));
    feed.counters.messages = messages;
    feed.counters.bytes = messages * 100;
    feed
}

pub(super) fn shard(number: u16, turns: u64, feeds: Vec<FeedSnapshot>) -> ShardSnapshot {
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
    }
}

pub(super) fn finding(source: &str, topic: Option<&str>, reason: &'static str) -> SourceFinding {
    SourceFinding {
        source: source.into(),
        topic: topic.map(|topic| TopicName::new("orders", topic)),
        condition: condition(Status::Degraded, reason, 2),
    }
}
