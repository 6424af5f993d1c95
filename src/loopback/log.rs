//! The log of one partition: whole batch records, found by offset, cut on the way out.
//!
//! A record is stored as it came, with the four fields the server owns stamped in place. A poll
//! hands out records by reference; only the 256-byte header of a cut record is new. A cut keeps
//! base offset and offset deltas and rewrites length, count and batch checksum.
//!
//! Offsets are taken from the header alone, as the server does: a batch whose deltas do not start
//! at 0 is accepted and damages the log in the same way.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::hash::Hasher;

use bytes::Bytes;
use iggy_binary_protocol::batch::{
    BATCH_HEADER_SIZE, BatchHeader, BatchMessageHeader, BatchRef, calculate_batch_checksum,
};
use twox_hash::XxHash3_64;

/// From so many bytes on the frames of a batch that is appended again and again are kept once.
const SHARE_FROM: usize = 16 << 10;

/// A batch that passed every check and waits for its offsets.
#[derive(Clone, Debug)]
pub struct VerifiedBatch {
    /// Buffer that ends with the batch.
    buffer: Vec<u8>,
    /// Where the batch starts in `buffer`.
    start: usize,
    /// Header as sent.
    header: BatchHeader,
    /// The frames' checksum fields, back to back: all that the batch checksum needs.
    checksums: Vec<u8>,
}

/// Why a batch is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    /// Header, lengths or reserved bytes are wrong.
    #[error("batch layout is not what its header says")]
    Layout,
    /// A message checksum does not match.
    #[error("message {index} does not match its checksum")]
    MessageChecksum {
        /// Position in the batch.
        index: u32,
    },
    /// The batch checksum does not match.
    #[error("batch does not match its checksum")]
    BatchChecksum,
}

/// A stored record.
#[derive(Clone, Debug)]
struct Record {
    base: u64,
    count: u32,
    timestamp: u64,
    /// Header and frames, or the header alone where the frames are those of other records too.
    bytes: Bytes,
    /// Frames that are not behind the header.
    shared: Bytes,
}

#[derive(Clone, Copy, Debug, Default)]
struct Segment {
    records: usize,
    bytes: u64,
}

/// What a poll found.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// Records back to back.
    pub pieces: Vec<Bytes>,
    /// Messages in them.
    pub count: u32,
    /// Offset of the last one.
    pub last: Option<u64>,
}

/// The log of one partition.
#[derive(Clone, Debug, Default)]
pub struct Log {
    records: VecDeque<Record>,
    segments: VecDeque<Segment>,
    next: u64,
    bytes: u64,
}

impl VerifiedBatch {
    /// Checks the batch that fills `buffer` from `start` on: layout, both checksums.
    pub fn check(buffer: Vec<u8>, start: usize) -> Result<VerifiedBatch, BatchError> {
        let batch = buffer.get(start..).ok_or(BatchError::Layout)?;
        let header = BatchHeader::decode(batch).map_err(|_| BatchError::Layout)?;
        if header.batch_length != batch.len() as u64 || header.message_count == 0 {
            return Err(BatchError::Layout);
        }
        let blob = &batch[BATCH_HEADER_SIZE..];
        let mut checksums = Vec::new();
        let mut at = 0;
        let mut index = 0;
        while at < blob.len() {
            let frame = BatchMessageHeader::decode(&blob[at..]).map_err(|_| BatchError::Layout)?;
            let end = at + frame.total_size();
            let cover = blob.get(at + 8..end).ok_or(BatchError::Layout)?;
            if XxHash3_64::oneshot(cover) != frame.checksum {
                return Err(BatchError::MessageChecksum { index });
            }
            checksums.extend_from_slice(&frame.checksum.to_le_bytes());
            at = end;
            index += 1;
        }
        if index != header.message_count {
            return Err(BatchError::Layout);
        }
        if batch_checksum(&header, &checksums) != header.batch_checksum {
            return Err(BatchError::BatchChecksum);
        }
        Ok(VerifiedBatch { buffer, start, header, checksums })
    }

    /// The same without a look behind the header: for a log that keeps nothing. `beyond`: bytes
    /// of the batch that are not in `buffer`.
    pub fn trusted(
        buffer: Vec<u8>,
        start: usize,
        beyond: usize,
    ) -> Result<VerifiedBatch, BatchError> {
        let batch = buffer.get(start..).ok_or(BatchError::Layout)?;
        let header = BatchHeader::decode(batch).map_err(|_| BatchError::Layout)?;
        let length = batch.len().saturating_add(beyond) as u64;
        if header.batch_length != length || header.message_count == 0 {
            return Err(BatchError::Layout);
        }
        Ok(VerifiedBatch { buffer, start, header, checksums: Vec::new() })
    }

