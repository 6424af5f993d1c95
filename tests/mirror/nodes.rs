//! A destination of several nodes: followers lag, refuse sends and point at each other.

use super::*;
use tidegate::loopback::catalog::Topic;
use tidegate::loopback::faults::Op;

pub const NODES: usize = 3;

/// A plan that names these nodes of the destination.
pub fn plan_to(nodes: &[usize]) -> MirrorPlan {
    let west = ClusterPlan {
        addresses: nodes.iter().map(|node| format!("10.0.0.{}:1", node + 1)).collect(),
        ..ClusterPlan::clone(&cluster("west"))
    };
    MirrorPlan { to: Arc::new(west), ..plan() }
}

/// Three nodes that hold a copied topic of `messages` messages, the daemon stopped in order or not.
fn after_a_copy(nodes: &[usize], messages: u64, orderly: bool) -> World {
    let mut w = cluster_world(plan_to(nodes), NODES);
    copy(&mut w, messages);
    if orderly {
        w.drain();
        w.until("drained", |w| w.is_drained());
        w.to_control.clear();
    }
    w.kill();
    w
}

fn goes_on(w: &mut World, from: u64) {
    w.write(true, 0, from, 5);
    w.until("went on", |w| copied(w, 0, from + 5));
    w.run(2 * SECOND);
    w.assert_equal(1);
    assert_eq!(w.read(false, 0).len() as u64, from + 5, "nothing twice");
}

#[test]
fn a_lagging_follower_is_never_taken_for_a_lost_tail() {
    for routes in [true, false] {
        for orderly in [true, false] {
            for (primary, lag) in [(1, 30), (2, 30), (2, 1), (1, 100)] {
                let mut w = after_a_copy(&[0, 1, 2], 100, orderly);
                let nodes = w.down.core.nodes();
                nodes.set_primary(Some(primary));
                nodes.set_routes(routes);
                (0..NODES).for_each(|node| nodes.set_lag(node, lag));
                w.start(1);
                goes_on(&mut w, 100);
                let resets = w.feed(0).counters.resets;
                assert_eq!(resets, 0, "{routes} {orderly} {primary} {lag}: a tail was lost");
            }
        }
    }
}

#[test]
fn a_lagging_follower_is_not_believed_while_the_primary_is_away() {
    let mut w = after_a_copy(&[0, 1, 2], 100, false);
    let nodes = w.down.core.nodes();
    nodes.set_routes(false);
    nodes.set_primary(Some(2));
    (0..NODES).for_each(|node| nodes.set_lag(node, 20));
    w.reach_node(2, false);
    w.write(true, 0, 100, 5);
    w.start(1);
    w.run(8 * SECOND);
    assert_eq!(w.feed(0).counters.resets, 0);
    w.reach_node(2, true);
    w.until("went on", |w| copied(w, 0, 105));
    w.assert_equal(1);
    assert_eq!((w.read(false, 0).len(), w.feed(0).counters.resets), (105, 0));
}

#[test]
fn followers_that_were_believed_for_long_cost_no_message() {
    let mut w = after_a_copy(&[0, 1, 2], 100, false);
    let nodes = w.down.core.nodes();
    nodes.set_routes(false);
    nodes.set_primary(Some(2));
    (0..NODES).for_each(|node| nodes.set_lag(node, 20));
    w.reach_node(2, false);
    w.start(1);
    // A majority shows a lower end for longer than anything may be on its way.
    w.until("believed", |w| w.feed(0).counters.resets == 1);
    w.until("refused", |w| w.feed(0).condition.reason == "not_accepted");
    w.run(30 * SECOND);
    w.reach_node(2, true);
    goes_on(&mut w, 100);
}

#[test]
fn a_tail_that_every_node_lost_is_sent_again() {
    for routes in [true, false] {
        let mut w = after_a_copy(&[0, 1, 2], 100, false);
        w.down.core.nodes().set_routes(routes);
        w.down.core.log("orders", "events", 0).unwrap().lose_tail(40);
        w.start(1);
        w.until("sent again", |w| w.feed(0).counters.resets == 1 && copied(w, 0, 100));
        w.assert_equal(1);
    }
}

