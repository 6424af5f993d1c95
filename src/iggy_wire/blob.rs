//! Bytes of a batch: its header, its message frames, and the two checksums.
//!
//! ```text
//! batch header, 256 bytes, then `message_count` frames back to back
//!   0 partition_id:8 | 8 base_offset:8 | 16 base_timestamp:8 | 24 origin_timestamp:8
//!   32 batch_length:8 | 40 batch_checksum:8 | 48 message_count:4 | 52 zero:204
//! frame, 48 bytes, then payload, then user headers
//!   0 checksum:8 | 8 id:16 | 24 offset_delta:4 | 28 timestamp_delta:4
//!   32 user_headers_length:4 | 36 payload_length:4 | 40 zero:8
//! ```
//!
//! A frame's checksum is XXH3-64 of the frame from byte 8 on. The batch's is XXH3-64 of the
//! first five header fields but the checksum, the count, and every frame's checksum in order.

use std::hash::Hasher;

use twox_hash::XxHash3_64;
use twox_hash::xxhash3_64::{DEFAULT_SECRET_LENGTH, RawHasher, SecretBuffer};

use super::layout::{get, put, wide};

/// Length of a batch header.
pub(super) const BATCH_HEADER_LEN: usize = 256;
/// Length of a frame header.
pub(super) const FRAME_HEADER_LEN: usize = 48;

const RESERVED_FROM: usize = 52;

/// A batch header's fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct BatchHeader {
    pub(super) partition_id: u64,
    pub(super) base_offset: u64,
    pub(super) base_timestamp: u64,
    pub(super) origin_timestamp: u64,
    pub(super) batch_length: u64,
    pub(super) batch_checksum: u64,
    pub(super) message_count: u32,
}

impl BatchHeader {
    pub(super) fn read(h: &[u8; BATCH_HEADER_LEN]) -> BatchHeader {
        BatchHeader {
            partition_id: u64::from_le_bytes(get::<0, 8, 256>(h)),
            base_offset: u64::from_le_bytes(get::<8, 8, 256>(h)),
            base_timestamp: u64::from_le_bytes(get::<16, 8, 256>(h)),
            origin_timestamp: u64::from_le_bytes(get::<24, 8, 256>(h)),
            batch_length: u64::from_le_bytes(get::<32, 8, 256>(h)),
            batch_checksum: u64::from_le_bytes(get::<40, 8, 256>(h)),
            message_count: u32::from_le_bytes(get::<48, 4, 256>(h)),
        }
    }

    pub(super) fn bytes(&self) -> [u8; BATCH_HEADER_LEN] {
        let mut h = [0; BATCH_HEADER_LEN];
        put::<0, 8, 256>(&mut h, self.partition_id.to_le_bytes());
        put::<8, 8, 256>(&mut h, self.base_offset.to_le_bytes());
        put::<16, 8, 256>(&mut h, self.base_timestamp.to_le_bytes());
        put::<24, 8, 256>(&mut h, self.origin_timestamp.to_le_bytes());
        put::<32, 8, 256>(&mut h, self.batch_length.to_le_bytes());
        put::<40, 8, 256>(&mut h, self.batch_checksum.to_le_bytes());
        put::<48, 4, 256>(&mut h, self.message_count.to_le_bytes());
        h
    }

    /// The position of the first reserved byte that is not zero.
    pub(super) fn dirty_reserved(h: &[u8; BATCH_HEADER_LEN]) -> Option<usize> {
        // All at once first: it is the same for every record, and a loop with an early end is slow.
        let (_, reserved) = h.split_at(RESERVED_FROM);
        if reserved.iter().fold(0, |any, byte| any | byte) == 0 {
            return None;
        }
        let mut reserved = h.iter().enumerate().skip(RESERVED_FROM);
        reserved.find(|(_, byte)| **byte != 0).map(|(at, _)| at)
    }
}

/// One frame inside a blob.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame<'a> {
    /// From the checksum to the end of the user headers.
    pub(super) bytes: &'a [u8],
    /// Where the next frame begins in the blob.
    pub(super) end: usize,
    pub(super) checksum: u64,
    pub(super) id: u128,
    pub(super) offset_delta: u32,
    pub(super) timestamp_delta: u32,
    pub(super) reserved: u64,
    pub(super) payload: &'a [u8],
    pub(super) user_headers: &'a [u8],
}

