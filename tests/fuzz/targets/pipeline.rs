//! The decisions of a mirror under any sequence of events that a driver may report: replies that
//! are true, late, damaged or lies, connections that come and go, saves that fail, orders, time.
//! Nothing panics, and what the pipeline asks for keeps the rules of its side.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use tidegate::batch::{FeedId, SourceKey};
use tidegate::config::{MirrorPlan, Partitions, SecretError, Secrets, parse};
use tidegate::iggy_wire::build::{Message, build_record};
use tidegate::iggy_wire::command::{Node, PartitionInfo, Polled, TopicInfo};
use tidegate::iggy_wire::{PollFrom, Reply, Request, SendTo, Verify, record as record_of};
use tidegate::ingest::postgres_cdc::Spill;
use tidegate::shard::event::{
    Command, ConnError, ConnId, Event, Failure, FeedSpec, FromControl, PgCommand, PgConnId, Place,
    SaveError, Ticket, ToControl,
};
use tidegate::shard::pipeline::budget::LARGE_SLOT;
use tidegate::shard::pipeline::{Pipeline, PipelineConfig};
use tidegate::statefile::{SourceState, format};
use tidegate::time::{Millis, Now, UnixMicros};

use super::Choices;

const LIMIT: u64 = 32 << 20;
const PARTITIONS: u32 = 2;
const CREATED: u64 = 1_600_000_000_000_000;
/// Codes that mean something to a mirror, and one that means nothing.
const CODES: [u32; 9] = [3, 5, 40, 57, 58, 1009, 2010, 4100, 77];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Link {
    Down,
    Dialling,
    Up,
}

struct Asked {
    ticket: Ticket,
    conn: ConnId,
    request: Request,
    limit: u32,
}

/// A partition of one-message records; what is below `first` is gone.
#[derive(Default)]
struct Log {
    first: usize,
    records: Vec<Bytes>,
}

pub struct Driver {
    pub pipeline: Pipeline,
    key: SourceKey,
    /// One send at a time is promised for each partition.
    preserve: bool,
    pub now: u64,
    links: BTreeMap<ConnId, (Link, bool)>,
    asked: Vec<Asked>,
    tickets: BTreeSet<Ticket>,
    saving: Option<SourceState>,
    /// What is on disk.
    pub disk: Option<SourceState>,
    generation: u64,
    wanted: Vec<FeedId>,
    holder: Option<FeedId>,
    ensured: Vec<FeedId>,
    /// Upstream, destination.
    logs: [[Log; PARTITIONS as usize]; 2],
    pub events: Vec<Event>,
    /// What is asked of databases and spill files.
    pub postgres: Vec<(PgConnId, PgCommand)>,
    pub spills: Vec<(FeedId, Spill)>,
}

/// `data` as choices of what happens next.
pub fn events(data: &[u8]) {
    run(data);
}

/// How many messages upstream and the destination hold at the end.
pub fn run(data: &[u8]) -> [usize; 2] {
    let mut choices = Choices::new(data);
    let plan = plan(choices.byte());
    let feed = |partition| {
        Event::Control(FromControl::AddFeed(Box::new(FeedSpec {
            id: FeedId(partition),
            plan: plan.clone(),
            topic: 0,
            partition,
            saved: None,
            first_count: PARTITIONS,
            generation: 0,
            upstream_created_at: CREATED,
            downstream_created_at: CREATED,
        })))
    };
    let preserve = plan.partitions == Partitions::Preserve;
    let mut driver = Driver::new(plan.key.clone(), preserve);
    driver.events.extend((0..PARTITIONS).map(feed));
    (0..PARTITIONS as usize).for_each(|partition| driver.write(partition, 3, 0));
    driver.turn();
    while !choices.is_empty() {
        driver.happen(&mut choices);
        driver.turn();
        assert!(driver.postgres.is_empty() && driver.spills.is_empty(), "of a mirror");
    }
    driver.events.push(Event::Control(FromControl::Drain));
    driver.turn();
    driver.logs.map(|logs| logs.iter().map(|log| log.records.len()).sum())
}

pub struct Nothing;

impl Secrets for Nothing {
    fn env(&self, _: &str) -> Result<String, SecretError> {
        Err(SecretError::Unset)
    }

