//! Every change comes out as what it was: images, keys, identities, schema changes.

use serde_json::{Value, json};

use super::stage::{Stage, limit};
use super::support::{eventually, when};
use super::tape::{Tape, data, ops, tables};

const BIG: &str = "(select string_agg(md5(n::text), '') from generate_series(1, 320) n)";

#[test]
fn an_unchanged_large_value_is_taken_from_the_old_row_or_named_h17() {
    let table = |name: &str| {
        format!(
            "create table {name} (id int primary key, n int, big text, nothing text);\
             alter table {name} alter big set storage external;"
        )
    };
    let sql =
        format!("{} {} alter table whole replica identity full", table("whole"), table("plain"));
    let mut tape = Tape::new(&sql, &["public.whole", "public.plain"]);
    let insert = |name: &str| format!("insert into {name} values (1, 0, {BIG}, '');");
    let got = tape.play(&(insert("whole") + &insert("plain")), 2);
    let big = data(&got[0])["big"].as_str().expect("text").to_owned();
    assert_eq!(big.len(), 10_240);
    let got = tape.play("update whole set n = 1; update plain set n = 1", 2);
    assert_eq!(data(&got[0]), &json!({"id": 1, "n": 1, "big": big, "nothing": ""}));
    assert_eq!(got[0].payload["old_data"]["big"], big.as_str());
    assert_eq!(got[0].payload.get("unchanged"), None);
    assert_eq!(data(&got[1]), &json!({"id": 1, "n": 1, "nothing": ""}), "left out, not null");
    assert_eq!(got[1].payload["unchanged"], json!(["big"]));
    // With a change of the key, and of the value itself.
    let got = tape.play(
        "update whole set id = 2; update plain set id = 2; \
         update plain set big = null; update whole set big = ''; delete from whole",
        5,
    );
    assert_eq!(data(&got[0])["big"], big.as_str());
    assert_eq!(got[1].payload["unchanged"], json!(["big"]));
    assert_eq!(got[1].payload["old_data"], json!({"id": 1}));
    assert_eq!(data(&got[2])["big"], Value::Null, "null is told from unchanged");
    assert_eq!(got[2].payload.get("unchanged"), None);
    assert_eq!(data(&got[3])["big"], "");
    assert_eq!(got[4].payload["old_data"], json!({"id": 2, "n": 1, "big": "", "nothing": ""}));
    tape.end();
}

#[test]
fn a_change_of_nothing_and_the_delete_behind_it_both_arrive_h19() {
    let sql = "create table things (id uuid primary key, x int); \
               alter table things replica identity full";
    let mut tape = Tape::new(sql, &["public.things"]);
    let id = "0d9c8a2e-6d1f-4b86-9a26-1c1c3a1b7f00";
    let got = tape.play(
        &format!(
            "insert into things values ('{id}', 7); update things set x = x; delete from things"
        ),
        3,
    );
    assert_eq!(ops(&got), "IUD");
    assert_eq!(data(&got[0])["id"], id);
    assert_eq!(data(&got[1]), &got[1].payload["old_data"]);
    assert_eq!(got[2].payload["old_data"], json!({"id": id, "x": 7}));
    tape.end();
}

#[test]
fn partitions_arrive_as_their_root_also_new_ones_h18() {
    let sql = "create table orders (id int, month int, note text, primary key (id, month)) \
                   partition by range (month);\
               create table orders_1 partition of orders for values from (1) to (2);\
               create table orders_2 partition of orders for values from (2) to (3);\
               alter table orders replica identity full;\
               alter table orders_1 replica identity full";
    let mut tape = Tape::new(sql, &["public.orders"]);
    let warned = |tape: &Tape| {
        tape.daemon
            .lines()
            .iter()
            .any(|line| line.contains("partition_identity") && line.contains("public.orders_2"))
    };
    assert!(warned(&tape), "{}", tape.daemon.last_lines(20));
    let got = tape
        .play("insert into orders values (1, 1, 'a'); insert into orders values (2, 2, 'b')", 2);
    assert_eq!(tables(&got), ["public.orders"; 2]);
    // A leaf that was a table of its own, and one that is made while we read.
    let got = tape.play(
        "create table orders_3 (like orders including all); \
         alter table orders attach partition orders_3 for values from (3) to (4); \
         insert into orders values (3, 3, 'c'); \
         create table orders_4 partition of orders for values from (4) to (5); \
         insert into orders values (4, 4, 'd'); insert into orders_4 values (5, 4, 'e')",
        3,
    );
    assert_eq!(tables(&got), ["public.orders"; 3]);
    let got = tape.play("update orders set note = 'x' where id in (1, 2)", 2);
    let by_id = |id: u64| got.iter().find(|got| data(got)["id"] == id).expect("a row");
    assert_eq!(by_id(1).payload["old_data"]["note"], "a", "its leaf has FULL");
    assert_eq!(by_id(2).payload["old_data"], Value::Null, "its leaf has not");
    // A row that moves to another partition is deleted there and inserted here.
    let got = tape.play("update orders set month = 2 where id = 1", 2);
    assert_eq!(ops(&got), "DI");
    let got = tape.play("truncate orders", 1);
    assert_eq!((ops(&got).as_str(), got[0].text("table")), ("T", "public.orders"));
    tape.end();
}

