//! The HTTP side: one thread, one request per connection, everything bounded.
//!
//! A connection gets [`HEADER_TIMEOUT`] to say what it wants and [`CONNECTION_TIMEOUT`] in all.
//! There are never more than [`MAX_CONNECTIONS`], so that the data path keeps its descriptors.
//! Where all are taken, a new caller gets the place of the one that has said nothing for longest:
//! strangers who only hold connections keep nobody from asking whether the daemon lives. If all
//! have asked and wait for their answers, the new one hears 503.

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener, UnixSocket};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;

use super::board::Board;
use super::routes::{Desk, router};
use crate::config::{AdminPlan, Listen};
use crate::shard::mailbox::Post;
use crate::shard::order::Ask;

/// Connections served at the same time.
const MAX_CONNECTIONS: usize = 16;
/// Callers that the kernel keeps for us to accept.
const BACKLOG: u32 = 128;
/// From accept to the end of the request's headers.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
/// From accept to the last byte of the answer.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(30);
/// Request line and headers; a larger request is answered 431.
const MAX_REQUEST_BYTES: usize = 16 * 1024;
/// Headers of a request; one with more is answered 431.
const MAX_HEADERS: usize = 64;
/// Pause after a failed accept, most likely for want of descriptors: no spinning, few log lines.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);
/// Failed accepts in a row per log line.
const ACCEPT_FAILURES_PER_LINE: u64 = 30;

