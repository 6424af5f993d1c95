//! What snapshots do not say by themselves: rates, totals that never fall, histories of changes.
//!
//! A snapshot is one moment; the ledger remembers just enough of the moments before it. Every
//! memory here has a named bound. Pure: time arrives with each call.

use std::collections::VecDeque;
use std::time::Duration;

use crate::batch::{SourceKey, TopicName};
use crate::shard::snapshot::{CaptureSnapshot, Condition, FeedSnapshot, Status, StreamCounters};
use crate::time::{Millis, Now};

/// Rates are taken over this much time.
const RATE_WINDOW: Duration = Duration::from_secs(10);
/// Snapshots closer together than this add no sample, which bounds the samples of a window.
const SAMPLE_SPACING: Duration = Duration::from_millis(200);
/// The longest loop turn is reported over this much time, longer than a usual scrape interval.
const PEAK_WINDOW: Duration = Duration::from_secs(60);
/// Peaks kept per shard; closer ones are merged.
const MAX_PEAKS: usize = 60;

/// A feed's name, stable across restarts of the feed within the process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct FeedKey {
    source: SourceKey,
    upstream: TopicName,
    downstream: TopicName,
    partition: u32,
}

impl FeedKey {
    pub(super) fn of(feed: &FeedSnapshot) -> FeedKey {
        FeedKey {
            source: feed.source.clone(),
            upstream: feed.upstream.clone(),
            downstream: feed.downstream.clone(),
            partition: feed.partition,
        }
    }
}

/// Counters of a source, summed over every feed it ever had in this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Messages acked by the destination.
    pub messages: u64,
    /// Bytes of those.
    pub bytes: u64,
    /// Failed operations.
    pub errors: u64,
    /// Histories that ended.
    pub resets: u64,
    /// Gap records.
    pub gaps: u64,
    /// Offsets in those gaps.
    pub gap_messages: u64,
    /// Sends that were acked, of mirrors.
    pub sends: u64,
    /// Upstream records in those sends.
    pub sent_records: u64,
}

impl Totals {
    pub(super) fn of(feed: &FeedSnapshot) -> Totals {
        let c = feed.counters;
        Totals {
            messages: c.messages,
            bytes: c.bytes,
            errors: c.errors,
            resets: c.resets,
            gaps: c.gaps,
            gap_messages: c.gap_messages,
            sends: feed.sends,
            sent_records: feed.sent_records,
        }
    }

    /// Nobody knows how many changes the gap of a capture held.
    pub(super) fn of_capture(capture: &CaptureSnapshot) -> Totals {
        let c = capture.counters;
        Totals {
            messages: c.messages,
            bytes: c.bytes,
            errors: c.errors,
            resets: c.resets,
            gaps: c.gaps,
            gap_messages: 0,
            sends: 0,
            sent_records: 0,
        }
    }

    fn zip(self, other: Totals, f: impl Fn(u64, u64) -> u64) -> Totals {
        Totals {
            messages: f(self.messages, other.messages),
            bytes: f(self.bytes, other.bytes),
            errors: f(self.errors, other.errors),
            resets: f(self.resets, other.resets),
            gaps: f(self.gaps, other.gaps),
            gap_messages: f(self.gap_messages, other.gap_messages),
            sends: f(self.sends, other.sends),
            sent_records: f(self.sent_records, other.sent_records),
        }
    }

    /// Adds what `seen` has beyond `high` and raises `high`; a counter that fell adds nothing.
    pub(super) fn grow(&mut self, high: &mut Totals, seen: Totals) {
        let news = seen.zip(*high, u64::saturating_sub);
        *self = self.zip(news, u64::saturating_add);
        *high = high.zip(seen, u64::max);
    }
}

/// Counters of a capture's stream, which begin anew with some sessions, summed over all of them.
#[derive(Debug, Default)]
pub(super) struct StreamMemory {
    total: StreamCounters,
    last: StreamCounters,
}

impl StreamMemory {
    /// Adds what is new in `seen` and returns the sums.
    pub(super) fn note(&mut self, seen: StreamCounters) -> StreamCounters {
        let last = std::mem::replace(&mut self.last, seen);
        let news = |seen: u64, last: u64| if seen < last { seen } else { seen - last };
        let t = self.total;
        self.total = StreamCounters {
            transactions: t.transactions + news(seen.transactions, last.transactions),
            repeated_transactions: t.repeated_transactions
                + news(seen.repeated_transactions, last.repeated_transactions),
            repeated_rows: t.repeated_rows + news(seen.repeated_rows, last.repeated_rows),
            filtered_rows: t.filtered_rows + news(seen.filtered_rows, last.filtered_rows),
            logical_messages: t.logical_messages
                + news(seen.logical_messages, last.logical_messages),
        };
        self.total
    }
}

