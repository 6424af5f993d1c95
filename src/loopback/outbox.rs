//! The writing half of one connection: one frame at a time, now, later, in pieces or when released.
//!
//! The reader thread writes ordinary replies itself; a second thread writes what has to wait. Both
//! take turns by the `busy` mark, so that frames never mix. At most [`WAITING_LIMIT`] frames wait;
//! beyond that the connection is closed.
#![allow(clippy::disallowed_methods)] // the broker's front owns sockets, threads and the clock

use std::collections::VecDeque;
use std::io::{self, IoSlice, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::core::Delivery;
use super::frame::Frame;

/// Frames that may wait on one connection.
const WAITING_LIMIT: usize = 4096;

/// Pieces handed to one vectored write.
const PIECES_PER_WRITE: usize = 512;

/// Stops everything at the door while the broker is paused.
#[derive(Debug, Default)]
pub(super) struct Gate {
    /// Read without the lock by those who pass; changed under it.
    paused: AtomicBool,
    lock: Mutex<()>,
    changed: Condvar,
}

/// One connection as the front sees it.
#[derive(Debug)]
pub(super) struct Link {
    socket: TcpStream,
    outbox: Mutex<Outbox>,
    /// For the second thread: something waits, or the connection closed.
    work: Condvar,
    /// For those who want to write: the one who did is done.
    turn: Condvar,
    closed: AtomicBool,
    unacked_sends: AtomicUsize,
}

#[derive(Debug, Default)]
struct Outbox {
    timed: Vec<Timed>,
    held: VecDeque<Frame>,
    busy: bool,
    /// Threads waiting for `busy` to end; without one nobody is woken.
    waiting: usize,
}

#[derive(Debug)]
struct Timed {
    due: Instant,
    frame: Frame,
    trickle: Option<(usize, Duration)>,
}

impl Gate {
    pub(super) fn set(&self, paused: bool) {
        let held = lock(&self.lock);
        self.paused.store(paused, Ordering::Release);
        drop(held);
        self.changed.notify_all();
    }

    /// Returns when the broker is not paused or `give_up` says so.
    pub(super) fn pass(&self, give_up: impl Fn() -> bool) {
        if !self.paused.load(Ordering::Acquire) {
            return;
        }
        let mut held = lock(&self.lock);
        while self.paused.load(Ordering::Acquire) && !give_up() {
            held = self.changed.wait(held).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Lets waiters look at their reason to give up.
    pub(super) fn nudge(&self) {
        drop(lock(&self.lock));
        self.changed.notify_all();
    }
}

impl Link {
    pub(super) fn new(socket: TcpStream) -> Link {
        Link {
            socket,
            outbox: Mutex::new(Outbox::default()),
            work: Condvar::new(),
            turn: Condvar::new(),
            closed: AtomicBool::new(false),
            unacked_sends: AtomicUsize::new(0),
        }
    }

    pub(super) fn socket(&self) -> &TcpStream {
        &self.socket
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    pub(super) fn send_arrived(&self) {
        self.unacked_sends.fetch_add(1, Ordering::AcqRel);
    }

    /// Sends that were read and whose reply has not been written.
    pub(super) fn unacked_sends(&self) -> usize {
        self.unacked_sends.load(Ordering::Acquire)
    }

    /// Closes both directions; threads blocked on the socket wake up.
    pub(super) fn close(&self) {
        let outbox = lock(&self.outbox);
        self.closed.store(true, Ordering::Release);
        drop(outbox);
        self.work.notify_all();
        self.turn.notify_all();
        // The peer may have closed first.
        let _ = self.socket.shutdown(Shutdown::Both);
    }

    /// Takes a frame over. An error means that the connection is of no more use.
    pub(super) fn deliver(&self, gate: &Gate, frame: Frame, delivery: Delivery) -> io::Result<()> {
        let mut trickle = None;
        let mut due = Instant::now();
        match delivery {
            Delivery::Now => return self.write_in_turn(gate, &frame, None),
            Delivery::Cut(after) => {
                self.write_in_turn(gate, &cut(&frame, after), None)?;
                self.close();
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
            Delivery::After(delay) => due += delay,
            Delivery::Trickle(piece, every) => trickle = Some((piece, every)),
            Delivery::Hold => {
                let mut outbox = lock(&self.outbox);
                outbox.held.push_back(frame);
                return outbox.bounded();
            }
        }
        let mut outbox = lock(&self.outbox);
        outbox.timed.push(Timed { due, frame, trickle });
        let bounded = outbox.bounded();
        drop(outbox);
        self.work.notify_all();
        bounded
    }

    /// Lets held replies go, in their order; how many there were.
    pub(super) fn release(&self) -> usize {
        let mut outbox = lock(&self.outbox);
        let due = Instant::now();
        let held = std::mem::take(&mut outbox.held);
        let count = held.len();
        outbox.timed.extend(held.into_iter().map(|frame| Timed { due, frame, trickle: None }));
        drop(outbox);
        self.work.notify_all();
        count
    }

    /// Replies that wait for a release.
    pub(super) fn held(&self) -> usize {
        lock(&self.outbox).held.len()
    }

    /// Writes what falls due until the connection closes: the body of the second thread.
    pub(super) fn run_timed(&self, gate: &Gate) {
        let mut outbox = lock(&self.outbox);
        while !self.is_closed() {
            let now = Instant::now();
            let next = (0..outbox.timed.len()).min_by_key(|&index| outbox.timed[index].due);
            let Some(next) = next else {
                outbox = self.work.wait(outbox).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let due = outbox.timed[next].due;
            if due > now {
                let waited = self.work.wait_timeout(outbox, due - now);
                outbox = waited.unwrap_or_else(PoisonError::into_inner).0;
                continue;
            }
            let Timed { frame, trickle, .. } = outbox.timed.remove(next);
            drop(outbox);
            if self.write_in_turn(gate, &frame, trickle).is_err() {
                self.close();
                return;
            }
            outbox = lock(&self.outbox);
        }
    }

    fn write_in_turn(
        &self,
        gate: &Gate,
        frame: &Frame,
        trickle: Option<(usize, Duration)>,
    ) -> io::Result<()> {
        gate.pass(|| self.is_closed());
        let mut outbox = lock(&self.outbox);
        while outbox.busy && !self.is_closed() {
            outbox.waiting += 1;
            outbox = self.turn.wait(outbox).unwrap_or_else(PoisonError::into_inner);
            outbox.waiting -= 1;
        }
        if self.is_closed() {
            return Err(io::ErrorKind::NotConnected.into());
        }
        outbox.busy = true;
        drop(outbox);
        let written = match trickle {
            None => self.write(&frame.pieces),
            Some((piece, every)) => self.write_slowly(frame, piece, every),
        };
        if written.is_ok() && frame.answers_send {
            self.unacked_sends.fetch_sub(1, Ordering::AcqRel);
        }
        let mut outbox = lock(&self.outbox);
        outbox.busy = false;
        let waiting = outbox.waiting > 0;
        drop(outbox);
        if waiting {
            self.turn.notify_one();
        }
        written
    }

    fn write(&self, pieces: &[Bytes]) -> io::Result<()> {
        let mut socket = &self.socket;
        for some in pieces.chunks(PIECES_PER_WRITE) {
            let mut slices: Vec<_> = some.iter().map(|piece| IoSlice::new(piece)).collect();
            let mut slices = slices.as_mut_slice();
            // Empty slices at the front would make a write of nothing look like a closed peer.
            IoSlice::advance_slices(&mut slices, 0);
            while !slices.is_empty() {
                match socket.write_vectored(slices) {
                    Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                    Ok(written) => IoSlice::advance_slices(&mut slices, written),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    fn write_slowly(&self, frame: &Frame, piece: usize, every: Duration) -> io::Result<()> {
        for bytes in frame.to_vec().chunks(piece) {
            (&self.socket).write_all(bytes)?;
            let until = Instant::now() + every;
            let mut outbox = lock(&self.outbox);
            loop {
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() || self.is_closed() {
                    break;
                }
                let waited = self.work.wait_timeout(outbox, left);
                outbox = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
        }
        Ok(())
    }
}

impl Outbox {
    fn bounded(&self) -> io::Result<()> {
        if self.timed.len() + self.held.len() > WAITING_LIMIT {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        Ok(())
    }
}

/// The first `length` bytes of a frame.
fn cut(frame: &Frame, length: usize) -> Frame {
    let mut left = length;
    let mut pieces = Vec::new();
    for piece in &frame.pieces {
        let part = piece.slice(..left.min(piece.len()));
        left -= part.len();
        pieces.push(part);
    }
    Frame { pieces, answers_send: false }
}

/// A lock that outlives a panic of its holder: the state behind it is only ever replaced whole.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
