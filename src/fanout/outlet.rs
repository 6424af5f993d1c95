//! The way out of one capture feed: from a row to acked batches. Pure; the caller brings rows,
//! time, the answers of the destination cluster, and takes the requests to send.
//!
//! ```text
//! bind, route ─▶ begin … end ─▶ close ─▶ next ⇄ answer ─▶ complete
//! ```
//!
//! Topics are looked up or made when a batch for them is closed (A5), those that the plan names
//! at the start. A destination that fails, is refused or cannot be made keeps what is meant for
//! it in order; the others go on.

mod shown;
#[cfg(test)]
mod tests;
mod topics;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

pub use self::shown::{DestinationSnapshot, Latency, Notice, OutletCounters, Trouble};
use super::admission::{Disposition, Reason, dead_letter_headers, disposition};
use super::breaker::Permit;
use super::destinations::{DestId, Destinations};
use super::ensure::Recipe;
use super::failure::{Again, Failure};
use super::group::{Ended, Groups};
use super::lanes::{LaneId, LaneSettings, Lanes, Outside};
use super::partition::Wish;
use super::route::{BoundRoute, Columns, KeyChoice, RouteError, Routed, Router, choose};
use crate::batch::TopicName;
use crate::config::{CapturePlan, KeyEncoding};
use crate::iggy_wire::{BatchBuilder, Reply, Request, SendTo};
use crate::time::Millis;

/// Comes back with the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Token {
    /// A destination's look-up or creation.
    Ensure(DestId),
    /// A send.
    Send(LaneId),
}

/// A request to make.
#[derive(Clone, Debug)]
pub struct Ask {
    /// Whose answer it is.
    pub token: Token,
    /// What.
    pub request: Request,
    /// Its destination failed lately: a silence would cost what shares the connection.
    pub suspect: bool,
}

/// What came of a row that was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// It is in the batch.
    Added,
    /// It fits no frame and is kept: the partition of this destination stops here.
    Held(DestId),
    /// It fits no frame and was dropped.
    Dropped,
    /// It fits no frame: its headers, with those of the reason, go to this destination.
    DeadLetter(DestId),
}

/// A destination to look at.
#[derive(Clone, Copy, Debug, Default)]
struct Wanted {
    not_before: Millis,
    failures: u32,
    asked: bool,
}

/// The way out of one feed.
#[derive(Debug)]
pub struct Outlet {
    plan: Arc<CapturePlan>,
    table: Destinations,
    router: Router,
    groups: Groups,
    lanes: Lanes,
    catalogue: Option<BTreeSet<String>>,
    wanted: BTreeMap<DestId, Wanted>,
    /// Where the row under construction goes.
    current: Option<(DestId, KeyChoice)>,
    warm_until: Option<Millis>,
    notices: Vec<Notice>,
    told: BTreeSet<String>,
    created: Latency,
    routed: u64,
    routed_bytes: u64,
    lost_tails: BTreeMap<DestId, Millis>,
}

impl Outlet {
    /// Nothing is known yet.
    pub fn new(plan: Arc<CapturePlan>) -> Outlet {
        let routing = &plan.routing;
        let admission = &routing.admission;
        let whole = |number: u32| usize::try_from(number).unwrap_or(usize::MAX);
        let mut table = Destinations::new(admission.max_destinations, routing.breaker);
        let concurrent = whole(admission.max_concurrent_destinations);
        let most_bytes = whole(plan.max_batch_bytes);
        let settings = LaneSettings {
            concurrent,
            retry_first: plan.retry_interval,
            retry_longest: plan.max_retry_interval,
            most_together: most_bytes,
            outside: disposition(admission, Reason::PartitionIdOutOfRange),
            by_id: routing.partition_key_encoding == KeyEncoding::PartitionId,
        };
        Outlet {
            router: Router::new(plan.clone(), &mut table),
            table,
            groups: Groups::new(most_bytes, concurrent == 1),
            lanes: Lanes::new(settings),
            catalogue: None,
            wanted: BTreeMap::new(),
            current: None,
            warm_until: None,
            notices: Vec::new(),
            told: BTreeSet::new(),
            created: Latency::default(),
            routed: 0,
            routed_bytes: 0,
            lost_tails: BTreeMap::new(),
            plan,
        }
    }

