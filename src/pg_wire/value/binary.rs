//! Values in binary form.

use super::{
    Codec, Malformed, ValueOptions, array, boolean_text, bytea, char_value, datetime, float,
    json_string, json_verbatim, number,
};

pub(super) fn from_binary(
    out: &mut Vec<u8>,
    codec: Codec,
    bytes: &[u8],
    options: ValueOptions,
) -> Result<(), Malformed> {
    match codec {
        Codec::Bool => boolean_text(out, if fixed(bytes)? == [0] { b"f" } else { b"t" })?,
        Codec::Int2 => number::signed(out, i64::from(i16::from_be_bytes(fixed(bytes)?))),
        Codec::Int4 => number::signed(out, i64::from(i32::from_be_bytes(fixed(bytes)?))),
        Codec::Int8 => number::signed(out, i64::from_be_bytes(fixed(bytes)?)),
        Codec::Unsigned4 => number::unsigned(out, u64::from(u32::from_be_bytes(fixed(bytes)?))),
        Codec::Unsigned8 => number::unsigned(out, u64::from_be_bytes(fixed(bytes)?)),
        Codec::Float4 => float::float4(out, f32::from_be_bytes(fixed(bytes)?)),
        Codec::Float8 => float::float8(out, f64::from_be_bytes(fixed(bytes)?)),
        Codec::Numeric => number::numeric_binary(out, bytes, options.numeric_as_string)?,
        Codec::Text => json_string(out, bytes),
        Codec::Char => char_value(out, &fixed::<1>(bytes)?),
        Codec::Bytea => bytea::base64(out, bytes),
        Codec::Json => json_verbatim(out, bytes)?,
        Codec::Jsonb => match bytes.split_first() {
            Some((1, text)) => json_verbatim(out, text)?,
            _ => return Err(Malformed("jsonb of version 1")),
        },
        Codec::Uuid => uuid(out, fixed(bytes)?),
        Codec::Date => datetime::date(out, i32::from_be_bytes(fixed(bytes)?)),
        Codec::Time => datetime::time(out, i64::from_be_bytes(fixed(bytes)?)),
        Codec::TimeTz => {
            let (time, zone) = bytes.split_first_chunk().ok_or(Malformed("12 bytes"))?;
            let zone = i32::from_be_bytes(fixed(zone)?);
            datetime::timetz(out, i64::from_be_bytes(*time), zone);
        }
        Codec::Timestamp => datetime::timestamp(out, i64::from_be_bytes(fixed(bytes)?), false),
        Codec::TimestampTz => datetime::timestamp(out, i64::from_be_bytes(fixed(bytes)?), true),
        Codec::Interval => {
            let (time, rest) = bytes.split_first_chunk().ok_or(Malformed("16 bytes"))?;
            let (days, months) = rest.split_first_chunk().ok_or(Malformed("16 bytes"))?;
            let (days, months) = (i32::from_be_bytes(*days), i32::from_be_bytes(fixed(months)?));
            datetime::interval(out, i64::from_be_bytes(*time), days, months);
        }
        Codec::Lsn => lsn(out, u64::from_be_bytes(fixed(bytes)?)),
        Codec::Array(element) => array::from_binary(out, element, bytes, options)?,
        Codec::Opaque => return Err(Malformed("a type with a known binary form")),
    }
    Ok(())
}

fn fixed<const N: usize>(bytes: &[u8]) -> Result<[u8; N], Malformed> {
    bytes.try_into().map_err(|_| {
        Malformed(match N {
            1 => "1 byte",
            2 => "2 bytes",
            4 => "4 bytes",
            8 => "8 bytes",
            _ => "16 bytes",
        })
    })
}

fn uuid(out: &mut Vec<u8>, bytes: [u8; 16]) {
    out.push(b'"');
    for (index, byte) in bytes.into_iter().enumerate() {
        if let 4 | 6 | 8 | 10 = index {
            out.push(b'-');
        }
        bytea::hex(out, byte);
    }
    out.push(b'"');
}

fn lsn(out: &mut Vec<u8>, position: u64) {
    out.push(b'"');
    number::upper_hex(out, position >> 32);
    out.push(b'/');
    number::upper_hex(out, position & 0xffff_ffff);
    out.push(b'"');
}
