//! The validated plan: plain values with every default filled in. What is here needs no further
//! check; reading and validation are in the neighbouring files.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::admin::{AdminToken, Listen};
use super::capture_plan::CapturePlan;
use super::clusters::Settle;
use super::error::ConfigError;
use crate::batch::{SourceKey, TopicName};
use crate::secret::Secret;

/// Everything one daemon does.
#[derive(Clone, Debug)]
pub struct Plan {
    /// `[daemon]`.
    pub daemon: DaemonPlan,
    /// `[admin]`; absent: no admin interface.
    pub admin: Option<AdminPlan>,
    /// `[clusters.<key>]`.
    pub clusters: BTreeMap<Arc<str>, Arc<ClusterPlan>>,
    /// `[sources.<key>]` of `kind = "iggy"`, in key order.
    pub sources: Vec<Arc<MirrorPlan>>,
    /// `[sources.<key>]` of `kind = "postgres_cdc"`, in key order. No key is in both.
    pub captures: Vec<Arc<CapturePlan>>,
    /// What is not wrong but cannot be meant, with place and advice.
    pub warnings: Vec<ConfigError>,
}

/// `[daemon]`.
#[derive(Clone, Debug)]
pub struct DaemonPlan {
    /// Directory of the state files, locked by one daemon (S4).
    pub state_dir: PathBuf,
    /// How many shards.
    pub shards: Shards,
    /// Bound on buffered upstream data of the whole daemon, bytes (G6). Default 128 MiB.
    pub max_buffered_bytes: u64,
    /// Bound on an orderly stop (C4). Default 30 s.
    pub drain_timeout: Duration,
    /// The kernel may write this process's memory to a core dump, and its user may trace it.
    /// Default no: it holds passwords and rows.
    pub core_dumps: bool,
    /// Text or JSON logs; `None` decides by terminal (T4).
    pub log_format: Option<LogFormat>,
    /// Filter in `tracing` syntax, default `info`.
    pub log_level: String,
}

/// `shards = N | "auto"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shards {
    /// One per CPU of the inherited affinity mask.
    Auto,
    /// This many, at most the CPUs allowed.
    Count(u16),
}

/// Log line format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object per line.
    Json,
}

/// `[admin]`.
#[derive(Clone, Debug)]
pub struct AdminPlan {
    /// Where it listens; other than loopback only with a token.
    pub listen: Listen,
    /// What a caller must show to change anything, and off loopback to see anything.
    pub token: Option<AdminToken>,
}

/// `[clusters.<key>]`.
#[derive(Clone, Debug)]
pub struct ClusterPlan {
    /// Its key.
    pub key: Arc<str>,
    /// `host:port`, tried in order.
    pub addresses: Vec<String>,
    /// How to log in.
    pub credentials: Credentials,
    /// Bound on dial and login. Default 5 s.
    pub connect_timeout: Duration,
    /// Bound on one request (M13). Default 10 s.
    pub request_timeout: Duration,
    /// How long a request of a lost connection may still be appended (M6).
    pub settle: Settle,
    /// Accept a server other than 0.9.x (M14).
    pub allow_untested_server: bool,
}

/// Login of one cluster. `Debug` never shows the secret.
#[derive(Clone)]
pub enum Credentials {
    /// User and password.
    Password {
        /// User name.
        username: String,
        /// Password.
        password: Secret,
    },
    /// Personal access token.
    Token(Secret),
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Credentials::Password { username, .. } => {
                write!(f, "password of {username:?} (hidden)")
            }
            Credentials::Token(_) => f.write_str("token (hidden)"),
        }
    }
}

