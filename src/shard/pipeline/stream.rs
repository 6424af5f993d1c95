//! Copying: poll ahead, send one at a time, move the position with every ack (M5, I2, G6).

use std::time::Duration;

use super::budget::LARGE_SLOT;
use super::compare::last_message;
use super::conns::Purpose;
use super::feed::{Bad, Ctx, Feed, Jump};
use super::holdings::LargeSlot;
use super::resume::{TOPIC_REPLY, look_up};
use crate::batch::Gap;
use crate::config::{InitialOffset, OnOffsetExpired};
use crate::fanout::dispatch::{Ack, Most};
use crate::iggy_wire::Verify;
use crate::iggy_wire::encode::send_frame_len;
use crate::iggy_wire::frame::MAX_REQUEST;
use crate::iggy_wire::record;
use crate::iggy_wire::run::PARTS_MOST;
use crate::iggy_wire::{Batch, PollFrom, Polled, Record, Request, Run, SendTo, TopicInfo};
use crate::ingest::Source;
use crate::ingest::history::end_of_empty_reply;
use crate::ingest::iggy::{Ask, Outcome, RESERVE_LEAST};
use crate::shard::event::Failure;
use crate::shard::reason;
use crate::statefile::MAX_GAPS;

/// Replies a feed holds or awaits: one being sent, one ready behind it.
const REPLIES_AHEAD: usize = 2;
/// The same where the round trip is long, as long as less than a merged batch waits.
const REPLIES_FAR_AHEAD: usize = PARTS_MOST;
/// Pause between polls of a log that answers less than it held.
const NOT_READY_PAUSE: Duration = Duration::from_millis(250);
/// Acked at least this lately, or owing nothing: the feed may draw from the pool.
const MOVING: Duration = Duration::from_secs(2);

impl Feed {
    /// Sends and polls as far as windows and buffers allow.
    pub(super) fn pump(&mut self, ctx: &mut Ctx<'_>) {
        self.pump_send(ctx);
        if self.is_ended() {
            return;
        }
        if self.gap_to.is_some() && self.writer.is_empty() {
            return self.open_gap(ctx);
        }
        if !ctx.conns.is_up(self.up) || self.gap_to.is_some() {
            return;
        }
        if self.jump.is_some() {
            return self.ask_earliest(ctx);
        }
        if !self.identified {
            return self.ask_identity(ctx);
        }
        self.pump_poll(ctx);
    }

    fn pump_send(&mut self, ctx: &mut Ctx<'_>) {
        if ctx.lane.failing() || !ctx.conns.is_up(self.down) {
            return;
        }
        let next = self.writer.next_upstream();
        if let Some(next) = next.filter(|next| *next != self.entry.position) {
            return self.out_of_order(ctx, next);
        }
        match self.writer.next(ctx.now.mono, self.send_most()) {
            Ok(None) => self.wake_for(self.writer.next_at()),
            Ok(Some(record)) => {
                self.doubt.sends(*ctx.acked_at);
                let (name, to) = (self.topic().downstream.clone(), self.send_to());
                let send = Request::Send { stream: name.stream, topic: name.topic, to, record };
                self.request(ctx, send, Purpose::Send, RESERVE_LEAST);
            }
            Err(offset) => {
                let detail = format!("the message at upstream offset {offset} fits no frame");
                self.fail(ctx, reason::BAD_RECORD, detail);
            }
        }
    }

    fn send_to(&self) -> SendTo {
        if self.is_balanced() { SendTo::Balanced } else { SendTo::Partition(self.spec.partition) }
    }

    /// What fits a frame beside the names of its destination, and what of it is worth merging.
    fn send_most(&self) -> Most {
        let name = &self.topic().downstream;
        let around = send_frame_len(&name.stream, &name.topic, self.send_to(), 0);
        let merged = self.spec.plan.max_batch_bytes as usize;
        Most { bytes: MAX_REQUEST - around, merged, is_far: self.trip.is_far() }
    }

