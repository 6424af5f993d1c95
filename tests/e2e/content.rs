//! What arrives: every kind of message unchanged, in bounded memory, and what cannot be copied.

use std::collections::BTreeMap;
use std::time::Duration;

use tidegate::cli::demo::process::Signal;
use tidegate::iggy_wire::TopicOption;
use tidegate::loopback::{Fault, Message, Scope, Times};

use super::support::{Pair, Seen, eventually, throughout, when};
use super::{Rig, THEN, limit, loopbacks, number, ready, text};

const YEAR: u64 = 365 * 24 * 3_600 * 1_000_000;

/// User headers: one of each kind, with the values at the edges of what the kind can hold.
fn every_kind() -> Vec<(u8, Vec<u8>)> {
    vec![
        (1, vec![0]),
        (1, (0..=254).collect()),
        (2, "ü".into()),
        (2, " ".into()),
        (3, vec![0]),
        (3, vec![1]),
        (4, i8::MIN.to_le_bytes().into()),
        (5, i16::MIN.to_le_bytes().into()),
        (6, i32::MIN.to_le_bytes().into()),
        (7, i64::MIN.to_le_bytes().into()),
        (8, i128::MIN.to_le_bytes().into()),
        (9, u8::MAX.to_le_bytes().into()),
        (10, u16::MAX.to_le_bytes().into()),
        (11, u32::MAX.to_le_bytes().into()),
        (12, u64::MAX.to_le_bytes().into()),
        (13, u128::MAX.to_le_bytes().into()),
        (14, f32::NAN.to_le_bytes().into()),
        (14, (-0.0_f32).to_le_bytes().into()),
        (15, f64::NEG_INFINITY.to_le_bytes().into()),
        (15, f64::MIN_POSITIVE.to_le_bytes().into()),
    ]
}

