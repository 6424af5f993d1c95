//! Which node of the destination's cluster a feed sends to (M6, M14).
//!
//! ```text
//! roster ─┬─ one node ─────────────────────────────────────────────▶ Tail
//!         └─ several ─┬─ primary known ──▶ hop there (at most 3) ──▶ Tail
//!                     └─ not known ──▶ ends of the others ─────────▶ Tail ─ lower? ─▶ hop there
//! ```
//!
//! A follower's log may lag, and only the primary takes sends. What a node shows is committed, so
//! the highest end that any node shows is the end; it counts once a majority has answered, and a
//! feed sends from nowhere but a node that shows it. A lower one would take a lag for a lost tail.
//! A refusal (58) is never followed by the same send blindly: the node may have become the primary
//! with more than it showed, so the end is read again; after [`WALK_AFTER`] at the next node.

use std::sync::Arc;
use std::time::Duration;

use super::Pipeline;
use super::conns::{Purpose, Reach, Side, Waiter, Wish};
use super::feed::{Ctx, Feed, Stage};
use super::resume::{LOOK_AGAIN, TOPIC_REPLY};
use crate::commit::policy::Backoff;
use crate::iggy_wire::{Node, PollFrom, Polled, Reply, Request, ServerError};
use crate::ingest::history::end_of_empty_reply;
use crate::shard::event::{Command, ConnId, Failure};
use crate::shard::nodes::{Nodes, address_of};
use crate::shard::reason::{self, Reason};
use crate::time::{Millis, Now};

/// Moves from node to node, each because of what the last one said, before the feed stays where
/// it is for a while (H08).
pub const MOST_HOPS: u32 = 3;
/// How long a node may refuse sends before the next one is tried.
pub const WALK_AFTER: Duration = Duration::from_secs(2);
/// Behind every log's end: a poll there answers where the log ends and no message. Below the
/// range's end, so that a server may add to it.
const BEYOND: u64 = u64::MAX / 2;
/// Largest reply to that: no message comes, so that all nodes can be asked at once within what a
/// resume borrows.
const VOTE_REPLY: u64 = 4096;
/// Nodes named in a detail.
const NAMED: usize = 3;

/// What a feed remembers of its search.
#[derive(Debug, Default)]
pub(super) struct Search {
    /// Moves since an end was settled.
    hops: u32,
    /// Since when the node in use refuses sends.
    refused_since: Option<Millis>,
    /// The node tried last because another refused, as an index.
    tried: Option<usize>,
    /// The highest end another node showed, and which.
    highest: Option<(u64, Arc<str>)>,
    /// Slots of other nodes are visited.
    visits: bool,
}

/// What the search waits for.
#[derive(Debug)]
pub(super) enum Searching {
    /// Which nodes there are.
    Roster,
    /// Which of them leads the partition.
    Primary,
    /// Where the partition ends on the others.
    Ends(Ballot),
}

/// The ends that the other nodes show.
#[derive(Debug)]
pub(super) struct Ballot {
    votes: Vec<Vote>,
    majority: usize,
    /// The node in use is one of those that count.
    counts_home: bool,
    is_advertised: bool,
}

#[derive(Debug)]
struct Vote {
    address: Arc<str>,
    conn: ConnId,
    asked: bool,
    said: Option<Result<u64, String>>,
}

impl Search {
    /// A send was acked, or there is nothing left to send: this is the node.
    pub(super) fn accepted(&mut self) {
        self.refused_since = None;
        self.tried = None;
    }

    /// The end was settled here.
    pub(super) fn settled(&mut self) {
        self.hops = 0;
    }

    /// While nodes refuse what is sent the feed is not running, whatever else works.
    pub(super) fn hides(&self, reason: Reason) -> bool {
        let is_fine = reason == reason::RUNNING || reason == reason::RESUMING;
        is_fine && self.refused_since.is_some()
    }
}

impl Feed {
    /// Asks which nodes there are, once per connection, whoever of its feeds comes first.
    pub(super) fn ask_roster(&mut self, ctx: &mut Ctx<'_>) {
        if ctx.conns.takes_roster(self.down) {
            self.request(ctx, Request::ClusterMetadata, Purpose::Roster, TOPIC_REPLY);
        }
    }

