//! What a plan means for the parts of a connection, by libpq's rules.

use std::time::Duration;

use super::tls::{Check, Roots, Wish};
use super::transport::{KeepAlive, Patience, Target};
use crate::config::postgres::{self, TargetSession};
use crate::config::{PostgresHost, PostgresPlan, RootCert, SslMode};
use crate::pg_wire::startup::{ChannelBinding, ServerInfo, SslWish, StartupConfig};
use crate::secret::Secret;

/// Without `keepalives_idle`: with the kernel's two hours a dead server would go unnoticed for as
/// long.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(30);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_COUNT: u32 = 3;
/// Without `tcp_user_timeout`.
const USER_TIMEOUT: Duration = Duration::from_secs(30);

/// Where a host is.
pub enum Place {
    /// Known.
    Target(Target),
    /// To be resolved, `name:port`.
    Name(String),
}

/// Where it is.
pub fn place(host: &PostgresHost) -> Place {
    match host {
        PostgresHost::Tcp { .. } => Place::Name(host.to_string()),
        PostgresHost::Unix { directory, port } => {
            Place::Target(Target::in_directory(directory, *port))
        }
    }
}

/// For the login to this one of the plan's hosts. There is no TLS over a unix socket, and none is
/// needed.
pub fn startup(plan: &PostgresPlan, replication: bool, host: usize) -> StartupConfig {
    let is_local = matches!(plan.hosts.get(host), Some(PostgresHost::Unix { .. }));
    let ssl = match plan.ssl_mode {
        _ if is_local => SslWish::Disable,
        SslMode::Disable => SslWish::Disable,
        SslMode::Allow => SslWish::Allow,
        SslMode::Prefer => SslWish::Prefer,
        _ if plan.direct_tls => SslWish::Direct,
        SslMode::Require | SslMode::VerifyCa | SslMode::VerifyFull => SslWish::Require,
    };
    StartupConfig {
        user: plan.user.clone(),
        database: plan.database.clone(),
        password: plan.password_of(host).map(Secret::from),
        replication,
        application_name: plan.application_name.clone(),
        ssl,
        channel_binding: match plan.channel_binding {
            postgres::ChannelBinding::Disable => ChannelBinding::Disable,
            postgres::ChannelBinding::Prefer => ChannelBinding::Prefer,
            postgres::ChannelBinding::Require => ChannelBinding::Require,
        },
        cleartext_allowed_without_tls: is_local || plan.cleartext_allowed_without_tls,
    }
}

/// For the TLS session: a root certificate makes every mode check the chain.
pub fn tls<'a>(plan: &'a PostgresPlan, host: &'a PostgresHost) -> Wish<'a> {
    let check = match plan.ssl_mode {
        SslMode::VerifyFull => Check::ChainAndName,
        SslMode::VerifyCa => Check::Chain,
        _ if plan.root_cert.is_some() => Check::Chain,
        _ => Check::Nothing,
    };
    let roots = match &plan.root_cert {
        Some(RootCert::File(path)) => Roots::File(path),
        Some(RootCert::System) | None => Roots::Host,
    };
    Wish {
        check,
        roots,
        client: plan.client_cert.as_ref().map(|(cert, key)| (cert.as_path(), key.as_path())),
        host: match host {
            PostgresHost::Tcp { host, .. } => host,
            PostgresHost::Unix { .. } => "localhost",
        },
        direct: plan.direct_tls,
    }
}

/// For the kernel.
pub fn patience(plan: &PostgresPlan) -> Patience {
    let user_timeout = plan.tcp_user_timeout.unwrap_or(USER_TIMEOUT);
    Patience {
        keepalive: plan.keepalives.then(|| KeepAlive {
            idle: plan.keepalives_idle.unwrap_or(KEEPALIVE_IDLE),
            interval: plan.keepalives_interval.unwrap_or(KEEPALIVE_INTERVAL),
            count: plan.keepalives_count.unwrap_or(KEEPALIVE_COUNT),
        }),
        user_timeout: (!user_timeout.is_zero()).then_some(user_timeout),
    }
}

/// Why this server will not do, if it will not.
pub fn unsuitable(plan: &PostgresPlan, server: &ServerInfo) -> Option<&'static str> {
    match plan.target {
        TargetSession::Primary if server.is_standby() == Some(true) => {
            Some("is a standby, and target_session_attrs asks for the primary")
        }
        TargetSession::ReadWrite if server.is_read_only() == Some(true) => {
            Some("only reads, and target_session_attrs asks for a server that writes")
        }
        _ => None,
    }
}
