//! From a configured server to a session: resolve, dial, TLS, log in.
//!
//! Hosts are tried in order and each of their addresses within `connect_timeout`. What trying
//! elsewhere cannot cure (a wrong password, an untrusted certificate) ends the search; otherwise
//! the last error is reported. The exchange itself is decided by [`Startup`], which also asks for
//! a second connection where `sslmode` allows the other way.

use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::task::Poll;
use std::time::Instant;

use monoio::io::AsyncWriteRentExt;
use monoio::net::TcpStream;

use super::conn::Shared;
use super::intake::{Front, Intake};
use super::settings::{self, Place};
use super::tls::{self, TlsError};
use super::traffic::{ReadError, Source};
use super::transport::{self, Target};
use crate::config::PostgresHost;
use crate::pg_wire::startup::{ServerInfo, Startup, StartupError, Step};
use crate::shard::driver::socket;
use crate::shard::driver::wake::with_alarm;
use crate::shard::event::{PgConnError, TlsFault};

/// Largest message before the session is ready.
const LARGEST: u32 = 64 * 1024;
/// Socket addresses tried for one configured host.
const MAX_RESOLVED: usize = 8;
/// The request for TLS is the only first word of this size.
const TLS_REQUEST: usize = 8;

/// A connection that is logged in.
pub(super) struct Established {
    /// Its socket.
    pub(super) stream: TcpStream,
    /// What arrived behind the login.
    pub(super) intake: Intake,
    /// Who is at the other end.
    pub(super) info: ServerInfo,
}

/// Tries the plan's hosts.
pub(super) async fn establish(shared: &Shared) -> Result<Established, PgConnError> {
    let mut last = PgConnError::Dial { address: "nothing".into(), why: "no host".into() };
    for index in 0..shared.plan.hosts.len() {
        match try_host(shared, index).await {
            Ok(established) => return Ok(established),
            Err(_) if shared.is_ending() => break,
            Err(error) if error.is_final() => return Err(error),
            Err(error) => last = error,
        }
    }
    Err(shared.cause().unwrap_or(last))
}

async fn try_host(shared: &Shared, index: usize) -> Result<Established, PgConnError> {
    let host = &shared.plan.hosts[index];
    let address = host.to_string();
    let mut last = None;
    for target in targets(shared, host).await? {
        match try_target(shared, index, &target).await {
            Ok(established) => return Ok(established),
            Err(error) if error.is_final() || shared.is_ending() => return Err(error),
            Err(error) => last = Some(error),
        }
    }
    let why = "the name has no address".into();
    Err(last.unwrap_or(PgConnError::Dial { address, why }))
}

async fn targets(shared: &Shared, host: &PostgresHost) -> Result<Vec<Target>, PgConnError> {
    let name = match settings::place(host) {
        Place::Target(target) => return Ok(vec![target]),
        Place::Name(name) => name,
    };
    let expired = Cell::new(false);
    let look_up = async {
        register(shared).await;
        shared.resolver.look_up(&name, || expired.get() || shared.is_ending()).await
    };
    let timeout = monoio::time::sleep(shared.plan.connect_timeout);
    let found = with_alarm(look_up, timeout, || expired.set(true)).await;
    let found = found.map_err(|why| PgConnError::Resolve { address: name, why })?;
    Ok(found.into_iter().take(MAX_RESOLVED).map(Target::Tcp).collect())
}

async fn try_target(
    shared: &Shared,
    index: usize,
    target: &Target,
) -> Result<Established, PgConnError> {
    let host = &shared.plan.hosts[index];
    let attempt = Attempt { shared, host, target, expired: Cell::default() };
    let expire = || {
        attempt.expired.set(true);
        if let Some(fd) = shared.open_socket() {
            socket::abort(fd);
        }
    };
    let startup = Startup::new(settings::startup(&shared.plan, shared.replication, index));
    let started = Instant::now();
    let timeout = monoio::time::sleep(shared.plan.connect_timeout);
    match with_alarm(attempt.run(startup), timeout, expire).await {
        Err(_) if attempt.expired.get() => {
            let why = format!("no connection and login within {:.1?}", started.elapsed());
            Err(PgConnError::Dial { address: host.to_string(), why })
        }
        outcome => outcome,
    }
}

