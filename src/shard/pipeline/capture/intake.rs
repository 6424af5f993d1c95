//! Reading: one grant at a time, one chunk at a time, never more than there is room for (G6).
//!
//! A chunk is worked off at once; how much is granted depends on what is not acked yet. A
//! transaction that waited in a spill file is read back piece by piece in the same way.

use bytes::Bytes;

use super::sink::RowError;
use super::{Capture, Stage};
use crate::fanout::linger::{Linger, Open};
use crate::ingest::postgres_cdc::{Item, Spill, Stream, StreamError, TxHead};
use crate::pg_wire::Lsn;
use crate::pg_wire::frame::Messages;
use crate::shard::event::{Command, PgCommand, ToControl};
use crate::shard::pipeline::budget::LARGE_SLOT;
use crate::shard::pipeline::feed::{Ctx, condition};
use crate::shard::reason;
use crate::time::Millis;

/// Bytes of one read.
pub(super) const READ_BYTES: u32 = 256 * 1024;
/// Bytes of messages that are made before it is looked again whether there is room.
const STEP_BYTES: usize = 64 * 1024;
/// Messages of this size are read without a reservation of their own.
const LARGEST_PLAIN: u32 = READ_BYTES;
/// Acked at least this lately, or owing nothing: the capture may draw from the pool.
const MOVING_MS: u64 = 2_000;
/// Tag of CopyData.
const COPY_DATA: u8 = b'd';

/// What is being read.
#[derive(Default)]
pub(super) struct Intake {
    pub stream: Option<Stream>,
    /// A read was granted and not used up.
    reading: bool,
    /// Bytes it can bring.
    granted: u64,
    chunk: Option<Bytes>,
    /// Operations on spill files that have not ended.
    spilling: u32,
    /// Bytes that they write.
    spill_bytes: u64,
    /// A piece of a spill file that is read when there is room.
    deferred: Option<Spill>,
    /// Size of the batch under construction when room was last looked for.
    looked_at: usize,
    linger: Linger,
    /// Size of a message that is larger than a read.
    large: Option<u32>,
    slot: Slot,
    in_slot: InSlot,
    /// A type without a binary form came by: values are asked for as text from then on.
    pub no_binary: bool,
}

/// The daemon-wide slot for one large message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Slot {
    #[default]
    None,
    Wanted,
    Held,
}

/// Where the message is that the slot is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum InSlot {
    /// Not read yet, or acked.
    #[default]
    Nothing,
    /// First in the chunk.
    Chunk,
    /// In the batches from the first number up to, not including, the other. Bytes.
    Batches(u64, u64, u64),
}

impl Intake {
    /// The session ended: nothing more comes of what was asked.
    pub fn reset(&mut self) {
        self.reading = false;
        self.chunk = None;
        self.deferred = None;
        self.large = None;
        if self.in_slot == InSlot::Chunk {
            self.in_slot = InSlot::Nothing;
        }
    }

    /// A chunk is there.
    pub fn arrived(&mut self, chunk: Bytes) {
        self.reading = false;
        if self.large.take().is_some() && self.slot == Slot::Held {
            self.in_slot = InSlot::Chunk;
        }
        self.chunk = Some(chunk);
    }

    /// The next message needs a larger grant.
    pub fn too_large(&mut self, size: u32) {
        self.reading = false;
        self.large = Some(size);
    }

    /// The daemon-wide slot is ours.
    pub fn holds_slot(&self) -> bool {
        self.slot == Slot::Held
    }

    fn bytes(&self) -> u64 {
        let spooled =
            self.stream.as_ref().map_or(0, |stream| stream.spooled().0 + stream.returning().0);
        (self.chunk.as_ref().map_or(0, Bytes::len) + spooled) as u64 + self.spill_bytes
    }
}

