//! From the ack to the slot: what is saved first, what a crash repeats, what counts as failing.

use std::fs;
use std::time::Duration;

use tidegate::ingest::postgres_cdc::ids::cdc_id;
use tidegate::loopback::faults::{Fault, Scope, Times};
use tidegate::pg_wire::Lsn;

use super::stage::{Got, Stage, limit};
use super::support::{eventually, soak, throughout, when};
use super::switches::{destination, named, once, row_ids, sends_met};

const ORDERS: &str = "create table orders (id bigint primary key, note text)";
const BOUND: &str = "tables = [\"public.orders\"]\nstream = \"$stream\"\ntopic = \"orders\"\n";

fn insert(stage: &Stage, ids: std::ops::RangeInclusive<i64>) {
    let (first, last) = (ids.start(), ids.end());
    stage.pg.sql(&format!(
        "insert into orders select n, 'note ' || n from generate_series({first}, {last}) n"
    ));
}

/// Log of the file layer: step and outcome, in order.
fn steps(log: &std::path::Path) -> Vec<(String, String)> {
    let text = fs::read_to_string(log).unwrap_or_default();
    let split = |line: &str| {
        let mut parts = line.splitn(3, '\t').map(str::to_owned);
        let (name, step, how) = (parts.next()?, parts.next()?, parts.next()?);
        (name == "shop.0.state").then_some((step, how))
    };
    text.lines().filter_map(split).collect()
}

/// A stage of one shard, so that there is one state file.
fn one_shard(source: &str) -> Stage {
    let mut stage = Stage::new(ORDERS, source);
    stage.daemon.push_str("\nshards = 1");
    stage
}

fn rules(rules: &str) -> [(&str, &str); 1] {
    [("TIDEGATE_FAULT_FILES", rules)]
}

#[test]
fn every_message_has_the_id_of_its_place_in_the_log() {
    let stage = Stage::new(ORDERS, BOUND);
    let mut daemon = stage.streaming();
    stage.pg.sql(
        "begin; insert into orders values (1, ''), (2, ''); savepoint s; \
         insert into orders values (3, ''); rollback to s; update orders set note = 'x'; commit",
    );
    stage.pg.sql("delete from orders where id = 1");
    let got = stage.wait_for(&mut daemon, "orders", 5);
    let system = stage.pg.value("select system_identifier from pg_control_system()");
    let system: u64 = system.parse().expect("a number");
    let expected = |message: &Got, ordinal| {
        let lsn: Lsn = message.text("lsn").parse().expect("an LSN");
        cdc_id(system, 1, lsn, ordinal)
    };
    for (message, ordinal) in got.iter().zip([0, 1, 2, 3, 0]) {
        assert_eq!(message.id, expected(message, ordinal), "{message:?}");
        assert_eq!(message.origin, message.number("commit_ts"));
    }
    daemon.stop();
}

#[test]
fn a_kill_between_ack_and_commit_repeats_the_same_messages_and_loses_none() {
    let stage = one_shard(&format!("{BOUND}max_batch_bytes = \"8KiB\""));
    let flag = stage.home.path().join("flag");
    let fault = format!("any:eio:while={}", flag.display());
    let mut daemon = stage.streaming_with(1, &rules(&fault));
    insert(&stage, 1..=3);
    stage.wait_for(&mut daemon, "orders", 3);
    stage.wait_confirmed_of(&mut daemon, "shop");
    fs::write(&flag, "").expect("a flag");
    insert(&stage, 4..=203);
    let acked = stage.wait_for(&mut daemon, "orders", 4);
    assert!(!acked.is_empty());
    stage.shows(&mut daemon, "shop", "failing", |source| source["reason"] == "save_failed");
    daemon.kill();
    let mut daemon = stage.streaming();
    eventually(limit(), "all rows", || {
        daemon.assert_running();
        when(once(stage.got("orders")).len() >= 203)
    });
    stage.wait_confirmed_of(&mut daemon, "shop");
    let all = stage.got("orders");
    let first = once(all.clone());
    assert_eq!(row_ids(&first), (1..=203).collect::<Vec<_>>());
    assert!(all.len() > first.len(), "what was acked and not saved comes again");
    daemon.stop();
}