const BUSY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\n\
    retry-after: 1\r\nconnection: close\r\ncontent-length: 32\r\n\r\n\
    {\"error\":\"too many connections\"}";

/// The running admin interface; dropping it closes the socket and ends the thread.
#[derive(Debug)]
pub struct AdminServer {
    address: Listen,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl AdminServer {
    /// Where it listens; the real port when 0 was asked for.
    pub fn address(&self) -> &Listen {
        &self.address
    }
}

impl Drop for AdminServer {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic there was already reported by the panic hook.
            let _ = thread.join();
        }
        if let Listen::Unix(path) = &self.address {
            // Best effort: the next start removes a socket that nobody listens on.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Listens and serves `board` on a thread of its own, and passes on `orders` of callers who may
/// give them. When this returns, requests are answered.
pub fn start(plan: &AdminPlan, board: Board, orders: Post<Ask>) -> io::Result<AdminServer> {
    let explain = |error: io::Error| {
        let text = format!(
            "the admin interface cannot listen on {}: {error}; free that address or set another \
             `listen` in [admin]",
            plan.listen
        );
        io::Error::new(error.kind(), text)
    };
    let bound = Bound::bind(&plan.listen).map_err(explain)?;
    let address = bound.address()?;
    let is_exposed = !address.is_local();
    let desk = Desk { board, orders, token: plan.token.clone(), is_exposed };
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    let listener = {
        let _inside = runtime.enter();
        bound.into_listener()?
    };
    let (stop, stopped) = oneshot::channel::<()>();
    let serve = move || {
        runtime.block_on(async move {
            tokio::spawn(accept_all(listener, router(desk)));
            // Ends when the sender is dropped; the runtime then drops every connection.
            let _ = stopped.await;
        });
    };
    let thread = std::thread::Builder::new().name("tidegate-admin".into()).spawn(serve)?;
    Ok(AdminServer { address, stop: Some(stop), thread: Some(thread) })
}

/// A listening socket that no runtime has yet.
enum Bound {
    Tcp(std::net::TcpListener),
    Unix(UnixSocket, PathBuf),
}

impl Bound {
    fn bind(listen: &Listen) -> io::Result<Bound> {
        match listen {
            Listen::Tcp(address) => {
                let listener = std::net::TcpListener::bind(address)?;
                listener.set_nonblocking(true)?;
                Ok(Bound::Tcp(listener))
            }
            Listen::Unix(path) => {
                remove_stale(path)?;
                let socket = UnixSocket::new_stream()?;
                // The file gets the mode of the socket, less the umask: there is no moment at
                // which anybody else could connect.
                let owned = std::fs::File::from(socket.as_fd().try_clone_to_owned()?);
                owned.set_permissions(std::fs::Permissions::from_mode(0o600))?;
                socket.bind(path)?;
                Ok(Bound::Unix(socket, path.clone()))
            }
        }
    }

    fn address(&self) -> io::Result<Listen> {
        match self {
            Bound::Tcp(listener) => listener.local_addr().map(Listen::Tcp),
            Bound::Unix(_, path) => Ok(Listen::Unix(path.clone())),
        }
    }

    fn into_listener(self) -> io::Result<Listener> {
        match self {
            Bound::Tcp(listener) => TcpListener::from_std(listener).map(Listener::Tcp),
            Bound::Unix(socket, _) => socket.listen(BACKLOG).map(Listener::Unix),
        }
    }
}

/// A socket file that a killed daemon left behind; anything else at that path stays.
fn remove_stale(path: &Path) -> io::Result<()> {
    match std::fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => {
            if std::os::unix::net::UnixStream::connect(path).is_ok() {
                return Err(io::Error::new(io::ErrorKind::AddrInUse, "somebody listens there"));
            }
            std::fs::remove_file(path)
        }
        Ok(_) => Err(io::Error::new(io::ErrorKind::AlreadyExists, "a file that is no socket")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

type Service = TowerToHyperService<Router>;

async fn accept_all(listener: Listener, router: Router) {
    let service = TowerToHyperService::new(router);
    let mut places = Places::default();
    let mut failures: u64 = 0;
    loop {
        let accepted = match &listener {
            Listener::Tcp(listener) => {
                listener.accept().await.map(|(socket, _)| match places.make_room() {
                    true => places.take(|asked| serve_one(socket, service.clone(), asked)),
                    false => refuse(socket.into_std()),
                })
            }
            Listener::Unix(listener) => {
                listener.accept().await.map(|(socket, _)| match places.make_room() {
                    true => places.take(|asked| serve_one(socket, service.clone(), asked)),
                    false => refuse(socket.into_std()),
                })
            }
        };
        match accepted {
            Ok(()) => {
                failures = 0;
                // The new caller is read before the next one may take its place.
                tokio::task::yield_now().await;
            }
            Err(error) => {
                if failures.is_multiple_of(ACCEPT_FAILURES_PER_LINE) {
                    tracing::warn!(%error, "the admin interface cannot accept a connection");
                }
                failures += 1;
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// The connections that are served, in the order in which they came.
#[derive(Default)]
struct Places(Vec<Place>);

struct Place {
    /// The request's headers are there.
    asked: Arc<AtomicBool>,
    task: AbortHandle,
}

impl Places {
    /// True if there is a place, if need be that of the oldest caller that has not asked.
    fn make_room(&mut self) -> bool {
        self.0.retain(|place| !place.task.is_finished());
        if self.0.len() < MAX_CONNECTIONS {
            return true;
        }
        let is_silent = |place: &Place| !place.asked.load(Ordering::Relaxed);
        let Some(silent) = self.0.iter().position(is_silent) else { return false };
        self.0.remove(silent).task.abort();
        true
    }

    fn take<F: Future<Output = ()> + Send + 'static>(
        &mut self,
        serve: impl FnOnce(Arc<AtomicBool>) -> F,
    ) {
        let asked = Arc::new(AtomicBool::new(false));
        let task = tokio::spawn(serve(asked.clone())).abort_handle();
        self.0.push(Place { asked, task });
    }
}

async fn serve_one(
    socket: impl AsyncRead + AsyncWrite + Unpin,
    service: Service,
    asked: Arc<AtomicBool>,
) {
    let service = service_fn(|request| {
        asked.store(true, Ordering::Relaxed);
        service.call(request)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(MAX_REQUEST_BYTES)
        .max_headers(MAX_HEADERS)
        .keep_alive(false)
        .half_close(true)
        .serve_connection(TokioIo::new(socket), service);
    // Broken and overdue connections are the caller's business: nothing was changed, nothing is
    // worth a log line that a stranger could repeat at will.
    let _ = tokio::time::timeout(CONNECTION_TIMEOUT, connection).await;
}

/// One attempt to say why, then the socket closes; a caller that does not read costs nothing.
fn refuse<S: Write>(socket: io::Result<S>) {
    if let Ok(mut socket) = socket {
        let _ = socket.write(BUSY);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::SocketAddr;
    use std::time::Instant;

    use super::super::fixture::{finding, info, running, shard};
    use super::super::routes::MAX_BODY_BYTES;
    use super::*;
    use crate::config::AdminToken;
    use crate::shard::mailbox::{Inbox, mailbox};
    use crate::shard::order::{Abandon, Action, Answer, Refused};

    fn plan(listen: &str, token: Option<&str>) -> AdminPlan {
        let listen = Listen::Tcp(listen.parse().unwrap());
        AdminPlan { listen, token: token.map(AdminToken::new) }
    }

    fn serve() -> (AdminServer, Board) {
        let (server, board, _orders) = serve_with(&plan("127.0.0.1:0", None));
        (server, board)
    }

    fn serve_with(plan: &AdminPlan) -> (AdminServer, Board, Inbox<Ask>) {
        let board = Board::new(info(1, &["orders"]));
        board.publish(vec![shard(0, 1, vec![running("orders", 0, 1)])], Vec::new());
        let (post, inbox, heard) = mailbox(4).unwrap();
        // The bell must not hang up while the server lives.
        std::mem::forget(heard);
        (start(plan, board.clone(), post).unwrap(), board, inbox)
    }

    fn tcp(server: &AdminServer) -> SocketAddr {
        match server.address() {
            Listen::Tcp(address) => *address,
            Listen::Unix(path) => panic!("listens on {path:?}"),
        }
    }

    fn dial(server: &AdminServer) -> std::net::TcpStream {
        let socket = std::net::TcpStream::connect(tcp(server)).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        socket
    }

    /// Sends the bytes and reads until the server closes; what a reset cut off is lost.
    fn talk(server: &AdminServer, request: &str) -> String {
        let mut socket = dial(server);
        let _ = socket.write_all(request.as_bytes());
        let mut answer = Vec::new();
        let _ = socket.read_to_end(&mut answer);
        String::from_utf8(answer).unwrap()
    }

    fn ask(server: &AdminServer, method: &str, path: &str) -> (u16, String, String) {
        ask_with(server, method, path, "")
    }

    fn ask_with(
        server: &AdminServer,
        method: &str,
        path: &str,
        headers: &str,
    ) -> (u16, String, String) {
        let request = format!("{method} {path} HTTP/1.1\r\nhost: x\r\n{headers}\r\n");
        parts(&talk(server, &request))
    }

    fn parts(answer: &str) -> (u16, String, String) {
        let (head, body) = answer.split_once("\r\n\r\n").expect("a complete head");
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
        (status.expect("a status code"), head.to_lowercase(), body.to_owned())
    }

    #[test]
    fn every_path_answers_in_its_format() {
        let (server, _board) = serve();
        for (path, format) in [
            ("/livez", "application/json"),
            ("/readyz", "application/json"),
            ("/status", "application/json"),
            ("/status/schema.json", "application/schema+json"),
            ("/metrics", "text/plain; version=0.0.4; charset=utf-8"),
        ] {
            let (status, head, body) = ask(&server, "GET", path);
            assert_eq!(status, 200, "{path}: {body}");
            assert!(head.contains(&format!("content-type: {format}")), "{path}: {head}");
            assert!(head.contains("cache-control: no-store") && head.contains("connection: close"));
            if format.contains("json") {
                serde_json::from_str::<serde_json::Value>(&body).expect("JSON");
            }
            let (status, head_only, nothing) = ask(&server, "HEAD", path);
            assert_eq!((status, nothing.as_str()), (200, ""), "HEAD {path}");
            assert!(head_only.contains("content-length: "));
        }
        let (_, _, metrics) = ask(&server, "GET", "/metrics");
        assert!(metrics.contains("process_resident_memory_bytes "));
    }

    #[test]
    fn an_outage_turns_readiness_and_not_liveness() {
        let (server, board) = serve();
        assert_eq!(ask(&server, "GET", "/readyz").0, 200);
        let shards = || vec![shard(0, 2, vec![running("orders", 0, 1)])];
        board.publish(shards(), vec![finding("orders", None, "unreachable")]);
        let (status, _, body) = ask(&server, "GET", "/readyz");
        assert_eq!(status, 503);
        let body: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert_eq!(body["reasons"][0]["source"], "orders");
        assert_eq!(body["reasons"][0]["reason"], "unreachable");
        assert_eq!(ask(&server, "GET", "/livez").0, 200);
        board.publish(shards(), Vec::new());
        assert_eq!(ask(&server, "GET", "/readyz").0, 200);
    }

    #[test]
    fn what_is_not_offered_is_refused_with_what_is() {
        let (server, _board) = serve();
        let (status, _, body) = ask(&server, "GET", "/nothing/here");
        assert_eq!(status, 404);
        assert!(body.contains("/nothing/here") && body.contains("/connectors/{key}"), "{body}");
        let (server, _, _orders) = serve_with(&plan("127.0.0.1:0", Some("secret")));
        for method in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"] {
            let (status, head, body) = ask_with(&server, method, "/status", TOKEN);
            assert_eq!(status, 405, "{method}");
            assert!(head.contains("allow: get, head") && body.contains(method), "{head}\n{body}");
        }
    }

    const TOKEN: &str = "authorization: Bearer secret\r\n";

    #[test]
    fn nothing_changes_without_the_token() {
        let (server, _, orders) = serve_with(&plan("127.0.0.1:0", Some("secret")));
        let wrong = ["", "authorization: Bearer secre\r\n", "authorization: Basic secret\r\n"];
        for header in wrong.into_iter().chain(["authorization: bearer secret\r\n"]) {
            let (status, head, _) = ask_with(&server, "POST", "/sources/orders/pause", header);
            assert_eq!(status, 401, "{header}");
            assert!(head.contains("www-authenticate: bearer"), "{head}");
        }
        let (untold, _, none) = serve_with(&plan("127.0.0.1:0", None));
        let (status, _, body) = ask_with(&untold, "POST", "/sources/orders/pause", TOKEN);
        assert_eq!(status, 403);
        assert!(body.contains("[admin]"), "{body}");
        assert!(orders.take().is_none() && none.take().is_none(), "no order came through");
    }

    #[test]
    fn an_order_reaches_the_control_thread_and_its_answer_the_caller() {
        let (server, _, orders) = serve_with(&plan("127.0.0.1:0", Some("secret")));
        let answers: [(Answer, u16, &str); 4] = [
            (Ok("paused".into()), 200, "paused"),
            (Err(Refused::Unknown("orders".into())), 404, "no source"),
            (Err(Refused::Conflict("another one".into())), 409, "another one"),
            (Err(Refused::Failed("disk".into())), 500, "disk"),
        ];
        for (answer, status, words) in answers {
            let caller = std::thread::scope(|scope| {
                let call =
                    scope.spawn(|| ask_with(&server, "POST", "/sources/orders/pause", TOKEN));
                let asked = loop {
                    match orders.take() {
                        Some(asked) => break asked,
                        None => std::thread::sleep(Duration::from_millis(1)),
                    }
                };
                assert_eq!((&*asked.source, asked.action), ("orders", Action::Pause));
                (asked.reply)(answer);
                call.join().unwrap()
            });
            assert_eq!(caller.0, status);
            assert!(caller.2.contains(words), "{}", caller.2);
        }
        let body = "POST /sources/orders/restart HTTP/1.1\r\nhost: x\r\ncontent-length: 8\r\n";
        let (status, ..) = parts(&talk(&server, &format!("{body}{TOKEN}\r\n{{\"a\":1}}\n")));
        assert_eq!(status, 400, "a body that means nothing is refused");
        assert!(orders.take().is_none());
    }

    fn post_json(server: &AdminServer, path: &str, headers: &str, body: &str) -> (u16, String) {
        let length = body.len();
        let head = format!("POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n");
        let (status, _, answer) = parts(&talk(server, &format!("{head}{headers}\r\n{body}")));
        (status, answer)
    }

    const ABANDON: &str = "/sources/shop/cdc/abandon-batch";

    #[test]
    fn a_confirmed_abandonment_reaches_the_control_thread() {
        let (server, _, orders) = serve_with(&plan("127.0.0.1:0", Some("secret")));
        let body = r#"{"oldest": "1/A0", "through": "1/B0", "confirm": "shop"}"#;
        let answers: [(Answer, u16, &str); 3] = [
            (Ok("gave up 1/90 to 1/B0".into()), 200, "gave up 1/90 to 1/B0"),
            (Err(Refused::Conflict("it is 1/A8 by now".into())), 409, "it is 1/A8 by now"),
            (Err(Refused::Unsuited("it is a mirror".into())), 422, "it is a mirror"),
        ];
        for (answer, status, words) in answers {
            let (got, text) = std::thread::scope(|scope| {
                let call = scope.spawn(|| post_json(&server, ABANDON, TOKEN, body));
                let asked = loop {
                    match orders.take() {
                        Some(asked) => break asked,
                        None => std::thread::sleep(Duration::from_millis(1)),
                    }
                };
                let range = Abandon { oldest: 0x1_0000_00a0, through: Some(0x1_0000_00b0) };
                assert_eq!((&*asked.source, asked.action), ("shop", Action::Abandon(range)));
                (asked.reply)(answer);
                call.join().unwrap()
            });
            assert_eq!(got, status);
            assert!(text.contains(words), "{text}");
        }
    }

    #[test]
    fn nothing_is_abandoned_without_token_form_and_confirmation() {
        let (server, _, orders) = serve_with(&plan("127.0.0.1:0", Some("secret")));
        let good = r#"{"oldest": "1/A0", "through": "current", "confirm": "shop"}"#;
        let long = format!("{good}{}", " ".repeat(MAX_BODY_BYTES));
        for (headers, body, status, words) in [
            ("", good, 401, "authorization"),
            (TOKEN, "", 400, "oldest"),
            (TOKEN, r#"{"oldest": "1/A0", "through": "current"}"#, 400, "confirm"),
            (TOKEN, &good.replace("shop", "ship"), 400, "set it to"),
            (TOKEN, &long, 413, "nothing was changed"),
        ] {
            let (got, text) = post_json(&server, ABANDON, headers, body);
            assert_eq!(got, status, "{body}: {text}");
            assert!(text.contains(words), "{text}");
        }
        let (status, head, _) = ask_with(&server, "GET", ABANDON, TOKEN);
        assert_eq!(status, 405);
        assert!(head.contains("allow: post"), "{head}");
        assert!(orders.take().is_none(), "no order came through");
    }

    #[test]
    fn off_loopback_only_liveness_is_open() {
        let (server, ..) = serve_with(&plan("0.0.0.0:0", Some("secret")));
        for path in ["/status", "/metrics", "/readyz", "/connectors", "/nowhere"] {
            assert_eq!(ask(&server, "GET", path).0, 401, "{path}");
        }
        assert_eq!(ask(&server, "GET", "/livez").0, 200);
        assert_eq!(ask_with(&server, "GET", "/status", TOKEN).0, 200);
    }

    #[test]
    fn a_socket_file_serves_its_owner_and_replaces_only_a_dead_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("admin.sock");
        let plan = AdminPlan { listen: Listen::Unix(path.clone()), token: None };
        let dead = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let in_use = Bound::bind(&plan.listen).err().expect("somebody listens there");
        assert_eq!(in_use.kind(), io::ErrorKind::AddrInUse);
        drop(dead);
        let (server, ..) = serve_with(&plan);
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let mut socket = std::os::unix::net::UnixStream::connect(&path).unwrap();
        socket.write_all(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        drop(server);
        assert!(!path.exists());
        std::fs::write(&path, "precious").unwrap();
        assert!(Bound::bind(&plan.listen).is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
    }

    #[test]
    fn oversized_and_broken_requests_are_refused() {
        let (server, _board) = serve();
        let large = format!("GET /status HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(64 * 1024));
        let answer = talk(&server, &large);
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431"), "{answer}");
        for (headers, status) in [(MAX_HEADERS - 1, "200"), (MAX_HEADERS, "431")] {
            let many: String = (0..headers).map(|n| format!("x-{n}: y\r\n")).collect();
            let answer = talk(&server, &format!("GET /livez HTTP/1.1\r\nhost: x\r\n{many}\r\n"));
            assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{headers}: {answer}");
        }
        let answer = talk(&server, "\u{1}\u{2}\u{3} not http\r\n\r\n");
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 400"), "{answer}");
        assert_eq!(ask(&server, "GET", "/livez").0, 200, "and the next caller is served");
    }

    #[test]
    fn silent_callers_keep_nobody_from_asking_whether_it_lives() {
        let (server, ..) = serve_with(&plan("0.0.0.0:0", Some("secret")));
        let mut silent = Vec::new();
        for number in 0..4 * MAX_CONNECTIONS {
            let mut socket = dial(&server);
            if number % 2 == 0 {
                socket.write_all(b"GET /livez HT").unwrap();
            }
            silent.push(socket);
            let begun = Instant::now();
            assert_eq!(ask(&server, "GET", "/livez").0, 200, "{number} silent callers");
            assert!(begun.elapsed() < HEADER_TIMEOUT / 2, "{:?}", begun.elapsed());
        }
    }

    #[test]
    fn callers_that_wait_for_their_answers_keep_their_places() {
        let board = Board::new(info(1, &["orders"]));
        let (post, orders, _heard) = mailbox(MAX_CONNECTIONS).unwrap();
        let server = start(&plan("127.0.0.1:0", Some("secret")), board, post).unwrap();
        let head = format!("POST /sources/orders/pause HTTP/1.1\r\nhost: x\r\n{TOKEN}\r\n");
        let mut asking: Vec<_> = (0..MAX_CONNECTIONS).map(|_| dial(&server)).collect();
        for socket in &mut asking {
            socket.write_all(head.as_bytes()).unwrap();
        }
        let mut asked = Vec::new();
        let begun = Instant::now();
        while asked.len() < MAX_CONNECTIONS && begun.elapsed() < HEADER_TIMEOUT {
            asked.extend(orders.take());
        }
        assert_eq!(asked.len(), MAX_CONNECTIONS, "all were read");
        let busy = talk(&server, "");
        assert!(busy.starts_with("HTTP/1.1 503"), "the caller too many hears why: {busy:?}");
        for asked in asked {
            (asked.reply)(Ok("paused".into()));
        }
        for mut socket in asking {
            let mut answer = String::new();
            let _ = socket.read_to_string(&mut answer);
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        }
    }

    #[test]
    fn a_socket_file_is_never_open_to_others_while_it_is_made() {
        let dir = tempfile::tempdir().unwrap();
        let listen = Listen::Unix(dir.path().join("admin.sock"));
        let Listen::Unix(path) = &listen else { unreachable!() };
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let watcher = scope.spawn(|| {
                let mut seen = std::collections::BTreeSet::new();
                while !stop.load(Ordering::Relaxed) {
                    if let Ok(meta) = std::fs::symlink_metadata(path) {
                        seen.insert(meta.permissions().mode() & 0o777);
                    }
                }
                seen
            });
            for _ in 0..2_000 {
                drop(Bound::bind(&listen).unwrap());
            }
            stop.store(true, Ordering::Relaxed);
            assert_eq!(watcher.join().unwrap().into_iter().collect::<Vec<_>>(), [0o600]);
        });
    }

    #[test]
    fn silent_callers_are_bounded_and_let_go() {
        let (server, _board) = serve();
        let begun = Instant::now();
        let mut silent: Vec<_> = (0..MAX_CONNECTIONS).map(|_| dial(&server)).collect();
        // One of them dribbles; that buys no more time.
        silent[1].write_all(b"GET /livez HT").unwrap();
        // One more takes the place of the oldest.
        silent.push(dial(&server));
        assert_eq!(silent.remove(0).read(&mut [0; 16]).unwrap_or(0), 0, "the oldest is let go");
        assert!(begun.elapsed() < HEADER_TIMEOUT, "{:?}", begun.elapsed());
        for mut socket in silent {
            let mut rest = Vec::new();
            let _ = socket.read_to_end(&mut rest);
        }
        let waited = begun.elapsed();
        assert!(waited >= HEADER_TIMEOUT - Duration::from_millis(500), "{waited:?}");
        assert!(waited < HEADER_TIMEOUT * 3, "{waited:?}");
        assert_eq!(ask(&server, "GET", "/status").0, 200);
    }

    #[test]
    fn dropping_the_server_frees_the_address_at_once() {
        let (server, board) = serve();
        let again = AdminPlan { listen: server.address().clone(), token: None };
        let _held_open = dial(&server);
        drop(server);
        let (post, ..) = mailbox(1).unwrap();
        let next = start(&again, board, post).expect("the address is free again");
        assert_eq!(*next.address(), again.listen);
    }

    #[test]
    fn a_taken_address_is_explained() {
        let (server, board) = serve();
        let taken = AdminPlan { listen: server.address().clone(), token: None };
        let (post, ..) = mailbox(1).unwrap();
        let error = start(&taken, board, post).expect_err("two cannot listen");
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        let text = error.to_string();
        assert!(text.contains(&taken.listen.to_string()) && text.contains("[admin]"), "{text}");
    }
}
