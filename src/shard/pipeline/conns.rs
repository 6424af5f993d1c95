//! Connection slots of one shard: which cluster, which node of it, which state, when to dial
//! again, and who waits for which reply.
//!
//! A slot leads to whichever configured address answers first, or to one named node. Feeds *use*
//! a slot for all they do, or *visit* one to ask another node a question. A slot that nobody uses
//! or visits is closed and not dialled; its place is taken by the next node.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::batch::{FeedId, SourceKey};
use crate::commit::policy::Backoff;
use crate::config::{ClusterPlan, same_address};
use crate::fanout::outlet::Token;
use crate::iggy_wire::{Node, Request};
use crate::shard::event::{Command, ConnError, ConnId, Place, Ticket};
use crate::shard::nodes::Nodes;
use crate::time::Millis;

/// Poll connections of one source on one shard, at most: the server answers the polls of a
/// connection one after the other.
pub const UPSTREAM_CONNECTIONS: usize = 4;
/// Send connections of one source to one node on one shard, at most: a lost one makes all its
/// feeds look at the destination again.
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
    /// Which nodes the destination cluster has; asked in the name of a whole slot.
    Roster,
    /// The same of the upstream cluster.
    UpstreamRoster,
    /// Which node leads the destination partition.
    Primary,
    /// Where another node says that the destination ends.
    Vote,
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
    /// A request of a capture.
    Capture(Token),
    /// Whether a node that was not configured is of the capture's cluster.
    Vet,
}

#[derive(Debug)]
enum State {
    Down { dial_at: Millis },
    Dialling,
    Up { proven: bool },
    Closing { proven: bool },
}

/// Who wants a slot, for what, and where it is to lead.
#[derive(Clone, Copy, Debug)]
pub struct Wish<'a> {
    /// Who.
    pub feed: FeedId,
    /// Its source.
    pub source: &'a SourceKey,
    /// Which end.
    pub side: Side,
    /// The cluster there.
    pub cluster: &'a Arc<ClusterPlan>,
    /// One node of it; `None`: whichever configured address answers first.
    pub node: Option<&'a Arc<str>>,
}

/// Whether a slot can be asked something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Logged in.
    Up,
    /// Being dialled, or about to be.
    Soon,
    /// The last dial failed and the next one is not due.
    Failed(String),
}

/// One slot.
#[derive(Debug)]
pub struct Slot {
    source: SourceKey,
    side: Side,
    cluster: Arc<ClusterPlan>,
    node: Option<Arc<str>>,
    state: State,
    backoff: Backoff,
    /// Feeds that use this slot.
    pub feeds: Vec<FeedId>,
    /// Feeds that ask something here and use another slot.
    pub visitors: Vec<FeedId>,
    /// Why it is down, if it failed since it was last up.
    pub failure: Option<ConnError>,
    /// Where it led when it last came up.
    place: Option<Place>,
    roster: Roster,
    /// The server answers which node leads a partition.
    names_primaries: bool,
}

/// Whether the server at a slot has said which nodes its cluster has.
#[derive(Debug, PartialEq, Eq)]
enum Roster {
    Unasked,
    Asked,
    Known(Nodes),
}

/// All slots and outstanding requests.
#[derive(Debug, Default)]
pub struct Conns {
    slots: Vec<Slot>,
    waiting: HashMap<Ticket, (ConnId, Waiter)>,
    last_ticket: u64,
}

impl Conns {
    /// Gives a feed a slot to use: a new one until there are the most that may lead there, then
    /// the one with the fewest feeds.
    pub fn assign(&mut self, wish: Wish<'_>, now: Millis, backoff: Backoff) -> ConnId {
        let most = match wish.side {
            Side::Upstream => UPSTREAM_CONNECTIONS,
            Side::Downstream => DOWNSTREAM_CONNECTIONS,
        };
        let used = |slot: &Slot| slot.leads_to(&wish) && !slot.feeds.is_empty();
        let index = if self.slots.iter().filter(|slot| used(slot)).count() < most {
            self.vacant(&wish, now, backoff)
        } else {
            let fewest = self.slots.iter().enumerate().filter(|(_, slot)| used(slot));
            fewest.min_by_key(|(_, slot)| slot.feeds.len()).map_or(0, |(index, _)| index)
        };
        self.slots[index].feeds.push(wish.feed);
        conn_of(index)
    }