#[test]
fn a_publication_of_leaves_is_refused_with_the_fix_h18() {
    let sql = "create table orders (id int, month int, primary key (id, month)) \
                   partition by range (month);\
               create table orders_1 partition of orders for values from (1) to (2);\
               create publication tidegate_shop for table orders";
    let bound = "tables = [\"public.orders\"]\nstream = \"$stream\"\ntopic = \"all\"\n";
    let stage = Stage::new(sql, bound);
    let mut daemon = stage.start();
    let source = stage.reason(&mut daemon, "partition_root");
    assert_eq!(source["status"], "Error");
    let detail = source["detail"].as_str().expect("text");
    assert!(detail.contains("publish_via_partition_root"), "{detail}");
    let slots = stage.pg.sql("select 1 from pg_replication_slots");
    assert!(slots.is_empty(), "nothing is made before everything is looked at");
    daemon.stop();
}

#[test]
fn a_table_without_a_key_is_refused_before_anything_is_made_h20() {
    let sql = "create table keyless (id int, note text); \
               create table orders (id int primary key, note text)";
    let bound = "tables = [\"public.orders\", \"public.keyless\"]\nstream = \"$stream\"\n\
                 topic = \"all\"\n";
    let mut stage = Stage::new(sql, bound);
    let mut daemon = stage.start();
    let source = stage.reason(&mut daemon, "replica_identity");
    assert_eq!(source["status"], "Error");
    let detail = source["detail"].as_str().expect("text");
    assert!(detail.contains("public.keyless") && !detail.contains("public.orders"), "{detail}");
    daemon.stop();
    let made = "select count(*) from (select 1 from pg_publication union all \
                select 1 from pg_replication_slots) made";
    assert_eq!(stage.pg.value(made), "0");
    let application = "insert into keyless values (1, 'a'); \
                       update keyless set note = 'b'; delete from keyless";
    stage.pg.sql(application);
    // Inserts alone need no key.
    stage.source += "capture_operations = [\"INSERT\"]\n";
    let mut tape = Tape::of(stage);
    let got = tape.play(application, 1);
    assert_eq!((ops(&got).as_str(), got[0].text("table")), ("I", "public.keyless"));
    tape.end();
}

#[test]
fn a_key_that_is_lost_later_is_named_h20() {
    let sql = "create table orders (id int primary key, note text)";
    let mut tape = Tape::new(sql, &["public.orders"]);
    let got = tape.play(
        "insert into orders values (1, 'a'); alter table orders drop constraint \
                         orders_pkey; insert into orders values (2, 'b')",
        2,
    );
    assert_eq!(ops(&got), "II");
    let lost = |tape: &Tape| {
        let lines = tape.daemon.lines();
        lines.iter().any(|line| line.contains("replica_identity") && line.contains("public.orders"))
    };
    eventually(limit(), "the lost key by name", || when(lost(&tape)));
    let refused = tape.stage.pg.try_sql_in("postgres", "update orders set note = 'c'");
    let words = refused.expect_err("the publication was made when there was a key");
    assert!(words.contains("replica identity"), "{words}");
    tape.end();
}