    /// Messages in the batch.
    pub fn count(&self) -> u32 {
        self.header.message_count
    }

    /// Origin timestamps of its messages.
    pub fn origins(&self) -> Vec<u64> {
        let blob = self.buffer.get(self.start + BATCH_HEADER_SIZE..).unwrap_or_default();
        let messages = BatchRef::new(self.header, blob).iter_with_offsets();
        let first = self.header.origin_timestamp;
        messages.map(|at| first + u64::from(at.message.header.timestamp_delta)).collect()
    }
}

impl Log {
    /// Appends and returns the first offset. `segment_bytes` is where a segment is full.
    pub fn append(
        &mut self,
        batch: VerifiedBatch,
        partition: u32,
        now: u64,
        segment_bytes: u64,
    ) -> u64 {
        let header = self.stamped(&batch, partition, now);
        let VerifiedBatch { mut buffer, start, .. } = batch;
        header.encode_into(&mut buffer[start..]);
        self.push(Bytes::from(buffer).slice(start..), &header, segment_bytes);
        header.base_offset
    }

    /// Appends the same batch `copies` times. Frames above [`SHARE_FROM`] bytes are kept once.
    pub fn append_copies(
        &mut self,
        batch: &VerifiedBatch,
        partition: u32,
        now: u64,
        segment_bytes: u64,
        copies: u64,
    ) {
        let frames = &batch.buffer[batch.start + BATCH_HEADER_SIZE..];
        if frames.len() < SHARE_FROM {
            (0..copies).for_each(|_| {
                self.append(batch.clone(), partition, now, segment_bytes);
            });
            return;
        }
        let shared = Bytes::copy_from_slice(frames);
        for _ in 0..copies {
            let header = self.stamped(batch, partition, now);
            let mut bytes = vec![0; BATCH_HEADER_SIZE];
            header.encode_into(&mut bytes);
            self.push_shared(Bytes::from(bytes), shared.clone(), &header, segment_bytes);
        }
    }

    /// The header that a batch gets here.
    fn stamped(&self, batch: &VerifiedBatch, partition: u32, now: u64) -> BatchHeader {
        let mut header = batch.header;
        header.partition_id = u64::from(partition);
        header.base_offset = self.next;
        // Append times never go back: timestamp polls search them.
        header.base_timestamp = self.records.back().map_or(now, |last| last.timestamp.max(now));
        header.batch_checksum = batch_checksum(&header, &batch.checksums);
        header
    }

    /// Gives out offsets for messages that are forgotten at once.
    pub fn skip(&mut self, count: u32) -> u64 {
        let base = self.next;
        self.next += u64::from(count);
        base
    }

    /// At most `count` messages from `from` on.
    pub fn read(&self, from: u64, count: u32) -> Found {
        let mut found = Found::default();
        let first = self.records.partition_point(|record| record.next() <= from);
        for record in self.records.range(first..) {
            let left = count - found.count;
            if left == 0 {
                break;
            }
            if record.base >= from && record.count <= left {
                found.pieces.push(record.bytes.clone());
                found
                    .pieces
                    .extend(Some(record.shared.clone()).filter(|frames| !frames.is_empty()));
                found.count += record.count;
                found.last = Some(record.next() - 1);
            } else if let Some(cut) = record.cut(from, left) {
                found.pieces.extend([cut.header, cut.blob]);
                found.count += cut.count;
                found.last = Some(cut.last);
            }
        }
        found
    }

