//! Transactions that arrive in pieces.

use super::*;
use crate::ingest::postgres_cdc::spill::{CHUNK, SpillError};

fn piece(xid: u32, first: bool, mut changes: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    changes.insert(0, wire::stream_start(xid, first));
    changes.push(wire::stream_stop());
    changes
}

fn describe_in(xid: u32) -> Vec<u8> {
    wire::relation(Some(xid), 5, "public", "t", b'd', COLUMNS)
}

fn insert_in(xid: u32, id: &str) -> Vec<u8> {
    wire::insert(Some(xid), 5, &[text(id), Column::Null])
}

#[test]
fn pieces_wait_for_their_commit_and_small_transactions_pass_between() {
    let mut consumer = Consumer::new(stream());
    let small = vec![
        wire::begin(Lsn(100), NOON, 7),
        describe(),
        wire::insert(None, 5, &[text("small"), Column::Null]),
        wire::commit(Lsn(100), Lsn(110), NOON),
    ];
    let items = consumer.all(&bodies(
        [
            piece(20, true, vec![describe_in(20), insert_in(20, "a")]),
            piece(21, true, vec![describe_in(21), insert_in(21, "x")]),
            small,
            piece(20, false, vec![insert_in(20, "b")]),
            vec![wire::stream_commit(21, Lsn(200), Lsn(210), NOON)],
            vec![wire::stream_commit(20, Lsn(300), Lsn(310), NOON)],
        ]
        .concat(),
    ));
    assert_eq!(
        items,
        [
            inserted("'small',null", (100, 7, 0)),
            Seen::End(110),
            inserted("'x',null", (200, 21, 0)),
            Seen::End(210),
            inserted("'a',null", (300, 20, 0)),
            inserted("'b',null", (300, 20, 1)),
            Seen::End(310),
        ]
    );
}

#[test]
fn aborted_sub_transactions_leave_exactly_their_rows_out_and_no_numbers() {
    let mut consumer = Consumer::new(stream());
    let items = consumer.all(&bodies(
        [
            piece(
                20,
                true,
                vec![
                    // The description comes with the first row, here one that is undone. It is not
                    // repeated.
                    wire::relation(Some(22), 5, "public", "t", b'd', COLUMNS),
                    insert_in(22, "undone"),
                    insert_in(20, "a"),
                    wire::truncate(Some(22), &[5, 5]),
                    insert_in(23, "b"),
                ],
            ),
            vec![wire::stream_abort(20, 22)],
            piece(20, false, vec![wire::truncate(Some(24), &[5])]),
            vec![wire::stream_commit(20, Lsn(300), Lsn(310), NOON)],
        ]
        .concat(),
    ));
    let table = "public.t(id,note)".to_owned();
    let truncated = Seen::Row { table, op: Op::Truncate, new: None, old: None, at: (300, 20, 2) };
    assert_eq!(
        items,
        [
            inserted("'a',null", (300, 20, 0)),
            inserted("'b',null", (300, 20, 1)),
            truncated,
            Seen::End(310),
        ]
    );
}

#[test]
fn descriptions_of_a_transaction_that_aborts_are_forgotten_with_it() {
    let mut consumer = Consumer::new(stream());
    let wide: wire::Columns<'_> = &[("id", 23, true), ("note", 25, false), ("more", 25, false)];
    consumer.all(&bodies(
        [
            vec![
                wire::begin(Lsn(100), NOON, 7),
                describe(),
                wire::commit(Lsn(100), Lsn(110), NOON),
            ],
            piece(
                20,
                true,
                vec![
                    wire::relation(Some(20), 5, "public", "t", b'd', wide),
                    wire::insert(Some(20), 5, &[text("1"), Column::Null, Column::Null]),
                ],
            ),
            vec![wire::stream_abort(20, 20)],
        ]
        .concat(),
    ));
    let items = consumer.all(&bodies(vec![
        wire::begin(Lsn(200), NOON, 8),
        wire::insert(None, 5, &[text("2"), Column::Null]),
        wire::commit(Lsn(200), Lsn(210), NOON),
    ]));
    assert_eq!(items, [inserted("'2',null", (200, 8, 0)), Seen::End(210)]);
    assert_eq!(consumer.stream.spooled(), (0, 0));
}

