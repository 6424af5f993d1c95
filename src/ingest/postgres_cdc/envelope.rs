//! A row as the payload and the user headers of a message (P4, P6).
//!
//! ```text
//! record  {"table_name":"s.t","operation_type":"UPDATE","timestamp":"…Z",
//!          "data":{…}|null,"old_data":{…}|null[,"unchanged":["a",…]]}
//! flat    {…}  the new row; after DELETE what is known of the old one; {} after TRUNCATE
//! column  the value of one column
//! headers lsn: string, xid: uint64, commit_ts: uint64 (µs), table: string, op: string I U D T
//! ```
//! Field order is frozen. A column whose value is not known is left out, never written as null:
//! an unchanged large value (named in `unchanged`), the rest of a row of which only the key is
//! sent. Everything is appended in place; a row allocates nothing, and what all rows of a
//! transaction, table and operation have in common is written once and copied.

mod column;
mod size;
#[cfg(test)]
mod tests;

use super::relation::RelationColumn;
use super::row::{Op, Row, TxHead};
use crate::config::EnvelopePlan;
use crate::iggy_wire::build::encode_typed;
use crate::pg_wire::Lsn;
use crate::pg_wire::pgoutput::{Column, OldKind, Tuple};
use crate::pg_wire::value::{
    ValueOptions, json_from_binary, json_from_text, json_opaque, json_string,
};

/// Kinds of header values.
const KIND_STRING: u8 = 2;
const KIND_UINT64: u8 = 12;

/// What a message looks like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnvelopeOptions {
    /// Which form.
    pub form: EnvelopePlan,
    /// Table, operation and time in the payload of `record`.
    pub include_metadata: bool,
    /// Numeric as a JSON string.
    pub numeric_as_string: bool,
}

/// Writes rows as messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Envelope {
    options: EnvelopeOptions,
    values: ValueOptions,
    common: Common,
}

/// What rows of one transaction, table and operation have in common.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Common {
    of: Option<(TxHead, u32, Op)>,
    /// The start of a record up to its `data`.
    head: Vec<u8>,
    /// The user headers.
    headers: Vec<u8>,
}

/// What was made of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rendered {
    /// A payload was appended.
    Payload {
        /// Values that do not have the form of their type and went out as the server's text.
        odd_values: u32,
    },
    /// It would fit no frame. Nothing was appended.
    TooLarge {
        /// Bytes of the payload, at least.
        least: usize,
    },
    /// There is nothing to send: Iggy takes no empty payload. Nothing was appended.
    Nothing(NoPayload),
}

/// Why `payload_column` gives no payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NoPayload {
    /// The column is NULL.
    Null,
    /// It is empty.
    Empty,
    /// A large value that the change did not touch and the server did not send.
    Unchanged,
    /// DELETE without that column in the replica identity, or TRUNCATE.
    NoRow,
}

impl NoPayload {
    /// A word for counters.
    pub fn as_str(self) -> &'static str {
        match self {
            NoPayload::Null => "null",
            NoPayload::Empty => "empty",
            NoPayload::Unchanged => "unchanged",
            NoPayload::NoRow => "no_row",
        }
    }
}

/// Why a row cannot be written as configured. The feed stops: an operator has to decide.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EnvelopeError {
    /// The payload column is gone, or never was.
    #[error(
        "payload_column {column:?}: table {table} has no such column in the transaction at {lsn}"
    )]
    NoColumn {
        /// Its name.
        column: String,
        /// The table.
        table: String,
        /// The transaction.
        lsn: Lsn,
    },
    /// The payload column holds something else.
    #[error(
        "payload_column {column:?} of {table} reads {seen:?} in the transaction at {lsn}, expected \
         {expected}; choose another payload_format"
    )]
    WrongForm {
        /// Its name.
        column: String,
        /// The table.
        table: String,
        /// Beginning of the value.
        seen: String,
        /// What the format takes.
        expected: &'static str,
        /// The transaction.
        lsn: Lsn,
    },
}

impl Envelope {
    /// Writes as configured.
    pub fn new(options: EnvelopeOptions) -> Envelope {
        let values = ValueOptions { numeric_as_string: options.numeric_as_string };
        Envelope { options, values, common: Common::default() }
    }

