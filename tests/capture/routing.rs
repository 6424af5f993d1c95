//! Which stream, topic and partition a row goes to, and that the slot waits for all of them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::json;
use tidegate::loopback::faults::{Fault, Scope, Times};
use twox_hash::XxHash32;

use super::stage::{Stage, limit};
use super::support::{Daemon, eventually, throughout, when};
use super::switches::{destination, named, row_ids, sends_met, sends_to};

const TWO_TABLES: &str = "create table orders (id bigint primary key, note text);\
                          create table users (id bigint primary key, note text);";
const BY_TABLE: &str = r#"
tables = ["public.orders", "public.users"]
max_batch_bytes = "16KiB"
[sources.shop.routing.by_table]
"public.orders" = { stream = "$stream", topic = "orders" }
"public.users" = { stream = "$stream", topic = "people" }
"public.audit" = { stream = "$stream", topic = "audit" }
"#;

#[test]
fn two_tables_fill_two_topics_and_what_nothing_reaches_is_told_h04() {
    let stage = Stage::new(TWO_TABLES, BY_TABLE);
    let mut daemon = stage.streaming();
    for id in 1..=10 {
        stage.pg.sql(&format!(
            "insert into orders values ({id}, 'o'); insert into users values ({id}, 'u')"
        ));
    }
    let all: Vec<i64> = (1..=10).collect();
    assert_eq!(row_ids(&stage.wait_for(&mut daemon, "orders", 10)), all);
    assert_eq!(row_ids(&stage.wait_for(&mut daemon, "people", 10)), all);
    stage.wait_confirmed_of(&mut daemon, "shop");
    let count = |topic| stage.got(topic).len();
    assert_eq!((count("orders"), count("people"), count("audit")), (10, 10, 0));
    let lines = daemon.lines();
    let told = |line: &String| line.contains("public.audit is not in tables");
    assert!(lines.iter().any(told), "{}", lines.join("\n"));
    daemon.stop();
}

#[test]
fn a_destination_that_is_listed_twice_is_one_that_gets_every_row_once_h04() {
    let stage = Stage::new(
        TWO_TABLES,
        r#"
tables = ["public.orders", "public.users"]
[sources.shop.routing.by_table]
"public.orders" = { stream = "$stream", topic = "all" }
"public.users" = { stream = "$stream", topic = "all" }
[sources.shop.routing.admission]
mode = "allowlist"
allowlist = [{ stream = "$stream", topic = "all" }, { stream = "$stream", topic = "all" }]
"#,
    );
    let mut daemon = stage.streaming();
    for id in 1..=10 {
        stage.pg.sql(&format!(
            "insert into orders values ({id}, 'o'); insert into users values ({}, 'u')",
            id + 100
        ));
    }
    stage.wait_for(&mut daemon, "all", 20);
    stage.wait_confirmed_of(&mut daemon, "shop");
    let mut ids = row_ids(&stage.got("all"));
    ids.sort_unstable();
    assert_eq!(ids, (1..=10).chain(101..=110).collect::<Vec<i64>>(), "10 and 10, each once");
    eventually(limit(), "one destination", || {
        let body = daemon.get("/connectors/shop/destinations").ok()?.1;
        let shown: serde_json::Value = serde_json::from_str(&body).expect("JSON");
        when(shown.as_array().map(Vec::len) == Some(1))
    });
    let lines = daemon.lines();
    assert!(lines.iter().any(|line| line.contains("listed twice")), "{}", lines.join("\n"));
    daemon.stop();
}

/// One table routed by its column `kind`, another without that column.
const BY_KIND: &str = r#"
tables = ["public.events", "public.plain"]
[sources.shop.routing]
topic_column = "kind"
default_topic = "unknown"
default_stream = "$stream"
"#;

