//! How far a capture is (P2), and on which branch of history (P1).
//!
//! A position is the end of a complete transaction. A transaction is a repeat exactly when its
//! final LSN is below that; LSNs of rows are never compared, they are not ordered. The rows of the
//! next transaction that are done only save work: whoever doubts them repeats it whole.

use twox_hash::XxHash3_64;

use crate::pg_wire::Lsn;
use crate::pg_wire::replication::Fork;

/// Where a capture stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// End of the last complete transaction of which every row is done.
    pub end_lsn: Lsn,
    /// What is done of the one behind it.
    pub unfinished: Option<Unfinished>,
}

/// The rows of an incomplete transaction that are done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unfinished {
    /// LSN of its commit record.
    pub final_lsn: Lsn,
    /// Its id.
    pub xid: u32,
    /// How many of its rows are done, from the first on.
    pub ordinal: u64,
    /// [`config_hash`] under which they were counted.
    pub config_hash: u64,
}

impl Position {
    /// Nothing is done behind `end_lsn`.
    pub fn at(end_lsn: Lsn) -> Position {
        Position { end_lsn, unfinished: None }
    }

    /// No transaction ends between here and `end`: one that was to end there is counted no longer.
    pub fn skip_to(&mut self, end: Lsn) {
        self.end_lsn = self.end_lsn.max(end);
        let from = self.end_lsn;
        self.unfinished.take_if(|unfinished| unfinished.final_lsn < from);
    }

    /// Whether all of it is part of a log that ends at `end`, or is left there for another branch.
    pub fn lies_before(&self, end: Lsn) -> bool {
        self.end_lsn <= end && self.unfinished.is_none_or(|unfinished| unfinished.final_lsn < end)
    }

    /// Whether the transaction committed at `final_lsn` is done.
    pub fn is_repeat(&self, final_lsn: Lsn) -> bool {
        final_lsn < self.end_lsn
    }

    /// How many rows of that transaction are done, as counted under `config_hash`.
    pub fn rows_done(&self, final_lsn: Lsn, xid: u32, config_hash: u64) -> u64 {
        let same =
            |u: &Unfinished| (u.final_lsn, u.xid, u.config_hash) == (final_lsn, xid, config_hash);
        self.unfinished.filter(same).map_or(0, |unfinished| unfinished.ordinal)
    }
}

/// All that decides which rows a transaction has and in which order they are counted. Another
/// value of any of it makes counted rows worthless.
pub fn config_hash(
    slot: &str,
    publications: &[String],
    decoder: &str,
    options: &[(String, String)],
) -> u64 {
    let mut fields = Vec::with_capacity(256);
    let mut put = |text: &str| {
        fields.extend_from_slice(&(text.len() as u64).to_le_bytes());
        fields.extend_from_slice(text.as_bytes());
    };
    put(slot);
    put(decoder);
    put(&publications.len().to_string());
    publications.iter().for_each(|name| put(name));
    for (name, value) in options {
        put(name);
        put(value);
    }
    XxHash3_64::oneshot(&fields)
}

/// The branch of history a server is on: its timeline and where it left the earlier ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timelines {
    current: u32,
    /// Earlier timelines and where each ended, ascending.
    earlier: Vec<(u32, Lsn)>,
}

/// A history that contradicts itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "history of timeline {timeline}: saw a fork of timeline {fork} at {at}; expected earlier \
     timelines and positions, ascending"
)]
pub struct TimelineError {
    /// Whose history.
    pub timeline: u32,
    /// The timeline that forked.
    pub fork: u32,
    /// Where.
    pub at: Lsn,
}

impl Timelines {
    /// A server that never left its first timeline, or whose history is not known.
    pub fn only(current: u32) -> Timelines {
        Timelines { current, earlier: Vec::new() }
    }

    /// From the answer to TIMELINE_HISTORY of timeline `current`.
    pub fn new(current: u32, forks: &[Fork]) -> Result<Timelines, TimelineError> {
        let mut earlier: Vec<(u32, Lsn)> = Vec::with_capacity(forks.len());
        for Fork { timeline, at } in forks.iter().copied() {
            let ascends = earlier.last().is_none_or(|last| last.0 < timeline && last.1 <= at);
            if timeline >= current || !ascends {
                return Err(TimelineError { timeline: current, fork: timeline, at });
            }
            earlier.push((timeline, at));
        }
        Ok(Timelines { current, earlier })
    }

    /// The timeline the server is on.
    pub fn current(&self) -> u32 {
        self.current
    }

    /// The timeline on which the record at `lsn` was written.
    pub fn of(&self, lsn: Lsn) -> u32 {
        let earlier = self.earlier.iter().find(|(_, end)| lsn < *end);
        earlier.map_or(self.current, |(timeline, _)| *timeline)
    }

