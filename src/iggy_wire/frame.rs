//! The 256-byte headers in front of every body, in both directions.
//!
//! ```text
//! all        0        48     60        128                                            256
//!            | zero.. | size | command | depends on command ........................... |
//! request 5  128 client:16 | 144 checksum:16 | 168 request:8 | 176 operation:1
//!            184 session:8 | 196 code:4 (operation 2 only)
//! reply 8    128 checksum:16 | 160 client:16 | 176 op:8 | 184 commit:8 | 192 timestamp:8
//!            200 request:8 | 208 operation:1 | 216 status:4
//! evict 13   128 client:16 | 144 newest protocol:4 | 148 oldest protocol:4 | 255 reason:1
//! ```
//!
//! `size` counts header and body. Fields not named here are zero from us and ignored from
//! servers. Fewer than 256 bytes are `Ok(None)`; nothing here allocates or panics.

use super::error::WireError;
use super::layout::{get, put};

/// Length of every header.
pub const HEADER_LEN: usize = 256;
/// Largest request frame a server takes, inclusive; one byte more closes the connection.
pub const MAX_REQUEST: usize = 64 * 1024 * 1024;

/// A header as bytes.
pub type HeaderBytes = [u8; HEADER_LEN];

/// Operation byte of a login.
pub const OP_REGISTER: u8 = 1;
/// Operation byte of everything that is not replicated; the code says what it is.
pub const OP_NON_REPLICATED: u8 = 2;
/// Operation byte of a logout.
pub const OP_LOGOUT: u8 = 3;
/// Operation byte in *replies* to [`OP_CREATE_TOPIC`].
pub const OP_TOPIC_CREATED: u8 = 64;
/// Operation byte in *replies* to [`OP_CREATE_PARTITIONS`].
pub const OP_PARTITIONS_CREATED: u8 = 65;
/// Operation byte.
pub const OP_CREATE_STREAM: u8 = 128;
/// Operation byte.
pub const OP_CREATE_TOPIC: u8 = 132;
/// Operation byte.
pub const OP_CREATE_PARTITIONS: u8 = 136;
/// Operation byte.
pub const OP_SEND: u8 = 160;

const HEADER_SIZE: u64 = 256;
const MAX_REQUEST_SIZE: u64 = 64 * 1024 * 1024;

const COMMAND_REQUEST: u8 = 5;
const COMMAND_REPLY: u8 = 8;
const COMMAND_EVICTION: u8 = 13;

/// Header of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestHeader {
    /// Frame length: header and body.
    pub size: u32,
    /// Client id, never 0.
    pub client: u128,
    /// XXH3-64 of the body, or 0 for "do not check".
    pub request_checksum: u128,
    /// Request number; 0 only for a login.
    pub request: u64,
    /// What is asked.
    pub operation: u8,
    /// From the login reply; 0 in a login.
    pub session: u64,
    /// What is asked when `operation` is [`OP_NON_REPLICATED`], else 0.
    pub code: u32,
}

/// Header of a reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplyHeader {
    /// Frame length: header and body.
    pub size: u32,
    /// Echo of the request's stamp.
    pub request_checksum: u128,
    /// Not a match key: servers put different kinds of ids here.
    pub client: u128,
    /// Session or log position.
    pub op: u64,
    /// Log position that is committed.
    pub commit: u64,
    /// Commit time, microseconds, 0 on local answers.
    pub timestamp: u64,
    /// Echo of the request number.
    pub request: u64,
    /// Echo of the operation, or its internal form.
    pub operation: u8,
    /// 0, or an error code and an empty body.
    pub status: u32,
}

/// Header of an eviction: the server ended the session. No body, no request number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EvictionHeader {
    /// Client id.
    pub client: u128,
    /// Newest protocol the server accepts, packed, with reason 14 only.
    pub newest_protocol: u32,
    /// Oldest protocol the server accepts, packed, with reason 14 only.
    pub oldest_protocol: u32,
    /// Why, see [`super::error::eviction_words`].
    pub reason: u8,
}

/// What a server sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerHeader {
    /// An answer.
    Reply(ReplyHeader),
    /// The end of the session.
    Eviction(EvictionHeader),
}

impl RequestHeader {
    /// The header as bytes.
    pub fn encode(&self) -> HeaderBytes {
        let mut h = [0; HEADER_LEN];
        self.encode_into(&mut h);
        h
    }

