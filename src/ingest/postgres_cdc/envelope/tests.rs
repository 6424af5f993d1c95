//! Payloads and headers byte for byte.

use std::collections::BTreeMap;

use super::*;
use crate::config::{PayloadFormat, Tables};
use crate::ingest::postgres_cdc::relation::{ColumnDraft, Relations};
use crate::ingest::postgres_cdc::row::{Op, TxHead};
use crate::pg_wire::oid;
use crate::pg_wire::pgoutput::TupleBuilder;

const TX: TxHead = TxHead {
    xid: 4_000_000_001,
    final_lsn: Lsn(0x16_B374_D848),
    commit_time_us: 1_709_251_199_000_001,
};

fn relations(snake_case: bool) -> Relations {
    let columns = [
        ("id", oid::INT4, true),
        ("userName", oid::TEXT, false),
        ("body", oid::TEXT, false),
        ("raw", oid::BYTEA, false),
        ("doc", oid::JSONB, false),
    ];
    let columns = columns.iter().map(|(name, type_oid, key)| ColumnDraft {
        name,
        type_oid: *type_oid,
        key: *key,
    });
    let mut relations = Relations::new(Tables::All, snake_case);
    relations.define(7, "public", "orders", b'd', columns).unwrap();
    relations
}

fn tuple(columns: &[Column<'_>]) -> TupleBuilder {
    let mut builder = TupleBuilder::new();
    columns.iter().for_each(|column| builder.column(*column).unwrap());
    builder
}

fn text(text: &str) -> Column<'_> {
    Column::Text(text.as_bytes())
}

fn full_row() -> TupleBuilder {
    tuple(&[text("1"), text("Ann \"A\""), text("long"), text("\\x00ff"), text("{\"a\": 1}")])
}

fn envelope(form: EnvelopePlan) -> Envelope {
    Envelope::new(EnvelopeOptions { form, include_metadata: true, numeric_as_string: false })
}

struct Case<'a> {
    op: Op,
    new: Option<&'a TupleBuilder>,
    old: Option<(OldKind, &'a TupleBuilder)>,
}

impl Case<'_> {
    fn render(&self, envelope: &mut Envelope, strip: &[usize]) -> Result<String, NoPayload> {
        let relations = relations(false);
        self.render_with(&relations, envelope, strip)
    }

    fn row<'s>(&'s self, relations: &'s Relations) -> Row<'s, 's> {
        Row {
            relation: relations.get(7).unwrap(),
            op: self.op,
            new: self.new.map(TupleBuilder::tuple),
            old: self.old.map(|(kind, old)| (kind, old.tuple())),
            tx: TX,
            ordinal: 3,
        }
    }

    fn render_with(
        &self,
        relations: &Relations,
        envelope: &mut Envelope,
        strip: &[usize],
    ) -> Result<String, NoPayload> {
        let mut out = b"before".to_vec();
        match envelope.render(&mut out, &self.row(relations), strip).unwrap() {
            Rendered::Nothing(why) => {
                assert_eq!(out, b"before");
                Err(why)
            }
            Rendered::TooLarge { least } => panic!("{least} bytes"),
            Rendered::Payload { odd_values } => {
                assert_eq!(odd_values, 0);
                Ok(String::from_utf8(out).unwrap().strip_prefix("before").unwrap().to_owned())
            }
        }
    }
}

