//! When to try again, and for how long a failure is nobody's business (C3, M13).

use std::time::Duration;

/// Exponential back-off with jitter between two bounds; any success resets it.
#[derive(Clone, Debug)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    failures: u32,
}

impl Backoff {
    /// From `first`, doubled up to `longest`.
    pub fn new(first: Duration, longest: Duration) -> Backoff {
        Backoff { first, longest: longest.max(first), failures: 0 }
    }

    /// One more failure: how long to wait. The jitter takes off up to a quarter, so that many
    /// feeds that failed together do not come back together.
    pub fn failed(&mut self, rng: &mut fastrand::Rng) -> Duration {
        let doubled = self.first.saturating_mul(1 << self.failures.min(20));
        self.failures = self.failures.saturating_add(1);
        let wait = doubled.min(self.longest);
        wait - wait.mul_f64(rng.f64() / 4.0)
    }

    /// It worked.
    pub fn reset(&mut self) {
        self.failures = 0;
    }

    /// Failures in a row.
    pub fn failures(&self) -> u32 {
        self.failures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_bound_and_reset() {
        let mut rng = fastrand::Rng::with_seed(7);
        let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));
        let mut expected = 1.0;
        for _ in 0..80 {
            let wait = backoff.failed(&mut rng).as_secs_f64();
            assert!(wait <= expected && wait >= expected * 0.75, "{wait} for {expected}");
            expected = f64::min(expected * 2.0, 60.0);
        }
        backoff.reset();
        assert!(backoff.failed(&mut rng) <= Duration::from_secs(1));
    }
}