    /// Appends the payload of a row without the columns of index `strip`, ascending. After an
    /// error `out` is as it was.
    #[inline]
    pub fn render(
        &mut self,
        out: &mut Vec<u8>,
        row: &Row<'_, '_>,
        strip: &[usize],
    ) -> Result<Rendered, EnvelopeError> {
        if let Some(least) = self.too_large(out, row, strip) {
            return Ok(Rendered::TooLarge { least });
        }
        let odd_values = match &self.options.form {
            EnvelopePlan::Record => self.record(out, row, strip),
            EnvelopePlan::Flat => self.flat(out, row, strip),
            EnvelopePlan::Column { column, format } => {
                return self.column(out, row, column, *format);
            }
        };
        Ok(Rendered::Payload { odd_values })
    }

    /// Appends the user headers of a row.
    #[inline]
    pub fn headers(&mut self, out: &mut Vec<u8>, row: &Row<'_, '_>) {
        self.look_at(row);
        out.extend_from_slice(&self.common.headers);
    }

    /// Makes [`Common`] that of the row.
    #[inline(always)]
    fn look_at(&mut self, row: &Row<'_, '_>) {
        let of = Some((row.tx, row.relation.version, row.op));
        if self.common.of != of {
            self.write_common(row);
            self.common.of = of;
        }
    }

    fn write_common(&mut self, row: &Row<'_, '_>) {
        let Common { head, headers, .. } = &mut self.common;
        headers.clear();
        let mut text = [0; 17];
        encode_typed(headers, "lsn", KIND_STRING, lsn_text(row.tx.final_lsn, &mut text));
        encode_typed(headers, "xid", KIND_UINT64, &u64::from(row.tx.xid).to_le_bytes());
        let commit_ts = u64::try_from(row.tx.commit_time_us).unwrap_or(0);
        encode_typed(headers, "commit_ts", KIND_UINT64, &commit_ts.to_le_bytes());
        encode_typed(headers, "table", KIND_STRING, row.relation.table.as_bytes());
        encode_typed(headers, "op", KIND_STRING, row.op.letter().as_bytes());
        head.clear();
        head.push(b'{');
        if self.options.include_metadata {
            head.extend_from_slice(b"\"table_name\":");
            head.extend_from_slice(&row.relation.table_json);
            head.extend_from_slice(b",\"operation_type\":\"");
            head.extend_from_slice(row.op.as_str().as_bytes());
            head.extend_from_slice(b"\",\"timestamp\":\"");
            put_timestamp(head, row.tx.commit_time_us);
            head.extend_from_slice(b"\",");
        }
        head.extend_from_slice(b"\"data\":");
    }

    fn record(&mut self, out: &mut Vec<u8>, row: &Row<'_, '_>, strip: &[usize]) -> u32 {
        self.look_at(row);
        out.extend_from_slice(&self.common.head);
        let mut written = Written::default();
        match row.new {
            Some(new) => written = self.object(out, row, new, Image::New, strip),
            None => out.extend_from_slice(b"null"),
        }
        match row.old {
            Some((kind, old)) => {
                out.extend_from_slice(b",\"old_data\":");
                written.odd += self.object(out, row, old, Image::Old(kind), strip).odd;
            }
            None => out.extend_from_slice(b",\"old_data\":null"),
        }
        if written.unchanged {
            out.extend_from_slice(b",\"unchanged\":");
            unchanged(out, row, strip);
        }
        out.push(b'}');
        written.odd
    }

    fn flat(&self, out: &mut Vec<u8>, row: &Row<'_, '_>, strip: &[usize]) -> u32 {
        match (row.new, row.old) {
            (Some(new), _) => self.object(out, row, new, Image::New, strip).odd,
            (None, Some((kind, old))) => self.object(out, row, old, Image::Old(kind), strip).odd,
            (None, None) => {
                out.extend_from_slice(b"{}");
                0
            }
        }
    }

