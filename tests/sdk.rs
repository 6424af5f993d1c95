//! The official `iggy` SDK, unmodified, against the loopback broker, also behind a mirror.

#![allow(clippy::disallowed_methods, reason = "tests own their files, sockets and clock")]

#[path = "support/mod.rs"]
mod support;

use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::Duration;

use bytes::Bytes;
use iggy::prelude::*;
use tidegate::batch::TopicName;
use tidegate::loopback::{Fault, Flavour, Restart, Scope, Server, ServerOptions};

const STREAM: &str = "orders";
const TOPIC: &str = "events";

fn id(name: &str) -> Identifier {
    Identifier::named(name).expect("a valid name")
}

fn broker() -> Server {
    Server::start(ServerOptions::default()).expect("a free port")
}

async fn client(server: &Server) -> IggyClient {
    let client = IggyClient::builder()
        .with_tcp()
        .with_server_address(server.address().to_string())
        .build()
        .expect("a client");
    client.connect().await.expect("a connection");
    client
}

async fn logged_in(server: &Server) -> IggyClient {
    let client = client(server).await;
    client.login_user("iggy", "iggy").await.expect("a session");
    client
}

async fn with_topic(client: &IggyClient, partitions: u32) {
    client.create_stream(STREAM).await.expect("a new stream");
    let options =
        TopicCreateOptions { partitions_count: Some(partitions), ..TopicCreateOptions::default() };
    client.create_topic(&id(STREAM), TOPIC, &options).await.expect("a new topic");
}

/// `count` messages `m<from>`, `m<from + 1>`… with ids from `from` and one user header each.
fn messages(from: u64, count: u64) -> Vec<IggyMessage> {
    (from..from + count)
        .map(|number| {
            let mut headers = BTreeMap::new();
            let key = HeaderKey::from_str("number").expect("a key");
            headers.insert(key, HeaderValue::from(number));
            IggyMessage::builder()
                .id(u128::from(number) + 1)
                .payload(Bytes::from(format!("m{number}")))
                .user_headers(headers)
                .build()
                .expect("a message")
        })
        .collect()
}

async fn send(client: &IggyClient, to: Partitioning, from: u64, count: u64) -> (u32, u64) {
    let mut messages = messages(from, count);
    let sent = client.send_messages(&id(STREAM), &id(TOPIC), &to, &mut messages).await;
    let sent = sent.expect("a confirmation").confirmations;
    assert_eq!(sent.len(), 1);
    (sent[0].partition_id, sent[0].base_offset)
}

async fn poll(
    client: &IggyClient,
    partition: u32,
    strategy: PollingStrategy,
    count: u32,
) -> PolledMessages {
    let consumer = Consumer::new(Identifier::numeric(7).expect("an id"));
    let (stream, topic) = (id(STREAM), id(TOPIC));
    let polled = client
        .poll_messages(&stream, &topic, Some(partition), &consumer, &strategy, count, false)
        .await;
    polled.expect("messages")
}

fn offsets(polled: &PolledMessages) -> Vec<u64> {
    polled.messages.iter().map(|message| message.header.offset).collect()
}

#[tokio::test]
async fn wrong_password_is_refused_and_right_one_lets_in() {
    let server = broker();
    let client = client(&server).await;
    let refused = client.login_user("iggy", "wrong-password").await;
    assert_eq!(refused.err(), Some(IggyError::InvalidCredentials));
    client.login_user("iggy", "iggy").await.expect("a session");
    client.ping().await.expect("a pong");
    assert_eq!(client.get_me().await.expect("a client").user_id, Some(0));
    let cluster = client.get_cluster_metadata().await.expect("a roster");
    assert_eq!(cluster.nodes.len(), 1);
    assert_eq!(cluster.nodes[0].endpoints.tcp, server.address().port());
    assert_eq!(client.get_stats().await.expect("numbers").streams_count, 0);
    client.logout_user().await.expect("an end");
}

#[tokio::test]
async fn configured_and_created_tokens_let_in() {
    let options =
        ServerOptions { tokens: vec!["configured-token".to_owned()], ..ServerOptions::default() };
    let server = Server::start(options).expect("a free port");
    let first = client(&server).await;
    first.login_with_personal_access_token("configured-token").await.expect("a session");
    let created = first
        .create_personal_access_token("mirror", PersonalAccessTokenExpiry::NeverExpire)
        .await
        .expect("a token");
    let second = client(&server).await;
    second.login_with_personal_access_token(&created.token).await.expect("a session");
    first.delete_personal_access_token("mirror").await.expect("a deletion");
    let third = client(&server).await;
    assert!(third.login_with_personal_access_token(&created.token).await.is_err());
}

