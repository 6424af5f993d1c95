//! A world on virtual time: the pure pipeline, the wire session and two broker cores, without a
//! socket, a file or a clock. The harness performs what the driver would.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tidegate::batch::{FeedId, OffsetMap};
use tidegate::config::budget::SHARD_RESERVE;
use tidegate::config::{ClusterPlan, MirrorPlan};
use tidegate::iggy_wire::session::{Credentials, Delivery, Session};
use tidegate::iggy_wire::{PollFrom, Reply, Request, SendTo, Verify, build, record};
use tidegate::loopback::core::{Core, Delivery as How, Effect, Inbound, Settings};
use tidegate::loopback::frame::{Frame, RequestHead};
use tidegate::shard::event::{
    Command, ConnError, ConnId, Event, Failure, FeedSpec, FromControl, Place, SaveError, Ticket,
    ToControl,
};
use tidegate::shard::pipeline::budget::LARGE_SLOT;
use tidegate::shard::pipeline::{Pipeline, PipelineConfig};
use tidegate::shard::snapshot::FeedSnapshot;
use tidegate::statefile::{FeedState, format};
use tidegate::time::{Millis, Now, UnixMicros};

use crate::heap;

/// Wall time at virtual 0.
const EPOCH: u64 = 1_700_000_000_000_000;
/// The shard's part of `max_buffered_bytes`, where a test does not say another one.
const LIMIT: u64 = 64 << 20;

/// A broker and whether it can be reached, as a whole and node by node.
pub struct Broker {
    pub core: Core,
    pub up: bool,
    addresses: Vec<Arc<str>>,
    node_up: Vec<bool>,
}

struct Link {
    session: Session,
    /// It leads to the upstream broker, whatever it was dialled for.
    upstream: bool,
    node: usize,
    /// As it was dialled.
    address: Arc<str>,
    transport: u64,
    tickets: HashMap<u64, Asked>,
    /// A send that timed out: the connection is ending and may still write it.
    dying: Option<Vec<Bytes>>,
}

/// A request without a reply.
struct Asked {
    ticket: Ticket,
    limit: u32,
    /// What a send holds in memory until it is answered; `None` for a read.
    sends: Option<Vec<Bytes>>,
}

/// Bytes in memory, as the outside sees them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Memory {
    /// What the outstanding reads may still bring.
    pub asked: u64,
    /// Bodies of replies that somebody still refers to.
    pub replies: u64,
    /// Sends that share no buffer with a reply.
    pub copies: u64,
}

impl Memory {
    pub fn total(self) -> u64 {
        self.asked + self.replies + self.copies
    }
}

enum Due {
    Frame { conn: ConnId, transport: u64, frame: Frame },
    Expired { conn: ConnId, transport: u64, number: u64 },
    Dead { conn: ConnId, transport: u64 },
    Late { upstream: bool, late: tidegate::loopback::LateSend },
    Save { source: Arc<str>, generation: u64, image: Vec<u8>, error: Option<SaveError> },
    Event(Event),
}

/// Questions about nodes that the pipeline has asked.
#[derive(Clone, Copy, Debug, Default)]
pub struct Questions {
    pub rosters: u64,
    pub primaries: u64,
}

pub struct World {
    pub now: u64,
    pub up: Broker,
    pub down: Broker,
    pub disk: BTreeMap<Arc<str>, Vec<u8>>,
    /// Errors that the next saves end with.
    pub save_errors: Vec<SaveError>,
    /// How long a save takes, milliseconds.
    pub save_takes: u64,
    /// How long a reply takes, milliseconds; 0 for less than one.
    pub latency: u64,
    /// The destination never takes, nor answers, a send with these bytes in it.
    pub poison: Option<&'static [u8]>,
    /// Somebody else writes to the destination: its end says nothing about ours.
    pub foreign: bool,
    pub plan: Arc<MirrorPlan>,
    pub to_control: Vec<ToControl>,
    /// Answers a wish for the large slot at once, as long as nobody holds it.
    pub grant_large_slot: bool,
    pub large_wanted: Vec<FeedId>,
    /// Wishes for the large slot so far.
    pub wishes: u64,
    /// Addresses that the destination's nodes may advertise and that lead to the upstream broker.
    pub strange: Vec<Arc<str>>,
    /// Second addresses of nodes of the destination.
    pub aliases: Vec<(Arc<str>, usize)>,
    large_held: Option<FeedId>,
    pipeline: Pipeline,
    feeds: Vec<(usize, u32)>,
    links: HashMap<ConnId, Link>,
    due: BTreeMap<(u64, u64), Due>,
    order: u64,
    events: Vec<Event>,
    wake: u64,
    seed: u64,
    polled: u64,
    /// This shard's part of `max_buffered_bytes`; takes effect with the next start.
    pub limit: u64,
    pub memory: Memory,
    /// Most at any moment: lent from the reserve, waiting for it.
    pub most_lent: u64,
    pub most_waiting: usize,
    asked: Questions,
    /// Replies that wait for a release.
    held: Vec<(ConnId, u64, Frame)>,
    /// Most in sends that timed out on a connection that is not down yet.
    pub most_dying: usize,
}

