//! Named faults: what to do wrong, to whom, how often, and what was done.
//!
//! A request meets at most one fault of each stage: before it is applied, on its result, and on
//! the way out. Rules are tried in the order they were set; a rule is used up only when it acts.

use std::collections::VecDeque;
use std::time::Duration;

use iggy_binary_protocol::EvictionReason;

/// How many applied faults are remembered.
const LOG_LIMIT: usize = 65_536;

/// One way to misbehave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Not applied, no reply.
    DropRequest,
    /// An error reply, with or without the request being applied behind it.
    Reject {
        /// Error code; 57 and 58 take the road the real server takes for the operation.
        code: u32,
        /// True: applied all the same.
        applied: bool,
    },
    /// Not applied; the session ends with an eviction in place of the reply.
    Evict(EvictionReason),
    /// A send is not answered, its connection is closed, and `after` later it is appended.
    LateAppend {
        /// Time between the close and the append.
        after: Duration,
    },
    /// A poll answers from this offset, whatever was asked.
    WrongRange {
        /// Where it answers from.
        from: u64,
    },
    /// A send is applied and confirmed with an empty body.
    EmptyConfirmation,
    /// A byte of the message at this offset is flipped in a poll reply that contains it.
    CorruptRecord {
        /// Offset of the message.
        offset: u64,
    },
    /// The batch checksum of the first record of a poll reply is wrong.
    CorruptChecksum,
    /// A reply with a number nobody asked with goes out first.
    StrayReply,
    /// Applied, no reply.
    DropReply,
    /// Applied; the reply waits for a release.
    HoldReply,
    /// Applied; the reply waits this long.
    Slow(Duration),
    /// Applied; the reply goes out in pieces.
    SlowReply {
        /// Bytes of a piece, at least 1.
        piece: usize,
        /// Pause between pieces.
        every: Duration,
    },
    /// Applied; this many bytes of the reply go out, then the connection is closed.
    CutMidFrame {
        /// Bytes that still go out.
        after: usize,
    },
}

/// Kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Every request.
    Any,
    /// Operation 160.
    Send,
    /// Codes 100 and 104.
    Poll,
    /// Operation 1.
    Login,
    /// Everything else.
    Other,
}

/// Which requests a rule is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scope {
    /// Kind of request.
    pub op: Op,
    /// Stream and topic by name; only sends and polls have one.
    pub topic: Option<(String, String)>,
    /// Partition; for a send the one it was routed to.
    pub partition: Option<u32>,
}

/// How often a rule acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Times {
    /// This often, then it is gone.
    Next(u32),
    /// Until it is cleared.
    UntilCleared,
}

/// Names a rule, to clear it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FaultId(u64);

/// A fault that was applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppliedFault {
    /// When, microseconds since the Unix epoch.
    pub at: u64,
    /// What.
    pub fault: Fault,
    /// To what kind of request.
    pub op: Op,
    /// Stream, topic and partition of a send or poll.
    pub place: Option<(String, String, u32)>,
    /// Transport id of the connection.
    pub connection: u64,
    /// Request number.
    pub request: u64,
}

/// The request a rule is held against.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// Kind of request.
    pub op: Op,
    /// Stream, topic and partition, if it has one.
    pub place: Option<(&'a str, &'a str, u32)>,
    /// Transport id.
    pub connection: u64,
    /// Request number.
    pub request: u64,
    /// Now, microseconds.
    pub now: u64,
}

/// When a fault acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// In place of applying the request, or bending it.
    Request,
    /// On the finished reply.
    Result,
    /// On its way out.
    Delivery,
}

#[derive(Clone, Debug)]
struct Rule {
    id: FaultId,
    fault: Fault,
    scope: Scope,
    times: Times,
}

/// The rules set and the faults applied.
#[derive(Clone, Debug, Default)]
pub struct FaultTable {
    rules: Vec<Rule>,
    last_id: u64,
    log: VecDeque<AppliedFault>,
}

impl Scope {
    /// Every request.
    pub fn any() -> Scope {
        Scope { op: Op::Any, topic: None, partition: None }
    }

    /// Every send.
    pub fn sends() -> Scope {
        Scope { op: Op::Send, ..Scope::any() }
    }

    /// Every poll.
    pub fn polls() -> Scope {
        Scope { op: Op::Poll, ..Scope::any() }
    }

    /// Every login.
    pub fn logins() -> Scope {
        Scope { op: Op::Login, ..Scope::any() }
    }

    /// Everything but sends, polls and logins.
    pub fn others() -> Scope {
        Scope { op: Op::Other, ..Scope::any() }
    }

    /// Only this topic.
    pub fn topic(self, stream: &str, topic: &str) -> Scope {
        Scope { topic: Some((stream.to_owned(), topic.to_owned())), ..self }
    }

    /// Only this partition.
    pub fn partition(self, partition: u32) -> Scope {
        Scope { partition: Some(partition), ..self }
    }

    fn covers(&self, subject: &Subject<'_>) -> bool {
        let op = self.op == Op::Any || self.op == subject.op;
        let topic = self.topic.as_ref().is_none_or(|(stream, topic)| {
            subject.place.is_some_and(|(s, t, _)| s == stream && t == topic)
        });
        let partition = self
            .partition
            .is_none_or(|partition| subject.place.is_some_and(|(_, _, p)| p == partition));
        op && topic && partition
    }
}

