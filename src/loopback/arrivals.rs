//! How many messages were acked, when the last one was, and for whoever asks, the way of each:
//! from its origin timestamp to the moment its ack was written. For benchmarks.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::outbox::lock;

/// Messages remembered one by one; later ones are only counted.
const MOST: usize = 1 << 20;

/// One acked message. Both times are microseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// When it came into being, as its sender says.
    pub origin: u64,
    /// When its ack had been written.
    pub acked: u64,
}

/// Messages acked so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Acked {
    /// How many.
    pub messages: u64,
    /// In how many sends.
    pub sends: u64,
    /// When the last ack had been written, microseconds since the Unix epoch; 0 for never.
    pub last: u64,
}

/// What all connections share.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    messages: AtomicU64,
    sends: AtomicU64,
    last: AtomicU64,
    watching: AtomicBool,
    seen: Mutex<Vec<Arrival>>,
}

impl Arrivals {
    /// Remembers every message from now on, or none.
    pub(super) fn watch(&self, on: bool) {
        self.watching.store(on, Ordering::Release);
    }

    pub(super) fn is_watching(&self) -> bool {
        self.watching.load(Ordering::Acquire)
    }

    /// The ack of so many messages was written at `now`; `origins`, if they are being watched.
    pub(super) fn acked(&self, count: u32, origins: &[u64], now: u64) {
        if !origins.is_empty() {
            let mut seen = lock(&self.seen);
            let room = MOST.saturating_sub(seen.len());
            let new = origins.iter().take(room).map(|&origin| Arrival { origin, acked: now });
            seen.extend(new);
        }
        // The count last: whoever sees it sees the rest.
        self.last.fetch_max(now, Ordering::AcqRel);
        self.sends.fetch_add(1, Ordering::AcqRel);
        self.messages.fetch_add(u64::from(count), Ordering::AcqRel);
    }

    pub(super) fn so_far(&self) -> Acked {
        let messages = self.messages.load(Ordering::Acquire);
        let sends = self.sends.load(Ordering::Acquire);
        Acked { messages, sends, last: self.last.load(Ordering::Acquire) }
    }

    pub(super) fn take(&self) -> Vec<Arrival> {
        std::mem::take(&mut *lock(&self.seen))
    }
}