impl World {
    pub fn new(plan: MirrorPlan) -> World {
        heap::watch_nothing();
        let broker = |cluster: &ClusterPlan| Broker {
            core: Core::new(Settings::default()),
            up: true,
            addresses: vec![cluster.addresses[0].as_str().into()],
            node_up: vec![true],
        };
        World {
            now: 0,
            up: broker(&plan.from),
            down: broker(&plan.to),
            disk: BTreeMap::new(),
            save_errors: Vec::new(),
            save_takes: 2,
            latency: 1,
            poison: None,
            foreign: false,
            plan: Arc::new(plan),
            to_control: Vec::new(),
            grant_large_slot: false,
            large_wanted: Vec::new(),
            wishes: 0,
            strange: Vec::new(),
            aliases: Vec::new(),
            large_held: None,
            pipeline: pipeline(1, LIMIT),
            feeds: Vec::new(),
            links: HashMap::new(),
            due: BTreeMap::new(),
            order: 0,
            events: Vec::new(),
            wake: 0,
            seed: 1,
            polled: 0,
            limit: LIMIT,
            most_lent: 0,
            most_waiting: 0,
            most_dying: 0,
            memory: Memory::default(),
            asked: Questions::default(),
            held: Vec::new(),
        }
    }

    /// Makes the destination a cluster of `count` nodes at `10.0.0.n:1`, the first of which leads.
    pub fn cluster(&mut self, count: usize) {
        let address = |node: usize| format!("10.0.0.{}", node + 1);
        let nodes = self.down.core.nodes();
        nodes.advertise(0, &address(0), 1);
        for node in 1..count {
            nodes.add(&address(node), 1);
        }
        self.down.addresses =
            (0..count).map(|node| format!("{}:1", address(node)).into()).collect();
        self.down.node_up = vec![true; count];
    }

    /// Node `node` of the destination can be reached, or its connections end and it cannot.
    pub fn reach_node(&mut self, node: usize, up: bool) {
        self.down.node_up[node] = up;
        let is_there = |link: &Link| !up && !link.upstream && link.node == node;
        let lost: Vec<ConnId> =
            self.links.iter().filter(|(_, l)| is_there(l)).map(|(c, _)| *c).collect();
        for conn in lost {
            self.drop_link(conn, ConnError::Lost("cut".into()), Failure::Lost, None);
        }
    }

    /// Nodes of the destination that are connected to, each as often as it is.
    pub fn connected_nodes(&self) -> Vec<usize> {
        let mut nodes: Vec<usize> =
            self.links.values().filter(|link| !link.upstream).map(|link| link.node).collect();
        nodes.sort_unstable();
        nodes
    }

    /// Creates a topic on one side and returns its creation time.
    pub fn create(&mut self, upstream: bool, stream: &str, topic: &str, partitions: u32) -> u64 {
        let (stream, topic): (Arc<str>, Arc<str>) = (stream.into(), topic.into());
        self.ask(upstream, Request::CreateStream { stream: stream.clone() }).ok();
        let create = Request::CreateTopic {
            stream: stream.clone(),
            topic: topic.clone(),
            partitions,
            options: Vec::new(),
        };
        self.ask(upstream, create).expect("create topic");
        self.now += 1;
        self.created_at(upstream, &stream, &topic)
    }

    fn created_at(&mut self, upstream: bool, stream: &str, topic: &str) -> u64 {
        let get = Request::Topic { stream: stream.into(), topic: topic.into() };
        match self.ask(upstream, get) {
            Ok(Reply::Topic(Some(info))) => info.created_at,
            _ => 0,
        }
    }

