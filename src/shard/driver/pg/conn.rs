//! One connection slot: what it is asked, what it reads and writes, and its end.
//!
//! A copy is read against grants: [`PgCommand::Read`] yields one chunk, and without it nothing is
//! read. Otherwise a read is always pending, so that the end is noticed. Writes never wait for
//! reads. The end is the same as everywhere in the driver: the socket is made to fail, reader and
//! writer end by themselves, the descriptor is closed, and [`PgEvent::Down`] comes last.

use std::cell::{Cell, RefCell};
use std::os::fd::RawFd;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::intake::{Front, Intake};
use super::tls::Session;
use super::{login, traffic, transport};
use crate::config::PostgresPlan;
use crate::pg_wire::frame::Messages;
use crate::pg_wire::query::{Collector, MOST_ANSWER_BYTES, MOST_NOTICES, QueryEnd, encode_query};
use crate::pg_wire::{Notice, ServerError, replication};
use crate::shard::driver::queue::EventQueue;
use crate::shard::driver::resolve::Resolver;
use crate::shard::driver::socket;
use crate::shard::event::{Event, PgCommand, PgConnError, PgConnId, PgEvent};

/// Bytes that may wait for a server that does not read.
const MOST_UNSENT: usize = 4 << 20;
/// How long the watchdog sleeps when there is nothing to watch.
const FAR: Duration = Duration::from_secs(3600);

/// What a connection needs from its thread.
pub struct PgDial {
    /// Slot.
    pub conn: PgConnId,
    /// Where, and as whom.
    pub plan: Arc<PostgresPlan>,
    /// Ask for a walsender.
    pub replication: bool,
    /// Where events go.
    pub events: Rc<EventQueue>,
    /// For host names.
    pub resolver: Rc<Resolver>,
}

/// A connection, from its dial to its [`PgEvent::Down`]. A clone is another handle to it.
#[derive(Clone)]
pub struct PgConn {
    shared: Rc<Shared>,
}

/// State of a connection, shared by its task and its [`PgConn`]; one thread.
pub(super) struct Shared {
    pub(super) plan: Arc<PostgresPlan>,
    pub(super) replication: bool,
    pub(super) resolver: Rc<Resolver>,
    /// Present once TLS is agreed.
    pub(super) tls: RefCell<Option<Session>>,
    conn: PgConnId,
    events: Rc<EventQueue>,
    state: RefCell<State>,
    task: RefCell<Option<Waker>>,
    socket: Cell<Option<RawFd>>,
}

/// What the messages of the server mean now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    /// The login goes on.
    #[default]
    Starting,
    /// Answers to queries.
    Asking,
    /// Data, against grants.
    Copying,
    /// The server's copy is over; what ends its query follows. A server that was in the middle
    /// of a transaction sends the rest of it all the same: nobody wants it, and whoever resumes
    /// gets it again.
    CopyOver,
}

#[derive(Default)]
struct State {
    phase: Phase,
    /// Queries without an answer; the one that copies is among them.
    unanswered: usize,
    collector: Collector,
    /// Remarks since the last other event; further ones than [`MOST_NOTICES`] are left out.
    notices: usize,
    /// Bytes of a chunk and of a message at most.
    grant: Option<(u32, u32)>,
    unsent: Vec<u8>,
    is_writing: bool,
    /// Our side of the copy is over.
    said_copy_done: bool,
    silence: Option<Duration>,
    /// Since when a granted read has brought nothing.
    waiting_since: Option<Instant>,
    cause: Option<PgConnError>,
}

/// What has to happen before the next message can be looked at.
pub(super) enum Wants {
    /// More bytes, for a message of this size.
    Bytes(usize),
    /// A grant.
    Grant,
}

impl PgConn {
    /// Dials, in a task of its own.
    pub fn open(dial: PgDial) -> PgConn {
        let shared = Rc::new(Shared {
            plan: dial.plan,
            replication: dial.replication,
            resolver: dial.resolver,
            tls: RefCell::default(),
            conn: dial.conn,
            events: dial.events,
            state: RefCell::default(),
            task: RefCell::default(),
            socket: Cell::default(),
        });
        monoio::spawn(run(shared.clone()));
        PgConn { shared }
    }

    /// Does what is asked; [`PgCommand::Connect`] is [`PgConn::open`].
    pub fn command(&self, command: PgCommand) {
        match command {
            PgCommand::Connect { .. } => {}
            PgCommand::Query(sql) => self.query(&sql),
            PgCommand::Read { most, largest } => self.read(most, largest),
            PgCommand::Write(bytes) => self.write(&bytes),
            PgCommand::Watch(silence) => self.watch(silence),
            PgCommand::Close => self.close(),
        }
    }

    /// See [`PgCommand::Query`].
    pub fn query(&self, sql: &str) {
        let mut state = self.shared.state.borrow_mut();
        if state.phase != Phase::Asking {
            drop(state);
            let why = "a query was asked while a copy runs or before the login".to_owned();
            return self.shared.fail(PgConnError::Protocol(why));
        }
        state.unanswered += 1;
        drop(state);
        self.shared.enqueue(&encode_query(sql));
    }

