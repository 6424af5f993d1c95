//! Lines of test_decoding.

use super::*;
use crate::ingest::postgres_cdc::test_lines::{FactColumn, TableFact};

fn lines_options() -> StreamOptions {
    StreamOptions { decoder: Decoder::TestDecoding, ..options() }
}

fn fact(full: bool) -> TableFact {
    let column = |name: &str, type_name: &str, key| FactColumn {
        name: name.to_owned(),
        type_name: type_name.to_owned(),
        key,
    };
    TableFact {
        schema: "public".into(),
        name: "t".into(),
        full,
        columns: vec![column("id", "integer", true), column("note", "text", full)],
    }
}

fn run(options: StreamOptions, position: Position, lines: &[(u64, &str)]) -> Vec<Seen> {
    let mut consumer = Consumer::new(Stream::new(options, position));
    let bodies: Vec<Vec<u8>> =
        lines.iter().map(|(at, line)| wire::data(Lsn(*at), line.as_bytes())).collect();
    consumer.all(&bodies)
}

const COMMIT: &str = "COMMIT 7 (at 2024-03-01 00:00:00+00)";

#[test]
fn lines_become_the_rows_pgoutput_would_send() {
    let options = StreamOptions { facts: vec![fact(false)], ..lines_options() };
    let items = run(
        options,
        Position::default(),
        &[
            (90, "BEGIN 7"),
            (95, "table public.t: INSERT: id[integer]:1 note[text]:'it''s'"),
            (96, "table public.t: UPDATE: id[integer]:1 note[text]:unchanged-toast-datum"),
            (
                97,
                "table public.t: UPDATE: old-key: id[integer]:1 new-tuple: id[integer]:2 \
                 note[text]:null",
            ),
            (98, "table public.t: DELETE: id[integer]:2"),
            (99, "table public.t, public.u: TRUNCATE: (no-flags)"),
            (110, COMMIT),
        ],
    );
    let change = |op, new: Option<&str>, old: Option<&str>, ordinal| Seen::Row {
        table: "public.t(id,note)".into(),
        op,
        new: new.map(str::to_owned),
        old: old.map(str::to_owned),
        at: (110, 7, ordinal),
    };
    assert_eq!(
        items,
        [
            change(Op::Insert, Some("'1','it's'"), None, 0),
            change(Op::Update, Some("'1',unchanged"), None, 1),
            change(Op::Update, Some("'2',null"), Some("Key '1',null"), 2),
            change(Op::Delete, None, Some("Key '2',null"), 3),
            change(Op::Truncate, None, None, 4),
            Seen::Row {
                table: "public.u()".into(),
                op: Op::Truncate,
                new: None,
                old: None,
                at: (110, 7, 5),
            },
            Seen::End(110),
        ]
    );
}

