//! The position: behind every batch that is acked whole, saved, then told (I1, P2, C2).

use std::collections::VecDeque;

use super::{Capture, Stage};
use crate::ingest::postgres_cdc::TxHead;
use crate::ingest::postgres_cdc::confirm::{Confirm, ConfirmOptions, Status, Verdict};
use crate::ingest::postgres_cdc::position::{Position, Unfinished};
use crate::pg_wire::Lsn;
use crate::pg_wire::replication::status_update;
use crate::shard::event::{Command, PgCommand, SaveError};
use crate::shard::pipeline::feed::Ctx;
use crate::shard::reason;
use crate::statefile::{CaptureState, UnfinishedState};
use crate::time::{Millis, Now};

/// 2000-01-01 in microseconds since 1970-01-01: Postgres counts from there.
const POSTGRES_EPOCH_US: i64 = 946_684_800_000_000;

/// A batch on its way.
struct Closed {
    batch: u64,
    end: Position,
    /// Where the last transaction with rows in it begins, at the earliest.
    last_start: Lsn,
    messages: u64,
    transactions: u64,
}

/// What can be given up: batches up to this one, which ends with a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Boundary {
    pub batch: u64,
    pub end: Lsn,
    /// It also has rows of transactions behind the one that was named.
    pub takes_more: bool,
}

/// Positions of a capture.
pub(super) struct Progress {
    pub confirm: Option<Confirm>,
    /// What the session before was told last.
    told: Lsn,
    /// End of the last complete transaction that was read.
    pub ended: Lsn,
    /// The server's end of the log, as it last said.
    pub wal_end: Lsn,
    pub moved_at: Millis,
    /// Some destination last acked something.
    pub acked_at: Millis,
    /// Tries in a row that did not move the position (C3).
    pub failures: u32,
    pub durable: Position,
    pub config_hash: u64,
    saving: Position,
    closed: VecDeque<Closed>,
    /// Position of the last batch, and transactions that ended since.
    submitted: Position,
    transactions: u64,
    /// End of what came before the last transaction with rows.
    last_start: Lsn,
}

impl Progress {
    pub fn new(entry: &CaptureState, now: Now) -> Progress {
        let durable = position_of(entry);
        Progress {
            confirm: None,
            told: Lsn::INVALID,
            ended: durable.end_lsn,
            wal_end: durable.end_lsn,
            moved_at: now.mono,
            acked_at: now.mono,
            failures: 0,
            durable,
            config_hash: 0,
            saving: durable,
            closed: VecDeque::new(),
            submitted: durable,
            transactions: 0,
            last_start: durable.end_lsn,
        }
    }

    /// Everything goes on from what is on disk: another log, or an order to begin again.
    pub fn restart(&mut self, entry: &CaptureState) {
        self.submitted = position_of(entry);
        self.ended = self.submitted.end_lsn;
        self.wal_end = self.ended;
        self.last_start = self.ended;
        self.closed.clear();
        self.transactions = 0;
    }

    /// Where the stream goes on: behind everything that was handed to the lanes.
    pub fn read_until(&self) -> Position {
        self.submitted
    }

    /// Messages of batches that a log which ends at `end` does not have whole.
    pub fn messages_beyond(&self, end: Lsn) -> u64 {
        let beyond = self.closed.iter().filter(|closed| !closed.end.lies_before(end));
        beyond.map(|closed| closed.messages).sum()
    }

    /// A new stream begins.
    pub fn streaming(&mut self, options: ConfirmOptions, now: Millis) {
        let mut confirm = Confirm::new(options, self.durable.end_lsn, now);
        confirm.ended(self.ended);
        self.confirm = Some(confirm);
    }

    /// Nothing can be told any more.
    pub fn session_ended(&mut self) {
        self.told = self.told();
        self.confirm = None;
    }

    /// What the server was told last, in this session or the one before.
    pub fn told(&self) -> Lsn {
        self.confirm.as_ref().map_or(self.told, Confirm::told)
    }

    /// A transaction is complete; `rows`: some of it are in the batch under construction. Gives
    /// whether others are in an earlier one.
    pub fn transaction_ended(&mut self, end_lsn: Lsn, rows: bool) -> bool {
        let spans = self.submitted.unfinished.is_some();
        if rows || spans {
            self.last_start = self.ended;
        }
        self.ended = self.ended.max(end_lsn);
        self.wal_end = self.wal_end.max(end_lsn);
        self.transactions += 1;
        if let Some(confirm) = &mut self.confirm {
            confirm.ended(end_lsn);
        }
        spans
    }

    pub fn keepalive(
        &mut self,
        now: Millis,
        wal_end: Lsn,
        reply_requested: bool,
        between: bool,
    ) -> Verdict {
        self.wal_end = self.wal_end.max(wal_end);
        let Some(confirm) = &mut self.confirm else { return Verdict::Nothing };
        confirm.keepalive(now, wal_end, reply_requested, between)
    }

