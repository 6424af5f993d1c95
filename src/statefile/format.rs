//! The bytes of a state file: a fixed header, an archived body, zeros up to a multiple of 4 KiB.
//!
//! ```text
//!   0         8        12         16         24           32        48         56         64
//!   ├─ magic ─┼─ ver ──┼─ header ─┼─ body ───┼─ gener- ───┼─ body ──┼─ zero ───┼─ header ─┤
//!   │  8 B    │  u32   │  len u32 │  len u64 │  ation u64 │  XXH3-  │  8 B     │  XXH3-64 │
//!   │         │        │  = 64    │          │            │  128    │          │  of 0–55 │
//!   ├─────────┴────────┴──────────┴──────────┴────────────┴─────────┴──────────┴──────────┤
//!   │ 64 … 64 + body len: rkyv archive of `Body`, its root at the end                      │
//!   ├──────────────────────────────────────────────────────────────────────────────────────┤
//!   │ zeros up to the next multiple of 4096, which is the length of the file               │
//!   └──────────────────────────────────────────────────────────────────────────────────────┘
//! ```
//! Little endian. Refuses (S2) whatever is not exactly what one [`encode`] made; never repairs.

use std::collections::HashSet;
use std::fmt;

use rkyv::rancor;
use rkyv::util::AlignedVec;
use twox_hash::{XxHash3_64, XxHash3_128};

use super::archive::{ArchivedBody, ArchivedBodyV1, ArchivedBodyV2, Body};
use super::inspect::{is_source_key, parse_file_name};
use super::{FeedState, MAX_GAPS, SourceState, capture};

/// Length of a file is a multiple of this: O_DIRECT works in whole blocks.
pub const BLOCK: usize = 4096;
/// Bytes before the body.
pub const HEADER_LEN: usize = 64;
/// The version this program writes. It reads this one and all before it.
pub const VERSION: u32 = 3;
/// The oldest version it reads: mirrors alone.
pub const OLDEST_VERSION: u32 = 1;
/// First bytes of a file. Not text, and a newline that text tools would change.
pub const MAGIC: [u8; 8] = *b"\x89TDGATE\n";

/// Why bytes are not a state file of ours. Names the file, what was seen and expected, and what
/// to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormatError {
    /// File as the caller named it.
    pub file: String,
    /// What is wrong with it.
    pub fault: Fault,
}

/// What is wrong with the bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// No bytes at all.
    #[error("the file is empty, expected at least {BLOCK} bytes")]
    Empty,
    /// Ends before its own end.
    #[error("cut: {have} bytes, expected {need}")]
    Cut {
        /// Length seen.
        have: u64,
        /// Length by the header, or of the smallest file when the header itself is cut.
        need: u64,
    },
    /// Goes on after its own end.
    #[error("longer than it says: {have} bytes, expected {need}")]
    Longer {
        /// Length seen.
        have: u64,
        /// Length by the header.
        need: u64,
    },
    /// Not a state file.
    #[error("not a state file: it starts with {}, expected {}", Hex(.seen), Hex(&MAGIC))]
    BadMagic {
        /// First bytes seen.
        seen: [u8; 8],
    },
    /// Written by a later release.
    #[error("format version {seen}, this program reads versions {OLDEST_VERSION} to {known}")]
    NewerVersion {
        /// Version seen.
        seen: u32,
        /// [`VERSION`].
        known: u32,
    },
    /// The header was changed after it was written.
    #[error("header checksum is {seen:#018x}, expected {expected:#018x}")]
    HeaderChecksum {
        /// Of the bytes as they are.
        seen: u64,
        /// As stored.
        expected: u64,
    },
    /// The header is intact and says what no writer of this version says.
    #[error("header field {field} is {seen}, expected {expected}")]
    BadHeader {
        /// Name in the diagram.
        field: &'static str,
        /// Value seen.
        seen: u64,
        /// Value expected.
        expected: u64,
    },
    /// The body was changed after it was written.
    #[error("body checksum is {seen:#034x}, expected {expected:#034x}")]
    BodyChecksum {
        /// Of the bytes as they are.
        seen: u128,
        /// As stored.
        expected: u128,
    },
    /// Bytes after the body are not zero.
    #[error("byte {offset} behind the body is {seen:#04x}, expected zero")]
    BadPadding {
        /// Offset in the file.
        offset: u64,
        /// Byte seen.
        seen: u8,
    },
    /// The body is intact and is not an archive.
    #[error("the body is not a valid archive: {0}")]
    BadBody(String),
    /// The archive is valid and its values contradict each other or the file's name.
    #[error("{place}: {seen}, expected {expected}")]
    Inconsistent {
        /// Which entry.
        place: String,
        /// What it says.
        seen: String,
        /// What it should say.
        expected: &'static str,
    },
}

