//! How much log the slot keeps on the server, and how near it is to losing it (P11).

use super::facts::Answer;
use super::finding::{Finding, Level};
use super::sql;
use crate::pg_wire::Lsn;
use crate::pg_wire::query::Rows;

/// What the server says about the slot's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watch {
    /// Bytes of log that cannot be removed because of the slot.
    pub retained: u64,
    /// Bytes that were not confirmed yet.
    pub unconfirmed: u64,
    /// `reserved`, `extended`, `unreserved`, `lost`.
    pub wal_status: String,
    /// Bytes until it may be lost; `None` without a limit.
    pub safe_wal_size: Option<i64>,
    /// Why it is of no use.
    pub invalid: Option<String>,
}

/// The question, for a server of `version`.
pub fn watch_sql(slot: &str, version: u32) -> String {
    sql::watch(slot, version)
}

impl Watch {
    /// From the answer; `None` if the slot is gone.
    pub fn read(answer: &[Rows]) -> Result<Option<Watch>, Finding> {
        let answer = Answer::new("the slot's log", answer);
        let Some(row) = answer.records().next() else { return Ok(None) };
        let wal_end: Lsn = row.parsed("wal_end")?;
        let behind = |lsn: Option<Lsn>| lsn.map_or(0, |lsn| wal_end.bytes_since(lsn));
        Ok(Some(Watch {
            retained: behind(row.optional("restart_lsn")?),
            unconfirmed: behind(row.optional("confirmed_flush_lsn")?),
            wal_status: row.value("wal_status").unwrap_or_default().to_owned(),
            safe_wal_size: row.optional("safe_wal_size")?,
            invalid: row.value("invalid").map(str::to_owned),
        }))
    }

    /// What is alarming about it.
    pub fn finding(&self, slot: &str) -> Option<Finding> {
        let (level, code) = match (self.wal_status.as_str(), &self.invalid) {
            ("lost", _) | (_, Some(_)) => (Level::Refusal, "slot_lost"),
            ("unreserved" | "extended", None) => (Level::Warning, "slot_wal_status"),
            _ => return None,
        };
        let why = self.invalid.as_deref().unwrap_or(&self.wal_status);
        let left = self
            .safe_wal_size
            .map_or_else(String::new, |left| format!(", {left} bytes until it may be lost"));
        Some(Finding::new(
            level,
            code,
            format!("slot {slot:?} keeps {} bytes of log, {why}{left}", self.retained),
            "reserved",
            "let the capture catch up, or raise max_slot_wal_keep_size",
        ))
    }
}
