//! Which partitions count as there at the first start of a topic (M4).

use super::*;

#[test]
fn a_topic_older_than_its_absence_is_at_its_first_start() {
    let mut world = World::new(plan(&["a"]), &[]);
    world.mono = 3_600_000;
    world.settle();
    assert_eq!(world.finding("a").expect("a finding").reason, "waiting_upstream");
    world.up.put("s", "a", 1, 100);
    world.run(Duration::from_secs(2));
    assert_eq!(world.added(), [(0, 0, false)], "the server was starting");
    world.up.put("s", "a", 2, 100);
    world.run(Duration::from_secs(6));
    assert_eq!(world.added()[1..], [(0, 1, true)]);
}

#[test]
fn partitions_between_saved_ones_were_there_at_the_first_start() {
    let entries = [saved("a", 1, 200), saved("a", 3, 200)];
    let mut world = World::new(plan(&["a"]), &entries);
    world.up.put("s", "a", 6, 100);
    world.down.put("copy", "a", 6, 200);
    world.settle();
    let mut added = world.added();
    added.sort_unstable();
    let late = [false, false, false, false, true, true];
    assert_eq!(added, (0..6).map(|p| (0, p, late[p as usize])).collect::<Vec<_>>());
}

#[test]
fn one_saved_partition_tells_how_many_there_were_at_the_first_start() {
    // Killed after the first of three saves; a fourth partition came while it was down.
    let first = FeedState { first_count: Some(3), ..saved("a", 0, 200) };
    let mut world = World::new(plan(&["a"]), &[first]);
    world.up.put("s", "a", 4, 100);
    world.down.put("copy", "a", 4, 200);
    world.settle();
    let late = [false, false, false, true];
    assert_eq!(world.added(), (0..4).map(|p| (0, p, late[p as usize])).collect::<Vec<_>>());
    assert!(world.added.iter().all(|feed| feed.first_count == 3), "each of them saves it");
}

#[test]
fn a_topic_that_came_late_has_no_partition_of_the_first_start() {
    let late = FeedState { first_count: Some(0), ..saved("a", 1, 200) };
    let mut world = World::new(plan(&["a"]), &[late]);
    world.up.put("s", "a", 2, 100);
    world.down.put("copy", "a", 2, 200);
    world.settle();
    assert_eq!(world.added(), [(0, 1, true), (0, 0, true)]);
}

#[test]
fn partitions_that_wait_for_the_destination_are_still_of_the_first_start() {
    let mut plan = plan(&["a"]);
    plan.auto_create = false;
    let mut world = World::new(plan, &[]);
    world.up.put("s", "a", 2, 100);
    world.down.put("copy", "a", 1, 200);
    world.settle();
    world.down.put("copy", "a", 3, 200);
    world.up.put("s", "a", 3, 100);
    world.run(Duration::from_secs(10));
    assert_eq!(world.added(), [(0, 0, false), (0, 1, false), (0, 2, true)]);
}

#[test]
fn saved_partitions_run_before_any_look_up_and_higher_ones_are_late() {
    let mut world = World::new(plan(&["a", "b"]), &[saved("a", 0, 200), saved("gone", 0, 200)]);
    assert_eq!(world.added(), [(0, 0, false)]);
    assert_eq!(world.added[0].saved, Some(saved("a", 0, 200)));
    world.up.put("s", "a", 2, 100);
    world.up.put("s", "b", 1, 100);
    world.down.put("copy", "a", 2, 200);
    world.settle();
    assert_eq!(world.added(), [(0, 0, false), (0, 1, true), (1, 0, false)], "b starts now");
}
