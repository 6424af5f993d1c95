//! One TCP socket: dialled without blocking, closed with a reset, never leaked.
//!
//! A read, write or connect in progress is not dropped; it is made to fail. [`abort`] resets the
//! connection under it, on both drivers, and the operation ends by itself. Only then is the
//! descriptor closed, at once and on this thread.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::time::Duration;

use monoio::net::TcpStream;
use socket2::{Domain, Protocol, SockRef, Socket, Type};

/// A socket that is connecting to `to`. `SO_LINGER` 0 is set before the connection exists: when
/// the process dies, the kernel resets the connection, and the server forgets what it had not
/// read yet. Keepalive stays off: pings notice a dead peer.
pub fn start_connect(to: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    socket.set_linger(Some(Duration::ZERO))?;
    socket.set_tcp_nodelay(true)?;
    match socket.connect(&to.into()) {
        Ok(()) => Ok(socket),
        Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => Ok(socket),
        Err(error) => Err(error),
    }
}

/// Waits until the connection stands. The ring waits inside the kernel, so its sockets become
/// blocking ones; epoll needs the opposite.
pub async fn finish_connect(stream: &TcpStream) -> io::Result<()> {
    stream.writable(false).await?;
    // SAFETY: `stream` owns the descriptor and outlives the borrow, which ends with this call.
    let fd = unsafe { BorrowedFd::borrow_raw(stream.as_raw_fd()) };
    let socket = SockRef::from(&fd);
    if let Some(error) = socket.take_error()? {
        return Err(error);
    }
    // Without this, a connect that was aborted before it stood would look like success.
    socket.peer_addr()?;
    socket.set_nonblocking(monoio::utils::is_legacy())
}

/// Resets the connection of `fd`, which the caller still owns. Whatever waits on it ends.
pub fn abort(fd: RawFd) {
    // A connect to no address disconnects: RST, send queue dropped. Where the kernel refuses
    // that, shutdown still ends every wait, and closing resets.
    //
    // SAFETY: all-zero is a valid `sockaddr`.
    let mut nowhere: libc::sockaddr = unsafe { std::mem::zeroed() };
    nowhere.sa_family = libc::AF_UNSPEC as libc::sa_family_t;
    let len = size_of::<libc::sockaddr>() as libc::socklen_t;
    // SAFETY: `nowhere` lives through the call, `len` is its size, and neither call does more
    // than change the state of a socket this process owns.
    unsafe {
        libc::connect(fd, &raw const nowhere, len);
        libc::shutdown(fd, libc::SHUT_RDWR);
    }
}

/// Closes now, not when the ring gets to it.
pub fn close(stream: TcpStream) {
    let fd = stream.into_raw_fd();
    // SAFETY: `into_raw_fd` gave up ownership of an open descriptor.
    drop(unsafe { OwnedFd::from_raw_fd(fd) });
}

/// The runtime's stream around a connecting socket.
pub fn register(socket: Socket) -> io::Result<(TcpStream, RawFd)> {
    let fd = socket.as_raw_fd();
    Ok((TcpStream::from_std(socket.into())?, fd))
}