#[test]
fn names_and_values_are_those_of_the_commit_while_the_table_changes() {
    let sql = "create table orders (id int primary key, a text, b text)";
    let mut tape = Tape::new(sql, &["public.orders"]);
    let got = tape.play(
        "begin;\
         insert into orders values (1, 'a', 'b');\
         alter table orders add column c int default 7;\
         insert into orders values (2, 'a', 'b');\
         alter table orders rename column a to \"A.1\";\
         insert into orders values (3, 'a', 'b', 8);\
         alter table orders drop column b;\
         insert into orders values (4, 'a', 9);\
         alter table orders alter column c type text using 'n' || c;\
         insert into orders values (5, 'a', 'n10');\
         commit; update orders set c = null where id = 1",
        6,
    );
    let rows: Vec<&Value> = got.iter().map(data).collect();
    assert_eq!(
        rows,
        [
            &json!({"id": 1, "a": "a", "b": "b"}),
            &json!({"id": 2, "a": "a", "b": "b", "c": 7}),
            &json!({"id": 3, "A.1": "a", "b": "b", "c": 8}),
            &json!({"id": 4, "A.1": "a", "c": 9}),
            &json!({"id": 5, "A.1": "a", "c": "n10"}),
            &json!({"id": 1, "A.1": "a", "c": null}),
        ]
    );
    // Another table of the same name, and rewrites that change no row.
    let got = tape.play(
        "vacuum full orders; cluster orders using orders_pkey; drop table orders; \
         create table orders (id text primary key); \
         alter publication tidegate_shop add table orders; \
         insert into orders values ('five')",
        1,
    );
    assert_eq!(data(&got[0]), &json!({"id": "five"}));
    // Renamed, it is a table nobody asked for.
    let got = tape.play(
        "alter table orders rename to others; insert into others values ('six'); \
         alter table others rename to orders; insert into orders values ('seven')",
        1,
    );
    assert_eq!(data(&got[0]), &json!({"id": "seven"}));
    tape.end();
}

#[test]
fn keys_truncates_savepoints_and_upserts_come_as_they_happened() {
    let sql = "create table a (id int, k text primary key, note text);\
               create table b (id int primary key);\
               create table c (id int primary key, parent int references b);\
               create table by_index (u int not null, note text); \
               create unique index by_index_u on by_index (u); \
               alter table by_index replica identity using index by_index_u";
    let names = ["public.a", "public.b", "public.c", "public.by_index"];
    let mut tape = Tape::new(sql, &names);
    // A key that changes, with what else is known of the old row: the key alone.
    let got = tape.play(
        "insert into a values (1, 'k', 'n'); update a set k = 'l'; update a set note = 'o'; \
         delete from a; insert into by_index values (1, 'n'); update by_index set u = 2; \
         update by_index set note = 'm'",
        7,
    );
    assert_eq!(ops(&got), "IUUDIUU");
    assert_eq!(got[1].payload["old_data"], json!({"k": "k"}));
    assert_eq!(got[2].payload["old_data"], Value::Null);
    assert_eq!(got[3].payload["old_data"], json!({"k": "l"}));
    assert_eq!(got[5].payload["old_data"], json!({"u": 1}));
    assert_eq!(got[6].payload["old_data"], Value::Null);
    // One message of the server, one event for every table that is captured.
    let got = tape.play("truncate b cascade; truncate a, by_index restart identity", 4);
    assert_eq!(ops(&got), "TTTT");
    let mut first: Vec<&str> = tables(&got[..2]);
    first.sort_unstable();
    assert_eq!(first, ["public.b", "public.c"]);
    let mut second = tables(&got[2..]);
    second.sort_unstable();
    assert_eq!(second, ["public.a", "public.by_index"]);
    assert!(got.iter().all(|got| *data(got) == Value::Null));
    // What is rolled back never was, and leaves no hole.
    let got = tape.play(
        "begin; insert into b values (1); savepoint s; insert into b values (2); \
         savepoint t; insert into b values (3); rollback to s; insert into b values (4); commit;\
         begin; insert into b values (5); rollback",
        2,
    );
    assert_eq!((data(&got[0])["id"].as_u64(), data(&got[1])["id"].as_u64()), (Some(1), Some(4)));
    assert_eq!(got[0].number("xid"), got[1].number("xid"));
    assert_ne!(got[0].id, got[1].id);
    let got = tape.play(
        "insert into b values (1) on conflict do nothing; \
         insert into b values (1) on conflict (id) do update set id = b.id; \
         copy b from program 'seq 10 12'; \
         merge into b using (values (10), (20)) v(id) on b.id = v.id \
             when matched then delete when not matched then insert values (v.id)",
        6,
    );
    assert_eq!(ops(&got), "UIIIDI");
    // Prepared transactions come when they are committed.
    let got = tape.play(
        "begin; insert into b values (30); prepare transaction 'p'; \
         insert into b values (31); commit prepared 'p'",
        2,
    );
    assert_eq!(data(&got[0])["id"], 31);
    assert_eq!(data(&got[1])["id"], 30);
    // Messages of the application and rows of another origin.
    let got = tape.play(
        "select pg_logical_emit_message(true, 'tidegate', 'x'); \
         select pg_logical_emit_message(false, 'tidegate', 'y'); \
         select pg_replication_origin_create('elsewhere'); \
         select pg_replication_origin_session_setup('elsewhere'); \
         begin; select pg_replication_origin_xact_setup('0/1234', now()); \
         insert into b values (40); commit",
        1,
    );
    assert_eq!(data(&got[0])["id"], 40);
    tape.end();
}

