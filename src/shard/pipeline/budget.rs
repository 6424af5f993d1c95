//! Buffer bytes of one shard (G6): reserved before a poll, shrunk to what arrived, given back
//! when the last record of a reply is acked.
//!
//! Every feed may always hold its minimum share; what is left is a pool that only feeds whose
//! destination moves may draw from. Compare and repair buffers are a fixed reserve outside.

use std::collections::VecDeque;

use crate::config::budget::{self, FEED_SHARE};

/// Largest reservation of the daemon-wide slot, bytes: one message that fills a frame.
pub const LARGE_SLOT: u64 = 64 * 1024 * 1024 + 64 * 1024;

/// The pool of one shard.
#[derive(Debug)]
pub struct Budget {
    limit: u64,
    feeds: u64,
    pooled: u64,
    held: u64,
}

/// What one feed holds.
#[derive(Debug, Default)]
pub struct Holding {
    reserved: u64,
    chunks: VecDeque<(u64, u64)>,
    chunk_bytes: u64,
    pooled: u64,
    counted: u64,
}

impl Budget {
    /// `limit`: this shard's part of `max_buffered_bytes`, the reserve included.
    pub fn new(limit: u64) -> Budget {
        Budget { limit, feeds: 0, pooled: 0, held: 0 }
    }

    /// One more feed keeps a share.
    pub fn add_feed(&mut self) {
        self.feeds += 1;
    }

    /// Bytes reserved or buffered.
    pub fn held(&self) -> u64 {
        self.held
    }

    /// The bound.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Bytes a feed could reserve now. `moving`: its destination acked lately or owes nothing.
    pub fn available(&self, holding: &Holding, moving: bool) -> u64 {
        let share = FEED_SHARE.saturating_sub(holding.total());
        if moving { share + self.pool().saturating_sub(self.pooled) } else { share }
    }

    /// The most any feed of this shard can ever reserve without the large slot.
    pub fn ceiling(&self) -> u64 {
        FEED_SHARE + self.pool()
    }

    /// Reserves; false when it does not fit.
    pub fn reserve(&mut self, holding: &mut Holding, bytes: u64, moving: bool) -> bool {
        if bytes > self.available(holding, moving) {
            return false;
        }
        holding.reserved += bytes;
        self.settle(holding);
        true
    }

    /// Reserves beyond every bound: only for the holder of the daemon-wide slot.
    pub fn reserve_large(&mut self, holding: &mut Holding, bytes: u64) {
        holding.reserved += bytes;
        self.settle(holding);
    }

    /// The reply is there: `bytes` stay until `until` (upstream offset) is acked.
    pub fn arrived(&mut self, holding: &mut Holding, bytes: u64, until: u64) {
        holding.reserved = 0;
        if bytes > 0 {
            holding.chunks.push_back((until, bytes));
            holding.chunk_bytes += bytes;
        }
        self.settle(holding);
    }

    /// Everything below `position` is acked.
    pub fn acked(&mut self, holding: &mut Holding, position: u64) {
        while holding.chunks.front().is_some_and(|(until, _)| *until <= position) {
            let (_, bytes) = holding.chunks.pop_front().unwrap_or_default();
            holding.chunk_bytes -= bytes;
        }
        self.settle(holding);
    }

    /// The feed dropped its reservation and everything it buffered.
    pub fn release(&mut self, holding: &mut Holding) {
        holding.reserved = 0;
        holding.chunks.clear();
        holding.chunk_bytes = 0;
        self.settle(holding);
    }

    fn pool(&self) -> u64 {
        budget::pool(self.limit, self.feeds).unwrap_or(0)
    }

    /// Brings the pool's account in line with what the feed holds above its share.
    fn settle(&mut self, holding: &mut Holding) {
        let total = holding.total();
        let pooled = total.saturating_sub(FEED_SHARE);
        self.pooled = self.pooled - holding.pooled + pooled;
        self.held = self.held - holding.counted + total;
        holding.pooled = pooled;
        holding.counted = total;
    }
}

impl Holding {
    /// Bytes held.
    pub fn total(&self) -> u64 {
        self.reserved + self.chunk_bytes
    }

    /// Replies buffered and not yet fully acked.
    pub fn replies(&self) -> usize {
        self.chunks.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::budget::SHARD_RESERVE;

    const MIB: u64 = 1024 * 1024;

    #[test]
    fn a_stalled_feed_keeps_only_its_share() {
        let mut budget = Budget::new(64 * MIB);
        let (mut one, two) = (Holding::default(), Holding::default());
        budget.add_feed();
        budget.add_feed();
        assert!(budget.reserve(&mut one, 8 * MIB, true));
        budget.arrived(&mut one, 6 * MIB, 100);
        assert_eq!(budget.available(&one, false), 0);
        assert!(!budget.reserve(&mut one, 1, false));
        assert_eq!(budget.available(&two, false), FEED_SHARE);
        assert_eq!(budget.held(), 6 * MIB);
        budget.acked(&mut one, 99);
        assert_eq!(one.replies(), 1);
        budget.acked(&mut one, 100);
        assert_eq!((budget.held(), one.total()), (0, 0));
        assert_eq!(budget.available(&one, true), budget.ceiling());
    }

    #[test]
    fn the_pool_is_never_overdrawn() {
        let mut budget = Budget::new(16 * MIB);
        let mut feeds: Vec<Holding> = (0..4).map(|_| Holding::default()).collect();
        feeds.iter().for_each(|_| budget.add_feed());
        let mut granted = 0;
        for feed in &mut feeds {
            while budget.reserve(feed, MIB, true) {
                granted += MIB;
            }
        }
        assert!(granted <= 16 * MIB - SHARD_RESERVE, "{granted}");
        assert!(granted >= 7 * MIB, "{granted}");
        for feed in &mut feeds {
            budget.release(feed);
        }
        assert_eq!(budget.held(), 0);
    }
}
