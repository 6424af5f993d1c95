//! Messages made by hand: what recordings do not have, and what no server sends.

use proptest::prelude::*;

use super::*;

fn insert(tuple: &[u8]) -> Vec<u8> {
    [b"I\0\0\0\x07N", tuple].concat()
}

fn problem(data: &[u8]) -> (usize, PgWireError) {
    let error = decode(data, false).unwrap_err();
    assert_eq!(error.length, data.len());
    (error.offset, error.problem)
}

#[test]
fn a_transaction_number_is_there_in_a_stream_only() {
    let (alone, inside) = (b"I\0\0\0\x07N\0\0", b"I\0\0\0\x09\0\0\0\x07N\0\0");
    let Message::Insert { xid, relation, new } = decode(alone, false).unwrap() else { panic!() };
    assert_eq!((xid, relation, new.len()), (None, 7, 0));
    let Message::Insert { xid, relation, .. } = decode(inside, true).unwrap() else { panic!() };
    assert_eq!((xid, relation), (Some(9), 7));
    assert!(decode(alone, true).is_err() && decode(inside, false).is_err());
    for never in [&b"E"[..], b"S\0\0\0\x05\x01", b"O\0\0\0\0\0\0\0\x01here\0"] {
        assert_eq!(decode(never, true), decode(never, false));
        assert!(decode(never, true).is_ok());
    }
}

#[test]
fn each_kind_of_column_is_told_apart() {
    let data = insert(b"\0\x05nut\0\0\0\x02hit\0\0\0\0b\0\0\0\x01\xff");
    let Message::Insert { new, .. } = decode(&data, false).unwrap() else { panic!() };
    let expected = [
        Column::Null,
        Column::Unchanged,
        Column::Text(b"hi"),
        Column::Text(b""),
        Column::Binary(b"\xff"),
    ];
    assert_eq!(new.iter().collect::<Vec<_>>(), expected);
    assert_eq!(new.iter().len(), 5);
    assert_eq!(new.nth(2), Some(Column::Text(b"hi")));
    assert_eq!(new.nth(5), None);
}

#[test]
fn a_length_past_the_end_says_where_and_by_how_much() {
    let data = insert(b"\0\x01t\0\0\0\x09abc");
    let cut = PgWireError::Truncated { what: "column", need: 9, have: 3 };
    assert_eq!(problem(&data), (data.len() - 3, cut));
    let printed = decode(&data, false).unwrap_err().to_string();
    assert_eq!(
        printed,
        "pgoutput message 'I' of 16 bytes, at byte 13: column is cut: need 9 bytes, have 3"
    );
}

#[test]
fn a_negative_length_is_an_error() {
    for length in [[0xff; 4], [0x80, 0, 0, 0]] {
        let data = insert(&[&b"\0\x01t"[..], &length, b"abc"].concat());
        let (_, problem) = problem(&data);
        assert!(matches!(problem, PgWireError::Truncated { have: 3, .. }), "{problem}");
        let message = [b"M\0\0\0\0\0\0\0\0\0p\0", &length[..], b"abc"].concat();
        assert!(decode(&message, false).is_err());
        let truncate = [b"T", &length[..], b"\0abcd"].concat();
        assert!(decode(&truncate, false).is_err());
    }
}

#[test]
fn as_many_columns_as_the_count_can_say_take_no_memory() {
    let claimed = insert(b"\xff\xffn");
    let cut = PgWireError::Truncated { what: "kind of column", need: 1, have: 0 };
    assert_eq!(problem(&claimed), (claimed.len(), cut));
    let real = insert(&[&[0xff, 0xff][..], &vec![b'n'; 65_535]].concat());
    let Message::Insert { new, .. } = decode(&real, false).unwrap() else { panic!() };
    assert_eq!(new.iter().filter(|column| *column == Column::Null).count(), 65_535);
    let relation = b"R\0\0\0\x07s\0t\0d\xff\xff\0c\0\0\0\0\x17\xff\xff\xff\xff";
    assert!(matches!(problem(relation), (_, PgWireError::Truncated { .. })));
}

