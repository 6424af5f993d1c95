//! One Iggy partition as a source: which poll to send next and what its reply means (M1, M5).
//!
//! The reader owns the cursor (next offset to read, ahead of what is acked), the size of the
//! next poll and the proof that the log is still the one it was reading: after a reconnect, an
//! empty reply or a stall it polls one message early and that message must be the one it read
//! last. It never accepts a jump by itself: a first offset above the one asked is a gap only if
//! a poll of the earliest message says so.

use std::time::Duration;

use super::history::{end_of_log_read, fingerprint};
use super::{Mode, Source};
use crate::batch::Fingerprint;
use crate::iggy_wire::{PollFrom, Polled, RecordError, Run, Verify};
use crate::time::Millis;

/// Longest pause between two polls of an idle partition.
pub const IDLE_LONGEST: Duration = Duration::from_millis(50);
/// First pause after an empty reply.
pub const IDLE_FIRST: Duration = Duration::from_millis(1);
/// A pause longer than this between replies makes the next poll prove the history.
pub const STALL: Duration = Duration::from_secs(1);
/// Most messages one poll asks for: bounds the server's work on tiny messages.
pub const COUNT_MOST: u32 = 65_536;
/// Bytes assumed per message before the first reply.
const SIZE_GUESS: u64 = 4096;
/// Least reservation of a poll: a larger message in a quiet partition should not cost the
/// connection.
pub const RESERVE_LEAST: u64 = 64 * 1024;
/// Reply header, record headers and slack on top of the messages' own bytes.
const REPLY_SLACK: u64 = 4096;

/// What the shard should ask upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Where to start.
    pub from: PollFrom,
    /// How many messages.
    pub count: u32,
    /// Reply bytes to reserve before asking (G6).
    pub reserve: u64,
}

/// What a reply meant.
#[derive(Debug)]
pub enum Outcome {
    /// New records in order.
    Records(Box<Run>),
    /// Caught up.
    Idle,
    /// The log is empty or shorter than it was, or answers nothing where messages are: it may be
    /// starting. Ask for the topic's identity and poll again later.
    NotReady(String),
    /// The log does not hold what comes next: ask for its earliest message.
    Jump {
        /// First offset it returned.
        found: u64,
    },
    /// The reply does not fit what was asked: reconnect and poll again.
    Wrong(String),
    /// Another message stands where the last one was.
    OtherHistory(String),
    /// A record that must not be sent on.
    Bad(RecordError),
}

/// The reader of one partition.
#[derive(Debug)]
pub struct Reader {
    verify: Verify,
    cursor: u64,
    last: Option<Fingerprint>,
    /// The copy begins at the cursor, which was chosen by number: the log may end before it.
    ahead: bool,
    prove: bool,
    asked: Option<Ask>,
    per_message: u64,
    count: u32,
    idle: Duration,
    next_at: Millis,
    punished_until: Millis,
    replied_at: Millis,
    end: u64,
    not_ready_since: Option<Millis>,
}

impl Source for Reader {
    fn mode(&self) -> Mode {
        Mode::Polling { destructive: false }
    }
    fn position(&self) -> u64 {
        self.cursor
    }
}

impl Reader {
    /// A reader at offset 0; [`Reader::seek`] before use.
    pub fn new(verify: Verify) -> Reader {
        Reader {
            verify,
            cursor: 0,
            last: None,
            ahead: false,
            prove: false,
            asked: None,
            per_message: SIZE_GUESS,
            count: 1,
            idle: Duration::ZERO,
            next_at: Millis(0),
            punished_until: Millis(0),
            replied_at: Millis(0),
            end: 0,
            not_ready_since: None,
        }
    }

    /// Go on at `cursor`; `last` is the message before it, if it is known.
    pub fn seek(&mut self, cursor: u64, last: Option<Fingerprint>) {
        self.cursor = cursor;
        self.last = last;
        self.ahead = false;
        self.prove = last.is_some();
        self.asked = None;
        self.idle = Duration::ZERO;
        self.next_at = Millis(0);
        self.not_ready_since = None;
    }

    /// Nothing was read yet and the cursor was chosen by number: until the log has grown up to it,
    /// this is caught up. Holds until the first record or the next [`Reader::seek`].
    pub fn wait_for_cursor(&mut self) {
        self.ahead = true;
    }

