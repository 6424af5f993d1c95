//! What the parameters mean. Every parameter of libpq is in the table: used, accepted where its
//! value is what happens anyway, or refused.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use super::conninfo::{EXAMPLE, Raw};
use super::{
    ChannelBinding, ConnInfoError, PostgresHost, PostgresPlan, RootCert, SslMode, TargetSession,
    error,
};
use crate::config::reader::{list, nearest};
use crate::secret::Secret;

/// A parameter of libpq and what becomes of it.
#[derive(Clone, Copy)]
pub(super) struct Parameter {
    pub(super) name: &'static str,
    usage: Usage,
}

#[derive(Clone, Copy)]
enum Usage {
    Used,
    /// These values say what happens anyway; any other is refused.
    Fixed(&'static [&'static str]),
    Refused(&'static str),
}

const USED: &[&str] = &[
    "host",
    "port",
    "dbname",
    "user",
    "password",
    "passfile",
    "sslmode",
    "sslnegotiation",
    "sslrootcert",
    "sslcert",
    "sslkey",
    "channel_binding",
    "connect_timeout",
    "application_name",
    "fallback_application_name",
    "keepalives",
    "keepalives_idle",
    "keepalives_interval",
    "keepalives_count",
    "tcp_user_timeout",
    "target_session_attrs",
];

const FIXED: &[(&str, &[&str])] = &[
    ("client_encoding", &["UTF8", "UTF-8", "utf8", "utf-8", "auto"]),
    ("gssencmode", &["disable", "prefer"]),
    ("load_balance_hosts", &["disable"]),
    ("max_protocol_version", &["3.0"]),
    ("min_protocol_version", &["3.0"]),
    ("ssl_min_protocol_version", &["TLSv1.2"]),
    ("sslcompression", &["0"]),
    ("sslsni", &["1"]),
];

const REFUSED: &[(&str, &str)] = &[
    ("gssdelegation", "remove it; GSSAPI is not available"),
    ("gsslib", "remove it; GSSAPI is not available"),
    ("hostaddr", "write the address as host"),
    ("krbsrvname", "remove it; GSSAPI is not available"),
    ("options", "remove it; the session's settings are fixed so that values keep their form"),
    ("replication", "remove it; it is set where it is needed"),
    ("require_auth", "remove it; a password in clear is sent over TLS only"),
    ("requirepeer", "remove it; protect the socket by the rights of its directory"),
    ("service", "write the parameters of the service here"),
    ("servicefile", "write the parameters of the service here"),
    ("ssl", "write sslmode=require or, better, sslmode=verify-full"),
    ("ssl_max_protocol_version", "remove it; TLS 1.3 is used where the server has it"),
    ("sslcertmode", "remove it, and sslcert where no certificate is to be sent"),
    ("sslcrl", "remove it; revocation lists are not available"),
    ("sslcrldir", "remove it; revocation lists are not available"),
    ("sslkeylogfile", "remove it; keys are not written down"),
    ("sslpassword", "store the key without a password, readable by tidegate's user only"),
];

/// Longest path of a Unix socket, without its NUL.
const LONGEST_SOCKET: usize = 107;
/// Bound on the hosts of one connection.
const MOST_HOSTS: usize = 64;

/// The parameter of that name.
pub(super) fn find(name: &str) -> Result<Parameter, ConnInfoError> {
    let used = USED.iter().map(|name| Parameter { name, usage: Usage::Used });
    let fixed = FIXED.iter().map(|(name, values)| Parameter { name, usage: Usage::Fixed(values) });
    let refused =
        REFUSED.iter().map(|(name, advice)| Parameter { name, usage: Usage::Refused(advice) });
    let mut all = used.chain(fixed).chain(refused);
    if let Some(found) = all.find(|parameter| parameter.name == name) {
        return Ok(found);
    }
    // A name that is far from all others may be a piece of a password.
    Err(match nearest(name, USED) {
        Some(near) => error(
            format!("the unknown parameter {name:?}"),
            format!("one of {}", list(USED)),
            format!("did you mean {near:?}?"),
        ),
        None => error(
            "an unknown parameter",
            format!("one of {}", list(USED)),
            "remove it; put a value with blanks into single quotes, and encode '&' as %26 in a URI",
        ),
    })
}