    /// Enough is read, or being read, for the next send.
    fn is_read_ahead(&self) -> bool {
        let replies = self.holding.replies();
        let waits = self.writer.waiting() >= u64::from(self.spec.plan.max_batch_bytes);
        let is_short = self.trip.is_far() && !waits && replies < REPLIES_FAR_AHEAD;
        self.reader.is_waiting() || (replies >= REPLIES_AHEAD && !is_short)
    }

    fn pump_poll(&mut self, ctx: &mut Ctx<'_>) {
        if let Some(Bad { offset, why, seen, .. }) = &self.bad
            && *seen > 1
        {
            if self.writer.is_empty() {
                let detail = format!("upstream offset {offset}: {why}");
                self.fail(ctx, reason::BAD_RECORD, detail);
            }
            return;
        }
        if self.is_read_ahead() {
            return;
        }
        if self.large == LargeSlot::Held && self.holding.replies() > 0 {
            return;
        }
        if self.wide && self.large != LargeSlot::Held {
            return self.want_slot_while_streaming(ctx);
        }
        let moving = self.writer.is_empty() || ctx.now.mono.since(self.moved_at) < MOVING;
        let room = ctx.budget.available(&self.holding, moving);
        let target = u64::from(self.spec.plan.max_batch_bytes).min(room / 2);
        let Some(mut ask) = self.reader.ask(ctx.now.mono, target) else {
            return self.wake_for(Some(self.reader.next_at()));
        };
        self.limit_to_bad(&mut ask);
        if self.large == LargeSlot::Held {
            ask.count = 1;
            ask.reserve = LARGE_SLOT;
        } else if ask.count <= 2 && ask.reserve > ctx.budget.ceiling() / 2 {
            self.wide = true;
            return self.want_slot_while_streaming(ctx);
        } else if !ctx.budget.reserve(&mut self.holding, ask.reserve, moving) {
            self.starved = true;
            return;
        }
        self.starved = false;
        self.reader.asked(ask);
        let poll = self.poll(&self.topic().upstream, ask.from, ask.count);
        self.request(ctx, poll, Purpose::Poll, ask.reserve);
    }

    /// Polls up to a record that could not be read, not into it.
    fn limit_to_bad(&self, ask: &mut Ask) {
        let PollFrom::Offset(from) = ask.from else { return };
        if let Some(Bad { offset, .. }) = &self.bad {
            let most = offset.saturating_sub(from).max(1);
            ask.count = ask.count.min(u32::try_from(most).unwrap_or(u32::MAX));
        }
    }

    fn want_slot_while_streaming(&mut self, ctx: &mut Ctx<'_>) {
        if ctx.now.mono < self.reader.next_at() {
            return self.wake_for(Some(self.reader.next_at()));
        }
        if self.writer.is_empty() && !ctx.lane.failing() {
            self.want_slot(ctx);
        }
    }

    /// Identity is re-read on every new upstream connection, before its first poll; where nobody
    /// has asked yet, the nodes there are before that.
    fn ask_identity(&mut self, ctx: &mut Ctx<'_>) {
        if self.identity_asked || !self.borrow_for_question(ctx, TOPIC_REPLY) {
            return;
        }
        self.identity_asked = true;
        if self.ask_upstream_roster(ctx) {
            return;
        }
        let topic = look_up(&self.topic().upstream);
        self.request(ctx, topic, Purpose::Identity, TOPIC_REPLY);
    }

    /// The upstream topic as it is now.
    pub(super) fn identity(&mut self, ctx: &mut Ctx<'_>, info: Option<TopicInfo>) {
        self.identity_asked = false;
        if self.upstream_is_older(ctx, info.as_ref()) {
            return;
        }
        let known = self.entry.upstream_created_at;
        if let Some(info) = info.as_ref().filter(|info| info.created_at != known) {
            let detail = format!(
                "upstream topic {} was created at {} us, it was the one created at {} us",
                self.topic().upstream,
                info.created_at,
                self.entry.upstream_created_at
            );
            if self.history_changed(ctx, detail) {
                self.restart_resume(ctx);
            }
            return;
        }
        if self.upstream_present(ctx, info).is_none() {
            return;
        }
        self.identified = true;
        if self.reader.not_ready_since().is_none() {
            self.say(reason::RUNNING, "", ctx.now);
        }
    }

