//! Transactions that arrive before they are committed (P8): kept until then, in bounded memory.
//!
//! The messages of each are a byte stream, `( length:4 | message ) *`, of which full pieces are
//! chunks of a file and the rest stays in memory. Little endian:
//!
//! ```text
//! chunk, CHUNK bytes, number n at n × CHUNK
//! magic:4 | xid:4 | n:8 | length:4 | zero:4 | XXH3-64 of the 24 bytes before and the body:8
//! body, `length` bytes of the stream | zeros
//! ```
//! Messages of aborted sub-transactions are left out when it is read back. The checksum guards
//! against a disk that returns something else, never against a crash: no file outlives its
//! connection.

use hashbrown::HashMap;
use twox_hash::XxHash3_64;

use super::row::Spill;

/// Bytes of a chunk, a multiple of every block size.
pub const CHUNK: usize = 256 * 1024;
/// Bytes of its header.
pub const CHUNK_HEADER: usize = 32;
/// Open transactions at most (I5).
pub const MAX_OPEN: usize = 4_096;
/// Runs of aborted sub-transactions at most, per transaction (I5).
pub const MAX_ABORTED_RUNS: usize = 1 << 20;

const BODY: usize = CHUNK - CHUNK_HEADER;
const MAGIC: [u8; 4] = *b"TGSP";

/// Why a transaction cannot be kept or read back.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpillError {
    /// Too many at once.
    #[error(
        "{MAX_OPEN} large transactions are open at once, no more can be kept; set \
         streaming = \"off\", the server then keeps them"
    )]
    TooManyOpen,
    /// Too many aborted pieces.
    #[error(
        "transaction {xid} has more than {MAX_ABORTED_RUNS} separate runs of aborted \
         sub-transactions; set streaming = \"off\", the server then leaves them out"
    )]
    TooManyAborted {
        /// The transaction.
        xid: u32,
    },
    /// A message longer than a length can say.
    #[error("a message of {length} bytes in transaction {xid}, expected less than 4 GiB")]
    TooLong {
        /// The transaction.
        xid: u32,
        /// Its length.
        length: usize,
    },
    /// The file does not hold what was written.
    #[error(
        "spill file of transaction {xid}, chunk {chunk}: {what} is {seen:#x}, expected \
         {expected:#x}; the transaction is read again from the server, check the disk"
    )]
    Damaged {
        /// The transaction.
        xid: u32,
        /// Number of the chunk.
        chunk: u64,
        /// Which part.
        what: &'static str,
        /// As read.
        seen: u64,
        /// As written.
        expected: u64,
    },
}

/// All open transactions of a connection.
#[derive(Debug)]
pub struct Spool {
    open: HashMap<u32, Open>,
    /// Bytes of all tails.
    in_memory: usize,
    most_in_memory: usize,
}

#[derive(Debug, Default)]
struct Open {
    chunks: u64,
    tail: Vec<u8>,
    aborted: XidRuns,
}

impl Spool {
    /// Keeps up to `most_in_memory` bytes outside of files.
    pub fn new(most_in_memory: usize) -> Spool {
        Spool { open: HashMap::new(), in_memory: 0, most_in_memory }
    }

    /// Bytes in memory.
    pub fn in_memory(&self) -> usize {
        self.in_memory
    }