    /// Both topics are identified: reads the end, here or on the node that must be asked.
    pub(super) fn find_node(&mut self, ctx: &mut Ctx<'_>) {
        self.search.highest = None;
        self.ask_roster(ctx);
        match ctx.conns.nodes(self.down).map(Nodes::are_several) {
            None => self.stage = Stage::Searching(Searching::Roster),
            Some(false) => self.ask_tail(ctx),
            Some(true) if ctx.conns.names_primaries(self.down) => {
                self.stage = Stage::Searching(Searching::Primary);
                let topic = self.topic().downstream.clone();
                let partition = self.spec.partition;
                let ask = Request::Primary { stream: topic.stream, topic: topic.topic, partition };
                self.request(ctx, ask, Purpose::Primary, TOPIC_REPLY);
            }
            Some(true) => self.ask_others(ctx, true),
        }
    }

    /// Goes on with whatever the search waits for.
    pub(super) fn search(&mut self, ctx: &mut Ctx<'_>) {
        match &self.stage {
            Stage::Searching(Searching::Roster) if ctx.conns.nodes(self.down).is_some() => {
                self.find_node(ctx);
            }
            Stage::Searching(Searching::Ends(_)) => self.count_votes(ctx),
            _ => {}
        }
    }

    /// The node that leads the partition, as the one in use says.
    pub(super) fn primary(&mut self, ctx: &mut Ctx<'_>, node: &Node) {
        let slot = ctx.conns.slot(self.down);
        match slot.place().and_then(|place| address_of(node, place)) {
            Some(address) if slot.is_at(&address) => self.ask_tail(ctx),
            Some(address) if self.can_reach(ctx, &address) => {
                self.hop(ctx, address, "leads the partition");
            }
            _ => self.ask_others(ctx, true),
        }
    }

    /// The question for the primary has no answer.
    pub(super) fn no_primary(&mut self, ctx: &mut Ctx<'_>, failure: &Failure) {
        match failure {
            Failure::Refused(code) if (ServerError { code: *code }).is_unsupported() => {
                ctx.conns.no_primaries(self.down);
                self.ask_others(ctx, true);
            }
            Failure::Refused(58) => {
                let detail = "the destination partition has no primary at the moment (58)";
                self.say(reason::NOT_ACCEPTED, detail, ctx.now);
                self.look_again_soon(ctx);
            }
            _ => self.resume_failed(ctx, Purpose::Primary, failure),
        }
    }

    /// Asks the other nodes where the partition ends. `reachable`: their advertised addresses may
    /// be used.
    fn ask_others(&mut self, ctx: &mut Ctx<'_>, reachable: bool) {
        let Some(nodes) = ctx.conns.nodes(self.down) else { return self.find_node(ctx) };
        let voters = nodes.voters(reachable);
        let mut ballot = Ballot {
            votes: Vec::new(),
            majority: voters.majority,
            counts_home: false,
            is_advertised: voters.is_advertised,
        };
        for address in voters.addresses {
            if ctx.conns.slot(self.down).is_at(&address) {
                ballot.counts_home = true;
                continue;
            }
            let conn = ctx.conns.visit(self.wish(&address), ctx.now.mono, self.dial_backoff());
            ballot.votes.push(Vote { address, conn, asked: false, said: None });
        }
        self.search.visits = true;
        self.stage = Stage::Searching(Searching::Ends(ballot));
        self.count_votes(ctx);
    }

    fn count_votes(&mut self, ctx: &mut Ctx<'_>) {
        let Stage::Searching(Searching::Ends(ballot)) = &mut self.stage else { return };
        let mut ask = Vec::new();
        for vote in ballot.votes.iter_mut().filter(|vote| vote.said.is_none() && !vote.asked) {
            match ctx.conns.reach(vote.conn, ctx.now.mono) {
                Reach::Up => {
                    vote.asked = true;
                    ask.push(vote.conn);
                }
                Reach::Soon => {}
                Reach::Failed(why) => vote.said = Some(Err(why)),
            }
        }
        let is_open = ballot.votes.iter().any(|vote| vote.said.is_none());
        for conn in ask {
            let poll = self.poll(&self.topic().downstream, PollFrom::Offset(BEYOND), 1);
            let (feed, round) = (self.spec.id, self.round);
            let waiter = Waiter { feed, round, purpose: Purpose::Vote };
            self.outstanding += 1;
            ctx.conns.request(conn, poll, VOTE_REPLY, waiter, ctx.out);
        }
        if !is_open {
            self.decide(ctx);
        }
    }

