//! From a row's key to a partition, as the server would choose it: XXH32 with seed 0 of the key's
//! bytes, modulo the topic's number of partitions. Choosing here lets rows of different keys
//! share a request and keeps the order of a partition in our hands.
//!
//! ```text
//! bytes         the text of the value
//! key_u32       4 bytes, little-endian
//! identity      one column: its text; several: each as length:4 text, NULL as ff ff ff ff
//! ```
//! A row without a key (NULL, missing, no column) is balanced, which is no error.

use std::hash::Hasher;

use twox_hash::XxHash32;

use crate::config::KeyEncoding;

/// More than any topic has: a lane that nothing is sent from.
pub const NOWHERE: u32 = u32::MAX;
/// Most partitions a topic can have.
pub const MOST_PARTITIONS: u32 = 1000;

/// Which partition a message should go to, as far as its row says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// Any.
    Balanced,
    /// The one that this hash falls on.
    Hash(u32),
    /// This one; [`NOWHERE`] where the value is no number of a partition.
    Id(u32),
}

/// The server's hash of a key.
pub fn hash(key: &[u8]) -> u32 {
    XxHash32::oneshot(0, key)
}

/// The wish of a key column's text.
pub fn wish(encoding: KeyEncoding, text: &[u8]) -> Wish {
    match encoding {
        KeyEncoding::Bytes => Wish::Hash(hash(text)),
        KeyEncoding::KeyU32 => match whole(text) {
            Some(number) => Wish::Hash(hash(&number.to_le_bytes())),
            None => Wish::Id(NOWHERE),
        },
        KeyEncoding::PartitionId => {
            let id = whole(text).filter(|id| *id < MOST_PARTITIONS);
            Wish::Id(id.unwrap_or(NOWHERE))
        }
    }
}

/// The wish of a row whose key columns' texts are these; `None` is NULL.
pub fn identity<'a>(columns: usize, mut texts: impl Iterator<Item = Option<&'a [u8]>>) -> Wish {
    if columns <= 1 {
        return match texts.next().flatten() {
            Some(text) => Wish::Hash(hash(text)),
            None => Wish::Balanced,
        };
    }
    let mut hasher = XxHash32::with_seed(0);
    for text in texts {
        let length = text.and_then(|text| u32::try_from(text.len()).ok()).unwrap_or(u32::MAX);
        hasher.write(&length.to_le_bytes());
        hasher.write(text.unwrap_or_default());
    }
    Wish::Hash(hasher.finish_32())
}

/// The partition of a hash among `count` of them; 0 for a topic that has none.
pub fn among(hash: u32, count: u32) -> u32 {
    hash.checked_rem(count).unwrap_or(0)
}

/// Decimal digits as a number.
fn whole(text: &[u8]) -> Option<u32> {
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    text.iter().try_fold(0u32, |sum, digit| {
        sum.checked_mul(10)?.checked_add(u32::from(digit.wrapping_sub(b'0')))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hashes computed by an independent implementation of the published algorithm.
    const VECTORS: [(&[u8], u32); 8] = [
        (b"abc", 0x32d1_53ff),
        (b"", 0x02cc_5d05),
        (b"a", 0x550d_7456),
        (b"user-1", 0xa43f_b6ad),
        (b"user-42", 0x6181_9a7e),
        (b"\x07\x00\x00\x00", 0xe68b_c8f8),
        (b"\xff\xff\xff\xff", 0x0407_9e5f),
        (b"a rather long key, 40 bytes and more than that", 0xa39f_773d),
    ];

    #[test]
    fn the_hash_is_the_published_one() {
        for (key, expected) in VECTORS {
            assert_eq!(hash(key), expected, "{key:?}");
        }
    }

    /// A recorded send with key "abc" to a topic of two partitions was confirmed for partition 1.
    #[test]
    fn the_partition_is_the_one_a_server_chose() {
        assert_eq!(among(hash(b"abc"), 2), 1);
        assert_eq!(among(hash(b"abc"), 1), 0);
        assert_eq!(among(hash(b"user-42"), 1000), 646);
        assert_eq!(among(5, 0), 0);
    }

    #[test]
    fn encodings_turn_text_into_keys() {
        let wish_of = |encoding, text: &str| wish(encoding, text.as_bytes());
        assert_eq!(wish_of(KeyEncoding::Bytes, "7"), Wish::Hash(hash(b"7")));
        assert_eq!(wish_of(KeyEncoding::KeyU32, "7"), Wish::Hash(0xe68b_c8f8));
        assert_eq!(wish_of(KeyEncoding::KeyU32, "4294967295"), Wish::Hash(0x0407_9e5f));
        assert_eq!(wish_of(KeyEncoding::PartitionId, "7"), Wish::Id(7));
        assert_eq!(wish_of(KeyEncoding::PartitionId, "999"), Wish::Id(999));
        for text in ["", "-1", "+1", "1.0", "4294967296", "99999999999999999999", "x", " 1"] {
            assert_eq!(wish_of(KeyEncoding::KeyU32, text), Wish::Id(NOWHERE), "{text}");
            assert_eq!(wish_of(KeyEncoding::PartitionId, text), Wish::Id(NOWHERE), "{text}");
        }
        assert_eq!(wish_of(KeyEncoding::PartitionId, "1000"), Wish::Id(NOWHERE));
    }

    #[test]
    fn key_columns_never_run_into_each_other() {
        let of = |texts: &[Option<&str>]| {
            identity(texts.len(), texts.iter().map(|text| text.map(str::as_bytes)))
        };
        assert_eq!(of(&[Some("abc")]), Wish::Hash(hash(b"abc")), "as a column of that text");
        assert_eq!((of(&[]), of(&[None])), (Wish::Balanced, Wish::Balanced));
        let pairs = [
            of(&[Some("ab"), Some("c")]),
            of(&[Some("a"), Some("bc")]),
            of(&[Some("abc"), Some("")]),
            of(&[Some("abc"), None]),
            of(&[None, Some("abc")]),
            of(&[Some("ab"), Some("c"), Some("")]),
        ];
        for (index, wish) in pairs.iter().enumerate() {
            assert!(!pairs[..index].contains(wish), "{index}");
        }
        let joined = [2u32.to_le_bytes().as_slice(), b"ab", &1u32.to_le_bytes(), b"c"].concat();
        assert_eq!(pairs[0], Wish::Hash(hash(&joined)), "the documented joint");
    }
}
