//! The whole daemon in one process, between two loopback brokers: start, discovery, creation,
//! stop and restart.

#![allow(clippy::disallowed_methods, reason = "a test owns its clocks, files and threads")]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tidegate::batch::TopicName;
use tidegate::config::*;
use tidegate::loopback::{Control, Message, Server, ServerOptions};
use tidegate::shard::driver::control::{Ended, RunOptions, RunOutcome, plan_shards, run};
use tidegate::shard::driver::files::{FileFaults, read_all};
use tidegate::shard::driver::runtime::{IoDriver, Runtimes};
use tidegate::shard::driver::signals::{Stopper, stop_signals};
use tidegate::shard::pin::allowed_cpus;
use tidegate::shard::snapshot::{ShardSnapshot, SourceFinding, Status};

const PATIENCE: Duration = Duration::from_secs(20);

type Shown = Arc<Mutex<(Vec<ShardSnapshot>, Vec<SourceFinding>)>>;

struct Brokers {
    _up: Server,
    _down: Server,
    up: Control,
    down: Control,
}

struct Daemon {
    stopper: Stopper,
    thread: JoinHandle<RunOutcome>,
    shown: Shown,
    /// How often something was published.
    publications: Arc<AtomicU64>,
}

fn brokers() -> Brokers {
    let start = || Server::start(ServerOptions::default()).expect("a broker");
    let (up, down) = (start(), start());
    Brokers { up: up.control(), down: down.control(), _up: up, _down: down }
}

fn cluster(key: &str, broker: &Control) -> Arc<ClusterPlan> {
    let options = ServerOptions::default();
    let (username, password) = options.users[0].clone();
    Arc::new(ClusterPlan {
        key: key.into(),
        addresses: vec![broker.address().to_string()],
        credentials: Credentials::Password { username, password: password.into() },
        connect_timeout: Duration::from_secs(2),
        request_timeout: Duration::from_secs(2),
        settle: Settle::always(Duration::from_millis(100)),
        allow_untested_server: true,
    })
}

fn mirror(brokers: &Brokers, topics: &[&str]) -> MirrorPlan {
    MirrorPlan {
        key: "orders".into(),
        from: cluster("east", &brokers.up),
        to: cluster("west", &brokers.down),
        topics: topics
            .iter()
            .map(|topic| TopicPlan {
                upstream: TopicName::new("shop", topic),
                downstream: TopicName::new("copy", topic),
            })
            .collect(),
        initial_offset: InitialOffset::Earliest,
        partitions: Partitions::Preserve,
        auto_create: true,
        retry_interval: Duration::from_millis(50),
        max_retry_interval: Duration::from_millis(400),
        reset_grace: Duration::from_secs(60),
        state_interval: Duration::from_millis(100),
        discovery_interval: Duration::from_millis(300),
        degraded_after: Duration::from_secs(60),
        commit_failure_threshold: 16,
        verify_checksums: true,
        max_batch_bytes: 8 << 20,
        on_offset_expired: OnOffsetExpired::EarliestAvailable,
        on_history_changed: OnHistoryChanged::Fail,
        on_destination_lost: OnDestinationLost::Fail,
        on_nonempty_destination: OnNonemptyDestination::Fail,
        on_missing_upstream: OnMissingUpstream::Wait,
        on_bad_record: OnBadRecord::Fail,
        on_corrupt_state: OnCorruptState::Fail,
    }
}

fn plan(dir: &Path, sources: Vec<MirrorPlan>) -> Plan {
    let mut clusters = BTreeMap::new();
    for source in &sources {
        clusters.insert(source.from.key.clone(), source.from.clone());
        clusters.insert(source.to.key.clone(), source.to.clone());
    }
    Plan {
        daemon: DaemonPlan {
            state_dir: dir.to_path_buf(),
            shards: Shards::Auto,
            max_buffered_bytes: 128 << 20,
            drain_timeout: Duration::from_secs(10),
            core_dumps: true,
            log_format: None,
            log_level: "info".into(),
        },
        admin: None,
        clusters,
        sources: sources.into_iter().map(Arc::new).collect(),
        captures: Vec::new(),
        warnings: Vec::new(),
    }
}

