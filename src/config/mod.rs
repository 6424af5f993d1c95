//! Configuration: TOML text → tables with positions → validated [`Plan`].
//!
//! [`parse`] is pure; [`load()`] is the only part that opens files. Every finding carries file,
//! line, column, key, what was seen, what was expected and what to do (O1), and all findings of
//! a file are collected before any is reported. Unknown keys are refused. `${env:X}` and
//! `${file:/path}` stand for values kept elsewhere; an expanded value never appears in a finding,
//! only the reference as written.
//!
//! * `reader` typed reads from a table, `value` durations and sizes, `secret` references
//! * `daemon`, `admin`, `clusters`, `sources` one file per table, `capture*` for the sources of
//!   Postgres; `crossing` what only shows across sources (loops, two feeds onto one partition)
//! * [`postgres`] connection strings and password files of Postgres
//! * [`budget`] the arithmetic of `max_buffered_bytes` (G6)

mod admin;
pub mod budget;
mod capture;
mod capture_admission;
pub mod capture_plan;
mod capture_reach;
mod capture_routing;
mod capture_tests;
mod clusters;
mod crossing;
mod daemon;
mod error;
mod load;
pub mod plan;
pub mod postgres;
mod reader;
pub mod routing_plan;
mod secret;
mod sources;
mod value;

use toml::de::DeTable;

use reader::{Document, Words, words};

pub use admin::{AdminToken, Listen};
pub use capture_plan::*;
pub use clusters::{Settle, same_address};
pub use daemon::check_log_level;
pub use error::{ConfigError, ConfigErrors, Position};
pub use load::{SystemSecrets, load, load_without_credentials};
pub use plan::*;
pub use postgres::{ConnInfoError, PostgresHost, PostgresPlan, RootCert, SslMode};
pub use routing_plan::*;
pub use secret::{SecretError, Secrets};

/// Top-level tables.
const TABLES: &[&str] = &["daemon", "admin", "clusters", "sources"];

/// Reads a configuration. `file_name` appears in findings only.
pub fn parse(text: &str, file_name: &str, secrets: &dyn Secrets) -> Result<Plan, ConfigErrors> {
    read(&Document::new(text, file_name, secrets, true))
}

/// Like [`parse`], but leaves passwords and tokens unread: for commands that only look at files.
pub fn parse_without_credentials(
    text: &str,
    file_name: &str,
    secrets: &dyn Secrets,
) -> Result<Plan, ConfigErrors> {
    read(&Document::new(text, file_name, secrets, false))
}

fn read(doc: &Document<'_>) -> Result<Plan, ConfigErrors> {
    // Only the message of a syntax error is used: its display form quotes the source line, which
    // may hold a password.
    let (root, syntax) = DeTable::parse_recoverable(doc.text());
    for error in &syntax {
        doc.syntax(error.message(), error.span());
    }
    if !syntax.is_empty() {
        return Err(doc.take_errors());
    }
    let root = doc.root(root.get_ref());
    root.refuse_unknown(TABLES, &[]);
    let daemon = daemon::read_daemon(doc, &root);
    let admin = admin::read_admin(&root);
    let clusters = clusters::read(&root);
    let drain_timeout = daemon.as_ref().map(|daemon| daemon.drain_timeout);
    let mut sources = sources::read(&root, &clusters, drain_timeout);
    crossing::check(doc, &clusters, &mut sources);
    if let Some(daemon) = &daemon {
        check_budget(&root, daemon, sources.edges.len() + sources.captures.len());
    }
    match daemon {
        Some(daemon) if !doc.has_findings() => Ok(Plan {
            daemon,
            admin,
            clusters: clusters.plans(),
            sources: sources.plans,
            captures: sources.captures.into_iter().map(|capture| capture.plan).collect(),
            warnings: doc.take_warnings(),
        }),
        _ => Err(doc.take_errors()),
    }
}

/// The least a plan needs: every topic has a partition, `auto` has a core. The count at start is
/// checked again with the same function.
fn check_budget(root: &reader::Section<'_>, daemon: &DaemonPlan, topics: usize) {
    let shards = match daemon.shards {
        Shards::Auto => 1,
        Shards::Count(count) => count,
    };
    let feeds = u32::try_from(topics).unwrap_or(u32::MAX).div_ceil(u32::from(shards.max(1)));
    if let (Err(short), Some(section)) =
        (budget::check(daemon.max_buffered_bytes, shards, feeds), root.table("daemon"))
    {
        section.fail(
            "max_buffered_bytes",
            Words { seen: short.seen(), expected: short.expected(), advice: short.advice() },
        );
    }
}

/// Shown where a table that must exist does not.
fn absent(what: &str, example: &str) -> Words {
    words(format!("{what} is missing"), format!("a table such as {example}"), "add the table")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_documented() {
        let text = include_str!("../../docs/config.md");
        let keys = daemon::DAEMON_KEYS
            .iter()
            .chain(admin::ADMIN_KEYS)
            .chain(clusters::KEYS)
            .chain(sources::KEYS)
            .chain(sources::INCLUDE_KEYS)
            .chain(capture::KEYS)
            .chain(capture_routing::ROUTING_KEYS)
            .chain(capture_admission::ADMISSION_KEYS)
            .chain(capture_admission::BREAKER_KEYS)
            .chain(capture_admission::TOPIC_KEYS)
            .chain(capture_tests::TEST_KEYS)
            .chain(capture_tests::EXPECT_KEYS);
        for key in keys {
            assert!(text.contains(&format!("`{key}`")), "docs/config.md does not explain `{key}`");
        }
    }
}
