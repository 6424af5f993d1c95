//! Destinations that are too small are grown, once (M3).

use super::*;

#[test]
fn a_smaller_destination_grows_by_the_difference_once() {
    let mut world = World::new(plan(&["a"]), &[]);
    world.up.put("s", "a", 4, 100);
    world.down.put("copy", "a", 1, 200);
    world.run(Duration::from_secs(30));
    assert_eq!(world.changes, ["grow copy/a +3"]);
    assert_eq!(world.done, ["destination topic copy/a is grown by 3 partitions"]);
    assert_eq!(world.unusual, [""; 0]);
    assert_eq!(world.added().len(), 4);
}

#[test]
fn a_partition_added_upstream_is_grown_and_mirrored_from_its_first_message() {
    let mut world = World::new(plan(&["a"]), &[]);
    world.up.put("s", "a", 1, 100);
    world.settle();
    world.up.put("s", "a", 3, 100);
    world.run(Duration::from_secs(6));
    assert_eq!(world.changes, ["stream copy", "topic copy/a x1", "grow copy/a +2"]);
    assert_eq!(world.added(), [(0, 0, false), (0, 1, true), (0, 2, true)]);
}

#[test]
fn a_growth_with_unknown_outcome_is_looked_up_after_settle_and_never_repeated() {
    for applied in [true, false] {
        let mut world = World::new(plan(&["a"]), &[]);
        world.up.put("s", "a", 3, 100);
        world.down.put("copy", "a", 1, 200);
        let mut failed = false;
        world.fault = Box::new(move |_, request| match request {
            Request::CreatePartitions { .. } if !failed => {
                failed = true;
                Some((applied, Trouble::Failed(Failure::TimedOut)))
            }
            _ => None,
        });
        let until = world.settle();
        assert!(until >= Millis(2000), "settle passes first");
        world.run(Duration::from_secs(30));
        let grown = if applied { 1 } else { 2 };
        assert_eq!(world.changes, vec!["grow copy/a +2"; grown]);
        assert_eq!(world.down.topics[&("copy".to_owned(), "a".to_owned())].partitions, 3);
        assert_eq!(world.added().len(), 3);
    }
}

#[test]
fn a_growth_is_not_repeated_while_a_look_up_may_be_older_than_it() {
    let key = ("copy".to_owned(), "a".to_owned());
    for outcome_known in [true, false] {
        let mut world = World::new(plan(&["a"]), &[]);
        world.up.put("s", "a", 3, 100);
        world.down.put("copy", "a", 1, 200);
        world.stale = Some((1900, 1));
        world.fault = Box::new(move |_, request| match request {
            Request::CreatePartitions { .. } if !outcome_known => {
                Some((true, Trouble::Failed(Failure::Lost)))
            }
            _ => None,
        });
        world.run(Duration::from_secs(30));
        assert_eq!(world.changes, ["grow copy/a +2"], "outcome known: {outcome_known}");
        assert_eq!(world.down.topics[&key].partitions, 3);
        assert_eq!(world.added().len(), 3);
        world.down.put("copy", "a", 2, 200);
        world.fault = Box::new(|_, _| None);
        world.run(Duration::from_secs(10));
        assert_eq!(world.changes[1..], ["grow copy/a +1"], "what is short later is added");
    }
}

#[test]
fn one_address_of_a_cluster_settles_as_long_as_the_cluster() {
    let several: &[&str] = &["a", "b", "c"];
    for (nodes, pause) in [(&[][..], 2), (&["a"][..], 2), (several, 10)] {
        let settle = Settle { several: Duration::from_secs(10), ..plan(&[]).to.settle };
        let to = ClusterPlan { settle, ..(*cluster("west")).clone() };
        let mut world = World::new(MirrorPlan { to: Arc::new(to), ..plan(&["a"]) }, &[]);
        world.up.put("s", "a", 3, 100);
        world.down.put("copy", "a", 1, 200);
        world.down.nodes = nodes.to_vec();
        // A follower answers: the growth shows late.
        world.stale = Some((pause * 1000 - 100, 1));
        world.fault = Box::new(move |_, request| match request {
            Request::CreatePartitions { .. } => Some((true, Trouble::Failed(Failure::TimedOut))),
            _ => None,
        });
        world.run(Duration::from_secs(30));
        assert_eq!(world.changes, ["grow copy/a +2"], "{nodes:?}");
        assert_eq!(world.questions, 1, "once for a connection");
        assert_eq!(world.added().len(), 3);
    }
}

#[test]
fn another_connection_may_lead_to_another_number_of_nodes() {
    let mut world = World::new(plan(&["a"]), &[]);
    world.up.put("s", "a", 1, 100);
    world.down.put("copy", "a", 1, 200);
    world.settle();
    assert_eq!(world.questions, 1);
    world.fault = Box::new(|side, _| {
        (side == Side::Downstream).then_some((false, Trouble::Failed(Failure::Lost)))
    });
    world.run(Duration::from_secs(6));
    world.fault = Box::new(|_, _| None);
    let before = world.questions;
    world.run(Duration::from_secs(60));
    assert_eq!(world.questions, before + 1);
}

#[test]
fn nothing_changes_while_a_cluster_does_not_say_how_many_nodes_it_has() {
    let mut world = World::new(plan(&["a"]), &[]);
    world.up.put("s", "a", 3, 100);
    world.down.put("copy", "a", 1, 200);
    world.fault = Box::new(|_, request| match request {
        Request::ClusterMetadata => Some((false, Trouble::Failed(Failure::TimedOut))),
        _ => None,
    });
    world.run(Duration::from_secs(30));
    assert_eq!(world.changes, [""; 0]);
    let finding = world.finding("a").expect("a finding");
    assert_eq!(finding.reason, "destination_unreachable");
    assert!(finding.detail.contains("asking which nodes cluster west has"), "{}", finding.detail);
    world.fault = Box::new(|_, _| None);
    world.run(Duration::from_secs(60));
    assert_eq!(world.changes, ["grow copy/a +2"]);
}

#[test]
fn a_feed_that_asks_does_not_shorten_the_wait_after_an_unknown_outcome() {
    let mut plan = plan(&["a"]);
    plan.on_destination_lost = OnDestinationLost::Refill;
    let mut world = World::new(plan, &[saved("a", 0, 200)]);
    world.up.put("s", "a", 3, 100);
    world.down.put("copy", "a", 1, 200);
    world.fault = Box::new(|_, request| match request {
        Request::CreatePartitions { .. } => Some((false, Trouble::Failed(Failure::TimedOut))),
        _ => None,
    });
    world.settle();
    assert_eq!(world.changes, ["grow copy/a +2"]);
    let look_ups = world.look_ups;
    for at in [0, 500, 1999] {
        world.mono = at;
        world.machine.ensure(world.now(), 0, FeedId(4));
        assert_eq!(world.settle(), Millis(2000));
    }
    assert_eq!(world.look_ups, look_ups, "nothing was asked within settle");
    world.fault = Box::new(|_, _| None);
    world.mono = 2000;
    world.settle();
    assert_eq!(world.changes[1..], ["grow copy/a +2"], "looked up, and short as before");
    assert_eq!(world.ready.len(), 3);
}

#[test]
fn balanced_mirrors_do_not_grow_the_destination() {
    let mut plan = plan(&["a"]);
    plan.partitions = Partitions::Balanced;
    let mut world = World::new(plan, &[]);
    world.up.put("s", "a", 3, 100);
    world.down.put("copy", "a", 1, 200);
    world.settle();
    assert_eq!(world.changes, [""; 0]);
    assert_eq!(world.added().len(), 3);
}
