//! Where the tasks of one thread put events for the task that decides: a queue and a waker, no
//! locks, never shared with another thread. Its length is bounded by what is outstanding: one
//! event per request, connection, save and letter.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::{Poll, Waker};

use crate::shard::event::Event;

/// Events of one thread, in the order they happened.
#[derive(Default)]
pub struct EventQueue {
    events: RefCell<VecDeque<Event>>,
    reader: Cell<Option<Waker>>,
}

impl EventQueue {
    /// Adds an event and wakes the reader.
    pub fn push(&self, event: Event) {
        self.events.borrow_mut().push_back(event);
        self.wake();
    }

    /// Adds several.
    pub fn extend(&self, events: impl IntoIterator<Item = Event>) {
        events.into_iter().for_each(|event| self.push(event));
    }

    /// Wakes the reader without an event: something outside the queue changed.
    pub fn wake(&self) {
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }

    /// Moves up to `limit` events to the end of `into`.
    pub fn take_into(&self, into: &mut Vec<Event>, limit: usize) {
        let mut events = self.events.borrow_mut();
        let count = limit.min(events.len());
        into.extend(events.drain(..count));
    }

    /// True when no event waits.
    pub fn is_empty(&self) -> bool {
        self.events.borrow().is_empty()
    }

    /// Remembers whom to wake; there is one reader.
    pub fn register(&self, reader: &Waker) {
        self.reader.set(Some(reader.clone()));
    }

    /// The next event, waited for.
    pub async fn next(&self) -> Event {
        poll_fn(|cx| match self.events.borrow_mut().pop_front() {
            Some(event) => Poll::Ready(event),
            None => {
                self.register(cx.waker());
                Poll::Pending
            }
        })
        .await
    }
}