impl Daemon {
    fn start(plan: Plan, shards: usize, driver: IoDriver) -> Daemon {
        let cpus = allowed_cpus().expect("a mask");
        let cpus = (0..shards).map(|shard| cpus[shard % cpus.len()]).collect();
        let shown = Shown::default();
        let (stopper, bell) = Stopper::new().expect("sockets");
        let publish = shown.clone();
        let publications = Arc::new(AtomicU64::new(0));
        let count = publications.clone();
        let thread = std::thread::spawn(move || {
            let found = read_all(&plan.daemon.state_dir).expect("readable");
            let options = RunOptions {
                cpus,
                runtimes: Runtimes::new(driver),
                faults: FileFaults::default(),
                orders: None,
                accept_gap: false,
                inside: None,
                stop: vec![bell],
                publish: Box::new(move |shards, findings| {
                    count.fetch_add(1, Ordering::Relaxed);
                    *publish.lock().expect("not poisoned") = (shards, findings);
                }),
            };
            run(&plan, found, options).expect("started")
        });
        Daemon { stopper, thread, shown, publications }
    }

    fn finding(&self, topic: Option<&str>) -> Option<(Status, &'static str, String)> {
        let topic = topic.map(|topic| TopicName::new("shop", topic));
        let shown = self.shown.lock().expect("not poisoned");
        let found = shown.1.iter().find(|finding| finding.topic == topic)?;
        let condition = &found.condition;
        Some((condition.status, condition.reason, condition.detail.clone()))
    }

    fn feeds(&self) -> usize {
        let shown = self.shown.lock().expect("not poisoned");
        shown.0.iter().map(|shard| shard.feeds.len()).sum()
    }

    fn stop(self) -> RunOutcome {
        self.stopper.stop();
        self.thread.join().expect("no panic")
    }
}

fn until(what: &str, holds: impl Fn() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "{what} did not come");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn produce(broker: &Control, topic: &str, partition: u32, numbers: std::ops::Range<u64>) {
    let messages: Vec<Message> = numbers
        .map(|number| Message {
            id: u128::from(number) + 1,
            origin_timestamp: 1_700_000_000_000_000 + number,
            payload: format!("{topic}/{partition}/{number}").into_bytes().into(),
            user_headers: Default::default(),
        })
        .collect();
    broker.append("shop", topic, partition, &messages).expect("appended");
}

/// Message for message the same, with nothing more and nothing less.
fn assert_copied(brokers: &Brokers, topic: &str, partition: u32, count: u64) {
    until(&format!("{count} messages in {topic}/{partition}"), || {
        brokers.down.end("copy", topic, partition).is_ok_and(|end| end >= count)
    });
    let dump = |broker: &Control, stream: &str| {
        broker.dump(stream, topic, partition, 0, u32::MAX).expect("a log")
    };
    assert_eq!(dump(&brokers.down, "copy"), dump(&brokers.up, "shop"));
}

#[test]
fn three_partitions_are_found_created_copied_and_drained() {
    for driver in [IoDriver::Uring, IoDriver::Epoll] {
        let (brokers, dir) = (brokers(), tempfile::tempdir().expect("a directory"));
        brokers.up.create_topic("shop", "a", 3);
        for partition in 0..3 {
            produce(&brokers.up, "a", partition, 0..500);
        }
        let daemon = Daemon::start(plan(dir.path(), vec![mirror(&brokers, &["a"])]), 2, driver);
        for partition in 0..3 {
            assert_copied(&brokers, "a", partition, 500);
        }
        assert_eq!(brokers.down.partitions("copy", "a"), Ok(3));
        until("no finding", || daemon.finding(Some("a")).is_none());
        let outcome = daemon.stop();
        assert_eq!(outcome.ended, Ended::Drained);
        let mut positions: Vec<_> =
            outcome.feeds.iter().map(|f| (f.partition, f.position, f.durable_position)).collect();
        positions.sort_unstable();
        assert_eq!(positions, [(0, 500, 500), (1, 500, 500), (2, 500, 500)]);
        assert!(outcome.feeds.iter().all(|feed| feed.condition.status == Status::Stopped));
    }
}

