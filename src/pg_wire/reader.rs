//! Reading big-endian fields without a way to panic: every step names the field and says by how
//! much it was cut.

use super::error::PgWireError;

/// A cursor over one message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// From the start of `body`.
    pub(super) fn new(body: &'a [u8]) -> Reader<'a> {
        Reader { rest: body }
    }

    /// What is left.
    pub(super) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// The next `N` bytes.
    #[inline]
    pub(super) fn array<const N: usize>(
        &mut self,
        what: &'static str,
    ) -> Result<[u8; N], PgWireError> {
        let (head, rest) = self.rest.split_first_chunk::<N>().ok_or(PgWireError::Truncated {
            what,
            need: N,
            have: self.rest.len(),
        })?;
        self.rest = rest;
        Ok(*head)
    }

    /// The next `length` bytes.
    #[inline]
    pub(super) fn take(
        &mut self,
        length: usize,
        what: &'static str,
    ) -> Result<&'a [u8], PgWireError> {
        let (head, rest) = self.rest.split_at_checked(length).ok_or(PgWireError::Truncated {
            what,
            need: length,
            have: self.rest.len(),
        })?;
        self.rest = rest;
        Ok(head)
    }

    /// The bytes up to the next NUL, which is consumed.
    pub(super) fn cstr(&mut self, what: &'static str) -> Result<&'a [u8], PgWireError> {
        let have = self.rest.len();
        let end = self.rest.iter().position(|byte| *byte == 0);
        let (text, rest) = end
            .and_then(|end| self.rest.split_at_checked(end))
            .ok_or(PgWireError::Truncated { what, need: have.saturating_add(1), have })?;
        self.rest = rest.split_first().map_or(rest, |(_, rest)| rest);
        Ok(text)
    }

    /// The text up to the next NUL, which is consumed.
    pub(super) fn text(&mut self, what: &'static str) -> Result<&'a str, PgWireError> {
        let bytes = self.cstr(what)?;
        std::str::from_utf8(bytes).map_err(|error| PgWireError::not_utf8(what, bytes, error))
    }

    /// One byte.
    #[inline]
    pub(super) fn u8(&mut self, what: &'static str) -> Result<u8, PgWireError> {
        let [byte] = self.array(what)?;
        Ok(byte)
    }

    /// Two bytes as a number.
    #[inline]
    pub(super) fn u16(&mut self, what: &'static str) -> Result<u16, PgWireError> {
        Ok(u16::from_be_bytes(self.array(what)?))
    }

    /// Four bytes as a number.
    #[inline]
    pub(super) fn u32(&mut self, what: &'static str) -> Result<u32, PgWireError> {
        Ok(u32::from_be_bytes(self.array(what)?))
    }

    /// Four bytes as a signed number.
    #[inline]
    pub(super) fn i32(&mut self, what: &'static str) -> Result<i32, PgWireError> {
        Ok(i32::from_be_bytes(self.array(what)?))
    }

    /// Eight bytes as a number.
    #[inline]
    pub(super) fn u64(&mut self, what: &'static str) -> Result<u64, PgWireError> {
        Ok(u64::from_be_bytes(self.array(what)?))
    }

    /// Eight bytes as a signed number.
    #[inline]
    pub(super) fn i64(&mut self, what: &'static str) -> Result<i64, PgWireError> {
        Ok(i64::from_be_bytes(self.array(what)?))
    }

    /// Nothing may be left.
    pub(super) fn end(self, what: &'static str) -> Result<(), PgWireError> {
        if self.rest.is_empty() {
            return Ok(());
        }
        let seen = format!("{} bytes after it", self.rest.len());
        Err(PgWireError::Invalid { what, seen, expected: "the end of the message" })
    }
}

/// A 32-bit length of the wire as a length in memory; every target has at least 32 bits.
pub(super) fn wide(length: u32) -> usize {
    usize::try_from(length).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_field_says_by_how_much() {
        let mut reader = Reader::new(&[0, 0, 1, 2, b'a', 0, 9, 9]);
        assert_eq!(reader.u32("length"), Ok(258));
        assert_eq!(reader.cstr("name"), Ok(&b"a"[..]));
        let cut = PgWireError::Truncated { what: "count", need: 4, have: 2 };
        assert_eq!(reader.u32("count"), Err(cut));
        assert_eq!(reader.u16("pair"), Ok(0x0909));
        assert_eq!(reader.end("message"), Ok(()));
    }

    #[test]
    fn text_without_its_nul_is_cut() {
        let cut = PgWireError::Truncated { what: "name", need: 3, have: 2 };
        assert_eq!(Reader::new(b"ab").text("name"), Err(cut));
        let bad = Reader::new(b"a\xffb\0").text("name");
        assert!(matches!(bad, Err(PgWireError::NotUtf8 { at: 1, .. })), "{bad:?}");
    }
}
