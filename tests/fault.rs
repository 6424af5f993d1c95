//! The real binary under SIGKILL, on built-in brokers that misbehave and databases that restart:
//! nothing is lost or reordered, a mirror duplicates nothing, and what cannot be prevented is
//! reported.
//!
//! `TIDEGATE_SEED=N` repeats a run's choices, `TIDEGATE_SOAK=1` runs with the product's own waits.
#![allow(clippy::disallowed_methods)] // processes, files, threads and the clock

mod support;

#[path = "fault/capture.rs"]
mod capture;
#[path = "fault/mischief.rs"]
mod mischief;
#[path = "capture/stage.rs"]
mod stage;
#[path = "fault/witness.rs"]
mod witness;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fastrand::Rng;
use mischief::{Mischief, withhold_ack};
use support::{
    Config, Daemon, Home, Loopbacks, Writer, compare, compare_logs, eventually, seed, skipped,
    soak, throughout, unique_topic, when,
};
use tidegate::batch::TopicName;
use tidegate::loopback::{Fault, Restart, Scope};

const PARTITIONS: u32 = 4;
/// Messages a second of each of the two writers.
const PACE: u64 = 1_000;
const STEPS: [&str; 6] = ["open", "write", "sync", "close", "rename", "sync_dir"];

/// A daemon gets through its start, every back-off and to a send within this time.
fn patience() -> Duration {
    Duration::from_secs(if soak() { 600 } else { 30 })
}

/// The moment of a kill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    /// The destination has a send it has not answered.
    UnackedSend,
    /// Right before a step of a save of positions.
    SaveStep(&'static str),
    /// Whenever.
    Any,
}

/// Fifty kills in random order.
fn moments(rng: &mut Rng) -> Vec<Moment> {
    let mut moments = vec![Moment::UnackedSend; 20];
    moments.extend((0..10).map(|nth| Moment::SaveStep(STEPS[nth % STEPS.len()])));
    moments.extend([Moment::Any; 20]);
    rng.shuffle(&mut moments);
    moments
}

/// Everything a kill needs.
struct Arena {
    brokers: Loopbacks,
    topic: TopicName,
    home: Home,
    config: Config,
    rng: Rng,
    kills_with_unacked_sends: usize,
    broker_restarts: usize,
}

#[test]
fn fifty_kills_lose_duplicate_and_reorder_nothing() {
    let test = "fifty_kills_lose_duplicate_and_reorder_nothing";
    let Some(brokers) = Loopbacks::start(test) else { return };
    let mut rng = Rng::with_seed(seed(test));
    let topic = unique_topic("fault");
    brokers.pair.up.create_topic(&topic, PARTITIONS);
    let writers = [0, 1].map(|_| {
        let up = Arc::clone(&brokers.pair.up);
        Writer::start(up, &topic, PARTITIONS, PACE, rng.u64(..))
    });
    let moments = moments(&mut rng);
    let mut arena = Arena::new(brokers, topic, rng);
    let begun = Instant::now();
    for (nth, moment) in moments.iter().enumerate() {
        arena.kill_at(nth, *moment);
    }
    println!(
        "{} kills in {:.0?}, {} with unacked sends, {} broker restarts",
        moments.len(),
        begun.elapsed(),
        arena.kills_with_unacked_sends,
        arena.broker_restarts,
    );
    let written: u64 = writers.map(Writer::stop).iter().sum();
    arena.finish(written);
    let kinds = arena.faults_that_acted();
    println!("faults that acted: {kinds:?}");
    assert!(kinds.len() >= 8, "too few kinds of faults acted to prove anything");
    assert!(arena.kills_with_unacked_sends >= 20);
    assert!(arena.broker_restarts > 0);
}

impl Arena {
    fn new(brokers: Loopbacks, topic: TopicName, rng: Rng) -> Arena {
        let mut config = Config::new(&brokers.pair).topic(&topic);
        if !soak() {
            config = config.up("request_timeout", "1s").down("request_timeout", "1s");
        }
        Arena {
            brokers,
            topic,
            home: Home::new(),
            config,
            rng,
            kills_with_unacked_sends: 0,
            broker_restarts: 0,
        }
    }

