//! The comparison of resume (M6): the last messages readable on both sides must be equal.
//!
//! ```text
//! destination's last 16 ─▶ the same messages upstream ─┬─ equal ────────────▶ go on
//!                                                      ├─ different ────────▶ diverged
//!                                                      └─ gone (retention) ─▶ saved fingerprint
//! ```

use super::conns::Purpose;
use super::feed::{Ctx, Feed, Stage};
use crate::batch::{Fingerprint, target};
use crate::iggy_wire::{Batch, PollFrom, Polled, Record};
use crate::ingest::history::{end_of_log_read, end_of_reply, fingerprint};
use crate::shard::reason;
use crate::statefile::LastMessage;

/// Most messages compared (M6).
pub const COMPARE_MESSAGES: u64 = 16;
/// Most bytes compared at once; above that one message at a time (M6).
pub const COMPARE_BYTES: u64 = 1024 * 1024;
/// Frame header of a message and its part of a record header, bytes.
const MESSAGE_OVERHEAD: u64 = 48 + 256;

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
    pub(super) fn compare(&mut self, ctx: &mut Ctx<'_>, end: u64) {
        let Some(position) = self.map.upstream(end) else {
            let detail = format!(
                "the destination ends at offset {end}, below offset {} where this copy began",
                self.map.pieces().first().map_or(0, target)
            );
            return self.diverged(ctx, detail);
        };
        let ours_from = self.map.pieces().first().map_or(0, target);
        if end == ours_from {
            return self.compared(ctx, Compare { end, position, seen: Vec::new() }, None);
        }
        self.stage = Stage::Comparing(Compare { end, position, seen: Vec::new() });
        let count = u32::try_from(self.compare_count().min(end - ours_from)).unwrap_or(1);
        let from = PollFrom::Offset(end - u64::from(count));
        let poll = self.poll(&self.topic().downstream, from, count);
        self.request(ctx, poll, Purpose::CompareDownstream, self.compare_limit());
    }

    /// What is to be compared does not fit the fixed reserve: as was seen, or as the last message
    /// copied says.
    pub(super) fn needs_slot_to_compare(&self) -> bool {
        self.wide_compare || self.last_len() > COMPARE_BYTES
    }

    fn last_len(&self) -> u64 {
        self.entry.last.map_or(0, |last| message_len(&last.fingerprint))
    }

    /// How many messages the fixed reserve holds, judged by the last one copied.
    fn compare_count(&self) -> u64 {
        if self.wide_compare {
            return 1;
        }
        let last = self.last_len();
        (COMPARE_BYTES / (last + MESSAGE_OVERHEAD)).clamp(1, COMPARE_MESSAGES)
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
                if self.upstream_differs(&records, &compare) {
                    return self.other_history(ctx, detail);
                }
                return self.diverged(ctx, detail);
            }
            equal = Some(message.offset);
        }
        let log_end = match records.last() {
            Some(last) => end_of_reply(polled, last),
            None => end_of_log_read(polled, compare.position),
        };
        if log_end < compare.position {
            return self.upstream_is_short(ctx, log_end, compare.position);
        }
        if equal.is_some() {
            let last = compare.seen.last().map(|(_, seen)| *seen);
            return self.compared(ctx, compare, last);
        }
        self.compare_with_saved(ctx, compare);
    }

    /// Which side holds something else: the message saved as the last one tells, if the
    /// destination still shows it and upstream shows another one in its place (M5).
    fn upstream_differs(&self, records: &[Record], compare: &Compare) -> bool {
        let Some(saved) = self.entry.last else { return false };
        let is_copy = |(at, seen): &(u64, Fingerprint)| {
            self.map.downstream(saved.offset) == Some(*at) && *seen == saved.fingerprint
        };
        let mut messages = records.iter().flat_map(Record::messages);
        let upstream = messages.find(|message| message.offset == saved.offset);
        compare.seen.iter().any(is_copy)
            && upstream.is_some_and(|message| fingerprint(&message) != saved.fingerprint)
    }

    /// The upstream log ends below what the destination holds: not ready, or another history.
    fn upstream_is_short(&mut self, ctx: &mut Ctx<'_>, log_end: u64, position: u64) {
        let now = ctx.now.mono;
        let since = *self.lag.short_log.get_or_insert(now);
        let detail = format!(
            "the upstream log ends at offset {log_end}, copied were messages up to {position}"
        );
        let (reason, detail) = self.words_of_lag(ctx, since, detail);
        if now.since(since) >= self.spec.plan.reset_grace && !self.upstream_may_lag(ctx) {
            self.lag.short_log = None;
            if log_end >= self.entry.position {
                // Upstream lost nothing that is known to have been copied: the destination has
                // more than it should.
                return self.diverged(ctx, detail);
            }
            if self.history_changed(ctx, detail) {
                self.ask_tail(ctx);
            }
            return;
        }
        self.look_later(ctx, reason, detail);
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
        self.diverged(ctx, detail);
    }

    /// The sides differ. A stop is for ever, so a second look on new connections must agree.
    pub(super) fn diverged(&mut self, ctx: &mut Ctx<'_>, detail: String) {
        if self.diverged_once {
            return self.fail(ctx, reason::DIVERGED, detail);
        }
        self.look_again(ctx, detail);
    }

    /// Upstream holds other messages than those copied from there; looked at twice as well.
    fn other_history(&mut self, ctx: &mut Ctx<'_>, detail: String) {
        if !self.diverged_once {
            return self.look_again(ctx, detail);
        }
        if self.history_changed(ctx, detail) {
            self.diverged_once = false;
            self.ask_tail(ctx);
        }
    }

    fn look_again(&mut self, ctx: &mut Ctx<'_>, detail: String) {
        self.diverged_once = true;
        self.error(detail);
        ctx.conns.close(self.up, ctx.out);
        ctx.conns.close(self.down, ctx.out);
        self.restart_resume(ctx);
    }

    /// Both sides agree: `compare.position` is where the copy goes on.
    fn compared(&mut self, ctx: &mut Ctx<'_>, compare: Compare, last: Option<Fingerprint>) {
        let Compare { end, position, .. } = compare;
        self.lag.short_log = None;
        self.diverged_once = false;
        if !self.may_send_again(ctx, position) {
            return;
        }
        if position < self.entry.position {
            self.error(format!(
                "the destination lost its tail: messages from upstream offset {position} to {} \
                 are sent again",
                self.entry.position - 1
            ));
            self.new_epoch();
            self.barrier_owed = true;
        } else if position > self.entry.position {
            self.commit_failures = 0;
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
}

/// Fingerprint and offset of the last message of an acked batch.
pub(super) fn last_message(batch: &Batch) -> Option<LastMessage> {
    let last = batch.last()?;
    Some(LastMessage { offset: last.offset, fingerprint: fingerprint(&last) })
}

/// Payload and headers of a message, bytes.
pub(super) fn message_len(message: &Fingerprint) -> u64 {
    u64::from(message.payload_len) + u64::from(message.headers_len)
}
