//! The control thread: starts and stops the shards, and owns what they must not share.
//!
//! ```text
//! stop bell ─┐                        ┌─▶ shard letters: AddFeed, Drain, …
//! letters ───┼─▶ control thread ──────┤
//! answers ───┘   (epoll, never blocks)└─▶ publish: snapshots and findings
//! ```
//! One task per source runs its provisioner ([`super::provisioning`]). Order of an end: drain all
//! shards, at most `drain_timeout`; stop them, at most [`STOP_TIMEOUT`]; report. A shard that
//! fails takes the daemon down in the same order: a broken invariant is not to be outlived.

mod captures;
mod orders;
mod outcome;
mod publish;

pub use self::outcome::{Ended, RunOutcome};

use std::cell::{Cell, RefCell};
use std::io;
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::clock::{Clock, wall};
use super::files::{FileFaults, StateDir, set_aside};
use super::foreign::Foreign;
use super::inside::MakeBroker;
use super::notify::Notify;
use super::provisioning;
use super::resolve::{Resolver, ResolverThread};
use super::room::Room;
use super::runtime::{IoDriver, Runtimes};
use super::shard::{self, ShardStart};
use super::shard_desk::ShardDesk as Shard;
use super::signals::StopBell;
use super::wake::{Listener, listen};
use crate::batch::{FeedId, SourceKey};
use crate::config::budget::{self, BudgetShort};
use crate::config::{Plan, Shards};
use crate::shard::event::{FeedSpec, FromControl, ToControl};
use crate::shard::large_slot::LargeSlot;
use crate::shard::mailbox::{FromShard, Inbox, Post, Signed, ToShard, mailbox};
use crate::shard::order::Ask;
use crate::shard::pin::{PinError, allowed_cpus, choose_cpus};
use crate::shard::pipeline::{Pipeline, PipelineConfig};
use crate::shard::placement::{first_topics, fullest, place};
use crate::shard::provision::{NewFeed, condition};
use crate::shard::reason;
use crate::shard::saved::{SavedSource, SourceStart, known_feeds, source_start};
use crate::shard::snapshot::{FeedSnapshot, ShardSnapshot, SourceFinding};
use crate::statefile::inspect::FoundFile;
use crate::time::UnixMicros;

/// Letters on their way to one shard; more wait on the control thread.
const TO_SHARD: usize = 1024;
/// Letters on their way to the control thread.
const FROM_SHARDS: usize = 8192;
/// Time between two looks at what is due.
const TICK: Duration = Duration::from_millis(250);
/// The same while letters wait for room.
const RETRY_POST: Duration = Duration::from_millis(10);
/// Time between two publications while no condition changes.
const PUBLISH_INTERVAL: Duration = Duration::from_millis(500);
/// Least time between two: a start changes the conditions of every feed, one after the other.
const NEWS_GAP: Duration = Duration::from_millis(100);
/// How long shards have to end after they drained.
pub const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// Gets the latest snapshot of every shard that reported, and all findings that stand: twice a
/// second, and soon after a condition changed.
pub type Publish = Box<dyn FnMut(Vec<ShardSnapshot>, Vec<SourceFinding>)>;

/// What a run needs besides the plan.
pub struct RunOptions {
    /// One CPU per shard, see [`plan_shards`].
    pub cpus: Vec<u16>,
    /// Makes the shards' runtimes.
    pub runtimes: Runtimes,
    /// Injected file errors, none in production.
    pub faults: FileFaults,
    /// Any of these asks for an orderly stop.
    pub stop: Vec<StopBell>,
    /// Where status goes.
    pub publish: Publish,
    /// What operators ask, and the bell that announces it.
    pub orders: Option<(Inbox<Ask>, UnixStream)>,
    /// Captures go on behind changes that are gone, and record that.
    pub accept_gap: bool,
    /// Takes the place of every cluster; for benchmarks of captures.
    pub inside: Option<MakeBroker>,
}

