//! When to close the batch under construction (I2, P12).
//!
//! A row that finds everything acked goes out at once. While sends are out, and while rows come in
//! such numbers that a batch of every millisecond would be large, they gather for a few
//! milliseconds: what would wait in a queue anyway waits in the batch, and one request carries
//! hundreds of rows instead of a dozen.

use std::time::Duration;

use crate::time::Millis;

/// Longest time that a batch stays open for more rows while sends are out,
pub const LINGER: Duration = Duration::from_millis(4);
/// and while rows come thick: each batch costs a send per destination and a save,
pub const LINGER_THICK: Duration = Duration::from_millis(10);
/// and while it is the last one that may be open: what is closed then ends reading, so that on a
/// long way to the destination a few rows would take the place of a full batch.
pub const LINGER_LAST: Duration = Duration::from_secs(1);
/// Rows come thick at so many bytes of records a millisecond,
pub const THICK: usize = 8 * 1024;
/// until none came for so long.
pub const FOLLOWS: Duration = Duration::from_millis(4);

/// What is known of the batch under construction.
#[derive(Clone, Copy, Debug)]
pub struct Open {
    /// Rows for some destination are in it; without, it only moves the position.
    pub has_messages: bool,
    /// Sends of earlier batches are out.
    pub is_busy: bool,
    /// Once it is closed and sent as well, as many batches are out as may be.
    pub is_last: bool,
}

impl Open {
    /// What is known where `in_flight` of `most` batches are out.
    pub fn new(has_messages: bool, in_flight: usize, most: usize) -> Open {
        let is_busy = in_flight > 0;
        Open { has_messages, is_busy, is_last: has_messages && is_busy && in_flight + 1 >= most }
    }
}

/// Watches the batches of one feed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Linger {
    /// Since when there has been something to close.
    opened_at: Option<Millis>,
    closed_at: Millis,
    /// The last batch was filled at that rate.
    thick: bool,
}

impl Linger {
    /// When to close what is there: `None` now, else not before this time unless sooner something
    /// is acked or the batch is full.
    pub fn until(&mut self, now: Millis, open: Open) -> Option<Millis> {
        let opened_at = *self.opened_at.get_or_insert(now);
        let follows = self.thick && opened_at.since(self.closed_at) <= FOLLOWS;
        let linger = match (follows, open.is_busy || !open.has_messages) {
            _ if open.is_last => LINGER_LAST,
            (true, _) => LINGER_THICK,
            (false, true) => LINGER,
            (false, false) => return None,
        };
        Some(opened_at + linger).filter(|until| now < *until)
    }

    /// It was closed with so many bytes.
    pub fn closed(&mut self, now: Millis, bytes: usize) {
        let millis = now.since(self.closed_at).as_millis().max(1);
        let rate = u128::try_from(bytes).unwrap_or(u128::MAX) / millis;
        self.thick = rate >= THICK as u128;
        (self.opened_at, self.closed_at) = (None, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: Open = Open { has_messages: true, is_busy: false, is_last: false };
    const BUSY: Open = Open { is_busy: true, ..IDLE };

    #[test]
    fn a_row_that_finds_everything_acked_goes_at_once() {
        let mut linger = Linger::default();
        for at in (0..1_000).step_by(2) {
            assert_eq!(linger.until(Millis(at), IDLE), None);
            linger.closed(Millis(at), 300);
        }
    }

    #[test]
    fn transactions_of_some_rows_now_and_then_are_not_delayed() {
        let mut linger = Linger::default();
        for at in (10..1_000).step_by(10) {
            assert_eq!(linger.until(Millis(at), IDLE), None);
            linger.closed(Millis(at), 8 * THICK);
        }
    }

    #[test]
    fn while_sends_are_out_rows_gather_until_they_are_acked_or_the_time_is_over() {
        let mut linger = Linger::default();
        assert_eq!(linger.until(Millis(10), BUSY), Some(Millis(14)));
        assert_eq!(linger.until(Millis(12), BUSY), Some(Millis(14)), "counted from the first row");
        assert_eq!(linger.until(Millis(12), IDLE), None, "acked");
        assert_eq!(linger.until(Millis(14), BUSY), None, "its time is over");
        linger.closed(Millis(14), 300);
        assert_eq!(linger.until(Millis(15), BUSY), Some(Millis(19)), "the next one begins anew");
    }

    #[test]
    fn rows_that_come_thick_gather_until_that_ends() {
        let mut linger = Linger::default();
        assert_eq!(linger.until(Millis(100), IDLE), None, "the first goes at once");
        linger.closed(Millis(100), THICK);
        assert_eq!(linger.until(Millis(101), IDLE), None, "alone it was no stream");
        linger.closed(Millis(101), THICK);
        for round in 0..10 {
            let at = 101 + round * 11;
            assert_eq!(linger.until(Millis(at + 1), IDLE), Some(Millis(at + 11)), "{round}");
            assert_eq!(linger.until(Millis(at + 11), IDLE), None, "{round}");
            linger.closed(Millis(at + 11), 11 * THICK);
        }
        let last = 101 + 10 * 11;
        assert_eq!(linger.until(Millis(last + 5), IDLE), None, "nothing came for some time");
        linger.closed(Millis(last + 5), 300);
        assert_eq!(linger.until(Millis(last + 6), IDLE), None, "the last one was small");
    }

    #[test]
    fn the_last_batch_that_may_go_out_is_closed_when_it_is_full_or_another_is_acked() {
        let mut linger = Linger::default();
        let mut closed = 0;
        // Nothing is acked for 200 ms, a row comes every millisecond.
        for at in 0..200 {
            if linger.until(Millis(at), Open::new(true, closed, 8)).is_none() {
                linger.closed(Millis(at), 300);
                closed += 1;
            }
        }
        assert_eq!(closed, 7, "one may still be filled");
        assert_eq!(linger.until(Millis(200), Open::new(true, 6, 8)), None, "one is acked");
        linger.closed(Millis(200), 300);
        let last = Open::new(true, 7, 8);
        assert_eq!(linger.until(Millis(201), last), Some(Millis(201) + LINGER_LAST));
        assert_eq!(linger.until(Millis(201) + LINGER_LAST, last), None, "but not for ever");
    }

    #[test]
    fn a_single_batch_at_a_time_goes_at_once_when_nothing_is_out() {
        assert_eq!(Linger::default().until(Millis(0), Open::new(true, 0, 1)), None);
        assert!(!Open::new(false, 7, 8).is_last, "a position alone takes no place");
    }

    #[test]
    fn a_position_without_rows_is_in_no_hurry() {
        let mut linger = Linger::default();
        let open = Open::new(false, 0, 8);
        assert_eq!(linger.until(Millis(3), open), Some(Millis(7)));
        assert_eq!(linger.until(Millis(7), open), None);
    }
}
