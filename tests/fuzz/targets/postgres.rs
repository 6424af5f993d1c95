//! Messages of pgoutput, lines of test_decoding, and values of both.

use tidegate::pg_wire::oid;
use tidegate::pg_wire::pgoutput::{self as wire, Column, Message, Tuple, TupleBuilder};
use tidegate::pg_wire::test_decoding::{self as lines, Fields, Line};
use tidegate::pg_wire::value::{self, ValueOptions};

/// Decodes `data` as a message; what decodes must be walkable to its end, rebuild to the same
/// bytes and write valid JSON for whatever type its columns are taken for.
pub fn pgoutput(data: &[u8]) {
    for streamed in [false, true] {
        let Ok(message) = wire::decode(data, streamed) else { continue };
        match message {
            Message::Insert { new, .. } => walk(new),
            Message::Update { old, new, .. } => {
                old.into_iter().for_each(|(_, old)| walk(old));
                walk(new);
            }
            Message::Delete { old, .. } => walk(old),
            Message::Relation { relation, .. } => {
                assert_eq!(relation.columns().len(), relation.columns().count());
            }
            Message::Truncate { relations, .. } => assert_eq!(relations.len(), relations.count()),
            _ => {}
        }
    }
}

/// `data` as a value in both forms, of the type that its first byte chooses.
pub fn values(data: &[u8]) {
    let Some((choice, value)) = data.split_first() else { return };
    let type_oid = TYPES[usize::from(*choice) % TYPES.len()];
    json(Column::Text(value), type_oid);
    json(Column::Binary(value), type_oid);
}

/// Parses `data` as a line; what parses must be walkable to its end and make a row.
pub fn test_decoding(data: &[u8]) {
    let Ok(line) = lines::parse(data) else { return };
    match line {
        Line::Change(change) => change.old.into_iter().chain(change.new).for_each(walk_fields),
        Line::Truncate { tables, .. } => {
            assert!(
                tables.iter().all(|(schema, table)| !format!("{schema:?}{table:?}").is_empty())
            );
            assert!(tables.iter().count() > 0);
        }
        _ => {}
    }
}

/// Types with a form of their own, and one without.
pub const TYPES: [u32; 31] = [
    16, 17, 18, 20, 21, 23, 25, 26, 114, 700, 701, 869, 1007, 1009, 1020, 1021, 1082, 1083, 1114,
    1184, 1185, 1186, 1231, 1266, 1700, 2950, 3220, 3802, 3807, 5069, 70_000,
];

fn walk(tuple: Tuple<'_>) {
    let mut builder = TupleBuilder::new();
    assert_eq!(tuple.iter().count(), tuple.len());
    for (index, column) in tuple.iter().enumerate() {
        builder.column(column).expect("a decoded row has room in a built one");
        if index < 8 {
            assert_eq!(tuple.nth(index), Some(column));
            TYPES.iter().for_each(|type_oid| json(column, *type_oid));
        }
    }
    assert_eq!(builder.tuple(), tuple);
}

fn walk_fields(fields: Fields<'_>) {
    let mut builder = TupleBuilder::new();
    let mut count = 0;
    for field in fields.iter() {
        assert!(!field.type_name.is_empty());
        let known = oid::of_type_name(field.type_name).and_then(oid::of_oid);
        assert!(known.is_none_or(|builtin| builtin.oid > 0));
        assert!(field.name.is(&field.name.name()));
        field.value.add_to(&mut builder).expect("a line has fewer columns than a row may have");
        count += 1;
    }
    assert_eq!((builder.tuple().len(), count == 0), (count, fields.is_empty()));
}

/// Whatever the bytes, what is written is JSON, and an error writes nothing. Values of json and
/// jsonb are the exception: the server has parsed them.
fn json(column: Column<'_>, type_oid: u32) {
    const VERBATIM: [u32; 3] = [114, 3802, 3807];
    for numeric_as_string in [false, true] {
        let options = ValueOptions { numeric_as_string };
        let mut out = b"before ".to_vec();
        let written = match column {
            Column::Text(text) => value::json_from_text(&mut out, type_oid, text, options),
            Column::Binary(bytes) => value::json_from_binary(&mut out, type_oid, bytes, options),
            Column::Null | Column::Unchanged => return,
        };
        let json = out.strip_prefix(b"before ").expect("what was there stays");
        match written {
            Err(error) => assert!(json.is_empty() && !error.to_string().is_empty()),
            Ok(()) if VERBATIM.contains(&type_oid) => {}
            Ok(()) => {
                let parsed = serde_json::from_slice::<serde::de::IgnoredAny>(json);
                assert!(parsed.is_ok(), "{type_oid} {column:?}: {}", json.escape_ascii());
            }
        }
    }
}
