//! The broker without sockets: connections, sessions, the way of a request through the faults.
//!
//! `handle` takes one decoded request and the time and returns what to write, when, and whether
//! to close. Requests of one connection must be handed in in the order they were read.
//!
//! Replies differ by where they were decided, as on the real server: *local* ones (reads) carry
//! the session in `op`, *committed* ones a log position and the cluster id, *denials* a transport
//! id and no position.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use iggy_binary_protocol::requests::messages::PollMessagesRequest;
use iggy_binary_protocol::requests::users::{LoginRegisterRequest, LoginRegisterWithPatRequest};
use iggy_binary_protocol::responses::users::LoginRegisterResponse;
use iggy_binary_protocol::{
    ClientVersionInfo, EvictionReason, IGGY_PROTOCOL_VERSION, Operation, WireDecode, WireEncode,
    WireName, is_protocol_compatible,
};
use twox_hash::XxHash3_64;

use super::catalog::{Slots, Stream};
use super::faults::{Fault, FaultTable, Op, Stage, Subject};
use super::frame::{Frame, ReplyHead, RequestHead, eviction};
use super::log::Log;
use super::messages::{LateSend, SendBody, Target, corrupt_checksum, corrupt_message};

/// Replies of metadata operations kept per session, to answer a repeated number.
const CACHED_REPLIES: usize = 5;

pub(super) const UNAUTHENTICATED: u32 = 40;
pub(super) const INVALID_COMMAND: u32 = 3;
pub(super) const INVALID_FORMAT: u32 = 4;
pub(super) const FEATURE_UNAVAILABLE: u32 = 5;

/// Which server line the broker answers like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavour {
    /// 0.9.0-edge.5: no durability keys, silence for invalid batches.
    Edge5,
    /// 0.9.0: durability keys, routing queries.
    Release,
}

/// How the core answers.
#[derive(Clone, Debug)]
pub struct Settings {
    /// User names and passwords; the first has id 0.
    pub users: Vec<(String, String)>,
    /// Personal access tokens accepted from the start.
    pub tokens: Vec<String>,
    /// Version string of the login reply.
    pub version: String,
    /// Server line.
    pub flavour: Flavour,
    /// Where a segment is sealed unless the topic says otherwise.
    pub segment_bytes: u64,
    /// Bytes after which a topic without `max_topic_size` drops its oldest segments.
    pub max_topic_bytes: u64,
    /// Status for an invalid batch; `None` is silence.
    pub invalid_batch_status: Option<u32>,
    /// Cluster id stamped on committed replies.
    pub cluster: u128,
    /// Advertised address.
    pub ip: String,
    /// Advertised port.
    pub port: u16,
}

/// A request, decoded as far as that needs no state.
#[derive(Debug)]
pub struct Inbound {
    /// Header fields.
    pub head: RequestHead,
    stamp_matches: bool,
    action: Action,
}

#[derive(Debug)]
pub(super) enum Action {
    Send(Box<SendBody>),
    Poll(Option<PollMessagesRequest>),
    Other(Vec<u8>),
}

/// What the front does next.
#[derive(Debug)]
pub enum Effect {
    /// Write a frame.
    Reply(Frame, Delivery),
    /// Close the connection.
    Close,
    /// Append after a delay, counted from the close.
    LateAppend(Duration, LateSend),
}

/// How a frame goes out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// At once.
    Now,
    /// After a delay.
    After(Duration),
    /// When released.
    Hold,
    /// In pieces with pauses.
    Trickle(usize, Duration),
    /// This many bytes, then close.
    Cut(usize),
}

/// One connection.
#[derive(Debug)]
struct Connection {
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
struct Session {
    connection: u64,
    watermark: u64,
    replies: VecDeque<(u64, u128, Frame)>,
}

/// A request on its way, with what is needed to answer it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    pub connection: u64,
    pub head: RequestHead,
    pub now: u64,
}

/// A decided reply, before it has a header.
#[derive(Debug)]
pub(super) enum Answer {
    Silence,
    /// To the client id, or to the transport id when there is no session.
    Evict(EvictionReason),
    /// A read: session in `op`.
    Local {
        status: u32,
        body: Vec<Bytes>,
    },
    /// Refused at the edge.
    Denied(u32),
    /// Committed on the metadata plane, under the operation byte the reply shows.
    Committed {
        operation: u8,
        body: Vec<Bytes>,
    },
    /// Decided by a partition.
    Partition {
        op: u64,
        commit: u64,
        status: u32,
        body: Vec<Bytes>,
    },
    /// Login or its repetition.
    LoggedIn(Bound),
    /// A metadata reply given before.
    Again(Frame),
}

