//! The TCP front: an accept thread, two threads per connection, one for late appends.
//!
//! Requests of a connection are handed to the core in the order they were read; the core is behind
//! one lock that is never held while a socket is touched. Batches are checked before the lock.
//! The port stays reserved while the broker is stopped, so that nobody else can take it.
#![allow(clippy::disallowed_methods)] // the broker's front owns sockets, threads and the clock

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Read};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use iggy_binary_protocol::HEADER_SIZE;
use socket2::{Domain, SockRef, Socket, Type};

use super::arrivals::Arrivals;
use super::control::Control;
use super::core::{Core, Delivery, Effect, Flavour, Inbound, Settings};
use super::frame::{Framing, RequestHead, framing};
use super::log::VerifiedBatch;
use super::messages::LateSend;
use super::outbox::{Gate, Link, lock};

/// Bytes a connection reads ahead; larger bodies go straight into their own buffer.
const READ_AHEAD: usize = 16 << 10;

/// Connections the kernel keeps for the accept thread.
const BACKLOG: i32 = 1024;

/// What a broker is started with.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Address to listen on; port 0 picks one.
    pub address: String,
    /// User names and passwords.
    pub users: Vec<(String, String)>,
    /// Personal access tokens.
    pub tokens: Vec<String>,
    /// Version string of the login reply.
    pub version: String,
    /// Server line the broker answers like.
    pub flavour: Flavour,
    /// Bytes of a segment unless the topic says otherwise.
    pub segment_bytes: u64,
    /// Size limit of a topic that has no `max_topic_size`.
    pub max_topic_bytes: u64,
    /// Status for an invalid batch; `None` is silence, as the edge server does.
    pub invalid_batch_status: Option<u32>,
    /// Messages are checked, get offsets and are forgotten: for benchmarks.
    pub discard: bool,
}

/// A running broker; dropping it ends every thread and connection.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    timer: Option<JoinHandle<()>>,
}

/// What front, timer and controls share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) core: Arc<Mutex<Core>>,
    /// Which node of the core this is the door to.
    node: usize,
    pub(super) gate: Gate,
    pub(super) arrivals: Arrivals,
    links: Mutex<HashMap<u64, Arc<Link>>>,
    links_changed: Condvar,
    listening: Mutex<Option<Listening>>,
    late: Mutex<Vec<(Instant, LateSend)>>,
    late_changed: Condvar,
    ending: AtomicBool,
    address: SocketAddr,
    /// Bound and never listening: keeps the port ours while the broker is stopped.
    _reserved: Socket,
}

#[derive(Debug)]
struct Listening {
    listener: Arc<TcpListener>,
    stopping: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Default for ServerOptions {
    fn default() -> ServerOptions {
        let settings = Settings::default();
        ServerOptions {
            address: "127.0.0.1:0".to_owned(),
            users: settings.users,
            tokens: settings.tokens,
            version: settings.version,
            flavour: settings.flavour,
            segment_bytes: settings.segment_bytes,
            max_topic_bytes: settings.max_topic_bytes,
            invalid_batch_status: settings.invalid_batch_status,
            discard: settings.discard,
        }
    }
}

impl ServerOptions {
    fn settings(&self, address: SocketAddr) -> Settings {
        Settings {
            users: self.users.clone(),
            tokens: self.tokens.clone(),
            version: self.version.clone(),
            flavour: self.flavour,
            segment_bytes: self.segment_bytes,
            max_topic_bytes: self.max_topic_bytes,
            invalid_batch_status: self.invalid_batch_status,
            discard: self.discard,
            ip: address.ip().to_string(),
            port: address.port(),
            ..Settings::default()
        }
    }
}

impl Server {
    /// Listens and serves.
    pub fn start(options: ServerOptions) -> io::Result<Server> {
        let (reserved, address) = reserve(&options.address)?;
        let core = Arc::new(Mutex::new(Core::new(options.settings(address))));
        Server::open(core, 0, reserved, address)
    }

    /// Starts `count` nodes of one cluster, each with its own port; the first leads. All have the
    /// same log: see [`super::Nodes`] for what makes them differ.
    pub fn start_cluster(options: ServerOptions, count: usize) -> io::Result<Vec<Server>> {
        let doors: Vec<_> =
            (0..count).map(|_| reserve(&options.address)).collect::<io::Result<_>>()?;
        let Some((_, first)) = doors.first() else { return Ok(Vec::new()) };
        let mut core = Core::new(options.settings(*first));
        for (_, address) in &doors[1..] {
            core.nodes().add(&address.ip().to_string(), address.port());
        }
        let core = Arc::new(Mutex::new(core));
        let open =
            |(node, (reserved, address))| Server::open(Arc::clone(&core), node, reserved, address);
        doors.into_iter().enumerate().map(open).collect()
    }