    /// The connection is a new one: whatever was asked will not be answered.
    pub fn reconnected(&mut self) {
        self.asked = None;
        self.prove = self.last.is_some();
        self.idle = Duration::ZERO;
        self.next_at = self.punished_until;
    }

    /// A poll is outstanding.
    pub fn is_waiting(&self) -> bool {
        self.asked.is_some()
    }

    /// Next offset the log will give out, as last seen.
    pub fn end(&self) -> u64 {
        self.end.max(self.cursor)
    }

    /// The end as upstream last said it, even if it lies below the cursor.
    pub fn reported_end(&self) -> u64 {
        self.end
    }

    /// The end as somebody else saw it, while this reader does not poll.
    pub fn saw_end(&mut self, end: u64) {
        self.end = end;
    }

    /// When the next poll may go out.
    pub fn next_at(&self) -> Millis {
        self.next_at
    }

    /// When the last reply came.
    pub fn replied_at(&self) -> Millis {
        self.replied_at
    }

    /// True when the pauses between polls have reached their longest.
    pub fn is_idle(&self) -> bool {
        self.idle >= IDLE_LONGEST
    }

    /// Since when the log answers less than it held.
    pub fn not_ready_since(&self) -> Option<Millis> {
        self.not_ready_since
    }

    /// The log was out of sight: how long it answers less counts from its next reply.
    pub fn forget_not_ready(&mut self) {
        self.not_ready_since = None;
    }

    /// Something says there is news: poll at once.
    pub fn nudge(&mut self) {
        self.next_at = Millis(0);
    }

    /// The last reply could not be trusted: no poll before `at`, on no connection.
    pub fn punish_until(&mut self, at: Millis) {
        self.punished_until = at;
        self.next_at = at;
    }

    /// Pause until `at`.
    pub fn sleep_until(&mut self, at: Millis) {
        self.next_at = at;
    }

    /// What to ask with a reply of about `target` bytes; not while one is outstanding.
    pub fn ask(&self, now: Millis, target: u64) -> Option<Ask> {
        if self.asked.is_some() || now < self.next_at {
            return None;
        }
        let prove = self.must_prove(now);
        let lead = u64::from(prove);
        // Idle polls go at the least count: one new message, and the one that proves the log.
        let wanted = if self.idle.is_zero() { u64::from(self.count) } else { 1 };
        let fits = (target / self.per_message.max(1)).clamp(1, u64::from(COUNT_MOST));
        let count = wanted.min(fits) + lead;
        let expected = count.saturating_mul(self.per_message).saturating_add(REPLY_SLACK);
        let reserve = expected.saturating_add(expected / 2).max(RESERVE_LEAST);
        Some(Ask {
            from: PollFrom::Offset(self.cursor - lead),
            count: u32::try_from(count).unwrap_or(u32::MAX),
            reserve,
        })
    }

    /// The ask went out.
    pub fn asked(&mut self, ask: Ask) {
        self.asked = Some(ask);
    }

    /// The reply was larger than its reservation: ask for less, expect more per message.
    pub fn too_large(&mut self, size: u64) {
        let count = self.asked.take().map_or(1, |ask| u64::from(ask.count));
        self.per_message = (size / count.max(1)).max(self.per_message.saturating_mul(2));
        self.count = (self.count / 2).max(1);
    }

    /// No reply came; the same is asked again.
    pub fn unanswered(&mut self) {
        self.asked = None;
    }

    /// A reply. Every outcome but [`Outcome::Records`] leaves the cursor where it was.
    pub fn replied(&mut self, now: Millis, mut polled: Polled) -> Outcome {
        let Some(ask) = self.asked.take() else {
            return Outcome::Wrong("a reply to a poll that was not asked".into());
        };
        let PollFrom::Offset(asked) = ask.from else {
            return Outcome::Wrong("a reply to another kind of poll".into());
        };
        self.replied_at = now;
        let size = polled.records.len() as u64;
        let run = match polled.take_run(self.verify) {
            Ok(run) => run,
            Err(error) => return Outcome::Bad(error),
        };
        let Some(run) = run else {
            return self.replied_empty(now, asked, &polled);
        };
        self.end = polled.current_offset.saturating_add(1).max(run.next_offset());
        match self.accept(asked, run) {
            Ok((run, proven)) => self.advance(now, ask, polled.count, run, proven, size),
            Err(outcome) => outcome,
        }
    }

    fn must_prove(&self, now: Millis) -> bool {
        let stalled = now.since(self.replied_at) > STALL;
        (self.prove || stalled) && self.last.is_some() && self.cursor > 0
    }

