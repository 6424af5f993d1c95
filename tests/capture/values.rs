//! Every value of every type, through the real server, in each of the ways it can come.

use std::fmt::Write;

use serde_json::{Value, json};
use tidegate::batch::TopicName;

use super::stage::{Got, Stage, limit};
use super::support::{Daemon, eventually};
use super::switches::row_ids;

/// A table `things` that three sources read: as text, in binary form, as lines of test_decoding.
struct Trio {
    stage: Stage,
    daemon: Daemon,
    seen: usize,
}

const WAYS: [&str; 3] = ["shop", "binary", "lines"];

impl Trio {
    fn new(sql: &str) -> Trio {
        let bound =
            "tables = [\"public.things\"]\nstream = \"$stream\"\ntopic = \"all\"\n".to_owned();
        let mut stage = Stage::new(sql, &bound);
        stage.add_source("binary", &format!("{bound}binary = true\n"));
        stage.add_source("lines", &format!("{bound}decoder = \"test_decoding\"\n"));
        let daemon = stage.all_streaming(WAYS.len());
        Trio { stage, daemon, seen: 0 }
    }

    /// Runs the statements; the messages of the first way. The others must have the same.
    #[track_caller]
    fn play(&mut self, sql: &str, count: usize) -> Vec<Got> {
        self.stage.pg.sql(sql);
        let wanted = self.seen + count;
        let mut first: Option<Vec<Got>> = None;
        for way in WAYS {
            let got = eventually(limit(), &format!("{wanted} messages of {way}"), || {
                self.daemon.assert_running();
                let got = match way {
                    "shop" => self.stage.got("all"),
                    way => self.stage.got_of(way, "all"),
                };
                (got.len() >= wanted).then_some(got)
            });
            assert_eq!(got.len(), wanted, "{way}");
            let new = got[self.seen..].to_vec();
            match &first {
                None => first = Some(new),
                Some(first) => {
                    for (one, other) in first.iter().zip(&new) {
                        assert_eq!(text(other), text(one), "{way} and text");
                        assert_eq!(headers(other), headers(one), "{way} and text");
                    }
                }
            }
        }
        self.seen = wanted;
        first.expect("three ways")
    }

    fn end(self) {
        self.daemon.stop();
    }
}

/// All but the position: test_decoding tells the end of a commit, pgoutput its beginning.
fn headers(got: &Got) -> Vec<(&String, &(u8, Vec<u8>))> {
    got.headers.iter().filter(|(key, _)| *key != "lsn").collect()
}

fn text(got: &Got) -> String {
    String::from_utf8(got.raw.clone()).expect("JSON is text")
}

/// The `data` of a record, letter by letter.
fn data(got: &Got) -> String {
    let text = text(got);
    let (_, rest) = text.split_once("\"data\":").expect("data");
    let (data, _) = rest.rsplit_once(",\"old_data\":").expect("old data");
    data.to_owned()
}

#[test]
fn what_json_has_no_number_for_is_told_apart_and_spoils_nothing_h21() {
    let mut trio = Trio::new(
        "create table things (id int primary key, f4 float4, f8 float8, n numeric, \
             f4s float4[], f8s float8[], ns numeric[])",
    );
    let got = trio.play(
        "insert into things values \
         (1, 'NaN', 'NaN', 'NaN', '{NaN,1}', '{NaN,NULL}', '{NaN,1.50}'), \
         (2, 'Infinity', 'Infinity', 'Infinity', '{Infinity}', '{Infinity}', '{Infinity}'), \
         (3, '-Infinity', '-Infinity', '-Infinity', '{-Infinity}', '{{-Infinity},{2}}', \
             '{-Infinity}'), \
         (4, '-0', '-0', '-0', '{-0}', '{-0}', '{0.00}'), \
         (5, null, null, null, null, '{}', '{NULL}'), \
         (6, 1.5, 0.1, 1.0, '{0.25}', '{1e300}', '{7000}')",
        6,
    );
    let rows: Vec<String> = got.iter().map(data).collect();
    let row = |id: u32, rest: &str| format!("{{\"id\":{id},{rest}}}");
    let same = |id, value: &str, arrays: [&str; 3]| {
        let [a, b, c] = arrays;
        row(
            id,
            &format!(
                "\"f4\":{value},\"f8\":{value},\"n\":{value},\
                 \"f4s\":{a},\"f8s\":{b},\"ns\":{c}"
            ),
        )
    };
    let infinity = "[\"Infinity\"]";
    let wanted = [
        same(1, "\"NaN\"", ["[\"NaN\",1]", "[\"NaN\",null]", "[\"NaN\",1.50]"]),
        same(2, "\"Infinity\"", [infinity, infinity, infinity]),
        same(3, "\"-Infinity\"", ["[\"-Infinity\"]", "[[\"-Infinity\"],[2]]", "[\"-Infinity\"]"]),
        row(4, "\"f4\":-0,\"f8\":-0,\"n\":0,\"f4s\":[-0],\"f8s\":[-0],\"ns\":[0.00]"),
        same(5, "null", ["null", "[]", "[null]"]),
        row(6, "\"f4\":1.5,\"f8\":0.1,\"n\":1.0,\"f4s\":[0.25],\"f8s\":[1e+300],\"ns\":[7000]"),
    ];
    assert_eq!(rows, wanted);
    assert!(got.iter().all(|got| got.payload.is_object()), "each is JSON");
    trio.end();
}

