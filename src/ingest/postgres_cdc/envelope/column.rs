//! `payload_column`: one column is the payload, the rest of the row serves routing.

use super::{Envelope, EnvelopeError, NoPayload, Rendered};
use crate::config::PayloadFormat;
use crate::ingest::postgres_cdc::row::Row;
use crate::pg_wire::oid;
use crate::pg_wire::pgoutput::Column;

impl Envelope {
    pub(super) fn column(
        &self,
        out: &mut Vec<u8>,
        row: &Row<'_, '_>,
        name: &str,
        format: PayloadFormat,
    ) -> Result<Rendered, EnvelopeError> {
        let columns = &row.relation.columns;
        let Some((index, place)) =
            columns.iter().enumerate().find(|(_, column)| column.name == name)
        else {
            return Err(EnvelopeError::NoColumn {
                column: name.to_owned(),
                table: row.relation.table.clone(),
                lsn: row.tx.final_lsn,
            });
        };
        let json = matches!(format, PayloadFormat::JsonDirect | PayloadFormat::Jsonb);
        let value = match row.column(index) {
            None => return Ok(Rendered::Nothing(NoPayload::NoRow)),
            Some(Column::Unchanged) => return Ok(Rendered::Nothing(NoPayload::Unchanged)),
            Some(Column::Null) if !json => return Ok(Rendered::Nothing(NoPayload::Null)),
            Some(value) => value,
        };
        let before = out.len();
        let mut odd_values = 0;
        if json {
            odd_values = self.value(out, place, value);
        } else if let Err(expected) = verbatim(out, place.type_oid, value, format) {
            out.truncate(before);
            let seen = match value {
                Column::Text(seen) | Column::Binary(seen) => seen,
                Column::Null | Column::Unchanged => b"",
            };
            return Err(EnvelopeError::WrongForm {
                column: name.to_owned(),
                table: row.relation.table.clone(),
                seen: seen.get(..32).unwrap_or(seen).escape_ascii().to_string(),
                expected,
                lsn: row.tx.final_lsn,
            });
        }
        if out.len() == before {
            return Ok(Rendered::Nothing(NoPayload::Empty));
        }
        Ok(Rendered::Payload { odd_values })
    }
}

/// Appends a value as bytes or as text.
fn verbatim(
    out: &mut Vec<u8>,
    type_oid: u32,
    value: Column<'_>,
    format: PayloadFormat,
) -> Result<(), &'static str> {
    let bytes = type_oid == oid::BYTEA;
    match (value, format) {
        (Column::Text(text), PayloadFormat::Bytea | PayloadFormat::Raw) if bytes => {
            put_bytea(out, text)
        }
        (_, PayloadFormat::Bytea) if !bytes => Err("a column of type bytea"),
        (Column::Text(text), _) => {
            out.extend_from_slice(text);
            Ok(())
        }
        // The binary form of these is their bytes or their text.
        (Column::Binary(raw), _) if bytes || is_text(type_oid) => {
            out.extend_from_slice(raw);
            Ok(())
        }
        _ => Err("a value in text form: set binary = false"),
    }
}

fn is_text(type_oid: u32) -> bool {
    matches!(type_oid, oid::TEXT | oid::VARCHAR | oid::BPCHAR | oid::NAME | oid::JSON | oid::XML)
}

/// Bytes of the text form `\x00ff`.
fn put_bytea(out: &mut Vec<u8>, text: &[u8]) -> Result<(), &'static str> {
    const EXPECTED: &str = "bytea in hexadecimal: \\x and two digits a byte";
    let digits = text.strip_prefix(b"\\x").ok_or(EXPECTED)?;
    if digits.len() % 2 != 0 {
        return Err(EXPECTED);
    }
    out.reserve(digits.len() / 2);
    for pair in digits.chunks_exact(2) {
        let (high, low) = (nibble(pair[0]).ok_or(EXPECTED)?, nibble(pair[1]).ok_or(EXPECTED)?);
        out.push(high << 4 | low);
    }
    Ok(())
}

fn nibble(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}
