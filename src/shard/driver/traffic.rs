//! What a connection does while it is up: reader, writer and watchdog in one task.
//!
//! The reader takes a header, compares the announced length with what the request reserved, and
//! reads the body into one buffer of exactly that size ([`Intake`]); a body nobody waits for is
//! thrown away in small pieces.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::task::Poll;
use std::time::Instant;

use bytes::Bytes;
use monoio::io::{AsyncReadRent, AsyncWriteRent, Splitable};
use monoio::net::TcpStream;

use super::conn::Shared;
use super::frames::WriteBatch;
use super::intake::Intake;
use super::socket;
use crate::iggy_wire::frame::HeaderBytes;
use crate::iggy_wire::session::{Delivery, Incoming};
use crate::shard::event::{ConnError, Failure};

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

async fn read_all(shared: &Shared, stream: &mut impl AsyncReadRent, mut intake: Intake) {
    let lost = |error: io::Error| ConnError::Lost(error.to_string());
    while !shared.is_ending() {
        let outcome = match intake.header(stream).await {
            Ok(header) => read_one(shared, stream, &mut intake, &header).await,
            Err(error) => Err(lost(error)),
        };
        if let Err(cause) = outcome {
            shared.fail(cause);
        }
    }
}

/// One frame behind its header. An error is the end of the connection.
async fn read_one(
    shared: &Shared,
    stream: &mut impl AsyncReadRent,
    intake: &mut Intake,
    header: &HeaderBytes,
) -> Result<(), ConnError> {
    let incoming = shared
        .with_session(|session| session.on_header(header))
        .ok_or(ConnError::Closed)?
        .map_err(|error| ConnError::Protocol(error.to_string()))?;
    shared.heard(incoming.number, Instant::now());
    if let Some(number) = incoming.number {
        let size = u32::try_from(incoming.frame_len()).unwrap_or(u32::MAX);
        if !shared.admits(number, size) {
            return Ok(());
        }
    }
    let lost = |error: io::Error| ConnError::Lost(error.to_string());
    let heard = |_| shared.heard(incoming.number, Instant::now());
    let body = if incoming.number.is_some() {
        intake.body(stream, incoming.body_len, heard).await.map_err(lost)?
    } else {
        intake.discard(stream, incoming.body_len, heard).await.map_err(lost)?;
        Vec::new()
    };
    deliver(shared, &incoming, Bytes::from(body))
}

fn deliver(shared: &Shared, incoming: &Incoming, body: Bytes) -> Result<(), ConnError> {
    let delivery =
        shared.with_session(|session| session.on_reply(incoming, body)).ok_or(ConnError::Closed)?;
    match delivery {
        Ok(Delivery::Reply { number, result }) => {
            shared.answered(number, result.map_err(|error| Failure::Refused(error.code)));
        }
        Ok(Delivery::Evicted { reason }) => return Err(ConnError::Evicted(reason)),
        Ok(Delivery::Stray { .. } | Delivery::LoggedIn { .. } | Delivery::LoginRefused { .. }) => {
            shared.stray(incoming.frame_len(), Instant::now());
        }
        Err(malformed) => {
            let why = malformed.to_string();
            shared.answered(malformed.number, Err(Failure::Malformed(why.clone())));
            return Err(ConnError::Protocol(why));
        }
    }
    Ok(())
}

async fn write_all(shared: &Shared, stream: &mut impl AsyncWriteRent) {
    let mut batch = WriteBatch::default();
    while !shared.is_ending() {
        shared.take_unsent(|queue| batch.fill_from(queue));
        if batch.is_empty() {
            batch = WriteBatch::default();
            wait_for_work(shared).await;
            continue;
        }
        shared.writing(batch.numbers(), Instant::now());
        let (written, back) = write_some(stream, batch).await;
        batch = back;
        let now = Instant::now();
        match written {
            Ok(bytes) => batch.advance(bytes, |number| shared.written(number, now)),
            Err(error) => shared.fail(ConnError::Lost(error.to_string())),
        }
    }
}

/// Until there is a frame to write or the connection ends.
async fn wait_for_work(shared: &Shared) {
    poll_fn(|_| {
        let mut has_work = false;
        shared.take_unsent(|queue| has_work = !queue.is_empty());
        if has_work || shared.is_ending() { Poll::Ready(()) } else { Poll::Pending }
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
        let now = Instant::now();
        if now >= shared.watch_at() {
            shared.watch(now);
        }
    }
}

/// One write of what is left of `batch`; never zero bytes.
pub(crate) async fn write_some(
    stream: &mut impl AsyncWriteRent,
    mut batch: WriteBatch,
) -> (io::Result<usize>, WriteBatch) {
    batch.point();
    match stream.writev(batch).await {
        (Ok(0), batch) => (Err(io::ErrorKind::WriteZero.into()), batch),
        outcome => outcome,
    }
}
