//! Lines made by hand: names and values that look like syntax, and damaged ones.

use super::*;
use crate::pg_wire::pgoutput::TupleBuilder;

fn change(line: &str) -> Change<'_> {
    match parse(line.as_bytes()) {
        Ok(Line::Change(change)) => change,
        other => panic!("{line}: {other:?}"),
    }
}

fn shown(fields: Option<Fields<'_>>) -> Vec<(String, String, String)> {
    let text = |value: Value<'_>| match value {
        Value::Null => "NULL".to_owned(),
        Value::Unchanged => "UNCHANGED".to_owned(),
        Value::Bare(text) => format!("={}", String::from_utf8_lossy(text)),
        Value::Text(text) => {
            let mut out = Vec::new();
            text.write(&mut out);
            format!("={}", String::from_utf8_lossy(&out))
        }
    };
    let fields = fields.expect("a row");
    fields
        .iter()
        .map(|field| (field.name.name(), field.type_name.to_owned(), text(field.value)))
        .collect()
}

fn row(expected: &[(&str, &str, &str)]) -> Vec<(String, String, String)> {
    let own = |(a, b, c): &(&str, &str, &str)| ((*a).into(), (*b).into(), (*c).into());
    expected.iter().map(own).collect()
}

#[test]
fn null_and_the_word_null_are_told_apart() {
    let line = "table public.t: INSERT: id[integer]:1 a[character varying]:'null' b[text]:null \
        c[text]:'nullable@example.com' d[text]:'' e[text]:'unchanged-toast-datum' \
        f[text]:unchanged-toast-datum g[boolean]:true h[bit]:B'101' i[bit varying]:B''";
    let change = change(line);
    assert_eq!((change.op, change.old), (Op::Insert, None));
    assert_eq!(
        shown(change.new),
        row(&[
            ("id", "integer", "=1"),
            ("a", "character varying", "=null"),
            ("b", "text", "NULL"),
            ("c", "text", "=nullable@example.com"),
            ("d", "text", "="),
            ("e", "text", "=unchanged-toast-datum"),
            ("f", "text", "UNCHANGED"),
            ("g", "boolean", "=true"),
            ("h", "bit", "=101"),
            ("i", "bit varying", "="),
        ])
    );
}

#[test]
fn values_that_look_like_syntax_stay_values() {
    let line = "table public.t: UPDATE: old-key: id[integer]:1 \
        v[text]:'before new-tuple: evil[text]:''x'' id[integer]:9' new-tuple: id[integer]:2 \
        v[text]:'It''s' w[text]:'ends''' x[text]:'a''''b' y[text]:'line1\nline2 \\ \u{1f600}' \
        z[text]:'x[text]:''y'' z[integer]:1'";
    let change = change(line);
    assert_eq!(
        shown(change.old),
        row(&[
            ("id", "integer", "=1"),
            ("v", "text", "=before new-tuple: evil[text]:'x' id[integer]:9"),
        ])
    );
    assert_eq!(
        shown(change.new),
        row(&[
            ("id", "integer", "=2"),
            ("v", "text", "=It's"),
            ("w", "text", "=ends'"),
            ("x", "text", "=a''b"),
            ("y", "text", "=line1\nline2 \\ \u{1f600}"),
            ("z", "text", "=x[text]:'y' z[integer]:1"),
        ])
    );
}

#[test]
fn names_in_quotes_hold_anything() {
    let line = "table \"We ird\".\"Ta\"\"ble: INSERT: x\": INSERT: \"a[b\"[text]:'1' \
        \"x: y\"[\"We ird\".\"My \"\"]: Type\"[]]:'{}' \
        \"old-key:\"[timestamp with time zone[]]:null \
        \"it's\"[\"char\"]:'c' \"select\"[numeric(12,2)]:1.50";
    let change = change(line);
    assert_eq!(change.schema.name(), "We ird");
    assert_eq!(change.table.name(), "Ta\"ble: INSERT: x");
    assert!(change.table.is("Ta\"ble: INSERT: x") && !change.table.is("Ta\"ble: INSERT: x "));
    assert_eq!(
        shown(change.new),
        row(&[
            ("a[b", "text", "=1"),
            ("x: y", "\"We ird\".\"My \"\"]: Type\"[]", "={}"),
            ("old-key:", "timestamp with time zone[]", "NULL"),
            ("it's", "\"char\"", "=c"),
            ("select", "numeric(12,2)", "=1.50"),
        ])
    );
}

#[test]
fn a_row_that_is_not_said_is_not_an_empty_row() {
    let said = change("table s.t: INSERT:").new.unwrap();
    assert!(said.is_empty() && said.iter().count() == 0);
    assert_eq!(change("table s.t: INSERT: (no-tuple-data)").new, None);
    let gone = change("table s.t: DELETE: (no-tuple-data)");
    assert_eq!((gone.op, gone.old, gone.new), (Op::Delete, None, None));
    let gone = change("table s.t: DELETE: id[integer]:1");
    assert_eq!(shown(gone.old), row(&[("id", "integer", "=1")]));
    let key = change("table s.t: UPDATE: old-key: id[integer]:1 new-tuple: (no-tuple-data)");
    assert!(key.old.is_some() && key.new.is_none());
    assert_eq!(change("table s.t: UPDATE: (no-tuple-data)").new, None);
}

