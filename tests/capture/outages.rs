//! Destinations that fail, one of them or all: the others flow, nothing is confirmed too early.

use std::time::{Duration, Instant};

use tidegate::loopback::Control;
use tidegate::loopback::faults::{Fault, Scope, Times};

use super::stage::{Stage, limit};
use super::support::{Daemon, Proxy, eventually, soak, throughout, when};
use super::switches::{destination, once, row_ids, sends_met, sends_to};

const EVENTS: &str = "create table events (id bigint primary key, kind text, note text)";

/// By `kind`, with these lines in `[routing]` and behind it.
fn routed(more: &str) -> String {
    format!(
        "tables = [\"public.events\"]\ndegraded_after = \"2s\"\n[sources.shop.routing]\n\
         topic_column = \"kind\"\ndefault_topic = \"unknown\"\ndefault_stream = \"$stream\"\n{more}"
    )
}

const BREAKER: &str = "partition_by = \"identity\"\n\
                       [sources.shop.routing.topic_defaults]\npartitions_count = 4\n\
                       [sources.shop.routing.circuit_breaker]\nfailure_threshold = 3\n\
                       cool_down = \"1s\"\n";

/// Rows of two kinds in turn, each a transaction: even ids are `a`, odd ones `b`.
fn write(stage: &Stage, ids: std::ops::Range<i64>) {
    let row = |id: i64| {
        let kind = if id % 2 == 0 { "a" } else { "b" };
        format!("insert into events values ({id}, '{kind}', '');")
    };
    stage.pg.sql(&ids.map(row).collect::<String>());
}

/// Waits until a topic has exactly these rows, whatever the order; they come back as they lie.
#[track_caller]
fn rows(stage: &Stage, daemon: &mut Daemon, topic: &str, ids: &[i64]) -> Vec<Vec<i64>> {
    let logs = eventually(limit(), &format!("{} rows in {topic}", ids.len()), || {
        daemon.assert_running();
        let logs: Vec<_> = stage.got_in(&stage.topic(topic)).into_iter().map(once).collect();
        (logs.iter().map(Vec::len).sum::<usize>() >= ids.len()).then_some(logs)
    });
    let logs: Vec<Vec<i64>> = logs.iter().map(|log| row_ids(log)).collect();
    let mut all = logs.concat();
    all.sort_unstable();
    assert_eq!(all, ids, "{topic}");
    logs
}

fn of_kind(ids: std::ops::Range<i64>, odd: i64) -> Vec<i64> {
    ids.filter(|id| id % 2 == odd).collect()
}

/// Every partition's rows in the order in which they were committed.
#[track_caller]
fn in_order(logs: &[Vec<i64>]) {
    for log in logs {
        assert!(log.is_sorted(), "{log:?}");
    }
}

#[test]
fn a_black_hole_opens_its_breaker_alone_and_one_probe_closes_it() {
    let test = "a_black_hole_opens_its_breaker_alone_and_one_probe_closes_it";
    let mut stage = Stage::new(EVENTS, &routed(BREAKER));
    let Some(control) = stage.switches(test) else { return };
    stage.cluster = "request_timeout = \"300ms\"".to_owned();
    let mut daemon = stage.streaming();
    write(&stage, 0..8);
    rows(&stage, &mut daemon, "b", &of_kind(0..8, 1));
    stage.wait_confirmed_of(&mut daemon, "shop");
    control.fault(Fault::DropRequest, sends_to(&stage, "b"), Times::UntilCleared);
    stage.pg.sql("insert into events values (8, 'a', ''); insert into events values (9, 'b', '')");
    let held = stage.insert_lsn();
    write(&stage, 10..40);
    rows(&stage, &mut daemon, "a", &of_kind(0..40, 0));
    let topic = stage.topic("b").to_string();
    stage.degraded(&mut daemon, "shop", &["circuit_open", &topic]);
    let shown = destination(&daemon, "shop", "b").expect("the destination");
    assert_eq!(shown["state"], "circuit_open", "{shown:#}");
    // Others flow while it is open.
    write(&stage, 40..60);
    rows(&stage, &mut daemon, "a", &of_kind(0..60, 0));
    throughout(Duration::from_millis(2_500), "the slot waits", || stage.confirmed() < held);
    assert!(
        stage.got("b").len() == 4
            && destination(&daemon, "shop", "a").expect("a")["breaker"] == "closed"
    );
    probes_keep_their_distance(&control);
    control.clear_all();
    in_order(&rows(&stage, &mut daemon, "b", &of_kind(0..60, 1)));
    stage.wait_confirmed_of(&mut daemon, "shop");
    stage.running(&mut daemon, "shop");
    let shown = destination(&daemon, "shop", "b").expect("the destination");
    assert_eq!((&shown["breaker"], &shown["trips"]), (&"closed".into(), &1.into()), "{shown:#}");
    assert_eq!(stage.got("b").len(), 30, "what was never applied is there once");
    in_order(&rows(&stage, &mut daemon, "a", &of_kind(0..60, 0)));
    let again = |line: &String| line.contains("takes messages again");
    assert_eq!(daemon.lines().iter().filter(|line| again(line)).count(), 1);
    daemon.stop();
}