#[test]
fn a_restart_goes_on_where_it_stopped_whatever_the_number_of_shards() {
    let (brokers, dir) = (brokers(), tempfile::tempdir().expect("a directory"));
    brokers.up.create_topic("shop", "a", 4);
    brokers.up.create_topic("shop", "b", 1);
    let mut produced = 0;
    for (round, shards) in [2, 1, 3, 3, 2].into_iter().enumerate() {
        for partition in 0..4 {
            produce(&brokers.up, "a", partition, produced..produced + 50);
        }
        produce(&brokers.up, "b", 0, produced..produced + 50);
        produced += 50;
        let plan = plan(dir.path(), vec![mirror(&brokers, &["a", "b"])]);
        let daemon = Daemon::start(plan, shards, IoDriver::Uring);
        for partition in 0..4 {
            assert_copied(&brokers, "a", partition, produced);
        }
        assert_copied(&brokers, "b", 0, produced);
        let outcome = daemon.stop();
        assert_eq!((round, outcome.ended), (round, Ended::Drained));
        assert_eq!(outcome.feeds.len(), 5);
        assert!(outcome.feeds.iter().all(|feed| feed.durable_position == produced));
    }
}

#[test]
fn a_topic_that_leaves_the_plan_and_comes_back_goes_on_where_it_stood() {
    let (brokers, dir) = (brokers(), tempfile::tempdir().expect("a directory"));
    for topic in ["a", "b"] {
        brokers.up.create_topic("shop", topic, 2);
    }
    let rounds: [(&[&str], usize); 4] =
        [(&["a", "b"], 2), (&["b"], 2), (&["b"], 1), (&["b", "a"], 2)];
    let mut produced = 0;
    for (topics, shards) in rounds {
        for (topic, partition) in [("a", 0), ("a", 1), ("b", 0), ("b", 1)] {
            produce(&brokers.up, topic, partition, produced..produced + 40);
        }
        produced += 40;
        let plan = plan(dir.path(), vec![mirror(&brokers, topics)]);
        let daemon = Daemon::start(plan, shards, IoDriver::Uring);
        for topic in topics {
            assert_copied(&brokers, topic, 0, produced);
            assert_copied(&brokers, topic, 1, produced);
        }
        let outcome = daemon.stop();
        assert_eq!(outcome.ended, Ended::Drained);
        assert!(outcome.feeds.iter().all(|feed| feed.condition.status == Status::Stopped));
    }
}

#[test]
fn partitions_added_while_running_are_mirrored_from_their_first_message() {
    let (brokers, dir) = (brokers(), tempfile::tempdir().expect("a directory"));
    brokers.up.create_topic("shop", "a", 1);
    let mut mirror = mirror(&brokers, &["a"]);
    mirror.initial_offset = InitialOffset::Latest;
    let daemon = Daemon::start(plan(dir.path(), vec![mirror]), 2, IoDriver::Uring);
    until("the first feed", || daemon.feeds() == 1);
    brokers.up.add_partitions("shop", "a", 2).expect("added");
    produce(&brokers.up, "a", 1, 0..20);
    produce(&brokers.up, "a", 2, 0..20);
    assert_copied(&brokers, "a", 1, 20);
    assert_copied(&brokers, "a", 2, 20);
    assert_eq!(daemon.stop().ended, Ended::Drained);
}

