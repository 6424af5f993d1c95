//! Sends, polls and consumer offsets.

use std::collections::HashMap;

use bytes::{Bytes, BytesMut};
use iggy_binary_protocol::batch::{BATCH_CHECKSUM_OFFSET, BATCH_HEADER_SIZE, BatchHeader};
use iggy_binary_protocol::batch::{BATCH_MESSAGE_HEADER_SIZE, BatchRef};
use iggy_binary_protocol::requests::consumer_offsets::{
    DeleteConsumerOffsetRequest, GetConsumerOffsetRequest, StoreConsumerOffsetRequest,
};
use iggy_binary_protocol::requests::messages::{PollMessagesRequest, SendMessagesHeader};
use iggy_binary_protocol::responses::consumer_offsets::ConsumerOffsetResponse;
use iggy_binary_protocol::responses::messages::{
    PollMessagesResponseHeader, SendMessagesConfirmationResponse, SendMessagesResponse,
};
use iggy_binary_protocol::{
    KIND_CONSUMER_GROUP, WireConsumer, WireDecode, WireEncode, WireIdentifier, WirePartitioning,
    WirePollingStrategy,
};

use super::answer::{Answer, Call, INVALID_COMMAND, local_status, result};
use super::catalog::{ConsumerKey, Partition, Topic};
use super::core::{Action, Core, Flavour, POLL_ON_PRIMARY};
use super::faults::Op;
use super::frame::Frame;
use super::log::{BatchError, Log, VerifiedBatch};
use super::nodes::NOT_ACCEPTED;

pub(super) const RESOURCE_NOT_FOUND: u32 = 20;
pub(super) const STREAM_NOT_FOUND: u32 = 1009;
pub(super) const TOPIC_NOT_FOUND: u32 = 2010;
pub(super) const PARTITION_NOT_FOUND: u32 = 3007;
const OFFSET_NOT_FOUND: u32 = 3021;
const INVALID_OFFSET: u32 = 4100;
const NOT_A_MEMBER: u32 = 5009;

/// Partition id of a poll reply that tells a group member to sync again.
const RESYNC: u32 = u32::MAX;

/// Bytes of a poll reply in front of the records.
const POLL_HEAD: usize = 16;

/// A send, its batch checked.
#[derive(Debug)]
pub(super) struct SendBody {
    head: Option<SendMessagesHeader>,
    batch: Result<VerifiedBatch, BatchError>,
}

/// Where a send or poll goes, by ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Target {
    stream: u32,
    topic: u32,
    partition: u32,
}

/// A send that outlives its connection.
#[derive(Debug)]
pub struct LateSend {
    stream: String,
    topic: String,
    partition: u32,
    batch: VerifiedBatch,
}

impl SendBody {
    /// Splits `metadata length | metadata | batch` and checks the batch.
    pub(super) fn decode(body: Vec<u8>) -> SendBody {
        SendBody::decode_with(body, VerifiedBatch::check)
    }

    /// The same for a broker that keeps nothing: the messages are only counted. `beyond`: bytes
    /// at the end of the batch that were left out.
    pub(super) fn counted(body: Vec<u8>, beyond: usize) -> SendBody {
        SendBody::decode_with(body, |body, end| VerifiedBatch::trusted(body, end, beyond))
    }

    fn decode_with(
        body: Vec<u8>,
        check: impl Fn(Vec<u8>, usize) -> Result<VerifiedBatch, BatchError>,
    ) -> SendBody {
        let length = body.get(..4).and_then(|bytes| bytes.try_into().ok()).map(u32::from_le_bytes);
        let end = length.and_then(|length| (length as usize).checked_add(4)).unwrap_or(usize::MAX);
        let head = body.get(4..end).and_then(|metadata| {
            let (head, used) = SendMessagesHeader::decode(metadata).ok()?;
            (used == metadata.len()).then_some(head)
        });
        let batch = match &head {
            None => Err(BatchError::Layout),
            Some(head) => check(body, end).and_then(|batch| {
                let same = batch.count() == head.messages_count;
                same.then_some(batch).ok_or(BatchError::Layout)
            }),
        };
        SendBody { head, batch }
    }

    /// The batch, if there is a right one.
    pub(super) fn batch(&self) -> Option<&VerifiedBatch> {
        self.batch.as_ref().ok()
    }