    /// See [`PgCommand::Read`].
    pub fn read(&self, most: u32, largest: u32) {
        self.shared.state.borrow_mut().grant = Some((most, largest));
        self.shared.wake();
    }

    /// See [`PgCommand::Write`].
    pub fn write(&self, bytes: &[u8]) {
        let ends = Messages::new(bytes).any(|(tag, _)| tag == b'c');
        self.shared.state.borrow_mut().said_copy_done |= ends;
        self.shared.enqueue(bytes);
    }

    /// See [`PgCommand::Watch`].
    pub fn watch(&self, silence: Option<Duration>) {
        self.shared.state.borrow_mut().silence = silence;
        self.shared.wake();
    }

    /// See [`PgCommand::Close`].
    pub fn close(&self) {
        self.shared.close();
    }
}

async fn run(shared: Rc<Shared>) {
    let cause = match login::establish(&shared).await {
        Ok(login::Established { stream, intake, info }) => {
            shared.state.borrow_mut().phase = Phase::Asking;
            shared.push(PgEvent::Up(Box::new(info)));
            traffic::run(&shared, stream, intake).await;
            shared.cause().unwrap_or_else(|| PgConnError::Lost("ended without a cause".into()))
        }
        Err(cause) => cause,
    };
    shared.state.borrow_mut().cause.get_or_insert_with(|| cause.clone());
    shared.push(PgEvent::Down(cause));
}

impl Shared {
    /// Ends the connection; the first cause counts.
    pub(super) fn fail(&self, cause: PgConnError) {
        // Once it is ending the socket fails anyway, and last words may be on their way.
        if self.is_ending() {
            return;
        }
        self.state.borrow_mut().cause = Some(cause);
        if let Some(fd) = self.socket.get() {
            socket::abort(fd);
        }
        self.wake();
    }

    /// Why the connection is ending, if it is.
    pub(super) fn cause(&self) -> Option<PgConnError> {
        self.state.borrow().cause.clone()
    }

    pub(super) fn is_ending(&self) -> bool {
        self.state.borrow().cause.is_some()
    }

    /// Remembers the connection's task, to be woken by [`PgConn`].
    pub(super) fn register(&self, task: &Waker) {
        let mut known = self.task.borrow_mut();
        if !known.as_ref().is_some_and(|known| known.will_wake(task)) {
            *known = Some(task.clone());
        }
    }

    /// Names the descriptor that [`Shared::fail`] may reset; `None` before it is closed.
    pub(super) fn own_socket(&self, fd: Option<RawFd>) {
        self.socket.set(fd);
    }

    pub(super) fn open_socket(&self) -> Option<RawFd> {
        self.socket.get()
    }

    /// Bytes for the socket, encrypted where they must be; empty when there are none.
    pub(super) fn take_output(&self) -> Vec<u8> {
        let plain = std::mem::take(&mut self.state.borrow_mut().unsent);
        self.seal(plain)
    }

    /// The same for these bytes.
    pub(super) fn seal(&self, plain: Vec<u8>) -> Vec<u8> {
        let Some(tls) = &mut *self.tls.borrow_mut() else { return plain };
        let mut bytes = Vec::new();
        tls.send(&plain);
        tls.take_output(&mut bytes);
        bytes
    }

    pub(super) fn has_output(&self) -> bool {
        !self.state.borrow().unsent.is_empty()
            || self.tls.borrow().as_ref().is_some_and(Session::has_output)
    }

    pub(super) fn set_writing(&self, is_writing: bool) {
        self.state.borrow_mut().is_writing = is_writing;
    }

    pub(super) fn is_copying(&self) -> bool {
        self.state.borrow().phase == Phase::Copying
    }

    pub(super) fn has_grant(&self) -> bool {
        self.state.borrow().grant.is_some()
    }

    /// A read begins, or brought something.
    pub(super) fn waits_since(&self, now: Option<Instant>) {
        self.state.borrow_mut().waiting_since = now;
    }

    /// When the watchdog looks again.
    pub(super) fn watch_at(&self) -> Instant {
        self.state.borrow().overdue_at().unwrap_or_else(|| Instant::now() + FAR)
    }

    /// Ends a connection that is silent for too long.
    pub(super) fn look(&self, now: Instant) {
        let state = self.state.borrow();
        let Some(silence) = state.silence else { return };
        let is_overdue = state.overdue_at().is_some_and(|at| at <= now);
        drop(state);
        if is_overdue {
            self.fail(PgConnError::Silent(silence));
        }
    }

    /// Deals with every message in `intake` that may be dealt with.
    pub(super) fn digest(&self, intake: &mut Intake) -> Result<Wants, PgConnError> {
        loop {
            let (phase, grant) = {
                let state = self.state.borrow();
                (state.phase, state.grant)
            };
            let front = match (phase, grant) {
                (Phase::Copying, None) => return Ok(Wants::Grant),
                (Phase::Copying, Some((most, largest))) => intake.chunk(most, largest),
                _ => intake.message(u32::try_from(MOST_ANSWER_BYTES).unwrap_or(u32::MAX)),
            };
            match front.map_err(|error| PgConnError::Protocol(error.to_string()))? {
                Front::Cut(need) => return Ok(Wants::Bytes(need)),
                Front::Chunk(bytes) => self.granted(PgEvent::Chunk(bytes)),
                Front::TooLarge(size) if phase == Phase::Copying => {
                    self.granted(PgEvent::TooLarge { size });
                }
                Front::TooLarge(size) => {
                    return Err(PgConnError::Protocol(format!("message of {size} bytes")));
                }
                Front::Message(tag, body) => self.message(phase, tag, &body)?,
            }
        }
    }

