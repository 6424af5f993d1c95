//! Arrays, in text and in binary form, as nested JSON arrays.
//!
//! ```text
//! text    [2:3][0:1]={{1,NULL},{"a,b","say \"x\""}}
//! binary  dimensions:4 nulls:4 element:4 ( length:4 lower:4 ) * dimensions
//!         ( length:4 bytes | -1:4 ) * elements
//! ```

use super::{Codec, Malformed, ValueError, ValueOptions, binary, codec, json_string, string};
use crate::pg_wire::oid;
use crate::pg_wire::reader::{Reader, wide};

const TEXT: Malformed = Malformed("an array such as {1,NULL,\"a b\"}");
const BINARY: Malformed = Malformed("an array in binary form");

/// Dimensions the server allows.
const DEEPEST: usize = 6;

/// Appends the JSON of an array in text form whose type is not builtin but whose elements are
/// known to be of type `element`; of an unknown type (0), they are strings of the server's text.
/// An error leaves `out` as it was.
pub fn json_array_from_text(
    out: &mut Vec<u8>,
    element: u32,
    text: &[u8],
    options: ValueOptions,
) -> Result<(), ValueError> {
    let before = out.len();
    from_text(out, element, text, options)
        .map_err(|problem| super::undo(out, before, element, text, problem))
}

pub(super) fn from_text(
    out: &mut Vec<u8>,
    element: u32,
    text: &[u8],
    options: ValueOptions,
) -> Result<(), Malformed> {
    let separator = if element == oid::BOX { b';' } else { b',' };
    let items = Items { codec: codec(element), separator, options };
    let mut rest = without_bounds(text)?;
    let mut depth = 0usize;
    // Whether a value may come: after an opening brace or a separator.
    let mut open = true;
    loop {
        let (byte, after) = rest.split_first().ok_or(TEXT)?;
        match byte {
            b'{' if open && depth < DEEPEST => {
                depth = depth.saturating_add(1);
                out.push(b'[');
            }
            b'}' if depth > 0 && (!open || out.last() == Some(&b'[')) => {
                depth = depth.saturating_sub(1);
                out.push(b']');
                open = false;
                if depth == 0 {
                    return if after.is_empty() { Ok(()) } else { Err(TEXT) };
                }
            }
            byte if *byte == separator && !open && depth > 0 => {
                out.push(b',');
                open = true;
            }
            _ if open && depth > 0 => {
                rest = items.item(out, rest)?;
                open = false;
                continue;
            }
            _ => return Err(TEXT),
        }
        rest = after;
    }
}

/// What follows `[2:3]=`.
fn without_bounds(text: &[u8]) -> Result<&[u8], Malformed> {
    if text.first() != Some(&b'[') {
        return Ok(text);
    }
    let end = text.iter().position(|byte| *byte == b'=').ok_or(TEXT)?;
    let (bounds, rest) = text.split_at_checked(end).ok_or(TEXT)?;
    let sound =
        |byte: &u8| matches!(byte, b'[' | b']' | b':' | b'-' | b'+') || byte.is_ascii_digit();
    if !bounds.ends_with(b"]") || !bounds.iter().all(sound) {
        return Err(TEXT);
    }
    rest.split_first().map(|(_, rest)| rest).ok_or(TEXT)
}

struct Items {
    codec: Codec,
    separator: u8,
    options: ValueOptions,
}