/// Why the daemon does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// CPUs.
    #[error(transparent)]
    Pin(#[from] PinError),
    /// G6.
    #[error(transparent)]
    Buffers(#[from] BudgetShort),
    /// Threads, sockets.
    #[error("cannot start: {0}")]
    Io(#[from] io::Error),
}

/// One CPU per shard of this plan. The affinity mask and the buffer bound decide how many, the
/// partitions in the state files `found` whether the bound suffices.
pub fn plan_shards(plan: &Plan, found: &[FoundFile]) -> Result<Vec<u16>, StartError> {
    shards_on(choose_cpus(plan.daemon.shards, &allowed_cpus()?)?, plan, found)
}

fn shards_on(mut cpus: Vec<u16>, plan: &Plan, found: &[FoundFile]) -> Result<Vec<u16>, StartError> {
    let total = plan.daemon.max_buffered_bytes;
    let feeds = known_feeds(plan, found);
    let on_fullest = |shards| fullest(feeds.iter().copied(), shards);
    if plan.daemon.shards == Shards::Auto {
        let allowed = u16::try_from(cpus.len()).unwrap_or(u16::MAX);
        let batches = plan.sources.iter().map(|source| source.max_batch_bytes);
        let batches = batches.chain(plan.captures.iter().map(|capture| capture.max_batch_bytes));
        let batch = batches.max().unwrap_or(0);
        let shards = budget::auto_shards(total, allowed, u64::from(batch), on_fullest);
        cpus.truncate(usize::from(shards));
    }
    let shards = u16::try_from(cpus.len()).unwrap_or(u16::MAX);
    budget::check(total, shards, on_fullest(shards))?;
    Ok(cpus)
}

/// Runs the daemon on the calling thread until it is asked to stop or a shard fails. `found`: the
/// state files of a directory that this process has locked.
pub fn run(
    plan: &Plan,
    found: Vec<FoundFile>,
    options: RunOptions,
) -> Result<RunOutcome, StartError> {
    let (mut runtime, _) = Runtimes::new(IoDriver::Epoll).build()?;
    runtime.block_on(async move {
        let RunOptions { cpus, runtimes, faults, stop, publish, orders, accept_gap, inside } =
            options;
        let (post, inbox, heard) = mailbox::<Signed>(FROM_SHARDS)?;
        let resolver = ResolverThread::start()?;
        let state_dir = Arc::new(StateDir::new(plan.daemon.state_dir.clone()));
        let seed =
            Seed { plan, cpus, runtimes, faults, resolver, state_dir, post, accept_gap, inside };
        let control = Control::new(seed, publish)?;
        let receiver = control.clone();
        monoio::spawn(listen(heard, inbox, move |(shard, letter)| {
            receiver.letter(shard, letter);
            true
        }));
        for bell in stop {
            monoio::spawn(await_stop(control.clone(), bell));
        }
        control.start_sources(plan, &found);
        control.start_captures(plan, &found);
        if let Some((inbox, heard)) = orders {
            let receiver = control.clone();
            monoio::spawn(listen(heard, inbox, move |Ask { source, action, reply }| {
                receiver.order(&source, action, reply);
                true
            }));
        }
        Ok(control.watch().await)
    })
}

async fn await_stop(control: Rc<Control>, bell: StopBell) {
    if let Ok(mut listener) = Listener::new(bell)
        && listener.heard().await
    {
        tracing::info!("asked to stop");
        control.drain();
    }
}

/// What shards and control thread are made of.
struct Seed<'a> {
    plan: &'a Plan,
    cpus: Vec<u16>,
    runtimes: Runtimes,
    faults: FileFaults,
    resolver: ResolverThread,
    state_dir: Arc<StateDir>,
    post: Post<Signed>,
    accept_gap: bool,
    inside: Option<MakeBroker>,
}

impl Seed<'_> {
    fn start_shards(&self) -> io::Result<Vec<Shard>> {
        let count = u64::try_from(self.cpus.len().max(1)).unwrap_or(u64::MAX);
        let mut shards = Vec::new();
        for (number, cpu) in (0..).zip(&self.cpus) {
            let (to_shard, inbox, heard) = mailbox(TO_SHARD)?;
            let start = ShardStart {
                shard: number,
                cpu: Some(*cpu),
                runtimes: self.runtimes.clone(),
                clusters: self.plan.clusters.clone(),
                state_dir: self.state_dir.clone(),
                faults: self.faults.clone(),
                resolver: self.resolver.clone(),
                inside: self.inside.clone(),
                inbox: (inbox, heard),
                post: self.post.clone(),
            };
            let config = PipelineConfig {
                shard: number,
                buffer_limit: self.plan.daemon.max_buffered_bytes / count,
                seed: fastrand::u64(..),
            };
            // Not joined: the thread's last letter says that it is done.
            drop(shard::spawn(start, move || Pipeline::new(config))?);
            shards.push(Shard::new(to_shard));
        }
        Ok(shards)
    }
}

