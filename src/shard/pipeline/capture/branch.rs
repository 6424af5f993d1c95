//! A server whose log is not the one that was read: promoted behind a fork, or restored (P1).
//!
//! Set-up judges the saved position alone. What was read behind it waits in the lanes, and is part
//! of the new log only as far as both have the same past.

use super::Capture;
use super::progress::position_of;
use crate::ingest::postgres_cdc::SetupDone;
use crate::pg_wire::Lsn;
use crate::shard::pipeline::feed::Ctx;
use crate::shard::reason;

impl Capture {
    /// Forgets what was read of another log than that of `done`. `false`: acks have moved the
    /// position out of it since set-up began, which therefore begins again.
    pub(super) fn follow(&mut self, ctx: &mut Ctx<'_>, done: &SetupDone) -> bool {
        if !self.started {
            return true;
        }
        let timeline = self.entry.timeline;
        let left = done.timelines.end_of(timeline).unwrap_or(Lsn::INVALID);
        let end = left.min(done.wal_end);
        let position = position_of(&self.entry);
        if position.end_lsn > end {
            let at = position.end_lsn;
            let detail = format!(
                "the server's log has timeline {timeline} up to {end}, and acks moved the position \
                 to {at} while that was looked at; it is looked at again"
            );
            self.hold(ctx, reason::CAPTURE_WAITING, detail);
            return false;
        }
        if !position.lies_before(end) {
            self.entry.unfinished = None;
        }
        let read = self.progress.read_until();
        if !read.lies_before(end) {
            let messages = self.progress.messages_beyond(end);
            self.forget(ctx);
            let text = format!(
                "timeline_left: timeline {timeline} was read up to {}, and the server now is on \
                 timeline {} with the past of it up to {end}; what lies behind is read anew, and \
                 up to {messages} messages were sent of transactions that are in no log any more",
                read.end_lsn, done.timeline
            );
            self.error(text.clone());
            self.note(ctx, true, text);
        }
        true
    }
}
