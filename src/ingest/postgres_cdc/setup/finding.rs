//! What set-up has to say: findings with a stable code, what was found, what was wanted and what
//! to do about it.

use std::fmt;

use crate::pg_wire::ServerError;

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Good to know.
    Info,
    /// Works, and may hurt.
    Warning,
    /// No start while it is so; it may pass by itself.
    Wait,
    /// No start until somebody changes something.
    Refusal,
}

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Stable, for programs: `slot_lost`.
    pub code: &'static str,
    /// How much it matters.
    pub level: Level,
    /// What is so.
    pub found: String,
    /// What should be so.
    pub wanted: String,
    /// What to do.
    pub fix: String,
}

/// The finding that prevents a start.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refusal(pub Box<Finding>);

impl Refusal {
    /// Whether to try again after a while.
    pub fn is_transient(&self) -> bool {
        self.0.level == Level::Wait
    }

    /// Its code.
    pub fn code(&self) -> &'static str {
        self.0.code
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.found)?;
        for (word, text) in [("expected ", &self.wanted), ("", &self.fix)] {
            if !text.is_empty() {
                write!(f, "; {word}{text}")?;
            }
        }
        Ok(())
    }
}

impl Finding {
    /// From its parts.
    pub(super) fn new(
        level: Level,
        code: &'static str,
        found: impl Into<String>,
        wanted: impl Into<String>,
        fix: impl Into<String>,
    ) -> Finding {
        let (found, wanted, fix) = (found.into(), wanted.into(), fix.into());
        Finding { code, level, found, wanted, fix }
    }

    /// What keeps it from a start.
    pub(super) fn refusal(
        code: &'static str,
        found: impl Into<String>,
        wanted: impl Into<String>,
        fix: impl Into<String>,
    ) -> Finding {
        Finding::new(Level::Refusal, code, found, wanted, fix)
    }

    /// A query that failed while `doing`.
    pub(super) fn of_error(doing: &str, error: &ServerError) -> Finding {
        let class = error.code.get(..2).unwrap_or_default();
        let (level, code, fix) = match (class, error.code.as_str()) {
            (_, "42501") => (
                Level::Refusal,
                "privilege_missing",
                "give the role what is missing (LOGIN, REPLICATION, CREATE on the database, \
                 ownership of the tables) or prepare slot and publication as another role",
            ),
            (_, "53300") => {
                (Level::Wait, "senders_exhausted", "raise max_wal_senders or end another client")
            }
            (_, "53400") => {
                (Level::Wait, "slots_exhausted", "raise max_replication_slots or drop an old slot")
            }
            (_, "55006") => (Level::Wait, "slot_active", "stop the other client of the slot"),
            ("57" | "08" | "53" | "40", _) => {
                (Level::Wait, "server_unavailable", "nothing, it is tried again")
            }
            ("42" | "0A" | "22" | "28" | "3D", _) => {
                (Level::Refusal, "query_refused", "see the server's words")
            }
            _ => (Level::Wait, "query_failed", "see the server's words; it is tried again"),
        };
        Finding::new(level, code, format!("{doing}: {error}"), "", fix)
    }
}
