//! The table of destinations: every stream and topic that a message was meant for, found by the
//! bytes of its names without copying them, with what is known of it.
//!
//! At most `max_destinations` records are live (A3) and none is ever taken back, so a record's
//! number is good for as long as the table. Destinations that are refused but whose messages are
//! kept (A4) have records of their own kind: as many again, then one for all the others, so that
//! their number is bounded whatever the rows say and each still keeps its order.

use std::cell::Cell;
use std::hash::BuildHasher;
use std::sync::Arc;

use hashbrown::{DefaultHashBuilder, HashTable};

use super::admission::{LONGEST_NAME, Reason};
use super::breaker::Breaker;
use super::ensure::{Ensure, TopicFacts};
use crate::batch::TopicName;
use crate::config::BreakerPlan;
use crate::iggy_wire::SendTo;
use crate::iggy_wire::encode::send_frame_len;
use crate::iggy_wire::frame::MAX_REQUEST;

/// Records that are found without a hash.
const RECENT: usize = 16;

/// Names a record of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DestId(pub u32);

impl DestId {
    /// Its place in the table.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Why a record is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Admitted.
    Live,
    /// Refused; its messages are kept.
    Refused(Reason),
    /// The messages without a destination.
    Nowhere,
}

/// What was done for a destination.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DestinationCounters {
    /// Messages acked.
    pub messages: u64,
    /// Bytes of them, as records.
    pub bytes: u64,
    /// Sends acked.
    pub sends: u64,
    /// Sends and creations that failed.
    pub errors: u64,
    /// Times it gave out an offset that it had given out before.
    pub lost_tails: u64,
}

/// One record.
#[derive(Debug)]
pub struct Destination {
    /// Its name, or what can be shown of it.
    pub topic: TopicName,
    /// Why it is here.
    pub standing: Standing,
    /// What the server says of the topic, once it was seen.
    pub facts: Option<TopicFacts>,
    /// Looking it up and making it.
    pub ensure: Ensure,
    /// Whether it is left alone.
    pub breaker: Breaker,
    /// What was done.
    pub counters: DestinationCounters,
    /// Latest error in words.
    pub last_error: Option<Arc<str>>,
    /// When the topic that was seen last was created; another time is another topic.
    pub created_at: Option<u64>,
    /// Its acks are no promise, and the plan wants one (A9).
    pub is_volatile: bool,
    /// Whose turn it is among its partitions.
    pub turn: u32,
    /// Largest record that fits a frame with these names.
    pub most_record: usize,
    stream_key: Box<[u8]>,
    topic_key: Box<[u8]>,
}

impl Destination {
    /// Partitions, once known.
    pub fn partitions(&self) -> Option<u32> {
        self.facts.as_ref().map(|facts| facts.partitions)
    }

    /// Admitted.
    pub fn is_live(&self) -> bool {
        self.standing == Standing::Live
    }

    /// It failed lately: what goes to it should not share a connection with others.
    pub fn is_suspect(&self) -> bool {
        self.breaker.failures() > 0
    }
}

/// The table.
#[derive(Debug)]
pub struct Destinations {
    records: Vec<Destination>,
    by_name: HashTable<u32>,
    hasher: DefaultHashBuilder,
    /// Found lately, by the last byte of the topic: numbers of topics mostly differ there.
    recent: [Cell<u32>; RECENT],
    breaker: BreakerPlan,
    most: u32,
    live: u32,
    refused: u32,
    /// The record of refused destinations that have none of their own.
    others: Option<DestId>,
    nowhere: Option<DestId>,
}

impl Destinations {
    /// An empty table for at most `most` live records.
    pub fn new(most: u32, breaker: BreakerPlan) -> Destinations {
        Destinations {
            records: Vec::new(),
            by_name: HashTable::new(),
            hasher: DefaultHashBuilder::default(),
            recent: [const { Cell::new(u32::MAX) }; RECENT],
            breaker,
            most,
            live: 0,
            refused: 0,
            others: None,
            nowhere: None,
        }
    }

