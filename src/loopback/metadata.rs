//! Operations that change the catalogue: streams, topics, partitions, segments, groups, tokens.
//!
//! An operation is either refused before it reaches the log, with a status, or committed; what the
//! log itself refuses is a committed rejection in the result section.

use bytes::Bytes;
use iggy_binary_protocol::requests::consumer_groups::{
    CreateConsumerGroupRequest, DeleteConsumerGroupRequest, JoinConsumerGroupRequest,
    LeaveConsumerGroupRequest,
};
use iggy_binary_protocol::requests::partitions::{
    CreatePartitionsRequest, DeletePartitionsRequest,
};
use iggy_binary_protocol::requests::personal_access_tokens::{
    CreatePersonalAccessTokenRequest, DeletePersonalAccessTokenRequest,
};
use iggy_binary_protocol::requests::segments::DeleteSegmentsRequest;
use iggy_binary_protocol::requests::streams::{
    CreateStreamRequest, DeleteStreamRequest, PurgeStreamRequest, UpdateStreamRequest,
};
use iggy_binary_protocol::requests::topics::{
    CreateTopicRequest, DeleteTopicRequest, PurgeTopicRequest, UpdateTopicRequest,
};
use iggy_binary_protocol::responses::personal_access_tokens::RawPersonalAccessTokenResponse;
use iggy_binary_protocol::responses::topics::GetTopicResponse;
use iggy_binary_protocol::{Operation, WireDecode, WireIdentifier, WireName};
use twox_hash::XxHash3_128;

use super::answer::{
    Answer, Call, FEATURE_UNAVAILABLE, INVALID_COMMAND, reply_operation, result,
    with_result_section,
};
use super::catalog::{ConsumerKey, Group, Slots, Stream, Topic};
use super::core::Core;
use super::messages::{PARTITION_NOT_FOUND, STREAM_NOT_FOUND, TOPIC_NOT_FOUND};
use super::options::TopicOptions;

const STREAM_EXISTS: u32 = 1012;
const TOPIC_EXISTS: u32 = 2013;
const BAD_PARTITION_COUNT: u32 = 2015;
const GROUP_NOT_FOUND: u32 = 5000;
const GROUP_EXISTS: u32 = 5004;
const TOKEN_EXISTS: u32 = 51;
const TOKEN_NOT_FOUND: u32 = 20;
const MAX_PARTITIONS: u32 = 1000;

/// Refused before the log (`Denied`), or decided by it (`Committed`).
enum Refusal {
    Denied(u32),
    Committed(u32),
}

type Outcome = Result<Bytes, Refusal>;

impl From<iggy_binary_protocol::WireError> for Refusal {
    fn from(_: iggy_binary_protocol::WireError) -> Refusal {
        Refusal::Denied(INVALID_COMMAND)
    }
}

impl Core {
    /// A metadata operation: 128 to 149.
    pub(super) fn metadata(&mut self, call: &Call, body: &[u8]) -> Answer {
        let operation = call.head.operation;
        let outcome = self.apply_metadata(call, body);
        let body = match outcome {
            Err(Refusal::Denied(status)) => return Answer::Denied(status),
            Err(Refusal::Committed(code)) => result(code),
            Ok(body) => body,
        };
        self.commit += 1;
        Answer::Committed { operation: reply_operation(operation), body: vec![body] }
    }

