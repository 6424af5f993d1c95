//! What a message says, borrowed from its bytes.

use crate::pg_wire::lsn::Lsn;

use super::relation::{RelationBody, RelationIds};
use super::tuple::Tuple;

/// One message. Times are microseconds since 2000-01-01 UTC; `xid` before a change is there
/// between [`Message::StreamStart`] and [`Message::StreamStop`] only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// A transaction begins; all of it follows.
    Begin {
        /// Where its commit is.
        final_lsn: Lsn,
        /// When it was committed.
        commit_time: i64,
        /// Its number.
        xid: u32,
    },
    /// It ends.
    Commit {
        /// Where its commit is.
        commit_lsn: Lsn,
        /// Behind its commit: the position to confirm.
        end_lsn: Lsn,
        /// When it was committed.
        commit_time: i64,
    },
    /// It was written elsewhere first.
    Origin {
        /// Its commit there.
        lsn: Lsn,
        /// Name of the replication origin.
        name: &'a str,
    },
    /// What a relation looks like from here on.
    Relation {
        /// The transaction, in a stream.
        xid: Option<u32>,
        /// The description.
        relation: RelationBody<'a>,
    },
    /// Name of a type that is not builtin.
    Type {
        /// The transaction, in a stream.
        xid: Option<u32>,
        /// Its number.
        id: u32,
        /// Its schema; empty stands for `pg_catalog`.
        namespace: &'a str,
        /// Its name; of a domain, the name of the type beneath.
        name: &'a str,
    },
    /// A new row.
    Insert {
        /// The transaction, in a stream.
        xid: Option<u32>,
        /// Its table.
        relation: u32,
        /// The row.
        new: Tuple<'a>,
    },
    /// A changed row.
    Update {
        /// The transaction, in a stream.
        xid: Option<u32>,
        /// Its table.
        relation: u32,
        /// What it was before, as far as the replica identity says so.
        old: Option<(OldKind, Tuple<'a>)>,
        /// What it is now.
        new: Tuple<'a>,
    },
    /// A removed row.
    Delete {
        /// The transaction, in a stream.
        xid: Option<u32>,
        /// Its table.
        relation: u32,
        /// How much of it is said.
        kind: OldKind,
        /// The row, or its key with nulls in the other columns.
        old: Tuple<'a>,
    },
    /// Emptied tables.
    Truncate {
        /// The transaction, in a stream.
        xid: Option<u32>,
        /// The tables.
        relations: RelationIds<'a>,
        /// Tables that refer to them were emptied too.
        cascade: bool,
        /// Their sequences began anew.
        restart_identity: bool,
    },
    /// A message of `pg_logical_emit_message`.
    Logical {
        /// The transaction, in a stream.
        xid: Option<u32>,
        /// Part of the transaction around it; otherwise it stands alone and is never undone.
        transactional: bool,
        /// Its position.
        lsn: Lsn,
        /// Whom it is for.
        prefix: &'a str,
        /// What it says.
        content: &'a [u8],
    },
    /// A piece of a transaction that is still open.
    StreamStart {
        /// The transaction.
        xid: u32,
        /// The first piece of it.
        first: bool,
    },
    /// The piece ends.
    StreamStop,
    /// The transaction whose pieces came is committed.
    StreamCommit {
        /// The transaction.
        xid: u32,
        /// Where its commit is.
        commit_lsn: Lsn,
        /// Behind its commit.
        end_lsn: Lsn,
        /// When it was committed.
        commit_time: i64,
    },
    /// It, or a part of it, is undone.
    StreamAbort {
        /// The transaction.
        xid: u32,
        /// The part; the transaction itself if all of it is.
        subxid: u32,
        /// Where and when, with `streaming = parallel`.
        abort: Option<(Lsn, i64)>,
    },
    /// A transaction begins that ends with [`Message::Prepare`].
    BeginPrepare(Prepared<'a>),
    /// It is prepared.
    Prepare(Prepared<'a>),
    /// It is committed.
    CommitPrepared(Prepared<'a>),
    /// It is undone.
    RollbackPrepared {
        /// Its prepare: `lsn` is the end of the prepare, `end_lsn` that of the rollback.
        prepared: Prepared<'a>,
        /// When it was undone.
        rollback_time: i64,
    },
    /// The transaction whose pieces came is prepared.
    StreamPrepare(Prepared<'a>),
}

/// A step of a transaction in two phases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prepared<'a> {
    /// The step's record.
    pub lsn: Lsn,
    /// Behind it.
    pub end_lsn: Lsn,
    /// When it was done (of a rollback: when it was prepared).
    pub time: i64,
    /// The transaction.
    pub xid: u32,
    /// Name under which it was prepared.
    pub gid: &'a str,
}

/// How much of an old row is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OldKind {
    /// Columns of the replica identity; the others read null.
    Key,
    /// All of it.
    Full,
}
