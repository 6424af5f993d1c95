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

/// What a header announces. Before reading the body the driver compares
/// [`Incoming::frame_len`] with the
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
        let header = ServerHeader::of(header)?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::iggy_wire::command::{PollFrom, SendTo};
    use crate::iggy_wire::frame::{
        EvictionHeader, MAX_REQUEST, OP_CREATE_TOPIC, OP_LOGOUT, OP_NON_REPLICATED, OP_SEND,
        OP_TOPIC_CREATED, RequestHeader,
    };
    use crate::iggy_wire::record::{Message, build_record};

    fn fresh() -> Session {
        let credentials =
            Credentials::Password { username: "user".into(), password: "hunter2".into() };
        Session::new(5 << 80, 1 << 40, credentials)
    }

    fn ready() -> Session {
        let mut session = fresh();
        session.login().unwrap();
        let body = [&[0; 4][..], &[0; 4], &9u64.to_le_bytes(), &[0, 44, 0, 0], b"\x050.9.0"];
        let delivery = answer(&mut session, 0, OP_REGISTER, 0, &body.concat()).unwrap();
        let Delivery::LoggedIn { server_version, session: 9 } = delivery else {
            panic!("{delivery:?}")
        };
        assert_eq!(server_version, "0.9.0");
        session
    }

    fn answer(
        session: &mut Session,
        number: u64,
        operation: u8,
        status: u32,
        body: &[u8],
    ) -> Result<Delivery, MalformedReply> {
        let size = u32::try_from(HEADER_LEN + body.len()).unwrap();
        let header =
            ReplyHeader { size, request: number, operation, status, ..ReplyHeader::default() };
        let incoming = session.on_header(&header.encode()).unwrap();
        assert_eq!(incoming.body_len, body.len());
        assert_eq!(incoming.frame_len(), 256 + body.len());
        session.on_reply(&incoming, Bytes::copy_from_slice(body))
    }

    fn poll() -> Request {
        let (stream, topic) = ("s".into(), "t".into());
        Request::Poll { stream, topic, partition: 0, from: PollFrom::First, count: 1 }
    }

    fn send(payload: &[u8]) -> Request {
        let record = build_record(&[Message { payload, ..Message::default() }]).unwrap();
        Request::Send { stream: "s".into(), topic: "t".into(), to: SendTo::Partition(3), record }
    }

    fn create_topic() -> Request {
        let (stream, topic) = ("s".into(), "t".into());
        Request::CreateTopic { stream, topic, partitions: 1, options: Vec::new() }
    }

    fn confirmation(partition: u32, base_offset: u64) -> Vec<u8> {
        [&1u32.to_le_bytes()[..], &[0; 8], &partition.to_le_bytes(), &base_offset.to_le_bytes()]
            .concat()
    }

    #[test]
    fn reads_and_operations_never_share_a_number() {
        let mut session = ready();
        let (mut reads, mut operations) = (Vec::new(), Vec::new());
        for _ in 0..5 {
            reads.push(session.request(&poll()).unwrap().0);
            operations.push(session.request(&send(b"x")).unwrap().0);
        }
        assert_eq!(operations, (0..5).map(|n| (1 << 40) + n).collect::<Vec<_>>());
        assert_eq!(reads, operations.iter().map(|n| n | 1 << 63).collect::<Vec<_>>());
    }

    #[test]
    fn any_start_leaves_room_to_count_and_any_client_id_is_large() {
        for start in [0, 1, u64::MAX, 1 << 63] {
            let mut session = Session::new(0, start, Credentials::Token("t".into()));
            session.session = 1;
            let (first, outgoing) = session.request(&send(b"x")).unwrap();
            assert!((1..1 << 62).contains(&first), "start {start} gave {first}");
            assert_eq!(session.request(&send(b"x")).unwrap().0, first + 1);
            let header = RequestHeader::parse(&outgoing.head).unwrap().unwrap();
            assert!(header.client >= 1 << 64);
        }
    }

    #[test]
    fn a_send_is_its_head_and_the_record_by_reference() {
        let mut session = ready();
        let request = send(b"payload");
        let Request::Send { record, .. } = &request else { panic!() };
        let (number, outgoing) = session.request(&request).unwrap();
        let header = RequestHeader::parse(&outgoing.head).unwrap().unwrap();
        assert_eq!((header.request, header.operation, header.session), (number, OP_SEND, 9));
        assert_eq!(header.request_checksum, 0, "sends are not stamped");
        assert_eq!(header.size as usize, outgoing.len());
        assert_eq!(outgoing.tail.unwrap().as_ptr(), record.blob().as_ptr());
    }

    #[test]
    fn a_reply_needs_the_number_and_the_kind_of_operation() {
        let mut session = ready();
        let (number, _) = session.request(&send(b"x")).unwrap();
        for operation in [OP_NON_REPLICATED, OP_LOGOUT, OP_CREATE_TOPIC, 65, 0, 255] {
            let stray = answer(&mut session, number, operation, 0, b"").unwrap();
            assert!(matches!(stray, Delivery::Stray { number: n } if n == number));
        }
        let stray = answer(&mut session, number + 1, OP_SEND, 0, &confirmation(3, 8)).unwrap();
        assert!(matches!(stray, Delivery::Stray { .. }));
        let reply = answer(&mut session, number, OP_SEND, 0, &confirmation(3, 8)).unwrap();
        let Delivery::Reply { number: n, result: Ok(Reply::Sent { base_offset: Some(8) }) } = reply
        else {
            panic!("{reply:?}")
        };
        assert_eq!(n, number);
        let again = answer(&mut session, number, OP_SEND, 0, &confirmation(3, 8)).unwrap();
        assert!(matches!(again, Delivery::Stray { .. }), "a number is answered once");
    }

    #[test]
    fn a_refusal_arrives_by_status_or_by_result_section() {
        let mut session = ready();
        let (number, _) = session.request(&create_topic()).unwrap();
        let early = answer(&mut session, number, OP_CREATE_TOPIC, 4041, b"").unwrap();
        assert!(matches!(early, Delivery::Reply { result: Err(ServerError { code: 4041 }), .. }));
        let (number, _) = session.request(&create_topic()).unwrap();
        let section = [1, 0, 0, 0, 0, 0, 0, 0, 0xdd, 7, 0, 0];
        let late = answer(&mut session, number, OP_TOPIC_CREATED, 0, &section).unwrap();
        assert!(matches!(late, Delivery::Reply { result: Err(ServerError { code: 2013 }), .. }));
        for cut in 0..12 {
            let (number, _) = session.request(&create_topic()).unwrap();
            let body = section.get(..cut).unwrap();
            let error = answer(&mut session, number, OP_TOPIC_CREATED, 0, body).unwrap_err();
            assert_eq!((error.number, error.what), (number, "create topic"));
        }
    }

    #[test]
    fn a_confirmation_is_of_the_partition_that_was_named_or_of_none() {
        let mut session = ready();
        for empty in [&b""[..], &[0; 4]] {
            let (number, _) = session.request(&send(b"x")).unwrap();
            let reply = answer(&mut session, number, OP_SEND, 0, empty).unwrap();
            let Delivery::Reply { result: Ok(Reply::Sent { base_offset: None }), .. } = reply
            else {
                panic!("{reply:?}")
            };
        }
        let mut longer = confirmation(3, 8);
        longer.push(0);
        for body in [confirmation(4, 8), longer, confirmation(3, 8)[..23].to_vec()] {
            let (number, _) = session.request(&send(b"x")).unwrap();
            let error = answer(&mut session, number, OP_SEND, 0, &body).unwrap_err();
            assert_eq!((error.number, error.what), (number, "send"));
        }
    }

    #[test]
    fn an_eviction_ends_the_session_and_all_requests() {
        let mut session = ready();
        session.request(&send(b"x")).unwrap();
        let header = EvictionHeader { reason: 7, ..EvictionHeader::default() }.encode();
        let incoming = session.on_header(&header).unwrap();
        assert_eq!((incoming.number, incoming.body_len), (None, 0));
        let delivery = session.on_reply(&incoming, Bytes::new()).unwrap();
        assert!(matches!(delivery, Delivery::Evicted { reason: 7 }));
        assert!(!session.is_logged_in());
        assert_eq!(session.outstanding().count(), 0);
        assert!(session.request(&send(b"x")).is_err());
    }

    #[test]
    fn a_login_that_may_succeed_later_is_told_from_one_that_cannot() {
        let section = |code: u32| [&[1, 0, 0, 0, 0, 0, 0, 0][..], &code.to_le_bytes()].concat();
        for (body, code, again) in [
            (section(57), Some(57), true),
            (section(58), Some(58), true),
            (section(40), Some(40), false),
            (Vec::new(), None, false),
        ] {
            let mut session = fresh();
            session.login().unwrap();
            let delivery = answer(&mut session, 0, OP_REGISTER, 0, &body).unwrap();
            let Delivery::LoginRefused { error, transient } = delivery else {
                panic!("{delivery:?}")
            };
            assert_eq!((error.map(|e| e.code), transient), (code, again));
            assert!(!session.is_logged_in());
            session.login().expect("another try on the same connection");
        }
    }

    #[test]
    fn a_login_reply_nobody_asked_for_is_stray() {
        let mut session = ready();
        let delivery = answer(&mut session, 0, OP_REGISTER, 0, b"").unwrap();
        assert!(matches!(delivery, Delivery::Stray { number: 0 }));
        assert!(session.is_logged_in());
    }

    #[test]
    fn only_a_ping_goes_out_before_the_login_is_answered() {
        let mut session = fresh();
        assert!(session.request(&poll()).is_err());
        assert!(session.request(&send(b"x")).is_err());
        session.request(&Request::Ping).unwrap();
        assert_eq!(session.outstanding().count(), 1);
    }

    #[test]
    fn a_logout_ends_the_session() {
        let mut session = ready();
        let (number, outgoing) = session.request(&Request::Logout).unwrap();
        let header = RequestHeader::parse(&outgoing.head).unwrap().unwrap();
        assert_ne!(header.request_checksum, 0);
        answer(&mut session, number, OP_LOGOUT, 0, b"").unwrap();
        assert!(!session.is_logged_in());
    }

    #[test]
    fn a_forgotten_request_is_answered_by_a_stray() {
        let mut session = ready();
        let (number, _) = session.request(&Request::Ping).unwrap();
        session.forget(number);
        let late = answer(&mut session, number, OP_NON_REPLICATED, 0, b"").unwrap();
        assert!(matches!(late, Delivery::Stray { .. }));
    }

    #[test]
    fn requests_without_a_reply_are_bounded() {
        let mut session = ready();
        for _ in 0..MAX_OUTSTANDING {
            session.request(&Request::Ping).unwrap();
        }
        assert!(session.request(&Request::Ping).is_err());
        let first = session.outstanding().next().unwrap();
        answer(&mut session, first, OP_NON_REPLICATED, 0, b"").unwrap();
        session.request(&Request::Ping).unwrap();
    }

    #[test]
    fn a_frame_of_64_mib_is_sent_and_one_byte_more_is_refused() {
        let mut session = ready();
        let overhead = session.request(&send(b"")).unwrap().1.len();
        let payload = vec![0; MAX_REQUEST - overhead + 1];
        let (_, most) = session.request(&send(&payload[1..])).unwrap();
        assert_eq!(most.len(), MAX_REQUEST);
        let error = session.request(&send(&payload)).unwrap_err();
        assert!(error.to_string().contains("67108865"), "{error}");
    }

    #[test]
    fn names_no_server_takes_are_refused_before_they_are_sent() {
        let mut session = ready();
        let long = "x".repeat(256);
        for bad in ["", long.as_str()] {
            let (stream, topic) = (bad.into(), "t".into());
            let poll =
                Request::Poll { stream, topic, partition: 0, from: PollFrom::Last, count: 1 };
            let create = Request::CreateStream { stream: bad.into() };
            for request in [poll, create, Request::Topics { stream: bad.into() }] {
                let error = session.request(&request).unwrap_err();
                assert!(error.to_string().contains("1 to 255 bytes"), "{error}");
            }
        }
        assert_eq!(session.outstanding().count(), 0);
    }

    #[test]
    fn secrets_are_not_shown() {
        let token = Session::new(1, 1, Credentials::Token("hunter2".into()));
        assert!(!format!("{:?} {token:?}", fresh()).contains("hunter2"));
        let mut begun = fresh();
        let login = begun.login().unwrap();
        assert!(login.head.windows(7).any(|bytes| bytes == b"hunter2"), "it is in there");
        assert!(!format!("{login:?} {begun:?}").contains("hunter2"));
        let long = Credentials::Token("hunter2".repeat(40).into());
        let error = Session::new(1, 1, long).login().unwrap_err();
        assert!(!error.to_string().contains("hunter2"));
    }
}