/// Once open, one try after each pause, although four partitions wait.
fn probes_keep_their_distance(control: &Control) {
    let met: Vec<u64> = sends_met(control).into_iter().map(|(_, _, at)| at).collect();
    // Up to four sends were out when the third failure opened it.
    let probes: Vec<u64> = met.windows(2).map(|pair| pair[1] - pair[0]).rev().take(2).collect();
    assert!(probes.len() == 2 && met.len() < 16, "{met:?}");
    assert!(probes.iter().all(|apart| *apart >= 1_000_000), "{probes:?}");
}

#[test]
fn a_destination_that_takes_and_never_answers_gets_the_same_messages_again() {
    let test = "a_destination_that_takes_and_never_answers_gets_the_same_messages_again";
    let mut stage = Stage::new(EVENTS, &routed(BREAKER));
    let Some(control) = stage.switches(test) else { return };
    stage.cluster = "request_timeout = \"300ms\"".to_owned();
    let mut daemon = stage.streaming();
    write(&stage, 0..4);
    rows(&stage, &mut daemon, "b", &[1, 3]);
    control.fault(Fault::HoldReply, sends_to(&stage, "b"), Times::UntilCleared);
    write(&stage, 4..20);
    rows(&stage, &mut daemon, "a", &of_kind(0..20, 0));
    let topic = stage.topic("b").to_string();
    stage.degraded(&mut daemon, "shop", &["circuit_open", &topic]);
    control.clear_all();
    in_order(&rows(&stage, &mut daemon, "b", &of_kind(0..20, 1)));
    stage.wait_confirmed_of(&mut daemon, "shop");
    assert!(stage.got("b").len() > 10, "something was repeated");
    stage.running(&mut daemon, "shop");
    daemon.stop();
}

#[test]
fn a_written_policy_covers_what_comes_while_a_breaker_is_open() {
    let test = "a_written_policy_covers_what_comes_while_a_breaker_is_open";
    let long = "[sources.$key.routing.circuit_breaker]\nfailure_threshold = 2\n\
                cool_down = \"60s\"\n[sources.$key.routing.admission]\non_admission_failure = ";
    let letters = "\"dead_letter\"\ndead_letter = { stream = \"$stream\", topic = \"dead\" }\n";
    let mut stage =
        Stage::new(EVENTS, &routed(&format!("{long}{letters}")).replace("$key", "shop"));
    let Some(control) = stage.switches(test) else { return };
    let drop = routed(&format!("{long}\"drop\"\n")).replace("sources.shop", "sources.drop");
    stage.add_source("drop", &drop.replace("$key", "drop"));
    let mut daemon = stage.all_streaming(2);
    write(&stage, 0..4);
    rows(&stage, &mut daemon, "b", &[1, 3]);
    eventually(limit(), "the other source", || when(stage.got_of("drop", "b").len() == 2));
    let refuse = Fault::Reject { code: 3, applied: false };
    for stream in [stage.stream.clone(), stage.stream_of("drop")] {
        control.fault(refuse, Scope::sends().topic(&stream, "b"), Times::UntilCleared);
    }
    write(&stage, 4..6);
    for key in ["shop", "drop"] {
        stage.degraded(&mut daemon, key, &["circuit_open", "/b"]);
    }
    write(&stage, 6..10);
    let dead = eventually(limit(), "dead letters", || {
        let dead = stage.got("dead");
        (dead.len() >= 2).then_some(dead)
    });
    assert_eq!(row_ids(&dead), [7, 9]);
    for letter in &dead {
        assert_eq!(letter.text("tidegate_reason"), "circuit_open");
        assert_eq!(letter.text("tidegate_topic"), "b");
    }
    for key in ["shop", "drop"] {
        stage.rejected(&mut daemon, key, "circuit_open", 2);
    }
    rows(&stage, &mut daemon, "a", &[0, 2, 4, 6, 8]);
    assert_eq!(row_ids(&stage.got("b")), [1, 3], "what waited before it opened still waits");
    daemon.stop();
}

