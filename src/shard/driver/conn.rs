//! One connection slot: its login, its requests in flight and their deadlines.
//!
//! All of a connection runs in one task: dial and login ([`super::login`]), then reader, writer
//! and watchdog ([`super::traffic`]). The rest of the thread holds a [`Conn`], which only
//! changes state and wakes that task. The end is always the same, whatever the cause: the socket
//! is reset, reader and writer end by themselves, the descriptor is closed, every outstanding
//! request fails as [`Failure::Lost`], and [`Event::ConnDown`] comes last.
//!
//! Deadlines count silence, not work. Reads and pings are served in order, so whatever arrives
//! moves all that wait behind it: their time runs from the last byte of any reply, until a reply
//! to a later one is complete; from then on only their own bytes count. A send has only its own.
//! A read that times out costs a ping, a send its connection (M13, M6). So does a read whose reply
//! stops in the middle: nothing else can arrive any more, and the buffer that was made for it has
//! to go before the request ends, because what the request reserved goes back with its end (G6).

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::RawFd;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use super::frames::Frame;
use super::log_limit::LogLimit;
use super::queue::EventQueue;
use super::resolve::Resolver;
use super::socket;
use super::{login, traffic};
use crate::config::ClusterPlan;
use crate::iggy_wire::session::Session;
use crate::iggy_wire::{Reply, Request};
use crate::shard::event::{ConnError, ConnId, Event, Failure, Ticket};

/// A connection with nothing outstanding is asked for a sign of life after this long (H06).
pub const IDLE_PING: Duration = Duration::from_secs(5);
/// Largest reply to the driver's own pings, frame.
const PING_LIMIT: u32 = 4096;
/// How long the watchdog sleeps when there is nothing to watch.
const FAR: Duration = Duration::from_secs(3600);

/// What a connection needs from its thread.
pub struct Dial {
    /// Slot.
    pub conn: ConnId,
    /// Where and how to log in.
    pub cluster: Arc<ClusterPlan>,
    /// The node to reach; `None`: the configured addresses in order.
    pub node: Option<Arc<str>>,
    /// Where events go.
    pub events: Rc<EventQueue>,
    /// For host names.
    pub resolver: Rc<Resolver>,
}

/// A connection, from its dial to its [`Event::ConnDown`].
pub struct Conn {
    shared: Rc<Shared>,
}

/// State of a connection, shared by its task and its [`Conn`]; one thread.
pub(super) struct Shared {
    pub(super) conn: ConnId,
    pub(super) cluster: Arc<ClusterPlan>,
    pub(super) node: Option<Arc<str>>,
    pub(super) resolver: Rc<Resolver>,
    events: Rc<EventQueue>,
    state: RefCell<State>,
    task: Cell<Option<Waker>>,
    socket: Cell<Option<RawFd>>,
}

#[derive(Default)]
struct State {
    /// Present while logged in.
    session: Option<Session>,
    unsent: VecDeque<Frame>,
    /// By number, which is the order of asking.
    flights: BTreeMap<u64, Flight>,
    pinging: bool,
    heard_at: Option<Instant>,
    /// When the watchdog looks again.
    watch_at: Option<Instant>,
    cause: Option<ConnError>,
    strays: u64,
    stray_log: LogLimit,
}

/// A request without a reply.
struct Flight {
    kind: Kind,
    reply_limit: u32,
    timeout: Duration,
    stage: Stage,
    /// A later read or ping was answered before this one: it is not queued behind others.
    overtaken: bool,
    /// Its reply was announced, and a buffer of that size is being filled.
    arriving: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Ping,
    Read(Ticket),
    Send(Ticket),
}

/// How far a request is, and since when nothing has moved.
#[derive(Clone, Copy)]
enum Stage {
    /// Behind others; those have deadlines.
    Queued,
    Writing(Instant),
    Waiting(Instant),
}

/// What one look at the deadlines found.
#[derive(Default)]
struct Overdue {
    events: Vec<Event>,
    ping: Option<Duration>,
    cause: Option<ConnError>,
}