#[test]
fn a_minority_says_nothing() {
    let mut w = after_a_copy(&[0, 1, 2], 100, true);
    let nodes = w.down.core.nodes();
    nodes.set_routes(false);
    (0..NODES).for_each(|node| nodes.set_lag(node, 50));
    nodes.set_primary(Some(2));
    w.reach_node(1, false);
    w.reach_node(2, false);
    w.start(1);
    w.run(100 * SECOND);
    let feed = w.feed(0);
    assert_eq!(feed.condition.reason, "destination_not_ready", "{:?}", feed.condition);
    assert!(feed.condition.detail.contains("1 nodes say"), "{}", feed.condition.detail);
    assert!(feed.condition.detail.contains("2 of 3 are a majority"), "{}", feed.condition.detail);
    assert_eq!((feed.counters.resets, feed.position), (0, 100));
    w.reach_node(2, true);
    goes_on(&mut w, 100);
}

#[test]
fn refused_sends_walk_to_the_node_that_takes_them() {
    for primary in [1, 2] {
        let mut w = cluster_world(plan_to(&[0, 1, 2]), NODES);
        w.down.core.nodes().set_routes(false);
        w.down.core.nodes().set_primary(Some(primary));
        w.write(true, 0, 0, 10);
        w.start(1);
        w.until("refused", |w| w.feed(0).condition.reason == "not_accepted");
        assert!(w.feed(0).condition.detail.contains("10.0.0.1:1"), "names the node");
        let began = w.now;
        w.until("copied", |w| copied(w, 0, 10));
        let steps = primary as u64;
        let took = w.now - began;
        assert!((1500 * steps..3500 * steps).contains(&took), "{took} ms for {steps} steps");
        w.run(SECOND);
        assert_eq!(w.feed(0).condition.status, Status::Running);
        w.assert_equal(1);
        assert_eq!(w.connected_nodes(), [primary], "other nodes are left alone");
    }
}

#[test]
fn the_primary_moves_while_messages_flow() {
    for routes in [true, false] {
        let mut w = cluster_world(plan_to(&[0, 1, 2]), NODES);
        let nodes = w.down.core.nodes();
        nodes.set_routes(routes);
        (0..NODES).for_each(|node| nodes.set_lag(node, 7));
        w.start(1);
        let mut written = 0;
        for next in [1, 2, 0, 2, 1] {
            for _ in 0..20 {
                w.write(true, 0, written, 3);
                written += 3;
                w.run(Duration::from_millis(13));
            }
            w.down.core.nodes().set_primary(None);
            w.write(true, 0, written, 3);
            written += 3;
            w.run(Duration::from_millis(700));
            w.down.core.nodes().set_primary(Some(next));
            w.until("caught up", |w| copied(w, 0, written));
        }
        w.run(2 * SECOND);
        w.assert_equal(1);
        assert_eq!(w.read(false, 0).len() as u64, written);
        assert_eq!((w.feed(0).counters.resets, w.feed(0).epoch), (0, 0), "routes {routes}");
    }
}

#[test]
fn a_lost_ack_on_a_dying_primary_is_looked_up_on_the_next_one() {
    for routes in [true, false] {
        for fault in [Fault::DropReply, Fault::DropRequest] {
            let mut w = after_a_copy(&[0, 1, 2], 100, true);
            let nodes = w.down.core.nodes();
            nodes.set_routes(routes);
            (0..NODES).for_each(|node| nodes.set_lag(node, 12));
            w.start(1);
            w.run(2 * SECOND);
            let sends = Scope { op: Op::Send, ..Scope::any() };
            w.down.core.faults().set(fault, sends, Times::Next(1));
            w.write(true, 0, 100, 12);
            w.run(SECOND);
            w.reach_node(0, false);
            w.down.core.nodes().set_primary(None);
            w.run(5 * SECOND);
            w.down.core.nodes().set_primary(Some(2));
            w.until("looked up", |w| copied(w, 0, 112));
            w.assert_equal(1);
            assert_eq!(w.read(false, 0).len(), 112, "{fault:?}, routes {routes}");
        }
    }
}

