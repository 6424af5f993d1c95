//! The wire codecs against frames recorded from real sessions of an Iggy server.
//!
//! `raw_*` was made by hand (numeric ids, consumer 7, no request checksums), `sdk_*` by the
//! official SDK. Every file decodes. Every request of a kind Tidegate sends is also made again
//! by Tidegate and must come out byte for byte, except for the differences named in
//! [`DIFFERENT`]; for those the rest is compared with what the protocol crate encodes.

// Reads the recorded frames from files.
#![allow(clippy::disallowed_methods)]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use bytes::Bytes;
use iggy_binary_protocol::batch::decode_batch_slice;
use iggy_binary_protocol::codes;
use iggy_binary_protocol::requests::messages::{PollMessagesRequest, SendMessagesHeader};
use iggy_binary_protocol::requests::partitions::CreatePartitionsRequest;
use iggy_binary_protocol::requests::streams::{CreateStreamRequest, GetStreamRequest};
use iggy_binary_protocol::requests::topics::{CreateTopicRequest, GetTopicRequest};
use iggy_binary_protocol::requests::users::LoginRegisterRequest;
use iggy_binary_protocol::{
    WireDecode, WireEncode, WireIdentifier, WireName, WireOptions, WirePartitioning,
};
use tidegate::iggy_wire::decode::{Expect, decode, decode_login, outcome};
use tidegate::iggy_wire::encode::{
    Credentials, Envelope, Outgoing, POLL_CONSUMER_ID, SDK_NAME, encode, encode_login,
};
use tidegate::iggy_wire::frame::{HEADER_LEN, ReplyHeader, RequestHeader, ServerHeader};
use tidegate::iggy_wire::session::{Delivery, Session};
use tidegate::iggy_wire::{PollFrom, Polled, Reply, Request, SendTo, TopicOption, Verify, record};
use twox_hash::XxHash3_64;

const IDS: &str = "numeric ids, Tidegate addresses by name";
const STAMP: &str = "no request checksum, Tidegate stamps metadata operations";
const NAME: &str = "another client's name and version";

/// Requests Tidegate also makes, but not with these bytes.
const DIFFERENT: &[(&str, &[&str])] = &[
    ("raw_005_c1_req_op1", &[NAME, STAMP]),
    ("raw_009_c1_req_op1", &[NAME, STAMP]),
    ("raw_013_c1_req_op128", &[STAMP]),
    ("raw_015_c1_req_op128", &[STAMP]),
    ("raw_017_c1_req_op132", &[STAMP]),
    ("raw_019_c1_req_op132", &[STAMP]),
    ("raw_021_c1_req_op132", &[IDS, STAMP]),
    ("raw_023_c1_req_op132", &[STAMP]),
    ("raw_033_c1_req_nr100", &[IDS]),
    ("raw_035_c1_req_op160", &[IDS]),
    ("raw_039_c1_req_op160", &[IDS]),
    ("raw_043_c1_req_op160", &[IDS]),
    ("raw_045_c1_req_nr100", &[IDS]),
    ("raw_047_c1_req_nr100", &[IDS]),
    ("raw_049_c1_req_nr100", &[IDS]),
    ("raw_053_c1_req_nr100", &[IDS]),
    ("raw_055_c1_req_nr100", &[IDS]),
    ("raw_057_c1_req_nr100", &[IDS]),
    ("raw_087_c1_req_op136", &[IDS, STAMP]),
    ("raw_101_c1_req_op3", &[STAMP]),
    ("raw_103_c1_req_op128", &[STAMP]),
    ("sdk_001_c1_req_op1", &[NAME]),
];

