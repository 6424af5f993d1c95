//! Streams, topics, partitions and groups, by name or by slot; a freed slot is reused at once.

use std::collections::HashMap;

use iggy_binary_protocol::responses::consumer_groups::ConsumerGroupResponse;
use iggy_binary_protocol::responses::streams::{StreamResponse, TopicHeader};
use iggy_binary_protocol::responses::topics::PartitionResponse;
use iggy_binary_protocol::{WireIdentifier, WireName, WireOptions};
use twox_hash::XxHash32;

use super::core::Flavour;
use super::log::Log;
use super::options::TopicOptions;

/// Named things with small numeric ids.
#[derive(Clone, Debug)]
pub struct Slots<T> {
    slots: Vec<Option<(WireName, T)>>,
    ids: HashMap<String, u32>,
}

/// A stream.
#[derive(Clone, Debug)]
pub struct Stream {
    /// Creation time, microseconds.
    pub created_at: u64,
    /// Options as sent.
    pub options: WireOptions,
    /// Topics.
    pub topics: Slots<Topic>,
}

/// A topic.
#[derive(Clone, Debug)]
pub struct Topic {
    /// Creation time, microseconds.
    pub created_at: u64,
    /// Options.
    pub options: TopicOptions,
    /// Partitions, ids dense from 0.
    pub partitions: Vec<Partition>,
    /// Consumer groups.
    pub groups: Slots<Group>,
    /// Next partition of a balanced send.
    pub round_robin: u32,
}

/// A partition.
#[derive(Clone, Debug, Default)]
pub struct Partition {
    /// Creation time, microseconds.
    pub created_at: u64,
    /// Stored records.
    pub log: Log,
    /// Operations committed on this partition: sends and offset writes.
    pub ops: u64,
    /// Stored consumer offsets.
    pub offsets: HashMap<ConsumerKey, u64>,
    /// What was asked of it.
    pub counters: Counters,
}

/// Requests seen by one partition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Sends that arrived, refused and dropped ones included.
    pub sends_received: u64,
    /// Sends that were appended, late ones included.
    pub sends_applied: u64,
    /// Polls that arrived.
    pub polls: u64,
}

/// Whose offset it is: the kind of consumer and its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConsumerKey {
    /// 1 consumer, 2 group.
    pub kind: u8,
    /// Id as given, or the hash of a name.
    pub id: u32,
}

/// A consumer group.
#[derive(Clone, Debug, Default)]
pub struct Group {
    /// Transport ids in order of joining.
    pub members: Vec<u64>,
    /// Counts membership changes.
    pub generation: u64,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Slots { slots: Vec::new(), ids: HashMap::new() }
    }
}

impl<T> Slots<T> {
    /// Puts `value` into the lowest free slot; `None` when the name is taken.
    pub fn insert(&mut self, name: WireName, value: T) -> Option<u32> {
        if self.ids.contains_key(name.as_str()) {
            return None;
        }
        let free = self.slots.iter().position(Option::is_none).unwrap_or(self.slots.len());
        let id = u32::try_from(free).ok()?;
        self.ids.insert(name.as_str().to_owned(), id);
        if free == self.slots.len() {
            self.slots.push(None);
        }
        self.slots[free] = Some((name, value));
        Some(id)
    }

    /// The id behind a name or number, if it exists.
    pub fn find(&self, id: &WireIdentifier) -> Option<u32> {
        match id {
            WireIdentifier::Numeric(id) => self.get(*id).map(|_| *id),
            WireIdentifier::String(name) => self.id_of(name.as_str()),
        }
    }

    /// The id behind a name.
    pub fn id_of(&self, name: &str) -> Option<u32> {
        self.ids.get(name).copied()
    }

    /// By id.
    pub fn get(&self, id: u32) -> Option<&T> {
        self.slots.get(id as usize)?.as_ref().map(|(_, value)| value)
    }

    /// By id, mutably.
    pub fn at_mut(&mut self, id: u32) -> Option<&mut T> {
        self.slots.get_mut(id as usize)?.as_mut().map(|(_, value)| value)
    }

    /// The name in a slot.
    pub fn name(&self, id: u32) -> Option<&WireName> {
        self.slots.get(id as usize)?.as_ref().map(|(name, _)| name)
    }

