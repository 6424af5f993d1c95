//! Sending: a FIFO for each destination partition, one send of it outstanding (I2), and the
//! barrier behind them all (A8).
//!
//! ```text
//! submit ─▶ waiting (topic not known yet) ─▶ lane: [head][ ][ ] ─▶ outstanding ─▶ acked
//!                                             └──◀── same ids ◀── failed ◀─┘
//! ```
//!
//! * What is not acked is sent again with the same ids; nothing behind it in its lane goes first.
//! * At most `concurrent` sends are outstanding, oldest head first, so that none starves;
//!   destinations that failed lately get at most half of the places.
//! * What waits in a lane goes out together, up to the size of a batch.
//! * What was placed by another number of partitions goes out before anything is placed anew.
//! * A batch is complete when nothing of it is left anywhere; [`Lanes::complete`] is the number
//!   below which all are.

mod lane;
mod place;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::time::Duration;

use hashbrown::HashMap;

use self::lane::{Item, Lane, Sealed, Waiting};
use super::admission::{Disposition, Reason};
use super::breaker::Permit;
use super::destinations::{DestId, Destinations};
use super::failure::{Again, Failure};
use super::group::{Content, Group};
use super::partition::NOWHERE;
use crate::iggy_wire::{BatchBuilder, Relay};
use crate::time::Millis;

/// First short pause.
const SOON_FIRST: Duration = Duration::from_millis(50);
/// Longest short pause.
const SOON_LONGEST: Duration = Duration::from_secs(1);
/// What a batch costs that is not complete, bytes.
const BATCH_COST: usize = 128;

/// Names one lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LaneId(u32);

impl LaneId {
    /// Its number, from 0 in the order lanes were first used.
    pub fn number(self) -> u32 {
        self.0
    }
}

/// How lanes behave.
#[derive(Clone, Copy, Debug)]
pub struct LaneSettings {
    /// Most sends outstanding.
    pub concurrent: usize,
    /// First pause after a failure.
    pub retry_first: Duration,
    /// Longest pause.
    pub retry_longest: Duration,
    /// What waits is put together up to this many bytes.
    pub most_together: usize,
    /// What becomes of an id outside the topic's partitions.
    pub outside: Disposition,
    /// Partitions are asked for by number: one that is not there any more is waited for.
    pub by_id: bool,
}

/// A send to make.
#[derive(Clone, Debug)]
pub struct Send {
    /// Whose answer it is.
    pub lane: LaneId,
    /// Where to.
    pub dest: DestId,
    /// Which partition.
    pub partition: u32,
    /// What.
    pub relay: Relay,
    /// It failed lately.
    pub suspect: bool,
}

/// What an ack brought.
#[derive(Debug)]
pub struct Acked {
    /// Where it was.
    pub dest: DestId,
    /// Which partition.
    pub partition: u32,
    /// Messages done.
    pub messages: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// The offset that was expected at least, and the one confirmed, where the destination gave
    /// out an offset again.
    pub lost_tail: Option<(u64, u64)>,
    /// That closed the breaker.
    pub closed: bool,
    /// The buffer, for the next batch.
    pub buffer: Option<Vec<u8>>,
}

/// A message taken out of a group because its topic has no such partition.
#[derive(Debug)]
pub struct Outside {
    /// Where it should have gone.
    pub dest: DestId,
    /// Its batch.
    pub batch: u64,
    /// It alone.
    pub message: BatchBuilder,
}