#[test]
fn binary_values_change_neither_where_a_row_goes_nor_its_partition() {
    let keyed = |stream: &str, key: &str, more: &str| {
        format!(
            "tables = [\"public.events\"]\n{more}[sources.{key}.routing]\n\
             topic_column = \"kind\"\npartition_key_column = \"owner\"\n\
             default_topic = \"unknown\"\ndefault_stream = \"{stream}\"\n\
             [sources.{key}.routing.topic_defaults]\npartitions_count = 4\n"
        )
    };
    let mut stage = Stage::new(
        "create table events (id int primary key, kind text, owner uuid)",
        &keyed("$stream", "shop", ""),
    );
    stage.add_source("binary", &keyed("$stream", "binary", "binary = true\n"));
    let daemon = stage.all_streaming(2);
    stage.pg.sql(
        "insert into events select n, case n % 2 when 0 then 'login' else 'logout' end, \
         md5((n % 7)::text)::uuid from generate_series(1, 40) n",
    );
    let ids = |stream: &str, topic: &str| -> Vec<Vec<i64>> {
        let topic = TopicName::new(stream, topic);
        stage.got_in(&topic).iter().map(|partition| row_ids(partition)).collect()
    };
    for topic in ["login", "logout"] {
        let both = [stage.stream.clone(), stage.stream_of("binary")];
        let [text, binary] = both.map(|stream| {
            eventually(limit(), &format!("rows of {topic}"), || {
                let ids = ids(&stream, topic);
                (ids.concat().len() >= 20).then_some(ids)
            })
        });
        assert!(text.iter().filter(|ids| !ids.is_empty()).count() > 1, "{text:?}");
        assert_eq!(binary, text, "{topic}");
    }
    let told = |line: &String| line.contains("binary = true next to routing.topic_column");
    assert!(daemon.lines().iter().any(told), "{}", daemon.lines().join("\n"));
    daemon.stop();
}

#[test]
fn every_digit_comes_through_h22() {
    let numbers = [
        ("int8", "2129020"),
        ("int8", "9007199254740993"),
        ("int8", "9223372036854775807"),
        ("int8", "-9223372036854775808"),
        ("int4", "-2147483648"),
        ("int2", "32767"),
        ("numeric", "7000"),
        ("numeric", "1234567890987654321.1234567890987654321"),
        ("numeric", "0.00000000000000006938893903907228"),
        ("numeric", "-0.10"),
        ("numeric", "99999999999999999999999999999999999999999999999999.5"),
        ("numeric(12,2)", "1.50"),
        ("numeric(5,-2)", "12300"),
        ("float8", "0.30000000000000004"),
        ("float8", "5e-324"),
        ("float8", "1.7976931348623157e+308"),
        ("float4", "3.4028235e+38"),
        ("float4", "0.1"),
        ("oid", "4294967295"),
    ];
    let mut columns = String::new();
    let (mut values, mut wanted) = (String::new(), "{\"id\":1".to_owned());
    for (n, (kind, number)) in numbers.iter().enumerate() {
        write!(columns, ", c{n} {kind}").expect("a string");
        write!(values, ", '{number}'").expect("a string");
        write!(wanted, ",\"c{n}\":{number}").expect("a string");
    }
    wanted.push('}');
    let mut trio = Trio::new(&format!("create table things (id int primary key{columns})"));
    let got = trio.play(&format!("insert into things values (1{values})"), 1);
    assert_eq!(data(&got[0]), wanted);
    // 0.1 + 0.2, bit by bit, as a reader sees it.
    let float = got[0].payload["data"]["c13"].as_f64().expect("a number");
    assert_eq!(float.to_bits(), (0.1_f64 + 0.2).to_bits());
    trio.end();
}

