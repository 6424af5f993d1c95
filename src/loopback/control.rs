//! The handle of whoever runs the broker: faults, direct access to the log, stop and restart.
#![allow(clippy::disallowed_methods)] // the broker's front owns sockets, threads and the clock

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use iggy_binary_protocol::batch::{BatchIntegrity, decode_batch_slice_with};
use iggy_binary_protocol::requests::messages::{RawMessage, SendMessagesEncoder};
use iggy_binary_protocol::{
    EvictionReason, WireIdentifier, WireName, WireOptions, WirePartitioning, encode_user_headers,
};

use super::arrivals::{Acked, Arrival};
use super::catalog::{Counters, Partition, Slots, Stream, Topic};
use super::core::{Core, Delivery};
use super::faults::{AppliedFault, Fault, FaultId, Scope, Times};
use super::log::VerifiedBatch;
use super::messages::SendBody;
use super::nodes::Nodes;
use super::options::TopicOptions;
use super::outbox::lock;
use super::server::{Shared, unix_micros};

/// Looks into a running broker and makes it misbehave. Cheap to clone.
#[derive(Clone)]
pub struct Control {
    shared: Arc<Shared>,
}

/// A message to append past the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Id as stored.
    pub id: u128,
    /// Microseconds since the Unix epoch.
    pub origin_timestamp: u64,
    /// Payload.
    pub payload: Bytes,
    /// User headers as TLV bytes.
    pub user_headers: Bytes,
}

/// A message in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredMessage {
    /// Absolute offset.
    pub offset: u64,
    /// Id as stored.
    pub id: u128,
    /// Microseconds since the Unix epoch.
    pub origin_timestamp: u64,
    /// Payload.
    pub payload: Bytes,
    /// User headers as TLV bytes.
    pub user_headers: Bytes,
}

/// How a restart goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Restart {
    /// Messages each partition loses at its end.
    pub lose_tail: u64,
    /// How long polls then find every partition empty.
    pub starting_for: Duration,
    /// How long the port stays closed.
    pub downtime: Duration,
}

/// Why a control call did nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ControlError {
    /// No such stream, topic or partition.
    #[error("the broker has no {0}")]
    Unknown(String),
    /// Not a name or option a server takes.
    #[error("a server would refuse this: {0}")]
    Refused(String),
    /// The messages do not fit into one batch.
    #[error("not one batch: {0}")]
    Batch(String),
}

/// The messages as a batch that a server takes.
fn verified(partition: u32, messages: &[Message]) -> Result<VerifiedBatch, ControlError> {
    let raw: Vec<_> = messages.iter().map(Message::raw).collect();
    let (id, to) = (WireIdentifier::numeric(0), WirePartitioning::PartitionId(partition));
    let mut body = BytesMut::new();
    SendMessagesEncoder::encode(&mut body, &id, &id, &to, &raw)
        .map_err(|error| ControlError::Batch(error.to_string()))?;
    let batch = SendBody::decode(body.into()).into_batch();
    batch.map_err(|error| ControlError::Batch(error.to_string()))
}

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Control").field("address", &self.shared.address()).finish()
    }
}

impl Control {
    pub(super) fn new(shared: Arc<Shared>) -> Control {
        Control { shared }
    }

    /// Where the broker listens.
    pub fn address(&self) -> SocketAddr {
        self.shared.address()
    }

    /// Messages acked so far, by all connections.
    pub fn acked(&self) -> Acked {
        self.shared.arrivals.so_far()
    }

    /// Remembers every acked message from now on, or none; see [`Control::take_arrivals`].
    pub fn watch_arrivals(&self, on: bool) {
        self.shared.arrivals.watch(on);
    }

    /// Messages acked since the last call, as far as they were watched.
    pub fn take_arrivals(&self) -> Vec<Arrival> {
        self.shared.arrivals.take()
    }

    /// Sets a fault.
    pub fn fault(&self, fault: Fault, scope: Scope, times: Times) -> FaultId {
        self.core().faults.set(fault, scope, times)
    }

    /// Sets a fault for one request.
    pub fn fault_once(&self, fault: Fault, scope: Scope) -> FaultId {
        self.fault(fault, scope, Times::Next(1))
    }

    /// Removes a fault; false when it was used up.
    pub fn clear(&self, id: FaultId) -> bool {
        self.core().faults.clear(id)
    }

