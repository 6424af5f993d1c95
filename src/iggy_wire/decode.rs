//! Replies as values. What a body holds depends on the request it answers, so decoding starts
//! from [`Expect`], kept by the session for every outstanding request.
//!
//! ```text
//! result section  count:4 | count x { index:4 code:4 }        metadata operations
//! poll            partition:4 | current_offset:8 | count:4 | records
//! route           client:16 session:8 watermark:8 | name:4+n ip:4+n ports:8 role:1 status:1
//! send            count:4 | count x { stream:4 topic:4 partition:4 base_offset:8 }
//! ```

use bytes::Bytes;
use iggy_binary_protocol::responses::messages::PollRoutingResponse;
use iggy_binary_protocol::responses::streams::get_stream::TopicHeader;
use iggy_binary_protocol::responses::streams::{GetStreamsResponse, StreamResponse};
use iggy_binary_protocol::responses::system::describe_options::DescribeOptionsResponse;
use iggy_binary_protocol::responses::system::get_cluster_metadata::{
    ClusterMetadataResponse, ClusterNodeResponse,
};
use iggy_binary_protocol::responses::topics::get_topic::GetTopicResponse;
use iggy_binary_protocol::responses::topics::get_topics::GetTopicsResponse;
use iggy_binary_protocol::responses::users::login_register::LoginRegisterResponse;
use iggy_binary_protocol::{WireDecode, WireError as ProtocolError, WireOptions};

use super::command::{
    Node, OptionInfo, PartitionInfo, Polled, Reply, Request, SendTo, StreamInfo, TopicInfo,
    TopicOption,
};
use super::error::{ServerError, WireError};
use super::frame::{
    OP_CREATE_PARTITIONS, OP_CREATE_STREAM, OP_CREATE_TOPIC, OP_LOGOUT, OP_NON_REPLICATED,
    OP_PARTITIONS_CREATED, OP_SEND, OP_TOPIC_CREATED, ReplyHeader,
};
use super::layout::{Reader, wide};

/// What the reply to a request must look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// An empty body.
    Ping,
    /// Cluster nodes.
    Cluster,
    /// Option catalogue.
    Options,
    /// Stream list.
    Streams,
    /// One stream or nothing.
    Stream,
    /// Topic list.
    Topics,
    /// One topic or nothing.
    Topic,
    /// Result section and the new stream.
    StreamCreated,
    /// Result section and the new topic.
    TopicCreated,
    /// Result section.
    PartitionsCreated,
    /// Batch records.
    Polled,
    /// A node.
    Primary,
    /// Confirmations; of this partition, if the send named one.
    Sent {
        /// Partition the send named.
        partition: Option<u32>,
    },
    /// An empty body.
    LoggedOut,
}

/// What a login reply says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Login {
    /// Goes into every later header.
    pub session: u64,
    /// The server's build, for example `0.9.0`.
    pub server_version: String,
}

impl Expect {
    /// What answers this request.
    pub fn of(request: &Request) -> Expect {
        match request {
            Request::Ping => Expect::Ping,
            Request::ClusterMetadata => Expect::Cluster,
            Request::DescribeTopicOptions => Expect::Options,
            Request::Streams => Expect::Streams,
            Request::Stream { .. } => Expect::Stream,
            Request::Topics { .. } => Expect::Topics,
            Request::Topic { .. } => Expect::Topic,
            Request::CreateStream { .. } => Expect::StreamCreated,
            Request::CreateTopic { .. } => Expect::TopicCreated,
            Request::CreatePartitions { .. } => Expect::PartitionsCreated,
            Request::Poll { .. } => Expect::Polled,
            Request::Primary { .. } => Expect::Primary,
            Request::Send { to: SendTo::Partition(p), .. } => Expect::Sent { partition: Some(*p) },
            Request::Send { to: SendTo::Balanced, .. } => Expect::Sent { partition: None },
            Request::Logout => Expect::LoggedOut,
        }
    }