/// State of the control thread, shared by its tasks.
pub(super) struct Control {
    pub(super) clock: Clock,
    pub(super) state_dir: Arc<StateDir>,
    pub(super) faults: FileFaults,
    pub(super) resolver: Rc<Resolver>,
    shards: RefCell<Vec<Shard>>,
    sources: RefCell<Vec<Rc<provisioning::Source>>>,
    captures: RefCell<Vec<captures::Desk>>,
    abandoning: RefCell<captures::Abandoning>,
    resting: RefCell<orders::Resting>,
    feeds: RefCell<Vec<FeedHome>>,
    large_slot: RefCell<LargeSlot>,
    room: RefCell<Room>,
    foreign: RefCell<Foreign>,
    publish: RefCell<Publish>,
    published_at: Cell<Option<Instant>>,
    /// A condition changed since then.
    has_news: Cell<bool>,
    draining: Cell<bool>,
    stopping: Cell<bool>,
    failed: RefCell<Option<(u16, String)>>,
    changed: Notify,
    drain_timeout: Duration,
    accept_gap: bool,
}

/// Where a feed came from and where it runs; its id is its index.
#[derive(Clone, Copy)]
struct FeedHome {
    /// `None`: a capture.
    mirror: Option<MirrorTopic>,
    shard: u16,
}

/// A topic of a mirror, both by index.
#[derive(Clone, Copy, PartialEq, Eq)]
struct MirrorTopic {
    source: usize,
    topic: usize,
}

impl Control {
    fn new(seed: Seed<'_>, publish: Publish) -> io::Result<Rc<Control>> {
        let shards = seed.start_shards()?;
        let room = Room::new(seed.plan.daemon.max_buffered_bytes, shards.len());
        Ok(Rc::new(Control {
            clock: Clock::start(),
            drain_timeout: seed.plan.daemon.drain_timeout,
            accept_gap: seed.accept_gap,
            state_dir: seed.state_dir,
            faults: seed.faults,
            resolver: Resolver::new(seed.resolver)?,
            shards: RefCell::new(shards),
            sources: RefCell::default(),
            captures: RefCell::default(),
            abandoning: RefCell::default(),
            resting: RefCell::default(),
            feeds: RefCell::default(),
            large_slot: RefCell::default(),
            room: RefCell::new(room),
            foreign: RefCell::default(),
            publish: RefCell::new(publish),
            published_at: Cell::default(),
            has_news: Cell::default(),
            draining: Cell::new(false),
            stopping: Cell::new(false),
            failed: RefCell::default(),
            changed: Notify::default(),
        }))
    }

    fn start_sources(self: &Rc<Self>, plan: &Plan, found: &[FoundFile]) {
        let shards = self.shard_count();
        for (index, (mirror, first_topic)) in
            plan.sources.iter().zip(first_topics(plan)).enumerate()
        {
            let start = source_start(mirror, first_topic, found, shards, wall());
            let source = Rc::new(provisioning::Source::new(mirror.clone(), index, first_topic));
            self.sources.borrow_mut().push(source.clone());
            self.recall_pause(&mirror.key);
            let saved = match start {
                SourceStart::Ready(saved) => {
                    self.set_aside(&mirror.key, &saved.set_aside).map(|()| saved)
                }
                SourceStart::Broken(why) => Err(why),
            };
            match saved {
                Ok(saved) => {
                    monoio::spawn(provisioning::run(self.clone(), source, saved));
                }
                Err(why) => {
                    let now = self.clock.now();
                    let condition = condition(reason::STATE_UNREADABLE, why, now);
                    let key = mirror.key.clone();
                    let finding = SourceFinding { source: key, topic: None, condition };
                    source.set_findings(vec![finding]);
                }
            }
        }
    }

    fn set_aside(&self, source: &SourceKey, files: &[String]) -> Result<(), String> {
        let UnixMicros(stamp) = wall();
        for file in files {
            let aside = set_aside(file.as_ref(), stamp)
                .map_err(|error| format!("{file} cannot be set aside: {error}"))?;
            tracing::warn!(
                %source, file, aside = %aside.display(),
                "unreadable state file set aside (on_corrupt_state = \"reset\")"
            );
        }
        Ok(())
    }