#[test]
fn a_record_has_its_fields_in_this_order() {
    let (new, old) =
        (full_row(), tuple(&[text("9"), Column::Null, text("b"), Column::Null, text("2")]));
    let mut record = envelope(EnvelopePlan::Record);
    let insert = Case { op: Op::Insert, new: Some(&new), old: None };
    assert_eq!(
        insert.render(&mut record, &[]).unwrap(),
        "{\"table_name\":\"public.orders\",\"operation_type\":\"INSERT\",\
         \"timestamp\":\"2024-02-29T23:59:59.000001Z\",\
         \"data\":{\"id\":1,\"userName\":\"Ann \\\"A\\\"\",\"body\":\"long\",\"raw\":\"AP8=\",\
         \"doc\":{\"a\": 1}},\"old_data\":null}"
    );
    let update = Case { op: Op::Update, new: Some(&new), old: Some((OldKind::Full, &old)) };
    let rendered = update.render(&mut record, &[]).unwrap();
    assert!(rendered.contains("\"operation_type\":\"UPDATE\""), "{rendered}");
    assert!(
        rendered.ends_with(
            ",\"old_data\":{\"id\":9,\"userName\":null,\"body\":\"b\",\"raw\":null,\"doc\":2}}"
        ),
        "{rendered}"
    );
    let truncate = Case { op: Op::Truncate, new: None, old: None };
    assert_eq!(
        truncate.render(&mut record, &[]).unwrap(),
        "{\"table_name\":\"public.orders\",\"operation_type\":\"TRUNCATE\",\
         \"timestamp\":\"2024-02-29T23:59:59.000001Z\",\"data\":null,\"old_data\":null}"
    );
}

#[test]
fn a_deleted_row_has_no_data_and_of_its_key_only_what_was_sent() {
    let key = tuple(&[text("1"), Column::Null, Column::Null, Column::Null, Column::Null]);
    let case = Case { op: Op::Delete, new: None, old: Some((OldKind::Key, &key)) };
    let rendered = case.render(&mut envelope(EnvelopePlan::Record), &[]).unwrap();
    assert!(rendered.ends_with(",\"data\":null,\"old_data\":{\"id\":1}}"), "{rendered}");
    assert_eq!(case.render(&mut envelope(EnvelopePlan::Flat), &[]).unwrap(), "{\"id\":1}");
    let full = full_row();
    let case = Case { op: Op::Delete, new: None, old: Some((OldKind::Full, &full)) };
    let flat = case.render(&mut envelope(EnvelopePlan::Flat), &[]).unwrap();
    assert!(flat.contains("\"body\":\"long\"") && flat.contains("\"id\":1"), "{flat}");
}

#[test]
fn a_key_change_shows_the_old_key_alone() {
    let new = full_row();
    let key = tuple(&[text("9"), Column::Null, Column::Null, Column::Null, Column::Null]);
    let case = Case { op: Op::Update, new: Some(&new), old: Some((OldKind::Key, &key)) };
    let rendered = case.render(&mut envelope(EnvelopePlan::Record), &[]).unwrap();
    assert!(rendered.ends_with(",\"old_data\":{\"id\":9}}"), "{rendered}");
}

#[test]
fn an_unchanged_value_is_never_null_and_is_named() {
    let new = tuple(&[text("1"), text("u"), Column::Unchanged, Column::Null, Column::Unchanged]);
    let mut record = envelope(EnvelopePlan::Record);
    let case = Case { op: Op::Update, new: Some(&new), old: None };
    let rendered = case.render(&mut record, &[]).unwrap();
    assert!(
        rendered.ends_with(
            "\"data\":{\"id\":1,\"userName\":\"u\",\"raw\":null},\"old_data\":null,\
             \"unchanged\":[\"body\",\"doc\"]}"
        ),
        "{rendered}"
    );
    assert_eq!(
        case.render(&mut envelope(EnvelopePlan::Flat), &[]).unwrap(),
        "{\"id\":1,\"userName\":\"u\",\"raw\":null}"
    );
    let old = full_row();
    let full = Case { op: Op::Update, new: Some(&new), old: Some((OldKind::Full, &old)) };
    let rendered = full.render(&mut record, &[]).unwrap();
    assert!(rendered.contains("\"data\":{\"id\":1,\"userName\":\"u\",\"body\":\"long\""));
    assert!(rendered.contains("\"raw\":null,\"doc\":{\"a\": 1}},\"old_data\""), "{rendered}");
    assert!(!rendered.contains("unchanged"), "{rendered}");
    // The key says nothing about other columns.
    let key = tuple(&[text("9"), Column::Null, Column::Null, Column::Null, Column::Null]);
    let keyed = Case { op: Op::Update, new: Some(&new), old: Some((OldKind::Key, &key)) };
    let rendered = keyed.render(&mut record, &[]).unwrap();
    assert!(rendered.ends_with("\"unchanged\":[\"body\",\"doc\"]}"), "{rendered}");
}

