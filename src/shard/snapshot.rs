//! What a shard publishes for status and metrics: plain values, made twice a second, read by the
//! admin thread, never shared memory.

use std::sync::Arc;
use std::time::Duration;

use crate::batch::{FeedId, Gap, Repeat, SourceKey, TopicName};
pub use crate::fanout::admission::Reason as Rejection;
pub use crate::fanout::outlet::{DestinationSnapshot, Latency, OutletCounters};
pub use crate::ingest::postgres_cdc::StreamCounters;
pub use crate::ingest::postgres_cdc::setup::Watch;
pub use crate::statefile::LsnGap;
use crate::statefile::{CaptureCounters, Counters};

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
    /// Captures.
    pub captures: Vec<CaptureSnapshot>,
}

/// One capture at one moment. Positions are LSNs.
#[derive(Clone, Debug)]
pub struct CaptureSnapshot {
    /// Id in this process.
    pub id: FeedId,
    /// Source.
    pub source: SourceKey,
    /// Replication slot.
    pub slot: Arc<str>,
    /// Its database.
    pub database: Arc<str>,
    /// Status.
    pub condition: Condition,
    /// End of the last transaction that is acked whole.
    pub position: u64,
    /// Same, on disk.
    pub durable_position: u64,
    /// End of the last transaction that was read.
    pub received: u64,
    /// What the server was told it may forget; 0 while nothing streams.
    pub confirmed: u64,
    /// End of the server's log, as it last said.
    pub upstream_end: u64,
    /// max(0, upstream_end − position).
    pub lag_bytes: u64,
    /// The oldest position that waits for an ack.
    pub oldest_pending: Option<u64>,
    /// The destination that it waits for.
    pub held_by: Option<TopicName>,
    /// Batches that are not acked whole.
    pub pending_batches: usize,
    /// Bytes of them.
    pub pending_bytes: u64,
    /// What the slot keeps from being removed, as last asked.
    pub wal: Option<Watch>,
    /// Counters since the first start.
    pub counters: CaptureCounters,
    /// What passed without becoming a message, since this start.
    pub stream: StreamCounters,
    /// Rows whose `payload_column` gave no payload, since this start.
    pub without_payload: u64,
    /// Values sent as the server's text for want of the form of their type, since this start.
    pub odd_values: u64,
    /// Messages by what became of them, since this start.
    pub outlet: OutletCounters,
    /// Every destination, refused ones included.
    pub destinations: Vec<DestinationSnapshot>,
    /// Latest gap records.
    pub gaps: Vec<LsnGap>,
    /// Last error of any kind, empty if none.
    pub last_error: Arc<str>,
    /// Tries in a row that moved nothing.
    pub failures: u32,
    /// When a batch was last abandoned, microseconds since the Unix epoch; 0 for never.
    pub last_abandon_at: u64,
    /// Epoch of the saved entry.
    pub epoch: u64,
}

/// An address that a cluster advertises and that is not believed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignNode {
    /// `host:port`.
    pub address: Arc<str>,
    /// What was seen there.
    pub why: String,
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
    /// Latest repeat records.
    pub repeats: Vec<Repeat>,
    /// Last error of any kind, empty if none.
    pub last_error: Arc<str>,
    /// Epoch and sequence of the saved entry.
    pub epoch: u64,
    /// Where the connection to upstream leads, `host:port` as dialled, while it is up.
    pub upstream_node: Option<Arc<str>>,
    /// The same of the destination: the node that is sent to.
    pub downstream_node: Option<Arc<str>>,
    /// Addresses that the destination's nodes name and that lead to another cluster.
    pub foreign_nodes: Vec<ForeignNode>,
    /// Sends that were acked, since this start.
    pub sends: u64,
    /// Upstream records that they carried, whole or in part.
    pub sent_records: u64,
    /// Shortest way to the destination and back since it was connected to, in whole milliseconds.
    pub round_trip: Option<Duration>,
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
