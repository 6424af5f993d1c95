//! One connection against a scripted server, over io_uring and over epoll.

#![allow(clippy::disallowed_methods, reason = "a test owns its clocks, files and threads")]

use std::future::Future;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::rc::Rc;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tidegate::config::{ClusterPlan, Credentials, Settle};
use tidegate::iggy_wire::{PollFrom, Reply, Request};
use tidegate::shard::driver::conn::{Conn, Dial};
use tidegate::shard::driver::queue::EventQueue;
use tidegate::shard::driver::resolve::{Resolver, ResolverThread};
use tidegate::shard::driver::runtime::{IoDriver, Runtimes};
use tidegate::shard::event::{ConnError, ConnId, Event, Failure, Ticket};

const LOGIN_REPLY: &[u8] = include_bytes!("golden/iggy/raw_010_c1_rep_op1_status0.bin");
const BAD_LOGIN: &[u8] = include_bytes!("golden/iggy/raw_006_c1_evict9.bin");
const LONG: Duration = Duration::from_secs(10);
const SHORT: Duration = Duration::from_millis(150);

// ---------------------------------------------------------------- the server's side

struct Peer {
    stream: TcpStream,
}

struct Frame {
    header: Vec<u8>,
    body: Vec<u8>,
}

impl Frame {
    fn number(&self) -> u64 {
        u64::from_le_bytes(self.header[168..176].try_into().unwrap())
    }
    fn operation(&self) -> u8 {
        self.header[176]
    }
    fn code(&self) -> u32 {
        u32::from_le_bytes(self.header[196..200].try_into().unwrap())
    }
    fn is_ping(&self) -> bool {
        self.operation() == 2 && self.code() == 1
    }
}

fn reply_bytes(number: u64, operation: u8, status: u32, body: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; 256];
    frame[48..52].copy_from_slice(&(256 + body.len() as u32).to_le_bytes());
    frame[60] = 8;
    frame[200..208].copy_from_slice(&number.to_le_bytes());
    frame[208] = operation;
    frame[216..220].copy_from_slice(&status.to_le_bytes());
    frame.extend_from_slice(body);
    frame
}

fn eviction(reason: u8) -> Vec<u8> {
    let mut frame = vec![0; 256];
    frame[48..52].copy_from_slice(&256_u32.to_le_bytes());
    frame[60] = 13;
    frame[255] = reason;
    frame
}

fn polled(blob: usize) -> Vec<u8> {
    let mut body = Vec::new();
    body.extend_from_slice(&0_u32.to_le_bytes());
    body.extend_from_slice(&7_u64.to_le_bytes());
    body.extend_from_slice(&u32::from(blob > 0).to_le_bytes());
    body.resize(body.len() + blob, 0xAB);
    body
}

impl Peer {
    fn accept(listener: &TcpListener) -> Peer {
        Peer { stream: listener.accept().expect("a connection").0 }
    }
    fn frame(&mut self) -> Frame {
        self.try_frame().expect("a frame")
    }
    fn try_frame(&mut self) -> Option<Frame> {
        let mut header = vec![0; 256];
        self.stream.read_exact(&mut header).ok()?;
        let size = u32::from_le_bytes(header[48..52].try_into().unwrap()) as usize;
        let mut body = vec![0; size - 256];
        self.stream.read_exact(&mut body).ok()?;
        Some(Frame { header, body })
    }
    fn write(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("written");
    }
    fn reply(&mut self, to: &Frame, body: &[u8]) {
        self.write(&reply_bytes(to.number(), to.operation(), 0, body));
    }
    fn login(&mut self) {
        assert_eq!(self.frame().operation(), 1);
        self.write(LOGIN_REPLY);
    }
    /// How the connection ended: true for a reset, false for an orderly end.
    fn ended_by_reset(&mut self) -> bool {
        let mut rest = vec![0; 65536];
        loop {
            match self.stream.read(&mut rest) {
                Ok(0) => return false,
                Ok(_) => {}
                Err(error) => return error.raw_os_error() == Some(libc::ECONNRESET),
            }
        }
    }
}

fn serve(script: impl FnOnce(TcpListener) + Send + 'static) -> (String, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound").to_string();
    (address, thread::spawn(move || script(listener)))
}

fn serve_one(script: impl FnOnce(Peer) + Send + 'static) -> (String, JoinHandle<()>) {
    serve(move |listener| script(Peer::accept(&listener)))
}