    /// Begins to look up or make every destination that the plan names.
    pub fn start(&mut self, now: Millis) {
        self.warm_until = Some(now + self.plan.routing.startup_prewarm_deadline);
        for name in self.plan.clone().routing.literals() {
            if let Some(dest) = self.table.find(name.stream.as_bytes(), name.topic.as_bytes()) {
                self.wanted.entry(dest).or_default();
            }
        }
    }

    /// The destinations that the plan names were all looked at, or their time is over: what did
    /// not work is told, and tried again when something is sent there.
    pub fn is_warm(&mut self, now: Millis) -> bool {
        let Some(until) = self.warm_until else { return true };
        if !self.wanted.is_empty() && now < until {
            return false;
        }
        self.warm_until = None;
        for dest in self.wanted.keys().copied().collect::<Vec<_>>() {
            let record = self.table.at(dest);
            let why = record.last_error.as_deref().unwrap_or("no answer yet");
            let text = format!("{} was not ready in time: {why}", record.topic);
            self.notices.push(Notice::Unusual(text));
            if !self.lanes.waits_for(dest) && !self.wanted[&dest].asked {
                self.wanted.remove(&dest);
                self.start_over(dest);
            }
        }
        true
    }

    /// The route of a relation version: see [`Router::bind`].
    pub fn bind(
        &mut self,
        schema: &str,
        name: &str,
        columns: &[(&str, bool)],
    ) -> Result<BoundRoute, RouteError> {
        self.router.bind(&mut self.table, schema, name, columns)
    }

    /// The routing columns of each table: what is known from before is told by
    /// [`Outlet::remember`], what is known now is to be saved with the position.
    pub fn routed(&self) -> impl Iterator<Item = (&(String, String), Vec<String>)> {
        self.router.routed()
    }

    /// See [`Outlet::routed`].
    pub fn remember(&mut self, tables: impl IntoIterator<Item = ((String, String), Vec<String>)>) {
        self.router.remember(tables);
    }

    /// Where a row goes. What is not dropped is then written, between [`Outlet::begin`] and
    /// [`Outlet::end`].
    pub fn route(&mut self, bound: &BoundRoute, row: &impl Columns) -> Routed {
        self.router.route(&mut self.table, bound, row)
    }

    /// Where a message without a key goes.
    pub fn any_partition(&self, dest: DestId) -> KeyChoice {
        let record = self.table.at(dest);
        choose(Wish::Balanced, record.partitions(), record.turn)
    }

    /// Begins a message: then payload into [`Outlet::body`], [`Outlet::end_payload`], user
    /// headers into the body, [`Outlet::end`].
    pub fn begin(&mut self, dest: DestId, choice: KeyChoice, id: u128, origin_us: u64) {
        self.current = Some((dest, choice));
        self.groups.begin(dest, choice, id, origin_us);
    }

    /// Where the message is appended.
    pub fn body(&mut self) -> &mut Vec<u8> {
        self.groups.body()
    }

    /// The payload is complete.
    pub fn end_payload(&mut self) {
        self.groups.end_payload();
    }

    /// Appends the user headers of a dead letter: why it is one, and where its row was meant to
    /// go.
    pub fn dead_letter_headers(&mut self, bound: &BoundRoute, row: &impl Columns, reason: Reason) {
        let (stream, topic) = self.router.meant(bound, row);
        dead_letter_headers(self.groups.body(), reason, stream, topic);
    }

    /// Forgets the message that was begun.
    pub fn forget(&mut self) {
        if self.current.take().is_some() {
            self.groups.abandon();
        }
    }

    /// The message is complete.
    pub fn end(&mut self) -> Written {
        let Some((dest, choice)) = self.current.take() else { return Written::Dropped };
        let most_record = self.table.at(dest).most_record;
        match self.groups.end(most_record) {
            Ended::Added => Written::Added,
            Ended::TooLarge { size } => self.too_large(dest, choice, size),
        }
    }

