//! Text as a JSON string.

/// Appends `text` as a JSON string. A sequence that is not UTF-8 (possible only where the
/// database's encoding is `SQL_ASCII`) becomes U+FFFD, so the result is always valid JSON.
#[inline]
pub fn json_string(out: &mut Vec<u8>, text: &[u8]) {
    out.reserve(text.len().saturating_add(2));
    out.push(b'"');
    match is_plain(text) {
        true => out.extend_from_slice(text),
        false => inside(out, text),
    }
    out.push(b'"');
}

/// ASCII of which nothing has to be escaped: eight bytes at a time, the last ones twice.
#[inline]
fn is_plain(text: &[u8]) -> bool {
    let Some(last) = text.last_chunk() else { return is_plain_word(text) };
    let (words, _) = text.as_chunks::<8>();
    words.iter().fold(odd(*last), |found, word| found | odd(*word)) == 0
}

/// The same of fewer than eight bytes.
#[inline]
fn is_plain_word(text: &[u8]) -> bool {
    let mut word = [b' '; 8];
    if let Some(place) = word.get_mut(..text.len()) {
        place.copy_from_slice(text);
    }
    odd(word) == 0
}

/// Not zero if one of eight bytes is not ASCII, or has to be escaped.
#[inline]
fn odd(word: [u8; 8]) -> u64 {
    let word = u64::from_le_bytes(word);
    (marks(word) | word) & HIGH
}

const ONES: u64 = 0x0101_0101_0101_0101;
const HIGH: u64 = 0x8080_8080_8080_8080;

/// The high bit of bytes that must be escaped; above the first such byte it may be wrong.
#[inline]
fn marks(word: u64) -> u64 {
    let zero = |word: u64| word.wrapping_sub(ONES) & !word & HIGH;
    let control = word.wrapping_sub(ONES * 0x20) & !word & HIGH;
    control | zero(word ^ (ONES * 0x22)) | zero(word ^ (ONES * 0x5c))
}

/// Whether it is UTF-8; most of it is ASCII, which is told faster.
#[inline]
pub(super) fn is_utf8(text: &[u8]) -> bool {
    is_ascii(text) || std::str::from_utf8(text).is_ok()
}

/// Faster than the library's on the lengths of usual values, and as soon done with others.
#[inline]
fn is_ascii(text: &[u8]) -> bool {
    let (blocks, rest) = text.as_chunks::<64>();
    let high = |block: &[u8; 64]| {
        let words = block.as_chunks::<8>().0.iter();
        words.fold(0, |found, word| found | u64::from_le_bytes(*word)) & HIGH
    };
    blocks.iter().all(|block| high(block) == 0) && rest.is_ascii()
}

/// Bytes of [`inside`], if the text is UTF-8.
pub(super) fn escaped_len(text: &[u8]) -> usize {
    let length = |byte: &u8| match byte {
        b'"' | b'\\' | b'\n' | b'\r' | b'\t' | 8 | 12 => 2,
        0..0x20 => 6,
        _ => 1,
    };
    text.iter().map(length).sum()
}

/// What stands between the quotes.
pub(super) fn inside(out: &mut Vec<u8>, text: &[u8]) {
    if std::str::from_utf8(text).is_ok() {
        return escaped(out, text);
    }
    for chunk in text.utf8_chunks() {
        escaped(out, chunk.valid().as_bytes());
        if !chunk.invalid().is_empty() {
            out.extend_from_slice("\u{fffd}".as_bytes());
        }
    }
}

/// Runs without special bytes are copied whole.
fn escaped(out: &mut Vec<u8>, mut text: &[u8]) {
    loop {
        let Some((plain, rest)) = text.split_at_checked(special(text)) else { return };
        out.extend_from_slice(plain);
        let Some((byte, rest)) = rest.split_first() else { return };
        match byte {
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            8 => out.extend_from_slice(b"\\b"),
            12 => out.extend_from_slice(b"\\f"),
            byte => {
                out.extend_from_slice(b"\\u00");
                super::bytea::hex(out, *byte);
            }
        }
        text = rest;
    }
}

/// Place of the first byte that must be escaped, or the length: eight bytes at a time.
fn special(text: &[u8]) -> usize {
    let mut rest = text;
    while let Some((chunk, after)) = rest.split_first_chunk::<8>() {
        if marks(u64::from_le_bytes(*chunk)) != 0 {
            break;
        }
        rest = after;
    }
    let plain = |byte: &u8| *byte >= 0x20 && *byte != b'"' && *byte != b'\\';
    let tail = rest.iter().position(|byte| !plain(byte)).unwrap_or(rest.len());
    text.len().saturating_sub(rest.len()).saturating_add(tail)
}
