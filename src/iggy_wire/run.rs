//! Records on their way out, in the buffers they came in.
//!
//! ```text
//! a poll reply      header frames | header frames | header frames …
//! one goes alone           frames                                     as it lies, by reference
//! several go           frames frames frames                           moved together, renumbered
//! ```
//!
//! A [`Run`] owns the buffer of its reply and gives away disjoint parts of it, so what is sent is
//! never written to again, and what is rewritten was never sent: merging takes no memory. What a
//! merged batch takes from several replies stays in as many parts. A record that lost its first
//! messages is renumbered on the way out, alone or not, or the destination would lose messages.

use std::collections::VecDeque;
use std::ops::Range;

use bytes::{Buf, Bytes, BytesMut};

use super::blob::{BATCH_HEADER_LEN, BatchChecksum, BatchHeader, Frame, resettle};
use super::command::Polled;
use super::record::{Checked, MessageView, RecordError, Relay, Verify, check};

/// Most parts of one merged batch: bounds the list of a vectored write.
pub const PARTS_MOST: usize = 16;
/// Most messages of a merged batch; servers were seen to take as many in one.
pub const MERGED_MESSAGES_MOST: u32 = 100_000;

/// The records of one poll reply that are not sent yet: checked, and without holes.
#[derive(Debug)]
pub struct Run {
    /// The frames of the record in front, then whole records.
    bytes: BytesMut,
    front: Front,
    next_offset: u64,
    last: Tail,
    /// The record before the last one, as far as it is known.
    before: Option<Tail>,
}

/// The record in front of a run; its header is gone from the buffer.
#[derive(Clone, Copy, Debug)]
struct Front {
    first_offset: u64,
    count: u32,
    origin_timestamp: u64,
    /// Bytes of its frames.
    len: usize,
}

/// How a record ends.
#[derive(Clone, Copy, Debug)]
struct Tail {
    first_offset: u64,
    origin_timestamp: u64,
    /// Its header and frames.
    len: usize,
    /// Its last frame.
    frame: usize,
}

/// How much may go out at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Header and frames of a batch, bytes: what a request holds.
    pub bytes: usize,
    /// The same of several records together.
    pub merged: usize,
    /// Messages of a batch, at least 1.
    pub messages: u32,
    /// Records above this many bytes are not merged.
    pub large: usize,
}

/// What goes out with one send: one record, a part of one, or several together. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Batch {
    relay: Relay,
    records: u32,
    origin_timestamp: u64,
    /// Length of the last frame.
    last: usize,
}

/// The runs that wait, in order.
#[derive(Debug, Default)]
pub struct Runs {
    runs: VecDeque<Run>,
    bytes: usize,
}

impl Polled {
    /// Checks the records and takes them, up to the first hole; what the reply said stays. `None`:
    /// there are none.
    pub fn take_run(&mut self, verify: Verify) -> Result<Option<Run>, RecordError> {
        let records = std::mem::take(&mut self.records);
        let found = Found::scan(&records, verify)?;
        if found.messages != u64::from(self.count) {
            let offset = found.first.map_or(0, |first| first.first_offset);
            let sum = found.messages;
            let why =
                format!("the reply announces {} messages, its records hold {sum}", self.count);
            return Err(RecordError { offset, why });
        }
        let (Some(front), Some(last)) = (found.first, found.last) else { return Ok(None) };
        // The driver hands its buffer over; where somebody else reads it too, it is copied.
        let mut bytes =
            records.try_into_mut().unwrap_or_else(|shared| BytesMut::from(shared.as_ref()));
        bytes.truncate(found.end);
        bytes.advance(BATCH_HEADER_LEN.min(bytes.len()));
        let (next_offset, before) = (found.next_offset, found.before);
        Ok(Some(Run { bytes, front, next_offset, last, before }))
    }
}

/// What a pass over a reply found, up to the first hole.
#[derive(Default)]
struct Found {
    first: Option<Front>,
    last: Option<Tail>,
    before: Option<Tail>,
    next_offset: u64,
    /// Where the last record before a hole ends.
    end: usize,
    /// Of all records.
    messages: u64,
}