/// Since when the oldest position of a capture has been the oldest.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    /// The position, and the messages acked by then: a transaction of many batches has one end.
    seen: Option<(u64, u64)>,
    since: Now,
}

impl Waiting {
    pub(super) fn note(&mut self, now: Now, capture: &CaptureSnapshot) -> Option<Now> {
        let seen = capture.oldest_pending.map(|lsn| (lsn, capture.counters.messages));
        if seen != self.seen {
            self.seen = seen;
            self.since = now;
        }
        seen.map(|_| self.since)
    }
}

/// Messages and bytes per second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rates {
    /// Messages acked per second.
    pub messages_per_second: f64,
    /// Bytes acked per second.
    pub bytes_per_second: f64,
}

/// Samples of one feed over the rate window.
#[derive(Debug, Default)]
pub(super) struct RateWindow {
    samples: VecDeque<(Millis, u64, u64)>,
}

impl RateWindow {
    /// Takes a sample and returns the rates between the oldest one of the window and now.
    pub(super) fn sample(&mut self, now: Millis, messages: u64, bytes: u64) -> Rates {
        // A feed that was away for a whole window begins anew: the time away is no rate.
        if self.samples.back().is_some_and(|last| now.since(last.0) > RATE_WINDOW) {
            self.samples.clear();
        }
        let spaced = self.samples.back().is_none_or(|last| now.since(last.0) >= SAMPLE_SPACING);
        if spaced {
            self.samples.push_back((now, messages, bytes));
        }
        // The oldest sample kept is the youngest that lies a full window back.
        while self.samples.get(1).is_some_and(|next| now.since(next.0) >= RATE_WINDOW) {
            self.samples.pop_front();
        }
        let Some(&(at, old_messages, old_bytes)) = self.samples.front() else {
            return Rates::default();
        };
        let seconds = now.since(at).as_secs_f64();
        if seconds <= 0.0 {
            return Rates::default();
        }
        Rates {
            messages_per_second: messages.saturating_sub(old_messages) as f64 / seconds,
            bytes_per_second: bytes.saturating_sub(old_bytes) as f64 / seconds,
        }
    }
}

/// One change of status or reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Status after the change.
    pub status: Status,
    /// Reason after the change.
    pub reason: &'static str,
    /// When, microseconds since the Unix epoch.
    pub since: u64,
}

/// The latest changes, oldest first, at most `limit`.
#[derive(Debug)]
pub(super) struct History {
    limit: usize,
    changes: VecDeque<Change>,
}

impl History {
    pub(super) fn new(limit: usize) -> History {
        History { limit, changes: VecDeque::new() }
    }

    /// Notes the condition if it is not the one noted last.
    pub(super) fn note(&mut self, condition: &Condition) {
        let Condition { status, reason, since, .. } = *condition;
        let known = self.changes.back().is_some_and(|last| {
            last.status == status && last.reason == reason && last.since == since
        });
        if !known {
            self.changes.push_back(Change { status, reason, since });
        }
        while self.changes.len() > self.limit {
            self.changes.pop_front();
        }
    }

    pub(super) fn last(&self) -> Option<&Change> {
        self.changes.back()
    }

    pub(super) fn to_vec(&self) -> Vec<Change> {
        self.changes.iter().cloned().collect()
    }
}

/// The largest of the values seen within the peak window.
#[derive(Debug, Default)]
pub(super) struct Peak {
    seen: VecDeque<(Millis, u64)>,
}

