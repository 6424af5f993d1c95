//! Reads a lost position back from the destination (M6, S2): a pure machine, polls out, replies
//! in.
//!
//! ```text
//! destination's end ─▶ its last messages ─▶ upstream's end ─▶ the whole upstream log ─▶ verdict
//!                  └───────── accept ─────────────▲ ends here: the operator names the place
//! ```
//!
//! [`matching`] finds the place in what goes by, [`entry`] makes the state of it. Memory is one
//! reply, the fingerprints of the tail, and nothing that grows with the log. A reply that cannot
//! be right (a log without the messages it counts, a jump) is asked for again on a new
//! connection; a jump that stays is a hole.

pub mod entry;
pub mod matching;

use self::matching::{Matcher, Place, Stretch};
use crate::batch::Fingerprint;
use crate::iggy_wire::{PollFrom, Polled, Record, RecordError, ServerError, Verify};
use crate::ingest::history::{end_of_empty_reply, fingerprint};
use crate::shard::event::Failure;
use crate::shard::pipeline::budget::LARGE_SLOT;

/// Messages of the destination that are looked for upstream.
pub const TAIL_MESSAGES: u64 = 16;
/// Fewest equal messages that decide by themselves: below, the operator has to say so.
pub const COMPARE_LEAST: u64 = 4;
/// Largest reply; a single message that is larger gets [`LARGEST_REPLY`].
const REPLY_LIMIT: u64 = 8 * 1024 * 1024;
/// Largest reply of all: one message.
pub const LARGEST_REPLY: u64 = LARGE_SLOT;
/// Bytes a poll of the upstream log aims at.
const POLL_BYTES: u64 = 2 * 1024 * 1024;
/// Most messages of one poll.
const POLL_MOST: u64 = 65_536;
/// Messages of the first poll, when their size is not known.
const POLL_FIRST: u64 = 64;
/// How often a question without a usable answer is repeated.
const TRIES: u32 = 8;

/// Which cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Where messages were copied from.
    Upstream,
    /// Where they were copied to.
    Destination,
}

/// A poll of the partition on one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Which side.
    pub side: Side,
    /// Where to start.
    pub from: PollFrom,
    /// How many messages.
    pub count: u32,
    /// Largest reply, bytes.
    pub limit: u64,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Ask this.
    Ask(Ask),
    /// Ask this after a moment, on a new connection.
    AskAgain(Ask),
    /// Finished.
    Done(Verdict),
}

/// What was found.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// The destination holds no message and never did.
    Empty,
    /// Its last messages stand at exactly one place upstream.
    Found {
        /// Where the destination ends.
        end: u64,
        /// The place.
        place: Place,
        /// Messages of the tail.
        tail: u64,
        /// The destination's last message.
        last: Fingerprint,
    },
    /// The operator's place; both logs were asked where they end.
    Accepted {
        /// Where the destination ends.
        end: u64,
        /// Next upstream offset to copy.
        position: u64,
    },
    /// No position follows from what both sides show.
    Refused(Refusal),
}

/// Why no position follows.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Refusal {
    /// No place.
    #[error(
        "the last {tail} messages of the destination, which ends at offset {end}, stand nowhere \
         in the upstream log, which begins at {first} and ends at {upstream_end}{}",
        near(.nearest, *.end, *.tail)
    )]
    Nowhere {
        /// Where the destination ends.
        end: u64,
        /// Messages compared.
        tail: u64,
        /// First upstream offset.
        first: u64,
        /// Where upstream ends.
        upstream_end: u64,
        /// What comes nearest.
        nearest: Option<Stretch>,
    },
    /// More than one place.
    #[error(
        "the destination, which ends at offset {end}, could belong to two places upstream: \
         behind offset {} ({} equal messages) and behind offset {} ({} equal messages)",
        .first.offset, .first.compared, .second.offset, .second.compared
    )]
    TwoPlaces {
        /// Where the destination ends.
        end: u64,
        /// The first place.
        first: Place,
        /// The next one; there may be more.
        second: Place,
    },
    /// One place, on too thin a ground.
    #[error(
        "only {} messages can be compared, at least {COMPARE_LEAST} decide; they put the \
         destination, which ends at offset {end}, behind upstream offset {}",
        .place.compared, .place.offset
    )]
    TooFew {
        /// Where the destination ends.
        end: u64,
        /// The place.
        place: Place,
    },
    /// The operator's place does not exist.
    #[error("upstream offset {position} lies behind the end of the upstream log, {upstream_end}")]
    BehindEnd {
        /// Named by the operator.
        position: u64,
        /// Where upstream ends.
        upstream_end: u64,
    },
    /// A side never gave a usable answer.
    #[error("{}: {why}", side_name(*.side))]
    NoAnswer {
        /// Which side.
        side: Side,
        /// The last answer.
        why: String,
    },
}