/// The broker's state.
#[derive(Debug)]
pub struct Core {
    pub(super) settings: Settings,
    pub(super) streams: Slots<Stream>,
    pub(super) tokens: Slots<(String, u64)>,
    pub(super) commit: u64,
    pub(super) faults: FaultTable,
    pub(super) starting_until: u64,
    connections: HashMap<u64, Connection>,
    last_connection: u64,
    sessions: HashMap<u128, Session>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            users: vec![("iggy".to_owned(), "iggy".to_owned())],
            tokens: Vec::new(),
            version: "0.9.0".to_owned(),
            flavour: Flavour::Release,
            segment_bytes: 1 << 30,
            max_topic_bytes: u64::MAX,
            invalid_batch_status: None,
            cluster: 0x7469_6465_6761_7465,
            ip: "127.0.0.1".to_owned(),
            port: 0,
        }
    }
}

impl Inbound {
    /// Decodes a request. A batch is checked here, so that the core's lock is not held for it.
    pub fn decode(head: RequestHead, body: Vec<u8>) -> Inbound {
        let stamp_matches =
            head.checksum == 0 || head.checksum == u128::from(XxHash3_64::oneshot(&body));
        let action = match (head.operation, head.code) {
            (SEND, _) => Action::Send(Box::new(SendBody::decode(body))),
            (NON_REPLICATED, POLL | POLL_ON_PRIMARY) => {
                Action::Poll(PollMessagesRequest::decode_from(&body).ok())
            }
            _ => Action::Other(body),
        };
        Inbound { head, stamp_matches, action }
    }

    /// True for a send, whatever becomes of it.
    pub fn is_send(&self) -> bool {
        matches!(self.action, Action::Send(_))
    }

    fn op(&self) -> Op {
        match self.action {
            Action::Send(_) => Op::Send,
            Action::Poll(_) => Op::Poll,
            Action::Other(_) if self.head.operation == REGISTER => Op::Login,
            Action::Other(_) => Op::Other,
        }
    }
}

pub(super) const REGISTER: u8 = Operation::Register as u8;
pub(super) const NON_REPLICATED: u8 = Operation::NonReplicated as u8;
pub(super) const LOGOUT: u8 = Operation::Logout as u8;
const SEND: u8 = Operation::SendMessages as u8;
const STORE_OFFSET: u8 = Operation::StoreConsumerOffset as u8;
const DELETE_OFFSET: u8 = Operation::DeleteConsumerOffset as u8;
const POLL: u32 = iggy_binary_protocol::codes::POLL_MESSAGES_CODE;
pub(super) const POLL_ON_PRIMARY: u32 = iggy_binary_protocol::codes::POLL_MESSAGES_ON_PRIMARY_CODE;
const PING: u32 = iggy_binary_protocol::codes::PING_CODE;

impl Core {
    /// An empty broker.
    pub fn new(settings: Settings) -> Core {
        let mut tokens = Slots::default();
        for (number, token) in settings.tokens.iter().enumerate() {
            let name = WireName::new(format!("configured-{number}")).expect("a short name");
            tokens.insert(name, (token.clone(), u64::MAX));
        }
        Core {
            settings,
            streams: Slots::default(),
            tokens,
            commit: 0,
            faults: FaultTable::default(),
            starting_until: 0,
            connections: HashMap::new(),
            last_connection: 0,
            sessions: HashMap::new(),
        }
    }

    /// A peer connected; the answer is its transport id.
    pub fn connect(&mut self, peer: String) -> u64 {
        self.last_connection += 1;
        self.connections.insert(self.last_connection, Connection { peer, bound: None });
        self.last_connection
    }

    /// The connection is gone: its session and its group memberships end.
    pub fn disconnect(&mut self, connection: u64) {
        self.unbind(connection);
        self.connections.remove(&connection);
    }

    /// One request in, what to do out.
    pub fn handle(&mut self, connection: u64, inbound: Inbound, now: u64) -> Vec<Effect> {
        let call = Call { connection, head: inbound.head, now };
        if let Some(answer) = self.gate(&call, &inbound) {
            let mut frame = self.frame(&call, answer);
            frame.iter_mut().for_each(|frame| frame.answers_send = inbound.is_send());
            return frame.map(|frame| Effect::Reply(frame, Delivery::Now)).into_iter().collect();
        }
        let op = inbound.op();
        let Inbound { action, .. } = inbound;
        let target = match &action {
            Action::Send(send) => Some(self.route_send(send)),
            Action::Poll(Some(poll)) => Some(self.route_poll(poll)),
            _ => None,
        };
        if let Some(Ok(target)) = target {
            self.count_arrival(op, target);
        }
        let place = target.and_then(Result::ok).and_then(|target| self.place(target));
        let place = place.as_ref().map(|(s, t, p)| (s.as_str(), t.as_str(), *p));
        let subject = Subject { op, place, connection, request: call.head.request, now };
        self.act(&call, action, target, &subject)
    }

