//! Servers, slots and publications that are not what they were, or not what they should be: told
//! apart, named, never passed over in silence.

use std::time::{Duration, Instant};

use serde_json::Value;

use super::stage::{Stage, limit};
use super::support::{Daemon, Postgres, Stop, eventually, soak, throughout, when};
use super::switches::{named, once, row_ids};

const ORDERS: &str = "create table orders (id bigint primary key, note text)";
const BOUND: &str = "tables = [\"public.orders\"]\nstream = \"$stream\"\ntopic = \"orders\"\n";
const SLOT: &str = "tidegate_shop";

fn insert(pg: &Postgres, ids: std::ops::RangeInclusive<i64>) {
    let (first, last) = (ids.start(), ids.end());
    pg.sql(&format!("insert into orders select n, 'n' from generate_series({first}, {last}) n"));
}

/// Waits until the source has ended with this code, which its detail must explain in these words.
#[track_caller]
fn ends_with(stage: &Stage, daemon: &mut Daemon, code: &str, words: &[&str]) -> Value {
    let begun = Instant::now();
    let source = stage.shows(daemon, "shop", code, |source| source["status"] == "Error");
    assert_eq!(source["reason"], code, "{source:#}");
    // A second for each thing that a slow machine has to do first.
    assert!(begun.elapsed() < Duration::from_secs(if soak() { 60 } else { 10 }));
    let detail = source["detail"].as_str().expect("text");
    for word in words {
        assert!(detail.contains(word), "{word:?} is not in: {detail}");
    }
    // It is over: nothing is tried again.
    let starts = || stage.pg.log().matches("START_REPLICATION").count();
    let before = starts();
    std::thread::sleep(Duration::from_millis(1_200));
    assert_eq!(starts(), before, "an error for good is not tried again");
    source
}

/// The only gap that is recorded.
fn gap(daemon: &Daemon) -> Value {
    let source = named(daemon, "shop").expect("the source");
    assert_eq!(source["capture"]["gaps"], 1, "{source:#}");
    source["capture"]["recent_gaps"][0].clone()
}

/// The operator accepts that something is gone: rows behind it arrive, and the gap is on record.
#[track_caller]
fn goes_on_with_a_gap(stage: &Stage, arrived: &[i64], id: i64) -> Value {
    let mut daemon = stage.start_accepting();
    stage.running(&mut daemon, "shop");
    insert(&stage.pg, id..=id);
    let ids = row_ids(&stage.wait_for(&mut daemon, "orders", arrived.len() + 1));
    assert_eq!(ids, [arrived, &[id]].concat());
    stage.wait_confirmed_of(&mut daemon, "shop");
    let gap = gap(&daemon);
    daemon.stop();
    // Once: the next start asks for nothing.
    let mut daemon = stage.streaming();
    stage.running(&mut daemon, "shop");
    assert_eq!(self::gap(&daemon), gap);
    daemon.stop();
    gap
}

#[test]
fn orderly_restarts_repeat_nothing_and_idle_ones_add_nothing_h02() {
    let stage = Stage::new(ORDERS, BOUND);
    let mut daemon = stage.streaming();
    insert(&stage.pg, 1..=100);
    stage.wait_for(&mut daemon, "orders", 100);
    daemon.stop();
    let mut daemon = stage.streaming();
    let span = Duration::from_millis(if soak() { 30_000 } else { 300 });
    throughout(span, "nothing is sent again", || stage.got("orders").len() == 100);
    insert(&stage.pg, 101..=101);
    stage.wait_for(&mut daemon, "orders", 101);
    daemon.stop();
    for _ in 0..3 {
        let daemon = stage.streaming();
        throughout(span, "nothing is sent again", || stage.got("orders").len() == 101);
        daemon.stop();
    }
    assert_eq!(row_ids(&stage.got("orders")), (1..=101).collect::<Vec<_>>());
}

