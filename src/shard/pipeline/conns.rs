//! Connection slots of one shard: which cluster, which state, when to dial again, and who waits
//! for which reply.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::batch::{FeedId, SourceKey};
use crate::commit::policy::Backoff;
use crate::config::ClusterPlan;
use crate::iggy_wire::Request;
use crate::shard::event::{Command, ConnError, ConnId, Ticket};
use crate::time::Millis;

/// Poll connections of one source on one shard, at most: the server answers the polls of a
/// connection one after the other.
pub const UPSTREAM_CONNECTIONS: usize = 4;
/// Send connections of one source on one shard, at most: a lost one makes all its feeds look
/// at the destination again.
pub const DOWNSTREAM_CONNECTIONS: usize = 16;

/// Which end of a mirror.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Side {
    /// Polls.
    Upstream,
    /// Sends.
    Downstream,
}

/// What a reply is for. The round tells a reply of an abandoned attempt from a wanted one.
#[derive(Clone, Copy, Debug)]
pub struct Waiter {
    /// Who asked.
    pub feed: FeedId,
    /// Its round when it asked.
    pub round: u32,
    /// Why.
    pub purpose: Purpose,
}

/// Why a feed asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Identity of the upstream topic, before resuming.
    UpstreamTopic,
    /// Identity of the destination topic, before resuming.
    DownstreamTopic,
    /// Where the destination ends.
    Tail,
    /// Where a first start begins.
    Locate,
    /// Last messages of the destination.
    CompareDownstream,
    /// The same messages upstream.
    CompareUpstream,
    /// The destination's message at the saved fingerprint.
    CompareSaved,
    /// Identity of the upstream topic while copying.
    Identity,
    /// Where the upstream log begins, after a jump.
    Earliest,
    /// A look at a topic for its idle partitions.
    Watch,
    /// A look at a topic for partitions that do not poll.
    Look,
    /// The next messages.
    Poll,
    /// A send.
    Send,
}

#[derive(Debug)]
enum State {
    Down { dial_at: Millis },
    Dialling,
    Up { proven: bool },
    Closing { proven: bool },
}

/// One slot.
#[derive(Debug)]
pub struct Slot {
    source: SourceKey,
    side: Side,
    cluster: Arc<ClusterPlan>,
    state: State,
    backoff: Backoff,
    /// Feeds that use this slot.
    pub feeds: Vec<FeedId>,
    /// Why it is down, if it failed since it was last up.
    pub failure: Option<ConnError>,
}

/// All slots and outstanding requests.
#[derive(Debug, Default)]
pub struct Conns {
    slots: Vec<Slot>,
    waiting: HashMap<Ticket, Waiter>,
    last_ticket: u64,
}

impl Conns {
    /// Gives a feed a slot on one side of its source: a new one until there are `most`, then the
    /// one with the fewest feeds.
    pub fn assign(
        &mut self,
        feed: FeedId,
        source: &SourceKey,
        side: Side,
        cluster: &Arc<ClusterPlan>,
        backoff: Backoff,
    ) -> ConnId {
        let most = match side {
            Side::Upstream => UPSTREAM_CONNECTIONS,
            Side::Downstream => DOWNSTREAM_CONNECTIONS,
        };
        let mine = |slot: &Slot| slot.source == *source && slot.side == side;
        let count = self.slots.iter().filter(|slot| mine(slot)).count();
        let index = if count < most {
            self.slots.push(Slot {
                source: source.clone(),
                side,
                cluster: cluster.clone(),
                state: State::Down { dial_at: Millis(0) },
                backoff,
                feeds: Vec::new(),
                failure: None,
            });
            self.slots.len() - 1
        } else {
            let fewest = self.slots.iter().enumerate().filter(|(_, slot)| mine(slot));
            fewest.min_by_key(|(_, slot)| slot.feeds.len()).map_or(0, |(index, _)| index)
        };
        self.slots[index].feeds.push(feed);
        ConnId(u32::try_from(index).unwrap_or(u32::MAX))
    }

    /// The slot.
    pub fn slot(&self, conn: ConnId) -> &Slot {
        &self.slots[conn.0 as usize]
    }

    /// Logged in.
    pub fn is_up(&self, conn: ConnId) -> bool {
        matches!(self.slot(conn).state, State::Up { .. })
    }

    /// Dials what is due; returns when the next one is.
    pub fn dial(&mut self, now: Millis, out: &mut Vec<Command>) -> Option<Millis> {
        let mut next = None;
        for (index, slot) in self.slots.iter_mut().enumerate() {
            let State::Down { dial_at } = slot.state else { continue };
            if dial_at > now {
                next = Some(next.map_or(dial_at, |at: Millis| at.min(dial_at)));
                continue;
            }
            slot.state = State::Dialling;
            let conn = ConnId(u32::try_from(index).unwrap_or(u32::MAX));
            out.push(Command::Connect { conn, cluster: slot.cluster.key.clone() });
        }
        next
    }

    /// A slot came up.
    pub fn up(&mut self, conn: ConnId) {
        let slot = &mut self.slots[conn.0 as usize];
        slot.state = State::Up { proven: false };
        slot.failure = None;
    }

    /// A slot went down: when it is dialled again depends on whose doing it was.
    pub fn down(&mut self, conn: ConnId, cause: ConnError, now: Millis, rng: &mut fastrand::Rng) {
        let slot = &mut self.slots[conn.0 as usize];
        let ours = matches!(cause, ConnError::Closed | ConnError::TooLarge { .. });
        let proven =
            matches!(slot.state, State::Up { proven: true } | State::Closing { proven: true });
        let wait = if ours && proven { Duration::ZERO } else { slot.backoff.failed(rng) };
        slot.state = State::Down { dial_at: now + wait };
        slot.failure = (!ours).then_some(cause);
    }

    /// A request succeeded: the next failure starts the back-off anew.
    pub fn proven(&mut self, conn: ConnId) {
        let slot = &mut self.slots[conn.0 as usize];
        if let State::Up { proven } = &mut slot.state {
            *proven = true;
            slot.backoff.reset();
        }
    }

    /// Closes a slot that is up.
    pub fn close(&mut self, conn: ConnId, out: &mut Vec<Command>) {
        let slot = &mut self.slots[conn.0 as usize];
        if let State::Up { proven } = slot.state {
            slot.state = State::Closing { proven };
            out.push(Command::Close { conn });
        }
    }

    /// Sends a request in the name of a feed.
    pub fn request(
        &mut self,
        conn: ConnId,
        request: Request,
        reply_limit: u64,
        waiter: Waiter,
        out: &mut Vec<Command>,
    ) {
        self.last_ticket += 1;
        let ticket = Ticket(self.last_ticket);
        self.waiting.insert(ticket, waiter);
        out.push(Command::Request {
            conn,
            ticket,
            request,
            reply_limit: u32::try_from(reply_limit).unwrap_or(u32::MAX),
            timeout: self.slot(conn).cluster.request_timeout,
        });
    }

    /// Who waited for this reply.
    pub fn answered(&mut self, ticket: Ticket) -> Option<Waiter> {
        self.waiting.remove(&ticket)
    }
}
