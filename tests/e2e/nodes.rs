//! A destination of three nodes over TCP: elections, lagging followers, nodes that go away.

use super::support::{Loopbacks, eventually, when};
use super::{Rig, each, limit, ready, source, text};

const NODES: usize = 3;

/// What the daemon has to go by.
#[derive(Clone, Copy, Debug)]
struct Known {
    /// Servers say who leads a partition.
    routes: bool,
    /// How many of the nodes are configured.
    configured: usize,
}

#[test]
fn a_cluster_that_elects_and_lags_gets_every_message_once() {
    let cases = [true, false].map(|routes| [1, 3].map(|configured| Known { routes, configured }));
    let cases: Vec<Known> = cases.into_iter().flatten().collect();
    each(&cases, |known| {
        let test = "a_cluster_that_elects_and_lags_gets_every_message_once";
        let Some(brokers) = Loopbacks::with_nodes(test, NODES) else { return };
        let addresses: Vec<String> =
            brokers.nodes.iter().map(|node| node.address().to_string()).collect();
        let rig = Rig::new(&brokers.pair, 2)
            .with(|config| config.down_addresses(&addresses[..known.configured]));
        brokers.down.nodes(|nodes| {
            nodes.set_routes(known.routes);
            // Three different ones: where the daemon comes first, the leader of the metadata,
            // which creates the topic, and the primary of the partitions.
            nodes.set_leader(2);
            nodes.set_primary(Some(1));
            (0..NODES).for_each(|node| nodes.set_lag(node, 9));
        });
        rig.write_all(0..200);
        let mut daemon = rig.start();
        rig.copied(&mut daemon);
        ready(&mut daemon);

        // An election while messages flow.
        rig.write_all(200..230);
        brokers.down.nodes(|nodes| nodes.set_primary(Some(2)));
        rig.write_all(230..260);
        rig.copied(&mut daemon);

        // A crash of the daemon, and a leader that is another one afterwards.
        rig.write_all(260..300);
        daemon.kill();
        brokers.down.nodes(|nodes| nodes.set_primary(Some(1)));
        let mut daemon = rig.start();
        rig.copied(&mut daemon);

        // The leader goes away for good.
        rig.write_all(300..320);
        brokers.down.nodes(|nodes| nodes.set_primary(Some(0)));
        brokers.nodes[1].stop();
        rig.write_all(320..350);
        rig.copied(&mut daemon);
        ready(&mut daemon);
        daemon.stop();
        rig.assert_exact();
    });
}

#[test]
fn a_leader_that_leads_to_another_cluster_makes_nothing_there_m12() {
    let test = "a_leader_that_leads_to_another_cluster_makes_nothing_there_m12";
    let Some(brokers) = Loopbacks::with_nodes(test, NODES) else { return };
    let addresses: Vec<String> =
        brokers.nodes.iter().map(|node| node.address().to_string()).collect();
    let rig = Rig::new(&brokers.pair, 2)
        .with(|config| config.down_addresses(&addresses))
        .with(|config| config.daemon("shards", 1));
    // The third node leads everything and calls itself by an address of the upstream cluster.
    let strange = brokers.up.address();
    brokers.down.nodes(|nodes| {
        nodes.advertise(2, &strange.ip().to_string(), strange.port());
        nodes.set_leader(2);
        nodes.set_primary(Some(2));
    });
    rig.write_all(0..100);
    let mut daemon = rig.start();
    rig.copied(&mut daemon);
    let found = eventually(limit(), "a finding", || {
        let source = source(&daemon, "mirror")?;
        let mut findings = source["findings"].as_array()?.clone().into_iter();
        findings.find(|finding| finding["reason"] == "foreign_node")
    });
    assert!(text(&found["detail"]).contains(&strange.to_string()), "{found}");
    eventually(limit(), "the node that is sent to", || {
        let source = source(&daemon, "mirror")?;
        when((0..2).all(|feed| source["feeds"][feed]["downstream_node"] == addresses[2]))
    });
    daemon.stop();
    rig.assert_exact();
}
