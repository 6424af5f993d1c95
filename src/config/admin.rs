//! `[admin]`: where the admin interface listens and who may change something.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::plan::AdminPlan;
use super::reader::{Section, short, words};

pub(super) const ADMIN_KEYS: &[&str] = &["listen", "token"];

const LISTEN_EXPECTED: &str =
    "a loopback address and port, such as \"127.0.0.1:8099\", or \"unix:/path\"";
/// `sockaddr_un` has 108 bytes for it.
const LONGEST_SOCKET_PATH: usize = 100;

/// `listen` of `[admin]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// Address and port.
    Tcp(SocketAddr),
    /// Path of a Unix socket, 0600.
    Unix(PathBuf),
}

impl Listen {
    /// Callers come from this machine only.
    pub fn is_local(&self) -> bool {
        match self {
            Listen::Tcp(address) => address.ip().to_canonical().is_loopback(),
            Listen::Unix(_) => true,
        }
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Listen::Tcp(address) => address.fmt(f),
            Listen::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// The bearer token of the admin interface, kept as its digest alone.
#[derive(Clone, PartialEq, Eq)]
pub struct AdminToken([u8; 32]);

impl AdminToken {
    /// Of this text.
    pub fn new(token: &str) -> AdminToken {
        AdminToken(Sha256::digest(token.as_bytes()).into())
    }

    /// Whether `shown` is the token. Digests are compared, in constant time: how long it takes
    /// says nothing about how much of a guess was right, nor how long the token is.
    pub fn matches(&self, shown: &str) -> bool {
        self.0.ct_eq(Sha256::digest(shown.as_bytes()).as_slice()).into()
    }
}

impl fmt::Debug for AdminToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("token (hidden)")
    }
}

pub(super) fn read_admin(root: &Section<'_>) -> Option<AdminPlan> {
    let section = root.table("admin")?;
    section.refuse_unknown(ADMIN_KEYS, &[]);
    let listen = read_listen(&section);
    let token = section.credential("token");
    if section.has("token") && token.is_none() {
        return None;
    }
    let token = token.map(|token| AdminToken::new(token.expose()));
    let listen = listen?;
    if !listen.is_local() && token.is_none() {
        section.fail(
            "listen",
            words(
                format!("{:?} is reachable from other machines", listen.to_string()),
                LISTEN_EXPECTED,
                "listen on loopback, or set token: then every request must carry it",
            ),
        );
        return None;
    }
    Some(AdminPlan { listen, token })
}

fn read_listen(section: &Section<'_>) -> Option<Listen> {
    let Some(text) = section.text("listen") else {
        if !section.has("listen") {
            let advice = "add listen, or remove [admin] to run without it";
            section.fail("listen", words("the key is missing", LISTEN_EXPECTED, advice));
        }
        return None;
    };
    let seen = format!("{:?}", short(&text.shown));
    if let Some(path) = text.value.strip_prefix("unix:") {
        if path.starts_with('/') && path.len() <= LONGEST_SOCKET_PATH && !path.contains('\0') {
            return Some(Listen::Unix(PathBuf::from(path)));
        }
        let advice = "write unix: and an absolute path of at most 100 bytes";
        section.fail("listen", words(seen, LISTEN_EXPECTED, advice));
        return None;
    }
    match text.value.parse::<SocketAddr>() {
        Ok(listen) => Some(Listen::Tcp(listen)),
        Err(_) => {
            let advice = "write an IP address and a port; for localhost write 127.0.0.1";
            section.fail("listen", words(seen, LISTEN_EXPECTED, advice));
            None
        }
    }
}