    /// The position after the last row that was read.
    fn reached(&self, last: Option<(TxHead, u64)>) -> Position {
        match last {
            Some((tx, ordinal)) => tx.position_after(self.ended, ordinal, self.config_hash),
            None => Position::at(self.ended),
        }
    }

    /// A batch would move the position.
    pub fn is_behind(&self, last: Option<(TxHead, u64)>) -> bool {
        last.is_some() || self.submitted.end_lsn < self.ended
    }

    pub fn submitted(
        &mut self,
        now: Millis,
        batch: u64,
        last: Option<(TxHead, u64)>,
        messages: u64,
    ) {
        // Nothing could move while nothing waited.
        if self.closed.is_empty() {
            self.moved_at = now;
        }
        let end = self.reached(last);
        let transactions = std::mem::take(&mut self.transactions);
        self.submitted = end;
        let last_start = self.last_start;
        self.closed.push_back(Closed { batch, end, last_start, messages, transactions });
    }

    /// No transaction ends between the last one and `to`. Of the one behind it rows may be on
    /// their way already: they count as before, unless it was to end before `to`.
    fn skipped_to(&mut self, to: Lsn) {
        self.ended = self.ended.max(to);
        let closed = self.closed.iter_mut().map(|closed| &mut closed.end);
        for end in closed.chain([&mut self.submitted]) {
            end.skip_to(to);
        }
    }

    /// Batches that are not acked whole.
    pub fn pending(&self) -> usize {
        self.closed.len()
    }

    /// The end of the oldest of them.
    pub fn oldest(&self) -> Option<Position> {
        self.closed.front().map(|closed| closed.end)
    }

    /// The first batch that ends with a transaction at or behind `through`; `None` through: the
    /// last one.
    pub fn boundary(&self, through: Option<Lsn>) -> Option<Boundary> {
        let whole = |closed: &&Closed| closed.end.unfinished.is_none();
        let found = match through {
            Some(lsn) => self.closed.iter().filter(whole).find(|c| c.end.end_lsn >= lsn),
            None => self.closed.iter().rev().find(whole),
        };
        found.map(|closed| Boundary {
            batch: closed.batch,
            end: closed.end.end_lsn,
            takes_more: through.is_some_and(|lsn| lsn <= closed.last_start),
        })
    }

    /// The transaction that the last batch ends in, by its final LSN.
    pub fn last_unfinished(&self) -> Option<Lsn> {
        self.closed.back()?.end.unfinished.map(|unfinished| unfinished.final_lsn)
    }

    /// Nothing that was read counts; the position stays where it is saved.
    pub fn pass_over(&mut self, entry: &CaptureState) {
        self.closed.clear();
        self.submitted = position_of(entry);
        self.transactions = 0;
    }

    /// The end of what was passed over.
    pub fn passed_to(&mut self, now: Millis, end: Lsn) {
        self.submitted = Position::at(end);
        self.transactions = 0;
        self.moved(now);
    }

    /// Messages of batches up to this one will not be delivered.
    pub fn given_up(&mut self, through: u64) {
        for closed in self.closed.iter_mut().filter(|closed| closed.batch <= through) {
            closed.messages = 0;
        }
    }

    /// One more try that moved nothing. Without anything to move it is none.
    pub fn failed(&mut self) {
        if !self.closed.is_empty() {
            self.failures = self.failures.saturating_add(1);
        }
    }

    /// The position moved.
    fn moved(&mut self, now: Millis) {
        self.moved_at = now;
        self.failures = 0;
    }

    /// A save begins: what it holds.
    pub fn saving(&mut self, entry: &CaptureState) -> u64 {
        self.saving = position_of(entry);
        self.saving.end_lsn.0
    }
}

impl Capture {
    /// Moves the position over every batch that is acked whole.
    pub(super) fn advance(&mut self, ctx: &mut Ctx<'_>) {
        let complete = self.sink.outlet.complete();
        let mut moved = None;
        while let Some(done) = self.progress.closed.pop_front_if(|done| done.batch < complete) {
            let counters = &mut self.entry.counters;
            counters.messages += done.messages;
            counters.transactions += done.transactions;
            moved = Some(done.end);
        }
        if let Some(end) = moved {
            self.set_position(end);
            self.touch(ctx);
            self.moved(ctx);
        }
    }

    /// The position moved: whatever failed before is over.
    fn moved(&mut self, ctx: &Ctx<'_>) {
        self.progress.moved(ctx.now.mono);
        self.backoff.reset();
    }

    pub(super) fn set_position(&mut self, position: Position) {
        self.entry.end_lsn = position.end_lsn.0;
        self.entry.unfinished = position.unfinished.map(|unfinished| UnfinishedState {
            final_lsn: unfinished.final_lsn.0,
            xid: unfinished.xid,
            ordinal: unfinished.ordinal,
            config_hash: unfinished.config_hash,
        });
    }

    /// A save begins: the position that it holds.
    pub fn saving(&mut self) -> u64 {
        if let Some(routed) = self.sink.rerouted() {
            self.entry.routed = routed;
        }
        self.progress.saving(&self.entry)
    }