    /// The faults to come and the faults applied.
    pub fn faults(&mut self) -> &mut FaultTable {
        &mut self.faults
    }

    /// The log of a partition, for whoever plays retention, a lost tail or a reset.
    pub fn log(&mut self, stream: &str, topic: &str, partition: u32) -> Option<&mut Log> {
        let target = self.target(stream, topic, partition)?;
        Some(&mut self.partition_mut(target)?.log)
    }

    /// Removes a topic; false when there is none.
    pub fn forget_topic(&mut self, stream: &str, topic: &str) -> bool {
        let stream = self.streams.id_of(stream).and_then(|id| self.streams.get_mut(id));
        let Some(stream) = stream else { return false };
        let id = stream.topics.id_of(topic);
        id.is_some_and(|id| stream.topics.remove(id).is_some())
    }

    /// Until then polls find every partition empty, as those of a starting server do.
    pub fn starting_until(&mut self, until: u64) {
        self.starting_until = until;
    }

    /// Appends a send whose connection is gone; false when its topic is gone, too.
    pub fn late_append(&mut self, late: LateSend, now: u64) -> bool {
        self.append_late(late, now)
    }

    /// Ends every session with an eviction, as a server does on its own account.
    pub fn evict_all(&mut self, reason: EvictionReason) -> Vec<(u64, Frame)> {
        let mut connections: Vec<_> = self.connections.keys().copied().collect();
        connections.sort_unstable();
        let evict = |connection| {
            let client = self.bound(connection)?.client;
            self.unbind(connection);
            Some((connection, eviction(self.settings.cluster, client, reason)))
        };
        connections.into_iter().filter_map(evict).collect()
    }

    /// The request stage, the work, and what the later stages make of it.
    fn act(
        &mut self,
        call: &Call,
        mut action: Action,
        target: Option<Result<Target, u32>>,
        subject: &Subject<'_>,
    ) -> Vec<Effect> {
        let mut rejected = None;
        match self.faults.take(Stage::Request, subject, |_| true) {
            Some(Fault::DropRequest) => return Vec::new(),
            Some(Fault::Reject { code, applied }) => {
                rejected = Some(code);
                if !applied {
                    let answer = self.rejection(call.head.operation, code);
                    return self.deliver(call, answer, subject);
                }
            }
            Some(Fault::Evict(reason)) => {
                let answer = Answer::Evict(reason);
                let frame = self.frame(call, answer);
                self.unbind(call.connection);
                return frame.map(|f| Effect::Reply(f, Delivery::Now)).into_iter().collect();
            }
            Some(Fault::LateAppend { after }) => {
                let late = self.late(action, target);
                let late = late.map(|late| Effect::LateAppend(after, late));
                return std::iter::once(Effect::Close).chain(late).collect();
            }
            Some(Fault::WrongRange { from }) => {
                if let Action::Poll(Some(poll)) = &mut action {
                    poll.strategy = iggy_binary_protocol::WirePollingStrategy::offset(from);
                }
            }
            _ => {}
        }
        let answer = match action {
            Action::Send(send) => self.send(call, *send, target),
            Action::Poll(poll) => self.poll(call, poll, target),
            Action::Other(body) => self.other(call, &body),
        };
        let answer = match rejected {
            Some(code) => self.rejection(call.head.operation, code),
            None => answer,
        };
        self.deliver(call, answer, subject)
    }

