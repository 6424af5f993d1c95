//! The fixed reserve of one shard (G6): bytes that polls can never take, lent for the questions
//! of a resume and for questions beside polls.
//!
//! ```text
//! borrow ─┬─ it fits and nobody waits ─▶ lent ─▶ given back ─▶ lent to the first in line
//!         └─ else ─▶ the end of the line ──────────────────────▲  as long as it fits
//! ```
//!
//! First come, first served: nobody passes the one in front, however little it needs, so nobody
//! starves. What is given back is lent on at once, in the name of whoever waited: there is no
//! wake-up to lose. What is lent never exceeds the reserve; the line holds each feed once per
//! use. A loan must not wait for another loan to come back, only for replies.

use std::collections::{BTreeMap, HashMap};

use crate::batch::FeedId;
use crate::config::budget::SHARD_RESERVE;

/// What a part of the reserve is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Use {
    /// Replies of a resume, or of a question beside polls.
    Question,
    /// The reply of a look for idle partitions.
    Watch,
    /// The reply of a look for partitions that do not poll.
    Look,
}

/// The account.
#[derive(Debug, Default)]
pub struct Reserve {
    lent: u64,
    loans: HashMap<(FeedId, Use), Loan>,
    line: BTreeMap<u64, (FeedId, Use)>,
    last_place: u64,
    granted: Vec<FeedId>,
}

#[derive(Clone, Copy, Debug)]
struct Loan {
    bytes: u64,
    /// Its place in line, until it is lent.
    place: Option<u64>,
}

impl Reserve {
    /// Bytes lent; never above [`SHARD_RESERVE`].
    pub fn lent(&self) -> u64 {
        self.lent
    }

    /// How many wait.
    pub fn waiting(&self) -> usize {
        self.line.len()
    }

    /// Whether `bytes` are lent now. Otherwise the feed stands in line, in the place it had if
    /// it asked before, and [`Reserve::take_granted`] names it once they are.
    pub fn borrow(&mut self, feed: FeedId, what: Use, bytes: u64) -> bool {
        assert!(bytes <= SHARD_RESERVE, "G6: {bytes} bytes for {what:?} can never be lent");
        match self.loans.get(&(feed, what)) {
            Some(loan) if loan.bytes == bytes => return loan.place.is_none(),
            Some(_) => self.give_back(feed, what),
            None => {}
        }
        if self.line.is_empty() && self.fits(bytes) {
            self.lend(feed, what, bytes);
            return true;
        }
        self.last_place += 1;
        self.line.insert(self.last_place, (feed, what));
        self.loans.insert((feed, what), Loan { bytes, place: Some(self.last_place) });
        false
    }

    /// For what can be left out: true if `bytes` are lent now and were not before. Never waits,
    /// nor passes those that do.
    pub fn borrow_now(&mut self, feed: FeedId, what: Use, bytes: u64) -> bool {
        let is_free = self.line.is_empty() && self.fits(bytes);
        if !is_free || self.loans.contains_key(&(feed, what)) {
            return false;
        }
        self.lend(feed, what, bytes);
        true
    }

    /// Gives back what is lent, or leaves the line; nothing if neither.
    pub fn give_back(&mut self, feed: FeedId, what: Use) {
        let Some(loan) = self.loans.remove(&(feed, what)) else { return };
        match loan.place {
            Some(place) => {
                self.line.remove(&place);
            }
            None => {
                assert!(
                    loan.bytes <= self.lent,
                    "G6: {} bytes come back for {what:?}, {} are lent",
                    loan.bytes,
                    self.lent
                );
                self.lent -= loan.bytes;
            }
        }
        self.serve();
    }

