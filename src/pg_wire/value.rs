//! Values as JSON, from the server's text or from the binary form: the same bytes either way.
//!
//! | type | JSON |
//! |---|---|
//! | bool; int2 to int8, oid, xid, cid, xid8; numeric | literal with every digit of the server |
//! | float4, float8 | shortest literal that reads back to the same bits, as the server has it |
//! | NaN, infinities | `"NaN"`, `"Infinity"`, `"-Infinity"` |
//! | bytea | standard base64 with padding |
//! | timestamptz, timestamp | `T` form, `Z` or no offset; infinity, BC, year > 9999 as the server |
//! | json, jsonb | verbatim: the server has parsed it |
//! | builtin arrays | nested arrays, NULL is `null`; lower bounds are not kept |
//! | anything else | string of the server's text; what is not UTF-8 becomes U+FFFD |

mod array;
mod binary;
mod bytea;
mod datetime;
mod float;
mod number;
mod string;
#[cfg(test)]
mod tests;

use super::oid;
use super::pgoutput::Column;

pub use array::json_array_from_text;
pub use string::json_string;

/// Choices about the form of values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ValueOptions {
    /// Numeric as a JSON string, for readers that would round it.
    pub numeric_as_string: bool,
}

/// A value without the form its type should have. Nothing was written: the server's text can
/// still go out by [`json_string`], a binary value by [`json_opaque`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ValueError {
    /// Text or bytes that the type does not have.
    #[error("a value of type {type_oid} ({}) reads {seen:?}, expected {expected}",
        oid::name_of(*type_oid).unwrap_or("not builtin"))]
    Malformed {
        /// Number of the type.
        type_oid: u32,
        /// The beginning of the value, bytes outside of ASCII escaped.
        seen: String,
        /// The form of the type.
        expected: &'static str,
    },
    /// A binary value of a type whose binary form is unknown here.
    #[error("type {type_oid} ({}) has no known binary form: ask for text",
        oid::name_of(*type_oid).unwrap_or("not builtin"))]
    NoBinaryForm {
        /// Number of the type.
        type_oid: u32,
    },
}

/// What a value's form should have been.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Malformed(&'static str);

/// The kinds of [`Form`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Codec {
    Bool,
    Int2,
    Int4,
    Int8,
    Unsigned4,
    Unsigned8,
    Float4,
    Float8,
    Numeric,
    Text,
    Char,
    Bytea,
    Json,
    Jsonb,
    Uuid,
    Date,
    Time,
    TimeTz,
    Timestamp,
    TimestampTz,
    Interval,
    Lsn,
    /// Elements of this type.
    Array(u32),
    /// The server's text, whatever it is.
    Opaque,
}

/// How values of a type are written, worked out once from its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Form {
    type_oid: u32,
    codec: Codec,
}

impl From<u32> for Form {
    fn from(type_oid: u32) -> Form {
        Form { type_oid, codec: codec(type_oid) }
    }
}

/// Appends the JSON of a value in the server's text form. An error leaves `out` as it was.
#[inline(always)] // with the types of most columns
pub fn json_from_text(
    out: &mut Vec<u8>,
    form: impl Into<Form>,
    text: &[u8],
    options: ValueOptions,
) -> Result<(), ValueError> {
    let form = form.into();
    match form.codec {
        Codec::Text | Codec::Uuid => {
            json_string(out, text);
            Ok(())
        }
        Codec::Jsonb | Codec::Json if json_verbatim(out, text).is_ok() => Ok(()),
        Codec::Int8 | Codec::Int4 if number::integer_text(out, text).is_ok() => Ok(()),
        _ => any_from_text(out, form, text, options),
    }
}

#[inline(never)]
fn any_from_text(
    out: &mut Vec<u8>,
    form: Form,
    text: &[u8],
    options: ValueOptions,
) -> Result<(), ValueError> {
    let before = out.len();
    from_text(out, form.codec, text, options)
        .map_err(|problem| undo(out, before, form.type_oid, text, problem))
}

/// Appends the JSON of a value in binary form. An error leaves `out` as it was.
pub fn json_from_binary(
    out: &mut Vec<u8>,
    type_oid: u32,
    bytes: &[u8],
    options: ValueOptions,
) -> Result<(), ValueError> {
    if !has_binary_codec(type_oid) {
        return Err(ValueError::NoBinaryForm { type_oid });
    }
    let before = out.len();
    binary::from_binary(out, codec(type_oid), bytes, options)
        .map_err(|problem| undo(out, before, type_oid, bytes, problem))
}

/// Bytes that the JSON of a value has at least, without writing it: for values that may grow
/// beyond what a message holds.
pub fn json_least(form: Form, value: Column<'_>) -> usize {
    let (bytes, is_text) = match value {
        Column::Null | Column::Unchanged => return 0,
        Column::Text(text) => (text, true),
        Column::Binary(bytes) => (bytes, false),
    };
    match form.codec {
        Codec::Text => string::escaped_len(bytes),
        Codec::Opaque if is_text => string::escaped_len(bytes),
        // Two digits a byte, and four letters for three bytes.
        Codec::Bytea if is_text => bytes.len() / 2,
        Codec::Bytea | Codec::Json => bytes.len(),
        Codec::Jsonb if is_text => bytes.len(),
        // Numbers and elements may be shorter than their other form.
        _ if is_text => bytes.len() / 2,
        _ => 0,
    }
}

