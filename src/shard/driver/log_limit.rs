//! A bound on log lines about one problem: a peer that misbehaves all day must not fill a disk.

use std::time::{Duration, Instant};

/// Lines about one problem within [`WINDOW`].
pub const LINES: u32 = 10;
/// See [`LINES`].
pub const WINDOW: Duration = Duration::from_secs(60);

/// Counts the lines of one problem.
#[derive(Debug, Default)]
pub struct LogLimit {
    window: Option<Instant>,
    lines: u32,
    suppressed: u64,
}

impl LogLimit {
    /// Whether a line may be written now; if so, how many were left out since the last one.
    pub fn allow(&mut self, now: Instant) -> Option<u64> {
        if self.window.is_none_or(|start| now.duration_since(start) >= WINDOW) {
            self.window = Some(now);
            self.lines = 0;
        }
        if self.lines == LINES {
            self.suppressed += 1;
            return None;
        }
        self.lines += 1;
        Some(std::mem::take(&mut self.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_lines_a_minute_and_the_rest_is_counted() {
        let mut limit = LogLimit::default();
        let start = Instant::now();
        let written = (0..25).filter(|_| limit.allow(start).is_some()).count();
        assert_eq!(written, 10);
        assert_eq!(limit.allow(start + WINDOW), Some(15));
        assert_eq!(limit.allow(start + WINDOW), Some(0));
    }
}
