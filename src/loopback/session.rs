//! Who a connection is: login, logout, and the numbers of metadata operations.
//!
//! A client id has one session; a second login under it takes the session over, and the first
//! connection learns of it at its next metadata operation. Secrets are compared and never shown.

use std::collections::VecDeque;

use iggy_binary_protocol::requests::users::{LoginRegisterRequest, LoginRegisterWithPatRequest};
use iggy_binary_protocol::{
    ClientVersionInfo, EvictionReason, WireDecode, WireEncode, WireName, is_protocol_compatible,
};

use super::answer::{Answer, Call};
use super::core::Core;
use super::frame::Frame;
use super::nodes::NOT_ACCEPTED;

/// Replies of metadata operations kept per session, to answer a repeated number.
const CACHED_REPLIES: usize = 5;

/// One connection.
#[derive(Debug)]
pub(super) struct Connection {
    node: usize,
    peer: String,
    bound: Option<Bound>,
}

/// Who a connection is logged in as.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bound {
    pub client: u128,
    pub session: u64,
    pub user: u32,
}

/// A client id's session and the replies it may ask for again.
#[derive(Debug)]
pub(super) struct Session {
    connection: u64,
    watermark: u64,
    replies: VecDeque<(u64, u128, Frame)>,
}

impl Connection {
    /// Nobody has logged in yet.
    pub(super) fn new(node: usize, peer: String) -> Connection {
        Connection { node, peer, bound: None }
    }

    /// The node it is to.
    pub(super) fn node(&self) -> usize {
        self.node
    }
}

impl Core {
    /// Metadata operations are numbered by the session: a repeated number is answered from the
    /// cache, a forgotten one is refused.
    pub(super) fn metadata_in_session(&mut self, call: &Call, body: &[u8]) -> Answer {
        let Some(bound) = self.bound(call.connection) else { return Answer::Silence };
        let Some(session) = self.sessions.get(&bound.client) else {
            return Answer::Evict(EvictionReason::NoSession);
        };
        if session.connection != call.connection {
            return Answer::Evict(EvictionReason::SessionTooLow);
        }
        let number = call.head.request;
        let cached = session.replies.iter().find(|(cached, _, _)| *cached == number);
        if let Some((_, checksum, frame)) = cached {
            let reused = call.head.checksum != 0 && *checksum != call.head.checksum;
            return if reused { Answer::Silence } else { Answer::Again(frame.clone()) };
        }
        if number <= session.watermark {
            return self.rejection(call.head.operation, 59);
        }
        if !self.nodes.is_leader(self.node_of(call.connection)) {
            return self.rejection(call.head.operation, NOT_ACCEPTED);
        }
        let answer = self.metadata(call, body);
        let committed = matches!(answer, Answer::Committed { .. });
        let Some(frame) = self.frame(call, answer) else { return Answer::Silence };
        if let Some(session) = self.sessions.get_mut(&bound.client).filter(|_| committed) {
            session.watermark = number;
            session.replies.push_back((number, call.head.checksum, frame.clone()));
            if session.replies.len() > CACHED_REPLIES {
                session.replies.pop_front();
            }
        }
        Answer::Again(frame)
    }

    pub(super) fn login(&mut self, call: &Call, body: &[u8]) -> Answer {
        if let Some(bound) = self.bound(call.connection) {
            return Answer::LoggedIn(bound);
        }
        let Ok((version, _)) = ClientVersionInfo::decode(body) else {
            return Answer::Evict(EvictionReason::MalformedLogin);
        };
        if !is_protocol_compatible(version.protocol_version) {
            return Answer::Evict(EvictionReason::IncompatibleProtocol);
        }
        match self.authenticate(body, call.now) {
            Ok(user) => {
                self.commit += 1;
                let client = call.head.client;
                let bound = Bound { client, session: self.commit, user };
                let connection = call.connection;
                let fresh = Session { connection, watermark: 0, replies: VecDeque::new() };
                self.sessions.insert(client, fresh);
                if let Some(connection) = self.connections.get_mut(&connection) {
                    connection.bound = Some(bound);
                }
                Answer::LoggedIn(bound)
            }
            Err(reason) => Answer::Evict(reason),
        }
    }

    /// The password form is tried first, then the token form, as the server does. Secrets are
    /// compared by encoding what would have been right.
    fn authenticate(&self, body: &[u8], now: u64) -> Result<u32, EvictionReason> {
        let password = LoginRegisterRequest::decode(body).ok();
        if let Some((request, _)) = password.filter(|(_, used)| *used == body.len()) {
            let right = |(name, secret): &(String, String)| {
                let password = secret.clone().into();
                name == request.username.as_str()
                    && LoginRegisterRequest { password, ..request.clone() }.to_bytes() == body
            };
            let user = self.settings.users.iter().position(right);
            let user = user.and_then(|user| u32::try_from(user).ok());
            return user.ok_or(EvictionReason::InvalidCredentials);
        }
        let token = LoginRegisterWithPatRequest::decode(body).ok();
        let (request, _) =
            token.filter(|(_, used)| *used == body.len()).ok_or(EvictionReason::MalformedLogin)?;
        let right = |(_, _, (secret, expiry)): (u32, &WireName, &(String, u64))| {
            let token = secret.clone().into();
            *expiry > now
                && LoginRegisterWithPatRequest { token, ..request.clone() }.to_bytes() == body
        };
        self.tokens.iter().any(right).then_some(0).ok_or(EvictionReason::InvalidToken)
    }

    pub(super) fn bound(&self, connection: u64) -> Option<Bound> {
        self.connections.get(&connection)?.bound
    }

    pub(super) fn peers(&self) -> impl Iterator<Item = (u64, &str, Option<Bound>)> {
        self.connections
            .iter()
            .map(|(id, connection)| (*id, connection.peer.as_str(), connection.bound))
    }