    /// Whether a reply with this operation byte can be the answer. Some operations come back as
    /// the internal form that was committed, or unchanged when refused before that.
    pub fn answers(self, operation: u8) -> bool {
        match self {
            Expect::StreamCreated => operation == OP_CREATE_STREAM,
            Expect::TopicCreated => matches!(operation, OP_CREATE_TOPIC | OP_TOPIC_CREATED),
            Expect::PartitionsCreated => {
                matches!(operation, OP_CREATE_PARTITIONS | OP_PARTITIONS_CREATED)
            }
            Expect::Sent { .. } => operation == OP_SEND,
            Expect::LoggedOut => operation == OP_LOGOUT,
            Expect::Ping
            | Expect::Cluster
            | Expect::Options
            | Expect::Streams
            | Expect::Stream
            | Expect::Topics
            | Expect::Topic
            | Expect::Polled
            | Expect::Primary => operation == OP_NON_REPLICATED,
        }
    }

    /// The request in words, for errors.
    pub fn name(self) -> &'static str {
        match self {
            Expect::Ping => "ping",
            Expect::Cluster => "cluster metadata",
            Expect::Options => "topic options",
            Expect::Streams => "streams",
            Expect::Stream => "stream",
            Expect::Topics => "topics",
            Expect::Topic => "topic",
            Expect::StreamCreated => "create stream",
            Expect::TopicCreated => "create topic",
            Expect::PartitionsCreated => "create partitions",
            Expect::Polled => "poll",
            Expect::Primary => "partition primary",
            Expect::Sent { .. } => "send",
            Expect::LoggedOut => "logout",
        }
    }
}

/// The reply to a request that expects `expect`: an answer or the server's refusal.
pub fn decode(
    expect: Expect,
    header: &ReplyHeader,
    body: Bytes,
) -> Result<Result<Reply, ServerError>, WireError> {
    let body = match outcome(header, body)? {
        Ok(body) => body,
        Err(refused) => return Ok(Err(refused)),
    };
    Ok(Ok(match expect {
        Expect::Ping | Expect::StreamCreated | Expect::PartitionsCreated | Expect::LoggedOut => {
            Reply::Done
        }
        Expect::Cluster => Reply::Cluster(cluster(&body)?),
        Expect::Options => Reply::Options(options(&body)?),
        Expect::Streams => Reply::Streams(streams(&body)?),
        Expect::Stream if body.is_empty() => Reply::Stream(None),
        Expect::Stream => {
            let (stream, _) = StreamResponse::decode(&body).map_err(cold("stream"))?;
            Reply::Stream(Some(stream_info(stream)))
        }
        Expect::Topics if body.is_empty() => Reply::Topics(Vec::new()),
        Expect::Topics => Reply::Topics(topics(&body)?),
        Expect::Topic if body.is_empty() => Reply::Topic(None),
        Expect::Topic | Expect::TopicCreated => Reply::Topic(Some(topic(&body)?)),
        Expect::Polled => Reply::Polled(polled(body)?),
        Expect::Primary => Reply::Primary(primary(&body)?),
        Expect::Sent { partition } => Reply::Sent { base_offset: sent(&body, partition)? },
    }))
}

/// The reply to a login. `Ok(Err(None))` is the empty body that ends a login for good.
pub fn decode_login(
    header: &ReplyHeader,
    body: Bytes,
) -> Result<Result<Login, Option<ServerError>>, WireError> {
    if header.status == 0 && body.is_empty() {
        return Ok(Err(None));
    }
    let body = match outcome(header, body)? {
        Ok(body) => body,
        Err(refused) => return Ok(Err(Some(refused))),
    };
    let (login, _) = LoginRegisterResponse::decode(&body).map_err(cold("login reply"))?;
    if login.session == 0 {
        let (what, seen) = ("session of a login reply", "0".to_owned());
        return Err(WireError::Invalid { what, seen, expected: "a session id" });
    }
    Ok(Ok(Login { session: login.session, server_version: login.server_version.to_string() }))
}

