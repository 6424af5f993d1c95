//! Group commit of one source's state file on one shard.
//!
//! Feeds mark themselves dirty; one save takes everything that is ready; what changes while it
//! runs goes into the next. A *barrier* is a save that something waits for (a gap, a new epoch,
//! the very first position) and starts at once; other saves keep `interval` apart (C2), and
//! [`PACE`] times as long as the last one took, up to [`PACE_LONGEST`]: where nothing waits, a disk
//! is not kept busy by saves that the next one replaces.
//! I4: generations only grow, also over failed saves.

use std::time::Duration;

use super::policy::Backoff;
use crate::batch::FeedId;
use crate::time::Millis;

/// Longest wait between two tries of a failing save (S3).
pub const SAVE_RETRY_LONGEST: Duration = Duration::from_secs(30);
/// First wait after a failed save.
pub const SAVE_RETRY_FIRST: Duration = Duration::from_secs(1);

/// From the start of one save to that of the next, in times that the first took: saves take at
/// most a sixteenth of the time.
pub const PACE: u32 = 16;
/// No save waits longer than this for the pace of the one before: a kill repeats what was acked
/// meanwhile.
pub const PACE_LONGEST: Duration = Duration::from_millis(50);

/// The lane.
#[derive(Debug)]
pub struct Lane {
    interval: Duration,
    /// How long the last save took.
    took: Duration,
    generation: u64,
    durable: u64,
    dirty: bool,
    urgent: bool,
    last_start: Option<Millis>,
    in_flight: Option<Saving>,
    retry_at: Option<Millis>,
    backoff: Backoff,
    saves: u64,
    failures: u64,
}

#[derive(Debug)]
struct Saving {
    generation: u64,
    positions: Vec<(FeedId, u64)>,
}

/// What a finished save means.
#[derive(Debug, PartialEq, Eq)]
pub enum Saved {
    /// These positions are on disk now.
    Durable(Vec<(FeedId, u64)>),
    /// Nothing changed on disk; a new file is tried later.
    Failed,
    /// Not the save that is in flight.
    Unexpected,
}

impl Lane {
    /// `interval`: least time between saves nobody waits for; `generation`: highest seen on disk.
    pub fn new(interval: Duration, generation: u64) -> Lane {
        Lane {
            interval,
            took: Duration::ZERO,
            generation,
            durable: generation,
            dirty: false,
            urgent: false,
            last_start: None,
            in_flight: None,
            retry_at: None,
            backoff: Backoff::new(SAVE_RETRY_FIRST, SAVE_RETRY_LONGEST),
            saves: 0,
            failures: 0,
        }
    }

    /// A position moved.
    pub fn mark(&mut self) {
        self.dirty = true;
    }

    /// Something must be on disk before it goes on: returns the generation to wait for.
    pub fn barrier(&mut self) -> u64 {
        self.dirty = true;
        self.urgent = true;
        self.generation + 1
    }

    /// True once the save of `generation`, or a later one, is on disk.
    pub fn reached(&self, generation: u64) -> bool {
        self.durable >= generation
    }

    /// The generation on disk.
    pub fn durable(&self) -> u64 {
        self.durable
    }

    /// True while the last try failed: nothing may be sent on (S3).
    pub fn failing(&self) -> bool {
        self.backoff.failures() > 0
    }

    /// Saves that succeeded and failed.
    pub fn totals(&self) -> (u64, u64) {
        (self.saves, self.failures)
    }

    /// Nothing waits to be saved and nothing is being saved.
    pub fn is_quiet(&self) -> bool {
        !self.dirty && self.in_flight.is_none()
    }

    /// When [`Lane::start`] is worth calling, if not now.
    pub fn due_at(&self) -> Option<Millis> {
        if !self.dirty || self.in_flight.is_some() {
            return None;
        }
        if let Some(at) = self.retry_at {
            return Some(at);
        }
        match self.last_start {
            Some(last) if !self.urgent => Some(last + self.interval.max(pace(self.took))),
            _ => Some(Millis(0)),
        }
    }

    /// Starts a save if one is due: returns its generation. `positions` is read only then.
    pub fn start(
        &mut self,
        now: Millis,
        positions: impl FnOnce() -> Vec<(FeedId, u64)>,
    ) -> Option<u64> {
        if self.due_at()? > now {
            return None;
        }
        self.generation += 1;
        self.dirty = false;
        self.urgent = false;
        self.retry_at = None;
        self.last_start = Some(now);
        self.in_flight = Some(Saving { generation: self.generation, positions: positions() });
        Some(self.generation)
    }

