//! Lanes one by one, and all together under random answers.

mod random;

use std::collections::BTreeMap;

use super::*;
use crate::config::BreakerPlan;
use crate::fanout::ensure::TopicFacts;
use crate::fanout::group::Target;
use crate::fanout::partition::Wish;
use crate::iggy_wire::record::{Verify, scan};

const A: DestId = DestId(0);
const B: DestId = DestId(1);
const C: DestId = DestId(2);

fn settings() -> LaneSettings {
    LaneSettings {
        concurrent: 16,
        retry_first: Duration::from_secs(1),
        retry_longest: Duration::from_secs(30),
        most_together: 1 << 20,
        outside: Disposition::Keep,
        by_id: false,
    }
}

/// Lanes towards destinations A, B and C, of 4 partitions each unless said otherwise.
struct World {
    table: Destinations,
    lanes: Lanes,
    rng: fastrand::Rng,
    now: Millis,
}

impl World {
    fn new(settings: LaneSettings) -> World {
        let cool_down = Duration::from_secs(30);
        let mut table = Destinations::new(16, BreakerPlan { failure_threshold: 5, cool_down });
        for topic in ["a", "b", "c"] {
            let dest = table.admit("s", topic).unwrap();
            table.at_mut(dest).facts = facts(4);
        }
        let (rng, now) = (fastrand::Rng::with_seed(7), Millis(0));
        World { table, lanes: Lanes::new(settings), rng, now }
    }

    /// A batch of one group for each of these: destination, partition, message ids.
    fn submit(&mut self, groups: &[(DestId, u32, &[u128])]) -> u64 {
        let group = |(dest, partition, ids): &(DestId, u32, &[u128])| {
            batch_group(*dest, Target::Partition(*partition), ids)
        };
        self.lanes.submit(self.now, &self.table, groups.iter().map(group).collect())
    }

    fn next(&mut self) -> Option<Send> {
        self.lanes.next(self.now, &mut self.table)
    }

    /// Ids of the next send; it stays outstanding.
    fn sent(&mut self) -> (LaneId, Vec<u128>) {
        let send = self.next().expect("something to send");
        (send.lane, ids(&send.relay))
    }

    fn ack(&mut self, lane: LaneId, offset: u64) -> Acked {
        self.lanes.acked(self.now, &mut self.table, lane, offset).expect("it was outstanding")
    }

    fn fail(&mut self, lane: LaneId, failure: Failure) -> bool {
        let rng = &mut self.rng;
        self.lanes.failed(self.now, &mut self.table, lane, &failure, rng).unwrap().1
    }

    fn wait(&mut self, time: Duration) {
        self.now = self.now + time;
    }
}

fn facts(partitions: u32) -> Option<TopicFacts> {
    Some(TopicFacts { partitions, created_at: 1, not_durable: None })
}

fn batch_group(dest: DestId, target: Target, ids: &[u128]) -> Group {
    let mut batch = BatchBuilder::default();
    for id in ids {
        batch.begin(*id, 1_000);
        batch.body().extend_from_slice(b"payload");
        batch.end().unwrap();
    }
    Group { dest, target, content: Content::Batch(batch) }
}

fn ids(relay: &Relay) -> Vec<u128> {
    let records = scan(&relay.stored(0, 0, 0), Verify::Full).unwrap();
    records[0].messages().map(|message| message.id).collect()
}

#[test]
fn a_lane_has_one_send_outstanding_and_what_waits_goes_together() {
    let mut world = World::new(settings());
    for batch in 0..3u128 {
        world.submit(&[(A, 0, &[batch * 10, batch * 10 + 1])]);
        if batch == 0 {
            assert_eq!(world.sent().1, [0, 1]);
        }
    }
    assert!(world.next().is_none(), "one outstanding");
    assert_eq!((world.lanes.in_flight(), world.lanes.outstanding()), (1, 1));
    world.ack(LaneId(0), 0);
    assert_eq!(world.lanes.complete(), 1);
    let (lane, together) = world.sent();
    assert_eq!(together, [10, 11, 20, 21]);
    assert_eq!(world.lanes.in_flight(), 2);
    assert_eq!(world.ack(lane, 2).messages, 4);
    assert_eq!((world.lanes.complete(), world.lanes.bytes()), (3, 0));
}

