//! The loop of one shard thread: events in, one step, commands out, sleep.
//!
//! A turn takes at most [`EVENTS`] events, lets the pipeline step once, starts what it asked for
//! and never waits. Connections and saves run as tasks of the same thread and put their ends
//! into the event queue. The loop counts its turns and its longest one; a shard whose count
//! stands still is stuck. What does not fit into the control thread's mailbox is kept for the
//! next turn, except snapshots, which are dropped: the next one is as good.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::future::{Future, poll_fn};
use std::io;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::clock::Clock;
use super::conn::{Conn, Dial};
use super::files::{self, FileFaults, StateDir};
use super::inside::{self, InsideConn, MakeBroker, Peer};
use super::pg::conn::{PgConn, PgDial};
use super::queue::EventQueue;
use super::resolve::{Resolver, ResolverThread};
use super::runtime::{IoDriver, Runtimes};
use super::spills::Spills;
use super::wake::listen;
use crate::batch::SourceKey;
use crate::config::ClusterPlan;
use crate::shard::event::{
    Command, ConnError, ConnId, Event, Failure, PgCommand, PgConnId, PgEvent, ToControl, Wake,
};
use crate::shard::mailbox::{FromShard, Inbox, Post, Signed, ToShard};
use crate::shard::pin;
use crate::shard::pipeline::Pipeline;
use crate::shard::snapshot::{CaptureSnapshot, FeedSnapshot, ShardSnapshot};
use crate::time::{Millis, Now};

/// Events of one turn at most.
const EVENTS: usize = 1024;
/// Turns without a sleep at most: timers only move while the thread sleeps.
const BUSY_TURNS: u32 = 64;
/// Time between two snapshots.
const SNAPSHOT_INTERVAL: Duration = Duration::from_millis(500);
/// When a letter that did not fit is tried again.
const RETRY_POST: Duration = Duration::from_millis(10);
/// How long a stopping shard waits for its connections and saves.
const STOP_GRACE: Duration = Duration::from_secs(2);

/// What decides on a shard: the pipeline, or a test's stand-in.
pub trait Decide {
    /// See [`Pipeline::step`].
    fn step(&mut self, now: Now, events: &mut Vec<Event>, out: &mut Vec<Command>) -> Wake;
    /// Every feed as status shows it.
    fn snapshot(&self, now: Now) -> Vec<FeedSnapshot>;
    /// Bytes reserved or buffered, and the bound.
    fn buffered(&self) -> (u64, u64);
    /// State saves that succeeded and failed.
    fn saves(&self) -> (u64, u64);
    /// Every capture as status shows it.
    fn captures(&self, now: Now) -> Vec<CaptureSnapshot> {
        let _ = now;
        Vec::new()
    }
}

impl Decide for Pipeline {
    fn step(&mut self, now: Now, events: &mut Vec<Event>, out: &mut Vec<Command>) -> Wake {
        Pipeline::step(self, now, events, out)
    }
    fn snapshot(&self, now: Now) -> Vec<FeedSnapshot> {
        Pipeline::snapshot(self, now)
    }
    fn buffered(&self) -> (u64, u64) {
        Pipeline::buffered(self)
    }
    fn saves(&self) -> (u64, u64) {
        Pipeline::saves(self)
    }
    fn captures(&self, now: Now) -> Vec<CaptureSnapshot> {
        Pipeline::captures(self, now)
    }
}

/// What a shard thread is started with.
pub struct ShardStart {
    /// Its number.
    pub shard: u16,
    /// Where to run; `None` leaves it to the kernel.
    pub cpu: Option<u16>,
    /// Makes its runtime.
    pub runtimes: Runtimes,
    /// `[clusters]`.
    pub clusters: BTreeMap<Arc<str>, Arc<ClusterPlan>>,
    /// Where state files go.
    pub state_dir: Arc<StateDir>,
    /// Injected file errors, none in production.
    pub faults: FileFaults,
    /// Host names.
    pub resolver: ResolverThread,
    /// A broker in this thread in the place of every cluster; `None`: clusters are dialled.
    pub inside: Option<MakeBroker>,
    /// Letters from the control thread, and the bell that announces them.
    pub inbox: (Inbox<ToShard>, UnixStream),
    /// Letters to the control thread.
    pub post: Post<Signed>,
}