impl Found {
    fn scan(records: &[u8], verify: Verify) -> Result<Found, RecordError> {
        let mut found = Found::default();
        let (mut at, mut expected, mut is_whole) = (0, 0, true);
        while at < records.len() {
            let checked = check(records, at, expected, verify)?;
            is_whole &= at == 0 || checked.first_offset() == expected;
            if is_whole {
                found.add(&checked, at);
            }
            found.messages = found.messages.saturating_add(u64::from(checked.header.message_count));
            expected = checked.next_offset();
            at = checked.frames.end;
        }
        Ok(found)
    }

    fn add(&mut self, checked: &Checked, at: usize) {
        let frames = checked.frames.len();
        let origin_timestamp = checked.header.origin_timestamp;
        let first_offset = checked.first_offset();
        self.first.get_or_insert(Front {
            first_offset,
            count: checked.header.message_count,
            origin_timestamp,
            len: frames,
        });
        self.before = self.last;
        self.last = Some(Tail {
            first_offset,
            origin_timestamp,
            len: checked.frames.end.saturating_sub(at),
            frame: frames.saturating_sub(checked.last),
        });
        self.next_offset = checked.next_offset();
        self.end = checked.frames.end;
    }
}

impl Front {
    /// The record that begins at `at`, which was checked before.
    fn read(bytes: &[u8], at: usize) -> Option<Front> {
        let rest = bytes.get(at..)?;
        let header = BatchHeader::read(rest.first_chunk::<BATCH_HEADER_LEN>()?);
        let first = Frame::at(rest, BATCH_HEADER_LEN)?;
        let length = usize::try_from(header.batch_length).ok()?;
        Some(Front {
            first_offset: header.base_offset.saturating_add(u64::from(first.offset_delta)),
            count: header.message_count,
            origin_timestamp: header.origin_timestamp,
            len: length.saturating_sub(BATCH_HEADER_LEN),
        })
    }

    fn next_offset(&self) -> u64 {
        self.first_offset.saturating_add(u64::from(self.count))
    }

    /// Header and frames.
    fn size(&self) -> usize {
        BATCH_HEADER_LEN.saturating_add(self.len)
    }
}

impl Run {
    /// Absolute offset of the first message.
    pub fn first_offset(&self) -> u64 {
        self.front.first_offset
    }

    /// Offset behind the last message.
    pub fn next_offset(&self) -> u64 {
        self.next_offset
    }

    /// Messages, at least 1.
    pub fn count(&self) -> u64 {
        self.next_offset.saturating_sub(self.front.first_offset)
    }

    /// The first message.
    pub fn first(&self) -> Option<MessageView<'_>> {
        let frame = Frame::at(&self.bytes, 0)?;
        Some(view(&frame, self.front.first_offset, self.front.origin_timestamp))
    }

    /// The last message.
    pub fn last(&self) -> Option<MessageView<'_>> {
        let frame = Frame::at(&self.bytes, self.bytes.len().checked_sub(self.last.frame)?)?;
        Some(view(&frame, self.next_offset.saturating_sub(1), self.last.origin_timestamp))
    }

    /// Bytes of the last record, and of those before it.
    pub fn last_and_rest(&self) -> (usize, usize) {
        let all = self.bytes.len().saturating_add(BATCH_HEADER_LEN);
        (self.last.len, all.saturating_sub(self.last.len))
    }

    /// Without the last record; `None` if it is the only one, or if one was dropped before.
    pub fn without_last(mut self) -> Option<Run> {
        let before = self.before.take()?;
        let rest = self.bytes.len().checked_sub(self.last.len)?;
        self.bytes.truncate(rest);
        self.next_offset = self.last.first_offset;
        self.last = before;
        Some(self)
    }

    /// Without the messages below `offset`; `None` if nothing is left.
    pub fn from_offset(mut self, offset: u64) -> Option<Run> {
        while self.front.next_offset() <= offset {
            self.bytes.advance(self.front.len.min(self.bytes.len()));
            self.open_next().then_some(())?;
        }
        let dropped = offset.saturating_sub(self.front.first_offset);
        let dropped = u32::try_from(dropped).ok().filter(|dropped| *dropped > 0);
        if let Some(dropped) = dropped {
            let (_, end) = self.head(dropped)?;
            self.drop_front(dropped, end);
            self.bytes.advance(end);
        }
        Some(self)
    }

    /// The records and where their frames lie.
    fn records(&self) -> impl Iterator<Item = (Front, Range<usize>)> {
        let mut next = Some((self.front, 0_usize));
        std::iter::from_fn(move || {
            let (record, at) = next?;
            let end = at.saturating_add(record.len);
            next = Front::read(&self.bytes, end)
                .map(|record| (record, end.saturating_add(BATCH_HEADER_LEN)));
            Some((record, at..end))
        })
    }

    /// Where the last of the first `count` messages of the record in front begins and ends.
    fn head(&self, count: u32) -> Option<(usize, usize)> {
        let (mut last, mut end) = (0, 0);
        for _ in 0..count {
            last = end;
            end = Frame::at(&self.bytes, end)?.end;
        }
        Some((last, end))
    }

    /// The first `count` messages of the record in front, `len` bytes, are no longer part of it.
    fn drop_front(&mut self, count: u32, len: usize) {
        let front = &mut self.front;
        front.first_offset = front.first_offset.saturating_add(u64::from(count));
        front.count = front.count.saturating_sub(count);
        front.len = front.len.saturating_sub(len);
    }

    /// What lay in front is gone from the buffer; false if nothing follows.
    fn open_next(&mut self) -> bool {
        let Some(front) = Front::read(&self.bytes, 0) else { return false };
        self.front = front;
        self.bytes.advance(BATCH_HEADER_LEN.min(self.bytes.len()));
        true
    }
}

