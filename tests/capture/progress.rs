//! What the server is told, and that it can always stop.

use std::time::{Duration, Instant};

use tidegate::loopback::{Fault, Scope, Times};

use super::stage::{Stage, limit};
use super::support::{Daemon, Home, Proxy, Stop, eventually, skipped, soak, throughout, when};

const TABLES: &str = "create table orders (id bigint primary key, note text);\
                      create table busy (id bigint primary key, note text)";
const BOUND: &str = "tables = [\"public.orders\"]\nstream = \"$stream\"\ntopic = \"orders\"\n";
const SEGMENT: u64 = 16 << 20;

fn insert(stage: &Stage, table: &str, from: u64, count: u64) {
    let sql = format!(
        "insert into {table} select n, repeat('x', 900) from generate_series({from}, {}) n",
        from + count - 1
    );
    stage.pg.sql(&sql);
}

/// A megabyte of log for each thousand.
fn write_elsewhere(stage: &Stage, megabytes: u64) {
    stage.pg.sql("create database elsewhere");
    stage.pg.sql_in("elsewhere", "create table t (id bigint, note text)");
    stage.pg.sql_in(
        "elsewhere",
        &format!(
            "insert into t select n, repeat('y', 900) from generate_series(1, {}) n",
            megabytes * 1_000
        ),
    );
}

#[test]
fn the_position_follows_a_database_that_is_busy_elsewhere_h09() {
    let stage = Stage::new(TABLES, BOUND);
    let mut daemon = stage.streaming();
    insert(&stage, "orders", 1, 5);
    stage.wait_for(&mut daemon, "orders", 5);
    let megabytes = if soak() { 300 } else { 40 };
    insert(&stage, "busy", 1, megabytes * 1_000);
    for _ in 0..3 {
        stage.pg.sql("select pg_switch_wal()");
    }
    write_elsewhere(&stage, megabytes);
    let end = stage.wal_end();
    eventually(limit(), "the slot to follow", || {
        daemon.assert_running();
        when(stage.confirmed() + SEGMENT >= end)
    });
    stage.pg.sql("checkpoint");
    let restart = "select pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::bigint \
                   < 3 * 16777216 \
                   from pg_replication_slots";
    eventually(limit(), "the log to be released", || when(stage.pg.value(restart) == "t"));
    let text = stage.pg.log();
    assert!(!text.contains("INSERT INTO"), "nothing is written to the database");
    // The position that followed is saved: nothing is confirmed beyond it, nothing repeats.
    daemon.kill();
    let mut daemon = stage.streaming();
    insert(&stage, "orders", 6, 1);
    let got = stage.wait_for(&mut daemon, "orders", 6);
    assert_eq!(got.len(), 6, "5 rows before the kill, 1 behind it");
    daemon.stop();
}

#[test]
fn a_server_that_never_asks_is_told_all_the_same_and_stops_at_once_h10() {
    let stage = Stage::new(TABLES, BOUND);
    stage.pg.set("wal_sender_timeout", "0");
    let mut daemon = stage.streaming();
    insert(&stage, "orders", 1, 5);
    let end = stage.wal_end();
    stage.wait_for(&mut daemon, "orders", 5);
    eventually(Duration::from_secs(15), "the confirmation", || when(stage.confirmed() >= end));
    let begun = Instant::now();
    stage.pg.stop(Stop::Fast);
    assert!(begun.elapsed() < Duration::from_secs(8), "stopped after {:?}", begun.elapsed());
    stage.reason(&mut daemon, "upstream_unreachable");
    stage.pg.launch();
    insert(&stage, "orders", 6, 1);
    let got = stage.wait_for(&mut daemon, "orders", 6);
    assert_eq!(got.len(), 6, "nothing repeats");
    stage.reason(&mut daemon, "");
    daemon.stop();
}

#[test]
fn a_server_stops_though_its_rows_cannot_be_delivered() {
    let stage = Stage::new(TABLES, BOUND);
    let Some(down) = stage.pair.down.control() else {
        return skipped("an undelivered stop", "real servers have no fault switches");
    };
    let mut daemon = stage.streaming();
    insert(&stage, "orders", 1, 5);
    stage.wait_for(&mut daemon, "orders", 5);
    down.stop();
    // More than what is read ahead of the acks.
    insert(&stage, "orders", 6, 60_000);
    stage.reason(&mut daemon, "destination_unreachable");
    let cpu = daemon.cpu_so_far();
    let begun = Instant::now();
    stage.pg.stop(Stop::Fast);
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(20), "stopped after {took:?}");
    let cpu = daemon.cpu_so_far() - cpu;
    assert!(cpu < took / 3, "{cpu:?} of processor time in {took:?}: questions are not chased");
    stage.pg.launch();
    down.start().expect("a free port");
    eventually(limit(), "every row", || {
        daemon.assert_running();
        when(stage.pair.down.total(&stage.topic("orders"), 1) >= 60_005)
    });
    stage.wait_confirmed(&mut daemon);
    daemon.stop();
    let mut ids: Vec<u64> = numbers(&stage);
    ids.dedup();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 60_005);
}

fn numbers(stage: &Stage) -> Vec<u64> {
    let got = stage.got("orders");
    got.iter().map(|got| got.payload["data"]["id"].as_u64().expect("an id")).collect()
}

