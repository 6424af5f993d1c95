//! The way of the control thread and of commands to one cluster: dialled when needed, one request
//! at a time.
//!
//! A node that does not lead refuses changes (58). Then the next request goes to the leader, as
//! the roster names it, or to the next configured address if that one cannot be reached (M14).

use std::rc::Rc;
use std::sync::Arc;

use super::conn::{Conn, Dial};
use super::queue::EventQueue;
use super::resolve::Resolver;
use crate::config::{ClusterPlan, same_address};
use crate::iggy_wire::{Node, Reply, Request, ServerError};
use crate::shard::event::{ConnId, Event, Failure, Place, Ticket};
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
    /// A leader that the cluster named and that could not be reached.
    unreachable: Option<Arc<str>>,
    ticket: u64,
}

impl Link {
    /// Not connected yet.
    pub fn new(cluster: Arc<ClusterPlan>, resolver: Rc<Resolver>) -> Link {
        Link {
            cluster,
            resolver,
            events: Rc::default(),
            conn: None,
            place: None,
            node: None,
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
                    self.node = None;
                    return Err(Trouble::Failed(Failure::Lost));
                }
                _ => {}
            }
        }
    }

    /// This node does not lead: the next connection leads to another one, if there is one.
    async fn go_elsewhere(&mut self) {
        let roster = match self.exchange(&Request::ClusterMetadata, REPLY_LIMIT).await {
            Ok(Reply::Cluster(roster)) => roster,
            _ => Vec::new(),
        };
        let Some(place) = &self.place else { return };
        let next = elsewhere(&self.cluster.addresses, &roster, place, self.unreachable.as_deref());
        if let Some(next) = next {
            self.node = Some(next);
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
                    return Ok(());
                }
                Event::ConnDown { cause, .. } => {
                    self.conn = None;
                    self.unreachable = self.node.take();
                    return Err(Trouble::Unreachable(cause));
                }
                _ => {}
            }
        }
    }

    /// The connection may have ended while nobody asked anything.
    fn notice_the_end(&mut self) {
        let mut events = Vec::new();
        self.events.take_into(&mut events, usize::MAX);
        if events.iter().any(|event| matches!(event, Event::ConnDown { .. })) {
            self.conn = None;
            self.node = None;
        }
    }
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