#[test]
fn what_goes_together_stays_below_its_bound() {
    let mut world = World::new(LaneSettings { most_together: 256 + 3 * 55, ..settings() });
    world.submit(&[(A, 0, &[1, 2])]);
    world.submit(&[(A, 0, &[3])]);
    world.submit(&[(A, 0, &[4])]);
    let (lane, together) = world.sent();
    assert_eq!(together, [1, 2, 3]);
    world.ack(lane, 0);
    assert_eq!(world.sent().1, [4]);
}

#[test]
fn only_what_is_not_acked_goes_again_and_nothing_passes_it() {
    let mut world = World::new(settings());
    world.submit(&[(A, 0, &[1]), (B, 0, &[2]), (A, 1, &[3])]);
    let sends: Vec<_> = (0..3).map(|_| world.sent()).collect();
    world.submit(&[(A, 0, &[4]), (B, 0, &[5])]);
    world.ack(sends[1].0, 0);
    world.ack(sends[2].0, 0);
    world.fail(sends[0].0, Failure::TimedOut);
    assert_eq!(world.sent().1, [5], "other lanes go on");
    assert!(world.next().is_none(), "4 waits behind 1");
    assert_eq!(world.lanes.complete(), 0);
    world.wait(Duration::from_secs(1));
    let (lane, again) = world.sent();
    assert_eq!(again, [1], "the same ids, as they were sent");
    world.ack(lane, 0);
    assert_eq!(world.lanes.complete(), 1);
    assert_eq!(world.sent().1, [4]);
}

#[test]
fn pauses_follow_the_failure() {
    let mut world = World::new(settings());
    world.submit(&[(A, 0, &[1])]);
    let (lane, _) = world.sent();
    world.fail(lane, Failure::Lost);
    assert_eq!(world.sent().1, [1], "at once on the next connection");
    let mut expected = 50;
    for _ in 0..8 {
        world.fail(lane, Failure::Refused(58));
        assert_eq!(world.lanes.wake_at(), Some(world.now + Duration::from_millis(expected)));
        world.wait(Duration::from_millis(expected));
        world.sent();
        expected = (expected * 2).min(1_000);
    }
    assert_eq!(world.table.at(A).breaker.failures(), 0, "a lost leader is not counted");
    for (nth, longest) in [1, 2, 4, 8].into_iter().enumerate() {
        world.fail(lane, Failure::TimedOut);
        let wait = world.lanes.wake_at().unwrap() - world.now;
        let longest = Duration::from_secs(longest);
        assert!(wait <= longest && wait >= longest * 3 / 4, "{nth}: {wait:?}");
        world.wait(longest);
        world.sent();
    }
    world.ack(lane, 0);
    world.submit(&[(A, 0, &[2])]);
    world.sent();
    world.fail(lane, Failure::TimedOut);
    let wait = world.lanes.wake_at().unwrap() - world.now;
    assert!(wait <= Duration::from_secs(1), "a success starts over: {wait:?}");
}

#[test]
fn an_open_breaker_lets_one_probe_through_after_its_rest() {
    let mut world = World::new(settings());
    world.submit(&[(A, 0, &[1]), (A, 1, &[2]), (B, 0, &[3])]);
    let a0 = world.sent().0;
    let a1 = world.sent().0;
    let b0 = world.sent().0;
    for nth in 1..=4 {
        assert!(!world.fail(a0, Failure::TimedOut), "{nth}");
        world.wait(Duration::from_secs(30));
        world.sent();
    }
    assert!(world.fail(a0, Failure::TimedOut), "the fifth in a row");
    world.fail(a1, Failure::Lost);
    world.ack(b0, 0);
    world.submit(&[(B, 0, &[4])]);
    assert_eq!(world.sent().1, [4], "others are not concerned");
    world.wait(Duration::from_millis(29_999));
    assert!(world.next().is_none());
    world.wait(Duration::from_millis(1));
    let probe = world.next().unwrap();
    assert!(probe.suspect);
    assert!(world.next().is_none(), "one probe");
    assert!(world.fail(probe.lane, Failure::TimedOut));
    world.wait(Duration::from_secs(30));
    let (lane, _) = world.sent();
    world.fail(lane, Failure::Lost);
    let (lane, _) = world.sent();
    assert!(world.ack(lane, 0).closed);
    assert!(world.next().is_some(), "the other lane is free again");
}

