//! Faults to set before a daemon starts, chosen at random.

use std::fmt;
use std::time::Duration;

use fastrand::Rng;
use tidegate::batch::TopicName;
use tidegate::loopback::{Control, EvictionReason, Fault, Scope, Times};

use super::support::Loopbacks;

/// A late append is over well before `settle` is, whatever the machine is busy with.
const LATE_AT_MOST_MS: u64 = 60;

/// A few faults on both sides.
pub struct Mischief(Vec<Rule>);

struct Rule {
    upstream: bool,
    fault: Fault,
    scope: Scope,
    times: u32,
}

impl Mischief {
    /// None to three faults, each for one to three requests.
    pub fn choose(rng: &mut Rng, topic: &TopicName, partitions: u32) -> Mischief {
        let count = rng.usize(..4);
        Mischief((0..count).map(|_| Rule::choose(rng, topic, partitions)).collect())
    }

    /// Whether a send may be appended after its connection is gone.
    pub fn appends_late(&self) -> bool {
        self.0.iter().any(|rule| matches!(rule.fault, Fault::LateAppend { .. }))
    }

    /// Sets them.
    pub fn set(&self, brokers: &Loopbacks) {
        for rule in &self.0 {
            let broker = if rule.upstream { &brokers.up } else { &brokers.down };
            broker.fault(rule.fault, rule.scope.clone(), Times::Next(rule.times));
        }
    }
}

impl fmt::Display for Mischief {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            f.write_str("no faults")?;
        }
        for (nth, rule) in self.0.iter().enumerate() {
            let comma = if nth > 0 { ", " } else { "" };
            let side = if rule.upstream { "upstream" } else { "destination" };
            write!(f, "{comma}{} x {:?} on {side} {:?}", rule.times, rule.fault, rule.scope.op)?;
        }
        Ok(())
    }
}

impl Rule {
    fn choose(rng: &mut Rng, topic: &TopicName, partitions: u32) -> Rule {
        let at = |scope: Scope, rng: &mut Rng| match rng.bool() {
            true => scope.topic(&topic.stream, &topic.topic).partition(rng.u32(..partitions)),
            false => scope.topic(&topic.stream, &topic.topic),
        };
        let (upstream, fault, scope) = match rng.u8(..8) {
            0..3 => (true, poll_fault(rng), at(Scope::polls(), rng)),
            3..6 => (false, send_fault(rng), at(Scope::sends(), rng)),
            6 => (rng.bool(), any_fault(rng), Scope::others()),
            _ => (rng.bool(), any_fault(rng), Scope::logins()),
        };
        Rule { upstream, fault, scope, times: rng.u32(1..=3) }
    }
}

/// Leaves a send without its ack: appended or not, the daemon cannot know.
pub fn withhold_ack(rng: &mut Rng, broker: &Control) {
    let fault = match rng.u8(..6) {
        0 => Fault::HoldReply,
        1 => Fault::DropReply,
        2 => Fault::DropRequest,
        3 => Fault::Slow(Duration::from_secs(20)),
        4 => Fault::SlowReply { piece: 1, every: Duration::from_millis(100) },
        _ => late_append(rng),
    };
    // Partitions may differ in what became of their last send.
    let times = if rng.bool() { Times::UntilCleared } else { Times::Next(1) };
    broker.fault(fault, Scope::sends(), times);
    broker.fault(Fault::HoldReply, Scope::sends(), Times::UntilCleared);
}

fn late_append(rng: &mut Rng) -> Fault {
    Fault::LateAppend { after: Duration::from_millis(rng.u64(1..LATE_AT_MOST_MS)) }
}

fn any_fault(rng: &mut Rng) -> Fault {
    match rng.u8(..9) {
        0 => Fault::DropRequest,
        1 => Fault::DropReply,
        2 => Fault::Reject { code: 58, applied: false },
        3 => Fault::Reject { code: 57, applied: rng.bool() },
        4 => Fault::Evict(EvictionReason::SessionError),
        5 => Fault::StrayReply,
        6 => Fault::Slow(Duration::from_millis(rng.u64(1..300))),
        7 => Fault::SlowReply { piece: rng.usize(1..100), every: Duration::from_millis(1) },
        _ => Fault::CutMidFrame { after: rng.usize(..300) },
    }
}

fn poll_fault(rng: &mut Rng) -> Fault {
    match rng.u8(..6) {
        0 => Fault::WrongRange { from: rng.u64(..5_000) },
        1 => Fault::CorruptRecord { offset: rng.u64(..5_000) },
        2 => Fault::CorruptChecksum,
        _ => any_fault(rng),
    }
}

fn send_fault(rng: &mut Rng) -> Fault {
    match rng.u8(..5) {
        0 => late_append(rng),
        1 => Fault::EmptyConfirmation,
        _ => any_fault(rng),
    }
}
