//! One mirror feed: its reader, its writer, its entry in the state file, and the stage it is in.
//!
//! [`super::resume`] brings it from "nothing is known" to "sending is safe", [`super::stream`]
//! copies. Every way back (a lost connection, an unknown outcome) leads through resume.

use std::time::Duration;

use super::budget::{Budget, Holding};
use super::compare::Compare;
use super::conns::{Conns, Purpose, Waiter};
use super::doubt::Doubt;
use super::holdings::LargeSlot;
use super::lag::Lag;
use super::locate::Found;
use super::resume::LOOK_AGAIN;
use super::search::{Search, Searching};
use super::strangers::Strangers;
use super::trip::Trip;
use super::watch::{ASLEEP, BLIND_AFTER};
use crate::batch::{OffsetMap, TopicName};
use crate::commit::lane::Lane;
use crate::commit::policy::Backoff;
use crate::config::{Partitions, TopicPlan};
use crate::fanout::dispatch::Writer;
use crate::iggy_wire::{PollFrom, Request, Verify};
use crate::ingest::iggy::Reader;
use crate::shard::event::{Command, ConnError, ConnId, FeedSpec};
use crate::shard::reason::{self, Reason};
use crate::shard::snapshot::{Condition, FeedSnapshot, Status};
use crate::statefile::FeedState;
use crate::time::{Millis, Now};

/// What a feed may use while it takes a turn.
pub(super) struct Ctx<'a> {
    pub now: Now,
    pub out: &'a mut Vec<Command>,
    pub conns: &'a mut Conns,
    pub budget: &'a mut Budget,
    pub lane: &'a mut Lane,
    pub rng: &'a mut fastrand::Rng,
    /// When a send of this source was acked last.
    pub acked_at: &'a mut Option<Millis>,
}

/// Where a feed stands.
#[derive(Debug)]
pub(super) enum Stage {
    /// Needs both connections, `settle` to pass, earlier requests to end, and its part of the
    /// reserve.
    Waiting,
    /// Needs the daemon-wide slot for a large message.
    WaitingSlot,
    /// Asked both topics for their identity.
    Identifying { upstream: bool, downstream: bool },
    /// Asked the control thread for a destination.
    Ensuring,
    /// Looking for the node of the destination to send to.
    Searching(Searching),
    /// Asked where the destination ends.
    Tail,
    /// Asked where the first start begins; the destination ends at `end`.
    Locating { end: u64, found: Option<Found> },
    /// Comparing the last messages of both sides.
    Comparing(Compare),
    /// What was decided is being saved; then the copy goes on.
    Saving { generation: u64 },
    /// Copying.
    Streaming,
    /// Tries again at this time.
    Held { until: Millis },
    /// Rests by the operator's word; what was outstanding has ended and is known.
    Paused,
    /// The last save of an orderly stop.
    Closing { generation: u64 },
    /// Ended: drained, or stopped by an error.
    Ended,
}

/// A record that could not be read.
#[derive(Debug)]
pub(super) struct Bad {
    /// Upstream offset it was named by.
    pub offset: u64,
    pub why: String,
    /// How often it was met as the next thing to read.
    pub seen: u32,
    /// Where the reader stood when it was met.
    pub cursor: u64,
}

/// A first offset above the one asked for: the earliest message tells whether it is a gap.
#[derive(Clone, Copy, Debug)]
pub(super) struct Jump {
    pub found: u64,
    pub asked: bool,
}

/// Why the next resume does not simply go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Restart {
    /// It does.
    No,
    /// The upstream log is another one: copy it from its first message (M5).
    History,
    /// The destination was lost: copy everything again (M6).
    Refill,
}