    /// Removes every fault. Held replies stay held.
    pub fn clear_all(&self) {
        self.core().faults.clear_all();
    }

    /// Faults that acted, oldest first.
    pub fn applied_faults(&self) -> Vec<AppliedFault> {
        self.core().faults.log()
    }

    /// Lets held replies go; how many there were.
    pub fn release_held(&self) -> usize {
        self.shared.all_links().iter().map(|link| link.release()).sum()
    }

    /// Replies that wait for a release.
    pub fn held(&self) -> usize {
        self.shared.all_links().iter().map(|link| link.held()).sum()
    }

    /// Ends every session with an eviction nobody asked for; the connections stay.
    pub fn evict_all(&self, reason: EvictionReason) -> usize {
        let frames = self.core().evict_all(reason);
        let count = frames.len();
        for (id, frame) in frames {
            if let Some(link) = self.shared.link(id) {
                // A connection that ended meanwhile needs no eviction.
                let _ = link.deliver(&self.shared.gate, frame, Delivery::Now);
            }
        }
        count
    }

    /// Open connections.
    pub fn connections(&self) -> usize {
        self.shared.all_links().len()
    }

    /// Sends that were read and whose reply was not yet written, over all open connections.
    pub fn unacked_sends(&self) -> usize {
        self.shared.all_links().iter().map(|link| link.unacked_sends()).sum()
    }

    /// Sends that wait to be appended after their connection went.
    pub fn pending_late_appends(&self) -> usize {
        self.shared.pending_late_appends()
    }

    /// Closes every connection; the port stays open.
    pub fn disconnect_all(&self) {
        self.shared.disconnect_all();
    }

    /// Closes the port and every connection. Messages stay.
    pub fn stop(&self) {
        self.shared.silence();
    }

    /// Opens the port again.
    pub fn start(&self) -> io::Result<()> {
        self.shared.listen()
    }

    /// Takes no connection and answers nothing, but keeps sockets open: a half-open peer.
    pub fn pause(&self) {
        self.shared.gate.set(true);
    }

    /// Ends a pause; what arrived meanwhile is served.
    pub fn resume(&self) {
        self.shared.gate.set(false);
    }

    /// Stops, loses what it is told to lose, and starts again on the same port. Blocks for the
    /// downtime.
    pub fn restart(&self, restart: Restart) -> io::Result<()> {
        self.stop();
        self.core().lose_tails(restart.lose_tail);
        std::thread::sleep(restart.downtime);
        let starting = u64::try_from(restart.starting_for.as_micros()).unwrap_or(u64::MAX);
        self.core().starting_until = unix_micros().saturating_add(starting);
        self.start()
    }

    /// Changes what the nodes of the cluster do; the first one's control is as good as any.
    pub fn nodes<T>(&self, act: impl FnOnce(&mut Nodes) -> T) -> T {
        act(self.core().nodes())
    }

    /// Creates a topic, and its stream if need be; false when the topic exists.
    pub fn create_topic(&self, stream: &str, topic: &str, partitions: u32) -> bool {
        self.create_topic_with(stream, topic, partitions, &[]).unwrap_or(false)
    }

    /// Creates a topic with options as text, and its stream if need be; false when the topic
    /// exists.
    pub fn create_topic_with(
        &self,
        stream: &str,
        topic: &str,
        partitions: u32,
        options: &[(&str, &str)],
    ) -> Result<bool, ControlError> {
        let refused =
            |error: iggy_binary_protocol::WireError| ControlError::Refused(error.to_string());
        let stream = WireName::new(stream).map_err(refused)?;
        let topic = WireName::new(topic).map_err(refused)?;
        let mut core = self.core();
        let mut chosen = TopicOptions::default();
        chosen
            .merge(&text_options(options), core.settings.flavour, core.settings.segment_bytes)
            .map_err(|code| ControlError::Refused(format!("error {code} for {options:?}")))?;
        let now = unix_micros();
        if core.streams.id_of(stream.as_str()).is_none() {
            let (options, topics) = (WireOptions::empty(), Slots::default());
            core.streams.insert(stream.clone(), Stream { created_at: now, options, topics });
        }
        let id = core.streams.id_of(stream.as_str());
        let stream = id.and_then(|id| core.streams.at_mut(id));
        let made = stream
            .and_then(|stream| stream.topics.insert(topic, Topic::new(now, partitions, chosen)));
        Ok(made.is_some())
    }

