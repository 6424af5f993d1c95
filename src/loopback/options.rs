//! Topic options: the catalogue of both server lines, and what a topic makes of a request.
//!
//! Values arrive typed or as text and are kept in the catalogue's kind. What a request leaves out
//! comes back in the derived block. The edge server knows `enforce_fsync`, the release knows the
//! two durability keys; a release broker here accepts all of them, so that one demo can mirror
//! from either line.

use std::collections::BTreeMap;

use bytes::{Bytes, BytesMut};
use iggy_binary_protocol::responses::system::{DescribeOptionsResponse, OptionDescriptor};
use iggy_binary_protocol::{WireName, WireOptions, encode_user_headers};

use super::core::Flavour;

/// Unknown key.
pub const BAD_KEY: u32 = 4041;
/// Value that does not fit its key.
pub const BAD_VALUE: u32 = 4042;

const TEXT: u8 = 2;
const BOOL: u8 = 3;
const U32: u8 = 11;
const U64: u8 = 12;

const MIN_SEGMENT: u64 = 1 << 20;
const MAX_SEGMENT: u64 = 1 << 30;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    Both,
    Edge,
    Release,
}

struct Key {
    name: &'static str,
    kind: u8,
    line: Line,
    description: &'static str,
}

const fn key(name: &'static str, kind: u8, line: Line, description: &'static str) -> Key {
    Key { name, kind, line, description }
}

/// In the order a server describes them.
const CATALOGUE: [Key; 10] = [
    key("compression_algorithm", TEXT, Line::Both, "none or gzip"),
    key("message_expiry", U64, Line::Both, "microseconds until a message may be removed"),
    key("max_topic_size", U64, Line::Both, "bytes after which the oldest segments go"),
    key("segment_size", U64, Line::Both, "bytes of a segment, a multiple of 512"),
    key("enforce_fsync", BOOL, Line::Edge, "fsync on every flush"),
    key("durability", TEXT, Line::Release, "what an ack means: replicated or persisted"),
    key("consumer_offset_durability", TEXT, Line::Release, "the same for consumer offsets"),
    key("messages_required_to_save", U32, Line::Both, "messages that trigger a flush"),
    key("size_of_messages_required_to_save", U64, Line::Both, "bytes that trigger a flush"),
    key("preallocate_segments", BOOL, Line::Both, "reserve a segment's bytes up front"),
];

/// What a topic was created with, and what follows from it.
#[derive(Clone, Debug, Default)]
pub struct TopicOptions {
    explicit: BTreeMap<&'static str, Bytes>,
}

impl TopicOptions {
    /// Takes over the options of a request; the error is a status code.
    pub fn merge(
        &mut self,
        wire: &WireOptions,
        flavour: Flavour,
        default_segment: u64,
    ) -> Result<(), u32> {
        let mut merged = self.explicit.clone();
        for entry in wire {
            let key = CATALOGUE
                .iter()
                .find(|key| key.name.as_bytes() == entry.key && accepts(flavour, key.line))
                .ok_or(BAD_KEY)?;
            let value = canonical(key, entry.value_kind.0, entry.value).ok_or(BAD_VALUE)?;
            merged.insert(key.name, value);
        }
        let merged = TopicOptions { explicit: merged };
        merged.validate(default_segment)?;
        *self = merged;
        Ok(())
    }

    /// The explicit block.
    pub fn explicit(&self) -> WireOptions {
        let keys = sorted(|key| self.explicit.contains_key(key.name));
        encode(keys.into_iter().map(|key| (key, self.explicit[key.name].clone())))
    }

    /// The derived block: effective values of the keys that were not sent.
    pub fn derived(&self, flavour: Flavour, default_segment: u64) -> WireOptions {
        let keys = sorted(|key| shown(flavour, key.line) && !self.explicit.contains_key(key.name));
        encode(keys.into_iter().map(|key| (key, default_value(key, default_segment))))
    }

    /// 1 none, 2 gzip.
    pub fn compression(&self) -> u8 {
        match self.explicit.get("compression_algorithm") {
            Some(value) if value.as_ref() == b"gzip" => 2,
            _ => 1,
        }
    }

    /// Microseconds, `u64::MAX` never.
    pub fn message_expiry(&self) -> u64 {
        self.number("message_expiry").filter(|&expiry| expiry != 0).unwrap_or(u64::MAX)
    }