    fn file(&self, _: &str) -> Result<String, SecretError> {
        Err(SecretError::Absent)
    }
}

/// Policies that stop, or that go on.
fn plan(choice: u8) -> Arc<MirrorPlan> {
    let policies = [
        ["fail", "fail", "fail", "fail", "preserve"],
        ["earliest_available", "restart", "refill", "append", "preserve"],
        ["initial_offset", "restart", "fail", "append", "balanced"],
    ][usize::from(choice) % 3];
    let [expired, changed, lost, nonempty, partitions] = policies;
    let text = format!(
        "[daemon]\nstate_dir = \"s\"\n[clusters.a]\naddresses = [\"a:1\", \"b:1\"]\ntoken = \"t\"\n\
         [clusters.b]\naddresses = [\"c:1\", \"d:1\"]\ntoken = \"t\"\n[sources.test]\n\
         kind = \"iggy\"\nfrom = \"a\"\nto = \"b\"\npartitions = \"{partitions}\"\n\
         include = [{{ stream = \"s\", topic = \"t\" }}]\non_offset_expired = \"{expired}\"\n\
         on_history_changed = \"{changed}\"\non_destination_lost = \"{lost}\"\n\
         on_nonempty_destination = \"{nonempty}\"\n"
    );
    parse(&text, "x", &Nothing).unwrap_or_else(|errors| panic!("{errors}")).sources.remove(0)
}

fn record(offset: u64, origin_timestamp: u64) -> Bytes {
    let payload = format!("message {offset} {origin_timestamp}");
    let id = u128::from(offset % 5);
    let message = Message { id, origin_timestamp, payload: payload.as_bytes(), user_headers: &[] };
    build_record(&[message]).expect("one message").stored(0, offset, CREATED)
}

impl Driver {
    pub fn new(key: SourceKey, preserve: bool) -> Driver {
        let config = PipelineConfig { shard: 0, buffer_limit: LIMIT, seed: 1 };
        Driver {
            pipeline: Pipeline::new(config),
            key,
            preserve,
            now: 1_000,
            links: BTreeMap::new(),
            asked: Vec::new(),
            tickets: BTreeSet::new(),
            saving: None,
            disk: None,
            generation: 0,
            wanted: Vec::new(),
            holder: None,
            ensured: Vec::new(),
            logs: Default::default(),
            events: Vec::new(),
            postgres: Vec::new(),
            spills: Vec::new(),
        }
    }

    fn write(&mut self, partition: usize, count: usize, flavour: u64) {
        let log = &mut self.logs[0][partition];
        for _ in 0..count {
            let offset = log.records.len() as u64;
            log.records.push(record(offset, CREATED + flavour + offset));
        }
    }

    pub fn time(&self) -> Now {
        Now { mono: Millis(self.now), wall: UnixMicros(CREATED + self.now * 1_000) }
    }

    pub fn turn(&mut self) {
        let now = self.time();
        let mut commands = Vec::new();
        self.pipeline.step(now, &mut self.events, &mut commands);
        assert!(self.events.is_empty());
        commands.into_iter().for_each(|command| self.perform(command));
        let (held, limit) = self.pipeline.buffered();
        assert!(held <= limit + LARGE_SLOT, "{held} bytes");
        for feed in self.pipeline.snapshot(now) {
            assert!(feed.durable_position <= feed.position, "{feed:?}");
        }
    }

