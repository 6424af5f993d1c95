//! A socket to a Postgres server: TCP or unix, dialled without blocking.
//!
//! Both are one type to the rest of the driver: the runtime's TCP stream only sends and receives
//! on its descriptor, and a unix stream socket does that as well. What makes it fail and how it
//! is closed is told in [`crate::shard::driver::socket`]. `SO_LINGER` stays as it is: nothing
//! that was written to a database does harm when it arrives late.

use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use monoio::net::TcpStream;
use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, TcpKeepalive, Type};

use crate::shard::driver::socket;

/// Where one attempt goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// An address and port.
    Tcp(SocketAddr),
    /// A socket file, or an abstract name behind a zero byte.
    Unix(PathBuf),
}

/// What the kernel does about a peer that went away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// Probes of an idle connection.
    pub keepalive: Option<KeepAlive>,
    /// How long written bytes may stay unconfirmed.
    pub user_timeout: Option<Duration>,
}

/// Probes of an idle connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepAlive {
    /// Silence before the first.
    pub idle: Duration,
    /// Time between two.
    pub interval: Duration,
    /// How many without an answer end the connection.
    pub count: u32,
}

impl Target {
    /// The socket of a server that listens in this directory, as libpq names it; a leading `@`
    /// stands for the abstract namespace.
    pub fn in_directory(directory: &Path, port: u16) -> Target {
        let path = directory.join(format!(".s.PGSQL.{port}"));
        let bytes = path.as_os_str().as_bytes();
        match bytes.strip_prefix(b"@") {
            Some(name) => Target::Unix(OsString::from_vec([b"\0", name].concat()).into()),
            None => Target::Unix(path),
        }
    }
}

/// A socket that is connecting; await [`socket::finish_connect`] on it.
pub fn start_connect(to: &Target, patience: &Patience) -> io::Result<(TcpStream, RawFd)> {
    let socket = match to {
        Target::Tcp(address) => {
            let domain = Domain::for_address(*address);
            let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
            socket.set_tcp_nodelay(true)?;
            patience.apply(&socket)?;
            connect(socket, &(*address).into())?
        }
        Target::Unix(path) => {
            connect(Socket::new(Domain::UNIX, Type::STREAM, None)?, &SockAddr::unix(path)?)?
        }
    };
    socket::register(socket)
}

/// Round trips below this are those of one host or one rack.
const NEAR: Duration = Duration::from_micros(500);
/// Receive buffer of a stream from a near server, bytes; the kernel adds as much again for itself.
const NEAR_BUFFER: usize = 64 * 1024;

/// Bounds what the kernel holds for a stream that is read in pauses (P12), if the server is near.
/// A server sends a packet per row; where the window is full, its kernel packs the rows of many
/// sends into one large packet, which costs both sides less. Far servers need the window that the
/// kernel finds by itself.
pub fn bound_window(fd: RawFd) -> io::Result<()> {
    if round_trip(fd)?.is_some_and(|time| time < NEAR) {
        // SAFETY: the caller owns the descriptor, which outlives the borrow.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        SockRef::from(&fd).set_recv_buffer_size(NEAR_BUFFER)?;
    }
    Ok(())
}

/// The kernel's estimate of a TCP connection's round trip; `None` of another socket.
fn round_trip(fd: RawFd) -> io::Result<Option<Duration>> {
    // SAFETY: all-zero is a valid `tcp_info`, which consists of numbers.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut size = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: `info` and `size` live through the call, and the kernel writes at most `size` bytes.
    let code = unsafe {
        let place = (&raw mut info).cast();
        libc::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, place, &raw mut size)
    };
    if code == 0 {
        return Ok(Some(Duration::from_micros(info.tcpi_rtt.into())));
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EOPNOTSUPP | libc::ENOPROTOOPT) => Ok(None),
        _ => Err(error),
    }
}

/// Ends both directions behind what was written, without waiting. A wait in progress ends.
pub fn hang_up(fd: RawFd) {
    // SAFETY: no pointers; the caller owns the descriptor.
    unsafe { libc::shutdown(fd, libc::SHUT_RDWR) };
}

/// Writes what fits right now. For the last words of a connection that nobody else writes to.
pub fn send_now(fd: RawFd, bytes: &[u8]) {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: `bytes` is valid for its length through the call; the caller owns the descriptor.
    unsafe { libc::send(fd, bytes.as_ptr().cast(), bytes.len(), flags) };
}

