//! The two syntaxes of a connection string, as libpq reads them.
//!
//! ```text
//! postgresql://user:password@host:port,host:port/database?parameter=value&…      %XX escapes
//! parameter = value  parameter='value with blanks'                               \ escapes
//! ```
//!
//! Stricter than libpq in one point: a parameter that is given twice is refused. Nothing of a
//! string is quoted in an error but the name of a parameter we know or nearly know: with a quote
//! missing, anything may be a piece of the password.

use super::parameters::{self, Parameter};
use super::{ConnInfoError, error};

/// Parameters and their values, each at most once.
#[derive(Default)]
pub(super) struct Raw {
    values: Vec<(Parameter, String)>,
}

impl Raw {
    /// The value of a parameter; an empty one counts as not given.
    pub(super) fn value(&self, name: &str) -> Option<&str> {
        let found = self.values.iter().find(|(parameter, _)| parameter.name == name);
        found.map(|(_, value)| value.as_str()).filter(|value| !value.is_empty())
    }

    /// Everything that was given.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&Parameter, &str)> {
        self.values.iter().map(|(parameter, value)| (parameter, value.as_str()))
    }

    fn set(&mut self, name: &str, value: String) -> Result<(), ConnInfoError> {
        let parameter = parameters::find(name)?;
        if value.contains('\0') {
            return Err(error(format!("a NUL in {}", parameter.name), "text", "remove it"));
        }
        if self.values.iter().any(|(given, _)| given.name == parameter.name) {
            let seen = format!("{} is given twice", parameter.name);
            return Err(error(seen, "each parameter once", "remove one of the two"));
        }
        self.values.push((parameter, value));
        Ok(())
    }
}

/// In a list of parameters `://` may stand in a value, but behind a `=` then.
fn begins_with_a_scheme(connection: &str) -> bool {
    let is_scheme = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
    let scheme = connection.trim_start().split_once("://").map(|(scheme, _)| scheme);
    scheme.is_some_and(|scheme| scheme.chars().all(is_scheme))
}

/// Reads either syntax.
pub(super) fn read(connection: &str) -> Result<Raw, ConnInfoError> {
    let scheme =
        ["postgresql://", "postgres://"].iter().find_map(|scheme| connection.strip_prefix(scheme));
    match scheme {
        Some(rest) => read_uri(rest),
        None if connection.trim().is_empty() => Err(error("no connection", EXAMPLE, "add it")),
        None if begins_with_a_scheme(connection) => {
            let advice = "write postgresql:// in front of the host";
            Err(error("another scheme than postgresql://", EXAMPLE, advice))
        }
        None => read_pairs(connection),
    }
}

/// Percent-encodes what has a meaning in a URI, for display.
pub(super) fn encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() || " %/:@?#[],&=".contains(c) {
            let mut buffer = [0; 4];
            for byte in c.encode_utf8(&mut buffer).bytes() {
                out.push_str(&format!("%{byte:02X}"));
            }
        } else {
            out.push(c);
        }
    }
    out
}

pub(super) const EXAMPLE: &str = "\"postgresql://user@host:5432/database?sslmode=verify-full\"";

fn read_uri(text: &str) -> Result<Raw, ConnInfoError> {
    let mut raw = Raw::default();
    let (before_query, query) = match split_query(text) {
        Some((before, query)) => (before, Some(query)),
        None => (text, None),
    };
    let mut rest = before_query;
    if let Some((login, behind)) = rest.split_once('@').filter(|(login, _)| !login.contains('/')) {
        let (user, password) = login.split_once(':').unwrap_or((login, ""));
        for (name, value) in [("user", user), ("password", password)] {
            if !value.is_empty() {
                raw.set(name, decode(value, name)?)?;
            }
        }
        rest = behind;
    }
    let (places, database) = rest.split_once('/').unwrap_or((rest, ""));
    if !database.is_empty() {
        raw.set("dbname", decode(database, "dbname")?)?;
    }
    let mut parameters = Vec::new();
    for pair in query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
        let Some((name, value)) = pair.split_once('=').filter(|(_, v)| !v.contains('=')) else {
            let advice = "write name=value; encode a '=' inside a value as %3D";
            return Err(error("a parameter without one '='", "?name=value&name=value", advice));
        };
        parameters.push((decode(name, "a parameter's name")?, decode(value, "a parameter")?));
    }
    // As in libpq, a host in the parameters takes the place of the one in front.
    let replaced = parameters.iter().any(|(name, _)| name == "host");
    read_places(&mut raw, places, replaced, parameters.iter().any(|(name, _)| name == "port"))?;
    for (name, value) in parameters {
        match (name.as_str(), value.as_str()) {
            // As JDBC writes it.
            ("ssl", "true") => raw.set("sslmode", "require".to_owned())?,
            _ => raw.set(&name, value)?,
        }
    }
    Ok(raw)
}