    /// The checked batch alone.
    pub(super) fn into_batch(self) -> Result<VerifiedBatch, BatchError> {
        self.batch
    }
}

impl Core {
    /// The partition of a send. A balanced one moves the round robin on.
    pub(super) fn route_send(&mut self, send: &SendBody) -> Result<Target, u32> {
        let head = send.head.as_ref().ok_or(INVALID_COMMAND)?;
        let (stream, topic) =
            self.find_topic(&head.stream_id, &head.topic_id).map_err(|_| RESOURCE_NOT_FOUND)?;
        let found = self.topic_mut(stream, topic).ok_or(RESOURCE_NOT_FOUND)?;
        let partition = match &head.partitioning {
            WirePartitioning::PartitionId(id) => Some(*id),
            WirePartitioning::MessagesKey(key) => found.partition_of_key(key),
            WirePartitioning::Balanced => {
                let turn = found.round_robin.checked_rem(found.width());
                found.round_robin = found.round_robin.wrapping_add(1);
                turn
            }
        };
        let partition = partition.filter(|id| found.partition(*id).is_some());
        Ok(Target { stream, topic, partition: partition.ok_or(RESOURCE_NOT_FOUND)? })
    }

    /// The partition of a poll; a group poll without one is left at 0 here.
    pub(super) fn route_poll(&self, poll: &PollMessagesRequest) -> Result<Target, u32> {
        let (stream, topic) = self.find_topic(&poll.stream_id, &poll.topic_id)?;
        Ok(Target { stream, topic, partition: poll.partition_id.unwrap_or(0) })
    }

    pub(super) fn count_arrival(&mut self, op: Op, target: Target) {
        if let Some(partition) = self.partition_mut(target) {
            match op {
                Op::Send => partition.counters.sends_received += 1,
                _ => partition.counters.polls += 1,
            }
        }
    }

    /// The names of a target, for the faults.
    pub(super) fn place(&self, target: Target) -> Option<(String, String, u32)> {
        if self.faults.is_empty() {
            return None;
        }
        let stream = self.streams.name(target.stream)?.as_str().to_owned();
        let topics = &self.streams.get(target.stream)?.topics;
        Some((stream, topics.name(target.topic)?.as_str().to_owned(), target.partition))
    }

    pub(super) fn send(
        &mut self,
        call: &Call,
        send: SendBody,
        target: Option<Result<Target, u32>>,
    ) -> Answer {
        let target = match target {
            Some(Ok(target)) => target,
            Some(Err(status)) => return Answer::Denied(status),
            None => return Answer::Denied(INVALID_COMMAND),
        };
        if !self.nodes.is_primary(self.node_of(call.connection)) {
            return Answer::Denied(NOT_ACCEPTED);
        }
        let Ok(batch) = send.batch else {
            return match self.settings.invalid_batch_status {
                Some(status) => Answer::Denied(status),
                None => Answer::Silence,
            };
        };
        let Some((base_offset, ops)) = self.append(target, batch, call.now) else {
            return Answer::Denied(RESOURCE_NOT_FOUND);
        };
        let Target { stream, topic, partition } = target;
        let confirmation = SendMessagesConfirmationResponse {
            stream_id: stream,
            topic_id: topic,
            partition_id: partition,
            base_offset,
        };
        let body = SendMessagesResponse { confirmations: vec![confirmation] }.to_bytes();
        Answer::Partition { op: ops, commit: ops, status: 0, body: vec![body] }
    }

    /// Appends and applies the topic's size limit; the partition's operation count comes along.
    pub(super) fn append(
        &mut self,
        target: Target,
        batch: VerifiedBatch,
        now: u64,
    ) -> Option<(u64, u64)> {
        let default_segment = self.settings.segment_bytes;
        let default_limit = self.settings.max_topic_bytes;
        let discard = self.settings.discard;
        let topic = self.topic_mut(target.stream, target.topic)?;
        let segment = topic.options.segment_size(default_segment);
        let limit = topic.options.max_size().min(default_limit);
        let partition = topic.partition_mut(target.partition)?;
        let base = match discard {
            true => partition.log.skip(batch.count()),
            false => partition.log.append(batch, target.partition, now, segment),
        };
        partition.ops += 1;
        partition.counters.sends_applied += 1;
        let ops = partition.ops;
        if limit != u64::MAX {
            topic.shrink_to(limit);
        }
        Some((base, ops))
    }

