//! A world on virtual time: the pure pipeline, the wire session and two broker cores, without a
//! socket, a file or a clock. The harness performs what the driver would.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tidegate::batch::{FeedId, OffsetMap};
use tidegate::config::MirrorPlan;
use tidegate::iggy_wire::session::{Credentials, Delivery, Session};
use tidegate::iggy_wire::{PollFrom, Reply, Request, SendTo, Verify, build, record};
use tidegate::loopback::core::{Core, Delivery as How, Effect, Inbound, Settings};
use tidegate::loopback::frame::{Frame, RequestHead};
use tidegate::shard::event::{
    Command, ConnError, ConnId, Event, Failure, FeedSpec, FromControl, SaveError, Ticket, ToControl,
};
use tidegate::shard::pipeline::{Pipeline, PipelineConfig};
use tidegate::shard::snapshot::FeedSnapshot;
use tidegate::statefile::{FeedState, format};
use tidegate::time::{Millis, Now, UnixMicros};

/// Wall time at virtual 0.
const EPOCH: u64 = 1_700_000_000_000_000;

/// A broker and whether it can be reached.
pub struct Broker {
    pub core: Core,
    pub up: bool,
}

struct Link {
    session: Session,
    upstream: bool,
    transport: u64,
    tickets: HashMap<u64, (Ticket, u32, bool)>,
}

enum Due {
    Frame { conn: ConnId, transport: u64, frame: Frame },
    Expired { conn: ConnId, transport: u64, number: u64 },
    Late { upstream: bool, late: tidegate::loopback::LateSend },
    Save { source: Arc<str>, generation: u64, image: Vec<u8>, error: Option<SaveError> },
    Event(Event),
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
    /// Somebody else writes to the destination: its end says nothing about ours.
    pub foreign: bool,
    pub plan: Arc<MirrorPlan>,
    pub to_control: Vec<ToControl>,
    /// Answers a wish for the large slot at once, as long as nobody holds it.
    pub grant_large_slot: bool,
    large_wanted: Vec<FeedId>,
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
}