#[test]
fn any_name_a_table_can_have_is_captured_and_routed() {
    let sql = "create schema \"My.Schema\";\
               create table \"My.Schema\".\"We ird.Tbl\" \
               (\"ID\" int primary key, \"na\"\"me\" text, \
                   \"ünï.code\" text);\
               create table \"UPPER\" (\"a.b\" int primary key);\
               create table \"Ünï\" (id int primary key);\
               create table \"select\" (\"from\" int primary key)";
    let long = "n".repeat(63);
    let sql = format!("{sql}; create table {long} (id int primary key)");
    let names = [
        "\"My.Schema\".\"We ird.Tbl\"".to_owned(),
        "public.UPPER".to_owned(),
        "public.Ünï".to_owned(),
        "public.select".to_owned(),
        format!("public.{long}"),
    ];
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let more = "publication = \"My,Pub\\\"x\"\n";
    let mut tape = Tape::with(&sql, &names, more);
    let got = tape.play(
        &format!(
            "insert into \"My.Schema\".\"We ird.Tbl\" values (1, 'x', 'ü'); \
             insert into \"UPPER\" values (2); insert into \"Ünï\" values (3); \
             insert into \"select\" values (4); insert into {long} values (5)"
        ),
        5,
    );
    assert_eq!(data(&got[0]), &json!({"ID": 1, "na\"me": "x", "ünï.code": "ü"}));
    assert_eq!(data(&got[1]), &json!({"a.b": 2}));
    assert_eq!(data(&got[3]), &json!({"from": 4}));
    let long = format!("public.{long}");
    let expected =
        ["My.Schema.We ird.Tbl", "public.UPPER", "public.Ünï", "public.select", long.as_str()];
    assert_eq!(tables(&got), expected);
    let named: Vec<&str> =
        got.iter().map(|got| got.payload["table_name"].as_str().expect("text")).collect();
    assert_eq!(named, expected);
    tape.end();
}

#[test]
fn what_the_publication_leaves_out_is_absent_not_null() {
    let sql = "create table orders (id int primary key, secret text, twice int generated always \
                   as (id * 2) stored, shown text);\
               create publication tidegate_shop for table orders (id, shown) where (id < 10)";
    let mut tape = Tape::new(sql, &["public.orders"]);
    let got = tape.play(
        "insert into orders (id, secret, shown) values (1, 's', 'a'), (11, 's', 'b'); \
         update orders set secret = 't' where id = 1; \
         update orders set id = 2 where id = 11; update orders set id = 12 where id = 1",
        4,
    );
    assert_eq!(ops(&got), "IUID", "rows that move into and out of the filter");
    assert_eq!(data(&got[0]), &json!({"id": 1, "shown": "a"}));
    assert_eq!(data(&got[1]), &json!({"id": 1, "shown": "a"}));
    assert_eq!(data(&got[2]), &json!({"id": 2, "shown": "b"}));
    assert_eq!(got[3].payload["old_data"], json!({"id": 1}));
    tape.end();
}

#[test]
fn a_table_joins_and_leaves_the_publication_at_its_commit() {
    let sql = "create table a (id int primary key); create table b (id int primary key);\
               create publication tidegate_shop for table a";
    let mut tape = Tape::new(sql, &["public.a"]);
    // `*` would be needed for b; it is not asked for, so it never shows.
    let got = tape.play(
        "insert into a values (1); alter publication tidegate_shop add table b; \
         insert into b values (1); alter publication tidegate_shop drop table a; \
         insert into a values (2); alter publication tidegate_shop add table a; \
         insert into a values (3)",
        2,
    );
    let ids: Vec<Option<u64>> = got.iter().map(|got| data(got)["id"].as_u64()).collect();
    assert_eq!(ids, [Some(1), Some(3)]);
    assert_eq!(tables(&got), ["public.a"; 2]);
    tape.end();
}
