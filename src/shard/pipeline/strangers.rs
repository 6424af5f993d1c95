//! Addresses that the destination's nodes name and that lead to another cluster (M12, M14).
//!
//! A roster may be old, a network may translate, an address may have been given to somebody else.
//! So a node that was not configured must show the topic that a configured address shows, and
//! nothing is ever concluded from one that does not: no lost destination, no other history. The
//! feed goes back to the configured addresses, leaves that one alone for a while, and says so.

use std::sync::Arc;
use std::time::Duration;

use super::feed::{Ctx, Feed};
use crate::iggy_wire::TopicInfo;
use crate::shard::ballot;
use crate::shard::nodes::Nodes;
use crate::shard::snapshot::ForeignNode;
use crate::time::Millis;

/// How long an address is left alone: it may be a follower that has yet to hear of the topic.
pub const LEFT_ALONE: Duration = Duration::from_secs(60);

/// The identity that counts, and who shows another one.
#[derive(Debug, Default)]
pub(super) struct Strangers {
    /// Creation time of the topic as a configured address showed it last.
    home: Option<u64>,
    known: Vec<Stranger>,
}

#[derive(Debug)]
struct Stranger {
    node: ForeignNode,
    until: Millis,
}

impl Strangers {
    /// What a configured address shows; another topic there makes strangers of nobody.
    fn home_shows(&mut self, info: Option<&TopicInfo>) {
        let home = info.map(|info| info.created_at);
        if self.home != home {
            self.known.clear();
        }
        self.home = home;
    }

    /// Whether the address is left alone.
    pub(super) fn shuns(&self, address: &str, now: Millis) -> bool {
        let is_it = |known: &Stranger| *known.node.address == *address && known.until > now;
        self.known.iter().any(is_it)
    }

    /// The address shows another topic, or none.
    pub(super) fn met(&mut self, address: &Arc<str>, why: String, now: Millis) {
        self.known.retain(|known| known.node.address != *address);
        let node = ForeignNode { address: address.clone(), why };
        self.known.push(Stranger { node, until: now + LEFT_ALONE });
    }

    /// The address shows the right topic.
    pub(super) fn admit(&mut self, address: &str) {
        self.known.retain(|known| *known.node.address != *address);
    }

    /// What a node of the cluster names is known: an address that it does not is nobody's business
    /// any more.
    pub(super) fn keep_named(&mut self, nodes: &Nodes) {
        self.known.retain(|known| nodes.names(&known.node.address));
    }

    /// For status.
    pub(super) fn shown(&self) -> Vec<ForeignNode> {
        self.known.iter().map(|known| known.node.clone()).collect()
    }
}

impl Feed {
    /// Creation time of the destination topic as a configured address shows it.
    pub(super) fn home_identity(&self) -> Option<u64> {
        self.strangers.home
    }

    /// Whether the topic that the node in use shows can be believed; else the feed is on its way
    /// back to the configured addresses.
    pub(super) fn knows_node(&mut self, ctx: &mut Ctx<'_>, info: Option<&TopicInfo>) -> bool {
        let Some(node) = ctx.conns.slot(self.down).guest().cloned() else {
            self.strangers.home_shows(info);
            return true;
        };
        let why = match self.strangers.home {
            Some(home) => ballot::stranger(info, &self.topic().downstream, home),
            None => Some("was reached before any configured address showed the topic".into()),
        };
        let Some(why) = why else {
            self.strangers.admit(&node);
            return true;
        };
        self.is_stranger(ctx, &node, why);
        self.goes_home = true;
        self.restart_resume(ctx);
        false
    }

    /// An address led to another cluster.
    pub(super) fn is_stranger(&mut self, ctx: &mut Ctx<'_>, address: &Arc<str>, why: String) {
        self.error(format!("{address} {why}"));
        self.strangers.met(address, why, ctx.now.mono);
    }

    /// Back to the configured addresses, if that is owed: what was found at one of the cluster's
    /// own has to be seen there too.
    pub(super) fn go_home(&mut self, ctx: &mut Ctx<'_>) {
        if std::mem::take(&mut self.goes_home) {
            self.leave_node(ctx);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shard::event::Place;

    #[test]
    fn only_addresses_that_are_named_are_strangers_m14() {
        let mut strangers = Strangers::default();
        strangers.met(&"10.0.0.9:1".into(), "shows another topic".into(), Millis(0));
        strangers.met(&"10.0.0.1:1".into(), "shows another topic".into(), Millis(0));
        let place = Place { peer: "10.0.0.1:1".into(), address: "10.0.0.1:1".into() };
        strangers.keep_named(&Nodes::new(&["10.0.0.1:1".into()], &[], &place));
        let shown: Vec<_> = strangers.shown().into_iter().map(|node| node.address).collect();
        assert_eq!(shown, ["10.0.0.1:1".into()]);
        assert!(!strangers.shuns("10.0.0.9:1", Millis(1)));
    }
}
