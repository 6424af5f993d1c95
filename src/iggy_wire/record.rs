//! Batch records as polled, and their relay to another cluster without touching payloads.

use bytes::Bytes;

/// Whether every message checksum is computed on the way through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verify {
    /// Framing, batch checksum and every message checksum.
    Full,
    /// Framing only.
    FramingOnly,
}

/// One batch record of a poll reply: header (256 bytes) and frames, contiguous. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Record {}

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

/// A record made ready to send: a new header and the untouched (or renumbered) frames.
#[derive(Clone, Debug)]
pub struct Relay {}

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
pub fn scan(_records: &Bytes, _verify: Verify) -> Result<Vec<Record>, RecordError> {
    todo!()
}

impl Record {
    /// Absolute offset of the first message: base offset + first frame's delta.
    pub fn first_offset(&self) -> u64 {
        todo!()
    }
    /// Offset behind the last message.
    pub fn next_offset(&self) -> u64 {
        todo!()
    }
    /// Messages, at least 1.
    pub fn count(&self) -> u32 {
        todo!()
    }
    /// Bytes of header and frames.
    pub fn len(&self) -> usize {
        todo!()
    }
    /// True when the first frame's delta is not 0: sending it means renumbering every frame.
    pub fn is_head_cut(&self) -> bool {
        todo!()
    }
    /// The messages in order.
    pub fn messages(&self) -> impl Iterator<Item = MessageView<'_>> {
        std::iter::empty()
    }
    /// The last message.
    pub fn last(&self) -> MessageView<'_> {
        todo!()
    }
    /// Without the messages below `offset`; `None` if nothing is left. Shares the buffer.
    pub fn from_offset(self, _offset: u64) -> Option<Record> {
        todo!()
    }
    /// Only the first `count` messages (at least 1). Shares the buffer.
    pub fn truncated(&self, _count: u32) -> Record {
        todo!()
    }
    /// Ready to send. Whole or tail-cut: new header, blob by reference; head-cut: renumbered copy.
    pub fn relay(&self) -> Relay {
        todo!()
    }
}

impl Relay {
    /// Messages.
    pub fn count(&self) -> u32 {
        todo!()
    }
    /// Bytes of header and frames.
    pub fn len(&self) -> usize {
        todo!()
    }
}
