//! From a connected socket to the first ReadyForQuery, as a machine that asks for I/O.
//!
//! ```text
//! begin ─▶ Send SSLRequest ─ 'S' ─▶ StartTls ─ tls_ready ─▶ Send StartupMessage ─▶ message …
//!    │                     └ 'N' ────────────────────────────────▲                      │
//!    └─ without TLS ─────────────────────────────────────────────┘   Ready ◀────────────┘
//! ```
//!
//! `allow` and `prefer` try the other way once when the server refuses; the driver then connects
//! anew and calls [`Startup::begin`] again. Nothing read before the TLS handshake counts: bytes
//! behind the answer to SSLRequest are an attack. Session settings that change the text of
//! values, or stop a long session, are pinned whatever the role's defaults are.

use std::collections::BTreeMap;
use std::fmt;

pub use super::auth::ChannelBinding;
use super::auth::{Auth, AuthStep, Proof};
use super::error::{Notice, PgWireError, ServerError};
use super::frame::Frame;
use super::query::MOST_NOTICES;
use super::reader::Reader;
pub use super::startup_error::StartupError;
use crate::secret::Secret;

/// What the server must do to the session, whatever the role's or the database's defaults say.
pub const PINNED_SETTINGS: &[(&str, &str)] = &[
    ("client_encoding", "UTF8"),
    ("DateStyle", "ISO, MDY"),
    ("IntervalStyle", "postgres"),
    ("TimeZone", "UTC"),
    ("extra_float_digits", "3"),
    ("bytea_output", "hex"),
    ("lc_monetary", "C"),
    // Names of types, tables and functions in values come out qualified.
    ("search_path", ""),
    ("quote_all_identifiers", "off"),
    ("standard_conforming_strings", "on"),
    // A warning may be the only sign that changes were left out.
    ("client_min_messages", "notice"),
    ("statement_timeout", "0"),
    ("lock_timeout", "0"),
    ("idle_in_transaction_session_timeout", "0"),
    // Since 14, which is the oldest that is taken.
    ("idle_session_timeout", "0"),
];

/// How much TLS is wished for. Checking certificates is the driver's part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SslWish {
    /// Never; also on Unix sockets.
    #[default]
    Disable,
    /// If the server refuses us without it.
    Allow,
    /// Unless the server cannot, or refuses us with it.
    Prefer,
    /// Or not at all.
    Require,
    /// Or not at all, and without asking first (17 and later).
    Direct,
}

/// What a connection is opened with.
#[derive(Clone, Default)]
pub struct StartupConfig {
    /// Role.
    pub user: String,
    /// Database.
    pub database: String,
    /// Its password; an empty one counts as none.
    pub password: Option<Secret>,
    /// Logical replication (`replication=database`); SQL works as well.
    pub replication: bool,
    /// Shown in `pg_stat_activity`.
    pub application_name: String,
    /// TLS.
    pub ssl: SslWish,
    /// Whether SCRAM is tied to the TLS channel.
    pub channel_binding: ChannelBinding,
    /// Send a password in clear without TLS if asked; right for Unix sockets.
    pub cleartext_allowed_without_tls: bool,
}

impl fmt::Debug for StartupConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StartupConfig")
            .field("user", &self.user)
            .field("database", &self.database)
            .field("password", &self.password.as_ref().map(|_| "hidden"))
            .field("replication", &self.replication)
            .field("application_name", &self.application_name)
            .field("ssl", &self.ssl)
            .field("channel_binding", &self.channel_binding)
            .field("cleartext_allowed_without_tls", &self.cleartext_allowed_without_tls)
            .finish()
    }
}

/// What the driver does next.
#[derive(Clone, PartialEq, Eq)]
pub enum Step {
    /// Write this, then read.
    Send(Vec<u8>),
    /// Do the handshake, then [`Startup::tls_ready`] or [`Startup::tls_failed`].
    StartTls,
    /// Read on.
    Continue,
    /// Close the socket, connect to the same host again, then [`Startup::begin`].
    Reconnect {
        /// What the next try does.
        with_tls: bool,
    },
    /// Logged in; queries may follow.
    Ready(ServerInfo),
}