/// Every lane of one feed.
#[derive(Debug)]
pub struct Lanes {
    settings: LaneSettings,
    lanes: Vec<Lane>,
    by_place: HashMap<(DestId, u32), u32>,
    by_dest: HashMap<DestId, Vec<u32>>,
    waiting: HashMap<DestId, VecDeque<Waiting>>,
    /// Partitions by which rows of each destination were placed.
    counts: HashMap<DestId, u32>,
    /// Destinations with something in their lanes that was placed by another number of them.
    changed: BTreeSet<DestId>,
    ready: BTreeSet<(u64, u32)>,
    timers: BTreeSet<(Millis, u32)>,
    /// Groups left of each batch that is not complete.
    left: BTreeMap<u64, u32>,
    next_batch: u64,
    next_order: u64,
    outstanding: usize,
    suspects: usize,
    cost: usize,
    draining: bool,
    /// Ids outside their topic, to be handled by the caller.
    outside: Vec<Outside>,
}

impl Lanes {
    /// No lane yet.
    pub fn new(settings: LaneSettings) -> Lanes {
        Lanes {
            settings,
            lanes: Vec::new(),
            by_place: HashMap::new(),
            by_dest: HashMap::new(),
            waiting: HashMap::new(),
            counts: HashMap::new(),
            changed: BTreeSet::new(),
            ready: BTreeSet::new(),
            timers: BTreeSet::new(),
            left: BTreeMap::new(),
            next_batch: 0,
            next_order: 0,
            outstanding: 0,
            suspects: 0,
            cost: 0,
            draining: false,
            outside: Vec::new(),
        }
    }

    /// Takes a batch: all of it was admitted (A1). Returns its number; they count up from 0.
    pub fn submit(&mut self, now: Millis, table: &Destinations, groups: Vec<Group>) -> u64 {
        let batch = self.next_batch;
        self.next_batch += 1;
        if !groups.is_empty() {
            self.left.insert(batch, 0);
            self.cost += BATCH_COST;
        }
        for Group { dest, target, content } in groups {
            let item = self.item(batch, content);
            self.enter(now, table, dest, Waiting { item, target });
        }
        batch
    }

    /// The topic of a destination was looked at: what waited for that goes to its lanes.
    pub fn resolved(&mut self, now: Millis, table: &Destinations, dest: DestId) {
        self.refresh(now, table, dest);
    }

    /// Something about a destination changed: its breaker, its topic.
    pub fn refresh(&mut self, now: Millis, table: &Destinations, dest: DestId) {
        self.admit_waiting(now, table, dest);
        for lane in self.by_dest.get(&dest).cloned().unwrap_or_default() {
            self.arm(now, table, lane);
        }
    }

    /// The next send, if there is one to make now.
    pub fn next(&mut self, now: Millis, table: &mut Destinations) -> Option<Send> {
        while let Some((at, lane)) = self.timers.first().copied().filter(|(at, _)| *at <= now) {
            self.timers.remove(&(at, lane));
            self.lanes[lane as usize].timer = None;
            self.arm(now, table, lane);
        }
        if self.draining || self.outstanding >= self.settings.concurrent {
            return None;
        }
        let most_suspects = (self.settings.concurrent / 2).max(1);
        let crowded = self.suspects >= most_suspects;
        let fits = |(_, lane): &&(u64, u32)| {
            !crowded || !table.at(self.lanes[*lane as usize].dest).is_suspect()
        };
        let (_, index) = *self.ready.iter().find(fits)?;
        self.send(now, table, index)
    }

    /// A send was confirmed. `None` as offset is no confirmation: see [`Lanes::failed`].
    pub fn acked(
        &mut self,
        now: Millis,
        table: &mut Destinations,
        lane: LaneId,
        base_offset: u64,
    ) -> Option<Acked> {
        let sealed = self.landed(lane)?;
        let lane = &mut self.lanes[lane.0 as usize];
        (lane.failures, lane.pauses, lane.not_before) = (0, 0, Millis(0));
        let lost = lane.confirmed_end.filter(|end| base_offset < *end);
        let messages = u64::from(sealed.relay.count());
        lane.confirmed_end = Some(base_offset.saturating_add(messages));
        let (dest, partition) = (lane.dest, lane.partition);
        let closed = table.at_mut(dest).breaker.succeeded();
        self.cost = self.cost.saturating_sub(sealed.cost);
        for batch in sealed.batches {
            self.done(batch);
        }
        self.refresh(now, table, dest);
        let bytes = u64::try_from(sealed.relay.len()).unwrap_or(u64::MAX);
        let blob = sealed.relay.into_blob();
        let buffer = blob.is_unique().then(|| Vec::from(blob));
        let lost_tail = lost.map(|end| (end, base_offset));
        Some(Acked { dest, partition, messages, bytes, lost_tail, closed, buffer })
    }

