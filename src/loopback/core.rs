//! The broker without sockets: connections, sessions, the way of a request through the faults.
//!
//! `handle` takes one decoded request and the time and returns what to write, when, and whether
//! to close. Requests of one connection must be handed in in the order they were read.

use std::collections::HashMap;
use std::time::Duration;

use iggy_binary_protocol::requests::messages::PollMessagesRequest;
use iggy_binary_protocol::{EvictionReason, Operation, WireDecode, WireName, WirePollingStrategy};
use twox_hash::XxHash3_64;

use super::answer::{Answer, Call, INVALID_FORMAT, UNAUTHENTICATED};
use super::catalog::{Slots, Stream, Topic};
use super::faults::{Fault, FaultTable, Op, Stage, Subject};
use super::frame::{Frame, RequestHead, eviction};
use super::log::{Log, VerifiedBatch};
use super::messages::{LateSend, SendBody, Target, corrupt_checksum, corrupt_message};
use super::nodes::Nodes;
use super::session::{Connection, Session};

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
    /// Messages get offsets and are forgotten.
    pub discard: bool,
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
    /// Close the connection and append after a delay.
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

/// The broker's state.
#[derive(Debug)]
pub struct Core {
    pub(super) settings: Settings,
    pub(super) nodes: Nodes,
    pub(super) streams: Slots<Stream>,
    pub(super) tokens: Slots<(String, u64)>,
    pub(super) commit: u64,
    pub(super) faults: FaultTable,
    pub(super) starting_until: u64,
    pub(super) connections: HashMap<u64, Connection>,
    last_connection: u64,
    pub(super) sessions: HashMap<u128, Session>,
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
            discard: false,
            cluster: 0x7469_6465_6761_7465,
            ip: "127.0.0.1".to_owned(),
            port: 0,
        }
    }
}

impl Inbound {
    /// Decodes a request. A batch is checked here, so that the core's lock is not held for it.
    pub fn decode(head: RequestHead, body: Vec<u8>) -> Inbound {
        Inbound::decode_with(head, body, SendBody::decode)
    }

    /// The same for a core that discards: a batch is counted and not checked. `beyond`: bytes at
    /// the end of a send's body that were left out of `body`.
    pub fn counted(head: RequestHead, body: Vec<u8>, beyond: usize) -> Inbound {
        Inbound::decode_with(head, body, |body| SendBody::counted(body, beyond))
    }

    fn decode_with(
        head: RequestHead,
        body: Vec<u8>,
        send: impl Fn(Vec<u8>) -> SendBody,
    ) -> Inbound {
        let stamp_matches =
            head.checksum == 0 || head.checksum == u128::from(XxHash3_64::oneshot(&body));
        let action = match (head.operation, head.code) {
            (SEND, _) => Action::Send(Box::new(send(body))),
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

    /// The messages of a send whose batch is right.
    pub fn batch(&self) -> Option<&VerifiedBatch> {
        match &self.action {
            Action::Send(send) => send.batch(),
            Action::Poll(_) | Action::Other(_) => None,
        }
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
pub(super) const SEND: u8 = Operation::SendMessages as u8;
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
            nodes: Nodes::single(settings.ip.clone(), settings.port),
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

    /// A peer connected to the first node; the answer is its transport id.
    pub fn connect(&mut self, peer: String) -> u64 {
        self.connect_to(0, peer)
    }

    /// A peer connected to this node.
    pub fn connect_to(&mut self, node: usize, peer: String) -> u64 {
        self.last_connection += 1;
        self.connections.insert(self.last_connection, Connection::new(node, peer));
        self.last_connection
    }

    /// The nodes of the cluster this broker plays.
    pub fn nodes(&mut self) -> &mut Nodes {
        &mut self.nodes
    }

    /// The node a connection is to.
    pub(super) fn node_of(&self, connection: u64) -> usize {
        self.connections.get(&connection).map_or(0, Connection::node)
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
        self.take_topic(stream, topic).is_some()
    }

    /// Takes a topic out, for [`Core::put_topic`].
    pub fn take_topic(&mut self, stream: &str, topic: &str) -> Option<Topic> {
        let stream = self.streams.id_of(stream)?;
        let topics = &mut self.streams.at_mut(stream)?.topics;
        topics.remove(topics.id_of(topic)?)
    }

    /// Puts a topic back as it was; false when there is no such stream.
    pub fn put_topic(&mut self, stream: &str, topic: &str, content: Topic) -> bool {
        let stream = self.streams.id_of(stream).and_then(|id| self.streams.at_mut(id));
        let (Some(stream), Ok(name)) = (stream, WireName::new(topic)) else { return false };
        stream.topics.insert(name, content).is_some()
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
                // A node that does not lead never appends, not even late.
                let leads = self.nodes.is_primary(self.node_of(call.connection));
                let late = self.late(action, target).filter(|_| leads);
                let late = late.map(|late| Effect::LateAppend(after, late));
                return vec![late.unwrap_or(Effect::Close)];
            }
            Some(Fault::WrongRange { from }) => {
                if let Action::Poll(Some(poll)) = &mut action {
                    poll.strategy = WirePollingStrategy::offset(from);
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
            Fault::EmptyConfirmation => frame.is_ok(),
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
}
