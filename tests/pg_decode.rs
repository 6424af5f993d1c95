//! The decoders of a Postgres source against what real servers emit
//! (`tests/golden/postgres/`, made by `scripts/record-postgres`) and against what none would.

// Reads the recordings from files.
#![allow(clippy::disallowed_methods)]

#[path = "fuzz/targets/postgres.rs"]
#[allow(dead_code, reason = "one of the targets is for another test")]
mod entry;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use entry::{pgoutput as fuzz_pgoutput, test_decoding as fuzz_test_decoding};
use proptest::prelude::*;
use tidegate::pg_wire::oid;
use tidegate::pg_wire::pgoutput::{
    Column, Message, OldKind, Prepared, Tuple, TupleBuilder, decode,
};
use tidegate::pg_wire::test_decoding::{Change, Fields, Identifier, Line, Op, Step, parse};
use tidegate::pg_wire::value::{
    ValueOptions, has_binary_codec, json_from_binary, json_from_text, json_string,
};

const SERVERS: [&str; 2] = ["pg15", "pg18"];

/// Messages of a recording.
fn recording(name: &str) -> Vec<Vec<u8>> {
    read(name).lines().map(|line| unhex(line.rsplit('\t').next().unwrap())).collect()
}

fn read(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/postgres").join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn unhex(text: &str) -> Vec<u8> {
    let pairs = text.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
    pairs.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
}

/// Every message of a recording with whether it stands inside a stream.
fn streamed(messages: &[Vec<u8>]) -> impl Iterator<Item = (&[u8], bool)> {
    let mut inside = false;
    messages.iter().map(move |message| {
        let streamed = inside && !matches!(message[0], b'S' | b'E' | b'O');
        inside = message[0] == b'S' || inside && message[0] != b'E';
        (&message[..], streamed)
    })
}

/// What a consumer keeps of a relation.
#[derive(Clone, Debug, Default, PartialEq)]
struct Table {
    name: String,
    columns: Vec<(String, u32)>,
}

type Tables = BTreeMap<u32, Table>;

fn learn(tables: &mut Tables, message: &Message<'_>) {
    if let Message::Relation { relation, .. } = message {
        let name = format!("{}.{}", relation.namespace, relation.name);
        let columns = relation.columns().map(|c| (c.name.to_owned(), c.type_oid)).collect();
        tables.insert(relation.id, Table { name, columns });
    }
}

fn tuples<'a>(message: &Message<'a>) -> Vec<Tuple<'a>> {
    match *message {
        Message::Insert { new, .. } => vec![new],
        Message::Update { old, new, .. } => {
            old.map(|(_, old)| old).into_iter().chain([new]).collect()
        }
        Message::Delete { old, .. } => vec![old],
        _ => Vec::new(),
    }
}

fn qualified(schema: Identifier<'_>, table: Identifier<'_>) -> String {
    format!("{}.{}", schema.name(), table.name())
}

fn text_json(type_oid: u32, text: &[u8]) -> String {
    let mut out = Vec::new();
    json_from_text(&mut out, type_oid, text, ValueOptions::default())
        .unwrap_or_else(|error| panic!("{error}"));
    String::from_utf8(out).unwrap()
}

fn is_json(text: &str) -> bool {
    serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok()
}

#[test]
fn every_recording_is_in_the_index_and_not_empty() {
    let index = read("index.tsv");
    let listed: Vec<&str> = index.lines().map(|line| line.split('\t').next().unwrap()).collect();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/postgres");
    let mut files: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name != "index.tsv")
        .collect();
    files.sort();
    assert_eq!(files, listed);
    for line in index.lines() {
        let count: usize = line.split(['\t', ' ']).nth(2).unwrap().parse().unwrap();
        let name = line.split('\t').next().unwrap();
        assert!(count > 10, "{line}");
        assert_eq!(read(name).lines().count(), count, "{name}");
    }
}