    /// Ends the session as a commit of its own.
    pub(super) fn unbind(&mut self, connection: u64) {
        if self.unbind_silently(connection) {
            self.commit += 1;
        }
    }

    pub(super) fn unbind_silently(&mut self, connection: u64) -> bool {
        let bound = self.connections.get_mut(&connection).and_then(|c| c.bound.take());
        let Some(bound) = bound else { return false };
        if self.sessions.get(&bound.client).is_some_and(|s| s.connection == connection) {
            self.sessions.remove(&bound.client);
        }
        self.leave_all_groups(connection);
        true
    }
}

#[cfg(test)]
mod tests {
    use iggy_binary_protocol::requests::streams::CreateStreamRequest;
    use iggy_binary_protocol::{Operation, WireEncode, WireOptions, result_code};

    use super::super::core::{Core, Delivery, Effect, Inbound, Settings};
    use super::super::testing::{Seen, head, login_body, name, seen};

    const EVICTED: u8 = 13;

    struct Bench {
        core: Core,
        connection: u64,
    }

    impl Bench {
        fn logged_in() -> Bench {
            let mut core = Core::new(Settings::default());
            let connection = core.connect("peer".to_owned());
            let mut bench = Bench { core, connection };
            let reply = bench.ask(connection, Operation::Register, 0, 0, &login_body());
            assert_eq!(reply.map(|reply| (reply.command, reply.status)), Some((8, 0)));
            bench
        }

        fn ask(
            &mut self,
            connection: u64,
            operation: Operation,
            code: u32,
            request: u64,
            body: &[u8],
        ) -> Option<Seen> {
            let inbound = Inbound::decode(head(9, operation, code, request), body.to_vec());
            match self.core.handle(connection, inbound, 1).as_slice() {
                [] => None,
                [Effect::Reply(frame, Delivery::Now)] => Some(seen(&frame.to_vec())),
                other => panic!("one reply or none, got {other:?}"),
            }
        }

        fn create(&mut self, connection: u64, request: u64, stream: &str) -> Option<Seen> {
            let body = CreateStreamRequest { name: name(stream), options: WireOptions::empty() };
            self.ask(connection, Operation::CreateStream, 0, request, &body.to_bytes())
        }
    }

    #[test]
    fn repeated_number_gets_the_first_answer_again() {
        let mut bench = Bench::logged_in();
        let connection = bench.connection;
        let first = bench.create(connection, 7, "a");
        assert_eq!(bench.create(connection, 7, "other"), first);
        assert_eq!(bench.core.streams.count(), 1);
        for number in 8..13 {
            bench.create(connection, number, &format!("stream {number}"));
        }
        let forgotten = bench.create(connection, 7, "a").expect("a reply");
        assert_eq!(result_code(&forgotten.body), Some(59));
    }

    #[test]
    fn second_login_of_a_client_takes_the_session_over() {
        let mut bench = Bench::logged_in();
        let (first, second) = (bench.connection, bench.core.connect("other".to_owned()));
        bench.ask(second, Operation::Register, 0, 0, &login_body());
        let late = bench.create(first, 1, "a").expect("a reply");
        assert_eq!((late.command, late.reason), (EVICTED, 7));
        let reads = bench.ask(first, Operation::NonReplicated, 201, 2, &[]).expect("a reply");
        assert_eq!((reads.command, reads.status), (8, 0));
        let owner = bench.create(second, 1, "a").expect("a reply");
        assert_eq!(result_code(&owner.body), Some(0));
        bench.core.disconnect(first);
        let owner = bench.create(second, 2, "b").expect("a reply");
        assert_eq!(result_code(&owner.body), Some(0));
    }

    #[test]
    fn login_on_a_bound_connection_repeats_the_identity() {
        let mut bench = Bench::logged_in();
        let connection = bench.connection;
        let again = bench.ask(connection, Operation::Register, 0, 0, &login_body());
        let again = again.expect("a reply");
        assert_eq!(again.body[8..16], 1u64.to_le_bytes());
    }

    #[test]
    fn strangers_get_what_a_server_gives_them() {
        let mut bench = Bench::logged_in();
        let stranger = bench.core.connect("stranger".to_owned());
        let ping = bench.ask(stranger, Operation::NonReplicated, 1, 1, &[]).expect("a reply");
        assert_eq!((ping.command, ping.status), (8, 0));
        let read = bench.ask(stranger, Operation::NonReplicated, 201, 1, &[]).expect("a reply");
        assert_eq!(read.status, 40);
        let write = bench.create(stranger, 1, "a").expect("a reply");
        assert_eq!((write.command, write.reason), (EVICTED, 1));
        assert_eq!(bench.ask(stranger, Operation::NonReplicated, 1, 0, &[]), None);
        let internal = Operation::TruncatePartition;
        let internal = bench.ask(stranger, internal, 0, 1, &[]).expect("a reply");
        assert_eq!((internal.command, internal.reason), (EVICTED, 4));
        let malformed = bench.ask(stranger, Operation::Register, 0, 0, &[1, 2]).expect("a reply");
        assert_eq!((malformed.command, malformed.reason), (EVICTED, 15));
    }

    #[test]
    fn a_wrong_stamp_is_refused() {
        let mut bench = Bench::logged_in();
        let mut stamped = head(9, Operation::NonReplicated, 201, 1);
        stamped.checksum = 1;
        let effects = bench.core.handle(bench.connection, Inbound::decode(stamped, vec![]), 1);
        let [Effect::Reply(frame, _)] = effects.as_slice() else { panic!("{effects:?}") };
        assert_eq!(seen(&frame.to_vec()).status, 4);
    }
}