/// Kinds of request Tidegate never makes: other consumers, groups, deletes, probes.
const NOT_OURS: &[&str] = &[
    "raw_007_c1_req_op1",   // announces another protocol version
    "raw_041_c1_req_op160", // partition by key
    "raw_051_c1_req_nr100", // poll next with auto-commit
    "raw_059_c1_req_op161",
    "raw_061_c1_req_nr120",
    "raw_063_c1_req_op161",
    "raw_065_c1_req_nr120",
    "raw_067_c1_req_op139",
    "raw_069_c1_req_op148",
    "raw_071_c1_req_nr606",
    "raw_073_c1_req_nr100", // poll as a group
    "raw_075_c1_req_op161",
    "raw_077_c1_req_nr120",
    "raw_079_c1_req_op149",
    "raw_081_c1_req_nr100", // poll as a group
    "raw_083_c1_req_op162",
    "raw_085_c1_req_op162",
    "raw_089_c1_req_nr102",
    "raw_091_c1_req_nr9999",
    "raw_093_c1_req_nr20",
    "raw_097_c1_req_op134",
    "raw_099_c1_req_op130",
    "sdk_023_c1_req_nr100", // poll next with auto-commit
    "sdk_025_c1_req_op161",
    "sdk_027_c1_req_nr120",
    "sdk_029_c1_req_op139",
    "sdk_031_c1_req_op148",
    "sdk_033_c1_req_nr606",
    "sdk_035_c1_req_nr100", // poll as a group
];

/// Every frame by its file name without the suffix.
fn frames() -> BTreeMap<String, Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/iggy");
    let mut frames = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "bin") {
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            frames.insert(name, fs::read(&path).unwrap());
        }
    }
    frames
}

fn golden(name: &str) -> Vec<u8> {
    frames().remove(name).unwrap_or_else(|| panic!("no golden file {name}"))
}

fn is_request(name: &str) -> bool {
    name.contains("_req_")
}

fn request_header(frame: &[u8]) -> RequestHeader {
    RequestHeader::parse(frame).unwrap().unwrap()
}

fn reply_header(frame: &[u8]) -> Option<ReplyHeader> {
    match ServerHeader::parse(frame).unwrap().unwrap() {
        ServerHeader::Reply(reply) => Some(reply),
        ServerHeader::Eviction(_) => None,
    }
}

/// Each answer with the request it belongs to: odd numbers ask, the next even number answers.
fn exchanges() -> Vec<(String, Vec<u8>, Vec<u8>)> {
    let all = frames();
    let mut pairs = Vec::new();
    for (name, answer) in all.iter().filter(|(name, _)| !is_request(name)) {
        let seq: u32 = name[4..7].parse().unwrap();
        let asked = format!("{}{:03}_c1_req_", &name[..4], seq - 1);
        let request = all.iter().find(|(other, _)| other.starts_with(&asked));
        if let Some((_, request)) = request {
            pairs.push((name.clone(), request.clone(), answer.clone()));
        }
    }
    pairs
}

/// A request in both forms: Tidegate's, and the body the protocol crate gives it.
struct Both {
    ours: Ours,
    reference: Vec<u8>,
    changed: bool,
}

enum Ours {
    Login(Credentials),
    Request(Request),
}

/// A numeric id becomes a name, since Tidegate has no other way to say it.
fn named(id: &mut WireIdentifier, name: &str) -> bool {
    let numeric = id.as_str().is_none();
    if numeric {
        *id = WireIdentifier::named(name).unwrap();
    }
    numeric
}

fn text(id: &WireIdentifier) -> std::sync::Arc<str> {
    id.as_str().unwrap().into()
}

fn options(options: &WireOptions) -> Vec<TopicOption> {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    options.iter().map(|o| TopicOption { key: text(o.key), value: text(o.value) }).collect()
}

fn plain(request: Request, body: &[u8]) -> Option<Both> {
    Some(Both { ours: Ours::Request(request), reference: body.to_vec(), changed: false })
}