    /// Starts a daemon, lets brokers misbehave, kills it at that moment, looks at the copy.
    fn kill_at(&mut self, nth: usize, moment: Moment) {
        let mischief = Mischief::choose(&mut self.rng, &self.topic, PARTITIONS);
        mischief.set(&self.brokers);
        let log = self.home.path().join(format!("saves-{nth}"));
        let rules = match moment {
            Moment::SaveStep(step) => {
                let skip = self.rng.u64(..4);
                format!("log={};{step}:pause=3600000:skip={skip}", log.display())
            }
            _ => format!("log={}", log.display()),
        };
        let environment = [("TIDEGATE_FAULT_FILES", rules.as_str())];
        let mut daemon = Daemon::start_with(&self.home, &self.config, &environment);
        println!("kill {nth}: {moment:?}, {mischief}");
        if self.rng.u8(..4) == 0 {
            // A paused save may hold up what has to be durable before the first send.
            if self.rng.bool() && !matches!(moment, Moment::SaveStep(_)) {
                self.wait_for_progress(&mut daemon);
            }
            self.restart_a_broker(!mischief.appends_late());
        }
        match moment {
            Moment::UnackedSend => self.wait_for_unacked_send(&mut daemon),
            Moment::SaveStep(step) => {
                eventually(patience(), &format!("a pause before {step}"), || {
                    daemon.assert_running();
                    let text = std::fs::read_to_string(&log).unwrap_or_default();
                    when(text.contains("\tpause "))
                });
            }
            Moment::Any => std::thread::sleep(Duration::from_millis(self.rng.u64(..900))),
        }
        // A late append has lost its ack for good, whether it is already in the log or not.
        let unacked = moment == Moment::UnackedSend || self.brokers.down.unacked_sends() > 0;
        self.kills_with_unacked_sends += usize::from(unacked);
        daemon.kill();
        for broker in [&self.brokers.up, &self.brokers.down] {
            broker.clear_all();
            broker.release_held();
        }
        if self.rng.u8(..8) == 0 {
            let down = &self.brokers.down;
            eventually(patience(), "late appends", || when(down.pending_late_appends() == 0));
            self.restart_a_broker(true);
        }
        self.look_at_the_copy(nth);
    }

    /// Some kills hit the first send after a resume, some a later one.
    fn wait_for_unacked_send(&mut self, daemon: &mut Daemon) {
        if self.rng.bool() {
            self.wait_for_progress(daemon);
        }
        let down = &self.brokers.down;
        down.clear_all();
        withhold_ack(&mut self.rng, down);
        eventually(patience(), "an unacked send", || {
            daemon.assert_running();
            when(down.unacked_sends() + down.pending_late_appends() > 0)
        });
    }

    fn wait_for_progress(&self, daemon: &mut Daemon) {
        let down = &self.brokers.pair.down;
        let before = down.total(&self.topic, PARTITIONS);
        eventually(patience(), "a message to be copied", || {
            daemon.assert_running();
            when(down.total(&self.topic, PARTITIONS) > before)
        });
    }

    /// The upstream broker keeps its log, the destination may lose what it has acked; but not
    /// while a send is late: a batch behind a hole is damage that only can be reported.
    fn restart_a_broker(&mut self, may_lose: bool) {
        let mut millis = |limit| Duration::from_millis(self.rng.u64(..limit));
        let mut restart =
            Restart { lose_tail: 0, starting_for: millis(300), downtime: millis(200) };
        self.broker_restarts += 1;
        if self.rng.bool() {
            println!("  upstream restarts: {restart:?}");
            self.brokers.up.restart(restart).expect("the broker's port");
            return;
        }
        if may_lose && self.rng.bool() {
            restart.lose_tail = self.rng.u64(1..200);
        }
        println!("  destination restarts: {restart:?}");
        self.brokers.down.restart(restart).expect("the broker's port");
    }

    /// At every moment the copy is the beginning of the original, at the same offsets.
    fn look_at_the_copy(&self, nth: usize) {
        let (up, down) = (&self.brokers.pair.up, &self.brokers.pair.down);
        for partition in 0..PARTITIONS {
            let copy = down.seen(&self.topic, partition, 0);
            let mut original = up.seen(&self.topic, partition, 0);
            original.truncate(copy.len());
            let report = compare_logs(&original, &copy);
            let exact = report.is_exact() && original == copy;
            assert!(exact, "after kill {nth}, partition {partition}: {report}");
        }
    }

    /// How often each kind of fault was met by the daemon.
    fn faults_that_acted(&self) -> BTreeMap<String, usize> {
        let mut kinds = BTreeMap::new();
        for broker in [&self.brokers.up, &self.brokers.down] {
            for applied in broker.applied_faults() {
                let words = format!("{:?}", applied.fault);
                let kind = words.split([' ', '(']).next().unwrap_or_default().to_owned();
                *kinds.entry(kind).or_insert(0) += 1;
            }
        }
        kinds
    }

