//! The stream and the envelope of a Postgres capture against what real servers emit
//! (`tests/golden/postgres/`, made by `scripts/record-postgres`).

// Reads the recordings from files.
#![allow(clippy::disallowed_methods)]

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use serde_json::Value;
use tidegate::config::{Decoder, EnvelopePlan, Operations, Tables};
use tidegate::ingest::postgres_cdc::{
    Envelope, EnvelopeOptions, Item, Op, Position, Rendered, Row, Spill, Stream, StreamOptions,
};
use tidegate::pg_wire::Lsn;

const SERVERS: [&str; 2] = ["pg15", "pg18"];

/// CopyData bodies of a recording.
fn bodies(name: &str) -> Vec<Vec<u8>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/postgres").join(name);
    let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    text.lines().map(body).collect()
}

fn body(line: &str) -> Vec<u8> {
    let lsn: Lsn = line.split('\t').next().unwrap().parse().unwrap();
    let hex = line.rsplit('\t').next().unwrap();
    let mut body = vec![b'w'];
    body.extend(lsn.0.to_be_bytes());
    body.extend([0; 16]);
    let pairs = hex.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
    body.extend(pairs.map(|pair| u8::from_str_radix(pair, 16).unwrap()));
    body
}

fn stream(decoder: Decoder, spool_memory: usize) -> Stream {
    let options = StreamOptions {
        decoder,
        tables: Tables::All,
        operations: Operations { insert: true, update: true, delete: true, truncate: true },
        snake_case_columns: false,
        binary: false,
        config_hash: 1,
        facts: Vec::new(),
        spool_memory,
    };
    Stream::new(options, Position::default())
}

/// What a consumer gets of one row.
#[derive(Clone, Debug, PartialEq)]
struct Message {
    xid: u32,
    ordinal: u64,
    op: Op,
    /// A value went out as the server's text, for want of a form of its type.
    odd: bool,
    payload: String,
}

impl Message {
    fn record(&self) -> Value {
        serde_json::from_str(&self.payload).unwrap_or_else(|e| panic!("{e}: {}", self.payload))
    }
}

/// All rows of a recording, and how many transactions ended.
fn run(mut stream: Stream, bodies: &[Vec<u8>]) -> (Vec<Message>, usize) {
    let envelope = Envelope::new(EnvelopeOptions {
        form: EnvelopePlan::Record,
        include_metadata: true,
        numeric_as_string: false,
    });
    let mut out = Run { envelope, files: HashMap::new(), messages: Vec::new(), ends: 0 };
    for body in bodies {
        let item = stream.message(body).unwrap();
        out.take(item);
        while let Some(item) = stream.more().unwrap() {
            if let Some(bytes) = out.take(item) {
                stream.spilled(&bytes).unwrap();
            }
        }
    }
    assert!(stream.is_between() && out.files.is_empty());
    (out.messages, out.ends)
}

struct Run {
    envelope: Envelope,
    files: HashMap<u32, Vec<u8>>,
    messages: Vec<Message>,
    ends: usize,
}

impl Run {
    fn take(&mut self, item: Item<'_, '_>) -> Option<Vec<u8>> {
        match item {
            Item::Row(row) => self.row(&row),
            Item::TransactionEnd { .. } => self.ends += 1,
            Item::Spill(Spill::Append { xid, offset, bytes }) => {
                let file = self.files.entry(xid).or_default();
                assert_eq!(file.len() as u64, offset);
                file.extend(bytes);
            }
            Item::Spill(Spill::Read { xid, offset, length }) => {
                let start = usize::try_from(offset).unwrap();
                return Some(self.files[&xid][start..start + length].to_vec());
            }
            Item::Spill(Spill::Drop { xid }) => drop(self.files.remove(&xid).unwrap()),
            Item::Keepalive { .. } | Item::Nothing => {}
        }
        None
    }

    fn row(&mut self, row: &Row<'_, '_>) {
        let mut payload = Vec::new();
        let rendered = self.envelope.render(&mut payload, row, &[]).unwrap();
        let odd = rendered != Rendered::Payload { odd_values: 0 };
        let payload = String::from_utf8(payload).unwrap();
        // Reads what a json column may hold and no string of Rust can, a lone surrogate.
        let json = serde_json::from_str::<serde::de::IgnoredAny>(&payload);
        assert!(json.is_ok(), "{json:?}: {payload}");
        let (xid, ordinal, op) = (row.tx.xid, row.ordinal, row.op);
        self.messages.push(Message { xid, ordinal, op, odd, payload });
    }
}

