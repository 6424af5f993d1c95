//! The Iggy wire: frames and their bodies, batch records, and what becomes of a record on its way.

use bytes::Bytes;
use iggy_binary_protocol::batch::decode_batch_slice;
use tidegate::iggy_wire::decode::{Expect, decode, decode_login};
use tidegate::iggy_wire::frame::{HEADER_LEN, RequestHeader, ServerHeader};
use tidegate::iggy_wire::record::{self, Message, build_record};
use tidegate::iggy_wire::run::Limits;
use tidegate::iggy_wire::{Polled, Record, Relay, Reply, Runs, Verify};
use twox_hash::XxHash3_64;

use super::Choices;

const EXPECTATIONS: [Expect; 15] = [
    Expect::Ping,
    Expect::Cluster,
    Expect::Options,
    Expect::Streams,
    Expect::Stream,
    Expect::Topics,
    Expect::Topic,
    Expect::StreamCreated,
    Expect::TopicCreated,
    Expect::PartitionsCreated,
    Expect::Polled,
    Expect::Primary,
    Expect::Sent { partition: Some(0) },
    Expect::Sent { partition: None },
    Expect::LoggedOut,
];

/// `data` as a frame of a server and of a client: refused, or the header is made again as it was,
/// and whatever the body is taken for, it decodes or is refused.
pub fn frames(data: &[u8]) {
    if let Ok(Some(request)) = RequestHeader::parse(data) {
        let again = RequestHeader::parse(&request.encode());
        assert_eq!(again.expect("it was accepted before"), Some(request));
    }
    let Ok(Some(header)) = ServerHeader::parse(data) else { return };
    let ServerHeader::Reply(header) = header else { return };
    let body = Bytes::copy_from_slice(data.get(HEADER_LEN..).unwrap_or_default());
    let _ = decode_login(&header, body.clone());
    for expect in EXPECTATIONS {
        // As the session does: only the operation that was asked for is looked at.
        let decoded = decode(expect, &header, body.clone());
        if let Ok(Ok(Reply::Polled(polled))) = decoded {
            assert!(polled.records.len() <= body.len());
            let _ = polled.scan(Verify::Full);
        }
    }
}

/// `data` as records back to back, as it is and with checksums that fit: what is accepted can be
/// walked, cut anywhere and sent on, and the reference decoder takes what is sent.
pub fn records(data: &[u8]) {
    let as_is = Bytes::copy_from_slice(data);
    if let Ok(records) = record::scan(&as_is, Verify::FramingOnly) {
        records.iter().for_each(walk);
        let bytes = Bytes::from(seal(&records, data));
        let sealed = record::scan(&bytes, Verify::Full).expect("only its checksums were wrong");
        assert_eq!(sealed.len(), records.len());
        merged(&sealed, &bytes);
        sealed.iter().for_each(relayed);
    }
    if let Ok(records) = record::scan(&as_is, Verify::Full) {
        records.iter().for_each(relayed);
        merged(&records, &as_is);
    }
}

/// Sent on together as far as they can be, the records up to a hole hold the same messages.
fn merged(records: &[Record], as_is: &Bytes) {
    let count = records.iter().map(Record::count).sum();
    let records_of = Bytes::copy_from_slice(as_is);
    let mut polled = Polled { partition: 0, current_offset: 0, count, records: records_of };
    let Some(run) = polled.take_run(Verify::Full).expect("what scan accepts") else { return };
    let (mut at, until) = (run.first_offset(), run.next_offset());
    let mut runs = Runs::default();
    runs.push(run);
    let limits = Limits { bytes: 1 << 20, merged: 1 << 20, messages: u32::MAX, large: 1 << 20 };
    let mut expected = records.iter().flat_map(Record::messages);
    while let Some(batch) = runs.take(&limits).expect("no message is too large") {
        let sent = bytes_of(batch.relay());
        let read = decode_batch_slice(&sent).expect("what was accepted is acceptable");
        assert_eq!(read.message_count(), batch.count());
        for (nth, (read_one, polled)) in read.iter().zip(&mut expected).enumerate() {
            assert_eq!(read_one.header.offset_delta as usize, nth);
            assert_eq!((read_one.header.id, read_one.payload), (polled.id, polled.payload));
            assert_eq!(read_one.user_headers, polled.user_headers);
            let time = read.header.origin_timestamp;
            let time = time.saturating_add(u64::from(read_one.header.timestamp_delta));
            assert_eq!((time, at), (polled.origin_timestamp, polled.offset));
            at += 1;
        }
    }
    assert_eq!(at, until);
}

