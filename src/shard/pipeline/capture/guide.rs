//! Which node of the destination's cluster takes what (M14).
//!
//! Each partition is led by a node of its own, and topics are made at the one that leads the
//! metadata. What a node refuses (58) was never admitted, so it is sent again wherever it may be
//! taken; after [`WALK_AFTER`] of refusals that lane, or all look-ups together, go to the next
//! node, and stay with the one that takes them. Everything else goes where it went.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Capture;
use super::outflow::CONNECTIONS;
use crate::batch::FeedId;
use crate::commit::policy::Backoff;
use crate::config::CapturePlan;
use crate::fanout::outlet::Token;
use crate::iggy_wire::{Reply, Request, ServerError};
use crate::shard::event::{ConnId, Failure};
use crate::shard::nodes::Nodes;
use crate::shard::pipeline::conns::{Purpose, Side, Waiter, Wish};
use crate::shard::pipeline::feed::Ctx;
use crate::shard::pipeline::resume::TOPIC_REPLY;
use crate::shard::pipeline::search::WALK_AFTER;
use crate::time::Millis;

/// What walks by itself: one lane, or the making of topics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Walker {
    Lane(u32),
    Metadata,
}

/// Where walkers were led to. Those that were never refused are not in it.
#[derive(Debug, Default)]
pub(super) struct Guides {
    walkers: BTreeMap<Walker, Guide>,
    /// Connections to nodes that some walker was led to.
    nodes: BTreeMap<Arc<str>, Vec<ConnId>>,
}

#[derive(Debug, Default)]
struct Guide {
    node: Option<Arc<str>>,
    /// Since when what it asks is refused.
    refused_since: Option<Millis>,
    /// The node tried last, as an index.
    tried: Option<usize>,
}

impl Walker {
    pub fn of(token: Token) -> Walker {
        match token {
            Token::Send(lane) => Walker::Lane(lane.number()),
            Token::Ensure(_) => Walker::Metadata,
        }
    }
}

impl Guides {
    /// The connections to the node that this one was led to.
    pub fn conns(&self, walker: Walker) -> Option<&[ConnId]> {
        let node = self.walkers.get(&walker)?.node.as_ref()?;
        self.nodes.get(node).map(Vec::as_slice)
    }

    /// Every connection to a node that somebody was led to.
    pub fn all(&self) -> impl Iterator<Item = ConnId> {
        self.nodes.values().flatten().copied()
    }

    /// It was taken here.
    fn accepted(&mut self, walker: Walker) {
        if let Some(guide) = self.walkers.get_mut(&walker) {
            (guide.refused_since, guide.tried) = (None, None);
        }
    }

    /// Connections to nodes that nobody is led to any more.
    fn forgotten(&mut self) -> Vec<ConnId> {
        let is_used =
            |node: &Arc<str>| self.walkers.values().any(|guide| guide.node.as_ref() == Some(node));
        self.nodes.extract_if(.., |node, _| !is_used(node)).flat_map(|(_, conns)| conns).collect()
    }
}

impl Capture {
    /// An answer says whether this is the node to ask.
    pub(super) fn heed(
        &mut self,
        ctx: &mut Ctx<'_>,
        conn: ConnId,
        token: Token,
        answer: &Result<Reply, Failure>,
    ) {
        let walker = Walker::of(token);
        match answer {
            // Looking is allowed everywhere, and says nothing about making.
            Ok(Reply::Topic(_) | Reply::Options(_)) => {}
            Ok(_) => self.guides.accepted(walker),
            Err(Failure::Refused(code)) if (ServerError { code: *code }).is_not_accepted() => {
                self.not_accepted(ctx, conn, walker);
            }
            Err(_) => {}
        }
    }

    fn not_accepted(&mut self, ctx: &mut Ctx<'_>, conn: ConnId, walker: Walker) {
        if ctx.conns.takes_roster(conn) {
            let waiter = Waiter { feed: self.spec.id, round: 0, purpose: Purpose::Roster };
            ctx.conns.request(conn, Request::ClusterMetadata, TOPIC_REPLY, waiter, ctx.out);
        }
        let now = ctx.now.mono;
        let guide = self.guides.walkers.entry(walker).or_default();
        let since = *guide.refused_since.get_or_insert(now);
        if now.since(since) >= WALK_AFTER {
            guide.refused_since = Some(now);
            self.walk(ctx, conn, walker);
        }
    }

    /// On to the next node that can be reached.
    fn walk(&mut self, ctx: &mut Ctx<'_>, conn: ConnId, walker: Walker) {
        let all = ctx.conns.nodes(conn).map(Nodes::to_try).unwrap_or_default();
        let Some(guide) = self.guides.walkers.get_mut(&walker) else { return };
        let slot = ctx.conns.slot(conn);
        let is_here = |address: &Arc<str>| slot.is_at(address);
        let last = guide.tried.or_else(|| all.iter().position(is_here));
        let from = last.map_or(0, |last| last + 1);
        let id = self.spec.id;
        let plan = self.spec.plan.clone();
        let can_reach =
            |address| ctx.conns.unreachable(wish(id, &plan, address), ctx.now.mono).is_none();
        let mut next = (from..from + all.len()).map(|index| index % all.len());
        let next = next.find(|index| !is_here(&all[*index]) && can_reach(&all[*index]));
        let Some(next) = next else { return };
        let (here, node) = (slot.address().to_owned(), all[next].clone());
        (guide.tried, guide.node) = (Some(next), Some(node.clone()));
        let backoff = || Backoff::new(plan.retry_interval, plan.max_retry_interval);
        if !self.guides.nodes.contains_key(&node) {
            let assign = |_| ctx.conns.assign(wish(id, &plan, &node), ctx.now.mono, backoff());
            let conns = (0..CONNECTIONS).map(assign).collect();
            self.guides.nodes.insert(node.clone(), conns);
        }
        for conn in self.guides.forgotten() {
            ctx.conns.release(id, conn, ctx.out);
        }
        let what = match walker {
            Walker::Lane(_) => "sends",
            Walker::Metadata => "new topics",
        };
        self.note(ctx, false, format!("{here} does not accept {what} (58): trying {node}"));
    }
}

fn wish<'a>(feed: FeedId, plan: &'a CapturePlan, node: &'a Arc<str>) -> Wish<'a> {
    let (source, cluster) = (&plan.key, &plan.to);
    Wish { feed, source, side: Side::Downstream, cluster, node: Some(node) }
}