#[tokio::test]
async fn topics_keep_partitions_and_options() {
    let server = broker();
    let client = logged_in(&server).await;
    with_topic(&client, 3).await;
    let duplicate = client.create_stream(STREAM).await;
    assert_eq!(duplicate.err().map(|e| e.as_code()), Some(1012));
    let plain = TopicCreateOptions::default();
    let duplicate = client.create_topic(&id(STREAM), TOPIC, &plain).await;
    assert_eq!(duplicate.err().map(|e| e.as_code()), Some(2013));

    let options = TopicCreateOptions {
        partitions_count: Some(2),
        message_expiry: Some(IggyExpiry::ExpireDuration(IggyDuration::from(60_000_000))),
        max_topic_size: Some(MaxTopicSize::Custom(IggyByteSize::from(4 << 30))),
        segment_size: Some(IggyByteSize::from(1 << 20)),
        compression_algorithm: Some(CompressionAlgorithm::Gzip),
        durability: Durability::Persisted,
        ..TopicCreateOptions::default()
    };
    let made = client.create_topic(&id(STREAM), "audit", &options).await.expect("a topic");
    let read = client.get_topic(&id(STREAM), &id("audit")).await.expect("an answer");
    let read = read.expect("the topic");
    assert_eq!(read.created_at, made.created_at);
    assert_eq!((read.id, read.partitions_count, read.partitions.len()), (1, 2, 2));
    assert_eq!(read.compression_algorithm, CompressionAlgorithm::Gzip);
    assert_eq!(read.max_topic_size, MaxTopicSize::Custom(IggyByteSize::from(4 << 30)));
    let durability = &read.options[&HeaderKey::from_str("durability").expect("a key")];
    assert!(durability.explicit);
    assert_eq!(durability.value.as_str().expect("text"), "persisted");

    let catalogue = client.describe_options(OptionsScope::Topic).await.expect("a catalogue");
    assert!(catalogue.iter().any(|option| option.key == "consumer_offset_durability"));
    let topics = client.get_topics(&id(STREAM)).await.expect("topics");
    assert_eq!(topics.iter().map(|t| t.name.as_str()).collect::<Vec<_>>(), [TOPIC, "audit"]);
    let stream = client.get_stream(&id(STREAM)).await.expect("an answer").expect("the stream");
    assert_eq!((stream.topics_count, stream.topics.len()), (2, 2));
    assert_eq!(client.get_streams().await.expect("streams").len(), 1);
    assert!(client.get_topic(&id(STREAM), &id("nope")).await.expect("an answer").is_none());

    client.create_partitions(&id(STREAM), &id("audit"), 2).await.expect("partitions");
    client.delete_partitions(&id(STREAM), &id("audit"), 1).await.expect("one less");
    let audit = client.get_topic(&id(STREAM), &id("audit")).await.expect("an answer");
    assert_eq!(audit.expect("the topic").partitions_count, 3);
    client.delete_topic(&id(STREAM), &id("audit")).await.expect("a deletion");
    client.delete_stream(&id(STREAM)).await.expect("a deletion");
    assert!(client.get_stream(&id(STREAM)).await.expect("an answer").is_none());
}

#[tokio::test]
async fn edge_server_refuses_what_the_sdk_always_sends_on_create() {
    let options = ServerOptions {
        flavour: Flavour::Edge5,
        version: "0.9.0-edge.5".to_owned(),
        ..ServerOptions::default()
    };
    let server = Server::start(options).expect("a free port");
    let client = logged_in(&server).await;
    client.create_stream(STREAM).await.expect("a stream");
    let refused = client.create_topic(&id(STREAM), TOPIC, &TopicCreateOptions::default()).await;
    assert_eq!(refused.err().map(|e| e.as_code()), Some(4041));
}

