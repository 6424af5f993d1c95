//! What is saved of a capture: how far a replication slot was copied, and of which database.
//!
//! An LSN is a place in the write-ahead log of one (system identifier, timeline); both are kept,
//! because the same number in another log means nothing. LSNs are plain `u64` here.

use super::MAX_GAPS;
use super::format::Fault;

/// One replication slot and where its copy stands.
#[derive(Clone, Debug, PartialEq)]
pub struct CaptureState {
    /// Slot name, the key of the entry.
    pub slot: String,
    /// Database the slot belongs to.
    pub database: String,
    /// Output plugin of the slot.
    pub decoder: String,
    /// Publication, or several separated by commas; empty for decoders without.
    pub publication: String,
    /// Grows when the position may move back: a reset slot, an accepted gap.
    pub epoch: u64,
    /// Grows with every change of this entry within an epoch.
    pub sequence: u64,
    /// System identifier of the database cluster.
    pub system_id: u64,
    /// Timeline on which `end_lsn` was read.
    pub timeline: u32,
    /// End of the last complete transaction of which every row is acked (P2).
    pub end_lsn: u64,
    /// How much of the transaction behind it is acked already.
    pub unfinished: Option<UnfinishedState>,
    /// True only in the last save of an orderly stop: nothing was in flight.
    pub clean_stop: bool,
    /// Counters since the first start.
    pub counters: CaptureCounters,
    /// Latest gap records, oldest first, at most [`MAX_GAPS`].
    pub gaps: Vec<LsnGap>,
    /// When a batch was last abandoned (C5), microseconds since the Unix epoch; 0 for never.
    pub last_abandon_at: u64,
    /// Routing columns that tables had, at most [`MAX_ROUTED`] tables: one that is gone later
    /// stops the capture, also after a restart (P6).
    pub routed: Vec<RoutedTable>,
}

/// A table and the columns of it that rows were routed by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoutedTable {
    /// Its schema.
    pub schema: String,
    /// Its name.
    pub name: String,
    /// Names of the columns, ascending.
    pub columns: Vec<String>,
}

/// The rows of the next transaction that are done. It only saves work: if anything differs, the
/// transaction repeats whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnfinishedState {
    /// LSN of its commit record.
    pub final_lsn: u64,
    /// Its transaction id.
    pub xid: u32,
    /// Rows that are done, from the first on.
    pub ordinal: u64,
    /// Of all that decides how rows are counted.
    pub config_hash: u64,
}

/// Counters that survive restarts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CaptureCounters {
    /// Messages acked by their destinations.
    pub messages: u64,
    /// Payload and header bytes of those.
    pub bytes: u64,
    /// Failed operations of any kind.
    pub errors: u64,
    /// Positions given up: new slots after a reset, accepted gaps.
    pub resets: u64,
    /// Transactions that passed whole.
    pub transactions: u64,
    /// Gap records ever made.
    pub gaps: u64,
}

/// Write-ahead log that will never be captured: from `first` up to, not including, `last`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LsnGap {
    /// Where delivery ended.
    pub first: u64,
    /// Where it goes on.
    pub last: u64,
    /// When it was found, microseconds since the Unix epoch.
    pub found_at: u64,
    /// Why, in a sentence.
    pub why: String,
}

/// Tables whose routing columns are kept.
pub const MAX_ROUTED: usize = 4096;
/// Routing columns of one table: topic, stream and partition key, and those of other settings.
pub const MAX_ROUTED_COLUMNS: usize = 16;

/// Longest reason of a gap, in bytes.
pub const MAX_WHY: usize = 255;

impl CaptureState {
    /// Order in which entries of one slot found in several files win.
    pub fn version(&self) -> (u64, u64) {
        (self.epoch, self.sequence)
    }

    /// Drops an unfinished transaction that contradicts the position: it only saves work, and a
    /// state that contradicts itself cannot be saved.
    #[must_use]
    pub fn consistent(mut self) -> CaptureState {
        let end_lsn = self.end_lsn;
        self.unfinished.take_if(|next| next.final_lsn < end_lsn || next.ordinal == 0);
        self
    }

    /// Remembers a gap and counts it; the oldest record makes room. An empty one holds its first
    /// byte.
    pub fn record_gap(&mut self, mut gap: LsnGap) {
        gap.first = gap.first.min(u64::MAX - 1);
        gap.last = gap.last.max(gap.first + 1);
        let end = (0..=MAX_WHY).rev().find(|end| gap.why.is_char_boundary(*end)).unwrap_or(0);
        gap.why.truncate(end);
        self.gaps.push(gap);
        self.gaps.drain(..self.gaps.len().saturating_sub(MAX_GAPS));
        self.counters.gaps = self.counters.gaps.saturating_add(1);
    }
}