#[test]
fn every_recorded_message_decodes_and_none_does_when_cut() {
    for server in SERVERS {
        for kind in ["values_text", "values_binary", "changes_v1", "stream", "phases"] {
            let messages = recording(&format!("{server}_{kind}.tsv"));
            let mut last = Vec::new();
            for (message, streamed) in streamed(&messages) {
                let decoded = decode(message, streamed).unwrap_or_else(|e| panic!("{kind}: {e}"));
                for tuple in tuples(&decoded) {
                    let mut builder = TupleBuilder::new();
                    tuple.iter().for_each(|column| builder.column(column).unwrap());
                    let mut wire = Vec::new();
                    builder.write(&mut wire);
                    let place = message.windows(wire.len()).any(|window| window == wire);
                    assert!(place, "{server} {kind}: a row built again has other bytes");
                }
                if message == last {
                    continue;
                }
                for length in 0..message.len() {
                    // An abort without its position is the shorter form of version 2.
                    if message[0] == b'A' && length == 9 {
                        continue;
                    }
                    let cut = decode(&message[..length], streamed);
                    let error = cut.expect_err("a cut message");
                    assert!(error.offset <= length && error.length == length, "{error}");
                }
                let longer = [message, &[0]].concat();
                assert!(decode(&longer, streamed).is_err(), "{server} {kind}: {decoded:?}");
                last = message.to_vec();
            }
        }
    }
}

/// Columns whose types are asked for as text, so that the row they are in is.
const TEXT_ONLY: [&str; 31] = [
    "a_box",
    "a_hstore",
    "a_inet",
    "a_moment",
    "a_mood",
    "a_pair",
    "c_bit",
    "c_blob",
    "c_box",
    "c_cidr",
    "c_hstore",
    "c_inet",
    "c_int4range",
    "c_jsonpath",
    "c_macaddr",
    "c_moment",
    "c_money",
    "c_mood",
    "c_nested",
    "c_oidvector",
    "c_pair",
    "c_point",
    "c_regclass",
    "c_small",
    "c_tid",
    "c_tsquery",
    "c_tstzmultirange",
    "c_tstzrange",
    "c_tsvector",
    "c_varbit",
    "c_xml",
];

/// A row of the recorded values: of the same statement, from three slots.
struct Recorded<'a> {
    table: Table,
    text: Vec<Column<'a>>,
    binary: Vec<Column<'a>>,
}

fn values<'a>(text: &'a [Vec<u8>], binary: &'a [Vec<u8>]) -> Vec<Recorded<'a>> {
    let mut tables = Tables::new();
    assert_eq!(text.len(), binary.len());
    let mut rows = Vec::new();
    for (text, binary) in text.iter().zip(binary) {
        let (text, binary) = (decode(text, false).unwrap(), decode(binary, false).unwrap());
        learn(&mut tables, &text);
        if let (
            Message::Insert { relation, new: text, .. },
            Message::Insert { relation: same, new: binary, .. },
        ) = (text, binary)
        {
            assert_eq!(relation, same);
            let table = tables[&relation].clone();
            assert_eq!(table.columns.len(), text.len());
            rows.push(Recorded {
                table,
                text: text.iter().collect(),
                binary: binary.iter().collect(),
            });
        }
    }
    assert_eq!(rows.len(), 16);
    rows
}

#[test]
fn text_and_binary_values_of_a_server_are_the_same_json() {
    for server in SERVERS {
        let text = recording(&format!("{server}_values_text.tsv"));
        let binary = recording(&format!("{server}_values_binary.tsv"));
        let (mut compared, mut only_text) = (0, Vec::new());
        for row in values(&text, &binary) {
            for (((name, type_oid), text), binary) in
                row.table.columns.iter().zip(&row.text).zip(&row.binary)
            {
                let place = format!("{server} {} {name}", row.table.name);
                match (text, binary) {
                    (Column::Null, Column::Null) => {}
                    (Column::Text(text), Column::Text(same)) => {
                        assert_eq!(text, same, "{place}");
                        assert!(!has_binary_codec(*type_oid), "{place}");
                    }
                    (Column::Text(text), Column::Binary(bytes)) => {
                        let json = text_json(*type_oid, text);
                        assert!(is_json(&json), "{place}: {json}");
                        let mut out = Vec::new();
                        let options = ValueOptions::default();
                        let read = json_from_binary(&mut out, *type_oid, bytes, options);
                        if has_binary_codec(*type_oid) {
                            read.unwrap_or_else(|error| panic!("{place}: {error}"));
                            assert_eq!(String::from_utf8(out).unwrap(), json, "{place}");
                            compared += 1;
                        } else {
                            assert!(read.is_err() && out.is_empty(), "{place}");
                            only_text.push(name.clone());
                        }
                    }
                    other => panic!("{place}: {other:?}"),
                }
            }
        }
        assert!(compared > 250, "{compared}");
        only_text.sort();
        only_text.dedup();
        assert_eq!(only_text, TEXT_ONLY, "{server}");
    }
}

