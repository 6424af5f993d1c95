//! Time as decisions see it: it arrives with each event, nothing here reads a clock.

use std::fmt;
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

/// RFC 3339 in UTC with microseconds, the form of every timestamp that people or scripts read.
impl fmt::Display for UnixMicros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, micros) = (self.0 / 1_000_000, self.0 % 1_000_000);
        let (days, of_day) = (seconds / 86_400, seconds % 86_400);
        let (year, month, day) = civil_date(days);
        let (hour, minute, second) = (of_day / 3_600, of_day / 60 % 60, of_day % 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z")
    }
}

/// Proleptic Gregorian date of a day counted from 1970-01-01. The year is taken to begin in
/// March, so that the leap day is its last one.
fn civil_date(days: u64) -> (u64, u64, u64) {
    const DAYS_PER_ERA: u64 = 146_097;
    const DAYS_BEFORE_1970: u64 = 719_468;
    let shifted = days + DAYS_BEFORE_1970;
    let (era, day_of_era) = (shifted / DAYS_PER_ERA, shifted % DAYS_PER_ERA);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_read_as_rfc_3339() {
        let cases = [
            (0, "1970-01-01T00:00:00.000000Z"),
            (951_782_400_000_000, "2000-02-29T00:00:00.000000Z"),
            (1_078_012_799_999_999, "2004-02-28T23:59:59.999999Z"),
            (1_709_251_199_000_001, "2024-02-29T23:59:59.000001Z"),
            (1_735_689_600_000_000, "2025-01-01T00:00:00.000000Z"),
            (4_107_542_399_000_000, "2100-02-28T23:59:59.000000Z"),
            (4_107_542_400_000_000, "2100-03-01T00:00:00.000000Z"),
        ];
        for (micros, text) in cases {
            assert_eq!(UnixMicros(micros).to_string(), text);
        }
        // Far future dates must not overflow: a corrupt record is shown, not a crash.
        assert!(UnixMicros(u64::MAX).to_string().ends_with('Z'));
    }

    #[test]
    fn time_never_runs_negative() {
        assert_eq!(Millis(5).since(Millis(9)), Duration::ZERO);
        assert_eq!(Millis(9) - Millis(5), Duration::from_millis(4));
        assert_eq!(Millis(u64::MAX) + Duration::MAX, Millis(u64::MAX));
    }
}
