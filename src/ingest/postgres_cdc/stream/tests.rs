//! The stream against servers made by hand, and against random histories.

mod history;
mod lines;
mod pieces;

use std::collections::HashMap;

use super::super::row::Row;
use super::*;
use crate::config::TableName;
use crate::ingest::postgres_cdc::position::Unfinished;
use crate::ingest::postgres_cdc::wire;
use crate::pg_wire::pgoutput::Column;

const HASH: u64 = 77;
const NOON: i64 = 1_709_251_200_000_000;

fn options() -> StreamOptions {
    StreamOptions {
        decoder: Decoder::PgOutput,
        tables: Tables::All,
        operations: Operations { insert: true, update: true, delete: true, truncate: true },
        snake_case_columns: false,
        binary: false,
        config_hash: HASH,
        facts: Vec::new(),
        spool_memory: usize::MAX,
    }
}

fn stream() -> Stream {
    Stream::new(options(), Position::default())
}

/// An item that owns what it says.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Seen {
    Row { table: String, op: Op, new: Option<String>, old: Option<String>, at: (u64, u32, u64) },
    End(u64),
    Keepalive(u64, bool),
}

fn shown(tuple: &Tuple<'_>) -> String {
    let column = |column| match column {
        Column::Null => "null".to_owned(),
        Column::Unchanged => "unchanged".to_owned(),
        Column::Text(text) => format!("'{}'", String::from_utf8_lossy(text)),
        Column::Binary(bytes) => format!("{bytes:?}"),
    };
    tuple.iter().map(column).collect::<Vec<_>>().join(",")
}

fn seen(row: &Row<'_, '_>) -> Seen {
    let names = row.relation.columns.iter().map(|c| c.name.as_str()).collect::<Vec<_>>();
    Seen::Row {
        table: format!("{}({})", row.relation.table, names.join(",")),
        op: row.op,
        new: row.new.as_ref().map(shown),
        old: row.old.as_ref().map(|(kind, old)| format!("{kind:?} {}", shown(old))),
        at: (row.tx.final_lsn.0, row.tx.xid, row.ordinal),
    }
}

/// A consumer with its spill files.
struct Consumer {
    stream: Stream,
    files: HashMap<u32, Vec<u8>>,
    seen: Vec<Seen>,
    most_in_memory: usize,
}

impl Consumer {
    fn new(stream: Stream) -> Consumer {
        Consumer { stream, files: HashMap::new(), seen: Vec::new(), most_in_memory: 0 }
    }

    /// Takes a message with all that comes of it; stops early after `most` items.
    fn take(&mut self, body: &[u8], most: usize) -> Result<bool, StreamError> {
        let item = self.stream.message(body)?;
        note(item, &mut self.files, &mut self.seen);
        self.most_in_memory = self.most_in_memory.max(self.stream.spooled().0);
        while self.stream.has_more() {
            if self.seen.len() >= most {
                return Ok(false);
            }
            let Some(item) = self.stream.more()? else { break };
            if let Some(bytes) = note(item, &mut self.files, &mut self.seen) {
                self.stream.spilled(&bytes)?;
            }
        }
        Ok(self.seen.len() < most)
    }

    fn all(&mut self, bodies: &[Vec<u8>]) -> Vec<Seen> {
        for body in bodies {
            self.take(body, usize::MAX).unwrap();
        }
        std::mem::take(&mut self.seen)
    }
}

/// Performs spill operations, keeps the rest; gives the bytes that were asked for.
fn note(
    item: Item<'_, '_>,
    files: &mut HashMap<u32, Vec<u8>>,
    log: &mut Vec<Seen>,
) -> Option<Vec<u8>> {
    match item {
        Item::Row(row) => log.push(seen(&row)),
        Item::TransactionEnd { end_lsn, .. } => log.push(Seen::End(end_lsn.0)),
        Item::Keepalive { wal_end, reply_requested } => {
            log.push(Seen::Keepalive(wal_end.0, reply_requested));
        }
        Item::Spill(Spill::Append { xid, offset, bytes }) => {
            let file = files.entry(xid).or_default();
            assert_eq!(file.len() as u64, offset);
            file.extend(bytes);
        }
        Item::Spill(Spill::Drop { xid }) => drop(files.remove(&xid).expect("a file")),
        Item::Spill(Spill::Read { xid, offset, length }) => {
            let start = usize::try_from(offset).unwrap();
            return Some(files[&xid][start..start + length].to_vec());
        }
        Item::Nothing => {}
    }
    None
}

