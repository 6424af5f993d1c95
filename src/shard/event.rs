//! The language between the pure pipeline and the driver.
//!
//! The driver turns every [`Command`] into I/O and its end into exactly one [`Event`]; it
//! decides nothing. Time comes with each step as [`crate::time::Now`].

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::batch::{FeedId, SourceKey};
use crate::config::{CapturePlan, MirrorPlan, PostgresPlan};
use crate::iggy_wire::{Reply, Request};
use crate::ingest::postgres_cdc::Spill;
use crate::pg_wire::query::Rows;
use crate::pg_wire::startup::{ServerInfo, StartupError};
use crate::pg_wire::{Notice, ServerError};
use crate::shard::order::{Abandon, Answer};
pub use crate::statefile::store::SaveError;
use crate::statefile::{CaptureState, FeedState};
use crate::time::Millis;

/// A connection slot of one shard. The pipeline numbers them; a slot is dialled again after it
/// went down, and never has two sockets at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId(pub u32);

/// Names one outstanding request; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// A connection slot to a Postgres server; numbered and reused as [`ConnId`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PgConnId(pub u32);
/// Where a connection leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// `host:port` as it was dialled.
    pub address: Arc<str>,
    /// Address and port of the peer, as the socket knows them.
    pub peer: Arc<str>,
}

/// What the pipeline asks of the driver.
#[derive(Debug)]
pub enum Command {
    /// Dial the cluster and log in → [`Event::ConnUp`] or [`Event::ConnDown`]. Bounded by the
    /// cluster's `connect_timeout`.
    Connect {
        /// Slot to fill; it is down.
        conn: ConnId,
        /// Key in `[clusters]`.
        cluster: Arc<str>,
        /// `host:port` of the node to reach; `None`: the configured addresses in order.
        node: Option<Arc<str>>,
    },
    /// Close the socket at once (`SO_LINGER` 0). Outstanding requests end as
    /// [`Failure::Lost`], then [`Event::ConnDown`] follows.
    Close {
        /// Slot to close; it is up.
        conn: ConnId,
    },
    /// Send one request → [`Event::Replied`]. Requests of a connection are written in order.
    Request {
        /// Slot to use; it is up.
        conn: ConnId,
        /// Comes back with the reply.
        ticket: Ticket,
        /// The request.
        request: Request,
        /// A larger reply (frame, bytes) is not read: [`Failure::TooLarge`], then the connection
        /// is closed.
        reply_limit: u32,
        /// Silence for this long ends the request as [`Failure::TimedOut`]; the driver then
        /// sends a ping (reads) or closes the connection (sends), M13.
        timeout: Duration,
    },
    /// Save this image as the source's file on this shard → [`Event::Persisted`]. At most one
    /// per source is outstanding.
    Persist {
        /// Whose file.
        source: SourceKey,
        /// I4; higher than any before.
        generation: u64,
        /// Encoded file, see [`crate::statefile::format`].
        image: Vec<u8>,
    },
    /// Work for a connection to Postgres.
    Pg {
        /// Slot.
        conn: PgConnId,
        /// What to do.
        command: PgCommand,
    },
    /// Work on a spill file → [`Event::Spilled`], in order.
    Spill {
        /// Whose.
        feed: FeedId,
        /// What to do.
        op: Spill,
    },
    /// A message to the control thread.
    Control(ToControl),
}

/// What is asked of a connection to Postgres.
#[derive(Debug)]
pub enum PgCommand {
    /// Dial and log in → [`PgEvent::Up`] or [`PgEvent::Down`]. The slot is down. Each address is
    /// tried within the plan's `connect_timeout`.
    Connect {
        /// Where, and as whom.
        plan: Arc<PostgresPlan>,
        /// Ask for a walsender.
        replication: bool,
    },
    /// A simple query → [`PgEvent::Answer`], or [`PgEvent::CopyStarted`] for START_REPLICATION.
    /// Several are answered in order; none may be asked while a copy runs.
    Query(String),
    /// In a copy: deliver one [`PgEvent::Chunk`]. Nothing is read from the socket without this.
    /// A second grant before the first is used replaces it.
    Read {
        /// Bytes of a chunk at most, unless a single message is larger.
        most: u32,
        /// Messages larger than this are not read: [`PgEvent::TooLarge`].
        largest: u32,
    },
    /// In a copy: whole messages to send, in order, whether or not anything is read.
    Write(Vec<u8>),
    /// From now on a granted read that brings no byte for this long ends the connection as
    /// [`PgConnError::Silent`]; `None` waits for ever.
    Watch(Option<Duration>),
    /// Say goodbye if nothing is half written, and close without waiting → [`PgEvent::Down`].
    Close,
}

