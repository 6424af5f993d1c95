//! The heart of a shard: events in, commands out, nothing else. No clock, no socket, no file.
//!
//! ```text
//! events ─▶ connections, replies, saves ─▶ feeds take turns ─▶ lanes save ─▶ commands
//! ```
//!
//! Open [`Pipeline::step`] first. A feed takes a turn when something happened to it or its timer
//! is due; [`feed`] holds its state, [`resume`] and [`stream`] its two lives, [`search`] finds the
//! node to send to.

pub mod budget;
mod capture;
mod captures;
mod compare;
pub mod conns;
mod doubt;
mod feed;
mod halt;
mod holdings;
mod lag;
mod locate;
pub mod reserve;
mod resume;
mod search;
mod strangers;
mod stream;
mod trip;
mod watch;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::sync::Arc;

use self::budget::Budget;
use self::capture::Capture;
pub use self::capture::Press;
use self::conns::{Conns, Purpose, Side, Wish};
use self::feed::{Ctx, Feed, Stage};
use self::watch::Watches;
use super::event::{
    Command, ConnError, ConnId, Event, Failure, FeedSpec, FromControl, SaveError, Ticket,
    ToControl, Wake,
};
use super::reason;
use super::snapshot::{Condition, FeedSnapshot};
use crate::batch::{FeedId, SourceKey};
use crate::commit::lane::{Lane, Saved};
use crate::commit::policy::Backoff;
use crate::config::{MirrorPlan, Partitions};
use crate::iggy_wire::Reply;
use crate::statefile::{CaptureState, FeedState, SourceState, format};
use crate::time::{Millis, Now};

/// What a pipeline is made with.
#[derive(Clone, Copy, Debug)]
pub struct PipelineConfig {
    /// Shard number, part of the state files' names.
    pub shard: u16,
    /// This shard's part of `max_buffered_bytes`.
    pub buffer_limit: u64,
    /// Of the jitter; equal seeds and events give equal commands.
    pub seed: u64,
}

/// One source on this shard: its lane and the highest generation found on disk.
struct Source {
    lane: Lane,
    problem: Option<SaveError>,
    feeds: Vec<FeedId>,
    /// When a send of it was acked last.
    acked_at: Option<Millis>,
    /// Entries of the file whose feeds do not run, saved as they are: a topic that left the plan
    /// may come back.
    carried: Vec<FeedState>,
    /// The same of slots that the source used before.
    carried_captures: Vec<CaptureState>,
}

impl Source {
    /// What is shown of a feed: that its source's positions cannot be saved, or how it is.
    fn condition(&self, own: Condition, now: Now) -> Condition {
        let Some(problem) = &self.problem else { return own };
        let reason = match problem {
            SaveError::DiskFull { .. } => reason::DISK_FULL,
            SaveError::Io { .. } => reason::SAVE_FAILED,
        };
        Condition { since: own.since, ..feed::condition(reason, problem.to_string(), now) }
    }
}

/// A shard's decisions.
pub struct Pipeline {
    shard: u16,
    rng: fastrand::Rng,
    budget: Budget,
    conns: Conns,
    feeds: BTreeMap<FeedId, Feed>,
    captures: BTreeMap<FeedId, Capture>,
    sources: BTreeMap<SourceKey, Source>,
    ready: VecDeque<FeedId>,
    starved: Vec<FeedId>,
    timers: BinaryHeap<Reverse<(Millis, FeedId)>>,
    watches: Watches,
    /// Sources that rest by the operator's word.
    paused: BTreeSet<SourceKey>,
    /// When partitions that do not poll are looked at again.
    look_at: Millis,
    draining: bool,
    drained: bool,
}

impl Pipeline {
    /// An empty shard.
    pub fn new(config: PipelineConfig) -> Pipeline {
        Pipeline {
            shard: config.shard,
            rng: fastrand::Rng::with_seed(config.seed),
            budget: Budget::new(config.buffer_limit),
            conns: Conns::default(),
            feeds: BTreeMap::new(),
            captures: BTreeMap::new(),
            sources: BTreeMap::new(),
            ready: VecDeque::new(),
            starved: Vec::new(),
            timers: BinaryHeap::new(),
            watches: Watches::default(),
            paused: BTreeSet::new(),
            look_at: Millis(0),
            draining: false,
            drained: false,
        }
    }

