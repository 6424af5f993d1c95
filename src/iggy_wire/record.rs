//! Batch records as polled, and their relay to another cluster without touching payloads.
//!
//! [`scan`] proves that frames tile a record, that deltas count up by one and that reserved
//! bytes are zero; with [`Verify::Full`] also every checksum. A [`Record`] exists only behind
//! that proof, so its methods cannot fail. A server that cuts a record keeps `base_offset` and
//! the frames' deltas: the first offset is always base + first delta, and a head-cut record
//! must be renumbered before it is sent, or the destination loses messages.
//!
//! Refused: non-contiguous deltas inside a record. Holes and repeats *between* records are the
//! caller's to judge.

use std::fmt;

use bytes::Bytes;

use super::blob::{BATCH_HEADER_LEN, BatchChecksum, BatchHeader, Frame, renumber};
use super::command::Polled;

pub use super::build::{Message, build_record, encode_header};

/// Whether every message checksum is computed on the way through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verify {
    /// Framing, batch checksum and every message checksum.
    Full,
    /// Framing only.
    FramingOnly,
}

/// One batch record of a poll reply: its frames, shared with the reply's buffer, and what the
/// header said. Cheap to clone.
#[derive(Clone)]
pub struct Record {
    blob: Bytes,
    base_offset: u64,
    origin_timestamp: u64,
    first_delta: u32,
    count: u32,
    /// Where the last frame begins in `blob`.
    last: usize,
}

/// A message inside a [`Record`], borrowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageView<'a> {
    /// Absolute offset: base offset + offset delta.
    pub offset: u64,
    /// Message id, 0 allowed.
    pub id: u128,
    /// Absolute origin timestamp, microseconds.
    pub origin_timestamp: u64,
    /// Payload.
    pub payload: &'a [u8],
    /// User headers as the TLV bytes on the wire.
    pub user_headers: &'a [u8],
}

/// A record made ready to send: a new header and the untouched (or renumbered) frames. Cheap to
/// clone.
#[derive(Clone)]
pub struct Relay {
    header: BatchHeader,
    blob: Bytes,
    /// Frames behind those of `blob`, from other buffers.
    more: Vec<Bytes>,
    first_offset: u64,
}

/// A record that must not be sent on, named by offset.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("record at offset {offset}: {why}")]
pub struct RecordError {
    /// Offset of the message at fault, or the record's first offset, or as far as is known.
    pub offset: u64,
    /// What is wrong with it.
    pub why: String,
}

/// Cuts a poll reply's records apart and checks each.
pub fn scan(records: &Bytes, verify: Verify) -> Result<Vec<Record>, RecordError> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < records.len() {
        let expected = found.last().map_or(0, Record::next_offset);
        let checked = check(records, at, expected, verify)?;
        at = checked.frames.end;
        found.push(Record {
            blob: records.slice(checked.frames.clone()),
            base_offset: checked.header.base_offset,
            origin_timestamp: checked.header.origin_timestamp,
            first_delta: checked.first_delta,
            count: checked.header.message_count,
            last: checked.last,
        });
    }
    Ok(found)
}

impl Polled {
    /// Like [`scan`], and the records must hold as many messages as the reply says.
    pub fn scan(&self, verify: Verify) -> Result<Vec<Record>, RecordError> {
        let records = scan(&self.records, verify)?;
        let sum: u64 = records.iter().map(|r| u64::from(r.count())).sum();
        if sum != u64::from(self.count) {
            let offset = records.first().map_or(0, Record::first_offset);
            let why =
                format!("the reply announces {} messages, its records hold {sum}", self.count);
            return Err(RecordError { offset, why });
        }
        Ok(records)
    }
}

