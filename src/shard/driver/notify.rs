//! Wakes one waiting task of the same thread; a notification before the wait is kept.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::{Poll, Waker};
use std::time::Duration;

/// One flag, one waiter.
#[derive(Default)]
pub struct Notify {
    set: Cell<bool>,
    waiter: Cell<Option<Waker>>,
}

impl Notify {
    /// Sets the flag and wakes the waiter.
    pub fn notify(&self) {
        self.set.set(true);
        if let Some(waiter) = self.waiter.take() {
            waiter.wake();
        }
    }

    /// Waits for the flag, at most `timeout`, and clears it.
    pub async fn wait(&self, timeout: Duration) {
        let mut sleep = pin!(monoio::time::sleep(timeout));
        poll_fn(|cx| {
            if self.set.take() {
                return Poll::Ready(());
            }
            self.waiter.set(Some(cx.waker().clone()));
            sleep.as_mut().poll(cx)
        })
        .await;
    }
}
