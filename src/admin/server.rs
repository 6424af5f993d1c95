//! The HTTP side: one thread, one request per connection, everything bounded.
//!
//! A connection gets [`HEADER_TIMEOUT`] to say what it wants and [`CONNECTION_TIMEOUT`] in all;
//! beyond [`MAX_CONNECTIONS`] a caller hears 503 at once, so that however many callers there are,
//! the data path keeps its descriptors. Only GET and HEAD exist; bodies are never read.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::header::{ACCEPT, ALLOW, CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use serde::Serialize;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::board::Board;
use super::metrics::{Exposition, TextFormat};
use super::process::ProcessUsage;
use super::{STATUS_SCHEMA, liveness, readiness, status_report};

/// Connections served at the same time.
const MAX_CONNECTIONS: usize = 16;
/// From accept to the end of the request's headers.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
/// From accept to the last byte of the answer.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(30);
/// Request line and headers; a larger request is answered 431.
const MAX_REQUEST_BYTES: usize = 16 * 1024;
/// Pause after a failed accept, most likely for want of descriptors: no spinning, few log lines.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);
/// Failed accepts in a row per log line.
const ACCEPT_FAILURES_PER_LINE: u64 = 30;

const PATHS: [&str; 5] = ["/livez", "/readyz", "/status", "/status/schema.json", "/metrics"];

const BUSY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\n\
    retry-after: 1\r\nconnection: close\r\ncontent-length: 32\r\n\r\n\
    {\"error\":\"too many connections\"}";

/// The running admin interface; dropping it closes the socket and ends the thread.
#[derive(Debug)]
pub struct AdminServer {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl AdminServer {
    /// Where it listens; the real port when 0 was asked for.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for AdminServer {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic there was already reported by the panic hook.
            let _ = thread.join();
        }
    }
}

/// Listens and serves `board` on a thread of its own. When this returns, requests are answered.
pub fn start(listen: SocketAddr, board: Board) -> io::Result<AdminServer> {
    let explain = |error: io::Error| {
        let text = format!(
            "the admin interface cannot listen on {listen}: {error}; free that address or set \
             another `listen` in [admin]"
        );
        io::Error::new(error.kind(), text)
    };
    let listener = std::net::TcpListener::bind(listen).map_err(explain)?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    let listener = {
        let _inside = runtime.enter();
        TcpListener::from_std(listener)?
    };
    let (stop, stopped) = oneshot::channel::<()>();
    let serve = move || {
        runtime.block_on(async move {
            tokio::spawn(accept_all(listener, board));
            // Ends when the sender is dropped; the runtime then drops every connection.
            let _ = stopped.await;
        });
    };
    let thread = std::thread::Builder::new().name("tidegate-admin".into()).spawn(serve)?;
    Ok(AdminServer { address, stop: Some(stop), thread: Some(thread) })
}

