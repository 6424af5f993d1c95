//! Makes batches of messages that were not polled: for writers, the demo and tests.

use bytes::{BufMut, BytesMut};

use super::blob::{BatchHeader, FRAME_HEADER_LEN, renumber, unsealed_frame_header};
use super::record::{RecordError, Relay};

/// A message to put into a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Message<'a> {
    /// Message id, stored as it is; 0 allowed.
    pub id: u128,
    /// Absolute origin timestamp, microseconds.
    pub origin_timestamp: u64,
    /// Payload.
    pub payload: &'a [u8],
    /// User headers as TLV bytes, see [`encode_header`]; empty for none.
    pub user_headers: &'a [u8],
}

/// One batch of `messages` in order. Refused, naming the message's index: no messages at all,
/// origin timestamps more than 2^32 − 1 µs (71.6 minutes) apart, a part above 4 GiB.
pub fn build_record(messages: &[Message<'_>]) -> Result<Relay, RecordError> {
    let refuse = |index: u64, why: &str| RecordError { offset: index, why: why.to_owned() };
    let Some(origin_timestamp) = messages.iter().map(|m| m.origin_timestamp).min() else {
        return Err(refuse(0, "a batch needs at least one message"));
    };
    let message_count =
        u32::try_from(messages.len()).map_err(|_| refuse(0, "more than 2^32 messages"))?;
    let size = messages.iter().fold(0usize, |sum, m| {
        [FRAME_HEADER_LEN, m.payload.len(), m.user_headers.len()]
            .into_iter()
            .fold(sum, usize::saturating_add)
    });
    let mut blob = BytesMut::with_capacity(size);
    for (index, message) in (0u32..).zip(messages) {
        let index = u64::from(index);
        let apart = message.origin_timestamp.saturating_sub(origin_timestamp);
        let timestamp_delta = u32::try_from(apart).map_err(|_| {
            let why = format!(
                "origin timestamps span {apart} µs, a batch holds at most 4294967295 µs \
                 (71.6 minutes): start another batch here"
            );
            RecordError { offset: index, why }
        })?;
        let too_long = |_| refuse(index, "payload or user headers above 4 GiB");
        let headers_length = u32::try_from(message.user_headers.len()).map_err(too_long)?;
        let payload_length = u32::try_from(message.payload.len()).map_err(too_long)?;
        blob.put_slice(&unsealed_frame_header(
            message.id,
            timestamp_delta,
            headers_length,
            payload_length,
        ));
        blob.put_slice(message.payload);
        blob.put_slice(message.user_headers);
    }
    let mut at = 0;
    for delta in 0..message_count {
        let Some(end) = renumber(&mut blob, at, delta) else { break };
        at = end;
    }
    let header = BatchHeader { origin_timestamp, message_count, ..BatchHeader::default() };
    Ok(Relay::seal(blob.freeze(), header, 0))
}

/// Appends one user header with a text key and a text value (kind 2). Both must be 1 to 255
/// bytes; returns false, and appends nothing, otherwise.
///
/// ```text
/// key kind:1 | key length:4 | key | value kind:1 | value length:4 | value
/// ```
pub fn encode_header(headers: &mut Vec<u8>, key: &str, value: &str) -> bool {
    encode_typed(headers, key, KIND_STRING, value.as_bytes())
}

/// The same with a value of another kind.
pub fn encode_typed(headers: &mut Vec<u8>, key: &str, kind: u8, value: &[u8]) -> bool {
    let fits = |part: &[u8]| u8::try_from(part.len()).ok().filter(|n| *n > 0).map(u32::from);
    let (Some(key_length), Some(value_length)) = (fits(key.as_bytes()), fits(value)) else {
        return false;
    };
    for (kind, length, part) in
        [(KIND_STRING, key_length, key.as_bytes()), (kind, value_length, value)]
    {
        headers.push(kind);
        headers.extend_from_slice(&length.to_le_bytes());
        headers.extend_from_slice(part);
    }
    true
}

const KIND_STRING: u8 = 2;