impl Capture {
    /// Works off what is there: the chunk, then what one message of it set going.
    pub(super) fn read_on(&mut self, ctx: &mut Ctx<'_>) {
        if !matches!(self.stage, Stage::Streaming) {
            return;
        }
        if let Some(op) = self.intake.deferred.take() {
            if self.must_wait_to_replay(ctx) {
                self.intake.deferred = Some(op);
                return;
            }
            self.spill(ctx, op);
        }
        if self.has_more() {
            self.read_more(ctx);
        }
        let Some(chunk) = self.next_chunk(ctx) else { return };
        if self.intake.in_slot != InSlot::Chunk {
            return self.work_off(ctx, &chunk);
        }
        // The large message in batches of its own: the slot is free when they are acked.
        self.submit(ctx);
        let (first, before) = (self.sink.outlet.batches(), self.sink.outlet.bytes());
        self.work_off(ctx, &chunk);
        self.submit(ctx);
        if self.intake.in_slot == InSlot::Chunk {
            let bytes = self.sink.outlet.bytes().saturating_sub(before) as u64;
            self.intake.in_slot = InSlot::Batches(first, self.sink.outlet.batches(), bytes);
        }
    }

    /// The messages of a chunk; what there is no room for goes on waiting.
    fn work_off(&mut self, ctx: &mut Ctx<'_>, chunk: &Bytes) {
        let mut at = 0;
        for (tag, body) in Messages::new(chunk) {
            // Tag and length come before the body.
            at += body.len() + 5;
            if tag == COPY_DATA
                && let Err(error) = self.message(ctx, body)
            {
                return self.stream_failed(ctx, error);
            }
            if self.has_more() {
                self.read_more(ctx);
                if !matches!(self.stage, Stage::Streaming) {
                    return;
                }
            }
            if self.has_more() || self.is_short(ctx) {
                self.intake.chunk = Some(chunk.slice(at..)).filter(|rest| !rest.is_empty());
                break;
            }
        }
    }

    /// Closes the batch under construction if it is time to.
    pub(super) fn close_on_time(&mut self, ctx: &mut Ctx<'_>) {
        let has_messages = self.sink.outlet.open_messages() > 0;
        if !has_messages && !self.progress.is_behind(self.sink.last) {
            return;
        }
        let most = self.spec.plan.max_in_flight_batches as usize;
        let open = Open::new(has_messages, self.sink.outlet.in_flight(), most);
        match self.intake.linger.until(ctx.now.mono, open) {
            Some(until) => self.wake(Some(until)),
            None => self.submit(ctx),
        }
    }

    /// The chunk to go on with, unless something comes before it.
    fn next_chunk(&mut self, ctx: &mut Ctx<'_>) -> Option<Bytes> {
        let waits = self.has_more() || !matches!(self.stage, Stage::Streaming);
        if waits || self.intake.chunk.is_none() || self.must_wait(ctx) {
            return None;
        }
        self.intake.chunk.take()
    }

    /// Messages may be many times larger than the rows they were made of: every so often this
    /// looks whether there is room for more. If not, what is there is closed; its acks make room.
    fn is_short(&mut self, ctx: &mut Ctx<'_>) -> bool {
        let open = self.sink.outlet.open_bytes();
        if open < self.intake.looked_at + STEP_BYTES {
            return false;
        }
        self.intake.looked_at = open;
        if self.has_room(ctx) {
            return false;
        }
        self.submit(ctx);
        self.must_wait(ctx)
    }

    /// No room, and acks that will make some.
    fn must_wait(&mut self, ctx: &mut Ctx<'_>) -> bool {
        !self.sink.outlet.is_empty() && !self.has_room(ctx)
    }

    /// The same for a piece of a spill file. A message that is half there goes on: nothing else
    /// makes room for its rest.
    fn must_wait_to_replay(&mut self, ctx: &mut Ctx<'_>) -> bool {
        let half = self.intake.stream.as_ref().map_or(0, |stream| stream.returning().1);
        half < READ_BYTES as usize && self.must_wait(ctx)
    }