// ---------------------------------------------------------------- our side

fn cluster(addresses: &[&str]) -> ClusterPlan {
    ClusterPlan {
        key: "test".into(),
        addresses: addresses.iter().map(|a| (*a).to_owned()).collect(),
        credentials: Credentials::Password { username: "iggy".into(), password: "iggy".into() },
        connect_timeout: Duration::from_secs(5),
        request_timeout: Duration::from_millis(200),
        settle: Settle::always(Duration::from_secs(2)),
        allow_untested_server: false,
    }
}

struct Client {
    conn: Conn,
    events: Rc<EventQueue>,
}

impl Client {
    fn open(plan: ClusterPlan) -> Client {
        let events = Rc::new(EventQueue::default());
        let thread = ResolverThread::start().expect("a thread");
        let resolver = Resolver::new(thread).expect("a mailbox");
        Client::with(plan, events, resolver)
    }
    fn with(plan: ClusterPlan, events: Rc<EventQueue>, resolver: Rc<Resolver>) -> Client {
        let cluster = Arc::new(plan);
        let (conn, events_here) = (ConnId(1), events.clone());
        let dial = Dial { conn, cluster, node: None, events: events_here, resolver };
        let conn = Conn::open(dial);
        Client { conn, events }
    }
    async fn up(address: &str) -> Client {
        let client = Client::open(cluster(&[address]));
        client.expect_up().await;
        client
    }
    async fn expect_up(&self) {
        match self.next().await {
            Event::ConnUp { conn: ConnId(1), server_version, .. } => {
                assert_eq!(server_version, "0.9.0-edge.5");
            }
            other => panic!("not up: {other:?}"),
        }
    }
    async fn next(&self) -> Event {
        monoio::time::timeout(LONG, self.events.next()).await.expect("an event in time")
    }
    async fn down(&self) -> ConnError {
        match self.next().await {
            Event::ConnDown { conn: ConnId(1), cause } => cause,
            other => panic!("not down: {other:?}"),
        }
    }
    async fn replied(&self, ticket: u64) -> Result<Reply, Failure> {
        match self.next().await {
            Event::Replied { ticket: Ticket(seen), result } => {
                assert_eq!(seen, ticket);
                result
            }
            other => panic!("not a reply: {other:?}"),
        }
    }
    fn poll(&self, ticket: u64, reply_limit: u32, timeout: Duration) {
        let request = Request::Poll {
            stream: "s".into(),
            topic: "t".into(),
            partition: 0,
            from: PollFrom::Offset(0),
            count: 10,
        };
        self.conn.request(Ticket(ticket), &request, reply_limit, timeout);
    }
    fn send(&self, ticket: u64, timeout: Duration) {
        self.conn.request(Ticket(ticket), &sample_send(), 4096, timeout);
    }
}

/// A send with the record of a recorded poll reply.
fn sample_send() -> Request {
    use tidegate::iggy_wire::record::{Verify, scan};
    let golden: &[u8] = include_bytes!("golden/iggy/raw_046_c1_rep_op2_status0.bin");
    let records = scan(&golden[256 + 16..].to_vec().into(), Verify::Full).expect("good records");
    Request::Send {
        stream: "s".into(),
        topic: "t".into(),
        to: tidegate::iggy_wire::SendTo::Partition(0),
        record: records[0].relay(),
    }
}

/// A send of one message with a payload of `len` bytes; its checksums are wrong.
fn large_send(len: usize) -> Request {
    use tidegate::iggy_wire::record::{Verify, scan};
    let mut record = vec![0; 256 + 48 + len];
    record[32..40].copy_from_slice(&(256 + 48 + len as u64).to_le_bytes());
    record[48..52].copy_from_slice(&1_u32.to_le_bytes());
    record[256 + 36..256 + 40].copy_from_slice(&(len as u32).to_le_bytes());
    let records = scan(&record.into(), Verify::FramingOnly).expect("well framed");
    Request::Send {
        stream: "s".into(),
        topic: "t".into(),
        to: tidegate::iggy_wire::SendTo::Partition(0),
        record: records[0].relay(),
    }
}

/// Runs the same test over both drivers.
fn on_both<F: Future<Output = ()>>(test: impl Fn() -> F + Sync) {
    thread::scope(|scope| {
        for driver in [IoDriver::Uring, IoDriver::Epoll] {
            let test = &test;
            scope.spawn(move || {
                let (mut runtime, got) = Runtimes::new(driver).build().expect("a runtime");
                assert!(driver == IoDriver::Uring || got == IoDriver::Epoll);
                runtime.block_on(test());
            });
        }
    });
}