    /// What is left of a send when its connection goes.
    pub(super) fn late(
        &self,
        action: Action,
        target: Option<Result<Target, u32>>,
    ) -> Option<LateSend> {
        let (Action::Send(send), Some(Ok(target))) = (action, target) else { return None };
        let stream = self.streams.name(target.stream)?.as_str().to_owned();
        let topics = &self.streams.get(target.stream)?.topics;
        let topic = topics.name(target.topic)?.as_str().to_owned();
        Some(LateSend { stream, topic, partition: target.partition, batch: send.batch.ok()? })
    }

    pub(super) fn append_late(&mut self, late: LateSend, now: u64) -> bool {
        let target = self.target(&late.stream, &late.topic, late.partition);
        target.and_then(|target| self.append(target, late.batch, now)).is_some()
    }

    pub(super) fn poll(
        &mut self,
        call: &Call,
        poll: Option<PollMessagesRequest>,
        target: Option<Result<Target, u32>>,
    ) -> Answer {
        if call.head.code == POLL_ON_PRIMARY && self.settings.flavour == Flavour::Edge5 {
            return local_status(INVALID_COMMAND);
        }
        let Some(poll) = poll else {
            return match self.settings.flavour {
                Flavour::Edge5 => polled(0, 0, 0, Vec::new()),
                Flavour::Release => local_status(INVALID_COMMAND),
            };
        };
        let mut target = match target {
            Some(Ok(target)) => target,
            Some(Err(status)) => return local_status(status),
            None => return local_status(INVALID_COMMAND),
        };
        let key = match self.consumer(call, &poll.consumer, target, poll.partition_id) {
            Some((key, partition)) => {
                target.partition = partition;
                key
            }
            None => return polled(RESYNC, 0, 0, Vec::new()),
        };
        let starting = call.now < self.starting_until;
        let lag = self.nodes.lag(self.node_of(call.connection));
        let Some(partition) = self.partition_mut(target) else {
            return local_status(PARTITION_NOT_FOUND);
        };
        if starting {
            return polled(target.partition, 0, 0, Vec::new());
        }
        let seen = partition.log.without_last(lag);
        let from = start(&seen, &partition.offsets, &poll.strategy, poll.count, key);
        let (found, current) = (seen.read(from, poll.count), seen.current());
        if let Some(last) = found.last.filter(|_| poll.auto_commit) {
            partition.offsets.insert(key, last);
            partition.ops += 1;
        }
        polled(target.partition, current, found.count, found.pieces)
    }

    /// Whose offsets count, and the partition read; `None` for a group poll by a stranger or of a
    /// partition that is not the member's.
    fn consumer(
        &self,
        call: &Call,
        consumer: &WireConsumer,
        target: Target,
        asked: Option<u32>,
    ) -> Option<(ConsumerKey, u32)> {
        if consumer.kind != KIND_CONSUMER_GROUP {
            return Some((ConsumerKey::consumer(&consumer.id), target.partition));
        }
        let topic = self.topic(target.stream, target.topic)?;
        let id = topic.groups.find(&consumer.id)?;
        let assigned = topic.groups.get(id)?.assigned(call.connection, topic.width())?;
        let partition = match asked {
            Some(partition) => partition,
            None => *assigned.first()?,
        };
        assigned.contains(&partition).then_some((ConsumerKey::group(id), partition))
    }

    pub(super) fn store_offset(&mut self, call: &Call, body: &[u8]) -> Answer {
        let Ok(request) = StoreConsumerOffsetRequest::decode_from(body) else {
            return Answer::Denied(RESOURCE_NOT_FOUND);
        };
        let asked = request.partition_id;
        let found = self.offset_target(
            call,
            &request.consumer,
            &request.stream_id,
            &request.topic_id,
            asked,
        );
        let (target, key) = match found {
            Ok(found) => found,
            Err(status) => return Answer::Denied(status),
        };
        if !self.nodes.is_primary(self.node_of(call.connection)) {
            return Answer::Denied(NOT_ACCEPTED);
        }
        let Some(partition) = self.partition_mut(target) else {
            return Answer::Denied(RESOURCE_NOT_FOUND);
        };
        let beyond = request.offset > partition.log.current() || partition.log.messages() == 0;
        if beyond {
            return refused(partition, INVALID_OFFSET);
        }
        partition.offsets.insert(key, request.offset);
        done(partition)
    }

