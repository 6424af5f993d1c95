//! Destinations that hold something else, are gone, replaced, or not there yet.

use std::time::Duration;

use super::support::{
    Config, Daemon, Pair, Workload, Writer, compare_logs, eventually, soak, throughout, unique,
    when,
};
use super::{Rig, each, limit, loopbacks, number, ready, source, text, write};
use tidegate::batch::TopicName;

/// Creates the destination topic with messages of somebody else in its first partition.
fn foreign(rig: &Rig, messages: u64) {
    rig.pair.down.create_topic(&rig.topic, rig.partitions);
    write(&*rig.pair.down, &rig.topic, &Workload::new(99), 0, 0..messages);
}

#[test]
fn a_filled_destination_without_saved_positions_stops_that_partition() {
    let pair = Pair::start();
    let rig = Rig::new(&pair, 2);
    foreign(&rig, 7);
    rig.write_all(0..50);
    let mut daemon = rig.start();
    let feed = rig.reason(&mut daemon, 0, "nonempty_destination");
    assert_eq!(feed["status"], "Error");
    assert!(text(&feed["detail"]).contains("ends at offset 7"), "{feed:#}");
    rig.ends_at(&mut daemon, 1, 50);
    assert_eq!(rig.down_end(0), 7);
    daemon.stop();
}

#[test]
fn a_copy_may_be_written_behind_what_is_there() {
    let pair = Pair::start();
    let rig = Rig::new(&pair, 1).with(|config| config.source("on_nonempty_destination", "append"));
    foreign(&rig, 1_000);
    rig.write_all(0..50);
    let mut daemon = rig.start();
    rig.ends_at(&mut daemon, 0, 1_050);
    let daemon = {
        daemon.stop();
        rig.write_all(50..60);
        let mut daemon = rig.start();
        rig.ends_at(&mut daemon, 0, 1_060);
        daemon
    };
    daemon.stop();
    let (up, down) = (pair.up.seen(&rig.topic, 0, 0), pair.down.seen(&rig.topic, 0, 1_000));
    assert!(compare_logs(&up, &down).is_exact());
}

#[test]
fn a_foreign_writer_stops_its_partition_and_is_never_papered_over() {
    let pair = Pair::start();
    each(&[true, false], |while_running| {
        let rig = Rig::new(&pair, 2);
        rig.write_all(0..100);
        let mut daemon = rig.start();
        rig.copied(&mut daemon);
        ready(&mut daemon);
        let mut running = Some(daemon);
        if !while_running {
            running.take().map(Daemon::stop);
        }
        write(&*pair.down, &rig.topic, &Workload::new(99), 0, 0..1);
        rig.write_all(100..120);
        let mut daemon = running.unwrap_or_else(|| rig.start());
        let feed = rig.reason(&mut daemon, 0, "diverged");
        assert_eq!(feed["status"], "Error");
        rig.ends_at(&mut daemon, 1, 120);
        let stood_at = rig.down_end(0);
        // Not even after a restart.
        daemon.stop();
        let mut daemon = rig.start();
        rig.reason(&mut daemon, 0, "diverged");
        assert_eq!(rig.down_end(0), stood_at);
        daemon.stop();
    });
}

/// How a destination is lost.
#[derive(Clone, Copy, Debug)]
enum Loss {
    WhileStopped,
    WhileRunning,
}

#[test]
fn a_wiped_destination_stops_the_copy_or_is_filled_again_h29() {
    let pair = Pair::start();
    let cases = [
        (Loss::WhileStopped, "fail"),
        (Loss::WhileStopped, "refill"),
        (Loss::WhileRunning, "fail"),
        (Loss::WhileRunning, "refill"),
    ];
    each(&cases, |(loss, policy)| {
        let rig = Rig::new(&pair, 4).with(|config| config.source("on_destination_lost", *policy));
        rig.write_all(0..100);
        let mut daemon = rig.start();
        rig.copied(&mut daemon);
        ready(&mut daemon);
        let up = std::sync::Arc::clone(&pair.up);
        let writer = Writer::start(up, &rig.topic, 4, 400, 29);
        let mut running = Some(daemon);
        if matches!(loss, Loss::WhileStopped) {
            running.take().map(Daemon::stop);
        }
        pair.down.delete_stream(&rig.topic.stream);
        let mut daemon = running.unwrap_or_else(|| rig.start());
        if *policy == "fail" {
            for partition in 0..4 {
                let feed = rig.reason(&mut daemon, partition, "destination_lost");
                assert_eq!(feed["status"], "Error");
            }
            assert!(pair.down.topic(&rig.topic).is_none(), "nothing is created: {loss:?}");
            daemon.stop();
            return;
        }
        eventually(limit(), "the topic to be made again", || pair.down.topic(&rig.topic));
        std::thread::sleep(Duration::from_millis(500));
        writer.stop();
        rig.copied(&mut daemon);
        ready(&mut daemon);
        daemon.stop();
        rig.assert_exact();
    });
}

