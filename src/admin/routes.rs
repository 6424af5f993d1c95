//! What is served at which path, and who may ask for it.
//!
//! Reading is open on loopback and on a Unix socket. Changing anything needs the bearer token of
//! `[admin]`; off loopback everything but `/livez` does. A refused request has changed nothing.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{DefaultBodyLimit, Path, Request, State};
use axum::http::header::{ACCEPT, ALLOW, AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE};
use axum::http::header::{HeaderValue, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde::Serialize;
use tokio::sync::oneshot;

use super::abandon;
use super::board::Board;
use super::connectors::{connector, connectors, destinations};
use super::metrics::{Exposition, TextFormat};
use super::process::ProcessUsage;
use super::{STATUS_SCHEMA, liveness, readiness, status_report};
use crate::config::AdminToken;
use crate::shard::mailbox::Post;
use crate::shard::order::{Action, Answer, Ask, Refused};

/// Everything that can be read.
const PATHS: [&str; 8] = [
    "/livez",
    "/readyz",
    "/status",
    "/status/schema.json",
    "/metrics",
    "/connectors",
    "/connectors/{key}",
    "/connectors/{key}/destinations",
];
/// Largest body of a request, bytes.
pub(super) const MAX_BODY_BYTES: usize = 4096;
/// How long an order may take until its caller hears that it is still under way.
const ORDER_TIMEOUT: Duration = Duration::from_secs(10);

/// What the handlers share.
#[derive(Clone)]
pub(super) struct Desk {
    pub board: Board,
    pub orders: Post<Ask>,
    pub token: Option<AdminToken>,
    /// Callers may come from other machines.
    pub is_exposed: bool,
}

/// All paths.
pub(super) fn router(desk: Desk) -> Router {
    let desk = Arc::new(desk);
    Router::new()
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .route("/status", get(status))
        .route("/status/schema.json", get(schema))
        .route("/metrics", get(metrics))
        .route("/connectors", get(all_connectors))
        .route("/connectors/{key}", get(one_connector))
        .route("/connectors/{key}/destinations", get(its_destinations))
        .route("/sources/{key}/pause", post(pause))
        .route("/sources/{key}/resume", post(resume))
        .route("/sources/{key}/restart", post(restart))
        .route("/sources/{key}/cdc/abandon-batch", post(abandon_batch))
        .fallback(no_such_path)
        .method_not_allowed_fallback(no_such_method)
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .layer(middleware::from_fn_with_state(desk.clone(), authorise))
        .with_state(desk)
}

/// Lets a request through, or says what it lacks.
async fn authorise(State(desk): State<Arc<Desk>>, request: Request, next: Next) -> Response {
    let changes = !matches!(*request.method(), Method::GET | Method::HEAD);
    let is_open = !changes && (!desk.is_exposed || request.uri().path() == "/livez");
    if is_open {
        return next.run(request).await;
    }
    let Some(token) = &desk.token else {
        let text = "nothing can be changed here: set token in [admin] and restart".to_owned();
        return refusal(StatusCode::FORBIDDEN, text);
    };
    let shown = request.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    if shown.and_then(|value| value.strip_prefix("Bearer ")).is_some_and(|s| token.matches(s)) {
        return next.run(request).await;
    }
    let text = "this needs the header authorization: Bearer <token of [admin]>".to_owned();
    let mut response = refusal(StatusCode::UNAUTHORIZED, text);
    response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    response
}

async fn livez(State(desk): State<Arc<Desk>>) -> Response {
    let report = liveness(&desk.board.view(), desk.board.now());
    json(if report.live { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, &report)
}

async fn readyz(State(desk): State<Arc<Desk>>) -> Response {
    let report = readiness(&desk.board.view(), desk.board.now());
    json(if report.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, &report)
}

async fn status(State(desk): State<Arc<Desk>>) -> Response {
    json(StatusCode::OK, &status_report(&desk.board.view(), desk.board.now()))
}

async fn schema() -> Response {
    answer(StatusCode::OK, "application/schema+json", STATUS_SCHEMA.to_owned())
}

async fn metrics(State(desk): State<Arc<Desk>>, headers: HeaderMap) -> Response {
    let accept = headers.get(ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let format = TextFormat::negotiate(accept);
    let scrape = Exposition::new(desk.board.view(), desk.board.now(), ProcessUsage::read());
    match scrape.render(format) {
        Ok(body) => answer(StatusCode::OK, format.content_type(), body),
        Err(error) => refusal(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

async fn all_connectors(State(desk): State<Arc<Desk>>) -> Response {
    json(StatusCode::OK, &connectors(&desk.board.view()))
}

async fn one_connector(State(desk): State<Arc<Desk>>, Path(key): Path<String>) -> Response {
    found(&key, connector(&desk.board.view(), &key))
}

async fn its_destinations(State(desk): State<Arc<Desk>>, Path(key): Path<String>) -> Response {
    found(&key, destinations(&desk.board.view(), &key))
}

fn found(key: &str, report: Option<impl Serialize>) -> Response {
    match report {
        Some(report) => json(StatusCode::OK, &report),
        None => refusal(StatusCode::NOT_FOUND, Refused::Unknown(key.to_owned()).to_string()),
    }
}

/// What a caller sent, or why it did not get here.
type Body = Result<Bytes, BytesRejection>;

async fn pause(desk: State<Arc<Desk>>, key: Path<String>, body: Body) -> Response {
    plain_order(desk, key, body, Action::Pause).await
}

async fn resume(desk: State<Arc<Desk>>, key: Path<String>, body: Body) -> Response {
    plain_order(desk, key, body, Action::Resume).await
}

async fn restart(desk: State<Arc<Desk>>, key: Path<String>, body: Body) -> Response {
    plain_order(desk, key, body, Action::Restart).await
}

async fn abandon_batch(
    State(desk): State<Arc<Desk>>,
    Path(key): Path<String>,
    body: Body,
) -> Response {
    let body = match body {
        Ok(body) => body,
        Err(rejection) => return unread(&rejection),
    };
    match abandon::read(&key, &body) {
        Ok(range) => order(&desk, &key, Action::Abandon(range)).await,
        Err(text) => refusal(StatusCode::BAD_REQUEST, text),
    }
}

/// An order without particulars: a body would be a misunderstanding.
async fn plain_order(
    State(desk): State<Arc<Desk>>,
    Path(key): Path<String>,
    body: Body,
    action: Action,
) -> Response {
    let body = match body {
        Ok(body) => body,
        Err(rejection) => return unread(&rejection),
    };
    if !body.is_empty() && body.as_ref() != b"{}" {
        let text = "this takes no body; nothing was changed".to_owned();
        return refusal(StatusCode::BAD_REQUEST, text);
    }
    order(&desk, &key, action).await
}

fn unread(rejection: &BytesRejection) -> Response {
    let text = format!("the body cannot be read: {}; nothing was changed", rejection.body_text());
    refusal(rejection.status(), text)
}

async fn order(desk: &Desk, key: &str, action: Action) -> Response {
    let (reply, answered) = oneshot::channel::<Answer>();
    let reply = Box::new(move |answer| drop(reply.send(answer)));
    if desk.orders.send(Ask { source: key.into(), action, reply }).is_err() {
        let text = "too many orders wait; nothing was changed, try again".to_owned();
        return refusal(StatusCode::SERVICE_UNAVAILABLE, text);
    }
    match tokio::time::timeout(ORDER_TIMEOUT, answered).await {
        Ok(Ok(Ok(done))) => json(StatusCode::OK, &Done { source: key, done }),
        Ok(Ok(Err(refused))) => {
            let status = match refused {
                Refused::Unknown(_) => StatusCode::NOT_FOUND,
                Refused::Conflict(_) => StatusCode::CONFLICT,
                Refused::Unsuited(_) => StatusCode::UNPROCESSABLE_ENTITY,
                Refused::Failed(_) => StatusCode::INTERNAL_SERVER_ERROR,
            };
            refusal(status, refused.to_string())
        }
        Ok(Err(_)) => refusal(StatusCode::SERVICE_UNAVAILABLE, "the daemon is stopping".into()),
        Err(_) => {
            let text = "no answer yet: the order is under way; see /status".to_owned();
            refusal(StatusCode::GATEWAY_TIMEOUT, text)
        }
    }
}

#[derive(Serialize)]
struct Done<'a> {
    source: &'a str,
    done: String,
}

async fn no_such_path(uri: Uri) -> Response {
    refusal(StatusCode::NOT_FOUND, format!("there is nothing at {}", uri.path()))
}

async fn no_such_method(method: Method, uri: Uri) -> Response {
    let offered = if uri.path().starts_with("/sources/") { "POST" } else { "GET, HEAD" };
    let text = format!("{method} is not offered here, only {offered}");
    let mut response = refusal(StatusCode::METHOD_NOT_ALLOWED, text);
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(offered));
    response
}

#[derive(Serialize)]
struct Refusal {
    error: String,
    paths: [&'static str; 8],
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
