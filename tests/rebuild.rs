//! `tidegate state rebuild` with the real binary: a copy whose position was lost, or whose sides
//! contradict each other, goes on exactly once behind it.

#![allow(clippy::disallowed_methods, reason = "tests own their files, sockets and clock")]

mod support;

use std::fs;
use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;
use tidegate::batch::TopicName;
use tidegate::loopback::{Fault, Scope};

use support::{
    Cluster, Config, Daemon, Home, Loopbacks, Pair, Workload, compare, compare_logs, eventually,
    unique_topic, when,
};

const THEN: u64 = 1_700_000_000_000_000;
const LIMIT: Duration = Duration::from_secs(60);

/// One topic, its mirror, and where the daemon lives.
struct Rig {
    pair: Pair,
    home: Home,
    config: Config,
    topic: TopicName,
    partitions: u32,
    workload: Workload,
}

/// What a command left behind.
struct Ran {
    code: i32,
    out: String,
    err: String,
}

impl Rig {
    fn new(pair: &Pair, partitions: u32) -> Rig {
        let topic = unique_topic("rebuild");
        pair.up.create_topic(&topic, partitions);
        let config = Config::new(pair).topic(&topic).daemon("shards", 1);
        let workload = Workload::new(fastrand::u64(..));
        Rig { pair: pair.clone(), home: Home::new(), config, topic, partitions, workload }
    }

    /// A topic that was copied as far as it goes, and a daemon that was killed then.
    fn copied(pair: &Pair, partitions: u32, messages: u64) -> Rig {
        let rig = Rig::new(pair, partitions);
        rig.write_all(0..messages);
        let mut daemon = rig.start();
        rig.catch_up(&mut daemon);
        daemon.kill();
        rig
    }

    fn write(&self, cluster: &dyn Cluster, partition: u32, numbers: Range<u64>) {
        let numbers: Vec<u64> = numbers.collect();
        for chunk in numbers.chunks(10) {
            let message = |number: &u64| self.workload.message(partition, *number, THEN + number);
            let batch: Vec<_> = chunk.iter().map(message).collect();
            cluster.append(&self.topic, partition, &batch);
        }
    }

    fn write_all(&self, numbers: Range<u64>) {
        (0..self.partitions).for_each(|p| self.write(&*self.pair.up, p, numbers.clone()));
    }

    /// Messages of somebody else at the destination.
    fn write_foreign(&self, partition: u32, count: u64) {
        let messages: Vec<_> =
            (0..count).map(|n| Workload::new(99).message(partition, n, THEN)).collect();
        self.pair.down.append(&self.topic, partition, &messages);
    }

    #[track_caller]
    fn start(&self) -> Daemon {
        let mut daemon = Daemon::start(&self.home, &self.config);
        eventually(LIMIT, "a start", || {
            daemon.assert_running();
            when(daemon.lines().iter().any(|line| line.contains("\"message\":\"started\"")))
        });
        daemon
    }

    /// Everything was copied and the source has nothing to complain of.
    #[track_caller]
    fn catch_up(&self, daemon: &mut Daemon) {
        eventually(LIMIT, "the copy", || {
            daemon.assert_running();
            let caught_up = |partition| {
                let feed = daemon.feed(&self.topic, partition)?;
                let end = self.pair.up.end(&self.topic, partition);
                when(feed["position"] == end && feed["reason"] == "")
            };
            when((0..self.partitions).all(|partition| caught_up(partition).is_some()))
        });
    }

    #[track_caller]
    fn reason(&self, daemon: &mut Daemon, partition: u32, reason: &str) -> Value {
        daemon.wait_for_reason(LIMIT, &self.topic, partition, reason)
    }

    #[track_caller]
    fn assert_exact(&self) {
        let (up, down) = (&*self.pair.up, &*self.pair.down);
        let report = compare(up, &self.topic, down, &self.topic, self.partitions);
        assert!(report.is_exact(), "{report}");
    }

    fn down_end(&self, partition: u32) -> u64 {
        self.pair.down.end(&self.topic, partition)
    }

    /// `state <words> --config …`
    fn state(&self, words: &[&str]) -> Ran {
        fs::write(self.home.config_file(), self.config.text(&self.home)).expect("written");
        let config = self.home.config_file().display().to_string();
        let words = [&["state"], words, &["--config", &config]].concat();
        let (code, out, err) = self.home.run(&words);
        assert!(!err.contains("panicked"), "{err}");
        Ran { code, out, err }
    }

