//! What a person or a monitor sees while a daemon runs.

use std::time::Duration;

use super::support::{Daemon, Pair, Workload, eventually, soak, throughout, when};
use super::{Rig, limit, loopbacks, number, ready, write};

fn code(daemon: &Daemon, method: &str, path: &str) -> u16 {
    daemon.ask(method, path).unwrap_or_else(|error| panic!("{method} {path}: {error}")).0
}

#[test]
fn a_running_daemon_answers_every_path_and_no_other() {
    let pair = Pair::start();
    let rig = Rig::new(&pair, 2);
    rig.write_all(0..50);
    let mut daemon = rig.start();
    rig.copied(&mut daemon);
    ready(&mut daemon);
    let mut paths = vec!["/livez", "/readyz", "/status", "/status/schema.json", "/metrics"];
    paths.extend(["/connectors", "/connectors/mirror", "/connectors/mirror/destinations"]);
    for path in paths {
        assert_eq!((code(&daemon, "GET", path), code(&daemon, "HEAD", path)), (200, 200), "{path}");
        assert_eq!(code(&daemon, "POST", path), 401, "{path}");
        assert_eq!(daemon.order(path).expect("an answer").0, 405, "{path}");
    }
    for path in ["/", "/nope", "/status/", "/metricsx"] {
        assert_eq!(code(&daemon, "GET", path), 404, "{path}");
    }
    let copied = eventually(limit(), "the figures", || {
        let shown = daemon.status()?;
        (shown["sources"][0]["totals"]["messages"] == 100).then_some(shown)
    });
    let feeds = copied["sources"][0]["feeds"].as_array().expect("feeds");
    assert_eq!(feeds.len(), 2);
    for feed in feeds {
        assert_eq!((&feed["status"], &feed["reason"]), (&"Running".into(), &"".into()));
        assert_eq!(number(&feed["position"]), 50);
        assert_eq!((number(&feed["lag_messages"]), number(&feed["upstream_end"])), (0, 50));
    }
    assert_eq!(copied["daemon"]["pid"], daemon.id());
    let metrics = daemon.get("/metrics").expect("metrics").1;
    for line in [
        "tidegate_source_status{source=\"mirror\",status=\"Running\"} 1\n",
        "tidegate_source_status{source=\"mirror\",status=\"Error\"} 0\n",
        "tidegate_mirror_messages_total{source=\"mirror\"} 100\n",
        "tidegate_mirror_lag_messages{source=\"mirror\"} 0\n",
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
    assert!(!metrics.contains(&*rig.topic.stream), "no label grows with topics");
    daemon.stop();
}

#[test]
fn a_pause_outlives_the_daemon_and_a_resume_copies_the_rest() {
    let pair = Pair::start();
    let rig = Rig::new(&pair, 2);
    rig.write_all(0..50);
    let mut daemon = rig.start();
    rig.copied(&mut daemon);
    assert_eq!(code(&daemon, "POST", "/sources/mirror/pause"), 401, "and nothing was changed");
    ready(&mut daemon);
    assert_eq!(daemon.order("/sources/nobody/pause").expect("an answer").0, 404);
    assert_eq!(daemon.order("/sources/mirror/pause").expect("an answer").0, 200);
    rig.reason(&mut daemon, 0, "paused");
    rig.reason(&mut daemon, 1, "paused");
    rig.write_all(50..80);
    throughout(Duration::from_secs(1), "no message past a pause", || rig.down_end(0) == 50);
    daemon.stop();
    let mut daemon = rig.start();
    let feed = rig.reason(&mut daemon, 0, "paused");
    assert_eq!(feed["status"], "Stopped");
    throughout(Duration::from_secs(1), "no message past a pause", || rig.down_end(0) == 50);
    assert_eq!(daemon.order("/sources/mirror/resume").expect("an answer").0, 200);
    rig.copied(&mut daemon);
    assert_eq!(daemon.order("/sources/mirror/restart").expect("an answer").0, 200);
    rig.write_all(80..90);
    rig.copied(&mut daemon);
    rig.assert_exact();
    daemon.kill();
    let mut daemon = rig.start();
    ready(&mut daemon);
    daemon.stop();
}

#[test]
fn nothing_that_is_shown_or_logged_holds_a_password() {
    let Some(brokers) = loopbacks("nothing_that_is_shown_holds_a_password") else { return };
    let rig = Rig::new(&brokers.pair, 1);
    let secret = "hunter2-hunter2";
    let config = rig.config.text(&rig.home);
    let config = config.replacen(
        "\"iggy\"\npassword = \"iggy\"",
        &format!("\"iggy\"\npassword = \"{secret}\""),
        1,
    );
    assert!(config.contains(secret));
    let mut daemon = super::refusals::start_with_text(&rig.home, &config);
    let source = rig.source_reason(&mut daemon, "login_refused");
    assert_eq!(source["status"], "Degraded");
    for path in ["/status", "/readyz", "/metrics"] {
        let body = daemon.get(path).expect("an answer").1;
        assert!(!body.contains(secret), "{path} shows the password: {body}");
    }
    let log = daemon.lines().join("\n");
    assert!(log.contains("login_refused") && !log.contains(secret), "{log}");
    daemon.stop();
}

/// Lag of the partition, from status and from the metric, once both agree.
fn lag(daemon: &mut Daemon, rig: &Rig, expected: u64) {
    eventually(limit(), &format!("a lag of {expected}"), || {
        daemon.assert_running();
        let shown = daemon.feed(&rig.topic, 0)?;
        let line = format!("tidegate_mirror_lag_messages{{source=\"mirror\"}} {expected}\n");
        let metrics = daemon.get("/metrics").ok()?.1;
        when(shown["lag_messages"] == expected && metrics.contains(&line))
    });
}

#[test]
fn lag_is_what_is_left_to_copy_whatever_the_offsets_are_h32() {
    let test = "lag_is_what_is_left_to_copy_whatever_the_offsets_are_h32";
    let Some(brokers) = loopbacks(test) else { return };
    let rig = Rig::new(&brokers.pair, 1).with(|config| {
        config.source("on_nonempty_destination", "append").source("on_history_changed", "restart")
    });
    let (stream, topic) = (&*rig.topic.stream, &*rig.topic.topic);
    // A destination far ahead of upstream.
    rig.pair.down.create_topic(&rig.topic, 1);
    write(&*rig.pair.down, &rig.topic, &Workload::new(99), 0, 0..1_000);
    rig.write(0, 0..10);
    let mut daemon = rig.start();
    rig.ends_at(&mut daemon, 0, 1_010);
    lag(&mut daemon, &rig, 0);
    // Retention.
    rig.write(0, 10..200);
    rig.ends_at(&mut daemon, 0, 1_200);
    brokers.up.retain_from(stream, topic, 0, 200).expect("a partition");
    lag(&mut daemon, &rig, 0);
    // A destination that is away: everything written meanwhile.
    brokers.down.stop();
    rig.source_reason(&mut daemon, "destination_unreachable");
    rig.write(0, 200..230);
    lag(&mut daemon, &rig, 30);
    brokers.down.start().expect("a free port");
    lag(&mut daemon, &rig, 0);
    // A new history that is shorter.
    brokers.up.recreate(stream, topic).expect("a topic");
    write(&*rig.pair.up, &rig.topic, &Workload::new(7), 0, 0..5);
    rig.ends_at(&mut daemon, 0, 1_235);
    lag(&mut daemon, &rig, 0);
    // Idle.
    let idle = Duration::from_secs(if soak() { 120 } else { 2 });
    throughout(idle, "no lag on an idle topic", || {
        daemon
            .feed(&rig.topic, 0)
            .is_some_and(|feed| feed["lag_messages"] == 0 && feed["status"] == "Running")
    });
    daemon.stop();
}

#[test]
fn without_io_uring_a_full_copy_runs_on_epoll_and_says_so_once_h35() {
    let pair = Pair::start();
    let rig = Rig::new(&pair, 4);
    rig.write_all(0..1_000);
    let mut daemon = Daemon::start_with(&rig.home, &rig.config, &[("TIDEGATE_IO_DRIVER", "epoll")]);
    rig.copied(&mut daemon);
    rig.write_all(1_000..1_050);
    rig.copied(&mut daemon);
    eventually(limit(), "every shard on epoll", || {
        let status = daemon.status()?;
        when(status["shards"].as_array()?.iter().all(|shard| shard["io_driver"] == "epoll"))
    });
    let lines = daemon.lines();
    let told = lines.iter().filter(|line| line.contains("io_uring is not used")).count();
    assert_eq!(told, 1, "{}", lines.join("\n"));
    daemon.stop();
    rig.assert_exact();
}

#[test]
fn a_source_that_rests_makes_and_grows_no_topic() {
    let pair = Pair::start();
    let rig = Rig::new(&pair, 1).with(|config| config.source("discovery_interval", "100ms"));
    rig.write_all(0..20);
    let mut daemon = rig.start();
    rig.copied(&mut daemon);
    assert_eq!(daemon.order("/sources/mirror/pause").expect("an answer").0, 200);
    rig.reason(&mut daemon, 0, "paused");
    pair.up.add_partitions(&rig.topic, 2);
    let count = || pair.down.topic(&rig.topic).map(|topic| topic.partitions_count);
    throughout(Duration::from_secs(1), "no partition is added", || count() == Some(1));
    assert_eq!(daemon.order("/sources/mirror/restart").expect("an answer").0, 200);
    throughout(Duration::from_secs(1), "nor by a restart", || count() == Some(1));
    daemon.stop();
    // A topic that nothing is saved of, found by a start that rests.
    let state = rig.home.state_dir().join("mirror.0.state");
    std::fs::remove_file(state).expect("a state file");
    pair.down.delete_stream(&rig.topic.stream);
    let mut daemon = rig.start();
    rig.source_reason(&mut daemon, "paused");
    throughout(Duration::from_secs(1), "no topic is made", || count().is_none());
    assert_eq!(daemon.order("/sources/mirror/resume").expect("an answer").0, 200);
    eventually(limit(), "three partitions", || when(count() == Some(3)));
    rig.copied(&mut daemon);
    daemon.stop();
}

#[test]
fn a_pause_that_cannot_be_seen_or_written_is_a_pause_or_a_refusal() {
    let pair = Pair::start();
    let rig = Rig::new(&pair, 1);
    rig.write_all(0..20);
    let fault = |rules: &str| {
        let environment = [("TIDEGATE_FAULT_FILES", rules)];
        Daemon::start_with(&rig.home, &rig.config, &environment)
    };
    let mut daemon = fault("mark_look:eio");
    let shown = rig.source_reason(&mut daemon, "pause_unknown");
    assert_eq!(shown["status"], "Error");
    let detail = shown["detail"].as_str().expect("text");
    assert!(detail.contains("mirror.paused"), "{detail}");
    throughout(Duration::from_secs(1), "it rests", || rig.pair.down.topic(&rig.topic).is_none());
    assert_eq!(daemon.order("/sources/mirror/resume").expect("an answer").0, 200);
    rig.copied(&mut daemon);
    ready(&mut daemon);
    daemon.stop();
    // What is refused has changed nothing, also for the next start.
    for step in ["mark", "mark_sync", "mark_sync_dir"] {
        let mut daemon = fault(&format!("{step}:enospc"));
        ready(&mut daemon);
        let (code, body) = daemon.order("/sources/mirror/pause").expect("an answer");
        assert_eq!(code, 500, "{step}: {body}");
        daemon.kill();
        let mut daemon = rig.start();
        ready(&mut daemon);
        daemon.stop();
    }
}
