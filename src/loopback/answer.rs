//! Decided replies and their headers.
//!
//! Where a reply was decided shows in its header: *local* ones (reads) carry the session in `op`,
//! *committed* ones a log position and the cluster id, *denials* a transport id and no position.
//! Errors take two roads: the status, or the result section in front of the body.

use bytes::{BufMut, Bytes, BytesMut};
use iggy_binary_protocol::responses::users::LoginRegisterResponse;
use iggy_binary_protocol::{
    EvictionReason, IGGY_PROTOCOL_VERSION, Operation, WireEncode, WireName,
};

use super::core::{Core, NON_REPLICATED, REGISTER, SEND};
use super::frame::{Frame, ReplyHead, RequestHead, eviction};
use super::session::Bound;

pub(super) const UNAUTHENTICATED: u32 = 40;
pub(super) const INVALID_COMMAND: u32 = 3;
pub(super) const INVALID_FORMAT: u32 = 4;
pub(super) const FEATURE_UNAVAILABLE: u32 = 5;

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

impl Core {
    pub(super) fn frame(&self, call: &Call, answer: Answer) -> Option<Frame> {
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
                head.timestamp = if status == 0 { call.now } else { 0 };
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

    pub(super) fn logout_frame(&self, call: &Call, bound: Bound) -> Frame {
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
    pub(super) fn rejection(&self, operation: u8, code: u32) -> Answer {
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

    pub(super) fn empty_confirmation(&self, call: &Call) -> Frame {
        let answer = Answer::Partition { op: 0, commit: 0, status: 0, body: Vec::new() };
        let mut frame = self.frame(call, answer).unwrap_or_default();
        frame.answers_send = true;
        frame
    }

    /// A copy of the true reply under a number nobody asked with. A confirmation names an offset
    /// far off, so that taking it for the answer shows.
    pub(super) fn stray(&self, call: &Call, operation: u8, truth: &Frame) -> Frame {
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
}

/// A read that failed, or found nothing.
pub(super) fn local_status(status: u32) -> Answer {
    Answer::Local { status, body: Vec::new() }
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