/// What the archive's types cannot say.
pub(super) fn check(capture: &CaptureState) -> Result<(), Fault> {
    let bad = |seen: String, expected| {
        Err(Fault::Inconsistent { place: format!("slot {:?}", capture.slot), seen, expected })
    };
    let in_slot_name = |b: u8| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'_');
    if !(1..=63).contains(&capture.slot.len()) || !capture.slot.bytes().all(in_slot_name) {
        return bad("that name".to_owned(), "1 to 63 of a-z, 0-9, _");
    }
    for name in [&capture.database, &capture.decoder] {
        if name.is_empty() || name.len() > 255 || name.contains('\0') {
            return bad(format!("name {name:?}"), "1 to 255 bytes without NUL");
        }
    }
    if capture.timeline == 0 {
        return bad("timeline 0".to_owned(), "a timeline from 1 on");
    }
    if let Some(next) = capture.unfinished {
        if next.final_lsn < capture.end_lsn {
            let seen = format!("commit at {:#x}, position {:#x}", next.final_lsn, capture.end_lsn);
            return bad(seen, "an unfinished transaction at or behind the position");
        }
        if next.ordinal == 0 {
            return bad("no row done".to_owned(), "an unfinished transaction of 1 row or more");
        }
    }
    if capture.gaps.len() > MAX_GAPS {
        return bad(format!("{} gap records", capture.gaps.len()), "at most 256");
    }
    if let Some(gap) = capture.gaps.iter().find(|gap| gap.first >= gap.last) {
        return bad(format!("gap {:#x} to {:#x}", gap.first, gap.last), "first < last");
    }
    if let Some(gap) = capture.gaps.iter().find(|gap| gap.why.len() > MAX_WHY) {
        return bad(format!("a reason of {} bytes", gap.why.len()), "at most 255 bytes");
    }
    if capture.routed.len() > MAX_ROUTED {
        return bad(format!("{} routed tables", capture.routed.len()), "at most 4096");
    }
    if let Some(table) = capture.routed.iter().find(|table| {
        !(1..=MAX_ROUTED_COLUMNS).contains(&table.columns.len())
            || !table.columns.is_sorted_by(|a, b| a < b)
    }) {
        let seen = format!("columns {:?} of table {:?}", table.columns, table.name);
        return bad(seen, "1 to 16 different ones in order");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::samples::full_capture;
    use super::*;

    #[test]
    fn endless_gaps_keep_the_latest_records_and_count_all() {
        let mut capture = full_capture();
        let before = capture.counters.gaps;
        for n in 0..MAX_GAPS as u64 + 10 {
            let why = "é".repeat(200);
            capture.record_gap(LsnGap { first: n, last: n + 1, found_at: n, why });
        }
        assert_eq!(capture.gaps.len(), MAX_GAPS);
        assert_eq!(capture.gaps[0].first, 10);
        assert_eq!(capture.gaps[0].why, "é".repeat(127), "cut between characters");
        assert_eq!(capture.counters.gaps, before + MAX_GAPS as u64 + 10);
        assert_eq!(check(&capture), Ok(()));
    }

    #[test]
    fn whatever_position_and_gap_come_together_can_be_saved() {
        let unfinished = full_capture().unfinished.expect("one");
        for end_lsn in [0, unfinished.final_lsn, unfinished.final_lsn + 1, u64::MAX] {
            for ordinal in [0, 1] {
                let unfinished = Some(UnfinishedState { ordinal, ..unfinished });
                let mut capture = CaptureState { end_lsn, unfinished, ..full_capture() };
                for (first, last) in [(end_lsn, end_lsn), (end_lsn, 0), (0, end_lsn)] {
                    capture.record_gap(LsnGap { first, last, found_at: 1, why: "w".into() });
                }
                let capture = capture.consistent();
                assert_eq!(check(&capture), Ok(()), "{end_lsn} {ordinal}");
                let kept = ordinal == 1 && end_lsn <= unfinished.map_or(0, |u| u.final_lsn);
                assert_eq!(capture.unfinished, unfinished.filter(|_| kept));
            }
        }
    }

    #[test]
    fn values_that_contradict_each_other_are_refused() {
        type Change = fn(&mut CaptureState);
        let changes: [(&str, Change); 14] = [
            ("no slot", |c| c.slot = String::new()),
            ("long slot", |c| c.slot = "s".repeat(64)),
            ("upper case slot", |c| c.slot = "Slot".into()),
            ("no database", |c| c.database = String::new()),
            ("NUL in the decoder", |c| c.decoder = "a\0b".into()),
            ("no timeline", |c| c.timeline = 0),
            ("unfinished before the position", |c| c.end_lsn = u64::MAX),
            ("unfinished of nothing", |c| {
                c.unfinished = c.unfinished.map(|u| UnfinishedState { ordinal: 0, ..u });
            }),
            ("empty gap", |c| c.gaps[0].last = c.gaps[0].first),
            ("too many gaps", |c| c.gaps = vec![c.gaps[0].clone(); MAX_GAPS + 1]),
            ("endless reason", |c| c.gaps[0].why = "x".repeat(MAX_WHY + 1)),
            ("too many tables", |c| c.routed = vec![c.routed[0].clone(); MAX_ROUTED + 1]),
            ("a table without columns", |c| c.routed[0].columns.clear()),
            ("a column twice", |c| c.routed[0].columns = vec!["a".into(), "a".into()]),
        ];
        assert_eq!(check(&full_capture()), Ok(()));
        for (name, change) in changes {
            let mut capture = full_capture();
            change(&mut capture);
            assert!(matches!(check(&capture), Err(Fault::Inconsistent { .. })), "{name}");
        }
    }
}
