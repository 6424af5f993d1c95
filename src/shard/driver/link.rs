//! The way of the control thread and of commands to one cluster: dialled when needed, one request
//! at a time.
//!
//! A node that does not lead refuses changes (58). Then the next request goes to the leader, as
//! the roster names it, or to the next configured address if that one cannot be reached (M14). A
//! leader that was not configured must name the same nodes: else it is of another cluster, and
//! what is asked there would be made and seen there.

use std::rc::Rc;
use std::sync::Arc;

use super::conn::{Conn, Dial};
use super::queue::EventQueue;
use super::resolve::Resolver;
use crate::config::{ClusterPlan, same_address};
use crate::iggy_wire::{Node, Reply, Request, ServerError};
use crate::shard::event::{ConnError, ConnId, Event, Failure, Place, Ticket};
use crate::shard::nodes::address_of;
use crate::shard::provision::Trouble;

/// Largest reply to `ask`: a topic with a thousand partitions and every option is a tenth of it.
const REPLY_LIMIT: u32 = 1 << 20;
const CONN: ConnId = ConnId(0);

/// One cluster, possibly connected.
pub struct Link {
    cluster: Arc<ClusterPlan>,
    resolver: Rc<Resolver>,
    events: Rc<EventQueue>,
    conn: Option<Conn>,
    /// Where it leads, or led.
    place: Option<Place>,
    /// The node to dial; `None`: whichever configured address answers first.
    node: Option<Arc<str>>,
    /// Where it dials again after a loss; it never goes elsewhere from a certain node.
    home: Option<Arc<str>>,
    /// What the node said that named the leader.
    roster: Vec<Node>,
    /// A leader that the cluster named and that could not be reached.
    unreachable: Option<Arc<str>>,
    ticket: u64,
}

impl Link {
    /// Not connected yet.
    pub fn new(cluster: Arc<ClusterPlan>, resolver: Rc<Resolver>) -> Link {
        Link::to(cluster, resolver, None)
    }

    /// The same to one node and no other, if there is one.
    pub fn to(cluster: Arc<ClusterPlan>, resolver: Rc<Resolver>, node: Option<Arc<str>>) -> Link {
        Link {
            cluster,
            resolver,
            events: Rc::default(),
            conn: None,
            place: None,
            node: node.clone(),
            home: node,
            roster: Vec::new(),
            unreachable: None,
            ticket: 0,
        }
    }

    /// Sends one request, over a new connection if there is none.
    pub async fn ask(&mut self, request: &Request) -> Result<Reply, Trouble> {
        self.ask_within(request, REPLY_LIMIT).await
    }

    /// The same with another bound on the reply.
    pub async fn ask_within(&mut self, request: &Request, limit: u32) -> Result<Reply, Trouble> {
        self.notice_the_end();
        if self.conn.is_none() {
            self.connect().await?;
        }
        let answer = self.exchange(request, limit).await;
        if let Err(Trouble::Failed(Failure::Refused(code))) = answer {
            let error = ServerError { code };
            if error.is_unauthenticated() {
                self.close().await;
            } else if error.is_not_accepted() {
                self.go_elsewhere().await;
            }
        }
        answer
    }

    async fn exchange(&mut self, request: &Request, limit: u32) -> Result<Reply, Trouble> {
        self.ticket += 1;
        let ticket = Ticket(self.ticket);
        if let Some(conn) = &self.conn {
            conn.request(ticket, request, limit, self.cluster.request_timeout);
        }
        loop {
            match self.events.next().await {
                Event::Replied { ticket: seen, result } if seen == ticket => {
                    return result.map_err(Trouble::Failed);
                }
                Event::ConnDown { .. } => {
                    self.conn = None;
                    self.node = self.home.clone();
                    return Err(Trouble::Failed(Failure::Lost));
                }
                _ => {}
            }
        }
    }

    /// This node does not lead: the next connection leads to another one, if there is one.
    async fn go_elsewhere(&mut self) {
        if self.home.is_some() {
            return;
        }
        let roster = match self.exchange(&Request::ClusterMetadata, REPLY_LIMIT).await {
            Ok(Reply::Cluster(roster)) => roster,
            _ => Vec::new(),
        };
        let Some(place) = &self.place else { return };
        let next = elsewhere(&self.cluster.addresses, &roster, place, self.unreachable.as_deref());
        if let Some(next) = next {
            self.node = Some(next);
            self.roster = roster;
            self.close().await;
        }
    }

    /// Closes the connection, if there is one, and waits until it is.
    pub async fn close(&mut self) {
        let Some(conn) = self.conn.take() else { return };
        conn.close();
        while !matches!(self.events.next().await, Event::ConnDown { .. }) {}
    }

