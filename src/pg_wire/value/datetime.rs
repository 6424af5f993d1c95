//! Dates and times: from the server's ISO text and from microseconds since 2000.
//!
//! A timestamp with a four-digit year after Christ becomes `2024-01-02T03:04:05.12`, with `Z`
//! if it has a zone; the fraction keeps the digits the server has. Infinity, years beyond 9999
//! and BC have no such form and keep the server's text.

use super::number::{padded, signed, two};
use super::{Malformed, json_string};

const SECOND: i64 = 1_000_000;
const MINUTE: i64 = 60 * SECOND;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;

/// Days from the first of March of year 0 to 2000-01-01.
const EPOCH_FROM_MARCH: i64 = 730_425;

pub(super) fn timestamp_text(out: &mut Vec<u8>, text: &[u8], zoned: bool) -> Result<(), Malformed> {
    const EXPECTED: Malformed = Malformed("a timestamp in ISO form");
    if matches!(text, b"infinity" | b"-infinity") {
        json_string(out, text);
        return Ok(());
    }
    let (years, date) = digits(text);
    let [b'-', a, b, b'-', c, d, b' ', time @ ..] = date else { return Err(EXPECTED) };
    let [e, f, b':', g, h, b':', i, j, rest @ ..] = time else { return Err(EXPECTED) };
    let sound = [a, b, c, d, e, f, g, h, i, j].into_iter().all(u8::is_ascii_digit);
    let (fraction, zone) = match rest.strip_prefix(b".") {
        Some(behind) => digits(behind),
        None => (&b""[..], rest),
    };
    if !sound || years.len() < 4 || fraction.len() > 6 {
        return Err(EXPECTED);
    }
    let clock = time.get(..time.len().saturating_sub(zone.len())).unwrap_or_default();
    let (zone, christian) = match zone.strip_suffix(b" BC") {
        Some(zone) => (zone, false),
        None => (zone, true),
    };
    let offset = if zoned { offset(zone) } else { zone.is_empty().then_some(0) };
    let offset = offset.ok_or(EXPECTED)?;
    if !christian || years.len() != 4 {
        json_string(out, text);
    } else if offset == 0 {
        let day = text.get(..10).unwrap_or_default();
        out.push(b'"');
        out.extend_from_slice(day);
        out.push(b'T');
        out.extend_from_slice(clock);
        out.extend_from_slice(if zoned { b"Z\"" } else { b"\"" });
    } else {
        let day = days(value(years), value(&[*a, *b]), value(&[*c, *d]));
        let micros =
            value(&[*e, *f]) * HOUR + value(&[*g, *h]) * MINUTE + value(&[*i, *j]) * SECOND;
        let scale = (fraction.len()..6).fold(1, |scale, _| scale * 10);
        let micros = micros + value(fraction) * scale - offset * SECOND;
        timestamp(out, day * DAY + micros, true);
    }
    Ok(())
}

pub(super) fn date(out: &mut Vec<u8>, since_2000: i32) {
    match since_2000 {
        i32::MAX => json_string(out, b"infinity"),
        i32::MIN => json_string(out, b"-infinity"),
        days => {
            out.push(b'"');
            let year = year_month_day(out, i64::from(days));
            era(out, year);
            out.push(b'"');
        }
    }
}

pub(super) fn time(out: &mut Vec<u8>, micros: i64) {
    out.push(b'"');
    clock(out, micros);
    out.push(b'"');
}

/// `west` is the zone's distance from UTC in seconds, positive to the west.
pub(super) fn timetz(out: &mut Vec<u8>, micros: i64, west: i32) {
    out.push(b'"');
    clock(out, micros);
    out.push(if west > 0 { b'-' } else { b'+' });
    let seconds = u64::from(west.unsigned_abs());
    two(out, seconds / 3600);
    if !seconds.is_multiple_of(3600) {
        out.push(b':');
        two(out, seconds / 60 % 60);
    }
    if !seconds.is_multiple_of(60) {
        out.push(b':');
        two(out, seconds % 60);
    }
    out.push(b'"');
}

pub(super) fn timestamp(out: &mut Vec<u8>, since_2000: i64, zoned: bool) {
    if let i64::MAX | i64::MIN = since_2000 {
        json_string(out, if since_2000 > 0 { b"infinity" } else { b"-infinity" });
        return;
    }
    let (day, micros) = (since_2000.div_euclid(DAY), since_2000.rem_euclid(DAY));
    out.push(b'"');
    let year = year_month_day(out, day);
    let plain = (1..=9999).contains(&year);
    out.push(if plain { b'T' } else { b' ' });
    clock(out, micros);
    match (zoned, plain) {
        (true, true) => out.push(b'Z'),
        (true, false) => out.extend_from_slice(b"+00"),
        (false, _) => {}
    }
    era(out, year);
    out.push(b'"');
}