#[test]
fn partitions_beyond_the_buffers_are_said_while_running_and_refused_at_the_next_start() {
    let (brokers, dir) = (brokers(), tempfile::tempdir().expect("a directory"));
    brokers.up.create_topic("shop", "a", 1);
    let planned = || {
        let mut plan = plan(dir.path(), vec![mirror(&brokers, &["a"])]);
        plan.daemon.max_buffered_bytes = budget::SHARD_RESERVE + 2 * budget::FEED_SHARE;
        plan
    };
    let found = || read_all(dir.path()).expect("readable");
    assert_eq!(plan_shards(&planned(), &found()).expect("one partition fits").len(), 1);
    let daemon = Daemon::start(planned(), 1, IoDriver::Uring);
    until("the first feed", || daemon.feeds() == 1);
    assert_eq!(daemon.finding(None), None);
    brokers.up.add_partitions("shop", "a", 2).expect("added");
    until("the finding", || daemon.finding(None).is_some());
    let (status, reason, detail) = daemon.finding(None).expect("a finding");
    assert_eq!((status, reason), (Status::Running, "buffers_short"));
    assert!(detail.contains("each of 3 feeds"), "{detail}");
    for partition in 0..3 {
        produce(&brokers.up, "a", partition, 0..20);
        assert_copied(&brokers, "a", partition, 20);
    }
    assert_eq!(daemon.stop().ended, Ended::Drained);
    let refused = plan_shards(&planned(), &found()).expect_err("three do not fit").to_string();
    assert!(refused.contains("each of 3 feeds"), "{refused}");
    assert!(refused.contains("max_buffered_bytes = \"8960KiB\""), "{refused}");
    let enough = budget::SHARD_RESERVE + 3 * budget::FEED_SHARE;
    let mut plan = planned();
    plan.daemon.max_buffered_bytes = enough;
    assert_eq!(plan_shards(&plan, &found()).expect("enough").len(), 1);
}

#[test]
fn a_missing_topic_is_named_and_the_others_flow() {
    let (brokers, dir) = (brokers(), tempfile::tempdir().expect("a directory"));
    for topic in ["a", "b"] {
        brokers.up.create_topic("shop", topic, 1);
        produce(&brokers.up, topic, 0, 0..10);
    }
    brokers.down.create_topic("copy", "a", 1);
    let mut mirror = mirror(&brokers, &["a", "b", "c"]);
    mirror.auto_create = false;
    let daemon = Daemon::start(plan(dir.path(), vec![mirror]), 2, IoDriver::Uring);
    assert_copied(&brokers, "a", 0, 10);
    until("both findings", || {
        daemon.finding(Some("b")).is_some_and(|(_, reason, detail)| {
            reason == "waiting_destination" && detail.contains("copy/b")
        }) && daemon.finding(Some("c")).is_some_and(|(_, reason, detail)| {
            reason == "waiting_upstream" && detail.contains("shop/c")
        })
    });
    brokers.down.create_topic("copy", "b", 1);
    assert_copied(&brokers, "b", 0, 10);
    until("b is over", || daemon.finding(Some("b")).is_none());
    assert_eq!(daemon.stop().ended, Ended::Drained);
}

#[test]
fn letters_do_not_make_it_publish_more_than_twice_a_second() {
    let (brokers, dir) = (brokers(), tempfile::tempdir().expect("a directory"));
    brokers.up.create_topic("shop", "a", 8);
    let daemon =
        Daemon::start(plan(dir.path(), vec![mirror(&brokers, &["a"])]), 2, IoDriver::Uring);
    until("all feeds run", || {
        let shown = daemon.shown.lock().expect("not poisoned");
        let feeds = shown.0.iter().flat_map(|shard| &shard.feeds);
        feeds.filter(|feed| feed.condition.status == Status::Running).count() == 8
    });
    let (start, before) = (Instant::now(), daemon.publications.load(Ordering::Relaxed));
    std::thread::sleep(Duration::from_secs(2));
    let shown = daemon.publications.load(Ordering::Relaxed) - before;
    let most = start.elapsed().as_millis() / 500 + 1;
    assert!(shown >= 2, "{shown} publications");
    assert!(u128::from(shown) <= most, "{shown} publications, at most {most} expected");
    brokers.up.delete_topic("shop", "a").expect("deleted");
    until("the finding", || daemon.finding(Some("a")).is_some());
    assert_eq!(daemon.stop().ended, Ended::Drained);
}

#[test]
fn a_destination_that_comes_late_is_waited_for() {
    let (brokers, dir) = (brokers(), tempfile::tempdir().expect("a directory"));
    brokers.up.create_topic("shop", "a", 1);
    produce(&brokers.up, "a", 0, 0..10);
    brokers.down.stop();
    let plan = plan(dir.path(), vec![mirror(&brokers, &["a"])]);
    let daemon = Daemon::start(plan, 1, IoDriver::Uring);
    until("a finding", || {
        daemon.finding(None).is_some_and(|(status, reason, _)| {
            status == Status::Degraded && reason == "destination_unreachable"
        })
    });
    brokers.down.start().expect("started");
    assert_copied(&brokers, "a", 0, 10);
    until("no finding", || daemon.finding(None).is_none());
    assert_eq!(daemon.stop().ended, Ended::Drained);
}