#[test]
fn a_refused_send_is_not_repeated_to_a_node_that_knows_more_by_then() {
    for (next, later) in [(1, 0), (2, 0), (1, 1100), (2, 1100), (1, 2300), (2, 2300)] {
        let mut w = after_a_copy(&[0, 1, 2], 100, true);
        let nodes = w.down.core.nodes();
        nodes.set_routes(false);
        (0..NODES).for_each(|node| nodes.set_lag(node, 12));
        w.start(1);
        w.run(2 * SECOND);
        let sends = Scope { op: Op::Send, ..Scope::any() };
        w.down.core.faults().set(Fault::DropReply, sends, Times::Next(1));
        w.write(true, 0, 100, 12);
        w.run(SECOND);
        // The primary dies with an ack on its lips; the others do not show what it committed, and
        // elect nobody for longer than `settle`.
        w.reach_node(0, false);
        w.down.core.nodes().set_primary(None);
        w.until("refused", |w| w.feed(0).condition.reason == "not_accepted");
        w.run(Duration::from_millis(later));
        w.down.core.nodes().set_primary(Some(next));
        w.until("looked up", |w| copied(w, 0, 112));
        w.assert_equal(1);
        assert_eq!(w.read(false, 0).len(), 112, "next {next}, {later} ms later");
    }
}

#[test]
fn nodes_that_point_at_each_other_end_after_three_hops_with_both_named_h08() {
    let mut w = cluster_world(plan_to(&[0, 1]), 2);
    w.down.core.nodes().set_named(0, Some(1));
    w.down.core.nodes().set_named(1, Some(0));
    w.write(true, 0, 0, 10);
    w.start(1);
    w.until("given up", |w| w.feed(0).condition.reason == "not_accepted");
    let detail = w.feed(0).condition.detail;
    assert!(detail.contains("10.0.0.1:1") && detail.contains("10.0.0.2:1"), "{detail}");
    assert!(detail.contains("after 3 moves"), "{detail}");
    assert_eq!(w.asked().primaries, 4, "each stop asks once");
    w.down.core.nodes().set_named(0, None);
    w.down.core.nodes().set_named(1, None);
    w.until("copied", |w| copied(w, 0, 10));
    w.assert_equal(1);
}

#[test]
fn an_advertised_address_that_leads_nowhere_leaves_the_configured_ones_h08() {
    for routes in [true, false] {
        // Behind a translated network: what the nodes call themselves means nothing here.
        let mut w = cluster_world(plan_to(&[0, 1, 2]), NODES);
        let nodes = w.down.core.nodes();
        (0..NODES).for_each(|node| nodes.advertise(node, &format!("172.17.0.{}", node + 2), 8090));
        nodes.set_routes(routes);
        nodes.set_primary(Some(1));
        w.write(true, 0, 0, 10);
        w.start(1);
        w.until("copied", |w| copied(w, 0, 10));
        goes_on(&mut w, 10);
    }
}

#[test]
fn one_configured_address_is_enough_to_find_the_primary() {
    for routes in [true, false] {
        let mut w = cluster_world(plan_to(&[0]), NODES);
        let nodes = w.down.core.nodes();
        nodes.set_routes(routes);
        nodes.set_primary(Some(2));
        w.write(true, 0, 0, 10);
        w.start(1);
        w.until("copied", |w| copied(w, 0, 10));
        w.run(SECOND);
        assert_eq!(w.connected_nodes(), [2]);
        // The node in use goes away for good.
        w.reach_node(2, false);
        w.down.core.nodes().set_primary(Some(0));
        w.write(true, 0, 10, 5);
        w.until("went on", |w| copied(w, 0, 15));
        w.assert_equal(1);
    }
}

#[test]
fn one_server_is_asked_once_per_connection_for_its_nodes() {
    let mut w = world(2);
    w.write(true, 0, 0, 10);
    w.start(2);
    w.until("copied", |w| copied(w, 0, 10));
    w.run(60 * SECOND);
    let asked = w.asked();
    assert_eq!(asked.rosters, 4, "one per connection, two to either side");
    assert_eq!(asked.primaries, 0);
}

