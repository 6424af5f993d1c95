//! Streams, topics, partitions, groups, tokens and the questions about them.

use bytes::Bytes;
use iggy_binary_protocol::codes;
use iggy_binary_protocol::requests::consumer_groups::{
    CreateConsumerGroupRequest, DeleteConsumerGroupRequest, GetConsumerGroupRequest,
    GetConsumerGroupsRequest, JoinConsumerGroupRequest, LeaveConsumerGroupRequest,
    SyncConsumerGroupRequest,
};
use iggy_binary_protocol::requests::partitions::{
    CreatePartitionsRequest, DeletePartitionsRequest,
};
use iggy_binary_protocol::requests::personal_access_tokens::{
    CreatePersonalAccessTokenRequest, DeletePersonalAccessTokenRequest,
};
use iggy_binary_protocol::requests::segments::DeleteSegmentsRequest;
use iggy_binary_protocol::requests::streams::{
    CreateStreamRequest, DeleteStreamRequest, GetStreamRequest, PurgeStreamRequest,
    UpdateStreamRequest,
};
use iggy_binary_protocol::requests::system::{
    AttachConsumerSessionRequest, DescribeOptionsRequest, GetClientRequest,
};
use iggy_binary_protocol::requests::topics::{
    CreateTopicRequest, DeleteTopicRequest, GetTopicRequest, GetTopicsRequest, PurgeTopicRequest,
    UpdateTopicRequest,
};
use iggy_binary_protocol::responses::clients::{
    ClientDetailsResponse, ClientResponse, ConsumerGroupInfoResponse, GetClientsResponse,
};
use iggy_binary_protocol::responses::consumer_groups::{
    ConsumerGroupDetailsResponse, ConsumerGroupMemberResponse, GetConsumerGroupsResponse,
    SyncConsumerGroupResponse,
};
use iggy_binary_protocol::responses::messages::PollRoutingResponse;
use iggy_binary_protocol::responses::personal_access_tokens::{
    GetPersonalAccessTokensResponse, PersonalAccessTokenResponse, RawPersonalAccessTokenResponse,
};
use iggy_binary_protocol::responses::streams::{GetStreamResponse, GetStreamsResponse};
use iggy_binary_protocol::responses::system::{
    ClusterMetadataResponse, ClusterNodeResponse, DescribeOptionsResponse, StatsResponse,
};
use iggy_binary_protocol::responses::topics::{GetTopicResponse, GetTopicsResponse};
use iggy_binary_protocol::{
    EvictionReason, Operation, WireDecode, WireEncode, WireIdentifier, WireName, lookup_command,
};
use twox_hash::XxHash3_128;