#[test]
fn a_routing_column_that_is_gone_stops_the_capture_also_behind_a_restart() {
    let mut stage = Stage::new(
        "create table events (id bigint primary key, kind text);\
         create table plain (id bigint primary key)",
        BY_KIND,
    );
    let mut daemon = stage.streaming();
    stage.pg.sql("insert into events values (1, 'login'); insert into plain values (2)");
    stage.wait_for(&mut daemon, "login", 1);
    assert_eq!(row_ids(&stage.wait_for(&mut daemon, "unknown", 1)), [2], "it never had one");
    stage.wait_confirmed_of(&mut daemon, "shop");
    daemon.stop();
    // The first that the next process hears of the table is that it has no such column.
    stage.pg.sql("alter table events drop column kind; insert into events values (3)");
    for _ in 0..2 {
        let mut daemon = stage.start();
        let shown = stage.reason(&mut daemon, "routing_column_missing");
        assert_eq!(shown["status"], "Error");
        let detail = shown["detail"].as_str().expect("text");
        assert!(detail.contains("public.events") && detail.contains("\"kind\""), "{detail}");
        assert_eq!(row_ids(&stage.got("unknown")), [2], "row 3 is not sent elsewhere");
        daemon.kill();
    }
    let text = "[sources.shop.routing.by_table]\n\
                \"public.events\" = { stream = \"$stream\", topic = \"events\" }\n";
    stage.source.push_str(&text.replace("$stream", &stage.stream));
    let mut daemon = stage.streaming();
    assert_eq!(row_ids(&stage.wait_for(&mut daemon, "events", 1)), [3]);
    stage.wait_confirmed_of(&mut daemon, "shop");
    daemon.stop();
}

#[test]
fn the_slot_waits_for_every_destination_of_a_transaction() {
    let test = "the_slot_waits_for_every_destination_of_a_transaction";
    let mut stage = Stage::new(TWO_TABLES, BY_TABLE);
    let Some(control) = stage.switches(test) else { return };
    stage.cluster = "request_timeout = \"30s\"".to_owned();
    let mut daemon = stage.streaming();
    stage.pg.sql("insert into orders values (1, ''); insert into users values (1, '')");
    stage.wait_for(&mut daemon, "people", 1);
    stage.wait_confirmed_of(&mut daemon, "shop");
    control.fault(Fault::HoldReply, sends_to(&stage, "people"), Times::UntilCleared);
    let mut session = stage.pg.session("postgres");
    session.sql("begin; insert into orders values (2, '')");
    let inside = stage.insert_lsn();
    session.sql("insert into users values (2, ''); commit");
    session.sql("insert into orders values (3, '')");
    assert_eq!(row_ids(&stage.wait_for(&mut daemon, "orders", 3)), [1, 2, 3], "others flow");
    // More log, so that there is something a keepalive could confirm.
    session.sql("select pg_switch_wal()");
    throughout(Duration::from_millis(2_500), "the slot waits", || stage.confirmed() < inside);
    control.clear_all();
    control.release_held();
    stage.wait_confirmed_of(&mut daemon, "shop");
    assert_eq!(row_ids(&stage.got("people")), [1, 2], "acked late is not sent again");
    daemon.stop();
}

#[test]
fn the_slot_moves_to_ends_of_transactions_only() {
    let test = "the_slot_moves_to_ends_of_transactions_only";
    let stage = Stage::new(TWO_TABLES, BY_TABLE);
    let Some(control) = stage.switches(test) else { return };
    let mut daemon = stage.streaming();
    control.fault(Fault::Slow(Duration::from_millis(25)), Scope::sends(), Times::UntilCleared);
    let mut session = stage.pg.session("postgres");
    let mut inner = Vec::new();
    for round in 0..3 {
        session.sql(&format!("begin; insert into orders values ({}, '')", round * 10_000));
        let first = stage.insert_lsn();
        session.sql(&format!(
            "insert into orders select {} + n, repeat('x', 200) from generate_series(1, 1000) n; \
             insert into users select {} + n, 'y' from generate_series(1, 100) n",
            round * 10_000,
            round * 10_000
        ));
        inner.push(first..=stage.insert_lsn());
        session.sql("commit");
    }
    let end = stage.insert_lsn();
    let mut seen = BTreeSet::new();
    eventually(limit(), "everything to be confirmed", || {
        daemon.assert_running();
        let confirmed = stage.confirmed();
        seen.insert(confirmed);
        stage.pg.sql("select pg_logical_emit_message(false, 'filler', 'x')");
        when(confirmed >= end)
    });
    for confirmed in &seen {
        assert!(!inner.iter().any(|inner| inner.contains(confirmed)), "{confirmed:X}: {inner:X?}");
    }
    let sends = sends_met(&control);
    assert!(sends.len() > 20, "each transaction is several batches: {}", sends.len());
    assert_eq!((stage.got("orders").len(), stage.got("people").len()), (3_003, 300));
    daemon.stop();
}