    /// A send was not confirmed: it goes again, and its breaker learns of it where that says
    /// something. Returns the destination, and whether that opened its breaker.
    pub fn failed(
        &mut self,
        now: Millis,
        table: &mut Destinations,
        lane: LaneId,
        failure: &Failure,
        rng: &mut fastrand::Rng,
    ) -> Option<(DestId, bool)> {
        let sealed = self.landed(lane)?;
        let LaneSettings { retry_first, retry_longest, .. } = self.settings;
        let lane = &mut self.lanes[lane.0 as usize];
        let dest = lane.dest;
        let pause = match failure.again() {
            Again::Now => Duration::ZERO,
            Again::Soon => {
                lane.pauses = lane.pauses.saturating_add(1);
                doubled(SOON_FIRST, SOON_LONGEST, lane.pauses)
            }
            Again::Looked | Again::Later => {
                lane.failures = lane.failures.saturating_add(1);
                let wait = doubled(retry_first, retry_longest, lane.failures);
                wait - wait.mul_f64(rng.f64() / 4.0)
            }
        };
        lane.not_before = now + pause;
        let whole = sealed.batches.iter().any(|batch| self.left.contains_key(batch));
        if whole {
            lane.sealed = Some(sealed);
        } else {
            self.cost = self.cost.saturating_sub(sealed.cost);
        }
        let breaker = &mut table.at_mut(dest).breaker;
        let opened = if failure.counts() {
            breaker.failed(now)
        } else {
            breaker.undecided(now);
            false
        };
        self.refresh(now, table, dest);
        Some((dest, opened))
    }

    /// Every batch below this number is complete.
    pub fn complete(&self) -> u64 {
        self.left.first_key_value().map_or(self.next_batch, |(batch, _)| *batch)
    }

    /// Batches taken so far: the number of the next one.
    pub fn batches(&self) -> u64 {
        self.next_batch
    }

    /// Whether one of these batches is not complete.
    pub fn holds(&self, batches: Range<u64>) -> bool {
        self.left.range(batches).next().is_some()
    }

    /// Where the lane of this number sends to.
    pub fn dest(&self, lane: u32) -> Option<DestId> {
        self.lanes.get(lane as usize).map(|lane| lane.dest)
    }

    /// Batches with a send outstanding.
    pub fn in_flight(&self) -> usize {
        let sent = self.lanes.iter().filter(|lane| lane.outstanding);
        let batches = sent.filter_map(|lane| lane.sealed.as_ref()).flat_map(|s| &s.batches);
        batches.collect::<BTreeSet<_>>().len()
    }

    /// Sends outstanding.
    pub fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// Bytes held, overhead included.
    pub fn bytes(&self) -> usize {
        self.cost
    }

    /// Nothing is held.
    pub fn is_empty(&self) -> bool {
        self.left.is_empty()
    }

    /// When [`Lanes::next`] may find something that it does not find now.
    pub fn wake_at(&self) -> Option<Millis> {
        self.timers.first().map(|(at, _)| *at).filter(|_| !self.draining)
    }

    /// Sends nothing more; what is outstanding is waited for.
    pub fn drain(&mut self) {
        self.draining = true;
    }

    /// Nothing more is sent.
    pub fn is_draining(&self) -> bool {
        self.draining
    }