#[test]
fn frames_of_a_transaction_come_with_and_without_numbers() {
    let commit = Ok(Line::Commit { xid: Some(7) });
    assert_eq!(parse(b"BEGIN 4294967295"), Ok(Line::Begin { xid: Some(u32::MAX) }));
    assert_eq!(parse(b"BEGIN"), Ok(Line::Begin { xid: None }));
    assert_eq!(parse(b"COMMIT 7"), commit);
    assert_eq!(parse(b"COMMIT 7 (at 2024-01-02 03:04:05.123456+00)"), commit);
    assert_eq!(parse(b"COMMIT (at 2024-01-02 03:04:05+00)"), Ok(Line::Commit { xid: None }));
    assert!(parse(b"BEGIN 4294967296").is_err() && parse(b"COMMIT 7 ").is_err());
}

#[test]
fn a_truncate_has_tables_and_flags() {
    for (flags, cascade, restart) in [
        ("(no-flags)", false, false),
        ("cascade", true, false),
        ("restart_seqs", false, true),
        ("restart_seqs cascade", true, true),
    ] {
        let line = format!("table public.a, \"x, y\".\"b: TRUNCATE: \": TRUNCATE: {flags}");
        let Ok(Line::Truncate { tables, cascade: c, restart_identity: r }) = parse(line.as_bytes())
        else {
            panic!("{line}")
        };
        assert_eq!((c, r), (cascade, restart));
        let names = tables.iter().map(|(schema, table)| (schema.name(), table.name()));
        let expected = [("public", "a"), ("x, y", "b: TRUNCATE: ")];
        assert_eq!(names.collect::<Vec<_>>(), expected.map(|(s, t)| (s.into(), t.into())));
    }
}

#[test]
fn a_damaged_line_says_where_it_breaks() {
    for (line, offset, expected) in [
        ("", 0, "a line of test_decoding"),
        ("opening a streamed block for transaction TXN 7", 0, "a line of test_decoding"),
        ("table public.t: INSERT: id[integer]:1x'", 38, "x"),
        ("table public: INSERT: id[integer]:1", 12, "a dot behind the schema"),
        ("table a.b INSERT:", 9, "a colon behind the table's name"),
        ("table a.b: MERGE:", 11, "INSERT:, UPDATE:, DELETE: or TRUNCATE:"),
        ("table a.b, c.d: INSERT:", 16, "TRUNCATE: behind several tables"),
        ("table a.b: INSERT: id", 21, "the column's type"),
        ("table a.b: INSERT: id[integer", 29, "]: behind the column's type"),
        ("table a.b: INSERT: id[]:1", 22, "a type"),
        ("table a.b: INSERT: id[text]:'open", 29, "a closing quote"),
        ("table a.b: INSERT: id[text]:'open''", 29, "a closing quote"),
        ("table a.b: INSERT: \"id[text]:'x'", 20, "a closing quote"),
        ("table a.b: INSERT: id[text]:", 28, "a value"),
        ("table a.b: INSERT: id[text]:'x'y", 31, "a space in front of a column"),
        ("table a.b: UPDATE: old-key: id[text]:'x'", 40, "the new row behind the old key"),
        ("table a.b: TRUNCATE: no-flags", 20, "flags of a truncate"),
        ("message: transactional: 2 prefix: p, sz: 1 content:x", 25, "0 or 1"),
    ] {
        match parse(line.as_bytes()) {
            Err(error) => {
                assert_eq!((error.offset, error.expected), (offset, expected), "{line}: {error}");
                assert!(error.to_string().contains(expected));
            }
            // A bare value runs to the next space, whatever is in it.
            Ok(Line::Change(change)) => {
                assert!(shown(change.new).iter().any(|(_, _, value)| value.contains(expected)));
            }
            other => panic!("{line}: {other:?}"),
        }
    }
}

#[test]
fn a_row_of_a_line_is_a_row_of_pgoutput() {
    let line = "table s.t: INSERT: a[boolean]:true b[boolean]:false c[text]:'true' d[text]:'it''s' \
        e[text]:null f[text]:unchanged-toast-datum g[double precision]:-Infinity h[bit]:B'01'";
    let (mut from_line, mut expected) = (TupleBuilder::new(), TupleBuilder::new());
    for field in change(line).new.unwrap().iter() {
        field.value.add_to(&mut from_line).unwrap();
    }
    for text in ["t", "f", "true", "it's"] {
        expected.text(text.as_bytes()).unwrap();
    }
    expected.null().unwrap();
    expected.unchanged().unwrap();
    expected.text(b"-Infinity").unwrap();
    expected.text(b"01").unwrap();
    assert_eq!(from_line.tuple(), expected.tuple());
}