impl Record {
    /// Absolute offset of the first message: base offset + first frame's delta.
    pub fn first_offset(&self) -> u64 {
        self.base_offset.saturating_add(u64::from(self.first_delta))
    }
    /// Offset behind the last message.
    pub fn next_offset(&self) -> u64 {
        self.first_offset().saturating_add(u64::from(self.count))
    }
    /// Messages, at least 1.
    pub fn count(&self) -> u32 {
        self.count
    }
    /// Bytes of header and frames.
    #[expect(clippy::len_without_is_empty, reason = "a record holds at least one message")]
    pub fn len(&self) -> usize {
        BATCH_HEADER_LEN.saturating_add(self.blob.len())
    }
    /// True when the first frame's delta is not 0: sending it means renumbering every frame.
    pub fn is_head_cut(&self) -> bool {
        self.first_delta != 0
    }
    /// The messages in order.
    pub fn messages(&self) -> impl Iterator<Item = MessageView<'_>> {
        self.frames().map(|(_, frame)| self.view(&frame))
    }
    /// The last message.
    pub fn last(&self) -> MessageView<'_> {
        let nothing = MessageView {
            offset: self.next_offset().saturating_sub(1),
            id: 0,
            origin_timestamp: self.origin_timestamp,
            payload: &[],
            user_headers: &[],
        };
        Frame::at(&self.blob, self.last).map_or(nothing, |frame| self.view(&frame))
    }
    /// Without the messages below `offset`; `None` if nothing is left. Shares the buffer.
    pub fn from_offset(self, offset: u64) -> Option<Record> {
        let dropped = match offset.checked_sub(self.first_offset()) {
            None | Some(0) => return Some(self),
            Some(dropped) => u32::try_from(dropped).ok().filter(|n| *n < self.count)?,
        };
        let (at, frame) = self.frames().nth(super::layout::wide(dropped))?;
        let first_delta = frame.offset_delta;
        Some(Record {
            blob: self.blob.slice(at..),
            first_delta,
            count: self.count.saturating_sub(dropped),
            last: self.last.saturating_sub(at),
            ..self
        })
    }
    /// Only the first `count` messages (at least 1). Shares the buffer.
    pub fn truncated(&self, count: u32) -> Record {
        let count = count.max(1);
        if count >= self.count {
            return self.clone();
        }
        let kept = super::layout::wide(count).saturating_sub(1);
        match self.frames().nth(kept) {
            None => self.clone(),
            Some((last, frame)) => {
                Record { blob: self.blob.slice(..frame.end), count, last, ..self.clone() }
            }
        }
    }
    /// Ready to send. Whole or tail-cut: new header, blob by reference. Head-cut: a renumbered
    /// copy; what the mirror sends is renumbered where it lies, see [`super::run`].
    pub fn relay(&self) -> Relay {
        let header = BatchHeader {
            origin_timestamp: self.origin_timestamp,
            message_count: self.count,
            ..BatchHeader::default()
        };
        let blob = if self.is_head_cut() { self.renumbered() } else { self.blob.clone() };
        Relay::seal(blob, header, self.first_offset())
    }

    fn renumbered(&self) -> Bytes {
        let mut copy = self.blob.to_vec();
        let mut at = 0;
        for delta in 0..self.count {
            let Some(end) = renumber(&mut copy, at, delta) else { break };
            at = end;
        }
        Bytes::from(copy)
    }

    fn frames(&self) -> impl Iterator<Item = (usize, Frame<'_>)> {
        let mut at = 0;
        std::iter::from_fn(move || {
            let begin = at;
            let frame = Frame::at(&self.blob, begin)?;
            at = frame.end;
            Some((begin, frame))
        })
    }

    /// Origin timestamps saturate: no server checks them, and the relay copies both parts.
    fn view<'a>(&self, frame: &Frame<'a>) -> MessageView<'a> {
        MessageView {
            offset: self.base_offset.saturating_add(u64::from(frame.offset_delta)),
            id: frame.id,
            origin_timestamp: self
                .origin_timestamp
                .saturating_add(u64::from(frame.timestamp_delta)),
            payload: frame.payload,
            user_headers: frame.user_headers,
        }
    }
}