impl Batch {
    /// As a request carries it.
    pub fn relay(&self) -> &Relay {
        &self.relay
    }

    /// Upstream records, whole or in part.
    pub fn records(&self) -> u32 {
        self.records
    }

    /// Messages.
    pub fn count(&self) -> u32 {
        self.relay.count()
    }

    /// Bytes of header and frames.
    #[expect(clippy::len_without_is_empty, reason = "a batch holds at least one message")]
    pub fn len(&self) -> usize {
        self.relay.len()
    }

    /// Upstream offset of the first message.
    pub fn first_offset(&self) -> u64 {
        self.relay.first_offset()
    }

    /// Upstream offset behind the last message.
    pub fn next_offset(&self) -> u64 {
        self.first_offset().saturating_add(u64::from(self.count()))
    }

    /// The last message, with its upstream offset.
    pub fn last(&self) -> Option<MessageView<'_>> {
        let part = self.relay.more().last().unwrap_or(self.relay.blob());
        let frame = Frame::at(part, part.len().checked_sub(self.last)?)?;
        Some(view(&frame, self.next_offset().saturating_sub(1), self.origin_timestamp))
    }
}

fn view<'a>(frame: &Frame<'a>, offset: u64, origin_timestamp: u64) -> MessageView<'a> {
    MessageView {
        offset,
        id: frame.id,
        origin_timestamp: origin_timestamp.saturating_add(u64::from(frame.timestamp_delta)),
        payload: frame.payload,
        user_headers: frame.user_headers,
    }
}

/// What can go out together, counted from the front.
#[derive(Debug, Default)]
struct Plan {
    records: u32,
    count: u32,
    /// Bytes of the frames.
    len: usize,
    /// Oldest and newest origin timestamp; `None` where the first record goes alone.
    span: Option<(u64, u64)>,
    next_offset: u64,
    /// Runs that go out as a whole.
    runs: usize,
    /// Bytes of the run behind them that go out too.
    rest: usize,
}

impl Plan {
    /// Adds a record if it fits.
    fn takes(&mut self, record: &Front, frames: &[u8], limits: &Limits) -> bool {
        let len = self.len.saturating_add(record.len);
        let size = BATCH_HEADER_LEN.saturating_add(len);
        let count = self.count.saturating_add(record.count);
        let is_large = record.size() > limits.large;
        if size > limits.bytes || count > limits.messages {
            return false;
        }
        if self.records == 0 {
            // Alone it needs no span.
            self.span = if is_large { None } else { span_of(record, frames) };
        } else {
            let is_next = record.first_offset == self.next_offset;
            let fits = size <= limits.merged && count <= MERGED_MESSAGES_MOST;
            if is_large || !is_next || !fits || self.span.is_none() {
                return false;
            }
            let spans = self.span.zip(span_of(record, frames));
            let span = spans.map(|(a, b)| (a.0.min(b.0), a.1.max(b.1)));
            // A frame says in 32 bits how much younger it is than the batch.
            let Some(span) = span.filter(|(old, new)| new.abs_diff(*old) <= u64::from(u32::MAX))
            else {
                return false;
            };
            self.span = Some(span);
        }
        self.records = self.records.saturating_add(1);
        (self.count, self.len) = (count, len);
        self.next_offset = record.next_offset();
        true
    }
}

