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

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "id {:#x}, origin time {} us, payload {} bytes, headers {} bytes, hash {:016x}",
            self.id, self.origin_timestamp, self.payload_len, self.headers_len, self.hash
        )
    }
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

/// Upstream offsets that were copied before and are copied once more, because the operator said
/// that the destination ends below them: it may hold them twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repeat {
    /// First repeated upstream offset.
    pub first: u64,
    /// Last repeated upstream offset, inclusive.
    pub last: u64,
    /// When the operator said so, microseconds since the Unix epoch.
    pub found_at: u64,
}

impl Repeat {
    /// How many offsets are repeated.
    pub fn len(&self) -> u64 {
        self.last - self.first + 1
    }

    /// A repeat holds at least one offset; clippy asks for the twin of `len`.
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

/// Pieces an [`OffsetMap`] keeps: as many as a state file keeps gap records.
pub const MAX_PIECES: usize = 256;

/// The piecewise mapping between upstream and destination offsets of one feed (M6).
///
/// Pieces ascend by `from_upstream`; between two pieces lies a gap of upstream offsets that the
/// destination never received, so destination offsets stay contiguous across pieces. Only the
/// latest [`MAX_PIECES`] are kept (I5): older ones matter only for a destination that lost
/// everything behind so many gaps, which then is as if it ended below the start of the copy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OffsetMap(Vec<DeltaPiece>);

impl OffsetMap {
    /// The mapping of a saved state.
    pub fn from_pieces(pieces: Vec<DeltaPiece>) -> OffsetMap {
        let mut map = OffsetMap(pieces);
        map.forget_oldest();
        map
    }

    /// A history that starts with upstream offset `upstream` at destination offset `downstream`.
    pub fn starting(upstream: u64, downstream: u64) -> OffsetMap {
        OffsetMap(vec![DeltaPiece {
            from_upstream: upstream,
            delta: distance(upstream, downstream),
        }])
    }

    /// Adds a piece: upstream offset `upstream` goes to destination offset `downstream`. A piece
    /// that nothing was copied under is replaced.
    pub fn push(&mut self, upstream: u64, downstream: u64) {
        let piece = DeltaPiece { from_upstream: upstream, delta: distance(upstream, downstream) };
        while self.0.last().is_some_and(|last| target(last) >= downstream) {
            self.0.pop();
        }
        self.0.push(piece);
        self.forget_oldest();
    }

    fn forget_oldest(&mut self) {
        self.0.drain(..self.0.len().saturating_sub(MAX_PIECES));
    }

    /// The pieces, ascending.
    pub fn pieces(&self) -> &[DeltaPiece] {
        &self.0
    }

    /// Destination offset of an upstream offset; `None` below the first piece and in a gap.
    pub fn downstream(&self, upstream: u64) -> Option<u64> {
        let index = self.0.iter().rposition(|piece| piece.from_upstream <= upstream)?;
        let there = upstream.checked_add_signed(self.0.get(index)?.delta)?;
        let next = self.0.get(index + 1).map_or(u64::MAX, target);
        (there < next).then_some(there)
    }

    /// The upstream offset that belongs at destination offset `downstream`; `None` below the
    /// first piece. Where two pieces meet, the later one: its gap was saved before anything was
    /// sent behind it.
    pub fn upstream(&self, downstream: u64) -> Option<u64> {
        let piece = self.0.iter().rev().find(|piece| target(piece) <= downstream)?;
        downstream.checked_add_signed(piece.delta.checked_neg()?)
    }

    /// The piece that the message at destination offset `downstream` was copied under.
    pub fn piece_of(&self, downstream: u64) -> Option<DeltaPiece> {
        self.0.iter().rev().find(|piece| target(piece) <= downstream).copied()
    }

    /// Delta at an upstream offset, 0 below the first piece.
    pub fn delta(&self, upstream: u64) -> i64 {
        self.0.iter().rev().find(|piece| piece.from_upstream <= upstream).map_or(0, |p| p.delta)
    }
}

/// Destination offset of a piece's first message.
pub fn target(piece: &DeltaPiece) -> u64 {
    piece.from_upstream.saturating_add_signed(piece.delta)
}

fn distance(upstream: u64, downstream: u64) -> i64 {
    // Offsets come from servers that count up from 0: a distance beyond i64 would need more than
    // 2^63 messages.
    i64::try_from(i128::from(downstream) - i128::from(upstream)).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_map_both_ways_across_a_gap() {
        let mut map = OffsetMap::starting(0, 1000);
        map.push(300, 1100);
        assert_eq!(map.downstream(99), Some(1099));
        assert_eq!(map.downstream(300), Some(1100));
        assert_eq!(map.downstream(100), None, "a gap has no place downstream");
        assert_eq!(map.upstream(1099), Some(99));
        assert_eq!(map.upstream(1100), Some(300), "the later piece owns the seam");
        assert_eq!(map.upstream(1150), Some(350));
        assert_eq!(map.upstream(999), None);
        assert_eq!(map.delta(350), 800);
    }

    #[test]
    fn endless_gaps_keep_the_latest_pieces_alone() {
        let mut map = OffsetMap::starting(0, 0);
        let gaps = 10 * MAX_PIECES as u64;
        // Every tenth message survives.
        (1..=gaps).for_each(|gap| map.push(10 * gap, gap));
        assert_eq!(map.pieces().len(), MAX_PIECES);
        assert_eq!((map.downstream(10 * gaps), map.upstream(gaps)), (Some(gaps), Some(10 * gaps)));
        let oldest = gaps + 1 - MAX_PIECES as u64;
        assert_eq!(map.upstream(oldest), Some(10 * oldest));
        assert_eq!(map.upstream(oldest - 1), None);
        let long = (0..=gaps).map(|n| DeltaPiece { from_upstream: 10 * n, delta: -9 * n as i64 });
        assert_eq!(OffsetMap::from_pieces(long.collect()), map, "as read from a file");
    }

    #[test]
    fn a_piece_that_copied_nothing_is_replaced() {
        let mut map = OffsetMap::starting(0, 0);
        map.push(10, 5);
        map.push(20, 5);
        assert_eq!(map.pieces().len(), 2);
        assert_eq!(map.upstream(5), Some(20));
        let mut fresh = OffsetMap::starting(0, 0);
        fresh.push(7, 0);
        assert_eq!(fresh.pieces(), &[DeltaPiece { from_upstream: 7, delta: -7 }]);
    }
}
