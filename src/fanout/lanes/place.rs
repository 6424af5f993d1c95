//! From groups to lanes, and what becomes of messages that no partition takes.

use super::lane::{Item, Lane, Waiting};
use super::{Disposition, Lanes, Outside};
use crate::fanout::destinations::{DestId, Destinations};
use crate::fanout::group::{Content, Target};
use crate::fanout::partition::{Wish, among};
use crate::iggy_wire::BatchBuilder;
use crate::time::Millis;

impl Lanes {
    /// Messages whose id is outside their topic, to be dropped or sent elsewhere. They still
    /// belong to their batch: each is ended with [`Lanes::settle_outside`].
    pub fn take_outside(&mut self) -> Vec<Outside> {
        std::mem::take(&mut self.outside)
    }

    /// Ends a message of [`Lanes::take_outside`]: dropped, or `instead` goes there in its place.
    pub fn settle_outside(
        &mut self,
        now: Millis,
        table: &Destinations,
        batch: u64,
        instead: Option<(DestId, BatchBuilder)>,
    ) {
        if !self.left.contains_key(&batch) {
            return;
        }
        if let Some((dest, message)) = instead {
            let item = self.item(batch, Content::Batch(message));
            let waiting = Waiting { item, target: Target::Later(vec![Wish::Balanced]) };
            self.enter(now, table, dest, waiting);
        }
        self.done(batch);
    }

    /// A group of a batch, counted.
    pub(super) fn item(&mut self, batch: u64, content: Content) -> Item {
        let item = Item { order: self.next_order, batch, content };
        self.next_order += 1;
        self.cost += item.cost();
        *self.left.entry(batch).or_insert(0) += 1;
        item
    }

    /// To its lane if the topic is known and nothing waits before it, else behind what waits.
    pub(super) fn enter(
        &mut self,
        now: Millis,
        table: &Destinations,
        dest: DestId,
        waiting: Waiting,
    ) {
        self.waiting.entry(dest).or_default().push_back(waiting);
        self.admit_waiting(now, table, dest);
    }

    /// What waits goes to its lanes, as far as the topic is known and what was placed by another
    /// number of partitions has gone out.
    pub(super) fn admit_waiting(&mut self, now: Millis, table: &Destinations, dest: DestId) {
        let record = table.at(dest);
        let Some(count) = record.partitions().filter(|_| record.is_live()) else { return };
        let before = self.counts.insert(dest, count);
        if before.is_some_and(|before| before != count) && !self.settings.by_id {
            self.recount(now, table, dest, count);
        }
        loop {
            if self.changed.contains(&dest) {
                if self.lanes_of(dest).any(|lane| lane.moves_among(count)) {
                    return;
                }
                if self.lanes_of(dest).all(Lane::is_empty) {
                    self.changed.remove(&dest);
                }
            }
            let Some(queue) = self.waiting.get_mut(&dest) else { return };
            let Some(waiting) = queue.pop_front() else { return };
            if !self.settings.by_id && waiting.is_beyond(count) {
                self.changed.insert(dest);
            }
            self.place(now, table, dest, count, waiting);
        }
    }

    /// The topic has `count` partitions now and had others before: what is in the lanes, and what
    /// was chosen by the old number and waits, goes first.
    pub(super) fn recount(&mut self, now: Millis, table: &Destinations, dest: DestId, count: u32) {
        let chosen = |waiting: &mut Waiting| matches!(waiting.target, Target::Partition(_));
        while let Some(waiting) =
            self.waiting.get_mut(&dest).and_then(|queue| queue.pop_front_if(chosen))
        {
            self.place(now, table, dest, count, waiting);
        }
        if !self.lanes_of(dest).all(Lane::is_empty) {
            self.changed.insert(dest);
        }
    }

    pub(super) fn lanes_of(&self, dest: DestId) -> impl Iterator<Item = &Lane> {
        let lanes = self.by_dest.get(&dest).into_iter().flatten();
        lanes.filter_map(|lane| self.lanes.get(*lane as usize))
    }