/// A feed.
pub(super) struct Feed {
    pub spec: FeedSpec,
    pub up: ConnId,
    pub down: ConnId,
    pub stage: Stage,
    pub round: u32,
    pub entry: FeedState,
    pub map: OffsetMap,
    /// The entry says something: it was saved, or its start is resolved.
    pub started: bool,
    /// A save must be asked for before the next send.
    pub barrier_owed: bool,
    /// A save was asked for and must be on disk before the next send, whatever happens to the
    /// connections meanwhile.
    pub barrier: Option<u64>,
    /// The saved entry ended in an orderly stop and nothing was sent since.
    pub clean: bool,
    pub reader: Reader,
    pub writer: Writer,
    pub holding: Holding,
    /// Upstream identity was checked on the connection that is up now.
    pub identified: bool,
    pub identity_asked: bool,
    /// Since when a send of a lost connection may be appended (M6), until `settle` has passed.
    pub unsettled_since: Option<Millis>,
    /// The range of that send.
    pub lost_send: Option<(u64, u64, u32)>,
    /// The destination itself left that send without a good answer; a connection that ended for
    /// another reason says nothing about the record (M15).
    pub lost_unanswered: bool,
    pub doubt: Doubt,
    pub restart: Restart,
    /// A jump was seen and is not explained yet.
    pub jump: Option<Jump>,
    /// One connection saw the log begin above this cursor.
    pub gap_seen: Option<u64>,
    /// One connection showed another message before this cursor than was read there.
    pub other_seen: Option<u64>,
    /// Behind the queue lies a gap up to this offset.
    pub gap_to: Option<u64>,
    /// The next thing upstream is a record that cannot be copied.
    pub bad: Option<Bad>,
    /// The next message upstream is larger than the shard's share allows.
    pub wide: bool,
    /// A message to compare was larger than the fixed reserve; they go one at a time, until the
    /// end is settled.
    pub wide_compare: bool,
    pub large: LargeSlot,
    /// Requests without a reply, of this round and of earlier ones.
    pub outstanding: u32,
    /// Dropped everything; gives it back when nothing is outstanding.
    pub leaving: bool,
    /// Since when the destination ends below what it acked, and at which offset.
    pub short_tail: Option<(Millis, u64)>,
    /// An ack named another offset than expected: the feed stops unless its destination turns out
    /// to be another topic.
    pub divergence: Option<String>,
    /// A comparison failed once; a second look decides.
    pub diverged_once: bool,
    /// Since when upstream shows too little.
    pub lag: Lag,
    pub upstream_created_at: u64,
    pub upstream_messages: u64,
    pub downstream_created_at: u64,
    pub downstream_messages: u64,
    pub backoff: Backoff,
    pub draining: bool,
    /// Its source rests by the operator's word.
    pub paused: bool,
    pub durable_position: u64,
    pub moved_at: Millis,
    pub condition: Condition,
    pub last_error: String,
    /// When the next turn is needed, as the last turn said.
    pub wake_at: Option<Millis>,
    /// The earliest timer queued for this feed.
    pub timer: Option<Millis>,
    /// Failed tries in a row to move the position (C3).
    pub commit_failures: u32,
    /// Since when the destination topic is absent.
    pub absent_since: Option<Millis>,
    /// Could not reserve: wants a turn when bytes are given back.
    pub starved: bool,
    /// For the node to send to.
    pub search: Search,
    /// Nodes that are not what they are named as.
    pub strangers: Strangers,
    /// The next resume begins at a configured address.
    pub goes_home: bool,
    /// The way to the destination, and what went there.
    pub trip: Trip,
}

impl Feed {
    /// A feed as control hands it over.
    pub fn new(spec: FeedSpec, up: ConnId, down: ConnId, now: Now) -> Feed {
        let plan = spec.plan.clone();
        let topic = &plan.topics[spec.topic];
        let verify = if plan.verify_checksums { Verify::Full } else { Verify::FramingOnly };
        let started = spec.saved.is_some();
        let mut entry = spec.saved.clone().unwrap_or_else(|| fresh_entry(topic, spec.partition));
        entry.first_count = Some(spec.first_count);
        let clean = entry.clean_stop;
        let exact = plan.partitions == Partitions::Preserve;
        let durable_position = entry.position;
        let mut feed = Feed {
            up,
            down,
            stage: Stage::Waiting,
            round: 0,
            map: OffsetMap::from_pieces(entry.deltas.clone()),
            started,
            barrier_owed: true,
            barrier: None,
            clean,
            reader: Reader::new(verify),
            writer: Writer::default(),
            holding: Holding::default(),
            identified: false,
            identity_asked: false,
            unsettled_since: (started && !clean && exact).then_some(now.mono),
            lost_send: None,
            lost_unanswered: false,
            doubt: Doubt::new(&plan),
            restart: Restart::No,
            jump: None,
            gap_seen: None,
            other_seen: None,
            gap_to: None,
            bad: None,
            wide: false,
            wide_compare: false,
            large: LargeSlot::None,
            outstanding: 0,
            leaving: false,
            short_tail: None,
            divergence: None,
            diverged_once: false,
            lag: Lag::default(),
            upstream_created_at: spec.upstream_created_at,
            upstream_messages: 0,
            downstream_created_at: spec.downstream_created_at,
            downstream_messages: 0,
            backoff: Backoff::new(plan.retry_interval, plan.max_retry_interval),
            draining: false,
            paused: false,
            durable_position,
            moved_at: now.mono,
            condition: condition(reason::CONNECTING, String::new(), now),
            last_error: String::new(),
            wake_at: None,
            timer: None,
            commit_failures: 0,
            absent_since: None,
            starved: false,
            search: Search::default(),
            strangers: Strangers::default(),
            goes_home: false,
            trip: Trip::default(),
            entry,
            spec,
        };
        feed.entry.clean_stop = false;
        feed
    }