// ---------------------------------------------------------------- tests

#[test]
fn a_reply_finds_its_ticket_whatever_the_order() {
    on_both(|| async {
        let (address, server) = serve_one(|mut peer| {
            peer.login();
            let (first, second) = (peer.frame(), peer.frame());
            peer.reply(&second, &polled(3));
            peer.reply(&first, &polled(0));
            assert!(peer.ended_by_reset());
        });
        let client = Client::up(&address).await;
        client.poll(1, 4096, LONG);
        client.poll(2, 4096, LONG);
        match client.replied(2).await {
            Ok(Reply::Polled(polled)) => {
                assert_eq!((polled.current_offset, polled.records.len()), (7, 3));
            }
            other => panic!("{other:?}"),
        }
        assert!(client.replied(1).await.is_ok());
        client.conn.close();
        assert_eq!(client.down().await, ConnError::Closed);
        server.join().expect("the server saw what it should");
    });
}

#[test]
fn bytes_may_come_one_by_one() {
    on_both(|| async {
        let (address, server) = serve_one(|mut peer| {
            peer.stream.set_nodelay(true).expect("a socket");
            let login = peer.frame();
            assert_eq!(login.operation(), 1);
            for byte in LOGIN_REPLY {
                peer.write(&[*byte]);
            }
            let poll = peer.frame();
            for byte in reply_bytes(poll.number(), poll.operation(), 0, &polled(40)) {
                peer.write(&[byte]);
                thread::sleep(Duration::from_micros(200));
            }
        });
        let client = Client::up(&address).await;
        client.poll(9, 4096, LONG);
        assert!(matches!(client.replied(9).await, Ok(Reply::Polled(p)) if p.records.len() == 40));
        server.join().expect("served");
    });
}

#[test]
fn a_slow_reader_gets_every_byte_of_many_sends() {
    on_both(|| async {
        const SENDS: u64 = 300;
        let (address, server) = serve_one(|mut peer| {
            peer.login();
            let mut bodies = Vec::new();
            for n in 0..SENDS {
                if n % 50 == 0 {
                    thread::sleep(Duration::from_millis(20));
                }
                let frame = peer.frame();
                bodies.push(frame.body.clone());
                let mut confirmation = 1_u32.to_le_bytes().to_vec();
                confirmation.extend_from_slice(&[0; 12]);
                confirmation.extend_from_slice(&n.to_le_bytes());
                peer.reply(&frame, &confirmation);
            }
            assert!(bodies.iter().all(|body| *body == bodies[0]));
        });
        let client = Client::up(&address).await;
        for ticket in 0..SENDS {
            client.send(ticket, LONG);
        }
        for ticket in 0..SENDS {
            match client.replied(ticket).await {
                Ok(Reply::Sent { base_offset }) => assert_eq!(base_offset, Some(ticket)),
                other => panic!("{other:?}"),
            }
        }
        server.join().expect("served");
    });
}

#[test]
fn a_large_reply_arrives_whole() {
    on_both(|| async {
        const BLOB: usize = 20 * 1024 * 1024;
        let (address, server) = serve_one(|mut peer| {
            peer.login();
            let poll = peer.frame();
            peer.reply(&poll, &polled(BLOB));
        });
        let client = Client::up(&address).await;
        client.poll(1, BLOB as u32 + 4096, LONG);
        match client.replied(1).await {
            Ok(Reply::Polled(polled)) => {
                assert_eq!(polled.records.len(), BLOB);
                assert!(polled.records.iter().all(|byte| *byte == 0xAB));
            }
            other => panic!("{other:?}"),
        }
        server.join().expect("served");
    });
}

#[test]
fn a_reply_over_its_limit_is_not_read_and_ends_the_connection() {
    on_both(|| async {
        let (address, server) = serve_one(|mut peer| {
            peer.login();
            let (first, second) = (peer.frame(), peer.frame());
            let _ = (first, &second);
            let header = &reply_bytes(second.number(), 2, 0, &polled(1_000_000))[..256];
            peer.write(header);
            assert!(peer.ended_by_reset());
        });
        let client = Client::up(&address).await;
        client.poll(1, 2_000_000, LONG);
        client.poll(2, 5000, LONG);
        let size = 256 + 16 + 1_000_000;
        assert_eq!(client.replied(2).await.expect_err("too large"), Failure::TooLarge { size });
        assert_eq!(client.replied(1).await.expect_err("lost"), Failure::Lost);
        assert_eq!(client.down().await, ConnError::TooLarge { size, limit: 5000 });
        server.join().expect("reset");
    });
}