    /// Appends `count` messages in one batch to a partition; payload = number from `from`.
    pub fn write(&mut self, upstream: bool, partition: u32, from: u64, count: u64) {
        let topic = &self.plan.topics[0];
        let name = if upstream { topic.upstream.clone() } else { topic.downstream.clone() };
        let payloads: Vec<String> = (from..from + count).map(|n| format!("message {n}")).collect();
        let messages: Vec<build::Message<'_>> = (from..)
            .zip(&payloads)
            .map(|(n, payload)| build::Message {
                id: u128::from(n % 7),
                origin_timestamp: EPOCH + n,
                payload: payload.as_bytes(),
                user_headers: &[],
            })
            .collect();
        let send = Request::Send {
            stream: name.stream,
            topic: name.topic,
            to: SendTo::Partition(partition),
            record: build::build_record(&messages).expect("record"),
        };
        self.ask(upstream, send).expect("send");
    }

    /// Appends one batch per size to a partition of the first topic.
    pub fn write_sized(&mut self, upstream: bool, partition: u32, sizes: &[usize]) {
        let name = self.plan.topics[0].upstream.clone();
        for (n, size) in sizes.iter().enumerate() {
            let payload = vec![b'a' + u8::try_from(n).unwrap(); *size];
            let message = build::Message { payload: &payload, ..Default::default() };
            let send = Request::Send {
                stream: name.stream.clone(),
                topic: name.topic.clone(),
                to: SendTo::Partition(partition),
                record: build::build_record(&[message]).expect("record"),
            };
            self.ask(upstream, send).expect("send");
        }
    }

    /// Appends one batch with a message per size to a partition of the first topic.
    pub fn write_batch(&mut self, upstream: bool, partition: u32, sizes: &[usize]) {
        let name = self.plan.topics[0].upstream.clone();
        let payload = vec![b'x'; sizes.iter().copied().max().unwrap_or(0)];
        let message =
            |size: &usize| build::Message { payload: &payload[..*size], ..Default::default() };
        let messages: Vec<build::Message<'_>> = sizes.iter().map(message).collect();
        let send = Request::Send {
            stream: name.stream,
            topic: name.topic,
            to: SendTo::Partition(partition),
            record: build::build_record(&messages).expect("record"),
        };
        self.ask(upstream, send).expect("send");
    }

    /// Bytes lent from the reserve, and how many wait for some.
    pub fn reserve(&self) -> (u64, usize) {
        self.pipeline.reserve()
    }

    /// Polls the upstream has answered on the first partitions of the topic.
    pub fn polls(&self, partitions: u32) -> u64 {
        let _ = partitions;
        self.polled
    }

    /// Questions about nodes so far.
    pub fn asked(&self) -> Questions {
        self.asked
    }

    /// A message from the control thread.
    pub fn tell(&mut self, message: FromControl) {
        self.events.push(Event::Control(message));
    }