    async fn connect(&mut self) -> Result<(), Trouble> {
        self.conn = Some(Conn::open(Dial {
            conn: CONN,
            cluster: self.cluster.clone(),
            node: self.node.clone(),
            events: self.events.clone(),
            resolver: self.resolver.clone(),
        }));
        loop {
            match self.events.next().await {
                Event::ConnUp { place, .. } => {
                    self.place = Some(place);
                    return self.check_leader().await;
                }
                Event::ConnDown { cause, .. } => {
                    self.conn = None;
                    self.unreachable = std::mem::replace(&mut self.node, self.home.clone());
                    return Err(Trouble::Unreachable(cause));
                }
                _ => {}
            }
        }
    }

    /// A leader that only the cluster names must know the cluster.
    async fn check_leader(&mut self) -> Result<(), Trouble> {
        let is_known = |node: &Arc<str>| {
            self.cluster.addresses.iter().any(|address| same_address(address, node))
        };
        let Some(node) = self.node.clone().filter(|node| self.home.is_none() && !is_known(node))
        else {
            return Ok(());
        };
        let roster = match self.exchange(&Request::ClusterMetadata, REPLY_LIMIT).await? {
            Reply::Cluster(roster) => roster,
            _ => Vec::new(),
        };
        if are_same(&roster, &self.roster) {
            return Ok(());
        }
        self.close().await;
        (self.unreachable, self.node) = (Some(node.clone()), None);
        let why = "names other nodes than the node that named it as the leader: it belongs to \
                   another cluster; correct what the nodes advertise, or name every node in \
                   addresses";
        Err(Trouble::Unreachable(ConnError::Dial { address: node.to_string(), why: why.into() }))
    }

    /// Where it leads, while it is connected or was.
    pub fn place(&self) -> Option<&Place> {
        self.place.as_ref()
    }

    /// The connection may have ended while nobody asked anything.
    fn notice_the_end(&mut self) {
        let mut events = Vec::new();
        self.events.take_into(&mut events, usize::MAX);
        if events.iter().any(|event| matches!(event, Event::ConnDown { .. })) {
            self.conn = None;
            self.node = self.home.clone();
        }
    }
}

/// Whether two rosters name the same nodes, in whatever roles.
fn are_same(left: &[Node], right: &[Node]) -> bool {
    let names = |roster: &[Node]| {
        let names = roster.iter().map(|node| (node.name.clone(), node.ip.clone(), node.tcp_port));
        let mut names: Vec<_> = names.collect();
        names.sort_unstable();
        names
    };
    names(left) == names(right)
}

/// Where to go from a node that does not lead: to the leader, or to the configured address behind
/// this one.
fn elsewhere(
    configured: &[String],
    roster: &[Node],
    place: &Place,
    unreachable: Option<&str>,
) -> Option<Arc<str>> {
    let leader = roster.iter().find(|node| node.leader && node.healthy);
    let leader = leader.and_then(|node| address_of(node, place));
    let is_new = |address: &Arc<str>| {
        !place.is(address) && unreachable.is_none_or(|known| !same_address(known, address))
    };
    if let Some(leader) = leader.filter(is_new) {
        return Some(leader);
    }
    let here = configured.iter().position(|address| place.is(address));
    let from = here.map_or(0, |here| here + 1);
    let mut others = (from..from + configured.len()).map(|index| index % configured.len());
    let next = others.find(|index| !place.is(&configured[*index]))?;
    Some(configured[next].as_str().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(port: u16, leader: bool) -> Node {
        Node {
            name: port.to_string(),
            ip: "10.0.0.1".into(),
            tcp_port: port,
            leader,
            healthy: true,
        }
    }

    #[test]
    fn a_cluster_is_known_by_the_nodes_it_names() {
        let ours = [node(1, false), node(2, true)];
        let moved = [node(2, false), node(1, true)];
        assert!(are_same(&ours, &moved), "roles move");
        assert!(!are_same(&ours, &ours[..1]) && !are_same(&ours, &[node(1, false), node(3, true)]));
    }

    #[test]
    fn a_change_goes_to_the_leader_or_to_the_next_address() {
        let place = |address: &str| Place { address: address.into(), peer: address.into() };
        let configured = ["a:1".to_owned(), "b:1".to_owned(), "c:1".to_owned()];
        let roster = [node(1, false), node(2, true)];
        let at = |from: &str, roster: &[Node], unreachable: Option<&str>| {
            elsewhere(&configured, roster, &place(from), unreachable)
        };
        assert_eq!(at("a:1", &roster, None).as_deref(), Some("10.0.0.1:2"));
        assert_eq!(at("a:1", &roster, Some("10.0.0.1:2")).as_deref(), Some("b:1"));
        assert_eq!(at("c:1", &[], None).as_deref(), Some("a:1"));
        assert_eq!(at("10.0.0.1:2", &roster, None).as_deref(), Some("a:1"), "it says it leads");
        let alone = ["a:1".to_owned()];
        assert_eq!(elsewhere(&alone, &[node(1, true)], &place("a:1"), None).as_deref(), {
            Some("10.0.0.1:1")
        });
        assert_eq!(elsewhere(&alone, &[], &place("a:1"), None), None);
    }
}