    /// The record of these names, if there is one.
    #[inline]
    pub fn find(&self, stream: &[u8], topic: &[u8]) -> Option<DestId> {
        let seat = topic.last().map_or(0, |last| usize::from(*last)) % RECENT;
        let recent = &self.recent[seat];
        if self.is_it(recent.get(), stream, topic) {
            return Some(DestId(recent.get()));
        }
        let found = self.look_up(stream, topic)?;
        recent.set(found.0);
        Some(found)
    }

    fn look_up(&self, stream: &[u8], topic: &[u8]) -> Option<DestId> {
        let hash = self.hasher.hash_one((stream, topic));
        let found = self.by_name.find(hash, |index| self.is_it(*index, stream, topic));
        found.map(|index| DestId(*index))
    }

    #[inline]
    fn is_it(&self, index: u32, stream: &[u8], topic: &[u8]) -> bool {
        let record = self.records.get(index as usize);
        record.is_some_and(|record| *record.topic_key == *topic && *record.stream_key == *stream)
    }

    /// A live record for names that are admitted; `None`: the table is full.
    pub fn admit(&mut self, stream: &str, topic: &str) -> Option<DestId> {
        if let Some(id) = self.find(stream.as_bytes(), topic.as_bytes()) {
            return self.at(id).is_live().then_some(id);
        }
        if self.live >= self.most {
            return None;
        }
        self.live += 1;
        let name = TopicName::new(stream, topic);
        Some(self.insert(name, Standing::Live, stream.as_bytes(), topic.as_bytes()))
    }

    /// A record for messages that are kept although their destination is refused.
    pub fn refuse(&mut self, stream: &[u8], topic: &[u8], reason: Reason) -> DestId {
        if let Some(id) = self.find(stream, topic) {
            return id;
        }
        let is_long = stream.len() > LONGEST_NAME || topic.len() > LONGEST_NAME;
        if is_long || self.refused >= self.most {
            if let Some(id) = self.others {
                return id;
            }
            let id = self.push(TopicName::new("…", "…"), Standing::Refused(reason), &[], &[]);
            self.others = Some(id);
            return id;
        }
        self.refused += 1;
        let name =
            TopicName::new(&String::from_utf8_lossy(stream), &String::from_utf8_lossy(topic));
        self.insert(name, Standing::Refused(reason), stream, topic)
    }

    /// The record of messages that have no destination.
    pub fn nowhere(&mut self) -> DestId {
        if let Some(id) = self.nowhere {
            return id;
        }
        let id = self.push(TopicName::new("", ""), Standing::Nowhere, &[], &[]);
        self.nowhere = Some(id);
        id
    }

    /// One record.
    pub fn at(&self, id: DestId) -> &Destination {
        &self.records[id.index()]
    }

    /// One record, to change.
    pub fn at_mut(&mut self, id: DestId) -> &mut Destination {
        &mut self.records[id.index()]
    }

    /// Every record.
    pub fn all(&self) -> impl Iterator<Item = (DestId, &Destination)> {
        (0..).map(DestId).zip(&self.records)
    }

    /// Live records.
    pub fn live(&self) -> u32 {
        self.live
    }

    fn insert(
        &mut self,
        name: TopicName,
        standing: Standing,
        stream: &[u8],
        topic: &[u8],
    ) -> DestId {
        let id = self.push(name, standing, stream, topic);
        let hash = self.hasher.hash_one((stream, topic));
        let (records, hasher) = (&self.records, &self.hasher);
        self.by_name.insert_unique(hash, id.0, |index| {
            let record = &records[*index as usize];
            hasher.hash_one((&*record.stream_key, &*record.topic_key))
        });
        id
    }