#[test]
fn an_empty_cluster_at_another_address_is_not_taken_for_the_old_one_h29() {
    let test = "an_empty_cluster_at_another_address_is_not_taken_for_the_old_one_h29";
    let (Some(brokers), Some(other)) = (loopbacks(test), loopbacks(test)) else { return };
    for (policy, prepared) in [("fail", false), ("fail", true), ("refill", false), ("refill", true)]
    {
        let mut rig = Rig::new(&brokers.pair, 1);
        rig.write_all(0..100);
        let mut daemon = rig.start();
        rig.copied(&mut daemon);
        daemon.stop();
        let moved = Pair { up: brokers.pair.up.clone(), down: other.pair.down.clone() };
        if prepared {
            moved.down.create_topic(&rig.topic, 1);
        }
        rig.config = Config::new(&moved).topic(&rig.topic).source("on_destination_lost", policy);
        rig.pair = moved;
        let mut daemon = rig.start();
        if policy == "fail" {
            rig.reason(&mut daemon, 0, "destination_lost");
            assert_eq!(rig.down_end(0), 0);
            assert_eq!(rig.pair.down.topic(&rig.topic).is_some(), prepared, "nothing is created");
            daemon.stop();
        } else {
            rig.copied(&mut daemon);
            let feed = rig.reason(&mut daemon, 0, "");
            assert_eq!(number(&feed["resets"]), 1, "{feed:#}");
            daemon.stop();
            rig.assert_exact();
        }
    }
}

#[test]
fn a_missing_destination_topic_is_named_and_holds_nobody_else_h34() {
    let pair = Pair::start();
    let stream = unique("e2e");
    let topics = ["first", "missing", "third", "nowhere"].map(|t| TopicName::new(&stream, t));
    let [first, missing, third, nowhere] = &topics;
    let rig = Rig::without_topic(&pair, 1);
    let mut config = Config::new(&pair).source("auto_create", false).daemon("log_level", "info");
    for topic in &topics {
        config = config.topic(topic);
    }
    let rig = rig.with(|_| config);
    for topic in [first, missing, third] {
        pair.up.create_topic(topic, 1);
        write(&*pair.up, topic, &rig.workload, 0, 0..50);
    }
    for topic in [first, third] {
        pair.down.create_topic(topic, 1);
    }
    let mut daemon = rig.start();
    for topic in [first, third] {
        eventually(limit(), "the topics that are there", || when(pair.down.end(topic, 0) == 50));
    }
    let found = eventually(limit(), "both findings", || {
        let findings = source(&daemon, "mirror")?["findings"].as_array()?.clone();
        (findings.len() == 2).then_some(findings)
    });
    for (topic, reason) in [(missing, "waiting_destination"), (nowhere, "waiting_upstream")] {
        let about = |f: &&serde_json::Value| f["topic"]["topic"] == *topic.topic;
        let finding = found.iter().find(about).expect("a finding for each");
        assert_eq!(finding["reason"], reason, "{finding:#}");
        assert!(text(&finding["detail"]).contains(&topic.to_string()), "{finding:#}");
    }
    std::thread::sleep(Duration::from_secs(if soak() { 60 } else { 3 }));
    for topic in [missing, nowhere] {
        let lines = daemon.lines();
        let about = lines.iter().filter(|line| line.contains(&topic.to_string())).count();
        assert!((1..=10).contains(&about), "{about} lines about {topic}");
    }
    assert!(pair.down.topic(missing).is_none());
    pair.down.create_topic(missing, 1);
    eventually(limit(), "the topic that was made", || when(pair.down.end(missing, 0) == 50));
    daemon.assert_running();
    daemon.stop();
    for topic in [first, missing, third] {
        let (up, down) = (pair.up.seen(topic, 0, 0), pair.down.seen(topic, 0, 0));
        assert!(compare_logs(&up, &down).is_exact());
    }
}

#[test]
fn too_few_partitions_hold_those_beyond_until_somebody_adds_them() {
    let pair = Pair::start();
    let rig = Rig::new(&pair, 3).with(|config| config.source("auto_create", false));
    pair.down.create_topic(&rig.topic, 2);
    rig.write_all(0..50);
    let mut daemon = rig.start();
    rig.ends_at(&mut daemon, 0, 50);
    rig.ends_at(&mut daemon, 1, 50);
    let source = rig.source_reason(&mut daemon, "waiting_destination");
    assert!(text(&source["detail"]).contains("has 2 partitions, upstream has 3"), "{source:#}");
    throughout(Duration::from_millis(200), "nobody adds partitions", || {
        pair.down.topic(&rig.topic).is_some_and(|topic| topic.partitions_count == 2)
    });
    pair.down.add_partitions(&rig.topic, 1);
    rig.ends_at(&mut daemon, 2, 50);
    ready(&mut daemon);
    daemon.stop();
    rig.assert_exact();
}
