//! Is this still the log we were reading? Fingerprints of messages and what a poll's shape says.

use twox_hash::XxHash3_64;

use crate::batch::Fingerprint;
use crate::iggy_wire::{MessageView, Polled, Record};

/// Fingerprint of one message.
pub fn fingerprint(message: &MessageView<'_>) -> Fingerprint {
    let mut hasher = XxHash3_64::with_seed(0);
    std::hash::Hasher::write(&mut hasher, message.payload);
    std::hash::Hasher::write(&mut hasher, message.user_headers);
    Fingerprint {
        id: message.id,
        origin_timestamp: message.origin_timestamp,
        payload_len: u32::try_from(message.payload.len()).unwrap_or(u32::MAX),
        headers_len: u32::try_from(message.user_headers.len()).unwrap_or(u32::MAX),
        hash: std::hash::Hasher::finish(&hasher),
    }
}

/// Next offset the log will give out, as far as a reply without messages tells: 0 when the
/// reply says 0, which means "empty" or "one message at offset 0".
pub fn end_of_empty_reply(polled: &Polled) -> u64 {
    if polled.current_offset == 0 { 0 } else { polled.current_offset.saturating_add(1) }
}

/// The same of a log that was read up to offset `cursor`. Behind one message "0" is taken to mean
/// that one, which retention may have removed: if the log is a new one instead, the next message
/// in its place tells.
pub fn end_of_log_read(polled: &Polled, cursor: u64) -> u64 {
    if polled.current_offset == 0 && cursor == 1 { 1 } else { end_of_empty_reply(polled) }
}

/// Next offset the log will give out, from a reply that carries messages.
pub fn end_of_reply(polled: &Polled, last: &Record) -> u64 {
    polled.current_offset.saturating_add(1).max(last.next_offset())
}