    /// Open transactions.
    pub fn len(&self) -> usize {
        self.open.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// A piece of a transaction begins.
    pub fn begin(&mut self, xid: u32) -> Result<(), SpillError> {
        if !self.open.contains_key(&xid) {
            if self.open.len() >= MAX_OPEN {
                return Err(SpillError::TooManyOpen);
            }
            self.open.insert(xid, Open::default());
        }
        Ok(())
    }

    /// Keeps a message; gives what is to be written now.
    pub fn append(&mut self, xid: u32, message: &[u8]) -> Result<Option<Spill>, SpillError> {
        let length = u32::try_from(message.len())
            .map_err(|_| SpillError::TooLong { xid, length: message.len() })?;
        self.begin(xid)?;
        let Some(open) = self.open.get_mut(&xid) else { return Ok(None) };
        open.tail.extend_from_slice(&length.to_le_bytes());
        open.tail.extend_from_slice(message);
        self.in_memory += message.len() + 4;
        if open.tail.len() >= BODY {
            let full = open.tail.len() - open.tail.len() % BODY;
            let all = self.in_memory - full > self.most_in_memory;
            let bytes = if all { open.tail.len() } else { full };
            return Ok(self.write_out(xid, bytes));
        }
        if self.in_memory > self.most_in_memory {
            let largest = self.open.iter().max_by_key(|(xid, open)| (open.tail.len(), **xid));
            let largest = largest.map(|(xid, open)| (*xid, open.tail.len()));
            return Ok(largest.and_then(|(xid, bytes)| self.write_out(xid, bytes)));
        }
        Ok(None)
    }

    /// A sub-transaction, or the transaction itself, never happened. Gives the file to delete.
    pub fn abort(&mut self, xid: u32, subxid: u32) -> Result<Option<Spill>, SpillError> {
        if xid == subxid {
            let open = self.open.remove(&xid);
            return Ok(open.and_then(|open| {
                self.in_memory -= open.tail.len();
                (open.chunks > 0).then_some(Spill::Drop { xid })
            }));
        }
        if let Some(open) = self.open.get_mut(&xid)
            && !open.aborted.insert(subxid)
        {
            return Err(SpillError::TooManyAborted { xid });
        }
        Ok(None)
    }

    /// The transaction is committed: what is needed to read it back.
    pub fn take(&mut self, xid: u32) -> Replay {
        let open = self.open.remove(&xid).unwrap_or_default();
        self.in_memory -= open.tail.len();
        Replay {
            xid,
            chunks: open.chunks,
            next: 0,
            tail: open.tail,
            aborted: open.aborted,
            window: Vec::new(),
            at: 0,
        }
    }

    /// Forgets everything; gives the transactions that have a file.
    pub fn clear(&mut self) -> Vec<u32> {
        self.in_memory = 0;
        let files = self.open.drain().filter(|(_, open)| open.chunks > 0);
        files.map(|(xid, _)| xid).collect()
    }

    /// Makes chunks of the first `bytes` of a tail.
    fn write_out(&mut self, xid: u32, bytes: usize) -> Option<Spill> {
        let open = self.open.get_mut(&xid)?;
        let body = open.tail.get(..bytes)?;
        let offset = open.chunks * CHUNK as u64;
        let mut file = Vec::with_capacity(bytes.div_ceil(BODY) * CHUNK);
        for body in body.chunks(BODY) {
            put_chunk(&mut file, xid, open.chunks, body);
            open.chunks += 1;
        }
        open.tail.drain(..bytes);
        shrink(&mut open.tail);
        self.in_memory -= bytes;
        Some(Spill::Append { xid, offset, bytes: file })
    }
}

/// A committed transaction on its way back.
#[derive(Debug)]
pub struct Replay {
    xid: u32,
    chunks: u64,
    /// Number of the chunk to read next.
    next: u64,
    tail: Vec<u8>,
    aborted: XidRuns,
    /// The stream from `at` on, as far as it was read.
    window: Vec<u8>,
    at: usize,
}

/// What a replay needs or has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplayStep {
    /// The next message lies there in [`Replay::bytes`].
    Message(std::ops::Range<usize>),
    /// Read this first, and hand it to [`Replay::chunk`].
    Read(Spill),
    /// That was all.
    End,
}

impl Replay {
    /// The transaction.
    pub fn xid(&self) -> u32 {
        self.xid
    }

    /// Whether it has a file.
    pub fn has_file(&self) -> bool {
        self.chunks > 0
    }

    /// Bytes that its buffers take.
    pub fn in_memory(&self) -> usize {
        self.tail.capacity() + self.window.capacity()
    }

    /// Bytes that are read and not taken.
    pub fn left(&self) -> usize {
        self.window.len().saturating_sub(self.at)
    }

    /// Everything was read: the file can go.
    pub fn forget_file(&mut self) {
        (self.chunks, self.next) = (0, 0);
    }

    /// Whether a sub-transaction was aborted.
    pub fn is_aborted(&self, subxid: u32) -> bool {
        self.aborted.contains(subxid)
    }

    /// What the ranges of [`ReplayStep::Message`] point into, until the next call of
    /// [`Replay::step`].
    pub fn bytes(&self) -> &[u8] {
        &self.window
    }