/// `data` as messages to build a record of, and where it is cut: what is sent on is the messages
/// between the cuts, as the reference decoder reads them.
pub fn relay(data: &[u8]) {
    let mut choices = Choices::new(data);
    let base = choices.number().min(u64::MAX / 2);
    let begin = choices.number().min(u64::MAX / 2);
    let (from, keep) = (choices.below(256), choices.below(256));
    let count = 1 + choices.below(12);
    let mut messages = Vec::new();
    for _ in 0..count {
        let origin_timestamp = begin + choices.number() % u64::from(u32::MAX);
        let id = u128::from(choices.number()) << 64 | u128::from(choices.number());
        let (payload, headers) = (choices.below(64), choices.below(16));
        let (payload, user_headers) = (choices.bytes(payload), choices.bytes(headers));
        messages.push(Message { id, origin_timestamp, payload, user_headers });
    }
    let built = build_record(&messages).expect("messages that are not too far apart");
    let stored = built.stored(3, base, 1_700_000_000_000_000);
    let mut records = record::scan(&stored, Verify::Full).expect("a record that was built");
    let whole = records.pop().expect("one record");
    assert!(records.is_empty());
    let from = from % count;
    let keep = 1 + keep % (count - from);
    let offset = base + from as u64;
    let cut = whole.from_offset(offset).expect("an offset inside").truncated(keep as u32);
    let sent = bytes_of(&cut.relay());
    let batch = decode_batch_slice(&sent).expect("a relay");
    assert_eq!(batch.message_count() as usize, keep);
    for (read, made) in batch.iter().zip(&messages[from..]) {
        assert_eq!((read.header.id, read.payload), (made.id, made.payload));
        assert_eq!(read.user_headers, made.user_headers);
        let time = batch.header.origin_timestamp + u64::from(read.header.timestamp_delta);
        assert_eq!(time, made.origin_timestamp);
    }
}

fn walk(record: &Record) {
    assert_eq!(record.messages().count(), record.count() as usize);
    assert_eq!(record.last().offset.checked_add(1), Some(record.next_offset()));
    assert!(record.messages().zip(record.first_offset()..).all(|(m, at)| m.offset == at));
}

/// The whole record and three cuts of it reach the other side.
fn relayed(record: &Record) {
    walk(record);
    let (first, count) = (record.first_offset(), record.count());
    for (from, keep) in [(0, count), (0, 1), (count - 1, 1), (count / 2, count - count / 2)] {
        let cut = record.clone().from_offset(first + u64::from(from)).expect("an offset inside");
        let cut = cut.truncated(keep);
        let relay = cut.relay();
        let sent = bytes_of(&relay);
        assert_eq!(sent.len(), relay.len());
        let batch = decode_batch_slice(&sent).expect("what was accepted is acceptable");
        assert_eq!((batch.message_count(), cut.count()), (keep, keep));
        assert_eq!([batch.header.partition_id, batch.header.base_offset], [0; 2]);
        for (nth, (read, polled)) in batch.iter().zip(cut.messages()).enumerate() {
            assert_eq!(read.header.offset_delta as usize, nth);
            assert_eq!((read.header.id, read.payload), (polled.id, polled.payload));
            assert_eq!(read.user_headers, polled.user_headers);
            let time = batch.header.origin_timestamp;
            let time = time.saturating_add(u64::from(read.header.timestamp_delta));
            assert_eq!(time, polled.origin_timestamp);
        }
    }
}

fn bytes_of(relay: &Relay) -> Vec<u8> {
    let mut bytes = [&relay.header()[..], relay.blob()].concat();
    relay.more().iter().for_each(|part| bytes.extend_from_slice(part));
    bytes
}

/// The same records with the checksums that their bytes should have. `docs` of the layout are in
/// `src/iggy_wire/blob.rs`; this is written anew, so that a mistake there does not hide itself.
fn seal(records: &[Record], data: &[u8]) -> Vec<u8> {
    let mut out = data.to_vec();
    let mut at = 0;
    for record in records {
        let end = at + record.len();
        let (header, mut frames) = out[at..end].split_at_mut(256);
        let mut sum = [&header[..40], &header[48..52]].concat();
        while !frames.is_empty() {
            let length = |from: usize, frame: &[u8]| {
                u32::from_le_bytes(frame[from..from + 4].try_into().expect("four bytes")) as usize
            };
            let size = 48 + length(32, frames) + length(36, frames);
            let (frame, rest) = frames.split_at_mut(size);
            let checksum = XxHash3_64::oneshot(&frame[8..]).to_le_bytes();
            frame[..8].copy_from_slice(&checksum);
            sum.extend_from_slice(&checksum);
            frames = rest;
        }
        header[40..48].copy_from_slice(&XxHash3_64::oneshot(&sum).to_le_bytes());
        at = end;
    }
    out
}
