//! The broker inside the thread that sends to it: no socket, no other thread, nothing kept. For
//! benchmarks.
//!
//! Requests come as the client encoded them and are answered before the call returns. A send is
//! counted by its head; its messages are looked at only where the way of each is asked for. What
//! was acked goes into a [`Tally`], which other threads may read.

use std::sync::Arc;

use bytes::Bytes;
use iggy_binary_protocol::HEADER_SIZE;

use super::arrivals::{Acked, Arrival, Arrivals};
use super::core::{Core, Delivery, Effect, Inbound, Settings};
use super::frame::{Framing, RequestHead, framing};
use super::log::VerifiedBatch;
use super::server::unix_micros;
use crate::iggy_wire::session::Outgoing;

/// What brokers inside this process acked so far.
#[derive(Clone, Debug, Default)]
pub struct Tally(Arc<Arrivals>);

/// A broker that belongs to one thread.
#[derive(Debug)]
pub struct Inside {
    core: Core,
    tally: Tally,
}

impl Tally {
    /// Remembers every message from now on, or none.
    pub fn watch(&self, on: bool) {
        self.0.watch(on);
    }

    /// How many messages, in how many sends, and when the last was.
    pub fn acked(&self) -> Acked {
        self.0.so_far()
    }

    /// The messages that were remembered, and forgets them.
    pub fn take(&self) -> Vec<Arrival> {
        self.0.take()
    }
}

impl Inside {
    /// An empty broker that logs in who has this name and password.
    pub fn new(user: (String, String), tally: Tally) -> Inside {
        let settings = Settings { users: vec![user], discard: true, ..Settings::default() };
        Inside { core: Core::new(settings), tally }
    }

    /// The other end of a new connection.
    pub fn connect(&mut self) -> u64 {
        self.core.connect("inside".to_owned())
    }

    /// The connection is gone.
    pub fn disconnect(&mut self, connection: u64) {
        self.core.disconnect(connection);
    }