    /// One turn: takes every event, lets the feeds concerned act, starts what saves are due.
    /// Returns when the next turn is needed if no event comes first.
    pub fn step(&mut self, now: Now, events: &mut Vec<Event>, out: &mut Vec<Command>) -> Wake {
        for event in events.drain(..) {
            self.take(now, event, out);
        }
        while let Some(&Reverse((at, feed))) = self.timers.peek() {
            if at > now.mono {
                break;
            }
            self.timers.pop();
            if let Some(feed) = self.feeds.get_mut(&feed) {
                feed.timer.take_if(|timer| *timer <= at);
            }
            if let Some(capture) = self.captures.get_mut(&feed) {
                capture.timer.take_if(|timer| *timer <= at);
            }
            self.ready.push_back(feed);
        }
        while let Some(feed) = self.ready.pop_front() {
            if self.captures.contains_key(&feed) {
                self.turn_capture(now, feed, out);
            } else {
                self.turn(now, feed, out);
            }
        }
        let watch = self.watch(now, out);
        let look = self.look(now, out);
        let saves = self.save(now, out);
        self.finish_drain(out);
        let dials = if self.draining { None } else { self.conns.dial(now.mono, out) };
        let timer = self.timers.peek().map(|Reverse((at, _))| *at);
        [watch, look, saves, dials, timer].into_iter().flatten().min()
    }

    /// Every feed as status shows it.
    pub fn snapshot(&self, now: Now) -> Vec<FeedSnapshot> {
        let shown = |feed: &Feed| {
            let source = self.sources.get(&feed.spec.plan.key)?;
            let mut shown = feed.snapshot(now, &self.conns);
            if !feed.is_ended() {
                shown.condition = source.condition(shown.condition, now);
            }
            Some(shown)
        };
        self.feeds.values().filter_map(shown).collect()
    }

    /// Bytes reserved, buffered or lent, and the bound.
    pub fn buffered(&self) -> (u64, u64) {
        (self.budget.held(), self.budget.limit())
    }

    /// Bytes of the fixed reserve that are lent, and how many wait for some.
    pub fn reserve(&self) -> (u64, usize) {
        (self.budget.reserve.lent(), self.budget.reserve.waiting())
    }

    /// State saves that succeeded and failed.
    pub fn saves(&self) -> (u64, u64) {
        self.sources
            .values()
            .map(|source| source.lane.totals())
            .fold((0, 0), |sum, lane| (sum.0 + lane.0, sum.1 + lane.1))
    }

    fn take(&mut self, now: Now, event: Event, out: &mut Vec<Command>) {
        match event {
            Event::ConnUp { conn, place, .. } => {
                self.conns.up(conn, place);
                self.conns.close_unwanted(conn, out);
                let slot = self.conns.slot(conn);
                self.ready.extend(slot.feeds.iter().chain(&slot.visitors).copied());
            }
            Event::ConnDown { conn, cause } => self.connection_down(now, conn, cause, out),
            Event::Replied { ticket, result } => self.replied(now, ticket, result, out),
            Event::Pg { conn, event } => self.postgres(now, conn, event, out),
            Event::Spilled { feed, result } => {
                self.with_capture(now, feed, out, |capture, ctx| capture.spilled(ctx, result));
            }
            Event::Persisted { source, generation, result } => {
                self.persisted(now, &source, generation, result, out);
            }
            Event::Control(message) => self.control(now, message, out),
        }
    }