impl Conn {
    /// Dials, in a task of its own.
    pub fn open(dial: Dial) -> Conn {
        let shared = Rc::new(Shared {
            conn: dial.conn,
            cluster: dial.cluster,
            node: dial.node,
            resolver: dial.resolver,
            events: dial.events,
            state: RefCell::default(),
            task: Cell::default(),
            socket: Cell::default(),
        });
        monoio::spawn(run(shared.clone()));
        Conn { shared }
    }

    /// See [`crate::shard::event::Command::Request`].
    pub fn request(&self, ticket: Ticket, request: &Request, reply_limit: u32, timeout: Duration) {
        let kind = match request {
            Request::Send { .. } => Kind::Send(ticket),
            _ => Kind::Read(ticket),
        };
        let flight = Flight::new(kind, reply_limit, timeout);
        self.shared.enqueue(request, flight);
    }

    /// See [`crate::shard::event::Command::Close`].
    pub fn close(&self) {
        self.shared.fail(ConnError::Closed);
    }

    /// Replies nobody had asked for, so far.
    pub fn strays(&self) -> u64 {
        self.shared.state.borrow().strays
    }
}

async fn run(shared: Rc<Shared>) {
    let cause = match login::establish(&shared).await {
        Ok(login::Established { stream, intake, session, server_version, place }) => {
            let now = Instant::now();
            {
                let mut state = shared.state.borrow_mut();
                state.session = Some(session);
                state.heard_at = Some(now);
                state.watch_at = Some(now + IDLE_PING);
            }
            let conn = shared.conn;
            shared.events.push(Event::ConnUp { conn, server_version, place });
            traffic::run(&shared, stream, intake).await;
            shared.cause().unwrap_or_else(|| ConnError::Lost("ended without a cause".into()))
        }
        Err(cause) => cause,
    };
    shared.bury(cause);
}

impl Shared {
    /// Ends the connection; the first cause counts.
    pub(super) fn fail(&self, cause: ConnError) {
        self.state.borrow_mut().cause.get_or_insert(cause);
        if let Some(fd) = self.socket.get() {
            socket::abort(fd);
        }
        self.wake();
    }

    /// Why the connection is ending, if it is.
    pub(super) fn cause(&self) -> Option<ConnError> {
        self.state.borrow().cause.clone()
    }

    pub(super) fn is_ending(&self) -> bool {
        self.state.borrow().cause.is_some()
    }

    /// Remembers the connection's task, to be woken by [`Conn`].
    pub(super) fn register(&self, task: &Waker) {
        self.task.set(Some(task.clone()));
    }

    /// Names the descriptor that [`Shared::fail`] may reset; `None` before it is closed.
    pub(super) fn own_socket(&self, fd: Option<RawFd>) {
        self.socket.set(fd);
    }

    /// The descriptor named by [`Shared::own_socket`].
    pub(super) fn open_socket(&self) -> Option<RawFd> {
        self.socket.get()
    }

    fn wake(&self) {
        if let Some(task) = self.task.take() {
            task.wake();
        }
    }

    fn enqueue(&self, request: &Request, flight: Flight) {
        let mut guard = self.state.borrow_mut();
        let state = &mut *guard;
        let session = match &mut state.session {
            Some(session) if state.cause.is_none() => session,
            _ => return self.events.extend(flight.failed(Failure::Lost)),
        };
        match session.request(request) {
            Ok((number, bytes)) => {
                state.flights.insert(number, flight);
                state.unsent.push_back(Frame { number, bytes });
                drop(guard);
                self.wake();
            }
            Err(error) => {
                drop(guard);
                let why = format!("request cannot be encoded: {error}");
                self.events.extend(flight.failed(Failure::Malformed(why.clone())));
                self.fail(ConnError::Protocol(why));
            }
        }
    }

    /// Hands frames to the writer.
    pub(super) fn take_unsent(&self, take: impl FnOnce(&mut VecDeque<Frame>)) {
        take(&mut self.state.borrow_mut().unsent);
    }