/// What the driver reports to the pipeline.
#[derive(Debug)]
pub enum Event {
    /// Logged in.
    ConnUp {
        /// Slot.
        conn: ConnId,
        /// Version string of the server.
        server_version: String,
        /// Which server it is.
        place: Place,
    },
    /// Dial or login failed, or the connection ended. Every outstanding request was answered
    /// with a failure before this.
    ConnDown {
        /// Slot.
        conn: ConnId,
        /// Why.
        cause: ConnError,
    },
    /// The end of one [`Command::Request`].
    Replied {
        /// Which.
        ticket: Ticket,
        /// How it went.
        result: Result<Reply, Failure>,
    },
    /// The end of one [`Command::Persist`].
    Persisted {
        /// Whose file.
        source: SourceKey,
        /// Which save.
        generation: u64,
        /// How it went.
        result: Result<(), SaveError>,
    },
    /// News of a connection to Postgres.
    Pg {
        /// Slot.
        conn: PgConnId,
        /// What happened.
        event: PgEvent,
    },
    /// The end of one [`Command::Spill`].
    Spilled {
        /// Whose.
        feed: FeedId,
        /// What was read, empty for other operations; or what went wrong.
        result: Result<Vec<u8>, String>,
    },
    /// A message from the control thread.
    Control(FromControl),
}

/// What happened on a connection to Postgres.
#[derive(Debug)]
pub enum PgEvent {
    /// Logged in and ready for a query.
    Up(Box<ServerInfo>),
    /// Dial or login failed, or the connection ended; the last event of the slot. Queries without
    /// an answer will not have one.
    Down(PgConnError),
    /// The end of one [`PgCommand::Query`]: an entry per statement, or what the server refused.
    Answer(Result<Vec<Rows>, ServerError>),
    /// Messages flow in both directions; [`PgCommand::Read`] gets them.
    CopyStarted,
    /// A remark of the server, at any time.
    Notice(Box<Notice>),
    /// Whole CopyData messages, headers included; uses up a grant.
    Chunk(Bytes),
    /// The copy is over on both sides and the connection takes queries again; an error says why
    /// the server ended it.
    CopyEnded(Option<ServerError>),
    /// The next message has this many bytes, more than allowed. It is read once a grant allows
    /// it; uses up a grant.
    TooLarge {
        /// Its size, header included.
        size: u32,
    },
}

/// Why a request has no good reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The server refused with this code (`status`, result section).
    Refused(u32),
    /// No reply in time. For a send: outcome unknown.
    TimedOut,
    /// The connection ended first. For a send: outcome unknown.
    Lost,
    /// The reply is larger than `reply_limit`; the connection is being closed.
    TooLarge {
        /// Frame size announced, bytes.
        size: u32,
    },
    /// The reply does not decode; the connection is being closed.
    Malformed(String),
}

/// Why a connection is down.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnError {
    /// The name does not resolve.
    #[error("{address} does not resolve: {why}")]
    Resolve {
        /// `host:port` as configured.
        address: String,
        /// The resolver's words.
        why: String,
    },
    /// Nothing accepted the connection.
    #[error("{address} cannot be reached: {why}")]
    Dial {
        /// `host:port` as configured.
        address: String,
        /// The kernel's words.
        why: String,
    },
    /// Wrong password, unknown token, inactive user: trying again will not help.
    #[error("{address} refused the login: {why}")]
    Login {
        /// `host:port` as configured.
        address: String,
        /// Reason in words.
        why: String,
    },
    /// A server version this program was not tested with (M14).
    #[error(
        "{address} runs version {seen}, expected 0.9.x; set allow_untested_server = true on the \
         cluster to accept it"
    )]
    UntestedServer {
        /// `host:port` as configured.
        address: String,
        /// Version string.
        seen: String,
    },
    /// The server ended the session.
    #[error("evicted by the server, reason {0}")]
    Evicted(u8),
    /// Bytes that do not follow the protocol.
    #[error("protocol violation: {0}")]
    Protocol(String),
    /// A request and the ping after it went unanswered.
    #[error("no answer for {0:?}")]
    Silent(Duration),
    /// A reply was larger than its reservation.
    #[error("reply of {size} bytes, reserved were {limit}")]
    TooLarge {
        /// Frame size announced, bytes.
        size: u32,
        /// What was reserved, bytes.
        limit: u32,
    },
    /// Closed by the peer or the network.
    #[error("connection lost: {0}")]
    Lost(String),
    /// Closed by [`Command::Close`].
    #[error("closed")]
    Closed,
}

