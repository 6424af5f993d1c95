//! How a run ended, and where everything stood then (O2).

use super::Control;
use crate::pg_wire::Lsn;
use crate::shard::snapshot::{CaptureSnapshot, FeedSnapshot};

/// How a run ended.
#[derive(Debug)]
pub struct RunOutcome {
    /// In which way.
    pub ended: Ended,
    /// Every feed as it was last seen.
    pub feeds: Vec<FeedSnapshot>,
    /// Every capture as it was last seen.
    pub captures: Vec<CaptureSnapshot>,
}

/// See [`RunOutcome`].
#[derive(Debug, PartialEq, Eq)]
pub enum Ended {
    /// Everything that was read is acked and saved, or was given up by policy.
    Drained,
    /// `drain_timeout` passed; what was in flight is copied again after the next start.
    TimedOut {
        /// Shards that had not drained.
        shards: Vec<u16>,
    },
    /// A shard ended by itself; the daemon drained the others.
    ShardFailed {
        /// Which.
        shard: u16,
        /// Its words.
        why: String,
    },
}

impl Control {
    /// Says the final positions. `late`: shards that had not drained.
    pub(super) fn outcome(&self, late: Vec<u16>) -> RunOutcome {
        let shards = self.shards.borrow();
        let snapshots = || shards.iter().filter_map(|shard| shard.snapshot.as_ref());
        let feeds: Vec<_> = snapshots().flat_map(|shown| shown.feeds.iter().cloned()).collect();
        let captures: Vec<_> = snapshots().flat_map(|s| s.captures.iter().cloned()).collect();
        for feed in &feeds {
            tracing::info!(
                source = %feed.source, topic = %feed.upstream, partition = feed.partition,
                position = feed.position, durable = feed.durable_position, delta = feed.delta,
                "final position"
            );
        }
        for capture in &captures {
            tracing::info!(
                source = %capture.source, slot = %capture.slot,
                position = %Lsn(capture.position), durable = %Lsn(capture.durable_position),
                confirmed = %Lsn(capture.confirmed), "final position"
            );
        }
        let ended = match self.failed.take() {
            Some((shard, why)) => Ended::ShardFailed { shard, why },
            None if late.is_empty() => Ended::Drained,
            None => Ended::TimedOut { shards: late },
        };
        RunOutcome { ended, feeds, captures }
    }
}