/// The bytes of a state file, a multiple of [`BLOCK`] long.
///
/// # Panics
/// If `state` contradicts itself: a file that no start would read must not replace a good one.
pub fn encode(state: &SourceState) -> Vec<u8> {
    if let Err(fault) = check(state) {
        panic!("inconsistent state of source {:?} is not saved: {fault}", state.source);
    }
    let body = rkyv::to_bytes::<rancor::Error>(&Body::from(state))
        .expect("serializing into memory fails only beyond 2 GiB, far above MAX_GAPS × feeds");
    let mut image = Vec::with_capacity((HEADER_LEN + body.len()).next_multiple_of(BLOCK));
    image.extend_from_slice(&header(VERSION, state.generation, &body));
    image.extend_from_slice(&body);
    image.resize(image.len().next_multiple_of(BLOCK), 0);
    image
}

/// The state in `bytes`. `file` names the file in errors; when its last part is a state file's
/// name, source and shard must be those of the name.
pub fn decode(bytes: &[u8], file: &str) -> Result<SourceState, FormatError> {
    decode_unnamed(bytes)
        .and_then(|state| check_name(&state, file).map(|()| state))
        .map_err(|fault| FormatError { file: file.to_owned(), fault })
}

impl Fault {
    /// What an operator should do.
    pub fn advice(&self) -> &'static str {
        match self {
            Fault::NewerVersion { .. } => {
                "start the release that wrote it, or put back the file saved before the upgrade"
            }
            Fault::BadMagic { .. } => {
                "move the file out of state_dir if it is not Tidegate's; otherwise put back a \
                 backup or run `tidegate state reset`"
            }
            Fault::Inconsistent { .. } => {
                "give the file its own name back if it was renamed; otherwise put back a backup \
                 or run `tidegate state reset`"
            }
            _ => {
                "check the disk, then put back a backup or run `tidegate state reset` \
                 (on_corrupt_state = \"reset\" does so at start)"
            }
        }
    }
}

impl fmt::Display for FormatError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "state file {}: {}; {}", self.file, self.fault, self.fault.advice())
    }
}

impl std::error::Error for FormatError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.fault)
    }
}

fn header(version: u32, generation: u64, body: &[u8]) -> [u8; HEADER_LEN] {
    let mut header = [0; HEADER_LEN];
    header[0..8].copy_from_slice(&MAGIC);
    header[8..12].copy_from_slice(&version.to_le_bytes());
    header[12..16].copy_from_slice(&(HEADER_LEN as u32).to_le_bytes());
    header[16..24].copy_from_slice(&(body.len() as u64).to_le_bytes());
    header[24..32].copy_from_slice(&generation.to_le_bytes());
    header[32..48].copy_from_slice(&XxHash3_128::oneshot(body).to_le_bytes());
    let sum = XxHash3_64::oneshot(&header[..56]);
    header[56..64].copy_from_slice(&sum.to_le_bytes());
    header
}

/// A header that passed its checks.
struct Header {
    version: u32,
    body_len: usize,
    generation: u64,
    body_sum: u128,
}

