//! Bytes from a socket, cut into headers and bodies.
//!
//! One small buffer per connection takes what arrives while a header is awaited: a short reply
//! costs one read. What a long body has beyond that goes straight into a buffer of exactly its
//! size that is not zeroed first; it is handed on and never reused (I3).

use std::io;

use monoio::buf::SliceMut;
use monoio::io::AsyncReadRent;

use crate::iggy_wire::frame::{HEADER_LEN, HeaderBytes};

/// Size of the small buffer.
const AHEAD: usize = 4096;
/// Piece in which an unwanted body is thrown away.
const DISCARD: usize = 64 * 1024;

/// What arrived and is not taken yet.
#[derive(Default)]
pub struct Intake {
    buffer: Vec<u8>,
    taken: usize,
}

impl Intake {
    /// The next header.
    pub async fn header(&mut self, stream: &mut impl AsyncReadRent) -> io::Result<HeaderBytes> {
        loop {
            let waiting = self.buffer.get(self.taken..).unwrap_or_default();
            if let Some(header) = waiting.first_chunk::<HEADER_LEN>() {
                let header = *header;
                self.taken += HEADER_LEN;
                return Ok(header);
            }
            self.read_more(stream).await?;
        }
    }

    /// The `len` bytes that follow.
    pub async fn body(
        &mut self,
        stream: &mut impl AsyncReadRent,
        len: usize,
        progress: impl FnMut(usize),
    ) -> io::Result<Vec<u8>> {
        self.body_in(stream, Vec::with_capacity(len), len, progress).await
    }

    /// The same in a buffer that was used before; what it held is gone.
    pub async fn body_in(
        &mut self,
        stream: &mut impl AsyncReadRent,
        mut body: Vec<u8>,
        len: usize,
        mut progress: impl FnMut(usize),
    ) -> io::Result<Vec<u8>> {
        body.clear();
        body.reserve(len);
        body.extend_from_slice(self.take(len));
        while body.len() < len {
            let filled = body.len();
            let (read, slice) = stream.read(SliceMut::new(body, filled, len)).await;
            body = slice.into_inner();
            progress(not_the_end(read?)?);
        }
        Ok(body)
    }

    /// Throws away the `len` bytes that follow, whatever their number.
    pub async fn discard(
        &mut self,
        stream: &mut impl AsyncReadRent,
        len: usize,
        progress: impl Fn(usize),
    ) -> io::Result<()> {
        let mut left = len;
        while left > 0 {
            left -= self.body(stream, left.min(DISCARD), &progress).await?.len();
        }
        Ok(())
    }

    /// Up to `len` of the bytes that are here.
    fn take(&mut self, len: usize) -> &[u8] {
        let start = self.taken.min(self.buffer.len());
        let end = self.buffer.len().min(start.saturating_add(len));
        self.taken = end;
        &self.buffer[start..end]
    }

    async fn read_more(&mut self, stream: &mut impl AsyncReadRent) -> io::Result<()> {
        let mut buffer = std::mem::take(&mut self.buffer);
        // Less than a header is left.
        buffer.drain(..self.taken.min(buffer.len()));
        self.taken = 0;
        buffer.reserve_exact(AHEAD - buffer.len());
        let filled = buffer.len();
        let (read, slice) = stream.read(SliceMut::new(buffer, filled, AHEAD)).await;
        self.buffer = slice.into_inner();
        not_the_end(read?).map(drop)
    }
}

fn not_the_end(read: usize) -> io::Result<usize> {
    if read == 0 { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(read) }
}
