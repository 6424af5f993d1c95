//! The oracle: is one partition's copy the same messages, once each, in the same order, at
//! offsets that keep their distance?
//!
//! It looks at both logs and at nothing else, so no belief of the mirror enters the verdict. Equal
//! messages (the same id, origin time, payload and user headers) are told apart by how many came
//! before. The least explanation counts: a message is displaced only if it is outside the longest
//! run that kept its order, so one message moved far is one displaced message.

use std::collections::HashMap;
use std::fmt;

use twox_hash::XxHash3_128;

/// One message of a log, by offset and by everything that has to arrive unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Absolute offset.
    pub offset: u64,
    /// Hash of id, origin timestamp, lengths, payload and user headers.
    pub identity: u128,
}

/// What two logs of one partition, or of several added up, differ in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Messages upstream.
    pub messages: u64,
    /// Upstream, but not downstream.
    pub lost: u64,
    /// Downstream more often than upstream.
    pub duplicates: u64,
    /// On both sides, but not in upstream's order.
    pub reordered: u64,
    /// Downstream only: altered on the way, or written by somebody else.
    pub foreign: u64,
    /// Places where the distance between the offsets of both sides changes.
    pub steps: u64,
    /// Where the logs first differ, in words.
    pub first_difference: Option<String>,
}

impl Seen {
    /// A message as the oracle sees it.
    pub fn new(
        offset: u64,
        id: u128,
        origin_timestamp: u64,
        payload: &[u8],
        user_headers: &[u8],
    ) -> Seen {
        let mut hash = XxHash3_128::new();
        hash.write(&id.to_le_bytes());
        hash.write(&origin_timestamp.to_le_bytes());
        // Without the length, bytes could move between payload and headers unseen.
        hash.write(&(payload.len() as u64).to_le_bytes());
        hash.write(payload);
        hash.write(user_headers);
        Seen { offset, identity: hash.finish_128() }
    }
}

impl Report {
    /// Every message once, in order, nothing else, at a constant distance.
    pub fn is_exact(&self) -> bool {
        self.lost == 0
            && self.duplicates == 0
            && self.reordered == 0
            && self.foreign == 0
            && self.steps == 0
    }

