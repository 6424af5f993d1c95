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

/// How much may go out at once.
#[derive(Clone, Copy, Debug)]
pub struct Most {
    /// Bytes of a record beside the names of its destination.
    pub bytes: usize,
    /// Bytes of a renumbered copy; a single message is never copied.
    pub copied: usize,
}

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
    /// Since when: the first of them, of the record that was halved meanwhile.
    since: Millis,
    /// How many went out behind another send that was acked after `since`.
    proven: u32,
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
    /// The one message at this upstream offset is not taken, but no other one was meanwhile: it
    /// may as well be that nothing is.
    Outage(u64),
}

/// When an outcome became unknown, and what the destination had done before.
#[derive(Clone, Copy, Debug)]
pub struct Lookup {
    /// Now.
    pub now: Millis,
    /// The newest ack of any send to this destination when the one that was lost went out.
    pub behind: Option<Millis>,
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

    /// Upstream offset of the next message to send, if nothing is outstanding.
    pub fn next_upstream(&self) -> Option<u64> {
        let front = self.queue.front().filter(|_| self.in_flight.is_none())?;
        Some(front.first_offset())
    }

    /// When the next send may go out, if something waits.
    pub fn next_at(&self) -> Option<Millis> {
        (self.in_flight.is_none() && !self.queue.is_empty()).then_some(self.not_before)
    }

    /// Bytes that [`Writer::next`] would copy to renumber a record; 0 if it has nothing to send.
    pub fn next_copies(&self, now: Millis, most: Most) -> usize {
        if self.in_flight.is_some() || now < self.not_before {
            return 0;
        }
        let Some(record) = self.queue.front().filter(|record| record.is_head_cut()) else {
            return 0;
        };
        self.fitting(record, most).map_or(0, |count| record.truncated(count).copied_len())
    }

