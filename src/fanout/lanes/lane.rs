//! One destination partition's FIFO and what is on its way from it.

use std::collections::VecDeque;

use crate::fanout::destinations::DestId;
use crate::fanout::group::{Content, Target};
use crate::fanout::partition::{NOWHERE, among};
use crate::iggy_wire::Relay;
use crate::time::Millis;

/// What a queued group costs besides its messages, bytes.
pub(super) const GROUP_COST: usize = 256;

/// A group in a queue.
#[derive(Debug)]
pub(super) struct Item {
    /// Counts up over all groups.
    pub(super) order: u64,
    pub(super) batch: u64,
    pub(super) content: Content,
}

/// A group whose topic is not known yet.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) item: Item,
    pub(super) target: Target,
}

impl Waiting {
    /// It was chosen among more partitions than these.
    pub(super) fn is_beyond(&self, count: u32) -> bool {
        let is_beyond = |partition: u32| partition >= count && partition != NOWHERE;
        matches!(self.target, Target::Partition(partition) if is_beyond(partition))
    }
}

/// What is on its way, or was and goes again.
#[derive(Debug)]
pub(super) struct Sealed {
    pub(super) order: u64,
    /// The batch of each group in it.
    pub(super) batches: Vec<u64>,
    pub(super) relay: Relay,
    pub(super) cost: usize,
}

/// One lane.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) dest: DestId,
    pub(super) partition: u32,
    pub(super) queue: VecDeque<Item>,
    pub(super) sealed: Option<Sealed>,
    pub(super) outstanding: bool,
    /// Its destination had failed when it was sent.
    pub(super) suspect: bool,
    pub(super) not_before: Millis,
    pub(super) failures: u32,
    pub(super) pauses: u32,
    /// Behind the last confirmed message.
    pub(super) confirmed_end: Option<u64>,
    /// Its place among the ready ones.
    pub(super) ready: Option<u64>,
    pub(super) timer: Option<Millis>,
}

impl Item {
    /// Bytes it takes.
    pub(super) fn cost(&self) -> usize {
        GROUP_COST
            + match &self.content {
                Content::Batch(batch) => batch.capacity(),
                Content::Stone(_) => 0,
            }
    }
}

impl Lane {
    pub(super) fn new(dest: DestId, partition: u32) -> Lane {
        Lane {
            dest,
            partition,
            queue: VecDeque::new(),
            sealed: None,
            outstanding: false,
            suspect: false,
            not_before: Millis(0),
            failures: 0,
            pauses: 0,
            confirmed_end: None,
            ready: None,
            timer: None,
        }
    }

    /// The order of what goes next, unless that cannot be sent.
    pub(super) fn next_order(&self) -> Option<u64> {
        if let Some(sealed) = &self.sealed {
            return Some(sealed.order);
        }
        let item = self.queue.front()?;
        matches!(item.content, Content::Batch(_)).then_some(item.order)
    }

    /// Something of it is on its way or can be sent.
    pub(super) fn moves(&self) -> bool {
        self.outstanding || self.next_order().is_some()
    }

    /// The same where the topic has so many partitions and keys are hashed.
    pub(super) fn moves_among(&self, count: u32) -> bool {
        self.outstanding || self.next_order().is_some() && self.target(count, false).is_some()
    }

    /// Nothing is in it.
    pub(super) fn is_empty(&self) -> bool {
        !self.outstanding && self.sealed.is_none() && self.queue.is_empty()
    }

    /// What waits first, if nothing is sealed.
    pub(super) fn head(&self) -> Option<&Content> {
        self.queue.front().filter(|_| self.sealed.is_none()).map(|item| &item.content)
    }

    /// The partition to send to among so many: where keys are hashed, those of a partition that
    /// is gone go on together.
    pub(super) fn target(&self, count: u32, by_id: bool) -> Option<u32> {
        if self.partition < count {
            return Some(self.partition);
        }
        (!by_id && self.partition != NOWHERE).then(|| among(self.partition, count))
    }

    /// What goes next: as sealed before, or the head of the queue with what fits behind it.
    /// `ordered`: with nothing that came after another lane's.
    pub(super) fn seal(&mut self, most: usize, ordered: bool) -> Option<&Sealed> {
        if self.sealed.is_none() {
            let mut cost = self.queue.front()?.cost();
            let first =
                self.queue.pop_front_if(|item| matches!(item.content, Content::Batch(_)))?;
            let (order, mut batches) = (first.order, vec![first.batch]);
            let Content::Batch(mut together) = first.content else { return None };
            let mut last = order;
            while let Some(Item { content: Content::Batch(next), batch, order }) =
                self.queue.front()
                && (!ordered || *order == last + 1)
                && together.append(next, most)
            {
                last = *order;
                batches.push(*batch);
                cost += self.queue.pop_front()?.cost();
            }
            let relay = together.seal()?;
            self.sealed = Some(Sealed { order, batches, relay, cost });
        }
        self.sealed.as_ref()
    }
}
