//! Bytes from the server, cut into messages, handed on without a copy.
//!
//! Pure. One growing buffer takes what arrives; a chunk is split off it and shares its memory.
//! While the copy runs only a run of CopyData messages is a chunk; anything else is taken one by
//! one. What is in front is always the start of a message, so a header is looked at once per
//! arrival at most.
//!
//! The buffer has [`BUFFER`] bytes, more only for a single message that needs more, and goes back
//! to that size behind it.

use bytes::{Bytes, BytesMut};

use crate::pg_wire::PgWireError;
use crate::pg_wire::frame::HEADER;

/// Bytes asked for with one read, and the usual size of the buffer.
pub const BUFFER: usize = 256 * 1024;
/// Less room than this is not worth a read.
const LEAST_ROOM: usize = 64 * 1024;
/// Nothing but data is larger than this while a copy runs.
const LARGEST_REMARK: u32 = 1 << 20;
/// CopyData.
const DATA: u8 = b'd';

/// What arrived and is not taken yet.
#[derive(Default)]
pub struct Intake {
    buffer: BytesMut,
    /// Size of the memory behind the buffer, chunks that share it included.
    allocated: usize,
}

/// What is in front.
#[derive(Debug, PartialEq, Eq)]
pub enum Front {
    /// Whole CopyData messages, headers included.
    Chunk(Bytes),
    /// Another message: its tag and body.
    Message(u8, Bytes),
    /// Not yet whole; bytes the message has in all, as far as known.
    Cut(usize),
    /// A message of this size, more than allowed; it stays in front.
    TooLarge(u32),
}

impl Intake {
    /// The next message, whatever it is.
    pub fn message(&mut self, largest: u32) -> Result<Front, PgWireError> {
        let size = match self.size_at(0)? {
            Ok(size) => size,
            Err(cut) => return Ok(cut),
        };
        if size > wide(largest) {
            return Ok(Front::TooLarge(narrow(size)));
        }
        Ok(self.take_message(size))
    }

    /// A run of CopyData messages of at most `most` bytes, or a single one of at most `largest`;
    /// any other message comes alone.
    pub fn chunk(&mut self, most: u32, largest: u32) -> Result<Front, PgWireError> {
        let (most, largest) = (wide(most), wide(largest));
        let mut end = 0_usize;
        loop {
            let size = match self.size_at(end) {
                Ok(Ok(size)) => size,
                Ok(Err(cut)) if end == 0 => return Ok(cut),
                Err(error) if end == 0 => return Err(error),
                _ => break,
            };
            let tag = self.buffer.get(end).copied().unwrap_or_default();
            let is_data = tag == DATA;
            if end == 0 && !is_data {
                if size > wide(LARGEST_REMARK) {
                    let (size, largest) = (u64::from(narrow(size)), LARGEST_REMARK);
                    return Err(PgWireError::TooLarge { tag, size, largest });
                }
                return Ok(self.take_message(size));
            }
            if end == 0 && size > largest {
                return Ok(Front::TooLarge(narrow(size)));
            }
            let behind = end.saturating_add(size);
            let fits = behind <= most && size <= largest || end == 0;
            if !is_data || !fits || behind > self.buffer.len() {
                break;
            }
            end = behind;
        }
        if end == 0 {
            return Ok(Front::Cut(self.size_at(0)?.unwrap_or(HEADER)));
        }
        Ok(Front::Chunk(self.buffer.split_to(end).freeze()))
    }

    /// The byte in front, zero if there is none, and whether more came with it. All of it goes.
    pub fn take_first(&mut self) -> (u8, bool) {
        let first = self.buffer.first().copied().unwrap_or_default();
        let more = self.buffer.len() > 1;
        self.buffer.clear();
        (first, more)
    }

    /// True when nothing waits here.
    pub fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    /// True when the last read left no room in the buffer: more may wait at the socket.
    pub fn is_filled(&self) -> bool {
        self.buffer.len() == self.buffer.capacity()
    }

    /// The buffer to read into, with room for a message of `need` bytes in front. It comes back
    /// with [`Intake::put_back`].
    pub fn lend(&mut self, need: usize) -> BytesMut {
        let filled = self.buffer.len();
        let room = need.saturating_sub(filled).max(LEAST_ROOM);
        let has_outgrown = self.allocated > 2 * BUFFER && need <= BUFFER;
        if self.buffer.capacity() - filled < room || has_outgrown {
            self.renew(need.max(filled + LEAST_ROOM).max(BUFFER), has_outgrown);
        }
        std::mem::take(&mut self.buffer)
    }