fn decode_unnamed(bytes: &[u8]) -> Result<SourceState, Fault> {
    let header = read_header(bytes)?;
    let (body, padding) = bytes[HEADER_LEN..].split_at(header.body_len);
    let seen = XxHash3_128::oneshot(body);
    if seen != header.body_sum {
        return Err(Fault::BodyChecksum { seen, expected: header.body_sum });
    }
    if let Some(at) = padding.iter().position(|b| *b != 0) {
        let offset = (HEADER_LEN + header.body_len + at) as u64;
        return Err(Fault::BadPadding { offset, seen: padding[at] });
    }
    let state = read_body(body, &header)?;
    check(&state)?;
    Ok(state)
}

fn read_header(bytes: &[u8]) -> Result<Header, Fault> {
    if bytes.is_empty() {
        return Err(Fault::Empty);
    }
    let have = bytes.len() as u64;
    let Some(header) = bytes.first_chunk::<HEADER_LEN>() else {
        return Err(Fault::Cut { have, need: BLOCK as u64 });
    };
    let magic = field::<8>(header, 0);
    if magic != MAGIC {
        return Err(Fault::BadMagic { seen: magic });
    }
    // Every later version keeps magic, version and this checksum where they are: a flipped bit in
    // the version is damage, not news.
    let (seen, expected) = (XxHash3_64::oneshot(&header[..56]), u64_at(header, 56));
    if seen != expected {
        return Err(Fault::HeaderChecksum { seen, expected });
    }
    let version = u32::from_le_bytes(field(header, 8));
    if version > VERSION {
        return Err(Fault::NewerVersion { seen: version, known: VERSION });
    }
    if version < OLDEST_VERSION {
        let (seen, expected) = (u64::from(version), u64::from(OLDEST_VERSION));
        return Err(Fault::BadHeader { field: "version", seen, expected });
    }
    let fixed = [
        ("header len", u64::from(u32::from_le_bytes(field(header, 12))), HEADER_LEN as u64),
        ("zero", u64_at(header, 48), 0),
    ];
    for (field, seen, expected) in fixed {
        if seen != expected {
            return Err(Fault::BadHeader { field, seen, expected });
        }
    }
    let body_len = u64_at(header, 16);
    let need = body_len.saturating_add(HEADER_LEN as u64);
    let need = need.checked_next_multiple_of(BLOCK as u64).unwrap_or(u64::MAX);
    if have < need {
        return Err(Fault::Cut { have, need });
    }
    if have > need {
        return Err(Fault::Longer { have, need });
    }
    // Fits: the file is in memory and longer than its body.
    let body_len = body_len as usize;
    let body_sum = u128::from_le_bytes(field(header, 32));
    Ok(Header { version, body_len, generation: u64_at(header, 24), body_sum })
}

/// Validated where it lies; copied only when the caller's buffer does not suit the archive.
fn read_body(body: &[u8], header: &Header) -> Result<SourceState, Fault> {
    let copy: AlignedVec;
    let aligned = if body.as_ptr().addr().is_multiple_of(AlignedVec::<16>::ALIGNMENT) {
        body
    } else {
        let mut aligned = AlignedVec::with_capacity(body.len());
        aligned.extend_from_slice(body);
        copy = aligned;
        &copy
    };
    let bad = |error: rancor::Error| Fault::BadBody(error.to_string());
    let generation = header.generation;
    Ok(match header.version {
        1 => {
            let archived = rkyv::access::<ArchivedBodyV1, rancor::Error>(aligned).map_err(bad)?;
            archived.to_state(generation)
        }
        2 => {
            let archived = rkyv::access::<ArchivedBodyV2, rancor::Error>(aligned).map_err(bad)?;
            archived.to_state(generation)
        }
        _ => {
            let archived = rkyv::access::<ArchivedBody, rancor::Error>(aligned).map_err(bad)?;
            archived.to_state(generation)
        }
    })
}