#[test]
fn a_lost_read_costs_a_ping_and_its_late_reply_is_a_stray() {
    on_both(|| async {
        let (address, server) = serve_one(|mut peer| {
            peer.login();
            let lost = peer.frame();
            let ping = peer.frame();
            assert!(ping.is_ping());
            peer.reply(&ping, &[]);
            peer.reply(&lost, &polled(200_000));
            let next = peer.frame();
            assert!(!next.is_ping());
            peer.reply(&next, &polled(1));
        });
        let client = Client::up(&address).await;
        let asked = Instant::now();
        client.poll(1, 1 << 20, SHORT);
        assert_eq!(client.replied(1).await.expect_err("no reply"), Failure::TimedOut);
        assert!(asked.elapsed() >= SHORT && asked.elapsed() < 4 * SHORT);
        client.poll(2, 1 << 20, LONG);
        assert!(client.replied(2).await.is_ok());
        assert_eq!(client.conn.strays(), 1);
        server.join().expect("served");
    });
}

#[test]
fn an_unanswered_ping_after_a_lost_read_ends_the_connection() {
    on_both(|| async {
        let (address, server) = serve_one(|mut peer| {
            peer.login();
            peer.frame();
            assert!(peer.frame().is_ping());
            assert!(peer.ended_by_reset());
        });
        let client = Client::up(&address).await;
        client.poll(1, 4096, SHORT);
        assert_eq!(client.replied(1).await.expect_err("no reply"), Failure::TimedOut);
        assert_eq!(client.down().await, ConnError::Silent(SHORT));
        server.join().expect("reset");
    });
}

/// Writes `bytes` in `pieces` pieces over about `span`.
fn trickle(peer: &mut Peer, bytes: &[u8], pieces: usize, span: Duration) {
    for piece in bytes.chunks(bytes.len().div_ceil(pieces)) {
        peer.write(piece);
        thread::sleep(span / pieces as u32);
    }
}

#[test]
fn what_waits_behind_a_slow_large_reply_does_not_time_out() {
    on_both(|| async {
        let (address, server) = serve_one(|mut peer| {
            peer.login();
            let lost = peer.frame();
            let polls = [peer.frame(), peer.frame(), peer.frame()];
            let ping = peer.frame();
            assert!(ping.is_ping(), "the read that was never answered costs one");
            let large = reply_bytes(polls[0].number(), 2, 0, &polled(1 << 20));
            trickle(&mut peer, &large, 60, 8 * SHORT);
            peer.reply(&polls[1], &polled(1));
            peer.reply(&polls[2], &polled(2));
            peer.reply(&ping, &[]);
            let next = peer.frame();
            assert!(!next.is_ping() && next.number() > lost.number(), "and no second one");
            peer.reply(&next, &polled(3));
            assert!(peer.ended_by_reset());
        });
        let client = Client::up(&address).await;
        client.poll(0, 4096, SHORT);
        for ticket in 1..=3 {
            client.poll(ticket, 2 << 20, 3 * SHORT);
        }
        assert_eq!(client.replied(0).await.expect_err("no reply"), Failure::TimedOut);
        let asked = Instant::now();
        for ticket in 1..=3 {
            assert!(client.replied(ticket).await.is_ok(), "{ticket}");
        }
        assert!(asked.elapsed() > 6 * SHORT, "the reply was not slow");
        client.poll(4, 4096, LONG);
        assert!(client.replied(4).await.is_ok());
        client.conn.close();
        assert_eq!(client.down().await, ConnError::Closed);
        server.join().expect("served");
    });
}

