//! `[sources.<key>.routing]` as validated values: which message goes to which stream, topic and
//! partition, which destinations are admitted, and how they are created.

use std::time::Duration;

use super::capture_plan::TableName;
use crate::batch::TopicName;

/// Where the messages of a source go (R2, R3, R5). Either `bound`, or at least one of the
/// columns, `by_table` and `default`; a column is never without `default`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoutingPlan {
    /// `stream` and `topic` of the source: everything goes there.
    pub bound: Option<TopicName>,
    /// Column that names the topic.
    pub topic_column: Option<String>,
    /// Column that names the stream.
    pub stream_column: Option<String>,
    /// `default_stream` and `default_topic`.
    pub default: Option<TopicName>,
    /// Leave the topic and stream columns out of the payload. Default false.
    pub strip: bool,
    /// Column that is the partition key.
    pub partition_key_column: Option<String>,
    /// What the key's text is turned into.
    pub partition_key_encoding: KeyEncoding,
    /// What decides the partition where no column does.
    pub partition_by: PartitionBy,
    /// Tables with a destination of their own, in the order of the file.
    pub by_table: Vec<(TableName, TopicName)>,
    /// How missing topics are created (A5).
    pub topic_defaults: TopicDefaults,
    /// Which destinations are admitted.
    pub admission: AdmissionPlan,
    /// When a failing destination is left alone (A6).
    pub breaker: BreakerPlan,
    /// A message has no destination (R6).
    pub on_missing_destination: OnMissingDestination,
    /// Bound on the creation of known destinations at start (A5). Default 60 s.
    pub startup_prewarm_deadline: Duration,
}

/// `partition_key_encoding`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyEncoding {
    /// The bytes of its text.
    Bytes,
    /// A number from 0 to 2^32 − 1 as four little-endian bytes.
    KeyU32,
    /// The number of the partition itself.
    PartitionId,
}

/// `partition_by`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartitionBy {
    /// Turn by turn.
    Balanced,
    /// The replica identity (primary key) is the key.
    Identity,
}

/// `[sources.<key>.routing.topic_defaults]`. `None`: the server's default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicDefaults {
    /// Partitions of a created topic, 1 to 1000. Default 1.
    pub partitions_count: u32,
    /// `none` or `gzip`.
    pub compression_algorithm: Option<String>,
    /// Copies; no server of the 0.9 line knows it per topic.
    pub replication_factor: Option<u8>,
    /// Microseconds, `u64::MAX` never.
    pub message_expiry: Option<u64>,
    /// Bytes, `u64::MAX` unlimited.
    pub max_topic_size: Option<u64>,
    /// What an ack means. Default persisted.
    pub durability: Durability,
}

/// `durability`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// On disk.
    Persisted,
    /// In the memory of a quorum, which for one node is that node's.
    Replicated,
}

/// `[sources.<key>.routing.admission]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdmissionPlan {
    /// Which list decides.
    pub mode: AdmissionMode,
    /// Its entries; empty in mode `open`.
    pub entries: Vec<DestinationPattern>,
    /// Most live destinations, whatever the mode (A3). Default 256.
    pub max_destinations: u32,
    /// Most sends outstanding at once (A8). Default 16.
    pub max_concurrent_destinations: u32,
    /// What happens to a message whose destination is not admitted.
    pub on_failure: OnAdmissionFailure,
    /// The operator wrote `on_admission_failure`: only then do `drop` and `dead_letter` cover
    /// `circuit_open` and `cap` as well (A4).
    pub written_by_operator: bool,
    /// Where `dead_letter` sends; it is never refused itself.
    pub dead_letter: Option<TopicName>,
    /// Topics of this cluster that mirrors of the same file write to: refused whatever the mode,
    /// a message from elsewhere would end the mirror (M6).
    pub mirrored: Vec<TopicName>,
}

/// `admission.mode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdmissionMode {
    /// Every valid name.
    Open,
    /// What the list names.
    Allowlist,
    /// What the list does not name.
    Denylist,
}

/// `{ stream = SEG, topic = SEG }`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DestinationPattern {
    /// Literal, or `None` for `*`.
    pub stream: Option<String>,
    /// Literal, or `None` for `*`.
    pub topic: Option<String>,
}

impl DestinationPattern {
    /// Whether it covers this destination.
    pub fn covers(&self, stream: &str, topic: &str) -> bool {
        let fits = |segment: &Option<String>, name: &str| {
            segment.as_deref().is_none_or(|literal| literal == name)
        };
        fits(&self.stream, stream) && fits(&self.topic, topic)
    }

    /// The one destination it names, if it has no `*`.
    pub fn literal(&self) -> Option<TopicName> {
        Some(TopicName::new(self.stream.as_deref()?, self.topic.as_deref()?))
    }
}

/// `on_admission_failure`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnAdmissionFailure {
    /// Keep it, say so, and let nothing of that destination pass it.
    Error,
    /// Count it and forget it.
    Drop,
    /// Send it to the dead-letter topic.
    DeadLetter,
}

/// `on_missing_destination`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnMissingDestination {
    /// To the default destination.
    Default,
    /// Count it and forget it.
    Drop,
    /// Keep it and say so.
    Error,
}

/// `[sources.<key>.routing.circuit_breaker]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerPlan {
    /// Failures in a row that open it. Default 5.
    pub failure_threshold: u32,
    /// How long it stays open before one probe. Default 30 s.
    pub cool_down: Duration,
}

impl AdmissionPlan {
    /// Whether the lists admit this destination.
    pub fn admits(&self, stream: &str, topic: &str) -> bool {
        if self.is_mirrored(stream, topic) {
            return false;
        }
        let listed = || self.entries.iter().any(|entry| entry.covers(stream, topic));
        match self.mode {
            AdmissionMode::Open => true,
            AdmissionMode::Allowlist => listed(),
            AdmissionMode::Denylist => !listed(),
        }
    }
}

impl AdmissionPlan {
    /// Whether a mirror writes there.
    pub fn is_mirrored(&self, stream: &str, topic: &str) -> bool {
        self.mirrored.iter().any(|name| *name.stream == *stream && *name.topic == *topic)
    }
}

impl RoutingPlan {
    /// Every destination that the file names in full and admission lets through, each once: those
    /// can be made before the first row (A5).
    pub fn literals(&self) -> Vec<TopicName> {
        let allowed: &[DestinationPattern] = match self.admission.mode {
            AdmissionMode::Allowlist => &self.admission.entries,
            AdmissionMode::Open | AdmissionMode::Denylist => &[],
        };
        let named = self.bound.iter().chain(self.by_table.iter().map(|(_, to)| to));
        let named = named.chain(&self.default).cloned();
        let named = named.chain(allowed.iter().filter_map(DestinationPattern::literal));
        let admitted = named.filter(|to| self.admission.admits(&to.stream, &to.topic));
        let mut found: Vec<TopicName> = Vec::new();
        for to in admitted.chain(self.admission.dead_letter.clone()) {
            if !found.contains(&to) {
                found.push(to);
            }
        }
        found
    }
}
