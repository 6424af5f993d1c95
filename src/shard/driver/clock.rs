//! The two clocks of a thread, read before a step and nowhere else.

use std::time::{Duration, Instant, SystemTime};

use crate::time::{Millis, Now, UnixMicros};

/// Counts from its making.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
}

impl Clock {
    /// Starts at zero.
    pub fn start() -> Clock {
        Clock { start: Instant::now() }
    }

    /// Both clocks now.
    pub fn now(&self) -> Now {
        let mono = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        Now { mono: Millis(mono), wall: wall() }
    }

    /// How long until `at`, rounded up; zero if it has passed.
    pub fn until(&self, at: Millis) -> Duration {
        Duration::from_millis(at.0).saturating_sub(self.start.elapsed())
    }
}

/// The wall clock.
pub fn wall() -> UnixMicros {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    UnixMicros(u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
}