#[test]
fn a_large_reply_that_stops_coming_ends_the_connection_as_silent() {
    on_both(|| async {
        let (address, server) = serve_one(|mut peer| {
            peer.login();
            let polls = [peer.frame(), peer.frame()];
            let large = reply_bytes(polls[0].number(), 2, 0, &polled(1 << 20));
            trickle(&mut peer, &large[..1 << 19], 30, 3 * SHORT);
            assert!(peer.ended_by_reset());
        });
        let client = Client::up(&address).await;
        let asked = Instant::now();
        client.poll(1, 2 << 20, SHORT);
        client.poll(2, 2 << 20, SHORT);
        assert_eq!(client.replied(2).await.expect_err("stopped"), Failure::TimedOut);
        assert!(asked.elapsed() > 3 * SHORT, "bytes came until then");
        // Not before its buffer is gone: with its end goes back what it reserved (G6).
        assert_eq!(client.replied(1).await.expect_err("stopped"), Failure::Lost);
        assert_eq!(client.down().await, ConnError::Silent(SHORT));
        server.join().expect("reset");
    });
}

#[test]
fn a_busy_connection_does_not_hide_a_read_that_is_never_answered() {
    on_both(|| async {
        let (address, server) = serve_one(|mut peer| {
            peer.login();
            let lost = peer.frame();
            while let Some(frame) = peer.try_frame() {
                assert!(frame.number() > lost.number());
                thread::sleep(SHORT / 10);
                let reply = reply_bytes(frame.number(), frame.operation(), 0, &polled(1));
                let reply = if frame.is_ping() { &reply[..0] } else { &reply };
                if peer.stream.write_all(reply).is_err() {
                    return;
                }
            }
        });
        let client = Client::up(&address).await;
        let asked = Instant::now();
        client.poll(0, 4096, SHORT);
        let mut last = 1;
        client.poll(last, 4096, LONG);
        loop {
            assert!(asked.elapsed() < 20 * SHORT, "never timed out");
            match client.next().await {
                Event::Replied { ticket: Ticket(0), result } => {
                    assert_eq!(result.expect_err("no reply"), Failure::TimedOut);
                    break;
                }
                Event::Replied { ticket: Ticket(seen), result } if seen == last => {
                    assert!(result.is_ok());
                    last += 1;
                    client.poll(last, 4096, LONG);
                }
                other => panic!("{other:?}"),
            }
        }
        client.conn.close();
        server.join().expect("served");
    });
}

#[test]
fn a_send_that_times_out_closes_its_connection_without_a_ping() {
    on_both(|| async {
        let (address, server) = serve_one(|mut peer| {
            peer.login();
            assert_eq!(peer.frame().operation(), 160);
            assert!(!peer.frame().is_ping());
            assert!(peer.ended_by_reset());
        });
        let client = Client::up(&address).await;
        client.send(1, SHORT);
        client.poll(2, 4096, LONG);
        assert_eq!(client.replied(1).await.expect_err("unknown"), Failure::TimedOut);
        assert_eq!(client.replied(2).await.expect_err("lost"), Failure::Lost);
        assert_eq!(client.down().await, ConnError::Silent(SHORT));
        server.join().expect("reset");
    });
}

#[test]
fn a_peer_that_stops_reading_is_noticed_while_writing() {
    on_both(|| async {
        let (address, server) = serve_one(|mut peer| {
            peer.login();
            thread::sleep(8 * SHORT);
            assert!(peer.ended_by_reset());
        });
        let client = Client::up(&address).await;
        client.conn.request(Ticket(0), &large_send(48 << 20), 4096, SHORT);
        assert_eq!(client.replied(0).await.expect_err("stuck"), Failure::TimedOut);
        assert_eq!(client.down().await, ConnError::Silent(SHORT));
        server.join().expect("reset");
    });
}

#[test]
fn a_half_open_peer_is_noticed_when_idle() {
    on_both(|| async {
        let (address, server) = serve_one(|mut peer| {
            peer.login();
            let first = peer.frame();
            assert!(first.is_ping());
            peer.reply(&first, &[]);
            assert!(peer.frame().is_ping());
            assert!(peer.ended_by_reset());
        });
        let client = Client::up(&address).await;
        let up = Instant::now();
        match monoio::time::timeout(Duration::from_secs(14), client.events.next()).await {
            Ok(Event::ConnDown { cause, .. }) => {
                assert_eq!(cause, ConnError::Silent(Duration::from_millis(200)));
            }
            other => panic!("{other:?}"),
        }
        assert!(up.elapsed() > Duration::from_secs(10), "one ping was answered");
        server.join().expect("reset");
    });
}