#[test]
fn the_three_operations_arrive_and_a_slot_of_another_plugin_is_refused_h03() {
    let stage = Stage::new(ORDERS, BOUND);
    let mut daemon = stage.streaming();
    let begun = Instant::now();
    stage.pg.sql(
        "insert into orders values (1, 'a'); update orders set note = 'b'; delete from orders",
    );
    let got = stage.wait_for(&mut daemon, "orders", 3);
    assert!(begun.elapsed() < Duration::from_secs(10));
    let ops: String = got.iter().map(|got| got.text("op")).collect();
    assert_eq!(ops, "IUD");
    daemon.stop();

    let stage = Stage::new(ORDERS, BOUND);
    let make = |plugin: &str| {
        stage.pg.sql(&format!("select pg_create_logical_replication_slot('{SLOT}', '{plugin}')"));
    };
    make("test_decoding");
    let mut daemon = stage.start();
    ends_with(&stage, &mut daemon, "slot_plugin", &[SLOT, "test_decoding", "pgoutput"]);
    daemon.stop();
    assert_eq!(stage.pg.value("select count(*) from pg_publication"), "0", "nothing was made");
    // Nor a physical one, nor that of another database.
    let drop = format!("select pg_drop_replication_slot('{SLOT}')");
    stage.pg.sql(&drop);
    stage.pg.sql(&format!("select pg_create_physical_replication_slot('{SLOT}')"));
    let mut daemon = stage.start();
    ends_with(&stage, &mut daemon, "slot_physical", &[SLOT, "physical"]);
    daemon.stop();
    stage.pg.sql(&drop);
    stage.pg.sql("create database elsewhere");
    stage.pg.sql_in(
        "elsewhere",
        &format!("select pg_create_logical_replication_slot('{SLOT}', 'pgoutput')"),
    );
    let mut daemon = stage.start();
    ends_with(&stage, &mut daemon, "slot_database", &[SLOT, "elsewhere", "postgres"]);
    daemon.stop();
}

#[test]
fn a_position_of_another_cluster_is_refused_and_no_row_is_missing_in_silence_h12() {
    let mut stage = Stage::new(ORDERS, BOUND);
    let mut daemon = stage.streaming();
    stage.pg.sql("select pg_switch_wal(); select pg_switch_wal()");
    insert(&stage.pg, 1..=10);
    stage.wait_for(&mut daemon, "orders", 10);
    stage.wait_confirmed_of(&mut daemon, "shop");
    daemon.stop();
    let position = stage.confirmed();
    // The same names, another system, less log.
    let other = Postgres::start_stranger();
    other.sql(ORDERS);
    other.sql(&format!(
        "create publication {SLOT} for table orders; \
         select pg_create_logical_replication_slot('{SLOT}', 'pgoutput')"
    ));
    insert(&other, 101..=120);
    let identifier = "select system_identifier from pg_control_system()";
    let ids = [stage.pg.value(identifier), other.value(identifier)];
    let first = std::mem::replace(&mut stage.pg, other);
    stage.connection = stage.pg.url();
    assert!(stage.wal_end() < position, "the other one has less log");
    let mut daemon = stage.start();
    ends_with(&stage, &mut daemon, "other_system", &[&ids[0], &ids[1]]);
    assert_eq!(stage.got("orders").len(), 10);
    daemon.stop();
    // `--accept-gap` is no answer to it: the position means nothing there.
    let mut daemon = stage.start_accepting();
    ends_with(&stage, &mut daemon, "other_system", &["state reset"]);
    daemon.stop();
    let config = stage.home.config_file().display().to_string();
    let words = ["state", "reset", "--source", "shop", "--yes", "--config", &config];
    let (code, out, err) = stage.home.run(&words);
    assert_eq!(code, 0, "{out}{err}");
    let mut daemon = stage.streaming();
    let got = row_ids(&stage.wait_for(&mut daemon, "orders", 30));
    assert_eq!(got[10..], (101..=120).collect::<Vec<_>>(), "all of them");
    daemon.stop();
    drop(first);
}

#[test]
fn a_slot_whose_log_is_gone_ends_the_capture_with_its_name_h13() {
    let stage = Stage::new(ORDERS, BOUND);
    stage.pg.sql("create table busy (id bigint, note text)");
    stage.pg.set("max_slot_wal_keep_size", "32MB");
    stage.pg.set("max_wal_size", "32MB");
    let mut daemon = stage.streaming();
    insert(&stage.pg, 1..=3);
    stage.wait_for(&mut daemon, "orders", 3);
    stage.wait_confirmed_of(&mut daemon, "shop");
    daemon.stop();
    lose(&stage);
    let mut daemon = stage.start();
    ends_with(&stage, &mut daemon, "slot_lost", &[SLOT, "--accept-gap", "max_slot_wal_keep_size"]);
    daemon.stop();
    // Not by itself, and not while the slot is there.
    let mut daemon = stage.start_accepting();
    ends_with(&stage, &mut daemon, "slot_lost", &[SLOT]);
    daemon.stop();
    stage.pg.sql(&format!("select pg_drop_replication_slot('{SLOT}')"));
    let gap = goes_on_with_a_gap(&stage, &[1, 2, 3], 4);
    assert!(gap["first"].is_string() && gap["last"].is_string(), "{gap:#}");
}