/// How one exchange ended.
enum Outcome {
    Ready(Intake, ServerInfo),
    OtherWay,
}

struct Attempt<'a> {
    shared: &'a Shared,
    host: &'a PostgresHost,
    target: &'a Target,
    expired: Cell<bool>,
}

impl Attempt<'_> {
    async fn run(&self, mut startup: Startup) -> Result<Established, PgConnError> {
        loop {
            register(self.shared).await;
            let mut stream = self.dial().await.map_err(|error| PgConnError::Dial {
                address: self.address(),
                why: error.to_string(),
            })?;
            let outcome = self.exchange(&mut stream, &mut startup).await;
            if let Ok(Outcome::Ready(intake, info)) = outcome {
                return Ok(Established { stream, intake, info });
            }
            self.shared.own_socket(None);
            self.shared.tls.replace(None);
            socket::close(stream);
            outcome?;
        }
    }

    async fn dial(&self) -> io::Result<TcpStream> {
        let patience = settings::patience(&self.shared.plan);
        let (stream, fd) = transport::start_connect(self.target, &patience)?;
        self.shared.own_socket(Some(fd));
        match socket::finish_connect(&stream).await {
            Ok(()) if !self.shared.is_ending() && !self.expired.get() => {
                if self.shared.replication {
                    // It only makes reading cheaper: what the kernel refuses is done without.
                    let _ = transport::bound_window(fd);
                }
                Ok(stream)
            }
            outcome => {
                self.shared.own_socket(None);
                socket::close(stream);
                outcome.and(Err(io::ErrorKind::ConnectionAborted.into()))
            }
        }
    }

    async fn exchange(
        &self,
        stream: &mut TcpStream,
        startup: &mut Startup,
    ) -> Result<Outcome, PgConnError> {
        let mut source = Source::new(stream, Intake::default());
        let mut step = startup.begin();
        loop {
            step = match step {
                Step::Send(bytes) if bytes.len() == TLS_REQUEST => {
                    self.write(&mut source, bytes).await?;
                    self.tls_answer(&mut source, startup).await?
                }
                Step::Send(bytes) => {
                    self.write(&mut source, self.shared.seal(bytes)).await?;
                    self.message(&mut source, startup).await?
                }
                Step::Continue => self.message(&mut source, startup).await?,
                Step::StartTls => self.handshake(&mut source, startup).await?,
                Step::Reconnect { .. } => return Ok(Outcome::OtherWay),
                Step::Ready(info) => {
                    let address = self.address();
                    if let Some(why) = settings::unsuitable(&self.shared.plan, &info) {
                        return Err(PgConnError::Unsuitable { address, why });
                    }
                    return Ok(Outcome::Ready(source.intake, info));
                }
            };
        }
    }

    /// The byte that answers the request for TLS. Nothing may come with it.
    async fn tls_answer(
        &self,
        source: &mut Source<'_, TcpStream>,
        startup: &mut Startup,
    ) -> Result<Step, PgConnError> {
        while source.intake.is_empty() {
            self.read(source, 1).await?;
        }
        let (first, more) = source.intake.take_first();
        startup.ssl_answer(first, more).map_err(|error| self.refused(error))
    }

    async fn handshake(
        &self,
        source: &mut Source<'_, TcpStream>,
        startup: &mut Startup,
    ) -> Result<Step, PgConnError> {
        let wish = settings::tls(&self.shared.plan, self.host);
        let session = tls::Session::begin(&wish).map_err(|error| self.tls_failed(error))?;
        self.shared.tls.replace(Some(session));
        match self.shake_hands(source, wish.direct).await {
            Ok(binding) => Ok(startup.tls_ready(binding)),
            Err(ReadError::Lost(why)) => Err(self.lost(&why)),
            Err(ReadError::Tls(error)) => {
                // The server's log then says why, too.
                if let Some(fd) = self.shared.open_socket() {
                    transport::send_now(fd, &self.shared.take_output());
                }
                match startup.tls_failed(&error.why) {
                    Ok(step) => Ok(step),
                    Err(_) => Err(self.tls_failed(error)),
                }
            }
        }
    }

    async fn shake_hands(
        &self,
        source: &mut Source<'_, TcpStream>,
        direct: bool,
    ) -> Result<Option<Vec<u8>>, ReadError> {
        loop {
            let bytes = self.shared.take_output();
            if !bytes.is_empty() {
                let (written, _) = source.stream.write_all(bytes).await;
                written.map_err(|error| ReadError::Lost(error.to_string()))?;
            }
            if let Some(tls) = self.shared.tls.borrow().as_ref().filter(|t| !t.is_handshaking()) {
                if direct && !tls.agreed_on_protocol() {
                    let why = "the server did not choose the protocol postgresql".to_owned();
                    return Err(ReadError::Tls(TlsError { fault: TlsFault::Handshake, why }));
                }
                return Ok(tls.server_end_point());
            }
            source.read(&self.shared.tls, 1).await?;
        }
    }

    async fn message(
        &self,
        source: &mut Source<'_, TcpStream>,
        startup: &mut Startup,
    ) -> Result<Step, PgConnError> {
        loop {
            let front = source.intake.message(LARGEST).map_err(|error| self.protocol(&error))?;
            match front {
                Front::Message(tag, body) => {
                    return startup.message(tag, &body).map_err(|error| self.refused(error));
                }
                Front::Cut(need) => self.read(source, need).await?,
                Front::TooLarge(size) => {
                    return Err(self.protocol(&format!("a message of {size} bytes at login")));
                }
                Front::Chunk(_) => return Err(self.protocol(&"data at login")),
            }
        }
    }

    async fn read(
        &self,
        source: &mut Source<'_, TcpStream>,
        need: usize,
    ) -> Result<(), PgConnError> {
        match source.read(&self.shared.tls, need).await {
            Ok(_) => Ok(()),
            Err(ReadError::Lost(why)) => Err(self.lost(&why)),
            // With TLS 1.3 a server refuses our certificate only now.
            Err(ReadError::Tls(error)) => Err(self.tls_failed(error)),
        }
    }

    async fn write(
        &self,
        source: &mut Source<'_, TcpStream>,
        bytes: Vec<u8>,
    ) -> Result<(), PgConnError> {
        let (written, _) = source.stream.write_all(bytes).await;
        written.map(drop).map_err(|error| self.lost(&error.to_string()))
    }

    fn address(&self) -> String {
        self.host.to_string()
    }

    fn refused(&self, error: StartupError) -> PgConnError {
        let address = self.address();
        match error {
            StartupError::TlsRefused { .. } => {
                PgConnError::Tls { address, fault: TlsFault::NotOffered, why: error.to_string() }
            }
            error => PgConnError::Login { address, error },
        }
    }

    fn tls_failed(&self, error: TlsError) -> PgConnError {
        let TlsError { fault, why } = error;
        PgConnError::Tls { address: self.address(), fault, why }
    }

    fn lost(&self, why: &str) -> PgConnError {
        PgConnError::Lost(format!("{} at login: {why}", self.host))
    }

    fn protocol(&self, seen: &dyn std::fmt::Display) -> PgConnError {
        PgConnError::Protocol(format!("{}: {seen}", self.host))
    }
}

/// The connection's task is the one that runs now.
async fn register(shared: &Shared) {
    poll_fn(|cx| {
        shared.register(cx.waker());
        Poll::Ready(())
    })
    .await;
}
