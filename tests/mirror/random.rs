//! Random histories: writers, faults by name, cuts, kills and lost tails in any order; at the
//! end everything heals and the oracle asks for equal logs. The books of the buffers are audited
//! at every turn. `TIDEGATE_SEED=n` replays one.

use std::time::Duration;

use tidegate::config::MirrorPlan;
use tidegate::loopback::faults::Op;
use tidegate::loopback::{Fault, Scope, Times};
use tidegate::shard::event::{FromControl, SaveError};
use tidegate::shard::snapshot::Status;

use super::nodes::{NODES, plan_to};
use super::{plan, world_with};
use crate::world::World;

/// Few partitions, or in every so many histories more than the reserve compares at once.
const FEW: u32 = 3;
const MANY: u32 = 20;
const MANY_EVERY: u64 = 20;

struct Story {
    rng: fastrand::Rng,
    /// The destination is a cluster of several nodes.
    nodes: bool,
    written: Vec<u64>,
    told: Vec<String>,
}

fn scope(rng: &mut fastrand::Rng, op: Op, partitions: u32) -> Scope {
    let any = Scope { op, ..Scope::any() };
    if rng.bool() { any.partition(rng.u32(0..partitions)) } else { any }
}

impl Story {
    fn partitions(&self) -> u32 {
        u32::try_from(self.written.len()).unwrap()
    }

    fn step(&mut self, w: &mut World) {
        let partitions = self.partitions();
        let rng = &mut self.rng;
        let pick = rng.u32(0..if self.nodes { 26 } else { 20 });
        let told = match pick {
            20.. => node_event(rng, w),
            0..=5 => {
                let partition = rng.u32(0..partitions);
                let from = self.written[partition as usize];
                let count = rng.u64(1..60);
                // In one record, or in many that may be merged.
                let size = [count, 1, rng.u64(1..10)][rng.usize(0..3)];
                for first in (from..from + count).step_by(usize::try_from(size).unwrap()) {
                    w.write(true, partition, first, size.min(from + count - first));
                }
                self.written[partition as usize] += count;
                format!("write {count} to {partition}, {size} a record")
            }
            6 => {
                let fault = match rng.u32(0..7) {
                    0 => Fault::DropReply,
                    1 => Fault::DropRequest,
                    2 => Fault::EmptyConfirmation,
                    3 => Fault::Reject { code: 57, applied: rng.bool() },
                    4 => Fault::Reject { code: 58, applied: false },
                    5 => Fault::Slow(Duration::from_millis(rng.u64(1..12_000))),
                    _ => Fault::LateAppend { after: Duration::from_millis(rng.u64(1..1900)) },
                };
                // Two of a kind: three unanswered sends of one record are a verdict, not a fault.
                w.down.core.faults().clear_all();
                w.down.core.faults().set(
                    fault,
                    scope(rng, Op::Send, partitions),
                    Times::Next(rng.u32(1..3)),
                );
                format!("destination: {fault:?}")
            }
            7 => {
                let fault = match rng.u32(0..7) {
                    0 => Fault::DropReply,
                    1 => Fault::StrayReply,
                    2 => Fault::CorruptRecord { offset: rng.u64(0..200) },
                    3 => Fault::WrongRange { from: rng.u64(0..200) },
                    4 => Fault::CutMidFrame { after: 100 },
                    5 => Fault::Reject { code: 58, applied: false },
                    _ => Fault::Slow(Duration::from_millis(rng.u64(1..12_000))),
                };
                w.up.core.faults().clear_all();
                w.up.core.faults().set(fault, scope(rng, Op::Poll, partitions), Times::Next(1));
                format!("upstream: {fault:?}")
            }
            8 => {
                w.cut(true, rng.bool());
                "cut upstream".into()
            }
            9 => {
                w.cut(false, rng.bool());
                "cut destination".into()
            }
            10 => {
                w.up.up = true;
                w.down.up = true;
                "both reachable".into()
            }
            11 => {
                let until = w.wall() + rng.u64(0..20_000_000);
                let upstream = rng.bool();
                let broker = if upstream { &mut w.up } else { &mut w.down };
                broker.core.starting_until(until);
                w.cut(upstream, true);
                format!("restart, starting until {until}, upstream {upstream}")
            }
            12 => {
                let partition = rng.u32(0..partitions);
                let lost = rng.u64(1..30);
                // A crash also ends what was still on its way in.
                w.forget_late();
                w.down.core.log("orders", "events", partition).unwrap().lose_tail(lost);
                w.cut(false, true);
                format!("destination lost {lost} of {partition}")
            }
            13 if rng.bool() => {
                w.save_takes = [1, 50, 700, 5000][rng.usize(0..4)];
                format!("a save takes {} ms", w.save_takes)
            }
            13 => {
                let eio = SaveError::Io { step: "rename", path: "x".into(), why: "EIO".into() };
                w.save_errors = vec![eio; rng.usize(1..3)];
                "saves fail".into()
            }
            14 => {
                w.kill();
                w.run(Duration::from_millis(rng.u64(0..3000)));
                w.start(partitions);
                "kill".into()
            }
            15 => {
                w.drain();
                w.run(Duration::from_millis(rng.u64(0..3000)));
                w.kill();
                w.start(partitions);
                "drain and restart".into()
            }
            16 => {
                let fault = Fault::Slow(Duration::from_millis(rng.u64(1..3000)));
                let upstream = rng.bool();
                let core = if upstream { &mut w.up.core } else { &mut w.down.core };
                core.faults().clear_all();
                core.faults().set(fault, scope(rng, Op::Poll, partitions), Times::Next(60));
                format!("polls: {fault:?}, upstream {upstream}")
            }
            17 => {
                let paused = rng.bool();
                w.tell(FromControl::Pause { source: "test".into(), paused });
                format!("paused: {paused}")
            }
            18 => short_pause(rng, w, &mut self.written),
            _ => "wait".into(),
        };
        self.told.push(format!("{} ms: {told}", w.now));
        let pause = match self.rng.u32(0..4) {
            0 => self.rng.u64(0..5),
            1 => self.rng.u64(0..100),
            2 => self.rng.u64(0..2000),
            _ => self.rng.u64(0..20_000),
        };
        w.run(Duration::from_millis(pause));
    }
}

