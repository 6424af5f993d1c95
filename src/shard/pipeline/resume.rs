//! From "nothing is known" to "sending is safe" (M4, M5, M6).
//!
//! ```text
//! Waiting ─settle─▶ Identifying ─▶ Tail ─┬─ no state ──▶ Locating ──┐
//!                                        └─ state ──▶ Comparing ────┴▶ Saving ─▶ Streaming
//! ```
//!
//! The destination's log is the truth: its end, through the saved deltas, is the upstream
//! position. The last messages readable on both sides must be equal. An end below the known one
//! is believed only when it stays: a server that is starting answers as if it were empty.

use std::time::Duration;

use super::budget::LARGE_SLOT;
use super::conns::Purpose;
use super::feed::{Ctx, Feed, LargeSlot, Restart, Stage};
use crate::batch::{Fingerprint, OffsetMap, target};
use crate::config::{
    InitialOffset, OnDestinationLost, OnHistoryChanged, OnNonemptyDestination,
};
use crate::fanout::dispatch::Suspicion;
use crate::iggy_wire::{PollFrom, Polled, Record, Request, TopicInfo, Verify, record};
use crate::ingest::history::{end_of_empty_reply, fingerprint, fingerprint_of_last};
use crate::shard::event::{Command, Failure, ToControl};
use crate::shard::reason;
use crate::statefile::LastMessage;

/// Most messages compared (M6).
pub const COMPARE_MESSAGES: u64 = 16;
/// Most bytes compared at once; above that one message at a time (M6).
pub const COMPARE_BYTES: u64 = 1024 * 1024;
/// Reply bound of identity requests: 1,000 partition rows and options fit many times.
pub const TOPIC_REPLY: u64 = 256 * 1024;
/// Slack on top of the compared bytes for headers of records.
const COMPARE_SLACK: u64 = 64 * 1024;
/// Pause between two looks at an end that should not be where it is.
const LOOK_AGAIN: Duration = Duration::from_millis(250);

/// A comparison under way.
#[derive(Clone, Debug)]
pub(super) struct Compare {
    /// Where the destination ends.
    pub end: u64,
    /// The upstream position that belongs there.
    pub position: u64,
    /// Destination messages: offset and fingerprint, ascending.
    pub seen: Vec<(u64, Fingerprint)>,
}

impl Feed {
    /// Starts over when both connections are up and nothing can arrive late any more.
    pub(super) fn begin(&mut self, ctx: &mut Ctx<'_>) {
        if !ctx.conns.is_up(self.up) || !ctx.conns.is_up(self.down) {
            return;
        }
        if let Some(until) = self.settle_until {
            if ctx.now.mono < until {
                self.say(reason::SETTLING, "a send of a lost connection may still arrive", ctx.now);
                self.wake_at = Some(until);
                return;
            }
        }
        if self.wide && self.large != LargeSlot::Held {
            self.want_slot(ctx);
            return;
        }
        self.say(reason::RESUMING, "", ctx.now);
        self.stage = Stage::Identifying { upstream: false, downstream: false };
        let (up, down) = (self.topic().upstream.clone(), self.topic().downstream.clone());
        let up = Request::Topic { stream: up.stream, topic: up.topic };
        let down = Request::Topic { stream: down.stream, topic: down.topic };
        self.request(ctx, up, Purpose::UpstreamTopic, TOPIC_REPLY);
        self.request(ctx, down, Purpose::DownstreamTopic, TOPIC_REPLY);
    }

    /// Asks for the daemon-wide slot (G6).
    pub(super) fn want_slot(&mut self, ctx: &mut Ctx<'_>) {
        if self.large == LargeSlot::None {
            self.large = LargeSlot::Wanted;
            let feed = self.spec.id;
            ctx.out.push(Command::Control(ToControl::LargeSlotWanted { feed }));
        }
        self.stage = Stage::WaitingSlot;
    }