    #[inline(always)]
    fn object(
        &self,
        out: &mut Vec<u8>,
        row: &Row<'_, '_>,
        tuple: Tuple<'_>,
        image: Image,
        strip: &[usize],
    ) -> Written {
        let mut written = Written::default();
        let start = out.len();
        let (mut values, mut strip) = (tuple.iter(), strip);
        for (index, column) in row.relation.columns.iter().enumerate() {
            let Some(value) = values.next() else { break };
            if let [next, behind @ ..] = strip
                && *next == index
            {
                strip = behind;
                continue;
            }
            if image == Image::Old(OldKind::Key) && !column.key {
                continue;
            }
            let value = match value {
                Column::Unchanged if image == Image::New => match row.old_value(index) {
                    Some(old) => old,
                    None => {
                        written.unchanged = true;
                        continue;
                    }
                },
                Column::Unchanged => continue,
                value => value,
            };
            out.extend_from_slice(&column.json_key);
            written.odd += self.value(out, column, value);
        }
        open(out, start, b'{');
        out.push(b'}');
        written
    }

    /// Appends a value; 1 if it does not have the form of its type.
    #[inline(always)]
    fn value(&self, out: &mut Vec<u8>, column: &RelationColumn, value: Column<'_>) -> u32 {
        match value {
            Column::Text(text) => {
                if json_from_text(out, column.form, text, self.values).is_err() {
                    json_string(out, text);
                    return 1;
                }
            }
            Column::Binary(bytes) => {
                if json_from_binary(out, column.type_oid, bytes, self.values).is_err() {
                    json_opaque(out, bytes);
                    return 1;
                }
            }
            Column::Null | Column::Unchanged => out.extend_from_slice(b"null"),
        }
        0
    }
}

/// Which side of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Image {
    New,
    Old(OldKind),
}

#[derive(Clone, Copy, Debug, Default)]
struct Written {
    odd: u32,
    /// A value was left out.
    unchanged: bool,
}

#[cold]
fn unchanged(out: &mut Vec<u8>, row: &Row<'_, '_>, strip: &[usize]) {
    let Some(new) = row.new else { return };
    let start = out.len();
    for (index, (value, column)) in new.iter().zip(&row.relation.columns).enumerate() {
        let known = value != Column::Unchanged || row.old_value(index).is_some();
        if known || strip.contains(&index) {
            continue;
        }
        out.extend_from_slice(column.json_key.strip_suffix(b":").unwrap_or_default());
    }
    open(out, start, b'[');
    out.push(b']');
}

/// What was appended since `start` begins with a comma, if it is anything: puts `bracket` there.
#[inline]
fn open(out: &mut Vec<u8>, start: usize, bracket: u8) {
    match out.get_mut(start) {
        Some(comma) => *comma = bracket,
        None => out.push(bracket),
    }
}

/// RFC 3339 in UTC with microseconds, of µs since the Unix epoch from 1970 to 9999.
fn put_timestamp(out: &mut Vec<u8>, micros: i64) {
    const LAST: u64 = 253_402_300_799_999_999;
    let micros = u64::try_from(micros).unwrap_or(0).min(LAST);
    let (seconds, fraction) = (micros / 1_000_000, micros % 1_000_000);
    let (days, of_day) = (seconds / 86_400, seconds % 86_400);
    // Days since 0000-03-01: the leap day is the last one of a year that begins in March.
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let of_era_years = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * of_era_years + of_era_years / 4 - of_era_years / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + of_era_years + u64::from(month <= 2);
    let mut text = *b"0000-00-00T00:00:00.000000Z";
    put_digits(&mut text[0..4], year);
    put_digits(&mut text[5..7], month);
    put_digits(&mut text[8..10], day);
    put_digits(&mut text[11..13], of_day / 3_600);
    put_digits(&mut text[14..16], of_day / 60 % 60);
    put_digits(&mut text[17..19], of_day % 60);
    put_digits(&mut text[20..26], fraction);
    out.extend_from_slice(&text);
}

/// Decimal digits, right-aligned.
fn put_digits(place: &mut [u8], mut number: u64) {
    for digit in place.iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
}

/// `16/B374D848`, without the formatting machinery.
fn lsn_text(lsn: Lsn, room: &mut [u8; 17]) -> &[u8] {
    let slash = put_hex(room, 17, lsn.0 & 0xffff_ffff) - 1;
    room[slash] = b'/';
    let start = put_hex(room, slash, lsn.0 >> 32);
    &room[start..]
}

/// Hexadecimal digits that end before `end`; gives where they begin.
fn put_hex(room: &mut [u8; 17], end: usize, mut number: u64) -> usize {
    let mut at = end;
    loop {
        at -= 1;
        room[at] = b"0123456789ABCDEF"[(number & 15) as usize];
        number >>= 4;
        if number == 0 {
            return at;
        }
    }
}