    fn apply_metadata(&mut self, call: &Call, body: &[u8]) -> Outcome {
        const CREATE_STREAM: u8 = Operation::CreateStream as u8;
        const UPDATE_STREAM: u8 = Operation::UpdateStream as u8;
        const DELETE_STREAM: u8 = Operation::DeleteStream as u8;
        const PURGE_STREAM: u8 = Operation::PurgeStream as u8;
        const CREATE_TOPIC: u8 = Operation::CreateTopic as u8;
        const UPDATE_TOPIC: u8 = Operation::UpdateTopic as u8;
        const DELETE_TOPIC: u8 = Operation::DeleteTopic as u8;
        const PURGE_TOPIC: u8 = Operation::PurgeTopic as u8;
        const CREATE_PARTITIONS: u8 = Operation::CreatePartitions as u8;
        const DELETE_PARTITIONS: u8 = Operation::DeletePartitions as u8;
        const DELETE_SEGMENTS: u8 = Operation::DeleteSegments as u8;
        const CREATE_GROUP: u8 = Operation::CreateConsumerGroup as u8;
        const DELETE_GROUP: u8 = Operation::DeleteConsumerGroup as u8;
        const JOIN_GROUP: u8 = Operation::JoinConsumerGroup as u8;
        const LEAVE_GROUP: u8 = Operation::LeaveConsumerGroup as u8;
        const CREATE_TOKEN: u8 = Operation::CreatePersonalAccessToken as u8;
        const DELETE_TOKEN: u8 = Operation::DeletePersonalAccessToken as u8;
        match call.head.operation {
            CREATE_STREAM => self.create_stream(CreateStreamRequest::decode_from(body)?, call.now),
            UPDATE_STREAM => self.update_stream(UpdateStreamRequest::decode_from(body)?),
            DELETE_STREAM => self.delete_stream(&DeleteStreamRequest::decode_from(body)?.stream_id),
            PURGE_STREAM => self.purge_stream(&PurgeStreamRequest::decode_from(body)?.stream_id),
            CREATE_TOPIC => self.create_topic(CreateTopicRequest::decode_from(body)?, call.now),
            UPDATE_TOPIC => self.update_topic(UpdateTopicRequest::decode_from(body)?),
            DELETE_TOPIC => self.delete_topic(&DeleteTopicRequest::decode_from(body)?),
            PURGE_TOPIC => self.purge_topic(&PurgeTopicRequest::decode_from(body)?),
            CREATE_PARTITIONS => {
                self.create_partitions(&CreatePartitionsRequest::decode_from(body)?, call.now)
            }
            DELETE_PARTITIONS => {
                self.delete_partitions(&DeletePartitionsRequest::decode_from(body)?)
            }
            DELETE_SEGMENTS => self.delete_segments(&DeleteSegmentsRequest::decode_from(body)?),
            CREATE_GROUP => self.create_group(CreateConsumerGroupRequest::decode_from(body)?),
            DELETE_GROUP => self.delete_group(&DeleteConsumerGroupRequest::decode_from(body)?),
            JOIN_GROUP => self.join_group(&JoinConsumerGroupRequest::decode_from(body)?, call),
            LEAVE_GROUP => self.leave_group(&LeaveConsumerGroupRequest::decode_from(body)?, call),
            CREATE_TOKEN => {
                self.create_token(CreatePersonalAccessTokenRequest::decode_from(body)?, call.now)
            }
            DELETE_TOKEN => {
                let name = DeletePersonalAccessTokenRequest::decode_from(body)?.name;
                let id = self.tokens.id_of(name.as_str());
                let removed = id.and_then(|id| self.tokens.remove(id));
                done(removed.is_some(), TOKEN_NOT_FOUND)
            }
            _ => Err(Refusal::Denied(FEATURE_UNAVAILABLE)),
        }
    }

    fn create_stream(&mut self, request: CreateStreamRequest, now: u64) -> Outcome {
        let CreateStreamRequest { name, options } = request;
        let stream = Stream { created_at: now, options, topics: Slots::default() };
        let id = self.streams.insert(name.clone(), stream);
        let id = id.ok_or(Refusal::Committed(STREAM_EXISTS))?;
        let stream = self.streams.get(id).ok_or(Refusal::Committed(STREAM_NOT_FOUND))?;
        Ok(with_result_section(&stream.row(id, &name)))
    }

    fn update_stream(&mut self, request: UpdateStreamRequest) -> Outcome {
        let id = self.stream_id(&request.stream_id)?;
        if !self.streams.rename(id, request.name) {
            return Err(Refusal::Committed(STREAM_EXISTS));
        }
        Ok(result(0))
    }

    fn delete_stream(&mut self, id: &WireIdentifier) -> Outcome {
        let id = self.stream_id(id)?;
        done(self.streams.remove(id).is_some(), STREAM_NOT_FOUND)
    }