/// Origin timestamp of a record and that of its newest message; `None` if that one passes the end
/// of time.
fn span_of(record: &Front, frames: &[u8]) -> Option<(u64, u64)> {
    let (mut longest, mut at) = (0, 0);
    while let Some(frame) = Frame::at(frames, at) {
        longest = longest.max(frame.timestamp_delta);
        at = frame.end;
    }
    let oldest = record.origin_timestamp;
    Some((oldest, oldest.checked_add(u64::from(longest))?))
}

impl Runs {
    /// Behind what waits.
    pub fn push(&mut self, run: Run) {
        self.bytes = self.bytes.saturating_add(run.bytes.len());
        self.runs.push_back(run);
    }

    /// Nothing waits any more.
    pub fn clear(&mut self) {
        *self = Runs::default();
    }

    /// Nothing waits.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Bytes that wait.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Offset of the first message that waits.
    pub fn first_offset(&self) -> Option<u64> {
        self.runs.front().map(Run::first_offset)
    }

    /// What goes out next, as much as `limits` allow: several records, one, or the first messages
    /// of one. `Err` names the offset of a message that is too large by itself.
    pub fn take(&mut self, limits: &Limits) -> Result<Option<Batch>, u64> {
        let plan = self.plan(limits);
        let Some(run) = self.runs.front_mut() else { return Ok(None) };
        let batch = match plan.records {
            0 => cut(run, limits)?,
            1 => alone(run),
            _ => self.merged(&plan),
        };
        if self.runs.front_mut().is_some_and(|run| run.front.count == 0 && !run.open_next()) {
            self.runs.pop_front();
        }
        self.bytes = self.runs.iter().map(|run| run.bytes.len()).sum();
        Ok(batch)
    }

    fn plan(&self, limits: &Limits) -> Plan {
        let mut plan = Plan::default();
        for run in self.runs.iter().take(PARTS_MOST) {
            for (record, at) in run.records() {
                let end = at.end;
                let frames = run.bytes.get(at).unwrap_or_default();
                if !plan.takes(&record, frames, limits) {
                    return plan;
                }
                plan.rest = end;
            }
            plan.runs = plan.runs.saturating_add(1);
            plan.rest = 0;
        }
        plan
    }

    /// The records of `plan` as one batch.
    fn merged(&mut self, plan: &Plan) -> Option<Batch> {
        let (oldest, _) = plan.span?;
        let length = BATCH_HEADER_LEN.saturating_add(plan.len);
        let header = BatchHeader {
            origin_timestamp: oldest,
            batch_length: u64::try_from(length).unwrap_or(u64::MAX),
            message_count: plan.count,
            ..BatchHeader::default()
        };
        let mut merge = Merge::new(&header);
        let first_offset = self.first_offset()?;
        let mut parts = VecDeque::with_capacity(plan.runs.saturating_add(1));
        for _ in 0..plan.runs {
            let Some(run) = self.runs.pop_front() else { break };
            parts.push_back(merge.settle(run.front, run.bytes));
        }
        if plan.rest > 0
            && let Some(run) = self.runs.front_mut()
        {
            let bytes = run.bytes.split_to(plan.rest.min(run.bytes.len()));
            parts.push_back(merge.settle(run.front, bytes));
            run.front.count = 0;
        }
        let blob = parts.pop_front()?;
        Some(merge.batch(blob, parts.into(), header, first_offset))
    }
}

/// The record in front as a whole, which then is gone from the run.
fn alone(run: &mut Run) -> Option<Batch> {
    let frames = run.bytes.split_to(run.front.len.min(run.bytes.len()));
    let front = run.front;
    run.front.count = 0;
    renumbered_if_cut(front, frames)
}

/// The first messages of the record in front, as many as fit; the others stay.
fn cut(run: &mut Run, limits: &Limits) -> Result<Option<Batch>, u64> {
    let mut count = run.front.count.min(limits.messages.max(1));
    loop {
        let Some((_, end)) = run.head(count) else { return Ok(None) };
        if BATCH_HEADER_LEN.saturating_add(end) <= limits.bytes {
            let head = Front { count, len: end, ..run.front };
            run.drop_front(count, end);
            return Ok(renumbered_if_cut(head, run.bytes.split_to(end)));
        }
        if count == 1 {
            return Err(run.front.first_offset);
        }
        count /= 2;
    }
}

