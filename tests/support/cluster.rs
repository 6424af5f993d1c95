//! Clusters to test against: a broker in this process, or a real server.

use std::io;
use std::sync::Arc;

use iggy_binary_protocol::requests::streams::DeleteStreamRequest;
use iggy_binary_protocol::requests::topics::{DeleteTopicRequest, PurgeTopicRequest};
use iggy_binary_protocol::{WireEncode, WireIdentifier};
use tidegate::batch::TopicName;
use tidegate::iggy_wire::record::{self, build_record};
use tidegate::iggy_wire::{PollFrom, Reply, Request, SendTo, ServerError, TopicInfo, Verify};
use tidegate::loopback::{Control, Message, Server, ServerOptions, StoredMessage};

use super::client::Client;
use super::{Seen, skipped};

const DELETE_STREAM: u8 = 130;
const DELETE_TOPIC: u8 = 134;
const PURGE_TOPIC: u8 = 135;
/// Messages of one poll.
const POLL_COUNT: u32 = 1_000;
/// How long a server may take to empty partitions after it said that they are.
const PURGED: std::time::Duration = std::time::Duration::from_secs(2);

/// What tests ask of a cluster, whoever plays it.
pub trait Cluster: Send + Sync {
    /// `host:port`.
    fn address(&self) -> String;
    /// Faults and the inner log; `None` on a real server.
    fn control(&self) -> Option<&Control>;
    /// Creates the topic, and its stream if need be.
    fn create_topic(&self, topic: &TopicName, partitions: u32);
    /// Adds partitions.
    fn add_partitions(&self, topic: &TopicName, add: u32);
    /// Deletes the topic.
    fn delete_topic(&self, topic: &TopicName);
    /// Empties the topic; it stays the same topic.
    fn purge(&self, topic: &TopicName);
    /// Deletes the stream with its topics, if it is there.
    fn delete_stream(&self, stream: &str);
    /// The topic as clients see it.
    fn topic(&self, topic: &TopicName) -> Option<TopicInfo>;
    /// Appends one batch; the first offset comes back.
    fn append(&self, topic: &TopicName, partition: u32, messages: &[Message]) -> u64;
    /// Everything from this offset on.
    fn dump(&self, topic: &TopicName, partition: u32, from: u64) -> Vec<StoredMessage>;
    /// Offset of the next append; 0 as long as there is no such topic.
    fn end(&self, topic: &TopicName, partition: u32) -> u64;

    /// Everything from this offset on, as the oracle sees it.
    fn seen(&self, topic: &TopicName, partition: u32, from: u64) -> Vec<Seen> {
        let messages = self.dump(topic, partition, from);
        let seen = |m: &StoredMessage| {
            Seen::new(m.offset, m.id, m.origin_timestamp, &m.payload, &m.user_headers)
        };
        messages.iter().map(seen).collect()
    }

    /// Ends of the first `partitions` partitions, added up.
    fn total(&self, topic: &TopicName, partitions: u32) -> u64 {
        (0..partitions).map(|partition| self.end(topic, partition)).sum()
    }
}

/// Upstream and destination.
#[derive(Clone)]
pub struct Pair {
    pub up: Arc<dyn Cluster>,
    pub down: Arc<dyn Cluster>,
}

/// A pair of built-in brokers with their fault switches.
pub struct Loopbacks {
    pub pair: Pair,
    pub up: Control,
    pub down: Control,
    /// Every node of the destination; `down` is the first.
    pub nodes: Vec<Control>,
}

impl Pair {
    /// Real servers where the environment names them, else built-in brokers.
    pub fn start() -> Pair {
        match real_servers() {
            Some((up, down)) => Pair { up: Arc::new(Real(up)), down: Arc::new(Real(down)) },
            None => Pair { up: Arc::new(Loopback::start()), down: Arc::new(Loopback::start()) },
        }
    }
}

impl Loopbacks {
    /// Built-in brokers for a test that needs faults; `None`, with the reason printed, where
    /// real servers are asked for.
    pub fn start(test: &str) -> Option<Loopbacks> {
        Loopbacks::with_nodes(test, 1)
    }

    /// The same with a destination of several nodes, the first of which leads.
    pub fn with_nodes(test: &str, count: usize) -> Option<Loopbacks> {
        if real_servers().is_some() {
            skipped(test, "it needs fault switches, which real servers do not have");
            return None;
        }
        let servers = Server::start_cluster(ServerOptions::default(), count);
        let servers = servers.expect("built-in brokers");
        let nodes: Vec<Control> = servers.iter().map(Server::control).collect();
        let down = Loopback { control: nodes[0].clone(), _servers: servers };
        let up = Loopback::start();
        let (up_control, down_control) = (up.control.clone(), down.control.clone());
        let pair = Pair { up: Arc::new(up), down: Arc::new(down) };
        Some(Loopbacks { pair, up: up_control, down: down_control, nodes })
    }
}