/// So much log that the slot is invalidated.
fn lose(stage: &Stage) {
    let rows = if soak() { 300_000 } else { 90_000 };
    stage.pg.sql(&format!(
        "insert into busy select n, repeat('y', 1000) from generate_series(1, {rows}) n"
    ));
    let status = format!("select wal_status from pg_replication_slots where slot_name = '{SLOT}'");
    eventually(limit(), "the slot to be lost", || {
        stage.pg.sql("checkpoint");
        when(stage.pg.value(&status) == "lost")
    });
}

#[test]
fn a_slot_that_is_lost_while_it_is_read_ends_the_capture_h13() {
    let test = "a_slot_that_is_lost_while_it_is_read_ends_the_capture_h13";
    let stage = Stage::new(ORDERS, BOUND);
    let Some(control) = stage.switches(test) else { return };
    stage.pg.sql("create table busy (id bigint, note text)");
    stage.pg.set("max_slot_wal_keep_size", "32MB");
    stage.pg.set("max_wal_size", "32MB");
    let mut daemon = stage.streaming();
    insert(&stage.pg, 1..=3);
    stage.wait_for(&mut daemon, "orders", 3);
    stage.wait_confirmed_of(&mut daemon, "shop");
    // What is not delivered holds the slot where it is.
    control.stop();
    insert(&stage.pg, 4..=4);
    lose(&stage);
    ends_with(&stage, &mut daemon, "slot_lost", &[SLOT]);
    control.start().expect("a free port");
    daemon.stop();
}

#[test]
fn the_publication_is_older_than_the_slot_h15() {
    let stage = Stage::new(ORDERS, BOUND);
    stage.pg.set("log_statement", "ddl");
    let daemon = stage.streaming();
    let log = stage.pg.log();
    let publication = log.find("CREATE PUBLICATION").expect("made");
    let slot = log.find("CREATE_REPLICATION_SLOT").expect("made");
    assert!(publication < slot, "a slot decodes with the catalogue of its own time");
    daemon.stop();
}

#[test]
fn a_publication_that_was_made_again_is_explained_h15() {
    let stage = Stage::new(ORDERS, BOUND);
    let mut daemon = stage.streaming();
    insert(&stage.pg, 1..=3);
    stage.wait_for(&mut daemon, "orders", 3);
    daemon.stop();
    stage.pg.sql(&format!("drop publication {SLOT}"));
    insert(&stage.pg, 4..=4);
    stage.pg.sql(&format!("create publication {SLOT} for table orders"));
    insert(&stage.pg, 5..=5);
    let held = stage.confirmed();
    let mut daemon = stage.start();
    let words = [SLOT, "publication", "--accept-gap"];
    ends_with(&stage, &mut daemon, "publication_younger", &words);
    assert_eq!(stage.confirmed(), held, "nothing is confirmed that did not arrive");
    daemon.stop();
    stage.pg.sql(&format!("select pg_drop_replication_slot('{SLOT}')"));
    goes_on_with_a_gap(&stage, &[1, 2, 3], 6);
}

#[test]
fn a_slot_that_somebody_else_read_or_dropped_is_never_taken_up_in_silence() {
    let stage = Stage::new(ORDERS, BOUND);
    let mut daemon = stage.streaming();
    insert(&stage.pg, 1..=3);
    stage.wait_for(&mut daemon, "orders", 3);
    daemon.stop();
    insert(&stage.pg, 4..=5);
    let to = stage.pg.value("select pg_current_wal_flush_lsn()");
    stage.pg.sql(&format!("select pg_replication_slot_advance('{SLOT}', '{to}')"));
    let mut daemon = stage.start();
    ends_with(&stage, &mut daemon, "confirmed_ahead", &[SLOT, &to, "--accept-gap"]);
    daemon.stop();
    let gap = goes_on_with_a_gap(&stage, &[1, 2, 3], 6);
    assert_eq!(gap["last"], to.as_str(), "{gap:#}");

    stage.pg.sql(&format!("select pg_drop_replication_slot('{SLOT}')"));
    insert(&stage.pg, 7..=7);
    let mut daemon = stage.start();
    ends_with(&stage, &mut daemon, "slot_missing", &[SLOT, "--accept-gap"]);
    assert!(stage.pg.sql("select 1 from pg_replication_slots").is_empty(), "not made again");
    daemon.stop();
}

