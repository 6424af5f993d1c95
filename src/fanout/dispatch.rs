//! One destination partition: a FIFO of records, of which one batch at most is outstanding (I2).
//! What waits as an ack arrives goes out together (M16), small records always, large ones where the
//! round trip is long: a send costs little there, and rewriting a message costs what it is long.
//!
//! The writer knows the offset the destination must give to the next message. An ack with
//! another offset means that somebody else writes there or that our batch stands behind a hole:
//! the feed stops. A reply that was lost, or an empty confirmation, is *unknown*: the writer
//! forgets what it held and the feed looks at the destination before anything is sent again
//! (G5, M6).

use std::time::Duration;

use crate::iggy_wire::run::Limits;
use crate::iggy_wire::{Batch, Relay, Run, Runs};
use crate::time::Millis;

/// Pause after "not accepted" (58): a leader is being elected or the partition is not ready.
pub const NOT_ACCEPTED_PAUSE: Duration = Duration::from_millis(50);
/// Longest such pause.
pub const NOT_ACCEPTED_LONGEST: Duration = Duration::from_secs(1);
/// Unknown outcomes with an unmoved end after which the record is halved (M15).
pub const UNKNOWNS_UNTIL_HALVED: u32 = 3;

/// Records up to this length are always worth merging: to rewrite one costs less than to send it.
pub const SMALL_RECORD: usize = 64 * 1024;

/// How much may go out at once.
#[derive(Clone, Copy, Debug)]
pub struct Most {
    /// Bytes of a batch beside the names of its destination.
    pub bytes: usize,
    /// Bytes of several records merged into one batch (M16).
    pub merged: usize,
    /// The round trip is long: large records are merged too.
    pub is_far: bool,
}

/// What is on its way.
#[derive(Debug)]
pub struct InFlight {
    /// What was made of the records.
    pub batch: Batch,
    /// Destination offset its first message must get.
    pub expected: u64,
}

