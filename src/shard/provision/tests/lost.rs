//! Destinations that are gone, replaced or have lost partitions (M6).

use super::*;

#[test]
fn a_lost_destination_is_decided_before_anything_is_created() {
    for policy in [OnDestinationLost::Fail, OnDestinationLost::Refill] {
        let mut plan = plan(&["a"]);
        plan.on_destination_lost = policy;
        let mut world = World::new(plan, &[saved("a", 0, 200)]);
        world.up.put("s", "a", 2, 100);
        world.run(Duration::from_secs(20));
        assert_eq!(world.changes, [""; 0], "{policy:?}");
        let reason = world.finding("a").expect("a finding").reason;
        match policy {
            OnDestinationLost::Fail => assert_eq!(reason, "destination_lost"),
            OnDestinationLost::Refill => assert_eq!(reason, "waiting_destination"),
        }
    }
}

#[test]
fn a_replaced_destination_is_neither_grown_nor_written_to() {
    let mut world = World::new(plan(&["a"]), &[saved("a", 0, 200)]);
    world.up.put("s", "a", 3, 100);
    world.down.put("copy", "a", 1, 777);
    world.run(Duration::from_secs(100));
    assert_eq!(world.changes, [""; 0]);
    assert_eq!(world.added(), [(0, 0, false)]);
    let lost = world.finding("a").expect("a finding");
    assert_eq!(lost.reason, "destination_lost");
    assert!(lost.detail.contains("777") && lost.detail.contains("200"), "{}", lost.detail);
}

#[test]
fn feeds_are_told_once_of_every_destination_that_replaces_another() {
    for policy in [OnDestinationLost::Fail, OnDestinationLost::Refill] {
        let mut plan = plan(&["other", "a"]);
        plan.on_destination_lost = policy;
        let mut world = World::new(plan, &[]);
        for topic in ["other", "a"] {
            world.up.put("s", topic, 2, 100);
            world.down.put("copy", topic, 2, 200);
        }
        world.run(Duration::from_secs(20));
        assert_eq!((world.added().len(), &world.looks[..]), (4, &[][..]), "{policy:?}");
        world.down.put("copy", "a", 1, 777);
        world.run(Duration::from_millis(5_100));
        assert_eq!(world.looks, [(1, 777)], "{policy:?}: at the next look-up");
        world.run(Duration::from_secs(100));
        assert_eq!(world.looks, [(1, 777)], "{policy:?}: once");
        let grown = world.changes == ["grow copy/a +1"];
        assert_eq!(grown, policy == OnDestinationLost::Refill, "{:?}", world.changes);
        world.down.put("copy", "a", 2, 888);
        world.run(Duration::from_secs(61));
        assert_eq!(world.looks[1..], [(1, 888)], "{policy:?}");
        let lost = world.finding("a").is_some_and(|found| found.reason == "destination_lost");
        assert_eq!(lost, policy == OnDestinationLost::Fail);
        assert_eq!(world.finding("other"), None);
    }
}

#[test]
fn removed_partitions_with_copied_messages_are_a_lost_destination() {
    for policy in [OnDestinationLost::Fail, OnDestinationLost::Refill] {
        let mut plan = plan(&["a"]);
        plan.on_destination_lost = policy;
        let copied = |partition| {
            let counters = Counters { messages: 10, ..Counters::default() };
            FeedState { counters, ..saved("a", partition, 200) }
        };
        let mut world = World::new(plan, &[copied(0), copied(1), saved("a", 2, 200)]);
        world.up.put("s", "a", 4, 100);
        world.down.put("copy", "a", 1, 200);
        world.machine.copied([(0, 3)]);
        world.run(Duration::from_secs(30));
        if policy == OnDestinationLost::Refill {
            assert_eq!(world.changes, ["grow copy/a +3"]);
            assert_eq!(world.finding("a"), None);
            continue;
        }
        assert_eq!(world.changes, [""; 0]);
        let lost = world.finding("a").expect("a finding");
        assert_eq!((lost.status, lost.reason), (Status::Error, "destination_lost"));
        let words = "copy/a has 1 partitions, messages were copied to partitions 1, 3 that";
        assert!(lost.detail.contains(words), "{}", lost.detail);
        // Those that are left never had a message.
        world.down.put("copy", "a", 4, 200);
        world.run(Duration::from_secs(61));
        assert_eq!((world.finding("a"), world.added().len()), (None, 4));
    }
}