    /// Every message of a partition: offset and payload.
    pub fn read(&mut self, upstream: bool, partition: u32) -> Vec<(u64, String)> {
        let topic = &self.plan.topics[0];
        let name = if upstream { topic.upstream.clone() } else { topic.downstream.clone() };
        let poll = Request::Poll {
            stream: name.stream,
            topic: name.topic,
            partition,
            from: PollFrom::First,
            count: 1_000_000,
        };
        let Ok(Reply::Polled(polled)) = self.ask(upstream, poll) else { return Vec::new() };
        let records = record::scan(&polled.records, Verify::Full).expect("sound records");
        let text = |m: tidegate::iggy_wire::MessageView<'_>| {
            (m.offset, String::from_utf8_lossy(m.payload).into_owned())
        };
        records.iter().flat_map(|r| r.messages().map(text).collect::<Vec<_>>()).collect()
    }

    /// One request of a bystander, answered at once.
    pub fn ask(&mut self, upstream: bool, request: Request) -> Result<Reply, u32> {
        let now = self.wall();
        let core = if upstream { &mut self.up.core } else { &mut self.down.core };
        let node = core.nodes().primary().unwrap_or(0);
        let transport = core.connect_to(node, "bystander".into());
        let mut session = Session::new(u128::from(self.seed) << 70, 77, iggy());
        self.seed += 1;
        let login = session.login().expect("login");
        let reply = exchange(core, transport, &frame_of(&login), now).expect("login answer");
        deliver(&mut session, &reply);
        let (_, outgoing) = session.request(&request).expect("request");
        let reply = exchange(core, transport, &frame_of(&outgoing), now);
        let answer = reply.map(|reply| deliver(&mut session, &reply));
        core.disconnect(transport);
        match answer {
            Some(Delivery::Reply { result, .. }) => result.map_err(|error| error.code),
            other => panic!("no answer to {request:?}: {other:?}"),
        }
    }

    /// Starts feeds for the partitions of the first topic, from what is on disk.
    pub fn start(&mut self, partitions: u32) {
        self.start_with(partitions, false);
    }

    pub fn start_with(&mut self, partitions: u32, late: bool) {
        let topic = self.plan.topics[0].clone();
        let up = self.created_at(true, &topic.upstream.stream, &topic.upstream.topic);
        let down = self.created_at(false, &topic.downstream.stream, &topic.downstream.topic);
        let saved = self.saved();
        let generation = saved.as_ref().map_or(0, |state| state.generation);
        for partition in 0..partitions {
            let entry = |state: &tidegate::statefile::SourceState| -> Option<FeedState> {
                state.feeds.iter().find(|feed| feed.partition == partition).cloned()
            };
            self.feeds.push((0, partition));
            let spec = FeedSpec {
                id: FeedId(partition),
                plan: self.plan.clone(),
                topic: 0,
                partition,
                saved: saved.as_ref().and_then(entry),
                first_count: if late { 0 } else { partitions },
                generation,
                upstream_created_at: up,
                downstream_created_at: down,
            };
            self.events.push(Event::Control(FromControl::AddFeed(Box::new(spec))));
        }
    }

    /// What the state file holds.
    pub fn saved(&self) -> Option<tidegate::statefile::SourceState> {
        let image = self.disk.get(&self.plan.key)?;
        Some(format::decode(image, "test.0.state").expect("state file"))
    }

    /// The process dies: connections are reset, nothing else happens.
    pub fn kill(&mut self) {
        (self.large_wanted, self.large_held) = (Vec::new(), None);
        self.seed += 1;
        self.pipeline = pipeline(self.seed, self.limit);
        for (_, link) in self.links.drain() {
            let core = if link.upstream { &mut self.up.core } else { &mut self.down.core };
            core.disconnect(link.transport);
        }
        self.due.retain(|_, due| matches!(due, Due::Late { .. }));
        self.events.clear();
        self.feeds.clear();
    }

    /// Cuts every connection to one side; `up` says whether it can be dialled again.
    pub fn cut(&mut self, upstream: bool, up: bool) {
        let broker = if upstream { &mut self.up } else { &mut self.down };
        broker.up = up;
        let lost: Vec<ConnId> = self
            .links
            .iter()
            .filter(|(_, link)| link.upstream == upstream)
            .map(|(conn, _)| *conn)
            .collect();
        for conn in lost {
            self.drop_link(conn, ConnError::Lost("cut".into()), Failure::Lost, None);
        }
    }

    /// A reply is being held back.
    pub fn holds_replies(&self) -> bool {
        !self.held.is_empty()
    }

    /// Replies that were held back arrive.
    pub fn release_replies(&mut self) {
        for (conn, transport, frame) in std::mem::take(&mut self.held) {
            self.later(0, Due::Frame { conn, transport, frame });
        }
    }

    /// Appends that were still to come never come.
    pub fn forget_late(&mut self) {
        self.due.retain(|_, due| !matches!(due, Due::Late { .. }));
    }

    /// Asks for an orderly stop.
    pub fn drain(&mut self) {
        self.events.push(Event::Control(FromControl::Drain));
    }

    /// True once the pipeline said it is drained.
    pub fn is_drained(&self) -> bool {
        self.to_control.iter().any(|message| matches!(message, ToControl::Drained))
    }

    /// Lets time pass.
    pub fn run(&mut self, time: Duration) {
        let end = self.now + u64::try_from(time.as_millis()).unwrap();
        self.run_until(end, |_| false);
    }

    /// Lets time pass until something is so; panics after a virtual minute or two.
    pub fn until(&mut self, what: &str, done: impl FnMut(&mut World) -> bool) {
        let end = self.now + 300_000;
        assert!(self.run_until(end, done), "never: {what}\n{:#?}", self.feeds());
    }

    pub fn feeds(&self) -> Vec<FeedSnapshot> {
        self.pipeline.snapshot(self.clock())
    }

    pub fn feed(&self, partition: u32) -> FeedSnapshot {
        self.feeds().into_iter().find(|feed| feed.partition == partition).expect("feed")
    }

    /// Both sides hold the same texts in the same order, partition by partition.
    pub fn assert_equal(&mut self, partitions: u32) {
        for partition in 0..partitions {
            let texts = |side: Vec<(u64, String)>| -> Vec<String> {
                side.into_iter().map(|(_, text)| text).collect()
            };
            let (up, down) = (self.read(true, partition), self.read(false, partition));
            assert_eq!(texts(up), texts(down), "partition {partition}");
        }
    }

    fn run_until(&mut self, end: u64, mut done: impl FnMut(&mut World) -> bool) -> bool {
        loop {
            self.turn();
            if done(self) {
                return true;
            }
            let next_due = self.due.keys().next().map_or(u64::MAX, |(at, _)| *at);
            // Without latency several turns happen within a millisecond.
            let next = self.wake.min(next_due).max(self.now + self.latency.min(1));
            if next > end {
                self.now = end;
                return false;
            }
            self.now = next;
        }
    }

    fn turn(&mut self) {
        while let Some(entry) = self.due.first_entry() {
            if entry.key().0 > self.now {
                break;
            }
            let due = entry.remove();
            self.happen(due);
        }
        let mut out = Vec::new();
        let clock = self.clock();
        let wake = self.pipeline.step(clock, &mut self.events, &mut out);
        self.wake = wake.map_or(u64::MAX, |at| at.0);
        for command in out {
            self.perform(command);
        }
        self.audit();
        if !self.events.is_empty() {
            self.wake = self.now;
        }
    }

    /// The accounts stay in their bounds, and never say less than what is in memory.
    fn audit(&mut self) {
        let (lent, waiting) = self.pipeline.reserve();
        assert!(lent <= SHARD_RESERVE, "{lent} bytes of the reserve are lent");
        assert!(waiting <= 2 * self.feeds.len(), "{waiting} wait for the reserve");
        let reads = |asked: &&Asked| asked.sends.is_none();
        let outstanding = || self.links.values().flat_map(|link| link.tickets.values());
        let copied = |sent: &&Bytes| !sent.is_empty() && !heap::is_watched(sent);
        let dying = || self.links.values().filter_map(|link| link.dying.as_ref());
        let sends = outstanding().filter_map(|asked| asked.sends.as_ref()).chain(dying());
        let memory = Memory {
            asked: outstanding().filter(reads).map(|asked| u64::from(asked.limit)).sum(),
            replies: heap::watched_bytes(),
            copies: sends.flatten().filter(copied).map(|sent| sent.len() as u64).sum(),
        };
        let slot = if self.large_held.is_some() { LARGE_SLOT } else { 0 };
        let (held, limit) = self.pipeline.buffered();
        assert!(held <= limit + slot, "{held} bytes are held, {limit} allowed");
        assert!(memory.total() <= held, "{held} bytes are held, there are {memory:?}");
        assert_eq!(memory.copies, 0, "a send lies in the buffers of its replies: {memory:?}");
        let is_quiet = self.events.is_empty() && outstanding().count() + dying().count() == 0;
        // A feed that looks for its node keeps its loan while the node is dialled.
        let dialling = if self.down.node_up.len() > 1 { lent } else { 0 };
        if is_quiet && memory.total() == 0 {
            let most = slot + dialling;
            assert!(held <= most, "{held} bytes are held, nothing is in memory or asked for");
        }
        self.most_dying = self.most_dying.max(dying().flatten().map(Bytes::len).sum());
        self.most_lent = self.most_lent.max(lent);
        self.most_waiting = self.most_waiting.max(waiting);
        self.memory = memory;
    }

    fn happen(&mut self, due: Due) {
        match due {
            Due::Event(event) => self.events.push(event),
            // On disk only now: a kill before loses it.
            Due::Save { source, generation, image, error } => {
                if error.is_none() {
                    self.disk.insert(source.clone(), image);
                }
                let result = error.map_or(Ok(()), Err);
                self.events.push(Event::Persisted { source, generation, result });
            }
            Due::Late { upstream, late } => {
                let now = self.wall();
                let core = if upstream { &mut self.up.core } else { &mut self.down.core };
                core.late_append(late, now);
            }
            Due::Frame { conn, transport, frame } => self.arrive(conn, transport, &frame),
            Due::Expired { conn, transport, number } => {
                let Some(link) = self.links.get_mut(&conn) else { return };
                if link.transport != transport {
                    return;
                }
                let Some(asked) = link.tickets.remove(&number) else { return };
                link.session.forget(number);
                let (ticket, result) = (asked.ticket, Err(Failure::TimedOut));
                self.events.push(Event::Replied { ticket, result });
                if let Some(sends) = asked.sends {
                    link.dying = Some(sends);
                    self.later(1, Due::Dead { conn, transport });
                }
            }
            Due::Dead { conn, transport } => {
                if self.links.get(&conn).is_some_and(|link| link.transport == transport) {
                    let cause = ConnError::Silent(Duration::from_secs(10));
                    self.drop_link(conn, cause, Failure::Lost, None);
                }
            }
        }
    }

    fn arrive(&mut self, conn: ConnId, transport: u64, frame: &Frame) {
        let Some(link) = self.links.get_mut(&conn) else { return };
        if link.transport != transport || link.dying.is_some() {
            return;
        }
        let bytes = frame.to_vec();
        let header: [u8; 256] = bytes[..256].try_into().unwrap();
        let incoming = link.session.on_header(&header).expect("header");
        if let Some(asked) = incoming.number.and_then(|n| link.tickets.get(&n)) {
            let (ticket, limit) = (asked.ticket, asked.limit);
            if bytes.len() > limit as usize {
                let size = u32::try_from(bytes.len()).unwrap();
                let cause = ConnError::TooLarge { size, limit };
                return self.drop_link(conn, cause, Failure::TooLarge { size }, Some(ticket));
            }
        }
        let body = Bytes::copy_from_slice(&bytes[256..]);
        heap::watch(&body);
        match link.session.on_reply(&incoming, body).expect("reply") {
            Delivery::LoggedIn { server_version, .. } => {
                let address = link.address.clone();
                let place = Place { peer: address.clone(), address };
                self.events.push(Event::ConnUp { conn, server_version, place });
            }
            Delivery::Reply { number, result } => {
                let Some(Asked { ticket, .. }) = link.tickets.remove(&number) else { return };
                let result = result.map_err(|error| Failure::Refused(error.code));
                self.events.push(Event::Replied { ticket, result });
            }
            Delivery::Stray { .. } => {}
            Delivery::Evicted { reason } => {
                self.drop_link(conn, ConnError::Evicted(reason), Failure::Lost, None);
            }
            Delivery::LoginRefused { .. } => panic!("login refused"),
        }
    }

    fn drop_link(&mut self, conn: ConnId, cause: ConnError, first: Failure, of: Option<Ticket>) {
        let Some(link) = self.links.remove(&conn) else { return };
        let core = if link.upstream { &mut self.up.core } else { &mut self.down.core };
        core.disconnect(link.transport);
        let mut tickets: Vec<Ticket> = link.tickets.values().map(|asked| asked.ticket).collect();
        tickets.sort_unstable();
        for ticket in tickets {
            let failure = if of == Some(ticket) { first.clone() } else { Failure::Lost };
            self.events.push(Event::Replied { ticket, result: Err(failure) });
        }
        self.events.push(Event::ConnDown { conn, cause });
    }

    fn perform(&mut self, command: Command) {
        match command {
            Command::Connect { conn, cluster, node } => {
                self.connect(conn, &cluster, node.as_deref());
            }
            Command::Close { conn } => {
                if self.links.get(&conn).is_some_and(|link| link.dying.is_some()) {
                    return;
                }
                self.drop_link(conn, ConnError::Closed, Failure::Lost, None);
            }
            Command::Request { conn, ticket, request, reply_limit, timeout } => {
                self.request(conn, ticket, &request, reply_limit, timeout);
            }
            Command::Persist { source, generation, image } => {
                let error = self.save_errors.pop();
                let millis = self.save_takes;
                self.later(millis, Due::Save { source, generation, image, error });
            }
            Command::Pg { .. } | Command::Spill { .. } => {
                unreachable!("mirrors have no connection to Postgres")
            }
            Command::Control(message) => self.controlled(message),
        }
    }

    fn controlled(&mut self, message: ToControl) {
        match message {
            ToControl::LargeSlotWanted { feed } => {
                self.wishes += 1;
                self.large_wanted.push(feed);
            }
            ToControl::LargeSlotReleased { feed } => {
                self.large_wanted.retain(|wanted| *wanted != feed);
                self.large_held.take_if(|held| *held == feed);
            }
            other => self.to_control.push(other),
        }
        if self.grant_large_slot && self.large_held.is_none() && !self.large_wanted.is_empty() {
            let feed = self.large_wanted.remove(0);
            self.large_held = Some(feed);
            self.tell(FromControl::LargeSlotGranted { feed });
        }
    }

    fn connect(&mut self, conn: ConnId, cluster: &str, wanted: Option<&str>) {
        let upstream = *cluster == *self.plan.from.key;
        let (plan, broker) = match upstream {
            true => (&self.plan.from, &mut self.up),
            false => (&self.plan.to, &mut self.down),
        };
        let configured = plan.addresses.iter().map(String::as_str);
        let asked: Vec<&str> = wanted.map_or_else(|| configured.collect(), |one| vec![one]);
        if let Some(address) = self.strange.iter().find(|address| Some(&***address) == wanted) {
            return self.connect_to(conn, true, 0, address.clone());
        }
        let aliases = if upstream { &[][..] } else { &self.aliases };
        let node_at = |address: &&str| {
            let alias = aliases.iter().find(|(alias, _)| **alias == **address);
            let node = broker.addresses.iter().position(|a| **a == **address);
            node.or(alias.map(|(_, node)| *node))
        };
        let mut nodes = asked.iter().filter_map(|address| Some((node_at(address)?, *address)));
        let node = nodes.find(|(node, _)| broker.up && broker.node_up[*node]);
        let Some((node, address)) = node else {
            let address = asked.last().map_or("none", |address| address).to_owned();
            let unknown = asked.iter().all(|address| node_at(address).is_none());
            let cause = ConnError::Dial { address, why: "refused".into() };
            // Nothing answers at an address that leads nowhere, not even with a refusal.
            let millis = if unknown { 5000 } else { 1 };
            return self.later(millis, Due::Event(Event::ConnDown { conn, cause }));
        };
        let address = address.into();
        self.connect_to(conn, upstream, node, address);
    }

    fn connect_to(&mut self, conn: ConnId, upstream: bool, node: usize, address: Arc<str>) {
        let broker = if upstream { &mut self.up } else { &mut self.down };
        let transport = broker.core.connect_to(node, format!("{conn:?}"));
        self.seed += 1;
        let mut session = Session::new(u128::from(self.seed) << 80, self.seed * 1_000_003, iggy());
        let login = session.login().expect("login");
        let tickets = HashMap::new();
        let link = Link { session, upstream, node, address, transport, tickets, dying: None };
        self.links.insert(conn, link);
        self.submit(conn, &frame_of(&login));
    }

    fn request(
        &mut self,
        conn: ConnId,
        ticket: Ticket,
        request: &Request,
        limit: u32,
        t: Duration,
    ) {
        let Some(link) = self.links.get_mut(&conn).filter(|link| link.dying.is_none()) else {
            self.events.push(Event::Replied { ticket, result: Err(Failure::Lost) });
            return;
        };
        let (number, outgoing) = link.session.request(request).expect("request");
        let sends = match request {
            Request::Send { .. } => Some(outgoing.parts().skip(1).cloned().collect()),
            _ => None,
        };
        if let Request::Send { to: SendTo::Partition(partition), record, .. } = request {
            let (partition, first) = (*partition, record.first_offset());
            assert!(!link.upstream, "sent to another cluster");
            if self.down.core.nodes().primary() == Some(link.node) {
                self.assert_resumable(partition, first);
            }
        }
        let Some(link) = self.links.get_mut(&conn) else { return };
        self.polled += u64::from(matches!(request, Request::Poll { .. }));
        self.asked.rosters += u64::from(matches!(request, Request::ClusterMetadata));
        self.asked.primaries += u64::from(matches!(request, Request::Primary { .. }));
        link.tickets.insert(number, Asked { ticket, limit, sends });
        let transport = link.transport;
        let millis = u64::try_from(t.as_millis()).unwrap();
        self.later(millis, Due::Expired { conn, transport, number });
        let frame = frame_of(&outgoing);
        let holds = |poison: &[u8]| frame.windows(poison.len()).any(|bytes| bytes == poison);
        if !matches!(request, Request::Send { .. }) || !self.poison.is_some_and(holds) {
            self.submit(conn, &frame);
        }
    }

    /// What is on disk must lead to the message about to be sent, whether the send is applied or
    /// not: this is what makes a kill at this instant harmless.
    fn assert_resumable(&mut self, partition: u32, first: u64) {
        let topic = self.plan.topics[0].downstream.clone();
        let log = self.down.core.log(&topic.stream, &topic.topic, partition);
        let Some(end) = log.map(|log| log.next()) else { return };
        let saved = self.saved();
        let entry = saved.iter().flat_map(|state| &state.feeds).find(|f| f.partition == partition);
        let entry = entry.unwrap_or_else(|| panic!("sent {first} of {partition} without a state"));
        assert!(!entry.clean_stop, "sent {first} of {partition} while the disk says clean");
        let map = OffsetMap::from_pieces(entry.deltas.clone());
        if !self.foreign && map.upstream(end) != Some(first) {
            panic!("sent {first} of {partition} at {end}, the disk says {:?}", map.upstream(end));
        }
    }

    fn submit(&mut self, conn: ConnId, bytes: &[u8]) {
        let wall = self.wall();
        let Some(link) = self.links.get(&conn) else { return };
        let (upstream, transport) = (link.upstream, link.transport);
        let core = if upstream { &mut self.up.core } else { &mut self.down.core };
        for effect in core.handle(transport, inbound(bytes), wall) {
            match effect {
                Effect::Reply(frame, How::Now | How::Trickle(..)) => {
                    self.later(self.latency, Due::Frame { conn, transport, frame });
                }
                Effect::Reply(frame, How::After(delay)) => {
                    let millis = u64::try_from(delay.as_millis()).unwrap();
                    self.later(millis, Due::Frame { conn, transport, frame });
                }
                Effect::Reply(frame, How::Hold) => self.held.push((conn, transport, frame)),
                Effect::Reply(_, How::Cut(_)) | Effect::Close => {
                    let cause = ConnError::Lost("closed by peer".into());
                    self.drop_link(conn, cause, Failure::Lost, None);
                }
                Effect::LateAppend(after, late) => {
                    let millis = u64::try_from(after.as_millis()).unwrap();
                    self.later(millis, Due::Late { upstream, late });
                    let cause = ConnError::Lost("closed by peer".into());
                    self.drop_link(conn, cause, Failure::Lost, None);
                }
            }
        }
    }

    fn later(&mut self, millis: u64, due: Due) {
        self.order += 1;
        self.due.insert((self.now + millis, self.order), due);
    }

    fn clock(&self) -> Now {
        Now { mono: Millis(self.now), wall: UnixMicros(self.wall()) }
    }

    /// Wall time, microseconds.
    pub fn wall(&self) -> u64 {
        EPOCH + self.now * 1000
    }
}

