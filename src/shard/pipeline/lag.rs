//! An upstream of several nodes (M5): it is read at a configured address, which may be a follower.
//!
//! What a follower shows is committed, so other messages than those copied are another history
//! wherever they are seen; but that its log ends early says only that it lags. The end of a
//! log is therefore never a reason to stop or to start over there: the feed waits, and says so.

use super::conns::Purpose;
use super::feed::{Ctx, Feed};
use super::resume::TOPIC_REPLY;
use crate::iggy_wire::Request;
use crate::shard::nodes::Nodes;

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

    /// What was seen of a log that ends early, and why it decides nothing if it does not.
    pub(super) fn words_of_lag(&self, ctx: &Ctx<'_>, detail: String) -> String {
        if !self.upstream_may_lag(ctx) {
            return detail;
        }
        let node = ctx.conns.slot(self.up).address();
        format!(
            "{detail}; {node} is one of several nodes and may lag, so this alone decides nothing"
        )
    }
}