/// The query begins at the first '?' behind the password, which may hold one.
fn split_query(text: &str) -> Option<(&str, &str)> {
    let login = text.find(['@', '/']).filter(|at| text[*at..].starts_with('@'));
    let from = login.map_or(0, |at| at + 1);
    let at = from + text[from..].find('?')?;
    Some((&text[..at], &text[at + 1..]))
}

fn read_places(
    raw: &mut Raw,
    places: &str,
    skip_hosts: bool,
    skip_ports: bool,
) -> Result<(), ConnInfoError> {
    let (mut hosts, mut ports) = (Vec::new(), Vec::new());
    for place in places.split(',') {
        if place.contains('@') {
            let advice = "write a '@' or '/' inside user or password as %40 or %2F, or use the \
                          key password";
            return Err(error("an '@' inside a host", EXAMPLE, advice));
        }
        let (host, port) = split_place(place)?;
        hosts.push(decode(host, "host")?);
        ports.push(decode(port, "port")?);
    }
    if !skip_hosts && !hosts.iter().all(String::is_empty) {
        raw.set("host", hosts.join(","))?;
    }
    if !skip_ports && !ports.iter().all(String::is_empty) {
        raw.set("port", ports.join(","))?;
    }
    Ok(())
}

fn split_place(place: &str) -> Result<(&str, &str), ConnInfoError> {
    let Some(inner) = place.strip_prefix('[') else {
        return match place.split_once(':') {
            Some((_, port)) if port.contains(':') => {
                let advice = "put an IPv6 address into brackets, as in [::1]:5432; encode a ':' \
                              inside user or password as %3A";
                Err(error("a host with several ':'", "host:port", advice))
            }
            Some(pair) => Ok(pair),
            None => Ok((place, "")),
        };
    };
    let closed = inner.split_once(']').and_then(|(host, rest)| match rest.strip_prefix(':') {
        Some(port) => Some((host, port)),
        None => rest.is_empty().then_some((host, "")),
    });
    closed.filter(|(host, _)| host.parse::<std::net::Ipv6Addr>().is_ok()).ok_or_else(|| {
        error("no IPv6 address between brackets", "[::1]:5432", "correct the address")
    })
}

fn decode(text: &str, what: &str) -> Result<String, ConnInfoError> {
    if !text.contains('%') {
        return Ok(text.to_owned());
    }
    let bad = |seen: &str| {
        let advice = "write a '%' itself as %25";
        error(format!("{what}: {seen}"), "'%' and two hexadecimal digits", advice)
    };
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digit = |byte: Option<u8>| byte.and_then(|byte| char::from(byte).to_digit(16));
        let (Some(high), Some(low)) = (digit(rest.next()), digit(rest.next())) else {
            return Err(bad("a '%' without two hexadecimal digits"));
        };
        bytes.push((high * 16 + low) as u8);
    }
    String::from_utf8(bytes).map_err(|_| bad("escapes that are not UTF-8"))
}

fn read_pairs(text: &str) -> Result<Raw, ConnInfoError> {
    const PAIRS: &str = "host=… dbname=… user=…";
    let mut raw = Raw::default();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let end = rest.find(|c: char| c == '=' || c.is_whitespace()).unwrap_or(rest.len());
        let (name, behind) = rest.split_at(end);
        let Some(value) = behind.trim_start().strip_prefix('=') else {
            let advice = "write name=value; put a value with blanks into single quotes";
            return Err(error("a word without '='", PAIRS, advice));
        };
        let (value, behind) = read_value(value.trim_start())?;
        raw.set(name, value)?;
        rest = behind.trim_start();
    }
    Ok(raw)
}

/// A value and what is behind it.
fn read_value(text: &str) -> Result<(String, &str), ConnInfoError> {
    let (quoted, text) = match text.strip_prefix('\'') {
        Some(text) => (true, text),
        None => (false, text),
    };
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' => value.extend(chars.next().map(|(_, c)| c)),
            '\'' if quoted => return Ok((value, &text[at + 1..])),
            c if c.is_whitespace() && !quoted => return Ok((value, &text[at..])),
            c => value.push(c),
        }
    }
    if quoted {
        let advice = "close the quote; write a quote inside a value as \\'";
        return Err(error("a quoted value without its end", "name='value'", advice));
    }
    Ok((value, ""))
}
