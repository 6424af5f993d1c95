//! The peer that is the limit: the polls, buffers and sends of a mirror, and nothing else.
//!
//! ```text
//! poll ─▶ reply into a buffer, unread but for its count ─▶ a prepared send, once per record ─▶ ack
//! ```
//!
//! Same runtime, same reads and vectored writes, as many connections, two replies held or awaited
//! and one send outstanding for a partition. What a send carries was made before the first poll:
//! no byte of a record is looked at, nothing is checked, saved or decided. It runs in a process of
//! its own until it is killed.
#![allow(clippy::disallowed_methods)] // sockets and threads

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use clap::Args;
use monoio::net::TcpStream;

use super::super::client::{Client, Endpoint};
use super::Shape;
use super::brokers::Upstream;
use crate::cli::Exit;
use crate::cli::report;
use crate::config::Shards;
use crate::iggy_wire::build::{Message, build_record};
use crate::iggy_wire::frame::{HEADER_LEN, HeaderBytes, ServerHeader};
use crate::iggy_wire::session::{Outgoing, Session};
use crate::iggy_wire::{PollFrom, Request, SendTo};
use crate::ingest::iggy::COUNT_MOST;
use crate::shard::driver::frames::{Frame, WriteBatch};
use crate::shard::driver::intake::Intake;
use crate::shard::driver::runtime::Runtimes;
use crate::shard::driver::traffic::write_some;
use crate::shard::pin;
use crate::shard::pipeline::conns::{DOWNSTREAM_CONNECTIONS, UPSTREAM_CONNECTIONS};

/// Where both ends are, with passwords: not for a command line that others can see.
pub const UP: &str = "TIDEGATE_BENCH_UP";
/// The other one.
pub const DOWN: &str = "TIDEGATE_BENCH_DOWN";
/// Replies of one partition that are held or awaited.
const AHEAD: usize = 2;
/// Between two polls that find nothing.
const IDLE: Duration = Duration::from_millis(1);
/// Records up to this many bytes go out together, as a mirror merges them.
const MERGED: u64 = 64 << 10;
/// Places in a request: its number, and from the end of a poll its offset.
const NUMBER: usize = 168;
const OFFSET_FROM_END: usize = 13;

/// Arguments of the process.
#[derive(Debug, Args)]
pub struct CopyArgs {
    #[arg(long)]
    stream: String,
    /// At the destination.
    #[arg(long)]
    topic: String,
    #[arg(long)]
    partitions: u32,
    #[arg(long)]
    shards: u16,
    #[arg(long)]
    size: u32,
    #[arg(long)]
    record: u32,
    #[arg(long)]
    max_batch_bytes: u64,
}

/// Copies until it is killed.
pub fn run(args: &CopyArgs) -> Exit {
    match perform(args) {
        Ok(()) => Exit::Ok,
        Err(error) => report::fail(false, Exit::Findings, &error.to_string()),
    }
}

