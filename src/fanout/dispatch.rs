//! One destination partition: a FIFO of records, at most one of them outstanding (I2).
//!
//! The writer knows the offset the destination must give to the next message. An ack with
//! another offset means that somebody else writes there or that our batch stands behind a hole:
//! the feed stops. A reply that was lost, or an empty confirmation, is *unknown*: the writer
//! forgets what it held and the feed looks at the destination before anything is sent again
//! (G5, M6).

use std::collections::VecDeque;
use std::time::Duration;

use crate::iggy_wire::{Record, Relay};
use crate::time::Millis;

/// Pause after "not accepted" (58): a leader is being elected or the partition is not ready.
pub const NOT_ACCEPTED_PAUSE: Duration = Duration::from_millis(50);
/// Longest such pause.
pub const NOT_ACCEPTED_LONGEST: Duration = Duration::from_secs(1);
/// Unknown outcomes with an unmoved end after which the record is halved (M15).
pub const UNKNOWNS_UNTIL_HALVED: u32 = 3;
/// What is on its way.
#[derive(Debug)]
pub struct InFlight {
    /// The record as read from upstream.
    pub record: Record,
    /// Destination offset its first message must get.
    pub expected: u64,
}

/// What an answer means for the feed.
#[derive(Debug)]
pub enum Ack {
    /// Acked at the expected offset; the record is done.
    Done(Record),
    /// Acked elsewhere: stop, never papered over.
    Diverged {
        /// Offset the message should have got.
        expected: u64,
        /// Offset it got.
        confirmed: u64,
    },
    /// Appended or not: look before sending again.
    Unknown,
}

/// The writer of one destination partition.
#[derive(Debug, Default)]
pub struct Writer {
    queue: VecDeque<Record>,
    in_flight: Option<InFlight>,
    next_offset: u64,
    not_before: Millis,
    refusals: u32,
    most_messages: Option<u32>,
    unknowns: Unknowns,
}

/// Unknown outcomes in a row that left the end of the destination where it was.
#[derive(Debug, Default)]
struct Unknowns {
    at: u64,
    count: u32,
    messages: u32,
    until: u64,
}

/// What to do about a record that keeps vanishing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suspicion {
    /// Nothing yet.
    None,
    /// Send at most this many messages at once from now on.
    Halved(u32),
    /// The one message at this upstream offset is never taken.
    Message(u64),
}

impl Writer {
    /// Forgets everything held and goes on at this destination offset.
    pub fn restart(&mut self, next_offset: u64) {
        self.queue.clear();
        self.in_flight = None;
        self.next_offset = next_offset;
        self.not_before = Millis(0);
        self.refusals = 0;
    }

    /// Drops what is queued; returns true if a send is outstanding, whose outcome is unknown
    /// once its connection is gone.
    pub fn lost(&mut self) -> bool {
        self.queue.clear();
        self.in_flight.take().is_some()
    }

    /// Queues a record behind what is there.
    pub fn push(&mut self, record: Record) {
        self.queue.push_back(record);
    }