    /// These requests are at the socket, and bytes moved just now.
    pub(super) fn writing(&self, numbers: impl Iterator<Item = u64>, now: Instant) {
        let mut state = self.state.borrow_mut();
        for number in numbers {
            state.move_to(number, Stage::Writing(now), now);
        }
    }

    /// This request is written.
    pub(super) fn written(&self, number: u64, now: Instant) {
        self.state.borrow_mut().move_to(number, Stage::Waiting(now), now);
    }

    /// A byte of the reply to `number`, or of no reply in particular, arrived.
    pub(super) fn heard(&self, number: Option<u64>, now: Instant) {
        let mut state = self.state.borrow_mut();
        state.heard_at = Some(now);
        if let Some(flight) = number.and_then(|number| state.flights.get_mut(&number)) {
            flight.stage = Stage::Waiting(now);
        }
    }

    /// Runs `f` on the session of a connection that is up.
    pub(super) fn with_session<T>(&self, f: impl FnOnce(&mut Session) -> T) -> Option<T> {
        self.state.borrow_mut().session.as_mut().map(f)
    }

    /// A reply of `size` bytes to `number` is announced; false ends the connection.
    pub(super) fn admits(&self, number: u64, size: u32) -> bool {
        let mut state = self.state.borrow_mut();
        let Some(flight) = state.flights.get_mut(&number) else { return true };
        let limit = flight.reply_limit;
        if size <= limit {
            flight.arriving = true;
            return true;
        }
        let flight = state.flights.remove(&number);
        drop(state);
        if let Some(flight) = flight {
            self.events.extend(flight.failed(Failure::TooLarge { size }));
        }
        self.fail(ConnError::TooLarge { size, limit });
        false
    }

    /// The end of request `number`.
    pub(super) fn answered(&self, number: u64, result: Result<Reply, Failure>) {
        let mut state = self.state.borrow_mut();
        let Some(flight) = state.flights.remove(&number) else { return };
        if flight.kind.is_in_order() {
            state.overtake(number);
        }
        match flight.kind {
            Kind::Ping => state.pinging = false,
            Kind::Read(ticket) | Kind::Send(ticket) => {
                self.events.push(Event::Replied { ticket, result });
            }
        }
    }

    /// Counts a reply nobody had asked for, or no longer waits for.
    pub(super) fn stray(&self, size: usize, now: Instant) {
        let mut state = self.state.borrow_mut();
        state.strays += 1;
        if let Some(left_out) = state.stray_log.allow(now) {
            tracing::warn!(
                cluster = %self.cluster.key, size, total = state.strays, left_out,
                "a reply to no outstanding request was ignored"
            );
        }
    }

    /// When the watchdog looks again.
    pub(super) fn watch_at(&self) -> Instant {
        let now = Instant::now();
        self.state.borrow().watch_at.unwrap_or(now + FAR)
    }

    /// Ends what is overdue and sets the next time to look.
    pub(super) fn watch(&self, now: Instant) {
        let overdue = self.state.borrow_mut().overdue(now, self.cluster.request_timeout);
        self.events.extend(overdue.events);
        if let Some(timeout) = overdue.ping {
            self.state.borrow_mut().pinging = true;
            self.enqueue(&Request::Ping, Flight::new(Kind::Ping, PING_LIMIT, timeout));
        }
        if let Some(cause) = overdue.cause {
            self.fail(cause);
        }
    }

    /// Reports the end: what is outstanding first, in order, then the connection.
    fn bury(&self, cause: ConnError) {
        let mut state = self.state.borrow_mut();
        state.session = None;
        state.unsent = VecDeque::new();
        state.cause.get_or_insert_with(|| cause.clone());
        let flights = std::mem::take(&mut state.flights);
        drop(state);
        for flight in flights.into_values() {
            self.events.extend(flight.failed(Failure::Lost));
        }
        self.events.push(Event::ConnDown { conn: self.conn, cause });
    }
}

