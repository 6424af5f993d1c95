//! From replication messages to rows (P2, P8): one pure machine per replication connection.
//!
//! Transactions come whole and in the order of their commits, or, with `streaming = on`, in pieces
//! before that; those wait in the [`Spool`] and come out of it at their commit, as the same items.
//! test_decoding says only at the end where a transaction was committed: its lines do likewise.
//!
//! Refuses what does not follow the protocol's order. A row has its number before any filter; a
//! repeat yields nothing; relations of a piece wait with its rows and count from the commit on.

use super::StreamError;
use super::filter::{Filter, Numbered};
use super::position::Position;
use super::relation::Relations;
use super::row::{Item, Op, Spill, TxHead};
use super::spill::{Replay, ReplayStep, Spool};
use super::test_lines::{Lines, TableFact};
use crate::config::{Decoder, Operations, Tables};
use crate::ingest::{Mode, Source};
use crate::pg_wire::Lsn;
use crate::pg_wire::pgoutput::{self, Message, OldKind, RelationIds, Tuple};
use crate::pg_wire::replication::{self, Replication};
use crate::pg_wire::test_decoding::{self, Line};

/// Microseconds from the Unix epoch to 2000-01-01, from which Postgres counts.
pub const POSTGRES_EPOCH_US: i64 = 946_684_800_000_000;

/// What a stream is made with.
#[derive(Clone, Debug)]
pub struct StreamOptions {
    /// Output plugin of the slot.
    pub decoder: Decoder,
    /// Whose rows are wanted.
    pub tables: Tables,
    /// Which changes are wanted.
    pub operations: Operations,
    /// Column names in snake case.
    pub snake_case_columns: bool,
    /// Values come in binary form.
    pub binary: bool,
    /// [`super::position::config_hash`] of this connection.
    pub config_hash: u64,
    /// What set-up knows of the tables; test_decoding describes only what a line mentions, and
    /// pgoutput no primary key next to REPLICA IDENTITY FULL.
    pub facts: Vec<TableFact>,
    /// Bytes of open transactions that may stay in memory.
    pub spool_memory: usize,
}

/// What passed without becoming an item.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamCounters {
    /// Transactions that came to their end, repeats not counted.
    pub transactions: u64,
    /// Transactions that were done already.
    pub repeated_transactions: u64,
    /// Rows that were done already, of the transaction the last run ended in.
    pub repeated_rows: u64,
    /// Rows of tables and operations that are not asked for.
    pub filtered_rows: u64,
    /// Logical messages.
    pub logical_messages: u64,
}

/// The machine.
#[derive(Debug)]
pub struct Stream {
    options: StreamOptions,
    position: Position,
    relations: Relations,
    spool: Spool,
    lines: Lines,
    inside: Inside,
    replay: Option<Replay>,
    /// Tables of a TRUNCATE whose events are still to come, the next one last.
    truncated: Vec<u32>,
    counters: StreamCounters,
}

#[derive(Clone, Copy, Debug)]
enum Inside {
    /// No transaction is half received.
    Nothing,
    /// All of this one follows, or is being replayed.
    Transaction(OpenTx),
    /// A piece of one that is not committed.
    Piece { xid: u32 },
    /// Lines of one whose commit is not known yet.
    Lines { xid: u32 },
}

#[derive(Clone, Copy, Debug)]
struct OpenTx {
    head: TxHead,
    end_lsn: Lsn,
    /// All of it is done.
    repeat: bool,
    /// Rows of it that are done.
    done: u64,
    /// Number of the next row.
    ordinal: u64,
}

impl Stream {
    /// A connection that starts at `position`.
    pub fn new(options: StreamOptions, position: Position) -> Stream {
        let mut relations = Relations::new(options.tables.clone(), options.snake_case_columns);
        relations.restart(&options.facts);
        Stream {
            relations,
            spool: Spool::new(options.spool_memory),
            lines: Lines::new(&options.facts),
            options,
            position,
            inside: Inside::Nothing,
            replay: None,
            truncated: Vec::new(),
            counters: StreamCounters::default(),
        }
    }