#[test]
fn a_deleted_destination_stops_its_feeds_or_is_filled_again() {
    for policy in [OnDestinationLost::Fail, OnDestinationLost::Refill] {
        let (brokers, dir) = (brokers(), tempfile::tempdir().expect("a directory"));
        brokers.up.create_topic("shop", "a", 2);
        produce(&brokers.up, "a", 0, 0..30);
        produce(&brokers.up, "a", 1, 0..30);
        let started = |shards| {
            let mut mirror = mirror(&brokers, &["a"]);
            mirror.on_destination_lost = policy;
            Daemon::start(plan(dir.path(), vec![mirror]), shards, IoDriver::Uring)
        };
        let daemon = started(2);
        assert_copied(&brokers, "a", 0, 30);
        assert_copied(&brokers, "a", 1, 30);
        assert_eq!(daemon.stop().ended, Ended::Drained);
        brokers.down.delete_topic("copy", "a").expect("deleted");
        let daemon = started(2);
        match policy {
            OnDestinationLost::Fail => {
                until("the finding", || {
                    daemon.finding(Some("a")).is_some_and(|(status, reason, _)| {
                        status == Status::Error && reason == "destination_lost"
                    })
                });
                assert!(brokers.down.partitions("copy", "a").is_err(), "nothing was created");
            }
            OnDestinationLost::Refill => {
                assert_copied(&brokers, "a", 0, 30);
                assert_copied(&brokers, "a", 1, 30);
            }
        }
        assert_eq!(daemon.stop().ended, Ended::Drained);
    }
}

#[test]
fn a_destination_replaced_while_idle_is_noticed_before_anything_is_sent_to_it() {
    for policy in [OnDestinationLost::Fail, OnDestinationLost::Refill] {
        let (brokers, dir) = (brokers(), tempfile::tempdir().expect("a directory"));
        brokers.up.create_topic("shop", "a", 2);
        for partition in 0..2 {
            produce(&brokers.up, "a", partition, 0..30);
        }
        let mut mirror = mirror(&brokers, &["a"]);
        mirror.on_destination_lost = policy;
        let daemon = Daemon::start(plan(dir.path(), vec![mirror]), 2, IoDriver::Uring);
        (0..2).for_each(|partition| assert_copied(&brokers, "a", partition, 30));
        brokers.down.delete_topic("copy", "a").expect("deleted");
        brokers.down.create_topic("copy", "a", 2);
        // No message comes: only the look-ups can tell.
        if policy == OnDestinationLost::Refill {
            (0..2).for_each(|partition| assert_copied(&brokers, "a", partition, 30));
            produce(&brokers.up, "a", 0, 30..40);
            assert_copied(&brokers, "a", 0, 40);
        } else {
            until("both feeds stopped", || {
                let shown = daemon.shown.lock().expect("not poisoned");
                let feeds = shown.0.iter().flat_map(|shard| &shard.feeds);
                feeds.filter(|feed| feed.condition.reason == "destination_lost").count() == 2
            });
            (0..2).for_each(|partition| produce(&brokers.up, "a", partition, 30..40));
            std::thread::sleep(Duration::from_millis(700));
            for partition in 0..2 {
                assert_eq!(brokers.down.end("copy", "a", partition).expect("there"), 0);
            }
        }
        assert_eq!(daemon.stop().ended, Ended::Drained);
    }
}