/// The name of every parameter in the table.
#[cfg(test)]
pub(super) fn all_names() -> impl Iterator<Item = &'static str> {
    let fixed = FIXED.iter().map(|(name, _)| *name);
    USED.iter().copied().chain(fixed).chain(REFUSED.iter().map(|(name, _)| *name))
}

/// The plan that the parameters describe.
pub(super) fn interpret(raw: Raw) -> Result<PostgresPlan, ConnInfoError> {
    for (parameter, value) in raw.iter() {
        match parameter.usage {
            Usage::Used => {}
            Usage::Fixed(values) if value.is_empty() || values.contains(&value) => {}
            Usage::Fixed(values) => {
                let seen = format!("another value of {}", parameter.name);
                return Err(error(seen, list(values), "remove the parameter"));
            }
            Usage::Refused(advice) => {
                let seen = format!("the parameter {}", parameter.name);
                return Err(error(seen, format!("one of {}", list(USED)), advice));
            }
        }
    }
    let Some(user) = plain(&raw, "user")? else {
        return Err(error("no user", EXAMPLE, "add the role to log in as"));
    };
    let hosts = hosts(&raw)?;
    let tls = Tls::read(&raw, hosts.iter().all(PostgresHost::is_local))?;
    let name = plain(&raw, "application_name")?;
    let name = name.or(plain(&raw, "fallback_application_name")?);
    let wait = number(&raw, "connect_timeout", 1..=3600, "seconds")?;
    Ok(PostgresPlan {
        hosts,
        database: plain(&raw, "dbname")?.unwrap_or_else(|| user.clone()),
        user,
        password: raw.value("password").map(Secret::from),
        ssl_mode: tls.mode,
        direct_tls: tls.direct,
        root_cert: tls.root_cert,
        client_cert: tls.client_cert,
        channel_binding: tls.channel_binding,
        passfile: path(&raw, "passfile")?,
        application_name: name.unwrap_or_else(|| "tidegate".to_owned()),
        connect_timeout: Duration::from_secs(wait.unwrap_or(10)),
        keepalives: number(&raw, "keepalives", 0..=1, "0 or 1")? != Some(0),
        keepalives_idle: keepalive_seconds(&raw, "keepalives_idle")?,
        keepalives_interval: keepalive_seconds(&raw, "keepalives_interval")?,
        // As in libpq, 0 is no choice.
        keepalives_count: number(&raw, "keepalives_count", 0..=127, "probes")?.filter(|n| *n > 0),
        tcp_user_timeout: number(&raw, "tcp_user_timeout", 0..=86_400_000, "milliseconds")?
            .map(Duration::from_millis),
        target: target(&raw)?,
        cleartext_allowed_without_tls: false,
        warnings: Vec::new(),
        host_passwords: Vec::new(),
    })
}

fn hosts(raw: &Raw) -> Result<Vec<PostgresHost>, ConnInfoError> {
    let Some(names) = plain(raw, "host")? else {
        let advice = "add the server's name, or the directory of its Unix socket";
        return Err(error("no host", EXAMPLE, advice));
    };
    let names: Vec<&str> = names.split(',').collect();
    let ports = plain(raw, "port")?.unwrap_or_default();
    let ports: Vec<&str> = ports.split(',').collect();
    if names.len() > MOST_HOSTS || ports.len() > 1 && ports.len() != names.len() {
        let seen = format!("{} hosts and {} ports", names.len(), ports.len());
        let expected = format!("at most {MOST_HOSTS} hosts, and one port or one for each");
        return Err(error(seen, expected, "list as many ports as hosts"));
    }
    let port = |index: usize| ports.get(index).or(ports.first()).copied().unwrap_or_default();
    names.iter().enumerate().map(|(index, name)| host(name, port(index))).collect()
}