/// A feed that may not decide: it waits, and has forgotten nothing.
fn assert_undecided(w: &mut World, words: &str) {
    w.start(1);
    w.run(100 * SECOND);
    let feed = w.feed(0);
    assert_eq!(feed.condition.reason, "destination_not_ready", "{:?}", feed.condition);
    assert!(feed.condition.detail.contains(words), "{}", feed.condition.detail);
    assert_eq!((feed.counters.resets, feed.position), (0, 100));
    assert_eq!(w.read(false, 0).len(), 100);
}

#[test]
fn nodes_that_all_advertise_the_address_in_use_are_not_one_node() {
    for routes in [true, false] {
        for address in ["10.0.0.1", "0.0.0.0", "127.0.0.1"] {
            // The primary calls itself what the lagging follower in use calls itself.
            let mut w = after_a_copy(&[0], 100, true);
            let nodes = w.down.core.nodes();
            nodes.set_routes(routes);
            nodes.set_primary(Some(2));
            (0..NODES).for_each(|node| nodes.set_lag(node, 50));
            (0..NODES).for_each(|node| nodes.advertise(node, address, 1));
            assert_undecided(&mut w, "name every node in addresses");
            // The operator does so.
            w.kill();
            w.plan = Arc::new(plan_to(&[0, 1, 2]));
            w.start(1);
            goes_on(&mut w, 100);
            assert_eq!(w.feed(0).counters.resets, 0, "{routes} {address}");
        }
    }
}

#[test]
fn two_nodes_that_share_an_address_have_one_vote() {
    for routes in [true, false] {
        let mut w = after_a_copy(&[0], 100, true);
        let nodes = w.down.core.nodes();
        nodes.set_routes(routes);
        nodes.advertise(2, "10.0.0.2", 1);
        nodes.set_primary(Some(1));
        (0..NODES).for_each(|node| nodes.set_lag(node, 50));
        w.start(1);
        goes_on(&mut w, 100);
        assert_eq!(w.feed(0).counters.resets, 0, "{routes}");
        // Without that one the other is a minority, whatever is counted twice.
        w.kill();
        w.down.core.nodes().set_primary(Some(2));
        w.reach_node(1, false);
        w.start(1);
        w.run(100 * SECOND);
        let feed = w.feed(0);
        assert_eq!(feed.condition.reason, "destination_not_ready", "{:?}", feed.condition);
        assert_eq!(feed.counters.resets, 0);
    }
}

/// A world behind a translated network, whose primary cannot be reached; the others lag.
fn behind_translation(configured: &[usize], routes: bool) -> World {
    let mut w = after_a_copy(configured, 100, true);
    let nodes = w.down.core.nodes();
    nodes.set_routes(routes);
    for node in 0..NODES {
        nodes.set_lag(node, 50);
        nodes.advertise(node, &format!("172.17.0.{}", node + 2), 8090);
    }
    nodes.set_primary(Some(2));
    w.reach_node(2, false);
    w
}

#[test]
fn fewer_configured_addresses_than_nodes_decide_nothing_m6() {
    for routes in [true, false] {
        for configured in [&[0][..], &[0, 1]] {
            // Two of three, which may be two addresses of one node.
            let mut w = behind_translation(configured, routes);
            assert_undecided(&mut w, "name every node");
            // The operator does so.
            w.kill();
            w.plan = Arc::new(plan_to(&[0, 1, 2]));
            w.reach_node(2, true);
            w.start(1);
            goes_on(&mut w, 100);
            assert_eq!(w.feed(0).counters.resets, 0);
        }
    }
}

#[test]
fn configured_addresses_of_every_node_decide_once_a_majority_answers() {
    for routes in [true, false] {
        let mut w = behind_translation(&[0, 1, 2], routes);
        w.reach_node(1, false);
        assert_undecided(&mut w, "2 of 3 are a majority");
        w.reach_node(1, true);
        w.down.core.nodes().set_primary(Some(1));
        goes_on(&mut w, 100);
        assert_eq!(w.feed(0).counters.resets, 0);
    }
}