impl Peak {
    pub(super) fn note(&mut self, now: Millis, value: u64) -> u64 {
        // Only a value that nothing younger exceeds can still become the answer.
        while self.seen.back().is_some_and(|last| last.1 <= value) {
            self.seen.pop_back();
        }
        self.seen.push_back((now, value));
        let expired = |first: &(Millis, u64)| now.since(first.0) > PEAK_WINDOW;
        while self.seen.front().is_some_and(expired) || self.seen.len() > MAX_PEAKS {
            self.seen.pop_front();
        }
        self.seen.front().map_or(0, |first| first.1)
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{at, capture, condition};
    use super::*;

    #[test]
    fn rates_span_the_window_and_then_forget() {
        let mut window = RateWindow::default();
        assert_eq!(window.sample(Millis(0), 500, 5_000), Rates::default());
        let mut last = Rates::default();
        for step in 1..=60_u64 {
            last = window.sample(Millis(step * 500), 500 + step * 100, 5_000 + step * 1_000);
        }
        assert_eq!(last, Rates { messages_per_second: 200.0, bytes_per_second: 2_000.0 });
        for step in 61..=81_u64 {
            last = window.sample(Millis(step * 500), 6_500, 65_000);
        }
        assert_eq!(last, Rates::default(), "an idle window has no rate");
    }

    #[test]
    fn rate_samples_are_bounded_however_often_they_come() {
        let mut window = RateWindow::default();
        for millis in 0..60_000 {
            window.sample(Millis(millis), millis, millis);
        }
        assert!(window.samples.len() <= 52, "{} samples", window.samples.len());
        let rates = window.sample(Millis(60_000), 60_000, 60_000);
        assert!((rates.messages_per_second - 1_000.0).abs() < 1.0, "{rates:?}");
    }

    #[test]
    fn a_counter_that_falls_is_no_negative_rate() {
        let mut window = RateWindow::default();
        window.sample(Millis(0), 100, 100);
        assert_eq!(window.sample(Millis(1_000), 40, 40), Rates::default());
    }

    #[test]
    fn totals_never_fall_and_count_nothing_twice() {
        let (mut total, mut high) = (Totals::default(), Totals::default());
        let seen = |messages| Totals { messages, ..Totals::default() };
        for (value, expected) in [(10, 10), (4, 10), (10, 10), (12, 12)] {
            total.grow(&mut high, seen(value));
            assert_eq!(total.messages, expected);
        }
    }

    #[test]
    fn a_stream_that_counts_from_zero_again_adds_to_what_was() {
        let mut memory = StreamMemory::default();
        let seen = |filtered_rows| StreamCounters { filtered_rows, ..StreamCounters::default() };
        for (value, expected) in [(10, 10), (10, 10), (15, 15), (0, 15), (4, 19), (5, 20)] {
            assert_eq!(memory.note(seen(value)).filtered_rows, expected, "after {value}");
        }
    }

    #[test]
    fn a_position_waits_since_it_became_the_oldest_one() {
        let mut waiting = Waiting::default();
        let mut since = Vec::new();
        for (second, oldest, messages) in [
            (1, None, 0),
            (2, Some(100), 0),
            (4, Some(100), 0),
            (5, Some(100), 7),
            (6, Some(100), 7),
            (8, Some(200), 7),
            (9, None, 9),
            (11, Some(200), 9),
        ] {
            let mut capture = capture("shop", condition(Status::Running, "", second));
            capture.oldest_pending = oldest;
            capture.counters.messages = messages;
            let noted = waiting.note(at(second), &capture);
            since.push(noted.map(|since| since.mono.0 / 1_000));
        }
        let expected = [None, Some(2), Some(2), Some(5), Some(5), Some(8), None, Some(11)];
        assert_eq!(since, expected);
    }

    #[test]
    fn history_keeps_the_latest_changes_only() {
        let mut history = History::new(3);
        let condition = |since| Condition {
            status: if since % 2 == 0 { Status::Running } else { Status::Degraded },
            reason: "",
            detail: String::new(),
            advice: "",
            since,
        };
        for since in [1, 1, 2, 3, 4, 4, 5] {
            history.note(&condition(since));
        }
        let kept: Vec<u64> = history.to_vec().iter().map(|change| change.since).collect();
        assert_eq!(kept, [3, 4, 5]);
    }

    #[test]
    fn a_peak_outlives_smaller_values_until_its_window_ends() {
        let mut peak = Peak::default();
        assert_eq!(peak.note(Millis(0), 900), 900);
        assert_eq!(peak.note(Millis(30_000), 5), 900);
        assert_eq!(peak.note(Millis(60_001), 3), 5);
        let mut falling = Peak::default();
        for step in 0..10_000_u64 {
            falling.note(Millis(step), 10_000 - step);
        }
        assert!(falling.seen.len() <= MAX_PEAKS);
    }
}