#[test]
fn lost_connections_trip_no_breaker() {
    let test = "lost_connections_trip_no_breaker";
    let stage = Stage::new(EVENTS, &routed(BREAKER));
    let Some(control) = stage.switches(test) else { return };
    control.fault(Fault::Slow(Duration::from_millis(20)), Scope::sends(), Times::UntilCleared);
    let mut daemon = stage.streaming();
    for round in 0..8 {
        write(&stage, round * 10..round * 10 + 10);
        control.disconnect_all();
        std::thread::sleep(Duration::from_millis(60));
    }
    for (topic, odd) in [("a", 0), ("b", 1)] {
        in_order(&rows(&stage, &mut daemon, topic, &of_kind(0..80, odd)));
    }
    stage.wait_confirmed_of(&mut daemon, "shop");
    stage.running(&mut daemon, "shop");
    for topic in ["a", "b"] {
        let shown = destination(&daemon, "shop", topic).expect("the destination");
        assert_eq!((&shown["trips"], &shown["failures"]), (&0.into(), &0.into()), "{shown:#}");
    }
    daemon.stop();
}

#[test]
fn a_deleted_topic_is_named_while_the_others_flow_h14() {
    let source = routed("").replacen("degraded", "auto_create = false\ndegraded", 1);
    let stage = Stage::new(EVENTS, &source);
    for topic in ["a", "b", "unknown"] {
        stage.pair.down.create_topic(&stage.topic(topic), 1);
    }
    let mut daemon = stage.streaming();
    write(&stage, 0..4);
    rows(&stage, &mut daemon, "b", &[1, 3]);
    stage.wait_confirmed_of(&mut daemon, "shop");
    stage.running(&mut daemon, "shop");
    stage.pair.down.delete_topic(&stage.topic("b"));
    stage.pg.sql("insert into events values (5, 'b', '')");
    let held = stage.insert_lsn();
    write(&stage, 6..20);
    rows(&stage, &mut daemon, "a", &[0, 2, 6, 8, 10, 12, 14, 16, 18]);
    let topic = stage.topic("b").to_string();
    let shown = stage.degraded(&mut daemon, "shop", &[&topic, "auto_create"]);
    assert!(shown["capture"]["pending"]["since"].is_string(), "{shown:#}");
    assert_eq!(shown["capture"]["pending"]["held_by"]["topic"], "b");
    let (code, body) = daemon.get("/readyz").expect("an answer");
    assert_eq!(code, 503, "{body}");
    throughout(Duration::from_millis(700), "the slot waits", || stage.confirmed() < held);
    stage.pair.down.create_topic(&stage.topic("b"), 1);
    let late = [5, 7, 9, 11, 13, 15, 17, 19];
    in_order(&rows(&stage, &mut daemon, "b", &late));
    stage.wait_confirmed_of(&mut daemon, "shop");
    stage.running(&mut daemon, "shop");
    let told = |line: &String| line.contains("was made anew");
    assert!(daemon.lines().iter().any(told), "what it had acked is gone, and that is said");
    daemon.stop();
}