    fn perform(&mut self, command: Command) {
        match command {
            Command::Connect { conn, cluster, .. } => {
                let link = self.links.entry(conn).or_insert((Link::Down, false));
                assert_eq!(link.0, Link::Down, "{conn:?} is dialled twice");
                *link = (Link::Dialling, &*cluster == "a");
            }
            Command::Close { conn } => self.cut(conn, ConnError::Closed),
            Command::Request { conn, ticket, request, reply_limit, .. } => {
                let link = self.links.get(&conn).map(|link| link.0);
                assert_eq!(link, Some(Link::Up), "a request for {conn:?}");
                assert!(self.tickets.insert(ticket), "{ticket:?} is used twice");
                assert!(!self.preserve || !self.is_being_sent(&request), "two sends at once");
                self.asked.push(Asked { ticket, conn, request, limit: reply_limit });
            }
            Command::Persist { generation, image, .. } => {
                assert!(self.saving.is_none(), "two saves at once");
                assert!(generation > self.generation, "a generation that does not grow");
                let state = format::decode(&image, "test.0.state").expect("a file that is read");
                assert_eq!(state.generation, generation);
                (self.saving, self.generation) = (Some(state), generation);
            }
            Command::Pg { conn, command } => self.postgres.push((conn, command)),
            Command::Spill { feed, op } => self.spills.push((feed, op)),
            Command::Control(ToControl::LargeSlotWanted { feed }) => self.wanted.push(feed),
            Command::Control(ToControl::LargeSlotReleased { feed }) => {
                self.wanted.retain(|waiting| *waiting != feed);
                self.holder.take_if(|holder| *holder == feed);
            }
            Command::Control(ToControl::EnsureDestination { feed }) => self.ensured.push(feed),
            Command::Control(_) => {}
        }
    }

    /// Another send to the same partition has no answer yet.
    fn is_being_sent(&self, request: &Request) -> bool {
        let place = |request: &Request| match request {
            Request::Send { stream, topic, to: SendTo::Partition(partition), .. } => {
                Some((stream.clone(), topic.clone(), *partition))
            }
            _ => None,
        };
        let wanted = place(request);
        wanted.is_some() && self.asked.iter().any(|asked| place(&asked.request) == wanted)
    }

    /// Every outstanding request fails, then the connection is down.
    fn cut(&mut self, conn: ConnId, cause: ConnError) {
        let Some(link) = self.links.get_mut(&conn).filter(|link| link.0 != Link::Down) else {
            return;
        };
        link.0 = Link::Down;
        let (lost, left) = self.asked.drain(..).partition(|asked| asked.conn == conn);
        self.asked = left;
        let lost: Vec<Asked> = lost;
        let failed =
            |asked: Asked| Event::Replied { ticket: asked.ticket, result: Err(Failure::Lost) };
        self.events.extend(lost.into_iter().map(failed));
        self.events.push(Event::ConnDown { conn, cause });
    }

    pub fn happen(&mut self, choices: &mut Choices<'_>) {
        match choices.below(32) {
            0..=2 => self.now += [1, 50, 1_000, 10_000, 70_000][choices.below(5)],
            3 => {
                let (count, flavour) = (choices.below(9), choices.number() % 3);
                self.write(choices.below(PARTITIONS as usize), count, flavour);
            }
            4 => {
                let log = &mut self.logs[choices.below(2)][choices.below(PARTITIONS as usize)];
                match choices.below(3) {
                    0 => log.first = (log.first + choices.below(5)).min(log.records.len()),
                    1 => log.records.truncate(choices.below(40).max(log.first)),
                    _ => *log = Log::default(),
                }
            }
            5 => self.order(choices),
            6..=8 => self.dialled(choices),
            9..=11 => self.saved(choices),
            12 => {
                let at = choices.below(self.links.len().max(1));
                let Some(conn) = self.links.keys().nth(at).copied() else { return };
                let evicted = choices.flag();
                let lost = ConnError::Lost("reset".into());
                self.cut(conn, if evicted { ConnError::Evicted(choices.byte()) } else { lost });
            }
            // What a start needs: everything that waits is answered as it should be.
            13 => {
                for _ in 0..=choices.below(40) {
                    self.go_well();
                    self.turn();
                }
            }
            _ => self.answer(choices),
        }
    }

    pub fn go_well(&mut self) {
        self.now += 60;
        let mut good = Choices::new(&[]);
        self.dialled(&mut good);
        self.saved(&mut good);
        for _ in 0..self.asked.len() {
            self.answer(&mut good);
        }
    }