#[test]
fn a_huge_transaction_passes_in_bounded_memory_and_leaves_no_file() {
    let limit = 128 * 1024;
    let options = StreamOptions { spool_memory: limit, ..options() };
    let mut consumer = Consumer::new(Stream::new(options, Position::default()));
    let note = "n".repeat(1_000);
    let rows = 3_000;
    for part in 0..30 {
        let changes = (0..rows / 30).map(|n| {
            let id = (part * (rows / 30) + n).to_string();
            wire::insert(Some(20), 5, &[text(&id), text(&note)])
        });
        let first = (part == 0).then(|| describe_in(20));
        let changes = first.into_iter().chain(changes).collect();
        assert_eq!(consumer.all(&bodies(piece(20, part == 0, changes))), []);
    }
    assert!(consumer.most_in_memory <= limit, "{}", consumer.most_in_memory);
    let file = consumer.files[&20].len();
    assert!(file > 3_000_000 && file.is_multiple_of(CHUNK), "{file}");
    let items = consumer.all(&bodies(vec![wire::stream_commit(20, Lsn(300), Lsn(310), NOON)]));
    assert_eq!(items.len(), rows + 1);
    for (n, item) in items[..rows].iter().enumerate() {
        assert_eq!(*item, inserted(&format!("'{n}','{note}'"), (300, 20, n as u64)));
    }
    assert!(consumer.files.is_empty());
}

#[test]
fn an_aborted_huge_transaction_yields_nothing_and_leaves_no_file() {
    let options = StreamOptions { spool_memory: 0, ..options() };
    let mut consumer = Consumer::new(Stream::new(options, Position::default()));
    let items = consumer.all(&bodies(
        [
            piece(20, true, vec![describe_in(20), insert_in(20, "a")]),
            vec![wire::stream_abort(20, 20)],
        ]
        .concat(),
    ));
    assert_eq!((items, consumer.files.len()), (Vec::new(), 0));
}

#[test]
fn a_damaged_spill_file_is_noticed_and_the_transaction_read_again() {
    let options = StreamOptions { spool_memory: 0, ..options() };
    let mut consumer = Consumer::new(Stream::new(options, Position::default()));
    let pieces = bodies(piece(20, true, vec![describe_in(20), insert_in(20, "a")]));
    consumer.all(&pieces);
    consumer.files.get_mut(&20).unwrap()[40] ^= 1;
    let commit = wire::data(Lsn(9), &wire::stream_commit(20, Lsn(300), Lsn(310), NOON));
    let error = consumer.take(&commit, 99).unwrap_err();
    assert!(matches!(error, StreamError::Spill(SpillError::Damaged { .. })), "{error}");
    assert!(error.is_transient());
    assert_eq!(
        consumer.stream.restart(Position::default(), HASH, false, Vec::new()),
        [20],
        "its file can go"
    );
    consumer.files.clear();
    consumer.all(&pieces);
    let items = consumer.all(&[commit]);
    assert_eq!(items, [inserted("'a',null", (300, 20, 0)), Seen::End(310)]);
}

#[test]
fn a_repeat_in_pieces_yields_nothing_but_its_descriptions() {
    let mut consumer = Consumer::new(Stream::new(options(), Position::at(Lsn(310))));
    let items = consumer.all(&bodies(
        [
            piece(20, true, vec![describe_in(20), insert_in(20, "a")]),
            vec![
                wire::stream_commit(20, Lsn(300), Lsn(310), NOON),
                wire::begin(Lsn(320), NOON, 9),
                wire::insert(None, 5, &[text("1"), Column::Null]),
                wire::commit(Lsn(320), Lsn(330), NOON),
            ],
        ]
        .concat(),
    ));
    assert_eq!(items, [inserted("'1',null", (320, 9, 0)), Seen::End(330)]);
}