#[test]
fn numbers_and_times_of_a_server_are_the_same_from_text_and_binary() {
    let options = ValueOptions::default();
    let mut count = 0;
    for line in read("pg15_numbers.tsv").lines() {
        let [kind, text, bytes] = line.split('\t').collect::<Vec<_>>()[..] else {
            panic!("{line}")
        };
        let type_oid = oid::of_type_name(kind).unwrap();
        let json = text_json(type_oid, text.as_bytes());
        let mut out = Vec::new();
        json_from_binary(&mut out, type_oid, &unhex(bytes), options).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), json, "{line}");
        if let "float8" | "float4" | "numeric" = kind {
            assert_eq!(json, text, "the server's digits");
        }
        assert!(is_json(&json), "{json}");
        count += 1;
    }
    assert!(count > 2000, "{count}");
}

#[test]
fn a_line_makes_the_row_that_pgoutput_sends() {
    for server in SERVERS {
        for kind in ["values", "changes"] {
            let second = if kind == "values" { "text" } else { "v1" };
            let messages = recording(&format!("{server}_{kind}_{second}.tsv"));
            let lines = recording(&format!("{server}_{kind}_lines.tsv"));
            let mut tables = Tables::new();
            let mut changes = Vec::new();
            for message in &messages {
                let message = decode(message, false).unwrap();
                learn(&mut tables, &message);
                if !tuples(&message).is_empty() {
                    changes.push((message, tables.clone()));
                }
            }
            let mut found = lines.iter().filter_map(|line| match parse(line) {
                Ok(Line::Change(change)) => Some(change),
                Ok(_) => None,
                Err(error) => panic!("{error}"),
            });
            for (message, tables) in &changes {
                let change = found.next().expect("as many lines as messages");
                same_change(message, tables, &change);
            }
            // A delete or update without replica identity is in lines only.
            let rest: Vec<Change<'_>> = found.collect();
            assert!(rest.is_empty(), "{server} {kind}: {rest:?}");
        }
    }
}

fn same_change(message: &Message<'_>, tables: &Tables, change: &Change<'_>) {
    let (op, relation, old, new) = match *message {
        Message::Insert { relation, new, .. } => (Op::Insert, relation, None, Some(new)),
        Message::Update { relation, old, new, .. } => (Op::Update, relation, old, Some(new)),
        Message::Delete { relation, kind, old, .. } => {
            (Op::Delete, relation, Some((kind, old)), None)
        }
        _ => unreachable!("only rows are compared"),
    };
    let table = &tables[&relation];
    assert_eq!(change.op, op, "{}", table.name);
    assert_eq!(qualified(change.schema, change.table), table.name);
    assert_eq!(change.new.is_some(), new.is_some(), "{}", table.name);
    if let (Some(fields), Some(new)) = (change.new, new) {
        let mut builder = TupleBuilder::new();
        fields.iter().for_each(|field| field.value.add_to(&mut builder).unwrap());
        assert_eq!(builder.tuple(), new, "{}", table.name);
        let names: Vec<String> = fields.iter().map(|field| field.name.name()).collect();
        let known: Vec<String> = table.columns.iter().map(|column| column.0.clone()).collect();
        assert_eq!(names, known);
        for (field, (name, type_oid)) in fields.iter().zip(&table.columns) {
            if oid::of_oid(*type_oid).is_some() {
                assert_eq!(oid::of_type_name(field.type_name), Some(*type_oid), "{name}");
            }
        }
    }
    let old_fields: Vec<_> = change.old.iter().flat_map(Fields::iter).collect();
    let old: Vec<Column<'_>> = old.map(|(_, old)| old.iter().collect()).unwrap_or_default();
    let said = old.iter().filter(|column| **column != Column::Null).count();
    assert_eq!(old_fields.len(), said, "{}", table.name);
    for field in old_fields {
        let index = table.columns.iter().position(|column| field.name.is(&column.0)).unwrap();
        let mut builder = TupleBuilder::new();
        field.value.add_to(&mut builder).unwrap();
        assert_eq!(builder.tuple().nth(0), Some(old[index]), "{} {}", table.name, index);
    }
}

