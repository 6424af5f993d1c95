//! The admin interface, over a real socket: any bytes are answered or the connection is closed,
//! nothing changes, and the next caller is served.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::OnceLock;
use std::time::Duration;

use tidegate::admin::{AdminServer, Board, DaemonInfo, start};
use tidegate::config::{Listen, SecretError, Secrets, parse};
use tidegate::shard::mailbox::{Inbox, mailbox};
use tidegate::shard::order::Ask;

/// No corpus has it, so nobody shows it.
const TOKEN: &str = "Zq7-hunter2-Zq7";

struct Served {
    _server: AdminServer,
    address: SocketAddr,
    orders: Inbox<Ask>,
    _heard: std::os::unix::net::UnixStream,
}

struct Nothing;

impl Secrets for Nothing {
    fn env(&self, _: &str) -> Result<String, SecretError> {
        Err(SecretError::Unset)
    }

    fn file(&self, _: &str) -> Result<String, SecretError> {
        Err(SecretError::Absent)
    }
}

fn served() -> &'static Served {
    static SERVED: OnceLock<Served> = OnceLock::new();
    SERVED.get_or_init(|| {
        let text = format!(
            "[daemon]\nstate_dir = \"/nowhere\"\n[admin]\nlisten = \"127.0.0.1:0\"\n\
             token = \"{TOKEN}\"\n[clusters.a]\naddress = \"h:1\"\ntoken = \"t\"\n\
             [clusters.b]\naddress = \"i:1\"\ntoken = \"t\"\n[sources.orders]\nkind = \"iggy\"\n\
             from = \"a\"\nto = \"b\"\ninclude = [{{ stream = \"s\", topic = \"t\" }}]\n"
        );
        let plan = parse(&text, "x", &Nothing).expect("a configuration");
        let board = Board::new(DaemonInfo::new(&plan, 1));
        let (post, orders, heard) = mailbox(4).expect("a mailbox");
        let server = start(plan.admin.as_ref().expect("a table"), board, post).expect("a port");
        let Listen::Tcp(address) = *server.address() else { panic!("an address") };
        Served { _server: server, address, orders, _heard: heard }
    })
}

/// `data` as all that a caller sends.
pub fn request(data: &[u8]) {
    let served = served();
    let answer = talk(served.address, data);
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1."), "{}", answer.escape_ascii());
    assert!(!answer.windows(TOKEN.len()).any(|word| word == TOKEN.as_bytes()));
    if let Some(asked) = served.orders.take() {
        panic!("an order came through without the token: {asked:?}");
    }
    let alive = talk(served.address, b"GET /status/schema.json HTTP/1.1\r\nhost: x\r\n\r\n");
    assert!(alive.starts_with(b"HTTP/1.1 200"), "{}", alive.escape_ascii());
}

fn talk(address: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut socket = TcpStream::connect(address).expect("it listens");
    socket.set_read_timeout(Some(Duration::from_secs(20))).expect("a bound");
    // It may close before it has read all.
    let _ = socket.write_all(bytes);
    let _ = socket.shutdown(Shutdown::Write);
    let mut answer = Vec::new();
    if let Err(error) = socket.read_to_end(&mut answer) {
        let waited = matches!(error.raw_os_error(), Some(libc::EAGAIN));
        assert!(!waited, "no end of the connection: {}", bytes.escape_ascii());
    }
    answer
}