#[test]
fn a_failed_fsync_confirms_nothing_and_is_followed_by_a_new_file_h38() {
    let stage = one_shard(BOUND);
    let log = stage.home.path().join("steps");
    let flag = stage.home.path().join("flag");
    let (shown, armed) = (log.display(), flag.display());
    let fault = format!("log={shown};sync:eio:times=1:while={armed}");
    let mut daemon = stage.streaming_with(1, &rules(&fault));
    insert(&stage, 1..=3);
    stage.wait_for(&mut daemon, "orders", 3);
    stage.wait_confirmed_of(&mut daemon, "shop");
    fs::write(&flag, "").expect("a flag");
    insert(&stage, 4..=10);
    let held = stage.insert_lsn();
    let failed = || steps(&log).iter().any(|(step, how)| step == "sync" && !how.starts_with("ok"));
    eventually(limit(), "the injected error", || when(failed()));
    // The next try is at least 0.75 s later.
    throughout(Duration::from_millis(400), "nothing is confirmed", || stage.confirmed() < held);
    stage.wait_confirmed_of(&mut daemon, "shop");
    stage.running(&mut daemon, "shop");
    daemon.kill();
    let steps = steps(&log);
    let names: Vec<&str> = steps.iter().map(|(step, _)| step.as_str()).collect();
    let save = ["open", "write", "sync", "close", "rename", "sync_dir"];
    assert!(names.windows(save.len()).any(|some| some == save), "{names:?}");
    let at = steps.iter().position(|(step, how)| step == "sync" && !how.starts_with("ok"));
    let mut after = steps[at.expect("the error") + 1..].iter().map(|(step, _)| step.as_str());
    let next = after.find(|step| *step != "close" && *step != "unlink");
    assert_eq!(next, Some("open"), "a new file, never a second sync");
    let mut daemon = stage.streaming();
    insert(&stage, 11..=11);
    stage.wait_for(&mut daemon, "orders", 11);
    assert_eq!(row_ids(&once(stage.got("orders"))), (1..=11).collect::<Vec<_>>());
    daemon.stop();
}

#[test]
fn a_full_disk_pauses_the_flow_confirms_nothing_and_ends_by_itself_h39() {
    let stage = one_shard(BOUND);
    let flag = stage.home.path().join("flag");
    let fault = format!("any:enospc:while={}", flag.display());
    let mut daemon = stage.streaming_with(1, &rules(&fault));
    insert(&stage, 1..=3);
    stage.wait_for(&mut daemon, "orders", 3);
    stage.wait_confirmed_of(&mut daemon, "shop");
    fs::write(&flag, "").expect("a flag");
    insert(&stage, 4..=4);
    let held = stage.insert_lsn();
    let shown = stage.degraded(&mut daemon, "shop", &["disk_full"]);
    assert!(shown["advice"].as_str().is_some_and(|text| text.contains("free space")));
    let file = stage.home.state_dir().join("shop.0.state");
    let stands = fs::read(&file).expect("a state file");
    for id in 5..=60 {
        insert(&stage, id..=id);
    }
    let span = Duration::from_secs(if soak() { 60 } else { 2 });
    throughout(span, "nothing is confirmed", || stage.confirmed() < held);
    assert!(stage.got("orders").len() < 60, "the flow pauses");
    assert_eq!(fs::read(&file).expect("a state file"), stands, "the old file stands");
    assert!(!stage.pg.log().contains("replication timeout"), "keepalives are answered");
    fs::remove_file(&flag).expect("a flag");
    stage.wait_for(&mut daemon, "orders", 60);
    stage.wait_confirmed_of(&mut daemon, "shop");
    stage.running(&mut daemon, "shop");
    assert_eq!(row_ids(&stage.got("orders")), (1..=60).collect::<Vec<_>>(), "once, in order");
    daemon.stop();
}