    fn dialled(&mut self, choices: &mut Choices<'_>) {
        let waits = |(conn, link): (&ConnId, &(Link, bool))| {
            (link.0 == Link::Dialling).then_some((*conn, link.1))
        };
        let Some((conn, upstream)) = self.links.iter().find_map(waits) else { return };
        let address: Arc<str> = if upstream { "a:1" } else { "c:1" }.into();
        let failed = match choices.byte() {
            0..=199 => None,
            200..=219 => Some(ConnError::Login { address: "c:1".into(), why: "no".into() }),
            220..=239 => Some(ConnError::Silent(std::time::Duration::from_secs(5))),
            _ => Some(ConnError::UntestedServer { address: "c:1".into(), seen: "1".into() }),
        };
        self.links.insert(conn, (failed.as_ref().map_or(Link::Up, |_| Link::Down), upstream));
        let place = Place { address: address.clone(), peer: address };
        self.events.push(match failed {
            Some(cause) => Event::ConnDown { conn, cause },
            None => Event::ConnUp { conn, server_version: "0.9.0".into(), place },
        });
    }

    fn saved(&mut self, choices: &mut Choices<'_>) {
        let Some(state) = self.saving.take() else { return };
        let generation = state.generation;
        let path = || "test.0.state".into();
        let result = match choices.byte() {
            0..=199 => Ok(()),
            200..=229 => Err(SaveError::DiskFull { step: "write", path: path() }),
            _ => Err(SaveError::Io { step: "sync", path: path(), why: "EIO".into() }),
        };
        if result.is_ok() {
            self.disk = Some(state);
        }
        let source = self.key.clone();
        self.events.push(Event::Persisted { source, generation, result });
    }

    fn order(&mut self, choices: &mut Choices<'_>) {
        let source = self.key.clone();
        let feed = FeedId(choices.below(PARTITIONS as usize + 1) as u32);
        let told = match choices.below(7) {
            0 => FromControl::Pause { source, paused: choices.flag() },
            1 => FromControl::Restart { source },
            2 => FromControl::ReleaseDestination { feed },
            3 => FromControl::LookAgain { feed, created_at: CREATED + choices.number() % 3 },
            4 if self.holder.is_none() && !self.wanted.is_empty() => {
                let feed = self.wanted.remove(0);
                self.holder = Some(feed);
                FromControl::LargeSlotGranted { feed }
            }
            5 if !self.ensured.is_empty() => {
                let feed = self.ensured.remove(0);
                let result = if choices.flag() { Err("no".into()) } else { Ok(CREATED) };
                FromControl::DestinationReady { feed, result }
            }
            6 if choices.byte() == 255 => FromControl::Drain,
            _ => return,
        };
        self.events.push(Event::Control(told));
    }

    /// The end of some request: most likely what a good server would say.
    fn answer(&mut self, choices: &mut Choices<'_>) {
        if self.asked.is_empty() {
            return;
        }
        let asked = self.asked.remove(choices.below(self.asked.len().min(256)));
        let upstream = self.links.get(&asked.conn).is_some_and(|link| link.1);
        let mood = choices.byte();
        let mut result = match mood {
            0..=199 => Ok(self.reply(&asked.request, upstream, 0, choices)),
            200..=229 => Ok(self.reply(&asked.request, upstream, 1 + choices.below(6), choices)),
            230..=244 => Err(Failure::Refused(CODES[choices.below(CODES.len())])),
            245..=249 => Err(Failure::TimedOut),
            250 => Err(Failure::Malformed("cut".into())),
            _ => Err(Failure::TooLarge { size: asked.limit.saturating_add(1) }),
        };
        if let Ok(Reply::Polled(polled)) = &result {
            let size = polled.records.len() as u64 + 16 + 256;
            if size > u64::from(asked.limit) {
                result = Err(Failure::TooLarge { size: size as u32 });
            }
        }
        let is_send = matches!(asked.request, Request::Send { .. });
        let ends = match &result {
            Err(Failure::TimedOut) => is_send,
            Err(Failure::Malformed(_) | Failure::TooLarge { .. }) => true,
            _ => false,
        };
        self.events.push(Event::Replied { ticket: asked.ticket, result });
        if ends {
            self.cut(asked.conn, ConnError::Protocol("as was said".into()));
        }
    }