/// In the style `postgres`: `1 year 2 mons -3 days +04:05:06.7`.
pub(super) fn interval(out: &mut Vec<u8>, micros: i64, days: i32, months: i32) {
    match (micros, days, months) {
        (i64::MAX, i32::MAX, i32::MAX) => return json_string(out, b"infinity"),
        (i64::MIN, i32::MIN, i32::MIN) => return json_string(out, b"-infinity"),
        _ => {}
    }
    out.push(b'"');
    let start = out.len();
    // A part after a negative one says its sign.
    let mut negative = false;
    for (count, unit) in [(months / 12, "year"), (months % 12, "mon"), (days, "day")] {
        if count == 0 {
            continue;
        }
        if out.len() > start {
            out.push(b' ');
        }
        if negative && count > 0 {
            out.push(b'+');
        }
        signed(out, i64::from(count));
        out.push(b' ');
        out.extend_from_slice(unit.as_bytes());
        if count != 1 {
            out.push(b's');
        }
        negative = count < 0;
    }
    let empty = out.len() == start;
    if empty || micros != 0 {
        if !empty {
            out.push(b' ');
        }
        if micros < 0 {
            out.push(b'-');
        } else if negative {
            out.push(b'+');
        }
        clock_of(out, micros.unsigned_abs());
    }
    out.push(b'"');
}

/// Appends the date, at least four digits of the year as people count it, and returns the
/// astronomical year, where 0 is 1 BC.
fn year_month_day(out: &mut Vec<u8>, since_2000: i64) -> i64 {
    // Years begin in March, so that the leap day is the last one.
    let day = since_2000 + EPOCH_FROM_MARCH;
    let (era, day) = (day.div_euclid(146_097), day.rem_euclid(146_097));
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, year) = if month < 10 { (month + 3, year) } else { (month - 9, year + 1) };
    let year = year + era * 400;
    padded(out, (if year > 0 { year } else { 1 - year }).unsigned_abs(), 4);
    for part in [month, day] {
        out.push(b'-');
        two(out, part.unsigned_abs());
    }
    year
}

/// Days since 2000-01-01 of a date after Christ.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let (month, year) = if month > 2 { (month - 3, year) } else { (month + 9, year - 1) };
    let (era, year) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = (153 * month + 2) / 5 + day - 1;
    era * 146_097 + 365 * year + year / 4 - year / 100 + of_year - EPOCH_FROM_MARCH
}

fn era(out: &mut Vec<u8>, year: i64) {
    if year <= 0 {
        out.extend_from_slice(b" BC");
    }
}

fn clock(out: &mut Vec<u8>, micros: i64) {
    if micros < 0 {
        out.push(b'-');
    }
    clock_of(out, micros.unsigned_abs());
}

fn clock_of(out: &mut Vec<u8>, micros: u64) {
    let (seconds, fraction) = (micros / 1_000_000, micros % 1_000_000);
    padded(out, seconds / 3600, 2);
    out.push(b':');
    two(out, seconds / 60 % 60);
    out.push(b':');
    two(out, seconds % 60);
    if fraction != 0 {
        out.push(b'.');
        padded(out, fraction, 6);
        while out.last() == Some(&b'0') {
            out.pop();
        }
    }
}

/// Seconds to the east of UTC: `+hh`, `+hh:mm` or `+hh:mm:ss`.
fn offset(zone: &[u8]) -> Option<i64> {
    let (sign, parts) = match zone {
        [b'+', parts @ ..] => (1, parts),
        [b'-', parts @ ..] => (-1, parts),
        _ => return None,
    };
    let (a, b, c) = match parts {
        [a, b] => ([*a, *b], *b"00", *b"00"),
        [a, b, b':', c, d] => ([*a, *b], [*c, *d], *b"00"),
        [a, b, b':', c, d, b':', e, f] => ([*a, *b], [*c, *d], [*e, *f]),
        _ => return None,
    };
    let sound = [a, b, c].as_flattened().iter().all(u8::is_ascii_digit);
    sound.then(|| sign * (value(&a) * 3600 + value(&b) * 60 + value(&c)))
}

/// Number of a few digits.
fn value(digits: &[u8]) -> i64 {
    digits.iter().fold(0, |value, digit| value * 10 + i64::from(digit.wrapping_sub(b'0')))
}

/// Digits at the start, and the rest.
fn digits(text: &[u8]) -> (&[u8], &[u8]) {
    let end = text.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
    text.split_at_checked(end).unwrap_or((text, b""))
}
