//! A batch built message by message in its final place: payload and user headers are written by
//! the caller straight behind the frame header, nothing is copied when the batch is sealed.
//!
//! ```text
//! begin ─▶ body() payload ─▶ end_payload ─▶ body() user headers ─▶ end   … ─▶ seal
//! frame while unsealed: | 0 | id:16 | 0:8 | headers length:4 | payload length:4 | origin:8 | …
//! ```
//!
//! Until it is sealed a frame keeps its absolute origin timestamp where a finished frame has its
//! reserved zeros, since the batch's own, the oldest, is not known before. One pass at the end
//! numbers the frames, patches the distances, and computes every checksum once.

use twox_hash::XxHash3_64;

use super::blob::{
    BATCH_HEADER_LEN, BatchChecksum, BatchHeader, FRAME_HEADER_LEN, Frame, unsealed_frame_header,
};
use super::layout::put;
use super::record::Relay;

/// A batch under construction.
#[derive(Debug, Default)]
pub struct BatchBuilder {
    blob: Vec<u8>,
    span: Span,
    /// The span without the last message.
    before: Span,
    count: u32,
    /// Where the last message begins.
    last: usize,
    /// Between begin and end.
    open: bool,
    /// Where the open message's payload ends; `None` while that is being written.
    payload_end: Option<usize>,
}

/// One message of an unsealed batch.
#[derive(Clone, Copy, Debug)]
pub struct UnsealedMessage<'a> {
    frame: &'a [u8],
    origin: u64,
}

impl<'a> UnsealedMessage<'a> {
    /// Message id.
    pub fn id(&self) -> u128 {
        self.parts().map_or(0, |frame| frame.id)
    }

    /// Absolute origin timestamp, microseconds.
    pub fn origin_timestamp(&self) -> u64 {
        self.origin
    }

    /// Payload.
    pub fn payload(&self) -> &'a [u8] {
        self.parts().map_or(&[], |frame| frame.payload)
    }

    /// User headers as TLV bytes.
    pub fn user_headers(&self) -> &'a [u8] {
        self.parts().map_or(&[], |frame| frame.user_headers)
    }

    fn parts(&self) -> Option<Frame<'a>> {
        Frame::at(self.frame, 0)
    }
}

/// A message is longer than a frame's length fields can say, or its buffer was cut below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a message whose payload or user headers pass 4 GiB")]
pub struct TooLong;

/// Oldest and newest origin timestamp, if there is any.
type Span = Option<(u64, u64)>;

impl BatchBuilder {
    /// An empty batch in this buffer, whose content is forgotten and whose room is used.
    pub fn in_buffer(mut buffer: Vec<u8>) -> BatchBuilder {
        buffer.clear();
        BatchBuilder { blob: buffer, ..BatchBuilder::default() }
    }

    /// Messages.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Nothing in it.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Bytes of the record it would be: batch header and frames.
    pub fn record_len(&self) -> usize {
        BATCH_HEADER_LEN.saturating_add(self.blob.len())
    }

    /// Bytes of its last message alone, as a record.
    pub fn last_len(&self) -> usize {
        BATCH_HEADER_LEN.saturating_add(self.blob.len().saturating_sub(self.last))
    }

    /// Bytes its buffer takes.
    pub fn capacity(&self) -> usize {
        self.blob.capacity()
    }

    /// Whether a message of this origin timestamp can join: a batch spans at most 2^32 − 1 µs
    /// (71.6 minutes) and holds at most 2^32 − 1 messages.
    pub fn takes(&self, origin_timestamp: u64) -> bool {
        let span = widen(self.span, origin_timestamp);
        self.count < u32::MAX && span.is_none_or(|(oldest, newest)| apart(oldest, newest).is_some())
    }

    /// Begins a message; whether it can join was asked with [`BatchBuilder::takes`]. One that was
    /// begun before and not ended is forgotten.
    pub fn begin(&mut self, id: u128, origin_timestamp: u64) {
        self.abandon();
        self.before = self.span;
        self.span = widen(self.span, origin_timestamp);
        self.last = self.blob.len();
        (self.open, self.payload_end) = (true, None);
        let mut header = unsealed_frame_header(id, 0, 0, 0);
        put::<40, 8, 48>(&mut header, origin_timestamp.to_le_bytes());
        self.blob.extend_from_slice(&header);
    }