    fn has_more(&self) -> bool {
        self.intake.stream.as_ref().is_some_and(Stream::has_more)
    }

    /// What the last message amounts to beyond its first item.
    fn read_more(&mut self, ctx: &mut Ctx<'_>) {
        while self.has_more() && self.intake.spilling == 0 && self.intake.deferred.is_none() {
            if self.is_short(ctx) {
                return;
            }
            let Some(stream) = &mut self.intake.stream else { return };
            let taken = match stream.more() {
                Ok(Some(item)) => self.sink.item(item),
                Ok(None) => break,
                Err(error) => Err(Trouble::Stream(error)),
            };
            match taken {
                Ok(After::Spill(op @ Spill::Read { .. })) if self.must_wait_to_replay(ctx) => {
                    self.intake.deferred = Some(op);
                }
                Ok(after) => self.after(ctx, after),
                Err(trouble) => return self.stream_failed(ctx, trouble),
            }
        }
    }

    /// One message of the server.
    fn message(&mut self, ctx: &mut Ctx<'_>, body: &[u8]) -> Result<(), Trouble> {
        let Some(stream) = &mut self.intake.stream else { return Ok(()) };
        let item = stream.message(body).map_err(Trouble::Stream)?;
        match self.sink.item(item)? {
            After::Nothing => {}
            after => self.after(ctx, after),
        }
        if self.sink.outlet.is_full() {
            self.submit(ctx);
        }
        Ok(())
    }

    fn after(&mut self, ctx: &mut Ctx<'_>, after: After) {
        match after {
            After::Nothing => {}
            After::Ended { final_lsn, end_lsn, rows } => {
                let spans = self.progress.transaction_ended(end_lsn, rows);
                self.passed(ctx, final_lsn, end_lsn);
                // What it began in an earlier batch can be given up with nothing behind it (C5).
                if spans {
                    self.submit(ctx);
                }
            }
            After::Keepalive { wal_end, reply_requested } => {
                let between = self.intake.stream.as_ref().is_none_or(Stream::is_between);
                let verdict =
                    self.progress.keepalive(ctx.now.mono, wal_end, reply_requested, between);
                self.obey(ctx, verdict);
            }
            After::Spill(op) => self.spill(ctx, op),
        }
    }

    pub(super) fn spill(&mut self, ctx: &mut Ctx<'_>, op: Spill) {
        self.intake.spilling += 1;
        if let Spill::Append { bytes, .. } = &op {
            self.intake.spill_bytes += bytes.len() as u64;
        }
        ctx.out.push(Command::Spill { feed: self.spec.id, op });
    }

    /// The end of an operation on a spill file, with what was read.
    pub fn spilled(&mut self, ctx: &mut Ctx<'_>, result: Result<Vec<u8>, String>) {
        self.intake.spilling = self.intake.spilling.saturating_sub(1);
        if self.intake.spilling == 0 {
            self.intake.spill_bytes = 0;
        }
        match (result, &mut self.intake.stream) {
            (Ok(bytes), Some(stream)) if !bytes.is_empty() => {
                if let Err(error) = stream.spilled(&bytes) {
                    self.stream_failed(ctx, Trouble::Stream(error));
                }
            }
            (Ok(_), _) => {}
            (Err(why), _) if matches!(self.stage, Stage::Streaming) => {
                self.hold(ctx, reason::SPILL_FAILED, why);
            }
            (Err(_), _) => {}
        }
    }

    fn stream_failed(&mut self, ctx: &mut Ctx<'_>, trouble: Trouble) {
        match trouble {
            Trouble::Stream(error) if error.is_transient() => {
                // Asked for as text, its values can be read.
                self.intake.no_binary |= matches!(error, StreamError::NoBinaryForm { .. });
                self.stream_broken(ctx, &error.to_string());
            }
            Trouble::Stream(error) => {
                let stopped = condition(reason::UPSTREAM_UNSUITED, error.to_string(), ctx.now);
                self.fail(ctx, stopped);
            }
            Trouble::Row(error) => {
                let reason = match &error {
                    RowError::Route(_) => reason::ROUTING_COLUMN_MISSING,
                    RowError::Envelope(_) => reason::PAYLOAD_COLUMN,
                };
                let stopped = condition(reason, error.to_string(), ctx.now);
                self.fail(ctx, stopped);
            }
        }
    }