    fn control(&mut self, now: Now, message: FromControl, out: &mut Vec<Command>) {
        match message {
            FromControl::Carry { plan, generation, entries } => {
                self.source(&plan, generation).carried = entries;
            }
            FromControl::AddFeed(spec) => self.add_feed(now, *spec),
            FromControl::AddCapture(spec) => self.add_capture(now, *spec, out),
            FromControl::Abandon { feed, order, range } => {
                self.with_capture(now, feed, out, |capture, ctx| {
                    capture.abandon(ctx, order, range);
                });
            }
            FromControl::DestinationReady { feed, result } => {
                self.with_feed(now, feed, out, |feed, ctx| match result {
                    _ if !matches!(feed.stage, Stage::Ensuring) => {}
                    Ok(_) => feed.restart_resume(ctx),
                    Err(why) => feed.hold(ctx, reason::WAITING_DESTINATION, why),
                });
            }
            FromControl::ReleaseDestination { feed } => {
                self.with_feed(now, feed, out, |feed, ctx| feed.release_destination(ctx));
            }
            FromControl::LookAgain { feed, created_at } => {
                self.with_feed(now, feed, out, |feed, ctx| {
                    feed.destination_replaced(ctx, created_at)
                });
            }
            FromControl::LargeSlotGranted { feed } => {
                if !self.feeds.contains_key(&feed) && !self.captures.contains_key(&feed) {
                    out.push(Command::Control(ToControl::LargeSlotReleased { feed }));
                }
                self.with_feed(now, feed, out, |feed, ctx| feed.granted(ctx));
                self.with_capture(now, feed, out, |capture, ctx| capture.granted(ctx));
            }
            FromControl::Pause { source, paused } => {
                self.ready.extend(self.feeds_of(&source));
                if paused {
                    self.paused.insert(source);
                } else {
                    self.paused.remove(&source);
                }
            }
            FromControl::Restart { source } => {
                for feed in self.feeds_of(&source) {
                    self.with_feed(now, feed, out, |feed, ctx| feed.begin_again(ctx));
                    self.with_capture(now, feed, out, |capture, ctx| capture.begin_again(ctx));
                }
            }
            FromControl::Drain => {
                self.draining = true;
                self.ready.extend(self.feeds.keys().chain(self.captures.keys()).copied());
            }
        }
    }

    fn feeds_of(&self, source: &SourceKey) -> Vec<FeedId> {
        self.sources.get(source).map(|source| source.feeds.clone()).unwrap_or_default()
    }

    fn add_feed(&mut self, now: Now, spec: FeedSpec) {
        let (id, plan) = (spec.id, spec.plan.clone());
        let backoff = || Backoff::new(plan.retry_interval, plan.max_retry_interval);
        let mut assign = |side, cluster| {
            let wish = Wish { feed: id, source: &plan.key, side, cluster, node: None };
            self.conns.assign(wish, now.mono, backoff())
        };
        let up = assign(Side::Upstream, &plan.from);
        let down = assign(Side::Downstream, &plan.to);
        let source = self.source(&plan, spec.generation);
        source.feeds.push(id);
        let (topic, partition) = (&plan.topics[spec.topic], spec.partition);
        source.carried.retain(|entry| {
            let names = (&entry.upstream, &entry.downstream, entry.partition);
            names != (&topic.upstream, &topic.downstream, partition)
        });
        self.budget.add_feed();
        self.feeds.insert(id, Feed::new(spec, up, down, now));
        self.ready.push_back(id);
    }

    fn source(&mut self, plan: &Arc<MirrorPlan>, generation: u64) -> &mut Source {
        let interval = match plan.partitions {
            Partitions::Preserve => plan.state_interval,
            Partitions::Balanced => std::time::Duration::ZERO,
        };
        self.sources.entry(plan.key.clone()).or_insert_with(|| Source {
            lane: Lane::new(interval, generation),
            problem: None,
            feeds: Vec::new(),
            acked_at: None,
            carried: Vec::new(),
            carried_captures: Vec::new(),
        })
    }

    fn connection_down(
        &mut self,
        now: Now,
        conn: ConnId,
        cause: ConnError,
        out: &mut Vec<Command>,
    ) {
        self.conns.down(conn, cause.clone(), now.mono, &mut self.rng);
        for feed in self.conns.slot(conn).feeds.clone() {
            self.with_feed(now, feed, out, |feed, ctx| feed.connection_lost(ctx, conn, &cause));
            self.with_capture(now, feed, out, |capture, ctx| capture.connection_lost(ctx, &cause));
        }
        self.ready.extend(self.conns.slot(conn).visitors.iter().copied());
    }

