//! The state file's entry that follows from a rebuild, and what it means for the upstream offsets
//! between the saved position and the new one.
//!
//! Every entry opens a new epoch, so it wins over whatever a file that comes back from a backup
//! says, and claims no clean stop: the next start settles and compares before it sends. The
//! mapping of offsets is kept only where the search confirmed it; else it begins with the
//! earliest message that was compared, or, where the operator named the place, with nothing: what
//! the destination holds below its end is then none of this copy's business.

use super::matching::Place;
use crate::batch::{Fingerprint, Gap, OffsetMap, Repeat, TopicName};
use crate::statefile::{FeedState, LastMessage, MAX_GAPS};

/// Which feed, and who its topics are today.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Upstream topic.
    pub upstream: TopicName,
    /// Destination topic.
    pub downstream: TopicName,
    /// Partition on both sides.
    pub partition: u32,
    /// Creation time of the upstream topic, microseconds.
    pub upstream_created_at: u64,
    /// Creation time of the destination topic, microseconds.
    pub downstream_created_at: u64,
}

/// The entry of an operator's place.
#[derive(Clone, Debug, PartialEq)]
pub struct Accepted {
    /// What to save.
    pub entry: FeedState,
    /// Upstream offsets that will never be copied; part of the entry.
    pub gap: Option<Gap>,
    /// Upstream offsets below the saved position that are copied once more; part of the entry.
    pub repeats: Option<Repeat>,
}

/// The entry of a place that was found; `None` when the saved one says the same already.
pub fn found(
    identity: &Identity,
    saved: Option<&FeedState>,
    end: u64,
    place: Place,
    last: Fingerprint,
) -> Option<FeedState> {
    let position = place.offset + 1;
    let last = Some(LastMessage { offset: place.offset, fingerprint: last });
    let known = saved.filter(|saved| {
        let map = OffsetMap::from_pieces(saved.deltas.clone());
        identity.is_of(saved) && map.upstream(end) == Some(position)
    });
    if known.is_some_and(|known| known.position == position && known.last == last) {
        return None;
    }
    let mut entry = identity.next_epoch(saved);
    match known {
        Some(known) => entry.counters.messages += position.saturating_sub(known.position),
        None => {
            let there = end - (position - place.from);
            entry.deltas = OffsetMap::starting(place.from, there).pieces().to_vec();
        }
    }
    entry.position = position;
    entry.last = last;
    Some(entry)
}

/// How many messages the destination lacks below its end, as the saved distance counts them: a
/// distance that became smaller means a hole in the copy, which no place can make good.
pub fn missing(
    identity: &Identity,
    saved: Option<&FeedState>,
    end: u64,
    position: u64,
) -> Option<u64> {
    let saved = saved.filter(|saved| identity.is_of(saved))?;
    let expected = OffsetMap::from_pieces(saved.deltas.clone()).downstream(position)?;
    expected.checked_sub(end).filter(|missing| *missing > 0)
}

/// The entry of the operator's word that the destination's end belongs to upstream offset
/// `position`.
pub fn accepted(
    identity: &Identity,
    saved: Option<&FeedState>,
    end: u64,
    position: u64,
    now: u64,
) -> Accepted {
    let mut entry = identity.next_epoch(saved);
    // Offsets of another upstream topic cannot be compared with today's.
    let known = saved.filter(|saved| saved.upstream_created_at == identity.upstream_created_at);
    let known = known.map_or(position, |saved| saved.position);
    let gap = (position > known).then(|| Gap { first: known, last: position - 1, found_at: now });
    if let Some(gap) = gap {
        entry.counters.gaps += 1;
        entry.counters.gap_messages += gap.len();
        entry.gaps.push(gap);
        let above = entry.gaps.len().saturating_sub(MAX_GAPS);
        entry.gaps.drain(..above);
    }
    let repeats =
        (position < known).then(|| Repeat { first: position, last: known - 1, found_at: now });
    if let Some(repeats) = repeats {
        entry.repeats.push(repeats);
        let above = entry.repeats.len().saturating_sub(MAX_GAPS);
        entry.repeats.drain(..above);
    }
    entry.deltas = OffsetMap::starting(position, end).pieces().to_vec();
    entry.position = position;
    entry.last = None;
    Accepted { entry, gap, repeats }
}

impl Identity {
    /// Both topics are those of this entry.
    pub fn is_of(&self, saved: &FeedState) -> bool {
        saved.upstream_created_at == self.upstream_created_at
            && saved.downstream_created_at == self.downstream_created_at
    }

    /// The saved entry, or an empty one, in a new epoch.
    fn next_epoch(&self, saved: Option<&FeedState>) -> FeedState {
        let mut entry = saved.cloned().unwrap_or_else(|| self.nothing_known());
        entry.epoch += 1;
        entry.sequence += 1;
        entry.clean_stop = false;
        entry.counters.resets += 1;
        entry.upstream_created_at = self.upstream_created_at;
        entry.downstream_created_at = self.downstream_created_at;
        entry
    }

    fn nothing_known(&self) -> FeedState {
        FeedState::fresh(self.upstream.clone(), self.downstream.clone(), self.partition)
    }
}
