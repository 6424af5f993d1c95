//! Why a stream of replication messages cannot go on.

use super::spill::SpillError;
use crate::pg_wire::pgoutput::DecodeError;
use crate::pg_wire::test_decoding::LineError;
use crate::pg_wire::{Lsn, PgWireError};

/// What ends a replication connection from our side. Nothing is lost by it: the server sends
/// again from the durable position.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// A replication message that is none.
    #[error("replication message: {0}")]
    Wire(#[from] PgWireError),
    /// A pgoutput message that is none.
    #[error("at {start}: {error}")]
    Decode {
        /// Its position, as far as the server tells.
        start: Lsn,
        /// What is wrong with it.
        error: DecodeError,
    },
    /// A line of test_decoding that is none.
    #[error("at {start}: {error}")]
    Line {
        /// Its position.
        start: Lsn,
        /// What is wrong with it.
        error: LineError,
    },
    /// A line without the number of its transaction.
    #[error("at {start}: BEGIN without a transaction id, expected option include-xids = on")]
    NoXid {
        /// Its position.
        start: Lsn,
    },
    /// A line without the time of the commit.
    #[error("at {start}: COMMIT without a time, expected option include-timestamp = on")]
    NoCommitTime {
        /// Its position.
        start: Lsn,
    },
    /// Messages in an order that no server sends.
    #[error("saw {seen} {during}, expected {expected}")]
    Misplaced {
        /// What came.
        seen: &'static str,
        /// When.
        during: &'static str,
        /// What should have come.
        expected: &'static str,
    },
    /// A transaction that ends elsewhere than it said.
    #[error("a transaction that began with commit LSN {begun} ended with {ended}")]
    OtherCommit {
        /// At its begin.
        begun: Lsn,
        /// At its end.
        ended: Lsn,
    },
    /// A row of a table that was not described.
    #[error(
        "a row of relation {oid} in the transaction at {lsn}, which the server has not described"
    )]
    UnknownRelation {
        /// Its number.
        oid: u32,
        /// The transaction.
        lsn: Lsn,
    },
    /// A row that does not fit its table.
    #[error("a row of {table} in the transaction at {lsn} has {seen} columns, expected {expected}")]
    ColumnCount {
        /// The table.
        table: String,
        /// Columns of the row.
        seen: usize,
        /// Columns of the table.
        expected: usize,
        /// The transaction.
        lsn: Lsn,
    },
    /// More columns or bytes than a row can have.
    #[error("a row in the transaction at {lsn} has more columns or bytes than Postgres allows")]
    LongRow {
        /// The transaction.
        lsn: Lsn,
    },
    /// Descriptions are kept up to a bound.
    #[error("more than {most} tables were described on one connection; a new one begins with none")]
    TooManyRelations {
        /// The bound.
        most: usize,
    },
    /// The slot decodes two-phase transactions at their PREPARE.
    #[error(
        "prepared transaction {gid:?} at {start}: slot has two_phase on, expected off; make the \
         slot anew without it (from Postgres 18: ALTER_REPLICATION_SLOT ... (TWO_PHASE false))"
    )]
    TwoPhase {
        /// Name of the transaction.
        gid: String,
        /// Its position.
        start: Lsn,
    },
    /// Values come in binary form, and a table got a column without a known one. Connect again
    /// with `binary` off, and leave it off: the log may have such a column that the catalogue has
    /// no more.
    #[error(
        "column {column:?} of {table} has type {type_oid}, of which no binary form is known; \
         values are read as text from here on"
    )]
    NoBinaryForm {
        /// The table.
        table: String,
        /// Its column.
        column: String,
        /// Number of the type.
        type_oid: u32,
    },
    /// Open transactions cannot be kept.
    #[error(transparent)]
    Spill(#[from] SpillError),
}

impl StreamError {
    /// Whether a new connection may get past it. The others come again and again: an operator
    /// has to change something.
    pub fn is_transient(&self) -> bool {
        match self {
            StreamError::TwoPhase { .. }
            | StreamError::NoXid { .. }
            | StreamError::NoCommitTime { .. } => false,
            StreamError::Spill(error) => matches!(error, SpillError::Damaged { .. }),
            _ => true,
        }
    }
}