    /// Fills a header that is all zero.
    pub fn encode_into(&self, h: &mut HeaderBytes) {
        put::<48, 4, 256>(h, self.size.to_le_bytes());
        put::<60, 1, 256>(h, [COMMAND_REQUEST]);
        put::<128, 16, 256>(h, self.client.to_le_bytes());
        put::<144, 16, 256>(h, self.request_checksum.to_le_bytes());
        put::<168, 8, 256>(h, self.request.to_le_bytes());
        put::<176, 1, 256>(h, [self.operation]);
        put::<184, 8, 256>(h, self.session.to_le_bytes());
        put::<196, 4, 256>(h, self.code.to_le_bytes());
    }

    /// Reads a request header; for servers.
    pub fn parse(bytes: &[u8]) -> Result<Option<RequestHeader>, WireError> {
        let Some(h) = bytes.first_chunk::<HEADER_LEN>() else { return Ok(None) };
        let [command] = get::<60, 1, 256>(h);
        if command != COMMAND_REQUEST {
            return Err(invalid("command of a request", command, "5"));
        }
        let size = frame_size(h)?;
        if size > MAX_REQUEST_SIZE {
            return Err(invalid("size of a request frame", size, "at most 67108864 bytes"));
        }
        let [operation] = get::<176, 1, 256>(h);
        Ok(Some(RequestHeader {
            size: u32::from_le_bytes(get::<48, 4, 256>(h)),
            client: u128::from_le_bytes(get::<128, 16, 256>(h)),
            request_checksum: u128::from_le_bytes(get::<144, 16, 256>(h)),
            request: u64::from_le_bytes(get::<168, 8, 256>(h)),
            operation,
            session: u64::from_le_bytes(get::<184, 8, 256>(h)),
            code: u32::from_le_bytes(get::<196, 4, 256>(h)),
        }))
    }
}

impl ReplyHeader {
    /// The header as bytes; for servers.
    pub fn encode(&self) -> HeaderBytes {
        let mut h = [0; HEADER_LEN];
        put::<48, 4, 256>(&mut h, self.size.to_le_bytes());
        put::<60, 1, 256>(&mut h, [COMMAND_REPLY]);
        put::<128, 16, 256>(&mut h, self.request_checksum.to_le_bytes());
        put::<160, 16, 256>(&mut h, self.client.to_le_bytes());
        put::<176, 8, 256>(&mut h, self.op.to_le_bytes());
        put::<184, 8, 256>(&mut h, self.commit.to_le_bytes());
        put::<192, 8, 256>(&mut h, self.timestamp.to_le_bytes());
        put::<200, 8, 256>(&mut h, self.request.to_le_bytes());
        put::<208, 1, 256>(&mut h, [self.operation]);
        put::<216, 4, 256>(&mut h, self.status.to_le_bytes());
        h
    }

    fn parse(h: &HeaderBytes) -> ReplyHeader {
        let [operation] = get::<208, 1, 256>(h);
        ReplyHeader {
            size: u32::from_le_bytes(get::<48, 4, 256>(h)),
            request_checksum: u128::from_le_bytes(get::<128, 16, 256>(h)),
            client: u128::from_le_bytes(get::<160, 16, 256>(h)),
            op: u64::from_le_bytes(get::<176, 8, 256>(h)),
            commit: u64::from_le_bytes(get::<184, 8, 256>(h)),
            timestamp: u64::from_le_bytes(get::<192, 8, 256>(h)),
            request: u64::from_le_bytes(get::<200, 8, 256>(h)),
            operation,
            status: u32::from_le_bytes(get::<216, 4, 256>(h)),
        }
    }
}

impl EvictionHeader {
    /// The header as bytes; for servers.
    pub fn encode(&self) -> HeaderBytes {
        let mut h = [0; HEADER_LEN];
        put::<48, 4, 256>(&mut h, 256u32.to_le_bytes());
        put::<60, 1, 256>(&mut h, [COMMAND_EVICTION]);
        put::<128, 16, 256>(&mut h, self.client.to_le_bytes());
        put::<144, 4, 256>(&mut h, self.newest_protocol.to_le_bytes());
        put::<148, 4, 256>(&mut h, self.oldest_protocol.to_le_bytes());
        put::<255, 1, 256>(&mut h, [self.reason]);
        h
    }

