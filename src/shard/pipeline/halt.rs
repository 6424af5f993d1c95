//! How a feed stops moving by somebody's word, and begins again (O2, T2).

use super::feed::{Ctx, Feed, Stage};
use super::lag::Lag;
use crate::shard::event::ConnId;
use crate::shard::reason;

impl Feed {
    /// Reads and sends nothing more; a send that is out is awaited, its outcome stays known.
    pub(super) fn rest(&mut self, ctx: &mut Ctx<'_>) {
        if matches!(self.stage, Stage::Paused) {
            return;
        }
        self.say(reason::PAUSED, "", ctx.now);
        if self.writer.is_waiting() {
            // A word to go on may come before the answer: what was read stays in its place.
            return;
        }
        self.clean |= matches!(self.stage, Stage::Streaming | Stage::Saving { .. })
            && self.unsettled_since.is_none();
        self.drop_buffers(ctx);
        self.forget_sightings(self.up);
        self.forget_sightings(self.down);
        self.round += 1;
        self.stage = Stage::Paused;
    }

    /// A side was not looked at for a while: what has to stay as it is for some time to be
    /// believed begins anew with the next sight of it.
    pub(super) fn forget_sightings(&mut self, side: ConnId) {
        if side == self.up {
            self.lag = Lag::default();
            self.reader.forget_not_ready();
        }
        if side == self.down {
            self.short_tail = None;
            self.absent_since = None;
        }
    }

    /// Begins again from the saved position, as after a start of the daemon (T2).
    pub(super) fn begin_again(&mut self, ctx: &mut Ctx<'_>) {
        if self.draining {
            return;
        }
        self.bad = None;
        self.divergence = None;
        self.diverged_once = false;
        self.backoff.reset();
        self.doubt.ends();
        self.say(reason::CONNECTING, "", ctx.now);
        self.restart_resume(ctx);
    }

    /// Towards the end: what is outstanding is awaited, what is queued is not sent (O2).
    pub(super) fn drain(&mut self, ctx: &mut Ctx<'_>) {
        self.say(reason::DRAINING, "", ctx.now);
        self.writer.clear_queue();
        if self.writer.is_waiting() {
            return;
        }
        self.drop_buffers(ctx);
        if !self.started {
            self.round += 1;
            self.say(reason::DRAINED, "", ctx.now);
            self.stage = Stage::Ended;
            return;
        }
        // Clean only if every outcome is known: acked here, or untouched since a clean start.
        let known = matches!(self.stage, Stage::Streaming | Stage::Saving { .. });
        self.entry.clean_stop = (known || self.clean) && self.unsettled_since.is_none();
        self.round += 1;
        self.save_first(ctx);
        if let Stage::Saving { generation } = self.stage {
            self.stage = Stage::Closing { generation };
        }
    }
}
