//! Captures beside the mirror's feeds: who gets which event, and what their saves hold.

use std::collections::BTreeMap;

use super::capture::{Capture, feed_of};
use super::feed::Ctx;
use super::{Pipeline, Source};
use crate::batch::FeedId;
use crate::commit::lane::Lane;
use crate::shard::event::{CaptureSpec, Command, PgConnId, PgEvent};
use crate::shard::snapshot::CaptureSnapshot;
use crate::statefile::CaptureState;
use crate::time::{Millis, Now};

impl Pipeline {
    pub(super) fn add_capture(&mut self, now: Now, spec: CaptureSpec, out: &mut Vec<Command>) {
        let id = spec.id;
        let source = self.sources.entry(spec.plan.key.clone()).or_insert_with(|| Source {
            lane: lane(spec.generation),
            problem: None,
            feeds: Vec::new(),
            acked_at: None,
            carried: Vec::new(),
            carried_captures: spec.carried.clone(),
        });
        source.feeds.push(id);
        self.budget.add_feed();
        let mut ctx = Ctx {
            now,
            out,
            conns: &mut self.conns,
            budget: &mut self.budget,
            lane: &mut source.lane,
            rng: &mut self.rng,
            acked_at: &mut source.acked_at,
        };
        let capture = Capture::new(spec, &mut ctx);
        self.captures.insert(id, capture);
        self.ready.push_back(id);
    }

    pub(super) fn postgres(
        &mut self,
        now: Now,
        conn: PgConnId,
        event: PgEvent,
        out: &mut Vec<Command>,
    ) {
        self.with_capture(now, feed_of(conn), out, |capture, ctx| {
            capture.postgres(ctx, conn, event);
        });
    }

    /// Every capture as status shows it.
    pub fn captures(&self, now: Now) -> Vec<CaptureSnapshot> {
        let shown = |capture: &Capture| {
            let mut shown = capture.snapshot(now);
            let source = self.sources.get(&capture.spec.plan.key);
            if let Some(source) = source.filter(|_| !capture.is_ended()) {
                shown.condition = source.condition(shown.condition, now);
            }
            shown
        };
        self.captures.values().map(shown).collect()
    }

    /// Lets a capture act, then lets it take its turn.
    pub(super) fn with_capture(
        &mut self,
        now: Now,
        id: FeedId,
        out: &mut Vec<Command>,
        act: impl FnOnce(&mut Capture, &mut Ctx<'_>),
    ) {
        self.act_capture(now, id, out, act);
        self.ready.push_back(id);
    }

    pub(super) fn turn_capture(&mut self, now: Now, id: FeedId, out: &mut Vec<Command>) {
        let draining = self.draining;
        let paused = &self.paused;
        let is_paused = self.captures.get(&id).is_some_and(|c| paused.contains(&c.spec.plan.key));
        self.act_capture(now, id, out, |capture, ctx| {
            capture.wake_at = None;
            capture.draining = draining;
            capture.paused = is_paused;
            capture.turn(ctx);
        });
        let Some(capture) = self.captures.get_mut(&id) else { return };
        if let Some(at) = capture.wake_at.map(|at| at.max(Millis(now.mono.0 + 1)))
            && capture.timer.is_none_or(|queued| at < queued)
        {
            capture.timer = Some(at);
            self.timers.push(std::cmp::Reverse((at, id)));
        }
    }

    fn act_capture(
        &mut self,
        now: Now,
        id: FeedId,
        out: &mut Vec<Command>,
        act: impl FnOnce(&mut Capture, &mut Ctx<'_>),
    ) {
        let Some(capture) = self.captures.get_mut(&id) else { return };
        let Some(source) = self.sources.get_mut(&capture.spec.plan.key) else { return };
        let mut ctx = Ctx {
            now,
            out,
            conns: &mut self.conns,
            budget: &mut self.budget,
            lane: &mut source.lane,
            rng: &mut self.rng,
            acked_at: &mut source.acked_at,
        };
        act(capture, &mut ctx);
        self.wake_waiting();
    }
}

/// Captures keep no interval beyond the lane's own pace: the database keeps its log until a
/// position is saved (C2).
fn lane(generation: u64) -> Lane {
    Lane::new(std::time::Duration::ZERO, generation)
}

/// What a save that begins now holds of each capture.
pub(super) fn saving(
    captures: &mut BTreeMap<FeedId, Capture>,
    ids: &[FeedId],
) -> Vec<(FeedId, u64)> {
    let mut positions = Vec::new();
    for id in ids {
        if let Some(capture) = captures.get_mut(id).filter(|capture| capture.started) {
            positions.push((*id, capture.saving()));
        }
    }
    positions
}

/// The entries of a save.
pub(super) fn entries(source: &Source, captures: &BTreeMap<FeedId, Capture>) -> Vec<CaptureState> {
    let own = source.feeds.iter().filter_map(|id| captures.get(id));
    let own =
        own.filter(|capture| capture.started).map(|capture| capture.entry.clone().consistent());
    own.chain(source.carried_captures.iter().cloned()).collect()
}