#[test]
fn three_kinds_of_event_go_to_three_topics_without_their_routing_columns() {
    let stage = Stage::new(
        "create table events (id bigint primary key, kind text, tenant text, note text);\
         alter table events replica identity full;\
         create table plain (id bigint primary key, note text)",
        r#"
tables = ["public.events", "public.plain"]
[sources.shop.routing]
topic_column = "kind"
stream_column = "tenant"
default_topic = "events.unknown"
default_stream = "$stream"
strip_routing_columns = true
"#,
    );
    let (one, two) = (format!("{}-a", stage.stream), format!("{}-b", stage.stream));
    let mut daemon = stage.streaming();
    for (id, kind) in ["login", "logout", "signup", "login", "signup", "logout"].iter().enumerate()
    {
        let tenant = if id < 3 { &one } else { &two };
        stage.pg.sql(&format!(
            "insert into events values ({id}, '{kind}', '{tenant}', 'n{id}'); \
             update events set note = 'u{id}' where id = {id}; delete from events where id = {id}"
        ));
    }
    stage.pg.sql("insert into plain values (7, 'p')");
    assert_eq!(row_ids(&stage.wait_for(&mut daemon, "events.unknown", 1)), [7]);
    for (tenant, kind, id) in [
        (&one, "login", 0),
        (&one, "logout", 1),
        (&one, "signup", 2),
        (&two, "login", 3),
        (&two, "signup", 4),
        (&two, "logout", 5),
    ] {
        let topic = tidegate::batch::TopicName::new(tenant, kind);
        let got = eventually(limit(), &format!("{topic}"), || {
            let got = stage.got_in(&topic).concat();
            (got.len() >= 3).then_some(got)
        });
        let row = |note: &str| json!({"id": id, "note": format!("{note}{id}")});
        let data: Vec<_> = got.iter().map(|message| &message.payload["data"]).collect();
        assert_eq!(data, [&row("n"), &row("u"), &json!(null)], "{topic}");
        let old: Vec<_> = got.iter().map(|message| &message.payload["old_data"]).collect();
        assert_eq!(old, [&json!(null), &row("n"), &row("u")], "{topic}");
    }
    daemon.stop();
}

const NAMES: &str = "create table events (id bigint primary key, kind text)";
/// Rows by id; 2, 3, 6 and 10 have no name that Iggy takes.
const NAMED: &str = "insert into events values (1, null), (2, ''), (3, '  '), (4, '7'), \
                     (5, 'a/b'), (6, repeat('x', 300)), (7, 'größe ☃'), (8, 'Orders'), \
                     (9, 'orders'), (10, E'a\\tb'), (11, repeat('y', 255)), (12, null)";

fn by_kind(more: &str) -> String {
    format!(
        "tables = [\"public.events\"]\ncapture_operations = [\"INSERT\"]\n\
         [sources.$key.routing]\ntopic_column = \"kind\"\ndefault_topic = \"unknown\"\n\
         default_stream = \"$stream\"\n{more}"
    )
}