impl Refusal {
    /// What the operator can do.
    pub fn advice(&self) -> String {
        match self {
            Refusal::Nowhere { nearest: Some(near), .. } => format!(
                "compare both sides there; if the copy goes on behind upstream offset {}, say so \
                 with --accept-tail {}",
                near.offset,
                near.offset + 1
            ),
            Refusal::Nowhere { nearest: None, .. } => {
                "compare both sides and name the next upstream offset to copy with --accept-tail"
                    .to_owned()
            }
            Refusal::TwoPlaces { first, second, .. } => format!(
                "compare more of both sides, then name the right one: --accept-tail {} or \
                 --accept-tail {}",
                first.offset + 1,
                second.offset + 1
            ),
            Refusal::TooFew { place, .. } => {
                format!("if that is the place, say so with --accept-tail {}", place.offset + 1)
            }
            Refusal::BehindEnd { upstream_end, .. } => {
                format!("name an offset up to {upstream_end}")
            }
            Refusal::NoAnswer { .. } => {
                "wait until the server has started, or see its log; then run the same command \
                 again"
                    .to_owned()
            }
        }
    }
}

/// The search for the position of one partition.
#[derive(Debug)]
pub struct Search {
    stage: Stage,
    accept: Option<u64>,
    /// Messages each topic counts in the partition: an empty answer is then not believed.
    counted: Counted,
    end: u64,
    tail: Vec<(u64, Fingerprint)>,
    upstream_end: u64,
    matcher: Matcher,
    /// Next offset to read, on the side that is being read.
    cursor: u64,
    first: Option<u64>,
    count: u64,
    wide: bool,
    /// Where a reply jumped from and to.
    jump: Option<(u64, u64)>,
    tries: u32,
}

/// Messages that the topics' descriptions count in the partition.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counted {
    /// Upstream.
    pub upstream: u64,
    /// At the destination.
    pub destination: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    End,
    Tail,
    UpstreamEnd,
    Scan,
}

impl Search {
    /// A search; with `accept` the operator says which upstream offset comes next.
    pub fn new(accept: Option<u64>, counted: Counted) -> Search {
        Search {
            stage: Stage::End,
            accept,
            counted,
            end: 0,
            tail: Vec::new(),
            upstream_end: 0,
            matcher: Matcher::new(Vec::new()),
            cursor: 0,
            first: None,
            count: TAIL_MESSAGES,
            wide: false,
            jump: None,
            tries: 0,
        }
    }

    /// What to ask now.
    pub fn ask(&self) -> Ask {
        let side = self.side();
        let limit = if self.wide { LARGEST_REPLY } else { REPLY_LIMIT };
        let (from, count) = match self.stage {
            Stage::End | Stage::UpstreamEnd => (PollFrom::Last, 1),
            // A log that begins above 0 must say so by itself.
            Stage::Scan if self.cursor == 0 && self.jump.is_some() => (PollFrom::First, self.count),
            Stage::Tail | Stage::Scan => (PollFrom::Offset(self.cursor), self.count),
        };
        Ask { side, from, count: u32::try_from(count).unwrap_or(u32::MAX), limit }
    }

    /// How far the upstream log has been read, and to where it goes.
    pub fn progress(&self) -> Option<(u64, u64)> {
        (self.stage == Stage::Scan).then_some((self.cursor, self.upstream_end))
    }