#[test]
fn a_slot_that_is_dropped_while_it_is_read_is_missed_at_once() {
    let stage = Stage::new(ORDERS, BOUND);
    let mut daemon = stage.streaming();
    insert(&stage.pg, 1..=3);
    stage.wait_for(&mut daemon, "orders", 3);
    let end = "select pg_terminate_backend(active_pid) from pg_replication_slots \
               where active_pid is not null";
    let drop = format!("{end}; select pg_drop_replication_slot('{SLOT}')");
    eventually(limit(), "the slot to be dropped", || {
        when(stage.pg.try_sql_in("postgres", &drop).is_ok())
    });
    ends_with(&stage, &mut daemon, "slot_missing", &[SLOT]);
    daemon.stop();
}

#[test]
fn a_refused_source_that_was_mended_runs_again_by_the_admin_interface_t2() {
    let stage = Stage::new(ORDERS, BOUND);
    let mut daemon = stage.streaming();
    insert(&stage.pg, 1..=1);
    stage.wait_for(&mut daemon, "orders", 1);
    stage.wait_confirmed_of(&mut daemon, "shop");
    stage.pg.sql(&format!("alter publication {SLOT} drop table orders"));
    stage.pg.sql(
        "select pg_terminate_backend(pid) from pg_stat_activity \
         where application_name = 'tidegate'",
    );
    ends_with(&stage, &mut daemon, "table_not_published", &["orders"]);
    stage.pg.sql(&format!("alter publication {SLOT} add table orders"));
    let (code, body) = daemon.order("/sources/shop/restart").expect("an answer");
    assert_eq!(code, 200, "{body}");
    stage.running(&mut daemon, "shop");
    insert(&stage.pg, 2..=2);
    assert_eq!(row_ids(&stage.wait_for(&mut daemon, "orders", 2)), [1, 2]);
    stage.wait_confirmed_of(&mut daemon, "shop");
    daemon.stop();
}

#[test]
fn a_restored_database_whose_log_ends_earlier_is_refused() {
    let stage = Stage::new(ORDERS, BOUND);
    let mut daemon = stage.streaming();
    insert(&stage.pg, 1..=3);
    stage.wait_for(&mut daemon, "orders", 3);
    stage.wait_confirmed_of(&mut daemon, "shop");
    daemon.stop();
    let backup = stage.pg.backup();
    let mut daemon = stage.streaming();
    stage.pg.sql("select pg_switch_wal(); select pg_switch_wal()");
    insert(&stage.pg, 4..=6);
    stage.wait_for(&mut daemon, "orders", 6);
    stage.wait_confirmed_of(&mut daemon, "shop");
    daemon.stop();
    stage.pg.restore(&backup);
    assert_eq!(stage.pg.value("select count(*) from orders"), "3");
    let mut daemon = stage.start();
    ends_with(&stage, &mut daemon, "ahead_of_server", &["restored", "--accept-gap"]);
    daemon.stop();
    let mut daemon = stage.start_accepting();
    stage.running(&mut daemon, "shop");
    insert(&stage.pg, 7..=7);
    eventually(limit(), "row 7", || {
        daemon.assert_running();
        when(row_ids(&stage.got("orders")).last() == Some(&7))
    });
    // What the restored slot had not heard of yet may come once more.
    assert_eq!(row_ids(&once(stage.got("orders"))), [1, 2, 3, 4, 5, 6, 7]);
    gap(&daemon);
    daemon.stop();
}

