//! From an address to a session: resolve, dial, log in, check the version (M14).
//!
//! One named node, or the configured addresses in order, each within `connect_timeout`. A name may
//! stand for several socket addresses: each gets an equal part of what is left of that time, so
//! that one that swallows everything does not hide the others. Whatever one refuses, the next one
//! is tried; reported is the first refusal that waiting cannot cure (wrong password, untested
//! version), else the last error.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use monoio::net::TcpStream;

use super::conn::Shared;
use super::frames::{Frame, WriteBatch};
use super::intake::Intake;
use super::socket;
use super::traffic::write_some;
use super::wake::with_alarm;
use crate::config::{self, ClusterPlan};
use crate::iggy_wire::error::{eviction_is_final, eviction_words};
use crate::iggy_wire::session::{Credentials, Delivery, Session};
use crate::shard::event::{ConnError, Place};

/// Largest login reply, body.
const LOGIN_LIMIT: usize = 64 * 1024;
/// Socket addresses tried for one configured address.
const MAX_RESOLVED: usize = 8;

/// A connection that is logged in.
pub struct Established {
    /// Its socket.
    pub stream: TcpStream,
    /// What arrived behind the login reply.
    pub intake: Intake,
    /// Its session.
    pub session: Session,
    /// The server's version.
    pub server_version: String,
    /// Which server it is.
    pub place: Place,
}

/// Tries the cluster's addresses.
pub(super) async fn establish(shared: &Shared) -> Result<Established, ConnError> {
    let mut last =
        ConnError::Dial { address: shared.cluster.key.to_string(), why: "no address".into() };
    let configured = shared.cluster.addresses.iter().map(String::as_str);
    let named = shared.node.as_deref();
    let configured = configured.filter(|_| named.is_none());
    for address in named.into_iter().chain(configured) {
        match try_address(shared, address).await {
            Ok(established) => return Ok(established),
            Err(_) if shared.is_ending() => break,
            Err(error) => weigh(&mut last, error),
        }
    }
    Err(shared.cause().unwrap_or(last))
}

/// Keeps the error that says most: a refusal that stays, else the newest.
fn weigh(kept: &mut ConnError, newest: ConnError) {
    if !matches!(kept, ConnError::Login { .. } | ConnError::UntestedServer { .. }) {
        *kept = newest;
    }
}

async fn try_address(shared: &Shared, address: &str) -> Result<Established, ConnError> {
    let time = shared.cluster.connect_timeout;
    let started = Instant::now();
    let attempt = || Attempt { shared, address, expired: Default::default() };
    let resolving = attempt();
    let mut found = resolving.within(time, resolving.resolve()).await?;
    found.truncate(MAX_RESOLVED);
    let mut last = resolving.unreachable("the name has no address".into());
    for (index, to) in found.iter().enumerate() {
        let left = u32::try_from(found.len() - index).unwrap_or(u32::MAX);
        let part = time.saturating_sub(started.elapsed()) / left;
        let dialling = attempt();
        match dialling.within(part, dialling.reach(*to)).await {
            Ok(established) => return Ok(established),
            Err(error) => weigh(&mut last, error),
        }
        if shared.is_ending() {
            break;
        }
    }
    Err(last)
}

struct Attempt<'a> {
    shared: &'a Shared,
    address: &'a str,
    expired: std::cell::Cell<bool>,
}