    fn purge_stream(&mut self, id: &WireIdentifier) -> Outcome {
        let id = self.stream_id(id)?;
        if let Some(stream) = self.streams.at_mut(id) {
            stream.topics.values_mut().for_each(Topic::purge);
        }
        Ok(result(0))
    }

    fn create_topic(&mut self, request: CreateTopicRequest, now: u64) -> Outcome {
        let CreateTopicRequest { stream_id, partitions_count, name, options: wire } = request;
        if partitions_count > MAX_PARTITIONS {
            return Err(Refusal::Denied(BAD_PARTITION_COUNT));
        }
        let (flavour, segment) = (self.settings.flavour, self.settings.segment_bytes);
        let mut options = TopicOptions::default();
        options.merge(&wire, flavour, segment).map_err(Refusal::Denied)?;
        let stream = self.stream_id(&stream_id)?;
        let stream = self.streams.at_mut(stream).ok_or(Refusal::Committed(STREAM_NOT_FOUND))?;
        let topic = Topic::new(now, partitions_count, options);
        let id = stream.topics.insert(name.clone(), topic);
        let id = id.ok_or(Refusal::Committed(TOPIC_EXISTS))?;
        let topic = stream.topics.get(id).ok_or(Refusal::Committed(TOPIC_NOT_FOUND))?;
        let head = topic.head(id, &name, flavour, segment);
        let mut response = GetTopicResponse { topic: head, partitions: topic.rows(0) };
        // The partitions' first segments are made after the reply is built.
        response.partitions.iter_mut().for_each(|row| row.segments_count = 0);
        Ok(with_result_section(&response))
    }

    fn update_topic(&mut self, request: UpdateTopicRequest) -> Outcome {
        let UpdateTopicRequest { stream_id, topic_id, name, options } = request;
        let (stream, topic) = self.topic_ids(&stream_id, &topic_id)?;
        let (flavour, segment) = (self.settings.flavour, self.settings.segment_bytes);
        let found = self.topic_mut(stream, topic).ok_or(Refusal::Committed(TOPIC_NOT_FOUND))?;
        found.options.merge(&options, flavour, segment).map_err(Refusal::Denied)?;
        let topics = self.streams.at_mut(stream).map(|stream| &mut stream.topics);
        let renamed = topics.is_some_and(|topics| topics.rename(topic, name));
        done(renamed, TOPIC_EXISTS)
    }

    fn delete_topic(&mut self, request: &DeleteTopicRequest) -> Outcome {
        let (stream, topic) = self.topic_ids(&request.stream_id, &request.topic_id)?;
        let stream = self.streams.at_mut(stream);
        done(stream.and_then(|stream| stream.topics.remove(topic)).is_some(), TOPIC_NOT_FOUND)
    }

    fn purge_topic(&mut self, request: &PurgeTopicRequest) -> Outcome {
        self.named_topic(&request.stream_id, &request.topic_id)?.purge();
        Ok(result(0))
    }

    fn create_partitions(&mut self, request: &CreatePartitionsRequest, now: u64) -> Outcome {
        let count = request.partitions_count;
        if !(1..=MAX_PARTITIONS).contains(&count) {
            return Err(Refusal::Denied(BAD_PARTITION_COUNT));
        }
        let topic = self.named_topic(&request.stream_id, &request.topic_id)?;
        topic.add_partitions(count, now);
        Ok(result(0))
    }

    fn delete_partitions(&mut self, request: &DeletePartitionsRequest) -> Outcome {
        let topic = self.named_topic(&request.stream_id, &request.topic_id)?;
        let left = topic.width().saturating_sub(request.partitions_count);
        topic.partitions.truncate(left as usize);
        topic.groups.values_mut().for_each(|group| group.generation += 1);
        Ok(result(0))
    }

    fn delete_segments(&mut self, request: &DeleteSegmentsRequest) -> Outcome {
        let topic = self.named_topic(&request.stream_id, &request.topic_id)?;
        let partition = topic.partition_mut(request.partition_id);
        let partition = partition.ok_or(Refusal::Committed(PARTITION_NOT_FOUND))?;
        partition.log.drop_segments(request.segments_count);
        Ok(result(0))
    }