#[test]
fn an_eviction_fails_what_is_outstanding_first() {
    on_both(|| async {
        let (address, server) = serve_one(|mut peer| {
            peer.login();
            peer.frame();
            peer.frame();
            peer.write(&eviction(13));
            assert!(peer.ended_by_reset());
        });
        let client = Client::up(&address).await;
        client.poll(1, 4096, LONG);
        client.poll(2, 4096, LONG);
        assert_eq!(client.replied(1).await.expect_err("evicted"), Failure::Lost);
        assert_eq!(client.replied(2).await.expect_err("evicted"), Failure::Lost);
        assert_eq!(client.down().await, ConnError::Evicted(13));
        server.join().expect("reset");
    });
}

#[test]
fn a_stray_reply_is_counted_and_answers_nothing() {
    on_both(|| async {
        let (address, server) = serve_one(|mut peer| {
            peer.login();
            let poll = peer.frame();
            peer.write(&reply_bytes(4711, 2, 0, &polled(100_000)));
            peer.reply(&poll, &polled(5));
        });
        let client = Client::up(&address).await;
        client.poll(1, 4096, LONG);
        assert!(matches!(client.replied(1).await, Ok(Reply::Polled(p)) if p.records.len() == 5));
        assert_eq!(client.conn.strays(), 1);
        server.join().expect("served");
    });
}

#[test]
fn a_connection_cut_inside_a_frame_loses_what_is_outstanding() {
    on_both(|| async {
        let (address, server) = serve_one(|mut peer| {
            peer.login();
            let poll = peer.frame();
            let reply = reply_bytes(poll.number(), poll.operation(), 0, &polled(1000));
            peer.write(&reply[..700]);
            peer.stream.shutdown(Shutdown::Both).expect("a socket");
        });
        let client = Client::up(&address).await;
        client.poll(1, 4096, LONG);
        assert_eq!(client.replied(1).await.expect_err("cut"), Failure::Lost);
        assert!(matches!(client.down().await, ConnError::Lost(_)));
        server.join().expect("served");
    });
}

#[test]
fn a_reply_that_does_not_decode_ends_the_connection() {
    on_both(|| async {
        let (address, server) = serve_one(|mut peer| {
            peer.login();
            let poll = peer.frame();
            peer.reply(&poll, &[1, 2, 3]);
        });
        let client = Client::up(&address).await;
        client.poll(1, 4096, LONG);
        assert!(matches!(client.replied(1).await, Err(Failure::Malformed(_))));
        assert!(matches!(client.down().await, ConnError::Protocol(_)));
        server.join().expect("served");
    });
}

#[test]
fn a_refusal_carries_the_servers_code() {
    on_both(|| async {
        let (address, server) = serve_one(|mut peer| {
            peer.login();
            let poll = peer.frame();
            peer.write(&reply_bytes(poll.number(), 2, 2010, &[]));
        });
        let client = Client::up(&address).await;
        client.poll(1, 4096, LONG);
        assert_eq!(client.replied(1).await.expect_err("no topic"), Failure::Refused(2010));
        server.join().expect("served");
    });
}

#[test]
fn a_request_on_a_closed_connection_is_lost_at_once() {
    on_both(|| async {
        let (address, server) = serve_one(|mut peer| {
            peer.login();
            peer.ended_by_reset();
        });
        let client = Client::up(&address).await;
        client.conn.close();
        client.poll(1, 4096, LONG);
        assert_eq!(client.replied(1).await.expect_err("closed"), Failure::Lost);
        assert_eq!(client.down().await, ConnError::Closed);
        server.join().expect("served");
    });
}

#[test]
fn a_wrong_password_is_a_login_error() {
    on_both(|| async {
        let (address, server) = serve_one(|mut peer| {
            peer.frame();
            peer.write(BAD_LOGIN);
        });
        let client = Client::open(cluster(&[&address]));
        let cause = client.down().await;
        assert!(matches!(&cause, ConnError::Login { why, .. } if why.contains("credentials")));
        assert!(!cause.to_string().contains("iggy"), "{cause}");
        server.join().expect("served");
    });
}

#[test]
fn a_server_of_another_version_is_refused_unless_allowed() {
    let newer = || {
        let mut reply = LOGIN_REPLY[..LOGIN_REPLY.len() - 12].to_vec();
        reply.extend_from_slice(b"0.10.0-next1");
        reply
    };
    on_both(|| async move {
        for allowed in [false, true] {
            let (address, server) = serve_one(move |mut peer| {
                peer.frame();
                peer.write(&newer());
                peer.ended_by_reset();
            });
            let mut plan = cluster(&[&address]);
            plan.allow_untested_server = allowed;
            let client = Client::open(plan);
            match client.next().await {
                Event::ConnUp { server_version, .. } if allowed => {
                    assert_eq!(server_version, "0.10.0-next1");
                    client.conn.close();
                    client.down().await;
                }
                Event::ConnDown { cause: ConnError::UntestedServer { seen, .. }, .. }
                    if !allowed =>
                {
                    assert_eq!(seen, "0.10.0-next1");
                }
                other => panic!("{other:?}"),
            }
            server.join().expect("served");
        }
    });
}