/// `[sources.<key>]` of `kind = "iggy"`.
#[derive(Clone, Debug)]
pub struct MirrorPlan {
    /// Its key: `[a-z0-9_-]`, part of a file name.
    pub key: SourceKey,
    /// Upstream cluster.
    pub from: Arc<ClusterPlan>,
    /// Destination cluster.
    pub to: Arc<ClusterPlan>,
    /// Topics to mirror.
    pub topics: Vec<TopicPlan>,
    /// Where partitions without a saved position start (M4).
    pub initial_offset: InitialOffset,
    /// Partition mapping (M3).
    pub partitions: Partitions,
    /// Create what is missing downstream (M8).
    pub auto_create: bool,
    /// First wait after a failure, doubled up to `max_retry_interval` (M13). Default 1 s.
    pub retry_interval: Duration,
    /// Longest wait (M13). Default 60 s.
    pub max_retry_interval: Duration,
    /// How long an empty or shorter log may be a passing state (M5). Default 60 s.
    pub reset_grace: Duration,
    /// Least time between two saves (C2). Default 1 s.
    pub state_interval: Duration,
    /// How often the topics are read again for new partitions (M3). Default 5 s.
    pub discovery_interval: Duration,
    /// Pending work that has not moved for this long is `Degraded` (C3). Default 60 s.
    pub degraded_after: Duration,
    /// Failures in a row until `Degraded` (C3). Default 16.
    pub commit_failure_threshold: u32,
    /// Check every message's checksum on the way (M2). Default true.
    pub verify_checksums: bool,
    /// Bound on one poll reply asked for, bytes. Default 8 MiB, at most 60 MiB (M16).
    pub max_batch_bytes: u32,
    /// Retention removed our offset (M5).
    pub on_offset_expired: OnOffsetExpired,
    /// The upstream log is another one (M5).
    pub on_history_changed: OnHistoryChanged,
    /// The destination was wiped or replaced (M6).
    pub on_destination_lost: OnDestinationLost,
    /// The destination has messages and we have no state (M6).
    pub on_nonempty_destination: OnNonemptyDestination,
    /// The upstream topic does not exist (M8).
    pub on_missing_upstream: OnMissingUpstream,
    /// The destination never takes a record (M15).
    pub on_bad_record: OnBadRecord,
    /// The state file cannot be read (S2).
    pub on_corrupt_state: OnCorruptState,
}

/// One topic of a mirror.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicPlan {
    /// Read from.
    pub upstream: TopicName,
    /// Written to.
    pub downstream: TopicName,
}

impl TopicPlan {
    /// Both have one name, which means one topic if both clusters are one.
    pub fn is_one(&self) -> bool {
        self.upstream == self.downstream
    }
}

/// `initial_offset`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InitialOffset {
    /// First message the upstream still has.
    Earliest,
    /// Next message after the start.
    Latest,
    /// This offset.
    At(u64),
}

/// `partitions`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Partitions {
    /// Partition *i* to partition *i*, exactly once.
    Preserve,
    /// The server picks: at least once and unordered.
    Balanced,
}

/// `on_offset_expired`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnOffsetExpired {
    /// Go on at the earliest message, with a gap record.
    EarliestAvailable,
    /// Go on where a first start would, with a gap record.
    InitialOffset,
    /// Stop the feed.
    Fail,
}

/// `on_history_changed`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnHistoryChanged {
    /// Stop the feed.
    Fail,
    /// Copy the new history from its first message.
    Restart,
}

/// `on_destination_lost`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnDestinationLost {
    /// Stop the feed.
    Fail,
    /// Create it again and copy everything the upstream still has.
    Refill,
}

/// `on_nonempty_destination`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnNonemptyDestination {
    /// Stop the feed.
    Fail,
    /// Append behind what is there.
    Append,
}

/// `on_missing_upstream`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnMissingUpstream {
    /// Look again until it is there.
    Wait,
    /// Create it with one partition.
    Create,
    /// Stop the source's topic.
    Fail,
}

/// `on_bad_record`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnBadRecord {
    /// Stop the feed at the record.
    Fail,
}

/// `on_corrupt_state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnCorruptState {
    /// Source in `Error`, file untouched.
    Fail,
    /// Set the file aside and start as if new.
    Reset,
}