/// Starts the thread. Its last letter is [`FromShard::Ended`], also after a panic.
pub fn spawn<D: Decide>(
    start: ShardStart,
    make: impl FnOnce() -> D + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let name = format!("shard-{}", start.shard);
    thread::Builder::new().name(name).spawn(move || {
        let (shard, post) = (start.shard, start.post.clone());
        let outcome = match catch_unwind(AssertUnwindSafe(|| run(start, make))) {
            Ok(result) => result.map_err(|error| error.to_string()),
            Err(panic) => Err(words(&*panic)),
        };
        let mut letter = (shard, FromShard::Ended(outcome));
        // The control thread reads until every shard has ended, so there will be room.
        for _ in 0..100 {
            match post.send(letter) {
                Ok(()) => return,
                Err(back) => letter = back,
            }
            thread::sleep(RETRY_POST);
        }
    })
}

fn words(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    format!("panicked: {}", text.unwrap_or_else(|| "no message".into()))
}

fn run<D: Decide>(start: ShardStart, make: impl FnOnce() -> D) -> io::Result<()> {
    let cpu = start.cpu.filter(|cpu| match pin::pin(*cpu) {
        Ok(()) => true,
        Err(error) => {
            tracing::warn!(shard = start.shard, cpu, %error, "not pinned");
            false
        }
    });
    let (mut runtime, driver) = start.runtimes.build()?;
    runtime.block_on(async move {
        // Made here, so that its memory is touched first by the CPU that uses it.
        Shard::new(start, cpu, driver, make())?.run().await;
        Ok(())
    })
}

struct Shard<D> {
    number: u16,
    cpu: Option<u16>,
    driver: IoDriver,
    decide: D,
    clock: Clock,
    clusters: BTreeMap<Arc<str>, Arc<ClusterPlan>>,
    state_dir: Arc<StateDir>,
    faults: FileFaults,
    resolver: Rc<Resolver>,
    events: Rc<EventQueue>,
    /// What stands for clusters instead of servers, and what was made of it.
    inside: Option<MakeBroker>,
    brokers: HashMap<Arc<str>, inside::Shared>,
    conns: HashMap<ConnId, Peer>,
    pg_conns: HashMap<PgConnId, PgConn>,
    saving: Rc<Cell<u32>>,
    spills: Spills,
    stopped: Rc<Cell<bool>>,
    post: Post<Signed>,
    outbox: VecDeque<ToControl>,
    batch: Vec<Event>,
    commands: Vec<Command>,
    turns: u64,
    busy_turns: u32,
    longest: Duration,
    snapshot_at: Millis,
}

impl<D: Decide> Shard<D> {
    fn new(start: ShardStart, cpu: Option<u16>, driver: IoDriver, decide: D) -> io::Result<Self> {
        let events = Rc::new(EventQueue::default());
        let stopped = Rc::new(Cell::new(false));
        let (inbox, heard) = start.inbox;
        monoio::spawn(listen(heard, inbox, receiver(events.clone(), stopped.clone())));
        let spills = Spills::start(start.state_dir.path().to_owned(), events.clone());
        Ok(Shard {
            number: start.shard,
            cpu,
            driver,
            decide,
            clock: Clock::start(),
            clusters: start.clusters,
            state_dir: start.state_dir,
            faults: start.faults,
            resolver: Resolver::new(start.resolver)?,
            events,
            inside: start.inside,
            brokers: HashMap::new(),
            conns: HashMap::new(),
            pg_conns: HashMap::new(),
            saving: Rc::default(),
            spills,
            stopped,
            post: start.post,
            outbox: VecDeque::new(),
            batch: Vec::new(),
            commands: Vec::new(),
            turns: 0,
            busy_turns: 0,
            longest: Duration::ZERO,
            snapshot_at: Millis(0),
        })
    }

