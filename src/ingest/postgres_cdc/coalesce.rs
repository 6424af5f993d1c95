//! When to let data gather before the next read of the replication socket (P12).
//!
//! A server sends one small packet per row. A reader that takes each at once is woken once per
//! row, and every wake-up slows the sender. Where small reads come thick, a pause of a
//! millisecond lets hundreds of rows arrive together. It goes on for as long as pauses bring much;
//! a pause that brought little was one too many and the next one has to be earned again, so that
//! at low rates nothing is delayed.
//!
//! What counts is how many reads a stretch of time saw, not how long one took: between two reads
//! the same thread works on the rows of the first.

use std::time::Duration;

/// Small reads that make a streak,
pub const STREAK: u32 = 32;
/// if they come within this time: 4,000 a second.
pub const WINDOW: Duration = Duration::from_millis(8);
/// A read of fewer bytes is small, and after a pause too little to go on pausing.
pub const SMALL: usize = 4 * 1024;
/// The pause.
pub const PAUSE: Duration = Duration::from_millis(1);

/// Watches the reads of one socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Coalescer {
    /// When the first of the reads that are counted came, since any fixed moment.
    began: Duration,
    reads: u32,
    pausing: bool,
}

impl Coalescer {
    /// A read brought `bytes` at `now`, counted from any fixed moment, and had room for more if
    /// not `filled`: how long to wait before the next one.
    #[inline]
    pub fn after_read(&mut self, now: Duration, bytes: usize, filled: bool) -> Option<Duration> {
        if filled {
            // More is there already.
            return None;
        }
        if self.pausing {
            self.pausing = bytes >= SMALL;
            self.reads = 0;
        } else if bytes >= SMALL {
            self.reads = 0;
        } else {
            if self.reads == 0 || now.saturating_sub(self.began) > WINDOW {
                (self.began, self.reads) = (now, 0);
            }
            self.reads += 1;
            self.pausing = self.reads >= STREAK;
        }
        self.pausing.then_some(PAUSE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROW: usize = 350;

    fn at(micros: u64) -> Duration {
        Duration::from_micros(micros)
    }

    /// Reads of single rows so far apart; the time of the last.
    fn streak(coalescer: &mut Coalescer, apart: u64) -> (Option<Duration>, u64) {
        let ends: Vec<_> = (1..=u64::from(STREAK))
            .map(|read| coalescer.after_read(at(read * apart), ROW, false))
            .collect();
        let (last, before) = ends.split_last().unwrap();
        assert!(before.iter().all(Option::is_none), "{before:?}");
        (*last, u64::from(STREAK) * apart)
    }

    #[test]
    fn small_reads_that_come_thick_pause_for_as_long_as_that_brings_much() {
        let mut coalescer = Coalescer::default();
        let (last, mut now) = streak(&mut coalescer, 20);
        assert_eq!(last, Some(PAUSE));
        for _ in 0..100 {
            now += 1_100;
            assert_eq!(coalescer.after_read(at(now), 80_000, false), Some(PAUSE));
        }
        assert_eq!(coalescer.after_read(at(now + 1_100), SMALL - 1, false), None, "one too many");
        assert_eq!(coalescer.after_read(at(now + 1_120), ROW, false), None, "begins again at one");
    }

    #[test]
    fn work_between_reads_does_not_hide_a_streak() {
        let apart = u64::try_from(WINDOW.as_micros()).unwrap() / u64::from(STREAK);
        assert_eq!(streak(&mut Coalescer::default(), apart).0, Some(PAUSE));
        assert_eq!(streak(&mut Coalescer::default(), apart + 10).0, None);
    }

    #[test]
    fn reads_that_find_much_need_no_pause() {
        let mut coalescer = Coalescer::default();
        for read in 0..1_000 {
            let bytes = if read % 16 == 0 { SMALL } else { ROW };
            assert_eq!(coalescer.after_read(at(read * 10), bytes, false), None);
        }
    }

    #[test]
    fn a_filled_buffer_is_read_on_at_once() {
        let mut coalescer = Coalescer::default();
        let (_, now) = streak(&mut coalescer, 20);
        assert_eq!(coalescer.after_read(at(now + 1_100), 262_144, true), None);
        assert_eq!(coalescer.after_read(at(now + 1_200), 80_000, false), Some(PAUSE));
    }

    #[test]
    fn single_rows_at_a_low_rate_are_never_delayed() {
        let mut coalescer = Coalescer::default();
        // 450 transactions a second, each three messages close together.
        for read in 0..3_000 {
            let now = at(read / 3 * 2_222 + read % 3 * 20);
            assert_eq!(coalescer.after_read(now, 120, false), None);
        }
    }
}
