//! Which node of the destination's cluster a feed sends to (M6, M14).
//!
//! ```text
//! roster ─┬─ one node ─────────────────────────────────────────────▶ Tail
//!         └─ several ─┬─ primary known ──▶ hop there (at most 3) ──▶ Tail
//!                     └─ not known ──▶ ends of the others ─────────▶ Tail ─ lower? ─▶ hop there
//! ```
//!
//! A follower's log may lag, and only the primary takes sends. What a node shows is committed, so
//! the highest end that any node shows is the end; it counts once a majority of all nodes has
//! answered, whoever of them can be reached, and a feed sends from nowhere but a node that shows
//! it. A lower one would take a lag for a lost tail. [`ballot`] holds what every node is asked.
//! A refusal (58) is never followed by the same send blindly: the node may have become the primary
//! with more than it showed, so the end is read again; after [`WALK_AFTER`] at the next node.

use std::sync::Arc;
use std::time::Duration;

use super::Pipeline;
use super::conns::{Purpose, Reach, Side, Waiter, Wish};
use super::feed::{Ctx, Feed, Stage};
use super::holdings::ASK_AT_ONCE;
use super::resume::{LOOK_AGAIN, TOPIC_REPLY};
use crate::commit::policy::Backoff;
use crate::iggy_wire::{Node, Reply, Request, ServerError};
use crate::shard::ballot::{self, Inquiry, Shown, Silence};
use crate::shard::event::{Command, ConnId, Failure, Place};
use crate::shard::nodes::{Heard, MOST_HOPS, Nodes, address_of};
use crate::shard::reason::{self, Reason};
use crate::time::{Millis, Now};

/// How long a node may refuse sends before the next one is tried.
pub const WALK_AFTER: Duration = Duration::from_secs(2);
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
    /// Most who answered of one of the sets of voters asked so far.
    most_heard: Heard,
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
    /// The node in use is one of those that count.
    counts_home: bool,
    /// Which of the sets of voters this is; the next one is asked where this one falls short.
    set: usize,
    is_advertised: bool,
    /// What is asked is whether the topic is gone, as the node in use says; else where the
    /// partition ends.
    absent: Option<String>,
}

#[derive(Debug)]
struct Vote {
    address: Arc<str>,
    conn: ConnId,
    inquiry: Inquiry,
    asked: bool,
    said: Option<Result<Shown, Silence>>,
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
        if let Some(nodes) = ctx.conns.nodes(self.down) {
            // By now the node in use has shown the right topic.
            self.strangers.keep_named(nodes);
        }
        match ctx.conns.nodes(self.down).map(Nodes::are_several) {
            None => self.stage = Stage::Searching(Searching::Roster),
            Some(false) => self.ask_tail(ctx),
            // What was to settle was not: as one of several nodes it takes longer.
            Some(true) if self.settles_at(ctx).is_some() => self.restart_resume(ctx),
            Some(true) if ctx.conns.names_primaries(self.down) => {
                self.stage = Stage::Searching(Searching::Primary);
                let topic = self.topic().downstream.clone();
                let partition = self.spec.partition;
                let ask = Request::Primary { stream: topic.stream, topic: topic.topic, partition };
                self.request(ctx, ask, Purpose::Primary, TOPIC_REPLY);
            }
            Some(true) => self.ask_others(ctx, 0),
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
        let address = slot.place().and_then(|place| address_of(node, place));
        // An address that several nodes advertise says nothing about who is behind it.
        let is_shared = |address: &Arc<str>| {
            ctx.conns.nodes(self.down).is_some_and(|nodes| nodes.is_shared(address))
        };
        match address.filter(|address| !is_shared(address)) {
            Some(address) if slot.is_at(&address) => self.ask_tail(ctx),
            Some(address) if self.can_reach(ctx, &address) => {
                self.hop(ctx, address, "leads the partition");
            }
            _ => self.ask_others(ctx, 0),
        }
    }

    /// The question for the primary has no answer.
    pub(super) fn no_primary(&mut self, ctx: &mut Ctx<'_>, failure: &Failure) {
        match failure {
            Failure::Refused(code) if (ServerError { code: *code }).is_unsupported() => {
                ctx.conns.no_primaries(self.down);
                self.ask_others(ctx, 0);
            }
            Failure::Refused(58) => {
                let detail = "the destination partition has no primary at the moment (58)";
                self.say(reason::NOT_ACCEPTED, detail, ctx.now);
                self.look_again_soon(ctx);
            }
            _ => self.resume_failed(ctx, Purpose::Primary, failure),
        }
    }