    /// Where this branch of history left `timeline`: records behind that are not part of it.
    /// `None` if it never was on that timeline; `Lsn(u64::MAX)` for the current one.
    pub fn end_of(&self, timeline: u32) -> Option<Lsn> {
        if timeline == self.current {
            return Some(Lsn(u64::MAX));
        }
        self.earlier.iter().find(|(earlier, _)| *earlier == timeline).map(|(_, end)| *end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn forks(forks: &[(u32, u64)]) -> Vec<Fork> {
        forks.iter().map(|(timeline, at)| Fork { timeline: *timeline, at: Lsn(*at) }).collect()
    }

    #[test]
    fn a_repeat_is_what_ends_below_the_position() {
        let position = Position::at(Lsn(100));
        assert!(position.is_repeat(Lsn(99)));
        assert!(!position.is_repeat(Lsn(100)), "a keepalive may point at the next commit record");
        assert!(!position.is_repeat(Lsn(101)));
        assert!(!Position::default().is_repeat(Lsn(0)));
    }

    #[test]
    fn a_position_lies_before_a_fork_with_the_transaction_it_is_inside_of() {
        let unfinished = Unfinished { final_lsn: Lsn(120), xid: 9, ordinal: 5, config_hash: 7 };
        let inside = Position { end_lsn: Lsn(100), unfinished: Some(unfinished) };
        assert!(Position::at(Lsn(100)).lies_before(Lsn(100)));
        assert!(!Position::at(Lsn(101)).lies_before(Lsn(100)));
        assert!(inside.lies_before(Lsn(121)), "its commit record is on both branches");
        assert!(!inside.lies_before(Lsn(120)), "its commit record is on the other branch");
    }

    #[test]
    fn a_position_skips_a_transaction_that_did_not_come_again() {
        let unfinished = Unfinished { final_lsn: Lsn(120), xid: 9, ordinal: 5, config_hash: 7 };
        let inside = Position { end_lsn: Lsn(100), unfinished: Some(unfinished) };
        let skipped = |to| {
            let mut position = inside;
            position.skip_to(Lsn(to));
            position
        };
        assert_eq!(skipped(90), inside);
        assert_eq!(skipped(120), Position { end_lsn: Lsn(120), ..inside });
        assert_eq!(skipped(121), Position::at(Lsn(121)));
    }

    #[test]
    fn rows_done_count_for_the_same_transaction_under_the_same_configuration_alone() {
        let unfinished = Unfinished { final_lsn: Lsn(120), xid: 9, ordinal: 5, config_hash: 7 };
        let position = Position { end_lsn: Lsn(100), unfinished: Some(unfinished) };
        assert_eq!(position.rows_done(Lsn(120), 9, 7), 5);
        assert_eq!(position.rows_done(Lsn(121), 9, 7), 0);
        assert_eq!(position.rows_done(Lsn(120), 8, 7), 0);
        assert_eq!(position.rows_done(Lsn(120), 9, 6), 0);
        assert_eq!(Position::at(Lsn(100)).rows_done(Lsn(120), 9, 7), 0);
    }

    #[test]
    fn whatever_changes_the_count_of_rows_changes_the_hash() {
        let names = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
        let option = |n: &str, v: &str| vec![(n.to_owned(), v.to_owned())];
        let proto = option("proto_version", "1");
        let hashes = [
            config_hash("slot", &names(&["a", "b"]), "pgoutput", &proto),
            config_hash("slot", &names(&["ab"]), "pgoutput", &proto),
            config_hash("slot", &names(&["b", "a"]), "pgoutput", &proto),
            config_hash("slot", &names(&["a", "b"]), "test_decoding", &proto),
            config_hash("slot2", &names(&["a", "b"]), "pgoutput", &proto),
            config_hash("slot", &names(&["a", "b"]), "pgoutput", &option("proto_version", "2")),
            config_hash("slot", &names(&["a", "b"]), "pgoutput", &[]),
            config_hash("slot", &names(&["a", "b", "proto_version", "1"]), "pgoutput", &[]),
        ];
        let distinct: std::collections::HashSet<u64> = hashes.into_iter().collect();
        assert_eq!(distinct.len(), hashes.len());
        assert_eq!(hashes[0], 0xf35a_9cba_3616_f5f0, "it is saved in state files");
    }

    #[test]
    fn a_record_belongs_to_the_timeline_it_was_written_on() {
        let timelines = Timelines::new(4, &forks(&[(1, 0x300_0000), (3, 0x16_b374_d848)])).unwrap();
        assert_eq!(timelines.current(), 4);
        assert_eq!(timelines.of(Lsn(0x2ff_ffff)), 1);
        assert_eq!(timelines.of(Lsn(0x300_0000)), 3);
        assert_eq!(timelines.of("16/B374D847".parse().unwrap()), 3);
        assert_eq!(timelines.of("16/B374D848".parse().unwrap()), 4);
        assert_eq!(timelines.end_of(1), Some(Lsn(0x300_0000)));
        assert_eq!(timelines.end_of(2), None, "a branch that was never taken");
        assert_eq!(timelines.end_of(4), Some(Lsn(u64::MAX)));
        assert_eq!(timelines.end_of(5), None);
        assert_eq!(Timelines::only(1).of(Lsn(5)), 1);
    }

    #[test]
    fn a_history_that_contradicts_itself_is_refused() {
        let bad =
            [&[(4, 1)][..], &[(5, 1)], &[(1, 5), (1, 6)], &[(2, 5), (1, 6)], &[(2, 5), (3, 4)]];
        for history in bad {
            let error = Timelines::new(4, &forks(history)).expect_err("refused");
            assert!(error.to_string().contains("history of timeline 4"), "{error}");
        }
    }
}