    pub(super) fn delete_offset(&mut self, call: &Call, body: &[u8]) -> Answer {
        let Ok(request) = DeleteConsumerOffsetRequest::decode_from(body) else {
            return Answer::Denied(RESOURCE_NOT_FOUND);
        };
        let asked = request.partition_id;
        let found = self.offset_target(
            call,
            &request.consumer,
            &request.stream_id,
            &request.topic_id,
            asked,
        );
        let (target, key) = match found {
            Ok(found) => found,
            Err(status) => return Answer::Denied(status),
        };
        if !self.nodes.is_primary(self.node_of(call.connection)) {
            return Answer::Denied(NOT_ACCEPTED);
        }
        let Some(partition) = self.partition_mut(target) else {
            return Answer::Denied(RESOURCE_NOT_FOUND);
        };
        match partition.offsets.remove(&key) {
            Some(_) => done(partition),
            None => refused(partition, OFFSET_NOT_FOUND),
        }
    }

    pub(super) fn stored_offset(&self, body: &[u8]) -> Answer {
        let Ok(request) = GetConsumerOffsetRequest::decode_from(body) else {
            return local_status(INVALID_COMMAND);
        };
        let none = Answer::Local { status: 0, body: Vec::new() };
        let (stream, topic) = match self.find_topic(&request.stream_id, &request.topic_id) {
            Ok(found) => found,
            Err(_) if self.settings.flavour == Flavour::Edge5 => return none,
            Err(status) => return local_status(status),
        };
        let Some(found) = self.topic(stream, topic) else { return none };
        let id = request.partition_id.unwrap_or(0);
        let Some(partition) = found.partition(id) else {
            return local_status(PARTITION_NOT_FOUND);
        };
        let key = if request.consumer.kind == KIND_CONSUMER_GROUP {
            found.groups.find(&request.consumer.id).map(ConsumerKey::group)
        } else {
            Some(ConsumerKey::consumer(&request.consumer.id))
        };
        let Some(&stored) = key.and_then(|key| partition.offsets.get(&key)) else { return none };
        let response = ConsumerOffsetResponse {
            partition_id: id,
            current_offset: partition.log.current(),
            stored_offset: stored,
        };
        Answer::Local { status: 0, body: vec![response.to_bytes()] }
    }

    /// Where an offset is written and under which key; group offsets need the member that owns
    /// the partition.
    fn offset_target(
        &self,
        call: &Call,
        consumer: &WireConsumer,
        stream: &WireIdentifier,
        topic: &WireIdentifier,
        partition: Option<u32>,
    ) -> Result<(Target, ConsumerKey), u32> {
        let partition = partition.ok_or(RESOURCE_NOT_FOUND)?;
        let (stream, topic) = self.find_topic(stream, topic).map_err(|_| RESOURCE_NOT_FOUND)?;
        let target = Target { stream, topic, partition };
        let stranger = match self.settings.flavour {
            Flavour::Edge5 => RESOURCE_NOT_FOUND,
            Flavour::Release => NOT_A_MEMBER,
        };
        let (key, _) = self.consumer(call, consumer, target, Some(partition)).ok_or(stranger)?;
        Ok((target, key))
    }

    /// Ids behind two identifiers, or the code of what is missing.
    pub(super) fn find_topic(
        &self,
        stream: &WireIdentifier,
        topic: &WireIdentifier,
    ) -> Result<(u32, u32), u32> {
        let stream = self.streams.find(stream).ok_or(STREAM_NOT_FOUND)?;
        let topics = &self.streams.get(stream).ok_or(STREAM_NOT_FOUND)?.topics;
        Ok((stream, topics.find(topic).ok_or(TOPIC_NOT_FOUND)?))
    }