    /// The result and delivery stages.
    fn deliver(&mut self, call: &Call, answer: Answer, subject: &Subject<'_>) -> Vec<Effect> {
        let operation = call.head.operation;
        let Some(mut frame) = self.frame(call, answer) else { return Vec::new() };
        frame.answers_send = subject.op == Op::Send;
        if self.faults.is_empty() {
            return vec![Effect::Reply(frame, Delivery::Now)];
        }
        let mut effects = Vec::new();
        let fits = |fault: &Fault| match *fault {
            Fault::CorruptRecord { offset } => corrupt_message(&frame, offset).is_some(),
            Fault::CorruptChecksum => corrupt_checksum(&frame).is_some(),
            _ => true,
        };
        match self.faults.take(Stage::Result, subject, fits) {
            Some(Fault::EmptyConfirmation) => {
                frame = self.empty_confirmation(call);
            }
            Some(Fault::CorruptRecord { offset }) => {
                frame = corrupt_message(&frame, offset).unwrap_or(frame);
            }
            Some(Fault::CorruptChecksum) => frame = corrupt_checksum(&frame).unwrap_or(frame),
            Some(Fault::StrayReply) => {
                let stray = self.stray(call, operation, &frame);
                effects.push(Effect::Reply(stray, Delivery::Now));
            }
            _ => {}
        }
        let delivery = match self.faults.take(Stage::Delivery, subject, |_| true) {
            Some(Fault::DropReply) => return effects,
            Some(Fault::HoldReply) => Delivery::Hold,
            Some(Fault::Slow(delay)) => Delivery::After(delay),
            Some(Fault::SlowReply { piece, every }) => Delivery::Trickle(piece.max(1), every),
            Some(Fault::CutMidFrame { after }) => Delivery::Cut(after),
            _ => Delivery::Now,
        };
        effects.push(Effect::Reply(frame, delivery));
        effects
    }

    /// What is answered before anything is looked up; `None` lets the request through.
    fn gate(&self, call: &Call, inbound: &Inbound) -> Option<Answer> {
        let head = &call.head;
        let known = Operation::is_known_code(head.operation) && head.operation != 0;
        if head.client == 0 || !known || (head.request == 0 && head.operation != REGISTER) {
            return Some(Answer::Silence);
        }
        if (Operation::INTERNAL_START..Operation::METADATA_START).contains(&head.operation) {
            return Some(Answer::Evict(EvictionReason::InvalidRequestOperation));
        }
        let local = head.operation == NON_REPLICATED;
        if head.operation == REGISTER || (local && head.code == PING) {
            return None;
        }
        match self.bound(call.connection) {
            None if local => Some(Answer::Denied(UNAUTHENTICATED)),
            None if head.session == 0 => Some(Answer::Silence),
            None => Some(Answer::Evict(EvictionReason::NoSession)),
            Some(_) if !local && head.session == 0 => Some(Answer::Silence),
            Some(_) if !inbound.stamp_matches => Some(Answer::Denied(INVALID_FORMAT)),
            Some(_) => None,
        }
    }

    fn other(&mut self, call: &Call, body: &[u8]) -> Answer {
        match call.head.operation {
            REGISTER => self.login(call, body),
            LOGOUT => {
                let bound = self.bound(call.connection);
                self.commit += 1;
                self.unbind_silently(call.connection);
                // The reply still shows the session that ended.
                match bound {
                    Some(bound) => Answer::Again(self.logout_frame(call, bound)),
                    None => Answer::Silence,
                }
            }
            NON_REPLICATED => self.query(call, body),
            STORE_OFFSET => self.store_offset(call, body),
            DELETE_OFFSET => self.delete_offset(call, body),
            _ => self.metadata_in_session(call, body),
        }
    }