#[test]
fn text_that_looks_like_something_else_stays_what_it_is_h23() {
    let mut trio = Trio::new(
        "create table things (id int primary key, v varchar(200), t text, c char(8), last text); \
         alter table things replica identity full",
    );
    let texts = [
        Some("null"),
        Some("nullable@example.com"),
        None,
        Some("It's"),
        Some("ends'"),
        Some("'"),
        Some("''"),
        Some("a''b"),
        Some("line1\nline2"),
        Some("tab\tand\rreturn"),
        Some("back\\slash \\n"),
        Some("x[text]:'y' z[integer]:1"),
        Some("x[text]:''y'' z[integer]:1"),
        Some("old-key: id[integer]:1 new-tuple: id[integer]:2"),
        Some("(no-tuple-data)"),
        Some("unchanged-toast-datum"),
        Some(""),
        Some(" "),
        Some("emoji 😀 ü \u{1}"),
        Some("\"quoted\" {json: [1]}"),
    ];
    let literal = |text: &Option<&str>| match text {
        None => "null".to_owned(),
        Some(text) => format!("'{}'", text.replace('\'', "''")),
    };
    let mut sql = String::new();
    for (id, text) in texts.iter().enumerate() {
        let t = literal(text);
        write!(sql, "insert into things values ({id}, {t}, {t}, 'x', {t});").expect("a string");
    }
    let got = trio.play(&sql, texts.len());
    for (got, text) in got.iter().zip(texts) {
        let data = got.payload["data"].as_object().expect("a row");
        assert_eq!(data.len(), 5, "{data:?}");
        for column in ["v", "t", "last"] {
            assert_eq!(data[column], json!(text), "{text:?}");
        }
        assert_eq!(data["c"], "x       ", "as the server pads it");
    }
    // Old rows beside new ones, and alone.
    let count = texts.len();
    let got = trio.play("update things set id = id + 100, c = 'y'", count);
    for (got, text) in got.iter().zip(texts) {
        assert_eq!(got.payload["old_data"]["t"], json!(text));
        assert_eq!(got.payload["data"]["last"], json!(text));
    }
    let got = trio.play("delete from things", count);
    for (got, text) in got.iter().zip(texts) {
        assert_eq!(
            (&got.payload["data"], &got.payload["old_data"]["v"]),
            (&Value::Null, &json!(text))
        );
    }
    // Of the key alone. What identifies a row is looked up when a connection begins.
    trio.daemon.stop();
    trio.stage.pg.sql("alter table things replica identity default");
    trio.daemon = trio.stage.all_streaming(WAYS.len());
    let got = trio.play(
        "insert into things values (1, 'null', '''', 'x', 'old-key: '); \
         update things set id = 2; delete from things",
        3,
    );
    assert_eq!(got[1].payload["old_data"], json!({"id": 1}));
    assert_eq!(got[1].payload["data"]["last"], "old-key: ");
    assert_eq!(got[2].payload["old_data"], json!({"id": 2}));
    trio.end();
}

#[test]
fn a_change_whose_row_the_server_does_not_tell_is_a_change_all_the_same_h23() {
    let source = "tables = [\"public.things\"]\nstream = \"$stream\"\ntopic = \"all\"\n\
                  decoder = \"test_decoding\"\n";
    let stage = Stage::new(
        "create table things (id int, note text); alter table things replica identity nothing",
        source,
    );
    let mut daemon = stage.streaming();
    stage.pg.sql(
        "insert into things values (1, 'a'); update things set note = 'b'; delete from things; \
         insert into things values (2, 'c')",
    );
    let got = stage.wait_for(&mut daemon, "all", 4);
    let ops: String = got.iter().map(|got| got.text("op")).collect();
    assert_eq!(ops, "IUDI", "(no-tuple-data) blocks nobody");
    assert_eq!(row_ids(&got[..2]), [1, 1]);
    assert_eq!(got[2].payload["data"], Value::Null);
    assert_eq!(row_ids(&got[3..]), [2]);
    stage.wait_confirmed_of(&mut daemon, "shop");
    daemon.stop();
}