    fn parse(h: &HeaderBytes) -> EvictionHeader {
        let [reason] = get::<255, 1, 256>(h);
        EvictionHeader {
            client: u128::from_le_bytes(get::<128, 16, 256>(h)),
            newest_protocol: u32::from_le_bytes(get::<144, 4, 256>(h)),
            oldest_protocol: u32::from_le_bytes(get::<148, 4, 256>(h)),
            reason,
        }
    }
}

impl ServerHeader {
    /// Reads a header a server sent; fewer than 256 bytes are `Ok(None)`.
    pub fn parse(bytes: &[u8]) -> Result<Option<ServerHeader>, WireError> {
        bytes.first_chunk::<HEADER_LEN>().map(ServerHeader::of).transpose()
    }

    /// Reads a whole header.
    pub fn of(h: &HeaderBytes) -> Result<ServerHeader, WireError> {
        let [command] = get::<60, 1, 256>(h);
        let size = frame_size(h)?;
        match command {
            COMMAND_REPLY => Ok(ServerHeader::Reply(ReplyHeader::parse(h))),
            COMMAND_EVICTION if size == HEADER_SIZE => {
                Ok(ServerHeader::Eviction(EvictionHeader::parse(h)))
            }
            COMMAND_EVICTION => Err(invalid("size of an eviction frame", size, "256 bytes")),
            other => Err(invalid("command of a server frame", other, "8 (reply) or 13 (eviction)")),
        }
    }
}

fn frame_size(h: &HeaderBytes) -> Result<u64, WireError> {
    let size = u64::from(u32::from_le_bytes(get::<48, 4, 256>(h)));
    if size < HEADER_SIZE {
        return Err(invalid("frame size", size, "at least 256 bytes"));
    }
    Ok(size)
}

fn invalid(what: &'static str, seen: impl ToString, expected: &'static str) -> WireError {
    WireError::Invalid { what, seen: seen.to_string(), expected }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_prefix_of_a_header_is_incomplete() {
        let request = RequestHeader { size: 256, ..RequestHeader::default() }.encode();
        let reply = ReplyHeader { size: 256, ..ReplyHeader::default() }.encode();
        for cut in 0..HEADER_LEN {
            assert_eq!(RequestHeader::parse(&request[..cut]), Ok(None));
            assert_eq!(ServerHeader::parse(&reply[..cut]), Ok(None));
        }
    }

    #[test]
    fn headers_survive_the_wire() {
        let request = RequestHeader {
            size: 300,
            client: 7 << 100,
            request_checksum: 9,
            request: u64::MAX,
            operation: OP_SEND,
            session: 11,
            code: 12,
        };
        assert_eq!(RequestHeader::parse(&request.encode()), Ok(Some(request)));
        let reply = ReplyHeader {
            size: u32::MAX,
            request_checksum: 1,
            client: 2,
            op: 3,
            commit: 4,
            timestamp: 5,
            request: 6,
            operation: 7,
            status: 8,
        };
        assert_eq!(ServerHeader::parse(&reply.encode()), Ok(Some(ServerHeader::Reply(reply))));
        let evicted =
            EvictionHeader { client: 1, newest_protocol: 2, oldest_protocol: 3, reason: 14 };
        assert_eq!(
            ServerHeader::parse(&evicted.encode()),
            Ok(Some(ServerHeader::Eviction(evicted)))
        );
    }

    #[test]
    fn sizes_and_commands_no_peer_sends_are_refused() {
        let small = ReplyHeader { size: 255, ..ReplyHeader::default() }.encode();
        assert!(ServerHeader::parse(&small).is_err());
        let mut unknown = ReplyHeader { size: 256, ..ReplyHeader::default() }.encode();
        for command in (0..=u8::MAX).filter(|c| *c != COMMAND_REPLY && *c != COMMAND_EVICTION) {
            unknown[60] = command;
            assert!(ServerHeader::parse(&unknown).is_err(), "command {command}");
        }
        let mut with_body = EvictionHeader::default().encode();
        with_body[48..52].copy_from_slice(&257u32.to_le_bytes());
        assert!(ServerHeader::parse(&with_body).is_err());
    }

    #[test]
    fn a_request_of_64_mib_passes_and_one_byte_more_does_not() {
        let most = RequestHeader { size: MAX_REQUEST as u32, ..RequestHeader::default() };
        assert_eq!(RequestHeader::parse(&most.encode()), Ok(Some(most)));
        let over = RequestHeader { size: most.size + 1, ..most };
        assert!(RequestHeader::parse(&over.encode()).is_err());
    }
}