    /// A node answered, or will not.
    pub(super) fn voted(
        &mut self,
        ctx: &mut Ctx<'_>,
        conn: ConnId,
        answer: Result<&Polled, &Failure>,
    ) {
        let Stage::Searching(Searching::Ends(ballot)) = &mut self.stage else { return };
        let vote = ballot.votes.iter_mut().find(|vote| vote.conn == conn);
        let Some(vote) = vote else { return };
        vote.said = Some(match answer {
            Ok(polled) => Ok(end_of_empty_reply(polled)),
            Err(Failure::Refused(code)) => Err(ServerError { code: *code }.to_string()),
            Err(failure) => Err(format!("{failure:?}")),
        });
        self.count_votes(ctx);
    }

    /// Everybody has answered or cannot.
    fn decide(&mut self, ctx: &mut Ctx<'_>) {
        let Stage::Searching(Searching::Ends(ballot)) = &self.stage else { return };
        let ends = ballot.votes.iter().filter_map(|vote| match vote.said {
            Some(Ok(end)) => Some((end, vote.address.clone())),
            _ => None,
        });
        let ends: Vec<(u64, Arc<str>)> = ends.collect();
        if ends.is_empty() && ballot.is_advertised && !ballot.votes.is_empty() {
            // Nothing of what the cluster advertises can be reached from here.
            return self.ask_others(ctx, false);
        }
        let heard = ends.len() + usize::from(ballot.counts_home);
        if heard < ballot.majority {
            let detail = ballot.words(heard);
            return self.hold(ctx, reason::DESTINATION_NOT_READY, detail);
        }
        self.search.highest = ends.into_iter().reduce(|a, b| if b.0 > a.0 { b } else { a });
        self.ask_tail(ctx);
    }

    /// True if another node showed more than the end read here: the feed goes there.
    pub(super) fn is_behind(&mut self, ctx: &mut Ctx<'_>, end: u64) -> bool {
        let highest = self.search.highest.take().filter(|(highest, _)| *highest > end);
        let Some((highest, address)) = highest else { return false };
        let why = format!("has the partition up to offset {highest}, this one up to {end}");
        self.hop(ctx, address, &why);
        true
    }

    /// Goes where the node in use points, unless the nodes only point at each other.
    fn hop(&mut self, ctx: &mut Ctx<'_>, address: Arc<str>, why: &str) {
        let here = ctx.conns.slot(self.down).address().to_owned();
        if self.search.hops >= MOST_HOPS {
            self.search.hops = 0;
            let detail = format!(
                "{here} was reached after {MOST_HOPS} moves from node to node, and still another \
                 one, {address}, {why}"
            );
            return self.hold(ctx, reason::NOT_ACCEPTED, detail);
        }
        self.search.hops += 1;
        self.restart_resume(ctx);
        self.use_node(ctx, Some(address));
    }

    /// The node in use took no send.
    pub(super) fn not_accepted(&mut self, ctx: &mut Ctx<'_>) {
        let now = ctx.now.mono;
        self.error("the destination did not accept a send (58)");
        self.commit_failures = self.commit_failures.saturating_add(1);
        self.writer.not_accepted(now);
        let others = ctx.conns.nodes(self.down).map(Nodes::to_try).unwrap_or_default();
        if others.len() < 2 {
            return self.say(reason::NOT_ACCEPTED, "code 58, not accepted", ctx.now);
        }
        let here = ctx.conns.slot(self.down).address();
        let detail = format!("code 58, not accepted by {here}");
        self.say(reason::NOT_ACCEPTED, detail, ctx.now);
        let since = *self.search.refused_since.get_or_insert(now);
        if now.since(since) >= WALK_AFTER {
            self.walk(ctx, &others);
        } else if !self.is_balanced() {
            self.look_again_soon(ctx);
        }
    }

    /// On to the next node that can be reached; it is looked at before anything is sent to it.
    fn walk(&mut self, ctx: &mut Ctx<'_>, all: &[Arc<str>]) {
        let is_here = |address: &Arc<str>| ctx.conns.slot(self.down).is_at(address);
        let last = self.search.tried.or_else(|| all.iter().position(is_here));
        let from = last.map_or(0, |last| last + 1);
        let mut next = (from..from + all.len()).map(|index| index % all.len());
        let next = next.find(|index| !is_here(&all[*index]) && self.can_reach(ctx, &all[*index]));
        self.search.refused_since = Some(ctx.now.mono);
        let Some(next) = next else { return self.look_again_soon(ctx) };
        self.search.tried = Some(next);
        self.search.hops = 0;
        self.restart_resume(ctx);
        self.use_node(ctx, Some(all[next].clone()));
    }

