//! What becomes of a copy when the upstream log is another one, or has lost its beginning.

use std::time::Duration;

use super::support::{Daemon, Loopbacks, Pair, Workload, compare_logs, eventually, throughout};
use super::{Rig, each, limit, loopbacks, number, ready, text, write};

/// How a history ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The topic is deleted and created again.
    Recreated,
    /// The topic is emptied and stays the same topic.
    Purged,
}

#[derive(Debug)]
struct Case {
    end: End,
    while_running: bool,
    /// Messages of the new history; the old one had a hundred.
    messages: u64,
}

const CASES: [Case; 8] = [
    Case { end: End::Recreated, while_running: true, messages: 140 },
    Case { end: End::Recreated, while_running: true, messages: 30 },
    Case { end: End::Recreated, while_running: false, messages: 140 },
    Case { end: End::Recreated, while_running: false, messages: 30 },
    Case { end: End::Purged, while_running: true, messages: 140 },
    Case { end: End::Purged, while_running: true, messages: 30 },
    Case { end: End::Purged, while_running: false, messages: 140 },
    Case { end: End::Purged, while_running: false, messages: 30 },
];

/// A copy of a hundred messages whose upstream then starts a new history.
fn changed(pair: &Pair, case: &Case, policy: &str) -> (Rig, Daemon) {
    let rig = Rig::new(pair, 1).with(|config| config.source("on_history_changed", policy));
    rig.write(0, 0..100);
    let mut daemon = rig.start();
    rig.copied(&mut daemon);
    ready(&mut daemon);
    let mut running = Some(daemon);
    if !case.while_running {
        running.take().map(Daemon::stop);
    }
    match case.end {
        End::Recreated => {
            pair.up.delete_topic(&rig.topic);
            if let Some(daemon) = &mut running {
                rig.reason(daemon, 0, "waiting_upstream");
            }
            pair.up.create_topic(&rig.topic, 1);
        }
        End::Purged => pair.up.purge(&rig.topic),
    }
    let other = Workload::new(fastrand::u64(..));
    write(&*pair.up, &rig.topic, &other, 0, 0..case.messages);
    let daemon = running.unwrap_or_else(|| rig.start());
    (rig, daemon)
}

#[test]
fn another_history_stops_the_copy_and_leaves_the_destination_alone() {
    let pair = Pair::start();
    each(&CASES, |case| {
        let (rig, mut daemon) = changed(&pair, case, "fail");
        let feed = rig.reason(&mut daemon, 0, "history_changed");
        assert_eq!(feed["status"], "Error");
        assert!(text(&feed["advice"]).contains("on_history_changed"), "{feed:#}");
        assert_eq!(rig.down_end(0), 100, "{case:?}");
        // Nor does a restart forget it.
        daemon.stop();
        let mut daemon = rig.start();
        rig.reason(&mut daemon, 0, "history_changed");
        assert_eq!(rig.down_end(0), 100, "{case:?}");
        daemon.stop();
    });
}

#[test]
fn another_history_is_copied_behind_the_old_one_when_told_so() {
    let pair = Pair::start();
    each(&CASES, |case| {
        let (rig, mut daemon) = changed(&pair, case, "restart");
        rig.ends_at(&mut daemon, 0, 100 + case.messages);
        let feed = eventually(limit(), "the position", || {
            daemon.feed(&rig.topic, 0).filter(|feed| feed["position"] == case.messages)
        });
        assert_eq!((number(&feed["resets"]), &feed["delta"]), (1, &100.into()), "{feed:#}");
        write(&*pair.up, &rig.topic, &rig.workload, 0, case.messages..case.messages + 10);
        rig.ends_at(&mut daemon, 0, 110 + case.messages);
        daemon.stop();
        let copy = rig.pair.down.seen(&rig.topic, 0, 100);
        let report = compare_logs(&rig.pair.up.seen(&rig.topic, 0, 0), &copy);
        assert!(report.is_exact(), "{case:?}: {report}");
    });
}