/// A pause that may end before the sends under way are answered, with more behind them.
fn short_pause(rng: &mut fastrand::Rng, w: &mut World, written: &mut [u64]) -> String {
    let slow = Fault::Slow(Duration::from_millis(rng.u64(1..200)));
    w.down.core.faults().clear_all();
    w.down.core.faults().set(slow, Scope::sends(), Times::Next(8));
    for _ in 0..rng.u32(1..4) {
        let partition = rng.usize(0..written.len());
        let count = rng.u64(1..20);
        w.write(true, u32::try_from(partition).unwrap(), written[partition], count);
        written[partition] += count;
        w.run(Duration::from_millis(rng.u64(0..60)));
    }
    let pause = |paused| FromControl::Pause { source: "test".into(), paused };
    w.tell(pause(true));
    w.run(Duration::from_millis(rng.u64(0..100)));
    w.tell(pause(false));
    format!("short pause, destination: {slow:?}")
}

/// Something that happens to the nodes of the destination.
fn node_event(rng: &mut fastrand::Rng, w: &mut World) -> String {
    let node = rng.usize(0..NODES);
    match rng.u32(0..6) {
        0 | 1 => {
            w.down.core.nodes().set_primary(Some(node));
            format!("node {node} leads")
        }
        2 => {
            let lag = rng.u64(0..40);
            w.down.core.nodes().set_lag(node, lag);
            format!("node {node} lags by {lag}")
        }
        3 => {
            let up = rng.bool();
            w.reach_node(node, up);
            format!("node {node} reachable: {up}")
        }
        4 => {
            let known = rng.bool();
            w.down.core.nodes().set_routes(known);
            format!("routes known: {known}")
        }
        _ => {
            let named = rng.bool().then(|| rng.usize(0..NODES));
            w.down.core.nodes().set_named(node, named);
            format!("node {node} names {named:?}")
        }
    }
}