#[test]
fn removed_partitions_that_never_had_a_message_are_added_again() {
    let mut world = World::new(plan(&["a"]), &[]);
    world.up.put("s", "a", 3, 100);
    world.down.put("copy", "a", 3, 200);
    world.settle();
    world.machine.copied([(0, 0)]);
    world.down.put("copy", "a", 1, 200);
    world.run(Duration::from_secs(6));
    assert_eq!(world.changes, ["grow copy/a +2"]);
    assert_eq!(world.finding("a"), None);
}

#[test]
fn a_feed_that_refills_gets_its_topic_made_again() {
    let mut plan = plan(&["a"]);
    plan.on_destination_lost = OnDestinationLost::Refill;
    let mut world = World::new(plan, &[saved("a", 0, 200), saved("a", 1, 200)]);
    world.up.put("s", "a", 2, 100);
    world.settle();
    world.machine.ensure(world.now(), 0, FeedId(4));
    world.machine.ensure(world.now(), 0, FeedId(5));
    world.settle();
    assert_eq!((&world.changes[..], &world.releases[..]), (&[][..], &[0][..]));
    // Nothing is made as long as a feed may still write there, or have something on its way.
    world.machine.released(world.now(), 0, FeedId(4));
    world.run(Duration::from_secs(10));
    assert_eq!(world.changes, [""; 0]);
    world.machine.released(world.now(), 0, FeedId(5));
    world.run(Duration::from_millis(1_900));
    assert_eq!(world.changes, [""; 0]);
    world.run(Duration::from_millis(200));
    assert_eq!(world.changes, ["stream copy", "topic copy/a x2"]);
    let made = world.down.topics[&("copy".to_owned(), "a".to_owned())].created_at;
    assert_eq!(world.ready, [(FeedId(4), Ok(made)), (FeedId(5), Ok(made))]);
    world.machine.ensure(world.now(), 0, FeedId(6));
    world.settle();
    assert_eq!(world.changes.len(), 2, "it is there now");
    assert_eq!(world.ready[2], (FeedId(6), Ok(made)));
}

#[test]
fn a_feed_that_may_not_refill_is_told_why() {
    let mut world = World::new(plan(&["a"]), &[saved("a", 0, 200)]);
    world.machine.ensure(world.now(), 0, FeedId(4));
    world.collect();
    let (feed, result) = &world.ready[0];
    assert_eq!(*feed, FeedId(4));
    assert!(result.as_ref().expect_err("refused").contains("on_destination_lost"));
}

#[test]
fn a_topic_is_not_copied_onto_itself_behind_another_address() {
    let mut plan = plan(&["a", "b"]);
    for topic in &mut plan.topics {
        topic.downstream = topic.upstream.clone();
    }
    let mut world = World::new(plan, &[]);
    for (cluster, b) in [(&mut world.up, 300), (&mut world.down, 400)] {
        cluster.put("s", "a", 2, 100);
        cluster.put("s", "b", 1, b);
    }
    world.run(Duration::from_secs(60));
    let finding = world.finding("a").expect("a finding");
    assert_eq!((finding.reason, finding.status), ("onto_itself", Status::Error));
    assert!(finding.detail.contains("s/a"), "{}", finding.detail);
    assert_eq!(world.added(), [(1, 0, false)], "a topic of the same name elsewhere is another");
    assert_eq!(world.changes, [""; 0]);
}