#[test]
fn a_missing_upstream_topic_is_waited_for_and_copied_from_its_first_message() {
    let pair = Pair::start();
    let rig = Rig::without_topic(&pair, 2);
    // It appears after the start, so where a first start begins does not concern it.
    let rig = rig.with(|config| config.source("initial_offset", "latest"));
    let mut daemon = rig.start();
    let source = rig.source_reason(&mut daemon, "waiting_upstream");
    assert_eq!(source["status"], "Degraded");
    assert!(text(&source["detail"]).contains(&rig.topic.to_string()), "{source:#}");
    pair.up.create_topic(&rig.topic, 2);
    rig.write_all(0..50);
    rig.copied(&mut daemon);
    ready(&mut daemon);
    daemon.stop();
    rig.assert_exact();
}

#[test]
fn a_missing_upstream_topic_is_created_or_stops_the_source_by_policy() {
    let pair = Pair::start();
    let rig =
        Rig::without_topic(&pair, 1).with(|config| config.source("on_missing_upstream", "create"));
    let mut daemon = rig.start();
    eventually(limit(), "both topics", || {
        pair.up.topic(&rig.topic).and(pair.down.topic(&rig.topic))
    });
    rig.write(0, 0..10);
    rig.copied(&mut daemon);
    daemon.stop();
    rig.assert_exact();

    let rig =
        Rig::without_topic(&pair, 1).with(|config| config.source("on_missing_upstream", "fail"));
    let mut daemon = rig.start();
    let source = rig.source_reason(&mut daemon, "missing_upstream");
    assert_eq!(source["status"], "Error");
    daemon.stop();
    assert!(pair.up.topic(&rig.topic).is_none() && pair.down.topic(&rig.topic).is_none());
}

/// H28's figures: copied to 99, written to 500, retention up to 300.
fn expired(brokers: &Loopbacks, policy: &str) -> (Rig, Daemon) {
    let rig = Rig::new(&brokers.pair, 2).with(|c| c.source("on_offset_expired", policy));
    rig.write_all(0..100);
    let mut daemon = rig.start();
    rig.copied(&mut daemon);
    daemon.stop();
    rig.write(0, 100..500);
    rig.write(1, 100..200);
    let retained = brokers.up.retain_from(&rig.topic.stream, &rig.topic.topic, 0, 300);
    assert_eq!((retained, rig.pair.up.dump(&rig.topic, 0, 0)[0].offset), (Ok(()), 300));
    let daemon = rig.start();
    (rig, daemon)
}

#[test]
fn what_retention_took_becomes_one_gap_that_everybody_sees_h28() {
    let Some(brokers) = loopbacks("what_retention_took_becomes_one_gap_h28") else { return };
    let (rig, mut daemon) = expired(&brokers, "earliest_available");
    rig.ends_at(&mut daemon, 0, 300);
    rig.ends_at(&mut daemon, 1, 200);
    let feed = eventually(limit(), "the gap", || {
        daemon.feed(&rig.topic, 0).filter(|feed| feed["gaps"] == 1 && feed["lag_messages"] == 0)
    });
    assert_eq!((number(&feed["gap_messages"]), &feed["delta"]), (200, &(-200).into()), "{feed:#}");
    let gap = &feed["recent_gaps"][0];
    assert_eq!((number(&gap["first"]), number(&gap["last"])), (100, 299), "{feed:#}");
    let metrics = daemon.get("/metrics").expect("metrics").1;
    let counted = "tidegate_mirror_gap_messages_total{source=\"mirror\"} 200\n";
    assert!(metrics.contains(counted), "{metrics}");
    let log = daemon.lines().join("\n");
    assert!(log.contains("retention removed messages"), "{log}");
    daemon.stop();
    let copy = rig.pair.down.seen(&rig.topic, 0, 100);
    let report = compare_logs(&rig.pair.up.seen(&rig.topic, 0, 0), &copy);
    assert!(report.is_exact() && report.messages == 200, "{report}");

    // The state has it once, and a restart finds nothing new.
    let (mut daemon, file) = (rig.start(), rig.home.config_file().display().to_string());
    ready(&mut daemon);
    rig.write(0, 500..510);
    rig.ends_at(&mut daemon, 0, 310);
    daemon.stop();
    let (code, shown, _) = rig.home.run(&["state", "show", "--json", "--config", &file]);
    let shown: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
    let feed = &shown["sources"][0]["feeds"][0];
    let gaps = (number(&feed["counters"]["gaps"]), feed["gaps"].as_array().map(Vec::len));
    assert_eq!((code, gaps), (0, (1, Some(1))), "{shown:#}");
}