    /// The answer to [`Search::ask`].
    pub fn polled(&mut self, polled: &Polled) -> Step {
        let records = match polled.scan(Verify::FramingOnly) {
            Ok(records) => records,
            Err(error) => return self.again(error.to_string()),
        };
        match self.stage {
            Stage::End => self.destination_end(polled, &records),
            Stage::Tail => self.destination_tail(&records),
            Stage::UpstreamEnd => self.upstream_end(polled, &records),
            Stage::Scan => self.scanned(polled, &records),
        }
    }

    /// There is no answer to [`Search::ask`].
    pub fn failed(&mut self, failure: &Failure) -> Step {
        if let Failure::TooLarge { size } = failure {
            if self.wide {
                let why = format!("a message of {size} bytes, at most {LARGEST_REPLY} can be read");
                return self.no_answer(why);
            }
            self.wide = self.ask().count == 1;
            self.count = (self.count / 4).max(1);
            return Step::AskAgain(self.ask());
        }
        self.again(match failure {
            Failure::Refused(code) => ServerError { code: *code }.to_string(),
            Failure::TimedOut => "no answer within request_timeout".to_owned(),
            Failure::Malformed(why) => format!("an answer that does not decode: {why}"),
            Failure::Lost | Failure::TooLarge { .. } => "the connection was lost".to_owned(),
        })
    }

    fn side(&self) -> Side {
        match self.stage {
            Stage::End | Stage::Tail => Side::Destination,
            Stage::UpstreamEnd | Stage::Scan => Side::Upstream,
        }
    }

    fn destination_end(&mut self, polled: &Polled, records: &[Record]) -> Step {
        self.end = end(polled, records);
        if self.end == 0 && self.counted.destination > 0 {
            let counted = self.counted.destination;
            return self.again(format!("no message in a partition that counts {counted}"));
        }
        if self.accept.is_some() {
            return self.enter(Stage::UpstreamEnd);
        }
        if self.end == 0 {
            return Step::Done(Verdict::Empty);
        }
        self.cursor = self.end.saturating_sub(TAIL_MESSAGES);
        self.enter(Stage::Tail)
    }

    /// The tail comes in one reply, or in several where messages are large. Its own retention may
    /// have left fewer.
    fn destination_tail(&mut self, records: &[Record]) -> Step {
        let before = self.tail.len();
        for message in records.iter().flat_map(Record::messages) {
            let is_next = message.offset == self.cursor || self.tail.is_empty();
            if message.offset >= self.cursor && message.offset < self.end && is_next {
                self.tail.push((message.offset, fingerprint(&message)));
                self.cursor = message.offset + 1;
            }
        }
        if self.tail.len() == before {
            let (from, end) = (self.cursor, self.end);
            return self.again(format!("no message from offset {from} on, the log ends at {end}"));
        }
        self.wide = false;
        if self.cursor < self.end {
            return self.next();
        }
        self.enter(Stage::UpstreamEnd)
    }

    fn upstream_end(&mut self, polled: &Polled, records: &[Record]) -> Step {
        self.upstream_end = end(polled, records);
        if self.upstream_end == 0 && self.counted.upstream > 0 {
            let counted = self.counted.upstream;
            return self.again(format!("no message in a partition that counts {counted}"));
        }
        let (end, upstream_end) = (self.end, self.upstream_end);
        match self.accept {
            Some(position) if position > upstream_end => {
                Step::Done(Verdict::Refused(Refusal::BehindEnd { position, upstream_end }))
            }
            Some(position) => Step::Done(Verdict::Accepted { end, position }),
            None => {
                let tail = self.tail.iter().map(|(_, fingerprint)| *fingerprint).collect();
                self.matcher = Matcher::new(tail);
                (self.cursor, self.count) = (0, POLL_FIRST);
                if upstream_end == 0 {
                    return self.verdict();
                }
                self.enter(Stage::Scan)
            }
        }
    }