impl Fault {
    /// When it acts.
    pub fn stage(&self) -> Stage {
        match self {
            Fault::DropRequest
            | Fault::Reject { .. }
            | Fault::Evict(_)
            | Fault::LateAppend { .. }
            | Fault::WrongRange { .. } => Stage::Request,
            Fault::EmptyConfirmation
            | Fault::CorruptRecord { .. }
            | Fault::CorruptChecksum
            | Fault::StrayReply => Stage::Result,
            Fault::DropReply
            | Fault::HoldReply
            | Fault::Slow(_)
            | Fault::SlowReply { .. }
            | Fault::CutMidFrame { .. } => Stage::Delivery,
        }
    }

    /// Faults that mean something for one kind of request only.
    fn suits(&self, op: Op) -> bool {
        match self {
            Fault::LateAppend { .. } | Fault::EmptyConfirmation => op == Op::Send,
            Fault::WrongRange { .. } | Fault::CorruptRecord { .. } | Fault::CorruptChecksum => {
                op == Op::Poll
            }
            _ => true,
        }
    }
}

impl FaultTable {
    /// Adds a rule behind the others.
    pub fn set(&mut self, fault: Fault, scope: Scope, times: Times) -> FaultId {
        self.last_id += 1;
        let id = FaultId(self.last_id);
        if times != Times::Next(0) {
            self.rules.push(Rule { id, fault, scope, times });
        }
        id
    }

    /// Removes one rule; false when it was used up or never there.
    pub fn clear(&mut self, id: FaultId) -> bool {
        let before = self.rules.len();
        self.rules.retain(|rule| rule.id != id);
        self.rules.len() < before
    }

    /// Removes every rule.
    pub fn clear_all(&mut self) {
        self.rules.clear();
    }

    /// True when nothing is set.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// The first rule of this stage that covers the request and that `acts` agrees to.
    pub fn take(
        &mut self,
        stage: Stage,
        subject: &Subject<'_>,
        acts: impl Fn(&Fault) -> bool,
    ) -> Option<Fault> {
        let position = self.rules.iter().position(|rule| {
            rule.fault.stage() == stage
                && rule.fault.suits(subject.op)
                && rule.scope.covers(subject)
                && acts(&rule.fault)
        })?;
        let fault = self.rules[position].fault;
        if let Times::Next(left) = &mut self.rules[position].times {
            *left -= 1;
            if *left == 0 {
                self.rules.remove(position);
            }
        }
        self.record(fault, subject);
        Some(fault)
    }

    /// What was done, oldest first; the oldest entries go when there are too many.
    pub fn log(&self) -> Vec<AppliedFault> {
        self.log.iter().cloned().collect()
    }

    fn record(&mut self, fault: Fault, subject: &Subject<'_>) {
        if self.log.len() == LOG_LIMIT {
            self.log.pop_front();
        }
        self.log.push_back(AppliedFault {
            at: subject.now,
            fault,
            op: subject.op,
            place: subject.place.map(|(s, t, p)| (s.to_owned(), t.to_owned(), p)),
            connection: subject.connection,
            request: subject.request,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subject(op: Op, partition: u32) -> Subject<'static> {
        Subject { op, place: Some(("s", "t", partition)), connection: 1, request: 9, now: 5 }
    }

    #[test]
    fn a_rule_acts_as_often_as_it_says_and_only_in_its_scope() {
        let mut table = FaultTable::default();
        let scope = Scope::sends().topic("s", "t").partition(3);
        table.set(Fault::DropReply, scope, Times::Next(2));
        let mut hits = 0;
        for (op, partition) in
            [(Op::Poll, 3), (Op::Send, 2), (Op::Send, 3), (Op::Send, 3), (Op::Send, 3)]
        {
            hits += usize::from(
                table.take(Stage::Delivery, &subject(op, partition), |_| true).is_some(),
            );
        }
        assert_eq!(hits, 2);
        assert!(table.is_empty());
        assert_eq!(table.log().len(), 2);
    }

    #[test]
    fn a_rule_with_a_place_spares_requests_without_one() {
        let mut table = FaultTable::default();
        table.set(Fault::DropRequest, Scope::any().topic("s", "t"), Times::UntilCleared);
        let login = Subject { place: None, ..subject(Op::Login, 0) };
        assert_eq!(table.take(Stage::Request, &login, |_| true), None);
        let send = subject(Op::Send, 0);
        assert_eq!(table.take(Stage::Request, &send, |_| true), Some(Fault::DropRequest));
    }

    #[test]
    fn cleared_rule_acts_no_more() {
        let mut table = FaultTable::default();
        let id = table.set(Fault::HoldReply, Scope::any(), Times::UntilCleared);
        assert!(table.clear(id) && !table.clear(id));
        assert_eq!(table.take(Stage::Delivery, &subject(Op::Send, 0), |_| true), None);
    }

    #[test]
    fn send_faults_spare_polls() {
        let mut table = FaultTable::default();
        table.set(Fault::EmptyConfirmation, Scope::any(), Times::Next(1));
        assert_eq!(table.take(Stage::Result, &subject(Op::Poll, 0), |_| true), None);
        assert!(table.take(Stage::Result, &subject(Op::Send, 0), |_| true).is_some());
    }
}
