//! How a capture is, for status and metrics (C6, T1).

use super::{Capture, Stage};
use crate::pg_wire::Lsn;
use crate::shard::pipeline::feed::condition;
use crate::shard::reason::{self, Reason};
use crate::shard::snapshot::{CaptureSnapshot, Condition, Status};
use crate::time::Now;

impl Capture {
    /// The oldest position that waits for an ack: the end of what the oldest batch belongs to.
    pub(super) fn oldest_pending(&self) -> Option<Lsn> {
        let oldest = self.progress.oldest()?;
        Some(oldest.unfinished.map_or(oldest.end_lsn, |unfinished| unfinished.final_lsn))
    }

    /// For status.
    pub fn snapshot(&self, now: Now) -> CaptureSnapshot {
        CaptureSnapshot {
            id: self.spec.id,
            source: self.spec.plan.key.clone(),
            slot: self.entry.slot.as_str().into(),
            database: self.entry.database.as_str().into(),
            condition: self.shown_condition(now),
            position: self.entry.end_lsn,
            durable_position: self.progress.durable.end_lsn.0,
            received: self.progress.ended.0,
            confirmed: self.progress.told().0,
            upstream_end: self.progress.wal_end.0,
            lag_bytes: self.progress.wal_end.0.saturating_sub(self.entry.end_lsn),
            oldest_pending: self.oldest_pending().map(|lsn| lsn.0),
            held_by: self.sink.outlet.pinned_by().cloned(),
            pending_batches: self.progress.pending(),
            pending_bytes: self.sink.outlet.pending_bytes() as u64,
            wal: self.sessions.wal.clone(),
            counters: self.entry.counters,
            stream: self.intake.stream.as_ref().map(|stream| stream.counters()).unwrap_or_default(),
            without_payload: self.sink.without_payload,
            odd_values: self.sink.odd_values,
            outlet: self.sink.outlet.counters(),
            destinations: self.sink.outlet.destinations(),
            gaps: self.entry.gaps.clone(),
            last_error: self.last_error.as_str().into(),
            failures: self.progress.failures,
            last_abandon_at: self.entry.last_abandon_at,
            epoch: self.entry.epoch,
        }
    }

    fn shown_condition(&self, now: Now) -> Condition {
        if self.condition.status != Status::Running || !matches!(self.stage, Stage::Streaming) {
            return self.condition.clone();
        }
        let waits = !self.sink.outlet.is_empty();
        let topic = self.sink.outlet.pinned_by().map(ToString::to_string).unwrap_or_default();
        if let Some(cause) = self.unreachable.as_ref().filter(|_| waits) {
            let detail = format!("{cause}; {topic} is waited for");
            return self.since_moved(reason::DESTINATION_UNREACHABLE, detail, now);
        }
        if let Some(trouble) = self.sink.outlet.troubles(now.mono).first() {
            let reason = reason::of_destination(trouble.reason);
            let detail = format!("{}: {} {}", trouble.topic, trouble.reason, trouble.detail);
            return self.since_moved(reason, detail, now);
        }
        let quiet = now.mono.since(self.progress.moved_at);
        let failures = self.progress.failures;
        if waits && failures >= self.spec.plan.commit_failure_threshold {
            let error = &self.last_error;
            let detail =
                format!("{failures} tries in a row moved nothing, {topic} is waited for: {error}");
            return self.since_moved(reason::STALLED, detail, now);
        }
        if waits && quiet > self.spec.plan.degraded_after {
            let seconds = quiet.as_secs();
            let detail = format!("nothing was acked for {seconds} s, {topic} is waited for");
            return self.since_moved(reason::STALLED, detail, now);
        }
        self.condition.clone()
    }

    fn since_moved(&self, reason: Reason, detail: String, now: Now) -> Condition {
        let quiet = now.mono.since(self.progress.moved_at).as_micros();
        let since = now.wall.0.saturating_sub(u64::try_from(quiet).unwrap_or(0));
        Condition { since, ..condition(reason, detail, now) }
    }
}