    /// Closes the batch under construction.
    pub(super) fn submit(&mut self, ctx: &mut Ctx<'_>) {
        if self.passing.is_some() {
            return;
        }
        let last = self.sink.last.take();
        let messages = self.sink.outlet.open_messages();
        if messages == 0 && !self.progress.is_behind(last) {
            return;
        }
        self.intake.looked_at = 0;
        self.intake.linger.closed(ctx.now.mono, self.sink.outlet.open_bytes());
        let batch = self.sink.outlet.close(ctx.now.mono);
        self.progress.submitted(ctx.now.mono, batch, last, messages);
    }

    /// Some destination acked lately, or owes nothing: only reading can show whether it moves.
    fn is_moving(&self, now: Millis) -> bool {
        let quiet = now.since(self.progress.acked_at);
        let lately = quiet.as_millis() < u128::from(MOVING_MS);
        lately || self.sink.outlet.is_empty() || self.sink.outlet.has_idle()
    }

    fn has_room(&mut self, ctx: &mut Ctx<'_>) -> bool {
        self.has_room_for(ctx, u64::from(READ_BYTES))
    }

    /// Buffers that hold nothing give way.
    fn has_room_for(&mut self, ctx: &mut Ctx<'_>, bytes: u64) -> bool {
        let moving = self.is_moving(ctx.now.mono);
        self.account(ctx);
        if ctx.budget.available(&self.holding, moving) >= bytes {
            return true;
        }
        self.sink.outlet.trim();
        self.account(ctx);
        ctx.budget.available(&self.holding, moving) >= bytes
    }

    /// Tells the books what is held.
    pub(super) fn account(&mut self, ctx: &mut Ctx<'_>) {
        let waiting = self.sink.outlet.bytes() as u64;
        let asked = if self.intake.reading { self.intake.granted } else { 0 };
        let was_in = self.intake.in_slot;
        let large = self.in_slot();
        ctx.budget.keep(&mut self.holding, asked, waiting + self.intake.bytes(), large);
        // Another large message asks anew: others may have waited longer.
        let is_free = self.intake.in_slot == InSlot::Nothing;
        if is_free && (was_in != InSlot::Nothing || self.intake.large.is_none()) {
            self.release_slot(ctx);
        }
    }

    /// Bytes held of the message that the slot is for.
    fn in_slot(&mut self) -> u64 {
        match self.intake.in_slot {
            InSlot::Nothing => 0,
            InSlot::Chunk => self.intake.chunk.as_ref().map_or(0, Bytes::len) as u64,
            InSlot::Batches(first, until, bytes) => {
                if self.sink.outlet.holds(first..until) || self.intake.spilling > 0 {
                    return bytes;
                }
                self.intake.in_slot = InSlot::Nothing;
                0
            }
        }
    }