    /// Instead of [`Outlet::end`]: the message that was begun would have this many bytes or more.
    pub fn refuse(&mut self, size: usize) -> Written {
        let Some((dest, choice)) = self.current.take() else { return Written::Dropped };
        self.groups.abandon();
        self.too_large(dest, choice, size)
    }

    #[cold]
    fn too_large(&mut self, dest: DestId, choice: KeyChoice, size: usize) -> Written {
        let most_record = self.table.at(dest).most_record;
        self.router.reject(Reason::TooLarge);
        let record = self.table.at_mut(dest);
        if !record.last_error.as_deref().is_some_and(|error| error.contains(KEPT)) {
            let error = format!("a message of {size} bytes, a frame takes {most_record}");
            record.last_error = Some(error.into());
        }
        match disposition(&self.plan.routing.admission, Reason::TooLarge) {
            Disposition::Drop => Written::Dropped,
            Disposition::Keep => {
                self.groups.stone(dest, choice, Reason::TooLarge);
                Written::Held(dest)
            }
            Disposition::DeadLetter => match self.router.dead_letter() {
                Some(dest) => Written::DeadLetter(dest),
                None => Written::Dropped,
            },
        }
    }

    /// Messages in the batch under construction.
    pub fn open_messages(&self) -> u64 {
        self.groups.messages()
    }

    /// Bytes of them.
    #[inline]
    pub fn open_bytes(&self) -> usize {
        self.groups.bytes()
    }

    /// The batch under construction should be closed.
    pub fn is_full(&self) -> bool {
        self.groups.is_full()
    }

    /// Closes the batch, which may be empty: returns its number, counted from 0.
    pub fn close(&mut self, now: Millis) -> u64 {
        let groups = self.groups.close();
        let touched: BTreeSet<DestId> = groups.iter().map(|group| group.dest).collect();
        let batch = self.lanes.submit(now, &self.table, groups);
        for dest in touched {
            let record = self.table.at_mut(dest);
            record.turn = record.turn.wrapping_add(1);
            if record.is_live() && record.facts.is_none() {
                self.wanted.entry(dest).or_default();
            }
        }
        self.settle_outside(now);
        batch
    }

    /// The next request, if there is one to make now. To be called only with a connection.
    pub fn next(&mut self, now: Millis) -> Option<Ask> {
        self.next_ensure(now).or_else(|| {
            let send = self.lanes.next(now, &mut self.table)?;
            let topic = &self.table.at(send.dest).topic;
            let request = Request::Send {
                stream: topic.stream.clone(),
                topic: topic.topic.clone(),
                to: SendTo::Partition(send.partition),
                record: send.relay,
            };
            Some(Ask { token: Token::Send(send.lane), request, suspect: send.suspect })
        })
    }

    /// The end of a request of [`Outlet::next`].
    pub fn answer(
        &mut self,
        now: Millis,
        token: Token,
        answer: Result<Reply, Failure>,
        rng: &mut fastrand::Rng,
    ) {
        match (token, answer) {
            (Token::Ensure(dest), answer) => self.ensured(now, dest, answer, rng),
            (Token::Send(lane), Ok(Reply::Sent { base_offset: Some(offset) })) => {
                self.acked(now, lane, offset);
            }
            (Token::Send(lane), Ok(Reply::Sent { base_offset: None })) => {
                let failure = Failure::Malformed("an empty confirmation".to_owned());
                self.failed(now, lane, &failure, rng);
            }
            (Token::Send(lane), Ok(_)) => {
                let failure = Failure::Malformed("another kind of reply".to_owned());
                self.failed(now, lane, &failure, rng);
            }
            (Token::Send(lane), Err(failure)) => self.failed(now, lane, &failure, rng),
        }
    }

    /// Every batch below this number is acked, dropped or given up (A8).
    pub fn complete(&self) -> u64 {
        self.lanes.complete()
    }

    /// Batches closed so far: the number of the next one.
    pub fn batches(&self) -> u64 {
        self.lanes.batches()
    }

    /// Whether something of these batches is held.
    pub fn holds(&self, batches: Range<u64>) -> bool {
        self.lanes.holds(batches)
    }