fn bodies(messages: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    messages.iter().map(|message| wire::data(Lsn(9), message)).collect()
}

const COLUMNS: wire::Columns<'static> = &[("id", 23, true), ("note", 25, false)];

fn describe() -> Vec<u8> {
    wire::relation(None, 5, "public", "t", b'd', COLUMNS)
}

fn text(text: &str) -> Column<'_> {
    Column::Text(text.as_bytes())
}

fn row(table: &str, op: Op, new: &str, at: (u64, u32, u64)) -> Seen {
    let new = Some(new.to_owned());
    Seen::Row { table: table.to_owned(), op, new, old: None, at }
}

fn inserted(new: &str, at: (u64, u32, u64)) -> Seen {
    row("public.t(id,note)", Op::Insert, new, at)
}

#[test]
fn a_transaction_gives_its_rows_and_its_end() {
    let mut consumer = Consumer::new(stream());
    let items = consumer.all(&bodies(vec![
        wire::begin(Lsn(100), NOON, 7),
        describe(),
        wire::insert(None, 5, &[text("1"), Column::Null]),
        wire::update(
            None,
            5,
            Some((OldKind::Key, &[text("1"), Column::Null])),
            &[text("2"), Column::Unchanged],
        ),
        wire::delete(None, 5, OldKind::Key, &[text("2"), Column::Null]),
        wire::commit(Lsn(100), Lsn(120), NOON),
    ]));
    let table = || "public.t(id,note)".to_owned();
    assert_eq!(
        items,
        [
            inserted("'1',null", (100, 7, 0)),
            Seen::Row {
                table: table(),
                op: Op::Update,
                new: Some("'2',unchanged".to_owned()),
                old: Some("Key '1',null".to_owned()),
                at: (100, 7, 1),
            },
            Seen::Row {
                table: table(),
                op: Op::Delete,
                new: None,
                old: Some("Key '2',null".to_owned()),
                at: (100, 7, 2),
            },
            Seen::End(120),
        ]
    );
    assert_eq!(consumer.stream.counters().transactions, 1);
}