    /// Asks the other nodes where the partition ends: the voters of this set.
    fn ask_others(&mut self, ctx: &mut Ctx<'_>, set: usize) {
        let Some(home) = self.home_identity() else {
            self.goes_home = true;
            return self.restart_resume(ctx);
        };
        self.ask_voters(ctx, set, home, None);
    }

    /// Asks the other nodes whether the topic that was copied to is gone, as the one in use says.
    pub(super) fn ask_whether_absent(&mut self, ctx: &mut Ctx<'_>, detail: String) {
        self.ask_voters(ctx, 0, self.downstream_known(), Some(detail));
    }

    /// `created_at`: of the topic that is meant.
    fn ask_voters(
        &mut self,
        ctx: &mut Ctx<'_>,
        set: usize,
        created_at: u64,
        absent: Option<String>,
    ) {
        let Some(nodes) = ctx.conns.nodes(self.down) else {
            self.goes_home = true;
            return self.restart_resume(ctx);
        };
        let Some(voters) = nodes.voters().into_iter().nth(set) else {
            let alone = Heard { nodes: 1, answers: 1 };
            let detail = undecided(absent.as_deref(), &nodes.too_few(alone, ""));
            return self.hold(ctx, reason::DESTINATION_NOT_READY, detail);
        };
        if set == 0 {
            self.search.most_heard = Heard::default();
        }
        let (votes, is_advertised) = (Vec::new(), voters.is_advertised);
        let mut ballot = Ballot { votes, counts_home: false, set, is_advertised, absent };
        for address in voters.addresses {
            if ctx.conns.slot(self.down).is_at(&address) {
                ballot.counts_home = true;
                continue;
            }
            let conn = ctx.conns.visit(self.wish(&address), ctx.now.mono, self.dial_backoff());
            let inquiry = Inquiry::new(&self.topic().downstream, self.spec.partition, created_at);
            ballot.votes.push(Vote { address, conn, inquiry, asked: false, said: None });
        }
        self.search.visits = true;
        self.stage = Stage::Searching(Searching::Ends(ballot));
        self.count_votes(ctx);
    }

