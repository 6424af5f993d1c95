//! The wire codecs on generated input: nothing panics, and whatever is cut out of a record is
//! what an independent decoder reads from its relay.

#![allow(clippy::disallowed_methods, reason = "tests own their files, sockets and clock")]

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use iggy_binary_protocol::batch::decode_batch_slice;
use iggy_binary_protocol::requests::messages::{
    PollMessagesRequest, RawMessage, SendMessagesEncoder,
};
use iggy_binary_protocol::{
    WireConsumer, WireEncode, WireIdentifier, WirePartitioning, WirePollingStrategy,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use tidegate::iggy_wire::decode::{Expect, decode, decode_login};
use tidegate::iggy_wire::encode::{Envelope, POLL_CONSUMER_ID, encode, send_frame_len};
use tidegate::iggy_wire::frame::{HEADER_LEN, ReplyHeader, RequestHeader, ServerHeader};
use tidegate::iggy_wire::record::{self, Message, build_record};
use tidegate::iggy_wire::run::Limits;
use tidegate::iggy_wire::{
    PollFrom, Polled, Record, Relay, Reply, Request, Run, Runs, SendTo, Verify,
};

#[derive(Clone, Debug)]
struct Made {
    id: u128,
    origin_timestamp: u64,
    payload: Vec<u8>,
    user_headers: Vec<u8>,
}

fn messages() -> impl Strategy<Value = Vec<Made>> {
    let span = u64::from(u32::MAX);
    let message = (any::<u128>(), 0..=span, vec(any::<u8>(), 0..300), vec(any::<u8>(), 0..40));
    (vec(message, 1..40), 0..u64::MAX - span).prop_map(|(messages, earliest)| {
        messages
            .into_iter()
            .map(|(id, after, payload, user_headers)| Made {
                id,
                origin_timestamp: earliest + after,
                payload,
                user_headers,
            })
            .collect()
    })
}

fn build(made: &[Made]) -> Relay {
    let messages: Vec<_> = made
        .iter()
        .map(|m| Message {
            id: m.id,
            origin_timestamp: m.origin_timestamp,
            payload: &m.payload,
            user_headers: &m.user_headers,
        })
        .collect();
    build_record(&messages).unwrap()
}

fn sent(relay: &Relay) -> Vec<u8> {
    let mut bytes = [&relay.header()[..], relay.blob()].concat();
    relay.more().iter().for_each(|part| bytes.extend_from_slice(part));
    bytes
}

fn one(bytes: &Bytes) -> Record {
    let mut records = record::scan(bytes, Verify::Full).unwrap();
    assert_eq!(records.len(), 1);
    records.remove(0)
}

/// What the reference decoder reads must be `made`, at deltas 0, 1, 2 ….
fn assert_relayed(relay: &Relay, made: &[Made]) {
    let bytes = sent(relay);
    let batch = decode_batch_slice(&bytes).unwrap();
    assert_eq!(batch.header.total_size(), bytes.len());
    assert_eq!(relay.len(), bytes.len());
    let owned = [batch.header.partition_id, batch.header.base_offset, batch.header.base_timestamp];
    assert_eq!(owned, [0; 3], "the fields a server owns");
    assert_eq!(batch.message_count() as usize, made.len());
    for (nth, (message, made)) in batch.iter().zip(made).enumerate() {
        assert_eq!(message.header.offset_delta as usize, nth);
        assert_eq!(message.header.id, made.id);
        assert_eq!(message.payload, made.payload);
        assert_eq!(message.user_headers, made.user_headers);
        let delta = u64::from(message.header.timestamp_delta);
        assert_eq!(batch.header.origin_timestamp + delta, made.origin_timestamp);
    }
}

const EXPECTATIONS: &[(Expect, u8)] = &[
    (Expect::Ping, 2),
    (Expect::Cluster, 2),
    (Expect::Options, 2),
    (Expect::Streams, 2),
    (Expect::Stream, 2),
    (Expect::Topics, 2),
    (Expect::Topic, 2),
    (Expect::StreamCreated, 128),
    (Expect::TopicCreated, 64),
    (Expect::PartitionsCreated, 65),
    (Expect::Polled, 2),
    (Expect::Primary, 2),
    (Expect::Sent { partition: Some(0) }, 160),
    (Expect::Sent { partition: None }, 160),
    (Expect::LoggedOut, 3),
];

fn name() -> impl Strategy<Value = String> {
    "[a-zA-Z0-9._-]{1,40}|[a-z]{255}|[\u{e4}\u{20ac}]{1,30}"
}

/// The run of a reply that holds `records` from offset `base` on.
fn polled(records: &[Vec<Made>], base: u64) -> Run {
    let (mut bytes, mut next) = (Vec::new(), base);
    for made in records {
        bytes.extend_from_slice(&build(made).stored(3, next, 1_700_000_000_000_000));
        next += made.len() as u64;
    }
    let count = (next - base) as u32;
    let records = Bytes::from(bytes);
    let mut polled = Polled { partition: 3, current_offset: next - 1, count, records };
    polled.take_run(Verify::Full).unwrap().unwrap()
}

/// Records whose origin times lie near each other, or further apart than a batch can say.
fn replies() -> impl Strategy<Value = Vec<Vec<Vec<Made>>>> {
    let shifts = select(vec![0, 1, 1_000_000, u64::from(u32::MAX) / 2, u64::from(u32::MAX)]);
    let record = (messages(), shifts).prop_map(|(mut made, shift)| {
        let oldest = made.iter().map(|m| m.origin_timestamp).min().unwrap();
        for message in &mut made {
            let span = if shift < 2 { 1_000 } else { u64::from(u32::MAX) };
            message.origin_timestamp = shift + (message.origin_timestamp - oldest) % span;
        }
        made
    });
    vec(vec(record, 1..6), 1..20)
}

proptest! {
    #[test]
    fn whatever_is_merged_or_cut_reads_as_the_messages_that_were_polled(
        replies in replies(),
        base in 0..u64::MAX / 2,
        dropped in any::<prop::sample::Index>(),
        sizes in vec((700..40_000usize, 500..40_000usize, 1..300u32, 300..9_000usize), 1..8),
    ) {
        let mut all: Vec<Made> = replies.iter().flatten().flatten().cloned().collect();
        let (mut runs, mut next) = (Runs::default(), base);
        let dropped = dropped.index(replies[0].iter().map(Vec::len).sum());
        for (nth, reply) in replies.iter().enumerate() {
            let run = polled(reply, next);
            let end = run.next_offset();
            runs.push(if nth == 0 { run.from_offset(base + dropped as u64).unwrap() } else { run });
            next = end;
        }
        all.drain(..dropped);
        let (mut at, mut limits) = (base + dropped as u64, sizes.iter().cycle());
        while !runs.is_empty() {
            let (bytes, merged, messages, large) = *limits.next().unwrap();
            let limits = Limits { bytes, merged: merged.min(bytes), messages, large };
            let waited = runs.bytes();
            let batch = runs.take(&limits).unwrap().unwrap();
            let count = batch.count() as usize;
            prop_assert_eq!((batch.first_offset(), runs.first_offset().unwrap_or(next)),
                (at, at + count as u64));
            prop_assert!(batch.len() <= bytes && batch.count() <= messages, "{:?}", batch);
            prop_assert!(batch.records() == 1 || batch.len() <= merged, "{:?}", batch);
            prop_assert!(runs.bytes() < waited);
            assert_relayed(batch.relay(), &all[..count]);
            let (seen, last) = (batch.last().unwrap(), &all[count - 1]);
            prop_assert_eq!((seen.offset, seen.id), (at + count as u64 - 1, last.id));
            prop_assert_eq!(seen.origin_timestamp, last.origin_timestamp);
            prop_assert_eq!((seen.payload, seen.user_headers),
                (&last.payload[..], &last.user_headers[..]));
            all.drain(..count);
            at += count as u64;
        }
        prop_assert!(all.is_empty());
    }

    #[test]
    fn scan_takes_any_bytes_without_panic(
        bytes in vec(any::<u8>(), 0..2_000),
        verify in select(vec![Verify::Full, Verify::FramingOnly]),
    ) {
        let _ = record::scan(&Bytes::from(bytes), verify);
    }

    #[test]
    fn a_damaged_record_is_refused_or_still_walks(
        made in messages(),
        edits in vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = build(&made).stored(1, 10, 20).to_vec();
        for (at, value) in edits {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        for bytes in [bytes.clone(), bytes[..cut.index(bytes.len())].to_vec()] {
            if let Ok(records) = record::scan(&Bytes::from(bytes), Verify::FramingOnly) {
                for record in records {
                    prop_assert_eq!(record.messages().count(), record.count() as usize);
                    prop_assert_eq!(record.last().offset + 1, record.next_offset());
                    prop_assert_eq!(record.relay().len(), record.len());
                    let _ = record.truncated(1).from_offset(record.first_offset());
                }
            }
        }
    }

    #[test]
    fn any_cut_of_any_record_is_relayed_whole(
        made in messages(),
        base in 0..u64::MAX / 2,
        from in any::<prop::sample::Index>(),
        keep in any::<prop::sample::Index>(),
        tail_first in any::<bool>(),
    ) {
        let stored = build(&made).stored(3, base, 1_700_000_000_000_000);
        let record = one(&stored);
        prop_assert_eq!(record.count() as usize, made.len());
        let from = from.index(made.len());
        let keep = 1 + keep.index(made.len() - from);
        let offset = base + from as u64;
        let cut = if tail_first {
            record.truncated((from + keep) as u32).from_offset(offset).unwrap()
        } else {
            record.from_offset(offset).unwrap().truncated(keep as u32)
        };
        let made = &made[from..from + keep];
        prop_assert_eq!(cut.first_offset(), offset);
        prop_assert_eq!(cut.next_offset(), offset + keep as u64);
        prop_assert_eq!(cut.is_head_cut(), from > 0);
        prop_assert_eq!(cut.messages().count(), keep);
        prop_assert_eq!(cut.last(), cut.messages().last().unwrap());
        let relay = cut.relay();
        assert_relayed(&relay, made);
        prop_assert_eq!(relay.blob().as_ptr() == stored[256..].as_ptr(), from == 0);
        // Once appended it is a whole record, and relaying that changes nothing.
        let appended = one(&relay.stored(9, 77, 1));
        prop_assert_eq!(sent(&appended.relay()), sent(&relay));
    }

    #[test]
    fn a_batch_is_built_as_the_protocol_crate_builds_it(
        made in messages(),
        stream in name(),
        topic in name(),
        to in select(vec![SendTo::Balanced, SendTo::Partition(0), SendTo::Partition(u32::MAX)]),
    ) {
        let raw: Vec<_> = made
            .iter()
            .map(|m| RawMessage {
                id: m.id,
                origin_timestamp: m.origin_timestamp,
                headers: Some(&m.user_headers),
                payload: &m.payload,
            })
            .collect();
        let partitioning = match to {
            SendTo::Balanced => WirePartitioning::Balanced,
            SendTo::Partition(id) => WirePartitioning::PartitionId(id),
        };
        let mut expected = BytesMut::new();
        SendMessagesEncoder::encode(
            &mut expected,
            &WireIdentifier::named(stream.clone()).unwrap(),
            &WireIdentifier::named(topic.clone()).unwrap(),
            &partitioning,
            &raw,
        )
        .unwrap();
        let record = build(&made);
        let length = send_frame_len(&stream, &topic, to, record.len());
        let (stream, topic) = (stream.as_str().into(), topic.as_str().into());
        let request = Request::Send { stream, topic, to, record };
        let outgoing = encode(&request, Envelope { client: 1, session: 2, number: 3 }).unwrap();
        prop_assert_eq!(outgoing.len(), length);
        let frame = [outgoing.head.as_ref(), outgoing.tail.as_deref().unwrap()].concat();
        prop_assert_eq!(&frame[HEADER_LEN..], &expected[..]);
        let header = RequestHeader::parse(&frame).unwrap().unwrap();
        prop_assert_eq!(header.size as usize, frame.len());
    }

    #[test]
    fn a_poll_is_encoded_as_the_protocol_crate_encodes_it(
        stream in name(),
        topic in name(),
        partition in any::<u32>(),
        count in any::<u32>(),
        offset in any::<u64>(),
        which in 0..3,
    ) {
        let (from, strategy) = match which {
            0 => (PollFrom::Offset(offset), WirePollingStrategy::offset(offset)),
            1 => (PollFrom::First, WirePollingStrategy::first()),
            _ => (PollFrom::Last, WirePollingStrategy::last()),
        };
        let expected = PollMessagesRequest {
            consumer: WireConsumer::consumer(WireIdentifier::numeric(POLL_CONSUMER_ID)),
            stream_id: WireIdentifier::named(stream.clone()).unwrap(),
            topic_id: WireIdentifier::named(topic.clone()).unwrap(),
            partition_id: Some(partition),
            strategy,
            count,
            auto_commit: false,
        }
        .to_bytes();
        let (stream, topic) = (stream.as_str().into(), topic.as_str().into());
        let request = Request::Poll { stream, topic, partition, from, count };
        let outgoing = encode(&request, Envelope { client: 1, session: 2, number: 3 }).unwrap();
        prop_assert_eq!(&outgoing.head[HEADER_LEN..], &expected[..]);
        prop_assert!(outgoing.tail.is_none());
    }

    #[test]
    fn a_route_is_asked_with_the_body_of_a_poll(
        stream in "[a-z]{1,40}",
        topic in "[a-z]{1,40}",
        partition in any::<u32>(),
    ) {
        let envelope = Envelope { client: 1, session: 2, number: 3 };
        let (stream, topic): (Arc<str>, Arc<str>) = (stream.into(), topic.into());
        let (from, count) = (PollFrom::Last, 1);
        let poll = Request::Poll {
            stream: stream.clone(), topic: topic.clone(), partition, from, count,
        };
        let poll = encode(&poll, envelope).unwrap();
        let route = encode(&Request::Primary { stream, topic, partition }, envelope).unwrap();
        prop_assert_eq!(&route.head[HEADER_LEN..], &poll.head[HEADER_LEN..]);
        let codes = [&poll, &route].map(|frame| frame.head[196..200].to_vec());
        prop_assert_eq!(codes, [100u32, 103].map(|code| code.to_le_bytes().to_vec()));
    }

    #[test]
    fn replies_take_any_bytes_without_panic(
        body in vec(any::<u8>(), 0..400),
        small in vec(0u8..4, 0..400),
        status in select(vec![0, 0, 0, 20]),
    ) {
        for body in [Bytes::from(body), Bytes::from(small)] {
            for (expect, operation) in EXPECTATIONS {
                let header = ReplyHeader { operation: *operation, status, ..Default::default() };
                let result = decode(*expect, &header, body.clone());
                if let Ok(Ok(Reply::Polled(mut polled))) = result {
                    let _ = polled.scan(Verify::Full);
                    let _ = polled.take_run(Verify::FramingOnly);
                }
            }
            let _ = decode_login(&ReplyHeader { operation: 1, ..Default::default() }, body);
        }
    }

    #[test]
    fn headers_take_any_bytes_without_panic(
        mut bytes in vec(any::<u8>(), 0..300),
        command in select(vec![5u8, 8, 13]),
    ) {
        let whole = bytes.len() >= HEADER_LEN;
        if let Some(at) = bytes.get_mut(60) {
            *at = command;
        }
        prop_assert_eq!(matches!(ServerHeader::parse(&bytes), Ok(None)), !whole);
        prop_assert_eq!(matches!(RequestHeader::parse(&bytes), Ok(None)), !whole);
    }
}