#[test]
fn tries_that_move_nothing_degrade_the_source_at_the_threshold_and_one_success_ends_it() {
    let test =
        "tries_that_move_nothing_degrade_the_source_at_the_threshold_and_one_success_ends_it";
    let threshold = if soak() { 16 } else { 6 };
    let source = format!(
        "{BOUND}commit_failure_threshold = {threshold}\n\
         [sources.shop.routing.circuit_breaker]\nfailure_threshold = 1000\n"
    );
    let stage = Stage::new(ORDERS, &source);
    let Some(control) = stage.switches(test) else { return };
    let mut daemon = stage.streaming();
    insert(&stage, 1..=1);
    stage.wait_for(&mut daemon, "orders", 1);
    stage.running(&mut daemon, "shop");
    let refuse = Fault::Reject { code: 3, applied: false };
    control.fault(refuse, Scope::sends(), Times::UntilCleared);
    insert(&stage, 2..=2);
    let mut early = 0;
    let shown = stage.shows(&mut daemon, "shop", "degraded", |source| {
        let tries = sends_met(&control).len();
        if source["status"] == "Degraded" {
            assert!(tries >= threshold, "degraded after {tries} tries");
            return true;
        }
        early = early.max(tries);
        false
    });
    assert!(early >= 2, "it was no failure before: {early} tries");
    assert_eq!(shown["reason"], "stalled", "{shown:#}");
    let words = format!("{} {}", shown["detail"], shown["capture"]["last_error"]);
    assert!(words.contains("/orders"), "{words}");
    assert!(shown["capture"]["failures"].as_u64() >= u64::try_from(threshold).ok());
    assert_eq!(stage.got("orders").len(), 1);
    control.clear_all();
    stage.wait_for(&mut daemon, "orders", 2);
    stage.wait_confirmed_of(&mut daemon, "shop");
    stage.running(&mut daemon, "shop");
    let after = named(&daemon, "shop").expect("the source");
    assert_eq!(after["capture"]["failures"], 0);
    let words: Vec<&str> = after["history"]
        .as_array()
        .expect("a history")
        .iter()
        .filter_map(|change| change["status"].as_str())
        .collect();
    assert!(words.ends_with(&["Running", "Degraded", "Running"]), "{words:?}");
    daemon.stop();
}

#[test]
fn work_that_does_not_move_for_long_degrades_the_source() {
    let test = "work_that_does_not_move_for_long_degrades_the_source";
    let mut stage = Stage::new(ORDERS, &format!("{BOUND}degraded_after = \"1s\""));
    let Some(control) = stage.switches(test) else { return };
    stage.cluster = "request_timeout = \"30s\"".to_owned();
    let mut daemon = stage.streaming();
    insert(&stage, 1..=1);
    stage.wait_for(&mut daemon, "orders", 1);
    stage.wait_confirmed_of(&mut daemon, "shop");
    stage.running(&mut daemon, "shop");
    // Idle for longer than that is no reason.
    throughout(Duration::from_millis(1_500), "idle is running", || {
        named(&daemon, "shop").is_some_and(|source| source["status"] == "Running")
    });
    control.fault(Fault::HoldReply, Scope::sends(), Times::UntilCleared);
    insert(&stage, 2..=2);
    stage.degraded(&mut daemon, "shop", &["stalled", "/orders"]);
    control.clear_all();
    control.release_held();
    stage.running(&mut daemon, "shop");
    stage.wait_confirmed_of(&mut daemon, "shop");
    assert_eq!(stage.got("orders").len(), 2);
    daemon.stop();
}