#[test]
fn without_a_free_slot_it_waits_and_says_so() {
    let pg = Postgres::start_with(&[("max_replication_slots", "1")]);
    let stage = Stage::on(pg, ORDERS, BOUND);
    stage.pg.sql("select pg_create_physical_replication_slot('somebody')");
    let mut daemon = stage.start();
    let source = stage.reason(&mut daemon, "capture_waiting");
    let detail = source["detail"].as_str().expect("text");
    assert!(detail.starts_with("slots_exhausted") && detail.contains("1 of 1"), "{detail}");
    assert_eq!(source["status"], "Degraded");
    stage.pg.sql("select pg_drop_replication_slot('somebody')");
    stage.running(&mut daemon, "shop");
    insert(&stage.pg, 1..=1);
    stage.wait_for(&mut daemon, "orders", 1);
    daemon.stop();
}

#[test]
fn without_a_free_walsender_it_waits_and_says_so() {
    let pg = Postgres::start_with(&[("max_wal_senders", "1")]);
    let mut stage = Stage::on(pg, ORDERS, BOUND);
    stage.add_source("second", BOUND);
    let mut daemon = stage.all_streaming(1);
    let first = |line: &String| line.contains("streaming from slot \\\"tidegate_shop");
    let (first, other) = match daemon.lines().iter().any(first) {
        true => ("shop", "second"),
        false => ("second", "shop"),
    };
    let source = stage.shows(&mut daemon, other, "without a walsender", |source| {
        source["reason"] == "capture_waiting"
    });
    let detail = source["detail"].as_str().expect("text");
    assert!(detail.starts_with("senders_exhausted"), "{detail}");
    assert!(detail.contains("max_wal_senders"), "{detail}");
    let (code, body) = daemon.order(&format!("/sources/{first}/pause")).expect("an answer");
    assert_eq!(code, 200, "{body}");
    stage.running(&mut daemon, other);
    daemon.stop();
}

#[test]
fn a_new_slot_waits_for_open_transactions_and_names_them() {
    let stage = Stage::new(ORDERS, BOUND);
    let mut older = stage.pg.session("postgres");
    older.sql("begin; insert into orders values (1, 'older')");
    let rows = older.sql("select pg_backend_pid()");
    let pid = rows[0][0].clone().expect("a process");
    let mut daemon = stage.start();
    let waits = stage.shows(&mut daemon, "shop", "waiting for it", |source| {
        let detail = source["detail"].as_str().unwrap_or_default();
        detail.contains("slot_creation_blocked") || detail.contains("open transactions")
    });
    assert!(waits["detail"].as_str().is_some_and(|text| text.contains(&pid)), "{waits:#}");
    older.sql("commit");
    stage.running(&mut daemon, "shop");
    insert(&stage.pg, 2..=2);
    assert_eq!(row_ids(&stage.wait_for(&mut daemon, "orders", 1)), [2]);
    daemon.stop();
}

#[test]
fn a_role_that_may_only_replicate_reads_tables_it_may_not_select() {
    let mut stage = Stage::new(ORDERS, BOUND);
    stage.pg.sql(&format!(
        "create role app login replication; create publication {SLOT} for table orders"
    ));
    stage.connection = stage.pg.url_of("app", None, "postgres");
    let mut daemon = stage.streaming();
    insert(&stage.pg, 1..=3);
    assert_eq!(row_ids(&stage.wait_for(&mut daemon, "orders", 3)), [1, 2, 3]);
    daemon.stop();
}