/// `kind:1 | length:4 | bytes`, first the key, then the value.
fn headers(values: &[(u8, Vec<u8>)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (nth, (kind, value)) in values.iter().enumerate() {
        let key = format!("key-{nth}").into_bytes();
        for (kind, field) in [(2, &key), (*kind, value)] {
            bytes.push(kind);
            bytes.extend_from_slice(&u32::try_from(field.len()).expect("short").to_le_bytes());
            bytes.extend_from_slice(field);
        }
    }
    bytes
}

#[test]
fn every_kind_of_message_arrives_as_it_was_h30() {
    let pair = Pair::start();
    let rig = Rig::new(&pair, 1);
    let all = every_kind();
    let mut messages = Vec::new();
    for user_headers in [headers(&[]), headers(&all[..1]), headers(&all)] {
        for id in [0, 1, u128::MAX] {
            for origin_timestamp in [0, 1, THEN - YEAR, THEN, THEN + 10 * YEAR] {
                for payload in [&b"\0"[..], b"\xff\xfe\x00", &[0xc3; 4096]] {
                    messages.push(Message {
                        id,
                        origin_timestamp,
                        payload: payload.to_vec().into(),
                        user_headers: user_headers.clone().into(),
                    });
                }
            }
        }
    }
    // A batch spans 71 minutes at most, so each of these is a batch of its own.
    for message in &messages {
        pair.up.append(&rig.topic, 0, std::slice::from_ref(message));
    }
    let mut daemon = rig.start();
    rig.ends_at(&mut daemon, 0, messages.len() as u64);
    daemon.stop();
    let copy = pair.down.dump(&rig.topic, 0, 0);
    assert_eq!(copy, pair.up.dump(&rig.topic, 0, 0));
    for (sent, arrived) in messages.iter().zip(&copy) {
        assert_eq!(sent.payload, arrived.payload);
        assert_eq!(sent.user_headers, arrived.user_headers);
        // A server may replace the two zeros by values of its own; what it stored is copied.
        if sent.id != 0 {
            assert_eq!(sent.id, arrived.id);
        }
        if sent.origin_timestamp != 0 {
            assert_eq!(sent.origin_timestamp, arrived.origin_timestamp);
        }
    }
}

#[test]
fn equal_messages_with_id_0_are_neither_merged_nor_repeated_h07() {
    let test = "equal_messages_with_id_0_are_neither_merged_nor_repeated_h07";
    let Some(brokers) = loopbacks(test) else { return };
    let rig = Rig::new(&brokers.pair, 1);
    let same = Message {
        id: 0,
        origin_timestamp: THEN,
        payload: b"the same".to_vec().into(),
        user_headers: Vec::new().into(),
    };
    // As from a server that recognises a repeated batch: success, without an offset.
    brokers.down.fault(Fault::EmptyConfirmation, Scope::sends(), Times::Next(3));
    rig.pair.up.append(&rig.topic, 0, &vec![same.clone(); 20]);
    let mut daemon = rig.start();
    eventually(limit(), "an empty confirmation", || {
        when(!brokers.down.applied_faults().is_empty())
    });
    daemon.assert_running();
    daemon.kill();
    rig.pair.up.append(&rig.topic, 0, &vec![same; 20]);
    let mut daemon = rig.start();
    rig.ends_at(&mut daemon, 0, 40);
    ready(&mut daemon);
    throughout(Duration::from_millis(200), "no repeat", || rig.down_end(0) == 40);
    daemon.stop();
    rig.assert_exact();
}

#[test]
fn single_messages_are_copied_many_at_a_time_m16() {
    let rig = Rig::new(&Pair::start(), 2);
    for number in 0..2_000 {
        rig.write(u32::try_from(number % 2).unwrap(), number / 2..number / 2 + 1);
    }
    let mut daemon = rig.start();
    rig.copied(&mut daemon);
    let counters = eventually(limit(), "the figures", || {
        let (_, metrics) = daemon.get("/metrics").ok()?;
        let of = |name: &str| -> Option<u64> {
            let line = metrics.lines().find(|line| line.starts_with(name))?;
            line.rsplit(' ').next()?.parse().ok()
        };
        let records = of("tidegate_mirror_sent_records_total")?;
        (records == 2_000).then_some((of("tidegate_mirror_sends_total")?, records))
    });
    assert!(counters.1 / counters.0 >= 20, "{} records in {} sends", counters.1, counters.0);
    daemon.stop();
    rig.assert_exact();
}

#[test]
fn empty_confirmations_are_looked_up_not_believed_h07() {
    let test = "empty_confirmations_are_looked_up_not_believed_h07";
    let Some(brokers) = loopbacks(test) else { return };
    let rig = Rig::new(&brokers.pair, 2).with(|config| config.source("max_batch_bytes", "8KiB"));
    brokers.down.fault(Fault::EmptyConfirmation, Scope::sends(), Times::Next(4));
    rig.write_all(0..200);
    let mut daemon = rig.start();
    rig.copied(&mut daemon);
    ready(&mut daemon);
    assert_eq!(brokers.down.applied_faults().len(), 4);
    daemon.stop();
    rig.assert_exact();
}

#[test]
fn a_damaged_record_stops_its_partition_alone_h31() {
    let Some(brokers) = loopbacks("a_damaged_record_stops_its_partition_alone_h31") else { return };
    let rig = Rig::new(&brokers.pair, 2);
    let scope = Scope::polls().topic(&rig.topic.stream, &rig.topic.topic).partition(0);
    brokers.up.fault(Fault::CorruptRecord { offset: 5 }, scope, Times::UntilCleared);
    // One batch each: five good ones before the damaged one.
    for number in 0..11 {
        rig.write(0, number..number + 1);
    }
    rig.write(1, 0..10);
    let mut daemon = rig.start();
    let feed = rig.reason(&mut daemon, 0, "bad_record");
    assert_eq!(feed["status"], "Error");
    assert!(text(&feed["detail"]).contains("offset 5"), "{feed:#}");
    rig.ends_at(&mut daemon, 0, 5);
    rig.ends_at(&mut daemon, 1, 10);
    let polls = || {
        let counters = brokers.up.counters(&rig.topic.stream, &rig.topic.topic, 0);
        counters.expect("a partition").polls
    };
    let before = polls();
    throughout(Duration::from_millis(500), "it does not spin", || polls() == before);
    assert!(number(&feed["errors"]) > 0);
    daemon.stop();
}

#[test]
fn a_message_the_destination_never_takes_stops_its_partition_alone_h31() {
    let test = "a_message_the_destination_never_takes_stops_its_partition_alone_h31";
    let Some(brokers) = loopbacks(test) else { return };
    let rig = Rig::new(&brokers.pair, 2).with(|config| {
        // One shard: what others get says whether the destination takes anything at all.
        let config = config.daemon("shards", 1);
        config.down("request_timeout", "250ms").down("settle", "50ms")
    });
    rig.write_all(0..10);
    let scope = Scope::sends().topic(&rig.topic.stream, &rig.topic.topic).partition(0);
    brokers.down.fault(Fault::DropRequest, scope, Times::UntilCleared);
    let mut daemon = rig.start();
    rig.ends_at(&mut daemon, 1, 10);
    let feed = rig.reason(&mut daemon, 0, "unanswered");
    assert_eq!(feed["status"], "Degraded", "nothing else was sent since: {feed:#}");
    let mut written = 10;
    let feed = eventually(Duration::from_secs(60), "the verdict while others are taken", || {
        rig.write(1, written..written + 1);
        written += 1;
        daemon.feed(&rig.topic, 0).filter(|feed| feed["reason"] == "bad_record")
    });
    assert_eq!(feed["status"], "Error");
    assert!(text(&feed["detail"]).contains("never takes the message"), "{feed:#}");
    assert_eq!(rig.down_end(0), 0);
    rig.write(1, written..written + 10);
    rig.ends_at(&mut daemon, 1, written + 10);
    daemon.stop();
}

#[test]
fn big_polls_are_split_by_bytes_and_memory_stays_bounded_h31() {
    let pair = Pair::start();
    let rig = Rig::new(&pair, 1);
    let rig = rig.with(|config| config.daemon("max_buffered_bytes", "32MiB").daemon("shards", 1));
    let payload: bytes::Bytes = (0..400 << 10).map(|n: u32| n as u8).collect::<Vec<_>>().into();
    let message = |number: u128| Message {
        id: number + 1,
        origin_timestamp: THEN,
        payload: payload.clone(),
        user_headers: Vec::new().into(),
    };
    let mut daemon = rig.start();
    ready(&mut daemon);
    let idle = daemon.most_memory();
    // All of it waits when the daemon looks again.
    daemon.signal(Signal::Stop);
    for first in (0..200).step_by(20) {
        pair.up.append(&rig.topic, 0, &(first..first + 20).map(message).collect::<Vec<_>>());
    }
    daemon.signal(Signal::Continue);
    rig.ends_at(&mut daemon, 0, 200);
    let busy = daemon.most_memory();
    daemon.stop();
    rig.assert_exact();
    // 80 MB went through, 32 MiB were allowed, and the allocator keeps a little.
    println!("at most {} MiB resident, {} MiB idle", busy >> 20, idle >> 20);
    assert!(busy - idle < 40 << 20, "{} MiB", (busy - idle) >> 20);
}

#[test]
fn a_message_larger_than_a_shard_may_buffer_goes_through_alone() {
    let pair = Pair::start();
    let rig = Rig::new(&pair, 2);
    let rig = rig.with(|config| config.daemon("max_buffered_bytes", "16MiB").daemon("shards", 1));
    let message = |size: usize| Message {
        id: size as u128,
        origin_timestamp: THEN,
        payload: vec![7; size].into(),
        user_headers: Vec::new().into(),
    };
    for partition in 0..2 {
        for size in [100, 20 << 20, 100, 9 << 20, 100] {
            pair.up.append(&rig.topic, partition, &[message(size)]);
        }
    }
    let mut daemon = rig.start();
    rig.copied(&mut daemon);
    ready(&mut daemon);
    daemon.stop();
    rig.assert_exact();
}

#[test]
fn balanced_delivers_every_message_to_some_partition() {
    let pair = Pair::start();
    let rig = Rig::new(&pair, 3).with(|config| config.source("partitions", "balanced"));
    pair.down.create_topic(&rig.topic, 2);
    rig.write_all(0..200);
    let mut daemon = rig.start();
    eventually(limit(), "all messages", || {
        daemon.assert_running();
        when(pair.down.total(&rig.topic, 2) >= 600)
    });
    let shown = super::source(&daemon, "mirror").expect("the source");
    assert_eq!(shown["guarantee"], "at_least_once");
    daemon.stop();
    let count = |log: Vec<Seen>, counts: &mut BTreeMap<u128, u64>| {
        log.iter().for_each(|message| *counts.entry(message.identity).or_default() += 1);
    };
    let (mut up, mut down) = (BTreeMap::new(), BTreeMap::new());
    (0..3).for_each(|partition| count(pair.up.seen(&rig.topic, partition, 0), &mut up));
    (0..2).for_each(|partition| count(pair.down.seen(&rig.topic, partition, 0), &mut down));
    assert_eq!(up, down);
}

#[test]
fn topic_options_are_copied_as_far_as_the_destination_knows_them() {
    let Some(brokers) = loopbacks("topic_options_are_copied") else { return };
    let rig = Rig::without_topic(&brokers.pair, 1);
    let options = [
        ("compression_algorithm", "gzip"),
        ("message_expiry", "1h"),
        ("max_topic_size", "2000000000"),
        ("segment_size", "2097152"),
        ("messages_required_to_save", "77"),
    ];
    let created = brokers.up.create_topic_with(&rig.topic.stream, &rig.topic.topic, 2, &options);
    assert_eq!(created, Ok(true));
    let mut daemon = rig.start();
    ready(&mut daemon);
    daemon.stop();
    let describe = |side: &dyn super::support::Cluster| side.topic(&rig.topic).expect("a topic");
    let (up, down) = (describe(&*rig.pair.up), describe(&*rig.pair.down));
    assert_eq!(down.partitions_count, 2);
    assert_eq!(
        (down.message_expiry, down.compression, down.max_size),
        (up.message_expiry, up.compression, up.max_size)
    );
    assert_eq!((down.compression, down.message_expiry), (2, 3_600_000_000));
    for key in options.map(|(key, _)| key) {
        let value_of = |options: &[TopicOption]| {
            options.iter().find(|option| option.key == key).map(|option| option.value.clone())
        };
        assert_eq!(value_of(&down.options), value_of(&up.options), "{key}");
        assert!(value_of(&up.options).is_some(), "{key}");
    }
}
