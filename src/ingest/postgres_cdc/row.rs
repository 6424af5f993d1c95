//! What the stream hands out: rows that borrow from the bytes they came in.

use super::position::{Position, Unfinished};
use super::relation::Relation;
use crate::pg_wire::Lsn;
use crate::pg_wire::pgoutput::{Column, OldKind, Tuple};

/// The transaction a row belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TxHead {
    /// Its id.
    pub xid: u32,
    /// Where its commit record is; the end of that record with test_decoding, which does not tell.
    pub final_lsn: Lsn,
    /// When it was committed, µs since the Unix epoch.
    pub commit_time_us: i64,
}

impl TxHead {
    /// The position when the rows below `ordinal + 1` are done, and everything before it.
    pub fn position_after(&self, end_lsn: Lsn, ordinal: u64, config_hash: u64) -> Position {
        let unfinished = Unfinished {
            final_lsn: self.final_lsn,
            xid: self.xid,
            ordinal: ordinal.saturating_add(1),
            config_hash,
        };
        Position { end_lsn, unfinished: Some(unfinished) }
    }
}

/// What happened to a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// It is new.
    Insert,
    /// It changed.
    Update,
    /// It is gone.
    Delete,
    /// All rows of the table are gone.
    Truncate,
}

impl Op {
    /// As SQL says it.
    pub fn as_str(self) -> &'static str {
        match self {
            Op::Insert => "INSERT",
            Op::Update => "UPDATE",
            Op::Delete => "DELETE",
            Op::Truncate => "TRUNCATE",
        }
    }

    /// Its first letter.
    pub fn letter(self) -> &'static str {
        match self {
            Op::Insert => "I",
            Op::Update => "U",
            Op::Delete => "D",
            Op::Truncate => "T",
        }
    }
}

/// One change.
#[derive(Clone, Copy, Debug)]
pub struct Row<'s, 'a> {
    /// The table as it looked at that commit.
    pub relation: &'s Relation,
    /// What happened.
    pub op: Op,
    /// The row afterwards; none after DELETE and TRUNCATE.
    pub new: Option<Tuple<'a>>,
    /// The row before, or its key, as far as the replica identity supplies it.
    pub old: Option<(OldKind, Tuple<'a>)>,
    /// Its transaction.
    pub tx: TxHead,
    /// Its number in the transaction, from 0; counted before any filter of ours.
    pub ordinal: u64,
}

impl<'a> Row<'_, 'a> {
    /// A column's value for routing and for payloads: that of the new row, where that is an
    /// unchanged large value the old one's, and of a deleted row what is known of it. `None`: not
    /// known, which is not NULL.
    #[inline(always)]
    pub fn column(&self, index: usize) -> Option<Column<'a>> {
        match self.new {
            Some(new) => match new.nth(index)? {
                Column::Unchanged => self.old_value(index).or(Some(Column::Unchanged)),
                known => Some(known),
            },
            None => self.old_value(index),
        }
    }

    /// A column of the old row if that was supplied: of a key tuple, only the key's columns.
    pub fn old_value(&self, index: usize) -> Option<Column<'a>> {
        let (kind, old) = self.old?;
        if kind == OldKind::Key && !self.relation.columns.get(index)?.key {
            return None;
        }
        old.nth(index).filter(|column| *column != Column::Unchanged)
    }
}

/// What one message, or the next piece of a longer one, amounts to.
#[derive(Debug)]
pub enum Item<'s, 'a> {
    /// A change to deliver.
    Row(Row<'s, 'a>),
    /// A transaction is complete, whether it had rows for us or not.
    TransactionEnd {
        /// Behind its commit record: the position, once all its rows are done.
        end_lsn: Lsn,
        /// Its commit record.
        final_lsn: Lsn,
        /// When it was committed, µs since the Unix epoch.
        commit_time_us: i64,
    },
    /// See [`super::confirm::Confirm::keepalive`].
    Keepalive {
        /// How far the server has read.
        wal_end: Lsn,
        /// It wants an answer.
        reply_requested: bool,
    },
    /// Something to do with a spill file.
    Spill(Spill),
    /// Nothing to deliver.
    Nothing,
}

/// An operation on the file of one transaction that was not committed when it arrived. These
/// files mean nothing to another connection: at start and after a reconnect all are deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Spill {
    /// Write these bytes at `offset`, the end of the file; 0 makes it.
    Append {
        /// The transaction.
        xid: u32,
        /// Where.
        offset: u64,
        /// What.
        bytes: Vec<u8>,
    },
    /// Read `length` bytes at `offset` and hand them to [`super::Stream::spilled`].
    Read {
        /// The transaction.
        xid: u32,
        /// Where.
        offset: u64,
        /// How many.
        length: usize,
    },
    /// The file is of no more use.
    Drop {
        /// The transaction.
        xid: u32,
    },
}