/// The recorded request made by Tidegate; `None` if it never makes such a request.
fn both(frame: &[u8]) -> Option<Both> {
    let (header, body) = (request_header(frame), &frame[HEADER_LEN..]);
    match (header.operation, header.code) {
        (1, _) => login(body),
        (2, codes::PING_CODE) => plain(Request::Ping, body),
        (2, codes::GET_CLUSTER_METADATA_CODE) => plain(Request::ClusterMetadata, body),
        (2, codes::DESCRIBE_OPTIONS_CODE) => plain(Request::DescribeTopicOptions, body),
        (2, codes::GET_STREAMS_CODE) => plain(Request::Streams, body),
        (2, codes::GET_STREAM_CODE) => {
            let asked = GetStreamRequest::decode_from(body).unwrap();
            plain(Request::Stream { stream: text(&asked.stream_id) }, body)
        }
        (2, codes::GET_TOPIC_CODE) => {
            let asked = GetTopicRequest::decode_from(body).unwrap();
            let (stream, topic) = (text(&asked.stream_id), text(&asked.topic_id));
            plain(Request::Topic { stream, topic }, body)
        }
        (2, codes::POLL_MESSAGES_CODE) => poll(body),
        (3, _) => plain(Request::Logout, body),
        (128, _) => {
            let asked = CreateStreamRequest::decode_from(body).unwrap();
            plain(Request::CreateStream { stream: asked.name.as_str().into() }, body)
        }
        (132, _) => {
            let mut asked = CreateTopicRequest::decode_from(body).unwrap();
            let changed = named(&mut asked.stream_id, "golden");
            let request = Request::CreateTopic {
                stream: text(&asked.stream_id),
                topic: asked.name.as_str().into(),
                partitions: asked.partitions_count,
                options: options(&asked.options),
            };
            let reference = asked.to_bytes().to_vec();
            Some(Both { ours: Ours::Request(request), reference, changed })
        }
        (136, _) => {
            let mut asked = CreatePartitionsRequest::decode_from(body).unwrap();
            let changed =
                named(&mut asked.stream_id, "golden") | named(&mut asked.topic_id, "topic");
            let request = Request::CreatePartitions {
                stream: text(&asked.stream_id),
                topic: text(&asked.topic_id),
                add: asked.partitions_count,
            };
            let reference = asked.to_bytes().to_vec();
            Some(Both { ours: Ours::Request(request), reference, changed })
        }
        (160, _) => send(body),
        _ => None,
    }
}

fn login(body: &[u8]) -> Option<Both> {
    let mut asked = LoginRegisterRequest::decode_from(body).unwrap();
    if asked.version_info.protocol_version != iggy_binary_protocol::IGGY_PROTOCOL_VERSION {
        return None;
    }
    let password = if body.windows(5).any(|w| w == b"wrong") { "wrongpass" } else { "iggy" };
    let password = password.into();
    let username = asked.username.to_string();
    asked.version_info.sdk_name = WireName::new(SDK_NAME).unwrap();
    asked.version_info.sdk_version = WireName::new(env!("CARGO_PKG_VERSION")).unwrap();
    let ours = Ours::Login(Credentials::Password { username, password });
    Some(Both { ours, reference: asked.to_bytes().to_vec(), changed: true })
}

fn poll(body: &[u8]) -> Option<Both> {
    let mut asked = PollMessagesRequest::decode_from(body).unwrap();
    let from = match asked.strategy.kind {
        1 => PollFrom::Offset(asked.strategy.value),
        3 => PollFrom::First,
        4 => PollFrom::Last,
        _ => return None,
    };
    if asked.consumer.kind != 1 || asked.auto_commit {
        return None;
    }
    let ours = WireIdentifier::numeric(POLL_CONSUMER_ID);
    let mut changed = asked.consumer.id != ours;
    asked.consumer.id = ours;
    changed |= named(&mut asked.stream_id, "golden") | named(&mut asked.topic_id, "topic");
    let request = Request::Poll {
        stream: text(&asked.stream_id),
        topic: text(&asked.topic_id),
        partition: asked.partition_id.unwrap(),
        from,
        count: asked.count,
    };
    let reference = asked.to_bytes().to_vec();
    Some(Both { ours: Ours::Request(request), reference, changed })
}

