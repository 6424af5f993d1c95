//! Whose fault it was: the peer's bytes ([`WireError`]) or the peer's answer ([`ServerError`]).

use std::fmt;

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
    /// A value no server sends, or one of ours that no server takes.
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

/// An error code in `status` or in the result section of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerError {
    /// The server's code.
    pub code: u32,
}

impl ServerError {
    /// The code in words, for logs and status.
    pub fn name(self) -> &'static str {
        match self.code {
            3 => "invalid command",
            4 => "invalid format",
            5 => "feature unavailable",
            20 => "resource not found",
            30 => "stale client",
            40 => "unauthenticated",
            41 => "unauthorized",
            42 => "invalid credentials",
            53 => "invalid personal access token",
            57 => "outcome unknown: not known to be committed",
            58 => "not accepted now",
            59 => "request already applied",
            1009 => "stream not found",
            1012 => "stream exists",
            2010 => "topic not found",
            2013 => "topic exists",
            2015 => "invalid partition count",
            3007 => "partition not found",
            3021 => "consumer offset not found",
            3024 => "too many consumer offsets",
            4041 => "unknown option",
            4042 => "invalid option value",
            4100 => "invalid offset",
            5004 => "consumer group exists",
            5006 | 5009 => "consumer group member not found",
            14003 => "incompatible protocol",
            _ => "error unknown to this program",
        }
    }

    /// Asked again, the server may answer: it is not that it does not know the question.
    pub fn is_passing(self) -> bool {
        self.is_not_accepted() || self.is_unknown_outcome() || self.is_unauthenticated()
    }

    /// Done or not, nobody can say (57): look before doing it again.
    pub fn is_unknown_outcome(self) -> bool {
        self.code == 57
    }

    /// Certainly not done, and worth trying again soon, here or at another node (58).
    pub fn is_not_accepted(self) -> bool {
        self.code == 58
    }

    /// Done earlier, its reply is gone (59): read the state.
    pub fn is_already_applied(self) -> bool {
        self.code == 59
    }

    /// What was to be created is there (1012 stream, 2013 topic, 5004 group).
    pub fn is_exists(self) -> bool {
        matches!(self.code, 1012 | 2013 | 5004)
    }

    /// Stream, topic or partition is not there (20, 1009, 2010, 3007).
    pub fn is_not_found(self) -> bool {
        matches!(self.code, 20 | 1009 | 2010 | 3007)
    }

    /// The session is gone (30, 40): log in again.
    pub fn is_unauthenticated(self) -> bool {
        matches!(self.code, 30 | 40)
    }

    /// The user may not do this (41).
    pub fn is_unauthorized(self) -> bool {
        self.code == 41
    }

    /// The server does not know or does not take this topic option (4041, 4042).
    pub fn is_bad_option(self) -> bool {
        matches!(self.code, 4041 | 4042)
    }

    /// The server does not know this command (3, 5).
    pub fn is_unsupported(self) -> bool {
        matches!(self.code, 3 | 5)
    }
}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "server error {} ({})", self.code, self.name())
    }
}

impl std::error::Error for ServerError {}

/// An eviction's reason in words.
pub fn eviction_words(reason: u8) -> &'static str {
    match reason {
        1 => "no session",
        2 => "release too low",
        3 => "release too high",
        4 => "invalid operation",
        5 => "invalid body",
        6 => "invalid size",
        7 => "superseded by another login with the same client id",
        9 => "invalid credentials",
        10 => "invalid personal access token",
        11 => "user inactive",
        12 => "session error",
        13 => "silent for too long",
        14 => "protocol version not accepted",
        15 => "malformed login",
        _ => "a reason unknown to this program",
    }
}

/// True when logging in again the same way cannot help (9 to 11, 14, 15).
pub fn eviction_is_final(reason: u8) -> bool {
    matches!(reason, 9..=11 | 14 | 15)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_code_has_one_classification() {
        let classes: [fn(ServerError) -> bool; 9] = [
            ServerError::is_unknown_outcome,
            ServerError::is_not_accepted,
            ServerError::is_already_applied,
            ServerError::is_exists,
            ServerError::is_not_found,
            ServerError::is_unauthenticated,
            ServerError::is_unauthorized,
            ServerError::is_bad_option,
            ServerError::is_unsupported,
        ];
        let mut classified = 0;
        for code in 0..20_000 {
            let hits = classes.iter().filter(|class| class(ServerError { code })).count();
            assert!(hits <= 1, "code {code} is in {hits} classes");
            classified += hits;
        }
        assert_eq!(classified, 17);
    }

    #[test]
    fn errors_name_the_code_and_say_it_in_words() {
        assert_eq!(ServerError { code: 2013 }.to_string(), "server error 2013 (topic exists)");
        assert!(ServerError { code: 77_777 }.to_string().contains("77777"));
    }

    #[test]
    fn only_a_login_that_cannot_succeed_is_final() {
        let last: Vec<u8> = (0..=u8::MAX).filter(|r| eviction_is_final(*r)).collect();
        assert_eq!(last, [9, 10, 11, 14, 15]);
        for reason in 1..=15 {
            assert_eq!(eviction_words(reason).contains("unknown"), reason == 8);
        }
    }
}
