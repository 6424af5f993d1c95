//! Durations and sizes as strings: a number and its unit, nothing implied.

use std::time::Duration;

/// Reads `"500ms"`, `"10s"`, `"1m"`, `"2h"`, `"1d"`.
pub(super) fn duration(text: &str) -> Result<Duration, &'static str> {
    let (number, unit) = split(text).ok_or("a whole number and a unit, such as \"10s\"")?;
    let millis_per_unit: u64 = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        "" => return Err("a unit after the number: ms, s, m, h or d"),
        _ => return Err("one of the units ms, s, m, h, d"),
    };
    number
        .checked_mul(millis_per_unit)
        .filter(|millis| *millis <= LONGEST_MILLIS)
        .map(Duration::from_millis)
        .ok_or("at most 365d")
}

/// Reads `"8MiB"`, `"64KiB"`, `"1GiB"`, `"512B"`, and plain bytes, `"4096"`.
pub(super) fn size(text: &str) -> Result<u64, &'static str> {
    let (number, unit) = split(text).ok_or("a whole number and a unit, such as \"8MiB\"")?;
    let bytes_per_unit: u64 = match unit {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "KB" | "MB" | "GB" | "kB" | "K" | "M" | "G" => {
            return Err("a binary unit: KiB, MiB or GiB (1 KiB = 1024 bytes)");
        }
        _ => return Err("one of the units B, KiB, MiB, GiB, or none for bytes"),
    };
    number.checked_mul(bytes_per_unit).ok_or("a size below 16 EiB")
}

/// A duration as the configuration would write it.
pub(super) fn show_duration(value: Duration) -> String {
    let millis = value.as_millis();
    for (unit, per_unit) in [("h", 3_600_000), ("m", 60_000), ("s", 1_000)] {
        if millis >= per_unit && millis.is_multiple_of(per_unit) {
            return format!("{}{unit}", millis / per_unit);
        }
    }
    format!("{millis}ms")
}

/// A size as the configuration would write it, exact.
pub(super) fn show_size(bytes: u64) -> String {
    for (unit, shift) in [("GiB", 30), ("MiB", 20), ("KiB", 10)] {
        if bytes >= 1 << shift && bytes.is_multiple_of(1 << shift) {
            return format!("{}{unit}", bytes >> shift);
        }
    }
    format!("{bytes}B")
}

const LONGEST_MILLIS: u64 = 365 * 86_400_000;

/// Leading digits and the rest, without blanks between or around.
fn split(text: &str) -> Option<(u64, &str)> {
    let text = text.trim();
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    Some((number.parse().ok()?, unit.trim_start()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_need_a_known_unit() {
        for (text, millis) in [
            ("500ms", 500),
            ("10s", 10_000),
            ("1m", 60_000),
            ("2h", 7_200_000),
            (" 1 d ", 86_400_000),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in
            ["10", "", "s", "1.5s", "-1s", "1 minute", "1m30s", "366d", "99999999999999999d"]
        {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_are_binary_or_plain_bytes() {
        for (text, bytes) in [
            ("8MiB", 8 << 20),
            ("64KiB", 64 << 10),
            ("2GiB", 2 << 30),
            ("4096", 4096),
            ("512B", 512),
            ("1 KiB", 1024),
        ] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for text in ["8MB", "", "MiB", "1.5MiB", "-1", "8mib", "99999999999GiB"] {
            assert!(size(text).is_err(), "{text}");
        }
        assert!(size("8MB").unwrap_err().contains("MiB"));
    }

    #[test]
    fn shown_values_read_back() {
        for millis in [1, 999, 1_000, 61_000, 120_000, 7_200_000] {
            let value = Duration::from_millis(millis);
            assert_eq!(duration(&show_duration(value)), Ok(value));
        }
        for bytes in [1, 1023, 1024, 8 << 20, (8 << 20) + 1, 3 << 30] {
            assert_eq!(size(&show_size(bytes)), Ok(bytes));
        }
    }
}