    /// The reply to a request, header first, body pieces behind it. `None` is silence: this
    /// protocol's answer to what nobody may ask.
    pub fn exchange(&mut self, connection: u64, request: &Outgoing) -> Option<Vec<Bytes>> {
        let header = request.head.first_chunk::<HEADER_SIZE>()?;
        let Framing::Request(length) = framing(header) else { return None };
        if HEADER_SIZE + length != request.len() {
            return None;
        }
        let watching = self.tally.0.is_watching();
        let mut body = request.head[HEADER_SIZE..].to_vec();
        let beyond = if watching { 0 } else { request.len() - request.head.len() };
        if watching {
            request.parts().skip(1).for_each(|part| body.extend_from_slice(part));
        }
        let inbound = Inbound::counted(RequestHead::read(header), body, beyond);
        let batch = inbound.batch();
        let count = batch.map_or(0, VerifiedBatch::count);
        let watched = batch.filter(|_| watching);
        let origins = watched.map(VerifiedBatch::origins).unwrap_or_default();
        let now = unix_micros();
        let effect = self.core.handle(connection, inbound, now).pop();
        // Without a fault, and nobody can set one here, that is all it ever does.
        let Some(Effect::Reply(frame, Delivery::Now)) = effect else { return None };
        if frame.answers_send && frame.is_ok() && count > 0 {
            self.tally.0.acked(count, &origins, unix_micros());
        }
        Some(frame.pieces)
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "a socket to compare with")]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;

    use super::*;
    use crate::iggy_wire::build::{Message, build_record};
    use crate::iggy_wire::session::{Credentials, Delivery as Seen, Session};
    use crate::iggy_wire::{Reply, Request, SendTo};
    use crate::loopback::{Server, ServerOptions};

    /// Writes a request and returns header and body of its reply.
    type Road<'a> = Box<dyn FnMut(&Outgoing) -> (Vec<u8>, Bytes) + 'a>;

    fn over_tcp(server: &Server) -> Road<'_> {
        let mut socket = TcpStream::connect(server.address()).expect("a connection");
        Box::new(move |request| {
            request.parts().for_each(|part| socket.write_all(part).expect("written"));
            let mut header = vec![0; HEADER_SIZE];
            socket.read_exact(&mut header).expect("a header");
            let size: [u8; 4] = header[48..52].try_into().expect("four bytes");
            let mut body = vec![0; u32::from_le_bytes(size) as usize - HEADER_SIZE];
            socket.read_exact(&mut body).expect("a body");
            (header, body.into())
        })
    }

    fn within(broker: &mut Inside) -> Road<'_> {
        let connection = broker.connect();
        Box::new(move |request| {
            let pieces = broker.exchange(connection, request).expect("a reply");
            (pieces[0].to_vec(), pieces[1..].concat().into())
        })
    }

    fn send(partition: u32, count: u64) -> Request {
        let message = |n| Message {
            origin_timestamp: 1_000 + n,
            payload: b"some payload",
            ..Message::default()
        };
        let messages: Vec<Message<'_>> = (0..count).map(message).collect();
        let record = build_record(&messages).expect("a record");
        let to = SendTo::Partition(partition);
        Request::Send { stream: "s".into(), topic: "t".into(), to, record }
    }

    /// Every kind of request a capture makes, refusals among them.
    fn requests() -> Vec<Request> {
        let topic = || Request::Topic { stream: "s".into(), topic: "t".into() };
        let stream = || Request::CreateStream { stream: "s".into() };
        let (stream_name, topic_name) = ("s".into(), "t".into());
        let create = Request::CreateTopic {
            stream: stream_name,
            topic: topic_name,
            partitions: 2,
            options: Vec::new(),
        };
        vec![
            Request::Ping,
            topic(),
            send(0, 1),
            stream(),
            stream(),
            create.clone(),
            create,
            topic(),
            send(0, 3),
            send(0, 2),
            send(1, 1),
            send(2, 1),
            topic(),
            Request::Logout,
        ]
    }

    /// A login and every request over one road: what the session makes of the replies, without
    /// what a clock decides and what only a broker that keeps messages can say.
    fn replies(password: &str, mut road: Road<'_>) -> Vec<String> {
        let credentials =
            Credentials::Password { username: "iggy".into(), password: password.into() };
        let mut session = Session::new(7 << 80, 1, credentials);
        let mut ask = |session: &mut Session, request: &Outgoing| {
            let (header, body) = road(request);
            let header = header.as_slice().try_into().expect("a header");
            let incoming = session.on_header(header).expect("a reply");
            session.on_reply(&incoming, body).expect("an answer")
        };
        let login = session.login().expect("a login");
        let mut seen = vec![ask(&mut session, &login)];
        if !session.is_logged_in() {
            return vec![format!("{seen:?}")];
        }
        for request in requests() {
            let (_, outgoing) = session.request(&request).expect("a request");
            seen.push(ask(&mut session, &outgoing));
        }
        for delivery in &mut seen {
            if let Seen::Reply { result: Ok(Reply::Topic(Some(topic))), .. } = delivery {
                topic.created_at = 0;
                (topic.size, topic.messages_count) = (0, 0);
                topic.partitions.clear();
            }
        }
        seen.iter().map(|delivery| format!("{delivery:?}")).collect()
    }

    fn inside() -> (Inside, Tally) {
        let tally = Tally::default();
        (Inside::new(("iggy".into(), "iggy".into()), tally.clone()), tally)
    }

    #[test]
    fn it_answers_as_the_broker_behind_a_socket_does() {
        let server = Server::start(ServerOptions::default()).expect("a port");
        for password in ["iggy", "wrong"] {
            let (mut broker, _) = inside();
            let seen = replies(password, within(&mut broker));
            assert_eq!(seen, replies(password, over_tcp(&server)));
            assert_eq!(seen.len(), if password == "iggy" { 1 + requests().len() } else { 1 });
        }
    }

    #[test]
    fn acked_messages_are_counted_and_their_ways_kept_only_on_request() {
        let (mut broker, tally) = inside();
        replies("iggy", within(&mut broker));
        let acked = tally.acked();
        assert_eq!((acked.messages, acked.sends), (6, 3), "refused sends are none");
        assert!(acked.last > 0 && tally.take().is_empty());
        let (mut broker, tally) = inside();
        tally.watch(true);
        replies("iggy", within(&mut broker));
        assert_eq!(tally.acked().messages, 6);
        let origins: Vec<u64> = tally.take().iter().map(|arrival| arrival.origin).collect();
        assert_eq!(origins, [1_000, 1_001, 1_002, 1_000, 1_001, 1_000]);
    }

    #[test]
    fn bytes_that_are_no_request_are_met_with_silence() {
        let (mut broker, _) = inside();
        let connection = broker.connect();
        let login = encoded_login();
        let of = |head| Outgoing { head, tail: None, more: Vec::new() };
        let short = of(login.head.slice(..200));
        assert!(broker.exchange(connection, &short).is_none());
        let cut = of(login.head.slice(..login.head.len() - 1));
        assert!(broker.exchange(connection, &cut).is_none());
        assert!(broker.exchange(connection, &login).is_some());
    }

    fn encoded_login() -> Outgoing {
        let token = Credentials::Token("unknown".into());
        Session::new(7 << 80, 1, token).login().expect("a login")
    }
}