#[test]
fn what_retention_took_stops_that_partition_alone_when_told_so_h28() {
    let Some(brokers) = loopbacks("what_retention_took_stops_that_partition_h28") else { return };
    let (rig, mut daemon) = expired(&brokers, "fail");
    let feed = rig.reason(&mut daemon, 0, "offset_expired");
    assert!(text(&feed["detail"]).contains("100 to 299"), "{feed:#}");
    rig.ends_at(&mut daemon, 1, 200);
    throughout(Duration::from_millis(200), "nothing goes on behind the gap", || {
        rig.down_end(0) == 100
    });
    daemon.stop();
}

#[test]
fn retention_while_running_is_a_gap_too() {
    let Some(brokers) = loopbacks("retention_while_running_is_a_gap_too") else { return };
    let rig = Rig::new(&brokers.pair, 1);
    rig.write(0, 0..100);
    let mut daemon = rig.start();
    rig.copied(&mut daemon);
    // Out of reach long enough for retention to overtake.
    brokers.up.stop();
    rig.source_reason(&mut daemon, "upstream_unreachable");
    rig.write(0, 100..400);
    brokers.up.retain_from(&rig.topic.stream, &rig.topic.topic, 0, 250).expect("a partition");
    brokers.up.start().expect("a free port");
    rig.ends_at(&mut daemon, 0, 250);
    let feed = eventually(limit(), "the gap", || {
        daemon.feed(&rig.topic, 0).filter(|feed| feed["gaps"] == 1)
    });
    assert_eq!(number(&feed["gap_messages"]), 150, "{feed:#}");
    daemon.stop();
}

#[test]
fn partitions_added_while_running_are_copied_from_their_first_message() {
    let pair = Pair::start();
    let rig = Rig::new(&pair, 1).with(|config| config.source("initial_offset", "latest"));
    rig.write(0, 0..20);
    let mut daemon = rig.start();
    rig.reason(&mut daemon, 0, "");
    pair.up.add_partitions(&rig.topic, 2);
    for partition in [1, 2] {
        rig.write(partition, 0..50);
    }
    for partition in [1, 2] {
        rig.ends_at(&mut daemon, partition, 50);
    }
    rig.write(0, 20..30);
    rig.ends_at(&mut daemon, 0, 10);
    let count = pair.down.topic(&rig.topic).map(|topic| topic.partitions_count);
    assert_eq!(count, Some(3));
    // And those added while it was stopped.
    daemon.stop();
    pair.up.add_partitions(&rig.topic, 1);
    rig.write(3, 0..50);
    let mut daemon = rig.start();
    rig.ends_at(&mut daemon, 3, 50);
    daemon.stop();
    for partition in 1..4 {
        let (up, down) =
            (pair.up.seen(&rig.topic, partition, 0), pair.down.seen(&rig.topic, partition, 0));
        assert!(compare_logs(&up, &down).is_exact());
    }
    let down = pair.down.seen(&rig.topic, 0, 0);
    let up = pair.up.seen(&rig.topic, 0, 20);
    assert!(compare_logs(&up, &down).is_exact());
}