    fn replied(
        &mut self,
        now: Now,
        ticket: Ticket,
        result: Result<Reply, Failure>,
        out: &mut Vec<Command>,
    ) {
        let Some((conn, waiter)) = self.conns.answered(ticket) else { return };
        match waiter.purpose {
            Purpose::Capture(token) => {
                if result.is_ok() {
                    self.conns.proven(conn);
                }
                return self.with_capture(now, waiter.feed, out, |capture, ctx| {
                    capture.replied(ctx, conn, token, result);
                });
            }
            Purpose::Roster | Purpose::UpstreamRoster => {
                self.with_feed(now, waiter.feed, out, |feed, ctx| {
                    feed.request_ended(ctx, waiter.purpose);
                    feed.let_go(ctx);
                });
                return self.rostered(now, conn, result, out);
            }
            Purpose::Vet => {
                return self.with_capture(now, waiter.feed, out, |capture, ctx| {
                    capture.vetted(ctx, conn, result);
                });
            }
            Purpose::Watch => return self.watched(now, waiter.feed, result),
            Purpose::Look => return self.looked(now, waiter.feed, result),
            _ => {}
        }
        self.with_feed(now, waiter.feed, out, |feed, ctx| {
            feed.request_ended(ctx, waiter.purpose);
            if feed.round == waiter.round && !feed.is_ended() {
                answer(feed, ctx, conn, waiter.purpose, result);
            }
            feed.let_go(ctx);
        });
    }

    fn persisted(
        &mut self,
        now: Now,
        key: &SourceKey,
        generation: u64,
        result: Result<(), SaveError>,
        out: &mut Vec<Command>,
    ) {
        let Some(source) = self.sources.get_mut(key) else { return };
        let good = result.is_ok();
        source.problem = result.err();
        let saved = source.lane.finished(now.mono, generation, good, &mut self.rng);
        let feeds = source.feeds.clone();
        self.ready.extend(feeds.iter().copied());
        if let Some(problem) = source.problem.clone() {
            for feed in feeds {
                self.with_capture(now, feed, out, |capture, _| capture.save_failed(&problem));
            }
        }
        let Saved::Durable(positions) = saved else { return };
        for (id, position) in positions {
            if let Some(feed) = self.feeds.get_mut(&id) {
                feed.durable_position = position;
            }
            self.with_capture(now, id, out, |capture, ctx| capture.saved(ctx));
        }
    }