impl fmt::Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // May hold a password.
            Step::Send(bytes) => write!(f, "Send({} bytes)", bytes.len()),
            Step::StartTls => f.write_str("StartTls"),
            Step::Continue => f.write_str("Continue"),
            Step::Reconnect { with_tls } => write!(f, "Reconnect {{ with_tls: {with_tls} }}"),
            Step::Ready(info) => write!(f, "Ready({info:?})"),
        }
    }
}

/// Who is at the other end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerInfo {
    /// Settings the server reports.
    pub parameters: BTreeMap<String, String>,
    /// `150018` is 15.18; from `server_version`.
    pub version_num: u32,
    /// Process of this session.
    pub backend_pid: u32,
    /// Whether the connection is encrypted.
    pub tls: bool,
}

impl ServerInfo {
    /// Whether the server is a standby; 14 and later say so.
    pub fn is_standby(&self) -> Option<bool> {
        self.flag("in_hot_standby")
    }

    /// Whether transactions are read-only unless they say otherwise; 14 and later say so.
    pub fn is_read_only(&self) -> Option<bool> {
        Some(self.is_standby()? || self.flag("default_transaction_read_only")?)
    }

    fn flag(&self, name: &str) -> Option<bool> {
        self.parameters.get(name).map(|value| value == "on")
    }
}

/// The machine. One per session; it survives the reconnect it asks for.
pub struct Startup {
    config: StartupConfig,
    phase: Phase,
    /// The other way is being tried.
    second: bool,
    /// Why the first way failed.
    earlier: Option<String>,
    tls: bool,
    end_point: Option<Vec<u8>>,
    auth: Auth,
    info: ServerInfo,
    cancel_key: Option<Vec<u8>>,
    notices: Vec<Notice>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Fresh,
    AskedForTls,
    Handshake,
    Authentication,
    Settling,
    Ended,
}

/// `3.0`.
const PROTOCOL: u32 = 3 << 16;
const SSL_REQUEST: u32 = 80_877_103;
const CANCEL_REQUEST: u32 = 80_877_102;
/// Bound on the settings a server may report; 18 reports 15.
const MOST_PARAMETERS: usize = 256;
/// Longest key of a cancel request the protocol allows.
const LONGEST_CANCEL_KEY: usize = 256;

impl Startup {
    /// For one session.
    pub fn new(config: StartupConfig) -> Startup {
        Startup {
            config,
            phase: Phase::Fresh,
            second: false,
            earlier: None,
            tls: false,
            end_point: None,
            auth: Auth::default(),
            info: ServerInfo::default(),
            cancel_key: None,
            notices: Vec::new(),
        }
    }

    /// The socket is connected: at first, and again after [`Step::Reconnect`].
    pub fn begin(&mut self) -> Step {
        self.tls = false;
        self.end_point = None;
        self.auth = Auth::default();
        self.info = ServerInfo::default();
        self.cancel_key = None;
        self.notices.clear();
        match self.config.ssl {
            SslWish::Direct => {
                self.phase = Phase::Handshake;
                Step::StartTls
            }
            SslWish::Disable => self.start_session(),
            SslWish::Allow if !self.second => self.start_session(),
            SslWish::Prefer if self.second => self.start_session(),
            SslWish::Allow | SslWish::Prefer | SslWish::Require => {
                self.phase = Phase::AskedForTls;
                Step::Send(Frame::untagged().u32(SSL_REQUEST).end())
            }
        }
    }

    /// The one byte that answers SSLRequest, and whether more came with it.
    pub fn ssl_answer(&mut self, byte: u8, extra_bytes: bool) -> Result<Step, StartupError> {
        if self.phase != Phase::AskedForTls {
            return Err(StartupError::OutOfTurn("an answer to SSLRequest"));
        }
        self.phase = Phase::Ended;
        match byte {
            b'S' | b'N' if extra_bytes => Err(StartupError::Injected),
            b'S' => {
                self.phase = Phase::Handshake;
                Ok(Step::StartTls)
            }
            b'N' => match self.config.ssl {
                SslWish::Prefer => Ok(self.start_session()),
                _ => Err(StartupError::TlsRefused { earlier: self.earlier.take() }),
            },
            // The text behind it is not to be believed: nobody has proven who is speaking.
            b'E' => Err(StartupError::ErrorInsteadOfTls),
            seen => Err(StartupError::NotPostgres { seen }),
        }
    }

