//! What an outlet shows: destinations, counters, troubles, notices.

use std::sync::Arc;
use std::time::Duration;

use super::Outlet;
use crate::batch::TopicName;
use crate::fanout::admission::Reason;
use crate::fanout::destinations::{DestId, Destination, DestinationCounters, Standing};
use crate::fanout::route::RouteCounters;
use crate::time::Millis;

/// One destination at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DestinationSnapshot {
    /// Its name.
    pub topic: TopicName,
    /// Partitions, once known.
    pub partitions: Option<u32>,
    /// `ready`, `preparing` until its topic was seen, or why its messages are held or would be.
    pub state: &'static str,
    /// `closed`, `open` or `half_open`.
    pub breaker: &'static str,
    /// Failures in a row.
    pub failures: u32,
    /// Times the breaker opened.
    pub trips: u64,
    /// Groups that wait or are on their way.
    pub held_groups: u64,
    /// Bytes of them.
    pub held_bytes: u64,
    /// What was done.
    pub counters: DestinationCounters,
    /// Latest error in words.
    pub last_error: Option<Arc<str>>,
    /// Why its acks are no promise (A9).
    pub not_durable: Option<String>,
}

/// Sums for metrics (T1).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutletCounters {
    /// Messages acked.
    pub routed: u64,
    /// Live destinations.
    pub destinations: u32,
    /// Destinations whose breaker is not closed.
    pub circuits_open: u32,
    /// Messages by what became of them instead.
    pub rejected: RouteCounters,
    /// How long making topics took.
    pub created: Latency,
    /// Offsets given out again.
    pub lost_tails: u64,
}

/// A histogram of durations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Latency {
    /// How many were at most as long as the bound of the same place; the last has no bound.
    pub counts: [u64; Latency::BOUNDS_MS.len() + 1],
    /// All of them.
    pub sum: Duration,
}

impl Latency {
    /// Upper bounds, milliseconds.
    pub const BOUNDS_MS: [u64; 9] = [5, 10, 25, 50, 100, 250, 1_000, 5_000, 30_000];

    pub(super) fn add(&mut self, took: Duration) {
        let fits = |bound: &u64| took <= Duration::from_millis(*bound);
        let place = Latency::BOUNDS_MS.iter().position(fits);
        self.counts[place.unwrap_or(Latency::BOUNDS_MS.len())] += 1;
        self.sum += took;
    }
}

/// Something that keeps messages from their destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// Machine-readable: a [`Reason`], or `no_destination`, `waiting_destination`, `not_durable`,
    /// `destination_lost_tail`.
    pub reason: &'static str,
    /// Which destination; empty names for messages that have none.
    pub topic: TopicName,
    /// What was seen.
    pub detail: String,
}

/// Something to tell once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// As it should be.
    Done(String),
    /// To be known; no error.
    Remark(String),
    /// To be looked at.
    Unusual(String),
}

impl Outlet {
    /// Every destination.
    pub fn destinations(&self) -> Vec<DestinationSnapshot> {
        self.table.all().map(|(dest, record)| self.shown(dest, record)).collect()
    }

    /// Sums.
    pub fn counters(&self) -> OutletCounters {
        let open = self.table.all().filter(|(_, record)| record.breaker.is_open()).count();
        OutletCounters {
            routed: self.routed,
            destinations: self.table.live(),
            circuits_open: u32::try_from(open).unwrap_or(u32::MAX),
            rejected: *self.router.counters(),
            created: self.created.clone(),
            lost_tails: self.table.all().map(|(_, record)| record.counters.lost_tails).sum(),
        }
    }

    /// What keeps messages from their destinations, the destination of the oldest first. A lost
    /// tail is shown for `degraded_after`.
    pub fn troubles(&self, now: Millis) -> Vec<Trouble> {
        let pinned = self.lanes.pinned_by();
        let mut found: Vec<(bool, Trouble)> = Vec::new();
        for (dest, record) in self.table.all() {
            let recent = self.plan.degraded_after;
            let lost = self.lost_tails.get(&dest).is_some_and(|at| now.since(*at) < recent);
            let reason = if lost { Some("destination_lost_tail") } else { self.hold(dest, record) };
            let Some(reason) = reason else { continue };
            let detail = record.last_error.as_deref().unwrap_or_default().to_owned();
            let trouble = Trouble { reason, topic: record.topic.clone(), detail };
            found.push((pinned != Some(dest), trouble));
        }
        found.sort_by_key(|(later, _)| *later);
        found.into_iter().map(|(_, trouble)| trouble).collect()
    }

    /// The destination that the oldest incomplete batch waits for.
    pub fn pinned_by(&self) -> Option<&TopicName> {
        self.lanes.pinned_by().map(|dest| &self.table.at(dest).topic)
    }

    /// What happened since the last call.
    pub fn take_notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices)
    }

    fn shown(&self, dest: DestId, record: &Destination) -> DestinationSnapshot {
        let (held_groups, held_bytes) = self.lanes.held_for(dest);
        let usual = match record.standing {
            Standing::Refused(reason) => reason.as_str(),
            Standing::Nowhere => "no_destination",
            Standing::Live if record.facts.is_some() => "ready",
            Standing::Live => "preparing",
        };
        DestinationSnapshot {
            topic: record.topic.clone(),
            partitions: record.partitions(),
            state: self.hold(dest, record).unwrap_or(usual),
            breaker: record.breaker.as_str(),
            failures: record.breaker.failures(),
            trips: record.breaker.trips(),
            held_groups,
            held_bytes,
            counters: record.counters,
            last_error: record.last_error.clone(),
            not_durable: record.facts.as_ref().and_then(|facts| facts.not_durable.clone()),
        }
    }

    /// Why messages of this destination do not move, if there are any.
    fn hold(&self, dest: DestId, record: &Destination) -> Option<&'static str> {
        let waits = self.lanes.waits_for(dest);
        match record.standing {
            Standing::Refused(reason) => waits.then_some(reason.as_str()),
            Standing::Nowhere => waits.then_some("no_destination"),
            Standing::Live if record.breaker.is_open() => Some(Reason::CircuitOpen.as_str()),
            Standing::Live => {
                if let Some(reason) = self.lanes.stuck(&self.table, dest) {
                    return Some(reason.as_str());
                }
                if record.is_volatile {
                    return waits.then_some("not_durable");
                }
                let failing = record.facts.is_none() && record.last_error.is_some();
                (waits && failing).then_some("waiting_destination")
            }
        }
    }
}