    /// Grants the next read if everything that was read has its place (C2, G6).
    pub(super) fn grant(&mut self, ctx: &mut Ctx<'_>) {
        let Intake { reading, chunk, spilling, deferred, .. } = &self.intake;
        let busy = *reading || chunk.is_some() || *spilling > 0 || deferred.is_some();
        if !matches!(self.stage, Stage::Streaming) || busy || self.has_more() {
            return;
        }
        let most_batches = self.spec.plan.max_in_flight_batches as usize;
        if self.sink.outlet.in_flight() >= most_batches || ctx.lane.failing() {
            return;
        }
        let largest = match self.intake.large {
            None => LARGEST_PLAIN,
            Some(size) if u64::from(size) > LARGE_SLOT => return self.far_too_large(ctx, size),
            Some(size) => size,
        };
        let wanted = u64::from(largest.max(READ_BYTES));
        // Only the large message itself comes through the slot, one at a time.
        let is_for_slot = self.intake.large.is_some() && self.intake.in_slot == InSlot::Nothing;
        let has_place = is_for_slot && self.intake.slot == Slot::Held
            || self.has_room_for(ctx, wanted) && {
                let moving = self.is_moving(ctx.now.mono);
                ctx.budget.reserve(&mut self.holding, wanted, moving)
            };
        if !has_place {
            if wanted > ctx.budget.ceiling() && self.intake.slot == Slot::None {
                self.intake.slot = Slot::Wanted;
                let feed = self.spec.id;
                ctx.out.push(Command::Control(ToControl::LargeSlotWanted { feed }));
            }
            return;
        }
        self.intake.reading = true;
        self.intake.granted = wanted;
        let read = PgCommand::Read { most: READ_BYTES, largest };
        let conn = self.sessions.replication.conn;
        ctx.out.push(Command::Pg { conn, command: read });
    }

    fn far_too_large(&mut self, ctx: &mut Ctx<'_>, size: u32) {
        let slot = &self.entry.slot;
        let tx = self.intake.stream.as_ref().and_then(Stream::transaction);
        let place = match tx {
            Some(TxHead { xid, final_lsn, .. }) => format!(
                "transaction {xid}, committed at {final_lsn} (SELECT \
                 pg_replication_slot_advance('{slot}', '{}') goes past it)",
                Lsn(final_lsn.0.saturating_add(1))
            ),
            None => format!("the transaction behind {}", self.progress.ended),
        };
        let detail = format!(
            "a change of {size} bytes in {place}; at most {LARGE_SLOT} fit a message of Iggy"
        );
        let stopped = condition(reason::ROW_TOO_LARGE, detail, ctx.now);
        self.fail(ctx, stopped);
    }

    /// The daemon-wide slot is ours, if it still is of use.
    pub fn granted(&mut self, ctx: &mut Ctx<'_>) {
        self.intake.slot = Slot::Held;
        ctx.budget.hold_slot(&mut self.holding, Some(0));
        if self.intake.large.is_none() {
            self.release_slot(ctx);
        }
    }

    pub(super) fn release_slot(&mut self, ctx: &mut Ctx<'_>) {
        if self.intake.slot == Slot::Held {
            self.intake.slot = Slot::None;
            ctx.budget.hold_slot(&mut self.holding, None);
            let feed = self.spec.id;
            ctx.out.push(Command::Control(ToControl::LargeSlotReleased { feed }));
        }
    }
}

/// What an item asks of the capture beyond its row.
pub(super) enum After {
    Nothing,
    /// `rows`: some of it are in the batch under construction.
    Ended {
        final_lsn: Lsn,
        end_lsn: Lsn,
        rows: bool,
    },
    Keepalive {
        wal_end: Lsn,
        reply_requested: bool,
    },
    Spill(Spill),
}

/// Why reading cannot go on.
pub(super) enum Trouble {
    Stream(StreamError),
    Row(RowError),
}

impl super::sink::Sink {
    /// Takes an item in; what is not a row comes back.
    #[inline(always)]
    pub(super) fn item(&mut self, item: Item<'_, '_>) -> Result<After, Trouble> {
        Ok(match item {
            Item::Row(row) => {
                self.row(&row).map_err(Trouble::Row)?;
                After::Nothing
            }
            Item::TransactionEnd { end_lsn, final_lsn, .. } => {
                After::Ended { final_lsn, end_lsn, rows: self.last.take().is_some() }
            }
            Item::Keepalive { wal_end, reply_requested } => {
                After::Keepalive { wal_end, reply_requested }
            }
            Item::Spill(op) => After::Spill(op),
            Item::Nothing => After::Nothing,
        })
    }
}
