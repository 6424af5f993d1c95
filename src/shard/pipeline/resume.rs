//! From "nothing is known" to "sending is safe" (M4, M5, M6).
//!
//! ```text
//! Waiting ─settle─▶ Identifying ─▶ Searching ─▶ Tail ─┬─ no state ─▶ Locating ─┐
//!                                                     └─ state ─▶ Comparing ───┴▶ Saving
//!                                                                   Streaming ◀─────┘
//! ```
//!
//! The destination's log is the truth: its end, through the saved deltas, is the upstream
//! position. The last messages readable on both sides must be equal. An end below the known one
//! is believed only when it stays: a server that is starting answers as if it were empty.

use std::time::Duration;

use super::conns::Purpose;
use super::feed::{Ctx, Feed, Restart, Stage};
use super::holdings::LargeSlot;
use crate::batch::{Fingerprint, TopicName};
use crate::config::{OnDestinationLost, OnHistoryChanged, TopicPlan};
use crate::iggy_wire::{PollFrom, Polled, Record, Request, TopicInfo, Verify, record};
use crate::ingest::history::end_of_empty_reply;
use crate::shard::event::{Command, Failure, ToControl};
use crate::shard::nodes::Nodes;
use crate::shard::reason;
use crate::time::Millis;

/// Reply bound of identity requests: 1,000 partition rows and options fit many times.
pub const TOPIC_REPLY: u64 = 256 * 1024;
/// Pause between two looks at an end that should not be where it is.
pub(super) const LOOK_AGAIN: Duration = Duration::from_millis(250);

impl Feed {
    /// Starts over when both connections are up, what was asked before is answered, nothing can
    /// arrive late any more and the reserve has room for the replies.
    pub(super) fn begin(&mut self, ctx: &mut Ctx<'_>) {
        if self.leaving {
            return;
        }
        self.go_home(ctx);
        if !ctx.conns.is_up(self.up) || !ctx.conns.is_up(self.down) {
            return;
        }
        if let Some(until) = self.settles_at(ctx) {
            self.say(reason::SETTLING, "a send of a lost connection may still arrive", ctx.now);
            self.wake_at = Some(until);
            return;
        }
        if self.needs_slot_to_compare() && self.large != LargeSlot::Held {
            self.say(reason::RESUMING, "waits for the slot for large messages", ctx.now);
            self.want_slot(ctx);
            self.stage = Stage::WaitingSlot;
            return;
        }
        if !self.borrow_for_resume(ctx) {
            let detail = "waits for its turn: other partitions of this shard are being compared";
            return self.say(reason::RESUMING, detail, ctx.now);
        }
        self.say(reason::RESUMING, "", ctx.now);
        self.stage = Stage::Identifying { upstream: false, downstream: false };
        let TopicPlan { upstream, downstream } = self.topic();
        let (up, down) = (look_up(upstream), look_up(downstream));
        self.ask_upstream_roster(ctx);
        self.ask_roster(ctx);
        self.request(ctx, up, Purpose::UpstreamTopic, TOPIC_REPLY);
        self.request(ctx, down, Purpose::DownstreamTopic, TOPIC_REPLY);
    }

    /// How long a send may still be appended: what is configured, or what is usual for one server
    /// or, once it says that it is one of several, for a cluster.
    fn settle(&self, ctx: &Ctx<'_>) -> Duration {
        let several = ctx.conns.nodes(self.down).is_some_and(Nodes::are_several);
        self.spec.plan.to.settle.among(several)
    }

    /// Until when a send of a lost connection may still be appended, if that is to come.
    pub(super) fn settles_at(&self, ctx: &Ctx<'_>) -> Option<Millis> {
        let until = self.unsettled_since? + self.settle(ctx);
        (ctx.now.mono < until).then_some(until)
    }

