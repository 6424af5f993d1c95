//! Frames on their way to a socket, gathered into one vectored write.
//!
//! The batch owns every byte the kernel is told about and goes into the write by value, so
//! nothing is reused or freed while the kernel refers to it (I3), even if the task that waits
//! for the write is dropped.

use std::collections::VecDeque;

use libc::iovec;
use monoio::buf::IoVecBuf;

use crate::iggy_wire::session::Outgoing;

/// Frames in one write at most.
const MAX_FRAMES: usize = 32;
/// A batch that holds this many bytes takes no further frame.
const ENOUGH: usize = 256 * 1024;

/// A numbered frame.
pub struct Frame {
    /// Request number.
    pub number: u64,
    /// Its bytes.
    pub bytes: Outgoing,
}

/// Frames being written.
#[derive(Default)]
pub struct WriteBatch {
    frames: VecDeque<Frame>,
    /// Bytes of the first frame that are written.
    skip: usize,
    /// Bytes that are not.
    left: usize,
    iov: Vec<iovec>,
}

impl WriteBatch {
    /// True when everything is written.
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Moves frames from `queue` in, while there is room.
    pub fn fill_from(&mut self, queue: &mut VecDeque<Frame>) {
        while self.frames.len() < MAX_FRAMES && self.left < ENOUGH {
            let Some(frame) = queue.pop_front() else { return };
            self.left += frame.bytes.len();
            self.frames.push_back(frame);
        }
    }

    /// Numbers of the frames in the batch.
    pub fn numbers(&self) -> impl Iterator<Item = u64> {
        self.frames.iter().map(|frame| frame.number)
    }

    /// Points at the bytes that are not written yet; to be called before each write.
    pub fn point(&mut self) {
        self.iov.clear();
        let mut skip = self.skip;
        for frame in &self.frames {
            for part in frame.bytes.parts() {
                let skipped = skip.min(part.len());
                skip -= skipped;
                let rest = &part[skipped..];
                if !rest.is_empty() {
                    let base = rest.as_ptr().cast_mut().cast();
                    self.iov.push(iovec { iov_base: base, iov_len: rest.len() });
                }
            }
        }
    }

    /// `written` bytes went out: drops the frames that are complete and names them to `done`.
    pub fn advance(&mut self, written: usize, mut done: impl FnMut(u64)) {
        self.left = self.left.saturating_sub(written);
        self.skip += written;
        while let Some(frame) = self.frames.front() {
            let len = frame.bytes.len();
            if self.skip < len {
                return;
            }
            self.skip -= len;
            done(frame.number);
            self.frames.pop_front();
        }
    }
}

// SAFETY: the list of iovecs is on the heap and does not move with the batch; each entry points
// into a `Bytes` that the batch owns and nobody changes. `point` is the only writer of the list,
// and the runtime holds the batch by value while a write is in progress.
unsafe impl IoVecBuf for WriteBatch {
    fn read_iovec_ptr(&self) -> *const iovec {
        self.iov.as_ptr()
    }

    fn read_iovec_len(&self) -> usize {
        self.iov.len()
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn frame(number: u64, head: &'static [u8], tail: Option<&'static [u8]>) -> Frame {
        let (head, tail) = (Bytes::from_static(head), tail.map(Bytes::from_static));
        Frame { number, bytes: Outgoing { head, tail, more: Vec::new() } }
    }

    fn pointed(batch: &mut WriteBatch) -> Vec<u8> {
        batch.point();
        let slices = batch.iov.iter().map(|iov| {
            // SAFETY: `point` made the entry from a live slice of the batch.
            unsafe { std::slice::from_raw_parts(iov.iov_base.cast::<u8>(), iov.iov_len) }
        });
        slices.flatten().copied().collect()
    }

    #[test]
    fn any_split_into_partial_writes_gives_the_same_bytes() {
        for step in 1..=12 {
            let mut queue = VecDeque::from([frame(1, b"abc", Some(b"de")), frame(2, b"fg", None)]);
            let mut merged = frame(3, b"hi", Some(b"j"));
            merged.bytes.more = vec![Bytes::from_static(b"k"), Bytes::from_static(b"lm")];
            queue.push_back(merged);
            let mut batch = WriteBatch::default();
            batch.fill_from(&mut queue);
            let (mut out, mut done) = (Vec::new(), Vec::new());
            while !batch.is_empty() {
                let bytes = pointed(&mut batch);
                let written = step.min(bytes.len());
                out.extend_from_slice(&bytes[..written]);
                batch.advance(written, |number| done.push(number));
            }
            assert_eq!(out, b"abcdefghijklm", "step {step}");
            assert_eq!(done, [1, 2, 3], "step {step}");
        }
    }

    #[test]
    fn a_batch_takes_no_more_frames_than_its_bound() {
        let mut queue: VecDeque<Frame> = (0..100).map(|n| frame(n, b"x", None)).collect();
        let mut batch = WriteBatch::default();
        batch.fill_from(&mut queue);
        assert_eq!((batch.numbers().count(), queue.len()), (MAX_FRAMES, 100 - MAX_FRAMES));
    }
}