fn host(name: &str, port: &str) -> Result<PostgresHost, ConnInfoError> {
    let digits = port.bytes().all(|byte| byte.is_ascii_digit());
    let port = if port.is_empty() { Some(5432) } else { port.parse().ok().filter(|_| digits) };
    let Some(port) = port.filter(|port: &u16| *port > 0) else {
        return Err(error("a port that is none", "1 to 65535", "Postgres usually listens on 5432"));
    };
    if name.is_empty() || name.len() > 255 || name.contains(char::is_whitespace) {
        let advice = "name each server, separated by commas";
        return Err(error("an empty host, or one with blanks", "a host", advice));
    }
    if name.starts_with('/') {
        let socket = PostgresHost::Unix { directory: Path::new(name).components().collect(), port };
        let length = socket.socket().map_or(0, |path| path.as_os_str().len());
        if length > LONGEST_SOCKET {
            let seen = format!("a socket path of {length} bytes");
            let expected = format!("at most {LONGEST_SOCKET}");
            return Err(error(seen, expected, "use a shorter directory or TCP"));
        }
        return Ok(socket);
    }
    let is_ipv6 = name.parse::<std::net::Ipv6Addr>().is_ok();
    if name.contains(['/', '@', '[', ']', '?', '#']) || name.contains(':') && !is_ipv6 {
        let advice = "write a name, an address, or the socket's directory, with the port in port";
        return Err(error("a host that is none", "host or address", advice));
    }
    Ok(PostgresHost::Tcp { host: name.to_owned(), port })
}

struct Tls {
    mode: SslMode,
    direct: bool,
    root_cert: Option<RootCert>,
    client_cert: Option<(PathBuf, PathBuf)>,
    channel_binding: ChannelBinding,
}

impl Tls {
    /// Unlike libpq, nobody off this machine is believed without a certificate unless the string
    /// says so.
    fn read(raw: &Raw, is_local: bool) -> Result<Tls, ConnInfoError> {
        let root_cert = match raw.value("sslrootcert") {
            Some("system") => Some(RootCert::System),
            _ => path(raw, "sslrootcert")?.map(RootCert::File),
        };
        let system = root_cert == Some(RootCert::System);
        let usual = if system || !is_local { SslMode::VerifyFull } else { SslMode::Prefer };
        let mut mode = choice(raw, "sslmode", SSL_MODES)?.unwrap_or(usual);
        if system && mode != SslMode::VerifyFull {
            let advice = "use sslmode=verify-full: the system's authorities certify anybody";
            return Err(error("a weaker sslmode with sslrootcert=system", "verify-full", advice));
        }
        if mode == SslMode::Require && root_cert.is_some() {
            // As in libpq: who names an authority wants it checked.
            mode = SslMode::VerifyCa;
        }
        let direct = choice(raw, "sslnegotiation", NEGOTIATIONS)?.unwrap_or(false);
        if direct && mode < SslMode::Require {
            let advice = "use sslmode=verify-full or remove sslnegotiation";
            return Err(error("sslnegotiation=direct without TLS", "sslmode=require", advice));
        }
        let binding = choice(raw, "channel_binding", BINDINGS)?;
        let channel_binding = binding.unwrap_or(ChannelBinding::Prefer);
        if channel_binding == ChannelBinding::Require && mode == SslMode::Disable {
            let advice = "use sslmode=verify-full or channel_binding=prefer";
            return Err(error("channel_binding=require without TLS", "sslmode=require", advice));
        }
        let client_cert = match (path(raw, "sslcert")?, path(raw, "sslkey")?) {
            (Some(cert), Some(key)) => Some((cert, key)),
            (None, None) => None,
            _ => {
                let expected = "both or neither";
                return Err(error("one of sslcert and sslkey", expected, "add the other"));
            }
        };
        Ok(Tls { mode, direct, root_cert, client_cert, channel_binding })
    }
}