impl Relay {
    /// Messages.
    pub fn count(&self) -> u32 {
        self.header.message_count
    }
    /// Bytes of header and frames.
    #[expect(clippy::len_without_is_empty, reason = "a relay holds at least one message")]
    pub fn len(&self) -> usize {
        let parts = [&self.blob].into_iter().chain(&self.more).map(Bytes::len);
        parts.fold(BATCH_HEADER_LEN, usize::saturating_add)
    }
    /// Upstream offset of the first message; 0 for a record that was built, not polled.
    pub fn first_offset(&self) -> u64 {
        self.first_offset
    }
    /// The batch header to send: the fields the server owns are zero.
    pub fn header(&self) -> [u8; BATCH_HEADER_LEN] {
        self.header.bytes()
    }
    /// The frames, deltas 0, 1, 2 …, or the first of them where [`Relay::more`] follow.
    pub fn blob(&self) -> &Bytes {
        &self.blob
    }
    /// Frames that follow [`Relay::blob`], from other buffers: those of a merged batch.
    pub fn more(&self) -> &[Bytes] {
        &self.more
    }
    /// The frames alone, to use their buffer again.
    pub fn into_blob(self) -> Bytes {
        self.blob
    }
    /// Header and frames as a server stores and serves them.
    pub fn stored(&self, partition: u32, base_offset: u64, base_timestamp: u64) -> Bytes {
        let mut header = BatchHeader {
            partition_id: u64::from(partition),
            base_offset,
            base_timestamp,
            ..self.header
        };
        let mut sum = BatchChecksum::new(&header);
        let parts = || [&self.blob].into_iter().chain(&self.more);
        parts().for_each(|part| sum.add_all(part));
        header.batch_checksum = sum.finish();
        let mut bytes = Vec::with_capacity(self.len());
        bytes.extend_from_slice(&header.bytes());
        parts().for_each(|part| bytes.extend_from_slice(part));
        Bytes::from(bytes)
    }

    /// A batch that was built, its header complete.
    pub(super) fn sealed(blob: Bytes, header: BatchHeader) -> Relay {
        Relay { blob, more: Vec::new(), header, first_offset: 0 }
    }

    /// A merged batch, its header complete.
    pub(super) fn merged(
        blob: Bytes,
        more: Vec<Bytes>,
        header: BatchHeader,
        first_offset: u64,
    ) -> Relay {
        Relay { blob, more, header, first_offset }
    }

    /// Fills in length and checksum.
    pub(super) fn seal(blob: Bytes, mut header: BatchHeader, first_offset: u64) -> Relay {
        let length = BATCH_HEADER_LEN.saturating_add(blob.len());
        header.batch_length = u64::try_from(length).unwrap_or(u64::MAX);
        let mut sum = BatchChecksum::new(&header);
        sum.add_all(&blob);
        header.batch_checksum = sum.finish();
        Relay { header, blob, more: Vec::new(), first_offset }
    }
}

impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (first, next) = (self.first_offset(), self.next_offset());
        write!(f, "Record({first}..{next}, {} bytes)", self.len())
    }
}

impl fmt::Debug for Relay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let next = self.first_offset.saturating_add(u64::from(self.count()));
        write!(f, "Relay({}..{next}, {} bytes)", self.first_offset, self.len())
    }
}

/// A record that was checked where it lies.
pub(super) struct Checked {
    pub(super) header: BatchHeader,
    /// Where its frames begin and end.
    pub(super) frames: std::ops::Range<usize>,
    pub(super) first_delta: u32,
    /// Where the last frame begins, counted from the first.
    pub(super) last: usize,
}

impl Checked {
    /// Absolute offset of the first message.
    pub(super) fn first_offset(&self) -> u64 {
        self.header.base_offset.saturating_add(u64::from(self.first_delta))
    }

    /// Offset behind the last message.
    pub(super) fn next_offset(&self) -> u64 {
        self.first_offset().saturating_add(u64::from(self.header.message_count))
    }
}

