//! Where a Postgres server is and how to log in: libpq's connection strings, as a URI or as
//! `key=value` pairs, and its password file.
//!
//! [`PostgresPlan::parse`] is pure: neither files nor the environment are looked at (of libpq's
//! variables only `PGPASSFILE` counts, in [`PostgresPlan::with_passfile`]). A parameter is used,
//! or refused with what to do; none is ignored. Values never appear in an error, they may hold
//! a password.
//!
//! * `conninfo` the two syntaxes; `parameters` what the values mean; `passfile` password files

mod conninfo;
mod parameters;
mod passfile;
#[cfg(test)]
mod tests;

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::secret::Secret;

/// Server and login.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PostgresPlan {
    /// Tried in order; at least one.
    pub hosts: Vec<PostgresHost>,
    /// Role.
    pub user: String,
    /// Database; the role's name where none is given.
    pub database: String,
    /// Password for every host. [`PostgresPlan::password_of`] also knows the password file's.
    pub password: Option<Secret>,
    /// How much TLS. Unix sockets have none whatever it says. Default `verify-full`, and `prefer`
    /// where every host is this machine.
    pub ssl_mode: SslMode,
    /// TLS begins without a question (`sslnegotiation=direct`); servers before 17 do not know it.
    pub direct_tls: bool,
    /// Certificate authorities. With a file the chain is checked whenever there is TLS; without,
    /// `verify-ca` and `verify-full` use the system's.
    pub root_cert: Option<RootCert>,
    /// What we prove ourselves with, PEM: certificate chain, and its key, not encrypted.
    pub client_cert: Option<(PathBuf, PathBuf)>,
    /// Whether SCRAM is tied to the TLS channel. Default `prefer`.
    pub channel_binding: ChannelBinding,
    /// Password file that is named instead of the usual one.
    pub passfile: Option<PathBuf>,
    /// Shown in `pg_stat_activity`. Default `tidegate`.
    pub application_name: String,
    /// Bound on dial, TLS and login, per host. Default 10 s.
    pub connect_timeout: Duration,
    /// TCP keepalives. Default on; for the next three, `None` leaves the choice to the driver.
    pub keepalives: bool,
    /// Silence before the first probe.
    pub keepalives_idle: Option<Duration>,
    /// Time between probes.
    pub keepalives_interval: Option<Duration>,
    /// Probes without an answer until the connection counts as lost.
    pub keepalives_count: Option<u32>,
    /// How long written bytes may stay unacknowledged; zero is the system's choice, `None` the
    /// driver's.
    pub tcp_user_timeout: Option<Duration>,
    /// What kind of server will do. Default any.
    pub target: TargetSession,
    /// Send a password in clear without TLS if the server asks. Not a parameter of the string.
    pub cleartext_allowed_without_tls: bool,
    /// What is odd but no reason to refuse.
    pub warnings: Vec<String>,
    /// From the password file, by host; used where `password` is absent.
    pub host_passwords: Vec<Option<Secret>>,
}

/// One place to connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PostgresHost {
    /// Name or address, and port.
    Tcp {
        /// Without brackets.
        host: String,
        /// Port.
        port: u16,
    },
    /// A Unix socket; its name in the directory follows from the port.
    Unix {
        /// Absolute.
        directory: PathBuf,
        /// Port.
        port: u16,
    },
}

impl PostgresHost {
    /// It is this machine: a socket, a loopback address, or `localhost`.
    pub fn is_local(&self) -> bool {
        match self {
            PostgresHost::Unix { .. } => true,
            PostgresHost::Tcp { host, .. } => {
                host.eq_ignore_ascii_case("localhost")
                    || host.parse().is_ok_and(|ip: IpAddr| ip.to_canonical().is_loopback())
            }
        }
    }

    /// Path of a Unix socket.
    pub fn socket(&self) -> Option<PathBuf> {
        match self {
            PostgresHost::Tcp { .. } => None,
            PostgresHost::Unix { directory, port } => {
                Some(directory.join(format!(".s.PGSQL.{port}")))
            }
        }
    }
}

impl fmt::Display for PostgresHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PostgresHost::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            PostgresHost::Tcp { host, port } => write!(f, "{host}:{port}"),
            PostgresHost::Unix { directory, port } => write!(f, "{}:{port}", directory.display()),
        }
    }
}

/// `sslmode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SslMode {
    /// No TLS.
    Disable,
    /// TLS if the server refuses us without.
    Allow,
    /// No TLS if the server has none or refuses us with it.
    Prefer,
    /// TLS, with whomever.
    Require,
    /// TLS, with a certificate of a known authority.
    VerifyCa,
    /// TLS, with such a certificate and for this host.
    VerifyFull,
}

/// `sslrootcert`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RootCert {
    /// Those the system trusts.
    System,
    /// Those in this file, PEM.
    File(PathBuf),
}

/// `channel_binding`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChannelBinding {
    /// Never.
    Disable,
    /// Where the server can.
    Prefer,
    /// Or not at all.
    Require,
}

/// `target_session_attrs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetSession {
    /// Any server.
    Any,
    /// One whose transactions may write.
    ReadWrite,
    /// One that is no standby.
    Primary,
}

/// What is wrong with a connection string. Never quotes a value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{seen}; expected {expected}; {advice}")]
pub struct ConnInfoError {
    /// What was seen.
    pub seen: String,
    /// What would have been right.
    pub expected: String,
    /// What to do.
    pub advice: String,
}

impl PostgresPlan {
    /// Reads a connection string. `password`, a key of its own in the configuration, wins over
    /// one in the string.
    pub fn parse(connection: &str, password: Option<&str>) -> Result<PostgresPlan, ConnInfoError> {
        let mut plan = parameters::interpret(conninfo::read(connection)?)?;
        let usable = password.filter(|password| !password.is_empty());
        if usable.is_some_and(|password| password.contains('\0')) {
            return Err(error("a password with a NUL in it", "text", "correct the password"));
        }
        plan.password = usable.map(Secret::from).or(plan.password);
        Ok(plan)
    }

    /// The password for a host, by its index.
    pub fn password_of(&self, host: usize) -> Option<&str> {
        let found = self.host_passwords.get(host).and_then(Option::as_ref);
        self.password.as_ref().or(found).map(Secret::expose)
    }

    /// Server and database in one line, without the password, for logs and status.
    pub fn redacted(&self) -> String {
        let hosts: Vec<String> = self.hosts.iter().map(PostgresHost::to_string).collect();
        let (user, database) = (conninfo::encode(&self.user), conninfo::encode(&self.database));
        format!("postgresql://{user}@{}/{database}", hosts.join(","))
    }

    /// Whether both lead to one server, as far as their text tells: two names may mean one host.
    pub fn same_server(&self, other: &PostgresPlan) -> bool {
        self.hosts.iter().any(|host| {
            let host = canonical(host);
            other.hosts.iter().any(|other| canonical(other) == host)
        })
    }
}

/// One text for the names of one host, as far as they are known without asking anybody.
fn canonical(host: &PostgresHost) -> String {
    let text = host.to_string().to_ascii_lowercase();
    let tail = |name: &str| text.strip_prefix(name).filter(|rest| rest.starts_with(':'));
    match ["localhost", "127.0.0.1", "[::1]"].iter().find_map(|name| tail(name)) {
        Some(port) => format!("localhost{port}"),
        None => text,
    }
}

fn error(
    seen: impl Into<String>,
    expected: impl Into<String>,
    advice: impl Into<String>,
) -> ConnInfoError {
    ConnInfoError { seen: seen.into(), expected: expected.into(), advice: advice.into() }
}