    /// Adds another partition's report.
    pub fn add(&mut self, other: Report) {
        self.messages += other.messages;
        self.lost += other.lost;
        self.duplicates += other.duplicates;
        self.reordered += other.reordered;
        self.foreign += other.foreign;
        self.steps += other.steps;
        if self.first_difference.is_none() {
            self.first_difference = other.first_difference;
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { messages, lost, duplicates, reordered, foreign, steps, .. } = self;
        write!(
            f,
            "{messages} messages: {lost} lost, {duplicates} duplicated, {reordered} reordered, \
             {foreign} altered or foreign, {steps} changes of the offset distance"
        )?;
        match &self.first_difference {
            Some(difference) => write!(f, "; first {difference}"),
            None => Ok(()),
        }
    }
}

/// Compares the whole log of a partition upstream with the whole log of its copy.
pub fn compare(upstream: &[Seen], downstream: &[Seen]) -> Report {
    let mut report = Report { messages: upstream.len() as u64, ..Report::default() };
    let same = upstream.len() == downstream.len()
        && upstream.iter().zip(downstream).all(|(up, down)| up.identity == down.identity);
    let matched: Vec<(usize, usize)> = if same {
        (0..upstream.len()).map(|at| (at, at)).collect()
    } else {
        report.first_difference = Some(first_difference(upstream, downstream));
        match_up(upstream, downstream, &mut report)
    };
    report.reordered = matched.len() as u64 - longest_rising_run(matched.iter().map(|m| m.0));
    let distance = |&(up, down): &(usize, usize)| {
        let (up, down) = (upstream[up].offset, downstream[down].offset);
        i128::from(down) - i128::from(up)
    };
    for pair in matched.windows(2) {
        if distance(&pair[0]) != distance(&pair[1]) {
            report.steps += 1;
            report.first_difference.get_or_insert_with(|| {
                let (before, after) = (distance(&pair[0]), distance(&pair[1]));
                let offset = downstream[pair[1].1].offset;
                format!("distance {before} becomes {after} at destination offset {offset}")
            });
        }
    }
    report
}

/// Pairs the n-th of equal messages with the n-th on the other side, and counts what has no
/// partner. Pairs come in downstream order as (upstream index, downstream index).
fn match_up(upstream: &[Seen], downstream: &[Seen], report: &mut Report) -> Vec<(usize, usize)> {
    let mut places: HashMap<u128, (Vec<usize>, usize)> = HashMap::new();
    for (at, message) in upstream.iter().enumerate() {
        places.entry(message.identity).or_default().0.push(at);
    }
    let mut matched = Vec::with_capacity(downstream.len());
    for (at, message) in downstream.iter().enumerate() {
        match places.get_mut(&message.identity) {
            None => report.foreign += 1,
            Some((found, used)) => match found.get(*used) {
                None => report.duplicates += 1,
                Some(&place) => {
                    *used += 1;
                    matched.push((place, at));
                }
            },
        }
    }
    report.lost = (upstream.len() - matched.len()) as u64;
    matched
}

fn first_difference(upstream: &[Seen], downstream: &[Seen]) -> String {
    let at = upstream.iter().zip(downstream).position(|(up, down)| up.identity != down.identity);
    let at = at.unwrap_or(upstream.len().min(downstream.len()));
    let named = |log: &[Seen]| match log.get(at) {
        Some(message) => format!("offset {}", message.offset),
        None => format!("the end behind {} messages", log.len()),
    };
    format!("difference: upstream {}, destination {}", named(upstream), named(downstream))
}

/// Length of the longest strictly rising subsequence.
fn longest_rising_run(places: impl Iterator<Item = usize>) -> u64 {
    // `lowest_ends[n]`: the lowest value that a rising run of n + 1 values can end with.
    let mut lowest_ends: Vec<usize> = Vec::new();
    for place in places {
        let slot = match lowest_ends.last() {
            Some(last) if *last < place => lowest_ends.len(),
            _ => lowest_ends.partition_point(|end| *end < place),
        };
        match lowest_ends.get_mut(slot) {
            Some(end) => *end = place,
            None => lowest_ends.push(place),
        }
    }
    lowest_ends.len() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A log from offset `from` on; equal letters are equal messages.
    fn log(from: u64, letters: &str) -> Vec<Seen> {
        let seen = |(offset, letter): (u64, char)| Seen {
            offset,
            identity: u128::from(u32::from(letter)),
        };
        (from..).zip(letters.chars()).map(seen).collect()
    }

    fn counts(up: &str, down: &str) -> [u64; 5] {
        let Report { lost, duplicates, reordered, foreign, steps, .. } =
            compare(&log(0, up), &log(0, down));
        [lost, duplicates, reordered, foreign, steps]
    }

    #[test]
    fn equal_logs_are_exact_at_any_constant_distance() {
        for from in [0, 7, 1 << 40] {
            let report = compare(&log(3, "abcabc"), &log(from, "abcabc"));
            assert!(report.is_exact(), "{report}");
            assert_eq!((report.messages, report.first_difference), (6, None));
        }
        assert!(compare(&[], &[]).is_exact());
    }

    #[test]
    fn every_kind_of_damage_is_counted_as_what_it_is() {
        let [lost, duplicated, reordered, foreign] = [0, 1, 2, 3];
        for (up, down, kind, count) in [
            ("abcdef", "abcdf", lost, 1),
            ("abcdef", "", lost, 6),
            ("aaaa", "aaa", lost, 1),
            ("abcdef", "abcbcdef", duplicated, 2),
            ("abcdef", "abcdeff", duplicated, 1),
            ("abcdef", "bacdef", reordered, 1),
            ("abcdef", "fabcde", reordered, 1),
            ("abcdef", "defabc", reordered, 3),
            ("abcdef", "abcXdef", foreign, 1),
        ] {
            let mut expected = [0; 4];
            expected[kind] = count;
            assert_eq!(counts(up, down)[..4], expected, "{up} {down}");
        }
    }

    #[test]
    fn an_altered_message_is_lost_and_foreign() {
        assert_eq!(counts("abc", "aXc"), [1, 0, 0, 1, 0]);
    }

    #[test]
    fn a_hole_in_the_offsets_is_seen_although_no_message_is_missing() {
        let mut down = log(0, "abcd");
        down[2].offset += 5;
        down[3].offset += 5;
        let report = compare(&log(0, "abcd"), &down);
        assert_eq!((report.steps, report.is_exact()), (1, false));
        let words = report.first_difference.expect("a difference");
        assert_eq!(words, "distance 0 becomes 5 at destination offset 7");
    }

    #[test]
    fn the_first_difference_is_named_by_offset() {
        let report = compare(&log(10, "abc"), &log(20, "abX"));
        let words = report.first_difference.expect("a difference");
        assert_eq!(words, "difference: upstream offset 12, destination offset 22");
        let report = compare(&log(10, "abc"), &log(20, "ab"));
        let words = report.first_difference.expect("a difference");
        assert!(words.ends_with("destination the end behind 2 messages"), "{words}");
    }

    #[test]
    fn each_part_of_a_message_is_part_of_its_identity() {
        let base = Seen::new(0, 1, 2, b"ab", b"cd");
        for other in [
            Seen::new(0, 2, 2, b"ab", b"cd"),
            Seen::new(0, 1, 3, b"ab", b"cd"),
            Seen::new(0, 1, 2, b"aX", b"cd"),
            Seen::new(0, 1, 2, b"ab", b"cX"),
            Seen::new(0, 1, 2, b"abc", b"d"),
        ] {
            assert_ne!(base.identity, other.identity);
        }
        assert_eq!(base.identity, Seen::new(9, 1, 2, b"ab", b"cd").identity);
    }
}
