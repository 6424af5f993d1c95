//! Where a copy begins, and that a restart goes on there.

use std::collections::BTreeMap;
use std::time::Duration;

use tidegate::loopback::{Fault, Scope, Times};

use super::support::{Pair, compare_logs, eventually, skipped, throughout, when};
use super::{Rig, each, limit, loopbacks, number, ready};

#[test]
fn initial_offset_decides_where_a_first_start_begins_and_nothing_else() {
    let pair = Pair::start();
    let at = |offset: i64| toml::Value::from(offset);
    let cases = [("earliest".into(), 0), ("latest".into(), 100), (at(30), 30), (at(100), 100)];
    each(&cases, |(value, first)| {
        let mut rig =
            Rig::new(&pair, 1).with(|config| config.source("initial_offset", value.clone()));
        rig.write(0, 0..100);
        let mut daemon = rig.start();
        let feed = eventually(limit(), "the start", || {
            daemon.assert_running();
            let feed = daemon.feed(&rig.topic, 0)?;
            (feed["status"] == "Running" && feed["position"] == 100).then_some(feed)
        });
        assert_eq!(number(&feed["lag_messages"]), 0, "{feed:#}");
        rig.write(0, 100..150);
        rig.ends_at(&mut daemon, 0, 150 - first);
        daemon.stop();
        // A saved position wins over whatever is configured now.
        for (value, written) in [("earliest", 150), ("latest", 160)] {
            rig.set(|config| config.source("initial_offset", value));
            rig.write(0, written..written + 10);
            let mut daemon = rig.start();
            rig.ends_at(&mut daemon, 0, written + 10 - first);
            daemon.stop();
        }
        let (up, down) = (pair.up.seen(&rig.topic, 0, *first), pair.down.seen(&rig.topic, 0, 0));
        let report = compare_logs(&up, &down);
        assert!(report.is_exact(), "{report}");
    });
}

#[test]
fn what_latest_resolved_to_outlives_a_kill_before_the_first_message() {
    let pair = Pair::start();
    let rig = Rig::new(&pair, 1).with(|config| config.source("initial_offset", "latest"));
    rig.write(0, 0..100);
    let mut daemon = rig.start();
    rig.reason(&mut daemon, 0, "");
    daemon.kill();
    rig.write(0, 100..130);
    let mut daemon = rig.start();
    rig.ends_at(&mut daemon, 0, 30);
    daemon.stop();
    let (up, down) = (pair.up.seen(&rig.topic, 0, 100), pair.down.seen(&rig.topic, 0, 0));
    assert!(compare_logs(&up, &down).is_exact());
}

#[test]
fn orderly_restarts_resend_nothing_and_idle_ones_add_nothing_h02() {
    let pair = Pair::start();
    let rig = Rig::new(&pair, 2);
    rig.write(0, 0..100);
    let mut daemon = rig.start();
    rig.ends_at(&mut daemon, 0, 100);
    daemon.stop();
    let (stream, topic) = (&*rig.topic.stream, &*rig.topic.topic);
    let sends = || {
        let control = pair.down.control()?;
        control.counters(stream, topic, 0).ok().map(|counters| counters.sends_received)
    };
    let sent = sends();
    for _ in 0..3 {
        let mut daemon = rig.start();
        ready(&mut daemon);
        let idle = Duration::from_millis(if super::support::soak() { 30_000 } else { 300 });
        throughout(idle, "nothing is added", || rig.down_end(0) == 100);
        daemon.stop();
        assert_eq!(sends(), sent, "nothing was even tried");
    }
    let mut daemon = rig.start();
    rig.write(0, 100..101);
    rig.ends_at(&mut daemon, 0, 101);
    daemon.stop();
    rig.assert_exact();
}

#[test]
fn an_orderly_restart_of_a_busy_mirror_resends_nothing_h02() {
    let test = "an_orderly_restart_of_a_busy_mirror_resends_nothing_h02";
    let Some(brokers) = loopbacks(test) else { return };
    let rig = Rig::new(&brokers.pair, 2);
    rig.write_all(0..2_000);
    // Slow enough to be stopped in the middle.
    let slow = Fault::Slow(Duration::from_millis(20));
    brokers.down.fault(slow, Scope::sends(), Times::UntilCleared);
    let rig = rig.with(|config| config.source("max_batch_bytes", "16KiB"));
    for round in 1..=3 {
        let mut daemon = rig.start();
        eventually(limit(), "a few hundred messages", || {
            when(rig.down_end(0) > 200 * round && rig.down_end(1) > 200 * round)
        });
        let ended = daemon.terminate();
        assert!(ended.status.success(), "{}", ended.status);
    }
    brokers.down.clear_all();
    let mut daemon = rig.start();
    rig.copied(&mut daemon);
    daemon.stop();
    rig.assert_exact();
    for partition in 0..2 {
        let counters = brokers.down.counters(&rig.topic.stream, &rig.topic.topic, partition);
        let counters = counters.expect("a partition");
        assert_eq!(counters.sends_received, counters.sends_applied);
    }
}

#[test]
fn a_changed_number_of_shards_keeps_every_position() {
    let pair = Pair::start();
    let mut rig = Rig::new(&pair, 4);
    let mut written = 0;
    for (round, shards) in [2_i64, 1, 2].into_iter().enumerate() {
        let allowed = std::thread::available_parallelism().map_or(1, usize::from);
        if allowed < 2 && shards > 1 {
            skipped("two shards", "this process may run on one CPU only");
            continue;
        }
        rig.set(|config| config.daemon("shards", shards));
        rig.write_all(written..written + 50);
        written += 50;
        let mut daemon = rig.start();
        rig.copied(&mut daemon);
        let shown = eventually(limit(), "all feeds", || {
            let feeds: Option<BTreeMap<u64, u64>> = (0..4)
                .map(|partition| {
                    let feed = daemon.feed(&rig.topic, partition)?;
                    let at = number(&feed["position"]) == written;
                    at.then(|| (u64::from(partition), number(&feed["shard"])))
                })
                .collect();
            feeds
        });
        let used: std::collections::BTreeSet<_> = shown.values().collect();
        assert_eq!(used.len() as i64, shards, "round {round}: {shown:?}");
        // Every second time the last save tells of no clean stop.
        if round == 1 {
            eventually(limit(), "a save", || {
                when((0..4).all(|partition| {
                    let feed = daemon.feed(&rig.topic, partition);
                    feed.is_some_and(|feed| feed["durable_position"] == written)
                }))
            });
            daemon.kill();
        } else {
            daemon.stop();
        }
    }
    rig.assert_exact();
}
