//! Giving up what cannot be delivered, by the operator's word (C5): data loss, recorded as a gap.
//!
//! ```text
//! the end is read      gap, position ─▶ saved ─▶ answered, told the server
//! it is not read yet   rows are passed over ─▶ the end is read ─▶ as above
//! ```
//! Never into the middle of a transaction. One that does not fit the buffers is read to its end
//! without keeping its rows; until then the position stays, and a crash forgets the order.

use super::Capture;
use super::progress::Boundary;
use crate::ingest::postgres_cdc::position::Position;
use crate::pg_wire::Lsn;
use crate::shard::event::{Command, ToControl};
use crate::shard::order::{Abandon, Answer, Refused};
use crate::shard::pipeline::feed::Ctx;
use crate::statefile::LsnGap;

/// An order that was carried out, before that is on disk.
pub(super) struct GivenUp {
    order: u64,
    generation: u64,
    words: String,
}

/// A transaction whose rows are passed over until its end.
pub(super) struct Passing {
    pub order: u64,
    pub final_lsn: Lsn,
}

impl Capture {
    /// Gives up what waits, up to the end of a transaction. The gap and the position are on disk
    /// before the slot moves and before this is called done.
    pub fn abandon(&mut self, ctx: &mut Ctx<'_>, order: u64, range: Abandon) {
        if let Err(why) = self.try_abandon(ctx, order, range) {
            answer(ctx, order, Err(Refused::Conflict(why)));
        }
    }

    /// Answers the orders whose outcome is on disk.
    pub(super) fn answer_orders(&mut self, ctx: &mut Ctx<'_>) {
        for GivenUp { order, words, .. } in
            self.given_up.extract_if(.., |given_up| ctx.lane.reached(given_up.generation))
        {
            let answer = Ok(words);
            ctx.out.push(Command::Control(ToControl::Abandoned { order, answer }));
        }
    }

    /// A transaction ended; it may be the one that is passed over.
    pub(super) fn passed(&mut self, ctx: &mut Ctx<'_>, final_lsn: Lsn, end: Lsn) {
        let Some(passing) = self.passing.take_if(|passing| final_lsn >= passing.final_lsn) else {
            return;
        };
        self.sink.given_up = None;
        self.progress.passed_to(ctx.now.mono, end);
        let first = Lsn(self.entry.end_lsn);
        self.set_position(Position::at(end));
        self.give_up(ctx, passing.order, first, end);
    }

    /// The rows of the transaction that is passed over will come again.
    pub(super) fn stop_passing(&mut self, ctx: &mut Ctx<'_>, why: &str) {
        if let Some(passing) = self.passing.take() {
            self.sink.given_up = None;
            self.progress.restart(&self.entry);
            answer(ctx, passing.order, Err(Refused::Conflict(why.into())));
        }
    }

    fn try_abandon(&mut self, ctx: &mut Ctx<'_>, order: u64, range: Abandon) -> Result<(), String> {
        if self.draining {
            return Err("the daemon is stopping".into());
        }
        let Some(oldest) = self.oldest_pending() else {
            return Err("nothing waits: every row that was read is acked".into());
        };
        if oldest.0 != range.oldest {
            let asked = Lsn(range.oldest);
            return Err(format!("the stuck position is {oldest}, not {asked} any more"));
        }
        self.submit(ctx);
        let through = range.through.map(Lsn);
        let Some(Boundary { batch, end, takes_more }) = self.progress.boundary(through) else {
            return self.pass_over(ctx, order, through);
        };
        if let Some(through) = through.filter(|_| takes_more) {
            return Err(format!(
                "what holds {through} was sent together with transactions behind it, and is given \
                 up with them or not at all: the first end that can be given up is {end}"
            ));
        }
        let first = Lsn(self.entry.end_lsn);
        self.progress.given_up(batch);
        self.sink.outlet.abandon(ctx.now.mono, batch);
        self.advance(ctx);
        self.give_up(ctx, order, first, end);
        Ok(())
    }

    /// The end of the transaction that is being read is not known yet: nothing more of it is kept.
    fn pass_over(
        &mut self,
        ctx: &mut Ctx<'_>,
        order: u64,
        through: Option<Lsn>,
    ) -> Result<(), String> {
        let unfinished = self.progress.last_unfinished();
        let final_lsn = unfinished.filter(|lsn| through.is_none_or(|through| through <= *lsn));
        let Some(final_lsn) = final_lsn else {
            return Err("the transaction that holds that position has not been read yet".into());
        };
        let last = self.sink.outlet.close(ctx.now.mono);
        self.sink.outlet.abandon(ctx.now.mono, last);
        self.progress.pass_over(&self.entry);
        self.sink.given_up = Some(final_lsn);
        self.passing = Some(Passing { order, final_lsn });
        Ok(())
    }

    /// Records what is lost; the position stands behind it already.
    fn give_up(&mut self, ctx: &mut Ctx<'_>, order: u64, first: Lsn, end: Lsn) {
        let found_at = ctx.now.wall.0;
        let why = "given up by the operator".into();
        self.entry.record_gap(LsnGap { first: first.0, last: end.0, found_at, why });
        self.entry.last_abandon_at = found_at;
        let generation = self.save_first(ctx);
        let words = format!("gave up what was not acked of {first} to {end}");
        self.given_up.push(GivenUp { order, generation, words });
    }
}

fn answer(ctx: &mut Ctx<'_>, order: u64, answer: Answer) {
    ctx.out.push(Command::Control(ToControl::Abandoned { order, answer }));
}