    fn replied_empty(&mut self, now: Millis, asked: u64, polled: &Polled) -> Outcome {
        self.prove = true;
        self.pause(now);
        // Below the cursor the log must hold the message asked for; at the cursor it may end.
        self.end = end_of_log_read(polled, self.cursor);
        let not_there_yet = self.ahead && self.end < self.cursor;
        let caught_up = asked == self.cursor && (self.end == self.cursor || not_there_yet);
        // Retention may have removed everything up to the end: then the end has not moved.
        let emptied = asked < self.cursor && self.end == self.cursor && self.end > 0;
        if caught_up || emptied {
            self.not_ready_since = None;
            return Outcome::Idle;
        }
        self.not_ready_since.get_or_insert(now);
        Outcome::NotReady(format!(
            "asked for offset {asked}, got no message; the log ends at {}, read so far {}",
            self.end, self.cursor
        ))
    }

    /// Checks the shape of a reply and cuts off the message that proves the history. What stands
    /// before a hole is good; the hole itself meets the next poll.
    fn accept(&self, asked: u64, run: Run) -> Result<(Option<Run>, bool), Outcome> {
        let first = run.first_offset();
        if first < asked {
            return Err(Outcome::Wrong(format!("asked for offset {asked}, got {first}")));
        }
        if first > asked {
            return Err(Outcome::Jump { found: first });
        }
        if asked == self.cursor {
            return Ok((Some(run), false));
        }
        let Some(expected) = self.last else {
            return Err(Outcome::Wrong(format!("asked {asked} without a message to compare")));
        };
        let seen = run.first().map(|message| fingerprint(&message));
        if seen != Some(expected) {
            return Err(Outcome::OtherHistory(format!(
                "offset {asked} holds another message than the one read there: expected \
                 {expected}, \
                 found {}",
                seen.map_or_else(|| "none".to_owned(), |seen| seen.to_string())
            )));
        }
        Ok((run.from_offset(self.cursor), true))
    }

    fn advance(
        &mut self,
        now: Millis,
        ask: Ask,
        count: u32,
        run: Option<Run>,
        proven: bool,
        size: u64,
    ) -> Outcome {
        self.not_ready_since = None;
        if proven {
            self.prove = false;
        }
        self.learn(count, size);
        // All that was asked for came and there is more: the last record may be cut.
        let until = run.as_ref().map_or(self.cursor, Run::next_offset);
        let cut = count >= ask.count && self.end > until;
        let probing = !self.idle.is_zero();
        let run = if cut { run.and_then(|run| drop_cut_record(run, probing)) } else { run };
        let Some(run) = run else {
            if self.end > self.cursor {
                // Only the proof, or only a piece of a record: ask again, for more.
                self.count = self.count.max(2).saturating_mul(4).min(COUNT_MOST);
                self.wake();
                return Outcome::Idle;
            }
            self.prove = true;
            self.pause(now);
            return Outcome::Idle;
        };
        self.cursor = run.next_offset();
        self.last = run.last().map(|last| fingerprint(&last));
        self.ahead = false;
        self.wake();
        if count >= ask.count {
            self.count = self.count.saturating_mul(4).min(COUNT_MOST);
        }
        Outcome::Records(Box::new(run))
    }

    fn learn(&mut self, messages: u32, size: u64) {
        let seen = size.div_ceil(u64::from(messages.max(1)));
        // Up at once, down slowly: an underestimate costs a connection.
        self.per_message = if seen >= self.per_message {
            seen + seen / 4
        } else {
            (self.per_message * 3 + seen) / 4
        }
        .max(64);
    }

    fn pause(&mut self, now: Millis) {
        self.idle = (self.idle * 2).clamp(IDLE_FIRST, IDLE_LONGEST);
        self.next_at = now + self.idle;
    }

    fn wake(&mut self) {
        self.idle = Duration::ZERO;
        self.next_at = Millis(0);
    }
}

/// Drops the last record where that costs less than renumbering its rest: it will come whole
/// with the next poll. `probing`: an idle poll asked for one message only to see whether there
/// is any.
fn drop_cut_record(run: Run, probing: bool) -> Option<Run> {
    let (last, rest) = run.last_and_rest();
    let is_alone = rest == 0;
    if (probing && is_alone) || (last * 4 <= rest) { run.without_last() } else { Some(run) }
}