    /// Bytes, `u64::MAX` unlimited.
    pub fn max_size(&self) -> u64 {
        self.number("max_topic_size").filter(|&size| size != 0).unwrap_or(u64::MAX)
    }

    /// Bytes after which a segment is sealed.
    pub fn segment_size(&self, default_segment: u64) -> u64 {
        self.number("segment_size").unwrap_or(default_segment)
    }

    fn number(&self, name: &str) -> Option<u64> {
        let value = self.explicit.get(name)?;
        Some(u64::from_le_bytes(value.as_ref().try_into().ok()?))
    }

    fn validate(&self, default_segment: u64) -> Result<(), u32> {
        if let Some(segment) = self.number("segment_size") {
            let fits = (MIN_SEGMENT..=MAX_SEGMENT).contains(&segment) && segment % 512 == 0;
            fits.then_some(()).ok_or(BAD_VALUE)?;
        }
        let roomy = self.max_size() >= self.segment_size(default_segment);
        roomy.then_some(()).ok_or(BAD_VALUE)?;
        let one_of = |name: &str, allowed: &[&[u8]]| {
            self.explicit.get(name).is_none_or(|value| allowed.contains(&value.as_ref()))
        };
        let durability: &[&[u8]] = &[b"replicated", b"persisted"];
        let known = one_of("compression_algorithm", &[b"none", b"gzip"])
            && one_of("durability", durability)
            && one_of("consumer_offset_durability", durability);
        known.then_some(()).ok_or(BAD_VALUE)
    }
}

/// The reply to a describe request for topics.
pub fn describe(flavour: Flavour, default_segment: u64) -> DescribeOptionsResponse {
    let entries =
        CATALOGUE.iter().filter(|key| shown(flavour, key.line)).map(|key| OptionDescriptor {
            key: WireName::new(key.name).expect("catalogue names are short"),
            kind: key.kind,
            default_value: default_value(key, default_segment),
            description: key.description.to_owned(),
        });
    DescribeOptionsResponse { entries: entries.collect() }
}

fn accepts(flavour: Flavour, line: Line) -> bool {
    flavour == Flavour::Release || line != Line::Release
}

fn shown(flavour: Flavour, line: Line) -> bool {
    match flavour {
        Flavour::Edge5 => line != Line::Release,
        Flavour::Release => line != Line::Edge,
    }
}

fn sorted(keep: impl Fn(&Key) -> bool) -> Vec<&'static Key> {
    let mut keys: Vec<_> = CATALOGUE.iter().filter(|key| keep(key)).collect();
    keys.sort_by_key(|key| key.name);
    keys
}