#[test]
fn a_cluster_that_goes_silent_is_seen_and_comes_back_without_help_h14() {
    let mut stage = Stage::new(EVENTS, &routed(""));
    let proxy = Proxy::start(&stage.address);
    stage.address = proxy.address().to_string();
    stage.cluster = "request_timeout = \"300ms\"".to_owned();
    let mut daemon = stage.streaming();
    write(&stage, 0..4);
    rows(&stage, &mut daemon, "b", &[1, 3]);
    stage.wait_confirmed_of(&mut daemon, "shop");
    proxy.pause();
    let begun = Instant::now();
    stage.pg.sql("insert into events values (4, 'a', '')");
    let held = stage.insert_lsn();
    write(&stage, 5..20);
    let topic = stage.topic("a").to_string();
    let shown = stage.degraded(&mut daemon, "shop", &["destination_unreachable", &topic]);
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    assert_eq!(shown["capture"]["pending"]["held_by"]["topic"], "a");
    let span = if soak() { 180_000 } else { 1_500 };
    throughout(Duration::from_millis(span), "the slot waits", || stage.confirmed() < held);
    proxy.resume();
    for (topic, odd) in [("a", 0), ("b", 1)] {
        in_order(&rows(&stage, &mut daemon, topic, &of_kind(0..20, odd)));
    }
    stage.wait_confirmed_of(&mut daemon, "shop");
    stage.running(&mut daemon, "shop");
    daemon.stop();
}

#[test]
fn others_flow_past_a_black_hole_until_the_buffers_are_full_and_nothing_is_lost() {
    let test = "others_flow_past_a_black_hole_until_the_buffers_are_full_and_nothing_is_lost";
    let mut stage = Stage::new(EVENTS, &routed(BREAKER));
    let Some(control) = stage.switches(test) else { return };
    stage.cluster = "request_timeout = \"300ms\"".to_owned();
    stage.daemon.push_str("\nshards = 1\nmax_buffered_bytes = \"14MiB\"");
    let mut daemon = stage.streaming();
    write(&stage, 0..4);
    rows(&stage, &mut daemon, "b", &[1, 3]);
    control.fault(Fault::DropRequest, sends_to(&stage, "b"), Times::UntilCleared);
    // Six times as long as JSON: what is read says little of what it takes.
    let many = "insert into events select n, case n % 2 when 0 then 'a' else 'b' end, \
                repeat(E'\\x02', 500) from generate_series";
    stage.pg.sql(&format!("{many}(4, 1000) n"));
    rows(&stage, &mut daemon, "a", &of_kind(0..1_001, 0));
    for from in [1_001, 3_001, 5_001, 7_001] {
        stage.pg.sql(&format!("{many}({from}, {from} + 1999) n"));
    }
    // 4,500 rows of 3 kB do not fit.
    let mut last = (0, Instant::now());
    eventually(limit(), "reading to pause", || {
        daemon.assert_running();
        let count = stage.got("a").len();
        if count != last.0 {
            last = (count, Instant::now());
        }
        when(last.1.elapsed() > Duration::from_secs(2))
    });
    assert!((501..4_501).contains(&last.0), "{} rows passed", last.0);
    let status = daemon.status().expect("status");
    let shard = &status["shards"][0];
    let (held, most) = (&shard["buffered_bytes"], &shard["buffer_limit_bytes"]);
    assert!(held.as_u64() <= most.as_u64(), "{held} of {most}");
    control.clear_all();
    for (topic, odd) in [("a", 0), ("b", 1)] {
        in_order(&rows(&stage, &mut daemon, topic, &of_kind(0..9_001, odd)));
    }
    stage.wait_confirmed_of(&mut daemon, "shop");
    stage.running(&mut daemon, "shop");
    daemon.stop();
}

/// 8 MiB in one row, which does not fit what captures share of these buffers.
const TIGHT: &str = "\nshards = 1\nmax_buffered_bytes = \"14MiB\"";
const LARGE: &str = "repeat('x', 8 << 20)";

