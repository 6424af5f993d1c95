//! `[clusters.<key>]`: where a cluster is and how to log in.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use super::plan::{ClusterPlan, Credentials};
use super::reader::{Section, short, words};

pub(super) const KEYS: &[&str] = &[
    "address",
    "addresses",
    "username",
    "password",
    "token",
    "connect_timeout",
    "request_timeout",
    "settle",
    "allow_untested_server",
];

const LATER: &[&str] = &["tls"];

/// The clusters of a file: what was named, and what of it is usable.
pub(super) struct Clusters {
    /// Keys as written; a cluster with findings has no plan but is not missing either.
    by_key: BTreeMap<Arc<str>, Option<Arc<ClusterPlan>>>,
}

impl Clusters {
    pub fn keys(&self) -> Vec<&str> {
        self.by_key.keys().map(AsRef::as_ref).collect()
    }

    /// Outer `None`: no such cluster; inner `None`: it has findings.
    pub fn find(&self, key: &str) -> Option<Option<&Arc<ClusterPlan>>> {
        self.by_key.get(key).map(Option::as_ref)
    }

    pub fn usable(&self) -> impl Iterator<Item = &Arc<ClusterPlan>> {
        self.by_key.values().flatten()
    }

    pub fn plans(self) -> BTreeMap<Arc<str>, Arc<ClusterPlan>> {
        self.by_key.into_iter().filter_map(|(key, plan)| Some((key, plan?))).collect()
    }
}

pub(super) fn read(root: &Section<'_>) -> Clusters {
    let mut by_key = BTreeMap::new();
    if let Some(section) = root.table("clusters") {
        for (key, cluster) in section.tables() {
            by_key.insert(Arc::from(key), read_cluster(key, &cluster).map(Arc::new));
        }
    }
    Clusters { by_key }
}

/// Whether two spellings name one address.
pub fn same_address(left: &str, right: &str) -> bool {
    left == right || canonical_address(left) == canonical_address(right)
}

/// Two spellings of one address compare equal.
pub(super) fn canonical_address(address: &str) -> String {
    let Some((host, port)) = address.rsplit_once(':') else { return address.to_lowercase() };
    let host = host.trim_start_matches('[').trim_end_matches(']').to_lowercase();
    let host = host.strip_suffix('.').unwrap_or(&host);
    let port = port.parse::<u16>().unwrap_or_default();
    match host.parse::<IpAddr>().map(|ip| ip.to_canonical()) {
        // Other addresses of 127.0.0.0/8 can be servers of their own.
        Ok(IpAddr::V4(Ipv4Addr::LOCALHOST)) | Ok(IpAddr::V6(Ipv6Addr::LOCALHOST)) => {
            format!("localhost:{port}")
        }
        Ok(ip) => format!("{ip}:{port}"),
        Err(_) => format!("{host}:{port}"),
    }
}

/// For one address a single server's queue has to empty; several stand for a cluster that may
/// change its leader meanwhile.
const SETTLE_SINGLE: Duration = Duration::from_secs(2);
const SETTLE_SEVERAL: Duration = Duration::from_secs(10);

/// How long a request of a lost connection may still be appended (M6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settle {
    /// As far as the configuration tells. Default 2 s for one address, 10 s for several.
    pub configured: Duration,
    /// Where the server says that it is one of several nodes. Default 10 s.
    pub several: Duration,
}

impl Settle {
    /// The same for every cluster.
    pub fn always(time: Duration) -> Settle {
        Settle { configured: time, several: time }
    }

    /// `several`: the server says that its cluster has more than one node.
    pub fn among(self, several: bool) -> Duration {
        if several { self.several } else { self.configured }
    }
}

fn usual_settle(addresses: usize) -> Duration {
    if addresses == 1 { SETTLE_SINGLE } else { SETTLE_SEVERAL }
}

const ADDRESS_EXAMPLE: &str = "\"host:port\", such as \"10.0.0.1:8090\"";
/// Bound on the addresses of one cluster.
const MOST_ADDRESSES: usize = 64;

fn read_cluster(key: &str, section: &Section<'_>) -> Option<ClusterPlan> {
    section.refuse_unknown(KEYS, LATER);
    let named = is_cluster_key(key);
    if !named {
        section.fail_here(words(
            "not a usable cluster name",
            "1 to 64 letters, digits, '_', '-' or '.'",
            "rename the table and its use in from and to",
        ));
    }
    let addresses = read_addresses(section);
    let credentials = read_credentials(section);
    let connect_timeout = section.interval("connect_timeout");
    let request_timeout = section.interval("request_timeout");
    let settle = section.interval("settle");
    let allow_untested_server = section.boolean("allow_untested_server");
    let addresses = addresses?;
    let settle = Settle {
        configured: settle.unwrap_or(usual_settle(addresses.len())),
        several: settle.unwrap_or(SETTLE_SEVERAL),
    };
    named.then_some(ClusterPlan {
        key: key.into(),
        addresses,
        credentials: credentials?,
        connect_timeout: connect_timeout.unwrap_or(Duration::from_secs(5)),
        request_timeout: request_timeout.unwrap_or(Duration::from_secs(10)),
        settle,
        allow_untested_server: allow_untested_server.unwrap_or(false),
    })
}

fn is_cluster_key(key: &str) -> bool {
    (1..=64).contains(&key.len())
        && key.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.'))
}

