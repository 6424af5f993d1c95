//! Whose fault it was: the peer's bytes ([`WireError`]) or the peer's answer ([`ServerError`]).

/// Bytes that do not follow the protocol. The connection that carried them is beyond use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// A length inside the frame points behind its end.
    #[error("{what} is cut: need {need} bytes, have {have}")]
    Truncated {
        /// The field or structure.
        what: &'static str,
        /// Bytes needed.
        need: usize,
        /// Bytes there.
        have: usize,
    },
    /// A value no server sends.
    #[error("{what}: saw {seen}, expected {expected}")]
    Invalid {
        /// The field or structure.
        what: &'static str,
        /// What was there.
        seen: String,
        /// What the protocol allows.
        expected: &'static str,
    },
}

/// An error code in `status` or in the result section of a reply, or an eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerError {
    /// The server's code.
    pub code: u32,
}