    /// The handshake is done. `server_end_point` is what
    /// [`super::end_point::server_end_point`] makes of the server's certificate.
    pub fn tls_ready(&mut self, server_end_point: Option<Vec<u8>>) -> Step {
        self.tls = true;
        self.end_point = server_end_point;
        self.start_session()
    }

    /// The handshake failed for a reason other than a lost connection.
    pub fn tls_failed(&mut self, reason: &str) -> Result<Step, StartupError> {
        self.phase = Phase::Ended;
        if self.config.ssl == SslWish::Prefer && !self.second {
            return Ok(self.other_way(format!("TLS failed: {reason}")));
        }
        Err(StartupError::Tls { reason: reason.to_owned(), earlier: self.earlier.take() })
    }

    /// The next message of the server.
    pub fn message(&mut self, tag: u8, body: &[u8]) -> Result<Step, StartupError> {
        let step = match self.phase {
            Phase::Authentication => self.authenticating(tag, body),
            Phase::Settling => self.settling(tag, body),
            Phase::Fresh | Phase::AskedForTls | Phase::Handshake | Phase::Ended => {
                Err(StartupError::OutOfTurn("a message"))
            }
        };
        if step.is_err() {
            self.phase = Phase::Ended;
        }
        step
    }

    /// Remarks of the server so far.
    pub fn take_notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices)
    }

    /// What stops this session's query when sent on a connection of its own. The server reads it
    /// instead of a StartupMessage and closes.
    pub fn cancel_request(&self) -> Option<Vec<u8>> {
        let key = self.cancel_key.as_deref()?;
        let frame = Frame::untagged().u32(CANCEL_REQUEST).u32(self.info.backend_pid);
        Some(frame.bytes(key).end())
    }

    fn start_session(&mut self) -> Step {
        self.phase = Phase::Authentication;
        let config = &self.config;
        let mut settings = vec![("user", config.user.as_str()), ("database", &config.database)];
        if config.replication {
            settings.push(("replication", "database"));
        }
        settings.push(("application_name", &config.application_name));
        settings.extend(PINNED_SETTINGS);
        let frame =
            settings.iter().fold(Frame::untagged().u32(PROTOCOL), |frame, (name, value)| {
                frame.text(name).text(value)
            });
        Step::Send(frame.u8(0).end())
    }

    fn authenticating(&mut self, tag: u8, body: &[u8]) -> Result<Step, StartupError> {
        match tag {
            b'R' => {
                let proof = Proof {
                    user: &self.config.user,
                    password: self.config.password.as_ref().map(Secret::expose),
                    tls: self.tls,
                    end_point: self.end_point.as_deref(),
                    binding: self.config.channel_binding,
                    cleartext_allowed_without_tls: self.config.cleartext_allowed_without_tls,
                };
                Ok(match self.auth.request(&proof, body)? {
                    AuthStep::Send(bytes) => Step::Send(bytes),
                    AuthStep::Continue => Step::Continue,
                    AuthStep::Accepted => {
                        self.phase = Phase::Settling;
                        Step::Continue
                    }
                })
            }
            b'E' => self.refused(ServerError::parse(body)?),
            other => self.aside(other, body, "during authentication"),
        }
    }

    fn settling(&mut self, tag: u8, body: &[u8]) -> Result<Step, StartupError> {
        match tag {
            b'S' => self.parameter(body)?,
            b'K' => {
                let mut reader = Reader::new(body);
                self.info.backend_pid = reader.u32("process of a session")?;
                let key = reader.rest();
                if key.len() > LONGEST_CANCEL_KEY {
                    let seen = format!("{} bytes", key.len());
                    return Err(invalid("key of a session", seen, "at most 256 bytes"));
                }
                self.cancel_key = Some(key.to_vec());
            }
            b'Z' => {
                self.phase = Phase::Ended;
                self.info.tls = self.tls;
                let version = self.info.parameters.get("server_version").map(String::as_str);
                self.info.version_num = version_number(version.unwrap_or_default())?;
                return Ok(Step::Ready(self.info.clone()));
            }
            b'E' => {
                let error = ServerError::parse(body)?;
                return Err(StartupError::Refused { error, earlier: self.earlier.take() });
            }
            other => return self.aside(other, body, "before the session was ready"),
        }
        Ok(Step::Continue)
    }

    /// Messages that change nothing.
    fn aside(&mut self, tag: u8, body: &[u8], during: &'static str) -> Result<Step, StartupError> {
        match tag {
            b'N' => {
                let notice = Notice::parse(body)?;
                if self.notices.len() < MOST_NOTICES {
                    self.notices.push(notice);
                }
                Ok(Step::Continue)
            }
            b'v' => {
                // We ask for 3.0 without extensions, which is the least there is to agree on.
                let mut reader = Reader::new(body);
                let version = reader.u32("version of a server")?;
                if version >> 16 == PROTOCOL >> 16 || version < 1 << 16 {
                    return Ok(Step::Continue);
                }
                let seen = format!("{}.{}", version >> 16, version & 0xffff);
                Err(invalid("protocol version", seen, "3.0"))
            }
            tag => Err(PgWireError::UnexpectedTag { tag, during }.into()),
        }
    }

    fn parameter(&mut self, body: &[u8]) -> Result<(), StartupError> {
        let mut reader = Reader::new(body);
        let name = reader.text("name of a setting")?.to_owned();
        let value = reader.text("value of a setting")?.to_owned();
        self.info.parameters.insert(name, value);
        if self.info.parameters.len() > MOST_PARAMETERS {
            let seen = format!("more than {MOST_PARAMETERS}");
            return Err(invalid("settings of a server", seen, "a few"));
        }
        Ok(())
    }

    /// An error before the login was accepted: the other way may be let in, unless the server
    /// said that it has no room or no time.
    fn refused(&mut self, error: ServerError) -> Result<Step, StartupError> {
        let other_way = match self.config.ssl {
            SslWish::Allow => !self.tls,
            SslWish::Prefer => self.tls,
            SslWish::Disable | SslWish::Require | SslWish::Direct => false,
        };
        let busy = error.code.starts_with("53") || error.code.starts_with("57");
        if other_way && !self.second && !busy {
            return Ok(self.other_way(error.to_string()));
        }
        Err(StartupError::Refused { error, earlier: self.earlier.take() })
    }

    fn other_way(&mut self, reason: String) -> Step {
        let with_tls = self.config.ssl == SslWish::Allow;
        let tried = if with_tls { "without TLS" } else { "with TLS" };
        self.earlier = Some(format!("{tried}: {reason}"));
        self.second = true;
        self.phase = Phase::Ended;
        Step::Reconnect { with_tls }
    }
}

