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
use crate::batch::{FeedId, TopicName};
use crate::commit::policy::Backoff;
use crate::config::CapturePlan;
use crate::fanout::outlet::Token;
use crate::iggy_wire::{Reply, Request, ServerError};
use crate::shard::ballot;
use crate::shard::event::{ConnId, Failure};
use crate::shard::nodes::Nodes;
use crate::shard::pipeline::conns::{Purpose, Side, Waiter, Wish};
use crate::shard::pipeline::feed::Ctx;
use crate::shard::pipeline::resume::TOPIC_REPLY;
use crate::shard::pipeline::search::WALK_AFTER;
use crate::shard::pipeline::strangers::Strangers;
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
    /// Of these, the ones that were not configured and were asked for a topic of ours.
    vetted: BTreeMap<Arc<str>, Vetting>,
    strangers: Strangers,
}

/// What a node that was not configured is to show, and whether it did.
#[derive(Debug)]
struct Vetting {
    topic: TopicName,
    /// µs.
    created_at: u64,
    is_known: bool,
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

    /// The node behind this connection was configured, or showed that it is of the cluster.
    pub fn trusts(&self, ctx: &Ctx<'_>, conn: ConnId) -> bool {
        let guest = ctx.conns.slot(conn).guest();
        guest.is_none_or(|node| self.vetted.get(node).is_some_and(|vetting| vetting.is_known))
    }

    /// Nobody is led there any more.
    fn shun(&mut self, node: &Arc<str>, why: String, now: Millis) {
        self.strangers.met(node, why, now);
        self.vetted.remove(node);
        for guide in self.walkers.values_mut() {
            guide.node.take_if(|led| led == node);
        }
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

    /// Asks the nodes that were not configured for a topic of ours, before anything goes there.
    pub(super) fn vet(&mut self, ctx: &mut Ctx<'_>) {
        let Guides { walkers, nodes, vetted, .. } = &mut self.guides;
        let up = |conns: &[ConnId]| conns.iter().copied().find(|conn| ctx.conns.is_up(*conn));
        // Whoever answers there next may be another one.
        vetted.retain(|node, _| nodes.get(node).is_some_and(|conns| up(conns).is_some()));
        let mut asked = Vec::new();
        for (node, conns) in nodes.iter().filter(|(node, _)| !vetted.contains_key(*node)) {
            let Some(conn) = up(conns).filter(|conn| ctx.conns.slot(*conn).guest().is_some())
            else {
                continue;
            };
            let lane = walkers.iter().find_map(|(walker, guide)| match walker {
                Walker::Lane(lane) if guide.node.as_ref() == Some(node) => Some(*lane),
                _ => None,
            });
            if let Some((topic, created_at)) = self.sink.outlet.identity(lane) {
                let vetting = Vetting { topic, created_at, is_known: false };
                asked.push((node.clone(), conn, vetting));
            }
        }
        for (node, conn, vetting) in asked {
            let (stream, topic) = (vetting.topic.stream.clone(), vetting.topic.topic.clone());
            vetted.insert(node, vetting);
            let waiter = Waiter { feed: self.spec.id, round: 0, purpose: Purpose::Vet };
            let request = Request::Topic { stream, topic };
            ctx.conns.request(conn, request, TOPIC_REPLY, waiter, ctx.out);
        }
    }

    /// What a node showed that was not configured.
    pub fn vetted(&mut self, ctx: &mut Ctx<'_>, conn: ConnId, answer: Result<Reply, Failure>) {
        let Some(node) = ctx.conns.slot(conn).guest().cloned() else { return };
        let Some(vetting) = self.guides.vetted.get_mut(&node) else { return };
        // No answer says nothing: it is asked again.
        let Ok(Reply::Topic(info)) = answer else {
            self.guides.vetted.remove(&node);
            return;
        };
        let why = ballot::stranger(info.as_ref(), &vetting.topic, vetting.created_at);
        let Some(why) = why else {
            vetting.is_known = true;
            return self.guides.strangers.admit(&node);
        };
        self.guides.shun(&node, why.clone(), ctx.now.mono);
        self.error(format!("{node} {why}"));
        self.note(ctx, true, format!("{node} is left alone for a while: it {why}"));
        for conn in self.guides.forgotten() {
            ctx.conns.release(self.spec.id, conn, ctx.out);
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
        let (strangers, now) = (&self.guides.strangers, ctx.now.mono);
        let can_reach = |address: &Arc<str>| {
            let wish = wish(id, &plan, address);
            !strangers.shuns(address, now) && ctx.conns.unreachable(wish, now).is_none()
        };
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