    /// Frees the slot.
    pub fn remove(&mut self, id: u32) -> Option<T> {
        let (name, value) = self.slots.get_mut(id as usize)?.take()?;
        self.ids.remove(name.as_str());
        Some(value)
    }

    /// Gives the slot another name; false when that is taken by a different slot.
    pub fn rename(&mut self, id: u32, new: WireName) -> bool {
        if self.id_of(new.as_str()).is_some_and(|holder| holder != id) {
            return false;
        }
        let Some(Some((name, _))) = self.slots.get_mut(id as usize) else { return false };
        self.ids.remove(name.as_str());
        self.ids.insert(new.as_str().to_owned(), id);
        *name = new;
        true
    }

    /// All in order of their ids.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &WireName, &T)> {
        (0u32..)
            .zip(&self.slots)
            .filter_map(|(id, slot)| slot.as_ref().map(|(name, value)| (id, name, value)))
    }

    /// All values, mutably.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.slots.iter_mut().flatten().map(|(_, value)| value)
    }

    /// How many there are.
    pub fn count(&self) -> u32 {
        u32::try_from(self.ids.len()).unwrap_or(u32::MAX)
    }
}

impl Stream {
    /// The row of this stream.
    pub fn row(&self, id: u32, name: &WireName) -> StreamResponse {
        let topics = || self.topics.iter().map(|(_, _, topic)| topic);
        StreamResponse {
            id,
            created_at: self.created_at,
            topics_count: self.topics.count(),
            size_bytes: topics().map(Topic::bytes).sum(),
            messages_count: topics().map(Topic::messages).sum(),
            name: name.clone(),
            options: self.options.clone(),
        }
    }
}

impl Topic {
    /// A topic without messages.
    pub fn new(created_at: u64, partitions: u32, options: TopicOptions) -> Topic {
        let mut topic = Topic {
            created_at,
            options,
            partitions: Vec::new(),
            groups: Slots::default(),
            round_robin: 0,
        };
        topic.add_partitions(partitions, created_at);
        topic
    }

    /// Adds empty partitions.
    pub fn add_partitions(&mut self, count: u32, created_at: u64) {
        let fresh = || Partition { created_at, ..Partition::default() };
        self.partitions.extend((0..count).map(|_| fresh()));
        self.groups.values_mut().for_each(|group| group.generation += 1);
    }

    /// By id.
    pub fn partition(&self, id: u32) -> Option<&Partition> {
        self.partitions.get(id as usize)
    }

    /// By id, mutably.
    pub fn partition_mut(&mut self, id: u32) -> Option<&mut Partition> {
        self.partitions.get_mut(id as usize)
    }

    /// How many partitions.
    pub fn width(&self) -> u32 {
        u32::try_from(self.partitions.len()).unwrap_or(u32::MAX)
    }

    /// Bytes stored.
    pub fn bytes(&self) -> u64 {
        self.partitions.iter().map(|partition| partition.log.bytes()).sum()
    }

    /// Messages stored.
    pub fn messages(&self) -> u64 {
        self.partitions.iter().map(|partition| partition.log.messages()).sum()
    }

    /// Empties every partition; offsets start at 0 again.
    pub fn purge(&mut self) {
        for partition in &mut self.partitions {
            partition.log.clear();
            partition.offsets.clear();
        }
    }

    /// Drops oldest sealed segments until the topic fits `limit`.
    pub fn shrink_to(&mut self, limit: u64) {
        while self.bytes() > limit {
            let oldest = self
                .partitions
                .iter_mut()
                .filter(|partition| partition.log.segments() > 1)
                .min_by_key(|partition| partition.log.oldest_timestamp());
            let Some(partition) = oldest else { return };
            partition.log.drop_segments(1);
        }
    }

    /// The partition a key goes to.
    pub fn partition_of_key(&self, key: &[u8]) -> Option<u32> {
        XxHash32::oneshot(0, key).checked_rem(self.width())
    }