    /// A poll was answered.
    pub(super) fn polled(&mut self, ctx: &mut Ctx<'_>, polled: Polled) {
        let bytes = polled.body_len();
        let outcome = if polled.partition == self.spec.partition {
            self.reader.replied(ctx.now.mono, polled)
        } else {
            Outcome::Wrong(format!(
                "asked partition {}, partition {} answered",
                self.spec.partition, polled.partition
            ))
        };
        if !matches!(outcome, Outcome::Records(_)) {
            ctx.budget.arrived(&mut self.holding, 0, 0);
        }
        let more = matches!(outcome, Outcome::Idle) && self.reader.reported_end() > self.cursor();
        if self.large == LargeSlot::Held && !more && !matches!(outcome, Outcome::Jump { .. }) {
            self.wide = false;
            if !matches!(outcome, Outcome::Records(_)) {
                self.release_slot(ctx);
            }
        }
        match outcome {
            Outcome::Records(run) => self.take(ctx, *run, bytes),
            Outcome::Idle => {
                if self.writer.is_empty() && self.reader.reported_end() <= self.cursor() {
                    self.search.accepted();
                }
                self.running(ctx);
            }
            Outcome::NotReady(detail) => self.not_ready(ctx, detail),
            Outcome::Jump { found } => self.jumped(ctx, found),
            Outcome::Wrong(detail) => self.distrust(ctx, detail),
            Outcome::OtherHistory(detail) => self.other_message(ctx, detail),
            Outcome::Bad(error) => self.bad_record(ctx, error.offset, error.why),
        }
    }

    /// Another message stands where the last one was read: damaged on the way, or another log. A
    /// second connection must see the same.
    fn other_message(&mut self, ctx: &mut Ctx<'_>, detail: String) {
        let cursor = self.cursor();
        if self.other_seen != Some(cursor) {
            self.other_seen = Some(cursor);
            self.error(detail);
            ctx.conns.close(self.up, ctx.out);
        } else if self.history_changed(ctx, detail) {
            self.other_seen = None;
            self.restart_resume(ctx);
        }
    }

    fn take(&mut self, ctx: &mut Ctx<'_>, run: Run, bytes: u64) {
        let until = run.next_offset();
        ctx.budget.arrived(&mut self.holding, bytes, until);
        self.bad = self.bad.take().filter(|bad| bad.offset >= until);
        if self.writer.is_empty() {
            self.moved_at = ctx.now.mono;
        }
        self.writer.push(run);
        self.running(ctx);
    }

    fn running(&mut self, ctx: &mut Ctx<'_>) {
        self.other_seen = None;
        self.backoff.reset();
        self.say(reason::RUNNING, "", ctx.now);
    }

    fn not_ready(&mut self, ctx: &mut Ctx<'_>, detail: String) {
        let now = ctx.now.mono;
        let since = self.reader.not_ready_since().unwrap_or(now);
        let (reason, detail) = self.words_of_lag(ctx, since, detail);
        if now.since(since) >= self.spec.plan.reset_grace && !self.upstream_may_lag(ctx) {
            if self.history_changed(ctx, detail) {
                self.restart_resume(ctx);
            }
            return;
        }
        if self.condition.reason != reason.code {
            self.error(detail.clone());
        }
        self.say(reason, detail, ctx.now);
        self.reader.sleep_until(now + NOT_READY_PAUSE);
        self.identified = false;
    }

    fn jumped(&mut self, ctx: &mut Ctx<'_>, found: u64) {
        self.jump = Some(Jump { found, asked: false });
        self.ask_earliest(ctx);
    }

