//! What a connection does while it is up: reader, writer and watchdog in one task.
//!
//! A read in progress is never dropped: it is made to end. Between reads of a copy there may be a
//! pause that lets small packets gather ([`Coalescer`]); it begins when a chunk is handed on, so
//! it overlaps with the work on that chunk.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Instant;

use monoio::buf::SliceMut;
use monoio::io::{AsyncReadRent, AsyncWriteRent, AsyncWriteRentExt, Splitable};
use monoio::net::TcpStream;

use super::conn::{Shared, Wants};
use super::intake::{BUFFER, Intake};
use super::tls::{Session, TlsError};
use crate::ingest::postgres_cdc::coalesce::Coalescer;
use crate::shard::driver::socket;
use crate::shard::event::PgConnError;

/// Runs the connection to its end and closes the socket.
pub(super) async fn run(shared: &Shared, stream: TcpStream, intake: Intake) {
    let (mut reading, mut writing) = stream.into_split();
    {
        let mut reader = pin!(read_all(shared, &mut reading, intake));
        let mut writer = pin!(write_all(shared, &mut writing));
        let mut watchdog = pin!(watch(shared));
        let (read_done, write_done) = (Cell::new(false), Cell::new(false));
        poll_fn(|cx| {
            shared.register(cx.waker());
            if !read_done.get() && reader.as_mut().poll(cx).is_ready() {
                read_done.set(true);
            }
            if !write_done.get() && writer.as_mut().poll(cx).is_ready() {
                write_done.set(true);
            }
            if read_done.get() && write_done.get() {
                return Poll::Ready(());
            }
            // It never ends; dropping it drops a timer, no I/O.
            let _ = watchdog.as_mut().poll(cx);
            Poll::Pending
        })
        .await;
    }
    shared.own_socket(None);
    if let Ok(stream) = reading.reunite(writing) {
        socket::close(stream);
    }
}

/// Why a read brought nothing.
pub(super) enum ReadError {
    /// The connection ended, in the kernel's words or ours.
    Lost(String),
    /// The TLS session ended.
    Tls(TlsError),
}

/// Where bytes come from.
pub(super) struct Source<'a, R> {
    /// The socket.
    pub(super) stream: &'a mut R,
    /// What arrived and is not taken yet.
    pub(super) intake: Intake,
    /// What arrived encrypted.
    sealed: Vec<u8>,
}

impl<'a, R: AsyncReadRent> Source<'a, R> {
    pub(super) fn new(stream: &'a mut R, intake: Intake) -> Source<'a, R> {
        Source { stream, intake, sealed: Vec::new() }
    }

    /// One read, decrypted where it must be; bytes at the socket.
    pub(super) async fn read(
        &mut self,
        tls: &RefCell<Option<Session>>,
        need: usize,
    ) -> Result<usize, ReadError> {
        let lost = |error: std::io::Error| ReadError::Lost(error.to_string());
        let closed = || ReadError::Lost("the server closed the connection".into());
        if tls.borrow().is_none() {
            let buffer = self.intake.lend(need);
            let (filled, capacity) = (buffer.len(), buffer.capacity());
            let (read, slice) = self.stream.read(SliceMut::new(buffer, filled, capacity)).await;
            self.intake.put_back(slice.into_inner());
            return match read.map_err(lost)? {
                0 => Err(closed()),
                bytes => Ok(bytes),
            };
        }
        let mut sealed = std::mem::take(&mut self.sealed);
        sealed.clear();
        sealed.reserve_exact(BUFFER);
        let (read, sealed) = self.stream.read(sealed).await;
        self.sealed = sealed;
        let bytes = read.map_err(lost)?;
        if bytes == 0 {
            return Err(closed());
        }
        let goes_on = match &mut *tls.borrow_mut() {
            Some(tls) => {
                tls.receive(&self.sealed, &mut self.intake, need).map_err(ReadError::Tls)?
            }
            None => true,
        };
        // What came before the end is still to be looked at; then a read finds the end.
        if goes_on || !self.intake.is_empty() { Ok(bytes) } else { Err(closed()) }
    }
}

async fn read_all(shared: &Shared, stream: &mut impl AsyncReadRent, intake: Intake) {
    let mut source = Source::new(stream, intake);
    let mut coalescer = Coalescer::default();
    let mut pause_until: Option<Instant> = None;
    let begun = Instant::now();
    while !shared.is_ending() {
        let outcome = match shared.digest(&mut source.intake) {
            Ok(Wants::Grant) => {
                wait_for_grant(shared).await;
                Ok(0)
            }
            Ok(Wants::Bytes(need)) => {
                if let Some(until) = pause_until.take() {
                    monoio::time::sleep_until(until.into()).await;
                }
                let asked_at = Instant::now();
                shared.waits_since(Some(asked_at));
                let outcome = source.read(&shared.tls, need).await.map_err(|error| match error {
                    ReadError::Lost(why) => PgConnError::Lost(why),
                    ReadError::Tls(error) => PgConnError::Lost(error.why),
                });
                shared.waits_since(None);
                if let (Ok(bytes), true) = (&outcome, shared.is_copying()) {
                    let now = Instant::now();
                    let filled = source.intake.is_filled();
                    let pause = coalescer.after_read(now - begun, *bytes, filled);
                    pause_until = pause.map(|pause| now + pause);
                }
                outcome
            }
            Err(cause) => Err(cause),
        };
        if let Err(cause) = outcome {
            shared.fail(cause);
        }
    }
}

async fn wait_for_grant(shared: &Shared) {
    poll_fn(
        |_| {
            if shared.has_grant() || shared.is_ending() { Poll::Ready(()) } else { Poll::Pending }
        },
    )
    .await;
}

async fn write_all(shared: &Shared, stream: &mut impl AsyncWriteRent) {
    while !shared.is_ending() {
        let bytes = shared.take_output();
        if bytes.is_empty() {
            wait_for_output(shared).await;
            continue;
        }
        shared.set_writing(true);
        let (written, _) = stream.write_all(bytes).await;
        shared.set_writing(false);
        if let Err(error) = written {
            shared.fail(PgConnError::Lost(error.to_string()));
        }
    }
}

/// Until there is something to write or the connection ends.
async fn wait_for_output(shared: &Shared) {
    poll_fn(|_| {
        if shared.has_output() || shared.is_ending() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

/// Sleeps until the next deadline, which may come nearer while it sleeps.
async fn watch(shared: &Shared) {
    loop {
        let at = shared.watch_at();
        let mut sleep = pin!(monoio::time::sleep_until(at.into()));
        poll_fn(
            |cx| {
                if shared.watch_at() < at { Poll::Ready(()) } else { sleep.as_mut().poll(cx) }
            },
        )
        .await;
        shared.look(Instant::now());
    }
}