    /// A topic that was seen, and when it was created, µs: the one this lane sends to if it is
    /// named, else any. Who shows the same is of the same cluster.
    pub fn identity(&self, lane: Option<u32>) -> Option<(TopicName, u64)> {
        let of = |dest| {
            let record = self.table.at(dest);
            record.created_at.map(|created_at| (record.topic.clone(), created_at))
        };
        match lane.and_then(|lane| self.lanes.dest(lane)) {
            Some(dest) => of(dest),
            None => self.table.all().find_map(|(dest, _)| of(dest)),
        }
    }

    /// Bytes of records that were acked.
    pub fn acked_bytes(&self) -> u64 {
        self.routed_bytes
    }

    /// Bytes held: the batch under construction, what waits and what is on its way.
    pub fn bytes(&self) -> usize {
        self.groups.room() + self.lanes.bytes()
    }

    /// Bytes of messages that are not acked.
    pub fn pending_bytes(&self) -> usize {
        self.groups.bytes() + self.lanes.bytes()
    }

    /// Says which message a destination keeps, of the first one that waits there.
    pub fn name_kept(&mut self, dest: DestId, row: impl FnOnce() -> String) {
        let record = self.table.at_mut(dest);
        let before = record.last_error.as_deref().unwrap_or_default();
        if before.contains(KEPT) {
            return;
        }
        let joint = if before.is_empty() { "" } else { "; " };
        record.last_error = Some(format!("{before}{joint}{KEPT}{}", row()).into());
    }

    /// Lets go of buffers that hold nothing.
    pub fn trim(&mut self) {
        self.groups.trim();
    }

    /// Batches with a send outstanding (C2).
    pub fn in_flight(&self) -> usize {
        self.lanes.in_flight()
    }

    /// Requests outstanding.
    pub fn outstanding(&self) -> usize {
        self.lanes.outstanding() + self.wanted.values().filter(|wanted| wanted.asked).count()
    }

    /// Nothing is held.
    pub fn is_empty(&self) -> bool {
        self.lanes.is_empty() && self.groups.is_empty()
    }

    /// A destination that could take messages has none to take.
    pub fn has_idle(&self) -> bool {
        let letters = self.router.dead_letter();
        self.table.all().any(|(dest, record)| {
            let takes = record.is_live() && record.facts.is_some() && !record.breaker.is_open();
            takes && Some(dest) != letters && !self.lanes.owes(&self.table, dest)
        })
    }

    /// When [`Outlet::next`] may find something that it does not find now.
    pub fn wake_at(&self) -> Option<Millis> {
        let waiting = self.wanted.iter().filter(|(_, wanted)| !wanted.asked);
        let waiting = waiting.map(|(dest, wanted)| {
            match self.table.at(*dest).breaker.permit(wanted.not_before) {
                Permit::At(until) => until,
                _ => wanted.not_before,
            }
        });
        waiting.min().into_iter().chain(self.lanes.wake_at()).chain(self.warm_until).min()
    }

    /// Sends nothing more; what is outstanding is waited for.
    pub fn drain(&mut self) {
        self.wanted.retain(|_, wanted| wanted.asked);
        self.lanes.drain();
    }

    /// Gives up every batch up to this number, what is under construction not among them.
    pub fn abandon(&mut self, now: Millis, through: u64) {
        self.lanes.abandon(now, &self.table, through);
        for dest in self.table.all().map(|(dest, _)| dest).collect::<Vec<_>>() {
            self.start_over(dest);
            if !self.lanes.waits_for(dest) {
                self.table.at_mut(dest).last_error.take_if(|error| error.contains(KEPT));
            }
        }
    }

    fn acked(&mut self, now: Millis, lane: LaneId, offset: u64) {
        let Some(acked) = self.lanes.acked(now, &mut self.table, lane, offset) else { return };
        self.routed += acked.messages;
        self.routed_bytes += acked.bytes;
        let record = self.table.at_mut(acked.dest);
        record.counters.messages += acked.messages;
        record.counters.bytes += acked.bytes;
        record.counters.sends += 1;
        let topic = record.topic.clone();
        if let Some((expected, confirmed)) = acked.lost_tail {
            record.counters.lost_tails += 1;
            let text = format!(
                "partition {} of {topic} gave out offset {confirmed}, at least {expected} was \
                 expected: it lost its tail",
                acked.partition
            );
            record.last_error = Some(text.clone().into());
            self.lost_tails.insert(acked.dest, now);
            self.notices.push(Notice::Unusual(text));
        }
        if acked.closed {
            self.notices.push(Notice::Done(format!("{topic} takes messages again")));
        }
        if let Some(buffer) = acked.buffer {
            self.groups.recycle(buffer);
        }
    }