    fn create_group(&mut self, request: CreateConsumerGroupRequest) -> Outcome {
        let topic = self.named_topic(&request.stream_id, &request.topic_id)?;
        let id = topic.groups.insert(request.name.clone(), Group::default());
        let id = id.ok_or(Refusal::Committed(GROUP_EXISTS))?;
        let row = Group::default().row(id, &request.name, topic.width());
        Ok(with_result_section(&row))
    }

    fn delete_group(&mut self, request: &DeleteConsumerGroupRequest) -> Outcome {
        let topic = self.named_topic(&request.stream_id, &request.topic_id)?;
        let id = topic.groups.find(&request.group_id);
        let id = id.ok_or(Refusal::Committed(GROUP_NOT_FOUND))?;
        topic.groups.remove(id);
        let key = ConsumerKey::group(id);
        topic.partitions.iter_mut().for_each(|partition| {
            partition.offsets.remove(&key);
        });
        Ok(result(0))
    }

    fn join_group(&mut self, request: &JoinConsumerGroupRequest, call: &Call) -> Outcome {
        let topic = self.named_topic(&request.stream_id, &request.topic_id)?;
        group_mut(topic, &request.group_id)?.join(call.connection);
        Ok(result(0))
    }

    fn leave_group(&mut self, request: &LeaveConsumerGroupRequest, call: &Call) -> Outcome {
        let topic = self.named_topic(&request.stream_id, &request.topic_id)?;
        done(group_mut(topic, &request.group_id)?.leave(call.connection), 5006)
    }

    /// Tokens need not be secret here; they must only differ.
    fn create_token(&mut self, request: CreatePersonalAccessTokenRequest, now: u64) -> Outcome {
        let CreatePersonalAccessTokenRequest { name, expiry } = request;
        let seed = format!("{} {} {}", name.as_str(), self.commit, now);
        let half = |salt: u64| XxHash3_128::oneshot_with_seed(salt, seed.as_bytes());
        let token = format!("iggy{:032x}{:032x}", half(1), half(2));
        let expires_at = if expiry == u64::MAX { expiry } else { now.saturating_add(expiry) };
        self.tokens
            .insert(name, (token.clone(), expires_at))
            .ok_or(Refusal::Committed(TOKEN_EXISTS))?;
        Ok(with_result_section(&RawPersonalAccessTokenResponse { token: WireName::new(token)? }))
    }

    /// Ends every membership of a connection.
    pub(super) fn leave_all_groups(&mut self, connection: u64) {
        let topics = self.streams.values_mut().flat_map(|stream| stream.topics.values_mut());
        topics.flat_map(|topic| topic.groups.values_mut()).for_each(|group| {
            group.leave(connection);
        });
    }

    fn stream_id(&self, id: &WireIdentifier) -> Result<u32, Refusal> {
        self.streams.find(id).ok_or(Refusal::Committed(STREAM_NOT_FOUND))
    }

    fn topic_ids(
        &self,
        stream: &WireIdentifier,
        topic: &WireIdentifier,
    ) -> Result<(u32, u32), Refusal> {
        self.find_topic(stream, topic).map_err(Refusal::Committed)
    }

    fn named_topic(
        &mut self,
        stream: &WireIdentifier,
        topic: &WireIdentifier,
    ) -> Result<&mut Topic, Refusal> {
        let (stream, topic) = self.topic_ids(stream, topic)?;
        self.topic_mut(stream, topic).ok_or(Refusal::Committed(TOPIC_NOT_FOUND))
    }
}

fn group_mut<'a>(topic: &'a mut Topic, id: &WireIdentifier) -> Result<&'a mut Group, Refusal> {
    let id = topic.groups.find(id).ok_or(Refusal::Committed(GROUP_NOT_FOUND))?;
    topic.groups.at_mut(id).ok_or(Refusal::Committed(GROUP_NOT_FOUND))
}

fn done(ok: bool, otherwise: u32) -> Outcome {
    if ok { Ok(result(0)) } else { Err(Refusal::Committed(otherwise)) }
}