    /// Where payload and then user headers go: append, nothing else.
    pub fn body(&mut self) -> &mut Vec<u8> {
        &mut self.blob
    }

    /// What was appended so far is the payload; user headers follow.
    pub fn end_payload(&mut self) {
        self.payload_end = Some(self.blob.len());
    }

    /// Ends the message. An error forgets it.
    pub fn end(&mut self) -> Result<(), TooLong> {
        let end = self.blob.len();
        let payload_end = self.payload_end.unwrap_or(end);
        let lengths = || {
            let payload = payload_end.checked_sub(self.last.checked_add(FRAME_HEADER_LEN)?)?;
            let headers = end.checked_sub(payload_end)?;
            Some((u32::try_from(payload).ok()?, u32::try_from(headers).ok()?))
        };
        let frame = lengths().zip(self.blob.get_mut(self.last..));
        let patched = frame.and_then(|((payload, headers), frame)| {
            let header = frame.first_chunk_mut::<FRAME_HEADER_LEN>()?;
            put::<32, 4, 48>(header, headers.to_le_bytes());
            put::<36, 4, 48>(header, payload.to_le_bytes());
            Some(())
        });
        if patched.is_none() {
            self.abandon();
            return Err(TooLong);
        }
        self.count = self.count.saturating_add(1);
        self.open = false;
        Ok(())
    }

    /// Forgets the message that was begun and not ended, if there is one.
    pub fn abandon(&mut self) {
        if std::mem::take(&mut self.open) {
            self.cut_last();
        }
    }

    /// Takes the last message out, right after it was ended.
    pub fn take_last(&mut self) -> BatchBuilder {
        let mut taken = BatchBuilder::default();
        if self.count == 0 {
            return taken;
        }
        if let Some(message) = self.message(self.last) {
            taken.push(message);
        }
        self.cut_last();
        self.count = self.count.saturating_sub(1);
        taken
    }

    /// Its messages in order.
    pub fn messages(&self) -> impl Iterator<Item = UnsealedMessage<'_>> {
        let mut at = 0;
        std::iter::from_fn(move || {
            let message = self.message(at)?;
            at = at.saturating_add(message.frame.len());
            Some(message)
        })
    }

    /// Copies a message of another batch behind what is here.
    pub fn push(&mut self, message: UnsealedMessage<'_>) {
        self.before = self.span;
        self.span = widen(self.span, message.origin);
        self.last = self.blob.len();
        self.blob.extend_from_slice(message.frame);
        self.count = self.count.saturating_add(1);
    }

    /// Copies a whole batch behind what is here, unless the two cannot be one or would pass
    /// `most` bytes of record.
    pub fn append(&mut self, other: &BatchBuilder, most: usize) -> bool {
        let Some((oldest, newest)) = other.span else { return true };
        let span = widen(widen(self.span, oldest), newest);
        let fits = span.is_none_or(|(oldest, newest)| apart(oldest, newest).is_some())
            && self.record_len().saturating_add(other.blob.len()) <= most;
        let Some(count) = self.count.checked_add(other.count).filter(|_| fits) else {
            return false;
        };
        self.last = self.blob.len().saturating_add(other.last);
        self.before = widen(self.span, oldest);
        self.span = span;
        self.count = count;
        self.blob.extend_from_slice(&other.blob);
        true
    }

    /// The same batch in a buffer no larger than it needs, and the old buffer.
    pub fn compact(mut self) -> (BatchBuilder, Vec<u8>) {
        let exact = self.blob.as_slice().to_vec();
        let old = std::mem::replace(&mut self.blob, exact);
        (self, old)
    }

    /// Its buffer alone.
    pub fn into_buffer(self) -> Vec<u8> {
        self.blob
    }

    /// Numbers, distances and checksums; `None` if it is empty.
    pub fn seal(mut self) -> Option<Relay> {
        let (oldest, _) = self.span?;
        let length = u64::try_from(self.record_len()).unwrap_or(u64::MAX);
        let mut header = BatchHeader {
            origin_timestamp: oldest,
            message_count: self.count,
            batch_length: length,
            ..BatchHeader::default()
        };
        let mut sum = BatchChecksum::new(&header);
        let (mut at, mut delta) = (0usize, 0u32);
        while let Some(end) = Frame::at(&self.blob, at).map(|frame| frame.end) {
            let frame = self.blob.get_mut(at..end)?;
            sum.add(finish(frame, delta, oldest)?);
            (at, delta) = (end, delta.saturating_add(1));
        }
        header.batch_checksum = sum.finish();
        Some(Relay::sealed(self.blob.into(), header))
    }

    fn cut_last(&mut self) {
        self.blob.truncate(self.last);
        self.span = self.before;
    }

    fn message(&self, at: usize) -> Option<UnsealedMessage<'_>> {
        let frame = Frame::at(&self.blob, at)?;
        Some(UnsealedMessage { frame: frame.bytes, origin: frame.reserved })
    }
}