    async fn run(mut self) {
        while !self.stopped.get() {
            let began = Instant::now();
            let wake = self.turn();
            self.turns += 1;
            self.longest = self.longest.max(began.elapsed());
            self.rest(wake).await;
        }
        self.end().await;
    }

    /// Everything that is due, without waiting.
    fn turn(&mut self) -> Wake {
        let now = self.clock.now();
        self.events.take_into(&mut self.batch, EVENTS);
        self.forget_ended();
        let wake = self.decide.step(now, &mut self.batch, &mut self.commands);
        for command in std::mem::take(&mut self.commands) {
            self.execute(command);
        }
        self.post_letters();
        if now.mono >= self.snapshot_at {
            self.publish(now);
        }
        wake
    }

    /// Connections whose end is among the events are no more.
    fn forget_ended(&mut self) {
        for event in &self.batch {
            match event {
                Event::ConnDown { conn, .. } => drop(self.conns.remove(conn)),
                Event::Pg { conn, event: PgEvent::Down(_) } => drop(self.pg_conns.remove(conn)),
                _ => {}
            }
        }
    }

    fn execute(&mut self, command: Command) {
        match command {
            Command::Connect { conn, cluster, node } => self.connect(conn, &cluster, node),
            Command::Close { conn } => {
                if let Some(conn) = self.conns.get(&conn) {
                    conn.close();
                }
            }
            Command::Request { conn, ticket, request, reply_limit, timeout } => {
                match self.conns.get(&conn) {
                    Some(conn) => conn.request(ticket, &request, reply_limit, timeout),
                    // Its end is in the queue and the pipeline has not seen it yet.
                    None => self.events.push(Event::Replied { ticket, result: Err(Failure::Lost) }),
                }
            }
            Command::Persist { source, generation, image } => {
                self.save(source, generation, image);
            }
            Command::Pg { conn, command: PgCommand::Connect { plan, replication } } => {
                let (events, resolver) = (self.events.clone(), self.resolver.clone());
                let dial = PgDial { conn, plan, replication, events, resolver };
                let previous = self.pg_conns.insert(conn, PgConn::open(dial));
                assert!(previous.is_none(), "slot {conn:?} was dialled while it was up");
            }
            Command::Pg { conn, command } => {
                // Else its end is in the queue and the pipeline has not seen it yet.
                if let Some(conn) = self.pg_conns.get(&conn) {
                    conn.command(command);
                }
            }
            Command::Spill { feed, op } => self.spills.push(feed, op),
            Command::Control(letter) => self.outbox.push_back(letter),
        }
    }

    fn connect(&mut self, conn: ConnId, cluster: &Arc<str>, node: Option<Arc<str>>) {
        let Some(plan) = self.clusters.get(cluster) else {
            let (address, why) = (cluster.to_string(), "no such cluster in the plan".to_owned());
            self.events.push(Event::ConnDown { conn, cause: ConnError::Dial { address, why } });
            return;
        };
        let dial = Dial {
            conn,
            cluster: plan.clone(),
            node,
            events: self.events.clone(),
            resolver: self.resolver.clone(),
        };
        let peer = match &self.inside {
            None => Peer::Socket(Conn::open(dial)),
            Some(make) => {
                let broker = self.brokers.entry(cluster.clone());
                let broker = broker.or_insert_with(|| Rc::new(RefCell::new(make(&dial.cluster))));
                Peer::Inside(InsideConn::open(&dial, broker.clone()))
            }
        };
        let previous = self.conns.insert(conn, peer);
        assert!(previous.is_none(), "slot {conn:?} was dialled while it was up");
    }