/// Whether [`json_from_binary`] knows the type.
pub fn has_binary_codec(type_oid: u32) -> bool {
    match codec(type_oid) {
        Codec::Opaque => false,
        Codec::Array(element) => !matches!(codec(element), Codec::Opaque),
        _ => true,
    }
}

/// Appends a JSON string of `\x` and the bytes in hexadecimal: the last resort for a binary
/// value that could not be read.
pub fn json_opaque(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(b"\"\\\\x");
    bytes.iter().for_each(|byte| bytea::hex(out, *byte));
    out.push(b'"');
}

#[cold]
fn undo(
    out: &mut Vec<u8>,
    before: usize,
    type_oid: u32,
    value: &[u8],
    problem: Malformed,
) -> ValueError {
    const SHOWN: usize = 48;
    out.truncate(before);
    let seen = value.get(..SHOWN).unwrap_or(value).escape_ascii().to_string();
    ValueError::Malformed { type_oid, seen, expected: problem.0 }
}

fn codec(type_oid: u32) -> Codec {
    match type_oid {
        oid::BOOL => Codec::Bool,
        oid::INT2 => Codec::Int2,
        oid::INT4 => Codec::Int4,
        oid::INT8 => Codec::Int8,
        oid::OID | oid::XID | oid::CID => Codec::Unsigned4,
        oid::XID8 => Codec::Unsigned8,
        oid::FLOAT4 => Codec::Float4,
        oid::FLOAT8 => Codec::Float8,
        oid::NUMERIC => Codec::Numeric,
        oid::TEXT | oid::VARCHAR | oid::BPCHAR | oid::NAME => Codec::Text,
        oid::CHAR => Codec::Char,
        oid::BYTEA => Codec::Bytea,
        oid::JSON => Codec::Json,
        oid::JSONB => Codec::Jsonb,
        oid::UUID => Codec::Uuid,
        oid::DATE => Codec::Date,
        oid::TIME => Codec::Time,
        oid::TIMETZ => Codec::TimeTz,
        oid::TIMESTAMP => Codec::Timestamp,
        oid::TIMESTAMPTZ => Codec::TimestampTz,
        oid::INTERVAL => Codec::Interval,
        oid::PG_LSN => Codec::Lsn,
        other => oid::element_of(other).map_or(Codec::Opaque, Codec::Array),
    }
}

fn from_text(
    out: &mut Vec<u8>,
    codec: Codec,
    text: &[u8],
    options: ValueOptions,
) -> Result<(), Malformed> {
    match codec {
        Codec::Int2 | Codec::Int4 | Codec::Int8 | Codec::Unsigned4 | Codec::Unsigned8 => {
            number::integer_text(out, text)?;
        }
        Codec::Bool => boolean_text(out, text)?,
        Codec::Float4 | Codec::Float8 => number::number_text(out, text, false)?,
        Codec::Numeric => number::number_text(out, text, options.numeric_as_string)?,
        Codec::Char => char_value(out, text),
        Codec::Bytea => bytea::from_text(out, text)?,
        Codec::Json | Codec::Jsonb => json_verbatim(out, text)?,
        Codec::Timestamp => datetime::timestamp_text(out, text, false)?,
        Codec::TimestampTz => datetime::timestamp_text(out, text, true)?,
        Codec::Array(element) => array::from_text(out, element, text, options)?,
        Codec::Text
        | Codec::Uuid
        | Codec::Date
        | Codec::Time
        | Codec::TimeTz
        | Codec::Interval
        | Codec::Lsn
        | Codec::Opaque => json_string(out, text),
    }
    Ok(())
}

fn boolean_text(out: &mut Vec<u8>, text: &[u8]) -> Result<(), Malformed> {
    let literal: &[u8] = match text {
        b"t" | b"true" => b"true",
        b"f" | b"false" => b"false",
        _ => return Err(Malformed("t or f")),
    };
    out.extend_from_slice(literal);
    Ok(())
}

/// `"char"` holds one byte. Zero is the empty text; servers before 16 send a byte outside of
/// ASCII as it is, later ones escape it, and both come out escaped.
fn char_value(out: &mut Vec<u8>, text: &[u8]) {
    match text {
        [0] => json_string(out, b""),
        [byte @ 0x80..=0xff] => {
            out.extend_from_slice(b"\"\\\\");
            for shift in [6, 3, 0] {
                out.push(b'0' | (byte >> shift & 7));
            }
            out.push(b'"');
        }
        text => json_string(out, text),
    }
}

#[inline]
fn json_verbatim(out: &mut Vec<u8>, text: &[u8]) -> Result<(), Malformed> {
    if text.is_empty() || !string::is_utf8(text) {
        return Err(Malformed("JSON in UTF-8"));
    }
    out.extend_from_slice(text);
    Ok(())
}
