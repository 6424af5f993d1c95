//! Why a session did not come about, what to do about it, and whether trying again can help.

use std::io;

use super::error::{PgWireError, ServerError};

/// Why a session did not come about. Never holds a secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartupError {
    /// The server says no.
    #[error("the server refuses the session: {error}{}", earlier_words(earlier))]
    Refused {
        /// In its words.
        error: ServerError,
        /// What came of the way tried before, with or without TLS.
        earlier: Option<String>,
    },
    /// TLS is required and the server has none.
    #[error("the server has no TLS, which sslmode asks for{}", earlier_words(earlier))]
    TlsRefused {
        /// What came of the way tried before.
        earlier: Option<String>,
    },
    /// The handshake failed.
    #[error("TLS failed: {reason}{}", earlier_words(earlier))]
    Tls {
        /// From the TLS library.
        reason: String,
        /// What came of the way tried before.
        earlier: Option<String>,
    },
    /// The server was in trouble before it could speak TLS.
    #[error("the server answered the request for TLS with an error")]
    ErrorInsteadOfTls,
    /// Bytes behind the answer to SSLRequest, sent before encryption by whoever is in between.
    #[error("unencrypted bytes came with the answer to the request for TLS")]
    Injected,
    /// Neither yes nor no.
    #[error("the request for TLS was answered by byte {seen:#04x}; expected 'S' or 'N'")]
    NotPostgres {
        /// The byte.
        seen: u8,
    },
    /// A password would go in clear over an open connection.
    #[error("the server asks for the password in clear on a connection without TLS")]
    CleartextWithoutTls,
    /// There is none to answer with.
    #[error("the server asks for {asked}, and no password is configured")]
    PasswordMissing {
        /// In which form.
        asked: &'static str,
    },
    /// A method we do not have.
    #[error("the server asks for authentication by {name} (code {code})")]
    UnsupportedAuth {
        /// Of the request.
        code: u32,
        /// In words.
        name: &'static str,
    },
    /// SASL without a mechanism we may use.
    #[error(
        "the server offers SASL by {}; expected SCRAM-SHA-256",
        mechanisms(*plus, names)
    )]
    NoMechanism {
        /// SCRAM-SHA-256-PLUS is among them.
        plus: bool,
        /// The unknown ones.
        names: Vec<String>,
    },
    /// A request that does not follow from the exchange so far.
    #[error("authentication request {code} does not follow from the exchange so far")]
    AuthOutOfTurn {
        /// Of the request.
        code: u32,
    },
    /// SCRAM failed on our side: the server's messages or its signature are wrong.
    #[error("SCRAM failed: {0}")]
    Scram(String),
    /// The server let us in without its signature.
    #[error("the server ended SCRAM without proving that it knows the password")]
    ServerUnproven,
    /// `channel_binding = require` and there is none.
    #[error("channel binding is required: {0}")]
    Unbound(&'static str),
    /// An offer that makes no sense, made by someone in between.
    #[error("the server offers SCRAM-SHA-256-PLUS on a connection without TLS")]
    BindingWithoutTls,
    /// The peer's bytes.
    #[error(transparent)]
    Wire(#[from] PgWireError),
    /// The driver called at the wrong time.
    #[error("{0} came at a time when none is awaited")]
    OutOfTurn(&'static str),
}

impl StartupError {
    /// From the SCRAM library; its text says what was wrong and holds no secret.
    pub(super) fn scram(error: io::Error) -> StartupError {
        StartupError::Scram(error.to_string())
    }

    /// Whether the same attempt may succeed later without anybody changing anything.
    pub fn is_passing(&self) -> bool {
        match self {
            StartupError::Refused { error, .. } => {
                let code = error.code.as_str();
                let lasting = ["28", "3D", "42", "0A", "22", "08P01"];
                !lasting.iter().any(|prefix| code.starts_with(prefix))
            }
            StartupError::ErrorInsteadOfTls => true,
            _ => false,
        }
    }

    /// What to do.
    pub fn advice(&self) -> &'static str {
        match self {
            StartupError::Refused { error, .. } => refusal_advice(error),
            StartupError::TlsRefused { .. } => {
                "turn on TLS at the server (ssl = on), or choose sslmode=prefer or disable"
            }
            StartupError::Tls { .. } => {
                "compare the server's certificate with sslrootcert, the host name and sslmode"
            }
            StartupError::ErrorInsteadOfTls => {
                "look at the server's log; it may be out of processes or memory"
            }
            StartupError::Injected | StartupError::BindingWithoutTls => {
                "find out who is between here and the server; nothing was sent"
            }
            StartupError::NotPostgres { .. } => "check host and port: this is not Postgres",
            StartupError::CleartextWithoutTls => {
                "use TLS (sslmode=verify-full), or scram-sha-256 in the server's pg_hba.conf"
            }
            StartupError::PasswordMissing { .. } => {
                "set password = \"${file:/path}\" or \"${env:NAME}\", or name a passfile"
            }
            StartupError::UnsupportedAuth { .. } | StartupError::NoMechanism { .. } => {
                "use scram-sha-256 in the server's pg_hba.conf for this user and address"
            }
            StartupError::Scram(text) if text.contains("iteration count") => {
                "set scram_iterations to at most 100000 and the role's password once more"
            }
            StartupError::Scram(_) | StartupError::ServerUnproven => {
                "do not trust this server: it does not prove that it knows the password"
            }
            StartupError::Unbound(_) => {
                "use TLS and scram-sha-256 without a proxy that ends TLS, or \
                 channel_binding=prefer"
            }
            StartupError::Wire(_)
            | StartupError::AuthOutOfTurn { .. }
            | StartupError::OutOfTurn(_) => {
                "check host and port, and whether a proxy in between speaks this protocol"
            }
        }
    }
}

fn refusal_advice(error: &ServerError) -> &'static str {
    const POOLERS: [&str; 5] =
        ["startup parameter", "pgbouncer", "pooler", "rds proxy", "supavisor"];
    let message = error.message.to_lowercase();
    if POOLERS.iter().any(|word| message.contains(word)) {
        return "a connection pooler is in front: name the database server itself, poolers do \
                not pass on replication";
    }
    match error.code.as_str() {
        "28P01" => "check user and password; nothing else is wrong with the connection",
        "28000" => {
            "check that the role exists, may log in, and that pg_hba.conf has a line for it, \
             this database, this address and this use of TLS"
        }
        "3D000" => "create the database or correct its name",
        "42501" => "give the role what it lacks: ALTER ROLE … REPLICATION",
        "53300" => "raise max_connections or max_wal_senders, or end sessions that idle",
        "57P03" => "wait: the server is starting, stopping or recovering",
        "57P01" | "57P02" => "wait: the server is restarting",
        _ => "look at the server's log",
    }
}

fn earlier_words(earlier: &Option<String>) -> String {
    earlier.as_ref().map(|text| format!("; before that, {text}")).unwrap_or_default()
}

fn mechanisms(plus: bool, names: &[String]) -> String {
    let known = plus.then_some("SCRAM-SHA-256-PLUS");
    let all: Vec<&str> = known.into_iter().chain(names.iter().map(String::as_str)).collect();
    if all.is_empty() { "no mechanism at all".to_owned() } else { all.join(", ") }
}