    /// The log as a node shows it that has not heard of the last `lag` messages.
    pub fn without_last(&self, lag: u64) -> Cow<'_, Log> {
        if lag == 0 {
            return Cow::Borrowed(self);
        }
        let mut seen = self.clone();
        seen.lose_tail(lag);
        Cow::Owned(seen)
    }

    /// Offset of the first message whose record was appended at or after `timestamp`.
    pub fn offset_at(&self, timestamp: u64) -> u64 {
        let first = self.records.partition_point(|record| record.timestamp < timestamp);
        self.records.get(first).map_or(self.next, |record| record.base)
    }

    /// First offset still there; [`Log::next`] when empty.
    pub fn earliest(&self) -> u64 {
        self.records.front().map_or(self.next, |record| record.base)
    }

    /// Offset of the next append.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Offset of the last message as the server reports it: 0 when nothing was ever appended.
    pub fn current(&self) -> u64 {
        self.next.saturating_sub(1)
    }

    /// Messages stored.
    pub fn messages(&self) -> u64 {
        self.next - self.earliest()
    }

    /// Bytes stored.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Segments, at least 1.
    pub fn segments(&self) -> u32 {
        u32::try_from(self.segments.len()).unwrap_or(u32::MAX).max(1)
    }

    /// Append time of the oldest record.
    pub fn oldest_timestamp(&self) -> Option<u64> {
        self.records.front().map(|record| record.timestamp)
    }

    /// Drops up to `count` sealed segments, oldest first, and says how many went.
    pub fn drop_segments(&mut self, count: u32) -> u32 {
        let mut dropped = 0;
        while dropped < count && self.segments.len() > 1 {
            let segment = self.segments.pop_front().unwrap_or_default();
            self.records.drain(..segment.records);
            self.bytes -= segment.bytes;
            dropped += 1;
        }
        dropped
    }

    /// Drops every record that lies wholly below `offset`, wherever segments end.
    pub fn retain_from(&mut self, offset: u64) {
        while self.records.front().is_some_and(|record| record.next() <= offset) {
            let record = self.records.pop_front().expect("the front was just seen");
            let segment = self.segments.front_mut().expect("a record lies in a segment");
            segment.records -= 1;
            segment.bytes -= record.len();
            self.bytes -= record.len();
            if segment.records == 0 && self.segments.len() > 1 {
                self.segments.pop_front();
            }
        }
    }

    /// Forgets the last `count` messages, as a crash before a flush does; their offsets are given
    /// out again.
    pub fn lose_tail(&mut self, count: u64) {
        let end = self.next.saturating_sub(count);
        while self.records.back().is_some_and(|record| record.next() > end) {
            let record = self.records.pop_back().expect("the back was just seen");
            let segment = self.segments.back_mut().expect("a record lies in a segment");
            segment.records -= 1;
            segment.bytes -= record.len();
            self.bytes -= record.len();
            if segment.records == 0 {
                self.segments.pop_back();
            }
            let keep = u32::try_from(end.saturating_sub(record.base)).unwrap_or(u32::MAX);
            if let Some(cut) = record.cut(record.base, keep).filter(|_| keep > 0) {
                let bytes = Bytes::from([cut.header, cut.blob].concat());
                let header = BatchHeader::decode(&bytes).expect("a cut keeps the layout");
                self.push(bytes, &header, u64::MAX);
            }
        }
        self.next = self.next.min(end.max(self.earliest_kept()));
    }

    /// Back to empty: offsets start at 0.
    pub fn clear(&mut self) {
        *self = Log::default();
    }

    fn earliest_kept(&self) -> u64 {
        self.records.front().map_or(0, |record| record.base)
    }

    fn push(&mut self, bytes: Bytes, header: &BatchHeader, segment_bytes: u64) {
        self.push_shared(bytes, Bytes::new(), header, segment_bytes);
    }

    fn push_shared(
        &mut self,
        bytes: Bytes,
        shared: Bytes,
        header: &BatchHeader,
        segment_bytes: u64,
    ) {
        if self.segments.back().is_none_or(|segment| segment.bytes >= segment_bytes) {
            self.segments.push_back(Segment::default());
        }
        let segment = self.segments.back_mut().expect("pushed above when missing");
        segment.records += 1;
        segment.bytes += header.batch_length;
        self.bytes += header.batch_length;
        self.next = header.base_offset + u64::from(header.message_count);
        self.records.push_back(Record {
            base: header.base_offset,
            count: header.message_count,
            timestamp: header.base_timestamp,
            bytes,
            shared,
        });
    }
}

struct Cut {
    header: Bytes,
    blob: Bytes,
    count: u32,
    last: u64,
}

impl Record {
    fn next(&self) -> u64 {
        self.base + u64::from(self.count)
    }

    fn frames(&self) -> Bytes {
        match self.shared.is_empty() {
            true => self.bytes.slice(BATCH_HEADER_SIZE..),
            false => self.shared.clone(),
        }
    }

    /// Bytes of header and frames, wherever they are.
    fn len(&self) -> u64 {
        (self.bytes.len() + self.shared.len()) as u64
    }