    fn rebuild(&self, words: &[&str]) -> Ran {
        self.state(&[&["rebuild", "--source", "mirror"], words].concat())
    }

    /// `rebuild --topic … --partition 0 --accept-tail …`
    fn accept(&self, offset: u64) -> Ran {
        let (topic, offset) = (self.topic.to_string(), offset.to_string());
        let place = ["--topic", &topic, "--partition", "0", "--accept-tail", &offset];
        self.rebuild(&[&place[..], &["--yes", "--json"]].concat())
    }

    fn file(&self) -> PathBuf {
        self.home.state_dir().join("mirror.0.state")
    }

    fn lose_state(&self) {
        fs::remove_file(self.file()).expect("a state file");
    }

    /// The saved entry of a partition.
    fn saved(&self, partition: usize) -> Value {
        let shown = self.state(&["show", "--json"]).json();
        shown["sources"][0]["feeds"][partition].clone()
    }
}

impl Ran {
    #[track_caller]
    fn json(&self) -> Value {
        serde_json::from_str(&self.out)
            .unwrap_or_else(|error| panic!("{error}: {}{}", self.out, self.err))
    }

    #[track_caller]
    fn exits(self, code: i32) -> Ran {
        assert_eq!(self.code, code, "{}{}", self.out, self.err);
        self
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[test]
fn a_lost_state_file_is_rebuilt_and_the_rest_is_copied_exactly_once() {
    let pair = Pair::start();
    let rig = Rig::copied(&pair, 3, 200);
    rig.lose_state();
    rig.write_all(200..350);
    let mut daemon = rig.start();
    rig.reason(&mut daemon, 0, "nonempty_destination");
    daemon.stop();

    let ran = rig.rebuild(&["--yes", "--json"]).exits(0);
    assert_eq!(ran.err, "", "JSON alone");
    let report = ran.json();
    assert_eq!(report["source"], "mirror");
    assert_eq!(report["written"][0], "mirror.0.state");
    for partition in 0..3 {
        let found = &report["partitions"][partition];
        assert_eq!(found["result"], "found", "{report:#}");
        assert_eq!((&found["partition"], &found["compared"]), (&partition.into(), &16.into()));
        assert_eq!((&found["destination_end"], &found["position"]), (&200.into(), &200.into()));
        assert_eq!((&found["delta"], &found["saved_position"]), (&0.into(), &Value::Null));
        assert_eq!(found["upstream"]["stream"], *rig.topic.stream);
        let saved = rig.saved(partition);
        assert_eq!((&saved["position"], &saved["clean_stop"]), (&200.into(), &false.into()));
        assert_eq!((&saved["epoch"], &saved["counters"]["resets"]), (&1.into(), &1.into()));
    }
    let mut daemon = rig.start();
    rig.catch_up(&mut daemon);
    daemon.stop();
    rig.assert_exact();
}

#[test]
fn a_copy_behind_older_messages_is_found_with_its_distance() {
    let pair = Pair::start();
    let rig = Rig::new(&pair, 1);
    pair.down.create_topic(&rig.topic, 1);
    rig.write_foreign(0, 33);
    let rig = Rig { config: rig.config.clone().source("on_nonempty_destination", "append"), ..rig };
    rig.write_all(0..40);
    let mut daemon = rig.start();
    rig.catch_up(&mut daemon);
    daemon.kill();
    rig.lose_state();
    rig.write_all(40..70);
    let ran = rig.rebuild(&["--yes"]).exits(0);
    assert!(ran.out.contains("found") && ran.out.contains("wrote mirror.0.state"), "{}", ran.out);
    assert_eq!(rig.saved(0)["deltas"][0]["delta"], 33);
    let mut daemon = rig.start();
    rig.catch_up(&mut daemon);
    daemon.stop();
    let (up, down) = (pair.up.seen(&rig.topic, 0, 0), pair.down.seen(&rig.topic, 0, 33));
    assert!(compare_logs(&up, &down).is_exact());
}

#[test]
fn the_end_is_read_where_it_is_certain_in_a_cluster_of_several_nodes() {
    let test = "the_end_is_read_where_it_is_certain_in_a_cluster_of_several_nodes";
    for (routes, configured) in [(true, 1), (false, 1), (true, 3), (false, 3)] {
        let Some(brokers) = Loopbacks::with_nodes(test, 3) else { return };
        let addresses: Vec<String> =
            brokers.nodes.iter().map(|node| node.address().to_string()).collect();
        let rig = Rig::new(&brokers.pair, 1);
        let config = rig.config.clone().down_addresses(&addresses[..configured]);
        let rig = Rig { config, ..rig };
        brokers.down.nodes(|nodes| nodes.set_routes(routes));
        rig.write_all(0..200);
        let mut daemon = rig.start();
        rig.catch_up(&mut daemon);
        daemon.kill();
        rig.lose_state();
        brokers.down.nodes(|nodes| {
            nodes.set_primary(Some(2));
            (0..3).for_each(|node| nodes.set_lag(node, 30));
        });
        if !routes {
            // The one that is left lags, and is a minority.
            brokers.nodes[1].stop();
            brokers.nodes[2].stop();
            let ran = rig.rebuild(&["--yes"]).exits(4);
            assert!(ran.err.contains("2 of 3 are a majority"), "{}", ran.err);
            assert!(!rig.file().exists(), "nothing was written");
            brokers.nodes[1].start().expect("its port");
            brokers.nodes[2].start().expect("its port");
        }
        let report = rig.rebuild(&["--yes", "--json"]).exits(0).json();
        let found = &report["partitions"][0];
        let end = (&found["result"], &found["destination_end"], &found["position"]);
        assert_eq!(end, (&"found".into(), &200.into(), &200.into()), "{routes} {configured}");
        rig.write_all(200..240);
        let mut daemon = rig.start();
        rig.catch_up(&mut daemon);
        daemon.stop();
        rig.assert_exact();
    }
}

#[test]
fn an_unreadable_file_is_set_aside_by_a_rebuild_of_all_and_by_nothing_less() {
    let pair = Pair::start();
    let rig = Rig::copied(&pair, 2, 60);
    let mut bytes = fs::read(rig.file()).expect("a state file");
    bytes[100] ^= 1;
    fs::write(rig.file(), &bytes).expect("written");
    let topic = rig.topic.to_string();
    let ran = rig.rebuild(&["--topic", &topic, "--yes"]).exits(3);
    assert!(
        ran.err.contains("body checksum") && ran.err.contains("without --topic"),
        "{}",
        ran.err
    );
    assert_eq!(fs::read(rig.file()).expect("the file"), bytes, "it may hold other topics");

    let report = rig.rebuild(&["--yes", "--json"]).exits(0).json();
    let aside = text(&report["set_aside"][0]["to"]).to_owned();
    assert_eq!(fs::read(aside).expect("evidence"), bytes);
    rig.write_all(60..90);
    let mut daemon = rig.start();
    rig.catch_up(&mut daemon);
    daemon.stop();
    rig.assert_exact();
}

/// A copy of one partition whose place cannot be found, and its state file flipped.
fn unreadable_and_refused(pair: &Pair) -> (Rig, Vec<u8>) {
    let rig = Rig::copied(pair, 1, 60);
    rig.write_foreign(0, 20);
    let mut bytes = fs::read(rig.file()).expect("a state file");
    bytes[100] ^= 1;
    fs::write(rig.file(), &bytes).expect("written");
    (rig, bytes)
}

#[test]
fn an_unreadable_file_is_set_aside_even_if_every_partition_is_refused() {
    let pair = Pair::start();
    let (rig, bytes) = unreadable_and_refused(&pair);
    let ran = rig.rebuild(&["--yes"]).exits(1);
    let name = format!("{} partition 0", rig.topic);
    assert!(ran.out.contains("no position was written"), "{}", ran.out);
    assert!(!ran.out.contains("nothing was changed"), "{}", ran.out);
    assert!(ran.out.contains(&format!("{name}: no position is saved; it begins as new")));
    let aside = ran.out.lines().find_map(|line| line.split_once(" is now ")).expect("both names");
    assert_eq!(
        (aside.0, fs::exists(rig.file()).expect("seen")),
        (rig.file().to_str().unwrap(), false)
    );
    assert_eq!(fs::read(aside.1).expect("evidence"), bytes);
    // The partition stops rather than guess, and its place can be named now.
    let mut daemon = rig.start();
    rig.reason(&mut daemon, 0, "nonempty_destination");
    daemon.stop();
    rig.accept(60).exits(0);
    rig.write_all(60..90);
    let mut daemon = rig.start();
    rig.catch_up(&mut daemon);
    daemon.stop();
    let (up, down) = (pair.up.seen(&rig.topic, 0, 60), pair.down.seen(&rig.topic, 0, 80));
    assert!(compare_logs(&up, &down).is_exact());
}

#[test]
fn an_unreadable_file_stays_where_a_refused_partition_would_be_copied_again_unasked() {
    let pair = Pair::start();
    let (rig, bytes) = unreadable_and_refused(&pair);
    let rig = Rig { config: rig.config.clone().source("on_nonempty_destination", "append"), ..rig };
    let ran = rig.rebuild(&["--yes"]).exits(3);
    assert!(ran.err.contains("nothing was changed"), "{}", ran.err);
    assert!(ran.err.contains("on_nonempty_destination = \"fail\""), "{}", ran.err);
    assert_eq!(fs::read(rig.file()).expect("the file"), bytes);
}

#[test]
fn an_unreadable_file_of_a_copy_that_never_began_is_set_aside_and_the_copy_begins() {
    let pair = Pair::start();
    let rig = Rig::copied(&pair, 1, 0);
    fs::write(rig.file(), b"torn").expect("written");
    let report = rig.rebuild(&["--yes", "--json"]).exits(0).json();
    assert_eq!(report["partitions"][0]["result"], "empty", "{report:#}");
    assert_eq!(report["written"].as_array().map(Vec::len), Some(0));
    assert_eq!(fs::read(text(&report["set_aside"][0]["to"])).expect("evidence"), b"torn");
    rig.write_all(0..30);
    let mut daemon = rig.start();
    rig.catch_up(&mut daemon);
    daemon.stop();
    rig.assert_exact();
}

#[test]
fn a_file_of_a_newer_release_is_left_alone() {
    let pair = Pair::start();
    let rig = Rig::copied(&pair, 1, 20);
    let mut bytes = fs::read(rig.file()).expect("a state file");
    bytes[8] = 200;
    let sum = twox_hash::XxHash3_64::oneshot(&bytes[..56]);
    bytes[56..64].copy_from_slice(&sum.to_le_bytes());
    fs::write(rig.file(), &bytes).expect("written");
    let ran = rig.rebuild(&["--yes"]).exits(3);
    assert!(ran.err.contains("format version 200"), "{}", ran.err);
    assert_eq!(fs::read(rig.file()).expect("the file"), bytes);
}

#[test]
fn what_a_rebuild_confirms_is_not_written_again() {
    let pair = Pair::start();
    let rig = Rig::new(&pair, 2);
    rig.write_all(0..50);
    let mut daemon = rig.start();
    rig.catch_up(&mut daemon);
    daemon.stop();
    let before = fs::read(rig.file()).expect("a state file");
    let ran = rig.rebuild(&[]).exits(0);
    assert!(
        ran.out.contains("unchanged") && ran.out.contains("nothing was changed"),
        "{}",
        ran.out
    );
    assert_eq!(fs::read(rig.file()).expect("a state file"), before);
}

#[test]
fn a_foreign_writer_is_refused_and_accepting_its_tail_goes_on_behind_it() {
    let pair = Pair::start();
    let rig = Rig::copied(&pair, 2, 100);
    rig.write_foreign(0, 3);
    rig.write_all(100..150);
    let mut daemon = rig.start();
    let feed = rig.reason(&mut daemon, 0, "diverged");
    assert!(text(&feed["advice"]).contains("tidegate state rebuild"), "{feed:#}");
    daemon.stop();

    let report = rig.rebuild(&["--yes", "--json"]).exits(1).json();
    let kept = &report["partitions"][1];
    assert_eq!((&kept["result"], &kept["position"]), (&"unchanged".into(), &150.into()));
    let refused = &report["partitions"][0];
    assert_eq!((&refused["result"], &refused["candidates"][0]), (&"refused".into(), &100.into()));
    assert!(text(&refused["detail"]).contains("13 messages up to destination offset 99"));
    assert!(text(&refused["advice"]).contains("--accept-tail 100"), "{refused:#}");
    assert_eq!(rig.saved(0)["position"], 100, "it keeps what was saved");

    let report = rig.accept(100).exits(0).json();
    let accepted = &report["partitions"][0];
    assert_eq!(report["partitions"].as_array().map(Vec::len), Some(1));
    assert_eq!((&accepted["result"], &accepted["position"]), (&"accepted".into(), &100.into()));
    assert_eq!((&accepted["destination_end"], &accepted["delta"]), (&103.into(), &3.into()));
    assert_eq!((&accepted["gap"], &accepted["repeats"]), (&Value::Null, &Value::Null));
    let mut daemon = rig.start();
    rig.catch_up(&mut daemon);
    daemon.stop();
    assert_eq!((rig.down_end(0), rig.down_end(1)), (153, 150));
    let (up, down) = (pair.up.seen(&rig.topic, 0, 100), pair.down.seen(&rig.topic, 0, 103));
    assert!(compare_logs(&up, &down).is_exact());

    // From here on it is a copy like any other.
    rig.lose_state();
    rig.rebuild(&["--yes"]).exits(0);
    rig.write_all(150..160);
    let mut daemon = rig.start();
    rig.catch_up(&mut daemon);
    daemon.stop();
    assert_eq!((rig.down_end(0), rig.down_end(1)), (163, 160));
}

#[test]
fn what_an_accepted_tail_skips_is_a_gap_record_and_what_it_repeats_a_repeat_record_m6() {
    let pair = Pair::start();
    let rig = Rig::copied(&pair, 1, 100);
    rig.write_all(100..150);
    let report = rig.accept(120).exits(0).json();
    let gap = &report["partitions"][0]["gap"];
    assert_eq!(
        (&gap["first"], &gap["last"], &gap["messages"]),
        (&100.into(), &119.into(), &20.into())
    );
    let mut daemon = rig.start();
    rig.catch_up(&mut daemon);
    let feed = daemon.feed(&rig.topic, 0).expect("a feed");
    assert_eq!(feed["recent_gaps"][0]["first"], 100, "{feed:#}");
    assert_eq!(feed["gap_messages"], 20, "{feed:#}");
    daemon.stop();
    assert_eq!(rig.down_end(0), 130);

    let resets = rig.saved(0)["counters"]["resets"].as_u64().expect("a count");
    let report = rig.accept(140).exits(0).json();
    let repeats = &report["partitions"][0]["repeats"];
    assert_eq!((&repeats["first"], &repeats["last"]), (&140.into(), &149.into()), "{report:#}");
    let saved = rig.saved(0);
    assert_eq!(saved["counters"]["resets"], resets + 1);
    let shown = &saved["repeats"][0];
    assert_eq!((&shown["first"], &shown["messages"]), (&140.into(), &10.into()), "{saved:#}");
    let shown = rig.state(&["show"]).exits(0).out;
    assert!(shown.contains("copied again: 10 messages, offsets 140 to 149"), "{shown}");
    let mut daemon = rig.start();
    rig.catch_up(&mut daemon);
    let feed = daemon.feed(&rig.topic, 0).expect("a feed");
    assert_eq!(feed["recent_repeats"][0]["first"], 140, "{feed:#}");
    daemon.stop();
    assert_eq!(rig.saved(0)["repeats"], saved["repeats"], "kept by the run");
    let (up, down) = (pair.up.seen(&rig.topic, 0, 140), pair.down.seen(&rig.topic, 0, 130));
    assert!(compare_logs(&up, &down).is_exact());

    let ran = rig.accept(151).exits(1).json();
    assert!(text(&ran["partitions"][0]["detail"]).contains("behind the end"), "{ran:#}");
}

#[test]
fn a_restored_destination_is_recognized_by_what_it_holds() {
    let pair = Pair::start();
    let rig = Rig::copied(&pair, 2, 80);
    pair.down.delete_topic(&rig.topic);
    pair.down.create_topic(&rig.topic, 2);
    // The backup is older than the last save.
    (0..2).for_each(|partition| rig.write(&*pair.down, partition, 0..70));
    let mut daemon = rig.start();
    let feed = rig.reason(&mut daemon, 0, "destination_lost");
    assert!(text(&feed["advice"]).contains("tidegate state rebuild"), "{feed:#}");
    daemon.stop();
    rig.rebuild(&["--yes"]).exits(0);
    rig.write_all(80..95);
    let mut daemon = rig.start();
    rig.catch_up(&mut daemon);
    daemon.stop();
    rig.assert_exact();
}

#[test]
fn two_places_are_refused_and_both_are_named() {
    let pair = Pair::start();
    let rig = Rig::new(&pair, 1);
    pair.down.create_topic(&rig.topic, 1);
    rig.write_all(0..30);
    rig.write_all(0..30);
    rig.write(&*pair.down, 0, 0..30);
    let ran = rig.rebuild(&["--yes"]).exits(1);
    assert!(ran.out.contains("behind offset 29"), "{}", ran.out);
    assert!(ran.out.contains("--accept-tail 30 or --accept-tail 60"), "{}", ran.out);
    assert!(!rig.file().exists());
    rig.accept(30).exits(0);
    let mut daemon = rig.start();
    rig.catch_up(&mut daemon);
    daemon.stop();
    rig.assert_exact();
}

#[test]
fn a_running_daemon_keeps_its_positions() {
    let pair = Pair::start();
    let rig = Rig::new(&pair, 1);
    rig.write_all(0..20);
    let mut daemon = rig.start();
    rig.catch_up(&mut daemon);
    let ran = rig.rebuild(&["--yes"]).exits(3);
    assert!(ran.err.contains(&format!("process {}", daemon.id())), "{}", ran.err);
    let report = rig.rebuild(&["--yes", "--json"]).exits(3).json();
    assert_eq!(report["error"]["kind"], "state");
    daemon.stop();
    rig.assert_exact();
}

#[test]
fn nobody_to_ask_and_wrong_names_change_nothing() {
    let pair = Pair::start();
    let rig = Rig::copied(&pair, 2, 40);
    rig.lose_state();
    let ran = rig.rebuild(&[]).exits(2);
    assert!(ran.err.contains("--yes") && ran.out.contains("found"), "{}{}", ran.out, ran.err);
    let ran = rig.state(&["rebuild", "--source", "mirrror", "--yes"]).exits(2);
    assert!(ran.err.contains("expected one of mirror"), "{}", ran.err);
    let ran = rig.rebuild(&["--topic", "no/such", "--yes"]).exits(2);
    assert!(ran.err.contains(&rig.topic.to_string()), "{}", ran.err);
    let topic = rig.topic.to_string();
    let ran = rig.rebuild(&["--topic", &topic, "--partition", "2", "--yes"]).exits(1);
    assert!(ran.out.contains("has 2 partitions"), "{}", ran.out);
    assert!(!rig.file().exists());
    let report = rig.rebuild(&["--topic", &topic, "--partition", "1", "--yes", "--json"]).json();
    assert_eq!(report["partitions"][0]["partition"], 1);
    assert_eq!(rig.saved(1), Value::Null, "partition 0 was not asked for");
}

#[test]
fn a_cluster_that_is_away_ends_with_4() {
    let Some(brokers) = Loopbacks::start("a_cluster_that_is_away_ends_with_4") else { return };
    let rig = Rig::copied(&brokers.pair, 1, 40);
    rig.lose_state();
    brokers.up.stop();
    let ran = rig.rebuild(&["--yes"]).exits(4);
    assert!(
        ran.err.contains("cluster up") && ran.err.contains("nothing was changed"),
        "{}",
        ran.err
    );
    assert!(!rig.file().exists());
}

#[test]
fn a_destination_that_grows_before_the_save_is_left_alone() {
    let test = "a_destination_that_grows_before_the_save_is_left_alone";
    let Some(brokers) = Loopbacks::start(test) else { return };
    let rig = Rig::copied(&brokers.pair, 1, 40);
    let before = fs::read(rig.file()).expect("a state file");
    // The end has been read, and its answer is on its way, when somebody writes.
    brokers.down.fault_once(Fault::HoldReply, Scope::polls());
    let ran = std::thread::scope(|scope| {
        let command = scope.spawn(|| rig.accept(40));
        eventually(LIMIT, "the first look at the end", || when(brokers.down.held() == 1));
        rig.write_foreign(0, 1);
        brokers.down.release_held();
        command.join().expect("it ends")
    });
    let report = ran.exits(1).json();
    let message = text(&report["error"]["message"]);
    assert!(message.contains("ended at offset 40 and now ends at 41"), "{message}");
    assert_eq!(fs::read(rig.file()).expect("a state file"), before);
}