#[test]
fn limits_and_forms_that_a_role_has_by_default_change_nothing() {
    let table = "create table orders (id bigint primary key, at timestamptz, day date, \
                 span interval, bytes bytea, f float8)";
    let stage = Stage::new(table, BOUND);
    stage.pg.sql(
        "alter role postgres set DateStyle = 'German'; alter role postgres set TimeZone = 'Japan'; \
         alter role postgres set IntervalStyle = 'iso_8601'; \
         alter role postgres set bytea_output = 'escape'; \
         alter role postgres set extra_float_digits = -3; \
         alter role postgres set synchronous_commit = off; \
         alter role postgres set statement_timeout = '300ms'; \
         alter role postgres set idle_session_timeout = '700ms'; \
         alter database postgres set idle_in_transaction_session_timeout = '300ms'; \
         alter role postgres set search_path = 'nowhere'",
    );
    let mut daemon = stage.streaming();
    let ours = "select string_agg(pid::text, ' ' order by pid) from pg_stat_activity \
                where application_name = 'tidegate'";
    let sessions = || stage.pg.value(ours);
    let before = sessions();
    assert_eq!(before.split(' ').count(), 2, "one that asks and one that streams: {before}");
    std::thread::sleep(Duration::from_millis(1_500));
    stage.pg.sql(
        "insert into public.orders values (1, '2024-02-29 23:59:59.5+00', '2024-02-29', \
         '1 day 2 hours', '\\x00ff', 0.1::float8 + 0.2)",
    );
    let got = stage.wait_for(&mut daemon, "orders", 1);
    let text = String::from_utf8_lossy(&got[0].raw).into_owned();
    let wanted = "\"data\":{\"id\":1,\"at\":\"2024-02-29T23:59:59.5Z\",\"day\":\"2024-02-29\",\
                  \"span\":\"1 day 02:00:00\",\"bytes\":\"AP8=\",\"f\":0.30000000000000004}";
    assert!(text.contains(wanted), "{text}");
    assert_eq!(sessions(), before, "one login of each all the time");
    stage.running(&mut daemon, "shop");
    daemon.stop();
}

#[test]
fn a_database_without_an_encoding_sends_what_it_has() {
    let mut stage = Stage::new(ORDERS, BOUND);
    stage.pg.sql(
        "create database plain template template0 encoding 'SQL_ASCII' lc_collate 'C' lc_ctype 'C'",
    );
    stage.pg.sql_in("plain", &format!("set client_encoding = 'SQL_ASCII'; {ORDERS}"));
    stage.connection = stage.pg.url_of("postgres", None, "plain");
    let mut daemon = stage.streaming();
    let told = |line: &String| line.contains("encoding") && line.contains("SQL_ASCII");
    assert!(daemon.lines().iter().any(told), "{}", daemon.last_lines(20));
    stage.pg.sql_in(
        "plain",
        "set client_encoding = 'SQL_ASCII'; insert into orders values (1, 'plain'), \
         (2, E'caf\\xe9'), (3, E'caf\\xc3\\xa9')",
    );
    let got = stage.wait_for(&mut daemon, "orders", 3);
    let notes: Vec<&str> =
        got.iter().map(|got| got.payload["data"]["note"].as_str().expect("text")).collect();
    assert_eq!(notes, ["plain", "caf\u{fffd}", "café"]);
    stage.running(&mut daemon, "shop");
    daemon.stop();
}

#[test]
fn a_value_of_many_megabytes_passes_and_one_that_fits_no_message_is_named() {
    let stage = Stage::new(ORDERS, BOUND);
    let mut daemon = stage.streaming();
    let size = 20_000_000;
    stage.pg.sql(&format!(
        "insert into orders values (1, 'a'); insert into orders values (2, repeat('x', {size})); \
         insert into orders values (3, 'c')"
    ));
    let got = stage.wait_for(&mut daemon, "orders", 3);
    let note = got[1].payload["data"]["note"].as_str().expect("text");
    assert!(note.len() == size && note.bytes().all(|byte| byte == b'x'));
    assert_eq!(row_ids(&got), [1, 2, 3]);
    stage.wait_confirmed_of(&mut daemon, "shop");
    let before = stage.confirmed();
    stage.pg.sql("insert into orders values (4, repeat('x', 70000000))");
    insert(&stage.pg, 5..=5);
    ends_with(&stage, &mut daemon, "row_too_large", &["700000"]);
    assert!(stage.confirmed() < stage.insert_lsn() && stage.confirmed() >= before);
    assert_eq!(stage.got("orders").len(), 3);
    daemon.stop();
}

/// `hostssl` alone, and a role with a password.
fn with_tls() -> (Stage, String) {
    let mut stage = Stage::new(ORDERS, BOUND);
    let tls = stage.pg.enable_tls(&["localhost"]);
    stage.pg.sql("create role app login replication superuser password 'hunter2'");
    stage.pg.set_hba(&["hostssl all app 127.0.0.1/32 scram-sha-256"]);
    let root = tls.ca_file.display().to_string();
    stage.connection = over_tls(&stage, "localhost", "verify-full", &root);
    (stage, root)
}

fn over_tls(stage: &Stage, host: &str, mode: &str, root: &str) -> String {
    let port = stage.pg.port();
    format!("postgresql://app:hunter2@{host}:{port}/postgres?sslmode={mode}&sslrootcert={root}")
}