    fn open(
        core: Arc<Mutex<Core>>,
        node: usize,
        reserved: Socket,
        address: SocketAddr,
    ) -> io::Result<Server> {
        let shared = Arc::new(Shared {
            core,
            node,
            arrivals: Arrivals::default(),
            gate: Gate::default(),
            links: Mutex::new(HashMap::new()),
            links_changed: Condvar::new(),
            listening: Mutex::new(None),
            late: Mutex::new(Vec::new()),
            late_changed: Condvar::new(),
            ending: AtomicBool::new(false),
            address,
            _reserved: reserved,
        });
        shared.listen()?;
        let timer = std::thread::Builder::new().name("loopback-late".to_owned()).spawn({
            let shared = Arc::clone(&shared);
            move || shared.run_late_appends()
        })?;
        Ok(Server { shared, timer: Some(timer) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.shared.address
    }

    /// A handle to look into it and to make it misbehave.
    pub fn control(&self) -> Control {
        Control::new(Arc::clone(&self.shared))
    }

    /// Ends every connection and thread.
    pub fn shutdown(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.shared.ending.store(true, Ordering::Release);
        self.shared.gate.set(false);
        self.shared.silence();
        drop(lock(&self.shared.late));
        self.shared.late_changed.notify_all();
        if let Some(timer) = self.timer.take() {
            // A panic of that thread has been printed; there is nothing to add.
            let _ = timer.join();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

impl Shared {
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Opens the port; nothing happens when it is open.
    pub(super) fn listen(self: &Arc<Shared>) -> io::Result<()> {
        let mut listening = lock(&self.listening);
        if listening.is_some() || self.ending.load(Ordering::Acquire) {
            return Ok(());
        }
        let socket = bound_socket(self.address)?;
        socket.listen(BACKLOG)?;
        let listener = Arc::new(TcpListener::from(socket));
        let stopping = Arc::new(AtomicBool::new(false));
        let thread = std::thread::Builder::new().name("loopback-accept".to_owned()).spawn({
            let (shared, listener) = (Arc::clone(self), Arc::clone(&listener));
            let stopping = Arc::clone(&stopping);
            move || shared.run_accept(&listener, &stopping)
        })?;
        *listening = Some(Listening { listener, stopping, thread });
        Ok(())
    }

    /// Closes the port and every connection, and waits until their threads are gone.
    pub(super) fn silence(&self) {
        if let Some(Listening { listener, stopping, thread }) = lock(&self.listening).take() {
            stopping.store(true, Ordering::Release);
            // Wakes the thread out of accept; the listener goes with the last reference.
            let _ = SockRef::from(&*listener).shutdown(Shutdown::Both);
            self.gate.nudge();
            drop(listener);
            let _ = thread.join();
        }
        self.disconnect_all();
        let mut links = lock(&self.links);
        while !links.is_empty() {
            links = self.links_changed.wait(links).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Closes every connection; the port stays open.
    pub(super) fn disconnect_all(&self) {
        for link in self.all_links() {
            link.close();
        }
        self.gate.nudge();
    }

    pub(super) fn all_links(&self) -> Vec<Arc<Link>> {
        lock(&self.links).values().cloned().collect()
    }

    pub(super) fn link(&self, id: u64) -> Option<Arc<Link>> {
        lock(&self.links).get(&id).cloned()
    }

    /// Sends waiting to be appended after their connection went.
    pub(super) fn pending_late_appends(&self) -> usize {
        lock(&self.late).len()
    }

    fn run_accept(self: &Arc<Shared>, listener: &TcpListener, stopping: &AtomicBool) {
        let stopped = || stopping.load(Ordering::Acquire);
        while !stopped() {
            match listener.accept() {
                Ok((socket, peer)) => {
                    self.gate.pass(stopped);
                    if stopped() {
                        return;
                    }
                    // Out of descriptors or threads: this peer sees a close, the next may fit.
                    let _ = self.adopt(socket, peer);
                }
                Err(_) if stopped() => return,
                // Out of descriptors: they come back when connections end.
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }

    fn adopt(self: &Arc<Shared>, socket: TcpStream, peer: SocketAddr) -> io::Result<()> {
        socket.set_nodelay(true)?;
        let link = Arc::new(Link::new(socket));
        let writer = std::thread::Builder::new().name("loopback-later".to_owned());
        let writer = writer.spawn({
            let (shared, link) = (Arc::clone(self), Arc::clone(&link));
            move || link.run_timed(&shared.gate)
        })?;
        let id = lock(&self.core).connect_to(self.node, peer.to_string());
        lock(&self.links).insert(id, Arc::clone(&link));
        let reader = std::thread::Builder::new().name("loopback-conn".to_owned()).spawn({
            let (shared, link) = (Arc::clone(self), Arc::clone(&link));
            move || {
                // How a connection ended is for its client to notice.
                let _ = shared.serve(id, &link);
                link.close();
                let _ = writer.join();
                shared.forget(id);
            }
        });
        if reader.is_err() {
            link.close();
            self.forget(id);
        }
        reader.map(drop)
    }

    /// Reads requests until the connection ends.
    fn serve(&self, id: u64, link: &Link) -> io::Result<()> {
        let mut reader = BufReader::with_capacity(READ_AHEAD, link.socket());
        loop {
            let mut header = [0; HEADER_SIZE];
            reader.read_exact(&mut header)?;
            let body = match framing(&header) {
                Framing::Close => return Ok(()),
                Framing::Ignore(length) => {
                    skip(&mut reader, length)?;
                    continue;
                }
                Framing::Request(length) => {
                    let mut body = vec![0; length];
                    reader.read_exact(&mut body)?;
                    body
                }
            };
            self.gate.pass(|| link.is_closed());
            if link.is_closed() {
                return Ok(());
            }
            let head = RequestHead::read(&header);
            let inbound = Inbound::decode(head, body);
            if inbound.is_send() {
                link.send_arrived();
            }
            let batch = inbound.batch();
            let count = batch.map_or(0, VerifiedBatch::count);
            let watched = batch.filter(|_| self.arrivals.is_watching());
            let origins = watched.map(VerifiedBatch::origins).unwrap_or_default();
            let effects = lock(&self.core).handle(id, inbound, unix_micros());
            for effect in effects {
                match effect {
                    Effect::Reply(frame, delivery) => {
                        let is_now = delivery == Delivery::Now && count > 0;
                        let is_ack = is_now && frame.answers_send && frame.is_ok();
                        link.deliver(&self.gate, frame, delivery)?;
                        if is_ack {
                            self.arrivals.acked(count, &origins, unix_micros());
                        }
                    }
                    Effect::Close => return Ok(()),
                    Effect::LateAppend(after, send) => {
                        self.close_and_append_later(link, after, send);
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Under one lock, so that whoever sees the close also sees the pending append, and the append
    /// never comes first.
    fn close_and_append_later(&self, link: &Link, after: Duration, send: LateSend) {
        let mut late = lock(&self.late);
        late.push((Instant::now() + after, send));
        link.close();
        drop(late);
        self.late_changed.notify_all();
    }

    fn forget(&self, id: u64) {
        lock(&self.core).disconnect(id);
        lock(&self.links).remove(&id);
        self.links_changed.notify_all();
    }

    fn run_late_appends(&self) {
        let mut late = lock(&self.late);
        while !self.ending.load(Ordering::Acquire) {
            let next = (0..late.len()).min_by_key(|&index| late[index].0);
            let Some(next) = next else {
                late = self.late_changed.wait(late).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let left = late[next].0.saturating_duration_since(Instant::now());
            if !left.is_zero() {
                let waited = self.late_changed.wait_timeout(late, left);
                late = waited.unwrap_or_else(PoisonError::into_inner).0;
                continue;
            }
            // Held until it is appended, so that "none pending" means "all appended".
            let (_, send) = late.remove(next);
            lock(&self.core).late_append(send, unix_micros());
        }
    }
}

/// Microseconds since the Unix epoch.
pub(super) fn unix_micros() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

/// A port that is ours, whether we listen or not.
fn reserve(address: &str) -> io::Result<(Socket, SocketAddr)> {
    let wanted: SocketAddr =
        address.parse().map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    let reserved = bound_socket(wanted)?;
    let address = reserved.local_addr()?.as_socket();
    let address = address.ok_or_else(|| io::Error::from(io::ErrorKind::AddrNotAvailable))?;
    Ok((reserved, address))
}

/// `SO_REUSEADDR` lets the listening socket share the port with the reserving one.
fn bound_socket(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

fn skip(reader: &mut impl BufRead, length: usize) -> io::Result<()> {
    let skipped = io::copy(&mut reader.take(length as u64), &mut io::sink())?;
    if skipped < length as u64 { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
}
