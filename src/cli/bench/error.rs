//! Why a benchmark has no result.

use std::io;
use std::process::ExitStatus;

use super::postgres::PostgresError;
use super::session::SessionError;

/// Why there are no figures.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// Somebody asked for an end.
    #[error("interrupted while waiting for {what}; everything that was started is gone")]
    Interrupted {
        /// What it waited for.
        what: String,
    },
    /// Too slow, or stuck.
    #[error(
        "waited {seconds} s in vain for {what}; a slow machine needs fewer rows (--rows N). Last \
         lines:\n{log}"
    )]
    TimeLimit {
        /// What it waited for.
        what: String,
        /// How long.
        seconds: u64,
        /// End of the process's log.
        log: String,
    },
    /// It should have gone on, or have ended with 0.
    #[error("{who} ended with {end} during {what}. Its last lines:\n{log}")]
    Ended {
        /// Which process.
        who: &'static str,
        /// How it ended.
        end: ExitStatus,
        /// What was going on.
        what: String,
        /// End of its log.
        log: String,
    },
    /// Figures of something else than what was asked for.
    #[error("{what}: saw {seen}, expected {expected}; these figures would mean nothing")]
    Different {
        /// What was compared.
        what: String,
        /// On one side.
        seen: u64,
        /// On the other.
        expected: u64,
    },
    /// The server's log does not say when decoding began.
    #[error("the server's log has no line about slot {0:?}; see whether its messages are English")]
    NoStart(String),
    /// The machine does not provide something.
    #[error("{what}: {why}")]
    Machine {
        /// What was tried.
        what: &'static str,
        /// The kernel's words.
        why: io::Error,
    },
    /// A server that was named does not do its part.
    #[error("the server at {address}: {why}")]
    Server {
        /// Its address.
        address: String,
        /// What went wrong.
        why: io::Error,
    },
    /// The peer is a program of its own, and it is not there.
    #[error(
        "no program sdk_relay in {looked}; it is an example of this crate, because the SDK is no \
         part of the daemon: build it with `cargo build {flags}--example sdk_relay`"
    )]
    NoPeer {
        /// Where it was looked for.
        looked: String,
        /// What the build needs to be like this one.
        flags: &'static str,
    },
    /// What was made for the measurement was refused.
    #[error("the benchmark's own input was refused: {0}")]
    Refused(String),
    /// The server would not start.
    #[error(transparent)]
    Postgres(#[from] PostgresError),
    /// A session with it failed.
    #[error(transparent)]
    Session(#[from] SessionError),
}

impl BenchError {
    /// For `map_err`.
    pub fn machine(what: &'static str) -> impl Fn(io::Error) -> BenchError {
        move |why| BenchError::Machine { what, why }
    }
}