impl Items {
    /// Writes one element and returns what follows it.
    fn item<'a>(&self, out: &mut Vec<u8>, text: &'a [u8]) -> Result<&'a [u8], Malformed> {
        if let [b'"', quoted @ ..] = text {
            let (inside, escaped, rest) = quotation(quoted).ok_or(TEXT)?;
            if escaped {
                self.unescaped(out, inside);
            } else {
                self.value(out, inside);
            }
            return Ok(rest);
        }
        let ends = |byte: &u8| *byte == self.separator || matches!(byte, b'{' | b'}' | b'"');
        let end = text.iter().position(ends).ok_or(TEXT)?;
        match text.split_at_checked(end) {
            None | Some(([], _)) => Err(TEXT),
            Some((b"NULL", rest)) => {
                out.extend_from_slice(b"null");
                Ok(rest)
            }
            Some((value, rest)) => {
                self.value(out, value);
                Ok(rest)
            }
        }
    }

    /// An element without the form of its type still goes out, as a string.
    fn value(&self, out: &mut Vec<u8>, text: &[u8]) {
        let before = out.len();
        if super::from_text(out, self.codec, text, self.options).is_err() {
            out.truncate(before);
            json_string(out, text);
        }
    }

    /// An element with backslashes to take out. Strings are written piece by piece, JSON and
    /// bytea in hex form in place; what else holds a backslash is rare enough for a copy.
    fn unescaped(&self, out: &mut Vec<u8>, inside: &[u8]) {
        let before = out.len();
        match (self.codec, inside) {
            (Codec::Text | Codec::Opaque, _) => {
                out.push(b'"');
                pieces(inside, |piece| string::inside(out, piece));
                out.push(b'"');
                return;
            }
            (Codec::Json | Codec::Jsonb, _) => {
                pieces(inside, |piece| out.extend_from_slice(piece));
                if std::str::from_utf8(out.get(before..).unwrap_or_default()).is_ok() {
                    return;
                }
            }
            (Codec::Bytea, [b'\\', b'\\', b'x', digits @ ..])
                if super::bytea::from_hex(out, digits).is_ok() =>
            {
                return;
            }
            _ => {}
        }
        out.truncate(before);
        let mut text = Vec::with_capacity(inside.len());
        pieces(inside, |piece| text.extend_from_slice(piece));
        self.value(out, &text);
    }
}

/// What stands before the closing quote, whether a backslash is in it, and what follows.
fn quotation(text: &[u8]) -> Option<(&[u8], bool, &[u8])> {
    let (mut end, mut escaped) = (0usize, false);
    loop {
        let rest = text.get(end..)?;
        let step = rest.iter().position(|byte| matches!(byte, b'"' | b'\\'))?;
        end = end.checked_add(step)?;
        let (inside, rest) = text.split_at_checked(end)?;
        if let [b'"', rest @ ..] = rest {
            return Some((inside, escaped, rest));
        }
        escaped = true;
        end = end.checked_add(2)?;
    }
}

/// The stretches that are left when each escaping backslash is taken out. One begins with the
/// byte behind a backslash, so none begins inside of a character.
fn pieces(inside: &[u8], mut each: impl FnMut(&[u8])) {
    let mut start = 0usize;
    let mut from = 0usize;
    while let Some(step) =
        inside.get(from..).and_then(|rest| rest.iter().position(|byte| *byte == b'\\'))
    {
        let place = from.saturating_add(step);
        each(inside.get(start..place).unwrap_or_default());
        start = place.saturating_add(1);
        from = place.saturating_add(2);
    }
    each(inside.get(start..).unwrap_or_default());
}

pub(super) fn from_binary(
    out: &mut Vec<u8>,
    element: u32,
    bytes: &[u8],
    options: ValueOptions,
) -> Result<(), Malformed> {
    let mut reader = Reader::new(bytes);
    let mut field = || reader.u32("array").map_err(|_| BINARY);
    let (dimensions, _nulls, of_type) = (field()?, field()?, field()?);
    let dimensions = wide(dimensions);
    if dimensions > DEEPEST || of_type != element {
        return Err(BINARY);
    }
    // Elements below one bracket of each level; the innermost level has one below each.
    let mut below = [1usize; DEEPEST];
    let mut lengths = [1usize; DEEPEST];
    for length in lengths.iter_mut().take(dimensions) {
        let (size, _lower) = (field()?, field()?);
        *length = wide(size);
    }
    let mut total = usize::from(dimensions > 0);
    for (place, length) in below.iter_mut().zip(lengths).take(dimensions).rev() {
        total = total.checked_mul(length).ok_or(BINARY)?;
        *place = total;
    }
    // An element has a length of four bytes, so what is there bounds what can be written.
    if dimensions > 0 && total == 0 || total > reader.rest().len() / 4 {
        return Err(BINARY);
    }
    let below = below.get(..dimensions).unwrap_or_default();
    let codec = codec(element);
    if dimensions == 0 {
        out.extend_from_slice(b"[]");
    }
    for index in 0..total {
        if index > 0 {
            out.push(b',');
        }
        out.extend(below.iter().filter(|size| index.is_multiple_of(**size)).map(|_| b'['));
        match reader.u32("length of an element").map_err(|_| BINARY)? {
            u32::MAX => out.extend_from_slice(b"null"),
            length => {
                let value = reader.take(wide(length), "element").map_err(|_| BINARY)?;
                binary::from_binary(out, codec, value, options)?;
            }
        }
        let next = index.saturating_add(1);
        out.extend(below.iter().filter(|size| next.is_multiple_of(**size)).map(|_| b']'));
    }
    reader.end("array").map_err(|_| BINARY)
}