/// The one place that looks for errors: `status`, then the result section if the operation has
/// one. What is left of the body is the payload.
pub fn outcome(header: &ReplyHeader, body: Bytes) -> Result<Result<Bytes, ServerError>, WireError> {
    if header.status != 0 {
        return Ok(Err(ServerError { code: header.status }));
    }
    if !has_result_section(header.operation) {
        return Ok(Ok(body));
    }
    let mut section = Reader::new(&body);
    let entries = section.u32("result section")?;
    if entries == 0 {
        let payload = body.slice_ref(section.rest());
        return Ok(Ok(payload));
    }
    section.u32("result section entry")?;
    let code = section.u32("result section entry")?;
    if code == 0 {
        return Err(WireError::Invalid {
            what: "result section entry",
            seen: "code 0".to_owned(),
            expected: "an error code",
        });
    }
    Ok(Err(ServerError { code }))
}

/// Login, metadata operations with their internal forms, and consumer offset writes.
fn has_result_section(operation: u8) -> bool {
    matches!(operation, 1 | 64..=68 | 128..=149 | 161 | 162)
}

fn polled(body: Bytes) -> Result<Polled, WireError> {
    let mut head = Reader::new(&body);
    let partition = head.u32("poll reply partition")?;
    let current_offset = head.u64("poll reply current offset")?;
    let count = head.u32("poll reply count")?;
    let records = body.slice_ref(head.rest());
    if (count == 0) != records.is_empty() {
        return Err(WireError::Invalid {
            what: "poll reply",
            seen: format!("{count} messages in {} bytes", records.len()),
            expected: "records exactly when the count is not 0",
        });
    }
    Ok(Polled { partition, current_offset, count, records })
}

fn sent(body: &[u8], partition: Option<u32>) -> Result<Option<u64>, WireError> {
    if body.is_empty() {
        return Ok(None);
    }
    let mut rest = Reader::new(body);
    let count = rest.u32("confirmation count")?;
    let need = wide(count).saturating_mul(20);
    if rest.rest().len() != need {
        let have = rest.rest().len();
        return Err(WireError::Truncated { what: "send confirmations", need, have });
    }
    let mut seen = None;
    for _ in 0..count {
        rest.array::<8>("confirmed stream and topic")?;
        let confirmed = rest.u32("confirmed partition")?;
        let base_offset = rest.u64("confirmed offset")?;
        if partition.is_none_or(|asked| asked == confirmed) {
            return Ok(Some(base_offset));
        }
        seen = Some(confirmed);
    }
    match seen {
        None => Ok(None),
        Some(confirmed) => Err(WireError::Invalid {
            what: "send confirmation",
            seen: format!("partition {confirmed}"),
            expected: "the partition the send named",
        }),
    }
}

/// Most nodes of a cluster: connections are opened to them. No limit of the server's is known; its
/// clusters have a handful.
pub const MOST_NODES: usize = 64;

fn cluster(body: &[u8]) -> Result<Vec<Node>, WireError> {
    let (cluster, _) = ClusterMetadataResponse::decode(body).map_err(cold("cluster metadata"))?;
    if cluster.nodes.len() > MOST_NODES {
        return Err(WireError::Invalid {
            what: "cluster metadata",
            seen: format!("{} nodes", cluster.nodes.len()),
            expected: "at most 64 nodes",
        });
    }
    Ok(cluster.nodes.into_iter().map(node).collect())
}

fn primary(body: &[u8]) -> Result<Node, WireError> {
    let (route, _) = PollRoutingResponse::decode(body).map_err(cold("partition primary"))?;
    Ok(node(route.primary))
}

fn node(node: ClusterNodeResponse) -> Node {
    Node {
        name: node.name,
        ip: node.ip,
        tcp_port: node.tcp_port,
        leader: node.role == 0,
        healthy: node.status == 0,
    }
}

fn options(body: &[u8]) -> Result<Vec<OptionInfo>, WireError> {
    let (options, _) = DescribeOptionsResponse::decode(body).map_err(cold("topic options"))?;
    Ok(options.entries.into_iter().map(|o| OptionInfo { key: o.key.to_string() }).collect())
}

fn streams(body: &[u8]) -> Result<Vec<StreamInfo>, WireError> {
    let (list, _) = GetStreamsResponse::decode(body).map_err(cold("stream list"))?;
    Ok(list.streams.into_iter().map(stream_info).collect())
}