const SSL_MODES: &[(&str, SslMode)] = &[
    ("disable", SslMode::Disable),
    ("allow", SslMode::Allow),
    ("prefer", SslMode::Prefer),
    ("require", SslMode::Require),
    ("verify-ca", SslMode::VerifyCa),
    ("verify-full", SslMode::VerifyFull),
];
const NEGOTIATIONS: &[(&str, bool)] = &[("postgres", false), ("direct", true)];
const BINDINGS: &[(&str, ChannelBinding)] = &[
    ("disable", ChannelBinding::Disable),
    ("prefer", ChannelBinding::Prefer),
    ("require", ChannelBinding::Require),
];
const TARGETS: &[(&str, TargetSession)] = &[
    ("any", TargetSession::Any),
    ("read-write", TargetSession::ReadWrite),
    ("primary", TargetSession::Primary),
];

fn target(raw: &Raw) -> Result<TargetSession, ConnInfoError> {
    if let Some("read-only" | "standby" | "prefer-standby") = raw.value("target_session_attrs") {
        let advice = "name the standby itself as host to read from it";
        return Err(error("target_session_attrs for a standby", names(TARGETS), advice));
    }
    Ok(choice(raw, "target_session_attrs", TARGETS)?.unwrap_or(TargetSession::Any))
}

fn keepalive_seconds(raw: &Raw, name: &str) -> Result<Option<Duration>, ConnInfoError> {
    let seconds = number(raw, name, 0..=32_767, "seconds")?;
    Ok(seconds.filter(|seconds| *seconds > 0).map(Duration::from_secs))
}

/// Text that is shown or sent as a name.
fn plain(raw: &Raw, name: &str) -> Result<Option<String>, ConnInfoError> {
    let value = raw.value(name);
    if value.is_some_and(|value| value.contains(char::is_control)) {
        let seen = format!("control characters in {name}");
        return Err(error(seen, "text on one line", "correct the value"));
    }
    Ok(value.map(str::to_owned))
}

fn path(raw: &Raw, name: &str) -> Result<Option<PathBuf>, ConnInfoError> {
    let Some(value) = plain(raw, name)? else { return Ok(None) };
    if !value.starts_with('/') {
        let seen = format!("a relative path in {name}");
        return Err(error(seen, "an absolute path", "write the path from '/' on"));
    }
    Ok(Some(PathBuf::from(value)))
}

fn choice<T: Copy>(
    raw: &Raw,
    name: &str,
    allowed: &[(&str, T)],
) -> Result<Option<T>, ConnInfoError> {
    let Some(value) = raw.value(name) else { return Ok(None) };
    if let Some((_, found)) = allowed.iter().find(|(word, _)| *word == value) {
        return Ok(Some(*found));
    }
    let words: Vec<&str> = allowed.iter().map(|(word, _)| *word).collect();
    let advice = match nearest(value, &words) {
        Some(near) => format!("did you mean {near:?}?"),
        None => "choose one of them".to_owned(),
    };
    Err(error(format!("an unknown value of {name}"), names(allowed), advice))
}

fn names<T>(allowed: &[(&str, T)]) -> String {
    let words: Vec<&str> = allowed.iter().map(|(word, _)| *word).collect();
    format!("one of {}", list(&words))
}

fn number<T: FromStr + PartialOrd + ToString>(
    raw: &Raw,
    name: &str,
    range: std::ops::RangeInclusive<T>,
    unit: &str,
) -> Result<Option<T>, ConnInfoError> {
    let Some(value) = raw.value(name) else { return Ok(None) };
    let digits = value.bytes().all(|byte| byte.is_ascii_digit());
    let number = value.parse().ok().filter(|number| digits && range.contains(number));
    number.map(Some).ok_or_else(|| {
        let (least, most) = (range.start().to_string(), range.end().to_string());
        let expected = format!("{least} to {most}, {unit}");
        error(format!("an unusable value of {name}"), expected, "correct or remove it")
    })
}
