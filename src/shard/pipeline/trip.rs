//! How long the way to the destination and back is, told by the times of asking and hearing, and
//! how much went there.
//!
//! The least time counts that anything took since the connection is up: what a request waits behind
//! others, and how long its bytes take, says nothing about the way. Questions of a resume come
//! before every send, so there is always a figure. The clock counts milliseconds, so a way below
//! one shows as 0 before long.

use std::time::Duration;

use super::conns::Purpose;
use crate::time::Millis;

/// From here on a round trip is long (M16).
pub const FAR: Duration = Duration::from_millis(1);

/// What is known of the way to the destination.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Trip {
    asked: Option<(Purpose, Millis)>,
    least: Option<Duration>,
    /// Sends that were acked since this start.
    pub sends: u64,
    /// Upstream records that they carried, whole or in part.
    pub records: u64,
}

impl Trip {
    /// A request goes out.
    pub(super) fn asked(&mut self, purpose: Purpose, now: Millis) {
        if is_there(purpose) {
            self.asked = Some((purpose, now));
        }
    }

    /// It was answered.
    pub(super) fn heard(&mut self, purpose: Purpose, now: Millis) {
        let Some((_, at)) = self.asked.take_if(|(asked, _)| *asked == purpose) else { return };
        let took = now.since(at);
        self.least = Some(self.least.map_or(took, |least| least.min(took)));
    }

    /// A send was taken, with so many records.
    pub(super) fn acked(&mut self, records: u32) {
        self.sends += 1;
        self.records += u64::from(records);
    }

    /// The connection is gone; the next one may lead elsewhere.
    pub(super) fn forget(&mut self) {
        (self.asked, self.least) = (None, None);
    }

    /// The shortest since the connection is up.
    pub(super) fn least(&self) -> Option<Duration> {
        self.least
    }

    /// Long enough that bytes count less than sends.
    pub(super) fn is_far(&self) -> bool {
        self.least.is_some_and(|least| least >= FAR)
    }
}

/// What the destination is asked by the connection that sends too, one at a time.
fn is_there(purpose: Purpose) -> bool {
    matches!(
        purpose,
        Purpose::DownstreamTopic | Purpose::Tail | Purpose::CompareDownstream | Purpose::Send
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_time_counts_and_a_millisecond_is_far() {
        let mut trip = Trip::default();
        assert!(!trip.is_far(), "nothing is known");
        for (purpose, from, to, far) in [
            (Purpose::Tail, 100, 105, true),
            (Purpose::Send, 200, 290, true),
            (Purpose::Send, 300, 301, true),
            (Purpose::Send, 400, 400, false),
            (Purpose::Send, 500, 900, false),
        ] {
            trip.asked(purpose, Millis(from));
            trip.heard(purpose, Millis(to));
            assert_eq!(trip.is_far(), far, "{from}");
        }
        assert_eq!(trip.least(), Some(Duration::ZERO));
    }

    #[test]
    fn only_an_answer_to_what_was_asked_counts() {
        let mut trip = Trip::default();
        trip.asked(Purpose::Tail, Millis(10));
        trip.asked(Purpose::Poll, Millis(20));
        trip.heard(Purpose::Poll, Millis(20));
        assert_eq!(trip.least(), None, "upstream is another way");
        trip.asked(Purpose::Send, Millis(30));
        trip.heard(Purpose::Tail, Millis(31));
        assert_eq!(trip.least(), None, "an answer that came late");
        trip.heard(Purpose::Send, Millis(39));
        assert_eq!(trip.least(), Some(Duration::from_millis(9)));
        trip.acked(7);
        trip.forget();
        assert_eq!((trip.least(), trip.sends, trip.records), (None, 1, 7));
    }
}