/// What the archive's types cannot say.
fn check(state: &SourceState) -> Result<(), Fault> {
    if !is_source_key(&state.source) {
        let seen = format!("key {:?}", state.source);
        return inconsistent("source".to_owned(), seen, "one or more of a-z, 0-9, _, -");
    }
    let mut known = HashSet::with_capacity(state.feeds.len());
    for feed in &state.feeds {
        check_feed(feed)?;
        if !known.insert((&feed.upstream, &feed.downstream, feed.partition)) {
            return inconsistent(place(feed), "a second entry".to_owned(), "one entry per feed");
        }
    }
    let mut slots = HashSet::with_capacity(state.captures.len());
    for entry in &state.captures {
        capture::check(entry)?;
        if !slots.insert(&entry.slot) {
            let place = format!("slot {:?}", entry.slot);
            return inconsistent(place, "a second entry".to_owned(), "one entry per slot");
        }
    }
    Ok(())
}

fn check_feed(feed: &FeedState) -> Result<(), Fault> {
    let bad = |seen: String, expected| inconsistent(place(feed), seen, expected);
    for name in [
        &feed.upstream.stream,
        &feed.upstream.topic,
        &feed.downstream.stream,
        &feed.downstream.topic,
    ] {
        if name.is_empty() || name.len() > 255 || name.contains('\0') {
            return bad(format!("name {name:?}"), "1 to 255 bytes without NUL");
        }
    }
    if !feed.deltas.is_sorted_by(|a, b| a.from_upstream < b.from_upstream) {
        return bad(format!("delta pieces {:?}", feed.deltas), "ascending by from_upstream");
    }
    let position = feed.position;
    let Some(piece) = feed.deltas.iter().rev().find(|d| d.from_upstream <= position) else {
        let seen = format!("position {position}, delta pieces {:?}", feed.deltas);
        return bad(seen, "a piece that covers the position");
    };
    let downstream = i128::from(position) + i128::from(piece.delta);
    if u64::try_from(downstream).is_err() {
        let seen = format!("position {position} with delta {}", piece.delta);
        return bad(seen, "a destination offset from 0 to 2^64 - 1");
    }
    if let Some(last) = feed.last.filter(|last| last.offset >= position) {
        let seen = format!("last message at {}, position {position}", last.offset);
        return bad(seen, "the last message below the position");
    }
    if feed.gaps.len() > MAX_GAPS {
        return bad(format!("{} gap records", feed.gaps.len()), "at most 256");
    }
    if let Some(gap) = feed.gaps.iter().find(|g| g.first > g.last || g.last == u64::MAX) {
        return bad(format!("gap {} to {}", gap.first, gap.last), "first <= last < 2^64 - 1");
    }
    if feed.repeats.len() > MAX_GAPS {
        return bad(format!("{} repeat records", feed.repeats.len()), "at most 256");
    }
    if let Some(it) = feed.repeats.iter().find(|r| r.first > r.last || r.last == u64::MAX) {
        return bad(format!("repeat {} to {}", it.first, it.last), "first <= last < 2^64 - 1");
    }
    Ok(())
}

fn check_name(state: &SourceState, file: &str) -> Result<(), Fault> {
    let name = file.rsplit('/').next().unwrap_or(file);
    match parse_file_name(name) {
        Some((source, shard)) if source != &*state.source || shard != state.shard => inconsistent(
            "file name".to_owned(),
            format!("content of source {:?}, shard {}", state.source, state.shard),
            "source and shard of the file's name",
        ),
        _ => Ok(()),
    }
}

fn inconsistent(place: String, seen: String, expected: &'static str) -> Result<(), Fault> {
    Err(Fault::Inconsistent { place, seen, expected })
}

fn place(feed: &FeedState) -> String {
    format!("feed {} -> {} partition {}", feed.upstream, feed.downstream, feed.partition)
}

fn field<const N: usize>(header: &[u8; HEADER_LEN], at: usize) -> [u8; N] {
    std::array::from_fn(|i| header[at + i])
}

