//! A broker inside the shard's own thread, in the place of a cluster behind a socket.
//!
//! For `tidegate bench`: the figures are then the capture's alone. Whoever starts the daemon
//! brings the broker along ([`MakeBroker`]); no configuration leads here. To the pipeline it is
//! a connection like any other: the same session, the same frames, the same events in the same
//! order. A request is answered before the call returns, and the event waits for the next turn.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::conn::{Conn, Dial};
use super::login;
use super::queue::EventQueue;
use crate::config::ClusterPlan;
use crate::iggy_wire::session::{Delivery, Outgoing, Session};
use crate::iggy_wire::{Reply, Request};
use crate::shard::event::{ConnError, ConnId, Event, Failure, Place, Ticket};

/// A broker that one thread owns and asks.
pub trait Broker {
    /// A new connection; the answer names it.
    fn connect(&mut self) -> u64;
    /// The reply to one frame, header first, or `None` for silence.
    fn exchange(&mut self, connection: u64, request: &Outgoing) -> Option<Vec<Bytes>>;
    /// The connection is gone.
    fn disconnect(&mut self, connection: u64);
}

/// Makes the broker that stands for a cluster, on the thread that uses it.
pub type MakeBroker = Arc<dyn Fn(&ClusterPlan) -> Box<dyn Broker> + Send + Sync>;

/// A broker of this thread.
pub(super) type Shared = Rc<RefCell<Box<dyn Broker>>>;

/// A connection slot of a shard, whatever is behind it.
pub(super) enum Peer {
    /// A server behind a socket.
    Socket(Conn),
    /// A broker in this thread.
    Inside(InsideConn),
}

/// A connection to a broker in this thread.
pub(super) struct InsideConn {
    conn: ConnId,
    events: Rc<EventQueue>,
    broker: Shared,
    connection: u64,
    /// Present while it is up.
    session: RefCell<Option<Session>>,
}

impl Peer {
    /// See [`Conn::request`].
    pub fn request(&self, ticket: Ticket, request: &Request, reply_limit: u32, timeout: Duration) {
        match self {
            Peer::Socket(conn) => conn.request(ticket, request, reply_limit, timeout),
            Peer::Inside(conn) => conn.request(ticket, request, reply_limit),
        }
    }

    /// See [`Conn::close`].
    pub fn close(&self) {
        match self {
            Peer::Socket(conn) => conn.close(),
            Peer::Inside(conn) => conn.end(ConnError::Closed),
        }
    }
}

impl InsideConn {
    /// Logs in: [`Event::ConnUp`] or [`Event::ConnDown`] is in the queue when this returns.
    pub fn open(dial: &Dial, broker: Shared) -> InsideConn {
        let connection = broker.borrow_mut().connect();
        let (conn, events) = (dial.conn, dial.events.clone());
        let opened = InsideConn { conn, events, broker, connection, session: RefCell::new(None) };
        let cluster = &dial.cluster;
        let address = dial.node.as_deref().or(cluster.addresses.first().map(String::as_str));
        let address: Arc<str> = address.unwrap_or_default().into();
        match opened.log_in(cluster, &address) {
            Ok((session, server_version)) => {
                opened.session.replace(Some(session));
                let place = Place { address, peer: "inside".into() };
                opened.events.push(Event::ConnUp { conn, server_version, place });
            }
            Err(cause) => {
                opened.broker.borrow_mut().disconnect(connection);
                opened.events.push(Event::ConnDown { conn, cause });
            }
        }
        opened
    }

    fn log_in(&self, cluster: &ClusterPlan, address: &str) -> Result<(Session, String), ConnError> {
        let refused = |why: String| ConnError::Login { address: address.to_owned(), why };
        let mut session = login::session(cluster);
        let login = session.login().map_err(|error| refused(error.to_string()))?;
        let delivery = self.exchange(&mut session, &login, u32::MAX)?;
        let outcome = login::outcome(delivery, cluster, address);
        let other = || ConnError::Protocol("another reply than that to the login".into());
        Ok((session, outcome.ok_or_else(other)??))
    }