impl Kind {
    /// The server answers these in the order of asking; a send when it is stored.
    fn is_in_order(self) -> bool {
        matches!(self, Kind::Ping | Kind::Read(_))
    }
}

impl Flight {
    fn new(kind: Kind, reply_limit: u32, timeout: Duration) -> Flight {
        Flight {
            kind,
            reply_limit,
            timeout,
            stage: Stage::Queued,
            overtaken: false,
            arriving: false,
        }
    }

    fn failed(self, failure: Failure) -> Option<Event> {
        match self.kind {
            Kind::Ping => None,
            Kind::Read(ticket) | Kind::Send(ticket) => {
                Some(Event::Replied { ticket, result: Err(failure) })
            }
        }
    }

    /// `heard`: when a byte of any reply arrived last.
    fn deadline(&self, heard: Option<Instant>) -> Option<Instant> {
        let moved = match self.stage {
            Stage::Queued => return None,
            Stage::Writing(since) | Stage::Waiting(since) => since,
        };
        let heard = heard.filter(|_| self.kind.is_in_order() && !self.overtaken);
        Some(heard.map_or(moved, |heard| heard.max(moved)) + self.timeout)
    }
}

impl State {
    fn move_to(&mut self, number: u64, stage: Stage, now: Instant) {
        if let Some(flight) = self.flights.get_mut(&number) {
            flight.stage = stage;
            let deadline = now + flight.timeout;
            if self.watch_at.is_none_or(|at| deadline < at) {
                self.watch_at = Some(deadline);
            }
        }
    }

    /// What was asked before `number` and is still without a reply gets its time once more, by
    /// itself: a connection that is busy with others must not hide a reply that never comes.
    fn overtake(&mut self, number: u64) {
        let Some(heard) = self.heard_at else { return };
        for flight in self.flights.range_mut(..number).map(|(_, flight)| flight) {
            if flight.kind.is_in_order() && !flight.overtaken {
                flight.overtaken = true;
                flight.stage = Stage::Waiting(heard);
            }
        }
    }

    fn overdue(&mut self, now: Instant, ping_timeout: Duration) -> Overdue {
        let mut found = Overdue::default();
        if self.cause.is_some() {
            self.watch_at = None;
            return found;
        }
        let heard = self.heard_at;
        let is_due = |flight: &Flight| flight.deadline(heard).is_some_and(|at| at <= now);
        let due: Vec<u64> =
            self.flights.iter().filter(|(_, f)| is_due(f)).map(|(number, _)| *number).collect();
        for number in due {
            let arriving =
                |flight: &&Flight| flight.arriving && matches!(flight.kind, Kind::Read(_));
            if let Some(flight) = self.flights.get(&number).filter(arriving) {
                // Ends with the connection, when its buffer is gone.
                found.cause.get_or_insert(ConnError::Silent(flight.timeout));
                continue;
            }
            let Some(flight) = self.flights.remove(&number) else { continue };
            let timeout = flight.timeout;
            let silent = match (flight.kind, flight.stage) {
                (Kind::Ping | Kind::Send(_), _) | (_, Stage::Writing(_)) => true,
                (Kind::Read(_), _) => false,
            };
            if silent {
                found.cause.get_or_insert(ConnError::Silent(timeout));
            } else {
                found.ping = Some(timeout);
            }
            if let Some(session) = &mut self.session {
                session.forget(number);
            }
            found.events.extend(flight.failed(Failure::TimedOut));
        }
        let idle_at = self.heard_at.map_or(now + FAR, |heard| heard + IDLE_PING);
        if self.flights.is_empty() && found.ping.is_none() && idle_at <= now {
            found.ping = Some(ping_timeout);
        }
        if self.pinging || found.cause.is_some() {
            found.ping = None;
        }
        let deadlines = self.flights.values().filter_map(|flight| flight.deadline(heard));
        let look_again = if self.flights.is_empty() && found.ping.is_none() && idle_at > now {
            idle_at
        } else {
            now + IDLE_PING
        };
        self.watch_at = deadlines.chain([look_again]).min();
        found
    }
}
