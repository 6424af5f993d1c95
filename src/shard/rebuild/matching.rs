//! Where in the upstream log the destination's last messages stand.
//!
//! ```text
//! destination  … e f g h│              the tail: its last messages, up to 16
//! upstream     a b c d e f g h i j …   one place: the tail ends at `h`
//! upstream           │g h i j …        the log begins inside the tail: two are compared
//! ```
//!
//! Upstream goes by once, message by message; kept are one number per message of the tail and at
//! most two places. A message equal to the tail's last is a place if all messages before it in
//! the tail match too, except those whose counterparts upstream no longer has: they would lie
//! below the log's beginning, or in a hole of the log.

use crate::batch::Fingerprint;

/// Where the tail's last message stands upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Upstream offset of that message.
    pub offset: u64,
    /// Upstream offset of the earliest message that is known to have the same distance.
    pub from: u64,
    /// Messages that are equal on both sides.
    pub compared: u64,
}

/// The longest piece of the tail that upstream has somewhere; of its end, if there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// Index in the tail of its last message.
    pub index: usize,
    /// Upstream offset of that message.
    pub offset: u64,
    /// Messages that are equal.
    pub len: u64,
}

impl Stretch {
    /// What the destination ends with says more than what is in the middle of the tail.
    fn rank(&self, all: u64) -> (bool, u64, usize) {
        (self.index as u64 + 1 == all, self.len, self.index)
    }
}

/// Compares the tail with a log that goes by.
#[derive(Debug)]
pub struct Matcher {
    tail: Vec<Fingerprint>,
    /// For every message of the tail: how many up to it equal the last ones that went by.
    runs: Vec<u64>,
    /// Messages that went by since the log's beginning or its last hole.
    unbroken: u64,
    /// Offsets missing before those.
    missing: u64,
    places: Vec<Place>,
    nearest: Option<Stretch>,
}

impl Matcher {
    /// A matcher of `tail`, oldest message first.
    pub fn new(tail: Vec<Fingerprint>) -> Matcher {
        let runs = vec![0; tail.len()];
        let (places, nearest) = (Vec::new(), None);
        Matcher { tail, runs, unbroken: 0, missing: u64::MAX, places, nearest }
    }

    /// The offsets that come next are missing upstream.
    pub fn hole(&mut self, missing: u64) {
        self.unbroken = 0;
        self.missing = missing;
    }

    /// The next message of the log.
    pub fn message(&mut self, offset: u64, seen: &Fingerprint) {
        self.unbroken += 1;
        let (all, mut before) = (self.tail.len() as u64, 0);
        for (index, (wanted, run)) in self.tail.iter().zip(&mut self.runs).enumerate() {
            let len = if wanted == seen { before + 1 } else { 0 };
            before = std::mem::replace(run, len);
            let stretch = Stretch { index, offset, len };
            if len > 0 && self.nearest.is_none_or(|kept| stretch.rank(all) > kept.rank(all)) {
                self.nearest = Some(stretch);
            }
        }
        let run = self.runs.last().copied().unwrap_or(0);
        let is_rest_missing = run >= self.unbroken && self.missing >= all - self.unbroken;
        if run > 0 && (run == all || is_rest_missing) && self.places.len() < 2 {
            let unbroken = run.min(self.unbroken);
            let compared = if run == all { all } else { unbroken };
            self.places.push(Place { offset, from: offset + 1 - unbroken, compared });
        }
    }

    /// The places so far, at most two: a second one settles that the tail's place is not known.
    pub fn places(&self) -> &[Place] {
        &self.places
    }

    /// What comes nearest when there is no place.
    pub fn nearest(&self) -> Option<Stretch> {
        self.nearest
    }

    /// Messages of the tail.
    pub fn tail(&self) -> &[Fingerprint] {
        &self.tail
    }
}