fn u64_at(header: &[u8; HEADER_LEN], at: usize) -> u64 {
    u64::from_le_bytes(field(header, at))
}

// The words of `check_feed`.
const _: () = assert!(MAX_GAPS == 256);

struct Hex<'a>(&'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::super::archive::{BodyV1, BodyV2};
    use super::super::samples::{
        any_state, full_capture, full_feed, full_state, mirror_state, second_state,
    };
    use super::*;
    use crate::batch::{DeltaPiece, Gap};
    use proptest::prelude::*;

    const GOLDEN: &[u8] = include_bytes!("../../tests/golden/state/v3.state");
    const GOLDEN_V2: &[u8] = include_bytes!("../../tests/golden/state/v2.state");
    const GOLDEN_V1: &[u8] = include_bytes!("../../tests/golden/state/v1.state");

    fn fault(bytes: &[u8]) -> Fault {
        decode(bytes, "orders.5.state").expect_err("bytes that are refused").fault
    }

    /// A header that is right for `body`, whatever the body is.
    fn sealed(body: &[u8], change: impl FnOnce(&mut [u8; HEADER_LEN])) -> Vec<u8> {
        let mut head = header(VERSION, 9, body);
        change(&mut head);
        let sum = XxHash3_64::oneshot(&head[..56]);
        head[56..].copy_from_slice(&sum.to_le_bytes());
        let mut image = [&head, body].concat();
        image.resize(image.len().next_multiple_of(BLOCK), 0);
        image
    }

    /// What an encoder without `check` would write.
    fn unchecked(change: impl FnOnce(&mut SourceState)) -> Vec<u8> {
        let mut state = full_state();
        change(&mut state);
        sealed(&rkyv::to_bytes::<rancor::Error>(&Body::from(&state)).unwrap(), |_| ())
    }

    proptest! {
        #[test]
        fn every_field_survives(state in any_state()) {
            let image = encode(&state);
            prop_assert_eq!(image.len() % BLOCK, 0);
            let name = format!("dir/{}.{}.state", state.source, state.shard);
            prop_assert_eq!(decode(&image, &name).unwrap(), state);
        }

        #[test]
        fn noise_is_refused_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..9000)) {
            prop_assert!(decode(&bytes, "x").is_err());
        }

        #[test]
        fn a_sealed_body_of_noise_is_refused(body in prop::collection::vec(any::<u8>(), 0..600)) {
            prop_assert!(decode(&sealed(&body, |_| ()), "x").is_err());
        }

        #[test]
        fn a_sealed_body_with_one_changed_byte_never_panics(at in 0usize..2000, to in any::<u8>()) {
            let mut body = rkyv::to_bytes::<rancor::Error>(&Body::from(&full_state())).unwrap();
            let at = at % body.len();
            body[at] = to;
            let _ = decode(&sealed(&body, |_| ()), "x");
        }
    }

    #[test]
    fn version_3_files_stay_readable_and_writable() {
        assert_eq!(decode(GOLDEN, "orders.5.state").unwrap(), full_state());
        assert!(encode(&full_state()) == GOLDEN, "the bytes of version 3 changed: that needs a 4");
    }

    #[test]
    fn version_1_files_stay_readable() {
        assert_eq!(decode(GOLDEN_V1, "orders.5.state").unwrap(), mirror_state());
        let body = rkyv::to_bytes::<rancor::Error>(&BodyV1::from(&mirror_state())).unwrap();
        let is_same = of_version(1, &body) == GOLDEN_V1;
        assert!(is_same, "the type that reads version 1 has another layout");
    }

    #[test]
    fn version_2_files_stay_readable() {
        assert_eq!(decode(GOLDEN_V2, "orders.5.state").unwrap(), second_state());
        let body = rkyv::to_bytes::<rancor::Error>(&BodyV2::from(&second_state())).unwrap();
        let is_same = of_version(2, &body) == GOLDEN_V2;
        assert!(is_same, "the type that reads version 2 has another layout");
    }

    fn of_version(version: u32, body: &[u8]) -> Vec<u8> {
        let head = header(version, full_state().generation, body);
        let mut image = [&head[..], body].concat();
        image.resize(image.len().next_multiple_of(BLOCK), 0);
        image
    }

    #[test]
    fn a_version_1_body_under_another_version_is_refused() {
        let body = &GOLDEN_V1[HEADER_LEN..HEADER_LEN + 700];
        assert!(decode(&sealed(body, |_| ()), "x").is_err());
        let mut bytes = GOLDEN.to_vec();
        bytes[8] = 1;
        let sum = XxHash3_64::oneshot(&bytes[..56]);
        bytes[56..64].copy_from_slice(&sum.to_le_bytes());
        assert_ne!(decode(&bytes, "x").ok(), Some(full_state()));
    }

    #[test]
    fn a_buffer_at_any_address_decodes() {
        let mut room = vec![0; GOLDEN.len() + 32];
        for shift in 0..32 {
            room[shift..shift + GOLDEN.len()].copy_from_slice(GOLDEN);
            let bytes = &room[shift..shift + GOLDEN.len()];
            assert_eq!(decode(bytes, "orders.5.state").unwrap(), full_state());
        }
    }

    #[test]
    fn every_truncation_is_refused() {
        assert_eq!(fault(&[]), Fault::Empty);
        for have in 1..GOLDEN.len() {
            let need = GOLDEN.len() as u64;
            assert_eq!(fault(&GOLDEN[..have]), Fault::Cut { have: have as u64, need });
        }
    }

    #[test]
    fn every_flipped_bit_is_refused() {
        let mut bytes = GOLDEN.to_vec();
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            let fault = fault(&bytes);
            let expected = match bit / 8 {
                0..8 => matches!(fault, Fault::BadMagic { .. }),
                8..64 => matches!(fault, Fault::HeaderChecksum { .. }),
                _ => matches!(fault, Fault::BodyChecksum { .. } | Fault::BadPadding { .. }),
            };
            assert!(expected, "bit {bit}: {fault}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn a_longer_file_is_refused() {
        for more in [1, 512, BLOCK] {
            let mut bytes = GOLDEN.to_vec();
            bytes.resize(bytes.len() + more, 0);
            let have = bytes.len() as u64;
            assert_eq!(fault(&bytes), Fault::Longer { have, need: GOLDEN.len() as u64 });
        }
    }

    #[test]
    fn zeros_of_a_file_that_never_reached_the_disk_are_refused() {
        assert_eq!(fault(&[0; BLOCK]), Fault::BadMagic { seen: [0; 8] });
    }

    #[test]
    fn a_newer_version_is_named() {
        let bytes = sealed(b"another layout", |h| h[8] = 4);
        assert_eq!(fault(&bytes), Fault::NewerVersion { seen: 4, known: 3 });
        let text = decode(&bytes, "a.0.state").unwrap_err().to_string();
        assert_eq!(
            text,
            "state file a.0.state: format version 4, this program reads versions 1 to 3; start the \
             release that wrote it, or put back the file saved before the upgrade"
        );
    }

    #[test]
    fn odd_header_fields_are_named() {
        let cases: [(usize, &str); 3] = [(8, "version"), (12, "header len"), (50, "zero")];
        for (at, name) in cases {
            let bytes = sealed(b"", |h| h[at] = if at == 8 { 0 } else { 9 });
            assert!(matches!(fault(&bytes), Fault::BadHeader { field, .. } if field == name));
        }
    }

    #[test]
    fn an_absurd_body_length_is_a_cut_file() {
        for len in [u64::MAX, u64::MAX - 64, 1 << 40] {
            let bytes = sealed(b"", |h| h[16..24].copy_from_slice(&len.to_le_bytes()));
            assert!(matches!(fault(&bytes), Fault::Cut { have: 4096, .. }), "{len}");
        }
    }

    #[test]
    fn a_body_that_is_no_archive_is_named() {
        assert!(matches!(fault(&sealed(b"", |_| ())), Fault::BadBody(_)));
        assert!(matches!(fault(&sealed(&[0xff; 300], |_| ())), Fault::BadBody(_)));
    }

    #[test]
    fn a_file_under_another_name_is_refused() {
        for name in ["orders.4.state", "audit.5.state", "/var/lib/tidegate/audit.5.state"] {
            let error = decode(GOLDEN, name).unwrap_err();
            assert!(matches!(error.fault, Fault::Inconsistent { .. }), "{error}");
        }
        for name in ["orders.5.state", "d/orders.5.state", "copy", "orders.5.state.bak"] {
            assert!(decode(GOLDEN, name).is_ok(), "{name}");
        }
    }

    #[test]
    fn values_that_contradict_each_other_are_refused() {
        type Change = fn(&mut SourceState);
        let changes: [(&str, Change); 21] = [
            ("no source key", |s| s.source = "".into()),
            ("path as source key", |s| s.source = "../x".into()),
            ("no delta piece", |s| s.feeds[0].deltas.clear()),
            ("pieces descend", |s| s.feeds[0].deltas.reverse()),
            ("pieces repeat", |s| {
                s.feeds[0].deltas[1].from_upstream = s.feeds[0].deltas[0].from_upstream;
            }),
            ("position before the first piece", |s| s.feeds[0].position = 99),
            ("destination offset below zero", |s| {
                s.feeds[0].deltas = vec![DeltaPiece { from_upstream: 0, delta: -1_001 }];
            }),
            ("destination offset too large", |s| {
                s.feeds[0].position = u64::MAX;
                s.feeds[0].deltas = vec![DeltaPiece { from_upstream: 0, delta: 1 }];
            }),
            ("last message at the position", |s| s.feeds[0].position = 999),
            ("gap of no offset", |s| s.feeds[0].gaps[0].last = 549),
            ("gap without end", |s| s.feeds[0].gaps[0].last = u64::MAX),
            ("too many gaps", |s| {
                s.feeds[0].gaps = vec![Gap { first: 0, last: 0, found_at: 0 }; MAX_GAPS + 1];
            }),
            ("repeat of no offset", |s| s.feeds[0].repeats[0].last = 899),
            ("repeat without end", |s| s.feeds[0].repeats[0].last = u64::MAX),
            ("too many repeats", |s| {
                s.feeds[0].repeats = vec![s.feeds[0].repeats[0]; MAX_GAPS + 1];
            }),
            ("NUL in a name", |s| s.feeds[0].upstream.topic = "a\0b".into()),
            ("empty name", |s| s.feeds[0].upstream.stream = "".into()),
            ("long name", |s| s.feeds[0].downstream.topic = "x".repeat(256).into()),
            ("one feed twice", |s| s.feeds[1] = full_feed()),
            ("one slot twice", |s| s.captures.push(full_capture())),
            ("slot without a name", |s| s.captures[0].slot.clear()),
        ];
        for (name, change) in changes {
            let fault = decode(&unchecked(change), "x").expect_err(name).fault;
            assert!(matches!(fault, Fault::Inconsistent { .. }), "{name}: {fault}");
        }
    }

    #[test]
    #[should_panic(expected = "inconsistent state of source \"orders\" is not saved")]
    fn a_state_that_no_start_would_read_is_not_encoded() {
        let mut state = full_state();
        state.feeds[0].deltas.clear();
        encode(&state);
    }

    #[test]
    fn every_fault_says_what_was_seen_expected_and_what_to_do() {
        let faults = [fault(&[]), fault(&GOLDEN[..70]), fault(&[7; 64]), fault(&[0; 4096])];
        for fault in faults {
            let error = FormatError { file: "f".into(), fault };
            let text = error.to_string();
            assert!(text.starts_with("state file f: ") && text.contains("expected"), "{text}");
            assert!(text.contains("tidegate state reset"), "{text}");
        }
    }
}
