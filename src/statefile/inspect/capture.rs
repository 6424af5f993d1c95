//! Captures in the picture of several state files. LSNs are text as Postgres writes them, so
//! that a position can be held against `pg_replication_slots` by eye.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::statefile::{CaptureCounters, CaptureState, LsnGap, RoutedTable, SourceState};

/// The newest entry of every slot in the files of one source, in order of name. Ties as in
/// [`super::newest_feeds`].
pub fn newest_captures<'a>(files: impl IntoIterator<Item = &'a SourceState>) -> Vec<CaptureState> {
    winners(files).into_values().map(|(_, capture)| capture.clone()).collect()
}

pub(super) fn winners<'a>(
    files: impl IntoIterator<Item = &'a SourceState>,
) -> BTreeMap<&'a str, (&'a SourceState, &'a CaptureState)> {
    let mut newest: BTreeMap<&str, (&SourceState, &CaptureState)> = BTreeMap::new();
    for file in files {
        for capture in &file.captures {
            match newest.get(&*capture.slot) {
                Some((held_in, held)) if rank(held_in, held) >= rank(file, capture) => {}
                _ => {
                    newest.insert(&capture.slot, (file, capture));
                }
            }
        }
    }
    newest
}

fn rank(file: &SourceState, capture: &CaptureState) -> impl Ord + use<> {
    (capture.version(), !capture.clean_stop, file.saved_at, file.shard)
}

/// One replication slot.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CaptureReport {
    /// Slot name.
    pub slot: String,
    /// Database of the slot.
    pub database: String,
    /// Output plugin.
    pub decoder: String,
    /// Publications.
    pub publication: String,
    /// Shard whose file this entry is from.
    pub shard: u16,
    /// See [`CaptureState::epoch`].
    pub epoch: u64,
    /// See [`CaptureState::sequence`].
    pub sequence: u64,
    /// System identifier, in decimal as Postgres shows it: too large for a JSON number.
    pub system_id: String,
    /// Timeline of `position`.
    pub timeline: u32,
    /// End of the last complete transaction that is done.
    pub position: String,
    /// What is done of the transaction behind it, null for nothing.
    pub unfinished: Option<UnfinishedReport>,
    /// True if the capture was stopped with nothing in flight.
    pub clean_stop: bool,
    /// Since the first start.
    pub counters: CaptureCountersReport,
    /// Latest gap records, oldest first.
    pub gaps: Vec<LsnGapReport>,
    /// When a batch was last abandoned, null for never.
    pub last_abandon_at_us: Option<u64>,
    /// Tables with the columns that rows were routed by.
    pub routed: Vec<RoutedReport>,
}

/// A table and its routing columns.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RoutedReport {
    /// Its schema.
    pub schema: String,
    /// Its name.
    pub table: String,
    /// The columns.
    pub columns: Vec<String>,
}

/// A transaction that is done in part.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct UnfinishedReport {
    /// Where its commit record lies.
    pub final_lsn: String,
    /// Its id.
    pub xid: u32,
    /// Rows that are done.
    pub rows: u64,
}

/// [`CaptureCounters`].
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CaptureCountersReport {
    /// Messages acked.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Failed operations.
    pub errors: u64,
    /// Positions given up.
    pub resets: u64,
    /// Transactions that passed whole.
    pub transactions: u64,
    /// Gap records ever made.
    pub gaps: u64,
}

/// Write-ahead log that will never be captured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LsnGapReport {
    /// Where delivery ended.
    pub first: String,
    /// Where it goes on.
    pub last: String,
    /// Bytes of log between them.
    pub bytes: u64,
    /// Microseconds since the Unix epoch.
    pub found_at_us: u64,
    /// Why.
    pub why: String,
}

/// An LSN as Postgres writes it.
pub fn lsn_text(lsn: u64) -> String {
    format!("{:X}/{:X}", lsn >> 32, lsn & 0xffff_ffff)
}