fn connect(socket: Socket, to: &SockAddr) -> io::Result<Socket> {
    socket.set_nonblocking(true)?;
    match socket.connect(to) {
        Ok(()) => Ok(socket),
        Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => Ok(socket),
        Err(error) => Err(error),
    }
}

impl Patience {
    fn apply(&self, socket: &Socket) -> io::Result<()> {
        socket.set_tcp_user_timeout(self.user_timeout)?;
        let Some(KeepAlive { idle, interval, count }) = self.keepalive else { return Ok(()) };
        let probes = TcpKeepalive::new().with_time(idle).with_interval(interval);
        socket.set_tcp_keepalive(&probes.with_retries(count))
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::fd::AsRawFd;
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::UnixListener;

    use super::*;
    use crate::shard::driver::runtime::{IoDriver, Runtimes};

    fn on_both_drivers(test: impl AsyncFn()) {
        for driver in [IoDriver::Uring, IoDriver::Epoll] {
            let (mut runtime, _) = Runtimes::new(driver).build().unwrap();
            runtime.block_on(test());
        }
    }

    fn patience() -> Patience {
        let (idle, interval) = (Duration::from_secs(11), Duration::from_secs(7));
        let user_timeout = Some(Duration::from_secs(13));
        Patience { keepalive: Some(KeepAlive { idle, interval, count: 4 }), user_timeout }
    }

    #[test]
    fn a_dead_peer_is_noticed_by_the_kernel() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        on_both_drivers(async || {
            let (stream, _) = start_connect(&Target::Tcp(address), &patience()).unwrap();
            socket::finish_connect(&stream).await.unwrap();
            // SAFETY: `stream` owns the descriptor and outlives the borrow.
            let fd = unsafe { BorrowedFd::borrow_raw(stream.as_raw_fd()) };
            let socket = SockRef::from(&fd);
            assert!(socket.tcp_nodelay().unwrap() && socket.keepalive().unwrap());
            assert_eq!(socket.tcp_keepalive_time().unwrap(), Duration::from_secs(11));
            assert_eq!(socket.tcp_keepalive_interval().unwrap(), Duration::from_secs(7));
            assert_eq!(socket.tcp_keepalive_retries().unwrap(), 4);
            assert_eq!(socket.tcp_user_timeout().unwrap(), Some(Duration::from_secs(13)));
        });
    }

    #[test]
    fn the_window_of_a_near_server_is_bounded() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        on_both_drivers(async || {
            let (stream, fd) = start_connect(&Target::Tcp(address), &patience()).unwrap();
            socket::finish_connect(&stream).await.unwrap();
            assert!(round_trip(fd).unwrap().is_some_and(|time| time > Duration::ZERO));
            bound_window(fd).unwrap();
            // SAFETY: `stream` owns the descriptor and outlives the borrow.
            let fd = unsafe { BorrowedFd::borrow_raw(stream.as_raw_fd()) };
            assert_eq!(SockRef::from(&fd).recv_buffer_size().unwrap(), 2 * NEAR_BUFFER);
        });
        let (unix, _) = std::os::unix::net::UnixStream::pair().unwrap();
        assert_eq!(round_trip(unix.as_raw_fd()).unwrap(), None);
    }

    #[test]
    fn unix_sockets_have_files_or_abstract_names() {
        let dir = tempfile::tempdir().unwrap();
        let _file = UnixListener::bind(dir.path().join(".s.PGSQL.7")).unwrap();
        let name = format!("tidegate-test-{}", std::process::id());
        let address =
            std::os::unix::net::SocketAddr::from_abstract_name(format!("{name}/.s.PGSQL.8"));
        let _abstract = UnixListener::bind_addr(&address.unwrap()).unwrap();
        on_both_drivers(async || {
            let targets = [
                Target::in_directory(dir.path(), 7),
                Target::in_directory(Path::new(&format!("@{name}")), 8),
            ];
            for target in targets {
                let (stream, _) = start_connect(&target, &patience()).unwrap();
                socket::finish_connect(&stream).await.unwrap();
            }
        });
        let nobody = Target::in_directory(dir.path(), 9);
        on_both_drivers(async || assert!(start_connect(&nobody, &patience()).is_err()));
    }
}
