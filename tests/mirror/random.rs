//! Random histories: writers, faults by name, cuts, kills and lost tails in any order; at the
//! end everything heals and the oracle asks for equal logs. `TIDEGATE_SEED=n` replays one.

use std::time::Duration;

use tidegate::config::MirrorPlan;
use tidegate::loopback::faults::Op;
use tidegate::loopback::{Fault, Scope, Times};
use tidegate::shard::event::SaveError;
use tidegate::shard::snapshot::Status;

use super::{plan, world_with};
use crate::world::World;

const PARTITIONS: u32 = 3;

struct Story {
    rng: fastrand::Rng,
    written: [u64; PARTITIONS as usize],
    told: Vec<String>,
}

fn scope(rng: &mut fastrand::Rng, op: Op) -> Scope {
    let any = Scope { op, ..Scope::any() };
    if rng.bool() { any.partition(rng.u32(0..PARTITIONS)) } else { any }
}

impl Story {
    fn step(&mut self, w: &mut World) {
        let rng = &mut self.rng;
        let pick = rng.u32(0..18);
        let told = match pick {
            0..=5 => {
                let partition = rng.u32(0..PARTITIONS);
                let from = self.written[partition as usize];
                let count = rng.u64(1..60);
                w.write(true, partition, from, count);
                self.written[partition as usize] += count;
                format!("write {count} to {partition}")
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
                w.down.core.faults().set(fault, scope(rng, Op::Send), Times::Next(rng.u32(1..3)));
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
                w.up.core.faults().set(fault, scope(rng, Op::Poll), Times::Next(1));
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
                let partition = rng.u32(0..PARTITIONS);
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
                w.start(PARTITIONS);
                "kill".into()
            }
            15 => {
                w.drain();
                w.run(Duration::from_millis(rng.u64(0..3000)));
                w.kill();
                w.start(PARTITIONS);
                "drain and restart".into()
            }
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

fn live(seed: u64) {
    let plan = MirrorPlan { state_interval: Duration::from_millis(500), ..plan() };
    let mut w = world_with(plan, PARTITIONS);
    let mut story =
        Story { rng: fastrand::Rng::with_seed(seed), written: [0; 3], told: Vec::new() };
    w.start(PARTITIONS);
    for _ in 0..story.rng.u32(5..60) {
        story.step(&mut w);
    }
    w.up.core.faults().clear_all();
    w.down.core.faults().clear_all();
    (w.up.up, w.down.up) = (true, true);
    w.up.core.starting_until(0);
    w.down.core.starting_until(0);
    let end = w.now + 600_000;
    let done = |w: &World| {
        (0..PARTITIONS).all(|p| {
            let feed = w.feed(p);
            feed.position == story.written[p as usize] && feed.condition.status == Status::Running
        })
    };
    while !done(&w) && w.now < end {
        w.run(Duration::from_millis(500));
    }
    assert!(done(&w), "seed {seed}: not copied\n{:#?}\n{}", w.feeds(), story.told.join("\n"));
    for partition in 0..PARTITIONS {
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
}

#[test]
fn random_histories_end_in_equal_logs() {
    if let Ok(seed) = std::env::var("TIDEGATE_SEED") {
        return live(seed.parse().expect("a number"));
    }
    let seeds: u64 =
        std::env::var("TIDEGATE_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(400);
    for seed in 0..seeds {
        live(seed);
    }
}