    fn granted(&self, event: PgEvent) {
        let mut state = self.state.borrow_mut();
        state.grant = None;
        state.notices = 0;
        drop(state);
        self.push(event);
    }

    fn message(&self, phase: Phase, tag: u8, body: &Bytes) -> Result<(), PgConnError> {
        let wire = |error: crate::pg_wire::PgWireError| PgConnError::Protocol(error.to_string());
        match tag {
            b'N' => {
                let notice = Notice::parse(body).map_err(wire)?;
                let mut state = self.state.borrow_mut();
                state.notices += 1;
                let has_room = state.notices <= MOST_NOTICES;
                drop(state);
                if has_room {
                    self.push(PgEvent::Notice(Box::new(notice)));
                }
                return Ok(());
            }
            b'E' => {
                let error = ServerError::parse(body).map_err(wire)?;
                if error.is_fatal() {
                    return Err(PgConnError::Ended(error));
                }
            }
            b'd' if phase == Phase::CopyOver => return Ok(()),
            _ => {}
        }
        if phase == Phase::Copying && matches!(tag, b'c' | b'E') {
            self.copy_over(tag == b'c');
        }
        let end = self.state.borrow_mut().collector.push(tag, body).map_err(wire)?;
        end.map_or(Ok(()), |end| self.ended(end))
    }

    /// The server's side of the copy is over: by CopyDone, which wants ours, or by an error, and
    /// then it skips what we send.
    fn copy_over(&self, wants_ours: bool) {
        let mut state = self.state.borrow_mut();
        state.phase = Phase::CopyOver;
        state.grant = None;
        let must_answer = wants_ours && !state.said_copy_done;
        drop(state);
        if must_answer {
            self.enqueue(&replication::copy_done());
        }
    }

    fn ended(&self, end: QueryEnd) -> Result<(), PgConnError> {
        let mut state = self.state.borrow_mut();
        if state.unanswered == 0 {
            return Err(PgConnError::Protocol("an answer to no question".into()));
        }
        if end == QueryEnd::CopyBoth {
            state.phase = Phase::Copying;
            state.said_copy_done = false;
            drop(state);
            self.push(PgEvent::CopyStarted);
            return Ok(());
        }
        state.unanswered -= 1;
        state.notices = 0;
        let was_copying = std::mem::replace(&mut state.phase, Phase::Asking) != Phase::Asking;
        drop(state);
        self.push(match (was_copying, end) {
            (true, QueryEnd::Failed(error)) => PgEvent::CopyEnded(Some(error)),
            (true, _) => PgEvent::CopyEnded(None),
            (false, QueryEnd::Failed(error)) => PgEvent::Answer(Err(error)),
            (false, QueryEnd::Done(rows)) => PgEvent::Answer(Ok(rows)),
            (false, QueryEnd::CopyBoth) => PgEvent::CopyStarted,
        });
        Ok(())
    }

    fn close(&self) {
        let mut state = self.state.borrow_mut();
        if state.cause.is_some() {
            return;
        }
        state.cause = Some(PgConnError::Closed);
        let may_speak = state.phase != Phase::Starting && !state.is_writing;
        state.unsent.extend_from_slice(&replication::terminate());
        drop(state);
        if let Some(fd) = self.socket.get() {
            if may_speak {
                if let Some(tls) = &mut *self.tls.borrow_mut() {
                    // After the last words, which are encrypted first.
                    tls.send(&std::mem::take(&mut self.state.borrow_mut().unsent));
                    tls.send_close();
                }
                transport::send_now(fd, &self.take_output());
                transport::hang_up(fd);
            } else {
                socket::abort(fd);
            }
        }
        self.wake();
    }

    fn enqueue(&self, bytes: &[u8]) {
        let mut state = self.state.borrow_mut();
        state.unsent.extend_from_slice(bytes);
        let is_stuck = state.unsent.len() > MOST_UNSENT && state.is_writing;
        drop(state);
        if is_stuck {
            self.fail(PgConnError::Lost("the server does not read what it is sent".into()));
        }
        self.wake();
    }

    fn push(&self, event: PgEvent) {
        self.events.push(Event::Pg { conn: self.conn, event });
    }

    pub(super) fn wake(&self) {
        if let Some(task) = &*self.task.borrow() {
            task.wake_by_ref();
        }
    }
}

impl State {
    /// When the silence of the server counts as its death.
    fn overdue_at(&self) -> Option<Instant> {
        if self.phase != Phase::Copying || self.cause.is_some() {
            return None;
        }
        Some(self.waiting_since? + self.silence?)
    }
}
