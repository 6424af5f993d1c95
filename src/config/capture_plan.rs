//! The validated plan of a `kind = "postgres_cdc"` source: plain values, every default filled in.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::plan::{ClusterPlan, OnCorruptState};
use super::postgres::PostgresPlan;
use super::routing_plan::{OnAdmissionFailure, RoutingPlan};
use crate::batch::SourceKey;

/// `[sources.<key>]` of `kind = "postgres_cdc"`.
#[derive(Clone, Debug)]
pub struct CapturePlan {
    /// Its key: `[a-z0-9_-]`, part of a file name.
    pub key: SourceKey,
    /// Destination cluster.
    pub to: Arc<ClusterPlan>,
    /// Where the database is and how to log in.
    pub postgres: Arc<PostgresPlan>,
    /// Replication slot, `[a-z0-9_]{1,63}`. Default `tidegate_<key>`.
    pub slot: String,
    /// Publication. Default: the name of the slot.
    pub publication: String,
    /// What to publish.
    pub tables: Tables,
    /// Output plugin.
    pub decoder: Decoder,
    /// Ask for transactions that are still in progress (P8). Default false.
    pub streaming: bool,
    /// Ask for binary values where every type has a codec. Default false.
    pub binary: bool,
    /// What a message's payload is (P4).
    pub envelope: EnvelopePlan,
    /// Put table, operation and times into the payload of `envelope = "record"`. Default true.
    pub include_metadata: bool,
    /// Column names in snake case. Default false.
    pub snake_case_columns: bool,
    /// `numeric_as = "string"`: numeric values as JSON strings (P5). Default false.
    pub numeric_as_string: bool,
    /// Which kinds of change become messages.
    pub operations: Operations,
    /// Create streams and topics that are missing (A5). Default true.
    pub auto_create: bool,
    /// Failures in a row until `Degraded` (C3). Default 16.
    pub commit_failure_threshold: u32,
    /// How long a stop waits for the commit in flight (C4). Default 30 s, at most
    /// `drain_timeout`.
    pub commit_stop_grace: Duration,
    /// Pending work that has not moved for this long is `Degraded` (C3). Default 60 s.
    pub degraded_after: Duration,
    /// First wait after a failure, doubled up to `max_retry_interval`. Default 1 s.
    pub retry_interval: Duration,
    /// Longest wait (C3). Default 30 s.
    pub max_retry_interval: Duration,
    /// Batches with a send outstanding (C2). Default 8.
    pub max_in_flight_batches: u32,
    /// Bound on one batch, bytes. Default 1 MiB.
    pub max_batch_bytes: u32,
    /// Which message goes where.
    pub routing: RoutingPlan,
    /// What to do about destinations that may forget what they acked (A9).
    pub require_durable: RequireDurable,
    /// The state file cannot be read (S2).
    pub on_corrupt_state: OnCorruptState,
    /// `[[sources.<key>.tests]]` (R9).
    pub tests: Vec<RouteTest>,
}

impl CapturePlan {
    /// How its position moves (C1); decided by the kind of source, never by a key.
    pub fn mode(&self) -> SourceMode {
        SourceMode::Cdc
    }
}

/// How an upstream forgets what was read (C1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceMode {
    /// It keeps everything until it is told.
    Cdc,
    /// It is asked again and again.
    Polling {
        /// What was read is deleted or marked afterwards.
        destructive: bool,
    },
    /// It cannot be asked again.
    Opaque,
}

impl SourceMode {
    /// `on_admission_failure` where the file does not say it (A4): what upstream forgets once it
    /// is told must not be dropped.
    pub fn usual_admission_failure(self) -> OnAdmissionFailure {
        match self {
            SourceMode::Cdc | SourceMode::Polling { destructive: true } => {
                OnAdmissionFailure::Error
            }
            SourceMode::Polling { destructive: false } | SourceMode::Opaque => {
                OnAdmissionFailure::Drop
            }
        }
    }
}

/// `tables`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tables {
    /// `"*"`: whatever a publication made by hand holds.
    All,
    /// These, in the order of the file.
    List(Vec<TableName>),
}

impl Tables {
    /// Whether changes of this table are asked for, as far as the file says.
    pub fn includes(&self, schema: &str, name: &str) -> bool {
        match self {
            Tables::All => true,
            Tables::List(tables) => tables.iter().any(|table| table.is(schema, name)),
        }
    }
}

/// A table, schema and name as the catalogue has them: no quotes, case kept.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableName {
    /// Schema.
    pub schema: String,
    /// Name in it.
    pub name: String,
}

impl TableName {
    /// Whether it is this one.
    pub fn is(&self, schema: &str, name: &str) -> bool {
        self.schema == schema && self.name == name
    }

    /// Reads `name` (schema `public`), `schema.name`, or either part in double quotes, doubled
    /// inside: `"my.schema"."We ird"`.
    pub fn parse(text: &str) -> Result<TableName, &'static str> {
        let (first, rest) = identifier(text)?;
        let (schema, name) = match rest.strip_prefix('.') {
            None if rest.is_empty() => ("public".to_owned(), first),
            None => return Err("blanks or signs around a quoted name"),
            Some(rest) => match identifier(rest)? {
                (second, "") => (first, second),
                _ => return Err("more than schema and table"),
            },
        };
        Ok(TableName { schema, name })
    }
}