#[test]
fn failing_destinations_take_half_of_the_places_at_most() {
    let mut world = World::new(LaneSettings { concurrent: 4, ..settings() });
    world.table.at_mut(A).breaker.failed(Millis(0));
    let groups: Vec<(DestId, u32, &[u128])> =
        (0..4).map(|p| (A, p, &[1][..])).chain((0..4).map(|p| (B, p, &[2][..]))).collect();
    world.submit(&groups);
    let sent: Vec<Vec<u128>> = (0..4).map(|_| world.sent().1).collect();
    assert_eq!(sent, [[1], [1], [2], [2]]);
    assert!(world.next().is_none(), "four at once");
}

#[test]
fn the_oldest_head_goes_first() {
    let mut world = World::new(LaneSettings { concurrent: 1, ..settings() });
    world.submit(&[(A, 0, &[1]), (B, 0, &[2]), (A, 0, &[3])]);
    world.submit(&[(C, 0, &[4]), (A, 0, &[5])]);
    for id in 1..=5 {
        let (lane, sent) = world.sent();
        assert_eq!(sent, [id], "in the order of the rows, nothing taken together across them");
        world.ack(lane, id as u64);
    }
}

#[test]
fn what_waits_for_its_topic_falls_apart_by_its_wishes() {
    let mut world = World::new(settings());
    world.table.at_mut(A).facts = None;
    let hash = |partition: u32| Wish::Hash(partition + 4);
    let wishes = vec![hash(0), hash(1), Wish::Balanced, hash(0)];
    let first = batch_group(A, Target::Later(wishes), &[1, 2, 3, 4]);
    let second = batch_group(A, Target::Later(vec![hash(1)]), &[5]);
    world.lanes.submit(world.now, &world.table, vec![first]);
    world.lanes.submit(world.now, &world.table, vec![second]);
    assert!(world.next().is_none() && world.lanes.waits_for(A));
    world.table.at_mut(A).facts = facts(2);
    world.table.at_mut(A).turn = 1;
    world.lanes.resolved(world.now, &world.table, A);
    let (p0, p1) = (world.sent(), world.sent());
    assert_eq!((p0.1, p1.1), (vec![1, 4], vec![2, 3, 5]), "each partition in the order of rows");
    world.ack(p0.0, 0);
    assert_eq!(world.lanes.complete(), 0);
    world.ack(p1.0, 0);
    assert_eq!((world.lanes.complete(), world.lanes.bytes()), (2, 0));
}

#[test]
fn ids_outside_their_topic_wait_alone_or_are_given_back() {
    let outside = |outside| {
        let mut world = World::new(LaneSettings { outside, by_id: true, ..settings() });
        world.table.at_mut(A).facts = None;
        let wishes = vec![Wish::Id(0), Wish::Id(9), Wish::Id(NOWHERE), Wish::Id(0)];
        let group = batch_group(A, Target::Later(wishes), &[1, 2, 3, 4]);
        world.lanes.submit(world.now, &world.table, vec![group]);
        world.table.at_mut(A).facts = facts(2);
        world.lanes.resolved(world.now, &world.table, A);
        let (lane, sent) = world.sent();
        assert_eq!(sent, [1, 4], "the others still go");
        world.ack(lane, 0);
        assert!(world.next().is_none());
        assert_eq!(world.lanes.complete(), 0);
        world
    };
    let mut world = outside(Disposition::Keep);
    let stuck = world.lanes.stuck(&world.table, A);
    assert_eq!(stuck, Some(Reason::PartitionIdOutOfRange));
    world.table.at_mut(A).facts = facts(10);
    world.lanes.refresh(world.now, &world.table, A);
    assert_eq!(world.sent().1, [2], "the topic has grown");
    let mut world = outside(Disposition::Drop);
    let given = world.lanes.take_outside();
    assert_eq!(given.len(), 2);
    let (dest, letter) = (B, batch_group(B, Target::Partition(0), &[3]));
    let Content::Batch(letter) = letter.content else { panic!("messages") };
    world.lanes.settle_outside(world.now, &world.table, given[0].batch, None);
    world.lanes.settle_outside(world.now, &world.table, given[1].batch, Some((dest, letter)));
    let (lane, sent) = world.sent();
    assert_eq!((sent, world.lanes.complete()), (vec![3], 0));
    world.ack(lane, 0);
    assert_eq!((world.lanes.complete(), world.lanes.bytes()), (1, 0));
}

