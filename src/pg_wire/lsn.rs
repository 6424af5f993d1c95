//! Positions in the write-ahead log.

use std::fmt;
use std::str::FromStr;

/// A byte position in the write-ahead log. Shown as Postgres shows it: `16/B374D848`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lsn(pub u64);

impl Lsn {
    /// `0/0`, which no record has: Postgres's word for "none".
    pub const INVALID: Lsn = Lsn(0);

    /// Whether this is `0/0`.
    pub fn is_invalid(self) -> bool {
        self == Lsn::INVALID
    }

    /// Bytes from `earlier` to here; zero if it is not earlier.
    pub fn bytes_since(self, earlier: Lsn) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:X}/{:X}", self.0 >> 32, self.0 & 0xffff_ffff)
    }
}

/// A text that is no position.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{seen:?} is not a log position; expected two hexadecimal numbers such as 16/B374D848")]
pub struct LsnError {
    /// What was there, cut where it is long.
    pub seen: String,
}

impl FromStr for Lsn {
    type Err = LsnError;

    fn from_str(text: &str) -> Result<Lsn, LsnError> {
        let half = |digits: &str| {
            let hex = (1..=8).contains(&digits.len())
                && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
            hex.then(|| u32::from_str_radix(digits, 16).ok()).flatten()
        };
        let halves = text.split_once('/').and_then(|(high, low)| Some((half(high)?, half(low)?)));
        let (high, low) =
            halves.ok_or_else(|| LsnError { seen: text.chars().take(40).collect() })?;
        Ok(Lsn(u64::from(high) << 32 | u64::from(low)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_number_agree_both_ways() {
        for (text, number) in [
            ("0/0", 0),
            ("16/B374D848", 0x16_B374_D848),
            ("1/0", 1 << 32),
            ("FFFFFFFF/FFFFFFFF", u64::MAX),
        ] {
            assert_eq!(text.parse(), Ok(Lsn(number)));
            assert_eq!(Lsn(number).to_string(), text);
        }
        assert_eq!("0016/b374d848".parse(), Ok(Lsn(0x16_B374_D848)));
    }

    #[test]
    fn anything_else_is_refused() {
        for text in
            ["", "/", "1", "1/", "/1", "1/2/3", "+1/2", "1/-2", "g/0", "123456789/0", " 1/2"]
        {
            assert!(text.parse::<Lsn>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn distance_never_wraps() {
        assert_eq!(Lsn(10).bytes_since(Lsn(4)), 6);
        assert_eq!(Lsn(4).bytes_since(Lsn(10)), 0);
    }
}
