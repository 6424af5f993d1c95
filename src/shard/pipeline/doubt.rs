//! Sends that stay unanswered: is it the message, or the destination (M15, M13)?
//!
//! ```text
//! no answer, end unmoved, three times ─▶ halved ─▶ … ─▶ one message ─┬─ others are taken ─▶ stop
//!                                                                   └─ none is ─▶ again, slower
//! ```
//!
//! A destination may answer reads and no sends for hours. A message is found guilty only by three
//! sends that each went out behind the ack of another one, of the same source on this shard,
//! which came after its own trouble began: another partition's, or that of the first part of the
//! record it stood in. A message that nothing can be measured against, first in the only
//! partition that has something to send, is sent again for ever; the feed is degraded and says
//! so. Nothing is sent around it: that would change the order.

use super::feed::{Ctx, Feed, Stage};
use crate::commit::policy::Backoff;
use crate::config::MirrorPlan;
use crate::fanout::dispatch::{Lookup, Suspicion, UNKNOWNS_UNTIL_HALVED};
use crate::shard::reason::{self, Reason};
use crate::time::Millis;

/// What a feed makes of sends without an answer.
pub(super) struct Doubt {
    /// The newest ack of the source when the send under way went out.
    behind: Option<Millis>,
    backoff: Backoff,
    /// The last message sent was not taken, and nobody knows why.
    is_open: bool,
}

impl Doubt {
    pub(super) fn new(plan: &MirrorPlan) -> Doubt {
        let backoff = Backoff::new(plan.retry_interval, plan.max_retry_interval);
        Doubt { behind: None, backoff, is_open: false }
    }

    /// A send goes out; `acked_at` is the newest ack of the source.
    pub(super) fn sends(&mut self, acked_at: Option<Millis>) {
        self.behind = acked_at;
    }

    /// A send was taken. True if that ends a doubt.
    pub(super) fn ends(&mut self) -> bool {
        self.backoff.reset();
        std::mem::take(&mut self.is_open)
    }

    /// While nothing is taken the feed is not running, whatever else works.
    pub(super) fn hides(&self, reason: Reason) -> bool {
        let is_fine = [reason::RUNNING, reason::RESUMING, reason::SETTLING].contains(&reason);
        is_fine && self.is_open
    }
}

impl Feed {
    /// An unknown outcome was looked into: the destination ends where upstream offset `position`
    /// belongs. False if the feed stops or waits.
    pub(super) fn may_send_again(&mut self, ctx: &mut Ctx<'_>, position: u64) -> bool {
        let Some(lost) = self.lost_send.take().filter(|_| self.lost_unanswered) else {
            return true;
        };
        let at = Lookup { now: ctx.now.mono, behind: self.doubt.behind };
        match self.writer.looked(position, lost, at) {
            Suspicion::None if position != lost.0 => {
                self.doubt.ends();
                true
            }
            Suspicion::None | Suspicion::Halved(_) => true,
            Suspicion::Message(offset) => {
                let detail = format!(
                    "the destination never takes the message at upstream offset {offset}: sent \
                     {UNKNOWNS_UNTIL_HALVED} times without an answer, while others were taken"
                );
                self.fail(ctx, reason::BAD_RECORD, detail);
                false
            }
            Suspicion::Outage(offset) => {
                self.wait_in_doubt(ctx, offset);
                false
            }
        }
    }

    fn wait_in_doubt(&mut self, ctx: &mut Ctx<'_>, offset: u64) {
        let detail = format!(
            "the destination answers reads, but no send of the message at upstream offset \
             {offset}, and took no other one since"
        );
        self.error(detail.clone());
        self.doubt.is_open = true;
        self.say(reason::UNANSWERED, detail, ctx.now);
        self.drop_buffers(ctx);
        self.round += 1;
        self.stage = Stage::Held { until: ctx.now.mono + self.doubt.backoff.failed(ctx.rng) };
    }
}