/// Why a connection to Postgres is down. Never holds a secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PgConnError {
    /// The name does not resolve.
    #[error("{address} does not resolve: {why}")]
    Resolve {
        /// As configured.
        address: String,
        /// The resolver's words.
        why: String,
    },
    /// Nothing accepted the connection, or no login came about in time.
    #[error("{address} cannot be reached: {why}")]
    Dial {
        /// As configured.
        address: String,
        /// The kernel's words.
        why: String,
    },
    /// No TLS session came about.
    #[error("TLS to {address}: {fault}: {why}")]
    Tls {
        /// As configured.
        address: String,
        /// Which kind.
        fault: TlsFault,
        /// What was seen.
        why: String,
    },
    /// The server refused the session, with an SQLSTATE, or we did: it asks for what the
    /// configuration forbids, does not prove who it is, or is no Postgres. What to do is in
    /// [`StartupError::advice`].
    #[error("login to {address}: {error}")]
    Login {
        /// As configured.
        address: String,
        /// Why, in the server's words if they are its.
        error: StartupError,
    },
    /// The server is not of the kind that is wanted; another host may be.
    #[error("{address} {why}")]
    Unsuitable {
        /// As configured.
        address: String,
        /// What it is, and what is wanted.
        why: &'static str,
    },
    /// Bytes that do not follow the protocol, or commands that do not.
    #[error("protocol violation: {0}")]
    Protocol(String),
    /// The server ended the session and said why.
    #[error("ended by the server: {0}")]
    Ended(ServerError),
    /// No byte came for this long although the server was to send keepalives.
    #[error("nothing heard from the server for {0:?}")]
    Silent(Duration),
    /// Closed by the peer or the network.
    #[error("connection lost: {0}")]
    Lost(String),
    /// Closed by [`PgCommand::Close`].
    #[error("closed")]
    Closed,
}

impl PgConnError {
    /// True if trying again with the same configuration and the same server cannot help: a wrong
    /// password or role, no such database, a certificate or a method that is not acceptable.
    pub fn is_final(&self) -> bool {
        match self {
            PgConnError::Login { error, .. } => !error.is_passing(),
            PgConnError::Tls { fault, .. } => *fault != TlsFault::Handshake,
            _ => false,
        }
    }

    /// What the server said, if it said anything.
    pub fn server(&self) -> Option<&ServerError> {
        match self {
            PgConnError::Ended(error)
            | PgConnError::Login { error: StartupError::Refused { error, .. }, .. } => Some(error),
            _ => None,
        }
    }
}

/// What is wrong with TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsFault {
    /// The server has none and `sslmode` asks for it.
    NotOffered,
    /// A certificate or key of ours cannot be used.
    Setup,
    /// The certificate is signed by an authority that is not trusted.
    WrongAuthority,
    /// The certificate is for another host.
    WrongName,
    /// The certificate is not valid at this time.
    WrongTime,
    /// Something else about the certificate.
    BadCertificate,
    /// The server ended the handshake, for example for want of a client certificate.
    RefusedByServer,
    /// The two do not understand each other.
    Handshake,
}

impl std::fmt::Display for TlsFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            TlsFault::NotOffered => "the server does not offer it",
            TlsFault::Setup => "cannot be set up",
            TlsFault::WrongAuthority => "certificate of an authority that is not trusted",
            TlsFault::WrongName => "certificate of another host",
            TlsFault::WrongTime => "certificate not valid at this time",
            TlsFault::BadCertificate => "certificate refused",
            TlsFault::RefusedByServer => "refused by the server",
            TlsFault::Handshake => "handshake failed",
        })
    }
}