    /// A target by names.
    pub(super) fn target(&self, stream: &str, topic: &str, partition: u32) -> Option<Target> {
        let stream = self.streams.id_of(stream)?;
        let topics = &self.streams.get(stream)?.topics;
        let topic = topics.id_of(topic)?;
        topics.get(topic)?.partition(partition)?;
        Some(Target { stream, topic, partition })
    }

    pub(super) fn topic(&self, stream: u32, topic: u32) -> Option<&Topic> {
        self.streams.get(stream)?.topics.get(topic)
    }

    pub(super) fn topic_mut(&mut self, stream: u32, topic: u32) -> Option<&mut Topic> {
        self.streams.at_mut(stream)?.topics.at_mut(topic)
    }

    pub(super) fn partition_mut(&mut self, target: Target) -> Option<&mut Partition> {
        self.topic_mut(target.stream, target.topic)?.partition_mut(target.partition)
    }
}

fn start(
    log: &Log,
    offsets: &HashMap<ConsumerKey, u64>,
    strategy: &WirePollingStrategy,
    count: u32,
    key: ConsumerKey,
) -> u64 {
    const OFFSET: u8 = WirePollingStrategy::offset(0).kind;
    const TIMESTAMP: u8 = WirePollingStrategy::timestamp(0).kind;
    const FIRST: u8 = WirePollingStrategy::first().kind;
    const LAST: u8 = WirePollingStrategy::last().kind;
    match strategy.kind {
        OFFSET => strategy.value,
        TIMESTAMP => log.offset_at(strategy.value),
        FIRST => log.earliest(),
        LAST => log.next().saturating_sub(u64::from(count)),
        _ => offsets.get(&key).map_or(0, |stored| stored + 1),
    }
}

fn polled(partition: u32, current: u64, count: u32, pieces: Vec<Bytes>) -> Answer {
    let head = PollMessagesResponseHeader {
        partition_id: partition,
        current_offset: current,
        messages_count: count,
    };
    let mut body = Vec::with_capacity(1 + pieces.len());
    body.push(head.to_bytes());
    body.extend(pieces);
    Answer::Local { status: 0, body }
}

fn done(partition: &mut Partition) -> Answer {
    partition.ops += 1;
    let ops = partition.ops;
    Answer::Partition { op: ops, commit: ops, status: 0, body: vec![result(0)] }
}

fn refused(partition: &Partition, status: u32) -> Answer {
    Answer::Partition { op: 0, commit: partition.ops, status, body: Vec::new() }
}

/// The poll reply with one byte of the message at `offset` flipped: of its payload, or of its id
/// when the payload is empty. `None` when the message is not in it.
pub(super) fn corrupt_message(frame: &Frame, offset: u64) -> Option<Frame> {
    edit_records(frame, |records| {
        let mut at = 0;
        while at < records.len() {
            let header = BatchHeader::decode(&records[at..]).ok()?;
            let blob = at + BATCH_HEADER_SIZE..at + header.total_size();
            for framed in BatchRef::new(header, &records[blob.clone()]).iter_with_offsets() {
                let frame = &framed.message.header;
                if header.base_offset + u64::from(frame.offset_delta) == offset {
                    let empty = frame.payload_length == 0;
                    let inside = if empty { 8 } else { BATCH_MESSAGE_HEADER_SIZE };
                    return Some(blob.start + framed.start + inside);
                }
            }
            at = blob.end;
        }
        None
    })
}

/// The poll reply with the batch checksum of its first record flipped.
pub(super) fn corrupt_checksum(frame: &Frame) -> Option<Frame> {
    edit_records(frame, |records| (!records.is_empty()).then_some(BATCH_CHECKSUM_OFFSET))
}

/// A copy of the reply with the byte flipped that `find` points at in the records.
fn edit_records(frame: &Frame, find: impl Fn(&[u8]) -> Option<usize>) -> Option<Frame> {
    let [header, head, ..] = frame.pieces.as_slice() else { return None };
    if head.len() != POLL_HEAD {
        return None;
    }
    let mut records = BytesMut::new();
    frame.pieces[2..].iter().for_each(|piece| records.extend_from_slice(piece));
    let at = find(&records)?;
    records[at] ^= 0x40;
    let pieces = vec![header.clone(), head.clone(), records.freeze()];
    Some(Frame { pieces, answers_send: frame.answers_send })
}