    /// Identity of the upstream topic, before resuming.
    pub(super) fn upstream_topic(&mut self, ctx: &mut Ctx<'_>, info: Option<TopicInfo>) {
        if self.upstream_is_older(ctx, info.as_ref()) {
            return;
        }
        if let Some(info) = info.as_ref().filter(|_| self.started && self.restart == Restart::No) {
            let known = self.entry.upstream_created_at;
            if info.created_at != known {
                let detail = format!(
                    "upstream topic {} was created at {} us, the saved position belongs to the \
                     one created at {known} us",
                    self.topic().upstream,
                    info.created_at
                );
                if !self.history_changed(ctx, detail) {
                    return;
                }
            }
        }
        if self.upstream_present(ctx, info).is_some() {
            self.identified_one(ctx, true);
        }
    }

    /// Checks that topic and partition are there; holds the feed otherwise.
    pub(super) fn upstream_present(
        &mut self,
        ctx: &mut Ctx<'_>,
        info: Option<TopicInfo>,
    ) -> Option<TopicInfo> {
        let partition = self.spec.partition;
        let row = info.as_ref().and_then(|info| info.partitions.iter().find(|p| p.id == partition));
        let Some(row) = row else {
            let detail = format!("upstream {} has no partition {partition}", self.topic().upstream);
            self.hold(ctx, reason::WAITING_UPSTREAM, detail);
            return None;
        };
        self.upstream_messages = row.messages_count;
        info
    }

    /// The upstream log is another one. True when the copy starts over, false when it stops.
    pub(super) fn history_changed(&mut self, ctx: &mut Ctx<'_>, detail: String) -> bool {
        match self.spec.plan.on_history_changed {
            OnHistoryChanged::Fail => {
                self.fail(ctx, reason::HISTORY_CHANGED, detail);
                false
            }
            OnHistoryChanged::Restart => {
                self.error(detail);
                self.restart = Restart::History;
                true
            }
        }
    }

    /// Identity of the destination topic, before resuming.
    pub(super) fn downstream_topic(&mut self, ctx: &mut Ctx<'_>, info: Option<TopicInfo>) {
        if !self.knows_node(ctx, info.as_ref()) || self.downstream_is_older(ctx, info.as_ref()) {
            return;
        }
        let name = self.topic().downstream.clone();
        let Some(info) = info else {
            if !self.started {
                let detail = format!("destination topic {name} does not exist");
                return self.hold(ctx, reason::WAITING_DESTINATION, detail);
            }
            return self.destination_absent(ctx, &name);
        };
        self.absent_since = None;
        let known = self.entry.downstream_created_at;
        if info.created_at == known && self.restart == Restart::Refill {
            // It was away, not lost.
            self.restart = Restart::No;
        }
        if self.started && self.restart != Restart::Refill && info.created_at != known {
            let detail = format!(
                "destination topic {name} was created at {} us, messages were copied to the one \
                 created at {known} us",
                info.created_at
            );
            if !self.destination_lost(ctx, detail) {
                return;
            }
        }
        // Only another topic explains it; another history upstream does not.
        if let Some(detail) = self.divergence.take().filter(|_| self.restart != Restart::Refill) {
            return self.fail(ctx, reason::DIVERGED, detail);
        }
        if info.partitions_count <= self.spec.partition && !self.is_balanced() {
            let detail = format!(
                "destination {name} has {} partitions, partition {} is missing",
                info.partitions_count, self.spec.partition
            );
            return self.hold(ctx, reason::WAITING_DESTINATION, detail);
        }
        let row = info.partitions.iter().find(|row| row.id == self.spec.partition);
        self.downstream_messages = row.map_or(0, |row| row.messages_count);
        self.identified_one(ctx, false);
    }

    /// A topic that was copied to is not there: lost only if it stays away for `settle`, and where
    /// there are several nodes only if a majority of them says so.
    fn destination_absent(&mut self, ctx: &mut Ctx<'_>, name: &TopicName) {
        let now = ctx.now.mono;
        let detail = format!("destination topic {name} does not exist any more");
        let since = *self.absent_since.get_or_insert(now);
        if now.since(since) < self.settle(ctx) {
            return self.look_later(ctx, reason::DESTINATION_NOT_READY, detail);
        }
        match ctx.conns.nodes(self.down).map(Nodes::are_several) {
            None => self.look_later(ctx, reason::DESTINATION_NOT_READY, detail),
            Some(true) => self.ask_whether_absent(ctx, detail),
            Some(false) => self.absence_is_sure(ctx, detail),
        }
    }