/// Turns an unsealed frame into a finished one; returns its checksum.
fn finish(frame: &mut [u8], offset_delta: u32, oldest: u64) -> Option<u64> {
    let header = frame.first_chunk_mut::<FRAME_HEADER_LEN>()?;
    let origin = u64::from_le_bytes(super::layout::get::<40, 8, 48>(header));
    let timestamp_delta = apart(oldest, origin)?;
    put::<24, 4, 48>(header, offset_delta.to_le_bytes());
    put::<28, 4, 48>(header, timestamp_delta.to_le_bytes());
    put::<40, 8, 48>(header, [0; 8]);
    let checksum = XxHash3_64::oneshot(frame.get(8..)?);
    let header = frame.first_chunk_mut::<FRAME_HEADER_LEN>()?;
    put::<0, 8, 48>(header, checksum.to_le_bytes());
    Some(checksum)
}

fn widen(span: Span, origin: u64) -> Span {
    let (oldest, newest) = span.unwrap_or((origin, origin));
    Some((oldest.min(origin), newest.max(origin)))
}

fn apart(oldest: u64, newest: u64) -> Option<u32> {
    u32::try_from(newest.saturating_sub(oldest)).ok()
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::super::record::{Message, Record, Verify, build_record, encode_header, scan};
    use super::*;

    fn write(batch: &mut BatchBuilder, message: &Message<'_>) {
        assert!(batch.takes(message.origin_timestamp));
        batch.begin(message.id, message.origin_timestamp);
        batch.body().extend_from_slice(message.payload);
        batch.end_payload();
        batch.body().extend_from_slice(message.user_headers);
        batch.end().unwrap();
    }

    fn headers() -> Vec<u8> {
        let mut headers = Vec::new();
        assert!(encode_header(&mut headers, "lsn", "0/16B3748"));
        headers
    }

    fn messages(headers: &[u8]) -> [Message<'_>; 3] {
        [(1, 5_000, "first"), (0, 4_000, ""), (u128::MAX, 9_000, "third")].map(
            |(id, origin_timestamp, payload)| Message {
                id,
                origin_timestamp,
                payload: payload.as_bytes(),
                user_headers: if id == 0 { &[] } else { headers },
            },
        )
    }

    fn built(messages: &[Message<'_>]) -> BatchBuilder {
        let mut batch = BatchBuilder::default();
        messages.iter().for_each(|message| write(&mut batch, message));
        batch
    }

    fn one(relay: &Relay) -> Record {
        scan(&relay.stored(0, 0, 0), Verify::Full).unwrap().remove(0)
    }

    #[test]
    fn a_batch_built_in_place_is_the_one_built_from_a_list() {
        let headers = headers();
        let messages = messages(&headers);
        let listed = build_record(&messages).unwrap();
        let batch = built(&messages);
        assert_eq!((batch.count(), batch.record_len()), (3, listed.len()));
        let sealed = batch.seal().unwrap();
        assert_eq!(sealed.blob(), listed.blob());
        assert_eq!(sealed.header(), listed.header());
        assert!(BatchBuilder::default().seal().is_none());
    }

    #[test]
    fn a_message_without_a_border_has_no_user_headers() {
        let mut batch = BatchBuilder::default();
        batch.begin(7, 1);
        batch.body().extend_from_slice(b"all of it");
        batch.end().unwrap();
        let record = one(&batch.seal().unwrap());
        assert_eq!(
            (record.last().payload, record.last().user_headers),
            (&b"all of it"[..], &[][..])
        );
    }

    #[test]
    fn an_abandoned_message_leaves_no_trace() {
        let headers = headers();
        let messages = messages(&headers);
        let mut batch = built(&messages[..1]);
        let before = batch.record_len();
        batch.begin(9, 1);
        batch.body().extend_from_slice(b"half");
        batch.abandon();
        batch.begin(9, u64::from(u32::MAX) + 4_999);
        batch.body().extend_from_slice(b"another half");
        write(&mut batch, &messages[2]);
        assert_eq!(batch.count(), 2);
        assert!(batch.record_len() > before);
        let expected = build_record(&[messages[0], messages[2]]).unwrap();
        assert_eq!(batch.seal().unwrap().blob(), expected.blob(), "its time is forgotten too");
    }

    #[test]
    fn a_body_cut_below_the_message_is_refused_and_forgotten() {
        let mut batch = BatchBuilder::default();
        batch.begin(1, 1);
        batch.body().clear();
        assert_eq!(batch.end(), Err(TooLong));
        assert!(batch.is_empty() && batch.seal().is_none());
    }

    #[test]
    fn the_last_message_can_leave_for_a_batch_of_its_own() {
        let headers = headers();
        let messages = messages(&headers);
        let mut batch = built(&messages);
        let taken = batch.take_last();
        assert_eq!((batch.count(), taken.count()), (2, 1));
        assert_eq!(taken.record_len(), built(&messages[2..]).record_len());
        for (batch, messages) in [(batch, &messages[..2]), (taken, &messages[2..])] {
            assert_eq!(batch.seal().unwrap().blob(), build_record(messages).unwrap().blob());
        }
        assert!(BatchBuilder::default().take_last().is_empty());
    }

    #[test]
    fn batches_join_and_fall_apart_message_by_message() {
        let headers = headers();
        let messages = messages(&headers);
        let whole = build_record(&messages).unwrap();
        let (mut head, tail) = (built(&messages[..1]), built(&messages[1..]));
        assert!(!head.append(&tail, whole.len() - 1), "too long together");
        assert_eq!(head.count(), 1);
        assert!(head.append(&tail, whole.len()));
        let last = head.messages().last().unwrap();
        let parts = (last.id(), last.origin_timestamp(), last.payload(), last.user_headers());
        assert_eq!(parts, (u128::MAX, 9_000, &b"third"[..], headers.as_slice()));
        let mut copy = BatchBuilder::in_buffer(vec![1, 2, 3]);
        head.messages().for_each(|message| copy.push(message));
        assert_eq!(copy.take_last().record_len(), head.last_len());
        copy.push(head.messages().nth(2).unwrap());
        assert_eq!(head.seal().unwrap().blob(), whole.blob());
        assert_eq!(copy.seal().unwrap().blob(), whole.blob());
    }

    #[test]
    fn a_batch_never_spans_more_than_its_distances_can_say() {
        let limit = u64::from(u32::MAX);
        let at = |origin_timestamp| Message { origin_timestamp, ..Message::default() };
        let mut batch = built(&[at(1_000)]);
        assert!(batch.takes(1_000 + limit) && !batch.takes(1_001 + limit));
        write(&mut batch, &at(1_000 + limit));
        assert!(batch.takes(1_000) && !batch.takes(999));
        assert!(!batch.append(&built(&[at(999)]), usize::MAX));
        assert!(batch.append(&built(&[at(1_001)]), usize::MAX));
        assert!(batch.append(&BatchBuilder::default(), 0));
        assert_eq!(one(&batch.seal().unwrap()).messages().last().unwrap().origin_timestamp, 1_001);
    }

    #[test]
    fn a_compact_copy_gives_its_buffer_back() {
        let mut batch = BatchBuilder::in_buffer(Vec::with_capacity(1 << 16));
        write(&mut batch, &Message { payload: b"x", ..Message::default() });
        let (small, buffer) = batch.compact();
        assert!(small.capacity() < 100 && buffer.capacity() == 1 << 16);
        let sealed: Bytes = small.seal().unwrap().blob().clone();
        assert_eq!(sealed.len(), 49);
    }
}