    /// Lets one feed act, then lets it take its turn.
    fn with_feed(
        &mut self,
        now: Now,
        id: FeedId,
        out: &mut Vec<Command>,
        act: impl FnOnce(&mut Feed, &mut Ctx<'_>),
    ) {
        self.act(now, id, out, act);
        self.ready.push_back(id);
    }

    fn act(
        &mut self,
        now: Now,
        id: FeedId,
        out: &mut Vec<Command>,
        act: impl FnOnce(&mut Feed, &mut Ctx<'_>),
    ) {
        let Some(feed) = self.feeds.get_mut(&id) else { return };
        let Some(source) = self.sources.get_mut(&feed.spec.plan.key) else { return };
        let mut ctx = Ctx {
            now,
            out,
            conns: &mut self.conns,
            budget: &mut self.budget,
            lane: &mut source.lane,
            rng: &mut self.rng,
            acked_at: &mut source.acked_at,
        };
        act(feed, &mut ctx);
        self.wake_waiting();
    }

    /// Feeds that there is room for now.
    fn wake_waiting(&mut self) {
        self.ready.extend(self.budget.reserve.take_granted());
        if self.budget.take_freed() {
            self.ready.extend(self.starved.drain(..));
            self.ready.extend(self.captures.keys().copied());
        }
    }

    fn turn(&mut self, now: Now, id: FeedId, out: &mut Vec<Command>) {
        let draining = self.draining;
        let paused = &self.paused;
        let is_paused =
            self.feeds.get(&id).is_some_and(|feed| paused.contains(&feed.spec.plan.key));
        self.act(now, id, out, |feed, ctx| {
            feed.wake_at = None;
            feed.draining = draining;
            feed.paused = is_paused;
            feed.turn(ctx);
            feed.end_visits(ctx);
        });
        let Some(feed) = self.feeds.get_mut(&id) else { return };
        if feed.starved && !self.starved.contains(&id) {
            self.starved.push(id);
        }
        if feed.is_quiet() {
            self.watches.watch(&feed.spec.plan.key, feed.spec.topic, id);
            feed.sleep();
        }
        if let Some(at) = feed.wake_at.map(|at| at.max(Millis(now.mono.0 + 1)))
            && feed.timer.is_none_or(|queued| at < queued)
        {
            feed.timer = Some(at);
            self.timers.push(Reverse((at, id)));
        }
    }

    fn save(&mut self, now: Now, out: &mut Vec<Command>) -> Wake {
        let mut next: Wake = None;
        for (key, source) in &mut self.sources {
            let feeds = &self.feeds;
            let started =
                || source.feeds.iter().filter_map(|id| feeds.get(id)).filter(|f| f.started);
            let captures = &mut self.captures;
            let positions = || {
                let feeds = started().map(|f| (f.spec.id, f.entry.position));
                feeds.chain(captures::saving(captures, &source.feeds)).collect()
            };
            if let Some(generation) = source.lane.start(now.mono, positions) {
                let carried = source.carried.iter().cloned();
                let state = SourceState {
                    source: key.clone(),
                    shard: self.shard,
                    generation,
                    saved_at: now.wall.0,
                    feeds: started().map(|f| f.entry.clone()).chain(carried).collect(),
                    captures: captures::entries(source, &self.captures),
                };
                let image = format::encode(&state);
                out.push(Command::Persist { source: key.clone(), generation, image });
            }
            next = [next, source.lane.due_at()].into_iter().flatten().min();
        }
        next
    }

    fn finish_drain(&mut self, out: &mut Vec<Command>) {
        let quiet = || self.sources.values().all(|source| source.lane.is_quiet());
        let ended = || {
            self.feeds.values().all(Feed::is_ended) && self.captures.values().all(Capture::is_ended)
        };
        if self.draining && !self.drained && ended() && quiet() {
            self.drained = true;
            out.push(Command::Control(ToControl::Drained));
        }
    }
}

/// Hands a reply to the step of the feed that waits for it.
fn answer(
    feed: &mut Feed,
    ctx: &mut Ctx<'_>,
    conn: ConnId,
    purpose: Purpose,
    result: Result<Reply, Failure>,
) {
    if result.is_ok() {
        ctx.conns.proven(conn);
        feed.trip.heard(purpose, ctx.now.mono);
    }
    match (purpose, result) {
        (Purpose::UpstreamTopic, Ok(Reply::Topic(info))) => feed.upstream_topic(ctx, info),
        (Purpose::DownstreamTopic, Ok(Reply::Topic(info))) => feed.downstream_topic(ctx, info),
        (Purpose::Identity, Ok(Reply::Topic(info))) => feed.identity(ctx, info),
        (Purpose::Primary, Ok(Reply::Primary(node))) => feed.primary(ctx, &node),
        (Purpose::Primary, Err(failure)) => feed.no_primary(ctx, &failure),
        (Purpose::Vote, result) => feed.voted(ctx, conn, &result),
        (Purpose::Tail, Ok(Reply::Polled(polled))) => feed.tail(ctx, &polled),
        (Purpose::Locate, Ok(Reply::Polled(polled))) => feed.located(ctx, &polled),
        (Purpose::CompareDownstream, Ok(Reply::Polled(polled))) => {
            feed.compare_downstream(ctx, &polled);
        }
        (Purpose::CompareUpstream, Ok(Reply::Polled(polled))) => {
            feed.compare_upstream(ctx, &polled);
        }
        (Purpose::CompareSaved, Ok(Reply::Polled(polled))) => feed.compare_saved(ctx, &polled),
        (Purpose::Earliest, Ok(Reply::Polled(polled))) => feed.earliest(ctx, &polled),
        (Purpose::Poll, Ok(Reply::Polled(polled))) => feed.polled(ctx, polled),
        (Purpose::Send, Ok(Reply::Sent { base_offset })) => feed.sent(ctx, base_offset),
        (Purpose::Send, Ok(_)) => {
            feed.send_failed(ctx, &Failure::Malformed("another kind of reply".into()));
        }
        (Purpose::Send, Err(failure)) => feed.send_failed(ctx, &failure),
        (Purpose::Poll | Purpose::Identity | Purpose::Earliest, Err(failure)) => {
            feed.read_failed(ctx, purpose, &failure);
        }
        (purpose, Err(failure)) => feed.resume_failed(ctx, purpose, &failure),
        (purpose, Ok(_)) => {
            let failure = Failure::Malformed("another kind of reply".into());
            feed.resume_failed(ctx, purpose, &failure);
        }
    }
}
