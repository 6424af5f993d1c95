//! bytea: both text forms and the bytes themselves, as base64.
//!
//! ```text
//! hex     \x 00ff…
//! escape  printable bytes, \\ for a backslash, \ooo (octal) for the others
//! ```

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::Malformed;

/// Bytes decoded at a time: a multiple of three, so that padding comes at the end only.
const STEP: usize = 384;

pub(super) fn from_text(out: &mut Vec<u8>, text: &[u8]) -> Result<(), Malformed> {
    match text {
        [b'\\', b'x', digits @ ..] => from_hex(out, digits),
        text => from_escaped(out, text),
    }
}

/// Appends the base64 of `bytes` in quotes.
pub(super) fn base64(out: &mut Vec<u8>, bytes: &[u8]) {
    out.push(b'"');
    encode(out, bytes);
    out.push(b'"');
}

/// Appends two lower-case digits.
pub(super) fn hex(out: &mut Vec<u8>, byte: u8) {
    let digit = |nibble: u8| if nibble < 10 { b'0' + nibble } else { b'a' + (nibble - 10) };
    out.extend_from_slice(&[digit(byte >> 4), digit(byte & 15)]);
}

pub(super) fn from_hex(out: &mut Vec<u8>, digits: &[u8]) -> Result<(), Malformed> {
    const EXPECTED: Malformed = Malformed("\\x and pairs of hexadecimal digits");
    let (pairs, []) = digits.as_chunks::<2>() else { return Err(EXPECTED) };
    let mut raw = [0; STEP];
    out.push(b'"');
    for step in pairs.chunks(STEP) {
        let mut odd = 0;
        for (place, [high, low]) in raw.iter_mut().zip(step) {
            let (high, low) = (nibble(*high), nibble(*low));
            odd |= high | low;
            *place = high << 4 | low & 15;
        }
        if odd > 15 {
            return Err(EXPECTED);
        }
        encode(out, raw.get(..step.len()).unwrap_or_default());
    }
    out.push(b'"');
    Ok(())
}

fn from_escaped(out: &mut Vec<u8>, mut text: &[u8]) -> Result<(), Malformed> {
    const EXPECTED: Malformed = Malformed("bytes, \\\\ and \\ with three octal digits");
    let mut raw = [0; STEP];
    let mut count = 0;
    out.push(b'"');
    while !text.is_empty() {
        let (byte, rest) = match text {
            [b'\\', b'\\', rest @ ..] => (b'\\', rest),
            [b'\\', a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', rest @ ..] => {
                ((a & 7) << 6 | (b & 7) << 3 | c & 7, rest)
            }
            [byte, rest @ ..] if *byte != b'\\' => (*byte, rest),
            _ => return Err(EXPECTED),
        };
        text = rest;
        if count == STEP {
            encode(out, &raw);
            count = 0;
        }
        if let Some(place) = raw.get_mut(count) {
            *place = byte;
            count += 1;
        }
    }
    encode(out, raw.get(..count).unwrap_or_default());
    out.push(b'"');
    Ok(())
}

fn encode(out: &mut Vec<u8>, bytes: &[u8]) {
    let start = out.len();
    let length = bytes.len().div_ceil(3).saturating_mul(4);
    out.resize(start.saturating_add(length), 0);
    let written = out.get_mut(start..).map(|place| STANDARD.encode_slice(bytes, place));
    // The place is as long as the formula says, so this keeps all of it.
    let written = written.and_then(Result::ok).unwrap_or(0);
    out.truncate(start.saturating_add(written));
}

/// Value of a hexadecimal digit; above 15 for anything else.
fn nibble(digit: u8) -> u8 {
    const VALUES: [u8; 256] = {
        let mut values = [255; 256];
        let (mut place, mut digit) = (0, 0u8);
        while place < values.len() {
            values[place] = match digit {
                b'0'..=b'9' => digit - b'0',
                b'a'..=b'f' => digit - b'a' + 10,
                b'A'..=b'F' => digit - b'A' + 10,
                _ => 255,
            };
            place += 1;
            digit = digit.wrapping_add(1);
        }
        values
    };
    VALUES.get(usize::from(digit)).copied().unwrap_or(255)
}