#[test]
fn an_unreadable_state_file_stops_its_source_alone() {
    let (brokers, dir) = (brokers(), tempfile::tempdir().expect("a directory"));
    brokers.up.create_topic("shop", "a", 1);
    brokers.up.create_topic("shop", "b", 1);
    produce(&brokers.up, "a", 0, 0..10);
    produce(&brokers.up, "b", 0, 0..10);
    let file = dir.path().join("orders.0.state");
    std::fs::write(&file, b"torn").expect("written");
    let mut other = mirror(&brokers, &["b"]);
    other.key = "other".into();
    let plan = plan(dir.path(), vec![mirror(&brokers, &["a"]), other]);
    let daemon = Daemon::start(plan, 1, IoDriver::Uring);
    assert_copied(&brokers, "b", 0, 10);
    let (status, reason, detail) = daemon.finding(None).expect("a finding");
    assert_eq!((status, reason), (Status::Error, "state_unreadable"));
    assert!(detail.contains("orders.0.state"), "{detail}");
    assert_eq!(daemon.stop().ended, Ended::Drained);
    assert!(brokers.down.end("copy", "a", 0).is_err(), "nothing was touched");
    assert_eq!(std::fs::read(&file).expect("still there"), b"torn");
}

#[test]
fn an_unreadable_state_file_is_set_aside_when_told_so() {
    let (brokers, dir) = (brokers(), tempfile::tempdir().expect("a directory"));
    brokers.up.create_topic("shop", "a", 1);
    produce(&brokers.up, "a", 0, 0..10);
    std::fs::write(dir.path().join("orders.0.state"), b"torn").expect("written");
    let mut mirror = mirror(&brokers, &["a"]);
    mirror.on_corrupt_state = OnCorruptState::Reset;
    let daemon = Daemon::start(plan(dir.path(), vec![mirror]), 1, IoDriver::Uring);
    assert_copied(&brokers, "a", 0, 10);
    assert_eq!(daemon.stop().ended, Ended::Drained);
    let names = std::fs::read_dir(dir.path()).expect("a directory");
    let names: Vec<_> =
        names.map(|entry| entry.expect("an entry").file_name().into_string().unwrap()).collect();
    assert!(names.iter().any(|name| name.starts_with("orders.0.state.aside-")), "{names:?}");
}

#[test]
fn a_stop_waits_no_longer_than_the_drain_timeout_for_a_silent_destination() {
    let (brokers, dir) = (brokers(), tempfile::tempdir().expect("a directory"));
    brokers.up.create_topic("shop", "a", 1);
    let mut plan = plan(dir.path(), vec![mirror(&brokers, &["a"])]);
    plan.daemon.drain_timeout = Duration::from_millis(500);
    let daemon = Daemon::start(plan, 1, IoDriver::Uring);
    produce(&brokers.up, "a", 0, 0..10);
    assert_copied(&brokers, "a", 0, 10);
    brokers.down.pause();
    produce(&brokers.up, "a", 0, 10..20);
    std::thread::sleep(Duration::from_millis(100));
    let asked = Instant::now();
    let outcome = daemon.stop();
    assert!(asked.elapsed() < Duration::from_secs(4), "{:?}", asked.elapsed());
    assert_eq!(outcome.ended, Ended::TimedOut { shards: vec![0] });
    brokers.down.resume();
}

/// Signals reach the whole process, so each test runs in a process of its own.
fn alone(test: &str) -> Option<std::process::Child> {
    const ALONE: &str = "TIDEGATE_TEST_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return None;
    }
    let child = std::process::Command::new(std::env::current_exe().expect("a path"))
        .args([test, "--exact", "--nocapture"])
        .env(ALONE, "1")
        .spawn();
    Some(child.expect("started"))
}

fn raise(signal: i32) {
    // SAFETY: a signal to the calling process, whose handler is installed.
    assert_eq!(unsafe { libc::kill(libc::getpid(), signal) }, 0);
}

#[test]
fn one_sigterm_rings_the_bell_and_a_second_one_ends_the_process_with_143() {
    use std::io::Read;
    let name = "one_sigterm_rings_the_bell_and_a_second_one_ends_the_process_with_143";
    if let Some(mut child) = alone(name) {
        assert_eq!(child.wait().expect("ended").code(), Some(143));
        return;
    }
    let mut bell = stop_signals().expect("handlers");
    raise(libc::SIGTERM);
    assert_eq!(bell.read(&mut [0; 8]).expect("rung"), 1);
    raise(libc::SIGINT);
    std::thread::sleep(Duration::from_secs(5));
    panic!("still here");
}