#[test]
fn two_addresses_of_one_node_among_as_many_as_nodes_are_one_vote_m6() {
    for routes in [true, false] {
        for translated in [true, false] {
            // The primary has what the other two lag behind with, and one of those is away too.
            let mut w = behind_translation(&[0, 1, 2], routes);
            let mut west = ClusterPlan::clone(&w.plan.to);
            w.aliases = vec![("[fd00::1]:1".into(), 0)];
            west.addresses.insert(1, "[fd00::1]:1".into());
            if !translated {
                // It is known which addresses are whose; one of them is left out.
                west.addresses.pop();
                for node in 0..NODES {
                    let address = format!("10.0.0.{}", node + 1);
                    w.down.core.nodes().advertise(node, &address, 1);
                }
            }
            w.plan = Arc::new(MirrorPlan { to: Arc::new(west), ..MirrorPlan::clone(&w.plan) });
            w.reach_node(1, false);
            assert_undecided(&mut w, "2 of 3 are a majority");
            let detail = w.feed(0).condition.detail;
            assert!(!translated || detail.contains("2 addresses answered"), "{detail}");
            w.reach_node(2, true);
            goes_on(&mut w, 100);
            assert_eq!(w.feed(0).counters.resets, 0, "{routes} {translated}");
        }
    }
}

#[test]
fn what_leads_to_another_cluster_decides_nothing_m12() {
    for routes in [true, false] {
        for refill in [true, false] {
            for renamed in [true, false] {
                let mut plan = plan_to(&[0]);
                if refill {
                    plan.on_destination_lost = OnDestinationLost::Refill;
                }
                if renamed {
                    // There is no topic of that name over there.
                    plan.topics[0].downstream = TopicName::new("copy", "events");
                }
                let mut w = World::new(plan);
                w.cluster(NODES);
                w.create(true, "orders", "events", 1);
                w.create(false, if renamed { "copy" } else { "orders" }, "events", 1);
                w.write(true, 0, 0, 100);
                w.start(1);
                w.until("copied", |w| copied(w, 0, 100));
                // The third node's address was given to a server of the upstream cluster.
                w.strange = vec!["10.0.0.9:1".into()];
                let nodes = w.down.core.nodes();
                nodes.advertise(2, "10.0.0.9", 1);
                nodes.set_routes(routes);
                nodes.set_primary(Some(2));
                (0..NODES).for_each(|node| nodes.set_lag(node, 50));
                w.cut(false, true);
                w.run(100 * SECOND);
                let feed = w.feed(0);
                assert_ne!(feed.condition.status, Status::Error, "{:?}", feed.condition);
                let foreign: Vec<&str> = feed.foreign_nodes.iter().map(|n| &*n.address).collect();
                assert_eq!(foreign, ["10.0.0.9:1"], "it is said");
                assert!(feed.foreign_nodes[0].why.contains("shows"), "{:?}", feed.foreign_nodes);
                w.down.core.nodes().set_primary(Some(1));
                w.write(true, 0, 100, 5);
                w.until("went on", |w| copied(w, 0, 105));
                w.run(2 * SECOND);
                w.assert_equal(1);
                assert_eq!(w.read(true, 0).len(), 105, "nothing was written upstream");
                let is_making =
                    |message: &ToControl| matches!(message, ToControl::EnsureDestination { .. });
                assert!(!w.to_control.iter().any(is_making), "nothing is lost");
                assert_eq!(w.feed(0).downstream_node.as_deref(), Some("10.0.0.2:1"));
                // It is put right, and no longer said.
                w.down.core.nodes().advertise(2, "10.0.0.3", 1);
                w.down.core.nodes().set_primary(Some(2));
                w.write(true, 0, 105, 5);
                w.until("moved", |w| copied(w, 0, 110));
                assert_eq!(w.feed(0).downstream_node.as_deref(), Some("10.0.0.3:1"));
                assert_eq!(w.feed(0).foreign_nodes, []);
            }
        }
    }
}

