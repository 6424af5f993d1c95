//! Buffer bytes of one shard (G6): reserved before a poll, shrunk to what arrived, given back
//! when the last record of a reply is acked.
//!
//! ```text
//! polls  ≤ limit − SHARD_RESERVE   shares, and a pool for feeds whose destination moves
//! reserve ≤ SHARD_RESERVE          questions, see [`super::reserve`]
//! slot   ≤ LARGE_SLOT, outside     one message at a time, of one feed of the whole daemon
//! ```
//!
//! A feed gives back what a request can still fill only when that request has ended, whatever
//! became of the feed meanwhile. More feeds than there are shares for may pass the limit by what
//! is missing; that is shown as a finding.

use std::collections::VecDeque;

use super::reserve::Reserve;
use crate::config::budget::{self, FEED_SHARE, SHARD_RESERVE};

/// Bytes of the daemon-wide slot: one message that fills a frame.
pub const LARGE_SLOT: u64 = 64 * 1024 * 1024 + 64 * 1024;

/// The accounts of one shard.
#[derive(Debug)]
pub struct Budget {
    limit: u64,
    feeds: u64,
    pooled: u64,
    polled: u64,
    slots: u64,
    freed: bool,
    /// What polls can never take.
    pub reserve: Reserve,
}

/// What one feed holds for its polls.
#[derive(Debug, Default)]
pub struct Holding {
    reserved: u64,
    chunks: VecDeque<(u64, u64)>,
    chunk_bytes: u64,
    /// Holds the daemon-wide slot: so much of what it holds is in there.
    slot: Option<u64>,
    counted: Counted,
}

/// How far the accounts know of a holding.
#[derive(Clone, Copy, Debug, Default)]
struct Counted {
    polled: u64,
    pooled: u64,
    slot: u64,
}

impl Budget {
    /// `limit`: this shard's part of `max_buffered_bytes`, the reserve included.
    pub fn new(limit: u64) -> Budget {
        let reserve = Reserve::default();
        Budget { limit, feeds: 0, pooled: 0, polled: 0, slots: 0, freed: false, reserve }
    }

    /// One more feed keeps a share.
    pub fn add_feed(&mut self) {
        self.feeds += 1;
    }

    /// Bytes reserved, buffered or lent. Passes the limit by the daemon-wide slot.
    pub fn held(&self) -> u64 {
        self.polled + self.slots + self.reserve.lent()
    }

    /// The bound.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// True once after bytes of polls were given back: feeds that could not reserve try again.
    pub fn take_freed(&mut self) -> bool {
        std::mem::take(&mut self.freed)
    }

    /// Bytes a feed could reserve now. `moving`: its destination acked lately or owes nothing.
    pub fn available(&self, holding: &Holding, moving: bool) -> u64 {
        let share = FEED_SHARE.saturating_sub(holding.drawn());
        let pool = budget::pool(self.limit, self.feeds);
        let left = pool.unwrap_or(0).saturating_sub(self.pooled);
        let wish = if moving { share + left } else { share };
        // A feed that came late finds its share once what others drew before has come back.
        if pool.is_some() { wish.min(self.poll_limit().saturating_sub(self.polled)) } else { wish }
    }