    /// Identity of the upstream topic, before resuming.
    pub(super) fn upstream_topic(&mut self, ctx: &mut Ctx<'_>, info: Option<TopicInfo>) {
        let Some(info) = self.upstream_present(ctx, info) else { return };
        if self.started && self.restart == Restart::No {
            let known = self.entry.upstream_created_at;
            if info.created_at != known {
                let detail = format!(
                    "upstream topic {} was created at {} us, the saved position belongs to the \
                     one created at {known} us",
                    self.topic().upstream, info.created_at
                );
                if !self.history_changed(ctx, detail) {
                    return;
                }
            }
        }
        self.upstream_created_at = info.created_at;
        self.identified_one(ctx, true);
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
        let name = self.topic().downstream.clone();
        let Some(info) = info else {
            if !self.started {
                let detail = format!("destination topic {name} does not exist");
                return self.hold(ctx, reason::WAITING_DESTINATION, detail);
            }
            let detail = format!("destination topic {name} does not exist any more");
            if self.destination_lost(ctx, detail) {
                self.ensure(ctx);
            }
            return;
        };
        if info.partitions_count <= self.spec.partition {
            let detail = format!(
                "destination {name} has {} partitions, partition {} is missing",
                info.partitions_count, self.spec.partition
            );
            return self.hold(ctx, reason::WAITING_DESTINATION, detail);
        }
        let known = self.entry.downstream_created_at;
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
        self.downstream_created_at = info.created_at;
        self.identified_one(ctx, false);
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

    fn ensure(&mut self, ctx: &mut Ctx<'_>) {
        let feed = self.spec.id;
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
        if self.is_balanced() && self.started && self.restart == Restart::No {
            self.lost_send = None;
            let position = self.entry.position;
            let last = self.entry.last.map(|last| last.fingerprint);
            return self.settled(ctx, position, last, 0);
        }
        self.ask_tail(ctx);
    }

    fn ask_tail(&mut self, ctx: &mut Ctx<'_>) {
        self.stage = Stage::Tail;
        let poll = self.poll(&self.topic().downstream, PollFrom::Last, 1);
        self.request(ctx, poll, Purpose::Tail, self.compare_limit());
    }

    /// Reply bound of comparisons: the fixed reserve, or the daemon-wide slot.
    pub(super) fn compare_limit(&self) -> u64 {
        if self.large == LargeSlot::Held { LARGE_SLOT } else { COMPARE_BYTES + COMPARE_SLACK }
    }

    /// Where the destination ends.
    pub(super) fn tail(&mut self, ctx: &mut Ctx<'_>, polled: &Polled) {
        let Some(records) = self.readable(ctx, polled) else { return };
        let end = match records.last() {
            Some(last) => last.next_offset(),
            None => end_of_empty_reply(polled),
        };
        if !self.started || self.restart != Restart::No {
            return self.locate(ctx, end);
        }
        let known = self.map.downstream(self.entry.position).unwrap_or(0);
        if end < known && !self.short_tail_stays(ctx, end, known) {
            return;
        }
        self.short_tail = None;
        if end > known && self.clean {
            let detail = format!(
                "the destination ends at offset {end}, but an orderly stop left it at {known}: \
                 somebody else wrote there"
            );
            return self.fail(ctx, reason::DIVERGED, detail);
        }
        self.compare(ctx, end);
    }

    /// A poll reply of a comparison, checked as framing only: what differs is found by content.
    fn readable(&mut self, ctx: &mut Ctx<'_>, polled: &Polled) -> Option<Vec<Record>> {
        match record::scan(&polled.records, Verify::FramingOnly) {
            Ok(records) => Some(records),
            Err(error) => {
                self.hold(ctx, reason::RESUMING, format!("a message to compare: {error}"));
                None
            }
        }
    }

    /// True once a lower end was seen for long enough to be believed: `settle` for a log that
    /// still has messages, `reset_grace` for one that says it is empty.
    fn short_tail_stays(&mut self, ctx: &mut Ctx<'_>, end: u64, known: u64) -> bool {
        let now = ctx.now.mono;
        let since = match self.short_tail {
            Some((since, at)) if at == end => since,
            _ => now,
        };
        self.short_tail = Some((since, end));
        let plan = &self.spec.plan;
        let wait = if end == 0 { plan.reset_grace } else { plan.to.settle };
        if now.since(since) >= wait {
            return true;
        }
        let detail = format!("the destination ends at offset {end}, acked were {known}");
        self.say(reason::DESTINATION_NOT_READY, detail, ctx.now);
        self.round += 1;
        self.stage = Stage::Held { until: now + LOOK_AGAIN };
        false
    }

    fn locate(&mut self, ctx: &mut Ctx<'_>, end: u64) {
        let foreign = end > 0 && !self.is_balanced() && self.restart != Restart::History;
        if foreign && self.spec.plan.on_nonempty_destination == OnNonemptyDestination::Fail {
            let detail = format!(
                "destination {} partition {} already ends at offset {end} and nothing is known \
                 of how its messages came there",
                self.topic().downstream, self.spec.partition
            );
            return self.fail(ctx, reason::NONEMPTY_DESTINATION, detail);
        }
        self.stage = Stage::Locating { end };
        let first = self.spec.late || self.restart != Restart::No;
        let from = match self.spec.plan.initial_offset {
            _ if first => PollFrom::First,
            InitialOffset::Earliest => PollFrom::First,
            InitialOffset::Latest => PollFrom::Last,
            InitialOffset::At(offset) => PollFrom::Offset(offset),
        };
        let poll = self.poll(&self.topic().upstream, from, 1);
        self.request(ctx, poll, Purpose::Locate, self.compare_limit());
    }

    /// Where a first start begins.
    pub(super) fn located(&mut self, ctx: &mut Ctx<'_>, polled: &Polled) {
        let Stage::Locating { end } = self.stage else { return };
        let Some(records) = self.readable(ctx, polled) else { return };
        let at_start = self.spec.late || self.restart != Restart::No;
        let initial = self.spec.plan.initial_offset;
        let start = match (records.first(), initial) {
            (Some(last), InitialOffset::Latest) if !at_start => last.next_offset(),
            (Some(first), _) => first.first_offset(),
            (None, _) => {
                let log_end = end_of_empty_reply(polled);
                let beyond = matches!(initial, InitialOffset::At(n) if !at_start && n >= log_end);
                if !beyond && (log_end > 0 || self.upstream_messages > 0) && !self.log_stays(ctx) {
                    return;
                }
                match initial {
                    InitialOffset::At(n) if beyond => n,
                    _ => log_end,
                }
            }
        };
        self.short_log = None;
        let again = self.started;
        self.map = OffsetMap::starting(start, end);
        if again {
            self.new_epoch();
        }
        self.started = true;
        self.barrier_owed = true;
        self.restart = Restart::No;
        self.entry.position = start;
        self.entry.last = None;
        self.entry.upstream_created_at = self.upstream_created_at;
        self.entry.downstream_created_at = self.downstream_created_at;
        self.settled(ctx, start, None, end);
    }

    /// True once an upstream log that holds messages has answered none for `reset_grace`.
    fn log_stays(&mut self, ctx: &mut Ctx<'_>) -> bool {
        let now = ctx.now.mono;
        let since = *self.short_log.get_or_insert(now);
        if now.since(since) >= self.spec.plan.reset_grace {
            return true;
        }
        let detail = "the upstream log answers no message although it has some; it may be starting";
        self.say(reason::WAITING_UPSTREAM, detail, ctx.now);
        self.round += 1;
        self.stage = Stage::Held { until: now + LOOK_AGAIN };
        false
    }

    fn compare(&mut self, ctx: &mut Ctx<'_>, end: u64) {
        let Some(position) = self.map.upstream(end) else {
            let detail = format!(
                "the destination ends at offset {end}, below offset {} where this copy began",
                self.map.pieces().first().map_or(0, target)
            );
            return self.fail(ctx, reason::DIVERGED, detail);
        };
        let ours_from = self.map.pieces().first().map_or(0, target);
        if end == ours_from {
            return self.compared(ctx, Compare { end, position, seen: Vec::new() }, None);
        }
        self.stage = Stage::Comparing(Compare { end, position, seen: Vec::new() });
        let count = if self.wide { 1 } else { COMPARE_MESSAGES.min(end - ours_from) };
        let count = u32::try_from(count).unwrap_or(1);
        let from = PollFrom::Offset(end - u64::from(count));
        let poll = self.poll(&self.topic().downstream, from, count);
        self.request(ctx, poll, Purpose::CompareDownstream, self.compare_limit());
    }

    /// The destination's last messages.
    pub(super) fn compare_downstream(&mut self, ctx: &mut Ctx<'_>, polled: &Polled) {
        let Some(records) = self.readable(ctx, polled) else { return };
        let Stage::Comparing(compare) = &mut self.stage else { return };
        let end = compare.end;
        compare.seen = records
            .iter()
            .flat_map(Record::messages)
            .filter(|message| message.offset < end)
            .map(|message| (message.offset, fingerprint(&message)))
            .collect();
        let last = compare.seen.last().map(|(offset, _)| *offset);
        let piece = self.map.piece_of(end - 1);
        let (Some(last), Some(piece)) = (last, piece) else {
            let detail = format!("the destination returned nothing below its end {end}");
            return self.hold(ctx, reason::DESTINATION_NOT_READY, detail);
        };
        if last + 1 != end {
            let detail = format!("asked for the message before {end}, got {last}");
            return self.hold(ctx, reason::DESTINATION_NOT_READY, detail);
        }
        // Only messages of the last piece have a plain counterpart upstream.
        let first_of_piece = target(&piece);
        let Stage::Comparing(compare) = &mut self.stage else { return };
        compare.seen.retain(|(offset, _)| *offset >= first_of_piece);
        let first = compare.seen.first().map_or(last, |(offset, _)| *offset);
        let count = u32::try_from(end - first).unwrap_or(1);
        let from = first.saturating_add_signed(-piece.delta);
        let poll = self.poll(&self.topic().upstream, PollFrom::Offset(from), count);
        self.request(ctx, poll, Purpose::CompareUpstream, self.compare_limit());
    }

    /// The same messages upstream.
    pub(super) fn compare_upstream(&mut self, ctx: &mut Ctx<'_>, polled: &Polled) {
        let Some(records) = self.readable(ctx, polled) else { return };
        let Stage::Comparing(compare) = &self.stage else { return };
        let compare = compare.clone();
        let mut equal = None;
        for message in records.iter().flat_map(Record::messages) {
            let Some(there) = self.map.downstream(message.offset) else { continue };
            let Some((_, seen)) = compare.seen.iter().find(|(offset, _)| *offset == there) else {
                continue;
            };
            if fingerprint(&message) != *seen {
                let detail = format!(
                    "upstream offset {} and destination offset {there} hold different messages",
                    message.offset
                );
                return self.fail(ctx, reason::DIVERGED, detail);
            }
            equal = Some(message.offset);
        }
        if equal.is_some() {
            let last = compare.seen.last().map(|(_, seen)| *seen);
            return self.compared(ctx, compare, last);
        }
        let log_end = match records.last() {
            Some(last) => polled.current_offset.saturating_add(1).max(last.next_offset()),
            None => end_of_empty_reply(polled),
        };
        if records.is_empty() && log_end < compare.position {
            return self.upstream_is_short(ctx, log_end, compare.position);
        }
        self.compare_with_saved(ctx, compare);
    }

    /// The upstream log ends below what the destination holds: not ready, or another history.
    fn upstream_is_short(&mut self, ctx: &mut Ctx<'_>, log_end: u64, position: u64) {
        let now = ctx.now.mono;
        let since = *self.short_log.get_or_insert(now);
        let detail = format!(
            "the upstream log ends at offset {log_end}, copied were messages up to {position}"
        );
        if now.since(since) >= self.spec.plan.reset_grace {
            self.short_log = None;
            if self.history_changed(ctx, detail) {
                self.ask_tail(ctx);
            }
            return;
        }
        self.say(reason::WAITING_UPSTREAM, detail, ctx.now);
        self.round += 1;
        self.stage = Stage::Held { until: now + LOOK_AGAIN };
    }

    /// Retention took the upstream side: the saved fingerprint stands in for it.
    fn compare_with_saved(&mut self, ctx: &mut Ctx<'_>, compare: Compare) {
        let saved = self.entry.last;
        let at = saved.and_then(|last| self.map.downstream(last.offset));
        let (Some(saved), Some(at)) = (saved, at.filter(|at| *at < compare.end)) else {
            let detail = "nothing is left to compare; the saved distance decides";
            self.error(format!("{}: {detail}", self.topic().upstream));
            return self.compared(ctx, compare, None);
        };
        if let Some((_, seen)) = compare.seen.iter().find(|(offset, _)| *offset == at) {
            let equal = *seen == saved.fingerprint;
            return self.compared_with_saved(ctx, compare, equal, at);
        }
        self.stage = Stage::Comparing(compare);
        let poll = self.poll(&self.topic().downstream, PollFrom::Offset(at), 1);
        self.request(ctx, poll, Purpose::CompareSaved, self.compare_limit());
    }

    /// The destination's message that should be the saved one.
    pub(super) fn compare_saved(&mut self, ctx: &mut Ctx<'_>, polled: &Polled) {
        let Some(records) = self.readable(ctx, polled) else { return };
        let Stage::Comparing(compare) = &self.stage else { return };
        let compare = compare.clone();
        let Some(saved) = self.entry.last else { return };
        let at = self.map.downstream(saved.offset).unwrap_or(0);
        match records.iter().flat_map(Record::messages).find(|message| message.offset == at) {
            Some(seen) => {
                let equal = fingerprint(&seen) == saved.fingerprint;
                self.compared_with_saved(ctx, compare, equal, at);
            }
            None => {
                let detail = "retention removed what could be compared on both sides; the saved \
                              distance decides";
                self.error(detail);
                self.compared(ctx, compare, None);
            }
        }
    }

    fn compared_with_saved(&mut self, ctx: &mut Ctx<'_>, compare: Compare, equal: bool, at: u64) {
        if equal {
            let last = compare.seen.last().filter(|(offset, _)| *offset + 1 == compare.end);
            let last = last.map(|(_, seen)| *seen);
            return self.compared(ctx, compare, last);
        }
        let detail = format!("destination offset {at} does not hold the message saved for it");
        self.fail(ctx, reason::DIVERGED, detail);
    }

    /// A question of the resume has no good answer; a lost connection starts it over anyway.
    pub(super) fn resume_failed(
        &mut self,
        ctx: &mut Ctx<'_>,
        purpose: Purpose,
        failure: &Failure,
    ) {
        let detail = format!("{purpose:?}: {failure:?}");
        match failure {
            Failure::TooLarge { .. } => {
                self.error(detail);
                self.wide = true;
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

    /// Both sides agree: `compare.position` is where the copy goes on.
    fn compared(&mut self, ctx: &mut Ctx<'_>, compare: Compare, last: Option<Fingerprint>) {
        let Compare { end, position, .. } = compare;
        self.short_log = None;
        if let Some(lost) = self.lost_send.take() {
            match self.writer.looked(position, lost) {
                Suspicion::None | Suspicion::Halved(_) => {}
                Suspicion::Message(offset) => {
                    let detail = format!(
                        "the destination never takes the message at upstream offset {offset}: \
                         sent {} times without an answer",
                        crate::fanout::dispatch::UNKNOWNS_UNTIL_HALVED
                    );
                    return self.fail(ctx, reason::BAD_RECORD, detail);
                }
            }
        }
        if position < self.entry.position {
            self.error(format!(
                "the destination lost its tail: messages from upstream offset {position} to {} \
                 are sent again",
                self.entry.position - 1
            ));
            self.new_epoch();
            self.barrier_owed = true;
        } else {
            self.entry.counters.messages += position - self.entry.position;
        }
        let last_message =
            last.map(|fingerprint| LastMessage { offset: position.saturating_sub(1), fingerprint });
        let keeps = self.entry.last.filter(|kept| kept.offset + 1 == position);
        self.entry.last = last_message.or(keeps);
        self.entry.position = position;
        let last = self.entry.last.map(|last| last.fingerprint);
        self.settled(ctx, position, last, end);
    }

    /// Reader and writer stand at the same message; saves first if that is owed.
    fn settled(
        &mut self,
        ctx: &mut Ctx<'_>,
        position: u64,
        last: Option<Fingerprint>,
        end: u64,
    ) {
        self.settle_until = None;
        self.clean = false;
        self.writer.restart(end);
        self.reader.seek(position, last);
        self.moved_at = ctx.now.mono;
        self.release_slot(ctx);
        self.wide = false;
        if self.barrier_owed {
            self.save_first(ctx);
        } else {
            self.touch(ctx);
            self.stage = Stage::Streaming;
        }
    }
}

/// Fingerprint and offset of the last message of an acked record.
pub(super) fn last_message(record: &Record) -> LastMessage {
    let (offset, fingerprint) = fingerprint_of_last(record);
    LastMessage { offset, fingerprint }
}
