//! Values against a running server: random ones of each type, whose text and binary form must
//! come out as the same JSON, and arrays against what the server's own `to_json` makes of them.

#![allow(clippy::disallowed_methods, reason = "tests own their files, sockets and clock")]

mod support;

use serde_json::Value;
use support::Postgres;
use tidegate::pg_wire::oid;
use tidegate::pg_wire::value::{ValueOptions, json_from_binary, json_from_text};

/// What a session of Tidegate sets.
const SESSION: &str = "set TimeZone = 'UTC'; set DateStyle = 'ISO'; set IntervalStyle = \
    'postgres'; set extra_float_digits = 3; set bytea_output = 'hex';";

/// `(type, its send function, a random value of it)`
const KINDS: [(&str, &str, &str); 17] = [
    ("float8", "float8send", "(random() - 0.5) * power(10::float8, (random() * 600 - 300)::int)"),
    ("float8", "float8send", "floor(random() * 1000) * power(10::float8, (random() * 30)::int)"),
    ("float8", "float8send", "power(2::float8, (random() * 2000 - 1000)::int)"),
    (
        "float4",
        "float4send",
        "((random() - 0.5) * power(10::float8, (random() * 70 - 35)::int))::float4",
    ),
    ("float4", "float4send", "(floor(random() * 1000) * power(10::float8, i % 12))::float4"),
    ("float4", "float4send", "power(2::float8, (random() * 250 - 125)::int)::float4"),
    (
        "numeric",
        "numeric_send",
        "round((random() - 0.5)::numeric * power(10::numeric, (random() * 80 - 40)::int), i % 50)",
    ),
    (
        "timestamptz",
        "timestamptz_send",
        "'epoch'::timestamptz + make_interval(secs => (random() - 0.2) * 9e11)",
    ),
    (
        "timestamp",
        "timestamp_send",
        "'epoch'::timestamp + \
            make_interval(secs => round(((random() - 0.3) * 9e10)::numeric, i % 7)::float8)",
    ),
    ("date", "date_send", "'2000-01-01'::date + ((random() - 0.3) * 8e6)::int"),
    ("time", "time_send", "'00:00'::time + make_interval(secs => random() * 86399)"),
    (
        "timetz",
        "timetz_send",
        "(('00:00'::time + make_interval(secs => random() * 86399))::timetz) \
            at time zone make_interval(secs => (random() * 90000 - 45000)::int)",
    ),
    (
        "interval",
        "interval_send",
        "make_interval(months => ((random() - 0.5) * 100)::int, days => ((random() - 0.5) * \
            (i % 3) * 50)::int, secs => (random() - 0.5) * (i % 4) * 1e5)",
    ),
    ("bytea", "byteasend", "decode(left(md5(random()::text), (random() * 16)::int * 2), 'hex')"),
    ("uuid", "uuid_send", "gen_random_uuid()"),
    ("pg_lsn", "pg_lsn_send", "'0/0'::pg_lsn + (random() * 1e18)::int8"),
    ("int8", "int8send", "((random() - 0.5) * 1.8e19)::int8"),
];

/// `(array type, a random element)`
const ELEMENTS: [(&str, &str); 6] = [
    (
        "text[]",
        r#"(array['', 'NULL', 'null', 'a,b', '{', '}', '"', '\', E'\n\t', 'ü', ' ', 'it''s', '\x41',
            'plain', 'a"b\c', null])[1 + floor(random() * 16)::int]"#,
    ),
    ("int8[]", "nullif(((random() - 0.5) * 1.8e19)::int8, 0)"),
    ("numeric[]", "round((random() * 1e9)::numeric, i % 5)"),
    ("bool[]", "random() < 0.5"),
    ("jsonb[]", r#"jsonb_build_object('k"', random()::text, 'b\', array[i, null])"#),
    ("date[]", "'2000-01-01'::date + (random() * 8e5)::int"),
];

fn unhex(text: &str) -> Vec<u8> {
    let pairs = text.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
    pairs.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
}

/// The JSON of both forms, which are the same.
fn json(type_oid: u32, text: &str, bytes: &str) -> String {
    let (mut from_text, mut from_binary) = (Vec::new(), Vec::new());
    let options = ValueOptions::default();
    json_from_text(&mut from_text, type_oid, &unhex(text), options).unwrap();
    json_from_binary(&mut from_binary, type_oid, &unhex(bytes), options).unwrap();
    let from_text = String::from_utf8(from_text).unwrap();
    assert_eq!(String::from_utf8(from_binary).unwrap(), from_text);
    from_text
}

fn check(server: &Postgres) {
    for (name, send, value) in KINDS {
        let rows = server.sql(&format!(
            "{SESSION} with v as materialized (select {value} as v from generate_series(1, 300) i) \
             select encode(convert_to(v::text, 'UTF8'), 'hex'), encode({send}(v), 'hex'), v::text \
             from v"
        ));
        let type_oid = oid::of_type_name(name).unwrap();
        assert_eq!(rows.len(), 300, "{name}");
        for row in rows {
            let [text, bytes, shown] = row.map_text();
            let json = json(type_oid, &text, &bytes);
            serde_json::from_str::<serde::de::IgnoredAny>(&json).unwrap();
            if let "float8" | "float4" | "numeric" | "int8" = name {
                assert_eq!(json, shown, "{name}: the server's digits");
            }
        }
    }
    for (name, element) in ELEMENTS {
        let rows = server.sql(&format!(
            "{SESSION} with e as materialized (select i % 60 as g, {element} as e \
                from generate_series(0, 599) i), \
             v as (select array_agg(e) as v from e group by g union all \
                select array[array_agg(e), array_agg(e)] from e where e is not null group by g), \
             w as (select v::{name} as v from v) \
             select encode(convert_to(v::text, 'UTF8'), 'hex'), encode(array_send(v), 'hex'), \
                encode(convert_to(to_json(v)::text, 'UTF8'), 'hex') from w"
        ));
        let type_oid = oid::of_type_name(name).unwrap();
        assert!(rows.len() > 60, "{name}: {}", rows.len());
        for row in rows {
            let [text, bytes, own] = row.map_text();
            let json = json(type_oid, &text, &bytes);
            let own: Value = serde_json::from_slice(&unhex(&own)).unwrap();
            assert_eq!(serde_json::from_str::<Value>(&json).unwrap(), own, "{name}: {json}");
        }
    }
}

/// A row of as many values as the caller names, none of them null.
trait MapText {
    fn map_text<const N: usize>(self) -> [String; N];
}

impl MapText for Vec<Option<String>> {
    fn map_text<const N: usize>(self) -> [String; N] {
        let values: Vec<String> = self.into_iter().map(|value| value.expect("a value")).collect();
        values.try_into().expect("as many values as named")
    }
}

#[test]
fn random_values_are_the_same_json_from_text_and_binary() {
    check(&Postgres::start());
    if let Some(second) = Postgres::start_second(&[]) {
        check(&second);
    }
}