/// One record as a batch: the frames as they lie, unless the first ones were cut off.
fn renumbered_if_cut(record: Front, frames: BytesMut) -> Option<Batch> {
    let length = BATCH_HEADER_LEN.saturating_add(frames.len());
    let header = BatchHeader {
        origin_timestamp: record.origin_timestamp,
        batch_length: u64::try_from(length).unwrap_or(u64::MAX),
        message_count: record.count,
        ..BatchHeader::default()
    };
    let mut merge = Merge::new(&header);
    let blob = match Frame::at(&frames, 0)?.offset_delta {
        0 => merge.keep(frames),
        _ => merge.settle(record, frames),
    };
    Some(merge.batch(blob, Vec::new(), header, record.first_offset))
}

/// A batch in the making.
struct Merge {
    /// Origin timestamp of the batch; no record of it has an older one.
    oldest: u64,
    sum: BatchChecksum,
    records: u32,
    /// Messages so far.
    count: u32,
    /// Length of the last frame.
    last: usize,
}

impl Merge {
    /// `header` as it will be sent, but for the checksum.
    fn new(header: &BatchHeader) -> Merge {
        let sum = BatchChecksum::new(header);
        Merge { oldest: header.origin_timestamp, sum, records: 0, count: 0, last: 0 }
    }

    /// Frames that are numbered from 0 already.
    fn keep(&mut self, frames: BytesMut) -> Bytes {
        let mut at = 0;
        while let Some(frame) = Frame::at(&frames, at) {
            self.sum.add(frame.checksum);
            self.last = frame.bytes.len();
            at = frame.end;
        }
        self.records = 1;
        frames.freeze()
    }

    /// The frames of `record`, which begin the buffer, and of the records behind them: moved
    /// together and numbered on, where they lie.
    fn settle(&mut self, mut record: Front, mut bytes: BytesMut) -> Bytes {
        let (mut from, mut to) = (0, 0);
        loop {
            let later = record.origin_timestamp.saturating_sub(self.oldest);
            let later = u32::try_from(later).unwrap_or(u32::MAX);
            for _ in 0..record.count {
                let settled = resettle(&mut bytes, from, to, self.count, later);
                let Some((len, checksum)) = settled else { break };
                self.sum.add(checksum);
                self.count = self.count.saturating_add(1);
                self.last = len;
                (from, to) = (from.saturating_add(len), to.saturating_add(len));
            }
            self.records = self.records.saturating_add(1);
            let Some(next) = Front::read(&bytes, from) else { break };
            record = next;
            from = from.saturating_add(BATCH_HEADER_LEN);
        }
        bytes.truncate(to);
        bytes.freeze()
    }

    fn batch(self, blob: Bytes, more: Vec<Bytes>, header: BatchHeader, first_offset: u64) -> Batch {
        let header = BatchHeader { batch_checksum: self.sum.finish(), ..header };
        let relay = Relay::merged(blob, more, header, first_offset);
        let (records, last) = (self.records, self.last);
        Batch { relay, records, origin_timestamp: header.origin_timestamp, last }
    }
}

#[cfg(test)]
mod tests {
    use super::super::build::{Message, build_record};
    use super::*;

    const ANY: Limits =
        Limits { bytes: usize::MAX, merged: usize::MAX, messages: u32::MAX, large: usize::MAX };

    /// A reply with one message per record, at these offsets and origin times.
    fn polled(messages: &[(u64, u64)]) -> Polled {
        let record = |&(offset, origin_timestamp): &(u64, u64)| {
            let message = Message { origin_timestamp, payload: b"abc", ..Message::default() };
            build_record(&[message]).unwrap().stored(0, offset, 0).to_vec()
        };
        let records: Vec<u8> = messages.iter().flat_map(record).collect();
        let count = u32::try_from(messages.len()).unwrap();
        Polled { partition: 0, current_offset: 0, count, records: records.into() }
    }

    fn run(messages: &[(u64, u64)]) -> Run {
        polled(messages).take_run(Verify::Full).unwrap().unwrap()
    }

    /// Messages of each batch that everything goes out in.
    fn counts(run: Run) -> Vec<u32> {
        let mut runs = Runs::default();
        runs.push(run);
        std::iter::from_fn(|| runs.take(&ANY).unwrap()).map(|batch| batch.count()).collect()
    }