    /// The topic's head row.
    pub fn head(&self, id: u32, name: &WireName, flavour: Flavour, segment: u64) -> TopicHeader {
        TopicHeader {
            id,
            created_at: self.created_at,
            partitions_count: self.width(),
            message_expiry: self.options.message_expiry(),
            compression_algorithm: self.options.compression(),
            max_topic_size: self.options.max_size(),
            size_bytes: self.bytes(),
            messages_count: self.messages(),
            name: name.clone(),
            options: self.options.explicit(),
            derived_options: self.options.derived(flavour, segment),
        }
    }

    /// The partition rows, each without its last `lag` messages.
    pub fn rows(&self, lag: u64) -> Vec<PartitionResponse> {
        let row = |(id, partition): (u32, &Partition)| {
            let log = partition.log.without_last(lag);
            PartitionResponse {
                id,
                created_at: partition.created_at,
                segments_count: log.segments(),
                current_offset: log.current(),
                size_bytes: log.bytes(),
                messages_count: log.messages(),
            }
        };
        (0u32..).zip(&self.partitions).map(row).collect()
    }
}

impl ConsumerKey {
    /// A plain consumer; names are hashed as the server does.
    pub fn consumer(id: &WireIdentifier) -> ConsumerKey {
        let id = match id {
            WireIdentifier::Numeric(id) => *id,
            WireIdentifier::String(name) => XxHash32::oneshot(0, name.as_str().as_bytes()),
        };
        ConsumerKey { kind: iggy_binary_protocol::KIND_CONSUMER, id }
    }

    /// A group by its id.
    pub fn group(id: u32) -> ConsumerKey {
        ConsumerKey { kind: iggy_binary_protocol::KIND_CONSUMER_GROUP, id }
    }
}

impl Group {
    /// Adds a member; joining twice changes nothing.
    pub fn join(&mut self, member: u64) {
        if !self.members.contains(&member) {
            self.members.push(member);
            self.generation += 1;
        }
    }

    /// Removes a member and says whether it was one.
    pub fn leave(&mut self, member: u64) -> bool {
        let before = self.members.len();
        self.members.retain(|&other| other != member);
        let left = self.members.len() < before;
        self.generation += u64::from(left);
        left
    }

    /// The partitions of a member, round robin over the members; `None` for a stranger.
    pub fn assigned(&self, member: u64, width: u32) -> Option<Vec<u32>> {
        let position = self.members.iter().position(|&other| other == member)?;
        let members = self.members.len();
        Some((0..width).filter(|&partition| partition as usize % members == position).collect())
    }

    /// The group's row.
    pub fn row(&self, id: u32, name: &WireName, width: u32) -> ConsumerGroupResponse {
        ConsumerGroupResponse {
            id,
            partitions_count: width,
            members_count: u32::try_from(self.members.len()).unwrap_or(u32::MAX),
            name: name.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> WireName {
        WireName::new(text).expect("short name")
    }

    #[test]
    fn freed_slot_is_reused_at_once() {
        let mut slots = Slots::default();
        assert_eq!(slots.insert(name("a"), 1), Some(0));
        assert_eq!(slots.insert(name("b"), 2), Some(1));
        assert_eq!(slots.insert(name("a"), 3), None);
        assert_eq!(slots.remove(0), Some(1));
        assert_eq!(slots.find(&WireIdentifier::numeric(0)), None);
        assert_eq!(slots.insert(name("c"), 4), Some(0));
        assert_eq!(slots.id_of("a"), None);
    }

    #[test]
    fn renaming_onto_another_name_is_refused() {
        let mut slots = Slots::default();
        slots.insert(name("a"), ());
        slots.insert(name("b"), ());
        assert!(!slots.rename(0, name("b")));
        assert!(slots.rename(0, name("c")));
        assert_eq!((slots.id_of("a"), slots.id_of("c")), (None, Some(0)));
    }

    #[test]
    fn every_partition_has_exactly_one_member() {
        let mut group = Group::default();
        [7, 9].into_iter().for_each(|member| group.join(member));
        assert_eq!(group.assigned(7, 5), Some(vec![0, 2, 4]));
        assert_eq!(group.assigned(9, 5), Some(vec![1, 3]));
        assert_eq!(group.assigned(8, 5), None);
        assert!(group.leave(7) && !group.leave(7));
        assert_eq!(group.assigned(9, 2), Some(vec![0, 1]));
        assert_eq!(group.generation, 3);
    }
}
