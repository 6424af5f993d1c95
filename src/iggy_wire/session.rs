//! One connection's protocol state: login, request numbers, matching of replies. Sans-IO: the
//! driver writes what [`Session::request`] returns, reads 256 bytes, asks
//! [`Session::on_header`] how many more follow, and hands them to [`Session::on_reply`].
//!
//! Numbers: reads have the top bit set, replicated operations do not; both count up by one from
//! a random start, so that a reply meant for another connection is recognised as unknown. A
//! server that remembers the last 128 ids of a client and partition never meets one of ours out
//! of order: sends of a connection share one counter.
//!
//! A reply belongs to a request when its number *and* its kind of operation fit; anything else
//! is [`Delivery::Stray`] and answers nothing. An eviction ends the session.

use bytes::Bytes;

use super::command::{Reply, Request};
use super::decode::{Expect, decode, decode_login};
use super::encode::{Envelope, encode, encode_login};
use super::error::{ServerError, WireError};
use super::frame::{HEADER_LEN, HeaderBytes, OP_REGISTER, ReplyHeader, ServerHeader};
use super::layout::wide;

pub use super::encode::{Credentials, Outgoing};

/// Requests without a reply on one connection; servers drop replies silently beyond it.
pub const MAX_OUTSTANDING: usize = 1024;

const READ_BIT: u64 = 1 << 63;
const START_MASK: u64 = (1 << 62) - 1;

/// State of one connection. A reconnect gets a new one, with a new client id and start number.
#[derive(Debug)]
pub struct Session {
    client: u128,
    session: u64,
    next_operation: u64,
    next_read: u64,
    credentials: Credentials,
    logging_in: bool,
    outstanding: Vec<(u64, Expect)>,
}

/// What a header announces. Before reading the body the driver compares `frame_len` with the
/// reply limit of request `number`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Incoming {
    /// Request answered: 0 is the login, `None` a stray reply or an eviction.
    pub number: Option<u64>,
    /// Bytes that follow the header.
    pub body_len: usize,
    header: ServerHeader,
}

/// What a frame means.
#[derive(Clone, Debug)]
pub enum Delivery {
    /// The login succeeded.
    LoggedIn {
        /// The server's build, for example `0.9.0`.
        server_version: String,
        /// Session id.
        session: u64,
    },
    /// The login failed without an eviction.
    LoginRefused {
        /// The server's code; `None` for an empty reply.
        error: Option<ServerError>,
        /// Worth trying again (57, 58): the metadata leader could not be asked.
        transient: bool,
    },
    /// The answer to request `number`.
    Reply {
        /// From [`Session::request`].
        number: u64,
        /// Answer, or the server's refusal.
        result: Result<Reply, ServerError>,
    },
    /// A reply to nothing that is outstanding: count it and drop it.
    Stray {
        /// Number it carried.
        number: u64,
    },
    /// The server ended the session; every outstanding request is lost, sends are unknown.
    Evicted {
        /// See [`super::error::eviction_words`].
        reason: u8,
    },
}

/// A reply to a known request that does not decode. The connection is beyond use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("reply to {what} (request {number}) is malformed: {error}")]
pub struct MalformedReply {
    /// From [`Session::request`]; 0 is the login.
    pub number: u64,
    /// The request in words.
    pub what: &'static str,
    /// What is wrong.
    pub error: WireError,
}

impl Incoming {
    /// Length of the whole frame.
    pub fn frame_len(&self) -> usize {
        HEADER_LEN.saturating_add(self.body_len)
    }
}

impl Session {
    /// A session that is not logged in yet. `client` and `start` are random; a client id below
    /// 2^64 could be taken for a server's own and is moved up, a start is cut to 62 bits.
    pub fn new(client: u128, start: u64, credentials: Credentials) -> Session {
        let client = if client >> 64 == 0 { client | 1 << 127 } else { client };
        let start = (start & START_MASK).max(1);
        Session {
            client,
            session: 0,
            next_operation: start,
            next_read: READ_BIT | start,
            credentials,
            logging_in: false,
            outstanding: Vec::new(),
        }
    }

    /// The login frame; the first thing to write. Answered by [`Delivery::LoggedIn`],
    /// [`Delivery::LoginRefused`] or [`Delivery::Evicted`].
    pub fn login(&mut self) -> Result<Outgoing, WireError> {
        let outgoing = encode_login(&self.credentials, self.client)?;
        self.logging_in = true;
        Ok(outgoing)
    }

