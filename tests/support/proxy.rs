//! A TCP proxy that can stop forwarding without closing anything, swallow bytes, delay them, or
//! cut every connection.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long a read waits before it looks at the switches again.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// A running proxy; everything it holds is closed with its handle.
pub struct Proxy {
    address: SocketAddr,
    switches: Arc<Switches>,
    acceptor: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Switches {
    paused: AtomicBool,
    swallowing: AtomicBool,
    ending: AtomicBool,
    delay_ms: AtomicU64,
    sockets: Mutex<Vec<TcpStream>>,
    accepted: AtomicU64,
}

impl Proxy {
    /// Listens on a port of its own and forwards to `target`.
    pub fn start(target: &str) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        listener.set_nonblocking(true).expect("a socket option");
        let switches = Arc::new(Switches::default());
        let acceptor = std::thread::spawn({
            let (switches, target) = (Arc::clone(&switches), target.to_owned());
            move || accept(&listener, &target, &switches)
        });
        Proxy { address, switches, acceptor: Some(acceptor) }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Nothing moves in either direction, sockets stay open, new ones too: a half-open peer.
    pub fn pause(&self) {
        self.switches.paused.store(true, Ordering::Relaxed);
    }

    /// Ends a pause; what waited goes on.
    pub fn resume(&self) {
        self.switches.paused.store(false, Ordering::Relaxed);
    }

    /// Everything is read and thrown away, until set back.
    pub fn swallow(&self, on: bool) {
        self.switches.swallowing.store(on, Ordering::Relaxed);
    }

    /// Every piece waits this long on its way.
    pub fn delay(&self, delay: Duration) {
        let millis = u64::try_from(delay.as_millis()).expect("a short delay");
        self.switches.delay_ms.store(millis, Ordering::Relaxed);
    }

    /// Closes every connection; new ones are taken.
    pub fn cut(&self) {
        for socket in self.switches.sockets.lock().expect("no panic").drain(..) {
            // Fails for a connection that has ended by itself.
            let _ = socket.shutdown(Shutdown::Both);
        }
    }

    /// Connections taken since the start.
    pub fn accepted(&self) -> u64 {
        self.switches.accepted.load(Ordering::Relaxed)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.switches.ending.store(true, Ordering::Relaxed);
        if let Some(acceptor) = self.acceptor.take() {
            // A panic of that thread has been printed; there is nothing to add.
            let _ = acceptor.join();
        }
        self.cut();
    }
}

fn accept(listener: &TcpListener, target: &str, switches: &Arc<Switches>) {
    while !switches.ending.load(Ordering::Relaxed) {
        match listener.accept() {
            Ok((client, _)) => {
                switches.accepted.fetch_add(1, Ordering::Relaxed);
                // A target that is down closes the client's connection, as it would by itself.
                if let Ok(server) = TcpStream::connect(target) {
                    forward(&client, &server, switches);
                    forward(&server, &client, switches);
                    switches.sockets.lock().expect("no panic").extend([client, server]);
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::sleep(LOOK_EVERY),
            Err(error) => panic!("accept: {error}"),
        }
    }
}

/// One direction, on a thread that ends with the connection.
fn forward(from: &TcpStream, to: &TcpStream, switches: &Arc<Switches>) {
    let (mut from, mut to) = (from.try_clone().expect("a socket"), to.try_clone().expect("one"));
    let switches = Arc::clone(switches);
    for socket in [&from, &to] {
        socket.set_nonblocking(false).expect("a socket option");
        socket.set_nodelay(true).expect("a socket option");
    }
    from.set_read_timeout(Some(LOOK_EVERY)).expect("a socket option");
    std::thread::spawn(move || {
        let mut buffer = vec![0; 64 << 10];
        while !switches.ending.load(Ordering::Relaxed) {
            if switches.paused.load(Ordering::Relaxed) {
                std::thread::sleep(LOOK_EVERY);
                continue;
            }
            let length = match from.read(&mut buffer) {
                Ok(0) => break,
                Ok(length) => length,
                Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
                Err(_) => break,
            };
            std::thread::sleep(Duration::from_millis(switches.delay_ms.load(Ordering::Relaxed)));
            while switches.paused.load(Ordering::Relaxed)
                && !switches.ending.load(Ordering::Relaxed)
            {
                std::thread::sleep(LOOK_EVERY);
            }
            let swallow = switches.swallowing.load(Ordering::Relaxed);
            if !swallow && to.write_all(&buffer[..length]).is_err() {
                break;
            }
        }
        // The other side may be gone already.
        let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
    });
}