    /// Gives a feed a slot to visit, of those that lead there already if there is one.
    pub fn visit(&mut self, wish: Wish<'_>, now: Millis, backoff: Backoff) -> ConnId {
        let known = self.slots.iter().position(|slot| slot.leads_to(&wish) && slot.is_wanted());
        let index = known.unwrap_or_else(|| self.vacant(&wish, now, backoff));
        let visitors = &mut self.slots[index].visitors;
        if !visitors.contains(&wish.feed) {
            visitors.push(wish.feed);
        }
        conn_of(index)
    }

    /// A slot that leads there and is not used, one whose node nobody wants, or a new one.
    fn vacant(&mut self, wish: &Wish<'_>, now: Millis, backoff: Backoff) -> usize {
        let free = |slot: &Slot| slot.leads_to(wish) && slot.feeds.is_empty();
        if let Some(index) = self.slots.iter().position(free) {
            return index;
        }
        let fresh = Slot::new(wish, backoff);
        match self.slots.iter().position(|slot| slot.is_forgotten(now)) {
            Some(index) => {
                self.slots[index] = fresh;
                index
            }
            None => {
                self.slots.push(fresh);
                self.slots.len() - 1
            }
        }
    }

    /// A feed uses this slot no more.
    pub fn release(&mut self, feed: FeedId, conn: ConnId, out: &mut Vec<Command>) {
        self.slots[conn.0 as usize].feeds.retain(|user| *user != feed);
        self.close_unwanted(conn, out);
    }

    /// A feed visits nobody any more.
    pub fn leave(&mut self, feed: FeedId, out: &mut Vec<Command>) {
        for index in 0..self.slots.len() {
            let visitors = &mut self.slots[index].visitors;
            if visitors.contains(&feed) {
                visitors.retain(|visitor| *visitor != feed);
                self.close_unwanted(conn_of(index), out);
            }
        }
    }

    /// Closes a slot that came up, or lost its last feed, and that nobody wants.
    pub fn close_unwanted(&mut self, conn: ConnId, out: &mut Vec<Command>) {
        if !self.slot(conn).is_wanted() {
            self.close(conn, out);
        }
    }

    /// Whether it can be asked something.
    pub fn reach(&self, conn: ConnId, now: Millis) -> Reach {
        let slot = self.slot(conn);
        match (&slot.state, &slot.failure) {
            (State::Up { .. }, _) => Reach::Up,
            (State::Down { dial_at }, Some(why)) if *dial_at > now => {
                Reach::Failed(why.to_string())
            }
            _ => Reach::Soon,
        }
    }

    /// Why a node cannot be reached: its last dial failed and the next one is not due.
    pub fn unreachable(&self, wish: Wish<'_>, now: Millis) -> Option<String> {
        let there = (0..self.slots.len()).filter(|index| self.slots[*index].leads_to(&wish));
        let mut reaches = there.map(|index| self.reach(conn_of(index), now)).peekable();
        reaches.peek()?;
        let failed = |reach| if let Reach::Failed(why) = reach { Some(why) } else { None };
        reaches.map(failed).collect::<Option<Vec<String>>>()?.pop()
    }

    /// True if the slot is to ask which nodes there are; the caller does so.
    pub fn takes_roster(&mut self, conn: ConnId) -> bool {
        let slot = &mut self.slots[conn.0 as usize];
        let takes = slot.roster == Roster::Unasked;
        if takes {
            slot.roster = Roster::Asked;
        }
        takes
    }

    /// What the server says of its nodes; `None`: it did not say, and is to be asked again.
    pub fn roster(&mut self, conn: ConnId, roster: Option<&[Node]>) {
        let slot = &mut self.slots[conn.0 as usize];
        slot.roster = match (roster, &slot.place) {
            (Some(nodes), Some(place)) => {
                Roster::Known(Nodes::new(&slot.cluster.addresses, nodes, place))
            }
            _ => Roster::Unasked,
        };
    }

    /// The nodes of the cluster, once the server has said.
    pub fn nodes(&self, conn: ConnId) -> Option<&Nodes> {
        match &self.slot(conn).roster {
            Roster::Known(nodes) => Some(nodes),
            Roster::Unasked | Roster::Asked => None,
        }
    }

    /// Whether the server can be asked for a partition's primary.
    pub fn names_primaries(&self, conn: ConnId) -> bool {
        self.slot(conn).names_primaries
    }