#[test]
fn one_destination_at_a_time_keeps_the_order_across_destinations() {
    let test = "one_destination_at_a_time_keeps_the_order_across_destinations";
    let mut stage = Stage::new(
        "create table orders (id bigint primary key, kind text)",
        "tables = [\"public.orders\"]\n[sources.shop.routing]\ntopic_column = \"kind\"\n\
         default_topic = \"unknown\"\ndefault_stream = \"$stream\"\n\
         [sources.shop.routing.admission]\nmax_concurrent_destinations = 1\n",
    );
    let Some(control) = stage.switches(test) else { return };
    stage.cluster = "request_timeout = \"30s\"".to_owned();
    let mut daemon = stage.streaming();
    // So that the topics are known.
    stage.pg.sql("insert into orders values (1, 'a'), (2, 'b'), (3, 'c')");
    for topic in ["a", "b", "c"] {
        stage.wait_for(&mut daemon, topic, 1);
    }
    control.fault(Fault::Slow(Duration::ZERO), Scope::sends(), Times::UntilCleared);
    let kinds = ["b", "a", "b", "c", "a", "a", "c", "b"];
    let row = |(n, kind): (usize, &&str)| format!("({}, '{kind}')", n + 10);
    let values: Vec<String> = kinds.iter().enumerate().map(row).collect();
    stage.pg.sql(&format!("insert into orders values {}", values.join(", ")));
    stage.wait_for(&mut daemon, "b", 4);
    let mut sent: Vec<String> = sends_met(&control).into_iter().map(|(topic, ..)| topic).collect();
    // Neighbours of a kind share a send, unless a read ended between them.
    sent.dedup();
    assert_eq!(sent, ["b", "a", "b", "c", "a", "c", "b"]);
    control.clear_all();
    // What is not answered holds all that comes after it, wherever that goes.
    control.fault_once(Fault::HoldReply, Scope::sends().topic(&stage.stream, "b"));
    stage.pg.sql("insert into orders values (30, 'a'); insert into orders values (31, 'b')");
    stage.pg.sql("insert into orders values (32, 'c'); insert into orders values (33, 'a')");
    stage.wait_for(&mut daemon, "b", 5);
    throughout(Duration::from_millis(700), "the rest waits", || {
        (stage.got("a").len(), stage.got("c").len()) == (5, 3)
    });
    control.release_held();
    stage.wait_for(&mut daemon, "a", 6);
    assert_eq!(row_ids(&stage.wait_for(&mut daemon, "c", 4)).last(), Some(&32));
    daemon.stop();
}

#[test]
fn named_topics_are_made_before_the_first_row_and_one_that_cannot_be_delays_no_other() {
    let test = "named_topics_are_made_before_the_first_row_and_one_that_cannot_be_delays_no_other";
    let stage = Stage::new(
        "create table orders (id bigint primary key, kind text)",
        "tables = [\"public.orders\"]\n[sources.shop.routing]\ntopic_column = \"kind\"\n\
         default_topic = \"unknown\"\ndefault_stream = \"$stream\"\n\
         [sources.shop.routing.topic_defaults]\npartitions_count = 3\n\
         [sources.shop.routing.admission]\nmode = \"allowlist\"\n\
         startup_prewarm_deadline = \"1s\"\n\
         allowlist = [ { stream = \"$stream\", topic = \"a\" }, \
         { stream = \"$stream\", topic = \"b\" }, { stream = \"$stream\", topic = \"unknown\" }, \
         { stream = \"$stream\", topic = \"*\" } ]\n",
    );
    let Some(control) = stage.switches(test) else { return };
    let daemon = stage.streaming();
    for topic in ["a", "b", "unknown"] {
        let info = eventually(limit(), topic, || stage.pair.down.topic(&stage.topic(topic)));
        assert_eq!(info.partitions_count, 3);
        let durable = info.options.iter().any(|option| option.value == "persisted");
        assert!(durable, "{:?}", info.options);
    }
    daemon.stop();
    // Nothing can be made: streaming begins all the same, and it is said which are not ready.
    stage.pair.down.delete_stream(&stage.stream);
    control.fault(Fault::Reject { code: 41, applied: false }, Scope::others(), Times::UntilCleared);
    let mut daemon = stage.streaming();
    let told = |topic: &str| {
        let words = format!("{} was not ready in time", stage.topic(topic));
        move |lines: &[String]| lines.iter().any(|line| line.contains(&words))
    };
    for topic in ["a", "b", "unknown"] {
        let told = told(topic);
        eventually(limit(), "the word", || when(told(&daemon.lines())));
    }
    control.clear_all();
    stage.pg.sql("insert into orders values (1, 'a'), (2, 'b'), (3, null)");
    for topic in ["a", "b", "unknown"] {
        stage.wait_for(&mut daemon, topic, 1);
    }
    stage.running(&mut daemon, "shop");
    daemon.stop();
}

