//! Requests as bytes: one small head buffer, allocated at its exact size, and for a send the
//! record's frames by reference, so that a driver needs one vectored write and copies no payload.
//!
//! ```text
//! poll  header | consumer 01 01 04 id:4 | stream | topic | 01 partition:4
//!              | strategy:1 value:8 | count:4 | auto_commit 00
//! route header | the body of a poll, of which the server reads stream, topic and partition
//! send  header | length:4 | stream | topic | partitioning | count:4 | batch header:256 ‖ frames
//! names         02 length:1 utf-8          partitioning  01 00 or 02 04 partition:4
//! ```
//!
//! `length` counts from the stream through the count. Metadata operations carry a checksum of
//! their body, which makes a reused number with another body visible to the server; sends and
//! reads do not, it would cost one more pass over the bytes.

use std::fmt;

use bytes::{BufMut, Bytes, BytesMut};
use iggy_binary_protocol::codes;
use iggy_binary_protocol::requests::{partitions, streams, system, topics, users};
use iggy_binary_protocol::{
    ClientVersionInfo, IGGY_PROTOCOL_VERSION, WireEncode, WireIdentifier, WireName, WireOptions,
};
use twox_hash::XxHash3_64;

use super::blob::BATCH_HEADER_LEN;
use super::build::encode_typed;
use super::command::{PollFrom, Request, SendTo, TopicOption};
use super::error::WireError;
use super::frame::{
    HEADER_LEN, MAX_REQUEST, OP_CREATE_PARTITIONS, OP_CREATE_STREAM, OP_CREATE_TOPIC, OP_LOGOUT,
    OP_NON_REPLICATED, OP_REGISTER, OP_SEND, RequestHeader,
};
use super::record::{Relay, encode_header};
use crate::secret::Secret;

/// The consumer every poll names. Nothing is ever stored under it: polls carry an explicit
/// position and never auto-commit, so sharing it with another consumer is harmless.
pub const POLL_CONSUMER_ID: u32 = 1;

/// What this client calls itself at login.
pub const SDK_NAME: &str = "tidegate";

/// How a connection logs in. `Debug` never shows the secret.
#[derive(Clone, PartialEq, Eq)]
pub enum Credentials {
    /// User and password.
    Password {
        /// User name, 1 to 255 bytes.
        username: String,
        /// Password, at most 255 bytes.
        password: Secret,
    },
    /// Personal access token, at most 255 bytes.
    Token(Secret),
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Credentials::Password { username, .. } => {
                write!(f, "password of {username:?} (hidden)")
            }
            Credentials::Token(_) => f.write_str("token (hidden)"),
        }
    }
}

/// A request ready for one vectored write: `head`, then `tail`, then `more`.
#[derive(Clone)]
pub struct Outgoing {
    /// Frame header and body, or for a send everything up to and including the batch header.
    pub head: Bytes,
    /// The frames of a send, shared with the record.
    pub tail: Option<Bytes>,
    /// More of them, from other buffers.
    pub more: Vec<Bytes>,
}

/// What the header says besides the request itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// Client id.
    pub client: u128,
    /// Session from the login reply; 0 in a login.
    pub session: u64,
    /// Request number; 0 in a login.
    pub number: u64,
}

impl fmt::Debug for Outgoing {
    // May hold a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Outgoing({} bytes)", self.len())
    }
}

impl Outgoing {
    /// Length of the whole frame.
    #[expect(clippy::len_without_is_empty, reason = "a frame is never shorter than its header")]
    pub fn len(&self) -> usize {
        self.parts().map(Bytes::len).fold(0, usize::saturating_add)
    }

    /// Its bytes in order, in several pieces.
    pub fn parts(&self) -> impl Iterator<Item = &Bytes> {
        [&self.head].into_iter().chain(&self.tail).chain(&self.more)
    }
}