fn encode(entries: impl Iterator<Item = (&'static Key, Bytes)>) -> WireOptions {
    let mut block = BytesMut::new();
    for (key, value) in entries {
        encode_user_headers(&[(TEXT, key.name.as_bytes(), key.kind, &value)], &mut block);
    }
    WireOptions::from_validated(block.freeze())
}

fn default_value(key: &Key, default_segment: u64) -> Bytes {
    match key.name {
        "compression_algorithm" => Bytes::from_static(b"none"),
        "durability" | "consumer_offset_durability" => Bytes::from_static(b"replicated"),
        "messages_required_to_save" => Bytes::copy_from_slice(&1024u32.to_le_bytes()),
        "size_of_messages_required_to_save" => Bytes::copy_from_slice(&(1u64 << 20).to_le_bytes()),
        "segment_size" => Bytes::copy_from_slice(&default_segment.to_le_bytes()),
        _ if key.kind == BOOL => Bytes::from_static(&[0]),
        _ => Bytes::copy_from_slice(&u64::MAX.to_le_bytes()),
    }
}

/// The value in the key's kind, from that kind or from text.
fn canonical(key: &Key, kind: u8, value: &[u8]) -> Option<Bytes> {
    if kind == key.kind {
        let width = match kind {
            BOOL => 1,
            U32 => 4,
            U64 => 8,
            _ => value.len(),
        };
        let fits = value.len() == width && (kind != BOOL || value[0] <= 1);
        return fits.then(|| Bytes::copy_from_slice(value));
    }
    let text = std::str::from_utf8(value).ok().filter(|_| kind == TEXT)?.trim();
    match key.kind {
        BOOL => Some(Bytes::copy_from_slice(&[u8::from(text.parse::<bool>().ok()?)])),
        U32 => Some(Bytes::copy_from_slice(&text.parse::<u32>().ok()?.to_le_bytes())),
        // The real server reads this text as a duration, which needs a unit.
        U64 if key.name == "message_expiry" && text.bytes().all(|b| b.is_ascii_digit()) => None,
        U64 => Some(Bytes::copy_from_slice(&quantity(text)?.to_le_bytes())),
        _ => None,
    }
}

/// `123`, `64 MiB`, `7 days`, `never`, `unlimited`: bytes or microseconds.
fn quantity(text: &str) -> Option<u64> {
    if ["never", "never_expire", "unlimited", "none"].contains(&text) {
        return Some(u64::MAX);
    }
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..digits].parse().ok()?;
    let unit = match text[digits..].trim() {
        "" | "B" | "us" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "KB" | "ms" => 1_000,
        "MB" | "s" | "sec" => 1_000_000,
        "GB" => 1_000_000_000,
        "m" | "min" => 60_000_000,
        "h" | "hour" | "hours" => 3_600_000_000,
        "d" | "day" | "days" => 86_400_000_000,
        _ => return None,
    };
    number.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEGMENT: u64 = 1 << 30;

    fn wire(entries: &[(&str, u8, &[u8])]) -> WireOptions {
        let mut block = BytesMut::new();
        for (name, kind, value) in entries {
            encode_user_headers(&[(TEXT, name.as_bytes(), *kind, value)], &mut block);
        }
        WireOptions::from_bytes(block.freeze()).expect("test options are valid")
    }

    fn merged(flavour: Flavour, entries: &[(&str, u8, &[u8])]) -> Result<TopicOptions, u32> {
        let mut options = TopicOptions::default();
        options.merge(&wire(entries), flavour, SEGMENT).map(|()| options)
    }

    #[test]
    fn text_and_typed_numbers_are_the_same_option() {
        let text = merged(Flavour::Release, &[("message_expiry", TEXT, b"7 days")]);
        let typed = 604_800_000_000u64.to_le_bytes();
        let typed = merged(Flavour::Release, &[("message_expiry", U64, &typed)]);
        assert_eq!(text.expect("valid").explicit(), typed.expect("valid").explicit());
    }

    #[test]
    fn edge_refuses_durability_and_release_takes_both_lines() {
        let durability: &[(&str, u8, &[u8])] = &[("durability", TEXT, b"persisted")];
        assert_eq!(merged(Flavour::Edge5, durability).err(), Some(BAD_KEY));
        assert!(merged(Flavour::Release, durability).is_ok());
        assert!(merged(Flavour::Release, &[("enforce_fsync", BOOL, &[1])]).is_ok());
    }

    #[test]
    fn bad_values_are_named_as_such() {
        let bad: [(&str, u8, &[u8]); 5] = [
            ("segment_size", TEXT, b"1000"),
            ("max_topic_size", TEXT, b"4096"),
            ("durability", TEXT, b"sometimes"),
            ("message_expiry", TEXT, b"soon"),
            ("enforce_fsync", BOOL, &[2]),
        ];
        for entry in bad {
            assert_eq!(merged(Flavour::Release, &[entry]).err(), Some(BAD_VALUE), "{entry:?}");
        }
        assert_eq!(merged(Flavour::Release, &[("nope", TEXT, b"1")]).err(), Some(BAD_KEY));
    }

    #[test]
    fn a_key_is_either_explicit_or_derived() {
        let options = merged(Flavour::Release, &[("max_topic_size", TEXT, b"2 GiB")]);
        let options = options.expect("valid");
        let keys = |block: &WireOptions| block.iter().map(|e| e.key.to_vec()).collect::<Vec<_>>();
        assert_eq!(keys(&options.explicit()), [b"max_topic_size".to_vec()]);
        let derived = keys(&options.derived(Flavour::Release, SEGMENT));
        assert_eq!(derived.len(), 8);
        assert!(!derived.contains(&b"max_topic_size".to_vec()));
        assert_eq!(options.max_size(), 2 << 30);
    }
}