    /// The topic that was copied to is gone, as `detail` says.
    pub(super) fn absence_is_sure(&mut self, ctx: &mut Ctx<'_>, detail: String) {
        if self.destination_lost(ctx, detail) {
            self.ensure(ctx);
        }
    }

    fn destination_lost(&mut self, ctx: &mut Ctx<'_>, detail: String) -> bool {
        match self.spec.plan.on_destination_lost {
            OnDestinationLost::Fail => {
                self.fail(ctx, reason::DESTINATION_LOST, detail);
                false
            }
            OnDestinationLost::Refill => {
                self.error(detail);
                self.restart = Restart::Refill;
                true
            }
        }
    }

    /// Another feed found the topic gone and it will be made again. A send on its way to the old
    /// one must not land in the new one: what is outstanding becomes an unknown outcome, and the
    /// topic is identified before the next.
    pub(super) fn release_destination(&mut self, ctx: &mut Ctx<'_>) {
        if !matches!(self.stage, Stage::Ensuring | Stage::Closing { .. } | Stage::Ended) {
            self.goes_home = true;
            self.restart_resume(ctx);
        }
        let feed = self.spec.id;
        ctx.out.push(Command::Control(ToControl::DestinationReleased { feed }));
    }

    /// The control thread saw another destination topic; a feed that identified it knows it.
    pub(super) fn destination_replaced(&mut self, ctx: &mut Ctx<'_>, created_at: u64) {
        let is_busy = matches!(self.stage, Stage::Ensuring | Stage::Closing { .. } | Stage::Ended);
        if !is_busy && self.downstream_created_at != created_at {
            self.goes_home = true;
            self.restart_resume(ctx);
        }
    }

    fn ensure(&mut self, ctx: &mut Ctx<'_>) {
        let feed = self.spec.id;
        self.drop_buffers(ctx);
        self.goes_home = true;
        self.round += 1;
        self.stage = Stage::Ensuring;
        ctx.out.push(Command::Control(ToControl::EnsureDestination { feed }));
    }

    fn identified_one(&mut self, ctx: &mut Ctx<'_>, is_upstream: bool) {
        let Stage::Identifying { upstream, downstream } = &mut self.stage else { return };
        *upstream |= is_upstream;
        *downstream |= !is_upstream;
        if !(*upstream && *downstream) {
            return;
        }
        self.identified = true;
        if self.is_balanced() {
            // No partition of its own there: no end to look at.
            self.lost_send = None;
            if !self.started || self.restart != Restart::No {
                return self.locate(ctx, 0);
            }
            let position = self.entry.position;
            let last = self.entry.last.map(|last| last.fingerprint);
            return self.settled(ctx, position, last, 0);
        }
        self.find_node(ctx);
    }

    pub(super) fn ask_tail(&mut self, ctx: &mut Ctx<'_>) {
        self.stage = Stage::Tail;
        let poll = self.poll(&self.topic().downstream, PollFrom::Last, 1);
        self.request(ctx, poll, Purpose::Tail, self.compare_limit());
    }

    /// Where the destination ends.
    pub(super) fn tail(&mut self, ctx: &mut Ctx<'_>, polled: &Polled) {
        let Some(records) = self.readable(ctx, polled) else { return };
        let end = match records.last() {
            Some(last) => last.next_offset(),
            None => end_of_empty_reply(polled),
        };
        if self.is_behind(ctx, end) {
            return;
        }
        let fresh = !self.started || self.restart != Restart::No;
        let known = if fresh { 0 } else { self.map.downstream(self.entry.position).unwrap_or(0) };
        if !self.tail_is_believed(ctx, end, known) {
            return;
        }
        self.short_tail = None;
        if fresh {
            return self.locate(ctx, end);
        }
        if end > known && self.clean {
            let detail = format!(
                "the destination ends at offset {end}, but an orderly stop left it at {known}: \
                 somebody else wrote there"
            );
            return self.diverged(ctx, detail);
        }
        self.compare(ctx, end);
    }