#[test]
fn the_next_address_is_tried_when_one_refuses() {
    on_both(|| async {
        let closed = TcpListener::bind("127.0.0.1:0").expect("a port");
        let refused = closed.local_addr().expect("bound").to_string();
        drop(closed);
        let (address, server) = serve_one(|mut peer| {
            peer.login();
            peer.ended_by_reset();
        });
        let by_name = address.replace("127.0.0.1", "localhost");
        let client = Client::open(cluster(&[&refused, &by_name]));
        client.expect_up().await;
        client.conn.close();
        client.down().await;
        server.join().expect("served");
    });
}

#[test]
fn an_unknown_name_is_a_resolve_error_and_blocks_nothing() {
    on_both(|| async {
        let client = Client::open(cluster(&["no-such-host.invalid:8090"]));
        monoio::time::sleep(Duration::from_millis(5)).await;
        assert!(matches!(client.down().await, ConnError::Resolve { .. } | ConnError::Dial { .. }));
    });
}

#[test]
fn a_silent_server_ends_the_dial_in_time() {
    on_both(|| async {
        let (address, server) = serve_one(|mut peer| {
            peer.frame();
            assert!(peer.ended_by_reset());
        });
        let mut plan = cluster(&[&address]);
        plan.connect_timeout = SHORT;
        let started = Instant::now();
        let client = Client::open(plan);
        let cause = client.down().await;
        assert!(matches!(cause, ConnError::Dial { .. }), "{cause}");
        assert!(started.elapsed() < 4 * SHORT);
        server.join().expect("reset");
    });
}

/// A listener whose queue is full drops every further SYN.
fn full_listener() -> (String, Vec<socket2::Socket>) {
    use socket2::{Domain, Socket, Type};
    let listener = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    let any: std::net::SocketAddr = "127.0.0.1:0".parse().expect("an address");
    listener.bind(&any.into()).expect("a port");
    listener.listen(0).expect("listening");
    let address = listener.local_addr().expect("bound").as_socket().expect("IPv4");
    let mut sockets = vec![listener];
    for _ in 0..4 {
        let filler = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        filler.set_nonblocking(true).expect("a socket");
        let _ = filler.connect(&address.into());
        sockets.push(filler);
    }
    (address.to_string(), sockets)
}

#[test]
fn a_connect_that_is_never_answered_ends_in_time() {
    on_both(|| async {
        let (address, _sockets) = full_listener();
        let mut plan = cluster(&[&address]);
        plan.connect_timeout = SHORT;
        let started = Instant::now();
        let client = Client::open(plan);
        let cause = client.down().await;
        assert!(matches!(cause, ConnError::Dial { .. }), "{cause}");
        assert!(started.elapsed() >= SHORT && started.elapsed() < 4 * SHORT);
        let client = Client::open(cluster(&[&address]));
        monoio::time::sleep(Duration::from_millis(20)).await;
        client.conn.close();
        assert_eq!(client.down().await, ConnError::Closed);
        assert!(started.elapsed() < 6 * SHORT);
    });
}

#[test]
fn a_close_ends_a_dial_at_once() {
    on_both(|| async {
        let (address, server) = serve_one(|mut peer| {
            peer.frame();
            assert!(peer.ended_by_reset());
        });
        let client = Client::open(cluster(&[&address]));
        monoio::time::sleep(Duration::from_millis(20)).await;
        client.conn.close();
        assert_eq!(client.down().await, ConnError::Closed);
        server.join().expect("reset");
    });
}

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("proc").count()
}

