//! What the server says while it streams, and whether another try can help.

use super::finding::{Finding, Level};
use crate::pg_wire::{Lsn, Notice, ServerError};

/// The end of a stream by the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// Connect again after a pause.
    Retry(Finding),
    /// Somebody has to do something first.
    Stop(Finding),
}

/// Classifies the error that ended a stream of `slot`.
pub fn of_stream_error(slot: &str, error: &ServerError) -> Trouble {
    let said = error.to_string();
    let stop = |code, wanted: &str, fix: &str| {
        Trouble::Stop(Finding::refusal(code, format!("slot {slot:?}: {said}"), wanted, fix))
    };
    match error.code.as_str() {
        "42704" if error.message.contains("publication") => stop(
            "publication_younger",
            "a publication that is older than the changes to decode",
            "changes from before the publication was made cannot be decoded: drop the slot with \
             pg_drop_replication_slot and start with --accept-gap",
        ),
        "42704" => stop(
            "slot_missing",
            "the slot that was read before",
            "start with --accept-gap to make it anew (what is missing is recorded), or \
             `tidegate state reset`",
        ),
        "55000" if is_lost(&error.message, &said) => stop(
            "slot_lost",
            "a slot whose log is still there",
            "its changes are gone: drop it with pg_drop_replication_slot and start with \
             --accept-gap; raise max_slot_wal_keep_size",
        ),
        "0A000" => stop(
            "column_lists",
            "publications that agree on the columns of a table",
            "ALTER PUBLICATION ... SET TABLE ... with the same columns",
        ),
        "22021" => stop(
            "encoding",
            "text in the encoding of the database",
            "the database has bytes that are not valid text: correct that row, or leave its column \
             out (column list of the publication)",
        ),
        "42501" => {
            stop("privilege_missing", "the REPLICATION attribute", "ALTER ROLE ... REPLICATION")
        }
        _ => Trouble::Retry(Finding::of_error(&format!("slot {slot:?}"), error)),
    }
}

/// A login that the server refused for want of room or because it starts or stops: nothing is
/// wrong with role and password.
pub fn of_passing_login(address: &str, error: &ServerError) -> Finding {
    Finding::of_error(&format!("login to {address}"), error)
}

/// A notice that means lost changes: Postgres 18 skips what it cannot decode with these words.
pub fn of_notice(slot: &str, notice: &Notice) -> Option<Finding> {
    let skipped = notice.message.contains("skipped loading publication");
    skipped.then(|| {
        Finding::refusal(
            "publication_younger",
            format!("slot {slot:?}: {notice}"),
            "a publication that is older than the changes to decode",
            "changes were left out by the server: make the publication again if it is gone, then \
             start with --accept-gap or take the tables anew",
        )
    })
}

fn is_lost(message: &str, said: &str) -> bool {
    ["reserved size", "invalidated", "can no longer"]
        .iter()
        .any(|words| message.contains(words) || said.contains(words))
}

/// Notices an error that comes again at the same place: a row the server cannot send.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Poison {
    last: Option<(String, Lsn)>,
    times: u32,
}

/// That often in a row, and the stream stops.
pub const POISON_TIMES: u32 = 5;

impl Poison {
    /// The stream ended with `error` and nothing behind `at` had been received.
    pub fn failed(&mut self, error: &ServerError, at: Lsn) -> Option<Finding> {
        self.count(error.code.clone(), at);
        // Errors of connection and resources pass by themselves.
        let class = error.code.get(..2).unwrap_or_default();
        if self.times < POISON_TIMES || matches!(class, "57" | "08" | "53" | "55") {
            return None;
        }
        Some(Finding::new(
            Level::Refusal,
            "poison_row",
            format!("{} times the same error behind {at}: {error}", self.times),
            "a transaction that the server can send",
            "leave the large column out (column list of the publication), or skip the transaction \
             with pg_replication_slot_advance and start with --accept-gap",
        ))
    }

    /// What came behind `at` cannot be read, as `error` says.
    pub fn unreadable(&mut self, error: &str, at: Lsn) -> Option<Finding> {
        self.count(error.to_owned(), at);
        (self.times >= POISON_TIMES).then(|| {
            Finding::refusal(
                "poison_row",
                format!("{} times the same behind {at}: {error}", self.times),
                "a stream that can be read",
                "look at what lies between here and the server; skip the transaction with \
                 pg_replication_slot_advance and start with --accept-gap",
            )
        })
    }

    fn count(&mut self, what: String, at: Lsn) {
        let this = (what, at);
        self.times = if self.last.as_ref() == Some(&this) { self.times + 1 } else { 1 };
        self.last = Some(this);
    }
}
