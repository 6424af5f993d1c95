//! Floats as the server prints them: the shortest digits that read back to the same bits, with
//! an exponent where C's `%g` would have one.
//!
//! One rule is the server's own. Where the shortest digits lie exactly half-way between two
//! floats (1e23), reading them back relies on the reader's rounding; the server then prints the
//! next longer digits (9.999999999999999e+22), and so does this.

use std::fmt::Write;

use super::{json_string, number};

/// Digits of the server's `float4out` and `float8out` before an exponent appears.
const FLOAT4_WHOLE: i32 = 6;
const FLOAT8_WHOLE: i32 = 15;

pub(super) fn float4(out: &mut Vec<u8>, value: f32) {
    let bits = value.to_bits();
    let (fraction, power) = (bits & 0x7f_ffff, bits >> 23 & 0xff);
    let parts = Parts::new(u64::from(fraction), power, 1 << 23, 150);
    let reads = |text: &str| text.parse::<f32>().is_ok_and(|read| read == value.abs());
    if let Some(mut digits) = begin(out, f64::from(value)) {
        digits.read(ryu::Buffer::new().format_finite(value.abs()));
        let exact = f64::from(value.abs());
        digits.leave_the_middle(&parts, exact, 9, reads);
        digits.write(out, FLOAT4_WHOLE);
    }
}

pub(super) fn float8(out: &mut Vec<u8>, value: f64) {
    let bits = value.to_bits();
    let fraction = bits & 0xf_ffff_ffff_ffff;
    let power = u32::try_from(bits >> 52 & 0x7ff).unwrap_or_default();
    let parts = Parts::new(fraction, power, 1 << 52, 1075);
    let reads = |text: &str| text.parse::<f64>().is_ok_and(|read| read == value.abs());
    if let Some(mut digits) = begin(out, value) {
        digits.read(ryu::Buffer::new().format_finite(value.abs()));
        digits.leave_the_middle(&parts, value.abs(), 17, reads);
        digits.write(out, FLOAT8_WHOLE);
    }
}

/// Writes what is no number, or the sign of one; zero is done with it.
fn begin(out: &mut Vec<u8>, value: f64) -> Option<Digits> {
    if value.is_nan() {
        json_string(out, b"NaN");
        return None;
    }
    if value.is_infinite() {
        json_string(out, if value > 0.0 { b"Infinity" } else { b"-Infinity" });
        return None;
    }
    if value.is_sign_negative() {
        out.push(b'-');
    }
    if value == 0.0 {
        out.push(b'0');
        return None;
    }
    Some(Digits { text: [0; ROOM], length: 0, power: 0 })
}

/// Significant digits of a float at most, and what [`ryu`] pads them to.
const ROOM: usize = 32;

/// A positive decimal: `d.ddd` times ten to the `power`, neither end a zero.
struct Digits {
    text: [u8; ROOM],
    length: usize,
    power: i32,
}

impl Digits {
    /// From any decimal notation.
    fn read(&mut self, text: &str) {
        let (mut behind_point, mut length, mut power) = (false, 0usize, 0i32);
        let mut rest = text.as_bytes();
        while let Some((byte, after)) = rest.split_first() {
            rest = after;
            match byte {
                b'.' => behind_point = true,
                b'e' | b'E' => {
                    let exponent = text.get(text.len().saturating_sub(after.len())..);
                    power += exponent.and_then(|text| text.parse().ok()).unwrap_or(0);
                    break;
                }
                // In front of the first digit a zero behind the point shifts, another is nothing.
                b'0' if length == 0 => power -= i32::from(behind_point),
                digit => {
                    if let Some(place) = self.text.get_mut(length) {
                        *place = *digit;
                    }
                    // The first digit stands in front of the point of this notation.
                    power += match (length, behind_point) {
                        (0, true) => -1,
                        (0, false) | (_, true) => 0,
                        (_, false) => 1,
                    };
                    length += 1;
                }
            }
        }
        self.length = length;
        while let Some((b'0', _)) = self.digits().split_last() {
            self.length -= 1;
        }
        self.power = power;
    }

    fn digits(&self) -> &[u8] {
        self.text.get(..self.length).unwrap_or_default()
    }

    /// The digits as a whole number and the power of ten it is to be multiplied with.
    fn whole(&self) -> (u64, i32) {
        let number = self.digits().iter().fold(0u64, |number, digit| {
            number.wrapping_mul(10).wrapping_add(u64::from(digit.wrapping_sub(b'0')))
        });
        let behind = i32::try_from(self.length).unwrap_or(i32::MAX).saturating_sub(1);
        (number, self.power.saturating_sub(behind))
    }