/// Counts descriptors, so it must not run beside other tests: it starts itself again alone.
#[test]
fn descriptors_return_to_the_start_after_200_connections() {
    const ALONE: &str = "TIDEGATE_TEST_ALONE";
    if std::env::var_os(ALONE).is_none() {
        let me = std::env::current_exe().expect("a path");
        let status = std::process::Command::new(me)
            .args(["descriptors_return_to_the_start_after_200_connections", "--exact"])
            .env(ALONE, "1")
            .status()
            .expect("started");
        assert!(status.success());
        return;
    }
    for driver in [IoDriver::Uring, IoDriver::Epoll] {
        let (mut runtime, _) = Runtimes::new(driver).build().expect("a runtime");
        runtime.block_on(connect_and_close_200_times());
    }
}

async fn connect_and_close_200_times() {
    let (address, server) = serve(|listener| {
        for round in 0..201 {
            let mut peer = Peer::accept(&listener);
            match round % 3 {
                0 => {
                    peer.login();
                    peer.try_frame();
                    peer.ended_by_reset();
                }
                1 => drop(peer),
                _ => {
                    peer.try_frame();
                    peer.ended_by_reset();
                }
            }
        }
    });
    let thread = ResolverThread::start().expect("a thread");
    let resolver = Resolver::new(thread).expect("a mailbox");
    let events = Rc::new(EventQueue::default());
    let mut before = 0;
    for round in 0..201 {
        let mut plan = cluster(&[&address]);
        plan.connect_timeout = Duration::from_millis(30);
        let client = Client::with(plan, events.clone(), resolver.clone());
        if round % 3 == 0 {
            client.expect_up().await;
            client.poll(1, 4096, LONG);
            monoio::time::sleep(Duration::from_millis(1)).await;
            client.conn.close();
            assert_eq!(client.replied(1).await.expect_err("closed"), Failure::Lost);
        }
        client.down().await;
        if round == 0 {
            monoio::time::sleep(Duration::from_millis(20)).await;
            before = open_descriptors();
        }
    }
    server.join().expect("served");
    monoio::time::sleep(Duration::from_millis(20)).await;
    let after = open_descriptors();
    // The listener and the last accepted socket of the server are gone by now.
    assert!(after <= before, "{before} descriptors became {after}");
}

/// One name for several socket addresses.
fn resolved_to(found: &[&str]) -> Rc<Resolver> {
    let found: Vec<std::net::SocketAddr> =
        found.iter().map(|address| address.parse().expect("an address")).collect();
    let thread = ResolverThread::with(move |_| Ok(found.clone()));
    Resolver::new(thread).expect("a mailbox")
}

#[test]
fn an_address_that_swallows_everything_does_not_hide_the_one_that_answers_m14() {
    on_both(|| async {
        let swallows = TcpListener::bind("127.0.0.1:0").expect("a port");
        let hole = swallows.local_addr().expect("an address").to_string();
        let (address, server) = serve_one(|mut peer| {
            peer.login();
            peer.ended_by_reset();
        });
        let mut plan = cluster(&["broker:1"]);
        plan.connect_timeout = Duration::from_secs(1);
        let resolver = resolved_to(&[&hole, &hole, &address]);
        let client = Client::with(plan, Rc::new(EventQueue::default()), resolver);
        client.expect_up().await;
        client.conn.close();
        client.down().await;
        server.join().expect("served");
    });
}

#[test]
fn a_node_of_an_untested_version_does_not_hide_the_others_m14() {
    on_both(|| async {
        for resolved in [false, true] {
            for alive in [false, true] {
                let (untested, first) = serve_one(|mut peer| {
                    peer.frame();
                    peer.write(&LOGIN_REPLY[..LOGIN_REPLY.len() - 12]);
                    peer.write(b"0.10.0-next1");
                    peer.ended_by_reset();
                });
                let (good, second) = serve_one(|mut peer| {
                    peer.login();
                    peer.ended_by_reset();
                });
                let dead = dead_port();
                let other = if alive { good.as_str() } else { dead.as_str() };
                let events = Rc::new(EventQueue::default());
                let client = if resolved {
                    let resolver = resolved_to(&[&untested, other]);
                    Client::with(cluster(&["broker:1"]), events, resolver)
                } else {
                    Client::open(cluster(&[&untested, other]))
                };
                if alive {
                    client.expect_up().await;
                    client.conn.close();
                    client.down().await;
                    second.join().expect("served");
                } else {
                    // What stays is reported, not what may pass.
                    let cause = client.down().await;
                    assert!(matches!(cause, ConnError::UntestedServer { .. }), "{cause:?}");
                }
                first.join().expect("served");
            }
        }
    });
}

/// An address that nobody listens at.
fn dead_port() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").to_string()
}