    /// Adds partitions.
    pub fn add_partitions(&self, stream: &str, topic: &str, add: u32) -> Result<(), ControlError> {
        self.with_topic(stream, topic, |topic| topic.add_partitions(add, unix_micros()))
    }

    /// Deletes a topic; its slot is free at once.
    pub fn delete_topic(&self, stream: &str, topic: &str) -> Result<(), ControlError> {
        let mut core = self.core();
        let id = core.streams.id_of(stream);
        let topics = id.and_then(|id| core.streams.at_mut(id)).map(|stream| &mut stream.topics);
        topics
            .and_then(|topics| topics.id_of(topic).and_then(|id| topics.remove(id)))
            .map(drop)
            .ok_or_else(|| unknown(stream, topic, None))
    }

    /// Deletes a topic and creates it anew, empty, with a later creation time.
    pub fn recreate(&self, stream: &str, topic: &str) -> Result<(), ControlError> {
        self.with_topic(stream, topic, |topic| {
            let created_at = unix_micros().max(topic.created_at + 1);
            *topic = Topic::new(created_at, topic.width(), topic.options.clone());
        })
    }

    /// Empties a topic; offsets start at 0 again, the creation time stays.
    pub fn purge(&self, stream: &str, topic: &str) -> Result<(), ControlError> {
        self.with_topic(stream, topic, Topic::purge)
    }

    /// Creation time of a topic.
    pub fn created_at(&self, stream: &str, topic: &str) -> Result<u64, ControlError> {
        self.with_topic(stream, topic, |topic| topic.created_at)
    }

    /// Number of partitions of a topic.
    pub fn partitions(&self, stream: &str, topic: &str) -> Result<u32, ControlError> {
        self.with_topic(stream, topic, |topic| topic.width())
    }

    /// Appends past the wire, as a foreign writer would; the first offset comes back.
    pub fn append(
        &self,
        stream: &str,
        topic: &str,
        partition: u32,
        messages: &[Message],
    ) -> Result<u64, ControlError> {
        let batch = verified(partition, messages)?;
        let mut core = self.core();
        let target = core.target(stream, topic, partition);
        let appended = target.and_then(|target| core.append(target, batch, unix_micros()));
        let (base, _) = appended.ok_or_else(|| unknown(stream, topic, Some(partition)))?;
        Ok(base)
    }

    /// Appends one batch of these messages again and again, past every limit of the topic; large
    /// ones take memory once.
    pub fn append_copies(
        &self,
        stream: &str,
        topic: &str,
        partition: u32,
        messages: &[Message],
        copies: u64,
    ) -> Result<(), ControlError> {
        let batch = verified(partition, messages)?;
        let segment = self.core().settings.segment_bytes;
        self.with_partition(stream, topic, partition, |found| {
            found.log.append_copies(&batch, partition, unix_micros(), segment, copies);
        })
    }

    /// At most `limit` messages from `from` on.
    pub fn dump(
        &self,
        stream: &str,
        topic: &str,
        partition: u32,
        from: u64,
        limit: u32,
    ) -> Result<Vec<StoredMessage>, ControlError> {
        let read = |partition: &mut Partition| partition.log.read(from, limit);
        let found = self.with_partition(stream, topic, partition, read)?;
        let mut records = BytesMut::new();
        found.pieces.iter().for_each(|piece| records.extend_from_slice(piece));
        Ok(messages_of(&records.freeze()))
    }

    /// Offset of the next append.
    pub fn end(&self, stream: &str, topic: &str, partition: u32) -> Result<u64, ControlError> {
        self.with_partition(stream, topic, partition, |partition| partition.log.next())
    }

    /// First offset still there; the end when empty.
    pub fn earliest(&self, stream: &str, topic: &str, partition: u32) -> Result<u64, ControlError> {
        self.with_partition(stream, topic, partition, |partition| partition.log.earliest())
    }

    /// Requests seen by a partition since its topic was created.
    pub fn counters(
        &self,
        stream: &str,
        topic: &str,
        partition: u32,
    ) -> Result<Counters, ControlError> {
        self.with_partition(stream, topic, partition, |partition| partition.counters)
    }

    /// Retention: drops up to `count` sealed segments; how many went.
    pub fn delete_segments(
        &self,
        stream: &str,
        topic: &str,
        partition: u32,
        count: u32,
    ) -> Result<u32, ControlError> {
        self.with_partition(stream, topic, partition, |partition| {
            partition.log.drop_segments(count)
        })
    }