fn pipeline(seed: u64, buffer_limit: u64) -> Pipeline {
    Pipeline::new(PipelineConfig { shard: 0, buffer_limit, seed })
}

fn iggy() -> Credentials {
    Credentials::Password { username: "iggy".into(), password: "iggy".into() }
}

fn frame_of(outgoing: &tidegate::iggy_wire::session::Outgoing) -> Vec<u8> {
    outgoing.parts().flat_map(|part| part.iter().copied()).collect()
}

fn inbound(bytes: &[u8]) -> Inbound {
    let header: [u8; 256] = bytes[..256].try_into().unwrap();
    Inbound::decode(RequestHead::read(&header), bytes[256..].to_vec())
}

fn exchange(core: &mut Core, transport: u64, bytes: &[u8], now: u64) -> Option<Vec<u8>> {
    core.handle(transport, inbound(bytes), now).into_iter().find_map(|effect| match effect {
        Effect::Reply(frame, _) => Some(frame.to_vec()),
        _ => None,
    })
}

fn deliver(session: &mut Session, bytes: &[u8]) -> Delivery {
    let header: [u8; 256] = bytes[..256].try_into().unwrap();
    let incoming = session.on_header(&header).expect("header");
    session.on_reply(&incoming, Bytes::copy_from_slice(&bytes[256..])).expect("reply")
}
