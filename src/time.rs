//! Time as decisions see it: it arrives with each event, nothing here reads a clock.

use std::ops::{Add, Sub};
use std::time::Duration;

/// Milliseconds of a monotonic clock, counted from the start of the shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Millis(pub u64);

/// Microseconds since the Unix epoch, from the wall clock: for records that people read, never
/// for deadlines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnixMicros(pub u64);

/// The two clocks as the driver read them before a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// For deadlines and intervals.
    pub mono: Millis,
    /// For gap records and status.
    pub wall: UnixMicros,
}

impl Millis {
    /// Time since `earlier`, zero if `earlier` lies ahead.
    pub fn since(self, earlier: Millis) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Millis {
    type Output = Millis;
    fn add(self, rhs: Duration) -> Millis {
        let millis = u64::try_from(rhs.as_millis()).unwrap_or(u64::MAX);
        Millis(self.0.saturating_add(millis))
    }
}

impl Sub for Millis {
    type Output = Duration;
    fn sub(self, rhs: Millis) -> Duration {
        self.since(rhs)
    }
}