#[test]
fn a_route_value_is_a_name_or_follows_the_admission_policy_h27() {
    let hold = by_kind("").replace("$key", "shop");
    let mut stage = Stage::new(NAMES, &hold);
    let admission = "[sources.$key.routing.admission]\non_admission_failure = ";
    let drop = by_kind(&format!("{admission}\"drop\"")).replace("$key", "drop");
    stage.add_source("drop", &drop);
    let letters = "\"dead_letter\"\ndead_letter = { stream = \"$stream\", topic = \"dead\" }";
    let letters = by_kind(&format!("{admission}{letters}")).replace("$key", "letters");
    stage.add_source("letters", &letters);
    // So that there is a topic whose numeric id is 7.
    for number in 0..10 {
        let topic =
            tidegate::batch::TopicName::new(&stage.stream_of("drop"), &format!("t{number}"));
        stage.pair.down.create_topic(&topic, 1);
    }
    let mut daemon = stage.all_streaming(3);
    stage.pg.sql(NAMED);
    let held = stage.insert_lsn();
    let long = "y".repeat(255);
    let expected: [(&str, &[i64]); 7] = [
        ("unknown", &[1, 12]),
        ("7", &[4]),
        ("a/b", &[5]),
        ("größe ☃", &[7]),
        ("Orders", &[8]),
        ("orders", &[9]),
        (&long, &[11]),
    ];
    for (topic, ids) in expected {
        assert_eq!(row_ids(&stage.wait_for(&mut daemon, topic, ids.len())), ids, "{topic}");
        for key in ["drop", "letters"] {
            let got = eventually(limit(), &format!("{topic} of {key}"), || {
                let got = stage.got_of(key, topic);
                (got.len() >= ids.len()).then_some(got)
            });
            assert_eq!(row_ids(&got), ids, "{key} {topic}");
        }
    }
    for number in 0..10 {
        assert_eq!(stage.got_of("drop", &format!("t{number}")), [], "7 is a name, not an id");
    }
    stage.wait_confirmed_of(&mut daemon, "drop");
    stage.wait_confirmed_of(&mut daemon, "letters");
    let mut dead = stage.got_of("letters", "dead");
    dead.sort_by_key(|letter| letter.payload["data"]["id"].as_i64());
    assert_eq!(row_ids(&dead), [2, 3, 6, 10]);
    let cut = "x".repeat(255);
    for (letter, topic) in dead.iter().zip([None, Some("  "), Some(&*cut), Some("a\tb")]) {
        assert_eq!(letter.text("tidegate_reason"), "invalid_name");
        assert_eq!(letter.text("tidegate_stream"), stage.stream_of("letters"));
        let meant = topic.map(|_| letter.text("tidegate_topic"));
        assert_eq!(meant, topic, "{letter:?}");
        assert_eq!(letter.headers.contains_key("tidegate_topic"), topic.is_some());
        assert!(letter.text("lsn").contains('/') && letter.text("op") == "I");
    }
    stage.degraded(&mut daemon, "shop", &["destination_refused", "invalid_name"]);
    assert!(stage.confirmed() < held, "what is held is not confirmed");
    for key in ["drop", "letters"] {
        stage.running(&mut daemon, key);
    }
    for key in ["shop", "drop", "letters"] {
        stage.rejected(&mut daemon, key, "invalid_name", 4);
        let shown = named(&daemon, key).expect("the source");
        assert_eq!(shown["capture"]["routing"]["unmatched"]["default"], 2, "{shown:#}");
    }
    daemon.stop();
}

#[test]
fn a_row_without_a_payload_sends_nothing_and_blocks_nobody_h27() {
    let stage = Stage::new(
        "create table outbox (id bigint primary key, body bytea)",
        "tables = [\"public.outbox\"]\nstream = \"$stream\"\ntopic = \"outbox\"\n\
         payload_column = \"body\"\npayload_format = \"bytea\"",
    );
    let mut daemon = stage.streaming();
    stage.pg.sql("insert into outbox values (1, 'one'), (2, null), (3, ''), (4, 'four')");
    stage.pg.sql("insert into outbox values (5, null); insert into outbox values (6, '\\x00ff')");
    let got = stage.wait_for(&mut daemon, "outbox", 3);
    let bodies: Vec<&[u8]> = got.iter().map(|message| &*message.raw).collect();
    assert_eq!(bodies, [b"one".as_slice(), b"four", b"\x00\xff"]);
    stage.pg.sql("insert into outbox values (7, null)");
    stage.wait_confirmed_of(&mut daemon, "shop");
    assert_eq!(stage.got("outbox").len(), 3);
    stage.shows(&mut daemon, "shop", "running with 4 rows without payload", |source| {
        let without = &source["capture"]["stream"]["without_payload"];
        source["status"] == "Running" && *without == 4
    });
    daemon.stop();
}