#[test]
fn null_empty_and_absent_are_three_things() {
    let new = tuple(&[text("1"), text(""), Column::Null, text("\\x"), Column::Unchanged]);
    let case = Case { op: Op::Update, new: Some(&new), old: None };
    assert_eq!(
        case.render(&mut envelope(EnvelopePlan::Flat), &[]).unwrap(),
        "{\"id\":1,\"userName\":\"\",\"body\":null,\"raw\":\"\"}"
    );
}

#[test]
fn stripped_columns_leave_every_part() {
    let new = tuple(&[text("1"), text("u"), Column::Unchanged, Column::Null, Column::Unchanged]);
    let key = tuple(&[text("9"), Column::Null, Column::Null, Column::Null, Column::Null]);
    let case = Case { op: Op::Update, new: Some(&new), old: Some((OldKind::Key, &key)) };
    let rendered = case.render(&mut envelope(EnvelopePlan::Record), &[0, 2]).unwrap();
    assert!(
        rendered.ends_with(
            "\"data\":{\"userName\":\"u\",\"raw\":null},\"old_data\":{},\"unchanged\":[\"doc\"]}"
        ),
        "{rendered}"
    );
    let rendered = case.render(&mut envelope(EnvelopePlan::Flat), &[0, 1, 3]).unwrap();
    assert_eq!(rendered, "{}");
}

#[test]
fn metadata_can_be_left_out_and_names_put_in_snake_case() {
    let new = full_row();
    let case = Case { op: Op::Insert, new: Some(&new), old: None };
    let mut plain = Envelope::new(EnvelopeOptions {
        form: EnvelopePlan::Record,
        include_metadata: false,
        numeric_as_string: false,
    });
    let rendered = case.render_with(&relations(true), &mut plain, &[2, 3, 4]).unwrap();
    assert_eq!(rendered, "{\"data\":{\"id\":1,\"user_name\":\"Ann \\\"A\\\"\"},\"old_data\":null}");
}

#[test]
fn every_form_is_valid_json_for_every_shape_of_row() {
    let (new, old) = (full_row(), full_row());
    let holes =
        tuple(&[Column::Unchanged, Column::Null, Column::Unchanged, Column::Null, text("1")]);
    for form in [EnvelopePlan::Record, EnvelopePlan::Flat] {
        for new in [None, Some(&new), Some(&holes)] {
            for old in [None, Some((OldKind::Key, &holes)), Some((OldKind::Full, &old))] {
                for strip in [&[][..], &[0], &[4], &[0, 1, 2, 3, 4]] {
                    let case = Case { op: Op::Update, new, old };
                    let text = case.render(&mut envelope(form.clone()), strip).unwrap();
                    let json = serde_json::from_str::<serde_json::Value>(&text);
                    assert!(json.is_ok_and(|json| json.is_object()), "{text}");
                }
            }
        }
    }
}

#[test]
fn a_value_without_the_form_of_its_type_goes_out_as_text_and_is_counted() {
    let new = tuple(&[
        text("one"),
        Column::Binary(b"u"),
        text("x"),
        Column::Binary(b"\x00\xff"),
        Column::Binary(b"\x02no"),
    ]);
    let case = Case { op: Op::Insert, new: Some(&new), old: None };
    let relations = relations(false);
    let mut out = Vec::new();
    let rendered = envelope(EnvelopePlan::Flat).render(&mut out, &case.row(&relations), &[]);
    assert_eq!(rendered, Ok(Rendered::Payload { odd_values: 2 }));
    assert_eq!(
        String::from_utf8(out).unwrap(),
        "{\"id\":\"one\",\"userName\":\"u\",\"body\":\"x\",\"raw\":\"AP8=\",\
         \"doc\":\"\\\\x026e6f\"}"
    );
}

fn column(name: &str, format: PayloadFormat) -> Envelope {
    envelope(EnvelopePlan::Column { column: name.to_owned(), format })
}