    /// Left alone, the daemon copies the rest and stops in order.
    fn finish(&mut self, written: u64) {
        let mut daemon = Daemon::start(&self.home, &self.config);
        let down = &self.brokers.pair.down;
        eventually(patience() * 2, "everything at the destination", || {
            daemon.assert_running();
            when(down.total(&self.topic, PARTITIONS) >= written)
        });
        if let Some(status) = daemon.status() {
            let io_driver = &status["shards"][0]["io_driver"];
            if io_driver != "io_uring" {
                skipped("io_uring", &format!("this machine gives {io_driver} only"));
            }
        }
        daemon.stop();
        let up = &*self.brokers.pair.up;
        let report = compare(up, &self.topic, &**down, &self.topic, PARTITIONS);
        assert!(report.is_exact(), "{report}");
        assert_eq!(report.messages, written);
        println!("{report}");
    }
}

/// The limit of exactly once that the documents name: a cluster that appends a request later than
/// `settle` after its connection was lost.
struct Late {
    brokers: Loopbacks,
    topic: TopicName,
    home: Home,
    config: Config,
    _writer: Writer,
}

impl Late {
    /// A mirror at work whose next send is appended only a while after its connection is gone.
    fn begin(test: &str) -> Option<(Late, Daemon)> {
        let brokers = Loopbacks::start(test)?;
        let topic = unique_topic("late");
        brokers.pair.up.create_topic(&topic, 1);
        let writer = Writer::start(Arc::clone(&brokers.pair.up), &topic, 1, 500, 1);
        let config = Config::new(&brokers.pair).topic(&topic).down("settle", "200ms");
        let home = Home::new();
        let mut daemon = Daemon::start(&home, &config);
        eventually(patience(), "a copied message", || {
            daemon.assert_running();
            when(brokers.pair.down.end(&topic, 0) > 0)
        });
        let late = Fault::LateAppend { after: Duration::from_secs(5) };
        brokers.down.fault_once(late, Scope::sends());
        eventually(patience(), "a send to be late", || {
            when(brokers.down.pending_late_appends() > 0)
        });
        Some((Late { brokers, topic, home, config, _writer: writer }, daemon))
    }

    /// The feed stops with the reason, the log stays as it is, and a restart changes nothing.
    fn is_reported_and_stays_so(&self, mut daemon: Daemon) {
        let (up, down) = (&*self.brokers.pair.up, &*self.brokers.pair.down);
        let feed = daemon.wait_for_reason(patience(), &self.topic, 0, "diverged");
        assert_eq!(feed["status"], "Error", "{feed}");
        assert_ne!(feed["advice"], "", "{feed}");
        let end = down.end(&self.topic, 0);
        let unmoved = || down.end(&self.topic, 0) == end;
        throughout(Duration::from_millis(500), "nothing more is written", unmoved);
        let report = compare(up, &self.topic, down, &self.topic, 1);
        assert!(report.duplicates > 0, "the late batch is there twice: {report}");
        daemon.kill();
        let mut daemon = Daemon::start(&self.home, &self.config);
        daemon.wait_for_reason(patience(), &self.topic, 0, "diverged");
        throughout(Duration::from_millis(500), "nothing more is written", unmoved);
        daemon.stop();
    }
}

#[test]
fn an_append_later_than_settle_is_reported_as_diverged() {
    let test = "an_append_later_than_settle_is_reported_as_diverged";
    let Some((late, daemon)) = Late::begin(test) else { return };
    late.is_reported_and_stays_so(daemon);
}

#[test]
fn an_append_later_than_settle_after_a_kill_is_reported_as_diverged() {
    let test = "an_append_later_than_settle_after_a_kill_is_reported_as_diverged";
    let Some((late, daemon)) = Late::begin(test) else { return };
    daemon.kill();
    let daemon = Daemon::start(&late.home, &late.config);
    let end = late.brokers.pair.down.end(&late.topic, 0);
    eventually(patience(), "the batch to be sent again before it is late", || {
        when(late.brokers.pair.down.end(&late.topic, 0) > end)
    });
    assert!(late.brokers.down.pending_late_appends() > 0, "too slow: the late append came first");
    late.is_reported_and_stays_so(daemon);
}