    /// One question at a time: an identity that is being asked for comes first.
    fn ask_earliest(&mut self, ctx: &mut Ctx<'_>) {
        let Some(jump) = self.jump.filter(|jump| !jump.asked) else { return };
        if self.identity_asked || !self.borrow_for_resume(ctx) {
            return;
        }
        self.jump = Some(Jump { asked: true, ..jump });
        let poll = self.poll(&self.topic().upstream, PollFrom::First, 1);
        self.request(ctx, poll, Purpose::Earliest, self.compare_limit());
    }

    /// Where the upstream log begins: only this makes a jump a gap.
    pub(super) fn earliest(&mut self, ctx: &mut Ctx<'_>, polled: &Polled) {
        let Some(Jump { found, .. }) = self.jump.take() else { return };
        self.release_slot(ctx);
        self.wide = false;
        let cursor = self.cursor();
        let earliest = match record::scan(&polled.records, Verify::FramingOnly) {
            Ok(records) => records.first().map(Record::first_offset),
            Err(error) => return self.distrust(ctx, error.to_string()),
        };
        match earliest {
            Some(earliest) if earliest > cursor => self.expired(ctx, cursor, earliest),
            // Retention took the message that proves the history, and nothing else.
            Some(earliest) if earliest == cursor && found == cursor => {
                self.reader.seek(cursor, None);
            }
            _ => {
                let end = end_of_empty_reply(polled);
                self.distrust(
                    ctx,
                    format!(
                        "asked for offset {cursor}, got {found}, but the log begins at \
                         {earliest:?} (end {end})"
                    ),
                );
            }
        }
    }

    fn expired(&mut self, ctx: &mut Ctx<'_>, cursor: u64, earliest: u64) {
        if self.gap_seen != Some(cursor) {
            // A gap is for ever: a second connection must see the same.
            self.gap_seen = Some(cursor);
            ctx.conns.close(self.up, ctx.out);
            return;
        }
        self.gap_seen = None;
        let plan = &self.spec.plan;
        let target = match plan.on_offset_expired {
            OnOffsetExpired::EarliestAvailable => earliest,
            OnOffsetExpired::InitialOffset => match plan.initial_offset {
                InitialOffset::Earliest => earliest,
                InitialOffset::Latest => self.reader.reported_end().max(earliest),
                InitialOffset::At(offset) => offset.max(earliest),
            },
            OnOffsetExpired::Fail => {
                let detail = format!(
                    "retention removed offsets {cursor} to {} before they were copied",
                    earliest - 1
                );
                return self.fail(ctx, reason::OFFSET_EXPIRED, detail);
            }
        };
        // What was read before the gap is sent first; see `open_gap`.
        self.gap_to = Some(target);
    }

    /// Everything before the gap is acked: the gap record is saved before anything behind it is
    /// sent.
    fn open_gap(&mut self, ctx: &mut Ctx<'_>) {
        let Some(to) = self.gap_to.take() else { return };
        let from = self.entry.position;
        if to > from {
            let gap = Gap { first: from, last: to - 1, found_at: ctx.now.wall.0 };
            self.error(format!("offsets {from} to {} are missing upstream", gap.last));
            self.entry.counters.gaps += 1;
            self.entry.counters.gap_messages += gap.len();
            self.entry.gaps.push(gap);
            if self.entry.gaps.len() > MAX_GAPS {
                self.entry.gaps.remove(0);
            }
        }
        self.map.push(to, self.writer.next_offset());
        self.entry.position = to;
        self.reader.seek(to, None);
        self.wait_for_start();
        self.save_first(ctx);
    }

    /// The reply cannot be trusted: a new connection, and the same question again.
    fn distrust(&mut self, ctx: &mut Ctx<'_>, detail: String) {
        self.error(detail.clone());
        self.say(reason::WAITING_UPSTREAM, detail, ctx.now);
        let pause = self.backoff.failed(ctx.rng);
        self.reader.unanswered();
        self.reader.punish_until(ctx.now.mono + pause);
        ctx.conns.close(self.up, ctx.out);
    }