#[test]
fn a_destination_that_is_replaced_while_its_primary_was_not_configured_is_found_out() {
    for routes in [true, false] {
        let mut w = after_a_copy(&[0], 100, true);
        let nodes = w.down.core.nodes();
        nodes.set_routes(routes);
        nodes.set_primary(Some(2));
        nodes.set_leader(2);
        w.start(1);
        goes_on(&mut w, 100);
        assert_eq!(w.feed(0).downstream_node.as_deref(), Some("10.0.0.3:1"));
        w.down.core.forget_topic("orders", "events");
        w.foreign = true;
        w.create(false, "orders", "events", 1);
        w.write(true, 0, 105, 5);
        w.until("lost", |w| w.feed(0).condition.reason == "destination_lost");
        assert_eq!(w.feed(0).foreign_nodes, [], "both show the new one");
    }
}

#[test]
fn a_single_message_on_another_node_is_not_overlooked() {
    for orderly in [true, false] {
        let mut w = after_a_copy(&[0, 1, 2], 1, orderly);
        let nodes = w.down.core.nodes();
        nodes.set_routes(false);
        nodes.set_primary(Some(1));
        (0..NODES).for_each(|node| nodes.set_lag(node, 1));
        w.start(1);
        goes_on(&mut w, 1);
        assert_eq!(w.feed(0).counters.resets, 0);
        // And without a state: it is not empty.
        w.kill();
        w.disk.clear();
        w.down.core.log("orders", "events", 0).unwrap().lose_tail(5);
        w.start(1);
        w.until("told", |w| w.feed(0).condition.reason == "nonempty_destination");
    }
}

#[test]
fn many_nodes_are_asked_within_the_reserve() {
    let mut w = cluster_world(plan_to(&[0]), 9);
    let nodes = w.down.core.nodes();
    nodes.set_routes(false);
    nodes.set_primary(Some(8));
    w.write(true, 0, 0, 10);
    w.start(1);
    w.until("copied", |w| copied(w, 0, 10));
    assert_eq!(w.feed(0).downstream_node.as_deref(), Some("10.0.0.9:1"));
}

#[test]
fn a_server_that_says_it_is_one_of_several_settles_as_a_cluster() {
    for (count, least) in [(1, 2), (NODES, 10)] {
        let mut w = cluster_world(plan_to(&[0]), count);
        w.write(true, 0, 0, 10);
        w.start(1);
        w.until("copied", |w| copied(w, 0, 10));
        let settles = |w: &mut World, until: u64| {
            let began = w.now;
            w.until("went on", |w| copied(w, 0, until));
            let took = w.now - began;
            assert!((least * 1000..least * 1000 + 1900).contains(&took), "{count}: {took} ms");
        };
        // After a crash, and after a reply that did not come.
        w.run(2 * SECOND);
        w.kill();
        w.write(true, 0, 10, 5);
        w.start(1);
        settles(&mut w, 15);
        let sends = Scope { op: Op::Send, ..Scope::any() };
        let late = Fault::LateAppend { after: Duration::from_millis(8500) };
        w.down.core.faults().set(late, sends, Times::Next(1));
        w.run(SECOND);
        if count > 1 {
            w.write(true, 0, 15, 5);
            settles(&mut w, 20);
            w.assert_equal(1);
        }
    }
}

/// That upstream shows too little may be a lag; what outlasts the grace is told with advice.
fn assert_is_told_in_time(w: &mut World) {
    w.run(50 * SECOND);
    assert_eq!(w.feed(0).condition.reason, "waiting_upstream", "{:?}", w.feed(0).condition);
    // Tries are up to a minute apart by then.
    w.until("told", |w| w.feed(0).condition.reason == "upstream_behind");
    for pause in [1, 50, 200] {
        w.run(pause * SECOND);
        let condition = w.feed(0).condition;
        assert_eq!(condition.reason, "upstream_behind", "{condition:?}");
        assert_eq!(condition.status, Status::Degraded);
        assert!(condition.advice.contains("state reset"), "{condition:?}");
    }
}