    fn push(
        &mut self,
        topic: TopicName,
        standing: Standing,
        stream_key: &[u8],
        topic_key: &[u8],
    ) -> DestId {
        let id = DestId(u32::try_from(self.records.len()).unwrap_or(u32::MAX));
        let around = send_frame_len(&topic.stream, &topic.topic, SendTo::Partition(0), 0);
        self.records.push(Destination {
            topic,
            standing,
            facts: None,
            ensure: Ensure::default(),
            breaker: Breaker::new(self.breaker),
            counters: DestinationCounters::default(),
            last_error: None,
            created_at: None,
            is_volatile: false,
            turn: 0,
            most_record: MAX_REQUEST - around,
            stream_key: stream_key.into(),
            topic_key: topic_key.into(),
        });
        id
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn table(most: u32) -> Destinations {
        let cool_down = Duration::from_secs(30);
        Destinations::new(most, BreakerPlan { failure_threshold: 5, cool_down })
    }

    #[test]
    fn names_are_found_by_their_bytes() {
        let mut table = table(3);
        let orders = table.admit("commerce", "orders").unwrap();
        let other = table.admit("commerc", "eorders").unwrap();
        assert_ne!(orders, other, "the border between the names counts");
        assert_eq!(table.find(b"commerce", b"orders"), Some(orders));
        assert_eq!(table.admit("commerce", "orders"), Some(orders));
        for (stream, topic) in [("Commerce", "orders"), ("orders", "commerce"), ("", "")] {
            assert_eq!(table.find(stream.as_bytes(), topic.as_bytes()), None);
        }
        assert_eq!(table.live(), 2);
        assert_eq!(table.at(orders).topic, TopicName::new("commerce", "orders"));
    }

    #[test]
    fn the_cap_is_hard_and_nothing_leaves() {
        let mut table = table(2);
        assert!(table.admit("s", "a").is_some() && table.admit("s", "b").is_some());
        assert_eq!(table.admit("s", "c"), None);
        let kept = table.refuse(b"s", b"c", Reason::Cap);
        assert_eq!(table.admit("s", "c"), None, "refused once, refused for good");
        assert_eq!(table.find(b"s", b"c"), Some(kept));
        assert!(table.admit("s", "a").is_some());
        assert_eq!(table.live(), 2);
    }

    #[test]
    fn refused_names_cannot_fill_the_memory() {
        let mut table = table(2);
        let first = table.refuse(b"s", b"a", Reason::Unknown);
        let second = table.refuse(b"s", b"b", Reason::InvalidName);
        let others: Vec<DestId> =
            (0u32..100).map(|n| table.refuse(b"x", &n.to_le_bytes(), Reason::Unknown)).collect();
        assert!(others.iter().all(|id| *id == others[0]));
        assert_eq!(table.refuse(b"s", b"a", Reason::Unknown), first);
        assert_eq!(table.refuse(&[b'x'; 256], b"t", Reason::InvalidName), others[0]);
        assert_eq!(table.refuse(b"s", b"b", Reason::Unknown), second);
        assert_eq!(table.all().count(), 3);
        assert_eq!(table.find(b"", b""), None, "the record of the others has no name");
        assert_eq!((table.nowhere(), table.nowhere()), (DestId(3), DestId(3)));
    }

    #[test]
    fn names_that_end_alike_are_told_apart_in_any_order() {
        let mut table = table(100);
        let names = [("s", "a1"), ("s", "b1"), ("t", "a1"), ("s", "1"), ("s", "a2"), ("s", "")];
        let ids = names.map(|(stream, topic)| table.admit(stream, topic).unwrap());
        for round in 0..50 {
            let at = round * 7 % names.len();
            let (stream, topic) = names[at];
            assert_eq!(table.find(stream.as_bytes(), topic.as_bytes()), Some(ids[at]));
            assert_eq!(table.find(stream.as_bytes(), b"c1"), None);
        }
    }

    #[test]
    fn a_record_of_the_largest_size_fills_a_frame() {
        let mut table = table(1);
        let id = table.admit("stream", "topic").unwrap();
        let most = table.at(id).most_record;
        let frame = |len| send_frame_len("stream", "topic", SendTo::Partition(7), len);
        assert_eq!((frame(most), frame(most + 1)), (MAX_REQUEST, MAX_REQUEST + 1));
    }

    #[test]
    fn many_names_grow_the_table_without_losing_one() {
        let mut table = table(10_000);
        let ids: Vec<DestId> =
            (0..5_000).map(|n| table.admit("s", &n.to_string()).unwrap()).collect();
        for (n, id) in ids.iter().enumerate() {
            assert_eq!(table.find(b"s", n.to_string().as_bytes()), Some(*id));
        }
    }
}