impl<'a> Frame<'a> {
    /// The frame that begins at `at`, `None` if its bytes are not all there.
    pub(super) fn at(blob: &'a [u8], at: usize) -> Option<Frame<'a>> {
        let rest = blob.get(at..)?;
        let h = rest.first_chunk::<FRAME_HEADER_LEN>()?;
        let user_headers_length = wide(u32::from_le_bytes(get::<32, 4, 48>(h)));
        let payload_length = wide(u32::from_le_bytes(get::<36, 4, 48>(h)));
        let payload_end = FRAME_HEADER_LEN.checked_add(payload_length)?;
        let end = payload_end.checked_add(user_headers_length)?;
        Some(Frame {
            bytes: rest.get(..end)?,
            end: at.checked_add(end)?,
            checksum: u64::from_le_bytes(get::<0, 8, 48>(h)),
            id: u128::from_le_bytes(get::<8, 16, 48>(h)),
            offset_delta: u32::from_le_bytes(get::<24, 4, 48>(h)),
            timestamp_delta: u32::from_le_bytes(get::<28, 4, 48>(h)),
            reserved: u64::from_le_bytes(get::<40, 8, 48>(h)),
            payload: rest.get(FRAME_HEADER_LEN..payload_end)?,
            user_headers: rest.get(payload_end..end)?,
        })
    }

    /// The checksum these bytes should carry.
    pub(super) fn computed_checksum(&self) -> u64 {
        XxHash3_64::oneshot(self.bytes.get(8..).unwrap_or_default())
    }
}

/// Gives the frame at `at` another offset delta and the checksum that goes with it; returns
/// where the next frame begins.
pub(super) fn renumber(blob: &mut [u8], at: usize, offset_delta: u32) -> Option<usize> {
    let end = Frame::at(blob, at)?.end;
    let frame = blob.get_mut(at..end)?;
    let h = frame.first_chunk_mut::<FRAME_HEADER_LEN>()?;
    put::<24, 4, 48>(h, offset_delta.to_le_bytes());
    let checksum = XxHash3_64::oneshot(frame.get(8..)?);
    let h = frame.first_chunk_mut::<FRAME_HEADER_LEN>()?;
    put::<0, 8, 48>(h, checksum.to_le_bytes());
    Some(end)
}

/// Moves the frame at `from` down to `to` and gives it another offset delta and a timestamp delta
/// that is larger by `later`. Returns its length and its new checksum; `None`, and nothing is
/// changed, if it is not all there.
pub(super) fn resettle(
    bytes: &mut [u8],
    from: usize,
    to: usize,
    offset_delta: u32,
    later: u32,
) -> Option<(usize, u64)> {
    let frame = Frame::at(bytes, from)?;
    let (end, length) = (frame.end, frame.bytes.len());
    let timestamp_delta = frame.timestamp_delta.saturating_add(later);
    if from != to {
        bytes.copy_within(from..end, to);
    }
    let frame = bytes.get_mut(to..to.saturating_add(length))?;
    let h = frame.first_chunk_mut::<FRAME_HEADER_LEN>()?;
    put::<24, 4, 48>(h, offset_delta.to_le_bytes());
    put::<28, 4, 48>(h, timestamp_delta.to_le_bytes());
    let checksum = XxHash3_64::oneshot(frame.get(8..)?);
    let h = frame.first_chunk_mut::<FRAME_HEADER_LEN>()?;
    put::<0, 8, 48>(h, checksum.to_le_bytes());
    Some((length, checksum))
}

/// A frame header without its checksum, which [`renumber`] computes.
pub(super) fn unsealed_frame_header(
    id: u128,
    timestamp_delta: u32,
    user_headers_length: u32,
    payload_length: u32,
) -> [u8; FRAME_HEADER_LEN] {
    let mut h = [0; FRAME_HEADER_LEN];
    put::<8, 16, 48>(&mut h, id.to_le_bytes());
    put::<28, 4, 48>(&mut h, timestamp_delta.to_le_bytes());
    put::<32, 4, 48>(&mut h, user_headers_length.to_le_bytes());
    put::<36, 4, 48>(&mut h, payload_length.to_le_bytes());
    h
}

/// A batch checksum under way; lives on the stack. The hasher takes checksums in runs: it is slow
/// with short pieces.
pub(super) struct BatchChecksum {
    hasher: RawHasher<&'static [u8; DEFAULT_SECRET_LENGTH]>,
    waiting: [[u8; 8]; RUN],
    used: usize,
}

/// Checksums of a run.
const RUN: usize = 32;

impl BatchChecksum {
    pub(super) fn new(header: &BatchHeader) -> BatchChecksum {
        let mut hasher = RawHasher::new(SecretBuffer::default());
        hasher.write(&header.partition_id.to_le_bytes());
        hasher.write(&header.base_offset.to_le_bytes());
        hasher.write(&header.base_timestamp.to_le_bytes());
        hasher.write(&header.origin_timestamp.to_le_bytes());
        hasher.write(&header.batch_length.to_le_bytes());
        hasher.write(&header.message_count.to_le_bytes());
        BatchChecksum { hasher, waiting: [[0; 8]; RUN], used: 0 }
    }

    pub(super) fn add(&mut self, frame_checksum: u64) {
        if self.used == RUN {
            self.flush();
        }
        if let Some(place) = self.waiting.get_mut(self.used) {
            *place = frame_checksum.to_le_bytes();
            self.used = self.used.saturating_add(1);
        }
    }

    /// Every frame of `blob`, which they tile.
    pub(super) fn add_all(&mut self, blob: &[u8]) {
        let mut at = 0;
        while let Some(frame) = Frame::at(blob, at) {
            self.add(frame.checksum);
            at = frame.end;
        }
    }

    pub(super) fn finish(mut self) -> u64 {
        self.flush();
        self.hasher.finish()
    }

    fn flush(&mut self) {
        let waiting = self.waiting.get(..self.used).unwrap_or_default();
        self.hasher.write(waiting.as_flattened());
        self.used = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checksum_of_any_number_of_frames_is_that_of_its_bytes_in_one_piece() {
        let header = BatchHeader {
            partition_id: 1,
            base_offset: 2,
            base_timestamp: 3,
            origin_timestamp: 4,
            batch_length: 5,
            batch_checksum: 6,
            message_count: 7,
        };
        let mut bytes: Vec<u8> = (1..=5u64).flat_map(u64::to_le_bytes).collect();
        bytes.extend(7u32.to_le_bytes());
        for count in 0..=3 * RUN as u64 {
            let mut sum = BatchChecksum::new(&header);
            (0..count).for_each(|frame| sum.add(frame << 40));
            assert_eq!(sum.finish(), XxHash3_64::oneshot(&bytes), "{count}");
            bytes.extend((count << 40).to_le_bytes());
        }
    }
}