    fn save(&mut self, source: SourceKey, generation: u64, image: Vec<u8>) {
        let save = self.state_dir.begin(&source, self.number, image);
        let (dir, faults) = (self.state_dir.clone(), self.faults.clone());
        let (events, saving) = (self.events.clone(), self.saving.clone());
        saving.set(saving.get() + 1);
        monoio::spawn(async move {
            let result = files::save(&dir, save, &faults).await;
            saving.set(saving.get() - 1);
            events.push(Event::Persisted { source, generation, result });
        });
    }

    fn post_letters(&mut self) {
        while let Some(letter) = self.outbox.pop_front() {
            if let Err((_, back)) = self.post.send((self.number, FromShard::Control(letter))) {
                if let FromShard::Control(letter) = back {
                    self.outbox.push_front(letter);
                }
                return;
            }
        }
    }

    fn publish(&mut self, now: Now) {
        self.snapshot_at = now.mono + SNAPSHOT_INTERVAL;
        let (buffered, buffer_limit) = self.decide.buffered();
        let (saves, save_failures) = self.decide.saves();
        let snapshot = ShardSnapshot {
            shard: self.number,
            taken_at: now.wall.0,
            loop_turns: self.turns,
            loop_max_us: u64::try_from(self.longest.as_micros()).unwrap_or(u64::MAX),
            io_driver: self.driver.as_str(),
            cpu: self.cpu,
            buffered,
            buffer_limit,
            saves,
            save_failures,
            feeds: self.decide.snapshot(now),
            captures: self.decide.captures(now),
        };
        self.longest = Duration::ZERO;
        let _ = self.post.send((self.number, FromShard::Snapshot(Box::new(snapshot))));
    }

    /// Sleeps until there is an event or something is due; if that is now, only lets the other
    /// tasks run, and every so often the timers.
    async fn rest(&mut self, wake: Wake) {
        let mut nap = self.clock.until(wake.unwrap_or(Millis(u64::MAX)).min(self.snapshot_at));
        if !self.outbox.is_empty() {
            nap = nap.min(RETRY_POST);
        }
        if !self.events.is_empty() || nap.is_zero() {
            self.busy_turns += 1;
            if self.busy_turns < BUSY_TURNS {
                return yield_once().await;
            }
            self.busy_turns = 0;
            return monoio::time::sleep(Duration::from_millis(1)).await;
        }
        self.busy_turns = 0;
        let (events, stopped) = (&self.events, &self.stopped);
        let mut sleep = pin!(monoio::time::sleep(nap));
        poll_fn(|cx| {
            if !events.is_empty() || stopped.get() {
                return Poll::Ready(());
            }
            events.register(cx.waker());
            sleep.as_mut().poll(cx)
        })
        .await;
    }

    /// Shows the last state, closes every connection and waits, not for ever, until they and the
    /// saves are done.
    async fn end(mut self) {
        self.publish(self.clock.now());
        self.conns.values().for_each(Peer::close);
        self.pg_conns.values().for_each(PgConn::close);
        let deadline = Instant::now() + STOP_GRACE;
        let is_open = |shard: &Self| !shard.conns.is_empty() || !shard.pg_conns.is_empty();
        while Instant::now() < deadline && (is_open(&self) || self.saving.get() > 0) {
            self.events.take_into(&mut self.batch, EVENTS);
            self.forget_ended();
            self.batch.clear();
            monoio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

fn receiver(events: Rc<EventQueue>, stopped: Rc<Cell<bool>>) -> impl FnMut(ToShard) -> bool {
    move |letter| match letter {
        ToShard::Control(message) => {
            events.push(Event::Control(message));
            true
        }
        ToShard::Stop => {
            stopped.set(true);
            events.wake();
            false
        }
    }
}

async fn yield_once() {
    let mut yielded = false;
    poll_fn(|cx| {
        if yielded {
            return Poll::Ready(());
        }
        yielded = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