    /// True between [`Delivery::LoggedIn`] and an eviction or a logout.
    pub fn is_logged_in(&self) -> bool {
        self.session != 0
    }

    /// Numbers `request` and encodes it. Only a ping may go out before the login is answered:
    /// servers meet anything else with silence.
    pub fn request(&mut self, request: &Request) -> Result<(u64, Outgoing), WireError> {
        let expect = Expect::of(request);
        if !self.is_logged_in() && expect != Expect::Ping {
            return Err(refused("session", "not logged in".to_owned(), "a login before requests"));
        }
        if self.outstanding.len() >= MAX_OUTSTANDING {
            let seen = self.outstanding.len().to_string();
            return Err(refused("requests without a reply", seen, "at most 1024 at once"));
        }
        let is_read = super::encode::command_code(request) != 0;
        let number = if is_read { self.next_read } else { self.next_operation };
        let envelope = Envelope { client: self.client, session: self.session, number };
        let outgoing = encode(request, envelope)?;
        match is_read {
            true => self.next_read = self.next_read.checked_add(1).unwrap_or(READ_BIT | 1),
            false => self.next_operation = self.next_operation.saturating_add(1),
        }
        self.outstanding.push((number, expect));
        Ok((number, outgoing))
    }

    /// What a header announces, before its body is read.
    pub fn on_header(&self, header: &HeaderBytes) -> Result<Incoming, WireError> {
        let truncated = WireError::Truncated { what: "header", need: HEADER_LEN, have: 0 };
        let header = ServerHeader::parse(header)?.ok_or(truncated)?;
        Ok(match header {
            ServerHeader::Eviction(_) => Incoming { number: None, body_len: 0, header },
            ServerHeader::Reply(reply) => Incoming {
                number: self.answered(&reply).map(|(number, _)| number),
                body_len: wide(reply.size).saturating_sub(HEADER_LEN),
                header,
            },
        })
    }

    /// The meaning of a whole frame.
    pub fn on_reply(
        &mut self,
        incoming: &Incoming,
        body: Bytes,
    ) -> Result<Delivery, MalformedReply> {
        let reply = match incoming.header {
            ServerHeader::Reply(reply) => reply,
            ServerHeader::Eviction(eviction) => {
                self.end();
                return Ok(Delivery::Evicted { reason: eviction.reason });
            }
        };
        match self.answered(&reply) {
            None => Ok(Delivery::Stray { number: reply.request }),
            Some((number, None)) => {
                self.logging_in = false;
                let malformed = |error| MalformedReply { number, what: "login", error };
                let login = decode_login(&reply, body).map_err(malformed)?;
                Ok(self.logged_in(login))
            }
            Some((number, Some(expect))) => {
                self.forget(number);
                let malformed = |error| MalformedReply { number, what: expect.name(), error };
                let result = decode(expect, &reply, body).map_err(malformed)?;
                if expect == Expect::LoggedOut && result.is_ok() {
                    self.end();
                }
                Ok(Delivery::Reply { number, result })
            }
        }
    }

    /// Gives up waiting for `number`: its reply, if one still comes, is a stray.
    pub fn forget(&mut self, number: u64) {
        self.outstanding.retain(|(n, _)| *n != number);
    }

    /// Requests without a reply, in the order they were made.
    pub fn outstanding(&self) -> impl Iterator<Item = u64> {
        self.outstanding.iter().map(|(number, _)| *number)
    }

    /// The request a reply answers; no [`Expect`] means the login.
    fn answered(&self, reply: &ReplyHeader) -> Option<(u64, Option<Expect>)> {
        if reply.operation == OP_REGISTER {
            return (self.logging_in && reply.request == 0).then_some((0, None));
        }
        self.outstanding
            .iter()
            .find(|(number, expect)| *number == reply.request && expect.answers(reply.operation))
            .map(|(number, expect)| (*number, Some(*expect)))
    }

    fn logged_in(&mut self, login: Result<super::decode::Login, Option<ServerError>>) -> Delivery {
        match login {
            Ok(login) => {
                self.session = login.session;
                Delivery::LoggedIn { server_version: login.server_version, session: login.session }
            }
            Err(error) => Delivery::LoginRefused {
                error,
                transient: error.is_some_and(|e| e.is_unknown_outcome() || e.is_not_accepted()),
            },
        }
    }

    fn end(&mut self) {
        self.session = 0;
        self.logging_in = false;
        self.outstanding.clear();
    }
}

fn refused(what: &'static str, seen: String, expected: &'static str) -> WireError {
    WireError::Invalid { what, seen, expected }
}