    /// Meanwhile no two lanes send to one partition: among `count` of them this lane shares its own
    /// with another one that goes first, on its way already or of a partition that is gone.
    pub(super) fn is_behind_another(&self, index: u32, count: u32) -> bool {
        let Some(lane) = self.lanes.get(index as usize) else { return false };
        if !self.changed.contains(&lane.dest) {
            return false;
        }
        let by_id = self.settings.by_id;
        let target = lane.target(count, by_id);
        self.lanes_of(lane.dest).any(|other| {
            let goes_first = lane.partition < count && other.moves_among(count);
            other.partition != lane.partition
                && other.target(count, by_id) == target
                && (other.outstanding || goes_first)
        })
    }

    /// To the lanes of a topic of so many partitions.
    pub(super) fn place(
        &mut self,
        now: Millis,
        table: &Destinations,
        dest: DestId,
        count: u32,
        waiting: Waiting,
    ) {
        let Waiting { item, target } = waiting;
        let turn = table.at(dest).turn;
        let wishes = match target {
            Target::Partition(partition) => return self.queue(now, table, dest, partition, item),
            Target::Later(wishes) => wishes,
        };
        let is_same = wishes.iter().all(|wish| Some(wish) == wishes.first());
        let first = partition_of(wishes.first().copied().unwrap_or(Wish::Balanced), count, turn);
        let is_kept = first < count || self.settings.outside == Disposition::Keep;
        let Item { order, batch, content } = item;
        match content {
            Content::Batch(whole) if !(is_same && is_kept) => {
                self.cost = self.cost.saturating_sub(whole.capacity() + super::lane::GROUP_COST);
                self.split(now, table, dest, batch, &whole, &wishes);
            }
            content => self.queue(now, table, dest, first, Item { order, batch, content }),
        }
    }

    /// Each message of a group to the partition that it wishes for.
    fn split(
        &mut self,
        now: Millis,
        table: &Destinations,
        dest: DestId,
        batch: u64,
        whole: &BatchBuilder,
        wishes: &[Wish],
    ) {
        let record = table.at(dest);
        let (turn, count) = (record.turn, record.partitions().unwrap_or(1));
        let mut parts: Vec<(u32, BatchBuilder)> = Vec::new();
        for (message, wish) in whole.messages().zip(wishes) {
            let partition = partition_of(*wish, count, turn);
            if partition >= count && self.settings.outside != Disposition::Keep {
                let mut alone = BatchBuilder::default();
                alone.push(message);
                *self.left.entry(batch).or_insert(0) += 1;
                self.outside.push(Outside { dest, batch, message: alone });
                continue;
            }
            let at = match parts.iter().position(|(other, _)| *other == partition) {
                Some(at) => at,
                None => {
                    parts.push((partition, BatchBuilder::default()));
                    parts.len() - 1
                }
            };
            if let Some((_, part)) = parts.get_mut(at) {
                part.push(message);
            }
        }
        for (partition, part) in parts {
            let item = self.item(batch, Content::Batch(part));
            self.queue(now, table, dest, partition, item);
        }
        self.done(batch);
    }

    fn queue(
        &mut self,
        now: Millis,
        table: &Destinations,
        dest: DestId,
        partition: u32,
        item: Item,
    ) {
        let next = u32::try_from(self.lanes.len()).unwrap_or(u32::MAX);
        let index = *self.by_place.entry((dest, partition)).or_insert(next);
        if index == next {
            self.lanes.push(Lane::new(dest, partition));
            self.by_dest.entry(dest).or_default().push(index);
        }
        if let Some(lane) = self.lanes.get_mut(index as usize) {
            lane.queue.push_back(item);
        }
        self.arm(now, table, index);
    }
}

/// At or above `count`: no partition of the topic.
fn partition_of(wish: Wish, count: u32, turn: u32) -> u32 {
    match wish {
        Wish::Balanced => among(turn, count),
        Wish::Hash(hash) => among(hash, count),
        Wish::Id(id) => id,
    }
}