#[test]
fn every_session_is_encrypted_and_checked_as_the_mode_says_h25() {
    let (mut stage, root) = with_tls();
    let encrypted = "select count(*), bool_and(ssl), bool_or(backend_type = 'walsender'), \
                     bool_or(backend_type = 'client backend') from pg_stat_ssl \
                     join pg_stat_activity using (pid) where usename = 'app'";
    let port = stage.pg.port();
    let good = [
        format!("postgresql://app:hunter2@127.0.0.1:{port}/postgres?sslmode=require"),
        over_tls(&stage, "localhost", "verify-full", &root),
    ];
    for (n, connection) in (1..).zip(good) {
        stage.connection = connection;
        let mut daemon = stage.streaming();
        let row = &stage.pg.sql(encrypted)[0];
        let row: Vec<&str> = row.iter().flatten().map(String::as_str).collect();
        assert_eq!(row, ["2", "t", "t", "t"], "the walsender and the one that asks");
        insert(&stage.pg, n..=n);
        stage.wait_for(&mut daemon, "orders", n as usize);
        daemon.stop();
    }
    let other = super::support::Authority::new("Another authority");
    let wrong = stage.pg.write_file("other.crt", &other.certificate_pem()).display().to_string();
    for (host, root, words) in [
        ("localhost", &wrong, ["certificate", "authority"]),
        ("127.0.0.1", &root, ["certificate", "127.0.0.1"]),
    ] {
        stage.connection = over_tls(&stage, host, "verify-full", root);
        let mut daemon = stage.start();
        let source = stage.reason(&mut daemon, "tls_failed");
        let detail = source["detail"].as_str().expect("text").to_lowercase();
        assert!(words.iter().all(|word| detail.contains(word)), "{detail}");
        let sessions = "select count(*) from pg_stat_activity where usename = 'app'";
        throughout(Duration::from_millis(500), "no session", || stage.pg.value(sessions) == "0");
        daemon.stop();
    }
}

#[test]
fn a_password_that_changes_is_a_refused_login_and_no_secret_is_shown_h25() {
    let (stage, _) = with_tls();
    let mut daemon = stage.streaming();
    insert(&stage.pg, 1..=1);
    stage.wait_for(&mut daemon, "orders", 1);
    stage.pg.sql(
        "alter role app password 'other'; \
         select pg_terminate_backend(pid) from pg_stat_activity where usename = 'app'",
    );
    let source = stage.reason(&mut daemon, "login_refused");
    assert_eq!(source["status"], "Degraded");
    let detail = source["detail"].as_str().expect("text");
    assert!(detail.contains("password authentication failed"), "{detail}");
    let refused = || stage.pg.log().matches("password authentication failed").count();
    let before = refused();
    std::thread::sleep(Duration::from_secs(2));
    // `max_retry_interval` is half a second here, and there are two sessions.
    let tries = refused() - before;
    assert!((1..=16).contains(&tries), "{tries} tries in 2 s");
    insert(&stage.pg, 2..=2);
    let shown = daemon.status().expect("status").to_string();
    for text in [shown, daemon.lines().join("\n")] {
        assert!(!text.contains("hunter2"), "a secret is shown");
    }
    stage.pg.sql("alter role app password 'hunter2'");
    stage.wait_for(&mut daemon, "orders", 2);
    stage.running(&mut daemon, "shop");
    daemon.stop();
}

#[test]
fn a_server_that_is_still_starting_or_already_stopping_is_tried_again() {
    let stage = Stage::new(ORDERS, BOUND);
    let mut daemon = stage.streaming();
    for (n, how) in [(1, Stop::Fast), (2, Stop::Immediate)] {
        insert(&stage.pg, n..=n);
        stage.wait_for(&mut daemon, "orders", n as usize);
        // Somebody who stays lets the server neither stop nor refuse.
        stage.pg.stop(how);
        stage.reason(&mut daemon, "upstream_unreachable");
        stage.pg.launch();
        stage.running(&mut daemon, "shop");
    }
    insert(&stage.pg, 3..=3);
    assert_eq!(row_ids(&stage.wait_for(&mut daemon, "orders", 3)), [1, 2, 3]);
    daemon.stop();
}