    fn scanned(&mut self, polled: &Polled, records: &[Record]) -> Step {
        let before = self.cursor;
        for record in records {
            let first = record.first_offset();
            if first > self.cursor && !self.is_hole(first) {
                return self.again(format!("a jump from offset {} to {first}", self.cursor));
            }
            for message in record.messages() {
                if message.offset < self.cursor {
                    continue;
                }
                self.first.get_or_insert(message.offset);
                self.matcher.message(message.offset, &fingerprint(&message));
                self.cursor = message.offset + 1;
            }
        }
        if self.cursor == before {
            let (from, end) = (self.cursor, self.upstream_end);
            return self.again(format!("no message from offset {from} on, the log ends at {end}"));
        }
        self.wide = false;
        self.adapt(polled);
        if self.cursor >= self.upstream_end || self.matcher.places().len() > 1 {
            return self.verdict();
        }
        self.next()
    }

    /// The log goes on at `first` instead of at the cursor: true once two replies say so.
    fn is_hole(&mut self, first: u64) -> bool {
        let jump = (self.cursor, first);
        if self.jump != Some(jump) {
            self.jump = Some(jump);
            return false;
        }
        self.jump = None;
        // Below its beginning a log misses everything.
        let missing = if self.first.is_none() { u64::MAX } else { first - self.cursor };
        self.matcher.hole(missing);
        self.cursor = first;
        true
    }

    /// The next poll is as large as the messages of this one suggest, at most twice this one.
    fn adapt(&mut self, polled: &Polled) {
        let bytes = (polled.records.len() as u64).max(1);
        let fitting = POLL_BYTES * u64::from(polled.count.max(1)) / bytes;
        self.count = fitting.clamp(1, self.count.saturating_mul(2)).min(POLL_MOST);
    }

    fn verdict(&self) -> Step {
        let (end, tail) = (self.end, self.tail.len() as u64);
        let last = self.tail.last().map(|(_, fingerprint)| *fingerprint);
        let refusal = match (self.matcher.places(), last) {
            ([first, second, ..], _) => Refusal::TwoPlaces { end, first: *first, second: *second },
            ([place], _) if place.compared < COMPARE_LEAST => {
                Refusal::TooFew { end, place: *place }
            }
            ([place], Some(last)) => {
                return Step::Done(Verdict::Found { end, place: *place, tail, last });
            }
            _ => Refusal::Nowhere {
                end,
                tail,
                first: self.first.unwrap_or(self.upstream_end),
                upstream_end: self.upstream_end,
                nearest: self.matcher.nearest(),
            },
        };
        Step::Done(Verdict::Refused(refusal))
    }

    fn enter(&mut self, stage: Stage) -> Step {
        self.stage = stage;
        self.wide = false;
        self.next()
    }

    fn next(&mut self) -> Step {
        self.tries = 0;
        Step::Ask(self.ask())
    }

    fn again(&mut self, why: String) -> Step {
        self.tries += 1;
        if self.tries > TRIES {
            return self.no_answer(why);
        }
        Step::AskAgain(self.ask())
    }

    fn no_answer(&self, why: String) -> Step {
        Step::Done(Verdict::Refused(Refusal::NoAnswer { side: self.side(), why }))
    }
}

/// Where a partition ends, from a poll of its last message (M6).
pub fn end_of(polled: &Polled) -> Result<u64, RecordError> {
    polled.scan(Verify::FramingOnly).map(|records| end(polled, &records))
}

fn end(polled: &Polled, records: &[Record]) -> u64 {
    match records.last() {
        Some(last) => last.next_offset(),
        None => end_of_empty_reply(polled),
    }
}

fn side_name(side: Side) -> &'static str {
    match side {
        Side::Upstream => "upstream",
        Side::Destination => "the destination",
    }
}

/// The nearest stretch in the words of an error.
fn near(nearest: &Option<Stretch>, end: u64, tail: u64) -> String {
    let Some(near) = nearest else { return String::new() };
    let there = end - tail + near.index as u64;
    format!(
        "; nearest: {} messages up to destination offset {there} equal those up to upstream \
         offset {}",
        near.len, near.offset
    )
}

#[cfg(test)]
mod tests;