/// An old row of test_decoding does not show what is NULL.
fn without_old_nulls(message: &Message) -> (u32, u64, Op, Value) {
    let mut record = message.record();
    if let Some(old) = record["old_data"].as_object_mut() {
        old.retain(|_, value| !value.is_null());
    }
    (message.xid, message.ordinal, message.op, record)
}

#[test]
fn both_plugins_give_the_same_messages_for_the_same_changes() {
    for server in SERVERS {
        let pgoutput = bodies(&format!("{server}_changes_v1.tsv"));
        let (expected, ends) = run(stream(Decoder::PgOutput, 0), &pgoutput);
        let lines = bodies(&format!("{server}_changes_lines.tsv"));
        for memory in [0, usize::MAX] {
            let (seen, line_ends) = run(stream(Decoder::TestDecoding, memory), &lines);
            assert_eq!(seen.len(), expected.len());
            assert!(expected.iter().all(|message| !message.odd));
            for (seen, expected) in seen.iter().zip(&expected) {
                assert_eq!(without_old_nulls(seen), without_old_nulls(expected));
            }
            assert_eq!(line_ends, ends, "{server}");
        }
        for op in [Op::Insert, Op::Update, Op::Delete, Op::Truncate] {
            assert!(expected.iter().any(|message| message.op == op), "{server} {op:?}");
        }
    }
}

#[test]
fn unchanged_values_are_named_or_taken_from_the_old_row() {
    for server in SERVERS {
        let (messages, _) =
            run(stream(Decoder::PgOutput, 0), &bodies(&format!("{server}_changes_v1.tsv")));
        let updates = |table: &str| {
            let table = format!("public.{table}");
            let updates = messages.iter().filter(|m| m.op == Op::Update).map(Message::record);
            updates.filter(|record| record["table_name"] == table.as_str()).collect::<Vec<_>>()
        };
        // An update of another column, without and with REPLICA IDENTITY FULL.
        let big = updates("big");
        assert_eq!(big[0]["unchanged"], serde_json::json!(["large"]), "{}", big[0]);
        assert!(big[0]["data"].get("large").is_none() && big[0]["data"]["note"] == "b");
        assert_eq!(big[1]["old_data"], serde_json::json!({"id": 1}), "a key change");
        let whole = updates("whole");
        assert_eq!(whole[0]["data"]["large"], "x".repeat(3000));
        assert_eq!(whole[0].get("unchanged"), None);
        assert_eq!(whole[0]["old_data"]["note"], Value::Null);
    }
}

#[test]
fn recorded_values_are_the_same_from_text_and_binary() {
    for server in SERVERS {
        let of = |kind: &str, decoder| {
            let recording = bodies(&format!("{server}_values_{kind}.tsv"));
            run(stream(decoder, usize::MAX), &recording).0
        };
        let scalars = |messages: Vec<Message>| -> Vec<Message> {
            let of = |message: &Message| message.payload.contains("public.scalars");
            messages.into_iter().filter(of).collect()
        };
        let text = of("text", Decoder::PgOutput);
        assert!(text.iter().all(|message| !message.odd));
        let (text, binary) = (scalars(text), scalars(of("binary", Decoder::PgOutput)));
        assert!(text.len() >= 10);
        assert_eq!(text, binary);
    }
}

#[test]
fn recorded_pieces_give_whole_transactions_and_nothing_of_what_was_undone() {
    for server in SERVERS {
        let recording = bodies(&format!("{server}_stream.tsv"));
        let (all, ends) = run(stream(Decoder::PgOutput, usize::MAX), &recording);
        let (spilled, spilled_ends) = run(stream(Decoder::PgOutput, 0), &recording);
        assert_eq!(all, spilled);
        assert_eq!(ends, spilled_ends);
        assert!(all.len() > 1_000 && ends > 2, "{} rows, {ends} transactions", all.len());
        let mut last: HashMap<u32, u64> = HashMap::new();
        for message in &all {
            let next = last.get(&message.xid).map_or(0, |ordinal| ordinal + 1);
            assert_eq!(message.ordinal, next, "numbers have no holes");
            last.insert(message.xid, message.ordinal);
            assert!(!message.payload.contains("undone"), "{}", message.payload);
        }
    }
}
