//! The test harness itself: a harness that sees too little proves nothing.
#![allow(clippy::disallowed_methods)] // sockets and threads

mod support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use support::{
    Cluster, Loopbacks, Proxy, Workload, Writer, compare, eventually, unique_topic, when,
};
use tidegate::iggy_wire::{Reply, Request};
use tidegate::loopback::{Fault, Scope};

const SECONDS: Duration = Duration::from_secs(10);

#[test]
fn a_wire_client_and_the_inner_log_see_the_same() {
    let Some(brokers) = Loopbacks::start("a_wire_client_and_the_inner_log_see_the_same") else {
        return;
    };
    let inside = &*brokers.pair.up;
    let wire = support::over_the_wire(&inside.address());
    let topic = unique_topic("harness");
    wire.create_topic(&topic, 2);
    assert_eq!((wire.end(&topic, 0), inside.end(&topic, 0)), (0, 0));
    let workload = Workload::new(1);
    let batch: Vec<_> = (0..1_500).map(|number| workload.message(0, number, 9_000)).collect();
    assert_eq!(wire.append(&topic, 0, &batch[..700]), 0);
    assert_eq!(inside.append(&topic, 0, &batch[700..]), 700);
    assert_eq!((wire.end(&topic, 0), inside.end(&topic, 0)), (1_500, 1_500));
    for from in [0, 699, 1_499, 1_500] {
        assert_eq!(wire.dump(&topic, 0, from), inside.dump(&topic, 0, from), "from {from}");
    }
    assert_eq!(wire.total(&topic, 2), 1_500);
    wire.add_partitions(&topic, 3);
    assert_eq!(inside.topic(&topic).map(|info| info.partitions_count), Some(5));
    wire.purge(&topic);
    assert_eq!((wire.end(&topic, 0), inside.end(&topic, 0)), (0, 0));
    wire.delete_topic(&topic);
    assert_eq!(inside.topic(&topic), None);
    wire.delete_stream(&topic.stream);
    wire.delete_stream(&topic.stream);
}

#[test]
fn the_comparison_of_two_clusters_names_the_partition() {
    let Some(brokers) = Loopbacks::start("the_comparison_of_two_clusters_names_the_partition")
    else {
        return;
    };
    let (up, down) = (&*brokers.pair.up, &*brokers.pair.down);
    let topic = unique_topic("harness");
    let workload = Workload::new(2);
    for cluster in [up, down] {
        cluster.create_topic(&topic, 2);
        for partition in 0..2 {
            let message = |number| workload.message(partition, number, 9_000);
            cluster.append(&topic, partition, &(0..10).map(message).collect::<Vec<_>>());
        }
    }
    assert!(compare(up, &topic, down, &topic, 2).is_exact());
    down.append(&topic, 1, &[workload.message(1, 9, 9_000)]);
    let report = compare(up, &topic, down, &topic, 2);
    assert_eq!((report.duplicates, report.lost), (1, 0));
    assert!(report.first_difference.is_some_and(|words| words.contains("partition 1")));
}

#[test]
fn a_writer_numbers_its_messages_from_the_end_of_each_partition() {
    let Some(brokers) =
        Loopbacks::start("a_writer_numbers_its_messages_from_the_end_of_each_partition")
    else {
        return;
    };
    let up = Arc::clone(&brokers.pair.up);
    let topic = unique_topic("harness");
    up.create_topic(&topic, 3);
    let mut written = 0;
    for seed in 0..2 {
        let writer = Writer::start(Arc::clone(&up), &topic, 3, 20_000, seed);
        eventually(SECONDS, "500 messages", || when(writer.written() > 500));
        written += writer.stop();
    }
    assert_eq!(up.total(&topic, 3), written);
    for partition in 0..3 {
        for (number, message) in (0u64..).zip(up.dump(&topic, partition, 0)) {
            assert_eq!(message.payload[..8], number.to_le_bytes());
        }
    }
}

#[test]
fn a_proxy_pauses_swallows_delays_and_cuts() {
    let Some(brokers) = Loopbacks::start("a_proxy_pauses_swallows_delays_and_cuts") else {
        return;
    };
    let proxy = Proxy::start(&brokers.pair.up.address());
    let address = proxy.address().to_string();
    let mut client = support::Client::connect(&address).expect("a login through the proxy");
    assert_eq!(proxy.accepted(), 1);
    let mut ask = || client.ask(&Request::Ping);
    assert!(matches!(ask(), Ok(Ok(Reply::Done))));

    proxy.pause();
    let (pings, begun) = (Duration::from_millis(300), std::time::Instant::now());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(pings);
            proxy.resume();
        });
        assert!(matches!(ask(), Ok(Ok(Reply::Done))), "answered after the pause");
    });
    assert!(begun.elapsed() >= pings, "not before");

    proxy.delay(Duration::from_millis(100));
    let begun = std::time::Instant::now();
    assert!(matches!(ask(), Ok(Ok(Reply::Done))));
    assert!(begun.elapsed() >= Duration::from_millis(200), "there and back");
    proxy.delay(Duration::ZERO);

    proxy.swallow(true);
    let mut half_open = TcpStream::connect(proxy.address()).expect("a connection");
    half_open.write_all(&[0; 64]).expect("bytes are taken");
    half_open.set_read_timeout(Some(Duration::from_millis(200))).expect("a socket option");
    assert!(half_open.read(&mut [0]).is_err(), "no answer and no end");
    proxy.swallow(false);

    proxy.cut();
    assert!(ask().is_err());
}

#[test]
fn a_fault_on_a_built_in_broker_reaches_a_client() {
    let Some(brokers) = Loopbacks::start("a_fault_on_a_built_in_broker_reaches_a_client") else {
        return;
    };
    let mut client = support::Client::connect(&brokers.pair.up.address()).expect("a login");
    brokers.up.fault_once(Fault::Reject { code: 58, applied: false }, Scope::others());
    let refused = client.ask(&Request::Streams).expect("an answer");
    assert_eq!(refused.map(|_| ()).map_err(|error| error.code), Err(58));
    assert!(client.ask(&Request::Streams).expect("an answer").is_ok());
}