    fn request(&self, ticket: Ticket, request: &Request, reply_limit: u32) {
        let mut guard = self.session.borrow_mut();
        let Some(session) = guard.as_mut() else {
            return self.replied(ticket, Err(Failure::Lost));
        };
        let outcome = match session.request(request) {
            Ok((_, outgoing)) => self.exchange(session, &outgoing, reply_limit),
            Err(error) => Err(ConnError::Protocol(format!("request cannot be encoded: {error}"))),
        };
        drop(guard);
        let cause = match outcome {
            Ok(Delivery::Reply { result, .. }) => {
                let result = result.map_err(|error| Failure::Refused(error.code));
                return self.replied(ticket, result);
            }
            Ok(Delivery::Evicted { reason }) => ConnError::Evicted(reason),
            Ok(_) => ConnError::Protocol("a reply to another request".into()),
            Err(cause) => cause,
        };
        let failure = match &cause {
            ConnError::TooLarge { size, .. } => Failure::TooLarge { size: *size },
            ConnError::Protocol(why) => Failure::Malformed(why.clone()),
            _ => Failure::Lost,
        };
        self.replied(ticket, Err(failure));
        self.end(cause);
    }

    /// One frame there and one back.
    fn exchange(
        &self,
        session: &mut Session,
        request: &Outgoing,
        limit: u32,
    ) -> Result<Delivery, ConnError> {
        let protocol = |error: &dyn std::fmt::Display| ConnError::Protocol(error.to_string());
        let reply = self.broker.borrow_mut().exchange(self.connection, request);
        let reply = reply.ok_or_else(|| protocol(&"the broker did not answer"))?;
        let (header, body) = reply.split_first().ok_or_else(|| protocol(&"an empty reply"))?;
        let header = header.first_chunk().ok_or_else(|| protocol(&"half a header"))?;
        let incoming = session.on_header(header).map_err(|error| protocol(&error))?;
        let size = u32::try_from(incoming.frame_len()).unwrap_or(u32::MAX);
        if size > limit {
            return Err(ConnError::TooLarge { size, limit });
        }
        let body = match body {
            [whole] => whole.clone(),
            pieces => Bytes::from(pieces.concat()),
        };
        session.on_reply(&incoming, body).map_err(|error| protocol(&error))
    }

    fn replied(&self, ticket: Ticket, result: Result<Reply, Failure>) {
        self.events.push(Event::Replied { ticket, result });
    }

