//! Whether the shards still have room for the feeds that run (G6).
//!
//! The partitions known at start are checked before it. Those that appear later are mirrored all
//! the same, each with its share: what no longer fits is said, in the log and as a finding of
//! every source concerned, until a restart with other figures.

use std::collections::BTreeMap;

use crate::batch::SourceKey;
use crate::config::budget::{self, BudgetShort};
use crate::shard::provision::condition;
use crate::shard::reason;
use crate::shard::snapshot::SourceFinding;
use crate::time::Now;

/// Feeds per shard, against the bound.
pub(super) struct Room {
    given: u64,
    shards: Vec<ShardRoom>,
}

#[derive(Default)]
struct ShardRoom {
    feeds: u32,
    /// Sources with feeds here, and when that first was too much.
    sources: BTreeMap<SourceKey, Option<Now>>,
}

impl Room {
    /// `given`: `max_buffered_bytes`.
    pub(super) fn new(given: u64, shards: usize) -> Room {
        Room { given, shards: (0..shards).map(|_| ShardRoom::default()).collect() }
    }

    /// One more feed of `source` on `shard`.
    pub(super) fn add(&mut self, shard: u16, source: &SourceKey, now: Now) {
        let Some(room) = self.shards.get_mut(usize::from(shard)) else { return };
        room.feeds += 1;
        room.sources.entry(source.clone()).or_default();
        let feeds = room.feeds;
        let Some(short) = self.short(feeds) else { return };
        if let Some(room) = self.shards.get_mut(usize::from(shard)) {
            if room.sources.values().all(Option::is_none) {
                tracing::warn!(shard, feeds, %short, "more feeds than max_buffered_bytes is for");
            }
            room.sources.values_mut().for_each(|since| *since = since.or(Some(now)));
        }
    }

    /// What is too much, for every source concerned: its fullest shard speaks.
    pub(super) fn findings(&self) -> Vec<SourceFinding> {
        let mut findings = BTreeMap::new();
        let mut by_feeds: Vec<&ShardRoom> = self.shards.iter().collect();
        by_feeds.sort_by_key(|room| room.feeds);
        for room in by_feeds {
            let Some(short) = self.short(room.feeds) else { continue };
            for (source, since) in &room.sources {
                let Some(since) = since else { continue };
                let condition = condition(reason::BUFFERS_SHORT, short.to_string(), *since);
                let finding = SourceFinding { source: source.clone(), topic: None, condition };
                findings.insert(source, finding);
            }
        }
        findings.into_values().collect()
    }

    fn short(&self, feeds: u32) -> Option<BudgetShort> {
        let shards = u16::try_from(self.shards.len()).unwrap_or(u16::MAX);
        budget::check(self.given, shards, feeds).err()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shard::snapshot::Status;
    use crate::time::{Millis, UnixMicros};

    fn at(wall: u64) -> Now {
        Now { mono: Millis(0), wall: UnixMicros(wall) }
    }

    #[test]
    fn a_feed_too_many_is_said_to_every_source_of_its_shard_and_no_other() {
        let (one, two, three): (SourceKey, SourceKey, SourceKey) =
            ("one".into(), "two".into(), "three".into());
        // Two shards of 8 MiB and two shares each.
        let mut room = Room::new(2 * (budget::SHARD_RESERVE + 2 * budget::FEED_SHARE), 2);
        room.add(0, &one, at(1));
        room.add(0, &two, at(2));
        room.add(1, &three, at(3));
        assert_eq!(room.findings(), []);
        room.add(0, &one, at(4));
        room.add(0, &two, at(5));
        let found = room.findings();
        let sources: Vec<&str> = found.iter().map(|finding| &*finding.source).collect();
        assert_eq!(sources, ["one", "two"]);
        for finding in &found {
            let condition = &finding.condition;
            assert_eq!((condition.status, condition.reason), (Status::Running, "buffers_short"));
            assert_eq!(condition.since, 4);
            assert!(condition.detail.contains("each of 4 feeds"), "{}", condition.detail);
            assert!(condition.detail.contains("max_buffered_bytes = \"18MiB\""));
        }
    }
}