    /// Another connection, as set-up left it: everything half received is forgotten, what was
    /// learned too. Gives the transactions whose spill files are to be deleted.
    pub fn restart(
        &mut self,
        position: Position,
        config_hash: u64,
        binary: bool,
        facts: Vec<TableFact>,
    ) -> Vec<u32> {
        let mut files = self.spool.clear();
        if let Some(replay) = self.replay.take().filter(Replay::has_file) {
            files.push(replay.xid());
        }
        self.relations.restart(&facts);
        self.options.facts = facts;
        self.lines = Lines::new(&self.options.facts);
        self.options.config_hash = config_hash;
        self.options.binary = binary;
        self.position = position;
        self.inside = Inside::Nothing;
        self.truncated.clear();
        files
    }

    /// Whether no transaction is half received: see [`super::confirm::Confirm::keepalive`].
    pub fn is_between(&self) -> bool {
        matches!(self.inside, Inside::Nothing) && !self.has_more()
    }

    /// The transaction that is being received whole, if one is.
    pub fn transaction(&self) -> Option<TxHead> {
        match self.inside {
            Inside::Transaction(tx) => Some(tx.head),
            _ => None,
        }
    }

    /// Whether [`Stream::more`] has something to give before the next message.
    #[inline]
    pub fn has_more(&self) -> bool {
        self.replay.is_some() || !self.truncated.is_empty()
    }

    /// What passed without becoming an item, over all connections.
    pub fn counters(&self) -> StreamCounters {
        self.counters
    }

    /// Bytes of open transactions in memory, and their number.
    pub fn spooled(&self) -> (usize, usize) {
        (self.spool.in_memory(), self.spool.len())
    }

    /// Of the one that comes back: bytes in memory, and those that are read and not yet taken.
    pub fn returning(&self) -> (usize, usize) {
        self.replay.as_ref().map_or((0, 0), |replay| (replay.in_memory(), replay.left()))
    }