#[test]
fn columns_are_those_of_the_new_row_and_of_the_old_one_where_it_is_known() {
    let mut stream = stream();
    for message in [wire::begin(Lsn(100), NOON, 7), describe()] {
        stream.message(&wire::data(Lsn(9), &message)).unwrap();
    }
    let old: &[Column<'_>] = &[text("1"), text("long")];
    let new = [text("2"), Column::Unchanged];
    for (kind, note) in
        [(OldKind::Full, Some(text("long"))), (OldKind::Key, Some(Column::Unchanged))]
    {
        let update = wire::data(Lsn(9), &wire::update(None, 5, Some((kind, old)), &new));
        let Ok(Item::Row(row)) = stream.message(&update) else { panic!("a row") };
        assert_eq!((row.column(0), row.column(1)), (Some(text("2")), note));
        assert_eq!((row.old_value(0), row.column(2)), (Some(text("1")), None));
    }
    let delete = wire::data(Lsn(9), &wire::delete(None, 5, OldKind::Key, old));
    let Ok(Item::Row(row)) = stream.message(&delete) else { panic!("a row") };
    assert_eq!((row.column(0), row.column(1)), (Some(text("1")), None), "not known, not NULL");
}

#[test]
fn truncate_gives_one_event_per_captured_table_and_counts_all() {
    let wanted = ["a", "c"].map(|name| TableName { schema: "public".into(), name: name.into() });
    let options = StreamOptions { tables: Tables::List(wanted.to_vec()), ..options() };
    let mut consumer = Consumer::new(Stream::new(options, Position::default()));
    let describe = |oid, name| wire::relation(None, oid, "public", name, b'd', &[]);
    let items = consumer.all(&bodies(vec![
        wire::begin(Lsn(100), NOON, 7),
        describe(1, "a"),
        describe(2, "b"),
        describe(3, "c"),
        wire::truncate(None, &[1, 2, 3]),
        wire::insert(None, 1, &[]),
        wire::commit(Lsn(100), Lsn(120), NOON),
    ]));
    let truncated = |table: &str, ordinal| Seen::Row {
        table: table.to_owned(),
        op: Op::Truncate,
        new: None,
        old: None,
        at: (100, 7, ordinal),
    };
    assert_eq!(
        items,
        [
            truncated("public.a()", 0),
            truncated("public.c()", 2),
            row("public.a()", Op::Insert, "", (100, 7, 3)),
            Seen::End(120),
        ]
    );
    assert_eq!(consumer.stream.counters().filtered_rows, 1);
}

#[test]
fn operations_that_are_not_asked_for_are_counted_and_left_out() {
    let operations = Operations { insert: true, update: false, delete: false, truncate: false };
    let options = StreamOptions { operations, ..options() };
    let mut consumer = Consumer::new(Stream::new(options, Position::default()));
    let one: &[Column<'_>] = &[text("1"), Column::Null];
    let items = consumer.all(&bodies(vec![
        wire::begin(Lsn(100), NOON, 7),
        describe(),
        wire::truncate(None, &[5]),
        wire::update(None, 5, None, one),
        wire::delete(None, 5, OldKind::Full, one),
        wire::insert(None, 5, one),
        wire::commit(Lsn(100), Lsn(120), NOON),
    ]));
    assert_eq!(items, [inserted("'1',null", (100, 7, 3)), Seen::End(120)]);
    assert_eq!(consumer.stream.counters().filtered_rows, 3);
}

#[test]
fn a_table_changes_its_shape_inside_a_transaction() {
    let mut consumer = Consumer::new(stream());
    let items = consumer.all(&bodies(vec![
        wire::begin(Lsn(100), NOON, 7),
        describe(),
        wire::insert(None, 5, &[text("1"), text("a")]),
        wire::relation(None, 5, "public", "t", b'd', &[("id", 20, true)]),
        wire::insert(None, 5, &[text("2")]),
        wire::relation(None, 6, "public", "t", b'd', COLUMNS),
        wire::insert(None, 6, &[text("3"), text("made anew")]),
        wire::commit(Lsn(100), Lsn(120), NOON),
    ]));
    assert_eq!(
        items,
        [
            inserted("'1','a'", (100, 7, 0)),
            row("public.t(id)", Op::Insert, "'2'", (100, 7, 1)),
            inserted("'3','made anew'", (100, 7, 2)),
            Seen::End(120),
        ]
    );
}

#[test]
fn origins_types_and_logical_messages_pass_without_a_trace() {
    let mut consumer = Consumer::new(stream());
    let mut origin = vec![b'O'];
    origin.extend(5_u64.to_be_bytes());
    origin.extend(b"elsewhere\0");
    let mut kind = vec![b'Y'];
    kind.extend(99_u32.to_be_bytes());
    kind.extend(b"public\0mood\0");
    let items = consumer.all(&bodies(vec![
        wire::logical(None, false),
        wire::begin(Lsn(100), NOON, 7),
        origin,
        kind,
        wire::logical(None, true),
        wire::commit(Lsn(100), Lsn(120), NOON),
    ]));
    assert_eq!(items, [Seen::End(120)], "an otherwise empty transaction ends all the same");
    assert_eq!(consumer.stream.counters().logical_messages, 2);
}

#[test]
fn a_repeat_is_swallowed_whole_but_its_descriptions_count() {
    let mut consumer = Consumer::new(Stream::new(options(), Position::at(Lsn(101))));
    let items = consumer.all(&bodies(vec![
        wire::begin(Lsn(100), NOON, 7),
        describe(),
        wire::insert(None, 5, &[text("1"), Column::Null]),
        wire::truncate(None, &[5]),
        wire::commit(Lsn(100), Lsn(101), NOON),
        wire::begin(Lsn(101), NOON, 8),
        wire::insert(None, 5, &[text("2"), Column::Null]),
        wire::commit(Lsn(101), Lsn(130), NOON),
    ]));
    assert_eq!(items, [inserted("'2',null", (101, 8, 0)), Seen::End(130)]);
    let counters = consumer.stream.counters();
    assert_eq!((counters.repeated_transactions, counters.transactions), (1, 1));
}

#[test]
fn rows_that_are_done_are_skipped_in_the_same_transaction_alone() {
    let unfinished = Unfinished { final_lsn: Lsn(110), xid: 8, ordinal: 2, config_hash: HASH };
    let run = |unfinished, final_lsn| {
        let position = Position { end_lsn: Lsn(100), unfinished: Some(unfinished) };
        let mut consumer = Consumer::new(Stream::new(options(), position));
        let items = consumer.all(&bodies(vec![
            wire::begin(Lsn(final_lsn), NOON, 8),
            describe(),
            wire::insert(None, 5, &[text("0"), Column::Null]),
            wire::truncate(None, &[5, 5]),
            wire::commit(Lsn(final_lsn), Lsn(200), NOON),
        ]));
        let ordinals = items.iter().filter_map(|item| match item {
            Seen::Row { at, .. } => Some(at.2),
            _ => None,
        });
        (ordinals.collect::<Vec<_>>(), consumer.stream.counters().repeated_rows)
    };
    assert_eq!(run(unfinished, 110), (vec![2], 2));
    assert_eq!(run(Unfinished { ordinal: 3, ..unfinished }, 110), (vec![], 3));
    assert_eq!(run(unfinished, 111), (vec![0, 1, 2], 0), "another transaction");
    let other = Unfinished { xid: 9, ..unfinished };
    assert_eq!(run(other, 110), (vec![0, 1, 2], 0));
    let other = Unfinished { config_hash: HASH + 1, ..unfinished };
    assert_eq!(run(other, 110), (vec![0, 1, 2], 0), "counted in another way");
}

#[test]
fn keepalives_say_whether_they_come_between_transactions() {
    let mut stream = stream();
    let keepalive = wire::keepalive(Lsn(150), true);
    let between = |stream: &mut Stream| {
        let item = stream.message(&keepalive).unwrap();
        assert!(matches!(item, Item::Keepalive { wal_end: Lsn(150), reply_requested: true }));
        stream.is_between()
    };
    assert!(between(&mut stream));
    stream.message(&wire::data(Lsn(9), &wire::begin(Lsn(100), NOON, 7))).unwrap();
    assert!(!between(&mut stream));
    stream.message(&wire::data(Lsn(9), &wire::commit(Lsn(100), Lsn(120), NOON))).unwrap();
    assert!(between(&mut stream));
    stream.message(&wire::data(Lsn(9), &wire::stream_start(9, true))).unwrap();
    assert!(!between(&mut stream));
    stream.message(&wire::data(Lsn(9), &wire::stream_stop())).unwrap();
    assert!(between(&mut stream), "the commit of an open transaction lies ahead");
}

#[test]
fn another_connection_forgets_all_but_the_versions() {
    let mut consumer = Consumer::new(stream());
    consumer.all(&bodies(vec![
        wire::begin(Lsn(100), NOON, 7),
        describe(),
        wire::insert(None, 5, &[text("1"), Column::Null]),
    ]));
    assert!(consumer.stream.restart(Position::default(), HASH, false, Vec::new()).is_empty());
    assert!(consumer.stream.is_between());
    assert_eq!((consumer.stream.mode(), consumer.stream.position()), (Mode::Cdc, 0));
    let again = bodies(vec![
        wire::begin(Lsn(100), NOON, 7),
        wire::insert(None, 5, &[text("1"), Column::Null]),
    ]);
    consumer.take(&again[0], 9).unwrap();
    let unknown = consumer.take(&again[1], 9).unwrap_err();
    assert!(matches!(unknown, StreamError::UnknownRelation { oid: 5, .. }), "{unknown}");
    assert!(unknown.is_transient());
}

#[test]
fn a_type_without_a_binary_form_ends_a_binary_connection() {
    let describe =
        |type_oid| wire::relation(None, 5, "public", "t", b'd', &[("ip", type_oid, true)]);
    let binary = StreamOptions { binary: true, ..options() };
    let mut stream = Stream::new(binary, Position::default());
    assert!(stream.message(&wire::data(Lsn(9), &describe(23))).is_ok());
    let error = stream.message(&wire::data(Lsn(9), &describe(869))).unwrap_err();
    assert!(matches!(&error, StreamError::NoBinaryForm { column, .. } if column == "ip"));
    assert!(error.is_transient() && error.to_string().contains("public.t"), "{error}");
    stream.restart(Position::default(), HASH, false, Vec::new());
    assert!(stream.message(&wire::data(Lsn(9), &describe(869))).is_ok());
}

#[test]
fn what_no_server_sends_is_refused_with_what_was_expected() {
    let row: &[Column<'_>] = &[text("1")];
    let cases: Vec<(&str, Vec<Vec<u8>>)> = vec![
        ("a change between transactions", vec![describe(), wire::insert(None, 5, row)]),
        ("between transactions", vec![wire::truncate(None, &[5])]),
        ("the end of a transaction between", vec![wire::commit(Lsn(1), Lsn(2), NOON)]),
        (
            "began with commit LSN 0/1 ended with 0/2",
            vec![wire::begin(Lsn(1), NOON, 7), wire::commit(Lsn(2), Lsn(3), NOON)],
        ),
        (
            "the begin of a transaction inside a transaction",
            vec![wire::begin(Lsn(1), NOON, 7), wire::begin(Lsn(2), NOON, 8)],
        ),
        (
            "a piece of a transaction inside a transaction",
            vec![wire::begin(Lsn(1), NOON, 7), wire::stream_start(8, true)],
        ),
        (
            "a message inside a piece",
            vec![wire::stream_start(8, true), wire::begin(Lsn(1), NOON, 7)],
        ),
        ("a message between transactions", vec![wire::stream_stop()]),
        (
            "has 1 columns, expected 2",
            vec![wire::begin(Lsn(1), NOON, 7), describe(), wire::insert(None, 5, row)],
        ),
        ("tag", vec![b"?".to_vec()]),
    ];
    for (expected, messages) in cases {
        let mut consumer = Consumer::new(stream());
        let failed = bodies(messages).iter().find_map(|body| consumer.take(body, 99).err());
        let error = failed.expect(expected);
        assert!(error.to_string().contains(expected), "{expected}: {error}");
        assert!(error.is_transient());
    }
    assert!(stream().message(b"x").is_err());
    assert!(stream().message(b"").is_err());
}

#[test]
fn a_message_before_the_rest_of_the_last_one_is_refused() {
    let mut stream = stream();
    for message in [wire::begin(Lsn(1), NOON, 7), describe(), wire::truncate(None, &[5])] {
        stream.message(&wire::data(Lsn(9), &message)).unwrap();
    }
    assert!(stream.has_more() && !stream.is_between());
    let next = wire::data(Lsn(9), &wire::commit(Lsn(1), Lsn(2), NOON));
    assert!(matches!(stream.message(&next), Err(StreamError::Misplaced { .. })));
    assert!(matches!(stream.more(), Ok(Some(Item::Row(_)))));
    assert!(matches!(stream.more(), Ok(None)));
    assert!(stream.message(&next).is_ok());
}

#[test]
fn a_slot_that_decodes_at_prepare_is_refused_for_good() {
    let mut prepare = vec![b'b'];
    prepare.extend([0; 24]);
    prepare.extend(7_u32.to_be_bytes());
    prepare.extend(b"gid\0");
    let error = stream().message(&wire::data(Lsn(9), &prepare)).unwrap_err();
    assert!(matches!(&error, StreamError::TwoPhase { gid, .. } if gid == "gid"), "{error}");
    assert!(!error.is_transient());
}
