//! A circuit breaker for one destination (A6): after so many failures in a row it is left alone
//! for a while, then one probe decides. Timeouts count; a lost connection or leader does not,
//! since it would trip every destination at once.

use crate::config::BreakerPlan;
use crate::time::Millis;

/// The breaker.
#[derive(Clone, Debug)]
pub struct Breaker {
    plan: BreakerPlan,
    failures: u32,
    state: State,
    /// Times it opened.
    trips: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Closed,
    Open {
        until: Millis,
    },
    /// One request is on its way to see.
    Probing,
}

/// Whether something may go out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permit {
    /// Yes.
    Yes,
    /// Yes, this one alone.
    Probe,
    /// Not before this.
    At(Millis),
    /// Not before the probe is answered.
    Wait,
}

impl Breaker {
    /// Closed.
    pub fn new(plan: BreakerPlan) -> Breaker {
        Breaker { plan, failures: 0, state: State::Closed, trips: 0 }
    }

    /// Whether something may go out now.
    pub fn permit(&self, now: Millis) -> Permit {
        match self.state {
            State::Closed => Permit::Yes,
            State::Open { until } if now < until => Permit::At(until),
            State::Open { .. } => Permit::Probe,
            State::Probing => Permit::Wait,
        }
    }

    /// Something goes out on a [`Permit::Probe`].
    pub fn probe(&mut self) {
        if matches!(self.state, State::Open { .. }) {
            self.state = State::Probing;
        }
    }

    /// It worked. True if that closed it.
    pub fn succeeded(&mut self) -> bool {
        let was_open = self.is_open();
        self.failures = 0;
        self.state = State::Closed;
        was_open
    }

    /// One more failure. True if that opened it, or kept it open after a probe.
    pub fn failed(&mut self, now: Millis) -> bool {
        self.failures = self.failures.saturating_add(1);
        let opens = match self.state {
            State::Closed => self.failures >= self.plan.failure_threshold,
            State::Probing => true,
            // An answer to what went out before it opened.
            State::Open { .. } => return false,
        };
        if opens {
            self.trips += u64::from(self.state == State::Closed);
            self.state = State::Open { until: now + self.plan.cool_down };
        }
        opens
    }

    /// What went out came to nothing that says anything about the destination.
    pub fn undecided(&mut self, now: Millis) {
        if self.state == State::Probing {
            self.state = State::Open { until: now };
        }
    }

    /// Open, or being probed.
    pub fn is_open(&self) -> bool {
        self.state != State::Closed
    }

    /// Failures in a row.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// Times it opened.
    pub fn trips(&self) -> u64 {
        self.trips
    }

    /// The word in status.
    pub fn as_str(&self) -> &'static str {
        match self.state {
            State::Closed => "closed",
            State::Open { .. } => "open",
            State::Probing => "half_open",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn breaker() -> Breaker {
        let cool_down = Duration::from_secs(30);
        Breaker::new(BreakerPlan { failure_threshold: 3, cool_down })
    }

    #[test]
    fn failures_in_a_row_open_it_and_one_probe_closes_it() {
        let mut breaker = breaker();
        assert!(!breaker.failed(Millis(0)) && !breaker.failed(Millis(1)));
        assert!(!breaker.succeeded(), "a success between them starts over");
        assert!(!breaker.failed(Millis(2)) && !breaker.failed(Millis(3)));
        assert_eq!(breaker.permit(Millis(3)), Permit::Yes);
        assert!(breaker.failed(Millis(4)));
        assert_eq!(breaker.as_str(), "open");
        assert_eq!(breaker.permit(Millis(30_003)), Permit::At(Millis(30_004)));
        assert_eq!(breaker.permit(Millis(30_004)), Permit::Probe);
        breaker.probe();
        assert_eq!((breaker.permit(Millis(99_999)), breaker.as_str()), (Permit::Wait, "half_open"));
        assert!(breaker.succeeded());
        assert_eq!((breaker.permit(Millis(30_005)), breaker.failures()), (Permit::Yes, 0));
        assert_eq!(breaker.trips(), 1);
    }

    #[test]
    fn a_failed_probe_cools_down_again() {
        let mut breaker = breaker();
        for _ in 0..3 {
            breaker.failed(Millis(0));
        }
        breaker.probe();
        assert!(breaker.failed(Millis(40_000)));
        assert_eq!(breaker.permit(Millis(69_999)), Permit::At(Millis(70_000)));
        assert_eq!(breaker.trips(), 1, "it never closed in between");
    }

    #[test]
    fn late_failures_do_not_prolong_the_rest() {
        let mut breaker = breaker();
        for _ in 0..3 {
            breaker.failed(Millis(0));
        }
        assert!(!breaker.failed(Millis(20_000)));
        assert_eq!(breaker.permit(Millis(30_000)), Permit::Probe);
    }

    #[test]
    fn a_probe_that_said_nothing_may_be_repeated_at_once() {
        let mut breaker = breaker();
        for _ in 0..3 {
            breaker.failed(Millis(0));
        }
        breaker.probe();
        breaker.undecided(Millis(31_000));
        assert_eq!(breaker.permit(Millis(31_000)), Permit::Probe);
        breaker.undecided(Millis(31_000));
        let mut closed = Breaker::new(breaker.plan);
        closed.undecided(Millis(0));
        assert_eq!(closed.permit(Millis(0)), Permit::Yes);
    }
}