    /// Reports the end, once.
    fn end(&self, cause: ConnError) {
        if self.session.take().is_some() {
            self.broker.borrow_mut().disconnect(self.connection);
            self.events.push(Event::ConnDown { conn: self.conn, cause });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::resolve::{Resolver, ResolverThread};
    use super::super::runtime::{IoDriver, Runtimes};
    use super::*;
    use crate::config::Credentials;
    use crate::iggy_wire::frame::OP_REGISTER;
    use crate::loopback::{Inside, Tally};

    /// Logs in whom it likes and answers nothing else.
    struct Mute(Inside);

    impl Broker for Mute {
        fn connect(&mut self) -> u64 {
            self.0.connect()
        }
        fn exchange(&mut self, connection: u64, request: &Outgoing) -> Option<Vec<Bytes>> {
            (request.head[176] == OP_REGISTER)
                .then(|| self.0.exchange(connection, request))
                .flatten()
        }
        fn disconnect(&mut self, connection: u64) {
            self.0.disconnect(connection);
        }
    }

    fn broker() -> Inside {
        Inside::new(("iggy".into(), "iggy".into()), Tally::default())
    }

    /// A connection that has just been opened, in a runtime because a [`Dial`] needs one.
    fn opened(
        broker: impl Broker + 'static,
        password: &str,
        then: impl FnOnce(&InsideConn, &mut dyn FnMut() -> Vec<Event>),
    ) {
        let plan = ClusterPlan {
            key: "sink".into(),
            addresses: vec!["127.0.0.1:1".into()],
            credentials: Credentials::Password {
                username: "iggy".into(),
                password: password.into(),
            },
            connect_timeout: Duration::from_secs(5),
            request_timeout: Duration::from_secs(5),
            settle: crate::config::Settle::always(Duration::from_secs(2)),
            allow_untested_server: false,
        };
        let (mut runtime, _) = Runtimes::new(IoDriver::Epoll).build().expect("a runtime");
        runtime.block_on(async {
            let events: Rc<EventQueue> = Rc::default();
            let resolver = Resolver::new(ResolverThread::start().expect("a thread"));
            let resolver = resolver.expect("a resolver");
            let dial =
                Dial { conn: ConnId(3), cluster: Arc::new(plan), node: None, events, resolver };
            let conn = InsideConn::open(&dial, Rc::new(RefCell::new(Box::new(broker))));
            let mut seen = || {
                let mut events = Vec::new();
                dial.events.take_into(&mut events, usize::MAX);
                events
            };
            then(&conn, &mut seen);
        });
    }

    #[test]
    fn every_request_has_one_reply_and_every_connection_one_end() {
        opened(broker(), "iggy", |conn, seen| {
            let up = seen();
            assert!(matches!(&up[..], [Event::ConnUp { conn: ConnId(3), .. }]), "{up:?}");
            let create = Request::CreateStream { stream: "s".into() };
            conn.request(Ticket(1), &create, 4096);
            conn.request(Ticket(2), &create, 4096);
            let replies = seen();
            let [Event::Replied { ticket: Ticket(1), result: Ok(Reply::Done) }, again] =
                &replies[..]
            else {
                panic!("{replies:?}")
            };
            let refused = Event::Replied { ticket: Ticket(2), result: Err(Failure::Refused(1012)) };
            assert_eq!(format!("{again:?}"), format!("{refused:?}"));
            conn.end(ConnError::Closed);
            conn.end(ConnError::Closed);
            conn.request(Ticket(3), &create, 4096);
            let end = seen();
            let [
                Event::ConnDown { cause: ConnError::Closed, .. },
                Event::Replied { ticket: Ticket(3), result: Err(Failure::Lost) },
            ] = &end[..]
            else {
                panic!("{end:?}")
            };
        });
    }

    #[test]
    fn a_refused_login_is_the_end_of_the_connection() {
        opened(broker(), "wrong", |conn, seen| {
            let end = seen();
            let [Event::ConnDown { cause: ConnError::Login { .. }, .. }] = &end[..] else {
                panic!("{end:?}")
            };
            conn.end(ConnError::Closed);
            assert!(seen().is_empty(), "it has ended already");
        });
    }

    #[test]
    fn silence_and_replies_beyond_their_limit_end_the_connection() {
        opened(Mute(broker()), "iggy", |conn, seen| {
            assert!(matches!(&seen()[..], [Event::ConnUp { .. }]));
            conn.request(Ticket(1), &Request::Ping, 4096);
            let end = seen();
            let [
                Event::Replied { ticket: Ticket(1), result: Err(_) },
                Event::ConnDown { cause: ConnError::Protocol(_), .. },
            ] = &end[..]
            else {
                panic!("{end:?}")
            };
        });
        opened(broker(), "iggy", |conn, seen| {
            assert!(matches!(&seen()[..], [Event::ConnUp { .. }]));
            conn.request(Ticket(1), &Request::Ping, 255);
            let end = seen();
            let [
                Event::Replied { result: Err(Failure::TooLarge { size: 256 }), .. },
                Event::ConnDown { cause: ConnError::TooLarge { size: 256, limit: 255 }, .. },
            ] = &end[..]
            else {
                panic!("{end:?}")
            };
        });
    }
}