pub(super) fn report(file: &SourceState, capture: &CaptureState) -> CaptureReport {
    let CaptureCounters { messages, bytes, errors, resets, transactions, gaps } = capture.counters;
    CaptureReport {
        slot: capture.slot.clone(),
        database: capture.database.clone(),
        decoder: capture.decoder.clone(),
        publication: capture.publication.clone(),
        shard: file.shard,
        epoch: capture.epoch,
        sequence: capture.sequence,
        system_id: capture.system_id.to_string(),
        timeline: capture.timeline,
        position: lsn_text(capture.end_lsn),
        unfinished: capture.unfinished.map(|next| UnfinishedReport {
            final_lsn: lsn_text(next.final_lsn),
            xid: next.xid,
            rows: next.ordinal,
        }),
        clean_stop: capture.clean_stop,
        counters: CaptureCountersReport { messages, bytes, errors, resets, transactions, gaps },
        gaps: capture.gaps.iter().map(gap_report).collect(),
        last_abandon_at_us: Some(capture.last_abandon_at).filter(|at| *at > 0),
        routed: capture.routed.iter().map(routed_report).collect(),
    }
}

fn routed_report(table: &RoutedTable) -> RoutedReport {
    RoutedReport {
        schema: table.schema.clone(),
        table: table.name.clone(),
        columns: table.columns.clone(),
    }
}

fn gap_report(gap: &LsnGap) -> LsnGapReport {
    LsnGapReport {
        first: lsn_text(gap.first),
        last: lsn_text(gap.last),
        bytes: gap.last.saturating_sub(gap.first),
        found_at_us: gap.found_at,
        why: gap.why.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::samples::{fresh_capture, full_capture, full_state};
    use super::*;

    fn on_shard(shard: u16, captures: Vec<CaptureState>) -> SourceState {
        SourceState { shard, captures, ..full_state() }
    }

    #[test]
    fn the_greatest_epoch_then_sequence_wins_whatever_the_order_of_files() {
        let entry =
            |epoch, sequence, end_lsn| CaptureState { epoch, sequence, end_lsn, ..full_capture() };
        let old = on_shard(0, vec![entry(1, 900, 50), fresh_capture()]);
        let new = on_shard(1, vec![entry(2, 3, 10)]);
        let newest = on_shard(2, vec![entry(2, 4, 11)]);
        let files = [&old, &new, &newest];
        for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            let winners = newest_captures(order.map(|n: usize| files[n]));
            assert_eq!(winners, [fresh_capture(), entry(2, 4, 11)]);
        }
    }

    #[test]
    fn of_equal_versions_the_one_without_a_clean_stop_wins() {
        let clean = on_shard(0, vec![full_capture()]);
        let dirty = on_shard(1, vec![CaptureState { clean_stop: false, ..full_capture() }]);
        assert!(!newest_captures([&clean, &dirty])[0].clean_stop);
        assert!(!newest_captures([&dirty, &clean])[0].clean_stop);
    }

    #[test]
    fn a_report_shows_lsns_as_postgres_does_and_ids_without_loss() {
        let state = on_shard(4, vec![]);
        let json = serde_json::to_value(report(&state, &full_capture())).unwrap();
        assert_eq!(json["position"], "16/B374D848");
        assert_eq!(json["system_id"], "7523190467211098765");
        assert_eq!(json["unfinished"]["final_lsn"], "16/B3750000");
        assert_eq!(json["unfinished"]["rows"], 123_456);
        assert_eq!(json["gaps"][0]["first"], "16/10");
        assert_eq!(json["gaps"][0]["bytes"], 0x410);
        assert_eq!(json["last_abandon_at_us"], 1_752_000_000_000_006_u64);
        assert_eq!(json["routed"][0]["columns"][1], "tenant");
        let json = serde_json::to_value(report(&state, &fresh_capture())).unwrap();
        assert_eq!(json["unfinished"], serde_json::Value::Null);
        assert_eq!(json["last_abandon_at_us"], serde_json::Value::Null);
    }
}