fn send(body: &[u8]) -> Option<Both> {
    let metadata = u32::from_le_bytes(body[..4].try_into().unwrap()) as usize;
    let (mut asked, used) = SendMessagesHeader::decode(&body[4..4 + metadata]).unwrap();
    assert_eq!(used, metadata);
    let batch = Bytes::copy_from_slice(&body[4 + metadata..]);
    let to = match asked.partitioning {
        WirePartitioning::Balanced => SendTo::Balanced,
        WirePartitioning::PartitionId(id) => SendTo::Partition(id),
        WirePartitioning::MessagesKey(_) => return None,
    };
    let changed = named(&mut asked.stream_id, "golden") | named(&mut asked.topic_id, "topic");
    let records = record::scan(&batch, Verify::Full).unwrap();
    assert_eq!(records.len(), 1);
    let request = Request::Send {
        stream: text(&asked.stream_id),
        topic: text(&asked.topic_id),
        to,
        record: records[0].relay(),
    };
    let metadata = asked.to_bytes();
    let length = u32::try_from(metadata.len()).unwrap().to_le_bytes();
    let reference = [&length[..], &metadata, &batch].concat();
    Some(Both { ours: Ours::Request(request), reference, changed })
}

fn whole(outgoing: &Outgoing) -> Vec<u8> {
    [outgoing.head.as_ref(), outgoing.tail.as_deref().unwrap_or_default()].concat()
}

fn stamped(header: &RequestHeader) -> bool {
    matches!(header.operation, 1 | 3 | 128..=149)
}

#[test]
fn every_request_header_is_made_again_byte_for_byte() {
    let all = frames();
    let requests: Vec<_> = all.iter().filter(|(name, _)| is_request(name)).collect();
    assert_eq!(requests.len(), 73);
    for (name, frame) in requests {
        let header = request_header(frame);
        assert_eq!(header.size as usize, frame.len(), "{name}");
        assert_eq!(header.encode()[..], frame[..HEADER_LEN], "{name}");
        let sum = u128::from(XxHash3_64::oneshot(&frame[HEADER_LEN..]));
        let recorded = if name.starts_with("sdk") && stamped(&header) { sum } else { 0 };
        assert_eq!(header.request_checksum, recorded, "{name}");
    }
}

#[test]
fn every_request_tidegate_makes_is_made_as_recorded() {
    let mut different = Vec::new();
    let mut not_ours = Vec::new();
    let mut same = 0;
    for (name, frame) in frames().into_iter().filter(|(name, _)| is_request(name)) {
        let Some(Both { ours, reference, changed }) = both(&frame) else {
            not_ours.push(name);
            continue;
        };
        let header = request_header(&frame);
        let (client, session, number) = (header.client, header.session, header.request);
        let made = whole(&match &ours {
            Ours::Login(credentials) => encode_login(credentials, client).unwrap(),
            Ours::Request(request) => {
                encode(request, Envelope { client, session, number }).unwrap()
            }
        });
        assert_eq!(made[HEADER_LEN..], reference[..], "body of {name}");
        let stamp = u128::from(XxHash3_64::oneshot(&made[HEADER_LEN..]));
        let expected = RequestHeader {
            size: u32::try_from(made.len()).unwrap(),
            request_checksum: if stamped(&header) { stamp } else { 0 },
            ..header
        };
        assert_eq!(made[..HEADER_LEN], expected.encode(), "header of {name}");
        if made == frame {
            assert!(!changed, "{name}");
            same += 1;
        } else {
            different.push(name);
        }
    }
    let listed: Vec<_> = DIFFERENT.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(different, listed, "the list of differences is exact");
    assert_eq!(not_ours, NOT_OURS, "the list of foreign requests is exact");
    assert!(same >= 20, "{same} files are equal byte for byte");
    for (name, why) in DIFFERENT {
        let header = request_header(&golden(name));
        assert_eq!(why.contains(&STAMP), stamped(&header) && header.request_checksum == 0);
    }
}