    /// One CopyData message of the server. Then [`Stream::more`] while [`Stream::has_more`].
    #[inline(always)]
    pub fn message<'a>(&mut self, body: &'a [u8]) -> Result<Item<'_, 'a>, StreamError> {
        match replication::parse(body)? {
            Replication::Keepalive { wal_end, reply_requested, .. } => {
                Ok(Item::Keepalive { wal_end, reply_requested })
            }
            Replication::Data { .. } if self.has_more() => {
                Err(self.misplaced("a message", "the rest of the one before it"))
            }
            Replication::Data { start, data, .. } => match self.options.decoder {
                Decoder::PgOutput => self.pgoutput(start, data),
                Decoder::TestDecoding => self.line(start, data),
            },
        }
    }

    /// The next item of a message that amounts to several; `None` after the last one.
    pub fn more(&mut self) -> Result<Option<Item<'_, '_>>, StreamError> {
        if let Some(relation) = self.truncated.pop() {
            let number = self.number()?;
            return self.row(number, relation, Op::Truncate, None, None).map(Some);
        }
        let Some(replay) = &mut self.replay else { return Ok(None) };
        match replay.step()? {
            ReplayStep::Read(read) => Ok(Some(Item::Spill(read))),
            ReplayStep::Message(range) => match self.options.decoder {
                Decoder::PgOutput => self.replayed(range).map(Some),
                Decoder::TestDecoding => self.replayed_line(range).map(Some),
            },
            ReplayStep::End if replay.has_file() => {
                let xid = replay.xid();
                replay.forget_file();
                Ok(Some(Item::Spill(Spill::Drop { xid })))
            }
            ReplayStep::End => {
                self.replay = None;
                self.commit().map(Some)
            }
        }
    }

    /// The bytes that [`Spill::Read`] asked for.
    pub fn spilled(&mut self, bytes: &[u8]) -> Result<(), StreamError> {
        match &mut self.replay {
            Some(replay) => Ok(replay.chunk(bytes)?),
            None => Err(self.misplaced("a chunk of a spill file", "no transaction to replay")),
        }
    }

    #[inline(always)]
    fn pgoutput<'a>(&mut self, start: Lsn, data: &'a [u8]) -> Result<Item<'_, 'a>, StreamError> {
        if let Inside::Piece { xid } = self.inside {
            return self.piece(start, xid, data);
        }
        let decoded = pgoutput::decode(data, false);
        match decoded.map_err(|error| StreamError::Decode { start, error })? {
            Message::Insert { relation, new, .. } => {
                let number = self.number()?;
                self.row(number, relation, Op::Insert, Some(new), None)
            }
            Message::Update { relation, old, new, .. } => {
                let number = self.number()?;
                self.row(number, relation, Op::Update, Some(new), old)
            }
            Message::Delete { relation, kind, old, .. } => {
                let number = self.number()?;
                self.row(number, relation, Op::Delete, None, Some((kind, old)))
            }
            Message::Begin { final_lsn, commit_time, xid } => {
                let commit_time_us = commit_time.saturating_add(POSTGRES_EPOCH_US);
                self.begin(TxHead { xid, final_lsn, commit_time_us }, Lsn::INVALID)
            }
            Message::Commit { commit_lsn, end_lsn, .. } => self.commit_at(commit_lsn, end_lsn),
            other => self.rare(start, other),
        }
    }

    /// What comes once per transaction, table or day.
    #[inline(never)]
    fn rare<'a>(&mut self, start: Lsn, message: Message<'_>) -> Result<Item<'_, 'a>, StreamError> {
        match message {
            Message::Relation { relation, .. } => {
                self.relations.learn(&relation, self.options.binary)?
            }
            Message::Truncate { relations, .. } => self.truncate(relations)?,
            Message::Logical { .. } => self.counters.logical_messages += 1,
            Message::Origin { .. } | Message::Type { .. } => {}
            Message::StreamStart { xid, .. } => {
                self.between("a piece of a transaction")?;
                self.spool.begin(xid)?;
                self.inside = Inside::Piece { xid };
            }
            Message::StreamCommit { xid, commit_lsn, end_lsn, commit_time } => {
                let commit_time_us = commit_time.saturating_add(POSTGRES_EPOCH_US);
                let head = TxHead { xid, final_lsn: commit_lsn, commit_time_us };
                self.begin(head, end_lsn)?;
                self.replay = Some(self.spool.take(xid));
            }
            Message::StreamAbort { xid, subxid, .. } => {
                self.between("the abort of a transaction")?;
                if let Some(drop) = self.spool.abort(xid, subxid)? {
                    return Ok(Item::Spill(drop));
                }
            }
            Message::BeginPrepare(prepared)
            | Message::Prepare(prepared)
            | Message::CommitPrepared(prepared)
            | Message::RollbackPrepared { prepared, .. }
            | Message::StreamPrepare(prepared) => {
                return Err(StreamError::TwoPhase { gid: prepared.gid.to_owned(), start });
            }
            _ => return Err(self.misplaced("a message", "one that can stand here")),
        }
        Ok(Item::Nothing)
    }

    /// A message between Stream Start and Stream Stop: kept as it is, read at the commit.
    fn piece<'a>(
        &mut self,
        start: Lsn,
        xid: u32,
        data: &[u8],
    ) -> Result<Item<'_, 'a>, StreamError> {
        match data.first() {
            Some(b'I' | b'U' | b'D' | b'T' | b'R') => {
                let append = self.spool.append(xid, data)?;
                return Ok(append.map_or(Item::Nothing, Item::Spill));
            }
            Some(b'E') => {
                let decoded = pgoutput::decode(data, true);
                decoded.map_err(|error| StreamError::Decode { start, error })?;
                self.inside = Inside::Nothing;
            }
            Some(b'M') => self.counters.logical_messages += 1,
            Some(b'Y' | b'O') => {}
            _ => return Err(self.misplaced("a message", "a change inside a piece")),
        }
        Ok(Item::Nothing)
    }

    /// A message that waited for its commit.
    fn replayed(&mut self, range: std::ops::Range<usize>) -> Result<Item<'_, '_>, StreamError> {
        let Inside::Transaction(tx) = &mut self.inside else { return Ok(Item::Nothing) };
        let Some(replay) = &self.replay else { return Ok(Item::Nothing) };
        let data = replay.bytes().get(range).unwrap_or_default();
        let start = tx.head.final_lsn;
        let decoded = pgoutput::decode(data, true);
        let (xid, relation, op, new, old) = match decoded
            .map_err(|error| StreamError::Decode { start, error })?
        {
            Message::Insert { xid, relation, new } => (xid, relation, Op::Insert, Some(new), None),
            Message::Update { xid, relation, old, new } => {
                (xid, relation, Op::Update, Some(new), old)
            }
            Message::Delete { xid, relation, kind, old } => {
                (xid, relation, Op::Delete, None, Some((kind, old)))
            }
            Message::Truncate { xid, relations, .. } => {
                if !xid.is_some_and(|xid| replay.is_aborted(xid)) {
                    self.truncated.extend(relations);
                    self.truncated.reverse();
                }
                return Ok(Item::Nothing);
            }
            // Also of an aborted sub-transaction: the server does not describe the table again
            // unless its shape changed.
            Message::Relation { relation, .. } => {
                self.relations.learn(&relation, self.options.binary)?;
                return Ok(Item::Nothing);
            }
            _ => return Err(self.misplaced("a message", "a change inside a piece")),
        };
        if xid.is_some_and(|xid| replay.is_aborted(xid)) {
            return Ok(Item::Nothing);
        }
        let number = tx.next(&mut self.counters);
        let filter = Filter { options: &self.options, counters: &mut self.counters };
        filter.row(&self.relations, number, relation, op, new, old)
    }

    #[inline(never)]
    fn line<'a>(&mut self, start: Lsn, data: &'a [u8]) -> Result<Item<'_, 'a>, StreamError> {
        let line = |error| StreamError::Line { start, error };
        match (self.inside, data.first()) {
            // The lines of a table are read once, at the commit.
            (Inside::Lines { xid }, Some(b't')) => {
                let append = self.spool.append(xid, data)?;
                return Ok(append.map_or(Item::Nothing, Item::Spill));
            }
            (Inside::Lines { xid }, Some(b'C')) => {
                if let Line::Commit { xid: seen } = test_decoding::parse(data).map_err(line)? {
                    if seen.is_some_and(|seen| seen != xid) {
                        return Err(self.misplaced("another transaction's commit", "its own"));
                    }
                    let commit_time_us = super::test_lines::commit_time(data)
                        .ok_or(StreamError::NoCommitTime { start })?;
                    self.inside = Inside::Nothing;
                    self.begin(TxHead { xid, final_lsn: start, commit_time_us }, start)?;
                    self.replay = Some(self.spool.take(xid));
                    return Ok(Item::Nothing);
                }
            }
            _ => {}
        }
        match test_decoding::parse(data).map_err(line)? {
            Line::Begin { xid } => {
                self.between("the begin of a transaction")?;
                let xid = xid.ok_or(StreamError::NoXid { start })?;
                self.spool.begin(xid)?;
                self.inside = Inside::Lines { xid };
            }
            Line::Message { .. } => self.counters.logical_messages += 1,
            Line::TwoPhase { gid, .. } => {
                let mut name = Vec::new();
                gid.write(&mut name);
                let gid = String::from_utf8_lossy(&name).into_owned();
                return Err(StreamError::TwoPhase { gid, start });
            }
            _ => return Err(self.misplaced("a line", "one that can stand here")),
        }
        Ok(Item::Nothing)
    }

    /// A line that waited for its commit.
    fn replayed_line(
        &mut self,
        range: std::ops::Range<usize>,
    ) -> Result<Item<'_, '_>, StreamError> {
        let Inside::Transaction(tx) = &mut self.inside else { return Ok(Item::Nothing) };
        let Some(replay) = &self.replay else { return Ok(Item::Nothing) };
        let data = replay.bytes().get(range).unwrap_or_default();
        let start = tx.head.final_lsn;
        let line = |error| StreamError::Line { start, error };
        match test_decoding::parse(data).map_err(line)? {
            Line::Change(change) => {
                let number = tx.next(&mut self.counters);
                let known = self.lines.learn(&mut self.relations, &change, start)?;
                if number.is_none() || !known.captured {
                    self.counters.filtered_rows += u64::from(number.is_some());
                    return Ok(Item::Nothing);
                }
                let (new, old) = self.lines.tuples(&change, &known, start)?;
                let filter = Filter { options: &self.options, counters: &mut self.counters };
                filter.row(&self.relations, number, known.oid, known.op, new, old)
            }
            Line::Truncate { tables, .. } => {
                for (schema, table) in tables.iter() {
                    let oid = self.lines.table(&mut self.relations, schema, table)?;
                    self.truncated.push(oid);
                }
                self.truncated.reverse();
                Ok(Item::Nothing)
            }
            _ => Err(self.misplaced("a line", "a change inside a transaction")),
        }
    }

    fn begin<'a>(&mut self, head: TxHead, end_lsn: Lsn) -> Result<Item<'_, 'a>, StreamError> {
        self.between("the begin of a transaction")?;
        let repeat = match self.options.decoder {
            Decoder::PgOutput => self.position.is_repeat(head.final_lsn),
            // Its final LSN is the end of the commit record.
            Decoder::TestDecoding => head.final_lsn <= self.position.end_lsn,
        };
        let hash = self.options.config_hash;
        let done = self.position.rows_done(head.final_lsn, head.xid, hash);
        self.inside = Inside::Transaction(OpenTx { head, end_lsn, repeat, done, ordinal: 0 });
        Ok(Item::Nothing)
    }

    fn commit_at<'a>(
        &mut self,
        commit_lsn: Lsn,
        end_lsn: Lsn,
    ) -> Result<Item<'_, 'a>, StreamError> {
        let Inside::Transaction(tx) = &mut self.inside else {
            return Err(self.misplaced("the end of a transaction", "its begin"));
        };
        if tx.head.final_lsn != commit_lsn {
            let (begun, ended) = (tx.head.final_lsn, commit_lsn);
            return Err(StreamError::OtherCommit { begun, ended });
        }
        tx.end_lsn = end_lsn;
        self.commit()
    }

    fn commit<'a>(&mut self) -> Result<Item<'_, 'a>, StreamError> {
        let Inside::Transaction(tx) = self.inside else {
            return Err(self.misplaced("the end of a transaction", "its begin"));
        };
        self.inside = Inside::Nothing;
        if tx.repeat {
            self.counters.repeated_transactions += 1;
            return Ok(Item::Nothing);
        }
        self.counters.transactions += 1;
        Ok(Item::TransactionEnd {
            end_lsn: tx.end_lsn,
            final_lsn: tx.head.final_lsn,
            commit_time_us: tx.head.commit_time_us,
        })
    }

    fn truncate(&mut self, relations: RelationIds<'_>) -> Result<(), StreamError> {
        if !matches!(self.inside, Inside::Transaction(_)) {
            return Err(self.misplaced("a change", "the begin of its transaction"));
        }
        self.truncated.extend(relations);
        self.truncated.reverse();
        Ok(())
    }

    /// The number of the next row; `None` if that row is done.
    #[inline]
    fn number(&mut self) -> Result<Option<Numbered>, StreamError> {
        match &mut self.inside {
            Inside::Transaction(tx) => Ok(tx.next(&mut self.counters)),
            _ => Err(self.misplaced("a change", "the begin of its transaction")),
        }
    }

    #[inline(always)]
    fn row<'a>(
        &mut self,
        number: Option<Numbered>,
        relation: u32,
        op: Op,
        new: Option<Tuple<'a>>,
        old: Option<(OldKind, Tuple<'a>)>,
    ) -> Result<Item<'_, 'a>, StreamError> {
        let filter = Filter { options: &self.options, counters: &mut self.counters };
        filter.row(&self.relations, number, relation, op, new, old)
    }

    fn between(&self, seen: &'static str) -> Result<(), StreamError> {
        match self.inside {
            Inside::Nothing => Ok(()),
            _ => Err(self.misplaced(seen, "the end of the transaction before it")),
        }
    }

    #[cold]
    fn misplaced(&self, seen: &'static str, expected: &'static str) -> StreamError {
        let during = match self.inside {
            Inside::Nothing => "between transactions",
            Inside::Transaction(_) => "inside a transaction",
            Inside::Piece { .. } => "inside a piece of a transaction",
            Inside::Lines { .. } => "inside a transaction of lines",
        };
        StreamError::Misplaced { seen, during, expected }
    }
}

impl Source for Stream {
    fn mode(&self) -> Mode {
        Mode::Cdc
    }

    fn position(&self) -> u64 {
        self.position.end_lsn.0
    }
}

impl OpenTx {
    #[inline]
    fn next(&mut self, counters: &mut StreamCounters) -> Option<Numbered> {
        let ordinal = self.ordinal;
        self.ordinal += 1;
        if self.repeat {
            return None;
        }
        if ordinal < self.done {
            counters.repeated_rows += 1;
            return None;
        }
        Some(Numbered { tx: self.head, ordinal })
    }
}

#[cfg(test)]
mod tests;