const KEYED: &str = "create table events \
                     (id bigint primary key, who text, number bigint, part text, v int not null)";

fn keyed(key: &str, routing: &str) -> String {
    format!(
        "tables = [\"public.events\"]\nstream = \"$stream\"\ntopic = \"keyed\"\n\
         [sources.{key}.routing]\n{routing}\n\
         [sources.{key}.routing.topic_defaults]\npartitions_count = 4\n"
    )
}

/// Partition by partition of an added source.
fn partitions(stage: &Stage, key: &str) -> Vec<Vec<super::stage::Got>> {
    stage.got_in(&tidegate::batch::TopicName::new(&stage.stream_of(key), "keyed"))
}

#[test]
fn keys_of_three_encodings_and_the_identity_keep_their_rows_in_one_partition_in_order() {
    let mut stage = Stage::new(
        KEYED,
        "tables = [\"public.events\"]\nstream = \"$stream\"\n\
                                       topic = \"all\"",
    );
    let key = "partition_key_column = ";
    for (name, routing) in [
        ("bytes", format!("{key}\"who\"")),
        ("u32", format!("{key}\"number\"\npartition_key_encoding = \"key_u32\"")),
        ("id", format!("{key}\"part\"\npartition_key_encoding = \"partition_id\"")),
        ("identity", "partition_by = \"identity\"".to_owned()),
    ] {
        stage.add_source(name, &keyed(name, &routing));
    }
    let mut daemon = stage.all_streaming(5);
    stage.pg.sql(
        "insert into events select n, 'user-' || n, n, (n % 4)::text, 0 \
         from generate_series(1, 100) n",
    );
    for v in 1..=5 {
        stage.pg.sql(&format!("update events set v = {v}"));
    }
    let hash = |key: &[u8]| XxHash32::oneshot(0, key) % 4;
    for name in ["bytes", "u32", "id", "identity"] {
        let logs = eventually(limit(), &format!("the rows of {name}"), || {
            daemon.assert_running();
            let logs = partitions(&stage, name);
            (logs.iter().map(Vec::len).sum::<usize>() >= 600).then_some(logs)
        });
        assert_eq!(logs.len(), 4);
        for (partition, log) in logs.iter().enumerate() {
            assert!(!log.is_empty(), "{name} {partition}");
            let mut seen: BTreeMap<i64, i64> = BTreeMap::new();
            for message in log {
                let data = &message.payload["data"];
                let id = data["id"].as_i64().expect("an id");
                let expected = match name {
                    "bytes" => hash(format!("user-{id}").as_bytes()),
                    "u32" => hash(&u32::try_from(id).expect("small").to_le_bytes()),
                    "id" => u32::try_from(id % 4).expect("small"),
                    _ => hash(id.to_string().as_bytes()),
                };
                assert_eq!(expected as usize, partition, "{name} {id}");
                let v = data["v"].as_i64().expect("a number");
                let before = seen.insert(id, v);
                assert_eq!(before.map_or(0, |before| before + 1), v, "{name} {id}: in order, once");
            }
        }
    }
    daemon.stop();
}

