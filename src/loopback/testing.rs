//! Requests as a client would write them, for the tests of core and front.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use bytes::BytesMut;
use iggy_binary_protocol::batch::decode_batch_slice;
use iggy_binary_protocol::requests::messages::{
    PollMessagesRequest, RawMessage, SendMessagesEncoder,
};
use iggy_binary_protocol::requests::users::LoginRegisterRequest;
use iggy_binary_protocol::{
    ClientVersionInfo, Command, HEADER_SIZE, IGGY_PROTOCOL_VERSION, Operation, WireConsumer,
    WireEncode, WireIdentifier, WireName, WirePartitioning, WirePollingStrategy,
};

use super::control::Control;
use super::frame::{Header, RequestHead};
use super::log::VerifiedBatch;
use super::messages::SendBody;

pub(super) const STREAM: &str = "s";
pub(super) const TOPIC: &str = "t";

/// A reply as far as the tests look at it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub command: u8,
    pub request: u64,
    pub status: u32,
    pub reason: u8,
    pub body: Vec<u8>,
}

pub(super) fn name(text: &str) -> WireName {
    WireName::new(text).expect("a short name")
}

fn id(text: &str) -> WireIdentifier {
    WireIdentifier::named(text).expect("a short name")
}

/// Body of a send of `count` messages with ids from `first_id` on.
pub(super) fn send_body(partition: u32, first_id: u64, count: u32) -> Vec<u8> {
    let payloads: Vec<_> = (0..count).map(|n| format!("payload {n}").into_bytes()).collect();
    let raw: Vec<_> = payloads
        .iter()
        .enumerate()
        .map(|(n, payload)| RawMessage {
            id: u128::from(first_id) + n as u128,
            origin_timestamp: 1_700_000_000_000_000 + n as u64,
            headers: None,
            payload,
        })
        .collect();
    let mut body = BytesMut::new();
    let to = WirePartitioning::PartitionId(partition);
    SendMessagesEncoder::encode(&mut body, &id(STREAM), &id(TOPIC), &to, &raw).expect("one batch");
    body.into()
}

/// A checked batch of `count` messages with ids from `first_id` on.
pub(super) fn batch(first_id: u64, count: u32) -> VerifiedBatch {
    SendBody::decode(send_body(0, first_id, count)).into_batch().expect("a right batch")
}

pub(super) fn poll_body(partition: u32, from: u64, count: u32) -> Vec<u8> {
    let request = PollMessagesRequest {
        consumer: WireConsumer::consumer(WireIdentifier::numeric(1)),
        stream_id: id(STREAM),
        topic_id: id(TOPIC),
        partition_id: Some(partition),
        strategy: WirePollingStrategy::offset(from),
        count,
        auto_commit: false,
    };
    request.to_bytes().into()
}

pub(super) fn login_body() -> Vec<u8> {
    let request = LoginRegisterRequest {
        version_info: ClientVersionInfo {
            protocol_version: IGGY_PROTOCOL_VERSION,
            sdk_name: name("test"),
            sdk_version: name("1"),
        },
        username: name("iggy"),
        password: "iggy".to_owned().into(),
        client_context: None,
    };
    request.to_bytes().into()
}

pub(super) fn head(client: u128, operation: Operation, code: u32, request: u64) -> RequestHead {
    let session = u64::from(operation != Operation::Register);
    RequestHead { client, checksum: 0, request, operation: operation as u8, session, code }
}

pub(super) fn seen(frame: &[u8]) -> Seen {
    let number = |at: usize| u32::from_le_bytes(frame[at..at + 4].try_into().expect("a header"));
    Seen {
        command: frame[60],
        request: u64::from_le_bytes(frame[200..208].try_into().expect("a header")),
        status: number(216),
        reason: frame[255],
        body: frame[256..].to_vec(),
    }
}

/// Offset a confirmation names.
pub(super) fn confirmed(seen: &Seen) -> u64 {
    assert_eq!((seen.command, seen.status, seen.body.len()), (8, 0, 24), "{seen:?}");
    u64::from_le_bytes(seen.body[16..].try_into().expect("a confirmation"))
}

/// Offsets of a poll reply whose records verify in full.
pub(super) fn polled(seen: &Seen) -> Result<Vec<u64>, iggy_binary_protocol::WireError> {
    assert_eq!((seen.command, seen.status), (8, 0), "{seen:?}");
    let mut offsets = Vec::new();
    let mut at = 16;
    while at < seen.body.len() {
        let batch = decode_batch_slice(&seen.body[at..])?;
        let base = batch.header.base_offset;
        offsets.extend(batch.iter().map(|m| base + u64::from(m.header.offset_delta)));
        at += batch.header.total_size();
    }
    Ok(offsets)
}

