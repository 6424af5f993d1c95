//! Reading and writing little-endian fields without a way to panic.
//!
//! Fixed headers are arrays and their field positions are constants, so a field outside its
//! header does not compile. Bodies of varying length go through [`Reader`], whose every step
//! says what was cut and by how much.

use super::error::WireError;

/// Bytes `AT..AT + N` of a fixed header.
#[inline(always)] // one load
pub(super) fn get<const AT: usize, const N: usize, const LEN: usize>(h: &[u8; LEN]) -> [u8; N] {
    const { assert!(AT + N <= LEN, "field outside its header") };
    h.get(AT..).and_then(|rest| rest.first_chunk::<N>()).copied().unwrap_or([0; N])
}

/// Overwrites bytes `AT..AT + N` of a fixed header.
#[inline(always)] // one store
pub(super) fn put<const AT: usize, const N: usize, const LEN: usize>(
    h: &mut [u8; LEN],
    value: [u8; N],
) {
    const { assert!(AT + N <= LEN, "field outside its header") };
    if let Some(place) = h.get_mut(AT..).and_then(|rest| rest.first_chunk_mut::<N>()) {
        *place = value;
    }
}

/// A cursor over a body; each read names the field for the error.
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
    pub(super) fn array<const N: usize>(
        &mut self,
        what: &'static str,
    ) -> Result<[u8; N], WireError> {
        let cut = WireError::Truncated { what, need: N, have: self.rest.len() };
        let (head, rest) = self.rest.split_first_chunk::<N>().ok_or(cut)?;
        self.rest = rest;
        Ok(*head)
    }

    /// The next four bytes as a number.
    pub(super) fn u32(&mut self, what: &'static str) -> Result<u32, WireError> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    /// The next eight bytes as a number.
    pub(super) fn u64(&mut self, what: &'static str) -> Result<u64, WireError> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }
}

/// A 32-bit length of the wire as a length in memory; every target has at least 32 bits.
pub(super) fn wide(length: u32) -> usize {
    usize::try_from(length).unwrap_or(usize::MAX)
}