/// Types, a value of each as SQL, and what becomes of it.
fn zoo() -> Vec<(&'static str, &'static str, Value)> {
    vec![
        (
            "uuid",
            "'0D9C8A2E-6D1F-4B86-9A26-1C1C3A1B7F00'",
            json!("0d9c8a2e-6d1f-4b86-9a26-1c1c3a1b7f00"),
        ),
        ("date", "'2024-02-29'", json!("2024-02-29")),
        ("date", "'infinity'", json!("infinity")),
        ("date", "'0044-03-15 BC'", json!("0044-03-15 BC")),
        ("time", "'23:59:59.5'", json!("23:59:59.5")),
        ("timetz", "'23:59:59.5+02'", json!("23:59:59.5+02")),
        ("timestamp", "'2024-02-29 23:59:59.000001'", json!("2024-02-29T23:59:59.000001")),
        ("timestamptz", "'2024-02-29 23:59:59+02'", json!("2024-02-29T21:59:59Z")),
        ("timestamptz", "'-infinity'", json!("-infinity")),
        ("json", "'{\"a\": [1, null]}'", json!({"a": [1, null]})),
        ("jsonb", "'{\"ä\\u0001\": \"\\\"\"}'", json!({"ä\u{1}": "\""})),
        ("bytea", "'\\x00ff'", json!("AP8=")),
        ("inet", "'192.168.0.1/24'", json!("192.168.0.1/24")),
        ("cidr", "'2001:db8::/32'", json!("2001:db8::/32")),
        ("macaddr", "'08:00:2b:01:02:03'", json!("08:00:2b:01:02:03")),
        ("mood", "'it''s \"ok\"'", json!("it's \"ok\"")),
        ("mood[]", "array['sad', null]::mood[]", json!("{sad,NULL}")),
        ("interval", "'1 mon -2 days 03:04:05'", json!("1 mon -2 days +03:04:05")),
        ("interval[]", "'{1 day,NULL}'", json!(["1 day", null])),
        ("int4range", "'[1,5)'", json!("[1,5)")),
        (
            "tstzmultirange",
            "'{[2024-01-01 00:00:00+00,2024-01-02 00:00:00+00)}'",
            json!("{[\"2024-01-01 00:00:00+00\",\"2024-01-02 00:00:00+00\")}"),
        ),
        ("bit(3)", "B'101'", json!("101")),
        ("varbit", "B'10'", json!("10")),
        ("money", "'-1234.50'", json!("-$1,234.50")),
        ("hstore", "'a=>1, b=>NULL'", json!("\"a\"=>\"1\", \"b\"=>NULL")),
        ("tsvector", "'cat:2 fat:1'", json!("'cat':2 'fat':1")),
        ("point", "'(1.5,-2)'", json!("(1.5,-2)")),
        ("pair", "row(1, 'x,\"y')", json!("(1,\"x,\"\"y\")")),
        ("blob", "'\\x00ff'", json!("\\x00ff")),
        ("moment", "'2024-02-29 23:59:59+02'", json!("2024-02-29 21:59:59+00")),
        ("small", "7", json!("7")),
        ("small[]", "array[7, null]::small[]", json!("{7,NULL}")),
        ("text[]", "'{a,NULL,\"b,\\\"c\"}'", json!(["a", null, "b,\"c"])),
        ("int4[]", "'[2:3]={1,2}'", json!([1, 2])),
        ("bool", "true", json!(true)),
        ("\"char\"", "'x'", json!("x")),
        ("name", "'n'", json!("n")),
        ("pg_lsn", "'0/16B3748'", json!("0/16B3748")),
        ("aclitem", "'postgres=r/postgres'", json!("postgres=r/postgres")),
    ]
}

#[test]
fn a_type_nobody_knows_costs_neither_row_nor_column_h24() {
    let mut zoo = zoo();
    let probe = super::support::Postgres::start();
    if probe.try_sql_in("postgres", "select '<a/>'::xml").is_ok() {
        zoo.push(("xml", "'<a>ü</a>'", json!("<a>ü</a>")));
    }
    drop(probe);
    let columns: String =
        zoo.iter().enumerate().map(|(n, (kind, ..))| format!(", c{n} {kind}")).collect();
    let values: String = zoo.iter().map(|(_, value, _)| format!(", {value}")).collect();
    let mut trio = Trio::new(&format!(
        "create extension hstore; create type mood as enum ('sad', 'it''s \"ok\"'); \
         create type pair as (a int, b text); create domain blob as bytea; \
         create domain moment as timestamptz; create domain small as int; \
         create table things (key uuid, mood mood, n int{columns}, \
         primary key (key, mood, n))"
    ));
    let key = "0d9c8a2e-6d1f-4b86-9a26-1c1c3a1b7f00";
    let got = trio.play(
        &format!(
            "insert into things (key, mood, n) values ('{key}', 'sad', 0); \
             begin; insert into things values ('{key}', 'sad', 1{values}); \
             update things set n = 2 where n = 1; delete from things where n = 2; commit; \
             insert into things (key, mood, n) values ('{key}', 'sad', 3)"
        ),
        5,
    );
    let ops: String = got.iter().map(|got| got.text("op")).collect();
    assert_eq!(ops, "IIUDI", "its neighbours come too");
    let count = zoo.len() + 3;
    for (n, (kind, value, wanted)) in zoo.iter().enumerate() {
        for got in &got[1..3] {
            let data = got.payload["data"].as_object().expect("a row");
            assert_eq!(data.len(), count, "every column is there");
            assert_eq!(data[&format!("c{n}")], *wanted, "{kind} {value}");
        }
        assert_eq!(got[0].payload["data"][format!("c{n}")], Value::Null);
    }
    assert_eq!(got[2].payload["old_data"], json!({"key": key, "mood": "sad", "n": 1}));
    assert_eq!(got[3].payload["old_data"], json!({"key": key, "mood": "sad", "n": 2}));
    assert_eq!(got[3].payload["data"], Value::Null);
    trio.end();
}