    /// Neither queued nor outstanding.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.in_flight.is_none()
    }

    /// A send is outstanding.
    pub fn is_waiting(&self) -> bool {
        self.in_flight.is_some()
    }

    /// Drops what is queued but not sent.
    pub fn clear_queue(&mut self) {
        self.queue.clear();
    }

    /// Offset the next message must get.
    pub fn next_offset(&self) -> u64 {
        self.next_offset
    }

    /// When the next send may go out, if something waits.
    pub fn next_at(&self) -> Option<Millis> {
        (self.in_flight.is_none() && !self.queue.is_empty()).then_some(self.not_before)
    }

    /// The next record to send, of at most `most` bytes. `Err` names the upstream offset of a
    /// message that fits no frame.
    pub fn next(&mut self, now: Millis, most: usize) -> Result<Option<Relay>, u64> {
        if self.in_flight.is_some() || now < self.not_before {
            return Ok(None);
        }
        let Some(whole) = self.queue.pop_front() else { return Ok(None) };
        let record = self.fitting(whole, most)?;
        let relay = record.relay();
        self.in_flight = Some(InFlight { record, expected: self.next_offset });
        Ok(Some(relay))
    }

    /// The server confirmed; `None` is an empty confirmation.
    pub fn confirmed(&mut self, base_offset: Option<u64>) -> Ack {
        self.refusals = 0;
        let Some(confirmed) = base_offset else { return Ack::Unknown };
        let Some(done) = self.in_flight.take() else { return Ack::Unknown };
        if confirmed != done.expected {
            return Ack::Diverged { expected: done.expected, confirmed };
        }
        self.next_offset = done.expected + u64::from(done.record.count());
        if self.most_messages.is_some() && done.record.next_offset() >= self.unknowns.until {
            self.most_messages = None;
            self.unknowns = Unknowns::default();
        }
        Ack::Done(done.record)
    }

    /// Acked where the server picks the partition: no offset is expected.
    pub fn confirmed_anywhere(&mut self) -> Option<Record> {
        self.refusals = 0;
        self.in_flight.take().map(|done| done.record)
    }

    /// The server did not accept it (58): it goes again after a pause.
    pub fn not_accepted(&mut self, now: Millis) {
        if let Some(refused) = self.in_flight.take() {
            self.queue.push_front(refused.record);
        }
        let pause = NOT_ACCEPTED_PAUSE * (1 << self.refusals.min(5));
        self.refusals = self.refusals.saturating_add(1);
        self.not_before = now + pause.min(NOT_ACCEPTED_LONGEST);
    }

    /// Puts the outstanding record back in front: its send is known not to have been applied,
    /// or its mode allows a repeat.
    pub fn put_back(&mut self) {
        if let Some(refused) = self.in_flight.take() {
            self.queue.push_front(refused.record);
        }
    }

    /// The upstream range of what is outstanding: first offset, next offset, messages.
    pub fn outstanding(&self) -> Option<(u64, u64, u32)> {
        let record = &self.in_flight.as_ref()?.record;
        Some((record.first_offset(), record.next_offset(), record.count()))
    }

    /// An unknown outcome was looked into: the destination ends at the place of upstream offset
    /// `position`. `lost` is what [`Writer::outstanding`] said before.
    pub fn looked(&mut self, position: u64, lost: (u64, u64, u32)) -> Suspicion {
        let (first, until, messages) = lost;
        if position != first {
            self.unknowns = Unknowns::default();
            self.most_messages = None;
            return Suspicion::None;
        }
        if self.unknowns.at != first || self.unknowns.messages != messages {
            let until = until.max(self.unknowns.until);
            self.unknowns = Unknowns { at: first, count: 0, messages, until };
        }
        self.unknowns.count += 1;
        if self.unknowns.count < UNKNOWNS_UNTIL_HALVED {
            return Suspicion::None;
        }
        if messages == 1 {
            return Suspicion::Message(first);
        }
        let half = (messages / 2).max(1);
        self.most_messages = Some(half);
        self.unknowns.count = 0;
        Suspicion::Halved(half)
    }

    /// Cuts a record to what may go out at once; the rest goes back to the front of the queue.
    fn fitting(&mut self, record: Record, most_bytes: usize) -> Result<Record, u64> {
        let mut most = self.most_messages.unwrap_or(u32::MAX).min(record.count());
        while record.truncated(most).len() > most_bytes {
            if most == 1 {
                let offset = record.first_offset();
                self.queue.push_front(record);
                return Err(offset);
            }
            most /= 2;
        }
        if most == record.count() {
            return Ok(record);
        }
        let head = record.truncated(most);
        if let Some(rest) = record.from_offset(head.next_offset()) {
            self.queue.push_front(rest);
        }
        Ok(head)
    }
}