fn payload(envelope: &mut Envelope, case: &Case<'_>) -> Result<Vec<u8>, String> {
    let relations = relations(false);
    let mut out = Vec::new();
    match envelope.render(&mut out, &case.row(&relations), &[]) {
        Ok(Rendered::Payload { .. }) => Ok(out),
        Ok(Rendered::Nothing(why)) => Err(why.as_str().to_owned()),
        Ok(Rendered::TooLarge { least }) => Err(format!("{least} bytes")),
        Err(error) => Err(error.to_string()),
    }
}

#[test]
fn a_row_that_fits_no_frame_is_told_before_it_is_written() {
    let wide = |bytes: usize, byte: u8| {
        let value = vec![byte; bytes];
        tuple(&[text("1"), text("a"), Column::Text(&value), text("\\x00"), text("2")])
    };
    let mut flat = envelope(EnvelopePlan::Flat);
    let relations = relations(false);
    let mut render = |row: &TupleBuilder, strip: &[usize]| {
        let mut out = Vec::new();
        let case = Case { op: Op::Insert, new: Some(row), old: None };
        let rendered = flat.render(&mut out, &case.row(&relations), strip).unwrap();
        (rendered, out)
    };
    // Twelve bytes of the server are 72 of JSON.
    let (rendered, out) = render(&wide(12 << 20, 1), &[]);
    assert!(matches!(rendered, Rendered::TooLarge { least } if least >= 72 << 20), "{rendered:?}");
    assert_eq!(out.capacity(), 0, "nothing was built");
    let (rendered, out) = render(&wide(12 << 20, 1), &[2]);
    assert_eq!((rendered, out.len() < 100), (Rendered::Payload { odd_values: 0 }, true));
    let (rendered, out) = render(&wide(48 << 20, b'x'), &[]);
    assert_eq!(rendered, Rendered::Payload { odd_values: 0 });
    assert!(out.capacity() < (48 << 20) + (8 << 20), "{} bytes of room", out.capacity());
}

#[test]
fn one_column_is_the_payload_in_each_format() {
    let new = full_row();
    let case = Case { op: Op::Insert, new: Some(&new), old: None };
    for (name, format, expected) in [
        ("raw", PayloadFormat::Bytea, &b"\x00\xff"[..]),
        ("raw", PayloadFormat::Raw, b"\x00\xff"),
        ("userName", PayloadFormat::Text, b"Ann \"A\""),
        ("userName", PayloadFormat::Raw, b"Ann \"A\""),
        ("id", PayloadFormat::Raw, b"1"),
        ("raw", PayloadFormat::Text, b"\\x00ff"),
        ("doc", PayloadFormat::JsonDirect, b"{\"a\": 1}"),
        ("doc", PayloadFormat::Jsonb, b"{\"a\": 1}"),
        ("body", PayloadFormat::JsonDirect, b"\"long\""),
    ] {
        let out = payload(&mut column(name, format), &case).unwrap();
        assert_eq!(out, expected, "{name} {format:?}");
    }
}

#[test]
fn a_payload_column_without_a_value_sends_nothing_and_says_why() {
    let empty = tuple(&[text("1"), text(""), Column::Unchanged, Column::Null, Column::Null]);
    let case = Case { op: Op::Update, new: Some(&empty), old: None };
    let why = |name, format| payload(&mut column(name, format), &case).unwrap_err();
    assert_eq!(why("userName", PayloadFormat::Text), "empty");
    assert_eq!(why("body", PayloadFormat::Text), "unchanged");
    assert_eq!(why("raw", PayloadFormat::Bytea), "null");
    assert_eq!(payload(&mut column("doc", PayloadFormat::JsonDirect), &case).unwrap(), b"null");
    let truncate = Case { op: Op::Truncate, new: None, old: None };
    assert_eq!(payload(&mut column("raw", PayloadFormat::Bytea), &truncate).unwrap_err(), "no_row");
    let key = full_row();
    let deleted = Case { op: Op::Delete, new: None, old: Some((OldKind::Key, &key)) };
    assert_eq!(payload(&mut column("raw", PayloadFormat::Bytea), &deleted).unwrap_err(), "no_row");
    let deleted = Case { op: Op::Delete, new: None, old: Some((OldKind::Full, &key)) };
    assert_eq!(payload(&mut column("raw", PayloadFormat::Bytea), &deleted).unwrap(), b"\x00\xff");
}