/// `(table, id, column, JSON)`: forms that are promised.
const PROMISED: &[(&str, &str, &str, &str)] = &[
    ("scalars", "1", "c_bool", "true"),
    ("scalars", "2", "c_bool", "false"),
    ("scalars", "1", "c_int4", "2129020"),
    ("scalars", "1", "c_int8", "9007199254740993"),
    ("scalars", "2", "c_int8", "9223372036854775807"),
    ("scalars", "4", "c_int8", "-9223372036854775808"),
    ("scalars", "1", "c_numeric", "7000"),
    ("scalars", "4", "c_numeric", "1234567890987654321.1234567890987654321"),
    ("scalars", "5", "c_numeric", "0.00000000000000006938893903907228"),
    ("scalars", "1", "c_numeric_12_2", "1.50"),
    ("scalars", "2", "c_numeric_12_2", "-0.01"),
    ("scalars", "2", "c_numeric", "\"NaN\""),
    ("scalars", "6", "c_numeric", "\"Infinity\""),
    ("scalars", "7", "c_numeric", "\"-Infinity\""),
    ("scalars", "1", "c_float4", "0.1"),
    ("scalars", "1", "c_float8", "0.30000000000000004"),
    ("scalars", "2", "c_float4", "\"NaN\""),
    ("scalars", "4", "c_float4", "\"-Infinity\""),
    ("scalars", "4", "c_float8", "\"Infinity\""),
    ("scalars", "5", "c_float8", "-0"),
    ("scalars", "6", "c_float4", "1e+06"),
    ("scalars", "6", "c_float8", "1e+15"),
    ("scalars", "8", "c_float8", "5e-324"),
    ("scalars", "9", "c_float8", "9.999999999999999e+22"),
    ("scalars", "4", "c_text", r#""null""#),
    ("scalars", "4", "c_varchar", r#""it's a \"quote\" \\ back""#),
    ("scalars", "4", "c_numeric_12_2", "9999999999.99"),
    ("scalars", "5", "c_text", r#""x[text]:'y' z[integer]:1""#),
    ("scalars", "5", "c_varchar", r#""line1\nline2\ttab\r""#),
    ("scalars", "6", "c_text", "\"emoji \u{1f600} \\u0001\\u001f\u{7f}\""),
    ("scalars", "1", "c_bpchar", r#""ab    ""#),
    ("scalars", "2", "c_char", r#""""#),
    ("scalars", "1", "c_bytea", r#""3q2+7w==""#),
    ("scalars", "2", "c_bytea", r#""""#),
    ("scalars", "1", "c_json", r#"{"a": 1,  "b":[null]}"#),
    ("scalars", "4", "c_json", "[1,\n 2]"),
    ("scalars", "2", "c_json", "null"),
    ("scalars", "1", "c_jsonb", r#"{"a": "x", "b": 1.50}"#),
    ("scalars", "1", "c_uuid", r#""a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11""#),
    ("scalars", "1", "c_date", r#""2024-01-02""#),
    ("scalars", "2", "c_date", r#""infinity""#),
    ("scalars", "5", "c_date", r#""0044-03-15 BC""#),
    ("scalars", "6", "c_date", r#""10000-01-01""#),
    ("scalars", "1", "c_time", r#""03:04:05.12""#),
    ("scalars", "4", "c_time", r#""24:00:00""#),
    ("scalars", "1", "c_timetz", r#""03:04:05.12+05:30""#),
    ("scalars", "4", "c_timetz", r#""23:59:59.999999-15:59:59""#),
    ("scalars", "1", "c_timestamp", r#""2024-01-02T03:04:05.12""#),
    ("scalars", "5", "c_timestamp", r#""0044-03-15 01:02:03 BC""#),
    ("scalars", "6", "c_timestamp", r#""294276-12-31 23:59:59.999999""#),
    ("scalars", "8", "c_timestamp", r#""0001-01-01T00:00:00""#),
    ("scalars", "1", "c_timestamptz", r#""2024-01-01T18:04:05.123456Z""#),
    ("scalars", "2", "c_timestamptz", r#""infinity""#),
    ("scalars", "4", "c_timestamptz", r#""-infinity""#),
    ("scalars", "5", "c_timestamptz", r#""0044-03-15 01:02:03.5+00 BC""#),
    ("scalars", "6", "c_timestamptz", r#""294276-12-31 23:59:59.999999+00""#),
    ("scalars", "9", "c_timestamptz", r#""9999-12-31T23:59:59.999999Z""#),
    ("scalars", "10", "c_timestamptz", r#""1900-03-01T00:00:00Z""#),
    ("scalars", "1", "c_interval", r#""1 year 2 mons -3 days +04:05:06.7""#),
    ("scalars", "2", "c_interval", r#""00:00:00""#),
    ("scalars", "4", "c_oid", "4294967295"),
    ("scalars", "1", "c_xid8", "18446744073709551615"),
    ("scalars", "1", "c_lsn", r#""16/B374D848""#),
    ("others", "1", "c_inet", r#""192.168.1.5/24""#),
    ("others", "1", "c_bit", r#""101""#),
    ("others", "1", "c_money", r#""$12.34""#),
    ("others", "1", "c_hstore", r#""\"a\"=>\"1\", \"b c\"=>NULL""#),
    ("others", "1", "c_mood", r#""it's \"ok\"""#),
    ("others", "1", "c_pair", r#""(1,\"x y\")""#),
    ("others", "1", "c_blob", r#""\\xff00""#),
    ("others", "1", "c_moment", r#""2024-01-02 03:04:05+00""#),
    ("others", "1", "c_small", r#""7""#),
    ("others", "1", "c_int4range", r#""[1,5)""#),
    ("others", "1", "c_aclitem", r#""postgres=r/postgres""#),
    ("others", "1", "c_oidvector", r#""1 2 3""#),
    ("arrays", "1", "a_bool", "[true,false,null]"),
    ("arrays", "1", "a_int4", "[1,null,-3]"),
    ("arrays", "1", "a_int8", "[9223372036854775807]"),
    ("arrays", "1", "a_float8", r#"["NaN","Infinity",-0,1e+20,1e-05,0.1]"#),
    ("arrays", "1", "a_numeric", r#"["NaN",7000,1.50,-0.1]"#),
    (
        "arrays",
        "1",
        "a_text",
        r#"["a",null,"null","","it's","say \"x\"","back\\slash","a,b","{}","\n"," "]"#,
    ),
    ("arrays", "1", "a_varchar", r#"[null,"NULL"]"#),
    ("arrays", "1", "a_bytea", r#"["AP8=","",null]"#),
    ("arrays", "1", "a_json", r#"[{"a": [1, "x\\"]},null,1]"#),
    ("arrays", "1", "a_date", r#"["2024-01-02","infinity","0044-03-15 BC"]"#),
    ("arrays", "1", "a_timestamp", r#"["2024-01-02T03:04:05.12",null,"-infinity"]"#),
    ("arrays", "1", "a_timestamptz", r#"["2024-01-02T03:04:05.12Z","10000-01-01 00:00:00+00"]"#),
    ("arrays", "1", "a_box", r#"["(1,2),(0,0)","(3,4),(0,0)"]"#),
    ("arrays", "1", "a_inet", r#"["10.0.0.1"]"#),
    ("arrays", "1", "a_mood", r#""{sad,\"it's \\\"ok\\\"\",\"null\",NULL}""#),
    ("arrays", "2", "a_text", "[]"),
    ("arrays", "3", "a_bool", "[[true,false],[false,null]]"),
    ("arrays", "3", "a_int4", "[5,6]"),
    ("arrays", "3", "a_int8", "[[1,2,3],[4,5,null]]"),
    ("arrays", "3", "a_float8", "[[[0.5]]]"),
    ("arrays", "3", "a_text", r#"[["a","b c"],["null",null]]"#),
];

#[test]
fn recorded_values_have_the_promised_form() {
    for server in SERVERS {
        let text = recording(&format!("{server}_values_text.tsv"));
        let rows = values(&text, &text);
        let mut wrong = Vec::new();
        for (table, id, column, expected) in PROMISED {
            let row = rows.iter().find(|row| {
                row.table.name == format!("public.{table}")
                    && row.text[0] == Column::Text(id.as_bytes())
            });
            let row = row.unwrap_or_else(|| panic!("{table} {id}"));
            let index = row.table.columns.iter().position(|c| c.0 == *column);
            let index = index.unwrap_or_else(|| panic!("{table} {column}"));
            let Column::Text(value) = row.text[index] else { panic!("{table} {id} {column}") };
            let json = text_json(row.table.columns[index].1, value);
            if json != *expected {
                wrong.push(format!("{server} {table} {id} {column}: {json}, expected {expected}"));
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}

#[test]
fn null_columns_stay_apart_from_empty_ones() {
    for server in SERVERS {
        let text = recording(&format!("{server}_values_text.tsv"));
        let rows = values(&text, &text);
        let nulls = rows.iter().filter(|row| row.text[0] == Column::Text(b"3"));
        for row in nulls.filter(|row| row.table.name != "public.arrays") {
            assert!(row.text[1..].iter().all(|column| *column == Column::Null));
        }
        let empty = rows.iter().flat_map(|row| &row.text).filter(|c| **c == Column::Text(b""));
        assert!(empty.count() > 5);
    }
}

#[test]
fn identities_decide_what_is_said_of_an_old_row() {
    for server in SERVERS {
        let messages = recording(&format!("{server}_changes_v1.tsv"));
        let mut tables = Tables::new();
        let mut kinds = Vec::new();
        let mut unchanged = 0;
        for message in &messages {
            let message = decode(message, false).unwrap();
            learn(&mut tables, &message);
            let all = tuples(&message);
            let columns = all.iter().flat_map(Tuple::iter);
            unchanged += columns.filter(|column| *column == Column::Unchanged).count();
            let name =
                |relation: u32| tables[&relation].name.trim_start_matches("public.").to_owned();
            match message {
                Message::Update { relation, old, .. } => {
                    kinds.push((name(relation), 'U', old.map(|(kind, _)| kind)));
                }
                Message::Delete { relation, kind, .. } => {
                    kinds.push((name(relation), 'D', Some(kind)));
                }
                _ => {}
            }
        }
        let (key, full) = (Some(OldKind::Key), Some(OldKind::Full));
        let expected = [
            ("big", 'U', None),
            ("big", 'U', key),
            ("big", 'U', None),
            ("big", 'D', key),
            ("whole", 'U', full),
            ("whole", 'U', full),
            ("whole", 'D', full),
            ("indexed", 'U', None),
            ("indexed", 'U', key),
            ("indexed", 'D', key),
            ("keyless", 'U', full),
            ("keyless", 'D', full),
            ("We ird.Ta\"ble: x", 'U', key),
            ("We ird.Ta\"ble: x", 'D', key),
            ("keyed", 'U', key),
            ("keyed", 'D', key),
        ];
        let expected: Vec<_> = expected.map(|(name, op, kind)| (name.to_owned(), op, kind)).into();
        assert_eq!(kinds, expected, "{server}");
        assert_eq!(unchanged, 4, "{server}: large values that were not touched");
    }
}

#[test]
fn a_truncate_says_each_table_and_its_flags_both_ways() {
    let expected = [
        (vec!["public.big"], false, false),
        (vec!["public.whole", "public.indexed"], false, true),
        (vec!["public.keyed", "We ird.Ta\"ble: x"], true, true),
    ];
    for server in SERVERS {
        let messages = recording(&format!("{server}_changes_v1.tsv"));
        let mut tables = Tables::new();
        let mut seen = Vec::new();
        for message in &messages {
            let message = decode(message, false).unwrap();
            learn(&mut tables, &message);
            if let Message::Truncate { relations, cascade, restart_identity, .. } = message {
                let names = relations.map(|id| tables[&id].name.clone()).collect::<Vec<_>>();
                seen.push((names, cascade, restart_identity));
            }
        }
        let lines = recording(&format!("{server}_changes_lines.tsv"));
        let from_lines = lines.iter().filter_map(|line| match parse(line).unwrap() {
            Line::Truncate { tables, cascade, restart_identity } => {
                let names = tables.iter().map(|(schema, table)| qualified(schema, table));
                Some((names.collect::<Vec<_>>(), cascade, restart_identity))
            }
            _ => None,
        });
        let from_lines: Vec<_> = from_lines.collect();
        assert_eq!(seen, from_lines);
        let seen: Vec<_> = seen
            .iter()
            .map(|(names, c, r)| (names.iter().map(String::as_str).collect::<Vec<_>>(), *c, *r))
            .collect();
        assert_eq!(seen, expected, "{server}");
    }
}

#[test]
fn a_message_that_looks_like_syntax_is_read_by_its_size() {
    for server in SERVERS {
        let lines = recording(&format!("{server}_changes_lines.tsv"));
        let messages: Vec<_> = lines
            .iter()
            .filter_map(|line| match parse(line).unwrap() {
                Line::Message { transactional, prefix, content } => {
                    Some((transactional, prefix, content))
                }
                _ => None,
            })
            .collect();
        let odd = (true, &b"pre, sz: 3 content:fix"[..], &b"hello, sz: 5 content:world"[..]);
        let alone = (false, &b"alone"[..], &b"\x01\n"[..]);
        assert!(messages.contains(&odd) && messages.contains(&alone), "{messages:?}");
        let binary = recording(&format!("{server}_changes_v1.tsv"));
        let binary: Vec<_> = binary
            .iter()
            .filter_map(|message| match decode(message, false).unwrap() {
                Message::Logical { transactional, prefix, content, .. } => {
                    Some((transactional, prefix.as_bytes(), content))
                }
                _ => None,
            })
            .collect();
        assert_eq!(binary, messages);
    }
}

/// What a consumer that spools would have at the end.
#[test]
fn pieces_of_open_transactions_come_together_and_an_abort_takes_its_part() {
    for (server, abort_length) in [("pg15", 9), ("pg18", 25)] {
        let messages = recording(&format!("{server}_stream.tsv"));
        let mut open: BTreeMap<u32, Vec<(u32, String)>> = BTreeMap::new();
        let mut committed: Vec<String> = Vec::new();
        let (mut top, mut aborts) = (None, Vec::new());
        for (message, streamed) in streamed(&messages) {
            match decode(message, streamed).unwrap() {
                Message::StreamStart { xid, first } => {
                    assert_eq!(first, !open.contains_key(&xid), "{server}");
                    top = Some(xid);
                    open.entry(xid).or_default();
                }
                Message::StreamStop => top = None,
                Message::Insert { xid, new, .. } => {
                    let note = match new.nth(1) {
                        Some(Column::Text(note)) => String::from_utf8(note.to_vec()).unwrap(),
                        other => format!("{other:?}"),
                    };
                    assert_eq!(xid.is_some(), top.is_some(), "{server}");
                    match (top, xid) {
                        (Some(top), Some(xid)) => open.get_mut(&top).unwrap().push((xid, note)),
                        _ => committed.push(note),
                    }
                }
                Message::StreamAbort { xid, subxid, abort } => {
                    assert_eq!((message.len(), abort.is_some()), (abort_length, server == "pg18"));
                    aborts.push(xid == subxid);
                    open.get_mut(&xid).unwrap().retain(|(of, _)| xid != subxid && *of != subxid);
                }
                Message::StreamCommit { xid, .. } => {
                    committed.extend(open.remove(&xid).unwrap().into_iter().map(|(_, note)| note));
                }
                _ => {}
            }
        }
        assert_eq!(aborts, [false, true], "{server}: a savepoint, then a transaction");
        let count = |text: &str| committed.iter().filter(|note| *note == text).count();
        let counts = ["kept", "undone", "all undone", "in between", "last"].map(count);
        assert_eq!(counts, [20, 0, 0, 1, 1], "{server}");
    }
}

#[test]
fn a_transaction_in_two_phases_keeps_its_name() {
    for server in SERVERS {
        let messages = recording(&format!("{server}_phases.tsv"));
        let names = |step: &str| -> Vec<String> {
            let of = messages.iter().filter_map(|message| {
                let (kind, prepared): (&str, Prepared<'_>) = match decode(message, false).unwrap() {
                    Message::BeginPrepare(prepared) => ("begin", prepared),
                    Message::Prepare(prepared) => ("prepare", prepared),
                    Message::CommitPrepared(prepared) => ("commit", prepared),
                    Message::RollbackPrepared { prepared, rollback_time } => {
                        assert!(rollback_time >= prepared.time);
                        ("rollback", prepared)
                    }
                    _ => return None,
                };
                assert!(prepared.lsn < prepared.end_lsn && prepared.xid > 0);
                (kind == step).then(|| prepared.gid.to_owned())
            });
            of.collect()
        };
        assert_eq!(names("begin"), ["it's first", "second", "third"]);
        assert_eq!(names("prepare"), ["it's first", "second", "third"]);
        assert_eq!(names("commit"), ["it's first", "third"]);
        assert_eq!(names("rollback"), ["second"]);
        let lines = recording(&format!("{server}_phases_lines.tsv"));
        let steps: Vec<_> = lines
            .iter()
            .filter_map(|line| match parse(line).unwrap() {
                Line::TwoPhase { step, gid, xid } => {
                    Some((step, gid.is(b"it's first"), xid.is_some()))
                }
                _ => None,
            })
            .collect();
        let of_first = [(Step::Prepare, true, true), (Step::Commit, true, true)];
        assert_eq!(steps[..2], of_first);
        assert_eq!(steps[3], (Step::Rollback, false, true));
    }
}

/// One recorded message with a few bytes changed, cut or doubled.
fn mutated(files: &'static [&'static str]) -> impl Strategy<Value = Vec<u8>> {
    let all: Vec<Vec<u8>> = files.iter().flat_map(|name| recording(name)).collect();
    let edits = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..3u8), 1..6);
    (prop::sample::select(all), edits).prop_map(|(mut message, edits)| {
        for (place, byte, how) in edits {
            if message.is_empty() {
                break;
            }
            let place = place.index(message.len());
            match how {
                0 => message[place] = byte,
                1 => message.truncate(place),
                _ => message.insert(place, byte),
            }
        }
        message
    })
}

proptest! {
    #[test]
    fn no_bytes_make_a_decoder_panic(data in prop::collection::vec(any::<u8>(), 0..200)) {
        fuzz_pgoutput(&data);
        fuzz_test_decoding(&data);
    }

    #[test]
    fn a_damaged_message_never_makes_the_decoder_panic(
        data in mutated(&["pg15_changes_v1.tsv", "pg15_values_text.tsv", "pg15_values_binary.tsv",
            "pg15_phases.tsv"]),
    ) {
        fuzz_pgoutput(&data);
    }

    #[test]
    fn a_damaged_line_never_makes_the_parser_panic(
        data in mutated(&["pg15_changes_lines.tsv", "pg15_values_lines.tsv",
            "pg15_phases_lines.tsv"]),
    ) {
        fuzz_test_decoding(&data);
    }

    #[test]
    fn a_damaged_value_is_valid_json_or_an_error(
        data in mutated(&["pg15_values_lines.tsv"]),
        text in "[-+0-9.eEinfNa:TZ BC{},\"\\\\\\[\\]=t/x]{0,30}",
    ) {
        fuzz_pgoutput(text.as_bytes());
        fuzz_pgoutput(&data);
    }

    #[test]
    fn a_json_string_reads_back(text in any::<String>(), bytes in any::<Vec<u8>>()) {
        let mut out = Vec::new();
        json_string(&mut out, text.as_bytes());
        prop_assert_eq!(serde_json::from_slice::<String>(&out).unwrap(), text);
        out.clear();
        json_string(&mut out, &bytes);
        let read = serde_json::from_slice::<String>(&out).unwrap();
        prop_assert_eq!(read, String::from_utf8_lossy(&bytes));
    }
}