/// As a configuration would write it.
impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (separator, part) in [("", &self.schema), (".", &self.name)] {
            f.write_str(separator)?;
            if part.contains(['.', '"']) {
                write!(f, "\"{}\"", part.replace('"', "\"\""))?;
            } else {
                f.write_str(part)?;
            }
        }
        Ok(())
    }
}

/// `decoder`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decoder {
    /// The server's own binary plugin, filtered by a publication.
    PgOutput,
    /// Text lines; every table of the database is decoded and sent.
    TestDecoding,
}

impl Decoder {
    /// The plugin's name.
    pub fn as_str(self) -> &'static str {
        match self {
            Decoder::PgOutput => "pgoutput",
            Decoder::TestDecoding => "test_decoding",
        }
    }
}

/// `envelope`, or `payload_column` with its format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EnvelopePlan {
    /// Table, operation, time, new and old row.
    Record,
    /// The row's columns alone.
    Flat,
    /// One column is the payload.
    Column {
        /// Which.
        column: String,
        /// What it holds.
        format: PayloadFormat,
    },
}

/// `payload_format`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PayloadFormat {
    /// `bytea`: its bytes.
    Bytea,
    /// The server's text form, whatever the type.
    Raw,
    /// A text column.
    Text,
    /// A `json` column, verbatim.
    JsonDirect,
    /// A `jsonb` column, in the server's text form.
    Jsonb,
}

/// `capture_operations`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operations {
    /// INSERT.
    pub insert: bool,
    /// UPDATE.
    pub update: bool,
    /// DELETE.
    pub delete: bool,
    /// TRUNCATE.
    pub truncate: bool,
}

/// `require_durable`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequireDurable {
    /// Say it at start.
    Warn,
    /// Send nothing to such a destination.
    Refuse,
    /// Not looked at.
    Off,
}

/// One of `[[sources.<key>.tests]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteTest {
    /// Where the file says so: `sources.<key>.tests[0]`.
    pub path: String,
    /// Line of it.
    pub line: usize,
    /// The row's table.
    pub table: TableName,
    /// The row as a JSON object.
    pub row: String,
    /// Its key columns.
    pub key: Vec<String>,
    /// What must come of it.
    pub expect: Expectation,
}

/// What a routing test expects; `None` parts may be anything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expectation {
    /// Stream.
    pub stream: Option<String>,
    /// Topic.
    pub topic: Option<String>,
    /// Partition, with `topic_defaults.partitions_count` partitions.
    pub partition: Option<u32>,
    /// `send`, `hold`, `drop` or `dead_letter`.
    pub verdict: Option<String>,
    /// Reason of a verdict other than `send`.
    pub reason: Option<String>,
}

/// One identifier from the start of `text`, and what follows.
fn identifier(text: &str) -> Result<(String, &str), &'static str> {
    let (name, rest) = match text.strip_prefix('"') {
        None => {
            let end = text.find(['.', '"']).unwrap_or(text.len());
            let (name, rest) = text.split_at(end);
            if name.trim() != name {
                return Err("blanks around a name; quote them if they belong to it");
            }
            (name.to_owned(), rest)
        }
        Some(quoted) => {
            let mut name = String::new();
            let mut chars = quoted.char_indices().peekable();
            loop {
                match chars.next() {
                    None => return Err("a quote that does not end"),
                    Some((_, '"')) if chars.next_if(|(_, c)| *c == '"').is_some() => name.push('"'),
                    Some((at, '"')) => break (name, &quoted[at + 1..]),
                    Some((_, c)) => name.push(c),
                }
            }
        }
    };
    if name.is_empty() {
        return Err("an empty name");
    }
    if name.len() > 63 || name.contains('\0') {
        return Err("a name that Postgres cannot have (1 to 63 bytes, no NUL)");
    }
    Ok((name, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_can_be_read_again_is_dropped_by_default() {
        let polling = |destructive| SourceMode::Polling { destructive };
        for (mode, usual) in [
            (SourceMode::Cdc, OnAdmissionFailure::Error),
            (polling(true), OnAdmissionFailure::Error),
            (polling(false), OnAdmissionFailure::Drop),
            (SourceMode::Opaque, OnAdmissionFailure::Drop),
        ] {
            assert_eq!(mode.usual_admission_failure(), usual, "{mode:?}");
        }
    }

    #[test]
    fn table_names_read_back_as_shown() {
        for (text, schema, name) in [
            ("orders", "public", "orders"),
            ("shop.Orders", "shop", "Orders"),
            ("\"my.schema\".\"We ird\"", "my.schema", "We ird"),
            ("public.\"na\"\"me\"", "public", "na\"me"),
            ("ünï.tbl", "ünï", "tbl"),
        ] {
            let table = TableName::parse(text).unwrap();
            assert!(table.is(schema, name), "{text}: {table:?}");
            assert_eq!(TableName::parse(&table.to_string()), Ok(table), "{text}");
        }
    }

    #[test]
    fn what_is_no_table_name_is_refused() {
        let long = "x".repeat(64);
        for text in ["", ".", "a.", ".b", "a.b.c", "\"a", "\"a\"b", "a\"b\"", " a", "a .b", &long] {
            assert!(TableName::parse(text).is_err(), "{text:?}");
        }
    }
}