    /// The next record to send, cut to what `most` allows. `Err` names the upstream offset of a
    /// message that fits no frame.
    pub fn next(&mut self, now: Millis, most: Most) -> Result<Option<Relay>, u64> {
        if self.in_flight.is_some() || now < self.not_before {
            return Ok(None);
        }
        let Some(front) = self.queue.front() else { return Ok(None) };
        let count = self.fitting(front, most)?;
        let Some(record) = self.pop(count) else { return Ok(None) };
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
    ///
    /// A destination that answers reads and no sends looks the same from here for every message.
    /// So only sends that went out behind the ack of another one count against a message, and
    /// only if that ack is younger than the first sign of trouble.
    pub fn looked(&mut self, position: u64, lost: (u64, u64, u32), at: Lookup) -> Suspicion {
        let (first, until, messages) = lost;
        if position != first {
            self.unknowns = Unknowns::default();
            self.most_messages = None;
            return Suspicion::None;
        }
        if self.unknowns.at != first || self.unknowns.messages != messages {
            let known = &self.unknowns;
            let since = if first < known.until { known.since } else { at.now };
            let until = until.max(known.until);
            self.unknowns = Unknowns { at: first, count: 0, messages, until, since, proven: 0 };
        }
        self.unknowns.count = self.unknowns.count.saturating_add(1);
        if at.behind.is_some_and(|ack| ack > self.unknowns.since) {
            self.unknowns.proven = self.unknowns.proven.saturating_add(1);
        }
        if self.unknowns.count < UNKNOWNS_UNTIL_HALVED {
            return Suspicion::None;
        }
        if messages == 1 {
            let is_proven = self.unknowns.proven >= UNKNOWNS_UNTIL_HALVED;
            return if is_proven { Suspicion::Message(first) } else { Suspicion::Outage(first) };
        }
        let half = (messages / 2).max(1);
        self.most_messages = Some(half);
        self.unknowns.count = 0;
        Suspicion::Halved(half)
    }

    /// How many messages of a record may go out at once: less than all where they are more than
    /// a frame holds, than may be copied, or than the destination takes (M15).
    fn fitting(&self, record: &Record, most: Most) -> Result<u32, u64> {
        let mut count = self.most_messages.unwrap_or(u32::MAX).min(record.count());
        loop {
            let cut = record.truncated(count);
            if cut.len() <= most.bytes && cut.copied_len() <= most.copied {
                return Ok(count);
            }
            if count == 1 {
                return Err(record.first_offset());
            }
            count /= 2;
        }
    }

    /// The first `count` messages of the record in front; its rest stays there.
    fn pop(&mut self, count: u32) -> Option<Record> {
        let record = self.queue.pop_front()?;
        let head = record.truncated(count);
        if let Some(rest) = record.from_offset(head.next_offset()) {
            self.queue.push_front(rest);
        }
        Some(head)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::iggy_wire::Verify;
    use crate::iggy_wire::record::{Message, build_record, scan};

    const ANY: Most = Most { bytes: usize::MAX, copied: usize::MAX };
    const NOW: Millis = Millis(0);

    /// `count` messages of `size` bytes from offset 100 on, without the first `cut`.
    fn record(count: usize, size: usize, cut: u64) -> Record {
        let payload = vec![7; size];
        let messages = vec![Message { payload: &payload, ..Message::default() }; count];
        let stored: Bytes = build_record(&messages).unwrap().stored(0, 100, 0);
        let whole = scan(&stored, Verify::Full).unwrap().remove(0);
        whole.from_offset(100 + cut).unwrap()
    }

    /// Sends everything: the ranges that went out, and the most that was copied at once.
    fn send_all(writer: &mut Writer, most: Most) -> (Vec<(u64, u32)>, usize) {
        let (mut sent, mut copied) = (Vec::new(), 0);
        loop {
            let copies = writer.next_copies(NOW, most);
            let Some(relay) = writer.next(NOW, most).unwrap() else { return (sent, copied) };
            assert_eq!(copies > 0, relay.first_offset() > 100 && relay.count() > 1);
            assert_eq!(writer.next_copies(NOW, most), 0, "one send at a time");
            copied = copied.max(copies);
            sent.push((relay.first_offset(), relay.count()));
            let expected = writer.in_flight.as_ref().map(|sent| sent.expected);
            assert!(matches!(writer.confirmed(expected), Ack::Done(_)));
        }
    }

    #[test]
    fn a_long_head_cut_record_goes_out_in_pieces_that_may_be_copied() {
        let mut writer = Writer::default();
        writer.push(record(41, 1000, 1));
        let most = Most { copied: 12_000, ..ANY };
        let (sent, copied) = send_all(&mut writer, most);
        assert!(sent.len() > 3 && sent.iter().all(|(_, count)| *count > 1), "{sent:?}");
        let next = sent.iter().fold(101, |at, (first, count)| {
            assert_eq!(*first, at);
            at + u64::from(*count)
        });
        assert_eq!(next, 141);
        assert!(copied > 6_000 && copied <= 12_000, "{copied}");
    }

    #[test]
    fn a_single_message_goes_out_whatever_may_be_copied() {
        let mut writer = Writer::default();
        writer.push(record(3, 50_000, 1));
        let (sent, copied) = send_all(&mut writer, Most { copied: 1000, ..ANY });
        assert_eq!((sent, copied), (vec![(101, 1), (102, 1)], 0));
    }

    #[test]
    fn a_record_from_its_first_message_on_is_neither_copied_nor_cut() {
        let mut writer = Writer::default();
        writer.push(record(41, 1000, 0));
        let (sent, copied) = send_all(&mut writer, Most { copied: 0, ..ANY });
        assert_eq!((sent, copied), (vec![(100, 41)], 0));
    }

    /// What three unanswered sends of `messages` messages from offset `first` on lead to.
    fn lose(writer: &mut Writer, first: u64, messages: u32, now: u64, ack: u64) -> Suspicion {
        let lost = (first, first + u64::from(messages), messages);
        let at = |now| Lookup { now: Millis(now), behind: (ack > 0).then_some(Millis(ack)) };
        for round in 0..UNKNOWNS_UNTIL_HALVED - 1 {
            let said = writer.looked(first, lost, at(now + u64::from(round)));
            assert_eq!(said, Suspicion::None);
        }
        writer.looked(first, lost, at(now + 10))
    }

    #[test]
    fn only_sends_behind_an_ack_since_the_first_sign_of_trouble_count_against_a_message_m15() {
        let mut writer = Writer::default();
        // Nothing is taken; an ack from before says nothing.
        assert_eq!(lose(&mut writer, 100, 4, 1000, 900), Suspicion::Halved(2));
        assert_eq!(lose(&mut writer, 100, 2, 2000, 900), Suspicion::Halved(1));
        assert_eq!(lose(&mut writer, 100, 1, 3000, 900), Suspicion::Outage(100));
        // Another send was taken: three more behind it.
        let lost = (100, 101, 1);
        let at = Lookup { now: Millis(4000), behind: Some(Millis(3500)) };
        assert_eq!(writer.looked(100, lost, at), Suspicion::Outage(100));
        assert_eq!(writer.looked(100, lost, at), Suspicion::Outage(100));
        assert_eq!(writer.looked(100, lost, at), Suspicion::Message(100));
        // The first half of a record was taken: its second one is proven at once.
        let mut writer = Writer::default();
        assert_eq!(lose(&mut writer, 200, 4, 5000, 0), Suspicion::Halved(2));
        assert_eq!(lose(&mut writer, 202, 2, 6000, 5500), Suspicion::Halved(1));
        assert_eq!(lose(&mut writer, 202, 1, 7000, 5500), Suspicion::Message(202));
        // The next record begins without a history.
        assert_eq!(lose(&mut writer, 204, 1, 8000, 5500), Suspicion::Outage(204));
    }

    #[test]
    fn a_message_that_fits_no_frame_is_named_and_stays() {
        let mut writer = Writer::default();
        writer.push(record(2, 1000, 1));
        let most = Most { bytes: 900, ..ANY };
        assert_eq!(writer.next(NOW, most).unwrap_err(), 101);
        assert_eq!(writer.next_copies(NOW, most), 0);
        assert!(!writer.is_empty());
    }
}