/// Checks the record that begins at `at`. `expected` names it if it is unreadable.
pub(super) fn check(
    records: &[u8],
    at: usize,
    expected: u64,
    verify: Verify,
) -> Result<Checked, RecordError> {
    let refuse = |offset, why: String| Err(RecordError { offset, why });
    let rest = records.get(at..).unwrap_or_default();
    let Some(h) = rest.first_chunk::<BATCH_HEADER_LEN>() else {
        return refuse(expected, format!("its header is cut: need 256 bytes, have {}", rest.len()));
    };
    let header = BatchHeader::read(h);
    let base = header.base_offset;
    if let Some(byte) = BatchHeader::dirty_reserved(h) {
        return refuse(base, format!("reserved header byte {byte} is not zero"));
    }
    let length = usize::try_from(header.batch_length).unwrap_or(usize::MAX);
    if length < BATCH_HEADER_LEN {
        return refuse(base, format!("its length is {length}, expected at least 256 bytes"));
    }
    if length > rest.len() {
        return refuse(base, format!("it is cut: need {length} bytes, have {}", rest.len()));
    }
    if header.message_count == 0 {
        return refuse(base, "it holds no message".to_owned());
    }
    let frames = rest.get(BATCH_HEADER_LEN..length).unwrap_or_default();
    let (first_delta, last) = walk(&header, frames, verify)?;
    let first = base.checked_add(u64::from(first_delta));
    if first.and_then(|f| f.checked_add(u64::from(header.message_count))).is_none() {
        return refuse(base, "its offsets pass the end of 64 bits".to_owned());
    }
    let frames = at.saturating_add(BATCH_HEADER_LEN)..at.saturating_add(length);
    Ok(Checked { header, frames, first_delta, last })
}