#[test]
fn a_long_transaction_over_a_slow_destination_keeps_its_connection_h11() {
    let stage = Stage::new(TABLES, BOUND);
    let Some(down) = stage.pair.down.control() else {
        return skipped("a slow destination", "real servers have no fault switches");
    };
    let (timeout, delay, rows) = match soak() {
        true => ("5s", Duration::from_secs(2), 200_000),
        false => ("1s", Duration::from_millis(400), 15_000),
    };
    stage.pg.set("wal_sender_timeout", timeout);
    let mut daemon = stage.streaming();
    let before = walsender(&stage);
    down.fault(Fault::Slow(delay), Scope::sends(), Times::UntilCleared);
    let begun = Instant::now();
    insert(&stage, "orders", 1, rows);
    eventually(limit(), "every row", || {
        daemon.assert_running();
        // The server hears of us at least every third of its limit.
        when(stage.pair.down.total(&stage.topic("orders"), 1) >= rows)
    });
    assert!(begun.elapsed() > 2 * delay, "the destination was not slow");
    assert_eq!(walsender(&stage), before, "one connection from the first row to the last");
    assert!(!stage.pg.log().contains("due to replication timeout"), "{}", stage.pg.log());
    down.clear_all();
    stage.wait_confirmed(&mut daemon);
    // Nothing is left to send: the server is silent, and asked whether it is there.
    let patience =
        stage.pg.value("select setting::int from pg_settings where name = 'wal_sender_timeout'");
    std::thread::sleep(Duration::from_millis(5 * patience.parse::<u64>().expect("ms") / 2));
    assert_eq!(walsender(&stage), before, "and afterwards");
    daemon.stop();
    assert_eq!(numbers(&stage), (1..=rows).collect::<Vec<u64>>(), "in order, none twice");
}

/// When the walsender began, and its process.
fn walsender(stage: &Stage) -> (String, String) {
    let rows = stage
        .pg
        .sql("select backend_start, pid from pg_stat_replication where state = 'streaming'");
    let [row] = rows.as_slice() else { panic!("one walsender expected: {rows:?}") };
    let text = |n: usize| row[n].clone().expect("a value");
    (text(0), text(1))
}

#[test]
fn transactions_come_in_the_order_of_their_commits_not_of_their_begins() {
    let stage = Stage::new(TABLES, BOUND);
    let mut daemon = stage.streaming();
    let mut older = stage.pg.session("postgres");
    older.sql("begin; insert into orders values (1, 'older')");
    stage.pg.sql("insert into orders values (2, 'younger')");
    stage.wait_for(&mut daemon, "orders", 1);
    // The younger one is confirmed although the older one is open, and the older one comes whole
    // afterwards, also to a new stream.
    let end = stage.wal_end();
    eventually(limit(), "the confirmation", || when(stage.confirmed() >= end));
    daemon.kill();
    let mut daemon = stage.streaming();
    older.sql("insert into orders values (3, 'older too'); commit");
    stage.wait_for(&mut daemon, "orders", 3);
    daemon.stop();
    assert_eq!(numbers(&stage), [2, 1, 3]);
}

#[test]
fn what_is_acked_is_not_sent_again_by_a_server_that_crashed() {
    let stage = Stage::new(TABLES, BOUND);
    let mut daemon = stage.streaming();
    // The slot on the server's disk is as old as its last checkpoint.
    stage.pg.sql("checkpoint");
    insert(&stage, "orders", 1, 100);
    stage.wait_for(&mut daemon, "orders", 100);
    let end = stage.wal_end();
    eventually(limit(), "the confirmation", || when(stage.confirmed() >= end));
    stage.pg.stop(Stop::Immediate);
    stage.pg.launch();
    assert!(stage.confirmed() < end, "the slot went back");
    insert(&stage, "orders", 101, 1);
    stage.wait_for(&mut daemon, "orders", 101);
    stage.wait_confirmed(&mut daemon);
    daemon.stop();
    assert_eq!(numbers(&stage), (1..=101).collect::<Vec<u64>>());
}

#[test]
fn a_half_open_connection_is_given_up_after_twice_the_servers_patience() {
    let mut stage = Stage::new(TABLES, BOUND);
    let proxy = Proxy::start(&stage.pg.address());
    let port = proxy.address().port();
    stage.connection = format!("postgresql://postgres@127.0.0.1:{port}/postgres");
    stage.pg.set("wal_sender_timeout", "1s");
    let mut daemon = stage.streaming();
    insert(&stage, "orders", 1, 1);
    stage.wait_for(&mut daemon, "orders", 1);
    proxy.pause();
    insert(&stage, "orders", 2, 1);
    eventually(Duration::from_secs(10), "the end of the silence", || {
        daemon.assert_running();
        when(stage.source(&daemon).is_some_and(|source| source["status"] == "Degraded"))
    });
    proxy.resume();
    stage.wait_for(&mut daemon, "orders", 2);
    daemon.stop();
    assert_eq!(numbers(&stage), [1, 2]);
}

#[test]
fn a_slot_in_other_hands_is_waited_for_and_its_reader_named() {
    let stage = Stage::new(TABLES, BOUND);
    let mut first = stage.streaming();
    insert(&stage, "orders", 1, 1);
    stage.wait_for(&mut first, "orders", 1);
    stage.wait_confirmed(&mut first);
    let (_, pid) = walsender(&stage);
    let second = Home::new();
    let config = stage
        .config()
        .replace(&stage.home.path().display().to_string(), &second.path().display().to_string());
    let config = config.replace(&stage.home.admin().to_string(), &second.admin().to_string());
    std::fs::write(second.config_file(), config).expect("a configuration file");
    let mut other = Daemon::start_written(&second, &[]);
    let source = stage.reason(&mut other, "capture_waiting");
    let detail = source["detail"].as_str().expect("text");
    assert!(detail.contains(&pid) && detail.contains("tidegate"), "{detail}");
    throughout(Duration::from_millis(500), "it is never taken", || walsender(&stage).1 == pid);
    first.stop();
    stage.reason(&mut other, "");
    insert(&stage, "orders", 2, 1);
    stage.wait_for(&mut other, "orders", 2);
    other.stop();
    assert_eq!(numbers(&stage), [1, 2]);
}