#[test]
fn a_purge_of_an_upstream_of_several_nodes_is_told_with_advice_m5() {
    for policy in [OnHistoryChanged::Fail, OnHistoryChanged::Restart] {
        for restarted in [true, false] {
            let mut w = upstream_of_two(MirrorPlan { on_history_changed: policy, ..plan_to(&[0]) });
            copy(&mut w, 100);
            meanwhile(&mut w, restarted, |w| w.up.core.log("orders", "events", 0).unwrap().clear());
            w.write(true, 0, 500, 20);
            assert_is_told_in_time(&mut w);
            assert_eq!(w.read(false, 0).len(), 100, "nothing is decided");
            // As advised: the position is forgotten, and what there is goes behind what was.
            w.kill();
            w.disk.clear();
            let mut plan = MirrorPlan::clone(&w.plan);
            plan.on_nonempty_destination = OnNonemptyDestination::Append;
            w.plan = Arc::new(plan);
            w.start(1);
            w.until("copied", |w| w.read(false, 0).len() == 120);
            assert_eq!(w.feed(0).condition.status, Status::Running);
        }
    }
}

#[test]
fn an_upstream_node_that_lags_is_no_other_history_m5() {
    for policy in [OnHistoryChanged::Fail, OnHistoryChanged::Restart] {
        for unsaved in [true, false] {
            let mut plan = plan_to(&[0]);
            plan.on_history_changed = policy;
            let mut w = upstream_of_two(plan);
            w.write(true, 0, 0, 100);
            w.start(1);
            w.until("copied", |w| copied(w, 0, 100));
            if unsaved {
                // Acked, but not in the state: more is there than is known to have been copied.
                w.run(2 * SECOND);
                w.save_takes = 60_000;
                w.write(true, 0, 100, 20);
                w.until("copied", |w| w.read(false, 0).len() == 120);
                w.run(Duration::from_millis(100));
                w.kill();
                w.save_takes = 2;
            } else {
                w.run(2 * SECOND);
                w.cut(true, true);
            }
            // Another node leads by now, and the one that is configured does not keep up.
            w.up.core.nodes().set_primary(Some(1));
            w.up.core.nodes().set_lag(0, if unsaved { 10 } else { 30 });
            if unsaved {
                w.start(1);
            }
            assert_is_told_in_time(&mut w);
            let feed = w.feed(0);
            assert!(feed.condition.detail.contains("several nodes"), "{}", feed.condition.detail);
            w.up.core.nodes().set_lag(0, 0);
            let all = if unsaved { 120 } else { 100 };
            w.write(true, 0, all, 5);
            w.until("went on", |w| copied(w, 0, all + 5));
            w.assert_equal(1);
            assert_eq!((w.feed(0).counters.resets, w.feed(0).epoch), (0, 0));
        }
    }
}

/// Puts another content of the copied topic in the place of today's, which comes back; as a node
/// shows it that has another view of the metadata. The feed connects anew.
fn swap_topic(w: &mut World, upstream: bool, content: Topic) -> Topic {
    let core = if upstream { &mut w.up.core } else { &mut w.down.core };
    let today = core.take_topic("orders", "events").expect("a topic");
    assert!(core.put_topic("orders", "events", content));
    w.cut(upstream, true);
    today
}

#[test]
fn an_upstream_node_that_shows_an_older_topic_is_no_other_history_m5() {
    for policy in [OnHistoryChanged::Fail, OnHistoryChanged::Restart] {
        for restarted in [true, false] {
            let mut plan = plan_to(&[0]);
            plan.on_history_changed = policy;
            let mut w = upstream_of_two(plan);
            w.write(true, 0, 0, 50);
            let older = w.up.core.take_topic("orders", "events").expect("a topic");
            w.create(true, "orders", "events", 1);
            copy(&mut w, 100);
            let today = meanwhile(&mut w, restarted, |w| swap_topic(w, true, older));
            assert_is_told_in_time(&mut w);
            let feed = w.feed(0);
            assert!(feed.condition.detail.contains("seen before"), "{}", feed.condition.detail);
            swap_topic(&mut w, true, today);
            w.write(true, 0, 100, 5);
            w.until("went on", |w| copied(w, 0, 105));
            w.run(2 * SECOND);
            w.assert_equal(1);
            assert_eq!((w.feed(0).counters.resets, w.feed(0).epoch), (0, 0));
            assert_eq!(w.read(false, 0).len(), 105, "nothing twice");
        }
    }
}