#[test]
fn a_topic_that_may_forget_is_told_or_refused_as_written() {
    let test = "a_topic_that_may_forget_is_told_or_refused_as_written";
    let mut stage = Stage::new(ORDERS, &format!("{BOUND}require_durable = \"refuse\""));
    for (key, require) in [("warn", ""), ("off", "require_durable = \"off\"")] {
        stage.add_source(key, &format!("{BOUND}{require}"));
    }
    let Some(control) = stage.switches(test) else { return };
    let streams = [stage.stream.clone(), stage.stream_of("warn"), stage.stream_of("off")];
    for stream in &streams {
        let made = control.create_topic_with(stream, "orders", 1, &[("durability", "replicated")]);
        assert_eq!(made, Ok(true));
    }
    let mut daemon = stage.all_streaming(3);
    insert(&stage, 1..=2);
    let held = stage.insert_lsn();
    for key in ["warn", "off"] {
        eventually(limit(), key, || when(stage.got_of(key, "orders").len() == 2));
    }
    let topic = stage.topic("orders").to_string();
    stage.degraded(&mut daemon, "shop", &["not_durable", &topic]);
    assert!(stage.got("orders").is_empty() && stage.confirmed() < held);
    let lines = daemon.lines();
    let said = |stream: &str| {
        let words = format!("topic {stream}/orders is not durable");
        let told = |line: &&String| line.contains(&words) && !line.contains("degraded");
        lines.iter().filter(told).count()
    };
    assert_eq!(streams.iter().map(|stream| said(stream)).collect::<Vec<_>>(), [1, 1, 0]);
    // Made anew as it should be, it gets what waits.
    control.delete_topic(&stage.stream, "orders").expect("a topic");
    let durable = [("durability", "persisted")];
    control.create_topic_with(&stage.stream, "orders", 1, &durable).expect("a topic");
    assert_eq!(row_ids(&stage.wait_for(&mut daemon, "orders", 2)), [1, 2]);
    stage.wait_confirmed_of(&mut daemon, "shop");
    daemon.stop();
}

#[test]
fn a_destination_that_gives_out_an_offset_twice_has_lost_its_tail_and_that_is_said() {
    let test = "a_destination_that_gives_out_an_offset_twice_has_lost_its_tail_and_that_is_said";
    let stage = Stage::new(ORDERS, &format!("{BOUND}degraded_after = \"1s\""));
    let Some(control) = stage.switches(test) else { return };
    let mut daemon = stage.streaming();
    insert(&stage, 1..=5);
    stage.wait_for(&mut daemon, "orders", 5);
    stage.wait_confirmed_of(&mut daemon, "shop");
    control.lose_tail(&stage.stream, "orders", 0, 3).expect("a partition");
    insert(&stage, 6..=6);
    let topic = stage.topic("orders").to_string();
    stage.degraded(&mut daemon, "shop", &["destination_lost_tail", &topic]);
    let shown: Option<_> = destination(&daemon, "shop", "orders");
    assert_eq!(shown.expect("the destination")["lost_tails"], 1);
    assert_eq!(row_ids(&stage.got("orders")), [1, 2, 6]);
    stage.wait_confirmed_of(&mut daemon, "shop");
    stage.running(&mut daemon, "shop");
    daemon.stop();
}
