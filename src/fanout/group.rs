//! The batch under construction: rows are written straight into the records that will be sent,
//! one per destination and partition. Pure; one instance per feed.
//!
//! ```text
//! begin(where) ─▶ body(): payload ─▶ end_payload ─▶ body(): headers ─▶ end   …   ─▶ close
//! ```
//!
//! A record is closed early and followed by another where it would pass a frame or span more than
//! 71 minutes of origin time; the order within one destination partition stays that of the rows.
//! So it does where the partitions of a topic become known, or are not known any more, under an
//! open batch: what is open for it is closed first ([`Groups::split`]).

use hashbrown::HashMap;

use super::admission::Reason;
use super::destinations::DestId;
use super::partition::Wish;
use super::route::KeyChoice;
use crate::iggy_wire::BatchBuilder;

/// A buffer is worth keeping up to this many of them.
const MOST_SPARE: usize = 32;
/// First room of a record.
const FIRST_ROOM: usize = 16 << 10;
/// A record in a buffer of this many times its size is copied out of it.
const LOOSE: usize = 4;

/// The messages of one batch for one destination, in order.
#[derive(Debug)]
pub struct Group {
    /// Where to.
    pub dest: DestId,
    /// Which partition.
    pub target: Target,
    /// The messages.
    pub content: Content,
}

/// Which partition a group is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// This one.
    Partition(u32),
    /// One for each message, worked out when the topic's partitions are known.
    Later(Vec<Wish>),
}

/// What a group holds.
#[derive(Debug)]
pub enum Content {
    /// Messages.
    Batch(BatchBuilder),
    /// One message that cannot be sent and holds its place (A4).
    Stone(Reason),
}