    fn bad_record(&mut self, ctx: &mut Ctx<'_>, offset: u64, why: String) {
        let cursor = self.cursor();
        self.error(format!("upstream offset {offset}: {why}"));
        let known = self.bad.take();
        let stuck = known.as_ref().is_some_and(|bad| bad.cursor == cursor);
        if offset > cursor && !stuck {
            // What stands before it is copied first.
            self.bad = Some(Bad { offset, why, seen: 0, cursor });
            return;
        }
        // A damaged header may name any offset; what is next to read is what is damaged.
        let met = known.filter(|bad| stuck && bad.offset == cursor).map_or(0, |bad| bad.seen);
        let seen = met + 1;
        self.bad = Some(Bad { offset: cursor, why, seen, cursor });
        if seen == 1 {
            // Damaged on the way, or on disk: another connection tells.
            ctx.conns.close(self.up, ctx.out);
        }
    }

    /// A poll, or a question beside it, failed; the connection lives or its end follows.
    pub(super) fn read_failed(&mut self, ctx: &mut Ctx<'_>, purpose: Purpose, failure: &Failure) {
        self.error(format!("{purpose:?}: {failure:?}"));
        if purpose == Purpose::Poll {
            ctx.budget.arrived(&mut self.holding, 0, 0);
        } else {
            self.identity_asked = false;
            self.jump = None;
        }
        match failure {
            Failure::TooLarge { size } if self.large == LargeSlot::Held => {
                let detail = format!(
                    "the message at upstream offset {} needs a frame of {size} bytes, at most \
                     {LARGE_SLOT} can be buffered",
                    self.cursor()
                );
                self.fail(ctx, reason::BAD_RECORD, detail);
            }
            Failure::TooLarge { size } if purpose == Purpose::Poll => {
                self.reader.too_large(u64::from(*size));
            }
            Failure::TooLarge { .. } => {
                self.wide = true;
                self.reader.unanswered();
            }
            Failure::Refused(code) => {
                self.unanswered(ctx, purpose);
                self.upstream_refused(ctx, *code);
            }
            Failure::TimedOut | Failure::Lost | Failure::Malformed(_) => {
                self.unanswered(ctx, purpose);
            }
        }
    }

    /// The same is asked again; meanwhile the slot may serve another feed.
    fn unanswered(&mut self, ctx: &mut Ctx<'_>, purpose: Purpose) {
        if purpose == Purpose::Poll {
            self.reader.unanswered();
        }
        self.release_empty_slot(ctx);
    }

    fn upstream_refused(&mut self, ctx: &mut Ctx<'_>, code: u32) {
        let reason = match code {
            41 => reason::UNAUTHORIZED,
            _ => reason::WAITING_UPSTREAM,
        };
        let detail = format!("upstream refused with code {code}");
        self.say(reason, detail, ctx.now);
        self.reader.sleep_until(ctx.now.mono + self.backoff.failed(ctx.rng));
        self.identified = false;
        if code == 40 {
            ctx.conns.close(self.up, ctx.out);
        }
    }

    /// A send was confirmed.
    pub(super) fn sent(&mut self, ctx: &mut Ctx<'_>, base_offset: Option<u64>) {
        if self.is_balanced() {
            match (base_offset, self.writer.is_waiting()) {
                (None, _) => self.send_unknown(ctx, "an empty confirmation"),
                (Some(_), false) => {}
                (Some(_), true) => {
                    if let Some(batch) = self.writer.confirmed_anywhere() {
                        self.acked(ctx, &batch);
                    }
                }
            }
            return;
        }
        match self.writer.confirmed(base_offset) {
            Ack::Done(batch) => self.acked(ctx, &batch),
            Ack::Unknown => self.send_unknown(ctx, "an empty confirmation"),
            Ack::Diverged { expected, confirmed } => {
                let detail = format!(
                    "the destination gave offset {confirmed}, expected was {expected}: {}",
                    if confirmed > expected {
                        "somebody else writes there"
                    } else {
                        "it lost messages below our batch"
                    }
                );
                // Another topic under the same name would explain it: asked before it is said.
                self.divergence = Some(detail);
                self.restart_resume(ctx);
            }
        }
    }

