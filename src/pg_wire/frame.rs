//! Where messages begin and end.
//!
//! ```text
//! both ways    tag:1 | length:4 (of itself and the body) | body
//! first words  length:4 | body                              start-up, TLS and cancel requests
//! ```
//!
//! [`prefix`] looks at headers only and copies nothing: what is whole goes on as one slice, and
//! [`Messages`] walks over it. Lengths come from the peer, so a limit is always given.

use super::error::PgWireError;
use super::reader::wide;

/// Tag and length.
pub const HEADER: usize = 5;

/// What a buffer begins with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Prefix {
    /// Bytes of the whole messages at its start.
    pub complete: usize,
    /// Bytes the message behind them has in all: [`HEADER`] while that is not known, 0 if the
    /// buffer ends with the last whole one.
    pub need: usize,
}

/// Measures the run of whole messages at the start of `bytes`. A message that is malformed or
/// larger than `largest` is an error only when it comes first; until then it ends the run, so
/// that what precedes it is delivered.
pub fn prefix(bytes: &[u8], largest: u32) -> Result<Prefix, PgWireError> {
    let mut complete = 0;
    let mut rest = bytes;
    loop {
        let Some((header, _)) = rest.split_first_chunk::<HEADER>() else {
            let need = if rest.is_empty() { 0 } else { HEADER };
            return Ok(Prefix { complete, need });
        };
        let size = match size_of(*header, largest) {
            Ok(size) => size,
            Err(_) if complete > 0 => return Ok(Prefix { complete, need: HEADER }),
            Err(error) => return Err(error),
        };
        let Some((_, behind)) = rest.split_at_checked(size) else {
            return Ok(Prefix { complete, need: size });
        };
        complete = complete.saturating_add(size);
        rest = behind;
    }
}

/// Walks over a run of whole messages: tag and body. Ends at the first that is not whole.
#[derive(Clone, Copy, Debug)]
pub struct Messages<'a> {
    rest: &'a [u8],
}

impl<'a> Messages<'a> {
    /// From the start of `run`, usually the bytes [`prefix`] found complete.
    pub fn new(run: &'a [u8]) -> Messages<'a> {
        Messages { rest: run }
    }

    /// What was not walked over yet.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }
}

impl<'a> Iterator for Messages<'a> {
    type Item = (u8, &'a [u8]);

    #[inline]
    fn next(&mut self) -> Option<(u8, &'a [u8])> {
        let (header, behind) = self.rest.split_first_chunk::<HEADER>()?;
        let [tag, length @ ..] = *header;
        let body = wide(u32::from_be_bytes(length)).checked_sub(4)?;
        let (body, rest) = behind.split_at_checked(body)?;
        self.rest = rest;
        Some((tag, body))
    }
}

/// A message of ours under construction.
pub(super) struct Frame {
    bytes: Vec<u8>,
    tagged: bool,
}

impl Frame {
    /// A message with a tag.
    pub(super) fn new(tag: u8) -> Frame {
        Frame { bytes: vec![tag, 0, 0, 0, 0], tagged: true }
    }

    /// One of the first words of a connection.
    pub(super) fn untagged() -> Frame {
        Frame { bytes: vec![0; 4], tagged: false }
    }

    pub(super) fn u8(mut self, value: u8) -> Frame {
        self.bytes.push(value);
        self
    }

    pub(super) fn u16(self, value: u16) -> Frame {
        self.bytes(&value.to_be_bytes())
    }

    pub(super) fn u32(self, value: u32) -> Frame {
        self.bytes(&value.to_be_bytes())
    }

    pub(super) fn bytes(mut self, value: &[u8]) -> Frame {
        self.bytes.extend_from_slice(value);
        self
    }

    /// A text and its NUL. What a text has behind a NUL of its own is not sent, so that it cannot
    /// pass for the next field.
    pub(super) fn text(self, value: &str) -> Frame {
        let value = value.split('\0').next().unwrap_or_default();
        self.bytes(value.as_bytes()).u8(0)
    }

    /// The message with its length filled in.
    pub(super) fn end(mut self) -> Vec<u8> {
        let skipped = usize::from(self.tagged);
        let length = self.bytes.len().saturating_sub(skipped);
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        let place = self.bytes.iter_mut().skip(skipped);
        place.zip(length.to_be_bytes()).for_each(|(place, byte)| *place = byte);
        self.bytes
    }
}

fn size_of(header: [u8; HEADER], largest: u32) -> Result<usize, PgWireError> {
    let [tag, length @ ..] = header;
    let length = u32::from_be_bytes(length);
    if length < 4 {
        return Err(PgWireError::Invalid {
            what: "length of a message",
            seen: length.to_string(),
            expected: "4 or more, because it counts itself",
        });
    }
    if length >= largest {
        let size = u64::from(length).saturating_add(1);
        return Err(PgWireError::TooLarge { tag, size, largest });
    }
    Ok(wide(length).saturating_add(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: &[u8] = b"Z\0\0\0\x05IN\0\0\0\x04d\0\0\0\x08abcd";

    #[test]
    fn a_run_ends_where_a_message_is_cut() {
        for (length, complete, need) in [
            (0, 0, 0),
            (1, 0, 5),
            (4, 0, 5),
            (5, 0, 6),
            (6, 6, 0),
            (7, 6, 5),
            (11, 11, 0),
            (15, 11, 5),
            (16, 11, 9),
            (19, 11, 9),
            (20, 20, 0),
        ] {
            let found = prefix(&RUN[..length], 1 << 20);
            assert_eq!(found, Ok(Prefix { complete, need }), "{length}");
        }
    }

    #[test]
    fn what_precedes_a_bad_message_is_delivered_first() {
        assert_eq!(prefix(RUN, 8), Ok(Prefix { complete: 11, need: HEADER }));
        let error = PgWireError::TooLarge { tag: b'd', size: 9, largest: 8 };
        assert_eq!(prefix(&RUN[11..], 8), Err(error));
        assert_eq!(prefix(&RUN[11..], 9), Ok(Prefix { complete: 9, need: 0 }));
        let short = prefix(b"Z\0\0\0\x03", 100);
        assert!(matches!(short, Err(PgWireError::Invalid { .. })), "{short:?}");
        let giant = prefix(b"Z\xff\xff\xff\xff", u32::MAX);
        let size = 1 << 32;
        assert_eq!(giant, Err(PgWireError::TooLarge { tag: b'Z', size, largest: u32::MAX }));
    }

    #[test]
    fn walking_yields_tags_and_bodies() {
        let walked: Vec<_> = Messages::new(RUN).collect();
        assert_eq!(walked, [(b'Z', &b"I"[..]), (b'N', b""), (b'd', b"abcd")]);
        let mut cut = Messages::new(&RUN[..19]);
        assert_eq!(cut.by_ref().count(), 2);
        assert_eq!(cut.rest(), &RUN[11..19]);
        assert_eq!(Messages::new(b"Z\0\0\0\x03abc").count(), 0);
    }

    #[test]
    fn a_frame_counts_itself_but_not_its_tag() {
        assert_eq!(Frame::new(b'Q').text("x").end(), b"Q\0\0\0\x06x\0");
        assert_eq!(Frame::untagged().u32(7).end(), b"\0\0\0\x08\0\0\0\x07");
        assert_eq!(Frame::new(b'p').text("a\0user\0b").end(), b"p\0\0\0\x06a\0");
    }
}