impl fmt::Debug for Startup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Startup")
            .field("config", &self.config)
            .field("phase", &self.phase)
            .field("second", &self.second)
            .field("tls", &self.tls)
            .field("auth", &self.auth)
            .finish_non_exhaustive()
    }
}

/// `15.18 (Debian …)` is 150018, `9.6.24` 90624, `18beta1` 180000.
fn version_number(text: &str) -> Result<u32, StartupError> {
    let numbers = text.split(|c: char| !c.is_ascii_digit() && c != '.').next().unwrap_or_default();
    let mut parts = numbers.split('.').map(|part| part.parse::<u32>().ok().filter(|n| *n < 100));
    let major = parts.next().flatten();
    let minor = parts.next().flatten().unwrap_or(0);
    let patch = parts.next().flatten().unwrap_or(0);
    match major {
        Some(major @ 10..) => Ok(major * 10_000 + minor),
        Some(major @ 1..) => Ok(major * 10_000 + minor * 100 + patch),
        _ => {
            let seen = format!("{:?}", text.chars().take(40).collect::<String>());
            Err(invalid("server_version", seen, "a version number such as 15.4"))
        }
    }
}

fn invalid(what: &'static str, seen: String, expected: &'static str) -> StartupError {
    PgWireError::Invalid { what, seen, expected }.into()
}

#[cfg(test)]
mod tests;