    fn failed(&mut self, now: Millis, lane: LaneId, failure: &Failure, rng: &mut fastrand::Rng) {
        let Some((dest, opened)) = self.lanes.failed(now, &mut self.table, lane, failure, rng)
        else {
            return;
        };
        let record = self.table.at_mut(dest);
        // Lost connections are counted where they are made.
        if *failure != Failure::Lost {
            record.counters.errors += 1;
            record.last_error = Some(failure.to_string().into());
        }
        if failure.again() == Again::Looked {
            record.facts = None;
            self.groups.split(dest);
            self.wanted.entry(dest).or_default();
            self.lanes.refresh(now, &self.table, dest);
        }
        self.breaker_moved(now, dest, opened, &failure.to_string());
        self.start_over(dest);
    }

    fn breaker_moved(&mut self, now: Millis, dest: DestId, opened: bool, why: &str) {
        if opened {
            let (topic, cool_down) =
                (&self.table.at(dest).topic, self.plan.routing.breaker.cool_down);
            let text = format!("{topic} is left alone for {cool_down:?}: {why}");
            self.notices.push(Notice::Unusual(text));
        }
        self.lanes.refresh(now, &self.table, dest);
    }

    /// An open breaker with nothing behind it would never be probed: what comes next is a try.
    fn start_over(&mut self, dest: DestId) {
        if !self.lanes.waits_for(dest) {
            self.table.at_mut(dest).breaker.succeeded();
        }
    }

    /// Messages whose id turned out to be outside their topic.
    fn settle_outside(&mut self, now: Millis) {
        for Outside { dest, batch, message } in self.lanes.take_outside() {
            self.router.reject(Reason::PartitionIdOutOfRange);
            let letters = self.router.dead_letter();
            let is_letter =
                disposition(&self.plan.routing.admission, Reason::PartitionIdOutOfRange)
                    == Disposition::DeadLetter;
            let instead = letters
                .filter(|_| is_letter)
                .map(|letters| (letters, dead_letter(&message, &self.table.at(dest).topic)));
            let letters = instead.as_ref().map(|(letters, _)| *letters);
            self.lanes.settle_outside(now, &self.table, batch, instead);
            if let Some(letters) = letters.filter(|dest| self.table.at(*dest).facts.is_none()) {
                self.wanted.entry(letters).or_default();
            }
        }
    }

    /// Says something once.
    pub fn tell(&mut self, text: String) {
        if self.told.len() < MOST_TOLD && self.told.insert(text.clone()) {
            self.notices.push(Notice::Remark(text));
        }
    }
}

/// How the sentence about a kept message begins.
const KEPT: &str = "the first that waits is ";
/// Sentences remembered as said.
const MOST_TOLD: usize = 4096;

fn recipe<'a>(
    plan: &'a CapturePlan,
    topic: &'a TopicName,
    catalogue: Option<&'a BTreeSet<String>>,
) -> Recipe<'a> {
    let defaults = &plan.routing.topic_defaults;
    Recipe { topic, defaults, auto_create: plan.auto_create, catalogue }
}

/// A message again, with the headers of a dead letter.
fn dead_letter(message: &BatchBuilder, topic: &TopicName) -> BatchBuilder {
    let mut letter = BatchBuilder::default();
    for message in message.messages() {
        letter.begin(message.id(), message.origin_timestamp());
        letter.body().extend_from_slice(message.payload());
        letter.end_payload();
        letter.body().extend_from_slice(message.user_headers());
        let (stream, topic) = (topic.stream.as_bytes(), topic.topic.as_bytes());
        dead_letter_headers(letter.body(), Reason::PartitionIdOutOfRange, stream, topic);
        // A message that was in a batch is short enough.
        let _ = letter.end();
    }
    letter
}