    /// Takes the next longer digits while these lie half-way to a neighbour: a handful of
    /// numbers, all of them large and even.
    fn leave_the_middle(
        &mut self,
        parts: &Parts,
        value: f64,
        most: usize,
        reads: impl Fn(&str) -> bool,
    ) {
        let (number, power) = self.whole();
        if !parts.is_middle(number, power) {
            return;
        }
        for length in self.length..=most {
            let mut text = Notation::default();
            // The notation is long enough for 17 digits and an exponent.
            let _ = write!(text, "{value:.*e}", length.saturating_sub(1));
            for _ in 0..2 {
                self.read(text.as_str());
                let (number, power) = self.whole();
                if reads(text.as_str()) && !parts.is_middle(number, power) {
                    return;
                }
                // Below a power of two floats are closer than above: try the decimal above.
                text = Notation::default();
                let (number, power) = raised(number, power, length);
                let _ = write!(text, "{number}e{power}");
            }
        }
    }

    fn write(&self, out: &mut Vec<u8>, largest_whole: i32) {
        let digits = self.digits();
        let Some((first, others)) = digits.split_first() else { return };
        if self.power < -4 || self.power >= largest_whole {
            out.push(*first);
            if !others.is_empty() {
                out.push(b'.');
                out.extend_from_slice(others);
            }
            out.push(b'e');
            out.push(if self.power < 0 { b'-' } else { b'+' });
            number::padded(out, u64::from(self.power.unsigned_abs()), 2);
        } else if let Ok(power) = usize::try_from(self.power) {
            let whole = power.saturating_add(1);
            match digits.split_at_checked(whole) {
                Some((whole, [])) => out.extend_from_slice(whole),
                Some((whole, behind)) => {
                    out.extend_from_slice(whole);
                    out.push(b'.');
                    out.extend_from_slice(behind);
                }
                None => {
                    out.extend_from_slice(digits);
                    out.extend((digits.len()..whole).map(|_| b'0'));
                }
            }
        } else {
            out.extend_from_slice(b"0.");
            out.extend((self.power..-1).map(|_| b'0'));
            out.extend_from_slice(digits);
        }
    }
}

/// The next decimal of `length` digits above.
fn raised(mut number: u64, mut power: i32, length: usize) -> (u64, i32) {
    let mut digits = number.checked_ilog10().map_or(1, |log| log.saturating_add(1));
    let length = u32::try_from(length).unwrap_or(u32::MAX);
    while digits < length {
        number = number.saturating_mul(10);
        power = power.saturating_sub(1);
        digits = digits.saturating_add(1);
    }
    (number.saturating_add(1), power)
}

/// A float as `mantissa * 2^power`, for exact comparison.
struct Parts {
    mantissa: u64,
    power: i32,
    /// The neighbour below is at half the distance of the one above.
    narrow_below: bool,
}

impl Parts {
    fn new(fraction: u64, biased: u32, hidden: u64, bias: i32) -> Parts {
        let (mantissa, biased) =
            if biased == 0 { (fraction, 1) } else { (fraction | hidden, biased) };
        let power = i32::try_from(biased).unwrap_or(i32::MAX).saturating_sub(bias);
        Parts { mantissa, power, narrow_below: fraction == 0 && biased > 1 }
    }

    /// Whether `number * 10^power` lies exactly half-way to a neighbour.
    fn is_middle(&self, number: u64, power: i32) -> bool {
        let above = (self.mantissa.saturating_mul(2).saturating_add(1), 1);
        let below = if self.narrow_below {
            (self.mantissa.saturating_mul(4).saturating_sub(1), 2)
        } else {
            (self.mantissa.saturating_mul(2).saturating_sub(1), 1)
        };
        [above, below].into_iter().any(|(odd, shift)| {
            same_value(u128::from(number), power, u128::from(odd), self.power - shift)
        })
    }
}

/// Whether `number * 10^ten` equals `odd * 2^two`. Both sides without their factors of two must
/// be the same odd number; a larger power of five than 27 cannot divide what a float can hold.
fn same_value(number: u128, ten: i32, odd: u128, two: i32) -> bool {
    // The left side has at least `ten` factors of two; this is the answer for nearly all.
    if two < ten {
        return false;
    }
    let Some(fives) = 5u128.checked_pow(ten.unsigned_abs()).filter(|_| ten.unsigned_abs() <= 27)
    else {
        return false;
    };
    let (left, right) = if ten >= 0 { (number * fives, odd) } else { (number, odd * fives) };
    let zeros = i32::try_from(left.trailing_zeros()).unwrap_or(i32::MAX);
    left >> left.trailing_zeros().min(127) == right && zeros.saturating_add(ten) == two
}

/// Room for one float in scientific notation.
#[derive(Default)]
struct Notation {
    text: [u8; ROOM],
    length: usize,
}

impl Notation {
    fn as_str(&self) -> &str {
        let text = self.text.get(..self.length).unwrap_or_default();
        std::str::from_utf8(text).unwrap_or_default()
    }
}

impl Write for Notation {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        let end = self.length.checked_add(text.len()).ok_or(std::fmt::Error)?;
        let place = self.text.get_mut(self.length..end).ok_or(std::fmt::Error)?;
        place.copy_from_slice(text.as_bytes());
        self.length = end;
        Ok(())
    }
}