#[tokio::test]
async fn every_partitioning_and_every_polling_strategy_works() {
    let server = broker();
    let client = logged_in(&server).await;
    with_topic(&client, 2).await;
    assert_eq!(send(&client, Partitioning::partition_id(0), 0, 6).await, (0, 0));
    assert_eq!(send(&client, Partitioning::partition_id(0), 6, 4).await, (0, 6));
    let balanced = [
        send(&client, Partitioning::balanced(), 100, 1).await.0,
        send(&client, Partitioning::balanced(), 101, 1).await.0,
    ];
    assert_eq!(balanced, [0, 1]);
    let key = Partitioning::messages_key_str("abc").expect("a key");
    assert_eq!(send(&client, key.clone(), 102, 1).await.0, 1);
    assert_eq!(send(&client, key, 103, 1).await.0, 1);

    let first = poll(&client, 0, PollingStrategy::first(), 3).await;
    assert_eq!((offsets(&first), first.current_offset), (vec![0, 1, 2], 10));
    let across = poll(&client, 0, PollingStrategy::offset(4), 4).await;
    assert_eq!(offsets(&across), [4, 5, 6, 7]);
    let message = &across.messages[1];
    assert_eq!((message.header.id, message.payload.as_ref()), (6, b"m5".as_ref()));
    let headers = message.user_headers_map().expect("valid headers").expect("headers");
    let number = &headers[&HeaderKey::from_str("number").expect("a key")];
    assert_eq!(number.as_uint64().expect("a number"), 5);
    let last = poll(&client, 0, PollingStrategy::last(), 2).await;
    assert_eq!(offsets(&last), [9, 10]);
    let since = IggyTimestamp::from(last.messages[0].header.timestamp);
    let since = poll(&client, 0, PollingStrategy::timestamp(since), 100).await;
    assert_eq!(offsets(&since), [6, 7, 8, 9, 10]);
    let beyond = poll(&client, 0, PollingStrategy::offset(1000), 10).await;
    assert_eq!((beyond.messages.len(), beyond.current_offset), (0, 10));

    let stored = server.control().dump(STREAM, TOPIC, 1, 0, 10).expect("the partition");
    assert_eq!(stored.iter().map(|m| m.id).collect::<Vec<_>>(), [102, 103, 104]);
}

#[tokio::test]
async fn next_with_auto_commit_walks_the_log_once() {
    let server = broker();
    let client = logged_in(&server).await;
    with_topic(&client, 1).await;
    send(&client, Partitioning::partition_id(0), 0, 5).await;
    let consumer = Consumer::new(id("reader"));
    let (stream, topic) = (id(STREAM), id(TOPIC));
    let mut seen = Vec::new();
    for _ in 0..4 {
        let next = PollingStrategy::next();
        let polled = client
            .poll_messages(&stream, &topic, Some(0), &consumer, &next, 2, true)
            .await
            .expect("messages");
        seen.extend(offsets(&polled));
    }
    assert_eq!(seen, [0, 1, 2, 3, 4]);
    let offset = client.get_consumer_offset(&consumer, &stream, &topic, Some(0)).await;
    let offset = offset.expect("an answer").expect("a stored offset");
    assert_eq!((offset.current_offset, offset.stored_offset), (4, 4));
    client
        .store_consumer_offset(&consumer, &stream, &topic, Some(0), 1)
        .await
        .expect("a stored offset");
    let beyond = client.store_consumer_offset(&consumer, &stream, &topic, Some(0), 99).await;
    assert_eq!(beyond.err().map(|e| e.as_code()), Some(4100));
    client.delete_consumer_offset(&consumer, &stream, &topic, Some(0)).await.expect("a deletion");
    let gone = client.get_consumer_offset(&consumer, &stream, &topic, Some(0)).await;
    assert!(gone.expect("an answer").is_none());
}

#[tokio::test]
async fn group_members_share_the_partitions() {
    let server = broker();
    let (one, two) = (logged_in(&server).await, logged_in(&server).await);
    with_topic(&one, 4).await;
    for partition in 0..4 {
        send(&one, Partitioning::partition_id(partition), u64::from(partition) * 10, 3).await;
    }
    let (stream, topic, group) = (id(STREAM), id(TOPIC), id("workers"));
    one.create_consumer_group(&stream, &topic, "workers").await.expect("a group");
    for member in [&one, &two] {
        member.join_consumer_group(&stream, &topic, &group).await.expect("a membership");
    }
    let details = one.get_consumer_group(&stream, &topic, &group).await.expect("an answer");
    assert_eq!(details.expect("the group").members_count, 2);

    let consumer = Consumer::group(group.clone());
    let mut seen = Vec::new();
    for member in [&one, &two] {
        for _ in 0..4 {
            let next = PollingStrategy::next();
            let polled = member
                .poll_messages(&stream, &topic, None, &consumer, &next, 10, true)
                .await
                .expect("messages");
            seen.extend(polled.messages.iter().map(|message| message.header.id));
        }
    }
    seen.sort_unstable();
    let all: Vec<u128> = (0..4).flat_map(|p| (1..=3).map(move |n| p * 10 + n)).collect();
    assert_eq!(seen, all);
    two.leave_consumer_group(&stream, &topic, &group).await.expect("a leave");
    one.delete_consumer_group(&stream, &topic, &group).await.expect("a deletion");
    assert!(one.get_consumer_groups(&stream, &topic).await.expect("groups").is_empty());
}

