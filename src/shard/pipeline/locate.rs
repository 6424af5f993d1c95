//! Where a first start, a refill or a new history begins (M4), read twice.
//!
//! A start that is too high loses messages without a trace, so the offset that one poll named is
//! believed only when a second, differently put, agrees: nothing stands right below it, or for
//! `latest` nothing stands at it.

use super::conns::Purpose;
use super::feed::{Ctx, Feed, Restart, Stage};
use crate::batch::OffsetMap;
use crate::config::{InitialOffset, OnNonemptyDestination};
use crate::iggy_wire::{PollFrom, Polled, Record};
use crate::ingest::history::end_of_empty_reply;
use crate::shard::reason;

/// What the second poll must find.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    start: u64,
    /// `latest`: the log ends at `start`, or has grown there since.
    at_end: bool,
}

impl Feed {
    /// Nothing is known of this destination: it ends at `end`, and the copy begins there.
    pub(super) fn locate(&mut self, ctx: &mut Ctx<'_>, end: u64) {
        let foreign = end > 0 && !self.is_balanced() && self.restart != Restart::History;
        if foreign && self.spec.plan.on_nonempty_destination == OnNonemptyDestination::Fail {
            let detail = format!(
                "destination {} partition {} already ends at offset {end} and nothing is known \
                 of how its messages came there",
                self.topic().downstream,
                self.spec.partition
            );
            return self.fail(ctx, reason::NONEMPTY_DESTINATION, detail);
        }
        let from = match self.initial() {
            InitialOffset::Earliest => PollFrom::First,
            InitialOffset::Latest => PollFrom::Last,
            InitialOffset::At(offset) => PollFrom::Offset(offset),
        };
        self.ask_start(ctx, end, None, from);
    }

    /// A reply of the search.
    pub(super) fn located(&mut self, ctx: &mut Ctx<'_>, polled: &Polled) {
        let Stage::Locating { end, found } = self.stage else { return };
        let Some(records) = self.readable(ctx, polled) else { return };
        let first = records.first().map(Record::first_offset);
        if let Some(found) = found {
            return self.confirm_start(ctx, end, found, first, polled);
        }
        let initial = self.initial();
        let found = match (records.last(), initial) {
            (Some(last), InitialOffset::Latest) => {
                Found { start: last.next_offset(), at_end: true }
            }
            (Some(_), _) => Found { start: first.unwrap_or(0), at_end: false },
            (None, _) => {
                let log_end = end_of_empty_reply(polled);
                let start = match initial {
                    InitialOffset::At(offset) => offset.max(log_end),
                    _ => log_end,
                };
                let expected = matches!(initial, InitialOffset::At(n) if n >= log_end);
                let silent = log_end > 0 || self.upstream_messages > 0;
                if silent && !expected && !self.log_stays(ctx) {
                    return;
                }
                return self.start_at(ctx, start, end);
            }
        };
        let at = matches!(initial, InitialOffset::At(offset) if offset == found.start);
        if found.start == 0 || at {
            return self.start_at(ctx, found.start, end);
        }
        let probe = if found.at_end { found.start } else { found.start - 1 };
        self.ask_start(ctx, end, Some(found), PollFrom::Offset(probe));
    }

    /// Late partitions, refills and new histories begin at the first message there is.
    fn initial(&self) -> InitialOffset {
        let is_late = self.spec.partition >= self.spec.first_count;
        if is_late || self.restart != Restart::No {
            InitialOffset::Earliest
        } else {
            self.spec.plan.initial_offset
        }
    }

    fn ask_start(&mut self, ctx: &mut Ctx<'_>, end: u64, found: Option<Found>, from: PollFrom) {
        self.stage = Stage::Locating { end, found };
        let poll = self.poll(&self.topic().upstream, from, 1);
        self.request(ctx, poll, Purpose::Locate, self.compare_limit());
    }

    fn confirm_start(
        &mut self,
        ctx: &mut Ctx<'_>,
        end: u64,
        found: Found,
        first: Option<u64>,
        polled: &Polled,
    ) {
        let ends_there = first.is_none() && end_of_empty_reply(polled) == found.start;
        if first == Some(found.start) || (found.at_end && ends_there) {
            return self.start_at(ctx, found.start, end);
        }
        let detail = format!(
            "the upstream log begins at {} by one poll and at {first:?} by another",
            found.start
        );
        self.hold(ctx, reason::WAITING_UPSTREAM, detail);
    }

    fn start_at(&mut self, ctx: &mut Ctx<'_>, start: u64, end: u64) {
        self.lag.short_log = None;
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

    /// Where `initial_offset` is a number and nothing was copied from there yet, the log may still
    /// end before it.
    pub(super) fn wait_for_start(&mut self) {
        let position = self.entry.position;
        let is_start = self.map.pieces().last().is_some_and(|it| it.from_upstream == position);
        if is_start && self.spec.plan.initial_offset == InitialOffset::At(position) {
            self.reader.wait_for_cursor();
        }
    }

    /// True once an upstream log that holds messages has answered none for `reset_grace`.
    fn log_stays(&mut self, ctx: &mut Ctx<'_>) -> bool {
        let now = ctx.now.mono;
        let since = *self.lag.short_log.get_or_insert(now);
        if now.since(since) >= self.spec.plan.reset_grace {
            return true;
        }
        let detail = "the upstream log answers no message although it has some; it may be starting";
        self.look_later(ctx, reason::WAITING_UPSTREAM, detail);
        false
    }
}