    /// The next message or what is missing for it. Asks again until the chunk is there.
    pub fn step(&mut self) -> Result<ReplayStep, SpillError> {
        loop {
            let rest = self.window.get(self.at..).unwrap_or_default();
            if let Some((length, message)) = rest.split_first_chunk::<4>() {
                let length = u32::from_le_bytes(*length) as usize;
                if message.len() >= length {
                    let start = self.at + 4;
                    self.at = start + length;
                    return Ok(ReplayStep::Message(start..self.at));
                }
            }
            if self.next < self.chunks {
                let offset = self.next * CHUNK as u64;
                let read = Spill::Read { xid: self.xid, offset, length: CHUNK };
                return Ok(ReplayStep::Read(read));
            }
            if self.tail.is_empty() {
                return match rest.len() {
                    0 => Ok(ReplayStep::End),
                    left => Err(self.damaged("rest of a message", left as u64, 0)),
                };
            }
            let tail = std::mem::take(&mut self.tail);
            self.extend(&tail);
        }
    }

    /// The bytes that [`ReplayStep::Read`] asked for.
    pub fn chunk(&mut self, bytes: &[u8]) -> Result<(), SpillError> {
        let damaged = |what, seen, expected| Err(self.damaged(what, seen, expected));
        let (Some((header, rest)), CHUNK) =
            (bytes.split_first_chunk::<CHUNK_HEADER>(), bytes.len())
        else {
            return damaged("length of the chunk", bytes.len() as u64, CHUNK as u64);
        };
        let length = u32::from_le_bytes(field(header, 16));
        let known = [
            ("magic", u32::from_le_bytes(field(header, 0)), u32::from_le_bytes(MAGIC)),
            ("transaction", u32::from_le_bytes(field(header, 4)), self.xid),
            ("zero", u32::from_le_bytes(field(header, 20)), 0),
        ];
        for (what, seen, expected) in known {
            if seen != expected {
                return damaged(what, seen.into(), expected.into());
            }
        }
        let number = u64::from_le_bytes(field(header, 8));
        if number != self.next {
            return damaged("number", number, self.next);
        }
        let Some(body) = rest.get(..length as usize) else {
            return damaged("length of the body", length.into(), BODY as u64);
        };
        let (seen, expected) = (checksum(header, body), u64::from_le_bytes(field(header, 24)));
        if seen != expected {
            return damaged("checksum", seen, expected);
        }
        self.next += 1;
        self.extend(body);
        Ok(())
    }

    fn extend(&mut self, more: &[u8]) {
        self.window.drain(..self.at.min(self.window.len()));
        self.at = 0;
        shrink(&mut self.window);
        self.window.extend_from_slice(more);
    }

    fn damaged(&self, what: &'static str, seen: u64, expected: u64) -> SpillError {
        SpillError::Damaged { xid: self.xid, chunk: self.next, what, seen, expected }
    }
}

/// A buffer that one large message made large gets small again when that is gone.
fn shrink(buffer: &mut Vec<u8>) {
    if buffer.capacity() > 4 * CHUNK && buffer.len() < buffer.capacity() / 4 {
        buffer.shrink_to(2 * CHUNK);
    }
}

fn put_chunk(file: &mut Vec<u8>, xid: u32, number: u64, body: &[u8]) {
    let mut header = [0; CHUNK_HEADER];
    header[0..4].copy_from_slice(&MAGIC);
    header[4..8].copy_from_slice(&xid.to_le_bytes());
    header[8..16].copy_from_slice(&number.to_le_bytes());
    header[16..20].copy_from_slice(&(body.len() as u32).to_le_bytes());
    let sum = checksum(&header, body);
    header[24..32].copy_from_slice(&sum.to_le_bytes());
    let end = file.len() + CHUNK;
    file.extend_from_slice(&header);
    file.extend_from_slice(body);
    file.resize(end, 0);
}

fn checksum(header: &[u8; CHUNK_HEADER], body: &[u8]) -> u64 {
    let seed = XxHash3_64::oneshot(&header[..24]);
    XxHash3_64::oneshot_with_seed(seed, body)
}

fn field<const N: usize>(header: &[u8; CHUNK_HEADER], at: usize) -> [u8; N] {
    std::array::from_fn(|i| header[at + i])
}

/// A set of transaction ids that mostly come one after the other.
#[derive(Debug, Default)]
struct XidRuns(Vec<(u32, u32)>);

