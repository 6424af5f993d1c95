//! Messages between the control thread and a shard.
//!
//! A mailbox is a bounded queue and a bell. The sender never waits: a full queue gives the
//! letter back, and the sender keeps it for its next turn (I5, I6). The bell is one byte in a
//! socket pair, written only when none is on its way, so a burst costs one wake-up. The reader
//! clears the bell *before* it empties the queue; a letter that comes in between rings again.

use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};

use super::event::{FromControl, ToControl};
use super::snapshot::ShardSnapshot;

/// Letters the control thread writes to a shard.
#[derive(Debug)]
pub enum ToShard {
    /// For the pipeline.
    Control(FromControl),
    /// Close every connection and end the thread.
    Stop,
}

/// Letters a shard writes to the control thread.
#[derive(Debug)]
pub enum FromShard {
    /// From the pipeline.
    Control(ToControl),
    /// What the shard looks like now; dropped when the queue is full.
    Snapshot(Box<ShardSnapshot>),
    /// The thread ended; with a message if it failed.
    Ended(Result<(), String>),
}

/// A letter and the shard it came from.
pub type Signed = (u16, FromShard);

/// The writing end. Cloning makes another writer to the same mailbox.
#[derive(Debug)]
pub struct Post<T> {
    letters: Sender<T>,
    bell: Arc<Bell>,
}

/// The reading end without the socket on which the bell is heard: a runtime waits on that.
#[derive(Debug)]
pub struct Inbox<T> {
    letters: Receiver<T>,
    bell: Arc<Bell>,
}

/// Tells a sleeping reader that something waits for it.
#[derive(Debug)]
pub struct Bell {
    ringing: AtomicBool,
    rope: UnixStream,
}

/// A mailbox that holds up to `capacity` letters: writing end, reading end, and the socket that
/// becomes readable when the bell rings.
pub fn mailbox<T>(capacity: usize) -> io::Result<(Post<T>, Inbox<T>, UnixStream)> {
    let (rope, heard) = UnixStream::pair()?;
    rope.set_nonblocking(true)?;
    let bell = Arc::new(Bell { ringing: AtomicBool::new(false), rope });
    let (sender, receiver) = bounded(capacity);
    let inbox = Inbox { letters: receiver, bell: bell.clone() };
    Ok((Post { letters: sender, bell }, inbox, heard))
}

impl<T> Post<T> {
    /// Puts a letter in and rings; gives it back when the mailbox is full or nobody reads it.
    pub fn send(&self, letter: T) -> Result<(), T> {
        match self.letters.try_send(letter) {
            Ok(()) => {
                self.bell.ring();
                Ok(())
            }
            Err(TrySendError::Full(letter) | TrySendError::Disconnected(letter)) => Err(letter),
        }
    }
}

impl<T> Clone for Post<T> {
    fn clone(&self) -> Post<T> {
        Post { letters: self.letters.clone(), bell: self.bell.clone() }
    }
}

impl<T> Inbox<T> {
    /// To be called after the bell was heard and before [`Inbox::take`].
    pub fn clear_bell(&self) {
        self.bell.clear();
    }

    /// The next letter, if there is one.
    pub fn take(&self) -> Option<T> {
        self.letters.try_recv().ok()
    }
}

impl Bell {
    /// At most one byte is on its way; the socket buffer cannot fill.
    fn ring(&self) {
        if !self.ringing.swap(true, Ordering::SeqCst) {
            // A closed socket means that the reader is gone; its letters no longer matter.
            let _ = (&self.rope).write(&[1]);
        }
    }

    fn clear(&self) {
        self.ringing.store(false, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods, reason = "a mailbox connects threads")]
    use std::io::Read;

    use super::*;

    #[test]
    fn a_full_mailbox_gives_the_letter_back() {
        let (post, inbox, _heard) = mailbox(1).expect("sockets");
        assert_eq!(post.send(1), Ok(()));
        assert_eq!(post.send(2), Err(2));
        assert_eq!(inbox.take(), Some(1));
        assert_eq!(post.send(2), Ok(()));
    }

    #[test]
    fn a_burst_rings_once_and_a_later_letter_rings_again() {
        let (post, inbox, mut heard) = mailbox(100).expect("sockets");
        for letter in 0..100 {
            post.send(letter).expect("room");
        }
        heard.set_nonblocking(true).expect("a socket");
        let mut bytes = [0; 16];
        assert_eq!(heard.read(&mut bytes).expect("one ring"), 1);
        inbox.clear_bell();
        assert_eq!(std::iter::from_fn(|| inbox.take()).count(), 100);
        post.send(100).expect("room");
        assert_eq!(heard.read(&mut bytes).expect("another ring"), 1);
    }

    #[test]
    fn no_letter_is_missed_by_a_reader_that_only_wakes_on_the_bell() {
        let (post, inbox, mut heard) = mailbox::<u32>(16).expect("sockets");
        let writer = std::thread::spawn(move || {
            for letter in 0..20_000 {
                while post.send(letter).is_err() {
                    std::thread::yield_now();
                }
            }
        });
        let mut next = 0;
        while next < 20_000 {
            assert_ne!(heard.read(&mut [0; 16]).expect("the writer lives"), 0);
            inbox.clear_bell();
            while let Some(letter) = inbox.take() {
                assert_eq!(letter, next);
                next += 1;
            }
        }
        writer.join().expect("the writer ends");
    }
}