use super::catalog::{ConsumerKey, Group, Slots, Stream, Topic};
use super::core::{
    Answer, Call, Core, FEATURE_UNAVAILABLE, Flavour, INVALID_COMMAND, reply_operation, result,
    with_result_section,
};
use super::messages::{PARTITION_NOT_FOUND, STREAM_NOT_FOUND, TOPIC_NOT_FOUND, local_status};
use super::options::{TopicOptions, describe};

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
        if let Some(stream) = self.streams.get_mut(id) {
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
        let stream = self.streams.get_mut(stream).ok_or(Refusal::Committed(STREAM_NOT_FOUND))?;
        let topic = Topic::new(now, partitions_count, options);
        let id = stream.topics.insert(name.clone(), topic);
        let id = id.ok_or(Refusal::Committed(TOPIC_EXISTS))?;
        let topic = stream.topics.get(id).ok_or(Refusal::Committed(TOPIC_NOT_FOUND))?;
        let head = topic.head(id, &name, flavour, segment);
        let mut response = GetTopicResponse { topic: head, partitions: topic.rows() };
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
        let topics = self.streams.get_mut(stream).map(|stream| &mut stream.topics);
        let renamed = topics.is_some_and(|topics| topics.rename(topic, name));
        done(renamed, TOPIC_EXISTS)
    }

    fn delete_topic(&mut self, request: &DeleteTopicRequest) -> Outcome {
        let (stream, topic) = self.topic_ids(&request.stream_id, &request.topic_id)?;
        let stream = self.streams.get_mut(stream);
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

    /// A read: operation 2.
    pub(super) fn query(&mut self, call: &Call, body: &[u8]) -> Answer {
        match call.head.code {
            codes::LOGIN_USER_CODE | codes::LOGIN_WITH_PERSONAL_ACCESS_TOKEN_CODE => {
                return Answer::Evict(EvictionReason::MalformedLogin);
            }
            codes::GET_CONSUMER_OFFSET_CODE => return self.stored_offset(body),
            _ => {}
        }
        match self.ask(call, body) {
            Ok(body) => Answer::Local { status: 0, body: body.into_iter().collect() },
            Err(status) => local_status(status),
        }
    }

    /// `Ok(None)` is an empty body: done, or nothing there.
    fn ask(&self, call: &Call, body: &[u8]) -> Result<Option<Bytes>, u32> {
        let bad = |_| INVALID_COMMAND;
        let release = self.settings.flavour == Flavour::Release;
        let answer = match call.head.code {
            codes::PING_CODE => None,
            codes::GET_STATS_CODE => Some(self.stats().to_bytes()),
            codes::GET_CLUSTER_METADATA_CODE => Some(self.cluster().to_bytes()),
            codes::DESCRIBE_OPTIONS_CODE => {
                Some(self.describe(&DescribeOptionsRequest::decode_from(body).map_err(bad)?))
            }
            codes::GET_ME_CODE => self.client(call.connection),
            codes::GET_CLIENT_CODE => {
                let id = GetClientRequest::decode_from(body).map_err(bad)?.client_id;
                self.client(u64::from(id))
            }
            codes::GET_CLIENTS_CODE => Some(self.clients().to_bytes()),
            codes::GET_PERSONAL_ACCESS_TOKENS_CODE => Some(self.token_rows().to_bytes()),
            codes::GET_STREAM_CODE => {
                self.stream_row(&GetStreamRequest::decode_from(body).map_err(bad)?.stream_id)
            }
            codes::GET_STREAMS_CODE => Some(self.stream_rows().to_bytes()),
            codes::GET_TOPIC_CODE => {
                self.topic_row(&GetTopicRequest::decode_from(body).map_err(bad)?)
            }
            codes::GET_TOPICS_CODE => {
                let stream = GetTopicsRequest::decode_from(body).map_err(bad)?.stream_id;
                Some(self.topic_rows(&stream).to_bytes())
            }
            codes::GET_CONSUMER_GROUP_CODE => {
                self.group_row(&GetConsumerGroupRequest::decode_from(body).map_err(bad)?)
            }
            codes::GET_CONSUMER_GROUPS_CODE => {
                let request = GetConsumerGroupsRequest::decode_from(body).map_err(bad)?;
                Some(self.group_rows(&request).to_bytes())
            }
            codes::SYNC_CONSUMER_GROUP_CODE => {
                self.assignment(&SyncConsumerGroupRequest::decode_from(body).map_err(bad)?, call)
            }
            codes::ATTACH_CONSUMER_SESSION_CODE if release => None,
            codes::GET_POLL_ROUTING_CODE | codes::GET_CONSUMER_OFFSET_ROUTING_CODE if release => {
                Some(self.routing(call).to_bytes())
            }
            code => return Err(unknown_code(code, release)),
        };
        Ok(answer)
    }

    fn stream_row(&self, id: &WireIdentifier) -> Option<Bytes> {
        let id = self.streams.find(id)?;
        let (stream, name) = (self.streams.get(id)?, self.streams.name(id)?);
        let topics = self.heads(stream);
        Some(GetStreamResponse { stream: stream.row(id, name), topics }.to_bytes())
    }

    fn stream_rows(&self) -> GetStreamsResponse {
        let rows = self.streams.iter().map(|(id, name, stream)| stream.row(id, name));
        GetStreamsResponse { streams: rows.collect() }
    }

    fn topic_row(&self, request: &GetTopicRequest) -> Option<Bytes> {
        let (stream, id) = self.find_topic(&request.stream_id, &request.topic_id).ok()?;
        let topics = &self.streams.get(stream)?.topics;
        let (topic, name) = (topics.get(id)?, topics.name(id)?);
        let head = topic.head(id, name, self.settings.flavour, self.settings.segment_bytes);
        Some(GetTopicResponse { topic: head, partitions: topic.rows() }.to_bytes())
    }

    fn topic_rows(&self, stream: &WireIdentifier) -> GetTopicsResponse {
        let stream = self.streams.find(stream).and_then(|id| self.streams.get(id));
        GetTopicsResponse { topics: stream.map(|stream| self.heads(stream)).unwrap_or_default() }
    }

    fn heads(&self, stream: &Stream) -> Vec<iggy_binary_protocol::responses::streams::TopicHeader> {
        let (flavour, segment) = (self.settings.flavour, self.settings.segment_bytes);
        let head =
            |(id, name, topic): (u32, &WireName, &Topic)| topic.head(id, name, flavour, segment);
        stream.topics.iter().map(head).collect()
    }

    fn group_row(&self, request: &GetConsumerGroupRequest) -> Option<Bytes> {
        let (stream, topic) = self.find_topic(&request.stream_id, &request.topic_id).ok()?;
        let topic = self.topic(stream, topic)?;
        let id = topic.groups.find(&request.group_id)?;
        let (group, name) = (topic.groups.get(id)?, topic.groups.name(id)?);
        let member = |&connection: &u64| {
            let partitions = group.assigned(connection, topic.width()).unwrap_or_default();
            ConsumerGroupMemberResponse {
                id: low(connection),
                partitions_count: u32::try_from(partitions.len()).unwrap_or(u32::MAX),
                partitions,
            }
        };
        let response = ConsumerGroupDetailsResponse {
            group: group.row(id, name, topic.width()),
            members: group.members.iter().map(member).collect(),
        };
        Some(response.to_bytes())
    }

    fn group_rows(&self, request: &GetConsumerGroupsRequest) -> GetConsumerGroupsResponse {
        let found = self.find_topic(&request.stream_id, &request.topic_id).ok();
        let topic = found.and_then(|(stream, topic)| self.topic(stream, topic));
        let rows = topic.map(|topic| {
            topic.groups.iter().map(|(id, name, group)| group.row(id, name, topic.width()))
        });
        GetConsumerGroupsResponse { groups: rows.into_iter().flatten().collect() }
    }

    fn assignment(&self, request: &SyncConsumerGroupRequest, call: &Call) -> Option<Bytes> {
        let (stream, topic) = self.find_topic(&request.stream_id, &request.topic_id).ok()?;
        let topic = self.topic(stream, topic)?;
        let group = topic.groups.get(topic.groups.find(&request.group_id)?)?;
        let partitions = group.assigned(call.connection, topic.width())?;
        let response = SyncConsumerGroupResponse { generation: group.generation, partitions };
        Some(response.to_bytes())
    }

    fn client(&self, connection: u64) -> Option<Bytes> {
        let client = self.client_rows().into_iter().find(|row| row.client_id == low(connection))?;
        let groups = self.streams.iter().flat_map(|(stream, _, s)| {
            s.topics.iter().flat_map(move |(topic, _, t)| {
                t.groups.iter().filter_map(move |(group, _, g)| {
                    let info = ConsumerGroupInfoResponse {
                        stream_id: stream,
                        topic_id: topic,
                        group_id: group,
                    };
                    g.members.contains(&connection).then_some(info)
                })
            })
        });
        Some(ClientDetailsResponse { client, consumer_groups: groups.collect() }.to_bytes())
    }

    fn clients(&self) -> GetClientsResponse {
        GetClientsResponse { clients: self.client_rows() }
    }

    fn client_rows(&self) -> Vec<ClientResponse> {
        let memberships = |connection: u64| {
            let topics = self.streams.iter().flat_map(|(_, _, stream)| stream.topics.iter());
            let groups = topics.flat_map(|(_, _, topic)| topic.groups.iter());
            groups.filter(|(_, _, group)| group.members.contains(&connection)).count()
        };
        let row = |(id, peer, bound): (u64, &str, Option<super::core::Bound>)| ClientResponse {
            client_id: low(id),
            user_id: bound.map_or(u32::MAX, |bound| bound.user),
            transport: 1,
            address: peer.to_owned(),
            consumer_groups_count: u32::try_from(memberships(id)).unwrap_or(u32::MAX),
        };
        let mut rows: Vec<_> = self.peers().map(row).collect();
        rows.sort_by_key(|row| row.client_id);
        rows
    }

    fn token_rows(&self) -> GetPersonalAccessTokensResponse {
        let row = |(_, name, (_, expiry)): (u32, &WireName, &(String, u64))| {
            PersonalAccessTokenResponse {
                name: name.clone(),
                expiry_at: if *expiry == u64::MAX { 0 } else { *expiry },
            }
        };
        GetPersonalAccessTokensResponse { tokens: self.tokens.iter().map(row).collect() }
    }

    fn describe(&self, request: &DescribeOptionsRequest) -> Bytes {
        let topic = iggy_binary_protocol::requests::system::OPTIONS_SCOPE_TOPIC;
        if request.scope == topic {
            describe(self.settings.flavour, self.settings.segment_bytes).to_bytes()
        } else {
            DescribeOptionsResponse { entries: Vec::new() }.to_bytes()
        }
    }

    fn cluster(&self) -> ClusterMetadataResponse {
        ClusterMetadataResponse { name: "single-node".to_owned(), nodes: vec![self.node()] }
    }

    fn node(&self) -> ClusterNodeResponse {
        ClusterNodeResponse {
            name: "iggy-node".to_owned(),
            ip: self.settings.ip.clone(),
            tcp_port: self.settings.port,
            quic_port: 0,
            http_port: 0,
            websocket_port: 0,
            role: 0,
            status: 0,
        }
    }

    fn routing(&self, call: &Call) -> PollRoutingResponse {
        let bound = self.bound(call.connection);
        let consumer_session = AttachConsumerSessionRequest {
            client_id: bound.map_or(call.head.client, |bound| bound.client),
            session: bound.map_or(0, |bound| bound.session),
            metadata_watermark: self.commit,
        };
        PollRoutingResponse { consumer_session, primary: self.node() }
    }

    fn stats(&self) -> StatsResponse {
        let topics = || self.streams.iter().flat_map(|(_, _, stream)| stream.topics.iter());
        let logs = || topics().flat_map(|(_, _, topic)| &topic.partitions).map(|p| &p.log);
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        StatsResponse {
            process_id: 0,
            cpu_usage: 0.0,
            total_cpu_usage: 0.0,
            memory_usage: logs().map(|log| log.bytes()).sum(),
            total_memory: 0,
            available_memory: 0,
            run_time: 0,
            start_time: 0,
            read_bytes: 0,
            written_bytes: 0,
            messages_size_bytes: logs().map(|log| log.bytes()).sum(),
            streams_count: self.streams.count(),
            topics_count: count(topics().count()),
            partitions_count: count(logs().count()),
            segments_count: logs().map(|log| log.segments()).sum(),
            messages_count: logs().map(|log| log.messages()).sum(),
            clients_count: count(self.peers().count()),
            consumer_groups_count: topics().map(|(_, _, topic)| topic.groups.count()).sum(),
            hostname: "loopback".to_owned(),
            os_name: "none".to_owned(),
            os_version: "none".to_owned(),
            kernel_version: "none".to_owned(),
            iggy_server_version: self.settings.version.clone(),
            iggy_server_semver: None,
            cache_metrics: Vec::new(),
            threads_count: 1,
            free_disk_space: 0,
            total_disk_space: 0,
        }
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
    topic.groups.get_mut(id).ok_or(Refusal::Committed(GROUP_NOT_FOUND))
}

fn done(ok: bool, otherwise: u32) -> Outcome {
    if ok { Ok(result(0)) } else { Err(Refusal::Committed(otherwise)) }
}

/// Codes of replicated commands, and reads the broker does not have, are unavailable; anything
/// the server line does not know is an invalid command.
fn unknown_code(code: u32, release: bool) -> u32 {
    let routing = matches!(
        code,
        codes::ATTACH_CONSUMER_SESSION_CODE
            | codes::GET_POLL_ROUTING_CODE
            | codes::GET_CONSUMER_OFFSET_ROUTING_CODE
    );
    match lookup_command(code) {
        Some(_) if release || !routing => FEATURE_UNAVAILABLE,
        _ => INVALID_COMMAND,
    }
}

fn low(connection: u64) -> u32 {
    u32::try_from(connection).unwrap_or(u32::MAX)
}