    /// The first `limit` messages with an offset of at least `from`.
    fn cut(&self, from: u64, limit: u32) -> Option<Cut> {
        let mut header = BatchHeader::decode(&self.bytes).expect("checked when it was appended");
        let frames = self.frames();
        let batch = BatchRef::new(header, &frames);
        let mut range = None;
        let mut count = 0;
        let mut last = 0;
        for framed in batch.iter_with_offsets() {
            let offset = self.base + u64::from(framed.message.header.offset_delta);
            if offset < from {
                continue;
            }
            if count == limit {
                break;
            }
            let start = range.map_or(framed.start, |(start, _)| start);
            range = Some((start, framed.end));
            count += 1;
            last = offset;
        }
        let (start, end) = range?;
        let blob = frames.slice(start..end);
        header.batch_length = (BATCH_HEADER_SIZE + blob.len()) as u64;
        header.message_count = count;
        header.batch_checksum = calculate_batch_checksum(&header, &blob);
        let mut bytes = vec![0; BATCH_HEADER_SIZE];
        header.encode_into(&mut bytes);
        Some(Cut { header: Bytes::from(bytes), blob, count, last })
    }
}

/// XXH3-64 over the six header fields and the frames' checksum fields.
fn batch_checksum(header: &BatchHeader, checksums: &[u8]) -> u64 {
    let mut hasher = XxHash3_64::new();
    hasher.write(&header.partition_id.to_le_bytes());
    hasher.write(&header.base_offset.to_le_bytes());
    hasher.write(&header.base_timestamp.to_le_bytes());
    hasher.write(&header.origin_timestamp.to_le_bytes());
    hasher.write(&header.batch_length.to_le_bytes());
    hasher.write(&header.message_count.to_le_bytes());
    hasher.write(checksums);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use iggy_binary_protocol::batch::decode_batch_slice;

    use super::super::testing::batch;
    use super::*;

    /// Ids of a record's messages are their offsets plus 1, if nobody tampers with them.
    fn log(counts: &[u32]) -> Log {
        let mut log = Log::default();
        for (index, &count) in counts.iter().enumerate() {
            let batch = batch(log.next() + 1, count);
            log.append(batch, 3, 1000 + index as u64, 500);
        }
        log
    }

    /// (base offset, offset, id) of every message, each record verified in full.
    fn messages(found: &Found) -> Vec<(u64, u64, u128)> {
        let bytes = found.pieces.concat();
        let mut messages = Vec::new();
        let mut at = 0;
        while at < bytes.len() {
            let batch = decode_batch_slice(&bytes[at..]).expect("a record that verifies");
            assert_eq!(batch.header.partition_id, 3);
            at += batch.header.total_size();
            let base = batch.header.base_offset;
            let first = messages.len();
            messages.extend(
                batch.iter().map(|m| (base, base + u64::from(m.header.offset_delta), m.header.id)),
            );
            assert_eq!(messages.len() - first, batch.header.message_count as usize);
        }
        messages
    }

    #[test]
    fn every_slice_holds_exactly_the_messages_asked_for() {
        let log = log(&[3, 1, 6, 2]);
        let bases = [0, 0, 0, 3, 4, 4, 4, 4, 4, 4, 10, 10];
        for from in 0..14 {
            for count in 0..14 {
                let found = log.read(from, count);
                let end = (from + u64::from(count)).min(12).max(from);
                let expected: Vec<_> = (from..end)
                    .map(|offset| (bases[offset as usize], offset, u128::from(offset) + 1))
                    .collect();
                assert_eq!(messages(&found), expected, "from {from} count {count}");
                assert_eq!(found.count as usize, expected.len());
                assert_eq!(found.last, expected.last().map(|(_, offset, _)| *offset));
            }
        }
    }

    #[test]
    fn whole_records_go_out_by_reference() {
        let log = log(&[2, 2]);
        let (one, two) = (log.read(0, 4), log.read(0, 4));
        assert_eq!(one.pieces.len(), 2);
        let same = one.pieces.iter().zip(&two.pieces).all(|(a, b)| a.as_ptr() == b.as_ptr());
        assert!(same);
    }

    #[test]
    fn copies_that_share_their_frames_are_records_like_others() {
        let large = batch(1, 400);
        let (mut shared, mut apart) = (Log::default(), Log::default());
        shared.append_copies(&large, 3, 1_000, 1 << 20, 4);
        (0..4).for_each(|_| {
            apart.append(large.clone(), 3, 1_000, 1 << 20);
        });
        assert_eq!((shared.next(), shared.bytes()), (1_600, apart.bytes()));
        for (from, count) in [(0, 1_600), (1, 400), (400, 400), (5, 900), (1_599, 1)] {
            let seen = |log: &Log| log.read(from, count).pieces.concat();
            assert_eq!(seen(&shared), seen(&apart), "from {from} count {count}");
        }
        let records = shared.read(0, 1_600).pieces;
        assert_eq!(records[1].as_ptr(), records[7].as_ptr(), "kept once");
        for log in [&mut shared, &mut apart] {
            log.lose_tail(250);
            log.retain_from(400);
        }
        assert_eq!(shared.bytes(), apart.bytes());
        assert_eq!(messages(&shared.read(0, 9_999)), messages(&apart.read(0, 9_999)));
    }

    #[test]
    fn a_head_cut_batch_sent_on_unchanged_damages_the_log_as_on_a_server() {
        let source = log(&[6]);
        let cut = source.read(2, 3).pieces.concat();
        let mut target = log(&[18]);
        let verified = VerifiedBatch::check(cut, 0).expect("cut records verify");
        assert_eq!(target.append(verified, 3, 2000, u64::MAX), 18);
        target.append(batch(100, 1), 3, 2001, u64::MAX);
        let offsets: Vec<_> = messages(&target.read(18, 9)).iter().map(|m| m.1).collect();
        assert_eq!(offsets, [20, 21, 22, 21]);
        let reread: Vec<_> = messages(&target.read(21, 9)).iter().map(|m| m.1).collect();
        assert_eq!(reread, [21]);
    }

    #[test]
    fn timestamps_find_the_first_record_of_their_time() {
        let log = log(&[3, 1, 6]);
        let starts = [(0, 0), (1000, 0), (1001, 3), (1002, 4), (1003, 10)];
        for (timestamp, offset) in starts {
            assert_eq!(log.offset_at(timestamp), offset);
        }
    }

    #[test]
    fn retention_drops_sealed_segments_only() {
        let mut log = log(&[3, 1, 6, 2]);
        assert_eq!(log.segments(), 3);
        assert_eq!(log.drop_segments(9), 2);
        assert_eq!((log.earliest(), log.next()), (10, 12));
        assert_eq!(messages(&log.read(0, 9)).len(), 2);
        assert_eq!(log.bytes(), log.read(0, 9).pieces.concat().len() as u64);
        assert_eq!(log.drop_segments(1), 0);
    }

    #[test]
    fn retention_by_offset_keeps_the_record_it_lies_in() {
        let mut log = log(&[3, 1, 6, 2]);
        log.retain_from(5);
        assert_eq!((log.earliest(), log.messages()), (4, 8));
        log.retain_from(99);
        assert_eq!((log.earliest(), log.next(), log.bytes()), (12, 12, 0));
        assert_eq!(log.append(batch(13, 1), 3, 5000, 600), 12);
    }

    #[test]
    fn a_lost_tail_is_given_out_again() {
        for lost in 0..14 {
            let mut log = log(&[3, 1, 6, 2]);
            log.lose_tail(lost);
            let left = 12u64.saturating_sub(lost);
            assert_eq!(log.next(), left, "lost {lost}");
            let kept = messages(&log.read(0, 99));
            assert_eq!(kept.len() as u64, left);
            assert_eq!(log.bytes(), log.read(0, 99).pieces.concat().len() as u64);
            assert_eq!(log.append(batch(500, 2), 3, 9000, 600), left);
            assert_eq!(messages(&log.read(left, 9)).iter().map(|m| m.2).next(), Some(500));
        }
    }

    #[test]
    fn every_flipped_byte_of_a_batch_is_refused() {
        let VerifiedBatch { buffer, .. } = batch(1, 2);
        for at in 0..buffer.len() {
            let mut flipped = buffer.clone();
            flipped[at] ^= 1;
            assert!(VerifiedBatch::check(flipped, 0).is_err(), "byte {at}");
        }
        for end in 0..buffer.len() {
            assert!(VerifiedBatch::check(buffer[..end].to_vec(), 0).is_err(), "cut at {end}");
        }
        let mut longer = buffer.clone();
        longer.push(0);
        assert_eq!(VerifiedBatch::check(longer, 0).err(), Some(BatchError::Layout));
    }
}