/// What an answer means for the feed.
#[derive(Debug)]
pub enum Ack {
    /// Acked at the expected offset; the batch is done.
    Done(Batch),
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
    queue: Runs,
    /// Was out already and goes out again as it is, before the queue.
    again: Option<Batch>,
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
        self.clear_queue();
        self.in_flight = None;
        self.next_offset = next_offset;
        self.not_before = Millis(0);
        self.refusals = 0;
    }

    /// Drops what is queued; returns true if a send is outstanding, whose outcome is unknown
    /// once its connection is gone.
    pub fn lost(&mut self) -> bool {
        self.clear_queue();
        self.in_flight.take().is_some()
    }

    /// Queues records behind what is there.
    pub fn push(&mut self, run: Run) {
        self.queue.push(run);
    }

    /// Neither queued nor outstanding.
    pub fn is_empty(&self) -> bool {
        !self.has_queued() && self.in_flight.is_none()
    }

    /// Bytes that wait behind what is outstanding.
    pub fn waiting(&self) -> u64 {
        self.queue.bytes() as u64
    }

    fn has_queued(&self) -> bool {
        !self.queue.is_empty() || self.again.is_some()
    }

    /// A send is outstanding.
    pub fn is_waiting(&self) -> bool {
        self.in_flight.is_some()
    }

    /// Drops what is queued but not sent.
    pub fn clear_queue(&mut self) {
        self.queue.clear();
        self.again = None;
    }

    /// Offset the next message must get.
    pub fn next_offset(&self) -> u64 {
        self.next_offset
    }

    /// Upstream offset of the next message to send, if nothing is outstanding.
    pub fn next_upstream(&self) -> Option<u64> {
        if self.in_flight.is_some() {
            return None;
        }
        let again = self.again.as_ref().map(Batch::first_offset);
        again.or_else(|| self.queue.first_offset())
    }

    /// When the next send may go out, if something waits.
    pub fn next_at(&self) -> Option<Millis> {
        (self.in_flight.is_none() && self.has_queued()).then_some(self.not_before)
    }

    /// The next batch to send: what waits, as far as `most` allows. `Err` names the upstream
    /// offset of a message that fits no frame.
    pub fn next(&mut self, now: Millis, most: Most) -> Result<Option<Relay>, u64> {
        if self.in_flight.is_some() || now < self.not_before {
            return Ok(None);
        }
        let batch = match self.again.take() {
            Some(batch) => Some(batch),
            None => self.queue.take(&self.limits(most))?,
        };
        let Some(batch) = batch else { return Ok(None) };
        let relay = batch.relay().clone();
        self.in_flight = Some(InFlight { batch, expected: self.next_offset });
        Ok(Some(relay))
    }

    /// Less than `most` where the destination does not take as much (M15).
    fn limits(&self, most: Most) -> Limits {
        Limits {
            bytes: most.bytes,
            merged: most.merged.min(most.bytes),
            messages: self.most_messages.unwrap_or(u32::MAX),
            large: if most.is_far { usize::MAX } else { SMALL_RECORD },
        }
    }

    /// The server confirmed; `None` is an empty confirmation.
    pub fn confirmed(&mut self, base_offset: Option<u64>) -> Ack {
        self.refusals = 0;
        let Some(confirmed) = base_offset else { return Ack::Unknown };
        let Some(done) = self.in_flight.take() else { return Ack::Unknown };
        if confirmed != done.expected {
            return Ack::Diverged { expected: done.expected, confirmed };
        }
        self.next_offset = done.expected + u64::from(done.batch.count());
        if self.most_messages.is_some() && done.batch.next_offset() >= self.unknowns.until {
            self.most_messages = None;
            self.unknowns = Unknowns::default();
        }
        Ack::Done(done.batch)
    }

    /// Acked where the server picks the partition: no offset is expected.
    pub fn confirmed_anywhere(&mut self) -> Option<Batch> {
        self.refusals = 0;
        self.in_flight.take().map(|done| done.batch)
    }

    /// The server did not accept it (58): it goes again after a pause.
    pub fn not_accepted(&mut self, now: Millis) {
        self.put_back();
        let pause = NOT_ACCEPTED_PAUSE * (1 << self.refusals.min(5));
        self.refusals = self.refusals.saturating_add(1);
        self.not_before = now + pause.min(NOT_ACCEPTED_LONGEST);
    }

    /// Puts the outstanding batch back in front: its send is known not to have been applied,
    /// or its mode allows a repeat.
    pub fn put_back(&mut self) {
        if let Some(refused) = self.in_flight.take() {
            self.again = Some(refused.batch);
        }
    }

    /// The upstream range of what is outstanding: first offset, next offset, messages.
    pub fn outstanding(&self) -> Option<(u64, u64, u32)> {
        let batch = &self.in_flight.as_ref()?.batch;
        Some((batch.first_offset(), batch.next_offset(), batch.count()))
    }

    /// An unknown outcome was looked into: the destination ends at the place of upstream offset
    /// `position`. `lost` is what [`Writer::outstanding`] said before.
    ///
    /// Until all of it is taken, no send has more messages than the one that was lost: else more
    /// would have come to wait meanwhile, and no two of them could be compared. Halving what was
    /// merged leads to its records first.
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
            self.most_messages = Some(messages);
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::iggy_wire::record::{Message, build_record};
    use crate::iggy_wire::{Polled, Verify};

    const NEAR: Most = Most { bytes: 64 << 20, merged: 8 << 20, is_far: false };
    const FAR: Most = Most { is_far: true, ..NEAR };
    const NOW: Millis = Millis(0);

    /// A reply with `records` records of `count` messages of `size` bytes from offset `first` on.
    fn run(first: u64, records: u64, count: u64, size: usize) -> Run {
        let payload = vec![7; size];
        let messages = vec![Message { payload: &payload, ..Message::default() }; count as usize];
        let record = build_record(&messages).unwrap();
        let stored: Vec<u8> =
            (0..records).flat_map(|n| record.stored(0, first + n * count, 0).to_vec()).collect();
        let count = u32::try_from(records * count).unwrap();
        let mut polled = Polled { partition: 0, current_offset: 0, count, records: stored.into() };
        polled.take_run(Verify::Full).unwrap().unwrap()
    }

    /// Sends everything: first offset, messages and records of each send.
    fn send_all(writer: &mut Writer, most: Most) -> Vec<(u64, u32, u32)> {
        let mut sent = Vec::new();
        while let Some(relay) = writer.next(NOW, most).unwrap() {
            assert!(writer.next(NOW, most).unwrap().is_none(), "one send at a time");
            let expected = writer.in_flight.as_ref().map(|sent| sent.expected);
            let Ack::Done(batch) = writer.confirmed(expected) else { panic!("not acked") };
            sent.push((relay.first_offset(), relay.count(), batch.records()));
        }
        assert!(writer.is_empty() && writer.waiting() == 0);
        sent
    }

    #[test]
    fn what_waits_goes_out_together_m16() {
        for most in [NEAR, FAR] {
            let mut writer = Writer::default();
            writer.push(run(100, 1, 1, 100));
            assert!(writer.next(NOW, most).unwrap().is_some());
            writer.push(run(101, 500, 1, 100));
            writer.push(run(601, 3, 20, 100));
            let Ack::Done(_) = writer.confirmed(Some(0)) else { panic!("not acked") };
            assert_eq!(send_all(&mut writer, most), [(101, 560, 503)]);
        }
    }

    #[test]
    fn large_records_are_merged_where_the_way_is_long_and_up_to_the_bound_m16() {
        let filled = |most| {
            let mut writer = Writer::default();
            writer.push(run(0, 10, 10, 100_000));
            send_all(&mut writer, most)
        };
        let alone: Vec<_> = (0..10).map(|n| (10 * n, 10, 1)).collect();
        assert_eq!(filled(NEAR), alone);
        assert_eq!(filled(FAR), [(0, 80, 8), (80, 20, 2)]);
        assert_eq!(filled(Most { merged: 4 << 20, ..FAR }), [(0, 40, 4), (40, 40, 4), (80, 20, 2)]);
        assert_eq!(filled(Most { merged: 1, ..FAR }), alone);
    }

    #[test]
    fn a_small_record_does_not_take_a_large_one_along_on_a_short_way() {
        let mut writer = Writer::default();
        writer.push(run(0, 3, 1, 100));
        writer.push(run(3, 2, 100, 1000));
        writer.push(run(203, 2, 1, 100));
        assert_eq!(
            send_all(&mut writer, NEAR),
            [(0, 3, 3), (3, 100, 1), (103, 100, 1), (203, 2, 2)]
        );
    }

    #[test]
    fn a_refused_batch_goes_out_again_as_it_was_m6() {
        let mut writer = Writer::default();
        writer.push(run(0, 5, 1, 100));
        let first = writer.next(NOW, NEAR).unwrap().unwrap();
        writer.push(run(5, 5, 1, 100));
        writer.not_accepted(NOW);
        assert_eq!(writer.next_upstream(), Some(0));
        assert!(writer.next(NOW, NEAR).unwrap().is_none(), "a pause first");
        let later = writer.next_at().unwrap();
        let again = writer.next(later, NEAR).unwrap().unwrap();
        assert_eq!((again.header(), again.blob()), (first.header(), first.blob()));
        let Ack::Done(_) = writer.confirmed(Some(0)) else { panic!("not acked") };
        let next = writer.next(later, NEAR).unwrap().unwrap();
        assert_eq!((next.first_offset(), next.count()), (5, 5));
    }

    #[test]
    fn a_merged_batch_that_vanishes_is_sent_no_larger_and_halved_into_its_records_m15() {
        let mut writer = Writer::default();
        let (lost, at) = ((0, 24, 24), Lookup { now: NOW, behind: None });
        assert_eq!(writer.looked(0, lost, at), Suspicion::None);
        // More came to wait meanwhile.
        writer.push(run(0, 10, 8, 100));
        assert_eq!(writer.next(NOW, NEAR).unwrap().unwrap().count(), 24);
        assert_eq!(writer.outstanding(), Some(lost));
        assert!(writer.lost());
        assert_eq!(writer.looked(0, lost, at), Suspicion::None);
        assert_eq!(writer.looked(0, lost, at), Suspicion::Halved(12));
        writer.push(run(0, 10, 8, 100));
        let mut sent = Vec::new();
        for messages in [8, 8, 8, 56] {
            assert_eq!(writer.next(NOW, NEAR).unwrap().unwrap().count(), messages);
            let Ack::Done(batch) = writer.confirmed(Some(writer.next_offset())) else {
                panic!("not acked")
            };
            sent.push(batch.records());
        }
        assert_eq!(sent, [1, 1, 1, 7], "whole records, and together again behind what was lost");
    }

    #[test]
    fn fewer_messages_than_were_lost_are_a_count_of_their_own_m15() {
        let mut writer = Writer::default();
        let at = Lookup { now: NOW, behind: Some(Millis(1)) };
        assert_eq!(writer.looked(0, (0, 24, 24), at), Suspicion::None);
        assert_eq!(writer.looked(0, (0, 24, 24), at), Suspicion::None);
        assert_eq!(writer.looked(0, (0, 1, 1), at), Suspicion::None, "less was waiting");
        assert_eq!(writer.looked(0, (0, 1, 1), at), Suspicion::None);
        writer.push(run(0, 10, 8, 100));
        assert_eq!(writer.next(NOW, NEAR).unwrap().unwrap().count(), 1);
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
        writer.push(run(100, 1, 2, 1000));
        let most = Most { bytes: 900, ..NEAR };
        assert_eq!(writer.next(NOW, most).unwrap_err(), 100);
        assert_eq!(writer.next_upstream(), Some(100));
        assert!(!writer.is_empty());
    }

    #[test]
    fn a_record_longer_than_a_frame_goes_out_in_pieces() {
        let mut writer = Writer::default();
        writer.push(run(100, 1, 41, 1000));
        let sent = send_all(&mut writer, Most { bytes: 12_000, ..NEAR });
        assert!(sent.len() > 3 && sent.iter().all(|(_, count, _)| *count <= 11), "{sent:?}");
        let next = sent.iter().fold(100, |at, (first, count, _)| {
            assert_eq!(*first, at);
            at + u64::from(*count)
        });
        assert_eq!(next, 141);
    }
}