    /// Lives until every shard has ended or the time for it is over.
    async fn watch(self: Rc<Self>) -> RunOutcome {
        let mut deadline: Option<Instant> = None;
        let mut late: Option<Vec<u16>> = None;
        loop {
            let outbox = self.post_letters();
            let now = Instant::now();
            self.show_if_due(now);
            if self.draining.get() && late.is_none() {
                let until = *deadline.get_or_insert(now + self.drain_timeout);
                let waiting = self.not_drained();
                if waiting.is_empty() || now >= until {
                    late = Some(waiting);
                    deadline = Some(now + STOP_TIMEOUT);
                    self.stopping.set(true);
                    self.to_all(|| ToShard::Stop);
                    continue;
                }
            }
            let all_ended = self.shards.borrow().iter().all(|shard| shard.ended);
            if let Some(late) = &late
                && (all_ended || deadline.is_some_and(|deadline| now >= deadline))
            {
                self.show();
                return self.outcome(late.clone());
            }
            let nap = match (outbox, self.has_news.get()) {
                (true, _) => RETRY_POST,
                (false, true) => NEWS_GAP,
                (false, false) => TICK,
            };
            let left = deadline.map_or(nap, |deadline| deadline.saturating_duration_since(now));
            self.changed.wait(nap.min(left.max(Duration::from_millis(1)))).await;
        }
    }

    /// Asks every shard to drain; once.
    pub(super) fn drain(&self) {
        if self.draining.replace(true) {
            return;
        }
        self.to_all(|| ToShard::Control(FromControl::Drain));
        for source in self.sources.borrow().iter() {
            source.poke();
        }
        self.changed.notify();
    }

    pub(super) fn is_draining(&self) -> bool {
        self.draining.get()
    }

    pub(super) fn shard_count(&self) -> u16 {
        u16::try_from(self.shards.borrow().len()).unwrap_or(u16::MAX)
    }

    /// A condition has changed.
    pub(super) fn changed(&self) {
        self.has_news.set(true);
        self.changed.notify();
    }

    /// Hands the shards what their files of the source must keep, before any of its feeds.
    pub(super) fn carry(&self, source: &provisioning::Source, saved: &SavedSource) {
        for (shard, entries) in &saved.carried {
            let (plan, entries) = (source.plan.clone(), entries.clone());
            let generation = saved.generation;
            self.send(*shard, FromControl::Carry { plan, generation, entries });
        }
    }

    /// Hands a new feed to its shard.
    pub(super) fn add_feed(&self, source: &provisioning::Source, feed: NewFeed, generation: u64) {
        let mut feeds = self.feeds.borrow_mut();
        let Ok(id) = u32::try_from(feeds.len()) else { return };
        let shard = place(source.first_topic + feed.topic, feed.partition, self.shard_count());
        let mirror = Some(MirrorTopic { source: source.index, topic: feed.topic });
        feeds.push(FeedHome { mirror, shard });
        self.room.borrow_mut().add(shard, &source.plan.key, self.clock.now());
        let spec = FeedSpec {
            id: FeedId(id),
            plan: source.plan.clone(),
            topic: feed.topic,
            partition: feed.partition,
            saved: feed.saved,
            first_count: feed.first_count,
            generation,
            upstream_created_at: feed.upstream_created_at,
            downstream_created_at: feed.downstream_created_at,
        };
        self.send(shard, FromControl::AddFeed(Box::new(spec)));
    }

    /// Answers a feed that asked for its destination.
    pub(super) fn destination_ready(&self, feed: FeedId, result: Result<u64, String>) {
        if let Some(FeedHome { shard, .. }) = self.home(feed) {
            self.send(shard, FromControl::DestinationReady { feed, result });
        }
    }

    /// Has every feed of a topic let go of its destination.
    pub(super) fn release_destination(&self, source: &provisioning::Source, topic: usize) {
        self.to_feeds(source, topic, |feed| FromControl::ReleaseDestination { feed });
    }

    /// Has every feed of a topic look at its destination before it sends again.
    pub(super) fn look_again(&self, source: &provisioning::Source, topic: usize, created_at: u64) {
        self.to_feeds(source, topic, |feed| FromControl::LookAgain { feed, created_at });
    }

    /// Index of the topic and partition of the feeds of a source that have copied something.
    pub(super) fn copied(&self, source: &provisioning::Source) -> Vec<(usize, u32)> {
        let shards = self.shards.borrow();
        let feeds = shards.iter().filter_map(|shard| shard.snapshot.as_ref());
        let feeds = feeds.flat_map(|snapshot| &snapshot.feeds);
        let copied = |feed: &FeedSnapshot| {
            let home = self.home(feed.id)?.mirror.filter(|home| home.source == source.index)?;
            (feed.counters.messages > 0).then_some((home.topic, feed.partition))
        };
        feeds.filter_map(copied).collect()
    }