    /// Metadata operations are numbered by the session: a repeated number is answered from the
    /// cache, a forgotten one is refused.
    fn metadata_in_session(&mut self, call: &Call, body: &[u8]) -> Answer {
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

    fn login(&mut self, call: &Call, body: &[u8]) -> Answer {
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

    fn frame(&self, call: &Call, answer: Answer) -> Option<Frame> {
        let bound = self.bound(call.connection);
        let mut head = ReplyHead {
            checksum: call.head.checksum,
            client: bound.map_or(call.head.client, |bound| bound.client),
            commit: self.commit,
            request: call.head.request,
            operation: call.head.operation,
            ..ReplyHead::default()
        };
        let cluster = self.settings.cluster;
        let transport = u128::from(call.connection);
        match answer {
            Answer::Silence => None,
            Answer::Again(frame) => Some(frame),
            Answer::Evict(reason) => {
                let login = call.head.operation == REGISTER;
                let named = login || bound.is_some();
                let client = if named { head.client } else { transport };
                Some(eviction(cluster, client, reason))
            }
            Answer::Local { status, body } => {
                head.op = bound.map_or(0, |bound| bound.session);
                head.status = status;
                head.commit = if bound.is_some() { head.commit } else { 0 };
                Some(head.frame(body))
            }
            Answer::Denied(status) => {
                head.client = transport;
                head.status = status;
                head.commit = if bound.is_some() { head.commit } else { 0 };
                Some(head.frame(Vec::new()))
            }
            Answer::Committed { operation, body } => {
                head.cluster = cluster;
                head.op = self.commit;
                head.timestamp = call.now;
                head.operation = operation;
                Some(head.frame(body))
            }
            Answer::Partition { op, commit, status, body } => {
                head.cluster = cluster;
                head.client = transport;
                (head.op, head.commit, head.status) = (op, commit, status);
                head.timestamp = call.now;
                Some(head.frame(body))
            }
            Answer::LoggedIn(bound) => {
                (head.op, head.commit) = (bound.session, bound.session);
                Some(head.frame(vec![self.login_body(bound)]))
            }
        }
    }

    fn login_body(&self, bound: Bound) -> Bytes {
        let version = WireName::new(self.settings.version.clone());
        let response = LoginRegisterResponse {
            user_id: bound.user,
            session: bound.session,
            server_protocol_version: IGGY_PROTOCOL_VERSION,
            server_version: version.expect("the version string is 1 to 255 bytes"),
        };
        with_result_section(&response)
    }

    fn logout_frame(&self, call: &Call, bound: Bound) -> Frame {
        let head = ReplyHead {
            checksum: call.head.checksum,
            client: bound.client,
            op: bound.session,
            commit: self.commit,
            request: call.head.request,
            operation: call.head.operation,
            ..ReplyHead::default()
        };
        head.frame(Vec::new())
    }

    /// An error by the road the operation uses: the result section, or the status.
    fn rejection(&self, operation: u8, code: u32) -> Answer {
        let framed = (Operation::METADATA_START..SEND).contains(&operation);
        let transient = matches!(code, 57..=59);
        if operation == REGISTER || (framed && transient) {
            Answer::Committed { operation: reply_operation(operation), body: vec![result(code)] }
        } else if operation == NON_REPLICATED {
            Answer::Local { status: code, body: Vec::new() }
        } else {
            Answer::Denied(code)
        }
    }

    fn empty_confirmation(&self, call: &Call) -> Frame {
        let answer = Answer::Partition { op: 0, commit: 0, status: 0, body: Vec::new() };
        let mut frame = self.frame(call, answer).unwrap_or_default();
        frame.answers_send = true;
        frame
    }

    /// A copy of the true reply under a number nobody asked with. A confirmation names an offset
    /// far off, so that taking it for the answer shows.
    fn stray(&self, call: &Call, operation: u8, truth: &Frame) -> Frame {
        let head = ReplyHead {
            cluster: self.settings.cluster,
            client: u128::from(call.connection),
            request: call.head.request ^ 0x5a5a_0000_5a5a,
            operation,
            ..ReplyHead::default()
        };
        let mut body: Vec<Bytes> = truth.pieces.iter().skip(1).cloned().collect();
        if let Some(confirmation) = body.first_mut().filter(|_| operation == SEND) {
            let mut bytes = BytesMut::from(confirmation.as_ref());
            let at = bytes.len().saturating_sub(8);
            bytes.truncate(at);
            bytes.put_u64_le(1 << 50);
            *confirmation = bytes.freeze();
        }
        head.frame(body)
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
    fn unbind(&mut self, connection: u64) {
        if self.unbind_silently(connection) {
            self.commit += 1;
        }
    }

    fn unbind_silently(&mut self, connection: u64) -> bool {
        let bound = self.connections.get_mut(&connection).and_then(|c| c.bound.take());
        let Some(bound) = bound else { return false };
        if self.sessions.get(&bound.client).is_some_and(|s| s.connection == connection) {
            self.sessions.remove(&bound.client);
        }
        self.leave_all_groups(connection);
        true
    }
}

/// `count = 0` and the payload.
pub(super) fn with_result_section(payload: &impl WireEncode) -> Bytes {
    let mut body = BytesMut::with_capacity(4 + payload.encoded_size());
    body.put_u32_le(0);
    payload.encode(&mut body);
    body.freeze()
}

/// A result section that says `code`, or success for 0.
pub(super) fn result(code: u32) -> Bytes {
    let mut body = BytesMut::with_capacity(12);
    body.put_u32_le(u32::from(code != 0));
    if code != 0 {
        body.put_u32_le(0);
        body.put_u32_le(code);
    }
    body.freeze()
}

/// The operation byte a committed reply shows.
pub(super) fn reply_operation(operation: u8) -> u8 {
    const CREATE_TOPIC: u8 = Operation::CreateTopic as u8;
    const CREATE_PARTITIONS: u8 = Operation::CreatePartitions as u8;
    const DELETE_SEGMENTS: u8 = Operation::DeleteSegments as u8;
    match operation {
        CREATE_TOPIC => Operation::CreateTopicWithAssignments as u8,
        CREATE_PARTITIONS => Operation::CreatePartitionsWithAssignments as u8,
        DELETE_SEGMENTS => Operation::TruncatePartition as u8,
        other => other,
    }
}