    /// The most any feed of this shard can ever reserve without the large slot.
    pub fn ceiling(&self) -> u64 {
        FEED_SHARE + budget::pool(self.limit, self.feeds).unwrap_or(0)
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

    /// This much is kept now, and a request under way can still bring `asked`. What was made of a
    /// large row may pass the limit: then nothing fits until it is gone. `large`: so many of the
    /// bytes belong to the message that the daemon-wide slot is for; the others are drawn as ever.
    pub fn keep(&mut self, holding: &mut Holding, asked: u64, bytes: u64, large: u64) {
        let large = if holding.slot.is_some() { large.min(bytes).min(LARGE_SLOT) } else { 0 };
        holding.slot = holding.slot.map(|_| large);
        holding.chunks.clear();
        holding.reserved = asked.min(holding.reserved);
        let others = self.polled.saturating_sub(holding.counted.polled);
        let room = self.poll_limit().saturating_sub(others + holding.reserved);
        let is_split = budget::pool(self.limit, self.feeds).is_some();
        let plain = bytes - large;
        holding.chunk_bytes = large + if is_split { plain.min(room) } else { plain };
        self.settle(holding);
    }

    /// The feed dropped its reservation and everything it buffered.
    pub fn release(&mut self, holding: &mut Holding) {
        holding.reserved = 0;
        holding.chunks.clear();
        holding.chunk_bytes = 0;
        self.settle(holding);
    }

    /// The daemon-wide slot is this feed's, or no longer (`None`): at most so many of the bytes
    /// that it holds are in there, `u64::MAX` all.
    pub fn hold_slot(&mut self, holding: &mut Holding, part: Option<u64>) {
        holding.slot = part;
        self.settle(holding);
    }

    fn poll_limit(&self) -> u64 {
        self.limit.saturating_sub(SHARD_RESERVE)
    }

    /// Brings the accounts in line with what the feed holds.
    fn settle(&mut self, holding: &mut Holding) {
        let known = holding.counted;
        let now = holding.count();
        assert!(
            known.polled <= self.polled && known.pooled <= self.pooled && known.slot <= self.slots,
            "G6: {known:?} of a feed is not in {self:?}"
        );
        self.polled = self.polled - known.polled + now.polled;
        self.pooled = self.pooled - known.pooled + now.pooled;
        self.slots = self.slots - known.slot + now.slot;
        self.freed |= now.polled < known.polled;
        holding.counted = now;
        assert!(
            self.polled <= self.poll_limit() || budget::pool(self.limit, self.feeds).is_none(),
            "G6: polls hold {} of {} bytes",
            self.polled,
            self.poll_limit()
        );
        assert!(self.slots <= LARGE_SLOT, "G6: the slot holds {} bytes", self.slots);
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

    fn count(&self) -> Counted {
        let polled = self.drawn();
        let slot = if self.slot.is_some() { LARGE_SLOT } else { 0 };
        Counted { polled, pooled: polled.saturating_sub(FEED_SHARE), slot }
    }

    /// What is not in the daemon-wide slot.
    fn drawn(&self) -> u64 {
        self.total().saturating_sub(self.slot.unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::FeedId;
    use crate::shard::pipeline::reserve::Use;

    const MIB: u64 = 1024 * 1024;

    #[test]
    fn a_reservation_ends_with_its_read_and_what_became_of_it_never_passes_the_books() {
        let mut budget = Budget::new(16 * MIB);
        budget.add_feed();
        let mut holding = Holding::default();
        for _ in 0..1_000 {
            assert!(budget.reserve(&mut holding, FEED_SHARE, true));
            budget.keep(&mut holding, FEED_SHARE, 10, 0);
            assert_eq!(budget.held(), FEED_SHARE + 10, "the read is under way");
            budget.keep(&mut holding, 0, MIB, 0);
            assert_eq!(budget.held(), MIB, "it brought what became a MiB");
            budget.keep(&mut holding, 0, 0, 0);
        }
        budget.keep(&mut holding, 0, 20 * MIB, 0);
        assert_eq!(budget.available(&holding, true), 0);
        budget.keep(&mut holding, 0, MIB, 0);
        assert_eq!(budget.available(&holding, true), 7 * MIB);
    }

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

    #[test]
    fn polls_leave_the_reserve_alone_and_it_leaves_them_alone() {
        let mut budget = Budget::new(SHARD_RESERVE + FEED_SHARE + 2 * MIB);
        budget.add_feed();
        let mut feed = Holding::default();
        let all = budget.available(&feed, true);
        assert_eq!(all, FEED_SHARE + 2 * MIB);
        assert!(budget.reserve.borrow(FeedId(9), Use::Question, SHARD_RESERVE));
        assert_eq!(budget.available(&feed, true), all);
        assert!(budget.reserve(&mut feed, all, true));
        assert_eq!(budget.held(), budget.limit());
        assert!(!budget.reserve(&mut feed, 1, true));
        budget.reserve.give_back(FeedId(9), Use::Question);
        assert!(!budget.take_freed(), "polls got nothing back");
        assert!(!budget.reserve(&mut feed, 1, true));
        budget.arrived(&mut feed, MIB, 1);
        assert!(budget.take_freed() && !budget.take_freed());
    }

    #[test]
    fn a_feed_that_came_late_waits_for_a_share_that_is_drawn() {
        let mut budget = Budget::new(SHARD_RESERVE + 4 * FEED_SHARE);
        budget.add_feed();
        let (mut early, mut late) = (Holding::default(), Holding::default());
        assert!(budget.reserve(&mut early, 4 * FEED_SHARE, true));
        budget.add_feed();
        assert_eq!(budget.available(&late, true), 0);
        budget.arrived(&mut early, 3 * FEED_SHARE, 7);
        assert!(budget.reserve(&mut late, FEED_SHARE, false));
        assert_eq!(budget.held(), budget.limit() - SHARD_RESERVE);
        budget.acked(&mut early, 7);
        assert_eq!(budget.available(&early, true), 3 * FEED_SHARE);
    }

    #[test]
    fn feeds_without_a_share_of_their_own_read_all_the_same() {
        let mut budget = Budget::new(SHARD_RESERVE + FEED_SHARE);
        let mut feeds = [Holding::default(), Holding::default()];
        feeds.iter().for_each(|_| budget.add_feed());
        for feed in &mut feeds {
            assert!(budget.reserve(feed, FEED_SHARE, false));
            assert!(!budget.reserve(feed, 1, true));
        }
    }

    #[test]
    fn the_slot_is_counted_apart_and_takes_nothing_from_the_others() {
        let mut budget = Budget::new(16 * MIB);
        budget.add_feed();
        budget.add_feed();
        let (mut large, other) = (Holding::default(), Holding::default());
        let all = budget.available(&other, true);
        budget.hold_slot(&mut large, Some(u64::MAX));
        assert_eq!(budget.held(), LARGE_SLOT);
        budget.arrived(&mut large, 60 * MIB, 5);
        assert_eq!((budget.held(), budget.available(&other, true)), (LARGE_SLOT, all));
        budget.acked(&mut large, 5);
        budget.hold_slot(&mut large, None);
        assert_eq!((budget.held(), large.total()), (0, 0));
    }

    #[test]
    fn what_is_read_beside_the_message_in_the_slot_is_drawn_as_ever() {
        let mut budget = Budget::new(16 * MIB);
        budget.add_feed();
        budget.add_feed();
        let mut holding = Holding::default();
        budget.hold_slot(&mut holding, Some(0));
        budget.keep(&mut holding, 0, 20 * MIB, 20 * MIB);
        assert_eq!((budget.held(), holding.total()), (LARGE_SLOT, 20 * MIB));
        let mut plain = 0;
        while budget.reserve(&mut holding, FEED_SHARE, false) {
            plain += FEED_SHARE;
            budget.keep(&mut holding, 0, 20 * MIB + plain, 20 * MIB);
        }
        assert_eq!(plain, FEED_SHARE, "a share, as without the slot");
        while budget.reserve(&mut holding, FEED_SHARE, true) {
            plain += FEED_SHARE;
            budget.keep(&mut holding, 0, 20 * MIB + plain, 20 * MIB);
        }
        assert_eq!(plain, budget.ceiling());
        assert!(budget.held() <= budget.limit() + LARGE_SLOT);
        // The message is acked, the rest is not: the slot can go.
        budget.keep(&mut holding, 0, plain, 0);
        budget.hold_slot(&mut holding, None);
        assert_eq!(budget.held(), plain);
        let mut other = Holding::default();
        budget.hold_slot(&mut other, Some(0));
        assert_eq!(budget.held(), plain + LARGE_SLOT);
    }

    #[test]
    #[should_panic(expected = "G6: the slot holds")]
    fn two_holders_of_the_slot_are_a_bug() {
        let mut budget = Budget::new(16 * MIB);
        budget.hold_slot(&mut Holding::default(), Some(0));
        budget.hold_slot(&mut Holding::default(), Some(0));
    }
}