    /// It does not know the question.
    pub fn no_primaries(&mut self, conn: ConnId) {
        self.slots[conn.0 as usize].names_primaries = false;
    }

    /// The slot.
    pub fn slot(&self, conn: ConnId) -> &Slot {
        &self.slots[conn.0 as usize]
    }

    /// Logged in.
    pub fn is_up(&self, conn: ConnId) -> bool {
        matches!(self.slot(conn).state, State::Up { .. })
    }

    /// Told to close and not down yet.
    pub fn is_closing(&self, conn: ConnId) -> bool {
        matches!(self.slot(conn).state, State::Closing { .. })
    }

    /// Dials what is due; returns when the next one is.
    pub fn dial(&mut self, now: Millis, out: &mut Vec<Command>) -> Option<Millis> {
        let mut next = None;
        for (index, slot) in self.slots.iter_mut().enumerate() {
            let State::Down { dial_at } = slot.state else { continue };
            if !slot.is_wanted() {
                continue;
            }
            if dial_at > now {
                next = Some(next.map_or(dial_at, |at: Millis| at.min(dial_at)));
                continue;
            }
            slot.state = State::Dialling;
            let (cluster, node) = (slot.cluster.key.clone(), slot.node.clone());
            out.push(Command::Connect { conn: conn_of(index), cluster, node });
        }
        next
    }

    /// A slot came up.
    pub fn up(&mut self, conn: ConnId, place: Place) {
        let slot = &mut self.slots[conn.0 as usize];
        slot.state = State::Up { proven: false };
        slot.failure = None;
        slot.place = Some(place);
        slot.roster = Roster::Unasked;
        slot.names_primaries = true;
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
        self.waiting.insert(ticket, (conn, waiter));
        out.push(Command::Request {
            conn,
            ticket,
            request,
            reply_limit: u32::try_from(reply_limit).unwrap_or(u32::MAX),
            timeout: self.slot(conn).cluster.request_timeout,
        });
    }

    /// Who waited for this reply, and over which slot.
    pub fn answered(&mut self, ticket: Ticket) -> Option<(ConnId, Waiter)> {
        self.waiting.remove(&ticket)
    }
}

impl Slot {
    fn new(wish: &Wish<'_>, backoff: Backoff) -> Slot {
        Slot {
            source: wish.source.clone(),
            side: wish.side,
            cluster: wish.cluster.clone(),
            node: wish.node.cloned(),
            state: State::Down { dial_at: Millis(0) },
            backoff,
            feeds: Vec::new(),
            visitors: Vec::new(),
            failure: None,
            place: None,
            roster: Roster::Unasked,
            names_primaries: true,
        }
    }

    /// The node it is to lead to, if it is a certain one.
    pub fn node(&self) -> Option<&Arc<str>> {
        self.node.as_ref()
    }

    /// The same if it is not one that the operator configured.
    pub fn guest(&self) -> Option<&Arc<str>> {
        let is_configured = |node: &Arc<str>| {
            self.cluster.addresses.iter().any(|address| same_address(address, node))
        };
        self.node.as_ref().filter(|node| !is_configured(node))
    }

    /// Whether it leads to the server at `address`, or did when it was last up.
    pub fn is_at(&self, address: &str) -> bool {
        self.place.as_ref().is_some_and(|place| place.is(address))
    }

    /// Where it leads, as it was last dialled.
    pub fn address(&self) -> &str {
        match (&self.place, &self.node) {
            (Some(place), _) => &place.address,
            (None, Some(node)) => node,
            (None, None) => &self.cluster.key,
        }
    }

    /// How a node of this cluster can be dialled by whoever reached this one.
    pub fn place(&self) -> Option<&Place> {
        self.place.as_ref()
    }

    fn leads_to(&self, wish: &Wish<'_>) -> bool {
        (&self.source, self.side, self.node.as_ref()) == (wish.source, wish.side, wish.node)
    }

    fn is_wanted(&self) -> bool {
        !self.feeds.is_empty() || !self.visitors.is_empty()
    }

    /// Nobody wants its node, and whether that can be reached is not worth remembering.
    fn is_forgotten(&self, now: Millis) -> bool {
        let is_down = matches!(self.state, State::Down { dial_at } if dial_at <= now);
        is_down && self.node.is_some() && !self.is_wanted()
    }
}

fn conn_of(index: usize) -> ConnId {
    ConnId(u32::try_from(index).unwrap_or(u32::MAX))
}