#[test]
fn a_newer_history_is_copied_once_though_a_lagging_node_shows_the_old_one_again_m5() {
    let mut plan = plan_to(&[0]);
    plan.on_history_changed = OnHistoryChanged::Restart;
    let mut w = upstream_of_two(plan);
    copy(&mut w, 50);
    let older = w.up.core.take_topic("orders", "events").expect("a topic");
    w.create(true, "orders", "events", 1);
    w.write(true, 0, 0, 100);
    w.cut(true, true);
    w.until("seen", |w| w.feed(0).last_error.contains("was created at"));
    let today = swap_topic(&mut w, true, older);
    assert_is_told_in_time(&mut w);
    swap_topic(&mut w, true, today);
    w.until("copied once more", |w| w.feed(0).position == 100);
    w.run(2 * SECOND);
    assert_eq!((w.read(false, 0).len(), w.feed(0).counters.resets), (150, 1));
}

#[test]
fn a_destination_node_that_shows_an_older_topic_is_no_lost_destination_m6() {
    for policy in [OnDestinationLost::Fail, OnDestinationLost::Refill] {
        for restarted in [true, false] {
            let mut plan = plan_to(&[0]);
            plan.on_destination_lost = policy;
            let mut w = cluster_world(plan, NODES);
            let older = w.down.core.take_topic("orders", "events").expect("a topic");
            w.create(false, "orders", "events", 1);
            copy(&mut w, 100);
            let today = meanwhile(&mut w, restarted, |w| swap_topic(w, false, older));
            w.run(200 * SECOND);
            let feed = w.feed(0);
            assert_eq!(feed.condition.reason, "destination_not_ready", "{:?}", feed.condition);
            assert!(feed.condition.detail.contains("seen before"), "{}", feed.condition.detail);
            swap_topic(&mut w, false, today);
            w.write(true, 0, 100, 5);
            w.until("went on", |w| copied(w, 0, 105));
            w.run(2 * SECOND);
            w.assert_equal(1);
            assert_eq!((w.feed(0).counters.resets, w.feed(0).epoch), (0, 0));
            assert_eq!(w.read(false, 0).len(), 105, "nothing twice");
        }
    }
}

#[test]
fn a_destination_node_that_knows_no_topic_yet_is_no_lost_destination_m6() {
    for policy in [OnDestinationLost::Fail, OnDestinationLost::Refill] {
        for reached in [true, false] {
            let mut w = after_a_copy(&[0, 1, 2], 100, true);
            let mut plan = plan_to(&[0, 1, 2]);
            plan.on_destination_lost = policy;
            w.plan = Arc::new(plan);
            w.down.core.nodes().set_primary(Some(1));
            w.down.core.nodes().set_unaware(0, true);
            // Of the others all show the topic, or nobody says anything.
            w.reach_node(1, reached);
            w.reach_node(2, reached);
            w.start(1);
            w.run(200 * SECOND);
            let feed = w.feed(0);
            assert_eq!(feed.condition.reason, "destination_not_ready", "{:?}", feed.condition);
            let words = if reached { "shows it" } else { "2 of 3 are a majority" };
            assert!(feed.condition.detail.contains(words), "{}", feed.condition.detail);
            let is_making =
                |message: &ToControl| matches!(message, ToControl::EnsureDestination { .. });
            assert!(!w.to_control.iter().any(is_making), "nothing is lost");
            w.reach_node(1, true);
            w.reach_node(2, true);
            w.down.core.nodes().set_unaware(0, false);
            goes_on(&mut w, 100);
            assert_eq!((w.feed(0).counters.resets, w.feed(0).epoch), (0, 0));
        }
    }
}

#[test]
fn a_destination_topic_that_a_majority_lacks_is_lost_m6() {
    for configured in [&[0][..], &[0, 1, 2]] {
        let mut w = after_a_copy(configured, 100, true);
        w.down.core.forget_topic("orders", "events");
        w.reach_node(2, false);
        w.start(1);
        w.until("lost", |w| w.feed(0).condition.reason == "destination_lost");
    }
}