fn topics(body: &[u8]) -> Result<Vec<TopicInfo>, WireError> {
    let (list, _) = GetTopicsResponse::decode(body).map_err(cold("topic list"))?;
    Ok(list.topics.into_iter().map(topic_info).collect())
}

fn topic(body: &[u8]) -> Result<TopicInfo, WireError> {
    let (reply, _) = GetTopicResponse::decode(body).map_err(cold("topic"))?;
    let mut info = topic_info(reply.topic);
    info.partitions = reply
        .partitions
        .into_iter()
        .map(|p| PartitionInfo {
            id: p.id,
            created_at: p.created_at,
            current_offset: p.current_offset,
            messages_count: p.messages_count,
        })
        .collect();
    Ok(info)
}

fn stream_info(stream: StreamResponse) -> StreamInfo {
    StreamInfo {
        name: stream.name.to_string(),
        created_at: stream.created_at,
        topics: stream.topics_count,
    }
}

fn topic_info(topic: TopicHeader) -> TopicInfo {
    TopicInfo {
        name: topic.name.to_string(),
        created_at: topic.created_at,
        partitions_count: topic.partitions_count,
        message_expiry: topic.message_expiry,
        compression: topic.compression_algorithm,
        max_size: topic.max_topic_size,
        size: topic.size_bytes,
        messages_count: topic.messages_count,
        options: option_texts(&topic.options).chain(option_texts(&topic.derived_options)).collect(),
        partitions: Vec::new(),
    }
}

fn option_texts(options: &WireOptions) -> impl Iterator<Item = TopicOption> {
    options.iter().map(|entry| TopicOption {
        key: String::from_utf8_lossy(entry.key).into_owned(),
        value: value_text(entry.value_kind.0, entry.value),
    })
}

