//! The end-to-end suite: the real binary between two clusters, one file per theme.
//!
//! Every test judges by what both clusters hold and by what a person or a script would see:
//! status, log lines, exit codes. Tests that need no fault switch also run between two real
//! servers, named by `TIDEGATE_TEST_IGGY_UP` and `TIDEGATE_TEST_IGGY_DOWN`. Waits of minutes are
//! scaled down unless `TIDEGATE_SOAK=1`.
#![allow(clippy::disallowed_methods)] // processes, files, sockets and the clock

mod admin;
mod content;
mod destination;
mod files;
mod history;
mod nodes;
mod outage;
mod refusals;
mod secrets;
mod start;
mod state;
mod stop;
#[path = "../support/mod.rs"]
mod support;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use support::{
    Config, Daemon, Home, Pair, Workload, compare, eventually, soak, unique_topic, when,
};
use tidegate::batch::TopicName;

/// Microseconds since the Unix epoch; origin times are data, not the time of the test.
const THEN: u64 = 1_700_000_000_000_000;

/// Longest wait for anything that should come by itself.
fn limit() -> Duration {
    Duration::from_secs(if soak() { 300 } else { 60 })
}

/// One topic that a daemon mirrors to its namesake, and where the daemon lives.
struct Rig {
    pair: Pair,
    home: Home,
    config: Config,
    topic: TopicName,
    partitions: u32,
    workload: Workload,
}

impl Rig {
    /// A topic that exists upstream only.
    fn new(pair: &Pair, partitions: u32) -> Rig {
        let rig = Rig::without_topic(pair, partitions);
        pair.up.create_topic(&rig.topic, partitions);
        rig
    }

    /// A topic that exists nowhere yet.
    fn without_topic(pair: &Pair, partitions: u32) -> Rig {
        let topic = unique_topic("e2e");
        let config = Config::new(pair).topic(&topic);
        let workload = Workload::new(fastrand::u64(..));
        Rig { pair: pair.clone(), home: Home::new(), config, topic, partitions, workload }
    }

    /// Changes the configuration of the next start.
    fn with(mut self, change: impl FnOnce(Config) -> Config) -> Rig {
        self.set(change);
        self
    }

    fn set(&mut self, change: impl FnOnce(Config) -> Config) {
        self.config = change(self.config.clone());
    }

    /// Writes these messages upstream, in batches of ten.
    fn write(&self, partition: u32, numbers: Range<u64>) {
        write(&*self.pair.up, &self.topic, &self.workload, partition, numbers);
    }

    /// The same to all partitions.
    fn write_all(&self, numbers: Range<u64>) {
        (0..self.partitions).for_each(|partition| self.write(partition, numbers.clone()));
    }

    /// Starts a daemon; it has taken its state directory and hears signals.
    #[track_caller]
    fn start(&self) -> Daemon {
        let mut daemon = Daemon::start(&self.home, &self.config);
        eventually(limit(), "a start", || {
            daemon.assert_running();
            when(daemon.lines().iter().any(|line| line.contains("\"message\":\"started\"")))
        });
        daemon
    }

    fn up_end(&self, partition: u32) -> u64 {
        self.pair.up.end(&self.topic, partition)
    }

    fn down_end(&self, partition: u32) -> u64 {
        self.pair.down.end(&self.topic, partition)
    }

    /// Waits until the destination ends where upstream does.
    #[track_caller]
    fn copied(&self, daemon: &mut Daemon) {
        eventually(limit(), "the copy", || {
            daemon.assert_running();
            when((0..self.partitions).all(|p| self.down_end(p) >= self.up_end(p)))
        });
    }

    /// Waits until the destination of one partition ends at this offset.
    #[track_caller]
    fn ends_at(&self, daemon: &mut Daemon, partition: u32, end: u64) {
        eventually(limit(), &format!("offset {end} of partition {partition}"), || {
            daemon.assert_running();
            when(self.down_end(partition) >= end)
        });
        assert_eq!(self.down_end(partition), end);
    }

    /// Both sides hold the same, message by message.
    #[track_caller]
    fn assert_exact(&self) {
        let (up, down) = (&*self.pair.up, &*self.pair.down);
        let report = compare(up, &self.topic, down, &self.topic, self.partitions);
        assert!(report.is_exact(), "{report}");
    }

    /// Waits until a feed has this reason, `""` for running.
    #[track_caller]
    fn reason(&self, daemon: &mut Daemon, partition: u32, reason: &str) -> Value {
        daemon.wait_for_reason(limit(), &self.topic, partition, reason)
    }

    /// Waits until the source as a whole has this reason.
    #[track_caller]
    fn source_reason(&self, daemon: &mut Daemon, reason: &str) -> Value {
        eventually(limit(), &format!("reason {reason:?} of the source"), || {
            daemon.assert_running();
            source(daemon, "mirror").filter(|source| source["reason"] == reason)
        })
    }
}

impl Drop for Rig {
    /// Servers that outlive the test get rid of its topics; a failed test keeps its evidence.
    fn drop(&mut self) {
        let is_lasting = self.pair.up.control().is_none();
        if is_lasting && !std::thread::panicking() {
            self.pair.up.delete_stream(&self.topic.stream);
            self.pair.down.delete_stream(&self.topic.stream);
        }
    }
}

/// One source as status shows it.
fn source(daemon: &Daemon, key: &str) -> Option<Value> {
    let status = daemon.status()?;
    status["sources"].as_array()?.iter().find(|source| source["key"] == key).cloned()
}

/// Waits until everything that keeps a source from running is over.
#[track_caller]
fn ready(daemon: &mut Daemon) {
    eventually(limit(), "readiness", || {
        daemon.assert_running();
        when(daemon.get("/readyz").is_ok_and(|(code, _)| code == 200))
    });
}

fn write(
    cluster: &dyn support::Cluster,
    topic: &TopicName,
    workload: &Workload,
    partition: u32,
    numbers: Range<u64>,
) {
    let (mut next, end) = (numbers.start, numbers.end);
    while next < end {
        let last = end.min(next + 10);
        let batch: Vec<_> =
            (next..last).map(|number| workload.message(partition, number, THEN)).collect();
        cluster.append(topic, partition, &batch);
        next = last;
    }
}

/// Runs the cases side by side: most of a case is waiting.
fn each<C: Sync + std::fmt::Debug>(cases: &[C], test: impl Fn(&C) + Sync) {
    std::thread::scope(|scope| {
        let spawn = |case| {
            let test = &test;
            (case, scope.spawn(move || test(case)))
        };
        for (case, thread) in cases.iter().map(spawn).collect::<Vec<_>>() {
            assert!(thread.join().is_ok(), "case {case:?} failed, see above");
        }
    });
}

/// Two brokers and what they are for; `None`, said in the output, between real servers.
fn loopbacks(test: &str) -> Option<Arc<support::Loopbacks>> {
    support::Loopbacks::start(test).map(Arc::new)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is not a count"))
}