/// The answer as Tidegate understands it, through a session that asked.
fn through_a_session(name: &str, request: &Request, answer: &[u8]) -> Delivery {
    let mut session = Session::new(1 << 100, 77, Credentials::Token("token".into()));
    session.login().unwrap();
    let login = golden("raw_010_c1_rep_op1_status0");
    let incoming = session.on_header(login.first_chunk().unwrap()).unwrap();
    assert_eq!(incoming.number, Some(0));
    let delivery = session.on_reply(&incoming, Bytes::copy_from_slice(&login[HEADER_LEN..]));
    let Ok(Delivery::LoggedIn { server_version, session: 1 }) = delivery else {
        panic!("{delivery:?}")
    };
    assert_eq!(server_version, "0.9.0-edge.5");
    let (number, _) = session.request(request).unwrap();
    let mut header: [u8; HEADER_LEN] = *answer.first_chunk().unwrap();
    let stray = session.on_header(&header).unwrap();
    if reply_header(answer).is_some() {
        assert_eq!(stray.number, None, "{name}: the recorded number is another session's");
        header[200..208].copy_from_slice(&number.to_le_bytes());
    }
    let incoming = session.on_header(&header).unwrap();
    assert_eq!(incoming.frame_len(), answer.len());
    let body = Bytes::copy_from_slice(&answer[HEADER_LEN..]);
    let delivery = session.on_reply(&incoming, body).unwrap();
    if let Delivery::Reply { number: answered, .. } = &delivery {
        assert_eq!(*answered, number);
        assert_eq!(session.outstanding().count(), 0);
    }
    delivery
}

#[test]
fn every_answer_decodes_to_what_its_file_name_says() {
    let mut seen = 0;
    for (name, request, answer) in exchanges() {
        let number_after = |word: &str| {
            let at = name.find(word)? + word.len();
            name[at..].split('_').next()?.parse::<u32>().ok()
        };
        seen += 1;
        if let Some(reason) = number_after("_evict") {
            let delivery = through_a_session(&name, &Request::Logout, &answer);
            let Delivery::Evicted { reason: got } = delivery else { panic!("{name}") };
            assert_eq!(u32::from(got), reason);
            continue;
        }
        let refusal = number_after("_result").or(number_after("_status")).filter(|c| *c != 0);
        let header = reply_header(&answer).unwrap();
        let body = Bytes::copy_from_slice(&answer[HEADER_LEN..]);
        match both(&request).map(|both| both.ours) {
            Some(Ours::Request(request)) => {
                let delivery = through_a_session(&name, &request, &answer);
                let Delivery::Reply { result, .. } = delivery else { panic!("{name}") };
                assert_eq!(result.err().map(|e| e.code), refusal, "{name}");
            }
            Some(Ours::Login(_)) => {
                let login = decode_login(&header, body).unwrap().unwrap();
                assert_eq!(login.session, header.op, "{name}");
            }
            None => {
                let result = outcome(&header, body).unwrap();
                assert_eq!(result.err().map(|e| e.code), refusal, "{name}");
            }
        }
    }
    assert_eq!(seen, 73);
    // The one answer whose request was not recorded.
    let login = golden("sdk_042_c1_rep_op1_status0");
    let header = reply_header(&login).unwrap();
    let body = Bytes::copy_from_slice(&login[HEADER_LEN..]);
    assert_eq!(decode_login(&header, body).unwrap().unwrap().session, header.op);
    assert_eq!(frames().len(), 73 + 73 + 1);
}

/// The good reply in `file` to `request`.
fn reply(file: &str, request: &Request) -> Reply {
    match through_a_session(file, request, &golden(file)) {
        Delivery::Reply { result: Ok(reply), .. } => reply,
        other => panic!("{file}: {other:?}"),
    }
}

