//! Questions about streams, topics, groups, clients, tokens and the broker itself.

use bytes::Bytes;
use iggy_binary_protocol::codes;
use iggy_binary_protocol::requests::consumer_groups::{
    GetConsumerGroupRequest, GetConsumerGroupsRequest, SyncConsumerGroupRequest,
};
use iggy_binary_protocol::requests::streams::GetStreamRequest;
use iggy_binary_protocol::requests::system::{
    AttachConsumerSessionRequest, DescribeOptionsRequest, GetClientRequest, OPTIONS_SCOPE_TOPIC,
};
use iggy_binary_protocol::requests::topics::{GetTopicRequest, GetTopicsRequest};
use iggy_binary_protocol::responses::clients::{
    ClientDetailsResponse, ClientResponse, ConsumerGroupInfoResponse, GetClientsResponse,
};
use iggy_binary_protocol::responses::consumer_groups::{
    ConsumerGroupDetailsResponse, ConsumerGroupMemberResponse, GetConsumerGroupsResponse,
    SyncConsumerGroupResponse,
};
use iggy_binary_protocol::responses::messages::PollRoutingResponse;
use iggy_binary_protocol::responses::personal_access_tokens::{
    GetPersonalAccessTokensResponse, PersonalAccessTokenResponse,
};
use iggy_binary_protocol::responses::streams::{
    GetStreamResponse, GetStreamsResponse, TopicHeader,
};
use iggy_binary_protocol::responses::system::{DescribeOptionsResponse, StatsResponse};
use iggy_binary_protocol::responses::topics::{GetTopicResponse, GetTopicsResponse};
use iggy_binary_protocol::{
    EvictionReason, WireDecode, WireEncode, WireIdentifier, WireName, lookup_command,
};

use super::answer::{Answer, Call, FEATURE_UNAVAILABLE, INVALID_COMMAND, local_status};
use super::catalog::{Stream, Topic};
use super::core::{Core, Flavour};
use super::options::describe;
use super::session::Bound;

impl Core {
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
        let release = self.settings.flavour == Flavour::Release && self.nodes.knows_routes();
        let answer = match call.head.code {
            codes::PING_CODE => None,
            codes::GET_STATS_CODE => Some(self.stats().to_bytes()),
            codes::GET_CLUSTER_METADATA_CODE => Some(self.nodes.roster().to_bytes()),
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
                self.topic_row(&GetTopicRequest::decode_from(body).map_err(bad)?, call)
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
                Some(self.routing(call)?.to_bytes())
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

    fn topic_row(&self, request: &GetTopicRequest, call: &Call) -> Option<Bytes> {
        if self.nodes.is_unaware(self.node_of(call.connection)) {
            return None;
        }
        let (stream, id) = self.find_topic(&request.stream_id, &request.topic_id).ok()?;
        let topics = &self.streams.get(stream)?.topics;
        let (topic, name) = (topics.get(id)?, topics.name(id)?);
        let head = topic.head(id, name, self.settings.flavour, self.settings.segment_bytes);
        let lag = self.nodes.lag(self.node_of(call.connection));
        Some(GetTopicResponse { topic: head, partitions: topic.rows(lag) }.to_bytes())
    }

    fn topic_rows(&self, stream: &WireIdentifier) -> GetTopicsResponse {
        let stream = self.streams.find(stream).and_then(|id| self.streams.get(id));
        GetTopicsResponse { topics: stream.map(|stream| self.heads(stream)).unwrap_or_default() }
    }

    fn heads(&self, stream: &Stream) -> Vec<TopicHeader> {
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
        let row = |(id, peer, bound): (u64, &str, Option<Bound>)| ClientResponse {
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
        if request.scope == OPTIONS_SCOPE_TOPIC {
            describe(self.settings.flavour, self.settings.segment_bytes).to_bytes()
        } else {
            DescribeOptionsResponse { entries: Vec::new() }.to_bytes()
        }
    }

    fn routing(&self, call: &Call) -> Result<PollRoutingResponse, u32> {
        let bound = self.bound(call.connection);
        let consumer_session = AttachConsumerSessionRequest {
            client_id: bound.map_or(call.head.client, |bound| bound.client),
            session: bound.map_or(0, |bound| bound.session),
            metadata_watermark: self.commit,
        };
        let primary = self.nodes.route(self.node_of(call.connection))?;
        Ok(PollRoutingResponse { consumer_session, primary })
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
