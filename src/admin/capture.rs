//! What `/status` shows of a capture. Log positions are text as Postgres writes them,
//! `16/B374D848`.

use std::collections::BTreeMap;

use serde::Serialize;

use super::board::CaptureView;
use super::report::{ConditionReport, GAPS_SHOWN, TopicReport, rfc3339, tenths};
use crate::pg_wire::Lsn;
use crate::shard::snapshot::{CaptureSnapshot, LsnGap, Rejection, StreamCounters, Watch};

#[derive(Clone, Debug, Serialize)]
pub(super) struct CaptureReport {
    shard: u16,
    slot: String,
    database: String,
    #[serde(flatten)]
    condition: ConditionReport,
    position: String,
    durable_position: String,
    received: String,
    confirmed: Option<String>,
    upstream_end: String,
    lag_bytes: u64,
    pending: PendingReport,
    wal: Option<WalReport>,
    messages: u64,
    bytes: u64,
    messages_per_second: f64,
    bytes_per_second: f64,
    transactions: u64,
    errors: u64,
    failures: u32,
    last_error: String,
    gaps: u64,
    recent_gaps: Vec<LsnGapReport>,
    resets: u64,
    epoch: u64,
    last_abandon_at: Option<String>,
    stream: StreamReport,
    routing: RoutingReport,
}

/// What is not acked yet.
#[derive(Clone, Debug, Serialize)]
struct PendingReport {
    oldest: Option<String>,
    since: Option<String>,
    held_by: Option<TopicReport>,
    batches: usize,
    bytes: u64,
}

/// What the slot keeps from being removed.
#[derive(Clone, Debug, Serialize)]
struct WalReport {
    retained_bytes: u64,
    unconfirmed_bytes: u64,
    wal_status: String,
    safe_wal_size: Option<i64>,
    invalid: Option<String>,
}

#[derive(Clone, Debug, Serialize)]
struct LsnGapReport {
    first: String,
    last: String,
    bytes: u64,
    found_at: String,
    why: String,
}

/// What passed since the start, and what of it became no message.
#[derive(Clone, Debug, Serialize)]
struct StreamReport {
    transactions: u64,
    repeated_transactions: u64,
    repeated_rows: u64,
    filtered_rows: u64,
    logical_messages: u64,
    without_payload: u64,
    odd_values: u64,
}

/// Messages since the start by what became of them.
#[derive(Clone, Debug, Serialize)]
struct RoutingReport {
    destinations: u32,
    circuits_open: u32,
    routed: u64,
    rejected: BTreeMap<&'static str, u64>,
    unmatched: BTreeMap<&'static str, u64>,
    lost_tails: u64,
}

impl From<&CaptureView> for CaptureReport {
    fn from(view: &CaptureView) -> CaptureReport {
        let shown = &view.snapshot;
        let older = shown.gaps.len().saturating_sub(GAPS_SHOWN);
        CaptureReport {
            shard: view.shard,
            slot: shown.slot.to_string(),
            database: shown.database.to_string(),
            condition: (&shown.condition).into(),
            position: lsn(shown.position),
            durable_position: lsn(shown.durable_position),
            received: lsn(shown.received),
            confirmed: (shown.confirmed != 0).then(|| lsn(shown.confirmed)),
            upstream_end: lsn(shown.upstream_end),
            lag_bytes: shown.lag_bytes,
            pending: PendingReport {
                oldest: shown.oldest_pending.map(lsn),
                since: view.waiting_since.map(|since| since.wall.to_string()),
                held_by: shown.held_by.as_ref().map(TopicReport::from),
                batches: shown.pending_batches,
                bytes: shown.pending_bytes,
            },
            wal: shown.wal.as_ref().map(WalReport::from),
            messages: shown.counters.messages,
            bytes: shown.counters.bytes,
            messages_per_second: tenths(view.rates.messages_per_second),
            bytes_per_second: tenths(view.rates.bytes_per_second),
            transactions: shown.counters.transactions,
            errors: shown.counters.errors,
            failures: shown.failures,
            last_error: shown.last_error.to_string(),
            gaps: shown.counters.gaps,
            recent_gaps: shown.gaps.iter().skip(older).map(LsnGapReport::from).collect(),
            resets: shown.counters.resets,
            epoch: shown.epoch,
            last_abandon_at: (shown.last_abandon_at != 0).then(|| rfc3339(shown.last_abandon_at)),
            stream: stream_report(shown),
            routing: routing_report(shown),
        }
    }
}

impl From<&Watch> for WalReport {
    fn from(wal: &Watch) -> WalReport {
        WalReport {
            retained_bytes: wal.retained,
            unconfirmed_bytes: wal.unconfirmed,
            wal_status: wal.wal_status.clone(),
            safe_wal_size: wal.safe_wal_size,
            invalid: wal.invalid.clone(),
        }
    }
}

impl From<&LsnGap> for LsnGapReport {
    fn from(gap: &LsnGap) -> LsnGapReport {
        LsnGapReport {
            first: lsn(gap.first),
            last: lsn(gap.last),
            bytes: Lsn(gap.last).bytes_since(Lsn(gap.first)),
            found_at: rfc3339(gap.found_at),
            why: gap.why.clone(),
        }
    }
}

fn stream_report(shown: &CaptureSnapshot) -> StreamReport {
    let StreamCounters {
        transactions,
        repeated_transactions,
        repeated_rows,
        filtered_rows,
        logical_messages,
    } = shown.stream;
    StreamReport {
        transactions,
        repeated_transactions,
        repeated_rows,
        filtered_rows,
        logical_messages,
        without_payload: shown.without_payload,
        odd_values: shown.odd_values,
    }
}

fn routing_report(shown: &CaptureSnapshot) -> RoutingReport {
    let outlet = &shown.outlet;
    let rejected = Rejection::ALL.iter().zip(outlet.rejected.rejected);
    RoutingReport {
        destinations: outlet.destinations,
        circuits_open: outlet.circuits_open,
        routed: outlet.routed,
        rejected: rejected.map(|(reason, count)| (reason.as_str(), count)).collect(),
        unmatched: unmatched(shown).into(),
        lost_tails: outlet.lost_tails,
    }
}

/// Messages without a destination of their own, by what was done with them (R6).
pub(super) fn unmatched(shown: &CaptureSnapshot) -> [(&'static str, u64); 3] {
    let counters = &shown.outlet.rejected;
    [
        ("default", counters.unmatched_default),
        ("drop", counters.unmatched_drop),
        ("error", counters.unmatched_error),
    ]
}

fn lsn(position: u64) -> String {
    Lsn(position).to_string()
}