/// What came of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It is in.
    Added,
    /// It fits no frame and was taken out again; `size` is that of its record.
    TooLarge {
        /// Bytes.
        size: usize,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Slot {
    Partition(u32),
    Later,
}

#[derive(Debug)]
struct Open {
    dest: DestId,
    slot: Slot,
    batch: BatchBuilder,
    wishes: Vec<Wish>,
}

/// The groups of the batch that is being filled.
#[derive(Debug)]
pub struct Groups {
    open: Vec<Open>,
    index: HashMap<(DestId, Slot), usize>,
    /// Where a destination's last record was among the open ones. Looked at before the index, and
    /// checked there: rows of a few destinations take turns.
    hints: Vec<usize>,
    /// Where the message under construction goes.
    current: usize,
    wish: Wish,
    /// Closed early, in order.
    closed: Vec<Group>,
    bytes: usize,
    messages: u64,
    most_bytes: usize,
    /// Rows of different destinations keep their order (`max_concurrent_destinations = 1`).
    ordered: bool,
    spare: Vec<Vec<u8>>,
    spare_bytes: usize,
}

impl Groups {
    /// A batch is full at `most_bytes`.
    pub fn new(most_bytes: usize, ordered: bool) -> Groups {
        Groups {
            open: Vec::new(),
            index: HashMap::new(),
            hints: Vec::new(),
            current: 0,
            wish: Wish::Balanced,
            closed: Vec::new(),
            bytes: 0,
            messages: 0,
            most_bytes,
            ordered,
            spare: Vec::new(),
            spare_bytes: 0,
        }
    }

    /// Begins a message for this destination.
    pub fn begin(&mut self, dest: DestId, choice: KeyChoice, id: u128, origin_us: u64) {
        let slot = slot(choice);
        if let KeyChoice::Later(wish) = choice {
            self.wish = wish;
        }
        if !self.is_at(self.current, dest, slot) {
            match self.hints.get(dest.index()) {
                Some(at) if !self.ordered && self.is_at(*at, dest, slot) => self.current = *at,
                _ => self.turn_to(dest, slot),
            }
        }
        if !self.open[self.current].batch.takes(origin_us) {
            self.close_current();
        }
        self.open[self.current].batch.begin(id, origin_us);
    }

    /// Where payload, and behind [`Groups::end_payload`] user headers, are appended.
    pub fn body(&mut self) -> &mut Vec<u8> {
        self.open[self.current].batch.body()
    }

    /// The payload is complete.
    pub fn end_payload(&mut self) {
        self.open[self.current].batch.end_payload();
    }

    /// Forgets the message under construction.
    pub fn abandon(&mut self) {
        self.open[self.current].batch.abandon();
    }

    /// The message is complete. `most_record`: what fits a frame of this destination.
    pub fn end(&mut self, most_record: usize) -> Ended {
        let open = &mut self.open[self.current];
        let before = open.batch.record_len();
        if open.batch.end().is_err() {
            return Ended::TooLarge { size: before };
        }
        let size = open.batch.last_len();
        if size > most_record {
            drop(open.batch.take_last());
            return Ended::TooLarge { size };
        }
        if open.batch.record_len() > most_record {
            let last = open.batch.take_last();
            self.close_current();
            self.open[self.current].batch = last;
        }
        if self.open[self.current].slot == Slot::Later {
            self.open[self.current].wishes.push(self.wish);
        }
        self.bytes += size;
        self.messages += 1;
        Ended::Added
    }

    /// A message that cannot be sent holds its place here.
    pub fn stone(&mut self, dest: DestId, choice: KeyChoice, reason: Reason) {
        let slot = slot(choice);
        self.turn_to(dest, slot);
        self.close_current();
        let wishes = match choice {
            KeyChoice::Later(wish) => vec![wish],
            KeyChoice::Partition(_) => Vec::new(),
        };
        let target = target(slot, wishes);
        self.closed.push(Group { dest, target, content: Content::Stone(reason) });
        self.messages += 1;
    }

    /// Closes every record of this destination: what comes is placed by other facts, and stands
    /// behind them.
    pub fn split(&mut self, dest: DestId) {
        let current = self.current;
        for at in 0..self.open.len() {
            if self.open[at].dest == dest && !self.open[at].batch.is_empty() {
                self.current = at;
                self.close_current();
            }
        }
        self.current = current;
    }

    /// Messages in it.
    pub fn messages(&self) -> u64 {
        self.messages
    }

    /// Nothing in it.
    pub fn is_empty(&self) -> bool {
        self.messages == 0
    }

    /// Bytes in it.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes its buffers take, spare ones included.
    pub fn room(&self) -> usize {
        let open: usize = self.open.iter().map(|open| open.batch.capacity()).sum();
        open + self.spare_bytes
    }

    /// Time to close it.
    pub fn is_full(&self) -> bool {
        self.bytes >= self.most_bytes
    }

    /// The groups, in an order that keeps each destination partition's; begins the next batch.
    pub fn close(&mut self) -> Vec<Group> {
        let mut groups = std::mem::take(&mut self.closed);
        for open in std::mem::take(&mut self.open) {
            groups.extend(self.finished(open));
        }
        self.index.clear();
        (self.current, self.bytes, self.messages) = (0, 0, 0);
        groups
    }

    /// Takes a buffer that is not needed any more. All of them together are as large as a batch,
    /// grown by doubling, can be.
    pub fn recycle(&mut self, buffer: Vec<u8>) {
        let bytes = buffer.capacity();
        let fits = self.spare_bytes + bytes <= 2 * self.most_bytes.max(FIRST_ROOM);
        if fits && bytes >= FIRST_ROOM && self.spare.len() < MOST_SPARE {
            self.spare_bytes += bytes;
            self.spare.push(buffer);
        }
    }

    /// Lets go of every buffer that is not in use.
    pub fn trim(&mut self) {
        self.spare = Vec::new();
        self.spare_bytes = 0;
    }

    fn is_at(&self, at: usize, dest: DestId, slot: Slot) -> bool {
        self.open.get(at).is_some_and(|open| open.dest == dest && open.slot == slot)
    }

    fn turn_to(&mut self, dest: DestId, slot: Slot) {
        if self.ordered && !self.open.is_empty() {
            self.close_current();
            let open = self.open.remove(self.current);
            self.index.clear();
            self.recycle(open.batch.into_buffer());
        }
        if let Some(index) = self.index.get(&(dest, slot)) {
            self.current = *index;
        } else {
            let batch = self.empty();
            self.current = self.open.len();
            self.index.insert((dest, slot), self.current);
            self.open.push(Open { dest, slot, batch, wishes: Vec::new() });
        }
        if self.hints.len() <= dest.index() {
            self.hints.resize(dest.index() + 1, 0);
        }
        self.hints[dest.index()] = self.current;
    }

    /// Closes the current record and begins another for the same destination.
    fn close_current(&mut self) {
        let fresh = self.empty();
        let open = &mut self.open[self.current];
        let full = Open {
            dest: open.dest,
            slot: open.slot,
            batch: std::mem::replace(&mut open.batch, fresh),
            wishes: std::mem::take(&mut open.wishes),
        };
        let group = self.finished(full);
        self.closed.extend(group);
    }

    fn empty(&mut self) -> BatchBuilder {
        let room = match self.spare.pop() {
            Some(room) => {
                self.spare_bytes -= room.capacity();
                room
            }
            None => Vec::with_capacity(FIRST_ROOM),
        };
        BatchBuilder::in_buffer(room)
    }

    fn finished(&mut self, open: Open) -> Option<Group> {
        if open.batch.is_empty() {
            self.recycle(open.batch.into_buffer());
            return None;
        }
        let mut batch = open.batch;
        if batch.capacity() / LOOSE > batch.record_len() {
            let (exact, old) = batch.compact();
            batch = exact;
            self.recycle(old);
        }
        let target = target(open.slot, open.wishes);
        Some(Group { dest: open.dest, target, content: Content::Batch(batch) })
    }
}

fn slot(choice: KeyChoice) -> Slot {
    match choice {
        KeyChoice::Partition(partition) => Slot::Partition(partition),
        KeyChoice::Later(_) => Slot::Later,
    }
}

fn target(slot: Slot, wishes: Vec<Wish>) -> Target {
    match slot {
        Slot::Partition(partition) => Target::Partition(partition),
        Slot::Later => Target::Later(wishes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fanout::partition::Wish;

    const A: DestId = DestId(0);
    const B: DestId = DestId(1);
    const P0: KeyChoice = KeyChoice::Partition(0);
    const P1: KeyChoice = KeyChoice::Partition(1);

    fn write(groups: &mut Groups, dest: DestId, choice: KeyChoice, id: u128, payload: &[u8]) {
        groups.begin(dest, choice, id, 1_000);
        groups.body().extend_from_slice(payload);
        groups.end_payload();
        assert_eq!(groups.end(1 << 20), Ended::Added);
    }

    /// Destination, partition or wishes, ids.
    fn shown(groups: Vec<Group>) -> Vec<(DestId, Target, Vec<u128>)> {
        let ids = |content| match content {
            Content::Batch(batch) => batch.messages().map(|message| message.id()).collect(),
            Content::Stone(_) => vec![0],
        };
        groups.into_iter().map(|group| (group.dest, group.target, ids(group.content))).collect()
    }

    #[test]
    fn rows_join_the_record_of_their_partition() {
        let mut groups = Groups::new(1 << 20, false);
        for (dest, choice, id) in [(A, P0, 1), (B, P0, 2), (A, P1, 3), (A, P0, 4), (B, P0, 5)] {
            write(&mut groups, dest, choice, id, b"x");
        }
        assert_eq!((groups.messages(), groups.is_empty()), (5, false));
        let expected = vec![
            (A, Target::Partition(0), vec![1, 4]),
            (B, Target::Partition(0), vec![2, 5]),
            (A, Target::Partition(1), vec![3]),
        ];
        assert_eq!(shown(groups.close()), expected);
        assert!(groups.is_empty() && groups.close().is_empty());
        write(&mut groups, B, P1, 6, b"x");
        assert_eq!(shown(groups.close()), [(B, Target::Partition(1), vec![6])]);
    }

    #[test]
    fn wishes_stand_beside_their_messages() {
        let mut groups = Groups::new(1 << 20, false);
        let later = |wish| KeyChoice::Later(wish);
        write(&mut groups, A, later(Wish::Balanced), 1, b"x");
        write(&mut groups, A, later(Wish::Hash(7)), 2, b"x");
        groups.begin(A, later(Wish::Id(3)), 9, 1_000);
        groups.abandon();
        groups.begin(A, later(Wish::Id(3)), 9, 1_000);
        groups.body().extend_from_slice(&[0; 200]);
        assert!(matches!(groups.end(300), Ended::TooLarge { .. }), "its wish leaves with it");
        write(&mut groups, A, later(Wish::Id(4)), 3, b"x");
        let wishes = vec![Wish::Balanced, Wish::Hash(7), Wish::Id(4)];
        assert_eq!(shown(groups.close()), [(A, Target::Later(wishes), vec![1, 2, 3])]);
    }

    #[test]
    fn a_record_that_would_pass_a_frame_is_followed_by_another() {
        let mut groups = Groups::new(1 << 20, false);
        for id in 1..=3u8 {
            groups.begin(A, KeyChoice::Later(Wish::Hash(u32::from(id))), u128::from(id), 1_000);
            groups.body().extend_from_slice(&[id; 100]);
            assert_eq!(groups.end(256 + 2 * 148), Ended::Added);
        }
        let hashes = |range: std::ops::RangeInclusive<u32>| range.map(Wish::Hash).collect();
        let expected = [
            (A, Target::Later(hashes(1..=2)), vec![1, 2]),
            (A, Target::Later(hashes(3..=3)), vec![3]),
        ];
        assert_eq!(shown(groups.close()), expected);
    }

    #[test]
    fn a_message_that_fits_no_frame_leaves_no_trace() {
        let mut groups = Groups::new(1 << 20, false);
        write(&mut groups, A, P0, 1, b"x");
        groups.begin(A, P0, 2, 1_000);
        groups.body().extend_from_slice(&[0; 300]);
        assert_eq!(groups.end(500), Ended::TooLarge { size: 256 + 48 + 300 });
        groups.stone(A, P0, Reason::TooLarge);
        write(&mut groups, A, P0, 3, b"x");
        let expected = [1, 0, 3].map(|id| (A, Target::Partition(0), vec![id]));
        assert_eq!(shown(groups.close()), expected, "the stone keeps its place");
    }

    #[test]
    fn what_is_placed_by_other_facts_stands_behind_what_was_placed_before() {
        let later = KeyChoice::Later(Wish::Hash(4));
        for ordered in [false, true] {
            let mut groups = Groups::new(1 << 20, ordered);
            write(&mut groups, A, P0, 1, b"x");
            groups.split(A);
            write(&mut groups, A, later, 2, b"x");
            groups.stone(A, later, Reason::TooLarge);
            write(&mut groups, A, later, 3, b"x");
            groups.split(A);
            groups.split(B);
            write(&mut groups, A, P0, 4, b"x");
            let ids: Vec<u128> = shown(groups.close()).into_iter().flat_map(|g| g.2).collect();
            assert_eq!(ids, [1, 2, 0, 3, 4], "{ordered}");
        }
    }

    #[test]
    fn a_split_leaves_other_destinations_and_no_empty_record() {
        let mut groups = Groups::new(1 << 20, false);
        write(&mut groups, A, P0, 1, b"x");
        write(&mut groups, B, P0, 2, b"x");
        groups.split(A);
        groups.split(A);
        write(&mut groups, B, P0, 3, b"x");
        let expected = [(A, Target::Partition(0), vec![1]), (B, Target::Partition(0), vec![2, 3])];
        assert_eq!(shown(groups.close()), expected);
        assert!(groups.is_empty());
    }

    #[test]
    fn origin_times_far_apart_begin_another_record() {
        let mut groups = Groups::new(1 << 20, false);
        let hour = 3_600_000_000;
        for (id, origin) in [(1, 5 * hour), (2, 5 * hour + hour), (3, 5 * hour + 2 * hour), (4, 0)]
        {
            groups.begin(A, P0, id, origin);
            assert_eq!(groups.end(1 << 20), Ended::Added);
        }
        let ids: Vec<Vec<u128>> =
            shown(groups.close()).into_iter().map(|(_, _, ids)| ids).collect();
        assert_eq!(ids, [vec![1, 2], vec![3], vec![4]]);
    }

    #[test]
    fn one_send_at_a_time_keeps_the_order_across_destinations() {
        let mut groups = Groups::new(1 << 20, true);
        for (dest, id) in [(A, 1), (A, 2), (B, 3), (A, 4)] {
            write(&mut groups, dest, P0, id, b"x");
        }
        let ids: Vec<Vec<u128>> =
            shown(groups.close()).into_iter().map(|(_, _, ids)| ids).collect();
        assert_eq!(ids, [vec![1, 2], vec![3], vec![4]]);
    }

    #[test]
    fn small_records_do_not_keep_large_buffers() {
        let mut groups = Groups::new(1 << 20, false);
        groups.recycle(Vec::with_capacity(1 << 20));
        groups.recycle(Vec::with_capacity(64 << 20));
        assert_eq!(groups.room(), 1 << 20, "one of them is too large to keep");
        for _ in 0..3 {
            write(&mut groups, A, P0, 1, b"small");
            assert_eq!(groups.room(), 1 << 20, "the spare buffer is in use");
            let mut closed = groups.close();
            let Content::Batch(batch) = closed.remove(0).content else { panic!("messages") };
            assert!(batch.capacity() < 400, "{}", batch.capacity());
        }
    }

    #[test]
    fn a_batch_is_full_by_bytes() {
        let mut groups = Groups::new(1_000, false);
        write(&mut groups, A, P0, 1, &[0; 400]);
        assert!(!groups.is_full());
        write(&mut groups, B, P0, 2, &[0; 400]);
        assert!(groups.is_full() && groups.bytes() >= 1_000);
        groups.close();
        assert!(!groups.is_full());
    }
}