#[test]
fn what_no_version_sends_is_refused_by_name() {
    for (data, what) in [
        (&b""[..], "tag is cut"),
        (b"Z", "tag: saw 'Z'"),
        (b"\xff", "tag: saw 0xff"),
        (b"I\0\0\0\x07X\0\0", "kind of tuple: saw 'X', expected 'N'"),
        (b"I\0\0\0\x07K\0\0", "kind of tuple: saw 'K', expected 'N'"),
        (b"U\0\0\0\x07K\0\0K\0\0", "kind of the new tuple: saw 'K'"),
        (b"D\0\0\0\x07N\0\0", "kind of tuple: saw 'N', expected 'K' or 'O'"),
        (b"I\0\0\0\x07N\0\x01x", "kind of column: saw 'x'"),
        (b"I\0\0\0\x07N\0\0!", "message: saw 1 bytes after it"),
        (b"T\0\0\0\0\x04", "truncate flags: saw 0x04"),
        (b"S\0\0\0\x05\x02", "first piece: saw 0x02"),
        (b"R\0\0\0\x07s\0t\0x\0\0", "replica identity: saw 'x'"),
        (b"R\0\0\0\x07s\0t\0d\0\x01\x02", "column flags: saw 0x02"),
        (b"Y\0\0\0\x07s\0\xe9\0", "type's name is not UTF-8: byte 0xe9 at 0"),
        (b"C\x01", "flags: saw 0x01, expected 0"),
    ] {
        let printed = decode(data, false).unwrap_err().to_string();
        assert!(printed.contains(what), "{printed}");
    }
}

#[test]
fn an_origin_and_the_steps_no_recording_has() {
    let at = |number: u8| [0, 0, 0, 0, 0, 0, 0, number];
    let origin = [b"O", &at(5)[..], b"n\xc3\xa9\0"].concat();
    assert_eq!(decode(&origin, false), Ok(Message::Origin { lsn: Lsn(5), name: "né" }));
    let steps = [&[0][..], &at(1), &at(2), &at(3), &[0, 0, 0, 4], b"g\0"].concat();
    let prepared = Prepared { lsn: Lsn(1), end_lsn: Lsn(2), time: 3, xid: 4, gid: "g" };
    let stream = [b"p", &steps[..]].concat();
    assert_eq!(decode(&stream, false), Ok(Message::StreamPrepare(prepared)));
    let named = decode(b"Y\0\0\0\x09\0\x01\0\x01\0mood\0", true).unwrap();
    let (xid, id) = (Some(9), 65_537);
    assert_eq!(named, Message::Type { xid, id, namespace: "", name: "mood" });
}

#[test]
fn a_relation_is_walked_again_and_again() {
    let data = b"R\0\0\0\x07s p\0T.t\0i\0\x02\
        \x01id\0\0\0\0\x14\xff\xff\xff\xff\0n\0\0\0\x06\xa4\0\x0c\0\x06";
    let Message::Relation { xid: None, relation } = decode(data, false).unwrap() else { panic!() };
    assert_eq!((relation.id, relation.namespace, relation.name), (7, "s p", "T.t"));
    assert_eq!(relation.identity, b'i');
    for _ in 0..2 {
        let columns: Vec<_> = relation.columns().collect();
        let id = ColumnInfo { key: true, name: "id", type_oid: 20, type_modifier: -1 };
        let n = ColumnInfo { key: false, name: "n", type_oid: 1700, type_modifier: 786_438 };
        assert_eq!(columns, [id, n]);
    }
}

#[test]
fn a_built_row_is_full_at_the_last_count() {
    let mut builder = TupleBuilder::new();
    (0..65_535).for_each(|_| builder.null().unwrap());
    assert_eq!(builder.text(b"one more"), Err(Full));
    assert_eq!(builder.tuple().len(), 65_535);
    assert_eq!(builder.tuple().wire().len(), 65_535);
    builder.clear();
    builder.text_with(|out| out.extend_from_slice(b"abc")).unwrap();
    let mut wire = Vec::new();
    builder.write(&mut wire);
    assert_eq!(wire, b"\0\x01t\0\0\0\x03abc");
}

fn column() -> impl Strategy<Value = (u8, Vec<u8>)> {
    (prop::sample::select(b"nutb".to_vec()), prop::collection::vec(any::<u8>(), 0..40))
}

proptest! {
    #[test]
    fn a_built_row_reads_back(columns in prop::collection::vec(column(), 0..40)) {
        let columns: Vec<Column<'_>> = columns
            .iter()
            .map(|(kind, bytes)| match kind {
                b'n' => Column::Null,
                b'u' => Column::Unchanged,
                b't' => Column::Text(bytes),
                _ => Column::Binary(bytes),
            })
            .collect();
        let mut builder = TupleBuilder::new();
        builder.text(b"left over from another row").unwrap();
        builder.clear();
        columns.iter().for_each(|column| builder.column(*column).unwrap());
        let mut wire = Vec::new();
        builder.write(&mut wire);
        let data = insert(&wire);
        let Ok(Message::Insert { new, .. }) = decode(&data, false) else { panic!() };
        prop_assert_eq!(new, builder.tuple());
        for index in (0..columns.len() + 2).chain([usize::MAX]) {
            prop_assert_eq!(new.nth(index), columns.get(index).copied());
        }
        prop_assert_eq!(new.iter().collect::<Vec<_>>(), columns);
    }
}