#[tokio::test]
async fn purge_and_recreation_start_at_offset_zero() {
    let server = broker();
    let client = logged_in(&server).await;
    with_topic(&client, 1).await;
    send(&client, Partitioning::partition_id(0), 0, 5).await;
    client.purge_topic(&id(STREAM), &id(TOPIC)).await.expect("a purge");
    assert_eq!(send(&client, Partitioning::partition_id(0), 5, 1).await, (0, 0));
    let created_at = server.control().created_at(STREAM, TOPIC).expect("the topic");
    server.control().recreate(STREAM, TOPIC).expect("the topic");
    assert!(server.control().created_at(STREAM, TOPIC).expect("the topic") > created_at);
    assert_eq!(poll(&client, 0, PollingStrategy::first(), 10).await.messages.len(), 0);
    assert_eq!(send(&client, Partitioning::partition_id(0), 6, 1).await, (0, 0));
}

#[tokio::test]
async fn retention_moves_a_poll_to_the_earliest_message() {
    let options = ServerOptions { segment_bytes: 4096, ..ServerOptions::default() };
    let server = Server::start(options).expect("a free port");
    let client = logged_in(&server).await;
    with_topic(&client, 1).await;
    for batch in 0..40 {
        send(&client, Partitioning::partition_id(0), batch * 10, 10).await;
    }
    client.delete_segments(&id(STREAM), &id(TOPIC), 0, 3).await.expect("fewer segments");
    let earliest = server.control().earliest(STREAM, TOPIC, 0).expect("the partition");
    assert!(earliest > 0 && earliest < 400, "earliest {earliest}");
    let polled = poll(&client, 0, PollingStrategy::offset(0), 1).await;
    assert_eq!(offsets(&polled), [earliest]);
}

#[tokio::test]
async fn client_survives_58_and_a_restart() {
    let server = broker();
    let control = server.control();
    let client = IggyClient::builder()
        .with_tcp()
        .with_server_address(server.address().to_string())
        .with_auto_sign_in(AutoLogin::Enabled(Credentials::UsernamePassword(
            "iggy".to_owned(),
            "iggy".to_owned().into(),
        )))
        .with_reestablish_after(IggyDuration::from(1000))
        .with_reconnection_interval(
            NonZeroIggyDuration::try_from(IggyDuration::from(20_000)).expect("not zero"),
        )
        .build()
        .expect("a client");
    client.connect().await.expect("a connection");
    with_topic(&client, 1).await;
    let busy = Fault::Reject { code: 58, applied: false };
    control.fault(busy, Scope::sends(), tidegate::loopback::Times::Next(3));
    assert_eq!(send(&client, Partitioning::partition_id(0), 0, 3).await, (0, 0));
    assert_eq!(control.applied_faults().len(), 3);

    tokio::task::spawn_blocking(move || {
        control.restart(Restart { lose_tail: 1, ..Restart::default() }).expect("the same port");
    })
    .await
    .expect("a restart");
    let polled = poll(&client, 0, PollingStrategy::first(), 10).await;
    assert_eq!(offsets(&polled), [0, 1]);
    assert_eq!(send(&client, Partitioning::partition_id(0), 3, 1).await, (0, 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_sent_one_by_one_reads_the_same_behind_a_mirror_m2_m16() {
    let (up, down) = (broker(), broker());
    let (writer, reader) = (logged_in(&up).await, logged_in(&down).await);
    with_topic(&writer, 1).await;
    for number in 0..300 {
        send(&writer, Partitioning::partition_id(0), number, 1).await;
    }
    let home = support::Home::new();
    let config = support::Config::between(up.address(), down.address());
    let daemon = support::Daemon::start(&home, &config.topic(&TopicName::new(STREAM, TOPIC)));
    support::eventually(Duration::from_secs(60), "the copy", || {
        let end = down.control().end(STREAM, TOPIC, 0);
        support::when(end.is_ok_and(|end| end == 300))
    });
    let sends = down.control().counters(STREAM, TOPIC, 0).expect("a partition").sends_applied;
    assert!(sends < 30, "{sends} sends");
    let everything = PollingStrategy::offset(0);
    let there = poll(&writer, 0, everything, 1_000).await;
    let here = poll(&reader, 0, everything, 1_000).await;
    assert_eq!(offsets(&here), (0..300).collect::<Vec<_>>());
    for (there, here) in there.messages.iter().zip(&here.messages) {
        assert_eq!((&there.payload, &there.user_headers), (&here.payload, &here.user_headers));
        let told = |message: &IggyMessage| (message.header.id, message.header.origin_timestamp);
        assert_eq!(told(there), told(here));
    }
    daemon.stop();
}