    /// Asks whoever can be asked, so many at once as the reserve has room for.
    fn count_votes(&mut self, ctx: &mut Ctx<'_>) {
        let Stage::Searching(Searching::Ends(ballot)) = &mut self.stage else { return };
        let mut free = ASK_AT_ONCE - ballot.votes.iter().filter(|vote| vote.asked).count();
        let mut ask = Vec::new();
        for vote in ballot.votes.iter_mut().filter(|vote| vote.said.is_none() && !vote.asked) {
            match ctx.conns.reach(vote.conn, ctx.now.mono) {
                Reach::Up if free > 0 => {
                    vote.asked = true;
                    free -= 1;
                    ask.push((vote.conn, vote.inquiry.request()));
                }
                Reach::Up | Reach::Soon => {}
                Reach::Failed(why) => vote.said = Some(Err(Silence::Mute(why))),
            }
        }
        let is_open = ballot.votes.iter().any(|vote| vote.said.is_none());
        for (conn, request) in ask {
            let (feed, round) = (self.spec.id, self.round);
            let waiter = Waiter { feed, round, purpose: Purpose::Vote };
            self.outstanding += 1;
            ctx.conns.request(conn, request, TOPIC_REPLY, waiter, ctx.out);
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
        result: &Result<Reply, Failure>,
    ) {
        let Stage::Searching(Searching::Ends(ballot)) = &mut self.stage else { return };
        let is_it = |vote: &&mut Vote| vote.conn == conn && vote.asked;
        let Some(vote) = ballot.votes.iter_mut().find(is_it) else { return };
        vote.asked = false;
        let address = vote.address.clone();
        if let Some(said) = vote.inquiry.answered(result) {
            let place = place_of(ctx, conn, &address);
            let said = said.map(|end| Shown { place, end });
            let stranger = match &said {
                Err(Silence::Stranger(why)) if ballot.is_advertised => Some(why.clone()),
                _ => None,
            };
            vote.said = Some(said);
            match stranger {
                _ if ballot.absent.is_some() => {}
                Some(why) => self.is_stranger(ctx, &address, why),
                None => self.strangers.admit(&address),
            }
        }
        self.count_votes(ctx);
    }

    /// Everybody has answered or cannot.
    fn decide(&mut self, ctx: &mut Ctx<'_>) {
        let Stage::Searching(Searching::Ends(ballot)) = &self.stage else { return };
        let Some(nodes) = ctx.conns.nodes(self.down) else { return self.restart_resume(ctx) };
        if ballot.absent.is_some() {
            return self.decide_absence(ctx);
        }
        let said = ballot.votes.iter().filter_map(|vote| vote.said.as_ref());
        let shown: Vec<Shown> = said.filter_map(|said| said.clone().ok()).collect();
        let home = ctx.conns.slot(self.down).place().filter(|_| ballot.counts_home);
        let heard = ballot::heard(nodes, home, &shown);
        if heard.nodes >= nodes.majority() {
            let highest = ballot::highest(&shown);
            self.search.highest = highest.map(|it| (it.end, it.place.address.clone()));
            return self.ask_tail(ctx);
        }
        self.search.most_heard = self.search.most_heard.max(heard);
        let detail = nodes.too_few(self.search.most_heard, &ballot.silent());
        let next = ballot.set + 1;
        if next < nodes.voters().len() {
            // What the cluster calls itself is not all reached from here, or the other way round.
            return self.ask_others(ctx, next);
        }
        self.hold(ctx, reason::DESTINATION_NOT_READY, detail);
    }

    /// Everybody has said whether the topic is there, or cannot: one node that shows it is enough,
    /// and that it is gone takes a majority.
    fn decide_absence(&mut self, ctx: &mut Ctx<'_>) {
        let Stage::Searching(Searching::Ends(ballot)) = &self.stage else { return };
        let Some(nodes) = ctx.conns.nodes(self.down) else { return self.restart_resume(ctx) };
        let detail = ballot.absent.clone().unwrap_or_default();
        let has_it = |vote: &&Vote| matches!(vote.said, Some(Ok(_)));
        if let Some(vote) = ballot.votes.iter().find(has_it) {
            let detail = format!("{detail}; {} shows it, so this node lags", vote.address);
            return self.hold(ctx, reason::DESTINATION_NOT_READY, detail);
        }
        let lacks_it = ballot.votes.iter().filter_map(|vote| match &vote.said {
            Some(Err(Silence::Stranger(_))) => {
                Some(Shown { place: place_of(ctx, vote.conn, &vote.address), end: 0 })
            }
            _ => None,
        });
        let lacks_it: Vec<Shown> = lacks_it.collect();
        let home = ctx.conns.slot(self.down).place().filter(|_| ballot.counts_home);
        let heard = ballot::heard(nodes, home, &lacks_it);
        if heard.nodes >= nodes.majority() {
            return self.absence_is_sure(ctx, detail);
        }
        self.search.most_heard = self.search.most_heard.max(heard);
        let next = ballot.set + 1;
        if next < nodes.voters().len() {
            return self.ask_voters(ctx, next, self.downstream_known(), Some(detail));
        }
        let too_few = nodes.too_few(self.search.most_heard, &ballot.silent());
        let detail = undecided(Some(&detail), &too_few);
        self.hold(ctx, reason::DESTINATION_NOT_READY, detail);
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
        !self.strangers.shuns(address, ctx.now.mono)
            && ctx.conns.unreachable(self.wish(address), ctx.now.mono).is_none()
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

/// Where a voter is: where it was dialled, unless more is known.
fn place_of(ctx: &Ctx<'_>, conn: ConnId, address: &Arc<str>) -> Place {
    let peer = ctx.conns.slot(conn).place().map_or(address, |place| &place.peer);
    Place { address: address.clone(), peer: peer.clone() }
}

/// That a question was not decided: for `absent` whether the topic is gone.
fn undecided(absent: Option<&str>, too_few: &str) -> String {
    match absent {
        Some(absent) => format!("{absent}, as far as was heard; {too_few}"),
        None => too_few.to_owned(),
    }
}

impl Ballot {
    /// Who said nothing, and why.
    fn silent(&self) -> String {
        let silent = self.votes.iter().filter_map(|vote| match &vote.said {
            Some(Err(why)) => Some(format!("; {}: {why}", vote.address)),
            _ => None,
        });
        silent.take(NAMED).collect()
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
            Err(Failure::Refused(code)) if !(ServerError { code }).is_passing() => {
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
                let waits =
                    matches!(feed.stage, Stage::Searching(Searching::Roster)) && feed.down == conn;
                if let Some(failure) = failure.as_ref().filter(|_| waits) {
                    feed.resume_failed(ctx, Purpose::Roster, failure);
                }
            });
        }
    }
}