/// A destination of several nodes, of which the plan names some.
fn cluster_world(seed: u64) -> World {
    let named: [&[usize]; 4] = [&[0], &[0, 1, 2], &[1, 2], &[2, 0, 1]];
    let plan = plan_to(named[usize::try_from(seed % 4).unwrap()]);
    let mut w = World::new(MirrorPlan { state_interval: Duration::from_millis(500), ..plan });
    w.cluster(NODES);
    w.create(true, "orders", "events", FEW);
    w.create(false, "orders", "events", FEW);
    w.down.core.nodes().set_routes(seed.is_multiple_of(3));
    w
}

/// Returns how many waited for the reserve at most.
fn live(seed: u64, nodes: bool) -> usize {
    let many = !nodes && seed % MANY_EVERY == MANY_EVERY - 1;
    let partitions = if many { MANY } else { FEW };
    let plan = MirrorPlan { state_interval: Duration::from_millis(500), ..plan() };
    let mut w = if nodes { cluster_world(seed) } else { world_with(plan, partitions) };
    let rng = fastrand::Rng::with_seed(seed);
    let mut story = Story { rng, nodes, written: vec![0; partitions as usize], told: Vec::new() };
    w.latency = [1, 0, 1, 40][usize::try_from(seed / 3 % 4).unwrap()];
    w.start(partitions);
    for _ in 0..story.rng.u32(5..60) {
        story.step(&mut w);
    }
    w.up.core.faults().clear_all();
    w.down.core.faults().clear_all();
    (w.up.up, w.down.up) = (true, true);
    w.tell(FromControl::Pause { source: "test".into(), paused: false });
    w.up.core.starting_until(0);
    w.down.core.starting_until(0);
    if nodes {
        // Followers go on lagging.
        for node in 0..NODES {
            w.reach_node(node, true);
            w.down.core.nodes().set_named(node, None);
        }
    }
    let end = w.now + 600_000;
    let done = |w: &World| {
        w.feeds().iter().all(|feed| {
            let written = story.written[feed.partition as usize];
            feed.position == written && feed.condition.status == Status::Running
        })
    };
    while !done(&w) && w.now < end {
        w.run(Duration::from_millis(500));
    }
    assert!(done(&w), "seed {seed}: not copied\n{:#?}\n{}", w.feeds(), story.told.join("\n"));
    for partition in 0..partitions {
        let text = |side: Vec<(u64, String)>| side.into_iter().map(|m| m.1).collect::<Vec<_>>();
        let (up, down) = (text(w.read(true, partition)), text(w.read(false, partition)));
        assert!(
            up == down,
            "seed {seed}: partition {partition} differs, {} and {} messages\n{}\n{:#?}",
            up.len(),
            down.len(),
            story.told.join("\n"),
            w.feed(partition)
        );
    }
    for _ in 0..100 {
        if w.reserve() == (0, 0) {
            return w.most_waiting;
        }
        w.run(Duration::from_millis(1));
    }
    panic!("seed {seed}: {:?} stays lent\n{}", w.reserve(), story.told.join("\n"));
}

fn live_all(most: u64, nodes: bool) {
    if let Ok(seed) = std::env::var("TIDEGATE_SEED") {
        live(seed.parse().expect("a number"), nodes);
        return;
    }
    let seeds: u64 =
        std::env::var("TIDEGATE_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(most);
    let waited = (0..seeds).map(|seed| live(seed, nodes)).filter(|waiting| *waiting > 0).count();
    let least = if nodes { 0 } else { seeds / (2 * MANY_EVERY) };
    assert!(waited as u64 >= least, "feeds waited in {waited} of {seeds} histories");
}

#[test]
fn random_histories_end_in_equal_logs() {
    live_all(400, false);
}

#[test]
fn random_histories_of_a_cluster_end_in_equal_logs() {
    live_all(200, true);
}