impl Attempt<'_> {
    /// Ends a step after `time`.
    async fn within<T>(
        &self,
        time: Duration,
        step: impl Future<Output = Result<T, ConnError>>,
    ) -> Result<T, ConnError> {
        let expire = || {
            self.expired.set(true);
            if let Some(fd) = self.shared.open_socket() {
                socket::abort(fd);
            }
        };
        let started = Instant::now();
        match with_alarm(step, monoio::time::sleep(time), expire).await {
            Err(_) if self.expired.get() => {
                let waited = started.elapsed();
                Err(self.unreachable(format!("no connection and login within {waited:.1?}")))
            }
            outcome => outcome,
        }
    }

    fn is_given_up(&self) -> bool {
        self.expired.get() || self.shared.is_ending()
    }

    async fn resolve(&self) -> Result<Vec<SocketAddr>, ConnError> {
        std::future::poll_fn(|cx| {
            self.shared.register(cx.waker());
            std::task::Poll::Ready(())
        })
        .await;
        let found = self.shared.resolver.look_up(self.address, || self.is_given_up()).await;
        found.map_err(|why| ConnError::Resolve { address: self.address.into(), why })
    }

    async fn reach(&self, to: SocketAddr) -> Result<Established, ConnError> {
        match self.dial(to).await {
            Ok(stream) => self.log_in(stream, to).await,
            Err(error) => Err(self.unreachable(error.to_string())),
        }
    }

    async fn dial(&self, to: SocketAddr) -> std::io::Result<TcpStream> {
        let (stream, fd) = socket::register(socket::start_connect(to)?)?;
        self.shared.own_socket(Some(fd));
        match socket::finish_connect(&stream).await {
            Ok(()) if !self.shared.is_ending() && !self.expired.get() => Ok(stream),
            outcome => {
                self.shared.own_socket(None);
                socket::close(stream);
                outcome.and(Err(std::io::ErrorKind::ConnectionAborted.into()))
            }
        }
    }

    async fn log_in(
        &self,
        mut stream: TcpStream,
        to: SocketAddr,
    ) -> Result<Established, ConnError> {
        match self.exchange(&mut stream).await {
            Ok((intake, session, server_version)) => {
                let place =
                    Place { address: self.address.into(), peer: to.to_string().as_str().into() };
                Ok(Established { stream, intake, session, server_version, place })
            }
            Err(error) => {
                self.shared.own_socket(None);
                socket::close(stream);
                Err(error)
            }
        }
    }

    async fn exchange(
        &self,
        stream: &mut TcpStream,
    ) -> Result<(Intake, Session, String), ConnError> {
        let lost = |error: std::io::Error| ConnError::Lost(format!("{}: {error}", self.address));
        let protocol = |error: &dyn std::fmt::Display| {
            ConnError::Protocol(format!("{}: {error}", self.address))
        };
        let mut session = session(&self.shared.cluster);
        let bytes = session.login().map_err(|error| self.refused(error.to_string()))?;
        let mut batch = WriteBatch::default();
        batch.fill_from(&mut [Frame { number: 0, bytes }].into());
        while !batch.is_empty() {
            let (written, back) = write_some(stream, batch).await;
            batch = back;
            batch.advance(written.map_err(lost)?, |_| ());
        }
        let mut intake = Intake::default();
        loop {
            let header = intake.header(stream).await.map_err(lost)?;
            let incoming = session.on_header(&header).map_err(|e| protocol(&e))?;
            if incoming.body_len > LOGIN_LIMIT {
                return Err(protocol(&format!("login reply of {} bytes", incoming.frame_len())));
            }
            let body = intake.body(stream, incoming.body_len, |_| ()).await.map_err(lost)?;
            let delivery = session.on_reply(&incoming, Bytes::from(body));
            let delivery = delivery.map_err(|e| protocol(&e))?;
            if let Some(outcome) = outcome(delivery, &self.shared.cluster, self.address) {
                return outcome.map(|server_version| (intake, session, server_version));
            }
        }
    }

    fn unreachable(&self, why: String) -> ConnError {
        ConnError::Dial { address: self.address.into(), why }
    }

    fn refused(&self, why: String) -> ConnError {
        ConnError::Login { address: self.address.into(), why }
    }
}

/// What the reply to a login means, the server's version if all is well; `None`: it is another
/// reply.
pub(super) fn outcome(
    delivery: Delivery,
    cluster: &ClusterPlan,
    address: &str,
) -> Option<Result<String, ConnError>> {
    let refused = |why: String| ConnError::Login { address: address.into(), why };
    Some(match delivery {
        Delivery::LoggedIn { server_version, .. } => {
            let tested = cluster.allow_untested_server || server_version.starts_with("0.9.");
            match tested {
                true => Ok(server_version),
                false => {
                    let (address, seen) = (address.into(), server_version);
                    Err(ConnError::UntestedServer { address, seen })
                }
            }
        }
        Delivery::LoginRefused { error, transient: true } => {
            let why = error.map_or_else(|| "not ready".into(), |e| e.to_string());
            let why = format!("login not possible now: {why}");
            Err(ConnError::Dial { address: address.into(), why })
        }
        Delivery::LoginRefused { error, .. } => {
            Err(refused(error.map_or_else(|| "empty reply".into(), |e| e.to_string())))
        }
        Delivery::Evicted { reason } if eviction_is_final(reason) => {
            Err(refused(eviction_words(reason).into()))
        }
        Delivery::Evicted { reason } => Err(ConnError::Evicted(reason)),
        Delivery::Stray { .. } | Delivery::Reply { .. } => return None,
    })
}

/// A session that is yet to log in, with a client id and a first number of its own.
pub(super) fn session(cluster: &ClusterPlan) -> Session {
    let credentials = match &cluster.credentials {
        config::Credentials::Password { username, password } => {
            Credentials::Password { username: username.clone(), password: password.clone() }
        }
        config::Credentials::Token(token) => Credentials::Token(token.clone()),
    };
    Session::new(fastrand::u128(..), fastrand::u64(1 << 32..1 << 61), credentials)
}