/// The frame of `request`.
pub fn encode(request: &Request, envelope: Envelope) -> Result<Outgoing, WireError> {
    let code = command_code(request);
    let (mut tail, mut more) = (None, Vec::new());
    let (operation, stamp, head) = match request {
        Request::Ping | Request::ClusterMetadata | Request::Streams => {
            (OP_NON_REPLICATED, false, head(0))
        }
        Request::DescribeTopicOptions => {
            let scope = system::describe_options::OPTIONS_SCOPE_TOPIC;
            let body = system::DescribeOptionsRequest { scope };
            (OP_NON_REPLICATED, false, cold(&body))
        }
        Request::Stream { stream } => {
            let body = streams::GetStreamRequest { stream_id: stream_id(stream)? };
            (OP_NON_REPLICATED, false, cold(&body))
        }
        Request::Topics { stream } => {
            let body = topics::GetTopicsRequest { stream_id: stream_id(stream)? };
            (OP_NON_REPLICATED, false, cold(&body))
        }
        Request::Topic { stream, topic } => {
            let (stream_id, topic_id) = (stream_id(stream)?, topic_id(topic)?);
            (OP_NON_REPLICATED, false, cold(&topics::GetTopicRequest { stream_id, topic_id }))
        }
        Request::CreateStream { stream } => {
            let body = streams::CreateStreamRequest {
                name: name("stream name", stream)?,
                options: WireOptions::empty(),
            };
            (OP_CREATE_STREAM, true, cold(&body))
        }
        Request::CreateTopic { stream, topic, partitions, options } => {
            let body = topics::CreateTopicRequest {
                stream_id: stream_id(stream)?,
                partitions_count: *partitions,
                name: name("topic name", topic)?,
                options: topic_options(options)?,
            };
            (OP_CREATE_TOPIC, true, cold(&body))
        }
        Request::CreatePartitions { stream, topic, add } => {
            let body = partitions::CreatePartitionsRequest {
                stream_id: stream_id(stream)?,
                topic_id: topic_id(topic)?,
                partitions_count: *add,
            };
            (OP_CREATE_PARTITIONS, true, cold(&body))
        }
        Request::Poll { stream, topic, partition, from, count } => {
            (OP_NON_REPLICATED, false, poll(stream, topic, *partition, *from, *count)?)
        }
        Request::Primary { stream, topic, partition } => {
            (OP_NON_REPLICATED, false, poll(stream, topic, *partition, PollFrom::Last, 1)?)
        }
        Request::Send { stream, topic, to, record } => {
            tail = Some(record.blob().clone());
            more = record.more().to_vec();
            (OP_SEND, false, send(stream, topic, *to, record)?)
        }
        Request::Logout => (OP_LOGOUT, true, head(0)),
    };
    seal(Outgoing { head: Bytes::new(), tail, more }, head, operation, code, stamp, envelope)
}

/// The frame that logs in.
pub fn encode_login(credentials: &Credentials, client: u128) -> Result<Outgoing, WireError> {
    let version_info = ClientVersionInfo {
        protocol_version: IGGY_PROTOCOL_VERSION,
        sdk_name: name("client name", SDK_NAME)?,
        sdk_version: name("client version", env!("CARGO_PKG_VERSION"))?,
    };
    let head = match credentials {
        Credentials::Password { username, password } => cold(&users::LoginRegisterRequest {
            version_info,
            username: name("user name", username)?,
            password: secret("password", password.expose())?.into(),
            client_context: None,
        }),
        Credentials::Token(token) => cold(&users::LoginRegisterWithPatRequest {
            version_info,
            token: secret("personal access token", token.expose())?.into(),
            client_context: None,
        }),
    };
    let outgoing = Outgoing { head: Bytes::new(), tail: None, more: Vec::new() };
    let envelope = Envelope { client, session: 0, number: 0 };
    seal(outgoing, head, OP_REGISTER, 0, true, envelope)
}

/// Length of the frame that sends a record of `record_len` bytes: above [`MAX_REQUEST`] no
/// server takes it, and [`encode`] refuses it.
pub fn send_frame_len(stream: &str, topic: &str, to: SendTo, record_len: usize) -> usize {
    [HEADER_LEN, 4, send_metadata_len(stream, topic, to), record_len]
        .into_iter()
        .fold(0, usize::saturating_add)
}

/// The command code of a read, 0 for an operation that has a byte of its own.
pub(super) fn command_code(request: &Request) -> u32 {
    match request {
        Request::Ping => codes::PING_CODE,
        Request::ClusterMetadata => codes::GET_CLUSTER_METADATA_CODE,
        Request::DescribeTopicOptions => codes::DESCRIBE_OPTIONS_CODE,
        Request::Streams => codes::GET_STREAMS_CODE,
        Request::Stream { .. } => codes::GET_STREAM_CODE,
        Request::Topics { .. } => codes::GET_TOPICS_CODE,
        Request::Topic { .. } => codes::GET_TOPIC_CODE,
        Request::Poll { .. } => codes::POLL_MESSAGES_CODE,
        Request::Primary { .. } => codes::GET_POLL_ROUTING_CODE,
        Request::CreateStream { .. }
        | Request::CreateTopic { .. }
        | Request::CreatePartitions { .. }
        | Request::Send { .. }
        | Request::Logout => 0,
    }
}

fn poll(
    stream: &str,
    topic: &str,
    partition: u32,
    from: PollFrom,
    count: u32,
) -> Result<BytesMut, WireError> {
    let (kind, value) = match from {
        PollFrom::Offset(offset) => (1, offset),
        PollFrom::First => (3, 0),
        PollFrom::Last => (4, 0),
    };
    let mut buf = head(names_len(stream, topic).saturating_add(7 + 5 + 9 + 4 + 1));
    buf.put_slice(&[1, 1, 4]);
    buf.put_u32_le(POLL_CONSUMER_ID);
    put_name(&mut buf, "stream name", stream)?;
    put_name(&mut buf, "topic name", topic)?;
    buf.put_u8(1);
    buf.put_u32_le(partition);
    buf.put_u8(kind);
    buf.put_u64_le(value);
    buf.put_u32_le(count);
    buf.put_u8(0);
    Ok(buf)
}