fn real_servers() -> Option<(String, String)> {
    let address = |name| std::env::var(name).ok().filter(|address| !address.is_empty());
    Some((address("TIDEGATE_TEST_IGGY_UP")?, address("TIDEGATE_TEST_IGGY_DOWN")?))
}

/// A broker in this process, of one node or more.
struct Loopback {
    control: Control,
    _servers: Vec<Server>,
}

impl Loopback {
    fn start() -> Loopback {
        let server = Server::start(ServerOptions::default()).expect("a built-in broker");
        Loopback { control: server.control(), _servers: vec![server] }
    }
}

impl Cluster for Loopback {
    fn address(&self) -> String {
        self.control.address().to_string()
    }

    fn control(&self) -> Option<&Control> {
        Some(&self.control)
    }

    fn create_topic(&self, topic: &TopicName, partitions: u32) {
        let created = self.control.create_topic(&topic.stream, &topic.topic, partitions);
        assert!(created, "{topic} exists");
    }

    fn add_partitions(&self, topic: &TopicName, add: u32) {
        self.control.add_partitions(&topic.stream, &topic.topic, add).expect("a topic");
    }

    fn delete_topic(&self, topic: &TopicName) {
        self.control.delete_topic(&topic.stream, &topic.topic).expect("a topic");
    }

    fn purge(&self, topic: &TopicName) {
        self.control.purge(&topic.stream, &topic.topic).expect("a topic");
    }

    fn delete_stream(&self, stream: &str) {
        delete_stream(&self.address(), stream);
    }

    fn topic(&self, topic: &TopicName) -> Option<TopicInfo> {
        describe(&self.address(), topic)
    }

    fn append(&self, topic: &TopicName, partition: u32, messages: &[Message]) -> u64 {
        let appended = self.control.append(&topic.stream, &topic.topic, partition, messages);
        appended.expect("a partition")
    }

    fn dump(&self, topic: &TopicName, partition: u32, from: u64) -> Vec<StoredMessage> {
        let found = self.control.dump(&topic.stream, &topic.topic, partition, from, u32::MAX);
        found.unwrap_or_default()
    }

    fn end(&self, topic: &TopicName, partition: u32) -> u64 {
        self.control.end(&topic.stream, &topic.topic, partition).unwrap_or(0)
    }
}

/// A server somebody else runs.
struct Real(String);

impl Real {
    fn client(&self) -> Client {
        connect(&self.0)
    }

    fn poll(
        client: &mut Client,
        topic: &TopicName,
        partition: u32,
        from: PollFrom,
        count: u32,
    ) -> Option<Vec<StoredMessage>> {
        let (stream, topic) = (topic.stream.clone(), topic.topic.clone());
        let poll = Request::Poll { stream, topic, partition, from, count };
        match client.ask(&poll).expect("an answer") {
            Ok(Reply::Polled(polled)) => {
                let records = polled.scan(Verify::Full).expect("whole records");
                let messages = records.iter().flat_map(record::Record::messages);
                let stored = messages.map(|message| StoredMessage {
                    offset: message.offset,
                    id: message.id,
                    origin_timestamp: message.origin_timestamp,
                    payload: message.payload.to_vec().into(),
                    user_headers: message.user_headers.to_vec().into(),
                });
                Some(stored.collect())
            }
            Ok(other) => panic!("poll: {other:?}"),
            Err(error) if error.is_not_found() => None,
            Err(error) => panic!("poll: {error}"),
        }
    }
}

impl Real {
    fn change(&self, request: &Request) -> Result<(), ServerError> {
        self.client().ask(request).expect("an answer").map(drop)
    }
}

impl Cluster for Real {
    fn address(&self) -> String {
        self.0.clone()
    }

    fn control(&self) -> Option<&Control> {
        None
    }

    fn create_topic(&self, topic: &TopicName, partitions: u32) {
        let stream = topic.stream.clone();
        let create = Request::CreateStream { stream: stream.clone() };
        let created = insist(ServerError::is_exists, || self.change(&create));
        assert!(created.map_or_else(|error| error.is_exists(), |()| true), "{created:?}");
        let options = Vec::new();
        let create =
            Request::CreateTopic { stream, topic: topic.topic.clone(), partitions, options };
        insist(ServerError::is_exists, || self.change(&create)).expect("a new topic");
    }

    fn add_partitions(&self, topic: &TopicName, add: u32) {
        let (stream, topic) = (topic.stream.clone(), topic.topic.clone());
        let grow = Request::CreatePartitions { stream, topic, add };
        self.change(&grow).expect("more partitions");
    }