#[test]
fn a_stone_holds_its_lane_and_no_other() {
    let mut world = World::new(settings());
    let stone =
        Group { dest: A, target: Target::Partition(0), content: Content::Stone(Reason::TooLarge) };
    world.submit(&[(A, 0, &[1])]);
    world.lanes.submit(world.now, &world.table, vec![stone]);
    world.submit(&[(A, 0, &[2]), (A, 1, &[3])]);
    let (first, sent) = world.sent();
    assert_eq!(sent, [1], "what came before it goes, alone");
    assert_eq!(world.sent().1, [3]);
    world.ack(first, 0);
    assert!(world.next().is_none());
    assert_eq!(world.lanes.stuck(&world.table, A), Some(Reason::TooLarge));
    assert_eq!((world.lanes.complete(), world.lanes.pinned_by()), (1, Some(A)));
    world.lanes.abandon(world.now, &world.table, 1);
    assert_eq!(world.sent().1, [2], "until it is given up");
}

#[test]
fn offsets_that_do_not_grow_mean_a_lost_tail() {
    let mut world = World::new(settings());
    for (id, offset, lost) in
        [(1, 100, None), (2, 101, None), (3, 150, None), (4, 150, Some((151, 150))), (5, 151, None)]
    {
        world.submit(&[(A, 0, &[id])]);
        let (lane, _) = world.sent();
        assert_eq!(world.ack(lane, offset).lost_tail, lost, "{id}");
    }
    world.lanes.forget_offsets(A);
    world.submit(&[(A, 0, &[6]), (A, 1, &[7])]);
    let (p0, p1) = (world.sent().0, world.sent().0);
    assert_eq!(world.ack(p0, 0).lost_tail, None, "another topic");
    assert_eq!(world.ack(p1, 0).lost_tail, None, "another partition");
}

#[test]
fn what_is_given_up_is_never_sent_again() {
    let mut world = World::new(settings());
    world.submit(&[(A, 0, &[1]), (B, 0, &[2])]);
    let (a, b) = (world.sent().0, world.sent().0);
    world.submit(&[(A, 0, &[3])]);
    world.submit(&[(A, 0, &[4])]);
    world.fail(a, Failure::TimedOut);
    world.lanes.abandon(world.now, &world.table, 1);
    assert_eq!(world.lanes.complete(), 2);
    world.fail(b, Failure::TimedOut);
    world.wait(Duration::from_secs(60));
    assert_eq!(world.sent().1, [4]);
    assert!(world.next().is_none());
    world.ack(a, 0);
    assert_eq!((world.lanes.complete(), world.lanes.bytes()), (3, 0));
}

#[test]
fn a_drain_sends_nothing_that_is_queued() {
    let mut world = World::new(settings());
    world.submit(&[(A, 0, &[1])]);
    let (lane, _) = world.sent();
    world.submit(&[(A, 0, &[2]), (B, 0, &[3])]);
    world.lanes.drain();
    assert!(world.next().is_none());
    world.ack(lane, 0);
    assert!(world.next().is_none() && world.lanes.wake_at().is_none());
    assert_eq!((world.lanes.complete(), world.lanes.outstanding()), (1, 0));
}

#[test]
fn a_batch_of_nothing_is_complete() {
    let mut world = World::new(settings());
    assert_eq!(world.submit(&[]), 0);
    assert_eq!(world.lanes.complete(), 1);
    world.submit(&[(A, 0, &[1])]);
    world.submit(&[]);
    assert_eq!((world.lanes.complete(), world.lanes.is_empty()), (1, false));
}

#[test]
fn hashed_keys_of_a_partition_that_is_gone_go_on() {
    let mut world = World::new(settings());
    world.submit(&[(A, 3, &[1])]);
    let (lane, _) = world.sent();
    world.table.at_mut(A).facts = None;
    world.fail(lane, Failure::Refused(3007));
    world.wait(Duration::from_secs(9));
    assert!(world.next().is_none(), "the topic is looked at first");
    world.table.at_mut(A).facts = facts(2);
    world.lanes.resolved(world.now, &world.table, A);
    let send = world.next().unwrap();
    assert_eq!((send.partition, ids(&send.relay)), (1, vec![1]));
}