    fn acked(&mut self, ctx: &mut Ctx<'_>, batch: &Batch) {
        if batch.first_offset() != self.entry.position {
            return self.out_of_order(ctx, batch.first_offset());
        }
        let position = batch.next_offset();
        self.entry.position = position;
        self.entry.last = last_message(batch);
        self.entry.counters.messages += u64::from(batch.count());
        self.entry.counters.bytes += batch.len() as u64;
        self.trip.acked(batch.records());
        self.moved_at = ctx.now.mono;
        self.commit_failures = 0;
        *ctx.acked_at = Some(ctx.now.mono);
        self.search.accepted();
        self.clean = false;
        ctx.budget.acked(&mut self.holding, position);
        self.release_empty_slot(ctx);
        self.touch(ctx);
        if self.doubt.ends() || self.condition.reason == reason::NOT_ACCEPTED.code {
            self.say(reason::RUNNING, "", ctx.now);
        }
    }

    /// The next record does not begin where the last one ended (I1): whatever led here, going on
    /// would leave messages out.
    fn out_of_order(&mut self, ctx: &mut Ctx<'_>, found: u64) {
        let detail = format!(
            "upstream offset {found} came up, the next one to copy is {}",
            self.entry.position
        );
        self.fail(ctx, reason::OUT_OF_ORDER, detail);
    }

    fn send_unknown(&mut self, ctx: &mut Ctx<'_>, what: &str) {
        self.error(format!("outcome of a send is unknown: {what}"));
        self.unknown(ctx, true);
        self.restart_resume(ctx);
    }

    /// A send has no good answer.
    pub(super) fn send_failed(&mut self, ctx: &mut Ctx<'_>, failure: &Failure) {
        match failure {
            Failure::Refused(58) => self.not_accepted(ctx),
            Failure::Refused(57) => self.send_unknown(ctx, "the server says so (57)"),
            Failure::Refused(code @ (20 | 1009 | 2010 | 3007)) => {
                self.writer.put_back();
                let detail = format!("the destination is not there (code {code})");
                self.hold(ctx, reason::WAITING_DESTINATION, detail);
            }
            Failure::Refused(40) => {
                self.writer.put_back();
                self.error("the session is gone (40)");
                ctx.conns.close(self.down, ctx.out);
            }
            Failure::Refused(41) => {
                self.writer.put_back();
                self.hold(ctx, reason::UNAUTHORIZED, "the destination refused: code 41".into());
            }
            Failure::Refused(code) => {
                let range = self.writer.outstanding().unwrap_or_default();
                self.writer.put_back();
                let detail = format!(
                    "the destination refused upstream offsets {} to {} with code {code}",
                    range.0,
                    range.1.saturating_sub(1)
                );
                self.fail(ctx, reason::BAD_RECORD, detail);
            }
            Failure::TimedOut => self.send_unknown(ctx, "no answer in time"),
            Failure::Lost => {
                self.error("outcome of a send is unknown: the connection ended");
                self.restart_resume(ctx);
            }
            Failure::TooLarge { .. } | Failure::Malformed(_) => {
                self.send_unknown(ctx, "the answer cannot be read");
            }
        }
    }

    /// Next upstream offset to read.
    fn cursor(&self) -> u64 {
        Source::position(&self.reader)
    }

    fn wake_for(&mut self, at: Option<crate::time::Millis>) {
        if let Some(at) = at {
            self.wake_at = Some(self.wake_at.map_or(at, |earlier| earlier.min(at)));
        }
    }
}