    /// Feeds that waited and wait no longer.
    pub fn take_granted(&mut self) -> std::vec::Drain<'_, FeedId> {
        self.granted.drain(..)
    }

    fn fits(&self, bytes: u64) -> bool {
        bytes <= SHARD_RESERVE - self.lent
    }

    fn lend(&mut self, feed: FeedId, what: Use, bytes: u64) {
        self.lent += bytes;
        assert!(
            self.lent <= SHARD_RESERVE,
            "G6: {} bytes of a reserve of {SHARD_RESERVE} are lent",
            self.lent
        );
        self.loans.insert((feed, what), Loan { bytes, place: None });
    }

    /// Serves the line from its front, as far as it fits.
    fn serve(&mut self) {
        while let Some((_, &(feed, what))) = self.line.first_key_value() {
            let Some(loan) = self.loans.get(&(feed, what)).copied() else { return };
            if !self.fits(loan.bytes) {
                return;
            }
            self.line.pop_first();
            self.lend(feed, what, loan.bytes);
            self.granted.push(feed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn granted(reserve: &mut Reserve) -> Vec<u32> {
        reserve.take_granted().map(|feed| feed.0).collect()
    }

    /// What the books must say at any moment.
    fn audit(reserve: &Reserve) {
        let lent = reserve.loans.values().filter(|loan| loan.place.is_none());
        assert_eq!(lent.map(|loan| loan.bytes).sum::<u64>(), reserve.lent);
        assert!(reserve.lent <= SHARD_RESERVE);
        let mut waiting = 0;
        for (key, loan) in &reserve.loans {
            if let Some(place) = loan.place {
                assert_eq!(reserve.line.get(&place), Some(key));
                waiting += 1;
            }
        }
        assert_eq!(waiting, reserve.line.len());
        if let Some((_, first)) = reserve.line.first_key_value() {
            assert!(!reserve.fits(reserve.loans[first].bytes), "the first waits for nothing");
        }
    }

    #[test]
    fn those_that_wait_are_served_in_the_order_of_asking() {
        let mut reserve = Reserve::default();
        let lent = |n: u32| n < 8;
        for n in 0..20 {
            assert_eq!(reserve.borrow(FeedId(n), Use::Question, MIB), lent(n), "{n}");
        }
        assert_eq!((reserve.lent(), reserve.waiting()), (8 * MIB, 12));
        for n in 0..12 {
            reserve.give_back(FeedId(n), Use::Question);
            audit(&reserve);
            assert_eq!(granted(&mut reserve), [n + 8]);
            assert!(reserve.borrow(FeedId(n + 8), Use::Question, MIB), "asked again, it is there");
        }
        (12..20).for_each(|n| reserve.give_back(FeedId(n), Use::Question));
        assert_eq!((reserve.lent(), reserve.waiting()), (0, 0));
        assert!(reserve.loans.is_empty());
    }

    #[test]
    fn a_small_wish_never_passes_a_large_one() {
        let mut reserve = Reserve::default();
        assert!(reserve.borrow(FeedId(1), Use::Question, 5 * MIB));
        assert!(!reserve.borrow(FeedId(2), Use::Look, 4 * MIB));
        assert!(!reserve.borrow(FeedId(3), Use::Question, 1));
        assert!(!reserve.borrow_now(FeedId(4), Use::Watch, 1), "what cannot wait does not pass");
        reserve.give_back(FeedId(1), Use::Question);
        assert_eq!(granted(&mut reserve), [2, 3]);
        audit(&reserve);
    }

    #[test]
    fn asking_again_keeps_the_place_and_gains_nothing() {
        let mut reserve = Reserve::default();
        assert!(reserve.borrow(FeedId(0), Use::Question, 8 * MIB));
        for _ in 0..3 {
            assert!(!reserve.borrow(FeedId(1), Use::Question, MIB));
            assert!(!reserve.borrow(FeedId(2), Use::Question, 8 * MIB));
            assert!(reserve.borrow(FeedId(0), Use::Question, 8 * MIB));
        }
        assert_eq!((reserve.lent(), reserve.waiting()), (8 * MIB, 2));
        reserve.give_back(FeedId(0), Use::Question);
        assert_eq!(granted(&mut reserve), [1]);
        audit(&reserve);
    }

    #[test]
    fn leaving_the_front_lets_the_next_in() {
        let mut reserve = Reserve::default();
        assert!(reserve.borrow(FeedId(0), Use::Question, 7 * MIB));
        assert!(!reserve.borrow(FeedId(1), Use::Look, 2 * MIB));
        assert!(!reserve.borrow(FeedId(2), Use::Question, MIB));
        reserve.give_back(FeedId(1), Use::Look);
        assert_eq!(granted(&mut reserve), [2]);
        assert_eq!(reserve.lent(), 8 * MIB);
        audit(&reserve);
        reserve.give_back(FeedId(1), Use::Look);
        assert_eq!(reserve.lent(), 8 * MIB, "nothing to give back");
    }

    #[test]
    fn uses_of_one_feed_are_counted_apart() {
        let mut reserve = Reserve::default();
        let uses = [Use::Question, Use::Watch, Use::Look];
        assert!(reserve.borrow(FeedId(0), uses[0], MIB));
        assert!(reserve.borrow_now(FeedId(0), uses[1], MIB));
        assert!(reserve.borrow_now(FeedId(0), uses[2], MIB));
        assert!(!reserve.borrow_now(FeedId(0), uses[2], MIB), "one look at a time");
        assert_eq!(reserve.lent(), 3 * MIB);
        uses.iter().for_each(|what| reserve.give_back(FeedId(0), *what));
        assert_eq!(reserve.lent(), 0);
    }

    #[test]
    #[should_panic(expected = "can never be lent")]
    fn more_than_the_reserve_is_never_waited_for() {
        Reserve::default().borrow(FeedId(0), Use::Question, SHARD_RESERVE + 1);
    }

    #[test]
    fn any_order_of_asking_and_giving_back_keeps_the_books() {
        for seed in 0..200 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut reserve = Reserve::default();
            for _ in 0..400 {
                let feed = FeedId(rng.u32(0..12));
                let what = [Use::Question, Use::Look, Use::Watch][rng.usize(0..3)];
                match rng.u32(0..4) {
                    0 | 1 if what == Use::Watch => {
                        reserve.borrow_now(feed, what, rng.u64(1..3 * MIB));
                    }
                    0 | 1 => {
                        reserve.borrow(feed, what, rng.u64(1..=SHARD_RESERVE));
                    }
                    _ => reserve.give_back(feed, what),
                }
                audit(&reserve);
            }
            for feed in (0..12).map(FeedId) {
                for what in [Use::Question, Use::Look, Use::Watch] {
                    reserve.give_back(feed, what);
                }
            }
            assert_eq!((reserve.lent(), reserve.waiting()), (0, 0), "seed {seed}");
        }
    }
}