/// A typed option value in the text form that creating a topic takes; bytes of a kind or length
/// this program does not know are shown as hex.
fn value_text(kind: u8, value: &[u8]) -> String {
    let text = match kind {
        2 => std::str::from_utf8(value).ok().map(str::to_owned),
        3 => number(value, u8::from_le_bytes).map(|b| (b != 0).to_string()),
        4 => number(value, i8::from_le_bytes).map(|n| n.to_string()),
        5 => number(value, i16::from_le_bytes).map(|n| n.to_string()),
        6 => number(value, i32::from_le_bytes).map(|n| n.to_string()),
        7 => number(value, i64::from_le_bytes).map(|n| n.to_string()),
        8 => number(value, i128::from_le_bytes).map(|n| n.to_string()),
        9 => number(value, u8::from_le_bytes).map(|n| n.to_string()),
        10 => number(value, u16::from_le_bytes).map(|n| n.to_string()),
        11 => number(value, u32::from_le_bytes).map(|n| n.to_string()),
        12 => number(value, u64::from_le_bytes).map(|n| n.to_string()),
        13 => number(value, u128::from_le_bytes).map(|n| n.to_string()),
        14 => number(value, f32::from_le_bytes).map(|n| n.to_string()),
        15 => number(value, f64::from_le_bytes).map(|n| n.to_string()),
        _ => None,
    };
    text.unwrap_or_else(|| value.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn number<const N: usize, T>(value: &[u8], read: fn([u8; N]) -> T) -> Option<T> {
    value.try_into().ok().map(read)
}

/// An error of the protocol crate in our words.
fn cold(what: &'static str) -> impl Fn(ProtocolError) -> WireError {
    move |error| match error {
        ProtocolError::UnexpectedEof { need, have, .. } => {
            WireError::Truncated { what, need, have }
        }
        other => WireError::Invalid { what, seen: other.to_string(), expected: "its layout" },
    }
}

#[cfg(test)]
mod tests {
    use iggy_binary_protocol::requests::system::AttachConsumerSessionRequest;
    use iggy_binary_protocol::{WireEncode, WireName, encode_user_headers};

    use super::*;

    fn header(operation: u8) -> ReplyHeader {
        ReplyHeader { operation, ..ReplyHeader::default() }
    }

    fn block(entries: &[(u8, &[u8], u8, &[u8])]) -> WireOptions {
        let mut buf = bytes::BytesMut::new();
        encode_user_headers(entries, &mut buf);
        WireOptions::from_bytes(buf.freeze()).unwrap()
    }

    fn topic_row(name: &str) -> TopicHeader {
        TopicHeader {
            id: 4,
            created_at: 1_700_000_000_000_000,
            partitions_count: 3,
            message_expiry: u64::MAX,
            compression_algorithm: 2,
            max_topic_size: 5,
            size_bytes: 6,
            messages_count: 7,
            name: WireName::new(name).unwrap(),
            options: block(&[(2, b"durability", 2, b"persisted")]),
            derived_options: block(&[(2, b"segment_size", 12, &1_048_576u64.to_le_bytes())]),
        }
    }

    #[test]
    fn a_topic_list_keeps_what_identifies_each_topic() {
        let rows = vec![topic_row("one"), topic_row("two")];
        let body = GetTopicsResponse { topics: rows }.to_bytes();
        let reply = decode(Expect::Topics, &header(OP_NON_REPLICATED), body).unwrap().unwrap();
        let Reply::Topics(topics) = reply else { panic!("{reply:?}") };
        let names: Vec<_> = topics.iter().map(|t| t.name.as_str()).collect();
        assert_eq!(names, ["one", "two"]);
        let option = |key: &str, value: &str| TopicOption { key: key.into(), value: value.into() };
        assert_eq!(
            topics[1],
            TopicInfo {
                name: "two".into(),
                created_at: 1_700_000_000_000_000,
                partitions_count: 3,
                message_expiry: u64::MAX,
                compression: 2,
                max_size: 5,
                size: 6,
                messages_count: 7,
                options: vec![option("durability", "persisted"), option("segment_size", "1048576")],
                partitions: Vec::new(),
            }
        );
        for empty in [Bytes::new(), Bytes::from_static(&[0; 4])] {
            let reply = decode(Expect::Topics, &header(OP_NON_REPLICATED), empty).unwrap().unwrap();
            assert!(matches!(reply, Reply::Topics(topics) if topics.is_empty()));
        }
    }

    #[test]
    fn option_values_of_every_kind_have_a_text() {
        for (kind, value, text) in [
            (2u8, &b"none"[..], "none"),
            (3, &[1], "true"),
            (3, &[0], "false"),
            (4, &[0xff], "-1"),
            (5, &[0xfe, 0xff], "-2"),
            (6, &(-3i32).to_le_bytes(), "-3"),
            (7, &i64::MIN.to_le_bytes(), "-9223372036854775808"),
            (8, &(-5i128).to_le_bytes(), "-5"),
            (9, &[200], "200"),
            (10, &[0, 1], "256"),
            (11, &7u32.to_le_bytes(), "7"),
            (12, &u64::MAX.to_le_bytes(), "18446744073709551615"),
            (13, &9u128.to_le_bytes(), "9"),
            (14, &1.5f32.to_le_bytes(), "1.5"),
            (15, &(-0.25f64).to_le_bytes(), "-0.25"),
            (1, &[0xab, 0x0c], "ab0c"),
            (2, &[0xff], "ff"),
            (12, &[1, 2], "0102"),
            (99, &[7], "07"),
        ] {
            assert_eq!(value_text(kind, value), text, "kind {kind}");
        }
    }

    #[test]
    fn the_confirmation_of_the_named_partition_counts() {
        let row = |partition: u32, offset: u64| {
            [&[0; 8][..], &partition.to_le_bytes(), &offset.to_le_bytes()].concat()
        };
        let body = [&2u32.to_le_bytes()[..], &row(1, 10), &row(2, 20)].concat();
        assert_eq!(sent(&body, Some(2)), Ok(Some(20)));
        assert_eq!(sent(&body, None), Ok(Some(10)));
        assert!(sent(&body, Some(3)).unwrap_err().to_string().contains("partition"));
    }

    #[test]
    fn an_error_is_found_by_status_first_and_then_in_the_section() {
        let rejected = Bytes::from([&[1, 0, 0, 0, 0, 0, 0, 0][..], &58u32.to_le_bytes()].concat());
        let both = ReplyHeader { status: 5, ..header(OP_CREATE_STREAM) };
        let code = |outcome: Result<Result<Bytes, ServerError>, WireError>| {
            outcome.unwrap().unwrap_err().code
        };
        assert_eq!(code(outcome(&both, rejected.clone())), 5);
        for operation in [1, 64, 65, 68, 128, 138, 149, 161, 162] {
            assert_eq!(code(outcome(&header(operation), rejected.clone())), 58);
        }
        for operation in [2, 3, 160] {
            assert_eq!(outcome(&header(operation), rejected.clone()), Ok(Ok(rejected.clone())));
        }
        let zero = Bytes::from_static(&[1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert!(outcome(&header(OP_CREATE_STREAM), zero).is_err(), "a rejection without a code");
    }

    #[test]
    fn a_route_names_the_primary_and_a_cut_one_is_refused() {
        let primary = ClusterNodeResponse {
            name: "node-2".to_owned(),
            ip: "10.0.0.3".to_owned(),
            tcp_port: 8090,
            quic_port: 1,
            http_port: 2,
            websocket_port: 3,
            role: 1,
            status: 0,
        };
        let consumer_session =
            AttachConsumerSessionRequest { client_id: 9, session: 7, metadata_watermark: 5 };
        let body = PollRoutingResponse { consumer_session, primary }.to_bytes();
        let reply = decode(Expect::Primary, &header(OP_NON_REPLICATED), body.clone());
        let Reply::Primary(node) = reply.unwrap().unwrap() else { panic!("another reply") };
        let named = (node.name.as_str(), node.ip.as_str(), node.tcp_port, node.leader);
        assert_eq!(named, ("node-2", "10.0.0.3", 8090, false));
        for end in 0..body.len() {
            let cut = decode(Expect::Primary, &header(OP_NON_REPLICATED), body.slice(..end));
            assert!(cut.is_err(), "cut at {end}");
        }
    }

    #[test]
    fn a_cluster_of_more_nodes_than_any_has_is_refused() {
        let node = |n: usize| ClusterNodeResponse {
            name: format!("node-{n}"),
            ip: "10.0.0.3".to_owned(),
            tcp_port: 8090,
            quic_port: 1,
            http_port: 2,
            websocket_port: 3,
            role: 1,
            status: 0,
        };
        let roster = |count: usize| {
            let nodes = (0..count).map(node).collect();
            let body = ClusterMetadataResponse { name: "c".to_owned(), nodes }.to_bytes();
            decode(Expect::Cluster, &header(OP_NON_REPLICATED), body)
        };
        let Reply::Cluster(most) = roster(MOST_NODES).unwrap().unwrap() else { panic!("another") };
        assert_eq!(most.len(), MOST_NODES);
        let refused = roster(MOST_NODES + 1).unwrap_err();
        assert!(refused.to_string().contains("saw 65 nodes, expected at most 64"), "{refused}");
    }

    #[test]
    fn a_server_without_routes_is_told_apart_from_one_that_refuses() {
        let unknown = ReplyHeader { status: 3, ..header(OP_NON_REPLICATED) };
        let refused = decode(Expect::Primary, &unknown, Bytes::new()).unwrap().unwrap_err();
        assert!(refused.is_unsupported());
        let busy = ReplyHeader { status: 58, ..header(OP_NON_REPLICATED) };
        let refused = decode(Expect::Primary, &busy, Bytes::new()).unwrap().unwrap_err();
        assert!(!refused.is_unsupported() && refused.is_not_accepted());
    }

    #[test]
    fn a_poll_reply_with_a_count_and_no_records_is_refused() {
        let body = |count: u32, records: &[u8]| {
            Bytes::from([&[0; 12][..], &count.to_le_bytes(), records].concat())
        };
        assert!(polled(body(1, b"")).is_err());
        assert!(polled(body(0, b"x")).is_err());
        assert_eq!(polled(body(0, b"")).unwrap().records, Bytes::new());
        assert_eq!(polled(body(1, b"x")).unwrap().count, 1);
    }
}