    /// The end of a save.
    pub fn finished(
        &mut self,
        now: Millis,
        generation: u64,
        good: bool,
        rng: &mut fastrand::Rng,
    ) -> Saved {
        let Some(saving) = self.in_flight.take_if(|saving| saving.generation == generation) else {
            return Saved::Unexpected;
        };
        if good {
            assert!(
                generation > self.durable,
                "I4: generation {generation} after {}",
                self.durable
            );
            self.durable = generation;
            self.took = self.last_start.map_or(Duration::ZERO, |start| now.since(start));
            self.backoff.reset();
            self.saves += 1;
            return Saved::Durable(saving.positions);
        }
        // What the failed save held is still only in memory: the next one carries it, and a
        // barrier that waited for it is satisfied by any later generation.
        self.dirty = true;
        self.failures += 1;
        self.retry_at = Some(now + self.backoff.failed(rng));
        Saved::Failed
    }
}

/// From the start of a save that took so long, by a clock of milliseconds, to that of the next.
fn pace(took: Duration) -> Duration {
    let took = took.max(Duration::from_millis(1));
    took.saturating_mul(PACE).min(took.saturating_add(PACE_LONGEST))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lane() -> (Lane, fastrand::Rng) {
        (Lane::new(Duration::from_millis(1000), 5), fastrand::Rng::with_seed(1))
    }

    #[test]
    fn saves_keep_the_interval_and_barriers_do_not_wait() {
        let (mut lane, mut rng) = lane();
        assert_eq!(lane.start(Millis(0), Vec::new), None, "nothing to save");
        lane.mark();
        assert_eq!(lane.start(Millis(10), || vec![(FeedId(1), 7)]), Some(6));
        lane.mark();
        assert_eq!(lane.start(Millis(20), Vec::new), None, "one save at a time");
        let saved = lane.finished(Millis(30), 6, true, &mut rng);
        assert_eq!(saved, Saved::Durable(vec![(FeedId(1), 7)]));
        assert_eq!(lane.start(Millis(40), Vec::new), None);
        assert_eq!(lane.due_at(), Some(Millis(1010)));
        let wanted = lane.barrier();
        assert_eq!(lane.start(Millis(41), Vec::new), Some(wanted));
        assert!(!lane.reached(wanted));
        lane.finished(Millis(42), wanted, true, &mut rng);
        assert!(lane.reached(wanted));
    }

    #[test]
    fn a_slow_disk_is_not_kept_busy_and_a_barrier_does_not_care() {
        let (_, mut rng) = lane();
        let mut lane = Lane::new(Duration::ZERO, 0);
        lane.mark();
        assert_eq!(lane.start(Millis(100), Vec::new), Some(1));
        lane.finished(Millis(103), 1, true, &mut rng);
        lane.mark();
        assert_eq!(lane.due_at(), Some(Millis(148)));
        lane.barrier();
        assert_eq!(lane.start(Millis(104), Vec::new), Some(2));
        lane.finished(Millis(104), 2, true, &mut rng);
        lane.mark();
        assert_eq!(lane.due_at(), Some(Millis(120)), "no save is faster than the clock shows");
        assert_eq!(lane.start(Millis(120), Vec::new), Some(3));
        lane.finished(Millis(3_120), 3, true, &mut rng);
        lane.mark();
        assert_eq!(lane.due_at(), Some(Millis(3_170)), "one that stalled delays the next little");
    }

    #[test]
    fn a_failed_save_is_followed_by_a_new_generation() {
        let (mut lane, mut rng) = lane();
        let wanted = lane.barrier();
        assert_eq!(lane.start(Millis(0), Vec::new), Some(6));
        assert_eq!(lane.finished(Millis(1), 6, false, &mut rng), Saved::Failed);
        assert!(lane.failing() && !lane.reached(wanted));
        let at = lane.due_at().unwrap();
        assert!(at >= Millis(700), "backs off: {at:?}");
        assert_eq!(lane.start(at, Vec::new), Some(7));
        lane.finished(at, 7, true, &mut rng);
        assert!(lane.reached(wanted) && !lane.failing());
    }

    #[test]
    fn a_barrier_asked_during_a_save_waits_for_the_next_one() {
        let (mut lane, mut rng) = lane();
        lane.mark();
        assert_eq!(lane.start(Millis(0), Vec::new), Some(6));
        let wanted = lane.barrier();
        assert_eq!(wanted, 7);
        lane.finished(Millis(5), 6, true, &mut rng);
        assert!(!lane.reached(wanted));
        assert_eq!(lane.start(Millis(5), Vec::new), Some(7));
    }
}
