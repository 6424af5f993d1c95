//! Integers, numeric, and the check that a text is a JSON number.
//!
//! ```text
//! numeric  count:2 weight:2 sign:2 scale:2 ( digit:2 ) * count      digits in base 10000
//! ```

use super::{Malformed, json_string};
use crate::pg_wire::reader::Reader;

/// Groups that follow, power of 10000 of the first one, sign, digits behind the point.
const POSITIVE: u16 = 0;
const NEGATIVE: u16 = 0x4000;
const NAN: u16 = 0xc000;
const INFINITY: u16 = 0xd000;
const MINUS_INFINITY: u16 = 0xf000;
const LARGEST_SCALE: u16 = 0x3fff;

#[inline]
pub(super) fn integer_text(out: &mut Vec<u8>, text: &[u8]) -> Result<(), Malformed> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let sound = match digits {
        [] => false,
        [b'0', _, ..] => false,
        digits => are_digits(digits),
    };
    if !sound {
        return Err(Malformed("an integer"));
    }
    out.extend_from_slice(text);
    Ok(())
}

/// Whether all of it is digits: eight bytes at a time, the last ones twice.
#[inline]
fn are_digits(text: &[u8]) -> bool {
    let (words, _) = text.as_chunks::<8>();
    match text.last_chunk() {
        Some(last) => words.iter().chain([last]).all(|word| are_eight_digits(*word)),
        None => text.iter().all(u8::is_ascii_digit),
    }
}

/// A digit's high half is 3, also with 6 added.
#[inline]
fn are_eight_digits(word: [u8; 8]) -> bool {
    const HALVES: u64 = 0xf0f0_f0f0_f0f0_f0f0;
    let word = u64::from_le_bytes(word);
    let more = word.wrapping_add(0x0606_0606_0606_0606);
    (word & HALVES) | ((more & HALVES) >> 4) == 0x3333_3333_3333_3333
}

/// The server's digits, checked, or the name of a value that is not a number.
pub(super) fn number_text(out: &mut Vec<u8>, text: &[u8], quoted: bool) -> Result<(), Malformed> {
    if matches!(text, b"NaN" | b"Infinity" | b"-Infinity") {
        json_string(out, text);
        return Ok(());
    }
    if !is_number(text) {
        return Err(Malformed("a number, NaN or an infinity"));
    }
    if quoted {
        json_string(out, text);
    } else {
        out.extend_from_slice(text);
    }
    Ok(())
}

/// Whether JSON has this as a number.
fn is_number(text: &[u8]) -> bool {
    let text = text.strip_prefix(b"-").unwrap_or(text);
    let (whole, rest) = digits(text);
    if whole.is_empty() || matches!(whole, [b'0', _, ..]) {
        return false;
    }
    let rest = match rest.strip_prefix(b".") {
        None => rest,
        Some(rest) => match digits(rest) {
            ([], _) => return false,
            (_, rest) => rest,
        },
    };
    match rest {
        [] => true,
        [b'e' | b'E', b'+' | b'-', power @ ..] | [b'e' | b'E', power @ ..] => {
            matches!(digits(power), ([_, ..], []))
        }
        _ => false,
    }
}

/// Digits at the start, and the rest.
fn digits(text: &[u8]) -> (&[u8], &[u8]) {
    let end = text.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
    text.split_at_checked(end).unwrap_or((text, b""))
}

pub(super) fn signed(out: &mut Vec<u8>, number: i64) {
    if number < 0 {
        out.push(b'-');
    }
    unsigned(out, number.unsigned_abs());
}

pub(super) fn unsigned(out: &mut Vec<u8>, number: u64) {
    padded(out, number, 1);
}

/// At least `width` digits, at most 20.
pub(super) fn padded(out: &mut Vec<u8>, mut number: u64, width: usize) {
    let mut text = [b'0'; 20];
    let mut used = 0;
    for place in text.iter_mut().rev() {
        if number == 0 && used >= width {
            break;
        }
        *place = digit(number);
        number /= 10;
        used += 1;
    }
    out.extend_from_slice(text.get(text.len().saturating_sub(used)..).unwrap_or_default());
}

/// Two digits of a number below 100.
pub(super) fn two(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(&[digit(number / 10), digit(number)]);
}

/// The last decimal digit.
fn digit(number: u64) -> u8 {
    u8::try_from(number % 10).map_or(b'0', |digit| b'0' + digit)
}

/// Upper-case digits without leading zeros.
pub(super) fn upper_hex(out: &mut Vec<u8>, number: u64) {
    let start = out.len();
    for byte in number.to_be_bytes() {
        for nibble in [byte >> 4, byte & 15] {
            if nibble != 0 || out.len() > start {
                out.push(if nibble < 10 { b'0' + nibble } else { b'A' + (nibble - 10) });
            }
        }
    }
    if out.len() == start {
        out.push(b'0');
    }
}

pub(super) fn numeric_binary(
    out: &mut Vec<u8>,
    bytes: &[u8],
    quoted: bool,
) -> Result<(), Malformed> {
    const EXPECTED: Malformed = Malformed("a numeric");
    let mut reader = Reader::new(bytes);
    let mut field = || reader.u16("numeric").map_err(|_| EXPECTED);
    let (count, weight, sign, scale) = (field()?, field()?, field()?, field()?);
    let (groups, odd) = reader.rest().as_chunks::<2>();
    if !odd.is_empty() || groups.len() != usize::from(count) || scale > LARGEST_SCALE {
        return Err(EXPECTED);
    }
    match sign {
        NAN => json_string(out, b"NaN"),
        INFINITY => json_string(out, b"Infinity"),
        MINUS_INFINITY => json_string(out, b"-Infinity"),
        POSITIVE | NEGATIVE => {
            if quoted {
                out.push(b'"');
            }
            if sign == NEGATIVE {
                out.push(b'-');
            }
            decimal(out, groups, i32::from(weight.cast_signed()), scale).ok_or(EXPECTED)?;
            if quoted {
                out.push(b'"');
            }
        }
        _ => return Err(EXPECTED),
    }
    Ok(())
}

/// Digits with exactly `scale` of them behind the point; groups that are not there are zeros.
fn decimal(out: &mut Vec<u8>, groups: &[[u8; 2]], weight: i32, scale: u16) -> Option<()> {
    let group = |power: i32| -> Option<u64> {
        let place = usize::try_from(weight.checked_sub(power)?).ok();
        let digits = place.and_then(|place| groups.get(place)).copied().unwrap_or_default();
        Some(u64::from(u16::from_be_bytes(digits))).filter(|value| *value < 10_000)
    };
    let start = out.len();
    for power in (0..=weight).rev() {
        match group(power)? {
            0 if out.len() == start => {}
            value if out.len() == start => unsigned(out, value),
            value => padded(out, value, 4),
        }
    }
    if out.len() == start {
        out.push(b'0');
    }
    if scale == 0 {
        return Some(());
    }
    out.push(b'.');
    let end = out.len().checked_add(usize::from(scale))?;
    let mut power = -1;
    while out.len() < end {
        padded(out, group(power)?, 4);
        power -= 1;
    }
    out.truncate(end);
    Some(())
}
