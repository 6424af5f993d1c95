//! Frames as the broker sees them: request headers in, reply and eviction headers out.
//!
//! ```text
//! request  48 size  60 command  128 client  144 checksum  168 request  176 operation
//!          184 session  196 code (operation 2 only)
//! reply    32 cluster  48 size  60 command=8  128 request checksum  160 client  176 op
//!          184 commit  192 timestamp  200 request  208 operation  216 status
//! eviction 32 cluster  48 size=256  60 command=13  128 client  144 max  148 min  255 reason
//! ```

use bytes::Bytes;
use iggy_binary_protocol::{Command, HEADER_SIZE, IGGY_PROTOCOL_VERSION};
use iggy_binary_protocol::{EvictionReason, IGGY_PROTOCOL_VERSION_MIN};

/// The largest request frame, header included; one byte more closes the connection.
pub const MAX_REQUEST_SIZE: usize = 64 << 20;

/// Highest command byte the protocol knows; anything above closes the connection.
const MAX_COMMAND: u8 = Command::ForwardLogoutResult as u8;

/// A frame header.
pub type Header = [u8; HEADER_SIZE];

/// What the reader does with a header it has just read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// A request: read this many body bytes.
    Request(usize),
    /// A known command that is no request: read and forget this many body bytes.
    Ignore(usize),
    /// Not the protocol, or too large: close without a word.
    Close,
}

/// The fields of a request header the broker looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestHead {
    /// Client id, not 0.
    pub client: u128,
    /// XXH3-64 of the body, or 0 when the client did not stamp it.
    pub checksum: u128,
    /// Request number, echoed in the reply.
    pub request: u64,
    /// Operation byte.
    pub operation: u8,
    /// Session of the login, 0 before it.
    pub session: u64,
    /// Command code when the operation is 2.
    pub code: u32,
}

/// One frame to write, as pieces that go out in one vectored write.
#[derive(Clone, Debug, Default)]
pub struct Frame {
    /// Header first, then body pieces by reference.
    pub pieces: Vec<Bytes>,
    /// True when writing this frame answers a send.
    pub answers_send: bool,
}

/// The fields of a reply header the broker fills.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReplyHead {
    /// Cluster id on replies built from a commit, else 0.
    pub cluster: u128,
    /// Echo of the request's checksum.
    pub checksum: u128,
    /// Client id or transport id.
    pub client: u128,
    /// Log position, or the session on local replies.
    pub op: u64,
    /// Commit position.
    pub commit: u64,
    /// Commit time in microseconds, 0 on local replies.
    pub timestamp: u64,
    /// Echo of the request number.
    pub request: u64,
    /// Operation byte.
    pub operation: u8,
    /// 0 or an error code.
    pub status: u32,
}

/// Judges a header by size and command.
pub fn framing(header: &Header) -> Framing {
    let size = u32_at(header, 48) as usize;
    let command = header[60];
    if !(HEADER_SIZE..=MAX_REQUEST_SIZE).contains(&size) || command > MAX_COMMAND {
        return Framing::Close;
    }
    let body = size - HEADER_SIZE;
    if command == Command::Request as u8 { Framing::Request(body) } else { Framing::Ignore(body) }
}

impl RequestHead {
    /// Reads the fields of a request header.
    pub fn read(header: &Header) -> RequestHead {
        RequestHead {
            client: u128_at(header, 128),
            checksum: u128_at(header, 144),
            request: u64_at(header, 168),
            operation: header[176],
            session: u64_at(header, 184),
            code: u32_at(header, 196),
        }
    }
}

impl ReplyHead {
    /// The whole reply.
    pub fn frame(&self, body: Vec<Bytes>) -> Frame {
        let size = HEADER_SIZE + body.iter().map(Bytes::len).sum::<usize>();
        let mut header = vec![0u8; HEADER_SIZE];
        put(&mut header, 32, &self.cluster.to_le_bytes());
        put(&mut header, 48, &u32::try_from(size).unwrap_or(u32::MAX).to_le_bytes());
        header[60] = Command::Reply as u8;
        put(&mut header, 128, &self.checksum.to_le_bytes());
        put(&mut header, 160, &self.client.to_le_bytes());
        put(&mut header, 176, &self.op.to_le_bytes());
        put(&mut header, 184, &self.commit.to_le_bytes());
        put(&mut header, 192, &self.timestamp.to_le_bytes());
        put(&mut header, 200, &self.request.to_le_bytes());
        header[208] = self.operation;
        put(&mut header, 216, &self.status.to_le_bytes());
        let mut pieces = Vec::with_capacity(1 + body.len());
        pieces.push(Bytes::from(header));
        pieces.extend(body);
        Frame { pieces, answers_send: false }
    }
}

impl Frame {
    /// True for a reply with status 0.
    pub fn is_ok(&self) -> bool {
        self.pieces.first().is_some_and(|header| header[216..220] == [0; 4])
    }

    /// The bytes as one piece.
    pub fn to_vec(&self) -> Vec<u8> {
        self.pieces.concat()
    }
}

/// An eviction frame; reason 14 names the accepted protocol window.
pub fn eviction(cluster: u128, client: u128, reason: EvictionReason) -> Frame {
    let mut header = vec![0u8; HEADER_SIZE];
    put(&mut header, 32, &cluster.to_le_bytes());
    put(&mut header, 48, &(HEADER_SIZE as u32).to_le_bytes());
    header[60] = Command::Eviction as u8;
    put(&mut header, 128, &client.to_le_bytes());
    if reason == EvictionReason::IncompatibleProtocol {
        put(&mut header, 144, &IGGY_PROTOCOL_VERSION.to_le_bytes());
        put(&mut header, 148, &IGGY_PROTOCOL_VERSION_MIN.to_le_bytes());
    }
    header[255] = reason as u8;
    Frame { pieces: vec![Bytes::from(header)], answers_send: false }
}

fn put(header: &mut [u8], at: usize, bytes: &[u8]) {
    header[at..at + bytes.len()].copy_from_slice(bytes);
}

fn u32_at(header: &Header, at: usize) -> u32 {
    u32::from_le_bytes(header[at..at + 4].try_into().expect("four bytes inside the header"))
}

fn u64_at(header: &Header, at: usize) -> u64 {
    u64::from_le_bytes(header[at..at + 8].try_into().expect("eight bytes inside the header"))
}

fn u128_at(header: &Header, at: usize) -> u128 {
    u128::from_le_bytes(header[at..at + 16].try_into().expect("sixteen bytes inside the header"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(size: u32, command: u8) -> Header {
        let mut header = [0; HEADER_SIZE];
        put(&mut header, 48, &size.to_le_bytes());
        header[60] = command;
        header
    }

    #[test]
    fn size_limits_are_inclusive() {
        assert_eq!(framing(&header(256, 5)), Framing::Request(0));
        assert_eq!(framing(&header(255, 5)), Framing::Close);
        assert_eq!(framing(&header(64 << 20, 5)), Framing::Request((64 << 20) - 256));
        assert_eq!(framing(&header((64 << 20) + 1, 5)), Framing::Close);
    }

    #[test]
    fn unknown_command_closes_and_known_one_is_ignored() {
        assert_eq!(framing(&header(300, 30)), Framing::Close);
        assert_eq!(framing(&header(300, 29)), Framing::Ignore(44));
        assert_eq!(framing(&header(300, 0)), Framing::Ignore(44));
    }
}