    /// A save failed: nothing that it held may be relied on (S3).
    pub fn save_failed(&mut self, problem: &SaveError) {
        self.error(problem.to_string());
        self.progress.failed();
    }

    /// What the save that began last holds is on disk.
    pub fn saved(&mut self, ctx: &mut Ctx<'_>) {
        self.progress.durable = self.progress.saving;
        let durable = self.progress.durable.end_lsn;
        let inside = self.intake.stream.as_ref().is_some_and(|stream| !stream.is_between());
        if let Some(confirm) = &mut self.progress.confirm {
            confirm.set_inside(inside);
            let verdict = confirm.durable(ctx.now.mono, durable);
            self.obey(ctx, verdict);
        }
    }

    /// Time passed: says what is due.
    pub(super) fn tell(&mut self, ctx: &mut Ctx<'_>) {
        if !matches!(self.stage, Stage::Streaming | Stage::Finishing { .. }) {
            return;
        }
        let inside = self.intake.stream.as_ref().is_some_and(|stream| !stream.is_between());
        let Some(confirm) = &mut self.progress.confirm else { return };
        confirm.set_inside(inside);
        let verdict = confirm.tick(ctx.now.mono);
        self.obey(ctx, verdict);
        let at = self.progress.confirm.as_ref().map(Confirm::wake_at);
        self.wake(at);
    }

    pub(super) fn obey(&mut self, ctx: &mut Ctx<'_>, verdict: Verdict) {
        match verdict {
            Verdict::Nothing => {}
            Verdict::Send(status) => self.write_status(ctx, status),
            Verdict::Advance { to, status } => {
                self.progress.skipped_to(to);
                let mut position = position_of(&self.entry);
                position.skip_to(to);
                self.set_position(position);
                self.touch(ctx);
                self.moved(ctx);
                if let Some(status) = status {
                    self.write_status(ctx, status);
                }
            }
            Verdict::CloseForShutdown { unconfirmed } => {
                let behind = self.progress.durable.end_lsn;
                let detail = format!(
                    "the server waits until changes behind {behind} are delivered ({unconfirmed} \
                     bytes of log are read so far), which cannot be done now; the connection was \
                     closed so that it can stop"
                );
                self.hold(ctx, reason::UPSTREAM_STOPPING, detail);
            }
        }
    }

    /// What the server may forget, once more before the stream ends.
    pub(super) fn write_final_status(&mut self, ctx: &mut Ctx<'_>) {
        let flushed = self.progress.durable.end_lsn;
        let written = self.progress.ended.max(flushed);
        self.write_status(ctx, Status { written, flushed });
    }

    fn write_status(&mut self, ctx: &mut Ctx<'_>, status: Status) {
        let Status { written, flushed } = status;
        let now = i64::try_from(ctx.now.wall.0).unwrap_or(i64::MAX) - POSTGRES_EPOCH_US;
        let confirm = self.progress.confirm.as_mut();
        let asks = confirm.is_some_and(|confirm| confirm.asks(ctx.now.mono));
        let frame = status_update(written, flushed, flushed, now, asks);
        let conn = self.sessions.replication.conn;
        ctx.out.push(Command::Pg { conn, command: PgCommand::Write(frame) });
    }
}

/// Where an entry stands.
pub(super) fn position_of(entry: &CaptureState) -> Position {
    let unfinished = entry.unfinished.map(|unfinished| Unfinished {
        final_lsn: Lsn(unfinished.final_lsn),
        xid: unfinished.xid,
        ordinal: unfinished.ordinal,
        config_hash: unfinished.config_hash,
    });
    Position { end_lsn: Lsn(entry.end_lsn), unfinished }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress() -> Progress {
        let now = Now { mono: Millis(0), wall: crate::time::UnixMicros(0) };
        let entry = CaptureState {
            slot: "s".into(),
            database: "d".into(),
            decoder: "pgoutput".into(),
            publication: "p".into(),
            epoch: 0,
            sequence: 0,
            system_id: 1,
            timeline: 1,
            end_lsn: 200,
            unfinished: None,
            clean_stop: false,
            counters: Default::default(),
            gaps: Vec::new(),
            last_abandon_at: 0,
            routed: Vec::new(),
        };
        Progress::new(&entry, now)
    }

    #[test]
    fn rows_on_their_way_keep_their_count_and_their_position_follows_a_keepalive() {
        let mut progress = progress();
        let tx = TxHead { xid: 7, final_lsn: Lsn(400), commit_time_us: 0 };
        progress.submitted(Millis(0), 0, Some((tx, 9)), 10);
        progress.skipped_to(Lsn(300));
        let expected = tx.position_after(Lsn(300), 9, 0);
        assert_eq!(progress.oldest(), Some(expected), "300 may be told, nothing may be below it");
        assert_eq!(progress.read_until(), expected, "a new stream repeats none of them");
    }
}