/// From the control thread to a shard.
#[derive(Debug)]
pub enum FromControl {
    /// What this shard's file of a source holds at the start, before any feed is added. Every
    /// save carries these entries until their feeds run here: of a topic that is not in the plan
    /// any more, that is until the next start.
    Carry {
        /// The source.
        plan: Arc<MirrorPlan>,
        /// Highest generation found in the source's files, see [`FeedSpec::generation`].
        generation: u64,
        /// The entries.
        entries: Vec<FeedState>,
    },
    /// Run this feed from now on.
    AddFeed(Box<FeedSpec>),
    /// Run this capture from now on.
    AddCapture(Box<CaptureSpec>),
    /// Give up what a capture cannot deliver, and answer [`ToControl::Abandoned`] (C5).
    Abandon {
        /// Which capture.
        feed: FeedId,
        /// Comes back with the answer.
        order: u64,
        /// What to give up.
        range: Abandon,
    },
    /// What the destination looks like after [`ToControl::EnsureDestination`].
    DestinationReady {
        /// Which feed asked.
        feed: FeedId,
        /// Creation time of the destination topic, or why there is none.
        result: Result<u64, String>,
    },
    /// The destination topic is gone and about to be made again: send nothing more before
    /// looking at it anew, and answer [`ToControl::DestinationReleased`].
    ReleaseDestination {
        /// Which feed.
        feed: FeedId,
    },
    /// The destination topic is another one than before: look at it before the next send.
    LookAgain {
        /// Which feed.
        feed: FeedId,
        /// Creation time of the one that is there now.
        created_at: u64,
    },
    /// The daemon-wide slot for one oversized message is yours (G6).
    LargeSlotGranted {
        /// Which feed asked.
        feed: FeedId,
    },
    /// Whether the source rests by the operator's word; comes before its feeds if it does.
    Pause {
        /// Which source.
        source: SourceKey,
        /// Rest, or go on.
        paused: bool,
    },
    /// Every feed of the source begins again from its saved position, also one that stopped.
    Restart {
        /// Which source.
        source: SourceKey,
    },
    /// Drain to the barrier, save, and answer [`ToControl::Drained`] (O2).
    Drain,
}

/// From a shard to the control thread.
#[derive(Debug)]
pub enum ToControl {
    /// The destination is absent and policy says to make it again.
    EnsureDestination {
        /// Which feed.
        feed: FeedId,
    },
    /// What this feed sent may still arrive until `settle` has passed, nothing after that.
    DestinationReleased {
        /// Which feed.
        feed: FeedId,
    },
    /// A message needs more than this shard's share (G6).
    LargeSlotWanted {
        /// Which feed.
        feed: FeedId,
    },
    /// The slot is free again.
    LargeSlotReleased {
        /// Which feed.
        feed: FeedId,
    },
    /// Something for the log.
    Note {
        /// Of which source.
        source: SourceKey,
        /// To be looked at.
        unusual: bool,
        /// What.
        text: String,
    },
    /// How [`FromControl::Abandon`] went.
    Abandoned {
        /// Which order.
        order: u64,
        /// What was given up, or why nothing was.
        answer: Answer,
    },
    /// Everything of this shard is saved or given up.
    Drained,
}

/// A mirror feed as the control thread hands it to its shard.
#[derive(Clone, Debug)]
pub struct FeedSpec {
    /// Unique in this process.
    pub id: FeedId,
    /// Its source.
    pub plan: Arc<MirrorPlan>,
    /// Index into `plan.topics`.
    pub topic: usize,
    /// Partition on both sides.
    pub partition: u32,
    /// Newest saved entry, or `None` at its first start.
    pub saved: Option<FeedState>,
    /// How many partitions the upstream topic had when this source first started it. One from
    /// this number on came later: it begins at its first message, whatever `initial_offset` says
    /// (M4).
    pub first_count: u32,
    /// Highest generation found in the source's files: saves go on above it (I4).
    pub generation: u64,
    /// Creation time of the upstream topic as the control thread saw it.
    pub upstream_created_at: u64,
    /// Creation time of the destination topic as the control thread saw or made it.
    pub downstream_created_at: u64,
}

/// A capture as the control thread hands it to its shard.
#[derive(Clone, Debug)]
pub struct CaptureSpec {
    /// Unique in this process, among feeds too.
    pub id: FeedId,
    /// Its source.
    pub plan: Arc<CapturePlan>,
    /// Newest saved entry of its slot, or `None` at its first start.
    pub saved: Option<CaptureState>,
    /// Entries of slots that the source used before: every save carries them.
    pub carried: Vec<CaptureState>,
    /// Highest generation found in the source's files: saves go on above it (I4).
    pub generation: u64,
    /// Go on behind changes that are gone, and record that.
    pub accept_gap: bool,
}

/// When the pipeline wants to run again if no event comes first.
pub type Wake = Option<Millis>;