    /// The topics of this feed.
    pub fn topic(&self) -> &TopicPlan {
        &self.spec.plan.topics[self.spec.topic]
    }

    /// The server picks the partition: at least once, no end to look at.
    pub fn is_balanced(&self) -> bool {
        self.spec.plan.partitions == Partitions::Balanced
    }

    /// Caught up for a while, nothing outstanding.
    pub fn is_quiet(&self) -> bool {
        matches!(self.stage, Stage::Streaming)
            && self.identified
            && self.reader.is_idle()
            && !self.reader.is_waiting()
            && self.reader.not_ready_since().is_none()
            && self.writer.is_empty()
    }

    /// Has not heard for a while how far upstream is, and nothing else will tell: it stopped, or
    /// waits for the destination or the disk.
    pub fn is_blind(&self, now: Millis) -> bool {
        !self.draining && !self.is_quiet() && now.since(self.reader.replied_at()) >= BLIND_AFTER
    }

    /// Its topic is being watched: polls by itself only now and then.
    pub fn sleep(&mut self) {
        let at = self.reader.replied_at() + ASLEEP;
        self.reader.sleep_until(at);
        self.wake_at = Some(at);
    }

    /// Nothing more will happen.
    pub fn is_ended(&self) -> bool {
        matches!(self.stage, Stage::Ended)
    }

    /// Takes a turn: does whatever the stage allows now.
    pub fn turn(&mut self, ctx: &mut Ctx<'_>) {
        if self.draining && !matches!(self.stage, Stage::Closing { .. } | Stage::Ended) {
            return self.drain(ctx);
        }
        if self.paused && !self.draining && !self.is_ended() {
            return self.rest(ctx);
        }
        match self.stage {
            Stage::Paused => {
                self.stage = Stage::Waiting;
                self.begin(ctx);
            }
            Stage::Held { until } if ctx.now.mono >= until => {
                self.stage = Stage::Waiting;
                self.begin(ctx);
            }
            Stage::Held { until } => self.wake_at = Some(until),
            Stage::Waiting => self.begin(ctx),
            Stage::Saving { generation } if ctx.lane.reached(generation) => {
                self.barrier = None;
                self.stage = Stage::Streaming;
                self.say(reason::RUNNING, "", ctx.now);
                self.pump(ctx);
            }
            Stage::Streaming => self.pump(ctx),
            Stage::Searching(_) => self.search(ctx),
            Stage::Closing { generation } if ctx.lane.reached(generation) => {
                self.say(reason::DRAINED, "", ctx.now);
                self.stage = Stage::Ended;
            }
            _ => {}
        }
    }

    /// The connection a purpose uses.
    pub fn conn_for(&self, purpose: Purpose) -> ConnId {
        match purpose {
            Purpose::DownstreamTopic
            | Purpose::Roster
            | Purpose::Primary
            | Purpose::Vote
            | Purpose::Tail
            | Purpose::CompareDownstream
            | Purpose::CompareSaved
            | Purpose::Send => self.down,
            Purpose::UpstreamTopic
            | Purpose::UpstreamRoster
            | Purpose::Locate
            | Purpose::CompareUpstream
            | Purpose::Identity
            | Purpose::Earliest
            | Purpose::Watch
            | Purpose::Look
            | Purpose::Poll => self.up,
            // A capture's requests name their connection.
            Purpose::Capture(_) | Purpose::Vet => self.down,
        }
    }