/// A client on a socket, one request at a time unless told otherwise.
pub(super) struct Peer {
    pub socket: TcpStream,
    client: u128,
    last: u64,
}

impl Peer {
    /// Connects and logs in.
    #[allow(clippy::disallowed_methods)] // a test client is a socket
    pub fn new(address: SocketAddr, client: u128) -> Peer {
        let socket = TcpStream::connect(address).expect("the broker listens");
        socket.set_read_timeout(Some(Duration::from_secs(10))).expect("a live socket");
        let mut peer = Peer { socket, client, last: 0 };
        peer.write(Operation::Register, 0, 0, &login_body());
        let reply = peer.read().expect("a login reply");
        assert_eq!((reply.command, reply.status), (8, 0));
        peer
    }

    pub fn write(&mut self, operation: Operation, code: u32, request: u64, body: &[u8]) {
        let frame = request_frame(&head(self.client, operation, code, request), body);
        self.socket.write_all(&frame).expect("a live socket");
    }

    /// Writes a send without waiting; its number comes back.
    pub fn start_send(&mut self, partition: u32, first_id: u64, count: u32) -> u64 {
        self.last += 1;
        let body = send_body(partition, first_id, count);
        self.write(Operation::SendMessages, 0, self.last, &body);
        self.last
    }

    pub fn send(&mut self, partition: u32, first_id: u64, count: u32) -> Seen {
        let number = self.start_send(partition, first_id, count);
        let reply = self.read().expect("a reply");
        assert!(reply.command == 13 || reply.request == number, "{reply:?} for {number}");
        reply
    }

    pub fn start_poll(&mut self, partition: u32, from: u64, count: u32) -> u64 {
        self.last += 1;
        let body = poll_body(partition, from, count);
        self.write(Operation::NonReplicated, 100, self.last, &body);
        self.last
    }

    pub fn poll(&mut self, partition: u32, from: u64, count: u32) -> Seen {
        let number = self.start_poll(partition, from, count);
        let reply = self.read().expect("a reply");
        assert_eq!(reply.request, number);
        reply
    }

    /// The next frame, or `None` when the broker closed the connection.
    pub fn read(&mut self) -> Option<Seen> {
        let mut frame = vec![0; HEADER_SIZE];
        self.socket.read_exact(&mut frame).ok()?;
        let size = u32::from_le_bytes(frame[48..52].try_into().expect("a header"));
        frame.resize(size as usize, 0);
        self.socket.read_exact(&mut frame[HEADER_SIZE..]).ok()?;
        Some(seen(&frame))
    }

    /// True when nothing comes for a while.
    pub fn is_silent(&mut self, wait: Duration) -> bool {
        self.socket.set_read_timeout(Some(wait)).expect("a live socket");
        let mut byte = [0];
        let quiet = matches!(self.socket.peek(&mut byte), Err(error)
            if matches!(error.kind(), std::io::ErrorKind::WouldBlock));
        self.socket.set_read_timeout(Some(Duration::from_secs(10))).expect("a live socket");
        quiet
    }
}

pub(super) fn request_frame(head: &RequestHead, body: &[u8]) -> Vec<u8> {
    let mut header: Header = [0; HEADER_SIZE];
    let size = u32::try_from(HEADER_SIZE + body.len()).expect("a small frame");
    header[48..52].copy_from_slice(&size.to_le_bytes());
    header[60] = Command::Request as u8;
    header[128..144].copy_from_slice(&head.client.to_le_bytes());
    header[144..160].copy_from_slice(&head.checksum.to_le_bytes());
    header[168..176].copy_from_slice(&head.request.to_le_bytes());
    header[176] = head.operation;
    header[184..192].copy_from_slice(&head.session.to_le_bytes());
    header[196..200].copy_from_slice(&head.code.to_le_bytes());
    [header.as_slice(), body].concat()
}

/// Ids in the log of partition 0.
pub(super) fn ids(control: &Control) -> Vec<u128> {
    let stored = control.dump(STREAM, TOPIC, 0, 0, u32::MAX).expect("the partition");
    stored.iter().map(|message| message.id).collect()
}

/// Asks until the answer is yes.
#[allow(clippy::disallowed_methods)] // a test waits
pub(super) fn eventually(what: &str, holds: impl Fn() -> bool) {
    for _ in 0..2000 {
        if holds() {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("never came true: {what}");
}