fn perform(args: &CopyArgs) -> io::Result<()> {
    let endpoint = |name| -> io::Result<Endpoint> {
        let text = std::env::var(name).map_err(io::Error::other)?;
        text.parse().map_err(io::Error::other)
    };
    let (up, down) = (endpoint(UP)?, endpoint(DOWN)?);
    let allowed = pin::allowed_cpus().map_err(io::Error::other)?;
    let cpus = pin::choose_cpus(Shards::Count(args.shards), &allowed).map_err(io::Error::other)?;
    std::thread::scope(|scope| {
        let shards = (0..).zip(cpus).map(|(shard, cpu)| {
            let (up, down) = (&up, &down);
            let work = move || {
                pin::pin(cpu)?;
                let mine = (shard..args.partitions).step_by(usize::from(args.shards));
                copy(args, up, down, mine.collect())
            };
            scope.spawn(work)
        });
        let shards: Vec<_> = shards.collect();
        shards.into_iter().try_for_each(|shard| match shard.join() {
            Ok(ended) => ended,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    })
}

/// One partition.
struct Feed {
    partition: u32,
    next: Cell<u64>,
    is_asked: Cell<bool>,
    /// Replies that wait, and the one being sent.
    held: Cell<usize>,
    /// Messages of the replies that wait.
    ready: RefCell<VecDeque<(u32, Vec<u8>)>>,
    spare: RefCell<Vec<Vec<u8>>>,
    /// Whoever fills and whoever empties.
    polls: Rc<Signal>,
    sends: Rc<Signal>,
}

/// Wakes one task that waits for work.
#[derive(Default)]
struct Signal {
    raised: Cell<bool>,
    waker: Cell<Option<Waker>>,
}

impl Signal {
    fn raise(&self) {
        self.raised.set(true);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    async fn raised(&self) {
        poll_fn(|context| {
            if self.raised.replace(false) {
                return Poll::Ready(());
            }
            self.waker.set(Some(context.waker().clone()));
            Poll::Pending
        })
        .await;
    }
}

/// A connection that is logged in, and what its requests are made of.
struct Wire {
    stream: TcpStream,
    intake: Intake,
    session: Session,
    number: u64,
}

fn copy(args: &CopyArgs, up: &Endpoint, down: &Endpoint, mine: Vec<u32>) -> io::Result<()> {
    let runtimes = Runtimes::from_environment().map_err(io::Error::other)?;
    let (mut runtime, _) = runtimes.build()?;
    let signals = |most: usize| -> Vec<Rc<Signal>> {
        (0..most.min(mine.len())).map(|_| Rc::default()).collect()
    };
    let (polls, sends) = (signals(UPSTREAM_CONNECTIONS), signals(DOWNSTREAM_CONNECTIONS));
    let feed = |(at, partition): (usize, &u32)| {
        Rc::new(Feed {
            partition: *partition,
            next: Cell::new(0),
            is_asked: Cell::new(false),
            held: Cell::new(0),
            ready: RefCell::default(),
            spare: RefCell::default(),
            polls: polls[at % polls.len()].clone(),
            sends: sends[at % sends.len()].clone(),
        })
    };
    let feeds: Vec<Rc<Feed>> = mine.iter().enumerate().map(feed).collect();
    let of = |signal: &Rc<Signal>, side: fn(&Feed) -> &Rc<Signal>| -> Vec<Rc<Feed>> {
        feeds.iter().filter(|feed| Rc::ptr_eq(side(feed), signal)).cloned().collect()
    };
    runtime.block_on(async {
        let failure = Rc::new((Signal::default(), Cell::new(None)));
        for signal in &polls {
            let reader = Reader::new(args, Wire::open(up)?, of(signal, |feed| &feed.polls))?;
            start(reader.run(signal.clone()), &failure);
        }
        for signal in &sends {
            let writer = Writer::new(args, Wire::open(down)?, of(signal, |feed| &feed.sends));
            start(writer.run(signal.clone()), &failure);
        }
        failure.0.raised().await;
        failure.1.take().map_or(Ok(()), Err)
    })
}

/// Runs one half of a connection's work; it ends only by failing.
fn start(
    work: impl Future<Output = io::Result<()>> + 'static,
    failure: &Rc<(Signal, Cell<Option<io::Error>>)>,
) {
    let failure = failure.clone();
    monoio::spawn(async move {
        failure.1.set(work.await.err());
        failure.0.raise();
    });
}

impl Wire {
    fn open(endpoint: &Endpoint) -> io::Result<Wire> {
        let (socket, session) = Client::connect(endpoint)?.into_parts();
        socket.set_read_timeout(None)?;
        socket.set_nonblocking(monoio::utils::is_legacy())?;
        let stream = TcpStream::from_std(socket)?;
        Ok(Wire { stream, intake: Intake::default(), session, number: 0 })
    }

    /// The frame of a request, to be sent again and again; its number is the first to use.
    fn prepare(&mut self, request: &Request) -> io::Result<Outgoing> {
        let (number, outgoing) = self.session.request(request).map_err(io::Error::other)?;
        self.number = self.number.max(number);
        Ok(outgoing)
    }

    async fn write(&mut self, head: Vec<u8>, tail: Option<Bytes>) -> io::Result<()> {
        let mut head = head;
        head[NUMBER..NUMBER + 8].copy_from_slice(&self.number.to_le_bytes());
        self.number += 1;
        let bytes = Outgoing { head: Bytes::from(head), tail, more: Vec::new() };
        let mut queue = VecDeque::from([Frame { number: 0, bytes }]);
        let mut batch = WriteBatch::default();
        batch.fill_from(&mut queue);
        while !batch.is_empty() {
            let (written, back) = write_some(&mut self.stream, batch).await;
            batch = back;
            batch.advance(written?, |_| {});
        }
        Ok(())
    }

    async fn read(&mut self, buffer: Vec<u8>) -> io::Result<Vec<u8>> {
        let header = self.intake.header(&mut self.stream).await?;
        let length = body_length(&header)?;
        self.intake.body_in(&mut self.stream, buffer, length, |_| {}).await
    }
}

/// Length of what follows a reply's header; a refusal is an error.
fn body_length(header: &HeaderBytes) -> io::Result<usize> {
    match ServerHeader::of(header).map_err(io::Error::other)? {
        ServerHeader::Reply(reply) if reply.status == 0 => Ok(reply.size as usize - HEADER_LEN),
        other => Err(io::Error::other(format!("the server refused: {other:?}"))),
    }
}

/// Polls for the partitions of one connection.
struct Reader {
    wire: Wire,
    feeds: Vec<Rc<Feed>>,
    /// One for each of them.
    polls: Vec<Bytes>,
    /// Polls without a reply.
    asked: VecDeque<Rc<Feed>>,
}

impl Reader {
    fn new(args: &CopyArgs, mut wire: Wire, feeds: Vec<Rc<Feed>>) -> io::Result<Reader> {
        let shape = Shape { size: args.size, record: args.record, partitions: args.partitions };
        let records = (args.max_batch_bytes / shape.record_bytes()).max(1);
        let most = u64::from((COUNT_MOST / args.record).max(1));
        let count = u32::try_from(records.min(most)).unwrap_or(1) * args.record;
        let poll = |feed: &Rc<Feed>| {
            let (stream, topic) = (args.stream.as_str().into(), Upstream::TOPIC.into());
            let from = PollFrom::Offset(0);
            Request::Poll { stream, topic, partition: feed.partition, from, count }
        };
        let polls: io::Result<_> =
            feeds.iter().map(|feed| Ok(wire.prepare(&poll(feed))?.head)).collect();
        Ok(Reader { wire, feeds, polls: polls?, asked: VecDeque::new() })
    }

    async fn run(mut self, signal: Rc<Signal>) -> io::Result<()> {
        loop {
            for (feed, poll) in self.feeds.iter().zip(&self.polls) {
                if !feed.is_asked.get() && feed.held.get() < AHEAD {
                    let mut poll = poll.to_vec();
                    let at = poll.len() - OFFSET_FROM_END;
                    poll[at..at + 8].copy_from_slice(&feed.next.get().to_le_bytes());
                    self.wire.write(poll, None).await?;
                    feed.is_asked.set(true);
                    self.asked.push_back(feed.clone());
                }
            }
            match self.asked.pop_front() {
                Some(feed) => self.take_reply(&feed).await?,
                None => signal.raised().await,
            }
        }
    }

    async fn take_reply(&mut self, feed: &Rc<Feed>) -> io::Result<()> {
        let buffer = feed.spare.borrow_mut().pop().unwrap_or_default();
        let body = self.wire.read(buffer).await?;
        feed.is_asked.set(false);
        // partition:4 | current offset:8 | count:4 | records
        let count = body.get(12..16).and_then(|count| count.try_into().ok());
        let count = count.map_or(0, u32::from_le_bytes);
        if count == 0 {
            feed.spare.borrow_mut().push(body);
            monoio::time::sleep(IDLE).await;
            return Ok(());
        }
        feed.next.set(feed.next.get() + u64::from(count));
        feed.held.set(feed.held.get() + 1);
        feed.ready.borrow_mut().push_back((count, body));
        feed.sends.raise();
        Ok(())
    }
}

/// Sends for the partitions of one connection.
struct Writer {
    wire: Wire,
    feeds: Vec<Rc<Feed>>,
    stream: String,
    topic: String,
    size: u32,
    /// Messages of a send; several records where a mirror would merge them.
    most: u32,
    /// By partition and number of messages.
    prepared: HashMap<(u32, u32), (Bytes, Bytes)>,
    acks: Vec<u8>,
}

impl Writer {
    fn new(args: &CopyArgs, wire: Wire, feeds: Vec<Rc<Feed>>) -> Writer {
        let shape = Shape { size: args.size, record: args.record, partitions: args.partitions };
        let is_merged = shape.record_bytes() <= MERGED;
        Writer {
            wire,
            feeds,
            stream: args.stream.clone(),
            topic: args.topic.clone(),
            size: args.size,
            most: if is_merged { u32::MAX } else { args.record },
            prepared: HashMap::new(),
            acks: Vec::new(),
        }
    }

    async fn run(mut self, signal: Rc<Signal>) -> io::Result<()> {
        loop {
            let mut is_idle = true;
            for feed in self.feeds.clone() {
                let waits = feed.ready.borrow_mut().pop_front();
                let Some((count, buffer)) = waits else { continue };
                is_idle = false;
                let mut left = count;
                while left > 0 {
                    let messages = left.min(self.most);
                    left -= messages;
                    self.send(feed.partition, messages).await?;
                }
                feed.held.set(feed.held.get() - 1);
                feed.spare.borrow_mut().push(buffer);
                feed.polls.raise();
            }
            if is_idle {
                signal.raised().await;
            }
        }
    }

    async fn send(&mut self, partition: u32, messages: u32) -> io::Result<()> {
        let (head, tail) = match self.prepared.get(&(partition, messages)) {
            Some(prepared) => prepared.clone(),
            None => self.prepare(partition, messages)?,
        };
        self.wire.write(head.to_vec(), Some(tail)).await?;
        let acks = std::mem::take(&mut self.acks);
        self.acks = self.wire.read(acks).await?;
        Ok(())
    }

    fn prepare(&mut self, partition: u32, messages: u32) -> io::Result<(Bytes, Bytes)> {
        let payload = BytesMut::zeroed(self.size as usize);
        let message = |number: u32| Message {
            id: u128::from(number) + 1,
            origin_timestamp: 1,
            payload: &payload,
            user_headers: &[],
        };
        let all: Vec<Message<'_>> = (0..messages).map(message).collect();
        let record = build_record(&all).map_err(io::Error::other)?;
        let (stream, topic) = (self.stream.as_str().into(), self.topic.as_str().into());
        let to = SendTo::Partition(partition);
        let send = self.wire.prepare(&Request::Send { stream, topic, to, record })?;
        let prepared = (send.head, send.tail.unwrap_or_default());
        self.prepared.insert((partition, messages), prepared.clone());
        Ok(prepared)
    }
}