    /// Retention wherever segments end: drops the records that lie wholly below `offset`.
    pub fn retain_from(
        &self,
        stream: &str,
        topic: &str,
        partition: u32,
        offset: u64,
    ) -> Result<(), ControlError> {
        self.with_partition(stream, topic, partition, |partition| partition.log.retain_from(offset))
    }

    /// Back to empty with the same creation time, as a server that lost the partition's files.
    pub fn reset_log(&self, stream: &str, topic: &str, partition: u32) -> Result<(), ControlError> {
        self.with_partition(stream, topic, partition, |partition| {
            partition.log.clear();
            partition.offsets.clear();
        })
    }

    /// Loses the last messages of one partition while running.
    pub fn lose_tail(
        &self,
        stream: &str,
        topic: &str,
        partition: u32,
        count: u64,
    ) -> Result<(), ControlError> {
        self.with_partition(stream, topic, partition, |partition| partition.lose_tail(count))
    }

    fn core(&self) -> MutexGuard<'_, Core> {
        lock(&self.shared.core)
    }

    fn with_topic<T>(
        &self,
        stream: &str,
        topic: &str,
        act: impl FnOnce(&mut Topic) -> T,
    ) -> Result<T, ControlError> {
        let mut core = self.core();
        let id = core.streams.id_of(stream);
        let topics = id.and_then(|id| core.streams.at_mut(id)).map(|stream| &mut stream.topics);
        let found = topics.and_then(|topics| topics.id_of(topic).and_then(|id| topics.at_mut(id)));
        found.map(act).ok_or_else(|| unknown(stream, topic, None))
    }

    fn with_partition<T>(
        &self,
        stream: &str,
        topic: &str,
        partition: u32,
        act: impl FnOnce(&mut Partition) -> T,
    ) -> Result<T, ControlError> {
        let found = self.with_topic(stream, topic, |topic| topic.partition_mut(partition).map(act));
        found?.ok_or_else(|| unknown(stream, topic, Some(partition)))
    }
}

impl Core {
    /// What a crash before a flush does to every partition.
    fn lose_tails(&mut self, count: u64) {
        let topics = self.streams.values_mut().flat_map(|stream| stream.topics.values_mut());
        topics.flat_map(|topic| &mut topic.partitions).for_each(|p| p.lose_tail(count));
    }
}

impl Partition {
    /// Consumer offsets behind the new end are pulled back to it.
    fn lose_tail(&mut self, count: u64) {
        if count == 0 {
            return;
        }
        self.log.lose_tail(count);
        let current = self.log.current();
        self.offsets.values_mut().for_each(|offset| *offset = current.min(*offset));
    }
}

impl Message {
    fn raw(&self) -> RawMessage<'_> {
        RawMessage {
            id: self.id,
            origin_timestamp: self.origin_timestamp,
            headers: (!self.user_headers.is_empty()).then_some(&self.user_headers[..]),
            payload: &self.payload,
        }
    }
}

fn text_options(options: &[(&str, &str)]) -> WireOptions {
    const TEXT: u8 = 2;
    let mut block = BytesMut::new();
    for (key, value) in options {
        encode_user_headers(&[(TEXT, key.as_bytes(), TEXT, value.as_bytes())], &mut block);
    }
    WireOptions::from_validated(block.freeze())
}

fn messages_of(records: &Bytes) -> Vec<StoredMessage> {
    let mut messages = Vec::new();
    let mut at = 0;
    while at < records.len() {
        let batch = decode_batch_slice_with(&records[at..], BatchIntegrity::LayoutOnly);
        let batch = batch.expect("records were checked when they were appended");
        messages.extend(batch.iter().map(|message| StoredMessage {
            offset: batch.header.base_offset + u64::from(message.header.offset_delta),
            id: message.header.id,
            origin_timestamp: batch.header.origin_timestamp
                + u64::from(message.header.timestamp_delta),
            payload: records.slice_ref(message.payload),
            user_headers: records.slice_ref(message.user_headers),
        }));
        at += batch.header.total_size();
    }
    messages
}

fn unknown(stream: &str, topic: &str, partition: Option<u32>) -> ControlError {
    let partition = partition.map(|id| format!("/{id}")).unwrap_or_default();
    ControlError::Unknown(format!("{stream}/{topic}{partition}"))
}