/// One pass over the frames: first delta and position of the last frame.
fn walk(header: &BatchHeader, blob: &[u8], verify: Verify) -> Result<(u32, usize), RecordError> {
    let mut sum = BatchChecksum::new(header);
    let (mut at, mut last, mut first_delta) = (0, 0, 0);
    for nth in 0..header.message_count {
        let offset = |delta: u32| header.base_offset.saturating_add(u64::from(delta));
        let expected = nth.saturating_add(first_delta);
        let refuse = |offset, why| Err(RecordError { offset, why });
        let Some(frame) = Frame::at(blob, at) else {
            let have = blob.len().saturating_sub(at);
            let why =
                format!("message {nth} of {} is cut, {have} bytes left", header.message_count);
            return refuse(offset(expected), why);
        };
        if nth == 0 {
            first_delta = frame.offset_delta;
        }
        let expected = nth.saturating_add(first_delta);
        if frame.offset_delta != expected {
            let seen = frame.offset_delta;
            let why = format!("offset deltas do not count up: saw {seen}, expected {expected}");
            return refuse(offset(expected), why);
        }
        if frame.reserved != 0 {
            return refuse(offset(expected), "reserved frame bytes are not zero".to_owned());
        }
        if verify == Verify::Full {
            let computed = frame.computed_checksum();
            if computed != frame.checksum {
                let seen = frame.checksum;
                let why = format!("message checksum: saw {seen:016x}, computed {computed:016x}");
                return refuse(offset(expected), why);
            }
            sum.add(frame.checksum);
        }
        last = at;
        at = frame.end;
    }
    let offset = header.base_offset.saturating_add(u64::from(first_delta));
    if at != blob.len() {
        let why = format!("{} bytes behind its last message", blob.len().saturating_sub(at));
        return Err(RecordError { offset, why });
    }
    let computed = sum.finish();
    if verify == Verify::Full && computed != header.batch_checksum {
        let seen = header.batch_checksum;
        let why = format!("batch checksum: saw {seen:016x}, computed {computed:016x}");
        return Err(RecordError { offset, why });
    }
    Ok((first_delta, last))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: u64 = 100;

    /// Three messages as a server stores them at offsets 100 to 102.
    fn stored() -> Bytes {
        let mut headers = Vec::new();
        assert!(encode_header(&mut headers, "key", "value"));
        let message = |id, origin_timestamp, payload, user_headers| Message {
            id,
            origin_timestamp,
            payload,
            user_headers,
        };
        build_record(&[
            message(1, 5_000, b"first".as_slice(), headers.as_slice()),
            message(0, 4_000, b"", b""),
            message(3, 6_000, b"third", headers.as_slice()),
        ])
        .unwrap()
        .stored(7, BASE, 9_000)
    }

    fn one(bytes: &Bytes) -> Record {
        let mut records = scan(bytes, Verify::Full).unwrap();
        assert_eq!(records.len(), 1);
        records.remove(0)
    }

    #[test]
    fn a_record_says_where_it_begins_and_ends() {
        let bytes = stored();
        let record = one(&bytes);
        assert_eq!((record.first_offset(), record.next_offset()), (100, 103));
        assert_eq!((record.count(), record.len()), (3, bytes.len()));
        assert!(!record.is_head_cut());
        let seen: Vec<_> = record
            .messages()
            .map(|m| (m.offset, m.id, m.origin_timestamp, m.payload.len()))
            .collect();
        assert_eq!(seen, [(100, 1, 5_000, 5), (101, 0, 4_000, 0), (102, 3, 6_000, 5)]);
        assert_eq!(record.last(), record.messages().last().unwrap());
    }

    #[test]
    fn a_whole_record_is_relayed_without_copying_its_frames() {
        let bytes = stored();
        let relay = one(&bytes).relay();
        assert_eq!(relay.blob().as_ptr(), bytes[256..].as_ptr());
        assert_eq!(relay.blob().len(), bytes.len() - 256);
        let header = BatchHeader::read(&relay.header());
        assert_eq!((header.partition_id, header.base_offset, header.base_timestamp), (0, 0, 0));
        assert_eq!(header.origin_timestamp, 4_000);
        assert_eq!((relay.count(), relay.len(), relay.first_offset()), (3, bytes.len(), 100));
    }

    #[test]
    fn a_tail_cut_record_shares_the_buffer_too() {
        let bytes = stored();
        let cut = one(&bytes).truncated(2);
        assert_eq!((cut.first_offset(), cut.next_offset(), cut.count()), (100, 102, 2));
        assert_eq!(cut.last().id, 0);
        let relay = cut.relay();
        assert_eq!(relay.blob().as_ptr(), bytes[256..].as_ptr());
        assert_eq!(scan(&relay.stored(0, 5, 0), Verify::Full).unwrap()[0].next_offset(), 7);
        assert_eq!(one(&bytes).truncated(0).count(), 1);
        assert_eq!(one(&bytes).truncated(u32::MAX).count(), 3);
    }

    #[test]
    fn a_head_cut_record_is_renumbered_and_rehashed() {
        let bytes = stored();
        let cut = one(&bytes).from_offset(101).unwrap();
        assert!(cut.is_head_cut());
        assert_eq!((cut.first_offset(), cut.next_offset(), cut.count()), (101, 103, 2));
        assert_eq!(cut.last().offset, 102);
        let relay = cut.relay();
        assert_eq!(relay.first_offset(), 101);
        let again = one(&relay.stored(7, 40, 1));
        assert!(!again.is_head_cut());
        let strip = |m: MessageView<'_>| {
            (m.id, m.origin_timestamp, m.payload.to_vec(), m.user_headers.to_vec())
        };
        let before: Vec<_> = cut.messages().map(strip).collect();
        let after: Vec<_> = again.messages().map(strip).collect();
        assert_eq!(before, after);
        assert_eq!(one(&bytes).count(), 3, "the polled bytes are untouched");
    }

    #[test]
    fn cutting_at_the_ends_keeps_all_or_nothing() {
        let bytes = stored();
        assert_eq!(one(&bytes).from_offset(0).unwrap().count(), 3);
        assert_eq!(one(&bytes).from_offset(100).unwrap().count(), 3);
        assert_eq!(one(&bytes).from_offset(102).unwrap().count(), 1);
        assert!(one(&bytes).from_offset(103).is_none());
        assert!(one(&bytes).from_offset(u64::MAX).is_none());
    }

    #[test]
    fn any_flipped_bit_of_a_frame_is_refused_by_offset() {
        let good = stored();
        let ends: Vec<usize> = one(&good).frames().map(|(_, frame)| 256 + frame.end).collect();
        for at in 256..good.len() {
            for bit in 0..8 {
                let mut bad = good.to_vec();
                bad[at] ^= 1 << bit;
                let error = scan(&Bytes::from(bad), Verify::Full).unwrap_err();
                let nth = ends.iter().filter(|end| **end <= at).count() as u64;
                // Nothing but itself vouches for the first frame's delta.
                if !(256 + 24..256 + 28).contains(&at) {
                    assert_eq!(error.offset, BASE + nth, "byte {at} bit {bit}: {error}");
                }
                assert!(error.to_string().contains(&error.offset.to_string()));
            }
        }
    }

    #[test]
    fn any_flipped_bit_of_a_header_is_refused() {
        let good = stored();
        for at in 0..256 {
            for bit in 0..8 {
                let mut bad = good.to_vec();
                bad[at] ^= 1 << bit;
                assert!(scan(&Bytes::from(bad), Verify::Full).is_err(), "byte {at} bit {bit}");
            }
        }
    }

    #[test]
    fn every_cut_of_a_reply_is_refused_with_framing_checks_alone() {
        let two = [stored(), stored()].concat();
        let half = two.len() / 2;
        for cut in (1..two.len()).filter(|cut| *cut != half) {
            let bytes = Bytes::copy_from_slice(&two[..cut]);
            assert!(scan(&bytes, Verify::FramingOnly).is_err(), "cut at {cut}");
        }
        let error = scan(&Bytes::copy_from_slice(&two[..half + 9]), Verify::Full).unwrap_err();
        assert_eq!(error.offset, 103, "named by what must follow the record before it");
    }

    #[test]
    fn deltas_with_a_hole_or_a_repeat_are_refused_by_offset() {
        for delta in [0u32, 2, 3, u32::MAX] {
            let mut bad = stored().to_vec();
            let second = 256 + one(&stored()).frames().next().unwrap().1.end;
            bad[second + 24..second + 28].copy_from_slice(&delta.to_le_bytes());
            let error = scan(&Bytes::from(bad), Verify::FramingOnly).unwrap_err();
            assert_eq!(error.offset, 101);
            assert!(error.why.contains("do not count up"), "{error}");
        }
    }

    #[test]
    fn offsets_that_pass_64_bits_are_refused() {
        let relay = build_record(&[Message::default(), Message::default()]).unwrap();
        assert!(scan(&relay.stored(0, u64::MAX - 1, 0), Verify::Full).is_err());
        let last = &scan(&relay.stored(0, u64::MAX - 2, 0), Verify::Full).unwrap()[0];
        assert_eq!(last.next_offset(), u64::MAX);
    }

    #[test]
    fn holes_between_records_are_left_to_the_caller() {
        let relay = build_record(&[Message::default()]).unwrap();
        let bytes = [relay.stored(0, 9, 0), relay.stored(0, 50, 0), relay.stored(0, 9, 0)].concat();
        let firsts: Vec<_> = scan(&Bytes::from(bytes), Verify::Full)
            .unwrap()
            .iter()
            .map(Record::first_offset)
            .collect();
        assert_eq!(firsts, [9, 50, 9]);
        assert!(scan(&Bytes::new(), Verify::Full).unwrap().is_empty());
    }

    #[test]
    fn a_reply_with_another_number_of_messages_is_refused() {
        let reply = |count| Polled { partition: 0, current_offset: 102, count, records: stored() };
        assert_eq!(reply(3).scan(Verify::Full).unwrap().len(), 1);
        for count in [0, 2, 4] {
            assert_eq!(reply(count).scan(Verify::Full).unwrap_err().offset, BASE);
        }
    }

    #[test]
    fn origin_timestamps_too_far_apart_need_another_batch() {
        let at = |origin_timestamp| Message { origin_timestamp, ..Message::default() };
        let limit = u64::from(u32::MAX);
        let relay = build_record(&[at(limit + 7), at(7)]).unwrap();
        let first = one(&relay.stored(0, 0, 0)).messages().next().unwrap().origin_timestamp;
        assert_eq!(first, limit + 7);
        let error = build_record(&[at(7), at(limit + 8)]).unwrap_err();
        assert_eq!(error.offset, 1, "the message at fault");
        assert!(error.why.contains("71.6 minutes"));
        assert!(build_record(&[]).is_err());
    }

    #[test]
    fn a_header_field_outside_1_to_255_bytes_adds_nothing() {
        let mut headers = Vec::new();
        let long = "x".repeat(256);
        for (key, value) in [("", "v"), ("k", ""), (long.as_str(), "v"), ("k", long.as_str())] {
            assert!(!encode_header(&mut headers, key, value));
            assert!(headers.is_empty());
        }
        assert!(encode_header(&mut headers, &long[1..], &long[1..]));
        assert_eq!(headers.len(), 2 * (5 + 255));
    }
}
