//! The language between the pure pipeline and the driver.
//!
//! The driver turns every [`Command`] into I/O and its end into exactly one [`Event`]; it
//! decides nothing. Time comes with each step as [`crate::time::Now`].

use std::sync::Arc;
use std::time::Duration;

use crate::batch::{FeedId, SourceKey};
use crate::config::MirrorPlan;
use crate::iggy_wire::{Reply, Request};
use crate::statefile::FeedState;
pub use crate::statefile::store::SaveError;
use crate::time::Millis;

/// A connection slot of one shard. The pipeline numbers them; a slot is dialled again after it
/// went down, and never has two sockets at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId(pub u32);

/// Names one outstanding request; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

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
    /// A message to the control thread.
    Control(ToControl),
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
    /// A message from the control thread.
    Control(FromControl),
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
    /// True when the partition appeared after its topic was first started by this source: it
    /// begins at its first message, whatever `initial_offset` says (M4).
    pub late: bool,
    /// Highest generation found in the source's files: saves go on above it (I4).
    pub generation: u64,
    /// Creation time of the upstream topic as the control thread saw it.
    pub upstream_created_at: u64,
    /// Creation time of the destination topic as the control thread saw or made it.
    pub downstream_created_at: u64,
}

/// When the pipeline wants to run again if no event comes first.
pub type Wake = Option<Millis>;
