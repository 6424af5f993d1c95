//! The control thread's way to one cluster: dialled when needed, one request at a time.

use std::rc::Rc;
use std::sync::Arc;

use super::conn::{Conn, Dial};
use super::queue::EventQueue;
use super::resolve::Resolver;
use crate::config::ClusterPlan;
use crate::iggy_wire::{Reply, Request, ServerError};
use crate::shard::event::{ConnId, Event, Failure, Ticket};
use crate::shard::provision::Trouble;

/// Largest reply: a topic with a thousand partitions and every option is a tenth of it.
const REPLY_LIMIT: u32 = 1 << 20;
const CONN: ConnId = ConnId(0);

/// One cluster, possibly connected.
pub struct Link {
    cluster: Arc<ClusterPlan>,
    resolver: Rc<Resolver>,
    events: Rc<EventQueue>,
    conn: Option<Conn>,
    ticket: u64,
}

impl Link {
    /// Not connected yet.
    pub fn new(cluster: Arc<ClusterPlan>, resolver: Rc<Resolver>) -> Link {
        Link { cluster, resolver, events: Rc::default(), conn: None, ticket: 0 }
    }

    /// Sends one request, over a new connection if there is none.
    pub async fn ask(&mut self, request: &Request) -> Result<Reply, Trouble> {
        self.notice_the_end();
        if self.conn.is_none() {
            self.connect().await?;
        }
        self.ticket += 1;
        let ticket = Ticket(self.ticket);
        if let Some(conn) = &self.conn {
            conn.request(ticket, request, REPLY_LIMIT, self.cluster.request_timeout);
        }
        loop {
            match self.events.next().await {
                Event::Replied { ticket: seen, result } if seen == ticket => {
                    if let Err(Failure::Refused(code)) = result
                        && (ServerError { code }).is_unauthenticated()
                    {
                        self.close().await;
                    }
                    return result.map_err(Trouble::Failed);
                }
                Event::ConnDown { .. } => {
                    self.conn = None;
                    return Err(Trouble::Failed(Failure::Lost));
                }
                _ => {}
            }
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
            events: self.events.clone(),
            resolver: self.resolver.clone(),
        }));
        loop {
            match self.events.next().await {
                Event::ConnUp { .. } => return Ok(()),
                Event::ConnDown { cause, .. } => {
                    self.conn = None;
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
        }
    }
}