impl World {
    pub fn new(plan: MirrorPlan) -> World {
        let broker = || Broker { core: Core::new(Settings::default()), up: true };
        World {
            now: 0,
            up: broker(),
            down: broker(),
            disk: BTreeMap::new(),
            save_errors: Vec::new(),
            save_takes: 2,
            foreign: false,
            plan: Arc::new(plan),
            to_control: Vec::new(),
            grant_large_slot: false,
            large_wanted: Vec::new(),
            large_held: None,
            pipeline: pipeline(1),
            feeds: Vec::new(),
            links: HashMap::new(),
            due: BTreeMap::new(),
            order: 0,
            events: Vec::new(),
            wake: 0,
            seed: 1,
            polled: 0,
        }
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

    /// Polls the upstream has answered on the first partitions of the topic.
    pub fn polls(&self, partitions: u32) -> u64 {
        let _ = partitions;
        self.polled
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
        let transport = core.connect("bystander".into());
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
                late,
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
        self.pipeline = pipeline(self.seed);
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
            let next = self.wake.min(next_due).max(self.now + 1);
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
        if !self.events.is_empty() {
            self.wake = self.now;
        }
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
                let Some((ticket, _, is_send)) = link.tickets.remove(&number) else { return };
                link.session.forget(number);
                let result = Err(Failure::TimedOut);
                self.events.push(Event::Replied { ticket, result });
                if is_send {
                    let cause = ConnError::Silent(Duration::from_secs(10));
                    self.drop_link(conn, cause, Failure::Lost, None);
                }
            }
        }
    }

    fn arrive(&mut self, conn: ConnId, transport: u64, frame: &Frame) {
        let Some(link) = self.links.get_mut(&conn) else { return };
        if link.transport != transport {
            return;
        }
        let bytes = frame.to_vec();
        let header: [u8; 256] = bytes[..256].try_into().unwrap();
        let incoming = link.session.on_header(&header).expect("header");
        if let Some((ticket, limit, _)) = incoming.number.and_then(|n| link.tickets.get(&n)) {
            let (ticket, limit) = (*ticket, *limit);
            if bytes.len() > limit as usize {
                let size = u32::try_from(bytes.len()).unwrap();
                let cause = ConnError::TooLarge { size, limit };
                return self.drop_link(conn, cause, Failure::TooLarge { size }, Some(ticket));
            }
        }
        let body = Bytes::copy_from_slice(&bytes[256..]);
        match link.session.on_reply(&incoming, body).expect("reply") {
            Delivery::LoggedIn { server_version, .. } => {
                self.events.push(Event::ConnUp { conn, server_version });
            }
            Delivery::Reply { number, result } => {
                let Some((ticket, ..)) = link.tickets.remove(&number) else { return };
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
        let mut tickets: Vec<Ticket> = link.tickets.values().map(|(ticket, ..)| *ticket).collect();
        tickets.sort_unstable();
        for ticket in tickets {
            let failure = if of == Some(ticket) { first.clone() } else { Failure::Lost };
            self.events.push(Event::Replied { ticket, result: Err(failure) });
        }
        self.events.push(Event::ConnDown { conn, cause });
    }

    fn perform(&mut self, command: Command) {
        match command {
            Command::Connect { conn, cluster } => self.connect(conn, &cluster),
            Command::Close { conn } => {
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
            Command::Control(message) => self.controlled(message),
        }
    }

    fn controlled(&mut self, message: ToControl) {
        match message {
            ToControl::LargeSlotWanted { feed } => self.large_wanted.push(feed),
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

    fn connect(&mut self, conn: ConnId, cluster: &str) {
        let upstream = *cluster == *self.plan.from.key;
        let broker = if upstream { &mut self.up } else { &mut self.down };
        if !broker.up {
            let cause = ConnError::Dial { address: "x:1".into(), why: "refused".into() };
            return self.later(1, Due::Event(Event::ConnDown { conn, cause }));
        }
        let transport = broker.core.connect(format!("{conn:?}"));
        self.seed += 1;
        let mut session = Session::new(u128::from(self.seed) << 80, self.seed * 1_000_003, iggy());
        let login = session.login().expect("login");
        self.links.insert(conn, Link { session, upstream, transport, tickets: HashMap::new() });
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
        let Some(link) = self.links.get_mut(&conn) else {
            self.events.push(Event::Replied { ticket, result: Err(Failure::Lost) });
            return;
        };
        let (number, outgoing) = link.session.request(request).expect("request");
        let is_send = matches!(request, Request::Send { .. });
        if let Request::Send { to: SendTo::Partition(partition), record, .. } = request {
            let (partition, first) = (*partition, record.first_offset());
            self.assert_resumable(partition, first);
        }
        let Some(link) = self.links.get_mut(&conn) else { return };
        self.polled += u64::from(matches!(request, Request::Poll { .. }));
        link.tickets.insert(number, (ticket, limit, is_send));
        let transport = link.transport;
        let millis = u64::try_from(t.as_millis()).unwrap();
        self.later(millis, Due::Expired { conn, transport, number });
        self.submit(conn, &frame_of(&outgoing));
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
                    self.later(1, Due::Frame { conn, transport, frame });
                }
                Effect::Reply(frame, How::After(delay)) => {
                    let millis = u64::try_from(delay.as_millis()).unwrap();
                    self.later(millis, Due::Frame { conn, transport, frame });
                }
                Effect::Reply(_, How::Hold) => {}
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

fn pipeline(seed: u64) -> Pipeline {
    Pipeline::new(PipelineConfig { shard: 0, buffer_limit: 64 << 20, seed })
}

fn iggy() -> Credentials {
    Credentials::Password { username: "iggy".into(), password: "iggy".into() }
}

fn frame_of(outgoing: &tidegate::iggy_wire::session::Outgoing) -> Vec<u8> {
    let mut bytes = outgoing.head.to_vec();
    bytes.extend_from_slice(outgoing.tail.as_deref().unwrap_or_default());
    bytes
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
