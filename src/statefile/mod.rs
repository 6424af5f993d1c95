//! Positions on disk: one file per source and shard, replaced whole by every save (S1–S5).
//!
//! [`mod@format`] is the bytes, [`store`] the steps of a safe write as a pure machine over file
//! operations, [`inspect`] what `tidegate state` shows. Nothing here opens a file: the driver
//! performs the operations. I4: generations only grow, a torn file never wins.

mod archive;
mod capture;
pub mod format;
pub mod inspect;
#[cfg(test)]
mod model_disk;
#[cfg(test)]
mod samples;
pub mod store;

use crate::batch::{DeltaPiece, Fingerprint, Gap, Repeat, SourceKey, TopicName};

pub use capture::{
    CaptureCounters, CaptureState, LsnGap, MAX_ROUTED, MAX_WHY, RoutedTable, UnfinishedState,
};

/// All that one shard knows of one source; the content of one state file.
#[derive(Clone, Debug, PartialEq)]
pub struct SourceState {
    /// Key in `[sources.<key>]`.
    pub source: SourceKey,
    /// Shard that wrote the file.
    pub shard: u16,
    /// Grows by one with every save of this file (I4).
    pub generation: u64,
    /// When it was saved, microseconds since the Unix epoch.
    pub saved_at: u64,
    /// Mirror feeds in no particular order.
    pub feeds: Vec<FeedState>,
    /// Replication slots in no particular order.
    pub captures: Vec<CaptureState>,
}

/// One mirror feed: an upstream partition and where its copy stands.
#[derive(Clone, Debug, PartialEq)]
pub struct FeedState {
    /// Upstream topic.
    pub upstream: TopicName,
    /// Destination topic.
    pub downstream: TopicName,
    /// Partition on both sides.
    pub partition: u32,
    /// Grows when the watermark may move back: lost tail, refill, restart, rebuild.
    pub epoch: u64,
    /// Grows with every change of this entry within an epoch; after a change of shard count the
    /// greatest (epoch, sequence) wins.
    pub sequence: u64,
    /// Next upstream offset to copy: everything below is acked, a gap, or before the start.
    pub position: u64,
    /// Piecewise delta, ascending by `from_upstream`, at least one piece.
    pub deltas: Vec<DeltaPiece>,
    /// The message at `position − 1`, unless nothing was copied yet.
    pub last: Option<LastMessage>,
    /// Creation time of the upstream topic, microseconds.
    pub upstream_created_at: u64,
    /// Creation time of the destination topic, microseconds.
    pub downstream_created_at: u64,
    /// True only in the last save of an orderly stop: nothing was in flight.
    pub clean_stop: bool,
    /// Counters since the feed's first start.
    pub counters: Counters,
    /// Latest gap records, oldest first, at most [`MAX_GAPS`].
    pub gaps: Vec<Gap>,
    /// Latest repeat records, oldest first, at most [`MAX_GAPS`].
    pub repeats: Vec<Repeat>,
    /// How many partitions the upstream topic had when this source first started it (M4); `None`
    /// in files older than version 3.
    pub first_count: Option<u32>,
}

impl FeedState {
    /// A partition of which nothing is known yet.
    pub fn fresh(upstream: TopicName, downstream: TopicName, partition: u32) -> FeedState {
        FeedState {
            upstream,
            downstream,
            partition,
            epoch: 0,
            sequence: 0,
            position: 0,
            deltas: Vec::new(),
            last: None,
            upstream_created_at: 0,
            downstream_created_at: 0,
            clean_stop: false,
            counters: Counters::default(),
            gaps: Vec::new(),
            repeats: Vec::new(),
            first_count: None,
        }
    }
}

/// The last copied message and its upstream offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastMessage {
    /// Upstream offset.
    pub offset: u64,
    /// What it looked like.
    pub fingerprint: Fingerprint,
}

/// Counters that survive restarts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Messages acked by the destination.
    pub messages: u64,
    /// Payload and header bytes of those, as batch record bytes.
    pub bytes: u64,
    /// Failed operations of any kind.
    pub errors: u64,
    /// Histories that ended: restarts after a reset, refills, lost tails, rebuilt positions.
    pub resets: u64,
    /// Gap records ever made.
    pub gaps: u64,
    /// Offsets in those gaps.
    pub gap_messages: u64,
}

/// How many gap records, and how many repeat records, one feed keeps; the counters go on counting.
pub const MAX_GAPS: usize = 256;

impl FeedState {
    /// Order in which entries of one feed found in several files win.
    pub fn version(&self) -> (u64, u64) {
        (self.epoch, self.sequence)
    }
}