    /// A poll reply of a comparison, checked as framing only: what differs is found by content.
    pub(super) fn readable(&mut self, ctx: &mut Ctx<'_>, polled: &Polled) -> Option<Vec<Record>> {
        match record::scan(&polled.records, Verify::FramingOnly) {
            Ok(records) => Some(records),
            Err(error) => {
                self.hold(ctx, reason::RESUMING, format!("a message to compare: {error}"));
                None
            }
        }
    }

    /// False while the end may be a passing one. A lower end than the known one is believed
    /// after `settle`, an empty log after `reset_grace` where messages were acked or the topic
    /// counts some, and after `settle` where a send may have landed behind it.
    fn tail_is_believed(&mut self, ctx: &mut Ctx<'_>, end: u64, known: u64) -> bool {
        let (plan, settle) = (&self.spec.plan, self.settle(ctx));
        let wait = if end == 0 && (known > 0 || self.downstream_messages > 0) {
            plan.reset_grace
        } else if end < known || (end == 0 && self.lost_send.is_some()) {
            settle
        } else {
            return true;
        };
        let now = ctx.now.mono;
        let since = match self.short_tail {
            Some((since, at)) if at == end => since,
            _ => now,
        };
        self.short_tail = Some((since, end));
        if now.since(since) >= wait {
            return true;
        }
        let detail = format!(
            "the destination ends at offset {end}; acked were {known}, the topic counts {}",
            self.downstream_messages
        );
        self.look_later(ctx, reason::DESTINATION_NOT_READY, detail);
        false
    }

    /// A question of the resume has no good answer; a lost connection starts it over anyway.
    pub(super) fn resume_failed(&mut self, ctx: &mut Ctx<'_>, purpose: Purpose, failure: &Failure) {
        let detail = format!("{purpose:?}: {failure:?}");
        match failure {
            Failure::TooLarge { .. } => {
                self.error(detail);
                self.wide_compare = true;
            }
            Failure::Lost => self.error(detail),
            Failure::Refused(41) => self.hold(ctx, reason::UNAUTHORIZED, detail),
            Failure::Refused(code) => {
                let conn = self.conn_for(purpose);
                let reason = if conn == self.up {
                    reason::WAITING_UPSTREAM
                } else {
                    reason::WAITING_DESTINATION
                };
                self.hold(ctx, reason, detail);
                if *code == 40 {
                    ctx.conns.close(conn, ctx.out);
                }
            }
            Failure::TimedOut | Failure::Malformed(_) => {
                self.hold(ctx, reason::RESUMING, detail);
            }
        }
    }

    /// Reader and writer stand at the same message; saves first if that is owed.
    pub(super) fn settled(
        &mut self,
        ctx: &mut Ctx<'_>,
        position: u64,
        last: Option<Fingerprint>,
        end: u64,
    ) {
        self.search.settled();
        self.unsettled_since = None;
        self.wide_compare = false;
        self.clean = false;
        self.writer.restart(end);
        self.reader.seek(position, last);
        self.wait_for_start();
        self.moved_at = ctx.now.mono;
        self.return_question(ctx);
        self.release_slot(ctx);
        self.wide = false;
        self.absent_since = None;
        if self.barrier_owed {
            self.save_first(ctx);
        } else if let Some(generation) = self.barrier.filter(|g| !ctx.lane.reached(*g)) {
            self.touch(ctx);
            self.stage = Stage::Saving { generation };
        } else {
            self.barrier = None;
            self.touch(ctx);
            self.stage = Stage::Streaming;
        }
    }
}

/// The request for a topic's identity and partitions.
pub(super) fn look_up(topic: &TopicName) -> Request {
    Request::Topic { stream: topic.stream.clone(), topic: topic.topic.clone() }
}