    /// Asks a side for something.
    pub fn request(&mut self, ctx: &mut Ctx<'_>, request: Request, purpose: Purpose, limit: u64) {
        self.outstanding += 1;
        self.trip.asked(purpose, ctx.now.mono);
        let waiter = Waiter { feed: self.spec.id, round: self.round, purpose };
        ctx.conns.request(self.conn_for(purpose), request, limit, waiter, ctx.out);
    }

    /// A poll of one side's partition.
    pub fn poll(&self, topic: &TopicName, from: PollFrom, count: u32) -> Request {
        Request::Poll {
            stream: topic.stream.clone(),
            topic: topic.topic.clone(),
            partition: self.spec.partition,
            from,
            count,
        }
    }

    /// Says how it is; `since` moves only when the reason does.
    pub fn say(&mut self, reason: Reason, detail: impl Into<String>, now: Now) {
        let detail = detail.into();
        if self.search.hides(reason) || self.doubt.hides(reason) {
            return;
        }
        if self.condition.reason == reason.code && self.condition.status == reason.status {
            self.condition.detail = detail;
        } else {
            self.condition = condition(reason, detail, now);
        }
    }

    /// Counts an error and keeps its words.
    pub fn error(&mut self, detail: impl Into<String>) {
        self.entry.counters.errors += 1;
        self.last_error = detail.into();
    }

    /// Stops the feed for good; other feeds go on.
    pub fn fail(&mut self, ctx: &mut Ctx<'_>, reason: Reason, detail: String) {
        self.error(detail.clone());
        self.say(reason, detail, ctx.now);
        self.drop_buffers(ctx);
        self.stage = Stage::Ended;
        self.round += 1;
        // The entry stays as it is; its error count should survive.
        if self.started {
            self.touch(ctx);
        }
    }

    /// Tries again from the start of resume after a pause.
    pub fn hold(&mut self, ctx: &mut Ctx<'_>, reason: Reason, detail: String) {
        self.error(detail.clone());
        self.say(reason, detail, ctx.now);
        self.drop_buffers(ctx);
        self.round += 1;
        self.stage = Stage::Held { until: ctx.now.mono + self.backoff.failed(ctx.rng) };
    }

    /// Looks once more in a moment: what was seen may pass by itself.
    pub fn look_later(&mut self, ctx: &mut Ctx<'_>, reason: Reason, detail: impl Into<String>) {
        self.say(reason, detail, ctx.now);
        self.drop_buffers(ctx);
        self.round += 1;
        self.stage = Stage::Held { until: ctx.now.mono + LOOK_AGAIN };
    }

    /// Goes back to the start of resume.
    pub fn restart_resume(&mut self, ctx: &mut Ctx<'_>) {
        self.drop_buffers(ctx);
        self.round += 1;
        self.stage = Stage::Waiting;
    }

    /// The outstanding send was appended, or not, or will be. `unanswered`: the destination had
    /// its chance to answer.
    pub fn unknown(&mut self, ctx: &mut Ctx<'_>, unanswered: bool) {
        self.lost_send = self.writer.outstanding();
        self.lost_unanswered = unanswered;
        self.commit_failures = self.commit_failures.saturating_add(1);
        let _ = self.writer.lost();
        if !self.is_balanced() {
            self.unsettled_since = Some(ctx.now.mono);
        }
        ctx.conns.close(self.down, ctx.out);
    }

    /// The entry changed: the next save carries it.
    pub fn touch(&mut self, ctx: &mut Ctx<'_>) {
        self.entry.sequence += 1;
        ctx.lane.mark();
    }

    /// The entry changed and nothing may be sent before that is on disk.
    pub fn save_first(&mut self, ctx: &mut Ctx<'_>) {
        self.entry.sequence += 1;
        self.entry.deltas = self.map.pieces().to_vec();
        self.barrier_owed = false;
        let generation = ctx.lane.barrier();
        self.barrier = Some(generation);
        self.stage = Stage::Saving { generation };
    }

