//! Why a request to the destination cluster has no good answer, and what that says.

use std::fmt;

use crate::iggy_wire::ServerError;

/// Why there is no good answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The server refused with this code.
    Refused(u32),
    /// No answer in time. For a send: done or not, nobody can say.
    TimedOut,
    /// The connection ended first. For a send: likewise.
    Lost,
    /// The answer is too large or does not decode.
    Malformed(String),
}

/// When to try again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Again {
    /// At once, on a connection that is up.
    Now,
    /// After a short pause: a leader is being elected, or a partition is not ready.
    Soon,
    /// When the topic was looked at anew, and after a pause that grows.
    Looked,
    /// After a pause that grows.
    Later,
}

impl Failure {
    /// It says something about the destination (A6): not a lost connection, not a lost leader.
    pub fn counts(&self) -> bool {
        match self {
            Failure::Refused(code) => {
                let error = ServerError { code: *code };
                !(error.is_not_accepted()
                    || error.is_unknown_outcome()
                    || error.is_unauthenticated())
            }
            Failure::TimedOut | Failure::Malformed(_) => true,
            Failure::Lost => false,
        }
    }

    /// When to send it again; it is always sent again, with the same ids (G5).
    pub fn again(&self) -> Again {
        match self {
            Failure::Refused(code) => {
                let error = ServerError { code: *code };
                if error.is_not_found() {
                    Again::Looked
                } else if self.counts() {
                    Again::Later
                } else {
                    Again::Soon
                }
            }
            Failure::Lost => Again::Now,
            Failure::TimedOut | Failure::Malformed(_) => Again::Later,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Refused(code) => ServerError { code: *code }.fmt(f),
            Failure::TimedOut => f.write_str("no answer in time"),
            Failure::Lost => f.write_str("the connection was lost"),
            Failure::Malformed(why) => f.write_str(why),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_destinations_own_failures_count() {
        for failure in [Failure::TimedOut, Failure::Malformed("x".into()), Failure::Refused(41)] {
            assert!(failure.counts(), "{failure}");
            assert_eq!(failure.again(), Again::Later, "{failure}");
        }
        for code in [57, 58, 40] {
            let failure = Failure::Refused(code);
            assert!(!failure.counts(), "{failure}");
            assert_eq!(failure.again(), Again::Soon, "{failure}");
        }
        assert!(!Failure::Lost.counts());
        assert_eq!(Failure::Lost.again(), Again::Now);
        for code in [20, 1009, 2010, 3007] {
            assert_eq!(Failure::Refused(code).again(), Again::Looked);
        }
    }
}