#[test]
fn a_table_that_set_up_does_not_know_is_learned_from_its_lines() {
    let items = run(
        lines_options(),
        Position::default(),
        &[
            (90, "BEGIN 7"),
            (95, "table public.t: DELETE: id[integer]:1"),
            (96, "table public.t: INSERT: id[integer]:1 note[text]:'a'"),
            (97, "table public.t: DELETE: id[integer]:1"),
            (98, "table public.t: INSERT: id[bigint]:1"),
            (110, COMMIT),
        ],
    );
    let tables: Vec<&str> = items
        .iter()
        .filter_map(|item| match item {
            Seen::Row { table, .. } => Some(table.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(tables, ["public.t(id)", "public.t(id,note)", "public.t(id,note)", "public.t(id)"]);
}

#[test]
fn a_full_old_row_has_null_where_the_line_is_silent() {
    let options = StreamOptions { facts: vec![fact(true)], ..lines_options() };
    let items = run(
        options,
        Position::default(),
        &[(90, "BEGIN 7"), (95, "table public.t: DELETE: id[integer]:1"), (110, COMMIT)],
    );
    assert!(
        matches!(&items[0], Seen::Row { old: Some(old), .. } if old == "Full '1',null"),
        "{items:?}"
    );
}

#[test]
fn a_repeat_and_rows_that_are_done_are_known_at_the_commit() {
    let lines = [
        (90, "BEGIN 7"),
        (95, "table public.t: INSERT: id[integer]:1 note[text]:'a'"),
        (96, "table public.t: INSERT: id[integer]:2 note[text]:'b'"),
        (110, COMMIT),
    ];
    assert_eq!(run(lines_options(), Position::at(Lsn(110)), &lines), []);
    assert_eq!(run(lines_options(), Position::at(Lsn(109)), &lines).len(), 3);
    let unfinished = Unfinished { final_lsn: Lsn(110), xid: 7, ordinal: 1, config_hash: HASH };
    let position = Position { end_lsn: Lsn(80), unfinished: Some(unfinished) };
    let items = run(lines_options(), position, &lines);
    assert_eq!(items, [inserted("'2','b'", (110, 7, 1)), Seen::End(110)]);
}

#[test]
fn tables_that_are_not_asked_for_are_counted_and_left_out() {
    let wanted = TableName { schema: "public".into(), name: "t".into() };
    let options = StreamOptions { tables: Tables::List(vec![wanted]), ..lines_options() };
    let items = run(
        options,
        Position::default(),
        &[
            (90, "BEGIN 7"),
            (95, "table public.\"T\": INSERT: id[integer]:1"),
            (96, "table public.t: INSERT: id[integer]:2 note[text]:'b'"),
            (110, COMMIT),
        ],
    );
    assert_eq!(items, [inserted("'2','b'", (110, 7, 1)), Seen::End(110)]);
}

#[test]
fn lines_of_a_transaction_wait_in_bounded_memory() {
    let options = StreamOptions { spool_memory: 10_000, ..lines_options() };
    let mut consumer = Consumer::new(Stream::new(options, Position::default()));
    let note = "n".repeat(500);
    let mut bodies = vec![wire::data(Lsn(90), b"BEGIN 7")];
    for n in 0..2_000 {
        let line = format!("table public.t: INSERT: id[integer]:{n} note[text]:'{note}'");
        bodies.push(wire::data(Lsn(95), line.as_bytes()));
    }
    assert_eq!(consumer.all(&bodies), []);
    assert!(consumer.most_in_memory <= 10_000 && !consumer.files.is_empty());
    let items = consumer.all(&[wire::data(Lsn(110), COMMIT.as_bytes())]);
    assert_eq!(items.len(), 2_001);
    assert_eq!(items[1_999], inserted(&format!("'1999','{note}'"), (110, 7, 1_999)));
    assert!(consumer.files.is_empty());
}

#[test]
fn lines_without_what_is_needed_are_refused_for_good_and_odd_ones_for_now() {
    let refused = |lines: &[&str]| {
        let mut consumer = Consumer::new(Stream::new(lines_options(), Position::default()));
        let mut bodies = lines.iter().map(|line| wire::data(Lsn(110), line.as_bytes()));
        bodies.find_map(|body| consumer.take(&body, 99).err()).expect("refused")
    };
    let error = refused(&["BEGIN"]);
    assert!(matches!(error, StreamError::NoXid { .. }) && !error.is_transient());
    let error = refused(&["BEGIN 7", "COMMIT 7"]);
    assert!(matches!(error, StreamError::NoCommitTime { .. }) && !error.is_transient());
    let error = refused(&["PREPARE TRANSACTION 'it''s', txid 5"]);
    assert!(matches!(&error, StreamError::TwoPhase { gid, .. } if gid == "it's"), "{error}");
    for lines in [
        &["table public.t: INSERT: id[integer]:1"][..],
        &["BEGIN 7", "BEGIN 8"],
        &["BEGIN 7", "COMMIT 8 (at 2024-03-01 00:00:00+00)"],
        &["COMMIT 7 (at 2024-03-01 00:00:00+00)"],
        &["BEGIN 7", "table public.t: INSERT: id[integer", COMMIT],
        &["nonsense"],
    ] {
        let error = refused(lines);
        assert!(error.is_transient(), "{lines:?}: {error}");
    }
}
