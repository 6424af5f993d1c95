//! What a node that lags shows (M5, M6). An upstream of several nodes is read at a configured
//! address, which may be a follower.
//!
//! What a follower shows is committed, so other messages than those copied are another history
//! wherever they are seen; but that its log ends early says only that it lags. The end of a
//! log is therefore never a reason to stop or to start over there: the feed waits, and says so.
//! Nor is a topic that is older than one seen before, on either side: the node has yet to hear
//! that it was made anew. After `reset_grace` the operator is told what else it may be.

use super::conns::Purpose;
use super::feed::{Ctx, Feed};
use super::resume::TOPIC_REPLY;
use crate::batch::TopicName;
use crate::iggy_wire::{Request, TopicInfo};
use crate::shard::nodes::Nodes;
use crate::shard::reason::{self, Reason};
use crate::time::Millis;

/// Since when upstream shows too little, as far as it is looked at.
#[derive(Debug, Default)]
pub struct Lag {
    /// Its log is shorter than what was copied.
    pub(super) short_log: Option<Millis>,
    /// Its topic is older than one that it showed before.
    older_since: Option<Millis>,
}

impl Feed {
    /// Asks which nodes upstream has, once per connection; false if that was done.
    pub(super) fn ask_upstream_roster(&mut self, ctx: &mut Ctx<'_>) -> bool {
        let asks = ctx.conns.takes_roster(self.up);
        if asks {
            self.request(ctx, Request::ClusterMetadata, Purpose::UpstreamRoster, TOPIC_REPLY);
        }
        asks
    }

    /// Whether the node that upstream is read at may be one of several, as long as nothing else is
    /// known.
    pub(super) fn upstream_may_lag(&self, ctx: &Ctx<'_>) -> bool {
        ctx.conns.nodes(self.up).is_none_or(Nodes::are_several)
    }

    /// True if upstream shows an older topic than was seen there before and may lag: the feed waits
    /// until the node has caught up.
    pub(super) fn upstream_is_older(
        &mut self,
        ctx: &mut Ctx<'_>,
        info: Option<&TopicInfo>,
    ) -> bool {
        let known = self.entry.upstream_created_at.max(self.upstream_created_at);
        let Some(seen) = info.map(|info| info.created_at) else { return false };
        if seen >= known || !self.upstream_may_lag(ctx) {
            self.upstream_created_at = seen;
            self.lag.older_since = None;
            return false;
        }
        let since = *self.lag.older_since.get_or_insert(ctx.now.mono);
        let detail = older("upstream", &self.topic().upstream, seen, known);
        let (reason, detail) = self.words_of_lag(ctx, since, detail);
        self.hold(ctx, reason, detail);
        true
    }

    /// Creation time of the newest topic that the destination showed, microseconds.
    pub(super) fn downstream_known(&self) -> u64 {
        self.entry.downstream_created_at.max(self.downstream_created_at)
    }

    /// True if the destination shows an older topic than it did before and may lag.
    pub(super) fn downstream_is_older(
        &mut self,
        ctx: &mut Ctx<'_>,
        info: Option<&TopicInfo>,
    ) -> bool {
        let known = self.downstream_known();
        let Some(seen) = info.map(|info| info.created_at) else { return false };
        if seen >= known || ctx.conns.nodes(self.down).is_some_and(|nodes| !nodes.are_several()) {
            self.downstream_created_at = seen;
            return false;
        }
        let node = ctx.conns.slot(self.down).address();
        let detail = older("destination", &self.topic().downstream, seen, known);
        let detail = format!("{detail}; {node} is one of several nodes and may lag");
        self.hold(ctx, reason::DESTINATION_NOT_READY, detail);
        true
    }

    /// What was seen of an upstream that shows too little since `since`, and why it decides nothing
    /// if it does not. A lag passes; what outlasts `reset_grace` is for the operator to tell.
    pub(super) fn words_of_lag(
        &self,
        ctx: &Ctx<'_>,
        since: Millis,
        detail: String,
    ) -> (Reason, String) {
        if !self.upstream_may_lag(ctx) {
            return (reason::WAITING_UPSTREAM, detail);
        }
        let node = ctx.conns.slot(self.up).address();
        let why = "is one of several nodes and may lag, so this alone decides nothing";
        let detail = format!("{detail}; {node} {why}");
        if ctx.now.mono.since(since) < self.spec.plan.reset_grace {
            return (reason::WAITING_UPSTREAM, detail);
        }
        (reason::UPSTREAM_BEHIND, detail)
    }
}

fn older(side: &str, topic: &TopicName, seen: u64, known: u64) -> String {
    format!(
        "{side} topic {topic} is shown as created at {seen} us, the one created at {known} us was \
         seen before"
    )
}