#[test]
fn a_full_identity_does_not_part_a_row_from_its_changes() {
    let sql = format!(
        "{KEYED}; alter table events replica identity full; \
         create table loose (id int, note text); alter table loose replica identity full"
    );
    let identity = "partition_by = \"identity\"";
    let loose = format!(
        "tables = [\"public.loose\"]\nstream = \"$stream\"\ntopic = \"all\"\n\
         [sources.shop.routing]\n{identity}\n"
    );
    let mut stage = Stage::new(&sql, &loose);
    stage.add_source("full", &keyed("full", identity));
    let lines = format!("decoder = \"test_decoding\"\n{}", keyed("lines", identity));
    stage.add_source("lines", &lines);
    let mut daemon = stage.all_streaming(3);
    let told = daemon.lines();
    let warned = |table: &str| told.iter().any(|l| l.contains("row_key") && l.contains(table));
    assert!(warned("public.loose") && !warned("public.events"), "{}", told.join("\n"));
    stage.pg.sql("insert into events select n, 'w', n, null, 0 from generate_series(1, 30) n");
    for _ in 0..3 {
        stage.pg.sql("update events set v = v + 1, who = who || v, number = null");
    }
    stage.pg.sql("delete from events where id <= 15");
    for key in ["full", "lines"] {
        stage.wait_confirmed_of(&mut daemon, key);
        let logs = partitions(&stage, key);
        assert_eq!(logs.iter().map(Vec::len).sum::<usize>(), 30 * 4 + 15, "{key}");
        assert!(logs.iter().filter(|log| !log.is_empty()).count() > 1, "{key}: keys are spread");
        let mut changes: BTreeMap<i64, Vec<String>> = BTreeMap::new();
        for log in &logs {
            let here: BTreeSet<i64> = row_ids(log).into_iter().collect();
            assert!(here.iter().all(|id| !changes.contains_key(id)), "{key}: one partition each");
            for (got, id) in log.iter().zip(row_ids(log)) {
                let change = format!("{} {}", got.text("op"), got.payload["data"]["v"]);
                changes.entry(id).or_default().push(change);
            }
        }
        for (id, found) in changes {
            let mut wanted = vec!["I 0", "U 1", "U 2", "U 3"];
            wanted.extend((id <= 15).then_some("D null"));
            assert_eq!(found, wanted, "{key}: row {id}");
        }
    }
    daemon.stop();
}

#[test]
fn rows_of_many_keys_share_requests() {
    let test = "rows_of_many_keys_share_requests";
    let source = keyed("shop", "partition_key_column = \"who\"");
    let stage = Stage::new(KEYED, &source);
    let Some(control) = stage.switches(test) else { return };
    control.fault(Fault::Slow(Duration::ZERO), Scope::sends(), Times::UntilCleared);
    let mut daemon = stage.streaming();
    stage.pg.sql(
        "insert into events select n, 'user-' || n, n, null, 0 from generate_series(1, 400) n",
    );
    stage.wait_for(&mut daemon, "keyed", 400);
    let sends = sends_met(&control).len();
    assert!((4..=80).contains(&sends), "400 keys in {sends} requests");
    daemon.stop();
}

#[test]
fn a_row_without_a_key_goes_anywhere_and_is_no_error() {
    let source = keyed("shop", "partition_key_column = \"who\"");
    let stage = Stage::new(KEYED, &source);
    let mut daemon = stage.streaming();
    stage.pg.sql("insert into events select n, null, n, null, 0 from generate_series(1, 40) n");
    stage.pg.sql("delete from events where id <= 10");
    stage.wait_for(&mut daemon, "keyed", 50);
    stage.wait_confirmed_of(&mut daemon, "shop");
    let shown =
        stage.shows(&mut daemon, "shop", "counted", |source| source["totals"]["messages"] == 50);
    assert_eq!((&shown["status"], &shown["totals"]["errors"]), (&"Running".into(), &0.into()));
    daemon.stop();
}

/// Rows whose partition is not there.
const OUTSIDE: [i64; 4] = [2, 4, 6, 8];

fn write_outside(stage: &Stage) {
    stage.pg.sql(
        "insert into events values (1, '', 0, '1', 0), (2, '', 0, '4', 0), (3, '', 0, '3', 0), \
         (4, '', 0, '-1', 0), (5, '', 0, '0', 0), (6, '', 0, 'x', 0), (7, '', 0, null, 0), \
         (8, '', 0, '99999999999', 0), (9, '', 0, '2', 0)",
    );
}