    /// `lie` 0: the truth.
    fn reply(
        &mut self,
        request: &Request,
        upstream: bool,
        lie: usize,
        choices: &mut Choices<'_>,
    ) -> Reply {
        match request {
            Request::ClusterMetadata => {
                let addresses = if upstream { ["a", "b"] } else { ["c", "d"] };
                Reply::Cluster(addresses[..1 + lie.min(1)].iter().map(|ip| node(ip)).collect())
            }
            Request::Primary { .. } => Reply::Primary(node(["c", "d", "e"][lie % 3])),
            Request::Topic { topic, .. } => Reply::Topic((lie != 1).then(|| {
                let (count, created_at) = match lie {
                    2 => (choices.below(4) as u32, CREATED),
                    3 => (PARTITIONS, CREATED + 1 + choices.number() % 3),
                    4 => (PARTITIONS, CREATED - 1),
                    _ => (PARTITIONS, CREATED),
                };
                self.topic(topic, upstream, count, created_at)
            })),
            Request::Poll { partition, from, count, .. } => {
                Reply::Polled(self.poll(upstream, *partition, *from, *count, lie, choices))
            }
            Request::Send { to, record, .. } => {
                let partition = match to {
                    SendTo::Partition(partition) => *partition,
                    SendTo::Balanced => choices.below(PARTITIONS as usize) as u32,
                };
                Reply::Sent { base_offset: self.append(partition, record, lie, choices) }
            }
            _ => Reply::Done,
        }
    }

    fn topic(&self, name: &str, upstream: bool, count: u32, created_at: u64) -> TopicInfo {
        let partitions = (0..count.min(PARTITIONS)).map(|id| {
            let log = &self.logs[usize::from(!upstream)][id as usize];
            PartitionInfo {
                id,
                created_at,
                current_offset: (log.records.len() as u64).saturating_sub(1),
                messages_count: (log.records.len() - log.first) as u64,
            }
        });
        TopicInfo {
            name: name.to_owned(),
            created_at,
            partitions_count: count,
            message_expiry: u64::MAX,
            compression: 1,
            max_size: u64::MAX,
            size: 0,
            messages_count: 0,
            options: Vec::new(),
            partitions: partitions.collect(),
        }
    }

    fn poll(
        &self,
        upstream: bool,
        partition: u32,
        from: PollFrom,
        count: u32,
        lie: usize,
        choices: &mut Choices<'_>,
    ) -> Polled {
        let log = &self.logs[usize::from(!upstream)][partition as usize % PARTITIONS as usize];
        let end = log.records.len();
        let asked = match from {
            PollFrom::Offset(offset) => usize::try_from(offset).unwrap_or(usize::MAX),
            PollFrom::First => log.first,
            PollFrom::Last => end.saturating_sub(count as usize),
        };
        let begin = match lie {
            1 => choices.below(40),
            _ => asked.max(log.first),
        }
        .min(end);
        let most = if lie == 2 { 0 } else { (count as usize).min(100) };
        let found = &log.records[begin..end.min(begin + most)];
        let mut records = found.concat();
        if lie == 3 && !records.is_empty() {
            let at = choices.number() as usize % records.len();
            records[at] ^= 1 << choices.below(8);
        }
        let current_offset = (end as u64).saturating_sub(1);
        Polled {
            partition,
            current_offset: if lie == 4 { choices.number() } else { current_offset },
            count: if lie == 5 { choices.byte().into() } else { found.len() as u32 },
            records: records.into(),
        }
    }

    /// The offset that is confirmed; a lie may be about that or about the append.
    fn append(
        &mut self,
        partition: u32,
        relay: &tidegate::iggy_wire::Relay,
        lie: usize,
        choices: &mut Choices<'_>,
    ) -> Option<u64> {
        let log = &mut self.logs[1][partition as usize % PARTITIONS as usize];
        let base = log.records.len() as u64;
        if lie != 1 {
            let stored = relay.stored(partition, base, CREATED);
            let whole = record_of::scan(&stored, Verify::Full);
            let whole = whole.expect("a relay is a record").remove(0);
            for message in whole.messages() {
                let message = Message {
                    id: message.id,
                    origin_timestamp: message.origin_timestamp,
                    payload: message.payload,
                    user_headers: message.user_headers,
                };
                let offset = log.records.len() as u64;
                let record = build_record(&[message]).expect("one message");
                log.records.push(record.stored(partition, offset, CREATED));
            }
        }
        match lie {
            2 => None,
            3 => Some(choices.number()),
            _ => Some(base),
        }
    }
}

fn node(ip: &str) -> Node {
    Node { name: ip.into(), ip: ip.into(), tcp_port: 1, leader: ip != "d", healthy: true }
}