    /// A new epoch: the watermark may move back (I1).
    pub fn new_epoch(&mut self) {
        self.entry.epoch += 1;
        self.entry.counters.resets += 1;
    }

    /// A connection of this feed went down.
    pub fn connection_lost(&mut self, ctx: &mut Ctx<'_>, conn: ConnId, cause: &ConnError) {
        self.let_go(ctx);
        if self.is_ended() {
            return;
        }
        let ours = matches!(cause, ConnError::Closed | ConnError::TooLarge { .. });
        if !ours {
            self.error(cause.to_string());
        }
        if !ours {
            self.forget_sightings(conn);
        }
        if conn == self.up {
            self.identified = false;
            self.identity_asked = false;
            self.jump = None;
            self.reader.reconnected();
        }
        let streaming = matches!(self.stage, Stage::Streaming | Stage::Saving { .. });
        if conn == self.up && streaming {
            // What is queued goes on; a poll that was under way is asked again.
            ctx.budget.arrived(&mut self.holding, 0, 0);
            self.return_question(ctx);
            self.release_empty_slot(ctx);
        } else if !matches!(self.stage, Stage::Closing { .. } | Stage::Held { .. }) {
            self.restart_resume(ctx);
        }
        if conn == self.down {
            self.trip.forget();
        }
        if conn == self.down && !ours {
            self.leave_node(ctx);
        }
        if !ours && !self.draining {
            let reason = match cause {
                ConnError::Login { .. } => reason::LOGIN_REFUSED,
                ConnError::UntestedServer { .. } => reason::UNTESTED_SERVER,
                _ if conn == self.up => reason::UPSTREAM_UNREACHABLE,
                _ => reason::DESTINATION_UNREACHABLE,
            };
            self.say(reason, cause.to_string(), ctx.now);
        }
    }

    /// For status.
    pub fn snapshot(&self, now: Now, conns: &Conns) -> FeedSnapshot {
        let node = |conn| conns.is_up(conn).then(|| conns.slot(conn).address().into());
        let position = self.entry.position;
        let end = self.reader.reported_end();
        FeedSnapshot {
            id: self.spec.id,
            source: self.spec.plan.key.clone(),
            upstream: self.topic().upstream.clone(),
            downstream: self.topic().downstream.clone(),
            partition: self.spec.partition,
            condition: self.shown_condition(now),
            upstream_end: end,
            position,
            // A new epoch may begin below what the disk still says of the old one.
            durable_position: self.durable_position.min(position),
            delta: self.map.delta(position),
            lag_messages: end.saturating_sub(position),
            counters: self.entry.counters,
            gaps: self.entry.gaps.clone(),
            repeats: self.entry.repeats.clone(),
            last_error: self.last_error.as_str().into(),
            epoch: self.entry.epoch,
            upstream_node: node(self.up),
            downstream_node: node(self.down),
            foreign_nodes: self.strangers.shown(),
            sends: self.trip.sends,
            sent_records: self.trip.records,
            round_trip: self.trip.least(),
        }
    }

    fn shown_condition(&self, now: Now) -> Condition {
        if self.condition.status == Status::Running {
            let pending = !self.writer.is_empty();
            let quiet = now.mono.since(self.moved_at);
            let failures = self.commit_failures;
            if failures >= self.spec.plan.commit_failure_threshold {
                let detail =
                    format!("{failures} tries in a row moved nothing: {}", self.last_error);
                return condition(reason::STALLED, detail, now);
            }
            if pending && quiet > self.spec.plan.degraded_after {
                let since = now.wall.0.saturating_sub(micros(quiet));
                let detail = format!("pending work has not moved for {} s", quiet.as_secs());
                return Condition { since, ..condition(reason::STALLED, detail, now) };
            }
        }
        self.condition.clone()
    }
}

/// A condition that begins now.
pub(super) fn condition(reason: Reason, detail: String, now: Now) -> Condition {
    Condition {
        status: reason.status,
        reason: reason.code,
        detail,
        advice: reason.advice,
        since: now.wall.0,
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

fn fresh_entry(topic: &TopicPlan, partition: u32) -> FeedState {
    FeedState::fresh(topic.upstream.clone(), topic.downstream.clone(), partition)
}