fn send(stream: &str, topic: &str, to: SendTo, record: &Relay) -> Result<BytesMut, WireError> {
    let metadata = send_metadata_len(stream, topic, to);
    let mut buf = head(metadata.saturating_add(4 + BATCH_HEADER_LEN));
    buf.put_u32_le(u32::try_from(metadata).unwrap_or(u32::MAX));
    put_name(&mut buf, "stream name", stream)?;
    put_name(&mut buf, "topic name", topic)?;
    match to {
        SendTo::Partition(partition) => {
            buf.put_slice(&[2, 4]);
            buf.put_u32_le(partition);
        }
        SendTo::Balanced => buf.put_slice(&[1, 0]),
    }
    buf.put_u32_le(record.count());
    buf.put_slice(&record.header());
    Ok(buf)
}

/// A head buffer: room for `body` bytes behind a header that is still zero.
fn head(body: usize) -> BytesMut {
    let mut buf = BytesMut::with_capacity(HEADER_LEN.saturating_add(body));
    buf.put_bytes(0, HEADER_LEN);
    buf
}

fn cold(body: &impl WireEncode) -> BytesMut {
    let mut buf = head(body.encoded_size());
    body.encode(&mut buf);
    buf
}

/// Fills in the header, now that the length is known.
fn seal(
    mut outgoing: Outgoing,
    mut head: BytesMut,
    operation: u8,
    code: u32,
    stamp: bool,
    envelope: Envelope,
) -> Result<Outgoing, WireError> {
    let length = head.len().saturating_add(outgoing.len());
    let too_large = || WireError::Invalid {
        what: "request frame",
        seen: format!("{length} bytes"),
        expected: "at most 67108864 bytes",
    };
    let size = u32::try_from(length).map_err(|_| too_large())?;
    if length > MAX_REQUEST {
        return Err(too_large());
    }
    let request_checksum = match stamp {
        true => u128::from(XxHash3_64::oneshot(head.get(HEADER_LEN..).unwrap_or_default())),
        false => 0,
    };
    let header = RequestHeader {
        size,
        client: envelope.client,
        request_checksum,
        request: envelope.number,
        operation,
        session: envelope.session,
        code,
    };
    if let Some(bytes) = head.first_chunk_mut::<HEADER_LEN>() {
        header.encode_into(bytes);
    }
    outgoing.head = head.freeze();
    Ok(outgoing)
}

/// From the stream through the message count.
fn send_metadata_len(stream: &str, topic: &str, to: SendTo) -> usize {
    let to_len = match to {
        SendTo::Partition(_) => 6,
        SendTo::Balanced => 2,
    };
    names_len(stream, topic).saturating_add(to_len + 4)
}

fn names_len(stream: &str, topic: &str) -> usize {
    4usize.saturating_add(stream.len()).saturating_add(topic.len())
}

fn put_name(buf: &mut BytesMut, what: &'static str, name: &str) -> Result<(), WireError> {
    let length = u8::try_from(name.len()).ok().filter(|n| *n > 0);
    let length = length.ok_or_else(|| bad_length(what, name.len(), "1 to 255 bytes"))?;
    buf.put_slice(&[2, length]);
    buf.put_slice(name.as_bytes());
    Ok(())
}

fn name(what: &'static str, text: &str) -> Result<WireName, WireError> {
    WireName::new(text).map_err(|_| bad_length(what, text.len(), "1 to 255 bytes"))
}

fn stream_id(stream: &str) -> Result<WireIdentifier, WireError> {
    Ok(WireIdentifier::String(name("stream name", stream)?))
}

fn topic_id(topic: &str) -> Result<WireIdentifier, WireError> {
    Ok(WireIdentifier::String(name("topic name", topic)?))
}

fn secret(what: &'static str, text: &str) -> Result<String, WireError> {
    match u8::try_from(text.len()) {
        Ok(_) => Ok(text.to_owned()),
        Err(_) => Err(bad_length(what, text.len(), "at most 255 bytes")),
    }
}

/// Options the server reads as 64-bit numbers. As text it takes some of them only with a unit
/// (`message_expiry` as a duration), so a plain number goes typed.
const WIDE_OPTIONS: [&str; 4] =
    ["message_expiry", "max_topic_size", "segment_size", "size_of_messages_required_to_save"];
const KIND_UINT64: u8 = 12;

fn topic_options(options: &[TopicOption]) -> Result<WireOptions, WireError> {
    let mut block = Vec::new();
    for option in options {
        if WIDE_OPTIONS.contains(&option.key.as_str())
            && let Ok(number) = option.value.parse::<u64>()
        {
            encode_typed(&mut block, &option.key, KIND_UINT64, &number.to_le_bytes());
        } else if !encode_header(&mut block, &option.key, &option.value) {
            let seen = option.key.len().max(option.value.len());
            return Err(bad_length("topic option key or value", seen, "1 to 255 bytes each"));
        }
    }
    WireOptions::from_bytes(Bytes::from(block)).map_err(|why| WireError::Invalid {
        what: "topic options",
        seen: why.to_string(),
        expected: "distinct keys, at most 1024 and 100000 bytes",
    })
}

fn bad_length(what: &'static str, seen: usize, expected: &'static str) -> WireError {
    WireError::Invalid { what, seen: format!("{seen} bytes"), expected }
}