#[test]
fn a_large_row_to_a_black_hole_lets_nobody_read_without_end() {
    let test = "a_large_row_to_a_black_hole_lets_nobody_read_without_end";
    let mut stage = Stage::new(EVENTS, &routed(BREAKER));
    let Some(control) = stage.switches(test) else { return };
    stage.cluster = "request_timeout = \"300ms\"".to_owned();
    stage.daemon.push_str(TIGHT);
    let mut daemon = stage.streaming();
    write(&stage, 0..4);
    rows(&stage, &mut daemon, "b", &[1, 3]);
    control.fault(Fault::DropRequest, sends_to(&stage, "b"), Times::UntilCleared);
    stage.pg.sql(&format!("insert into events values (5, 'b', {LARGE})"));
    for from in [6, 2_006, 4_006, 6_006] {
        stage.pg.sql(&format!(
            "insert into events select n, case n % 2 when 0 then 'a' else 'b' end, \
             repeat(E'\\x02', 500) from generate_series({from}, {from} + 1999) n"
        ));
    }
    let mut last = (0, Instant::now());
    eventually(limit(), "reading to pause", || {
        daemon.assert_running();
        let count = stage.got("a").len();
        if count != last.0 {
            last = (count, Instant::now());
        }
        when(last.1.elapsed() > Duration::from_secs(2))
    });
    assert!((3..3_500).contains(&last.0), "{} rows passed", last.0);
    control.clear_all();
    rows(
        &stage,
        &mut daemon,
        "a",
        &[0, 2].into_iter().chain(of_kind(6..8_006, 0)).collect::<Vec<_>>(),
    );
    rows(&stage, &mut daemon, "b", &of_kind(1..8_006, 1));
    stage.wait_confirmed_of(&mut daemon, "shop");
    daemon.stop();
}

#[test]
fn the_slot_for_large_rows_is_free_when_its_row_is_acked_whatever_else_waits() {
    let test = "the_slot_for_large_rows_is_free_when_its_row_is_acked_whatever_else_waits";
    let mut stage = Stage::new(
        &format!("{EVENTS}; create table others (id bigint primary key, note text)"),
        &routed(BREAKER),
    );
    let Some(control) = stage.switches(test) else { return };
    stage.cluster = "request_timeout = \"300ms\"".to_owned();
    stage.daemon.push_str(TIGHT);
    stage.add_source(
        "other",
        "tables = [\"public.others\"]\nstream = \"$stream\"\ntopic = \"others\"\n",
    );
    let mut daemon = stage.all_streaming(2);
    write(&stage, 0..2);
    rows(&stage, &mut daemon, "b", &[1]);
    control.fault(Fault::DropRequest, sends_to(&stage, "b"), Times::UntilCleared);
    stage.pg.sql("insert into events values (3, 'b', '')");
    stage.pg.sql(&format!("insert into events values (4, 'a', {LARGE})"));
    rows(&stage, &mut daemon, "a", &[0, 4]);
    stage.pg.sql(&format!("insert into others values (1, {LARGE})"));
    eventually(limit(), "the other large row", || {
        daemon.assert_running();
        when(stage.got_of("other", "others").len() == 1)
    });
    control.clear_all();
    rows(&stage, &mut daemon, "b", &[1, 3]);
    stage.wait_confirmed_of(&mut daemon, "shop");
    daemon.stop();
}

#[test]
fn connections_that_carried_rows_come_back_at_once_however_often_they_are_lost() {
    let test = "connections_that_carried_rows_come_back_at_once_however_often_they_are_lost";
    let mut stage = Stage::new(EVENTS, &routed(BREAKER));
    let Some(control) = stage.switches(test) else { return };
    stage.add_source(
        "slow",
        "tables = [\"public.events\"]\nstream = \"$stream\"\ntopic = \"all\"\n\
         retry_interval = \"1s\"\nmax_retry_interval = \"1m\"\n",
    );
    let mut daemon = stage.all_streaming(2);
    for round in 0..6 {
        stage.pg.sql(&format!("insert into events values ({round}, 'a', '')"));
        let begun = Instant::now();
        eventually(limit(), "the row", || {
            daemon.assert_running();
            when(stage.got_of("slow", "all").len() > round)
        });
        // The wait doubles from 1 s on for what was never used.
        assert!(begun.elapsed() < Duration::from_secs(4), "{round}: {:?}", begun.elapsed());
        control.disconnect_all();
    }
    daemon.stop();
}