fn wait_inside(stage: &Stage, daemon: &mut Daemon, key: &str) -> Vec<Vec<i64>> {
    eventually(limit(), &format!("the rows of {key}"), || {
        daemon.assert_running();
        let logs = partitions(stage, key);
        let ids: Vec<Vec<i64>> = logs.iter().map(|log| row_ids(log)).collect();
        (ids.concat().len() >= 5).then_some(ids)
    })
}

#[test]
fn a_partition_that_is_not_there_keeps_nobody_else_from_going() {
    let mut stage = Stage::new(
        KEYED,
        "tables = [\"public.events\"]\nstream = \"$stream\"\n\
                                       topic = \"all\"",
    );
    let by_id = "partition_key_column = \"part\"\npartition_key_encoding = \"partition_id\"";
    let admission =
        |key: &str| format!("[sources.{key}.routing.admission]\non_admission_failure = ");
    stage.add_source("hold", &keyed("hold", by_id));
    let drop = format!("{}{}\"drop\"", keyed("drop", by_id), admission("drop"));
    stage.add_source("drop", &drop);
    let letters = format!(
        "{}{}\"dead_letter\"\ndead_letter = {{ stream = \"$stream\", topic = \"dead\" }}",
        keyed("letters", by_id),
        admission("letters")
    );
    stage.add_source("letters", &letters);
    let mut daemon = stage.all_streaming(4);
    write_outside(&stage);
    let held = stage.insert_lsn();
    for key in ["hold", "drop", "letters"] {
        let ids = wait_inside(&stage, &mut daemon, key);
        let mut all = ids.concat();
        all.sort_unstable();
        assert_eq!(all, [1, 3, 5, 7, 9], "{key}");
        assert!(ids[1].contains(&1) && ids[3].contains(&3) && ids[0].contains(&5), "{ids:?}");
    }
    stage.wait_confirmed_of(&mut daemon, "drop");
    stage.wait_confirmed_of(&mut daemon, "letters");
    let dead = stage.got_of("letters", "dead");
    let mut ids = row_ids(&dead);
    ids.sort_unstable();
    assert_eq!(ids, OUTSIDE);
    for letter in &dead {
        assert_eq!(letter.text("tidegate_reason"), "partition_id_out_of_range");
        assert_eq!(letter.text("tidegate_topic"), "keyed");
        assert_eq!(letter.text("tidegate_stream"), stage.stream_of("letters"));
    }
    let words = ["destination_refused", "partition_id_out_of_range", "keyed"];
    stage.degraded(&mut daemon, "hold", &words);
    assert!(stage.confirmed_of("hold") < held);
    // A key that is wrong says nothing about the destination.
    let opened = |line: &String| line.contains("left alone");
    assert!(!daemon.lines().iter().any(opened), "{}", daemon.lines().join("\n"));
    for key in ["hold", "drop", "letters"] {
        stage.rejected(&mut daemon, key, "partition_id_out_of_range", 4);
        let shown = destination(&daemon, key, "keyed").expect("the destination");
        assert_eq!((&shown["trips"], &shown["failures"]), (&0.into(), &0.into()), "{shown:#}");
    }
    // The topic knows its partitions by now: refused at once, not when sent.
    stage.pg.sql("insert into events values (11, '', 0, '7', 0), (12, '', 0, '3', 0)");
    let arrived = |key: &str| partitions(&stage, key).iter().any(|log| row_ids(log).contains(&12));
    for key in ["drop", "letters", "hold"] {
        eventually(limit(), &format!("row 12 of {key}"), || when(arrived(key)));
        let ids: Vec<i64> = partitions(&stage, key).iter().flat_map(|log| row_ids(log)).collect();
        assert!(!ids.contains(&11), "{key}: {ids:?}");
    }
    daemon.stop();
}
