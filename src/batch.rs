//! The words every module shares: ids, targets, fingerprints, gaps and delta pieces.

use std::fmt;
use std::sync::Arc;

/// A configured upstream, named by its key in `[sources.<key>]`.
pub type SourceKey = Arc<str>;

/// One ordered unit of a source, unique in the daemon for its lifetime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FeedId(pub u32);

/// A topic by name. Numeric ids are reused by the server after a delete and are never kept.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicName {
    /// Stream name, 1 to 255 bytes.
    pub stream: Arc<str>,
    /// Topic name, 1 to 255 bytes.
    pub topic: Arc<str>,
}

impl TopicName {
    /// A topic name from its two parts.
    pub fn new(stream: &str, topic: &str) -> TopicName {
        TopicName { stream: stream.into(), topic: topic.into() }
    }
}

impl fmt::Display for TopicName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.stream, self.topic)
    }
}

/// What tells one message from another without keeping it (M5, M6). Two messages with equal
/// fingerprints are taken for the same message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint {
    /// Message id as stored, 0 allowed.
    pub id: u128,
    /// Absolute origin timestamp, microseconds since the Unix epoch.
    pub origin_timestamp: u64,
    /// Payload length in bytes.
    pub payload_len: u32,
    /// User headers length in bytes.
    pub headers_len: u32,
    /// XXH3-64, seed 0, of payload followed by user headers.
    pub hash: u64,
}

/// Upstream offsets that will never be copied: removed by retention before they were read, or
/// given up by the operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// First missing upstream offset.
    pub first: u64,
    /// Last missing upstream offset, inclusive.
    pub last: u64,
    /// When it was found, microseconds since the Unix epoch.
    pub found_at: u64,
}

impl Gap {
    /// How many offsets are missing.
    pub fn len(&self) -> u64 {
        self.last - self.first + 1
    }

    /// A gap holds at least one offset; clippy asks for the twin of `len`.
    pub fn is_empty(&self) -> bool {
        false
    }
}

/// From `from_upstream` on, destination offset = upstream offset + `delta`, until the next piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaPiece {
    /// First upstream offset this piece covers.
    pub from_upstream: u64,
    /// Signed distance destination − upstream, in offsets.
    pub delta: i64,
}
