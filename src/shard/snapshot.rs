//! What a shard publishes for status and metrics: plain values, made twice a second, read by the
//! admin thread, never shared memory.

use std::sync::Arc;

use crate::batch::{FeedId, Gap, SourceKey, TopicName};
use crate::statefile::Counters;

/// C6.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Status {
    /// Connecting, settling, comparing.
    Starting,
    /// Copying or caught up.
    Running,
    /// Retrying; nothing is lost, nothing moves.
    Degraded,
    /// Draining.
    Stopping,
    /// Ended in order.
    Stopped,
    /// Ended until someone acts.
    Error,
}

impl Status {
    /// The word in status and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Status::Starting => "Starting",
            Status::Running => "Running",
            Status::Degraded => "Degraded",
            Status::Stopping => "Stopping",
            Status::Stopped => "Stopped",
            Status::Error => "Error",
        }
    }
}

/// Status with its reason, since when, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// Status.
    pub status: Status,
    /// Machine-readable reason, for example `diverged`, `waiting_upstream`; empty when all is well.
    pub reason: &'static str,
    /// What was seen, with figures; empty when there is nothing to say.
    pub detail: String,
    /// What an operator should do; empty when nothing.
    pub advice: &'static str,
    /// Since when, microseconds since the Unix epoch.
    pub since: u64,
}

/// One shard at one moment.
#[derive(Clone, Debug)]
pub struct ShardSnapshot {
    /// Shard number.
    pub shard: u16,
    /// When, microseconds since the Unix epoch.
    pub taken_at: u64,
    /// Turns of the shard's loop since start: a shard that does not turn is stuck.
    pub loop_turns: u64,
    /// Longest turn since the last snapshot, microseconds.
    pub loop_max_us: u64,
    /// `io_uring` or `epoll`.
    pub io_driver: &'static str,
    /// CPU the shard is pinned to, if it is.
    pub cpu: Option<u16>,
    /// Reserved buffer bytes of `buffer_limit`.
    pub buffered: u64,
    /// This shard's part of `max_buffered_bytes`.
    pub buffer_limit: u64,
    /// State saves that succeeded and failed since start.
    pub saves: u64,
    /// See `saves`.
    pub save_failures: u64,
    /// Feeds.
    pub feeds: Vec<FeedSnapshot>,
}

/// One feed at one moment.
#[derive(Clone, Debug)]
pub struct FeedSnapshot {
    /// Id in this process.
    pub id: FeedId,
    /// Source.
    pub source: SourceKey,
    /// Upstream topic.
    pub upstream: TopicName,
    /// Destination topic.
    pub downstream: TopicName,
    /// Partition on both sides.
    pub partition: u32,
    /// Status.
    pub condition: Condition,
    /// Next offset upstream will give out, as last seen; 0 when empty or unknown.
    pub upstream_end: u64,
    /// Next upstream offset to copy; everything below is acked.
    pub position: u64,
    /// Same, on disk.
    pub durable_position: u64,
    /// Destination − upstream at `position`.
    pub delta: i64,
    /// max(0, upstream_end − position).
    pub lag_messages: u64,
    /// Counters since the feed's first start.
    pub counters: Counters,
    /// Latest gap records.
    pub gaps: Vec<Gap>,
    /// Last error of any kind, empty if none.
    pub last_error: Arc<str>,
    /// Epoch and sequence of the saved entry.
    pub epoch: u64,
}

/// What the control thread found about a source, or one topic of it, that no feed can say: the
/// upstream is unreachable, a topic is missing, a state file cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceFinding {
    /// Which source.
    pub source: SourceKey,
    /// Which topic of it, upstream name; `None`: all of it.
    pub topic: Option<TopicName>,
    /// Status with reason.
    pub condition: Condition,
}