    /// Whether something of this destination waits to be sent or is on its way.
    pub fn waits_for(&self, dest: DestId) -> bool {
        self.waiting.get(&dest).is_some_and(|waiting| !waiting.is_empty())
            || self.lanes_of(dest).any(Lane::moves)
    }

    /// Whether something of this destination can be sent or is on its way, a partition that is
    /// not there aside.
    pub fn owes(&self, table: &Destinations, dest: DestId) -> bool {
        let count = table.at(dest).partitions().unwrap_or(0);
        let by_id = self.settings.by_id;
        self.by_dest.get(&dest).into_iter().flatten().any(|lane| {
            let lane = &self.lanes[*lane as usize];
            let waits = lane.next_order().is_some() && lane.target(count, by_id).is_some();
            lane.outstanding || waits
        })
    }

    /// Groups queued or outstanding for a destination, and their bytes.
    pub fn held_for(&self, dest: DestId) -> (u64, u64) {
        let waiting = self.waiting.get(&dest).into_iter().flatten().map(|w| w.item.cost());
        let lanes = self.by_dest.get(&dest).into_iter().flatten();
        let lanes = lanes.filter_map(|lane| self.lanes.get(*lane as usize));
        let lanes = lanes.flat_map(|lane| {
            lane.sealed.iter().map(|sealed| sealed.cost).chain(lane.queue.iter().map(Item::cost))
        });
        waiting.chain(lanes).fold((0, 0), |(groups, bytes), cost| {
            (groups + 1, bytes + u64::try_from(cost).unwrap_or(u64::MAX))
        })
    }

    /// A destination that the oldest batch waits for.
    pub fn pinned_by(&self) -> Option<DestId> {
        let (batch, _) = self.left.first_key_value()?;
        let waiting = self
            .waiting
            .iter()
            .find(|(_, items)| items.iter().any(|waiting| waiting.item.batch == *batch));
        waiting.map(|(dest, _)| *dest).or_else(|| {
            let holds = |lane: &&Lane| {
                lane.sealed.as_ref().is_some_and(|sealed| sealed.batches.contains(batch))
                    || lane.queue.iter().any(|item| item.batch == *batch)
            };
            self.lanes.iter().find(holds).map(|lane| lane.dest)
        })
    }

    /// Why a lane of this destination does not move by itself.
    pub fn stuck(&self, table: &Destinations, dest: DestId) -> Option<Reason> {
        let count = table.at(dest).partitions().unwrap_or(NOWHERE);
        let lanes = self.by_dest.get(&dest).into_iter().flatten();
        lanes.filter_map(|lane| self.lanes.get(*lane as usize)).find_map(|lane| match lane.head() {
            Some(Content::Stone(reason)) => Some(*reason),
            Some(_) if lane.target(count, self.settings.by_id).is_none() => {
                Some(Reason::PartitionIdOutOfRange)
            }
            _ => None,
        })
    }

    /// Gives up every batch up to this number: nothing of them is sent any more. What is
    /// outstanding may still arrive.
    pub fn abandon(&mut self, now: Millis, table: &Destinations, through: u64) {
        let kept = self.left.split_off(&through.saturating_add(1));
        let gone = std::mem::replace(&mut self.left, kept).len();
        self.cost = self.cost.saturating_sub(gone * BATCH_COST);
        let freed = Cell::new(0);
        let keep = |item: &Item| {
            let stays = item.batch > through;
            freed.set(freed.get() + if stays { 0 } else { item.cost() });
            stays
        };
        for waiting in self.waiting.values_mut() {
            waiting.retain(|waiting| keep(&waiting.item));
        }
        for lane in &mut self.lanes {
            lane.queue.retain(keep);
            let idle = !lane.outstanding;
            let spent = lane
                .sealed
                .take_if(|sealed| idle && sealed.batches.iter().all(|batch| *batch <= through));
            freed.set(freed.get() + spent.map_or(0, |sealed| sealed.cost));
        }
        self.cost = self.cost.saturating_sub(freed.get());
        for lane in 0..u32::try_from(self.lanes.len()).unwrap_or(u32::MAX) {
            self.arm(now, table, lane);
        }
        for dest in self.changed.clone() {
            self.refresh(now, table, dest);
        }
    }