/// Answers everything until nothing is left: the log of each partition.
fn run_out(world: &mut World) -> BTreeMap<u32, Vec<u128>> {
    let mut logs: BTreeMap<u32, Vec<u128>> = BTreeMap::new();
    let mut outstanding: Vec<Send> = Vec::new();
    while !world.lanes.is_empty() {
        while let Some(send) = world.next() {
            assert!(outstanding.iter().all(|other| other.partition != send.partition), "I2");
            outstanding.push(send);
        }
        if outstanding.is_empty() {
            world.now = world.lanes.wake_at().expect("something is due").max(world.now);
            continue;
        }
        let send = outstanding.remove(0);
        let log = logs.entry(send.partition).or_default();
        let offset = log.len() as u64;
        log.extend(ids(&send.relay));
        world.ack(send.lane, offset);
    }
    logs
}

/// Its keys were hashed among 4 partitions and are hashed among others now: one key's rows were in
/// lane 3 and come in lane 1 (among 2) or 0 (among 3) from then on.
#[test]
fn what_was_placed_by_another_number_of_partitions_goes_first_one_at_a_time() {
    for (count, gone_to, now_to) in [(2, 1, 1), (3, 0, 0), (6, 3, 5)] {
        let mut world = World::new(settings());
        world.submit(&[(A, 3, &[1]), (A, 1, &[2]), (A, 0, &[3])]);
        world.submit(&[(A, 3, &[4]), (B, 0, &[5])]);
        let sends = [world.sent(), world.sent(), world.sent()];
        world.table.at_mut(A).facts = None;
        for (lane, _) in sends {
            world.fail(lane, Failure::Refused(2010));
        }
        // Written before that was known, and while nothing was.
        world.submit(&[(A, 3, &[6])]);
        let later = batch_group(A, Target::Later(vec![Wish::Hash(count * 4 + now_to)]), &[7]);
        world.lanes.submit(world.now, &world.table, vec![later]);
        world.table.at_mut(A).facts = facts(count);
        world.lanes.resolved(world.now, &world.table, A);
        world.submit(&[(A, now_to, &[8])]);
        assert_eq!(world.sent().1, [5], "others are not concerned");
        world.ack(LaneId(3), 0);
        let logs = run_out(&mut world);
        let rows = |partition: u32, among: [u128; 5]| -> Vec<u128> {
            let log = logs.get(&partition).into_iter().flatten().copied();
            log.filter(|id| among.contains(id)).collect()
        };
        if gone_to == now_to {
            assert_eq!(rows(now_to, [1, 4, 6, 7, 8]), [1, 4, 6, 7, 8], "among {count}: {logs:?}");
        } else {
            assert_eq!(rows(gone_to, [1, 4, 6, 7, 8]), [1, 4, 6], "{logs:?}");
            assert_eq!(rows(now_to, [1, 4, 6, 7, 8]), [7, 8], "{logs:?}");
        }
        assert_eq!(logs.values().map(Vec::len).sum::<usize>(), 7);
        assert_eq!((world.lanes.bytes(), world.lanes.outstanding()), (0, 0));
        world.submit(&[(A, 0, &[9]), (A, 1, &[10])]);
        assert_eq!((world.sent().1, world.sent().1), (vec![9], vec![10]), "all is as usual");
    }
}

/// A batch was open across the change: what it has for a partition that is gone stands first.
#[test]
fn a_group_for_a_partition_that_is_gone_is_waited_for() {
    let mut world = World::new(settings());
    world.table.at_mut(A).facts = facts(2);
    world.submit(&[(A, 3, &[1]), (A, 1, &[2]), (A, 0, &[3])]);
    let (lane, first) = world.sent();
    assert_eq!(first, [1]);
    assert!(world.next().is_none());
    world.ack(lane, 0);
    assert_eq!((world.sent().1, world.sent().1), (vec![2], vec![3]));
}

/// A value that is no number has no partition, and holds up no other.
#[test]
fn what_goes_nowhere_keeps_nothing_waiting() {
    let mut world = World::new(settings());
    world.submit(&[(A, NOWHERE, &[1]), (A, 0, &[2])]);
    let (lane, sent) = world.sent();
    assert_eq!(sent, [2]);
    world.ack(lane, 0);
    world.table.at_mut(A).facts = facts(2);
    world.submit(&[(A, 1, &[3])]);
    assert_eq!(world.sent().1, [3]);
}