#[test]
fn a_payload_column_of_another_form_stops_with_its_name() {
    let new = tuple(&[text("1"), text("u"), text("b"), text("escape\\\\me"), text("1")]);
    let case = Case { op: Op::Insert, new: Some(&new), old: None };
    let why = |name, format| payload(&mut column(name, format), &case).unwrap_err();
    let gone = why("gone", PayloadFormat::Text);
    assert!(gone.contains("\"gone\"") && gone.contains("public.orders"), "{gone}");
    assert!(gone.contains("16/B374D848"), "{gone}");
    assert!(why("userName", PayloadFormat::Bytea).contains("a column of type bytea"));
    assert!(why("raw", PayloadFormat::Bytea).contains("hexadecimal"));
    for odd in ["\\x0", "\\xzz", "00"] {
        let new = tuple(&[text("1"), text("u"), text("b"), text(odd), text("1")]);
        let case = Case { op: Op::Insert, new: Some(&new), old: None };
        assert!(payload(&mut column("raw", PayloadFormat::Bytea), &case).is_err(), "{odd}");
    }
    let binary =
        tuple(&[Column::Binary(&[0, 0, 0, 1]), text("u"), text("b"), text("\\x"), text("1")]);
    let case = Case { op: Op::Insert, new: Some(&binary), old: None };
    let error = payload(&mut column("id", PayloadFormat::Text), &case).unwrap_err();
    assert!(error.contains("binary = false"), "{error}");
}

/// Kinds and layout as in the SDK: 2 is a string, 12 a uint64 in little endian.
#[test]
fn headers_read_back_with_their_kinds() {
    let new = full_row();
    let case = Case { op: Op::Insert, new: Some(&new), old: None };
    let relations = relations(false);
    let mut headers = b"payload".to_vec();
    envelope(EnvelopePlan::Record).headers(&mut headers, &case.row(&relations));
    let headers = &headers[b"payload".len()..];
    let mut read = BTreeMap::new();
    let mut rest = headers;
    let mut part = || {
        let (kind, length) = (*rest.first()?, u32::from_le_bytes(rest[1..5].try_into().ok()?));
        let (value, after) = rest[5..].split_at(length as usize);
        rest = after;
        Some((kind, value.to_vec()))
    };
    while let Some((kind, key)) = part() {
        assert_eq!(kind, 2);
        read.insert(String::from_utf8(key).unwrap(), part().unwrap());
    }
    let expected = [
        ("lsn", (2, b"16/B374D848".to_vec())),
        ("xid", (12, 4_000_000_001_u64.to_le_bytes().to_vec())),
        ("commit_ts", (12, 1_709_251_199_000_001_u64.to_le_bytes().to_vec())),
        ("table", (2, b"public.orders".to_vec())),
        ("op", (2, b"I".to_vec())),
    ];
    let expected = expected.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    assert_eq!(read, expected);
}

#[test]
fn timestamps_and_positions_are_written_without_the_formatter_as_with_it() {
    for micros in [0, 1, 951_782_400_000_000, 1_078_012_799_999_999, 253_402_300_799_999_999] {
        let mut out = Vec::new();
        put_timestamp(&mut out, micros);
        let expected = crate::time::UnixMicros(micros as u64).to_string();
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }
    for micros in [-1, i64::MIN, i64::MAX] {
        let mut out = Vec::new();
        put_timestamp(&mut out, micros);
        assert_eq!(out.len(), 27, "whatever a server says");
    }
    for lsn in [0, 1, 0xffff_ffff, 0x1_0000_0000, 0x16_b374_d848, u64::MAX] {
        let mut room = [0; 17];
        assert_eq!(lsn_text(Lsn(lsn), &mut room), Lsn(lsn).to_string().as_bytes());
    }
}