    fn to_feeds(
        &self,
        source: &provisioning::Source,
        topic: usize,
        message: impl Fn(FeedId) -> FromControl,
    ) {
        let homes = self.feeds.borrow().clone();
        let wanted = MirrorTopic { source: source.index, topic };
        for (id, home) in (0..).zip(homes) {
            if home.mirror == Some(wanted) {
                self.send(home.shard, message(FeedId(id)));
            }
        }
    }

    fn home(&self, feed: FeedId) -> Option<FeedHome> {
        let index = usize::try_from(feed.0).ok()?;
        self.feeds.borrow().get(index).copied()
    }

    fn mirror_of(&self, feed: FeedId) -> Option<MirrorTopic> {
        self.home(feed)?.mirror
    }

    fn letter(&self, number: u16, letter: FromShard) {
        match letter {
            FromShard::Snapshot(snapshot) => {
                let mut changed = false;
                self.with_shard(number, |shard| changed = shard.take_snapshot(*snapshot));
                if changed {
                    self.changed();
                }
                return;
            }
            FromShard::Control(ToControl::Drained) => {
                self.with_shard(number, |shard| shard.drained = true);
            }
            FromShard::Control(ToControl::EnsureDestination { feed }) => {
                if let Some(MirrorTopic { source, topic }) = self.mirror_of(feed)
                    && let Some(source) = self.sources.borrow().get(source)
                {
                    source.ensure(self.clock.now(), topic, feed);
                }
            }
            FromShard::Control(ToControl::DestinationReleased { feed }) => {
                if let Some(MirrorTopic { source, topic }) = self.mirror_of(feed)
                    && let Some(source) = self.sources.borrow().get(source)
                {
                    source.released(self.clock.now(), topic, feed);
                }
            }
            FromShard::Control(ToControl::LargeSlotWanted { feed }) => {
                let next = self.large_slot.borrow_mut().wanted(number, feed);
                self.grant(next);
            }
            FromShard::Control(ToControl::LargeSlotReleased { feed }) => {
                let next = self.large_slot.borrow_mut().released(number, feed);
                self.grant(next);
            }
            FromShard::Control(ToControl::Note { source, unusual, text }) => {
                match unusual {
                    true => tracing::warn!(%source, "{text}"),
                    false => tracing::info!(%source, "{text}"),
                }
                return;
            }
            FromShard::Control(ToControl::Abandoned { order, answer }) => {
                self.abandoned(order, answer);
            }
            FromShard::Ended(result) => self.ended(number, result),
        }
        self.changed.notify();
    }

    fn ended(&self, number: u16, result: Result<(), String>) {
        self.with_shard(number, |shard| (shard.ended, shard.drained) = (true, true));
        let next = self.large_slot.borrow_mut().shard_ended(number);
        self.grant(next);
        let why = match result {
            Ok(()) if self.stopping.get() => return,
            Ok(()) => "ended without being asked to".to_owned(),
            Err(why) => why,
        };
        tracing::error!(shard = number, why, "shard failed; draining the others");
        self.failed.borrow_mut().get_or_insert((number, why));
        self.drain();
    }

    fn grant(&self, next: Option<(u16, FeedId)>) {
        if let Some((shard, feed)) = next {
            self.send(shard, FromControl::LargeSlotGranted { feed });
        }
    }

    fn send(&self, number: u16, message: FromControl) {
        self.with_shard(number, |shard| shard.send(ToShard::Control(message)));
        self.changed.notify();
    }

    fn to_all(&self, letter: impl Fn() -> ToShard) {
        self.shards.borrow_mut().iter_mut().for_each(|shard| shard.send(letter()));
    }

    fn with_shard(&self, number: u16, f: impl FnOnce(&mut Shard)) {
        if let Some(shard) = self.shards.borrow_mut().get_mut(usize::from(number)) {
            f(shard);
        }
    }

    /// Tries what did not fit before; true if something still does not.
    fn post_letters(&self) -> bool {
        let mut shards = self.shards.borrow_mut();
        shards.iter_mut().for_each(Shard::post_letters);
        shards.iter().any(|shard| !shard.outbox.is_empty())
    }

    fn not_drained(&self) -> Vec<u16> {
        let shards = self.shards.borrow();
        (0..).zip(shards.iter()).filter(|(_, shard)| !shard.drained).map(|(n, _)| n).collect()
    }
}