    /// Gives a topic that was made anew a fresh start: its offsets begin again.
    pub fn forget_offsets(&mut self, dest: DestId) {
        for lane in self.by_dest.get(&dest).into_iter().flatten() {
            if let Some(lane) = self.lanes.get_mut(*lane as usize) {
                lane.confirmed_end = None;
            }
        }
    }

    fn send(&mut self, now: Millis, table: &mut Destinations, index: u32) -> Option<Send> {
        let LaneSettings { most_together, by_id, concurrent, .. } = self.settings;
        let lane = self.lanes.get_mut(index as usize)?;
        let dest = lane.dest;
        let count = table.at(dest).partitions()?;
        let partition = lane.target(count, by_id)?;
        let most = most_together.min(table.at(dest).most_record);
        let relay = lane.seal(most, concurrent == 1)?.relay.clone();
        lane.outstanding = true;
        lane.suspect = table.at(dest).is_suspect();
        let suspect = lane.suspect;
        self.outstanding += 1;
        self.suspects += usize::from(suspect);
        let probes = table.at(dest).breaker.permit(now) == Permit::Probe;
        if probes {
            table.at_mut(dest).breaker.probe();
        }
        if probes || self.changed.contains(&dest) {
            self.refresh(now, table, dest);
        } else {
            self.arm(now, table, index);
        }
        Some(Send { lane: LaneId(index), dest, partition, relay, suspect })
    }

    /// The end of an outstanding send, either way.
    fn landed(&mut self, lane: LaneId) -> Option<Sealed> {
        let lane = self.lanes.get_mut(lane.0 as usize).filter(|lane| lane.outstanding)?;
        lane.outstanding = false;
        self.outstanding -= 1;
        self.suspects -= usize::from(std::mem::take(&mut lane.suspect));
        lane.sealed.take()
    }

    /// Works out whether a lane can send now, later, or not before something happens.
    fn arm(&mut self, now: Millis, table: &Destinations, index: u32) {
        let Some(lane) = self.lanes.get_mut(index as usize) else { return };
        if let Some(order) = lane.ready.take() {
            self.ready.remove(&(order, index));
        }
        if let Some(at) = lane.timer.take() {
            self.timers.remove(&(at, index));
        }
        let record = table.at(lane.dest);
        let Some(order) = lane.next_order().filter(|_| !lane.outstanding) else { return };
        let Some(count) = record.partitions().filter(|_| record.is_live()) else { return };
        let not_before = lane.not_before;
        let has_target = lane.target(count, self.settings.by_id).is_some();
        if !has_target || self.is_behind_another(index, count) {
            return;
        }
        let at = match record.breaker.permit(now) {
            Permit::Yes => not_before,
            Permit::Probe => now,
            Permit::At(until) => until,
            Permit::Wait => return,
        };
        let Some(lane) = self.lanes.get_mut(index as usize) else { return };
        if at <= now {
            lane.ready = Some(order);
            self.ready.insert((order, index));
        } else {
            lane.timer = Some(at);
            self.timers.insert((at, index));
        }
    }

    /// One group less of a batch. Batches that were given up are not there any more.
    fn done(&mut self, batch: u64) {
        let Some(left) = self.left.get_mut(&batch) else { return };
        *left -= 1;
        if *left == 0 {
            self.left.remove(&batch);
            self.cost = self.cost.saturating_sub(BATCH_COST);
        }
    }
}

/// The `times`-th pause of a row that doubles.
fn doubled(first: Duration, longest: Duration, times: u32) -> Duration {
    first.saturating_mul(1 << times.saturating_sub(1).min(20)).min(longest)
}
