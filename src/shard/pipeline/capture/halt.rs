//! How a capture stops by somebody's word and begins again (C4, T2).

use super::{Capture, Stage};
use crate::pg_wire::replication::copy_done;
use crate::shard::event::{Command, PgCommand};
use crate::shard::pipeline::feed::Ctx;
use crate::shard::reason;
use crate::time::Millis;

impl Capture {
    /// Towards the end: what is out is awaited, for a while; what is queued is not sent.
    pub(super) fn finish(&mut self, ctx: &mut Ctx<'_>) {
        if self.is_ended() {
            return;
        }
        self.say(reason::DRAINING, "", ctx.now);
        self.stop_passing(ctx, "the daemon is stopping");
        self.sink.outlet.drain();
        self.stage = Stage::Finishing { until: ctx.now.mono + self.spec.plan.commit_stop_grace };
        self.turn(ctx);
    }

    pub(super) fn finishing(&mut self, ctx: &mut Ctx<'_>, until: Millis) {
        if self.sink.outlet.outstanding() > 0 && ctx.now.mono < until {
            return self.wake(Some(until));
        }
        self.advance(ctx);
        if !self.started {
            return self.closed(ctx);
        }
        self.entry.clean_stop = self.sink.outlet.is_empty();
        let generation = self.save_first(ctx);
        self.stage = Stage::Closing { generation };
    }

    /// The last position is on disk: the server is told, then both sessions end in order.
    pub(super) fn closed(&mut self, ctx: &mut Ctx<'_>) {
        if self.progress.confirm.is_some() {
            self.write_final_status(ctx);
            let conn = self.sessions.replication.conn;
            let frame = copy_done().to_vec();
            ctx.out.push(Command::Pg { conn, command: PgCommand::Write(frame) });
        }
        self.end_sessions(ctx);
        self.release_slot(ctx);
        self.say(reason::DRAINED, "", ctx.now);
        self.stage = Stage::Ended;
    }

    /// Reads and sends nothing more until somebody says so.
    pub(super) fn rest(&mut self, ctx: &mut Ctx<'_>) {
        if matches!(self.stage, Stage::Paused) {
            return;
        }
        self.say(reason::PAUSED, "", ctx.now);
        self.end_sessions(ctx);
        // The daemon has one such slot: what fills it is read again when it goes on.
        if self.intake.holds_slot() {
            self.forget(ctx);
            self.release_slot(ctx);
        }
        self.stage = Stage::Paused;
    }

    /// Begins again from the saved position, also after an error (T2).
    pub fn begin_again(&mut self, ctx: &mut Ctx<'_>) {
        if self.draining || matches!(self.stage, Stage::Finishing { .. } | Stage::Closing { .. }) {
            return;
        }
        self.forget(ctx);
        self.end_sessions(ctx);
        self.backoff.reset();
        self.say(reason::CONNECTING, "", ctx.now);
        self.begin(ctx);
    }

    /// Everything that waits will be read again, from the position of the entry.
    pub(super) fn forget(&mut self, ctx: &mut Ctx<'_>) {
        self.stop_passing(ctx, "the source begins again from its saved position");
        self.sink.last = None;
        let last = self.sink.outlet.close(ctx.now.mono);
        self.sink.outlet.abandon(ctx.now.mono, last);
        self.progress.restart(&self.entry);
    }
}
