//! What set-up is asked for, what it asks, and what it ends with.

use std::time::Duration;

use super::finding::{Finding, Refusal};
use super::resume::{Gap, Saved};
use crate::config::{Decoder, Operations, RoutingPlan, TableName, Tables};
use crate::ingest::postgres_cdc::position::Timelines;
use crate::ingest::postgres_cdc::test_lines::TableFact;
use crate::pg_wire::Lsn;
use crate::pg_wire::replication::publication_list;

/// What a capture wants of its database.
#[derive(Clone, Debug)]
pub struct SetupOptions {
    /// Slot, `[a-z0-9_]{1,63}`.
    pub slot: String,
    /// Publication; not used by test_decoding.
    pub publication: String,
    /// Which tables.
    pub tables: Tables,
    /// Output plugin.
    pub decoder: Decoder,
    /// Which changes.
    pub operations: Operations,
    /// By what rows are routed.
    pub routed: RoutedBy,
    /// Transactions before their commit.
    pub streaming: bool,
    /// Binary values, if every type has a codec.
    pub binary: bool,
    /// Rows are kept together by their keys.
    pub row_keys: bool,
    /// A slot that standbys copy (from Postgres 17).
    pub failover: bool,
    /// Database of the saved position.
    pub database: Option<String>,
    /// The saved position.
    pub saved: Option<Saved>,
    /// Go on behind changes that are gone, and record that.
    pub accept_gap: bool,
    /// Look only.
    pub check: bool,
    /// How long another client of the slot is waited for, beyond wal_sender_timeout.
    pub active_slack: Duration,
    /// After which time somebody looks who holds a new slot up.
    pub create_patience: Duration,
    /// How often that happens before it is given up.
    pub create_looks: u32,
}

impl SetupOptions {
    /// For a slot and a publication, with everything else as usual.
    pub fn new(slot: &str, publication: &str) -> SetupOptions {
        SetupOptions {
            slot: slot.to_owned(),
            publication: publication.to_owned(),
            tables: Tables::All,
            decoder: Decoder::PgOutput,
            operations: Operations { insert: true, update: true, delete: true, truncate: true },
            routed: RoutedBy::default(),
            streaming: false,
            binary: false,
            row_keys: false,
            failover: false,
            database: None,
            saved: None,
            accept_gap: false,
            check: false,
            active_slack: Duration::from_secs(10),
            create_patience: Duration::from_secs(10),
            create_looks: 30,
        }
    }
}

/// By what rows are routed, as far as the tables have to know.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RoutedBy {
    /// Columns.
    pub columns: Vec<String>,
    /// Tables whose rows have a destination whatever their columns say.
    pub fixed: Vec<TableName>,
}

impl RoutedBy {
    /// What a plan says.
    pub fn of(plan: &RoutingPlan) -> RoutedBy {
        let RoutingPlan { topic_column, stream_column, partition_key_column, by_table, .. } = plan;
        let mut columns: Vec<String> = Vec::new();
        for column in [topic_column, stream_column, partition_key_column].into_iter().flatten() {
            if !columns.contains(column) {
                columns.push(column.clone());
            }
        }
        RoutedBy { columns, fixed: by_table.iter().map(|(table, _)| table.clone()).collect() }
    }
}

/// Which session a question is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Session {
    /// An ordinary one.
    Query,
    /// The one that will stream: `replication=database`.
    Replication,
}

/// A question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// For whom.
    pub on: Session,
    /// What.
    pub sql: String,
    /// Call [`super::Setup::overdue`] when the answer is not there after this time.
    pub within: Option<Duration>,
}

/// What comes next.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Put this question and hand its answer to [`super::Setup::answer`].
    Ask(Ask),
    /// Wait and call [`super::Setup::waited`]; `why` is for status.
    Wait {
        /// How long.
        after: Duration,
        /// What for.
        why: String,
    },
    /// The answer of the other session is still to come; `why` is for status.
    Pending {
        /// What for.
        why: String,
    },
    /// Save what is in it, then start.
    Ready(Box<SetupDone>),
    /// Not like this.
    Refused(Refusal),
    /// End of a check.
    Checked(Vec<Finding>),
}

/// Everything a stream starts with.
#[derive(Clone, Debug, PartialEq)]
pub struct SetupDone {
    /// System identifier of the cluster.
    pub system_id: u64,
    /// Its timeline.
    pub timeline: u32,
    /// Its history, for message ids.
    pub timelines: Timelines,
    /// Where its log ended when it was asked.
    pub wal_end: Lsn,
    /// Database.
    pub database: String,
    /// Server version, `150004` for 15.4.
    pub version: u32,
    /// After which silence the server cuts a connection; `None` for never.
    pub wal_sender_timeout: Option<Duration>,
    /// Where streaming starts.
    pub start_at: Lsn,
    /// The slot is new.
    pub slot_created: bool,
    /// Where it begins; to be saved before the start.
    pub consistent_point: Option<Lsn>,
    /// Changes that are gone; to be saved before the start.
    pub gap: Option<Gap>,
    /// The command that starts it.
    pub start_sql: String,
    /// Of all that decides how rows are counted.
    pub config_hash: u64,
    /// Values come in binary form.
    pub binary: bool,
    /// What is known of the tables, for test_decoding.
    pub facts: Vec<TableFact>,
    /// What should be known.
    pub notes: Vec<Finding>,
}

/// Options of START_REPLICATION, as far as this version knows them and they differ from its own
/// choice.
pub(super) fn start_options(options: &SetupOptions, version: u32) -> Vec<(String, String)> {
    let own = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    };
    if options.decoder == Decoder::TestDecoding {
        let on = "on";
        return own(&[("include-xids", on), ("include-timestamp", on), ("skip-empty-xacts", on)]);
    }
    let streaming = options.streaming && version >= 140_000;
    let publications = publication_list(&[&options.publication]);
    let mut pairs = own(&[
        ("proto_version", if streaming { "2" } else { "1" }),
        ("publication_names", &publications),
    ]);
    if streaming {
        pairs.extend(own(&[("streaming", "on")]));
    }
    if options.binary && version >= 140_000 {
        pairs.extend(own(&[("binary", "true")]));
    }
    pairs
}
