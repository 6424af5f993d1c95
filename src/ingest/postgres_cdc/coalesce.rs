//! When to let data gather before the next read of the replication socket (P12).
//!
//! A server sends one small packet per row. A reader that takes each at once is woken once per
//! row, and every wake-up slows the sender. After a streak of quick small reads a pause of a
//! millisecond lets hundreds of rows arrive together; at low rates, where reads wait for data or
//! a transaction's few messages come close together, no streak forms and nothing is delayed.

use std::time::Duration;

/// Quick reads in a row that make a streak.
pub const STREAK: u32 = 32;
/// A read that took longer waited for data.
pub const QUICK: Duration = Duration::from_micros(200);
/// A read of this many bytes or more already gathered enough.
pub const ENOUGH: usize = 32 * 1024;
/// The pause.
pub const PAUSE: Duration = Duration::from_millis(1);

/// Watches the reads of one socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Coalescer {
    streak: u32,
}

impl Coalescer {
    /// A read took `took` and gave `bytes`: how long to wait before the next one.
    #[inline]
    pub fn after_read(&mut self, took: Duration, bytes: usize) -> Option<Duration> {
        self.streak = if took < QUICK { self.streak.saturating_add(1) } else { 0 };
        (self.streak >= STREAK && bytes < ENOUGH).then_some(PAUSE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAST: Duration = Duration::from_micros(20);

    fn streak(coalescer: &mut Coalescer) {
        let last = (0..STREAK).map(|_| coalescer.after_read(FAST, 350)).last();
        assert_eq!(last, Some(Some(PAUSE)));
    }

    #[test]
    fn a_streak_of_quick_small_reads_pauses_as_long_as_it_lasts() {
        let mut coalescer = Coalescer::default();
        for read in 1..STREAK {
            assert_eq!(coalescer.after_read(FAST, 350), None, "read {read}");
        }
        for _ in 0..100 {
            assert_eq!(coalescer.after_read(FAST, 350), Some(PAUSE));
        }
    }

    #[test]
    fn a_read_that_waited_ends_the_streak() {
        let mut coalescer = Coalescer::default();
        streak(&mut coalescer);
        assert_eq!(coalescer.after_read(QUICK, 350), None);
        assert_eq!(coalescer.after_read(FAST, 350), None, "it begins again at one");
    }

    #[test]
    fn a_large_read_goes_on_at_once_and_keeps_the_streak() {
        let mut coalescer = Coalescer::default();
        streak(&mut coalescer);
        assert_eq!(coalescer.after_read(FAST, ENOUGH), None);
        assert_eq!(coalescer.after_read(FAST, ENOUGH - 1), Some(PAUSE));
    }

    #[test]
    fn single_rows_at_a_low_rate_are_never_delayed() {
        let mut coalescer = Coalescer::default();
        // 450 transactions a second, each three messages close together.
        for read in 0..3_000 {
            let took = if read % 3 == 0 { Duration::from_millis(2) } else { FAST };
            assert_eq!(coalescer.after_read(took, 120), None);
        }
    }
}