    #[test]
    fn a_merge_breaks_where_a_frame_cannot_say_how_much_younger_it_is() {
        let far = u64::from(u32::MAX);
        assert_eq!(counts(run(&[(0, 5), (1, 5 + far), (2, 9)])), [3]);
        assert_eq!(counts(run(&[(0, 5), (1, 6 + far), (2, 7 + far)])), [1, 2]);
        assert_eq!(counts(run(&[(0, 6 + far), (1, 7), (2, 5), (3, 6)])), [2, 2]);
        assert_eq!(counts(run(&[(0, u64::MAX), (1, u64::MAX)])), [2]);
    }

    #[test]
    fn a_run_ends_before_a_hole_and_names_what_it_holds() {
        let run = run(&[(7, 1), (8, 2), (10, 3)]);
        assert_eq!((run.first_offset(), run.next_offset(), run.count()), (7, 9, 2));
        let seen = |message: Option<MessageView<'_>>| {
            message.map(|message| (message.offset, message.origin_timestamp))
        };
        assert_eq!((seen(run.first()), seen(run.last())), (Some((7, 1)), Some((8, 2))));
        assert_eq!(run.last_and_rest(), (256 + 51, 256 + 51));
        let short = run.without_last().unwrap();
        assert_eq!((short.next_offset(), seen(short.last())), (8, Some((7, 1))));
        assert!(short.without_last().is_none());
    }

    #[test]
    fn a_run_goes_on_at_any_of_its_messages_and_at_no_other() {
        let at = |offset| run(&[(7, 1), (8, 2), (9, 3)]).from_offset(offset);
        assert_eq!(at(0).map(|run| run.first_offset()), Some(7));
        for offset in 7..10 {
            let run = at(offset).unwrap();
            assert_eq!((run.first_offset(), run.next_offset()), (offset, 10));
            assert_eq!(counts(run), [u32::try_from(10 - offset).unwrap()]);
        }
        assert!(at(10).is_none() && at(u64::MAX).is_none());
    }

    #[test]
    fn a_reply_that_is_ours_alone_is_rewritten_where_it_lies_and_another_is_left_alone() {
        for is_shared in [false, true] {
            let mut polled = polled(&[(0, 1), (1, 2), (2, 3)]);
            let (before, at) = (polled.records.to_vec(), polled.records.as_ptr());
            let other = is_shared.then(|| polled.records.clone());
            let mut runs = Runs::default();
            runs.push(polled.take_run(Verify::Full).unwrap().unwrap());
            let batch = runs.take(&ANY).unwrap().unwrap();
            assert_eq!(batch.count(), 3);
            let is_there = batch.relay().blob().as_ptr() == at.wrapping_add(256);
            assert_eq!(is_there, !is_shared);
            assert!(other.is_none_or(|other| other == before));
        }
    }

    #[test]
    fn a_record_that_goes_alone_is_not_touched() {
        let mut polled = polled(&[(5, 1), (6, 2)]);
        let before = polled.records.to_vec();
        let mut runs = Runs::default();
        runs.push(polled.take_run(Verify::Full).unwrap().unwrap());
        let limits = Limits { large: 0, ..ANY };
        for (nth, frames) in before.chunks(256 + 51).enumerate() {
            let batch = runs.take(&limits).unwrap().unwrap();
            assert_eq!((batch.first_offset(), batch.records()), (5 + nth as u64, 1));
            assert_eq!(batch.relay().blob(), &frames[256..]);
        }
        assert!(runs.is_empty());
    }

    #[test]
    fn no_more_parts_and_messages_are_merged_than_named() {
        let mut runs = Runs::default();
        let parts = PARTS_MOST as u64;
        (0..parts + 2).for_each(|n| runs.push(run(&[(n, 1)])));
        assert_eq!(runs.take(&ANY).unwrap().unwrap().relay().more().len(), PARTS_MOST - 1);
        assert_eq!(runs.take(&ANY).unwrap().unwrap().count(), 2);
        let most = u64::from(MERGED_MESSAGES_MOST);
        let many: Vec<(u64, u64)> = (0..most + 5).map(|n| (n, n)).collect();
        assert_eq!(counts(run(&many)), [MERGED_MESSAGES_MOST, 5]);
    }
}
