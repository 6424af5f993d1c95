//! A destination of several nodes: whoever takes no sends is left for the one that does.

use std::time::Duration;

use super::stage::{Stage, limit};
use super::support::{Loopbacks, Postgres, eventually, when};
use super::switches::row_ids;

const EVENTS: &str = "create table events (id bigint primary key, kind text)";
const BY_KIND: &str = r#"
tables = ["public.events"]
[sources.shop.routing]
topic_column = "kind"
default_topic = "unknown"
default_stream = "$stream"
partition_by = "identity"
[sources.shop.routing.topic_defaults]
partitions_count = 3
"#;

#[test]
fn a_capture_finds_the_primary_and_the_leader_and_follows_them() {
    for configured in [1, 3] {
        let test = "a_capture_finds_the_primary_and_the_leader_and_follows_them";
        let Some(brokers) = Loopbacks::with_nodes(test, 3) else { return };
        let mut stage = Stage::with_pair(Postgres::start(), EVENTS, BY_KIND, brokers.pair.clone());
        let addresses: Vec<String> =
            brokers.nodes.iter().map(|node| node.address().to_string()).collect();
        if configured > 1 {
            stage.address = addresses.join(",");
        }
        // Three different ones: where the daemon comes first, the leader of the metadata, and
        // the primary of the partitions.
        brokers.down.nodes(|nodes| {
            nodes.set_leader(2);
            nodes.set_primary(Some(1));
        });
        let mut daemon = stage.streaming();
        let write = |ids: std::ops::Range<i64>| {
            let rows = ids.map(|id| format!("insert into events values ({id}, 'k{}');", id % 4));
            stage.pg.sql(&rows.collect::<String>());
        };
        let mut arrived = |ids: std::ops::Range<i64>| {
            let all: Vec<i64> = ids.collect();
            eventually(limit(), &format!("{} rows", all.len()), || {
                daemon.assert_running();
                let topics = ["k0", "k1", "k2", "k3"].map(|topic| row_ids(&stage.got(topic)));
                let mut got = topics.concat();
                got.sort_unstable();
                when(got == all)
            });
        };
        write(0..40);
        arrived(0..40);
        brokers.down.nodes(|nodes| nodes.set_primary(Some(2)));
        write(40..80);
        arrived(0..80);
        // Nobody leads for a while, and then where it began.
        brokers.down.nodes(|nodes| nodes.set_primary(None));
        write(80..90);
        std::thread::sleep(Duration::from_millis(500));
        brokers.down.nodes(|nodes| nodes.set_primary(Some(0)));
        arrived(0..90);
        brokers.down.nodes(|nodes| nodes.set_primary(Some(1)));
        brokers.nodes[2].stop();
        brokers.down.nodes(|nodes| nodes.set_leader(0));
        write(90..120);
        arrived(0..120);
        stage.wait_confirmed(&mut daemon);
        daemon.stop();
    }
}

/// An advertised address leads to another cluster that has topics of the same names.
#[test]
fn nothing_is_sent_to_a_node_of_another_cluster() {
    let test = "nothing_is_sent_to_a_node_of_another_cluster";
    let Some(brokers) = Loopbacks::with_nodes(test, 3) else { return };
    let stage = Stage::with_pair(Postgres::start(), EVENTS, BY_KIND, brokers.pair.clone());
    let stranger = brokers.up.address();
    brokers.down.nodes(|nodes| {
        nodes.advertise(1, &stranger.ip().to_string(), stranger.port());
        nodes.set_primary(Some(0));
        nodes.set_leader(0);
    });
    let kinds = ["k0", "k1", "k2", "k3"];
    for kind in kinds {
        assert!(brokers.up.create_topic(&stage.stream, kind, 3));
    }
    let mut daemon = stage.streaming();
    let write = |ids: std::ops::Range<i64>| {
        let rows = ids.map(|id| format!("insert into events values ({id}, 'k{}');", id % 4));
        stage.pg.sql(&rows.collect::<String>());
    };
    let mut arrived = |ids: std::ops::Range<i64>| {
        let all: Vec<i64> = ids.collect();
        eventually(limit(), &format!("{} rows", all.len()), || {
            daemon.assert_running();
            let mut got = kinds.map(|topic| row_ids(&stage.got(topic))).concat();
            got.sort_unstable();
            when(got == all)
        });
    };
    write(0..40);
    arrived(0..40);
    // The way from one to the other leads past the stranger.
    brokers.down.nodes(|nodes| nodes.set_primary(Some(2)));
    write(40..80);
    arrived(0..80);
    for kind in kinds {
        let topic = stage.topic(kind);
        let strange: u64 =
            (0..3).map(|partition| brokers.pair.up.dump(&topic, partition, 0).len() as u64).sum();
        assert_eq!(strange, 0, "{kind}");
    }
    let lines = daemon.lines();
    let told = |line: &String| line.contains("is left alone") && line.contains("as created at");
    assert!(lines.iter().any(told), "{}", lines.join("\n"));
    stage.wait_confirmed(&mut daemon);
    daemon.stop();
}