    fn delete_topic(&self, topic: &TopicName) {
        let (stream_id, topic_id) = (named(&topic.stream), named(&topic.topic));
        let body = DeleteTopicRequest { stream_id, topic_id };
        let gone = || operate(self.client(), DELETE_TOPIC, &body);
        insist(ServerError::is_not_found, gone).expect("a topic");
    }

    fn purge(&self, topic: &TopicName) {
        let (stream_id, topic_id) = (named(&topic.stream), named(&topic.topic));
        let body = PurgeTopicRequest { stream_id, topic_id };
        let purge = || operate(self.client(), PURGE_TOPIC, &body);
        insist(|_| false, purge).expect("a topic");
        // It answers before the partitions are empty: what is written at once would go as well.
        std::thread::sleep(PURGED);
    }

    fn delete_stream(&self, stream: &str) {
        delete_stream(&self.0, stream);
    }

    fn topic(&self, topic: &TopicName) -> Option<TopicInfo> {
        describe(&self.0, topic)
    }

    fn append(&self, topic: &TopicName, partition: u32, messages: &[Message]) -> u64 {
        let parts: Vec<_> = messages
            .iter()
            .map(|message| record::Message {
                id: message.id,
                origin_timestamp: message.origin_timestamp,
                payload: &message.payload,
                user_headers: &message.user_headers,
            })
            .collect();
        let send = Request::Send {
            stream: topic.stream.clone(),
            topic: topic.topic.clone(),
            to: SendTo::Partition(partition),
            record: build_record(&parts).expect("one batch"),
        };
        match self.client().ask(&send).expect("an answer") {
            Ok(Reply::Sent { base_offset: Some(offset) }) => offset,
            other => panic!("send: {other:?}"),
        }
    }

    fn dump(&self, topic: &TopicName, partition: u32, from: u64) -> Vec<StoredMessage> {
        let (mut client, mut all, mut next) = (self.client(), Vec::new(), from);
        loop {
            let from = PollFrom::Offset(next);
            let found = Real::poll(&mut client, topic, partition, from, POLL_COUNT);
            let Some(last) = found.as_ref().and_then(|found| found.last()) else { return all };
            next = last.offset + 1;
            all.extend(found.into_iter().flatten());
        }
    }

    fn end(&self, topic: &TopicName, partition: u32) -> u64 {
        let last = Real::poll(&mut self.client(), topic, partition, PollFrom::Last, 1);
        last.and_then(|found| found.last().map(|message| message.offset + 1)).unwrap_or(0)
    }
}

/// Repeats a change until its outcome is known: a busy server answers 57 or 58. `done` tells the
/// error that means that an earlier try was applied.
fn insist(
    done: impl Fn(ServerError) -> bool,
    mut change: impl FnMut() -> Result<(), ServerError>,
) -> Result<(), ServerError> {
    let mut tries = 0;
    loop {
        match change() {
            Err(error) if tries > 0 && done(error) => return Ok(()),
            Err(error) if error.is_unknown_outcome() || error.is_not_accepted() => {
                tries += 1;
                assert!(tries < 100, "{error} a hundred times");
                std::thread::sleep(std::time::Duration::from_millis(100));
            }
            known => return known,
        }
    }
}

fn connect(address: &str) -> Client {
    Client::connect(address).unwrap_or_else(|error| panic!("{address}: {error}"))
}

fn operate(client: Client, operation: u8, body: &impl WireEncode) -> Result<(), ServerError> {
    client.operate(operation, body).expect("an answer").map(drop)
}

fn named(name: &str) -> WireIdentifier {
    WireIdentifier::named(name).expect("a valid name")
}

fn delete_stream(address: &str, stream: &str) {
    let request = DeleteStreamRequest { stream_id: named(stream) };
    let gone = || match Client::connect(address) {
        Ok(client) => operate(client, DELETE_STREAM, &request),
        // Nobody there: nothing to delete.
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
        Err(error) => panic!("{address}: {error}"),
    };
    match insist(ServerError::is_not_found, gone) {
        Ok(()) => {}
        Err(error) if error.is_not_found() => {}
        Err(error) => panic!("delete stream {stream}: {error}"),
    }
}

fn describe(address: &str, topic: &TopicName) -> Option<TopicInfo> {
    let (stream, topic) = (topic.stream.clone(), topic.topic.clone());
    match connect(address).ask(&Request::Topic { stream, topic }).expect("an answer") {
        Ok(Reply::Topic(info)) => info,
        Err(error) if error.is_not_found() => None,
        other => panic!("get topic: {other:?}"),
    }
}

/// The way to a real server, also for a broker of this process.
pub fn over_the_wire(address: &str) -> impl Cluster + use<> {
    Real(address.to_owned())
}