async fn accept_all(listener: TcpListener, board: Board) {
    let service = TowerToHyperService::new(router(board));
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut failures: u64 = 0;
    loop {
        match listener.accept().await {
            Ok((socket, _)) => {
                failures = 0;
                match Arc::clone(&slots).try_acquire_owned() {
                    Ok(slot) => drop(tokio::spawn(serve_one(socket, service.clone(), slot))),
                    Err(_) => refuse(socket),
                }
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

async fn serve_one(
    socket: TcpStream,
    service: TowerToHyperService<Router>,
    slot: OwnedSemaphorePermit,
) {
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(MAX_REQUEST_BYTES)
        .keep_alive(false)
        .half_close(true)
        .serve_connection(TokioIo::new(socket), service);
    // Broken and overdue connections are the caller's business: nothing was changed, nothing is
    // worth a log line that a stranger could repeat at will.
    let _ = tokio::time::timeout(CONNECTION_TIMEOUT, connection).await;
    drop(slot);
}

/// One attempt to say why, then the socket closes; a caller that does not read costs nothing.
fn refuse(socket: TcpStream) {
    if let Ok(mut socket) = socket.into_std() {
        let _ = socket.write(BUSY);
        let _ = socket.shutdown(std::net::Shutdown::Write);
    }
}

fn router(board: Board) -> Router {
    Router::new()
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .route("/status", get(status))
        .route("/status/schema.json", get(schema))
        .route("/metrics", get(metrics))
        .fallback(no_such_path)
        .method_not_allowed_fallback(no_such_method)
        .with_state(board)
}

async fn livez(State(board): State<Board>) -> Response {
    let report = liveness(&board.view(), board.now());
    json(if report.live { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, &report)
}

async fn readyz(State(board): State<Board>) -> Response {
    let report = readiness(&board.view(), board.now());
    json(if report.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, &report)
}

async fn status(State(board): State<Board>) -> Response {
    json(StatusCode::OK, &status_report(&board.view(), board.now()))
}

async fn schema() -> Response {
    answer(StatusCode::OK, "application/schema+json", STATUS_SCHEMA.to_owned())
}

async fn metrics(State(board): State<Board>, headers: HeaderMap) -> Response {
    let accept = headers.get(ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let format = TextFormat::negotiate(accept);
    let scrape = Exposition::new(board.view(), board.now(), ProcessUsage::read());
    match scrape.render(format) {
        Ok(body) => answer(StatusCode::OK, format.content_type(), body),
        Err(error) => refusal(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

async fn no_such_path(uri: Uri) -> Response {
    refusal(StatusCode::NOT_FOUND, format!("there is nothing at {}", uri.path()))
}

async fn no_such_method(method: Method) -> Response {
    let text = format!("{method} is not offered here, only GET and HEAD are");
    let mut response = refusal(StatusCode::METHOD_NOT_ALLOWED, text);
    response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
    response
}

#[derive(Serialize)]
struct Refusal {
    error: String,
    paths: [&'static str; 5],
}

fn refusal(status: StatusCode, error: String) -> Response {
    json(status, &Refusal { error, paths: PATHS })
}

fn json(status: StatusCode, body: &impl Serialize) -> Response {
    match serde_json::to_string_pretty(body) {
        Ok(text) => answer(status, "application/json", text + "\n"),
        Err(error) => answer(StatusCode::INTERNAL_SERVER_ERROR, "text/plain", format!("{error}\n")),
    }
}

fn answer(status: StatusCode, content_type: &'static str, body: String) -> Response {
    let headers = [(CONTENT_TYPE, content_type), (CACHE_CONTROL, "no-store")];
    (status, headers, body).into_response()
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::time::Instant;

    use super::super::fixture::{finding, info, running, shard};
    use super::*;

    fn serve() -> (AdminServer, Board) {
        let board = Board::new(info(1, &["orders"]));
        board.publish(vec![shard(0, 1, vec![running("orders", 0, 1)])], Vec::new());
        let server = start("127.0.0.1:0".parse().unwrap(), board.clone()).unwrap();
        (server, board)
    }

    fn dial(server: &AdminServer) -> std::net::TcpStream {
        let socket = std::net::TcpStream::connect(server.address()).unwrap();
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
        let answer = talk(server, &format!("{method} {path} HTTP/1.1\r\nhost: x\r\n\r\n"));
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
            assert!(PATHS.contains(&path));
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
        assert!(body.contains("/nothing/here") && PATHS.iter().all(|path| body.contains(path)));
        for method in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"] {
            let (status, head, body) = ask(&server, method, "/status");
            assert_eq!(status, 405, "{method}");
            assert!(head.contains("allow: get, head") && body.contains(method), "{head}\n{body}");
        }
    }

    #[test]
    fn oversized_and_broken_requests_are_refused() {
        let (server, _board) = serve();
        let large = format!("GET /status HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(64 * 1024));
        let answer = talk(&server, &large);
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431"), "{answer}");
        let answer = talk(&server, "\u{1}\u{2}\u{3} not http\r\n\r\n");
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 400"), "{answer}");
        assert_eq!(ask(&server, "GET", "/livez").0, 200, "and the next caller is served");
    }

    #[test]
    fn silent_callers_are_bounded_and_let_go() {
        let (server, _board) = serve();
        let begun = Instant::now();
        let mut silent: Vec<_> = (0..MAX_CONNECTIONS).map(|_| dial(&server)).collect();
        // One of them dribbles; that buys no more time.
        silent[0].write_all(b"GET /livez HT").unwrap();
        let busy = talk(&server, "");
        assert!(busy.starts_with("HTTP/1.1 503"), "the caller too many hears why: {busy:?}");
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
        let address = server.address();
        let _held_open = dial(&server);
        drop(server);
        let again = start(address, board).expect("the address is free again");
        assert_eq!(again.address(), address);
    }

    #[test]
    fn a_taken_address_is_explained() {
        let (server, board) = serve();
        let error = start(server.address(), board).expect_err("two cannot listen");
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        let text = error.to_string();
        assert!(text.contains(&server.address().to_string()) && text.contains("[admin]"), "{text}");
    }
}
