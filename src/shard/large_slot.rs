//! The daemon-wide slot for one oversized message (G6): one feed at a time, first come, first
//! served. Lives on the control thread; shards ask and are granted by letter.

use std::collections::VecDeque;

use crate::batch::FeedId;

/// Who holds the slot and who waits for it.
#[derive(Debug, Default)]
pub struct LargeSlot {
    /// The first one holds it.
    queue: VecDeque<(u16, FeedId)>,
}

impl LargeSlot {
    /// `feed` of `shard` wants it; returns it if the slot is its own from now on.
    pub fn wanted(&mut self, shard: u16, feed: FeedId) -> Option<(u16, FeedId)> {
        if self.queue.contains(&(shard, feed)) {
            return None;
        }
        self.queue.push_back((shard, feed));
        (self.queue.len() == 1).then_some((shard, feed))
    }

    /// `feed` gives it back, or wants it no longer; returns who gets it next.
    pub fn released(&mut self, shard: u16, feed: FeedId) -> Option<(u16, FeedId)> {
        let held = self.queue.front() == Some(&(shard, feed));
        self.queue.retain(|entry| *entry != (shard, feed));
        if held { self.queue.front().copied() } else { None }
    }

    /// A shard ended and takes its feeds with it; returns who gets the slot next.
    pub fn shard_ended(&mut self, shard: u16) -> Option<(u16, FeedId)> {
        let held = self.queue.front().is_some_and(|(holder, _)| *holder == shard);
        self.queue.retain(|(waiting, _)| *waiting != shard);
        if held { self.queue.front().copied() } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slot_goes_round_in_the_order_of_asking() {
        let mut slot = LargeSlot::default();
        let (a, b, c) = (FeedId(1), FeedId(2), FeedId(3));
        assert_eq!(slot.wanted(0, a), Some((0, a)));
        assert_eq!(slot.wanted(1, b), None);
        assert_eq!(slot.wanted(1, b), None, "asking twice gains nothing");
        assert_eq!(slot.wanted(0, c), None);
        assert_eq!(slot.released(0, a), Some((1, b)));
        assert_eq!(slot.released(0, c), None, "one that only waited passes nothing on");
        assert_eq!(slot.released(1, b), None);
        assert_eq!(slot.wanted(0, c), Some((0, c)));
    }

    #[test]
    fn a_shard_that_ends_gives_its_slot_back() {
        let mut slot = LargeSlot::default();
        slot.wanted(0, FeedId(1));
        slot.wanted(0, FeedId(2));
        slot.wanted(1, FeedId(3));
        assert_eq!(slot.shard_ended(0), Some((1, FeedId(3))));
        assert_eq!(slot.shard_ended(0), None);
    }
}