impl XidRuns {
    /// False if there is no more room.
    fn insert(&mut self, xid: u32) -> bool {
        let at = self.0.partition_point(|(_, last)| *last < xid);
        if self.0.get(at).is_some_and(|(first, _)| *first <= xid) {
            return true;
        }
        let joins_before = at > 0 && self.0[at - 1].1.checked_add(1) == Some(xid);
        let joins_behind = self.0.get(at).is_some_and(|(first, _)| *first == xid.wrapping_add(1));
        match (joins_before, joins_behind) {
            (true, true) => {
                self.0[at - 1].1 = self.0[at].1;
                self.0.remove(at);
            }
            (true, false) => self.0[at - 1].1 = xid,
            (false, true) => self.0[at].0 = xid,
            (false, false) if self.0.len() >= MAX_ABORTED_RUNS => return false,
            (false, false) => self.0.insert(at, (xid, xid)),
        }
        true
    }

    fn contains(&self, xid: u32) -> bool {
        let at = self.0.partition_point(|(_, last)| *last < xid);
        self.0.get(at).is_some_and(|(first, _)| *first <= xid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// Files in memory.
    #[derive(Default)]
    struct Disk(std::collections::HashMap<u32, Vec<u8>>);

    impl Disk {
        fn perform(&mut self, spill: Option<Spill>) {
            match spill {
                Some(Spill::Append { xid, offset, bytes }) => {
                    let file = self.0.entry(xid).or_default();
                    assert_eq!(file.len() as u64, offset, "appends are contiguous");
                    file.extend(bytes);
                }
                Some(Spill::Drop { xid }) => drop(self.0.remove(&xid).expect("a file")),
                Some(Spill::Read { .. }) => panic!("nothing is read while writing"),
                None => {}
            }
        }

        fn read(&self, spill: &Spill) -> &[u8] {
            let Spill::Read { xid, offset, length } = spill else { panic!("{spill:?}") };
            &self.0[xid][*offset as usize..*offset as usize + length]
        }

        fn replay(&self, mut replay: Replay) -> Result<Vec<Vec<u8>>, SpillError> {
            let mut messages = Vec::new();
            loop {
                match replay.step()? {
                    ReplayStep::Message(range) => messages.push(replay.bytes()[range].to_vec()),
                    ReplayStep::Read(read) => {
                        assert_eq!(replay.step()?, ReplayStep::Read(read.clone()), "asks again");
                        replay.chunk(self.read(&read))?;
                    }
                    ReplayStep::End => return Ok(messages),
                }
            }
        }
    }

    #[test]
    fn what_comes_back_is_counted_and_a_large_message_leaves_no_large_buffer() {
        let (mut spool, mut disk) = (Spool::new(0), Disk::default());
        disk.perform(spool.append(1, &message(1, 20 * BODY)).unwrap());
        for n in 2..40 {
            disk.perform(spool.append(1, &message(n, BODY / 2)).unwrap());
        }
        assert!(spool.open[&1].tail.capacity() <= 4 * CHUNK);
        let mut replay = spool.take(1);
        let (mut most, mut messages) = (0, 0);
        loop {
            assert!(replay.in_memory() >= replay.left());
            most = most.max(replay.in_memory());
            match replay.step().unwrap() {
                ReplayStep::Message(_) => messages += 1,
                ReplayStep::Read(read) => replay.chunk(disk.read(&read)).unwrap(),
                ReplayStep::End => break,
            }
        }
        assert_eq!(messages, 39);
        assert!((20 * BODY..50 * BODY).contains(&most), "{most}");
        assert!(replay.in_memory() <= 4 * CHUNK, "{}", replay.in_memory());
    }

    fn message(n: usize, length: usize) -> Vec<u8> {
        (0..length).map(|at| (n * 31 + at) as u8).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn messages_come_back_as_they_were_whatever_their_sizes(
            sizes in prop::collection::vec((0u32..4, prop_oneof![
                8 => 0usize..3_000, 2 => BODY - 8..BODY + 8, 1 => 2 * BODY..3 * BODY + 9,
            ]), 0..40),
            memory in prop_oneof![Just(0), Just(50_000), Just(usize::MAX)],
        ) {
            let (mut spool, mut disk) = (Spool::new(memory), Disk::default());
            let mut expected = vec![Vec::new(); 4];
            for (n, (xid, size)) in sizes.iter().enumerate() {
                let message = message(n, *size);
                disk.perform(spool.append(*xid, &message).unwrap());
                expected[*xid as usize].push(message);
                prop_assert!(spool.in_memory() <= memory);
                prop_assert!(spool.in_memory() < 4 * BODY);
            }
            for (xid, expected) in expected.into_iter().enumerate() {
                let replay = spool.take(xid as u32);
                prop_assert_eq!(disk.replay(replay).unwrap(), expected);
            }
            prop_assert_eq!((spool.in_memory(), spool.len()), (0, 0));
        }

        #[test]
        fn runs_are_a_set(xids in prop::collection::vec(0u32..60, 0..80)) {
            let mut runs = XidRuns::default();
            let mut set = BTreeSet::new();
            for xid in xids {
                prop_assert!(runs.insert(xid));
                set.insert(xid);
                (0..62).for_each(|xid| assert_eq!(runs.contains(xid), set.contains(&xid)));
                prop_assert!(runs.0.windows(2).all(|pair| pair[0].1 + 1 < pair[1].0));
            }
        }
    }

    #[test]
    fn runs_reach_the_ends_of_the_numbers() {
        let mut runs = XidRuns::default();
        for xid in [u32::MAX, 0, u32::MAX - 1, 1] {
            assert!(runs.insert(xid));
        }
        assert_eq!(runs.0, [(0, 1), (u32::MAX - 1, u32::MAX)]);
    }

    #[test]
    fn a_chunk_is_frozen() {
        let mut file = Vec::new();
        put_chunk(&mut file, 0x0102_0304, 5, b"body");
        assert_eq!(file.len(), CHUNK);
        assert_eq!(&file[..24], b"TGSP\x04\x03\x02\x01\x05\0\0\0\0\0\0\0\x04\0\0\0\0\0\0\0");
        assert_eq!(&file[32..38], b"body\0\0");
        let sum = u64::from_le_bytes(file[24..32].try_into().unwrap());
        assert_eq!(sum, checksum(file[..32].first_chunk().unwrap(), b"body"));
    }

    fn two_chunks() -> (Spool, Disk) {
        let (mut spool, mut disk) = (Spool::new(usize::MAX), Disk::default());
        disk.perform(spool.append(7, &message(1, 2 * BODY)).unwrap());
        disk.perform(spool.append(8, &message(2, 2 * BODY)).unwrap());
        (spool, disk)
    }

    #[test]
    fn every_kind_of_damage_is_noticed_and_named() {
        type Change = fn(&mut Disk);
        let changes: [(&str, Change); 8] = [
            ("magic", |disk| disk.0.get_mut(&7).unwrap()[0] ^= 1),
            ("zero", |disk| disk.0.get_mut(&7).unwrap()[20] ^= 1),
            ("checksum", |disk| disk.0.get_mut(&7).unwrap()[24] ^= 1),
            ("checksum", |disk| disk.0.get_mut(&7).unwrap()[CHUNK - 1] ^= 1),
            ("length of the body", |disk| disk.0.get_mut(&7).unwrap()[19] ^= 0x80),
            ("number", |disk| disk.0.get_mut(&7).unwrap().rotate_left(CHUNK)),
            ("magic", |disk| disk.0.get_mut(&7).unwrap()[CHUNK..].fill(0)),
            ("transaction", |disk| {
                let other = disk.0[&8].clone();
                disk.0.insert(7, other);
            }),
        ];
        for (expected, change) in changes {
            let (mut spool, mut disk) = two_chunks();
            change(&mut disk);
            let error = disk.replay(spool.take(7)).expect_err(expected);
            assert!(
                matches!(error, SpillError::Damaged { xid: 7, what, .. } if what == expected),
                "{expected}: {error}"
            );
            assert!(error.to_string().contains("read again from the server"));
        }
        let (mut spool, _) = two_chunks();
        let mut replay = spool.take(7);
        assert!(replay.chunk(&[0; 100]).is_err());
    }

    #[test]
    fn an_aborted_transaction_leaves_nothing() {
        let (mut spool, mut disk) = two_chunks();
        disk.perform(spool.abort(7, 7).unwrap());
        assert_eq!(spool.abort(7, 7).unwrap(), None, "known no more");
        assert_eq!(disk.replay(spool.take(7)).unwrap(), Vec::<Vec<u8>>::new());
        assert_eq!(spool.clear(), [8]);
        assert_eq!((spool.in_memory(), disk.0.len()), (0, 1));
    }

    #[test]
    fn too_many_open_transactions_are_refused_with_a_way_out() {
        let mut spool = Spool::new(usize::MAX);
        for xid in 0..MAX_OPEN as u32 {
            spool.begin(xid).unwrap();
        }
        spool.begin(0).unwrap();
        let error = spool.begin(u32::MAX).unwrap_err();
        assert!(error.to_string().contains("streaming = \"off\""), "{error}");
    }
}
