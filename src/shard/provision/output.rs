//! What goes into a provisioner and comes out of it.

use crate::batch::FeedId;
use crate::iggy_wire::Request;
use crate::shard::event::{ConnError, Failure};
use crate::statefile::FeedState;
use crate::time::Millis;

/// Which cluster of the source a request goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// `from`.
    Upstream,
    /// `to`.
    Downstream,
}

/// What the provisioner wants next.
#[derive(Debug)]
pub enum Next {
    /// Send this and report with [`super::Provisioner::answer`].
    Ask {
        /// Where to.
        side: Side,
        /// What.
        request: Request,
    },
    /// Nothing before this time, unless a feed asks.
    Sleep(Millis),
}

/// Why there is no reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// No connection: the request was not sent.
    Unreachable(ConnError),
    /// Sent, and this came of it.
    Failed(Failure),
}

/// A feed to run.
#[derive(Clone, Debug, PartialEq)]
pub struct NewFeed {
    /// Index into the plan's topics.
    pub topic: usize,
    /// Partition on both sides.
    pub partition: u32,
    /// Newest saved entry.
    pub saved: Option<FeedState>,
    /// How many partitions the upstream topic had at its first start (M4).
    pub first_count: u32,
    /// Creation time of the upstream topic.
    pub upstream_created_at: u64,
    /// Creation time of the destination topic.
    pub downstream_created_at: u64,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// Run this feed.
    Add(Box<NewFeed>),
    /// The answer to [`super::Provisioner::ensure`].
    Ready {
        /// Who asked.
        feed: FeedId,
        /// Creation time of the destination topic, or why there is none.
        result: Result<u64, String>,
    },
    /// The destination of this topic will be made again: its feeds must let go of it first and
    /// report with [`super::Provisioner::released`].
    Release {
        /// Index into the plan's topics.
        topic: usize,
    },
    /// The destination of this topic is another one than before: no feed may send before it looked
    /// at it.
    LookAgain {
        /// Index into the plan's topics.
        topic: usize,
        /// Creation time of the one that is there now.
        created_at: u64,
    },
    /// Something to tell once.
    Notice(Notice),
}

/// See [`Output::Notice`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The mirror did what it is there for: created or grew a destination.
    Done(String),
    /// The copy is not what the original is, or the original was made up: to be looked at.
    Unusual(String),
}