fn read_addresses(section: &Section<'_>) -> Option<Vec<String>> {
    let several = section.texts("addresses", "write addresses = [\"host:port\", \"host:port\"]");
    let single = section.text("address");
    match (section.has("address"), section.has("addresses")) {
        (true, true) => {
            let advice = "keep addresses and remove address";
            section.fail("address", words("both address and addresses", "one of them", advice));
            None
        }
        (false, false) => {
            let advice = "add address = \"host:port\"; Iggy's TCP port is 8090 by default";
            section.fail("address", words("the key is missing", ADDRESS_EXAMPLE, advice));
            None
        }
        (true, false) => {
            let text = single?;
            check_address(section, "address", &text.value, &text.shown).then(|| vec![text.value])
        }
        (false, true) => {
            let texts = several?;
            if texts.is_empty() || texts.len() > MOST_ADDRESSES {
                let seen = format!("{} usable addresses", texts.len());
                let expected = format!("1 to {MOST_ADDRESSES} addresses");
                section.fail("addresses", words(seen, expected, "list the servers"));
                return None;
            }
            let good = texts.iter().fold(true, |good, (_, text)| {
                check_address(section, "addresses", &text.value, &text.shown) && good
            });
            good.then(|| texts.into_iter().map(|(_, text)| text.value).collect())
        }
    }
}

fn check_address(section: &Section<'_>, key: &str, address: &str, shown: &str) -> bool {
    // Everything with an '@' may carry a password and is not shown.
    let (seen, advice) = if address.contains('@') {
        let advice = "leave out user and password here; they are keys of their own";
        ("an address with '@' in it".to_owned(), advice)
    } else if address.contains("://") {
        (format!("{:?}", short(shown)), "leave out the scheme before the host")
    } else if let Some(problem) = address_problem(address) {
        (format!("{:?} {problem}", short(shown)), "write the server's host and TCP port")
    } else {
        return true;
    };
    section.fail(key, words(seen, ADDRESS_EXAMPLE, advice));
    false
}

fn address_problem(address: &str) -> Option<&'static str> {
    let Some((host, port)) = address.rsplit_once(':') else {
        return Some("has no port");
    };
    let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    if host.is_empty() {
        Some("has no host")
    } else if host.len() > 255 || host.chars().any(|c| c.is_whitespace() || c.is_control()) {
        Some("has blanks or control characters in it, or is too long")
    } else if bracketed.is_some_and(|host| host.parse::<Ipv6Addr>().is_err()) {
        Some("has no IPv6 address between its brackets")
    } else if bracketed.is_none() && host.contains([':', '[', ']', '/']) {
        Some("has no host before its port (an IPv6 address needs brackets)")
    } else if !port.bytes().all(|b| b.is_ascii_digit()) || !port.parse().is_ok_and(|p: u16| p > 0) {
        Some("has no port from 1 to 65535")
    } else {
        None
    }
}

fn read_credentials(section: &Section<'_>) -> Option<Credentials> {
    let expected = "either username and password, or token";
    let username = section.text("username");
    let password = section.credential("password");
    let token = section.credential("token");
    let has = |key| section.has(key);
    match (has("username"), has("password"), has("token")) {
        (true, true, false) => {
            let username = username?.value;
            if username.is_empty() || username.len() > 255 || username.contains(char::is_control) {
                let expected = "1 to 255 bytes without control characters";
                section.fail("username", words("not a user name", expected, "correct the name"));
                return None;
            }
            Some(Credentials::Password { username, password: password? })
        }
        (false, false, true) => Some(Credentials::Token(token?)),
        (true, false, false) => {
            let advice = "add password = \"${env:NAME}\" or \"${file:/path}\"";
            section.fail("password", words("username without password", expected, advice));
            None
        }
        (false, true, false) => {
            let advice = "add username";
            section.fail("username", words("password without username", expected, advice));
            None
        }
        (false, false, false) => {
            let advice = "add username and password = \"${env:NAME}\", or token";
            section.fail("username", words("no credentials", expected, advice));
            None
        }
        (_, _, true) => {
            let advice = "keep one of the two forms";
            section.fail("token", words("token next to a user", expected, advice));
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_of_one_address_are_equal() {
        for (left, right) in [
            ("localhost:8090", "127.0.0.1:8090"),
            ("[::1]:8090", "LOCALHOST:8090"),
            ("[::ffff:10.0.0.1]:80", "10.0.0.1:80"),
            ("East.Example:8090", "east.example.:08090"),
            ("[2001:db8:0::1]:9", "[2001:db8::1]:9"),
        ] {
            assert_eq!(canonical_address(left), canonical_address(right), "{left} {right}");
        }
        for (left, right) in [("a:1", "a:2"), ("127.0.0.1:1", "127.0.0.2:1")] {
            assert_ne!(canonical_address(left), canonical_address(right));
        }
    }

    #[test]
    fn addresses_are_host_and_port() {
        for good in ["10.0.0.1:8090", "iggy.internal:1", "[::1]:8090", "localhost:65535"] {
            assert_eq!(address_problem(good), None, "{good}");
        }
        for bad in ["", "host", ":8090", "host:", "host:0", "host:65536", "host:+1", "a b:1"] {
            assert!(address_problem(bad).is_some(), "{bad}");
        }
        for bad in ["::1:8090", "[::1:8090", "[nothing]:8090", "host/path:1"] {
            assert!(address_problem(bad).is_some(), "{bad}");
        }
    }
}