fn topic_request() -> Request {
    Request::Topic { stream: "golden".into(), topic: "topic".into() }
}

fn poll_request() -> Request {
    let (stream, topic) = ("golden".into(), "topic".into());
    Request::Poll { stream, topic, partition: 0, from: PollFrom::First, count: 100 }
}

fn polled(file: &str) -> Polled {
    match reply(file, &poll_request()) {
        Reply::Polled(polled) => polled,
        other => panic!("{file}: {other:?}"),
    }
}

#[test]
fn metadata_replies_mean_what_was_created() {
    let Reply::Topic(Some(topic)) = reply("raw_026_c1_rep_op2_status0", &topic_request()) else {
        panic!()
    };
    assert_eq!((topic.name.as_str(), topic.partitions_count), ("topic", 2));
    let ids: Vec<_> = topic.partitions.iter().map(|p| p.id).collect();
    assert_eq!(ids, [0, 1]);
    assert_eq!(topic.options.len(), 8);
    let compression = topic.options.iter().find(|o| o.key == "compression_algorithm").unwrap();
    assert_eq!((topic.compression, compression.value.as_str()), (1, "none"));
    let segment = topic.options.iter().find(|o| o.key == "segment_size").unwrap();
    assert_eq!(segment.value.parse::<u64>().unwrap() % 512, 0, "numbers come as text");

    let missing = reply("raw_028_c1_rep_op2_status0", &topic_request());
    assert!(matches!(missing, Reply::Topic(None)));
    let stream = Request::Stream { stream: "golden".into() };
    let Reply::Stream(Some(stream)) = reply("raw_030_c1_rep_op2_status0", &stream) else {
        panic!()
    };
    assert_eq!((stream.name.as_str(), stream.topics), ("golden", 1));
    let Reply::Streams(streams) = reply("raw_032_c1_rep_op2_status0", &Request::Streams) else {
        panic!()
    };
    assert_eq!(streams, [stream]);
    let Reply::Cluster(nodes) = reply("raw_012_c1_rep_op2_status0", &Request::ClusterMetadata)
    else {
        panic!()
    };
    assert_eq!(nodes.len(), 1);
    assert!(nodes[0].leader && nodes[0].healthy);
    let Reply::Options(keys) = reply("raw_096_c1_rep_op2_status0", &Request::DescribeTopicOptions)
    else {
        panic!()
    };
    assert!(keys.iter().any(|o| o.key == "enforce_fsync"), "{keys:?}");
}

#[test]
fn confirmations_say_the_offset() {
    let send = |file: &str| both(&golden(file)).unwrap().ours;
    for (asked, answered, offset) in [
        ("raw_035_c1_req_op160", "raw_036_c1_rep_op160_status0", 0),
        ("raw_037_c1_req_op160", "raw_038_c1_rep_op160_status0", 3),
        ("raw_039_c1_req_op160", "raw_040_c1_rep_op160_status0", 5),
    ] {
        let Ours::Request(request) = send(asked) else { panic!() };
        let Reply::Sent { base_offset } = reply(answered, &request) else { panic!() };
        assert_eq!(base_offset, Some(offset));
    }
}

#[test]
fn whole_records_are_relayed_with_their_polled_bytes() {
    let polled = polled("raw_046_c1_rep_op2_status0");
    assert_eq!((polled.partition, polled.current_offset, polled.count), (0, 6, 7));
    let records = polled.scan(Verify::Full).unwrap();
    let spans: Vec<_> = records.iter().map(|r| (r.first_offset(), r.next_offset())).collect();
    assert_eq!(spans, [(0, 3), (3, 5), (5, 7)]);
    let mut at = 0;
    for record in &records {
        let relay = record.relay();
        assert_eq!(relay.blob().as_ptr(), polled.records[at + 256..].as_ptr());
        assert_eq!(relay.len(), record.len());
        let sent = [&relay.header()[..], relay.blob()].concat();
        assert_eq!(decode_batch_slice(&sent).unwrap().message_count(), record.count());
        at += record.len();
    }
    // What was polled is what had been sent, header and all.
    let sent = golden("raw_037_c1_req_op160");
    assert!(
        sent.ends_with(&[&records[1].relay().header()[..], records[1].relay().blob()].concat())
    );
}

