//! Random runs of lanes against a destination that remembers everything.

use proptest::prelude::*;

use super::*;

/// One step of the random run.
#[derive(Clone, Debug)]
enum Step {
    Submit(Vec<(u8, u8, u8)>),
    Send,
    /// Which outstanding send, how it ends, whether it was appended all the same.
    Answer(u8, u8, bool),
    Wait(u16),
    Resolve(u8),
}

fn step() -> impl Strategy<Value = Step> {
    let group = (0..3u8, 0..6u8, 1..4u8);
    prop_oneof![
        3 => proptest::collection::vec(group, 0..5).prop_map(Step::Submit),
        6 => Just(Step::Send),
        6 => (any::<u8>(), 0..8u8, any::<bool>()).prop_map(|(a, b, c)| Step::Answer(a, b, c)),
        2 => (0..3_000u16).prop_map(Step::Wait),
        1 => (0..3u8).prop_map(Step::Resolve),
    ]
}

/// A destination cluster that remembers everything, and what was promised so far.
#[derive(Default)]
struct Model {
    logs: BTreeMap<(DestId, u32), Vec<u128>>,
    outstanding: Vec<Send>,
    acked: BTreeSet<u128>,
    /// Ids of each batch, in order, with where they go.
    batches: Vec<Vec<(DestId, u32, u128)>>,
}

impl Model {
    fn append(&mut self, send: &Send) -> u64 {
        let log = self.logs.entry((send.dest, send.partition)).or_default();
        let offset = log.len() as u64;
        log.extend(ids(&send.relay));
        offset
    }

    fn check(&self, lanes: &Lanes, settings: LaneSettings) {
        for batch in self.batches.iter().take(lanes.complete() as usize) {
            let lost = batch.iter().find(|(_, _, id)| !self.acked.contains(id));
            assert_eq!(lost, None, "the watermark passed what was not acked");
        }
        assert!(self.outstanding.len() <= settings.concurrent);
        let places: BTreeSet<_> =
            self.outstanding.iter().map(|send| (send.dest, send.partition)).collect();
        assert_eq!(places.len(), self.outstanding.len(), "one outstanding per partition");
    }

    /// In each log the first copies are in the order of the rows.
    fn check_order(&self) {
        for (place, log) in &self.logs {
            let mut seen = BTreeSet::new();
            let firsts: Vec<u128> = log.iter().copied().filter(|id| seen.insert(*id)).collect();
            let rows = self.batches.iter().flatten();
            let meant = rows.filter(|(dest, partition, _)| (*dest, *partition) == *place);
            let meant: Vec<u128> = meant.map(|(_, _, id)| *id).collect();
            assert_eq!(firsts, meant[..firsts.len()], "{place:?}");
        }
    }
}

fn submit(world: &mut World, model: &mut Model, groups: &[(u8, u8, u8)]) {
    let batch = model.batches.len() as u128;
    let (mut rows, mut made) = (Vec::new(), Vec::new());
    for (nth, (dest, partition, count)) in groups.iter().enumerate() {
        let dest = DestId(u32::from(*dest));
        // Some are given as the hash that falls there.
        let (partition, hashed) = (u32::from(*partition) % 4, *partition >= 4);
        let ids: Vec<u128> =
            (0..u128::from(*count)).map(|n| batch * 1_000 + nth as u128 * 10 + n).collect();
        rows.extend(ids.iter().map(|id| (dest, partition, *id)));
        let target = if hashed {
            Target::Later(vec![Wish::Hash(partition + 8); ids.len()])
        } else {
            Target::Partition(partition)
        };
        made.push(batch_group(dest, target, &ids));
    }
    model.batches.push(rows);
    world.lanes.submit(world.now, &world.table, made);
}

fn send(world: &mut World, model: &mut Model) -> bool {
    let Some(send) = world.next() else { return false };
    for id in ids(&send.relay) {
        assert!(!model.acked.contains(&id), "{id} was acked and goes again");
    }
    model.outstanding.push(send);
    true
}

fn answer(world: &mut World, model: &mut Model, which: u8, how: u8, appended: bool) {
    if model.outstanding.is_empty() {
        return;
    }
    let send = model.outstanding.remove(usize::from(which) % model.outstanding.len());
    let failure = match how {
        0..=3 => {
            let offset = model.append(&send);
            model.acked.extend(ids(&send.relay));
            let acked = world.ack(send.lane, offset);
            assert_eq!(acked.lost_tail, None, "its log only grows");
            return;
        }
        4 => Failure::TimedOut,
        5 => Failure::Lost,
        6 => Failure::Refused(58),
        _ => Failure::Refused(20),
    };
    if appended && how <= 5 {
        model.append(&send);
    }
    if how == 7 {
        world.table.at_mut(send.dest).facts = None;
    }
    world.fail(send.lane, failure);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn order_barrier_and_memory_hold_under_any_answers(
        steps in proptest::collection::vec(step(), 1..120),
        concurrent in 1..6usize,
    ) {
        let settings = LaneSettings { concurrent, most_together: 600, ..settings() };
        let mut world = World::new(settings);
        let mut model = Model::default();
        for step in steps {
            match step {
                Step::Submit(groups) => submit(&mut world, &mut model, &groups),
                Step::Send => drop(send(&mut world, &mut model)),
                Step::Answer(which, how, appended) => {
                    answer(&mut world, &mut model, which, how, appended);
                }
                Step::Wait(millis) => world.wait(Duration::from_millis(u64::from(millis))),
                Step::Resolve(dest) => resolve(&mut world, DestId(u32::from(dest))),
            }
            model.check(&world.lanes, settings);
            model.check_order();
        }
        // The cluster gets well: everything arrives, and nothing is left.
        for dest in [A, B, C] {
            resolve(&mut world, dest);
        }
        let mut turns = 0;
        while !world.lanes.is_empty() {
            while send(&mut world, &mut model) {}
            model.check(&world.lanes, settings);
            if model.outstanding.is_empty() {
                let at = world.lanes.wake_at().expect("something is due");
                prop_assert!(at > world.now);
                world.now = at;
            }
            answer(&mut world, &mut model, 0, 0, true);
            turns += 1;
            prop_assert!(turns < 10_000, "it does not come to an end");
        }
        model.check_order();
        prop_assert_eq!(world.lanes.complete() as usize, model.batches.len());
        prop_assert_eq!((world.lanes.bytes(), world.lanes.outstanding()), (0, 0));
        let rows = model.batches.iter().map(Vec::len).sum::<usize>();
        prop_assert_eq!(model.acked.len(), rows);
    }
}

fn resolve(world: &mut World, dest: DestId) {
    world.table.at_mut(dest).facts = facts(4);
    world.lanes.resolved(world.now, &world.table, dest);
}