    /// Takes the buffer back.
    pub fn put_back(&mut self, buffer: BytesMut) {
        self.buffer = buffer;
    }

    /// Appends decrypted bytes, with room for a message of `need` bytes in front.
    pub fn append(&mut self, bytes: &[u8], need: usize) {
        let behind = self.buffer.len() + bytes.len();
        if self.buffer.capacity() < behind {
            self.buffer = self.lend(need.max(behind));
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// Makes the buffer `capacity` bytes large, in the memory it has if no chunk shares it.
    fn renew(&mut self, capacity: usize, must_shrink: bool) {
        let filled = self.buffer.len();
        if !must_shrink && self.buffer.try_reclaim(capacity - filled) {
            return;
        }
        let mut fresh = BytesMut::with_capacity(capacity);
        fresh.extend_from_slice(&self.buffer);
        self.buffer = fresh;
        self.allocated = capacity;
    }

    /// Size of the message that begins at `at`, or how it is cut.
    fn size_at(&self, at: usize) -> Result<Result<usize, Front>, PgWireError> {
        let header = self.buffer.get(at..).and_then(|rest| rest.first_chunk::<HEADER>());
        match header {
            Some(header) => Ok(Ok(message_size(*header)?)),
            None => Ok(Err(Front::Cut(HEADER))),
        }
    }

    fn take_message(&mut self, size: usize) -> Front {
        if size > self.buffer.len() {
            return Front::Cut(size);
        }
        let mut message = self.buffer.split_to(size).freeze();
        let header = message.split_to(HEADER);
        Front::Message(header.first().copied().unwrap_or_default(), message)
    }
}

fn message_size(header: [u8; HEADER]) -> Result<usize, PgWireError> {
    let [_, length @ ..] = header;
    let length = u32::from_be_bytes(length);
    if length < 4 {
        return Err(PgWireError::Invalid {
            what: "length of a message",
            seen: length.to_string(),
            expected: "4 or more, because it counts itself",
        });
    }
    Ok(wide(length).saturating_add(1))
}

fn wide(size: u32) -> usize {
    usize::try_from(size).unwrap_or(usize::MAX)
}

fn narrow(size: usize) -> u32 {
    u32::try_from(size).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(tag: u8, body: usize) -> Vec<u8> {
        let mut bytes = vec![tag];
        bytes.extend_from_slice(&u32::try_from(body + 4).unwrap().to_be_bytes());
        bytes.resize(HEADER + body, tag);
        bytes
    }

    fn arrives(intake: &mut Intake, bytes: &[u8]) {
        let mut buffer = intake.lend(bytes.len());
        assert!(buffer.capacity() - buffer.len() >= bytes.len().min(LEAST_ROOM));
        buffer.extend_from_slice(bytes);
        intake.put_back(buffer);
    }

    fn chunk_len(front: &Front) -> usize {
        match front {
            Front::Chunk(bytes) => bytes.len(),
            other => panic!("not a chunk: {other:?}"),
        }
    }

    #[test]
    fn a_chunk_is_a_run_of_data_and_ends_at_anything_else() {
        let mut intake = Intake::default();
        let run = [message(b'd', 10), message(b'd', 20), message(b'N', 3), message(b'd', 1)];
        arrives(&mut intake, &run.concat());
        assert_eq!(chunk_len(&intake.chunk(1000, 1000).unwrap()), 15 + 25);
        assert_eq!(intake.chunk(1000, 1000), Ok(Front::Message(b'N', Bytes::from_static(b"NNN"))));
        assert_eq!(chunk_len(&intake.chunk(1000, 1000).unwrap()), 6);
        assert_eq!(intake.chunk(1000, 1000), Ok(Front::Cut(HEADER)));
        assert!(intake.is_empty());
    }

    #[test]
    fn most_bounds_a_chunk_but_not_a_single_message() {
        let mut intake = Intake::default();
        arrives(&mut intake, &[message(b'd', 95), message(b'd', 95), message(b'd', 295)].concat());
        assert_eq!(chunk_len(&intake.chunk(199, 300).unwrap()), 100);
        assert_eq!(chunk_len(&intake.chunk(199, 300).unwrap()), 100);
        assert_eq!(intake.chunk(199, 299), Ok(Front::TooLarge(300)));
        assert_eq!(intake.chunk(199, 299), Ok(Front::TooLarge(300)), "it stays in front");
        assert_eq!(chunk_len(&intake.chunk(199, 300).unwrap()), 300);
    }

    #[test]
    fn every_cut_is_noticed_and_nothing_is_lost() {
        let run = [message(b'd', 7), message(b'd', 300), message(b'C', 2)].concat();
        for cut in 0..run.len() {
            let mut intake = Intake::default();
            let mut seen = Vec::new();
            for part in [&run[..cut], &run[cut..]] {
                arrives(&mut intake, part);
                loop {
                    match intake.chunk(1 << 20, 1 << 20).unwrap() {
                        Front::Chunk(bytes) => seen.extend_from_slice(&bytes),
                        Front::Message(tag, body) => seen.extend(message(tag, body.len())),
                        Front::Cut(need) => {
                            assert!(need > intake.buffer.len(), "cut at {cut}");
                            break;
                        }
                        Front::TooLarge(_) => panic!("cut at {cut}"),
                    }
                }
            }
            assert_eq!(seen, run, "cut at {cut}");
        }
    }

    #[test]
    fn a_large_message_has_its_room_and_the_buffer_shrinks_behind_it() {
        let mut intake = Intake::default();
        let large = message(b'd', 5 << 20);
        arrives(&mut intake, &large[..1000]);
        let Ok(Front::Cut(need)) = intake.chunk(1 << 20, 8 << 20) else { panic!("whole") };
        assert_eq!(need, large.len());
        let mut buffer = intake.lend(need);
        assert!(buffer.capacity() >= need);
        buffer.extend_from_slice(&large[1000..]);
        intake.put_back(buffer);
        assert_eq!(chunk_len(&intake.chunk(1 << 20, 8 << 20).unwrap()), large.len());
        let buffer = intake.lend(HEADER);
        assert!((BUFFER..=2 * BUFFER).contains(&buffer.capacity()), "{}", buffer.capacity());
    }

    #[test]
    fn decrypted_pieces_grow_the_buffer_no_further_than_their_message() {
        let mut intake = Intake::default();
        let large = message(b'd', 5 << 20);
        for piece in large.chunks(16_384) {
            intake.append(piece, large.len());
        }
        assert!(intake.buffer.capacity() <= large.len() + BUFFER, "{}", intake.buffer.capacity());
        assert_eq!(chunk_len(&intake.chunk(1 << 20, 8 << 20).unwrap()), large.len());
        intake.append(&message(b'd', 10), 0);
        assert_eq!(intake.lend(0).capacity(), BUFFER);
    }

    #[test]
    fn memory_is_reused_when_no_chunk_shares_it() {
        let mut intake = Intake::default();
        arrives(&mut intake, &message(b'd', 200_000));
        let chunk = intake.chunk(1 << 20, 1 << 20).unwrap();
        let kept = intake.lend(0);
        intake.put_back(kept);
        assert_eq!(chunk_len(&chunk), 200_005, "a chunk keeps its bytes while the buffer goes on");
        drop(chunk);
        arrives(&mut intake, &message(b'd', 200_000));
        let before = intake.buffer.as_ptr();
        drop(intake.chunk(1 << 20, 1 << 20).unwrap());
        let after = intake.lend(0);
        assert_eq!((after.as_ptr(), after.capacity()), (before, BUFFER));
    }

    #[test]
    fn lengths_that_no_server_sends_are_refused() {
        let mut intake = Intake::default();
        arrives(&mut intake, b"d\0\0\0\x03");
        assert!(matches!(intake.chunk(100, 100), Err(PgWireError::Invalid { .. })));
        let mut intake = Intake::default();
        arrives(&mut intake, b"E\x7f\xff\xff\xff");
        assert!(matches!(intake.chunk(100, 100), Err(PgWireError::TooLarge { tag: b'E', .. })));
        assert_eq!(intake.message(100), Ok(Front::TooLarge(1 << 31)));
    }
}