#[test]
fn a_head_cut_record_is_relayed_with_deltas_from_zero() {
    let polled = polled("raw_048_c1_rep_op2_status0");
    let records = polled.scan(Verify::Full).unwrap();
    assert_eq!(records.len(), 2);
    assert!(records[0].is_head_cut() && !records[1].is_head_cut());
    assert_eq!((records[0].first_offset(), records[0].next_offset()), (1, 3));
    assert_eq!((records[1].first_offset(), records[1].next_offset()), (3, 4));
    for record in &records {
        let relay = record.relay();
        let sent = [&relay.header()[..], relay.blob()].concat();
        let batch = decode_batch_slice(&sent).unwrap();
        assert_eq!((batch.header.partition_id, batch.header.base_offset), (0, 0));
        let deltas: Vec<_> = batch.iter().map(|m| m.header.offset_delta).collect();
        assert_eq!(deltas, (0..record.count()).collect::<Vec<_>>());
        for (before, after) in record.messages().zip(batch.iter()) {
            assert_eq!(before.id, after.header.id);
            assert_eq!((before.payload, before.user_headers), (after.payload, after.user_headers));
            let origin = batch.header.origin_timestamp + u64::from(after.header.timestamp_delta);
            assert_eq!(before.origin_timestamp, origin);
        }
    }
}

#[test]
fn empty_polls_have_no_records() {
    for (file, current) in [("raw_034_c1_rep_op2_status0", 0), ("raw_050_c1_rep_op2_status0", 6)] {
        let polled = polled(file);
        assert_eq!((polled.count, polled.current_offset), (0, current));
        assert!(polled.scan(Verify::Full).unwrap().is_empty());
    }
}

#[test]
fn no_prefix_of_a_frame_is_taken_for_the_whole() {
    for (name, frame) in frames() {
        for cut in 0..HEADER_LEN.min(frame.len()) {
            assert_eq!(RequestHeader::parse(&frame[..cut]), Ok(None), "{name} at {cut}");
            assert_eq!(ServerHeader::parse(&frame[..cut]), Ok(None), "{name} at {cut}");
        }
    }
    let mut refused = 0;
    for (name, request, answer) in exchanges() {
        let Some(header) = reply_header(&answer) else { continue };
        let ours = both(&request).map(|both| both.ours);
        for cut in HEADER_LEN..answer.len() {
            let body = Bytes::copy_from_slice(&answer[HEADER_LEN..cut]);
            let cut_short = match &ours {
                None => outcome(&header, body).is_err(),
                Some(Ours::Login(_)) => !matches!(decode_login(&header, body), Ok(Ok(_))),
                Some(Ours::Request(request)) => match decode(Expect::of(request), &header, body) {
                    Err(_) => true,
                    Ok(Ok(Reply::Polled(polled))) => polled.scan(Verify::FramingOnly).is_err(),
                    // Nothing on a get means that it does not exist.
                    Ok(Ok(Reply::Topic(None) | Reply::Stream(None))) => cut == HEADER_LEN,
                    Ok(Ok(Reply::Sent { base_offset: None })) => cut == HEADER_LEN,
                    // These are read only as far as Tidegate cares.
                    Ok(Ok(Reply::Stream(Some(_)) | Reply::Done)) => continue,
                    Ok(Ok(Reply::Streams(streams))) => streams.is_empty(),
                    other => panic!("{name} cut at {cut}: {other:?}"),
                },
            };
            if ours.is_some() {
                assert!(cut_short, "{name} cut at {cut}");
                refused += 1;
            }
        }
    }
    assert!(refused > 5_000, "{refused} cuts were refused");
}