    /// The node in use is gone: whichever answers is asked who leads.
    pub(super) fn leave_node(&mut self, ctx: &mut Ctx<'_>) {
        if ctx.conns.slot(self.down).node().is_some() {
            self.use_node(ctx, None);
        }
    }

    /// Other nodes need not be asked any more.
    pub(super) fn end_visits(&mut self, ctx: &mut Ctx<'_>) {
        let is_over = match self.stage {
            Stage::Streaming => self.search.refused_since.is_none(),
            Stage::Paused | Stage::Closing { .. } | Stage::Ended => true,
            _ => false,
        };
        if self.search.visits && is_over {
            self.search.visits = false;
            ctx.conns.leave(self.spec.id, ctx.out);
        }
    }

    fn look_again_soon(&mut self, ctx: &mut Ctx<'_>) {
        self.restart_resume(ctx);
        self.stage = Stage::Held { until: ctx.now.mono + LOOK_AGAIN };
    }

    fn use_node(&mut self, ctx: &mut Ctx<'_>, node: Option<Arc<str>>) {
        let feed = self.spec.id;
        let plan = self.spec.plan.clone();
        let (source, cluster) = (&plan.key, &plan.to);
        let wish = Wish { feed, source, side: Side::Downstream, cluster, node: node.as_ref() };
        ctx.conns.release(feed, self.down, ctx.out);
        self.down = ctx.conns.assign(wish, ctx.now.mono, self.dial_backoff());
    }

    fn can_reach(&self, ctx: &Ctx<'_>, address: &Arc<str>) -> bool {
        ctx.conns.unreachable(self.wish(address), ctx.now.mono).is_none()
    }

    fn wish<'a>(&'a self, address: &'a Arc<str>) -> Wish<'a> {
        let plan = &self.spec.plan;
        let (feed, source, cluster) = (self.spec.id, &plan.key, &plan.to);
        Wish { feed, source, side: Side::Downstream, cluster, node: Some(address) }
    }

    fn dial_backoff(&self) -> Backoff {
        Backoff::new(self.spec.plan.retry_interval, self.spec.plan.max_retry_interval)
    }
}

impl Ballot {
    fn words(&self, heard: usize) -> String {
        let silent = self.votes.iter().filter_map(|vote| match &vote.said {
            Some(Err(why)) => Some(format!("; {}: {why}", vote.address)),
            _ => None,
        });
        let silent: String = silent.take(NAMED).collect();
        let majority = self.majority;
        format!("{heard} nodes say where the destination ends, {majority} are a majority{silent}")
    }
}

impl Pipeline {
    /// What a server says of its nodes; every feed of its slot may have waited for it.
    pub(super) fn rostered(
        &mut self,
        now: Now,
        conn: ConnId,
        result: Result<Reply, Failure>,
        out: &mut Vec<Command>,
    ) {
        let failure = match result {
            Ok(Reply::Cluster(nodes)) => {
                self.conns.proven(conn);
                self.conns.roster(conn, Some(&nodes));
                None
            }
            // It will not say: what is configured is all that is known.
            Err(Failure::Refused(code)) if !is_passing(ServerError { code }) => {
                self.conns.roster(conn, Some(&[]));
                None
            }
            Ok(_) => Some(Failure::Malformed("another kind of reply".into())),
            Err(failure) => Some(failure),
        };
        if failure.is_some() {
            self.conns.roster(conn, None);
        }
        for id in self.conns.slot(conn).feeds.clone() {
            self.with_feed(now, id, out, |feed, ctx| {
                let waits = matches!(feed.stage, Stage::Searching(Searching::Roster));
                if let Some(failure) = failure.as_ref().filter(|_| waits) {
                    feed.resume_failed(ctx, Purpose::Roster, failure);
                }
            });
        }
    }
}

/// Asked again, it may answer.
fn is_passing(error: ServerError) -> bool {
    error.is_not_accepted() || error.is_unknown_outcome() || error.is_unauthenticated()
}
