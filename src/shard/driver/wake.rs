//! How a letter from another thread wakes a runtime: a task reads the mailbox's bell.
//!
//! The bell is a socket, so that the wait is an ordinary read on both drivers; monoio's own
//! cross-thread wakers are not used.

use std::future::Future;
use std::io;
use std::os::unix::net::UnixStream as StdStream;
use std::pin::pin;
use std::task::{Context, Poll};

use monoio::io::AsyncReadRent;
use monoio::net::UnixStream;

use crate::shard::mailbox::Inbox;

/// A mailbox's bell inside a runtime.
pub struct Listener {
    heard: UnixStream,
    buffer: Vec<u8>,
}

impl Listener {
    /// Takes the socket over into the current runtime.
    pub fn new(heard: StdStream) -> io::Result<Listener> {
        heard.set_nonblocking(monoio::utils::is_legacy())?;
        Ok(Listener { heard: UnixStream::from_std(heard)?, buffer: Vec::with_capacity(16) })
    }

    /// Waits for the bell; false when every writer is gone.
    pub async fn heard(&mut self) -> bool {
        let buffer = std::mem::take(&mut self.buffer);
        let (read, mut buffer) = self.heard.read(buffer).await;
        buffer.clear();
        self.buffer = buffer;
        matches!(read, Ok(bytes) if bytes > 0)
    }
}

/// Hands every letter to `receive` until the writers are gone or `receive` returns false.
pub async fn listen<T>(
    heard: StdStream,
    inbox: Inbox<T>,
    mut receive: impl FnMut(T) -> bool,
) -> io::Result<()> {
    let mut listener = Listener::new(heard)?;
    while listener.heard().await {
        inbox.clear_bell();
        while let Some(letter) = inbox.take() {
            if !receive(letter) {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// Runs `work` to its end; if `alarm` ends first, `expire` is called once and the work, which it
/// should make fail, is still awaited. An I/O operation in progress is never dropped.
pub async fn with_alarm<W: Future>(
    work: W,
    alarm: impl Future<Output = ()>,
    expire: impl FnOnce(),
) -> W::Output {
    let mut work = pin!(work);
    let mut alarm = pin!(alarm);
    let mut expire = Some(expire);
    std::future::poll_fn(|cx: &mut Context<'_>| {
        if let Poll::Ready(output) = work.as_mut().poll(cx) {
            return Poll::Ready(output);
        }
        if expire.is_some() && alarm.as_mut().poll(cx).is_ready() {
            if let Some(expire) = expire.take() {
                expire();
            }
            return work.as_mut().poll(cx);
        }
        Poll::Pending
    })
    .await
}
